//! What NCCL would choose: its bandwidth table, graph search and tuning model, copied as an
//! algorithm from NVIDIA/nccl (src/graph/topo, search.cc, tuning.cc; 2.27 to 2.30), with its known
//! failures. The times it *predicts* only serve its choice; how long the choice then takes is
//! simulated in `collectives`.

mod cure;
pub mod p2p;

pub use cure::{Cure, FINDS_RING, by_a_newer, cure, on_amd};
pub use p2p::P2pLevel;

use crate::box_spec::LinkKind;
use crate::constants::Arch;
use crate::cpu;
use crate::topology::{DirectedLink, RouteClass, Topology, Wire};

/// NCCL algorithms for one box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NcclAlgorithm {
    /// Ring.
    Ring,
    /// Tree (one box: a chain).
    Tree,
    /// NVLink SHARP: the switch reduces.
    Nvls,
}

/// NCCL protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NcclProtocol {
    /// 8 B data and 8 B flag a line.
    Ll,
    /// 120 B data and 8 B flag a line; NVLink only.
    Ll128,
    /// Chunks with head and tail counters.
    Simple,
}

/// What may be known of the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NcclSetup {
    /// Version as (major, minor); None: the box's, or unknown, so that the failures of versions before
    /// 2.30 are assumed.
    pub version: Option<(u16, u16)>,
    /// `NCCL_P2P_LEVEL`; None: the box's, or NCCL's own.
    pub p2p_level: Option<P2pLevel>,
    /// A hand-written graph file replaces the search (`NCCL_GRAPH_FILE`).
    pub graph_file: bool,
    /// `NCCL_MIN_NCHANNELS`.
    pub min_channels: Option<u32>,
    /// `NCCL_PROTO` pins a protocol.
    pub protocol: Option<NcclProtocol>,
}

/// What the graph search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// Ranks in ring order, indices into the caller's `ranks`.
    pub order: Vec<usize>,
    /// Channels in use (after NCCL doubles what it found).
    pub channels: u32,
    /// GB/s over all channels, as NCCL counts.
    pub bus_gb_s: f64,
    /// No ring was found at any speed: 0.1 GB/s is assumed, with two channels.
    pub failed: bool,
    /// All hops run over NVLink.
    pub nvlink: bool,
    /// Rings over links of their own: on a full mesh of links as many as a GPU has peers.
    pub rings: u32,
    /// Up to which path it goes directly, through host memory beyond.
    pub level: P2pLevel,
}

/// The version in force, where known.
pub fn version(t: &Topology, setup: &NcclSetup) -> Option<(u16, u16)> {
    setup.version.or(t.nccl_version)
}

/// `2.29.7`, `2.28.9+cuda13.0` or `v2.30` as (2, 29), …; None where it is no version.
pub fn release(text: &str) -> Option<(u16, u16)> {
    let mut parts = text.trim().trim_start_matches('v').split(['.', '+', '-']);
    let mut next = || parts.next()?.parse::<u16>().ok();
    let (major, minor) = (next()?, next()?);
    (major > 0 && minor < 1000).then_some((major, minor))
}

/// Speeds tried from fast to slow, GB/s: default, sm90, sm100 and later (search.cc).
const SPEEDS: [f64; 13] = [
    40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0,
];
const SPEEDS_SM90: [f64; 11] = [
    60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0,
];
const SPEEDS_SM100: [f64; 12] = [
    90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0,
];
/// What a search without result assumes.
const FAILED_GB_S: f64 = 0.1;
/// Most channels NCCL uses on NVLink in one box.
const NVLINK_CHANNELS: u32 = 24;

/// NCCL's figure for the link between any two AMD sockets before [`FINDS_RING`], GB/s (topo.h).
const AMD_FLAT_GB_S: f64 = 16.0;

