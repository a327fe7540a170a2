//! Weighted max-min fair sharing of capacities. Knows nothing of GPUs, links or time.
//!
//! All flows grow at one rate until a resource is full; the flows on it stop there, the others go
//! on. The result is the unique max-min fair allocation: every flow is held by a full resource on
//! which no other flow is faster, or by its own cap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One flow: the resources it takes, and the most it can use.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// `(resource index, weight)`: at rate `r` the flow takes `r * weight` of the resource. A
    /// weight above 1 is overhead, such as packet headers. A resource may appear more than once.
    pub uses: Vec<(usize, f64)>,
    /// Largest rate, in the unit of the capacities; `f64::INFINITY` for none.
    pub cap: f64,
}

/// Max-min fair rates of `flows` over `capacities` (both in one unit, for example GB/s). A flow
/// that uses nothing gets its cap. Capacities and weights that are not positive and finite count
/// as zero capacity and zero weight, so that bad input gives rate 0, never NaN.
pub fn max_min_rates(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut solver = Solver::new(capacities, flows.iter());
    let all: Vec<usize> = (0..flows.len()).collect();
    solver.solve(&all);
    solver.rates
}

/// The same for callers that solve many times over subsets of the same flows: what does not change
/// is laid out once.
#[derive(Debug, Clone)]
pub struct Solver {
    capacities: Vec<f64>,
    /// Uses of all flows behind each other, and where each flow's begin.
    uses: Vec<(usize, f64)>,
    uses_from: Vec<usize>,
    /// Flows of all resources behind each other, and where each resource's begin.
    users: Vec<usize>,
    users_from: Vec<usize>,
    caps: Vec<f64>,
    rates: Vec<f64>,
    /// Growing in the current solve.
    growing: Vec<bool>,
    /// Left of each resource after the flows that have stopped.
    left: Vec<f64>,
    /// Weight of the flows that still grow, and how many they are.
    weight: Vec<f64>,
    count: Vec<u32>,
    touched: Vec<usize>,
    seen: Vec<bool>,
    by_cap: Vec<usize>,
    /// Resources by the level at which they are full. That level only rises as flows stop, so an
    /// entry that is out of date is put back when it comes up.
    full_at: BinaryHeap<Reverse<(u64, usize)>>,
}

fn usable(x: f64) -> f64 {
    if x.is_finite() && x > 0.0 { x } else { 0.0 }
}

