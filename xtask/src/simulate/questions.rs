//! What people ask of a box beyond one collective: is a pair test to be trusted, do several groups
//! fight, which GPUs belong together, where does one algorithm overtake another.

use pcie_sim::nccl::{Cure, FINDS_RING, NcclSetup, P2pLevel};
use pcie_sim::{
    Access, Algorithm, Options, Topology, Transfer, all_reduce, alone_gb_s, contention,
};
use serde_json::{Value, json};

use super::Answer;
use super::groups::{self, Groups};
use super::overtaking::{self, Wins};
use crate::table;

/// The figures behind the text.
struct Facts {
    pair_gb_s: f64,
    all_pairs_gb_s: f64,
    triggered: Vec<&'static str>,
    overtakings: Vec<Wins>,
    groups: Option<Groups>,
    placement: Option<Placement>,
    ring_of_nccl: Option<RingOfNccl>,
    offload_slowdown: f64,
}

/// Best and worst half of the GPUs for one group.
struct Placement {
    best: Half,
    worst: Half,
}

impl Placement {
    /// Whether the worst half is within 2 % of the best.
    fn alike(&self) -> bool {
        self.worst.time_us <= 1.02 * self.best.time_us
    }
}

/// One half with its fastest algorithm.
#[derive(Clone)]
struct Half {
    gpus: Vec<usize>,
    time_us: f64,
    algorithm: String,
}

impl Half {
    fn shown(&self) -> String {
        let us = table::three(self.time_us);
        format!("{:?} {us} us ({})", self.gpus, self.algorithm)
    }
}

fn facts(answer: &Answer) -> Facts {
    let (t, c) = (&answer.topology, &answer.options.constants);
    let all: Vec<Transfer> = pairs(&answer.ranks, Access::KernelLoad);
    let alone = alone_gb_s(t, &all, c);
    let together = contention(t, &all, c);
    let n = answer.ranks.len().max(1) as f64;
    let bytes = answer.sizes[answer.detail()];
    Facts {
        pair_gb_s: alone.iter().copied().fold(f64::INFINITY, f64::min),
        all_pairs_gb_s: together.until_last_gb_s / n,
        triggered: together.triggered,
        overtakings: overtaking::of(answer),
        groups: groups::of(answer, bytes),
        placement: placement(answer, bytes),
        ring_of_nccl: ring_of_nccl(answer, bytes),
        offload_slowdown: offload(answer),
    }
}

fn pairs(ranks: &[usize], access: Access) -> Vec<Transfer> {
    let mut out = Vec::new();
    for &from in ranks {
        for &to in ranks.iter().filter(|to| **to != from) {
            out.push(Transfer {
                from,
                to,
                bytes: 1e6,
                access,
            });
        }
    }
    out
}

/// All halves of up to 8 GPUs that hold the first one.
fn placement(answer: &Answer, bytes: u64) -> Option<Placement> {
    let n = answer.ranks.len();
    if !(4..=8).contains(&n) {
        return None;
    }
    let mut found: Vec<Half> = Vec::new();
    for mask in 0..(1_u32 << n) {
        if mask & 1 == 0 || mask.count_ones() as usize != n / 2 {
            continue;
        }
        let half: Vec<usize> = (0..n)
            .filter(|i| mask & (1 << i) != 0)
            .map(|i| answer.ranks[i])
            .collect();
        // What engines take by themselves: a faster kernel in none of them is no reason.
        let time = all_reduce(
            &answer.topology,
            &half,
            Algorithm::Engine,
            bytes,
            &answer.options,
        )
        .ok()?;
        found.push(Half {
            gpus: half,
            time_us: time.time_us,
            algorithm: time.algorithm_name,
        });
    }
    let by_time = |a: &&Half, b: &&Half| a.time_us.total_cmp(&b.time_us);
    let best = found.iter().min_by(by_time)?.clone();
    let worst = found.iter().max_by(by_time)?.clone();
    Some(Placement { best, worst })
}

/// Times of NCCL where its search finds no ring, µs.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingOfNccl {
    as_it_comes: f64,
    /// By a release that finds one, where one does.
    newer: Option<f64>,
    graph_file: f64,
}

/// NCCL as it comes, newer, and with a graph file, where its search fails.
fn ring_of_nccl(answer: &Answer, bytes: u64) -> Option<RingOfNccl> {
    let graph = pcie_sim::nccl::search(&answer.topology, &answer.ranks, &answer.options.nccl);
    if !graph.failed {
        return None;
    }
    let with = |nccl: NcclSetup| Options {
        nccl,
        use_measured: false,
        ..answer.options.clone()
    };
    let own = answer.options.nccl;
    let newer = with(NcclSetup {
        version: Some(FINDS_RING),
        ..own
    });
    let file = with(NcclSetup {
        graph_file: true,
        ..own
    });
    let time = |options: &Options| {
        all_reduce(
            &answer.topology,
            &answer.ranks,
            Algorithm::Nccl,
            bytes,
            options,
        )
        .ok()
        .map(|x| x.time_us)
    };
    let cure = pcie_sim::nccl::cure(&answer.topology, &answer.ranks, &own);
    Some(RingOfNccl {
        as_it_comes: time(&answer.options)?,
        newer: time(&newer).filter(|_| cure == Cure::Newer),
        graph_file: time(&file)?,
    })
}

/// How much a ring slows while the first GPU copies KV to the host.
fn offload(answer: &Answer) -> f64 {
    let ring: Vec<Transfer> = (0..answer.ranks.len())
        .map(|i| Transfer {
            from: answer.ranks[i],
            to: answer.ranks[(i + 1) % answer.ranks.len()],
            bytes: 1e6,
            access: Access::KernelStore,
        })
        .collect();
    pcie_sim::collectives::kv_offload_slowdown(
        &answer.topology,
        &ring,
        &[(answer.ranks[0], true), (answer.ranks[0], false)],
        &answer.options.constants,
    )
}