/// NCCL's figure for a socket link, GB/s (topo.h): AMD Zen 3 and 4 24, Zen 5 32 (all since 2.30; 16
/// before), Intel Skylake 10, Sapphire Rapids 22, other Intel 6 to 40.
pub(crate) fn socket_gb_s(cpu: Option<&str>, link: LinkKind) -> f64 {
    let cpu = cpu.map(cpu::family).unwrap_or_default();
    let has = |names: &[&str]| names.iter().any(|n| cpu.contains(n));
    if has(&["turin", "zen5"]) {
        32.0
    } else if has(&["milan", "genoa", "zen3", "zen4", "bergamo"]) {
        24.0
    } else if has(&["rome", "naples", "zen1", "zen2"]) {
        16.0
    } else if has(&["spr", "sapphire", "emr", "emerald"]) {
        22.0
    } else if has(&["gnr", "granite"]) {
        40.0
    } else if has(&["skl", "skylake", "clx", "icx", "ice"]) {
        10.0
    } else {
        match link {
            LinkKind::Qpi => 6.0,
            LinkKind::Upi => 22.0,
            LinkKind::Xgmi | LinkKind::Nvlink => 24.0,
        }
    }
}

/// NCCL's figure for an NVLink port given its data-sheet rate: 20, 20.6 and 40.1 a link where the
/// data sheet says 25, 25 and 50.
pub(crate) fn nvlink_gb_s(data_sheet_gb_s: f64) -> f64 {
    data_sheet_gb_s * 0.81
}

/// The ring search for `ranks` (GPU indices of the box).
pub fn search(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> Graph {
    let near = ring_order(t, ranks);
    let level = p2p::level(t, ranks, setup);
    let over_links = |order: &[usize]| {
        level >= P2pLevel::Nvl && ring_hops(ranks, order).all(|(a, b)| t.full_gpu_link(&[a, b]))
    };
    // Nearest first may run into a GPU from which only PCIe leads back (hybrid cube mesh).
    let order = if over_links(&near) {
        near
    } else {
        link_ring(t, ranks).unwrap_or(near)
    };
    let nvlink = over_links(&order);
    let rings = if linked_in_pairs(t, ranks) {
        ranks.len() as u32 - 1
    } else {
        1
    };
    let (mut channels, mut bus_gb_s) = (2, FAILED_GB_S);
    // More than two GPUs over PCIe get one ring in every published log, two of them two.
    let most = match (nvlink, ranks.len()) {
        (true, _) => 32,
        (false, 2) => 2,
        (false, _) => 1,
    };
    let (found, speed) = best_speed(t, (ranks, setup), &order, most);
    if found > 0 {
        bus_gb_s = f64::from(found) * speed * f64::from(rings);
        channels = if nvlink {
            NVLINK_CHANNELS
        } else {
            // Every channel is used twice (connect.cc).
            2 * found
        };
    }
    if setup.graph_file && !nvlink {
        channels = channels.max(4);
    }
    if let Some(min) = setup.min_channels {
        channels = channels.max(min.min(64));
    }
    Graph {
        order,
        channels,
        bus_gb_s,
        failed: bus_gb_s <= FAILED_GB_S,
        nvlink,
        rings,
        level,
    }
}

/// Whether every two ranks have a link of their own (xGMI of the MI300): then a GPU's links carry
/// one ring each, which together reach all ranks in another order.
fn linked_in_pairs(t: &Topology, ranks: &[usize]) -> bool {
    let mut taken = std::collections::BTreeSet::new();
    let mut pairs = ranks
        .iter()
        .flat_map(|a| ranks.iter().map(move |b| (*a, *b)))
        .filter(|(a, b)| a != b);
    ranks.len() > 2
        && pairs.all(|(a, b)| {
            t.route(a, b).is_some_and(|route| {
                route.class == RouteClass::GpuLink && route.links.iter().all(|l| taken.insert(*l))
            })
        })
}

/// Ranks so that near ones are neighbours: nearest first, from rank 0.
fn ring_order(t: &Topology, ranks: &[usize]) -> Vec<usize> {
    let mut order = Vec::with_capacity(ranks.len());
    let mut free: Vec<usize> = (0..ranks.len()).collect();
    if free.is_empty() {
        return order;
    }
    order.push(free.remove(0));
    while !free.is_empty() {
        let last = ranks[*order.last().unwrap_or(&0)];
        let nearest = free
            .iter()
            .enumerate()
            .min_by_key(|(_, r)| {
                let class = t.route(last, ranks[**r]).map(|x| x.class);
                (p2p::path(t, last, ranks[**r]), class, **r)
            })
            .map_or(0, |(i, _)| i);
        order.push(free.remove(nearest));
    }
    order
}

/// Steps after which no ring is looked for any further.
const RING_TRIES: usize = 20_000;

/// A ring of all ranks over GPU links alone, if there is one: depth first, lowest rank first.
fn link_ring(t: &Topology, ranks: &[usize]) -> Option<Vec<usize>> {
    let linked = |a: usize, b: usize| t.full_gpu_link(&[ranks[a], ranks[b]]);
    let mut order = vec![0];
    // Where to go on from each GPU of `order`.
    let mut next = vec![1];
    for _ in 0..RING_TRIES {
        let last = *order.last()?;
        if order.len() == ranks.len() && linked(last, 0) {
            return Some(order);
        }
        let from = *next.last()?;
        let found = (from..ranks.len()).find(|&to| !order.contains(&to) && linked(last, to));
        if let Some(to) = found {
            *next.last_mut()? = to + 1;
            order.push(to);
            next.push(1);
        } else {
            order.pop();
            next.pop();
        }
    }
    None
}

fn ring_hops<'a>(
    ranks: &'a [usize],
    order: &'a [usize],
) -> impl Iterator<Item = (usize, usize)> + 'a {
    (0..order.len()).map(move |i| (ranks[order[i]], ranks[order[(i + 1) % order.len()]]))
}

