//! Flags that say how NCCL runs.

use clap::Args;
use pcie_sim::nccl::P2pLevel;

/// What is known of NCCL where the engine runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct NcclArgs {
    /// NCCL's version, as NCCL_DEBUG=VERSION prints it [default: the log's or the box file's, else
    /// one before 2.30]
    #[arg(long = "nccl", value_name = "VERSION", value_parser = version)]
    pub(crate) version: Option<String>,
    /// NCCL_P2P_LEVEL of the engine's environment: how far apart two GPUs may be for NCCL to go
    /// directly and not through host memory [default: the log's or the box file's, else NCCL's own]
    #[arg(long = "nccl-p2p-level", value_name = "LOC|NVL|PIX|PXB|PHB|SYS")]
    pub(crate) p2p_level: Option<P2pLevel>,
}

fn version(text: &str) -> Result<String, String> {
    match pcie_sim::nccl::release(text) {
        Some(_) => Ok(text.trim().to_string()),
        None => Err("give it as NCCL prints it, such as 2.29.7".to_string()),
    }
}
