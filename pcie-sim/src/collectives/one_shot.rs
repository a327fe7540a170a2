//! One-shot: every rank gets all others' data and sums it. `(N-1) S` into each GPU.
//!
//! Pull (vLLM and SGLang 1-stage, p2pmark, b12x): a start barrier by flags stored into the peers,
//! then loads. Push (FlashInfer pcie_ipc, TensorRT-LLM Lamport): stores that carry their own
//! arrival mark, no barrier; the receiver polls its own memory.

use super::{Job, Unavailable};
use crate::box_spec::P2p;
use crate::constants::{Arch, Family};
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::RouteClass;

/// All ranks load from all others: over PCIe p2pmark's and b12x's kernel, that has no barrier at
/// its end; over NVLink the engines'.
pub(super) fn pull(job: &Job<'_>) -> Result<Plan, Unavailable> {
    pull_after(job, barrier_and_read_us(job))
}

/// The engines' kernel, which ends with a second barrier over PCIe as over NVLink.
pub(super) fn engine_pull(job: &Job<'_>) -> Result<Plan, Unavailable> {
    pull_after(job, barriers_and_read_us(job, 2.0))
}

fn pull_after(job: &Job<'_>, latency_us: f64) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let mut round = Round::once(
        "load all peers",
        all_to_all(job, job.bytes, Access::KernelLoad),
        latency_us,
    );
    round.cap_gb_s = load_cap(job);
    Ok(Plan {
        name: "one-shot".to_string(),
        base_us: start_us(job),
        rounds: vec![round],
    })
}

/// All ranks store to all others.
pub(super) fn push(job: &Job<'_>) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let c = job.c();
    let mut latency_us = over_link(job, c.family(job.t.arch).nvlink_push_us, RouteClass::flag_us);
    if job.class().is_gpu_link() {
        latency_us += c.nvlink_push_peer_us * (job.n() as f64 - 2.0);
    }
    let mut round = Round::once(
        "store to all peers",
        all_to_all(job, job.bytes, Access::KernelStore),
        latency_us,
    );
    round.cap_gb_s = push_cap(job);
    Ok(Plan {
        name: "one-shot-push".to_string(),
        base_us: start_us(job),
        rounds: vec![round],
    })
}

/// Custom kernels need peer access.
pub(super) fn needs_peer_access(job: &Job<'_>) -> Result<(), Unavailable> {
    if job.t.p2p == P2p::Off && !job.t.full_gpu_link(job.ranks) {
        return Err(Unavailable(
            "needs peer access between GPUs, which this box has not (p2p = off)".to_string(),
        ));
    }
    Ok(())
}

/// Start of a custom kernel as a node of a CUDA graph.
pub(super) fn start_us(job: &Job<'_>) -> f64 {
    job.c().family(job.t.arch).kernel_start_us
}

/// Start barrier and one loaded read.
pub(super) fn barrier_and_read_us(job: &Job<'_>) -> f64 {
    barriers_and_read_us(job, 1.0)
}

fn barriers_and_read_us(job: &Job<'_>, barriers: f64) -> f64 {
    let c = job.c();
    let peers = job.n() as f64 - 1.0;
    let stage_us = over_link(job, c.family(job.t.arch).nvlink_stage_us, |class| {
        barriers * class.flag_us() + class.read_round_trip_us()
    });
    if job.class().is_gpu_link() {
        return stage_us + c.nvlink_peer_us * (peers - 1.0);
    }
    // One peer is an idle fabric; several at once queue at the ports.
    stage_us + c.loaded_read_us * (1.0 - 1.0 / (peers * peers))
}

/// Latency of a kernel's stage over the job's links. `nvlink_us` was fitted on the generation's own
/// NVLink boxes and holds what its kernels cost beside the trips of their messages; over PCIe the
/// same kernel pays that too, with longer trips. PCIe figures alone were fitted on Blackwell with
/// GDDR, whose kernels cost nothing beside the trips and which has no NVLink figure: without this
/// an A100 or RTX 3090 would seem slower over its bridge than over PCIe.
pub(super) fn over_link(job: &Job<'_>, nvlink_us: f64, trips: impl Fn(RouteClass) -> f64) -> f64 {
    let class = job.class();
    let own_us = trips(class);
    if job.t.arch.family() == Family::BlackwellRtx {
        return own_us;
    }
    if class.is_gpu_link() {
        return nvlink_us;
    }
    own_us.max(nvlink_us + own_us - trips(RouteClass::GpuLink))
}

/// What a generation's push takes longer than Hopper's beside the trips, us: a kernel of another
/// origin, timed on Hopper alone, pays it on the generation too.
pub(super) fn slower_than_hopper_us(job: &Job<'_>) -> f64 {
    if job.t.arch.family() == Family::BlackwellRtx {
        return 0.0;
    }
    let push_us = |arch| job.c().family(arch).nvlink_push_us;
    (push_us(job.t.arch) - push_us(Arch::HOPPER)).max(0.0)
}

/// What one rank's loads from one peer can reach over NVLink; PCIe has its own limit per GPU.
pub(super) fn load_cap(job: &Job<'_>) -> f64 {
    if job.class().is_gpu_link() {
        job.c().family(job.t.arch).nvlink_load_gb_s
    } else {
        f64::INFINITY
    }
}

/// What one rank's stores to one peer can reach over NVLink; PCIe has its own limit per GPU.
pub(super) fn push_cap(job: &Job<'_>) -> f64 {
    if job.class().is_gpu_link() {
        job.c().family(job.t.arch).nvlink_push_gb_s / (job.n() as f64 - 1.0)
    } else {
        f64::INFINITY
    }
}

/// Every ordered pair of ranks moves `bytes`.
pub(super) fn all_to_all(job: &Job<'_>, bytes: f64, access: Access) -> Vec<Transfer> {
    let mut out = Vec::with_capacity(job.n() * job.n());
    for &from in job.ranks {
        for &to in job.ranks {
            if from != to {
                out.push(Transfer {
                    from,
                    to,
                    bytes,
                    access,
                });
            }
        }
    }
    out
}
