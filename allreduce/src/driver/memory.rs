//! Device buffers, pinned host buffers, and host memory shared between processes.

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use cudarc::driver::sys;

use super::context::Device;
use super::cu;
use super::stream::Stream;
use crate::{Error, Result};

mod sealed {
    /// Plain numbers: every bit pattern is a value, no padding.
    pub trait Sealed: Copy + 'static {}
}

/// Numbers that may be copied to and from a GPU.
pub trait Pod: sealed::Sealed {}
macro_rules! pod { ($($t:ty)*) => { $(impl sealed::Sealed for $t {} impl Pod for $t {})* } }
pod!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// Memory on one GPU; clones share it, the last one frees it.
#[derive(Debug, Clone)]
pub struct DeviceBuffer {
    inner: Arc<DeviceInner>,
}

#[derive(Debug)]
struct DeviceInner {
    device: Device,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes` (at least 1 is taken) of uninitialised memory on `device`.
    ///
    /// # Errors
    /// Out of memory, or the driver's own error.
    pub fn new(device: &Device, bytes: usize) -> Result<DeviceBuffer> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: the context is current and the out-parameter is valid.
        unsafe { cu!(cuMemAlloc_v2(&mut address, bytes.max(1)))? };
        Ok(DeviceBuffer {
            inner: Arc::new(DeviceInner {
                device: device.clone(),
                address,
                bytes,
            }),
        })
    }

    /// Allocates and fills with zeros, waiting for the fill.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`].
    pub fn zeroed(stream: &Stream, bytes: usize) -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::new(stream.device(), bytes)?;
        buffer.fill(stream, 0)?;
        stream.synchronize()?;
        Ok(buffer)
    }

    /// Allocates and copies `values` into it, waiting for the copy.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`].
    pub fn from_slice<T: Pod>(stream: &Stream, values: &[T]) -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::new(stream.device(), size_of_val(values))?;
        buffer.upload(stream, 0, values)?;
        Ok(buffer)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The device address of the first byte.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// The GPU that holds the memory.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Copies `values` to byte `offset_bytes`, and waits.
    ///
    /// # Errors
    /// Out of range, or the driver's own error.
    pub fn upload<T: Pod>(&self, stream: &Stream, offset_bytes: usize, values: &[T]) -> Result<()> {
        let bytes = size_of_val(values);
        let at = self.range(offset_bytes, bytes)?;
        stream.bind()?;
        // SAFETY: source and destination hold `bytes`; the wait below keeps the borrow long enough.
        unsafe {
            cu!(cuMemcpyHtoDAsync_v2(
                at,
                values.as_ptr().cast(),
                bytes,
                stream.raw()
            ))?
        };
        stream.synchronize()
    }

    /// Copies `count` values from byte `offset_bytes`, and waits.
    ///
    /// # Errors
    /// Out of range, or the driver's own error.
    pub fn download<T: Pod + Default>(
        &self,
        stream: &Stream,
        offset_bytes: usize,
        count: usize,
    ) -> Result<Vec<T>> {
        let bytes = count.saturating_mul(size_of::<T>());
        let at = self.range(offset_bytes, bytes)?;
        let mut values = vec![T::default(); count];
        stream.bind()?;
        // SAFETY: source and destination hold `bytes`; the wait below ends the copy.
        unsafe {
            cu!(cuMemcpyDtoHAsync_v2(
                values.as_mut_ptr().cast(),
                at,
                bytes,
                stream.raw()
            ))?
        };
        stream.synchronize()?;
        Ok(values)
    }

    /// Sets every byte to `value`, in stream order.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn fill(&self, stream: &Stream, value: u8) -> Result<()> {
        stream.keep(self.clone());
        stream.bind()?;
        // SAFETY: the buffer holds `bytes` and lives until the stream is done (free waits for it).
        unsafe {
            cu!(cuMemsetD8Async(
                self.inner.address,
                value,
                self.inner.bytes,
                stream.raw()
            ))
        }
    }

    /// Copies `bytes` from `source` to the start of this buffer, in stream order, across GPUs too.
    ///
    /// # Errors
    /// Out of range, or the driver's own error.
    pub fn copy_from(&self, stream: &Stream, source: &DeviceBuffer, bytes: usize) -> Result<()> {
        let (to, from) = (self.range(0, bytes)?, source.range(0, bytes)?);
        stream.keep(self.clone());
        stream.keep(source.clone());
        stream.bind()?;
        // SAFETY: both ranges were checked; unified addressing tells the driver the GPUs.
        unsafe { cu!(cuMemcpyAsync(to, from, bytes, stream.raw())) }
    }

    pub(crate) fn range(&self, offset: usize, bytes: usize) -> Result<u64> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.inner.bytes => Ok(self.inner.address + offset as u64),
            _ => Err(Error::Invalid(format!(
                "bytes {offset} to {offset}+{bytes} of a buffer of {}",
                self.inner.bytes
            ))),
        }
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once; the driver waits for work that uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked host memory that every GPU of this process can read and write; clones share it.
#[derive(Debug, Clone)]
pub struct PinnedBuffer {
    inner: Arc<PinnedInner>,
}

