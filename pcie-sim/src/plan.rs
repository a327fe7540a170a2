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
    /// Wire bytes over each capacity in the whole plan, in the order of `names`.
    pub wire_bytes: Vec<f64>,
    /// Names of capacities: the topology's links come first.
    pub names: Vec<String>,
    /// Capacities, GB/s; where rounds differ, the smallest.
    pub capacities_gb_s: Vec<f64>,
    /// Signatures of non-fluid modes that the plan triggers.
    pub triggered: Vec<&'static str>,
}

impl PlanTime {
    /// The capacity that is busy longest and the share of the whole time it is busy.
    pub fn busiest(&self) -> Option<(&str, f64)> {
        if self.time_us <= 0.0 {
            return None;
        }
        self.wire_bytes
            .iter()
            .zip(&self.capacities_gb_s)
            .enumerate()
            .map(|(i, (bytes, cap))| (i, bytes / (cap * 1e3) / self.time_us))
            .filter(|(_, share)| share.is_finite() && *share > 0.0)
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
            .map(|(i, share)| (self.names[i].as_str(), share.min(1.0)))
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
            wire_bytes: Vec::new(),
            names: Vec::new(),
            capacities_gb_s: Vec::new(),
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
        for (i, name) in pattern.names.iter().enumerate() {
            let (cap, sent) = (pattern.capacities_gb_s[i], bytes[i] * repeat);
            // The topology's links keep their places; what patterns add is found by name.
            let at = if self.names.get(i) == Some(name) {
                Some(i)
            } else {
                self.names.iter().position(|n| n == name)
            };
            match at {
                Some(at) => {
                    self.wire_bytes[at] += sent;
                    self.capacities_gb_s[at] = self.capacities_gb_s[at].min(cap);
                }
                None => {
                    self.names.push(name.clone());
                    self.wire_bytes.push(sent);
                    self.capacities_gb_s.push(cap);
                }
            }
        }
    }
}
