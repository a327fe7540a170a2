//! Devices and their primary contexts.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

use super::cu;
use crate::{Error, Result};

/// The installed driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// The CUDA version the driver supports, as major and minor.
    pub cuda_version: (u32, u32),
    /// The number of GPUs it shows to this process.
    pub gpus: usize,
}

/// Says whether a CUDA driver is present, and initialises it.
///
/// # Errors
/// [`Error::MissingLibrary`] without `libcuda.so.1`; [`Error::Call`] where the driver finds no
/// GPU or is older than this crate needs (CUDA 12.8).
pub fn driver_info() -> Result<DriverInfo> {
    static INFO: OnceLock<Result<DriverInfo>> = OnceLock::new();
    INFO.get_or_init(initialise).clone()
}

fn initialise() -> Result<DriverInfo> {
    // SAFETY: opens the library by its well-known names and closes it again; its constructors
    // are those every CUDA program runs.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::MissingLibrary {
            library: "libcuda.so.1",
            mend: "install the NVIDIA driver, or run on a machine with an NVIDIA GPU",
        });
    }
    let mut version: c_int = 0;
    let mut gpus: c_int = 0;
    // SAFETY: the library is present and both out-parameters are valid for one int.
    unsafe {
        cu!(cuDriverGetVersion(&mut version))?;
        if version < 12080 {
            return Err(Error::Invalid(format!(
                "the driver supports CUDA {}.{}, this crate needs 12.8: update the driver",
                version / 1000,
                version % 1000 / 10
            )));
        }
        cu!(cuInit(0))?;
        cu!(cuDeviceGetCount(&mut gpus))?;
    }
    let version = version.unsigned_abs();
    Ok(DriverInfo {
        cuda_version: (version / 1000, version % 1000 / 10),
        gpus: usize::try_from(gpus).unwrap_or(0),
    })
}

/// One GPU and its primary context; clones share it.
#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ordinal: usize,
    raw: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    pci_bus_id: String,
    compute: (u32, u32),
    multiprocessors: u32,
}

// SAFETY: a primary context may be used from any thread; `bind` makes it current per call.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver serialises access itself.
unsafe impl Sync for Inner {}

impl Device {
    /// Opens GPU number `ordinal` (CUDA's numbering) and retains its primary context.
    ///
    /// # Errors
    /// No driver, no such GPU, or the driver's own error.
    pub fn open(ordinal: usize) -> Result<Device> {
        let info = driver_info()?;
        if ordinal >= info.gpus {
            return Err(Error::Invalid(format!(
                "GPU {ordinal} of {} visible GPUs",
                info.gpus
            )));
        }
        let mut raw: sys::CUdevice = 0;
        let mut context: sys::CUcontext = std::ptr::null_mut();
        // SAFETY: the driver is initialised and the out-parameters are valid.
        unsafe {
            cu!(cuDeviceGet(&mut raw, ordinal as c_int))?;
            cu!(cuDevicePrimaryCtxRetain(&mut context, raw))?;
        }
        use sys::CUdevice_attribute as A;
        let major = attribute(raw, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(raw, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let inner = Inner {
            ordinal,
            raw,
            context,
            name: text(|buffer, length| {
                // SAFETY: `buffer` holds `length` chars.
                unsafe { cu!(cuDeviceGetName(buffer, length, raw)) }
            })?,
            pci_bus_id: text(|buffer, length| {
                // SAFETY: `buffer` holds `length` chars.
                unsafe { cu!(cuDeviceGetPCIBusId(buffer, length, raw)) }
            })?,
            compute: (major, minor),
            multiprocessors: attribute(raw, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        };
        let device = Device {
            inner: Arc::new(inner),
        };
        device.bind()?;
        Ok(device)
    }

    /// Opens every visible GPU, in CUDA's order.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn all() -> Result<Vec<Device>> {
        (0..driver_info()?.gpus).map(Device::open).collect()
    }

    /// CUDA's number for this GPU.
    pub fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    /// The marketing name, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The PCI address, such as `0000:00:06.0`.
    pub fn pci_bus_id(&self) -> &str {
        &self.inner.pci_bus_id
    }

    /// Compute capability, major and minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.inner.compute
    }

    /// The compiler's name for the architecture, such as `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.inner.compute.0, self.inner.compute.1)
    }

    /// Number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.inner.multiprocessors
    }

    /// Free and total device memory in bytes.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn memory_bytes(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both out-parameters are valid.
        unsafe { cu!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free, total))
    }

    /// Waits for everything queued on this GPU by this process.
    ///
    /// # Errors
    /// The first error of any queued work.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the context is current.
        unsafe { cu!(cuCtxSynchronize()) }
    }

    /// Makes this GPU's context current on the calling thread.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `inner` lives.
        unsafe { cu!(cuCtxSetCurrent(self.inner.context)) }
    }

    pub(crate) fn raw(&self) -> sys::CUdevice {
        self.inner.raw
    }

    pub(crate) fn context(&self) -> sys::CUcontext {
        self.inner.context
    }

    /// Whether both name the same GPU.
    pub fn same_as(&self, other: &Device) -> bool {
        self.inner.raw == other.inner.raw
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: pairs with the retain in `open`. An error at exit has no one to report to.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.raw) };
    }
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the out-parameter is valid for one int.
    unsafe { cu!(cuDeviceGetAttribute(&mut value, which, device))? };
    Ok(value.unsigned_abs())
}

fn text(fill: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut buffer = [0u8; 256];
    fill(buffer.as_mut_ptr().cast(), 255)?;
    let text = CStr::from_bytes_until_nul(&buffer)
        .map_err(|_| Error::Invalid("unterminated string from the driver".into()))?;
    Ok(text.to_string_lossy().into_owned())
}
