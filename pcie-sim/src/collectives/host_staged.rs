//! Through pinned host memory, for boxes without peer access: each GPU writes its slot, then
//! either a CPU thread sums and all read the result (few ranks, small messages), or a ring passes
//! shards through host memory. The exllamav3 designs.

use super::one_shot::start_us;
use super::{Job, Unavailable};
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::RouteClass;

/// Largest message the CPU sums, bytes, and most ranks: above, its memory reads cost more than
/// the ring's steps.
const CPU_SUM_MAX_BYTES: f64 = 65_536.0;
const CPU_SUM_MAX_RANKS: usize = 4;
/// A CPU thread sums about this much per rank, GB/s (one core, AVX2 on bf16, from L3).
const CPU_SUM_GB_S: f64 = 8.0;
/// One block reads pinned memory at 20 of 53 GB/s, four blocks at full rate (exllamav3 notes);
/// four blocks are assumed. Two doorbells of the CPU thread, us.
const DOORBELLS_US: f64 = 2.0;

/// CPU-summed or as a ring.
pub(super) fn plan(job: &Job<'_>) -> Result<Plan, Unavailable> {
    if job
        .ranks
        .iter()
        .any(|g| job.t.host_route(*g, true).is_empty())
    {
        return Err(Unavailable(
            "needs GPUs that hang on a socket; this box file has none".to_string(),
        ));
    }
    let n = job.n() as f64;
    let hop_us = RouteClass::Host.flag_us() + job.c().host_hop_us;
    let ring = |bytes: f64| -> Vec<Transfer> {
        (0..job.n())
            .map(|i| Transfer {
                from: job.ranks[i],
                to: job.ranks[(i + 1) % job.n()],
                bytes,
                access: Access::KernelStore,
            })
            .collect()
    };
    if job.bytes <= CPU_SUM_MAX_BYTES && job.n() <= CPU_SUM_MAX_RANKS {
        // Slots up and result down: on the wires the same as one ring step of S each way.
        let sum_us = job.bytes * n / (CPU_SUM_GB_S * 1e3);
        return Ok(Plan {
            name: "host-staged-cpu".to_string(),
            base_us: start_us(job) + DOORBELLS_US + sum_us,
            rounds: vec![Round::once(
                "to host and back",
                ring(job.bytes),
                2.0 * hop_us,
            )],
        });
    }
    let mut round = Round::once("step through host memory", ring(job.bytes / n), hop_us);
    round.repeat = 2 * (job.n() as u32 - 1);
    Ok(Plan {
        name: "host-staged-ring".to_string(),
        base_us: start_us(job),
        rounds: vec![round],
    })
}
