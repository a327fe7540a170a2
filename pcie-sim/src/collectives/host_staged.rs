//! Through pinned host memory, for boxes without peer access. Small messages: every GPU writes its
//! data once as lines with flags, all others read it there. Larger ones: a ring that passes shards
//! through host memory. No flag crosses to the CPU.

use super::one_shot::start_us;
use super::{Job, Unavailable};
use crate::pattern::{LL_WIRE_FACTOR, Transfer};
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::RouteClass;

/// The faster of one-shot and ring.
pub(super) fn plan(job: &Job<'_>) -> Result<Plan, Unavailable> {
    let homeless = |g: &usize| job.t.host_route(*g, true).is_empty();
    if job.ranks.iter().any(homeless) {
        return Err(Unavailable(
            "needs GPUs that hang on a socket; this box file has none".to_string(),
        ));
    }
    let (one_shot, ring) = (one_shot(job), ring(job));
    let time = |plan: &Plan| plan.run(job.t, job.c()).time_us;
    Ok(if time(&one_shot) <= time(&ring) {
        one_shot
    } else {
        ring
    })
}

/// Lines of 8 B data and 8 B flag in host memory: on two H200 2.8 us plus 2 S over 28 GB/s was
/// measured, 1 KiB to 4 MiB.
fn one_shot(job: &Job<'_>) -> Plan {
    let mut transfers = Vec::new();
    for &from in job.ranks {
        for &to in job.ranks.iter().filter(|to| **to != from) {
            transfers.push(through_host(from, to, job.bytes * LL_WIRE_FACTOR));
        }
    }
    Plan {
        name: "host-staged-one-shot".to_string(),
        base_us: start_us(job),
        rounds: vec![Round::once(
            "write to the host, read all others there",
            transfers,
            RouteClass::Host.flag_us(),
        )],
    }
}

/// `2 (N-1)` steps of S/N through host memory.
fn ring(job: &Job<'_>) -> Plan {
    let shard = job.bytes / job.n() as f64;
    let transfers = (0..job.n())
        .map(|i| through_host(job.ranks[i], job.ranks[(i + 1) % job.n()], shard))
        .collect();
    let hop_us = RouteClass::Host.flag_us() + job.c().host_hop_us;
    let mut round = Round::once("step through host memory", transfers, hop_us);
    round.repeat = 2 * (job.n() as u32 - 1);
    Plan {
        name: "host-staged-ring".to_string(),
        base_us: start_us(job),
        rounds: vec![round],
    }
}

fn through_host(from: usize, to: usize, bytes: f64) -> Transfer {
    Transfer {
        from,
        to,
        bytes,
        access: Access::ThroughHost,
    }
}
