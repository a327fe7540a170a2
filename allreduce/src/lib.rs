//! All-reduce kernels for CUDA GPUs, and probes of the links between them.
//!
//! The crate builds and loads without CUDA: the driver, NVRTC, NCCL and cuBLASLt are opened at
//! run time, and a missing one is an [`Error`] that says which library to install. All `unsafe`
//! code is in two modules: `driver` (calls into those libraries) and `launch` (kernel launches).

pub mod device;
mod driver;
mod error;
mod launch;

pub use error::Error;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;
