//! NCCL's ring: `2 (N-1)` steps, each moves `S/N` to the next rank.

use super::Job;
use super::one_shot::all_to_all;
use crate::nccl::{Graph, NcclProtocol, p2p};
use crate::pattern::{LL_WIRE_FACTOR, Transfer};
use crate::plan::{Plan, Round};
use crate::tlp::Access;
use crate::topology::RouteClass;

/// Data of one pass of a channel's 512 threads in LL, bytes: 8 each.
const LL_PASS_BYTES: f64 = 4096.0;
/// LL over NVLink: most a rank moves, GB/s of data (tuning.cc llMaxBw for one box: 39, 87.7, 141,
/// 282 by generation); measured slopes agree (H100 141, B300 about 280).
fn ll_nvlink_gb_s(sm: u16) -> f64 {
    match sm {
        0..=79 => 39.0,
        80..=89 => 87.7,
        90..=99 => 141.0,
        _ => 282.0,
    }
}
/// LL steps overlap with the lines of the next: shape of measured step times (RTX PRO 6000, 2, 4
/// and 8 GPUs) between the pure latency and the pure transfer.
const LL_OVERLAP: f64 = 1.5;
/// Size from which more blocks take part in LL over NVLink, bytes.
const LL_SPREAD_BYTES: f64 = 16_384.0;

/// The all-reduce as `2 (N-1)` equal steps.
pub(super) fn plan(job: &Job<'_>, graph: &Graph, protocol: NcclProtocol) -> Plan {
    let steps = 2 * (job.n() as u32 - 1);
    let mut round = step(job, graph, protocol, job.bytes / job.n() as f64);
    round.repeat = steps;
    Plan {
        name: format!("nccl-ring-{}", suffix(protocol)),
        base_us: base_us(job, graph, protocol),
        rounds: vec![round],
    }
}

/// Protocol as in a name.
pub(super) fn suffix(protocol: NcclProtocol) -> &'static str {
    match protocol {
        NcclProtocol::Ll => "ll",
        NcclProtocol::Ll128 => "ll128",
        NcclProtocol::Simple => "simple",
    }
}

/// Start of the kernel with the first and last step's fixed part.
pub(super) fn base_us(job: &Job<'_>, graph: &Graph, protocol: NcclProtocol) -> f64 {
    let c = job.c();
    let family = c.family(job.t.arch);
    match (protocol, graph.nvlink) {
        (NcclProtocol::Ll | NcclProtocol::Ll128, _) => family.ll_base_us,
        (NcclProtocol::Simple, true) => {
            // Measured where all channels are full; few of them start as over PCIe.
            let start = c.simple_pcie_base_us.min(family.simple_base_us);
            start + (family.simple_base_us - start) * filled(job, graph)
        }
        // An older GPU starts its kernels later, whatever the protocol.
        (NcclProtocol::Simple, false) => c.simple_pcie_base_us,
    }
}

/// Data that NCCL gives a channel of Simple at least: 64 bytes for each of 512 threads (tuning and
/// enqueue code, threadThresholds).
const SIMPLE_CHANNEL_BYTES: f64 = 64.0 * 512.0;

/// Share of the channels beyond the first that a size fills in Simple.
fn filled(job: &Job<'_>, graph: &Graph) -> f64 {
    let beyond = f64::from(graph.channels.max(2) - 1);
    ((job.bytes / SIMPLE_CHANNEL_BYTES - 1.0) / beyond).clamp(0.0, 1.0)
}

