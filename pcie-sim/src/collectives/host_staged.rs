//! Through pinned host memory, for boxes without peer access. Small messages: every GPU writes its
//! data once with marks in it, all others read it there. Larger ones: tiles with a flag each, or, with
//! more than two GPUs, a ring that passes shards through host memory. No flag crosses to the CPU.

use super::one_shot::start_us;
use super::{Job, Unavailable};
use crate::pattern::{LL_WIRE_FACTOR, Transfer};
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::RouteClass;

/// What a port carries of kernels' stores alone against what it carries both ways at once: an up-link
/// of Gen5 x16 took 47 GB/s of stores while loads waited behind them, where a flow through host
/// memory counts as 38 (two H200, docs/HARDWARE.md).
const STORES_FIRST: f64 = 38.2 / 47.0;
/// Stores and loads that run at once and end together: 35 GB/s each way there.
const BOTH_AT_ONCE: f64 = 38.2 / 35.0;
/// A message of tiles is done in pieces of this many bytes, one launch each.
const PIECE_BYTES: f64 = 4_194_304.0;
/// Before the first tile is read so much has been written, bytes.
const FILL_BYTES: f64 = 262_144.0;
/// Start of a kernel that waits for nobody: an empty kernel in a graph takes 0.52 us, its first loads
/// 0.55 (two H200).
const START_US: f64 = 1.1;
/// One way of a flag through host memory, us: 1.6 to 1.87 between two H200.
const FLAG_US: f64 = 1.75;
/// A system fence between a tile and its flag, us.
const FENCE_US: f64 = 1.5;

/// The fastest of lines with marks, tiles (two GPUs) and a ring (more).
pub(super) fn plan(job: &Job<'_>) -> Result<Plan, Unavailable> {
    let homeless = |g: &usize| job.t.host_route(*g, true).is_empty();
    if job.ranks.iter().any(homeless) {
        return Err(Unavailable(
            "needs GPUs that hang on a socket; this box file has none".to_string(),
        ));
    }
    let marks = marks(job);
    let large = if job.n() == 2 { tiles(job) } else { ring(job) };
    let time = |plan: &Plan| plan.run(job.t, job.c()).time_us;
    Ok(if time(&marks) <= time(&large) {
        marks
    } else {
        large
    })
}

/// Data with marks in host memory: each byte is stored once as data and once to restore its mark, so
/// twice the bytes go up. More than two GPUs, where nothing was measured and loads from all others
/// share a port, are left the slower start, flag and rate of a flow through host memory.
fn marks(job: &Job<'_>) -> Plan {
    let (base_us, flag_us, share) = if job.n() == 2 {
        (START_US, FLAG_US, STORES_FIRST)
    } else {
        (start_us(job), RouteClass::Host.flag_us(), 1.0)
    };
    Plan {
        name: "host-staged-one-shot".to_string(),
        base_us,
        rounds: vec![Round::once(
            "write to the host, read all others there",
            pairs(job, job.bytes * LL_WIRE_FACTOR * share),
            flag_us,
        )],
    }
}

/// Tiles with a flag each: a fence and two trips, then both directions at once.
fn tiles(job: &Job<'_>) -> Plan {
    let latency_us = START_US + FENCE_US + 2.0 * FLAG_US;
    let round = |bytes: f64, repeat: u32| {
        let moved = (bytes + bytes.min(FILL_BYTES)) * BOTH_AT_ONCE;
        let mut round = Round::once("tiles through host memory", pairs(job, moved), latency_us);
        round.repeat = repeat;
        round
    };
    let whole = (job.bytes / PIECE_BYTES).floor().min(f64::from(u32::MAX));
    let rest = job.bytes - whole * PIECE_BYTES;
    let mut rounds = Vec::new();
    if whole >= 1.0 {
        rounds.push(round(PIECE_BYTES, whole as u32));
    }
    if rest > 0.0 {
        rounds.push(round(rest, 1));
    }
    Plan {
        name: "host-staged-tiles".to_string(),
        base_us: 0.0,
        rounds,
    }
}

fn pairs(job: &Job<'_>, bytes: f64) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for &from in job.ranks {
        for &to in job.ranks.iter().filter(|to| **to != from) {
            transfers.push(through_host(from, to, bytes));
        }
    }
    transfers
}

/// A step of the ring of more than two GPUs beyond its flag, us: nothing of ours was measured there, so the
/// slow figure of NCCL on eight RTX 3090 stays.
const RING_EXTRA_US: f64 = 1.5;

/// `2 (N-1)` steps of S/N through host memory.
fn ring(job: &Job<'_>) -> Plan {
    let shard = job.bytes / job.n() as f64;
    let transfers = (0..job.n())
        .map(|i| through_host(job.ranks[i], job.ranks[(i + 1) % job.n()], shard))
        .collect();
    let hop_us = RouteClass::Host.flag_us() + RING_EXTRA_US;
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
