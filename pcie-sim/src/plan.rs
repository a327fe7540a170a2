//! A collective as rounds, and how long they take on a box.
//!
//! A round is a set of transfers that run together after a fixed latency. All ranks wait for the
//! round before: all collectives here are bulk-synchronous per step, and their steps are equal on
//! all ranks, so the slowest transfer of a step sets its pace.

use crate::constants::Constants;
use crate::pattern::{Pattern, Transfer};
use crate::sim::{Task, simulate, us_from_ps};
use crate::topology::Topology;

/// Transfers that run together.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// What the round does, for traces.
    pub label: &'static str,
    /// Transfers; their bytes are those on the wire before packet overhead.
    pub transfers: Vec<Transfer>,
    /// Fixed time: flags, barriers, a loaded read, us.
    pub latency_us: f64,
    /// How latency and transfer time combine: `(latency^p + transfer^p)^(1/p)`. 1: one after the
    /// other; above 1 they overlap, as in LL where a step's lines arrive while others still leave.
    pub overlap: f64,
    /// Most that one transfer can reach, GB/s (threads of a channel, bytes in flight).
    pub cap_gb_s: f64,
    /// How often the round is repeated.
    pub repeat: u32,
}

impl Round {
    /// A round that runs once, latency first, without a cap.
    pub fn once(label: &'static str, transfers: Vec<Transfer>, latency_us: f64) -> Round {
        Round {
            label,
            transfers,
            latency_us,
            overlap: 1.0,
            cap_gb_s: f64::INFINITY,
            repeat: 1,
        }
    }
}

/// A collective ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Name with protocol, such as `nccl-ring-ll`.
    pub name: String,
    /// Start: launch of the kernel and what comes before the first round, us.
    pub base_us: f64,
    /// Rounds in order.
    pub rounds: Vec<Round>,
}

/// What a plan takes.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanTime {
    /// Total, us.
    pub time_us: f64,
    /// Transfer part of each round (one repeat), us.
    pub transfer_us: Vec<f64>,
    /// Step time of each round (one repeat), latency included, us.
    pub round_us: Vec<f64>,
    /// Time each link of the topology is busy in the whole plan, us, and wire bytes over it.
    pub link_load: Vec<LinkLoad>,
    /// The same for what the patterns added (engines, collapsed or staged paths), by name.
    pub added_load: Vec<(String, LinkLoad)>,
    /// Signatures of non-fluid modes that the plan triggers.
    pub triggered: Vec<&'static str>,
}

/// Use of one capacity over a whole plan.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkLoad {
    /// Time it would need at its full rate, us.
    pub busy_us: f64,
    /// Bytes over it, packet overhead included.
    pub wire_bytes: f64,
}

impl PlanTime {
    /// The capacity that is busy longest and the share of the whole time it is busy.
    pub fn busiest(&self, t: &Topology) -> Option<(String, f64)> {
        if self.time_us <= 0.0 {
            return None;
        }
        let best = |best: Option<(usize, f64)>, (i, busy): (usize, f64)| match best {
            Some((_, have)) if have >= busy => best,
            _ if busy > 0.0 => Some((i, busy)),
            _ => best,
        };
        let links = self.link_load.iter().map(|l| l.busy_us).enumerate();
        let added = self.added_load.iter().map(|(_, l)| l.busy_us).enumerate();
        let link = links.fold(None, best);
        let other = added.fold(None, best);
        let share = |busy: f64| (busy / self.time_us).min(1.0);
        match (link, other) {
            (link, Some((i, busy))) if link.is_none_or(|l| busy > l.1) => {
                Some((self.added_load[i].0.clone(), share(busy)))
            }
            (Some((i, busy)), _) => Some((t.links[i].name.clone(), share(busy))),
            (None, _) => None,
        }
    }
}

/// Latency and transfer combined (see [`Round::overlap`]).
fn combine(latency_us: f64, transfer_us: f64, p: f64) -> f64 {
    if p <= 1.0 || latency_us <= 0.0 || transfer_us <= 0.0 {
        return latency_us + transfer_us;
    }
    (latency_us.powf(p) + transfer_us.powf(p)).powf(1.0 / p)
}

impl Plan {
    /// Runs the plan on a box.
    pub fn run(&self, t: &Topology, c: &Constants) -> PlanTime {
        let mut out = PlanTime {
            time_us: self.base_us,
            transfer_us: Vec::new(),
            round_us: Vec::new(),
            link_load: vec![LinkLoad::default(); t.links.len()],
            added_load: Vec::new(),
            triggered: Vec::new(),
        };
        for round in &self.rounds {
            let mut pattern = Pattern::new(t, &round.transfers, c);
            for flow in &mut pattern.flows {
                flow.cap = flow.cap.min(round.cap_gb_s);
            }
            let tasks: Vec<Task> = pattern.tasks(&round.transfers);
            let run = simulate(&pattern.capacities_gb_s, &tasks);
            let transfer_us = us_from_ps(run.end_ps);
            let step = combine(round.latency_us, transfer_us, round.overlap);
            out.transfer_us.push(transfer_us);
            out.round_us.push(step);
            out.time_us += step * f64::from(round.repeat);
            out.add_loads(&pattern, &run.resource_bytes, f64::from(round.repeat));
        }
        out
    }
}

impl PlanTime {
    fn add_loads(&mut self, pattern: &Pattern, bytes: &[f64], repeat: f64) {
        for note in &pattern.triggered {
            if !self.triggered.contains(note) {
                self.triggered.push(note);
            }
        }
        let links = self.link_load.len();
        for (i, (cap, sent)) in pattern.capacities_gb_s.iter().zip(bytes).enumerate() {
            let busy_us = sent * repeat / (cap * 1e3);
            if *sent <= 0.0 || !busy_us.is_finite() {
                continue;
            }
            let load = match self.link_load.get_mut(i) {
                Some(load) => load,
                None => {
                    let Some(name) = pattern.added.get(i - links) else {
                        continue;
                    };
                    let at = self.added_load.iter().position(|(n, _)| n == name);
                    let at = at.unwrap_or_else(|| {
                        self.added_load.push((name.clone(), LinkLoad::default()));
                        self.added_load.len() - 1
                    });
                    &mut self.added_load[at].1
                }
            };
            load.busy_us += busy_us;
            load.wire_bytes += sent * repeat;
        }
    }
}
