//! All-reduce kernels for CUDA GPUs, and probes of the links between them.
