//! Calls into the CUDA libraries: one of the crate's two modules with `unsafe` code.
//!
//! Each submodule owns one kind of resource and frees it on drop. Every `unsafe` block calls one
//! C function whose arguments the surrounding type keeps valid.

pub(crate) mod blas;
pub(crate) mod context;
pub(crate) mod memory;
pub(crate) mod nccl;
pub(crate) mod nvrtc;
pub(crate) mod peer;
pub(crate) mod stream;

use std::ffi::CStr;

use cudarc::driver::sys;

use crate::{Error, Result};

/// Turns a driver status into a result.
pub(crate) fn check(code: sys::CUresult, call: &'static str) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const std::ffi::c_char = std::ptr::null();
    // SAFETY: `text` is a valid place for one pointer; the driver stores a static string or null.
    let named = unsafe { sys::cuGetErrorName(code, &mut text) };
    let name = if named == sys::CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: the driver returned a static, nul-terminated string.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    } else {
        format!("{code:?}")
    };
    Err(Error::Call {
        call,
        code: code as i64,
        name,
    })
}

/// Calls one driver function inside `unsafe` and names it in the error.
macro_rules! cu {
    ($name:ident ( $($arg:expr),* $(,)? )) => {
        $crate::driver::check(cudarc::driver::sys::$name($($arg),*), stringify!($name))
    };
}
pub(crate) use cu;
