//! All-reduce kernels for CUDA GPUs, and probes of the links between them.
//!
//! The crate builds and loads without CUDA: the driver, NVRTC, NCCL and cuBLASLt are opened at
//! run time, and a missing one is an [`Error`] that says which library to install. All `unsafe`
//! code is in two modules: `driver` (calls into those libraries) and `launch` (kernel launches).

mod communicator;
pub mod device;
mod driver;
mod error;
pub mod kernels;
mod launch;
pub mod probe;
pub mod protocol;
pub mod rendezvous;
mod types;

pub use communicator::{Call, Communicator, NormShape, Options, RowNorm, Selector, Shape, Step};
pub use error::Error;
pub use types::{Algorithm, DType, Memory};

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;
