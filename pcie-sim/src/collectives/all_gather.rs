//! All-gather by NCCL's ring: `N-1` steps, each passes one rank's share on.

use super::{Job, nccl_ring};
use crate::nccl::{self, NcclProtocol};
use crate::plan::Plan;

/// The gather of `job.bytes` in all; each step moves `S/N`.
pub(super) fn plan(job: &Job<'_>) -> Plan {
    half(job, "all-gather")
}

/// Half of a ring all-reduce, with the protocol that is faster here.
pub(super) fn half(job: &Job<'_>, what: &str) -> Plan {
    let graph = nccl::search(job.t, job.ranks, &job.options.nccl);
    let protocols: &[NcclProtocol] = match (job.options.nccl.protocol, graph.failed) {
        (Some(NcclProtocol::Ll), _) => &[NcclProtocol::Ll],
        (Some(NcclProtocol::Simple), _) | (None, true) => &[NcclProtocol::Simple],
        _ => &[NcclProtocol::Ll, NcclProtocol::Simple],
    };
    let steps = job.n() as u32 - 1;
    let plan = |protocol: NcclProtocol| {
        let mut round = nccl_ring::step(job, &graph, protocol, job.bytes / job.n() as f64);
        round.repeat = steps;
        Plan {
            name: format!("nccl-{what}-ring-{}", nccl_ring::suffix(protocol)),
            base_us: nccl_ring::base_us(job, &graph, protocol),
            rounds: vec![round],
        }
    };
    let mut best = plan(protocols[0]);
    for &protocol in &protocols[1..] {
        let other = plan(protocol);
        if other.run(job.t, job.c()).time_us < best.run(job.t, job.c()).time_us {
            best = other;
        }
    }
    best
}
