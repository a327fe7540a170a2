//! One-shot: every rank gets all others' data and sums it. `(N-1) S` into each GPU.
//!
//! Pull (vLLM and SGLang 1-stage, p2pmark, b12x): a start barrier by flags stored into the peers,
//! then loads. Push (FlashInfer pcie_ipc, TensorRT-LLM Lamport): stores that carry their own
//! arrival mark, no barrier; the receiver polls its own memory.

use super::{Job, Unavailable};
use crate::box_spec::P2p;
use crate::constants::Family;
use crate::pattern::Transfer;
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::{RouteClass, Topology};

/// Whose kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// One barrier or marks in the data and nothing beside the trips of its messages, on whatever
    /// link: p2pmark, b12x, FlashInfer pcie_ipc, ours. Fitted over PCIe (a V100 pushes to three peers in 4.0 us);
    /// over NVLink ours take 2.2 us on two H200 (docs/HARDWARE.md).
    Lean,
    /// The engines' kernels, with what they cost on the GPU generation; fitted over NVLink.
    Engine,
}

/// All ranks load from all others.
pub(super) fn pull(job: &Job<'_>, form: Form) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let mut round = Round::once(
        "load all peers",
        all_to_all(job, job.bytes, Access::KernelLoad),
        barrier_and_read_us(job, form),
    );
    round.cap_gb_s = load_cap(job);
    Ok(Plan {
        name: "one-shot".to_string(),
        base_us: start_us(job),
        rounds: vec![round],
    })
}

/// All ranks store to all others.
pub(super) fn push(job: &Job<'_>, form: Form) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let c = job.c();
    let nvlink_us = c.family(job.t.arch).nvlink_push_us;
    let mut latency_us = over_link(job, form, nvlink_us, RouteClass::flag_us);
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
        return Err(Unavailable(no_peer_access(job)));
    }
    Ok(())
}

/// Which GPUs lack peer access, which have it by NVLink, and what to do.
fn no_peer_access(job: &Job<'_>) -> String {
    let pairs = || {
        let ranks = job.ranks.iter().enumerate();
        ranks.flat_map(|(i, &a)| job.ranks[i + 1..].iter().map(move |&b| (a, b)))
    };
    let linked = |(a, b): &(usize, usize)| job.t.full_gpu_link(&[*a, *b]);
    let (a, b) = pairs().find(|pair| !linked(pair)).unwrap_or((0, 1));
    let bridged = pairs().find(linked);
    let (have, inside) = match bridged {
        None => (String::new(), String::new()),
        Some(_) => {
            let groups = gpu_link_groups(job.t, job.ranks);
            let named: Vec<String> = groups.iter().map(|g| format!("{g:?}")).collect();
            (
                format!(", and NVLink joins only {}", named.join(" and ")),
                groups
                    .first()
                    .map_or_else(String::new, |g| format!("a group inside {g:?}, ")),
            )
        }
    };
    format!(
        "needs peer access between all GPUs taking part: {a} and {b} have none (p2p = off{have}); \
         use nccl, as the engines do by themselves, {inside}or a driver with peer access over PCIe \
         (p2p = \"on\" in the box file)"
    )
}

/// Groups of two or more ranks that NVLink joins, directly or through one another.
pub(super) fn gpu_link_groups(t: &Topology, ranks: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for &rank in ranks {
        let touches = |group: &Vec<usize>| group.iter().any(|&g| t.full_gpu_link(&[g, rank]));
        let (joined, mut rest): (Vec<_>, Vec<_>) = groups.into_iter().partition(touches);
        let mut group: Vec<usize> = joined.into_iter().flatten().collect();
        group.push(rank);
        group.sort_unstable();
        rest.push(group);
        groups = rest;
    }
    groups.retain(|g| g.len() > 1);
    groups.sort();
    groups
}

/// Start of a custom kernel as a node of a CUDA graph.
pub(super) fn start_us(job: &Job<'_>) -> f64 {
    job.c().family(job.t.arch).kernel_start_us
}

/// Start barrier and one loaded read; the engines' kernel has a second barrier at its end.
pub(super) fn barrier_and_read_us(job: &Job<'_>, form: Form) -> f64 {
    let c = job.c();
    let peers = job.n() as f64 - 1.0;
    let barriers = if form == Form::Engine { 2.0 } else { 1.0 };
    let stage_us = over_link(job, form, c.family(job.t.arch).nvlink_stage_us, |class| {
        barriers * class.flag_us() + class.read_round_trip_us()
    });
    if job.class().is_gpu_link() {
        return stage_us + c.nvlink_peer_us * (peers - 1.0);
    }
    // One peer is an idle fabric; several at once queue at the ports.
    stage_us + c.loaded_read_us * (1.0 - 1.0 / (peers * peers))
}

/// Latency of a kernel's stage over the job's links. `nvlink_us` was fitted on the engines' kernels
/// over NVLink and holds what they cost beside the trips of their messages; over PCIe the same
/// kernels pay that too, with longer trips. Only Blackwell with GDDR has engine figures over PCIe,
/// and none over NVLink. Comparing one form over NVLink with the other over PCIe would make a bridge
/// look slower than PCIe.
pub(super) fn over_link(
    job: &Job<'_>,
    form: Form,
    nvlink_us: f64,
    trips: impl Fn(RouteClass) -> f64,
) -> f64 {
    let class = job.class();
    let own_us = trips(class);
    let unknown = job.t.arch.family() == Family::BlackwellRtx;
    match form {
        _ if unknown => own_us,
        Form::Lean if class.is_gpu_link() => own_us.min(nvlink_us),
        Form::Lean => own_us,
        Form::Engine if class.is_gpu_link() => nvlink_us,
        Form::Engine => own_us.max(nvlink_us + own_us - trips(RouteClass::GpuLink)),
    }
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
