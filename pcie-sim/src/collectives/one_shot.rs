//! One-shot: every rank gets all others' data and sums it. `(N-1) S` into each GPU.
//!
//! Pull (vLLM and SGLang 1-stage, p2pmark, b12x): a start barrier by flags stored into the peers,
//! then loads. Push (FlashInfer pcie_ipc, TensorRT-LLM Lamport): stores that carry their own
//! arrival mark, no barrier; the receiver polls its own memory.

use super::{Job, Unavailable};
use crate::box_spec::P2p;
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};
use crate::tlp::Access;

/// All ranks load from all others.
pub(super) fn pull(job: &Job<'_>) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let mut round = Round::once(
        "load all peers",
        all_to_all(job, job.bytes, Access::KernelLoad),
        barrier_and_read_us(job),
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
    let gpu_link = job.class().is_gpu_link();
    let latency_us = if gpu_link {
        c.family(job.t.arch).nvlink_push_us + c.nvlink_push_peer_us * (job.n() as f64 - 2.0)
    } else {
        job.class().flag_us()
    };
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
    let c = job.c();
    let class = job.class();
    let peers = job.n() as f64 - 1.0;
    if class.is_gpu_link() {
        return c.family(job.t.arch).nvlink_stage_us + c.nvlink_peer_us * (peers - 1.0);
    }
    // One peer is an idle fabric; several at once queue at the ports.
    let loaded = c.loaded_read_us * (1.0 - 1.0 / (peers * peers));
    class.flag_us() + class.read_round_trip_us() + loaded
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
