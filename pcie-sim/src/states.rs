//! Modes of a fabric that no fair sharing produces, each with the signature that reveals it.

use crate::box_spec::FabricState;

/// A mode, how it shows, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// State of the box file it belongs to; None where the box file has none.
    pub state: Option<FabricState>,
    /// Name.
    pub name: &'static str,
    /// What a measurement shows.
    pub signature: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

/// All known modes (RTX PRO 6000 and RTX 3090 community pages; see docs/pcie-sim.md).
pub const MODES: [Mode; 5] = [
    Mode {
        state: Some(FabricState::Healthy),
        name: "healthy",
        signature: "all pairs at once reach at least a third of the pair rate into each GPU",
        remedy: "nothing",
    },
    Mode {
        state: Some(FabricState::Collapsed),
        name: "collapsed",
        signature: "pairs reach their rate, all pairs at once fall to about 2 GB/s a direction",
        remedy: "island schedule, tensor parallelism inside one chip or socket, an NCCL whose search finds its ring (2.30 or newer on two AMD sockets), else a graph file",
    },
    Mode {
        state: Some(FabricState::Staged),
        name: "staged",
        signature: "copies reach their rate, kernel loads and stores stay near 1.4 GB/s",
        remedy: "BAR1 peer access: module options of the driver, large BAR; or leave it to NCCL",
    },
    Mode {
        state: Some(FabricState::AcsRedirect),
        name: "ACS redirect",
        signature: "a pair on one switch halves when both directions run",
        remedy: "clear the ACS redirect bits of root ports and switch ports, iommu=pt",
    },
    Mode {
        state: None,
        name: "mirrored aperture",
        signature: "copies run at line rate, but the destination GPU never sees the bytes",
        remedy: "no peer access (p2p = \"off\"): results are wrong with it",
    },
];