/// As lines.
pub(super) fn text(answer: &Answer) -> String {
    if answer.ranks.len() < 2 {
        return String::new();
    }
    let f = facts(answer);
    let size = table::bytes(answer.sizes[answer.detail()]);
    let mut out = format!(
        "pairs       one pair alone {} GB/s at least; all pairs at once {} GB/s into each GPU\n",
        table::three(f.pair_gb_s),
        table::three(f.all_pairs_gb_s)
    );
    for signature in &f.triggered {
        out.push_str(&format!("            {signature}\n"));
    }
    out.push_str(&overtaking::line(&f.overtakings));
    if let Some(groups) = &f.groups {
        out.push_str(&groups.line(&size, answer.ranks.len()));
    }
    if let Some(p) = f.placement.as_ref().filter(|p| p.alike()) {
        out.push_str(&format!(
            "placement   any half of the GPUs does as well as another, {size}: {} us ({})\n",
            table::three(p.best.time_us),
            p.best.algorithm
        ));
    } else if let Some(p) = &f.placement {
        out.push_str(&format!(
            "placement   half of the GPUs as one group, by the engine's own choice, {size}: best {}, worst {}\n",
            p.best.shown(),
            p.worst.shown()
        ));
    }
    if let Some(ring) = f.ring_of_nccl {
        let newer = ring.newer.map_or_else(String::new, |us| {
            format!("{} us by 2.30 or newer, ", table::three(us))
        });
        out.push_str(&format!(
            "NCCL's ring {} us as it comes, which finds none, {newer}{} us with NCCL_GRAPH_FILE ({size})\n",
            table::three(ring.as_it_comes),
            table::three(ring.graph_file)
        ));
    }
    out.push_str(&format!(
        "KV offload  a ring is {:.2}x slower while GPU {} copies to and from the host\n",
        f.offload_slowdown, answer.ranks[0]
    ));
    out
}

/// As data.
pub(super) fn json(answer: &Answer) -> Value {
    if answer.ranks.len() < 2 {
        return Value::Null;
    }
    let f = facts(answer);
    let finite = |x: f64| x.is_finite().then_some(x);
    json!({
        "pair_gb_s": finite(f.pair_gb_s),
        "all_pairs_gb_s_per_gpu": f.all_pairs_gb_s,
        "signatures": f.triggered,
        "beats_nccl_up_to_bytes": f.overtakings.iter().map(Wins::json).collect::<Vec<_>>(),
        "groups": f.groups.map(|groups| groups.json()),
        "placement": f.placement.map(|p| json!({
            "best": p.best.gpus, "best_us": p.best.time_us, "best_algorithm": p.best.algorithm,
            "worst": p.worst.gpus, "worst_us": p.worst.time_us, "worst_algorithm": p.worst.algorithm,
        })),
        "nccl_graph_file_us": f.ring_of_nccl.map(|ring| json!({
            "without": ring.as_it_comes, "with": ring.graph_file, "newer": ring.newer,
        })),
        "kv_offload_slowdown": f.offload_slowdown,
    })
}

/// What is assumed of a CPU that nobody named, at the size of the details.
pub(super) fn cpu_assumed(answer: &Answer) -> Option<(String, String)> {
    let bytes = *answer.sizes.get(answer.detail())?;
    let (ranks, options) = (&answer.ranks, &answer.options);
    let other = pcie_sim::nccl::on_amd(&answer.topology, ranks, &options.nccl)?;
    let us = |t: &Topology| {
        let time = pcie_sim::all_reduce(t, ranks, Algorithm::Nccl, bytes, options);
        time.ok().map(|time| time.time_us)
    };
    crate::predict::links::cpu_assumed(bytes, us(&answer.topology)?, us(&other)?)
}

/// How NCCL is taken to run, at the size of the details.
pub(super) fn nccl_assumed(answer: &Answer) -> Vec<(String, String)> {
    use crate::predict::nccl_setup::{
        direct_assumed, host_memory_assumed, old_nccl_assumed, open_level,
    };
    let Some(&bytes) = answer.sizes.get(answer.detail()) else {
        return Vec::new();
    };
    let (t, ranks, own) = (&answer.topology, &answer.ranks, &answer.options.nccl);
    let us = |nccl: NcclSetup| {
        let options = Options {
            nccl,
            ..answer.options.clone()
        };
        let time = pcie_sim::all_reduce(t, ranks, Algorithm::Nccl, bytes, &options);
        time.ok().map(|time| time.time_us)
    };
    let newer = pcie_sim::nccl::by_a_newer(t, ranks, own)
        .and_then(|newer| Some(old_nccl_assumed((bytes, us(*own)?), us(newer)?)));
    let direct = open_level(t, ranks, own).and_then(|level| {
        let other = NcclSetup {
            p2p_level: Some(level),
            ..*own
        };
        Some(host_memory_assumed(level, (bytes, us(*own)?), us(other)?))
    });
    let host = NcclSetup {
        p2p_level: Some(P2pLevel::Pxb),
        ..*own
    };
    let unsaid = answer.level_is_taken && pcie_sim::nccl::p2p::any_staged(t, ranks, &host);
    let host = unsaid.then(|| Some(direct_assumed((bytes, us(*own)?), us(host)?)));
    let of_paths = direct.into_iter().chain(host.flatten());
    newer.into_iter().chain(of_paths).collect()
}