impl Solver {
    /// Lays out `flows` over `capacities`.
    pub fn new<'a>(capacities: &[f64], flows: impl Iterator<Item = &'a Flow>) -> Solver {
        let capacities: Vec<f64> = capacities.iter().map(|c| usable(*c)).collect();
        let (mut uses, mut uses_from, mut caps) = (Vec::new(), vec![0], Vec::new());
        for flow in flows {
            let weighted = flow.uses.iter().filter(|(_, w)| usable(*w) > 0.0);
            // A resource that is not there is one without capacity.
            let stopped = flow.cap.is_nan()
                || weighted
                    .clone()
                    .any(|(r, _)| capacities.get(*r).is_none_or(|c| *c <= 0.0));
            if !stopped {
                uses.extend(weighted.copied());
            }
            uses_from.push(uses.len());
            caps.push(if stopped { 0.0 } else { flow.cap.max(0.0) });
        }
        let mut users_from = vec![0; capacities.len() + 1];
        for (r, _) in &uses {
            users_from[r + 1] += 1;
        }
        for r in 0..capacities.len() {
            users_from[r + 1] += users_from[r];
        }
        let mut next = users_from.clone();
        let mut users = vec![0; uses.len()];
        for (flow, range) in uses_from.windows(2).enumerate() {
            for (r, _) in &uses[range[0]..range[1]] {
                users[next[*r]] = flow;
                next[*r] += 1;
            }
        }
        let (links, flows) = (capacities.len(), caps.len());
        Solver {
            capacities,
            uses,
            uses_from,
            users,
            users_from,
            caps,
            rates: vec![0.0; flows],
            growing: vec![false; flows],
            left: vec![0.0; links],
            weight: vec![0.0; links],
            count: vec![0; links],
            touched: Vec::new(),
            seen: vec![false; links],
            by_cap: Vec::new(),
            full_at: BinaryHeap::new(),
        }
    }

    /// Rates of the last [`Solver::solve`] by flow; flows that were not in it keep what they had.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Shares the capacities among the flows named, each once; numbers beyond the flows are left
    /// out.
    pub fn solve(&mut self, flows: &[usize]) {
        self.begin(flows, 0.0);
        self.grow();
    }

    /// As [`Solver::solve`] where `flows` are those of the last solve less some, of which the
    /// slowest had `slowest_gone`. Filling goes the same way up to that rate: what was full below it
    /// held none of those that are gone. So flows that were slower keep their rates.
    pub fn solve_without(&mut self, flows: &[usize], slowest_gone: f64) {
        self.begin(flows, slowest_gone * (1.0 - 1e-9));
        self.grow();
    }

    fn grow(&mut self) {
        let mut next_cap = 0;
        loop {
            while next_cap < self.by_cap.len() && !self.growing[self.by_cap[next_cap]] {
                next_cap += 1;
            }
            let capped = self.by_cap.get(next_cap).copied();
            let full = self.next_full();
            match (capped, full) {
                (Some(flow), full) if full.is_none_or(|(at, _)| self.caps[flow] <= at) => {
                    self.stop(flow, self.caps[flow]);
                }
                (_, Some((level, resource))) => {
                    for i in self.users_from[resource]..self.users_from[resource + 1] {
                        let flow = self.users[i];
                        if self.growing[flow] {
                            self.stop(flow, level);
                        }
                    }
                }
                (_, None) => return,
            }
        }
    }

    fn begin(&mut self, flows: &[usize], keep_below: f64) {
        self.touched.clear();
        self.by_cap.clear();
        self.full_at.clear();
        for &flow in flows {
            if flow >= self.caps.len() {
                continue;
            }
            let range = self.uses_from[flow]..self.uses_from[flow + 1];
            let kept = self.rates[flow] < keep_below && !range.is_empty();
            if kept {
                self.hold(flow);
                continue;
            }
            self.rates[flow] = self.caps[flow];
            self.growing[flow] = !range.is_empty() && self.caps[flow] > 0.0;
            if !self.growing[flow] {
                continue;
            }
            if self.caps[flow].is_finite() {
                self.by_cap.push(flow);
            }
            for &(r, w) in &self.uses[range] {
                if !self.seen[r] {
                    self.seen[r] = true;
                    self.touched.push(r);
                    self.left[r] = self.capacities[r];
                }
                self.count[r] += 1;
                self.weight[r] += w;
            }
        }
        for &r in &self.touched {
            self.seen[r] = false;
        }
        let caps = &self.caps;
        self.by_cap.sort_by(|a, b| caps[*a].total_cmp(&caps[*b]));
        let mut entries = std::mem::take(&mut self.full_at).into_vec();
        entries.extend(
            self.touched
                .iter()
                .filter(|r| self.count[**r] > 0)
                .map(|r| Reverse(((self.left[*r] / self.weight[*r]).to_bits(), *r))),
        );
        self.full_at = BinaryHeap::from(entries);
    }

    /// Takes what a flow that keeps its rate uses.
    fn hold(&mut self, flow: usize) {
        for &(r, w) in &self.uses[self.uses_from[flow]..self.uses_from[flow + 1]] {
            if !self.seen[r] {
                self.seen[r] = true;
                self.touched.push(r);
                self.left[r] = self.capacities[r];
            }
            self.left[r] = (self.left[r] - self.rates[flow] * w).max(0.0);
        }
    }

    /// The resource that is full first, with the level; positive floats order as their bits do.
    fn next_full(&mut self) -> Option<(f64, usize)> {
        while let Some(mut top) = self.full_at.peek_mut() {
            let Reverse((bits, resource)) = *top;
            if self.count[resource] == 0 {
                std::collections::binary_heap::PeekMut::pop(top);
                continue;
            }
            let level = (self.left[resource] / self.weight[resource]).max(0.0);
            if level.to_bits() > bits {
                *top = Reverse((level.to_bits(), resource));
                continue;
            }
            return Some((f64::from_bits(bits), resource));
        }
        None
    }

    fn stop(&mut self, flow: usize, rate: f64) {
        self.growing[flow] = false;
        self.rates[flow] = rate;
        for &(r, w) in &self.uses[self.uses_from[flow]..self.uses_from[flow + 1]] {
            self.left[r] = (self.left[r] - rate * w).max(0.0);
            self.count[r] -= 1;
            // The last user leaves exactly nothing, whatever the rounding.
            self.weight[r] = if self.count[r] == 0 {
                0.0
            } else {
                (self.weight[r] - w).max(f64::MIN_POSITIVE)
            };
        }
    }
}