/// Channels and speed with the most GB/s in sum. Like NCCL, goes on below the first speed that
/// works while the next is above 0.49 of it.
fn best_speed(
    t: &Topology,
    (ranks, setup): (&[usize], &NcclSetup),
    order: &[usize],
    most: u32,
) -> (u32, f64) {
    let speeds: &[f64] = match t.arch.0 {
        0..=89 => &SPEEDS,
        90..=99 => &SPEEDS_SM90,
        _ => &SPEEDS_SM100,
    };
    let mut best = (0, 0.0);
    let mut first = 0.0;
    for &speed in speeds {
        if first > 0.0 && speed <= 0.49 * first {
            break;
        }
        let fits = channels_that_fit(t, (ranks, setup), order, speed, most);
        if fits == 0 {
            continue;
        }
        if first == 0.0 {
            first = speed;
        }
        if f64::from(fits) * speed > f64::from(best.0) * best.1 {
            best = (fits, speed);
        }
    }
    best
}

/// What NCCL counts for a link. A graph file stands for a search with figures that are right.
fn counted(t: &Topology, link: &DirectedLink, setup: &NcclSetup) -> f64 {
    let flat = cpu::is_amd(t.cpu.as_deref())
        && version(t, setup).is_none_or(|v| v < FINDS_RING)
        && !setup.graph_file;
    match link.wire {
        Wire::Socket if flat => AMD_FLAT_GB_S,
        _ => link.nccl_gb_s,
    }
}

fn channels_that_fit(
    t: &Topology,
    (ranks, setup): (&[usize], &NcclSetup),
    order: &[usize],
    speed: f64,
    most: u32,
) -> u32 {
    // Intel root complexes cut peer traffic into 64 B packets: charged 6/5.
    let cpu = t.cpu.as_deref().map(cpu::family);
    let intel = cpu.is_some_and(|cpu| cpu.contains("intel"));
    let mut taken = vec![0.0; t.links.len()];
    for (a, b) in ring_hops(ranks, order) {
        let Some(route) = t.route(a, b) else {
            return 0;
        };
        let cpu_path = matches!(
            route.class,
            RouteClass::SameSocket | RouteClass::DirectSameSocket | RouteClass::CrossSocket
        );
        for &l in &route.links {
            let pcie = matches!(t.links[l].wire, Wire::Pcie { .. });
            taken[l] += if intel && cpu_path && pcie { 1.2 } else { 1.0 };
        }
    }
    let fits = taken
        .iter()
        .zip(&t.links)
        .filter(|(uses, _)| **uses > 0.0)
        .map(|(uses, link)| ((counted(t, link, setup) + 1e-9) / (speed * uses)).floor())
        .fold(f64::from(most), f64::min);
    fits.max(0.0) as u32
}

/// A choice with what NCCL thinks it will take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Algorithm.
    pub algorithm: NcclAlgorithm,
    /// Protocol.
    pub protocol: NcclProtocol,
    /// NCCL's own estimate, us.
    pub nccl_estimate_us: f64,
}

