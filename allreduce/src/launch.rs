//! Kernel modules and launches: the second of the crate's two modules with `unsafe` code.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys;

use crate::driver::context::Device;
use crate::driver::cu;
use crate::driver::memory::{DeviceBuffer, PinnedBuffer};
use crate::driver::nvrtc;
use crate::driver::stream::Stream;
use crate::{Error, Result};

/// Compiled kernels loaded on one GPU; clones share them.
#[derive(Debug, Clone)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

#[derive(Debug)]
struct ModuleInner {
    device: Device,
    raw: sys::CUmodule,
}

// SAFETY: a module handle may be used from any thread.
unsafe impl Send for ModuleInner {}
// SAFETY: as above.
unsafe impl Sync for ModuleInner {}

impl Module {
    /// Compiles `source` for `device` (cached, see [`compile_cubin`](crate::device::compile_cubin))
    /// and loads it. The source is trusted code.
    ///
    /// # Errors
    /// No NVRTC, a compile error, or the driver's own error.
    pub fn compile(
        device: &Device,
        name: &str,
        source: &str,
        defines: &[(&str, String)],
    ) -> Result<Module> {
        let cubin = nvrtc::compile_cubin(name, source, &device.arch(), defines)?;
        device.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a complete ELF file that outlives the call.
        unsafe { cu!(cuModuleLoadData(&mut raw, cubin.as_ptr().cast()))? };
        Ok(Module {
            inner: Arc::new(ModuleInner {
                device: device.clone(),
                raw,
            }),
        })
    }

    /// Looks an `extern "C" __global__` function up, and loads it so that its first launch does
    /// not stop other streams.
    ///
    /// # Errors
    /// No such function, or the driver's own error.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        self.inner.device.bind()?;
        let c_name =
            CString::new(name).map_err(|_| Error::Invalid("a nul byte in a name".into()))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is alive, the name is terminated, the out-parameter valid.
        unsafe {
            cu!(cuModuleGetFunction(
                &mut raw,
                self.inner.raw,
                c_name.as_ptr()
            ))?;
            cu!(cuFuncLoad(raw))?;
        }
        let mut parameter_bytes = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the function is alive and both out-parameters valid.
            let code = unsafe {
                sys::cuFuncGetParamInfo(raw, parameter_bytes.len(), &mut offset, &mut bytes)
            };
            if code != sys::CUresult::CUDA_SUCCESS {
                break;
            }
            parameter_bytes.push(bytes);
        }
        Ok(Kernel {
            module: self.clone(),
            raw,
            name: name.into(),
            parameter_bytes,
        })
    }
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded once, unloaded once.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// One argument of a launch.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// The address of a device buffer.
    Device(&'a DeviceBuffer),
    /// The address of byte n of a device buffer.
    DeviceAt(&'a DeviceBuffer, usize),
    /// The address of a pinned host buffer.
    Pinned(&'a PinnedBuffer),
    /// An address that the caller keeps valid, such as a peer's.
    Address(u64),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// A 64-bit unsigned integer.
    U64(u64),
    /// A 32-bit signed integer.
    I32(i32),
    /// A 32-bit float.
    F32(f32),
    /// A struct passed by value, as its bytes.
    Bytes(&'a [u8]),
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks, x y z.
    pub grid: (u32, u32, u32),
    /// Threads a block, x y z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    /// `blocks` blocks of `threads` threads in one dimension.
    pub fn new(blocks: u32, threads: u32) -> Launch {
        Launch {
            grid: (blocks, 1, 1),
            block: (threads, 1, 1),
            shared_bytes: 0,
        }
    }
}

/// One kernel, ready to launch.
#[derive(Debug, Clone)]
pub struct Kernel {
    module: Module,
    raw: sys::CUfunction,
    name: String,
    parameter_bytes: Vec<usize>,
}

// SAFETY: a function handle may be used from any thread while its module lives.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues the kernel on `stream`. Buffers are kept alive by a capture, and freeing one waits
    /// for work that uses it.
    ///
    /// # Errors
    /// Wrong number or sizes of arguments, or the driver's own error. An error of the kernel
    /// itself comes out of a later synchronisation.
    pub fn launch(&self, stream: &Stream, shape: Launch, args: &[Arg<'_>]) -> Result<()> {
        // Eight-byte words, so that every argument starts aligned.
        let mut words: Vec<u64> = Vec::with_capacity(64);
        let mut starts = Vec::with_capacity(args.len());
        if args.len() != self.parameter_bytes.len() {
            return Err(self.misfit(format!("{} arguments", args.len())));
        }
        for (index, arg) in args.iter().enumerate() {
            starts.push(words.len());
            let bytes = push_arg(&mut words, stream, arg)?;
            if bytes != self.parameter_bytes[index] {
                return Err(self.misfit(format!("{bytes} bytes as argument {index}")));
            }
        }
        let mut pointers: Vec<*mut c_void> = starts
            .iter()
            .map(|&at| words[at..].as_mut_ptr().cast())
            .collect();
        stream.keep_module(self.module.clone());
        stream.bind()?;
        let (grid, block) = (shape.grid, shape.block);
        // SAFETY: the kernel is loaded, and `pointers` holds one pointer a parameter, each to as
        // many bytes as the kernel declares; the driver copies them before it returns.
        unsafe {
            cu!(cuLaunchKernel(
                self.raw,
                grid.0,
                grid.1,
                grid.2,
                block.0,
                block.1,
                block.2,
                shape.shared_bytes,
                stream.raw(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            ))
        }
    }

    /// How many blocks of `threads` threads fit one multiprocessor at once.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: usize) -> Result<u32> {
        self.module.inner.device.bind()?;
        let mut blocks = 0;
        // SAFETY: the function is alive and the out-parameter valid.
        unsafe {
            cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.raw,
                threads as i32,
                shared_bytes
            ))?;
        }
        Ok(blocks.unsigned_abs())
    }

    fn misfit(&self, given: String) -> Error {
        Error::Invalid(format!(
            "kernel {} takes parameters of {:?} bytes, given {given}",
            self.name, self.parameter_bytes
        ))
    }
}

/// Appends one argument's bytes and returns their number.
fn push_arg(words: &mut Vec<u64>, stream: &Stream, arg: &Arg<'_>) -> Result<usize> {
    let (word, bytes) = match *arg {
        Arg::Device(buffer) => {
            stream.keep(buffer.clone());
            (buffer.address(), 8)
        }
        Arg::DeviceAt(buffer, offset) => {
            stream.keep(buffer.clone());
            (buffer.range(offset, 0)?, 8)
        }
        Arg::Pinned(buffer) => {
            stream.keep_pinned(buffer.clone());
            (buffer.address(), 8)
        }
        Arg::Address(value) | Arg::U64(value) => (value, 8),
        Arg::U32(value) => (u64::from(value), 4),
        Arg::I32(value) => (u64::from(value.cast_unsigned()), 4),
        Arg::F32(value) => (u64::from(value.to_bits()), 4),
        Arg::Bytes(bytes) => {
            for chunk in bytes.chunks(8) {
                let mut word = [0u8; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                words.push(u64::from_ne_bytes(word));
            }
            return Ok(bytes.len());
        }
    };
    words.push(word);
    Ok(bytes)
}
