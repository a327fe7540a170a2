//! Who slows whom: rates of transfers that run together, and what each reaches alone.

use crate::constants::Constants;
use crate::maxmin::max_min_rates;
use crate::pattern::{Pattern, Transfer};
use crate::sim::{simulate, us_from_ps};
use crate::topology::Topology;

/// What transfers reach together.
#[derive(Debug, Clone, PartialEq)]
pub struct Contention {
    /// Rate of each transfer while all run, GB/s of payload.
    pub rates_gb_s: Vec<f64>,
    /// Sum of the rates while all run, GB/s.
    pub total_gb_s: f64,
    /// All bytes over the time until the last is done, GB/s: what a test with equal sizes prints.
    pub until_last_gb_s: f64,
    /// Name of the capacity with the largest load, and its share in use while all run.
    pub busiest: Option<(String, f64)>,
    /// Signatures of non-fluid modes that the pattern triggers.
    pub triggered: Vec<&'static str>,
}

/// Rate of each transfer when it runs alone, GB/s: what a pair test shows, also on a fabric that
/// collapses.
pub fn alone_gb_s(t: &Topology, transfers: &[Transfer], c: &Constants) -> Vec<f64> {
    transfers
        .iter()
        .map(|one| {
            let alone = Pattern::new(t, &[*one], c);
            max_min_rates(&alone.capacities_gb_s, &alone.flows)
                .first()
                .copied()
                .unwrap_or(0.0)
        })
        .collect()
}

/// Runs `transfers` together. Unknown GPUs and transfers to oneself get rate 0.
pub fn contention(t: &Topology, transfers: &[Transfer], c: &Constants) -> Contention {
    let pattern = Pattern::new(t, transfers, c);
    let rates_gb_s = max_min_rates(&pattern.capacities_gb_s, &pattern.flows);
    let mut used = vec![0.0; pattern.capacities_gb_s.len()];
    for (flow, rate) in pattern.flows.iter().zip(&rates_gb_s) {
        for (r, w) in &flow.uses {
            used[*r] += w * rate;
        }
    }
    let busiest = used
        .iter()
        .zip(&pattern.capacities_gb_s)
        .enumerate()
        .map(|(i, (u, cap))| (i, u / cap))
        .filter(|(_, share)| share.is_finite())
        .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
        .map(|(i, share)| (pattern.name(t, i), share));
    let run = simulate(&pattern.capacities_gb_s, &pattern.tasks(transfers));
    let bytes: f64 = transfers.iter().map(|x| x.bytes).sum();
    let ended_ns = us_from_ps(run.end_ps) * 1e3;
    Contention {
        total_gb_s: rates_gb_s.iter().sum(),
        until_last_gb_s: if ended_ns > 0.0 {
            bytes / ended_ns
        } else {
            0.0
        },
        rates_gb_s,
        busiest,
        triggered: pattern.triggered,
    }
}