#[derive(Debug)]
struct PinnedInner {
    device: Device,
    host: *mut u8,
    bytes: usize,
    mapping: Option<Mapping>,
}

// SAFETY: the memory is only touched by volatile or bulk copies whose races are those of any
// memory a device writes to; no reference to it is ever handed out.
unsafe impl Send for PinnedInner {}
// SAFETY: as above.
unsafe impl Sync for PinnedInner {}

impl PinnedBuffer {
    /// Allocates `bytes` of zeroed pinned memory, visible to all GPUs.
    ///
    /// # Errors
    /// The driver's own error, such as out of lockable memory.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuffer> {
        device.bind()?;
        let mut host: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current and the out-parameter valid; zeroing stays in range.
        unsafe {
            cu!(cuMemHostAlloc(&mut host, bytes.max(1), flags))?;
            std::ptr::write_bytes(host.cast::<u8>(), 0, bytes.max(1));
        }
        let inner = PinnedInner {
            device: device.clone(),
            host: host.cast(),
            bytes,
            mapping: None,
        };
        Ok(PinnedBuffer {
            inner: Arc::new(inner),
        })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The address kernels use; equal to the host address under unified addressing.
    pub fn address(&self) -> u64 {
        self.inner.host as u64
    }

    /// Reads one value at byte `offset_bytes`, not cached by the compiler.
    ///
    /// # Errors
    /// Out of range or misaligned.
    pub fn read<T: Pod>(&self, offset_bytes: usize) -> Result<T> {
        let at = self.at::<T>(offset_bytes, 1)?;
        // SAFETY: in range and aligned; a concurrent device write gives some value, never UB of
        // the host's own making, because the read is volatile.
        Ok(unsafe { at.read_volatile() })
    }

    /// Writes one value at byte `offset_bytes`, not cached by the compiler.
    ///
    /// # Errors
    /// Out of range or misaligned.
    pub fn write<T: Pod>(&self, offset_bytes: usize, value: T) -> Result<()> {
        let at = self.at::<T>(offset_bytes, 1)?;
        // SAFETY: in range and aligned.
        unsafe { at.write_volatile(value) };
        Ok(())
    }

    /// Copies `values` to byte `offset_bytes`.
    ///
    /// # Errors
    /// Out of range or misaligned.
    pub fn store<T: Pod>(&self, offset_bytes: usize, values: &[T]) -> Result<()> {
        let at = self.at::<T>(offset_bytes, values.len())?;
        // SAFETY: in range, aligned, and `values` cannot overlap memory that is never borrowed.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), at, values.len()) };
        Ok(())
    }

    /// Copies `count` values from byte `offset_bytes`.
    ///
    /// # Errors
    /// Out of range or misaligned.
    pub fn load<T: Pod + Default>(&self, offset_bytes: usize, count: usize) -> Result<Vec<T>> {
        let at = self.at::<T>(offset_bytes, count)?;
        let mut values = vec![T::default(); count];
        // SAFETY: in range and aligned; the destination is a fresh vector.
        unsafe { std::ptr::copy_nonoverlapping(at, values.as_mut_ptr(), count) };
        Ok(values)
    }

    /// Sets every byte to `value`.
    pub fn fill(&self, value: u8) {
        // SAFETY: the whole allocation.
        unsafe { std::ptr::write_bytes(self.inner.host, value, self.inner.bytes) };
    }

