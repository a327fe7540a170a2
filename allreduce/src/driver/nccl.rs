//! NVIDIA's collective library, as baseline and fallback.

use std::ffi::{c_char, c_int};

use cudarc::nccl::sys;

use super::context::Device;
use super::stream::Stream;
use crate::types::DType;
use crate::{Error, Result};

/// NCCL's version, such as 22809 for 2.28.9.
///
/// # Errors
/// [`Error::MissingLibrary`] where NCCL is not installed under the name `libnccl.so`.
pub fn nccl_version() -> Result<u32> {
    // SAFETY: opens the library by its well-known names and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::MissingLibrary {
            library: "libnccl.so",
            mend: "install NCCL (the Python package nvidia-nccl carries it as libnccl.so.2) and \
                   link it as libnccl.so in a folder on LD_LIBRARY_PATH",
        });
    }
    let mut version: c_int = 0;
    // SAFETY: the out-parameter is valid.
    let status = unsafe { sys::ncclGetVersion(&mut version) };
    check(status, "ncclGetVersion")?;
    Ok(version.unsigned_abs())
}

/// A number that all ranks of one NCCL communicator share.
pub(crate) fn unique_id() -> Result<[u8; 128]> {
    nccl_version()?;
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    // SAFETY: the out-parameter is valid.
    let status = unsafe { sys::ncclGetUniqueId(&mut id) };
    check(status, "ncclGetUniqueId")?;
    Ok(id.internal.map(|c| c as u8))
}

/// One rank of an NCCL communicator.
#[derive(Debug)]
pub(crate) struct Nccl {
    raw: sys::ncclComm_t,
    device: Device,
}

// SAFETY: a communicator may be used from any thread, one at a time; calls take `&mut self`.
unsafe impl Send for Nccl {}

impl Nccl {
    /// Joins the communicator; returns when all ranks have joined.
    pub(crate) fn join(device: &Device, id: &[u8; 128], rank: usize, ranks: usize) -> Result<Nccl> {
        nccl_version()?;
        device.bind()?;
        let id = sys::ncclUniqueId {
            internal: id.map(|b| b as c_char),
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current and the out-parameter valid.
        let status = unsafe { sys::ncclCommInitRank(&mut raw, ranks as c_int, id, rank as c_int) };
        check(status, "ncclCommInitRank")?;
        Ok(Nccl {
            raw,
            device: device.clone(),
        })
    }

    /// Queues a sum over all ranks; addresses must hold `elements` and stay valid.
    pub(crate) fn all_reduce(
        &mut self,
        stream: &Stream,
        input: u64,
        output: u64,
        elements: usize,
        dtype: DType,
    ) -> Result<()> {
        let kind = match dtype {
            DType::F32 => sys::ncclDataType_t::ncclFloat32,
            DType::F16 => sys::ncclDataType_t::ncclFloat16,
            DType::Bf16 => sys::ncclDataType_t::ncclBfloat16,
        };
        stream.bind()?;
        // SAFETY: the caller checked both ranges; communicator and stream are alive.
        let status = unsafe {
            sys::ncclAllReduce(
                input as *const std::ffi::c_void,
                output as *mut std::ffi::c_void,
                elements,
                kind,
                sys::ncclRedOp_t::ncclSum,
                self.raw,
                stream.raw().cast(),
            )
        };
        check(status, "ncclAllReduce")
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created once. Abort rather than destroy: it does not wait for dead peers.
            unsafe { sys::ncclCommAbort(self.raw) };
        }
    }
}

fn check(code: sys::ncclResult_t, call: &'static str) -> Result<()> {
    if code == sys::ncclResult_t::ncclSuccess {
        return Ok(());
    }
    Err(Error::Call {
        call,
        code: code as i64,
        name: format!("{code:?}"),
    })
}
