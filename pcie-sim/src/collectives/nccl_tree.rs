//! NCCL's tree in one box: a chain up to the root and down again, chunks in a pipeline.

use super::{Job, nccl_ring};
use crate::nccl::{Graph, NcclProtocol};
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};

/// The all-reduce as a pipeline up and down the chain: `2 (N-1)` hops of latency, then the bytes
/// once up and once down over every link.
pub(super) fn plan(job: &Job<'_>, graph: &Graph, protocol: NcclProtocol) -> Plan {
    let hops = 2 * (job.n() as u32 - 1);
    // The first chunk pays every hop; it is small, so its bytes hide in the latency.
    let mut fill = nccl_ring::step(job, graph, protocol, 0.0);
    fill.label = "tree hop";
    fill.transfers.clear();
    fill.repeat = hops;
    let mut flow = nccl_ring::step(job, graph, protocol, job.bytes);
    flow.label = "tree up and down";
    flow.latency_us = 0.0;
    flow.transfers.pop();
    let down: Vec<Transfer> = flow
        .transfers
        .iter()
        .map(|x| Transfer {
            from: x.to,
            to: x.from,
            ..*x
        })
        .collect();
    flow.transfers.extend(down);
    Plan {
        name: format!("nccl-tree-{}", nccl_ring::suffix(protocol)),
        base_us: nccl_ring::base_us(job, graph, protocol),
        rounds: vec![fill, Round { repeat: 1, ..flow }],
    }
}
