//! Island schedule: reduce-scatter inside islands of near GPUs, exchange 1:1 between islands,
//! all-gather inside. With two islands of four, `1.75 S` into each GPU and only `S` across the
//! middle, one flow per pair, so a fabric that collapses under all-to-all load does not.

use super::one_shot::{Form, barrier_and_read_us, gpu_link_groups, needs_peer_access, start_us};
use super::{Job, Unavailable};
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::Topology;
use std::collections::BTreeMap;

/// Reduce-scatter, exchange, all-gather.
pub(super) fn plan(job: &Job<'_>) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let islands = islands(job.t, job.ranks).ok_or_else(|| {
        Unavailable(format!(
            "needs two or more groups of equally many near GPUs (2 or more each, joined by NVLink or \
             under one switch chip, socket or switch), and the {} taking part do not fall into such; \
             use nccl or one-shot, or choose other GPUs",
            job.n()
        ))
    })?;
    let size = islands[0].len();
    let shard = job.bytes / size as f64;
    let inside = |access| -> Vec<Transfer> {
        let mut out = Vec::new();
        for island in &islands {
            for &from in island {
                for &to in island.iter().filter(|to| **to != from) {
                    out.push(Transfer {
                        from,
                        to,
                        bytes: shard,
                        access,
                    });
                }
            }
        }
        out
    };
    let mut across = Vec::new();
    for (i, island) in islands.iter().enumerate() {
        for other in islands.iter().enumerate().filter(|(j, _)| *j != i) {
            for (lane, &from) in island.iter().enumerate() {
                across.push(Transfer {
                    from,
                    to: other.1[lane],
                    bytes: shard,
                    access: Access::KernelLoad,
                });
            }
        }
    }
    let latency = |ranks: &[usize]| barrier_and_read_us(&Job { ranks, ..*job }, Form::Lean);
    let near_us = latency(&islands[0]);
    let lane: Vec<usize> = islands.iter().map(|island| island[0]).collect();
    let far_us = latency(&lane);
    Ok(Plan {
        name: "island".to_string(),
        base_us: start_us(job),
        rounds: vec![
            Round::once(
                "reduce-scatter in island",
                inside(Access::KernelLoad),
                near_us,
            ),
            Round::once("exchange across", across, far_us),
            Round::once("all-gather in island", inside(Access::KernelLoad), near_us),
        ],
    })
}

/// Ranks by island: by NVLink, chip, socket or switch, whichever first gives two or more equal
/// groups of at least two. None where no such split exists.
pub(crate) fn islands(t: &Topology, ranks: &[usize]) -> Option<Vec<Vec<usize>>> {
    let linked = gpu_link_groups(t, ranks);
    if let Some(first) = linked.first()
        && linked.len() > 1
        && linked.len() * first.len() == ranks.len()
        && linked
            .iter()
            .all(|g| g.len() == first.len() && t.full_gpu_link(g))
    {
        return Some(linked);
    }
    let by_chip = |gpu: usize| -> Option<usize> {
        let leaf = t.leaf_switch(gpu)?;
        t.links
            .iter()
            .find(|l| l.from == leaf && l.wire == crate::topology::Wire::Chip)
            .map(|l| l.to)
    };
    let keys: [&dyn Fn(usize) -> Option<usize>; 3] =
        [&by_chip, &|g| t.socket_of(g), &|g| t.leaf_switch(g)];
    for key in keys {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let placed = ranks.iter().all(|&g| match key(g) {
            Some(k) => {
                groups.entry(k).or_default().push(g);
                true
            }
            None => false,
        });
        let groups: Vec<Vec<usize>> = groups.into_values().collect();
        let Some(first) = groups.first() else {
            continue;
        };
        let equal = groups.iter().all(|g| g.len() == first.len());
        if placed && equal && groups.len() > 1 && first.len() > 1 {
            return Some(groups);
        }
    }
    None
}
