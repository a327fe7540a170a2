//! A safe layer over the CUDA driver: devices, streams, buffers, kernels, graphs, peers.
//!
//! Nothing here needs CUDA at build time. [`driver_info`] says whether a driver is present; every
//! other entry point returns the same [`Error`](crate::Error) when it is not.
//!
//! Kernel source is trusted like any native code: a launch checks the number and sizes of its
//! arguments, and an out-of-bounds kernel poisons its CUDA context, not this process.

pub use crate::driver::blas::{MatMul, MatMulType};
pub use crate::driver::context::{Device, DriverInfo, driver_info};
pub use crate::driver::memory::{DeviceBuffer, PinnedBuffer, Pod, SharedHostBuffer};
pub use crate::driver::nccl::nccl_version;
pub use crate::driver::nvrtc::{compile_cubin, compiler_info};
pub use crate::driver::peer::{IpcBuffer, IpcHandle};
pub use crate::driver::stream::{Event, Graph, Stream};
pub use crate::launch::{Arg, Kernel, Launch, Module};
