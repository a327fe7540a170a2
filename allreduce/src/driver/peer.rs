//! Access between GPUs: peer mappings in one process, IPC handles between processes.

use std::ffi::c_int;

use cudarc::driver::sys;

use super::context::Device;
use super::cu;
use super::memory::DeviceBuffer;
use crate::{Error, Result};

impl Device {
    /// Whether the driver says that this GPU can reach `other`'s memory.
    ///
    /// A claim only: the probes check that data arrives.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn can_access(&self, other: &Device) -> Result<bool> {
        if self.same_as(other) {
            return Ok(true);
        }
        let mut can: c_int = 0;
        // SAFETY: both devices are open and the out-parameter valid.
        unsafe { cu!(cuDeviceCanAccessPeer(&mut can, self.raw(), other.raw()))? };
        Ok(can != 0)
    }

    /// Maps `other`'s memory for kernels on this GPU; repeated calls are fine.
    ///
    /// # Errors
    /// The driver refuses, or the GPUs cannot reach each other.
    pub fn enable_access(&self, other: &Device) -> Result<()> {
        if self.same_as(other) {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: this context is current and the other one is retained.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context(), 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => super::check(code, "cuCtxEnablePeerAccess"),
        }
    }
}

/// A handle to device memory that another process can open: 64 opaque bytes and a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle {
    /// The driver's handle.
    pub bytes: [u8; 64],
    /// Size of the allocation in bytes.
    pub size: u64,
}

impl DeviceBuffer {
    /// A handle to this buffer for other processes on this machine.
    ///
    /// # Errors
    /// The driver's own error.
    pub fn ipc_handle(&self) -> Result<IpcHandle> {
        self.device().bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the buffer is an allocation base and the out-parameter valid.
        unsafe { cu!(cuIpcGetMemHandle(&mut handle, self.address()))? };
        Ok(IpcHandle {
            bytes: handle.reserved.map(|b| b as u8),
            size: self.bytes() as u64,
        })
    }
}

/// Another process's device memory, mapped here until dropped.
#[derive(Debug)]
pub struct IpcBuffer {
    device: Device,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl IpcBuffer {
    /// Opens `handle` for kernels on `device`. A process cannot open its own handles.
    ///
    /// # Errors
    /// The exporting process is gone, its GPU cannot be reached, or the driver's own error.
    pub fn open(device: &Device, handle: &IpcHandle) -> Result<IpcBuffer> {
        device.bind()?;
        let raw = sys::CUipcMemHandle {
            reserved: handle.bytes.map(|b| b as std::ffi::c_char),
        };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the handle is plain data that the driver validates.
        unsafe { cu!(cuIpcOpenMemHandle_v2(&mut address, raw, flags))? };
        let bytes = usize::try_from(handle.size)
            .map_err(|_| Error::Invalid("an IPC handle larger than memory".into()))?;
        Ok(IpcBuffer {
            device: device.clone(),
            address,
            bytes,
        })
    }

    /// The address kernels on the opening GPU use.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes, as the exporting process said.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for IpcBuffer {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: opened once, closed once.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}