/// NCCL's choice for an all-reduce of `bytes` among `n` ranks. On a tie the earlier of ring LL,
/// ring LL128, ring Simple, tree, NVLS.
pub fn choose(arch: Arch, graph: &Graph, n: usize, bytes: u64, setup: &NcclSetup) -> Choice {
    use NcclAlgorithm::{Nvls, Ring, Tree};
    use NcclProtocol::{Ll, Ll128, Simple};
    let mut best: Option<Choice> = None;
    for algorithm in [Ring, Tree, Nvls] {
        for protocol in [Ll, Ll128, Simple] {
            if setup.protocol.is_some_and(|p| p != protocol) {
                continue;
            }
            let Some(us) = estimate_us(arch, graph, n, bytes as f64, algorithm, protocol, setup)
            else {
                continue;
            };
            if best.is_none_or(|b| us < b.nccl_estimate_us) {
                best = Some(Choice {
                    algorithm,
                    protocol,
                    nccl_estimate_us: us,
                });
            }
        }
    }
    best.unwrap_or(Choice {
        algorithm: Ring,
        protocol: Simple,
        nccl_estimate_us: 0.0,
    })
}

/// tuning.cc: latency plus bytes over bandwidth; None where the combination is off.
fn estimate_us(
    arch: Arch,
    graph: &Graph,
    n: usize,
    bytes: f64,
    algorithm: NcclAlgorithm,
    protocol: NcclProtocol,
    setup: &NcclSetup,
) -> Option<f64> {
    use NcclAlgorithm::{Nvls, Ring, Tree};
    use NcclProtocol::{Ll, Ll128, Simple};
    if n < 2 {
        return Some(0.0);
    }
    // LL128 needs 128 B stores to arrive whole: NVLink only, unless the user forces it.
    if protocol == Ll128 && !graph.nvlink && setup.protocol != Some(Ll128) {
        return None;
    }
    // No table of data-centre Blackwell shows LL128's shape: LL goes on to 4 MiB, then a jump.
    if protocol == Ll128 && arch.0 >= 100 && setup.protocol.is_none() {
        return None;
    }
    let ranks = n as f64;
    let steps = 2.0 * (ranks - 1.0);
    let channels = f64::from(graph.channels);
    let ll_max: f64 = match arch.0 {
        0..=79 => 39.0,
        80..=89 => 87.7,
        90..=99 => 141.0,
        _ => 282.0,
    };
    let (ring_ll128_channel, tree_ll128_channel) = match arch.0 {
        0..=79 => (20.0, 20.0),
        80..=89 => (20.0, 20.0),
        90..=99 => (36.7, 36.7),
        _ => (40.0, 40.0),
    };
    let bus = graph.bus_gb_s;
    let alg_gb_s = match (algorithm, protocol) {
        (Ring, Ll) => ll_max.min(bus * 0.5) * ranks / steps,
        (Ring, Ll128) => (bus * 0.92).min(channels * ring_ll128_channel) * ranks / steps,
        (Ring, Simple) => bus * ranks / steps,
        (Tree, Ll) => (bus * 0.92 / 3.8).min(ll_max) * 0.5,
        (Tree, Ll128) => (bus * 0.92 * 7.0 / 9.0).min(channels * tree_ll128_channel) * 0.5,
        (Tree, Simple) => bus * 0.92 * 0.5,
        (Nvls, Simple) => {
            // NVLS needs an NVSwitch and Hopper or later; 0.85 and 0.74 of the port (tuning.cc).
            if !graph.nvlink || arch.0 < 90 || n < 4 {
                return None;
            }
            let share = if arch.0 < 100 { 0.85 } else { 0.74 };
            bus * share * (ranks - 1.0) / ranks
        }
        (Nvls, Ll | Ll128) => return None,
    };
    let hop = |nvlink: f64, pcie: f64| if graph.nvlink { nvlink } else { pcie };
    let latency = match (algorithm, protocol) {
        (Ring, Ll) => 6.6 + steps * hop(0.6, 1.0),
        (Ring, Ll128) => 14.0 + steps * hop(1.9, 2.5),
        (Ring, Simple) => 8.4 + steps * hop(3.4, 5.7),
        (Tree, Ll) => 6.8 + steps * hop(0.6, 1.0),
        (Tree, Ll128) => 14.0 + steps * hop(1.25, 1.9),
        (Tree, Simple) => 8.4 + steps * 4.0,
        (Nvls, _) => 25.0,
    };
    (alg_gb_s > 0.0).then(|| latency + bytes / (1e3 * alg_gb_s))
}