/// One step of `chunk` payload bytes per rank around the ring.
pub(super) fn step(job: &Job<'_>, graph: &Graph, protocol: NcclProtocol, chunk: f64) -> Round {
    let wire_factor = match protocol {
        NcclProtocol::Ll if !graph.nvlink => LL_WIRE_FACTOR,
        // 120 of 128 bytes are data.
        NcclProtocol::Ll128 => 128.0 / 120.0,
        NcclProtocol::Simple if !graph.nvlink => job.c().simple_overhead,
        NcclProtocol::Ll | NcclProtocol::Simple => 1.0,
    };
    let rings = f64::from(graph.rings.max(1));
    let bytes = chunk * wire_factor / rings;
    let transfers = if graph.rings > 1 {
        // Every link is a hop of one ring.
        all_to_all(job, bytes, Access::KernelStore)
    } else {
        hops(job, graph)
            .map(|(from, to)| Transfer {
                from,
                to,
                bytes,
                access: access(job, graph, (from, to)),
            })
            .collect()
    };
    let worst = worst_hop(job, graph);
    let (latency_us, overlap, cap_gb_s) = match (protocol, graph.nvlink) {
        (NcclProtocol::Ll | NcclProtocol::Ll128, true) => {
            let family = job.c().family(job.t.arch);
            let size = job.bytes / LL_SPREAD_BYTES;
            let spread = 1.0 + job.c().ll_spread * size / (1.0 + size);
            let cap = match protocol {
                // Half of every line is its flag: a narrow bridge carries no more than half its rate.
                NcclProtocol::Ll => {
                    let kernel = ll_nvlink_gb_s(job.t.arch.0) / rings;
                    kernel.min(slowest_port(job, graph) / LL_WIRE_FACTOR)
                }
                _ => f64::INFINITY,
            };
            (family.ll_hop_nvlink_us * spread, LL_OVERLAP, cap)
        }
        (NcclProtocol::Ll | NcclProtocol::Ll128, false) => {
            let hop = ring_flag_us(job, graph) + job.c().ll_hop_above_flag_us;
            let pass_us = worst.flag_us() * job.c().ll_pass_flags;
            let channel = LL_PASS_BYTES * wire_factor / (pass_us * 1e3);
            (hop, LL_OVERLAP, channel * f64::from(graph.channels))
        }
        (NcclProtocol::Simple, true) => {
            let family = job.c().family(job.t.arch);
            let share = 1.0 - RING_SHORT / job.n() as f64;
            let port = slowest_port(job, graph) * family.ring_efficiency * share;
            (family.simple_hop_us, 1.0, port)
        }
        (NcclProtocol::Simple, false) => {
            let extra = hops(job, graph).map(|hop| host_extra_us(job, graph, hop));
            let hop = job.c().simple_pcie_hop_us + extra.fold(0.0, f64::max);
            let channel = job.c().simple_channel_gb_s * wire_factor;
            let cap = channel * f64::from(graph.channels);
            (hop, 1.0, cap)
        }
    };
    Round {
        label: "ring step",
        transfers,
        latency_us,
        overlap,
        cap_gb_s,
        repeat: 1,
    }
}

fn access(job: &Job<'_>, graph: &Graph, (from, to): (usize, usize)) -> Access {
    match p2p::staged(job.t, graph.level, from, to) {
        true => Access::ThroughHost,
        false => Access::KernelStore,
    }
}

/// A short ring over NVLink reaches less: with N ranks `1 - 0.3/N` (A100 0.64, 0.72, 0.74 of the
/// ports at 2, 4, 8 ranks; H100 and B300 the same shape).
const RING_SHORT: f64 = 0.3;

fn slowest_port(job: &Job<'_>, graph: &Graph) -> f64 {
    hops(job, graph)
        .filter_map(|(a, b)| job.t.route(a, b))
        .flat_map(|r| r.links.iter())
        .map(|l| job.t.links[*l].gb_s)
        .fold(f64::INFINITY, f64::min)
}

fn hops<'a>(job: &'a Job<'_>, graph: &'a Graph) -> impl Iterator<Item = (usize, usize)> + 'a {
    (0..graph.order.len()).map(move |i| {
        (
            job.ranks[graph.order[i]],
            job.ranks[graph.order[(i + 1) % graph.order.len()]],
        )
    })
}

/// What lies between two neighbours of the ring as NCCL goes there.
fn class(job: &Job<'_>, graph: &Graph, (a, b): (usize, usize)) -> Option<RouteClass> {
    let route = job.t.route(a, b)?;
    Some(match p2p::staged(job.t, graph.level, a, b) {
        true => RouteClass::Host,
        false => route.class,
    })
}

fn worst_hop(job: &Job<'_>, graph: &Graph) -> RouteClass {
    hops(job, graph)
        .filter_map(|hop| class(job, graph, hop))
        .max_by(|a, b| a.read_round_trip_us().total_cmp(&b.read_round_trip_us()))
        .unwrap_or(RouteClass::GpuLink)
}

/// Mean one-way flag time around the ring, host memory's extra cost included: data waits at every
/// hop in turn.
fn ring_flag_us(job: &Job<'_>, graph: &Graph) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for hop in hops(job, graph) {
        if let Some(class) = class(job, graph, hop) {
            sum += class.flag_us() + host_extra_us(job, graph, hop);
            count += 1.0;
        }
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

/// What a flag through host memory takes longer than its class says: the CPU's own part, and half of
/// what switches on the way and the other socket add to a round trip between GPUs.
fn host_extra_us(job: &Job<'_>, graph: &Graph, hop: (usize, usize)) -> f64 {
    if class(job, graph, hop) != Some(RouteClass::Host) {
        return 0.0;
    }
    let direct = RouteClass::DirectSameSocket.read_round_trip_us();
    let longer = |class: RouteClass| (class.read_round_trip_us() - direct) / 2.0;
    let (a, b) = hop;
    let behind = [a, b].iter().any(|gpu| job.t.leaf_switch(*gpu).is_some());
    let across = job.t.socket_of(a) != job.t.socket_of(b);
    let mut extra = job.c().host_hop_us;
    if behind {
        extra += longer(RouteClass::SameSocket);
    }
    if across {
        extra += longer(RouteClass::CrossSocket);
    }
    extra
}
