//! What mends a search that finds no ring, and what hangs on a version or CPU that nobody named.

use super::{NcclSetup, search, version};
use crate::cpu;
use crate::topology::Topology;

/// The first release that knows AMD's newer socket links: before it every AMD host counts 16 GB/s,
/// which is under the lowest speed that is tried for Blackwell (commit 2f1c174c of March 2026; the
/// constants of 2.28 and 2.29 have the flat figure).
pub const FINDS_RING: (u16, u16) = (2, 30);

/// What mends a search that finds no ring, the simplest first: a newer NCCL where that alone finds one.
pub fn cure(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> Cure {
    let newer = NcclSetup {
        version: Some(FINDS_RING),
        ..*setup
    };
    match search(t, ranks, setup).failed && !search(t, ranks, &newer).failed {
        true => Cure::Newer,
        false => Cure::GraphFile,
    }
}

/// What mends a search that finds no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// A newer NCCL finds it by itself.
    Newer,
    /// A graph file alone.
    GraphFile,
}

impl Cure {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Newer => "NCCL 2.30 or newer, or a graph file (NCCL_GRAPH_FILE)",
            Self::GraphFile => "a graph file (NCCL_GRAPH_FILE)",
        }
    }
}

/// The same box on a CPU for which the search finds no ring, where nobody said which CPU it has and
/// that would matter to `ranks`.
pub fn on_amd(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> Option<Topology> {
    let open = cpu::is_unsaid(t.cpu.as_deref()) && !t.worst_class(ranks).is_gpu_link();
    let mut other = open.then(|| t.clone())?;
    other.cpu = Some("amd-turin".to_string());
    let failed = |t: &Topology| search(t, ranks, setup).failed;
    (failed(&other) && !failed(t)).then_some(other)
}

/// The same run with the first NCCL that finds a ring, where nobody said which one runs and an older
/// one, which is assumed, finds none.
pub fn by_a_newer(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> Option<NcclSetup> {
    let unknown = version(t, setup).is_none() && !t.worst_class(ranks).is_gpu_link();
    let newer = NcclSetup {
        version: Some(FINDS_RING),
        ..*setup
    };
    (unknown && cure(t, ranks, setup) == Cure::Newer).then_some(newer)
}