    /// Copies `bytes` from a device buffer to the start of this one, in stream order.
    ///
    /// # Errors
    /// Out of range, or the driver's own error.
    pub fn copy_from_device(
        &self,
        stream: &Stream,
        from: &DeviceBuffer,
        bytes: usize,
    ) -> Result<()> {
        let source = from.range(0, bytes)?;
        let to = self.at::<u8>(0, bytes)?;
        stream.keep(from.clone());
        stream.keep_pinned(self.clone());
        stream.bind()?;
        // SAFETY: both ranges were checked and are kept alive by the stream.
        unsafe { cu!(cuMemcpyDtoHAsync_v2(to.cast(), source, bytes, stream.raw())) }
    }

    /// Copies `bytes` from the start of this buffer to a device buffer, in stream order.
    ///
    /// # Errors
    /// Out of range, or the driver's own error.
    pub fn copy_to_device(&self, stream: &Stream, to: &DeviceBuffer, bytes: usize) -> Result<()> {
        let destination = to.range(0, bytes)?;
        let from = self.at::<u8>(0, bytes)?;
        stream.keep(to.clone());
        stream.keep_pinned(self.clone());
        stream.bind()?;
        // SAFETY: both ranges were checked and are kept alive by the stream.
        unsafe {
            cu!(cuMemcpyHtoDAsync_v2(
                destination,
                from.cast(),
                bytes,
                stream.raw()
            ))
        }
    }

    fn at<T: Pod>(&self, offset: usize, count: usize) -> Result<*mut T> {
        let bytes = count.saturating_mul(size_of::<T>());
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.inner.bytes);
        if !fits || !offset.is_multiple_of(align_of::<T>()) {
            return Err(Error::Invalid(format!(
                "bytes {offset} to {offset}+{bytes} of a pinned buffer of {}",
                self.inner.bytes
            )));
        }
        // SAFETY: `offset` is inside the allocation.
        Ok(unsafe { self.inner.host.add(offset) }.cast())
    }
}

impl Drop for PinnedInner {
    fn drop(&mut self) {
        if self.device.bind().is_err() {
            return;
        }
        // SAFETY: each was obtained once by the matching call; the driver waits for its users.
        let _ = unsafe {
            match self.mapping {
                Some(_) => sys::cuMemHostUnregister(self.host.cast()),
                None => sys::cuMemFreeHost(self.host.cast()),
            }
        };
    }
}

/// A file mapped into this process.
#[derive(Debug)]
struct Mapping {
    host: *mut u8,
    bytes: usize,
}

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, prot: i32, flags: i32, fd: i32, off: i64)
    -> *mut c_void;
    fn munmap(at: *mut c_void, bytes: usize) -> i32;
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once with this address and length.
        unsafe { munmap(self.host.cast(), self.bytes) };
    }
}

/// Pinned host memory that other processes map too, backed by a file.
#[derive(Debug)]
pub struct SharedHostBuffer;

impl SharedHostBuffer {
    /// Maps the first `bytes` of `file` (grown if shorter) and page-locks them for all GPUs.
    ///
    /// # Errors
    /// The file cannot be grown or mapped, or the driver cannot lock the pages.
    pub fn map(device: &Device, file: &std::fs::File, bytes: usize) -> Result<PinnedBuffer> {
        let page = 4096;
        let length = bytes.max(1).div_ceil(page) * page;
        let known = file
            .metadata()
            .map_err(|e| Error::io("size of the shared file", &e))?
            .len();
        if known < length as u64 {
            file.set_len(length as u64)
                .map_err(|e| Error::io("growing the shared file", &e))?;
        }
        const READ_WRITE: i32 = 3;
        const SHARED: i32 = 1;
        let fd = file.as_raw_fd();
        // SAFETY: asks for a fresh mapping of an open file; the result is checked.
        let host = unsafe { mmap(std::ptr::null_mut(), length, READ_WRITE, SHARED, fd, 0) };
        if host.is_null() || host as isize == -1 {
            return Err(Error::io(
                "mapping the shared file",
                &std::io::Error::last_os_error(),
            ));
        }
        let mapping = Mapping {
            host: host.cast(),
            bytes: length,
        };
        device.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped for as long as `mapping` lives, which `inner` owns.
        unsafe { cu!(cuMemHostRegister_v2(host, length, flags))? };
        let inner = PinnedInner {
            device: device.clone(),
            host: host.cast(),
            bytes,
            mapping: Some(mapping),
        };
        Ok(PinnedBuffer {
            inner: Arc::new(inner),
        })
    }
}
