//! Between which GPUs NCCL goes directly over PCIe, and between which through host memory (SHM): its
//! cut-off by path, copied from `ncclTopoCheckP2p` (src/graph/paths.cc; the same from 2.2x to 2.31).
//!
//! The GPUs counted there are those of the communicator: NCCL's own topology holds no others.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::NcclSetup;
use crate::box_spec::{NodeKind, P2p};
use crate::cpu;
use crate::topology::Topology;

/// What lies between two GPUs as NCCL sees it, from near to far, and up to where it goes directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum P2pLevel {
    /// The same GPU alone: no peer access at all (`NCCL_P2P_DISABLE=1`).
    Loc,
    /// NVLink or another GPU link.
    Nvl,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches, the CPU not touched.
    Pxb,
    /// Through root ports of one socket (`PHB` and `NODE` of `nvidia-smi topo -m`).
    Phb,
    /// Between sockets.
    Sys,
}

/// Values of `NCCL_P2P_LEVEL`: NCCL's names, and its older numbers.
const NAMES: [(&str, P2pLevel); 15] = [
    ("LOC", P2pLevel::Loc),
    ("NVL", P2pLevel::Nvl),
    ("PIX", P2pLevel::Pix),
    ("PXB", P2pLevel::Pxb),
    ("PHB", P2pLevel::Phb),
    ("SYS", P2pLevel::Sys),
    ("NVB", P2pLevel::Nvl),
    ("C2C", P2pLevel::Nvl),
    ("P2C", P2pLevel::Pxb),
    ("PXN", P2pLevel::Pxb),
    ("0", P2pLevel::Loc),
    ("1", P2pLevel::Pix),
    ("2", P2pLevel::Pxb),
    ("3", P2pLevel::Phb),
    ("4", P2pLevel::Sys),
];

impl P2pLevel {
    /// As `NCCL_P2P_LEVEL` takes it.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, level)| *level == self)
            .map_or("SYS", |(name, _)| name)
    }
}

impl fmt::Display for P2pLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLevel;

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("give one of LOC, NVL, PIX, PXB, PHB, SYS, as NCCL_P2P_LEVEL takes them")
    }
}

impl std::error::Error for UnknownLevel {}

impl FromStr for P2pLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_uppercase();
        let known = NAMES.iter().find(|(name, _)| *name == wanted);
        known.map(|(_, level)| *level).ok_or(UnknownLevel)
    }
}

/// What NCCL sees between two GPUs. By the tree alone: two virtual switches of one chip are two
/// switches under two root ports to it.
pub fn path(t: &Topology, a: usize, b: usize) -> P2pLevel {
    let linked = t.route(a, b).is_some_and(|route| route.class.is_gpu_link());
    if linked {
        return P2pLevel::Nvl;
    }
    let above = |gpu: usize| {
        let node = t.gpu_nodes.get(gpu);
        node.map_or_else(Vec::new, |node| t.chain(*node).split_off(1))
    };
    let (up_a, up_b) = (above(a), above(b));
    let kind = |node: usize| t.nodes.get(node).and_then(|n| n.kind);
    match up_a.iter().find(|node| up_b.contains(node)) {
        Some(&node) if kind(node) == Some(NodeKind::Switch) => {
            let next_to_both = up_a.first() == Some(&node) && up_b.first() == Some(&node);
            if next_to_both {
                P2pLevel::Pix
            } else {
                P2pLevel::Pxb
            }
        }
        Some(_) => P2pLevel::Phb,
        None => P2pLevel::Sys,
    }
}

/// The level in force for `ranks`: what was set, else NCCL's own.
pub fn level(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> P2pLevel {
    setup
        .p2p_level
        .or(t.nccl_p2p_level)
        .unwrap_or_else(|| own_level(t, ranks))
}

/// What NCCL takes by itself: no peer access across root ports, except between two GPUs in all on an
/// AMD host. A CPU that nobody named is taken as one.
fn own_level(t: &Topology, ranks: &[usize]) -> P2pLevel {
    let cpu = t.cpu.as_deref();
    if ranks.len() <= 2 && (cpu::is_amd(cpu) || cpu::is_unsaid(cpu)) {
        P2pLevel::Sys
    } else {
        P2pLevel::Pxb
    }
}

/// Whether NCCL goes through host memory between two GPUs at that level. Where the driver refuses
/// peer access, every route over PCIe does already.
pub fn staged(t: &Topology, level: P2pLevel, a: usize, b: usize) -> bool {
    path(t, a, b) > level && (t.p2p != P2p::Off || level == P2pLevel::Loc)
}

/// Whether any two of `ranks` meet in host memory though peer access would be there.
pub fn any_staged(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> bool {
    let level = level(t, ranks, setup);
    pairs(ranks).any(|(a, b)| staged(t, level, a, b))
}

/// That NCCL leaves peer access aside that is there, and what makes it use it.
pub fn note(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> Option<String> {
    any_staged(t, ranks, setup).then(|| {
        format!(
            "NCCL goes through host memory (SHM) between GPUs farther apart than {}: NCCL_P2P_LEVEL={} \
             lets it go directly",
            level(t, ranks, setup),
            needed(t, ranks)
        )
    })
}

/// The level from which on NCCL goes directly between any two of `ranks`.
pub fn needed(t: &Topology, ranks: &[usize]) -> P2pLevel {
    pairs(ranks)
        .map(|(a, b)| path(t, a, b))
        .max()
        .unwrap_or(P2pLevel::Loc)
}

fn pairs(ranks: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let later = move |i: usize| ranks.iter().skip(i + 1).copied();
    let all = ranks.iter().copied().enumerate();
    all.flat_map(move |(i, a)| later(i).map(move |b| (a, b)))
}
