//! Weighted max-min fair sharing of capacities. Knows nothing of GPUs, links or time.
//!
//! All flows grow at one rate until a resource is full; the flows on it stop there, the others go
//! on. The result is the unique max-min fair allocation: every flow is held by a full resource on
//! which no other flow is faster, or by its own cap.

/// One flow: the resources it takes, and the most it can use.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// `(resource index, weight)`: at rate `r` the flow takes `r * weight` of the resource. A
    /// weight above 1 is overhead, such as packet headers. A resource may appear more than once.
    pub uses: Vec<(usize, f64)>,
    /// Largest rate, in the unit of the capacities; `f64::INFINITY` for none.
    pub cap: f64,
}

/// Relative slack within which a resource counts as full.
const FULL: f64 = 1e-12;

/// Max-min fair rates of `flows` over `capacities` (both in one unit, for example GB/s). A flow
/// that uses nothing gets its cap. Capacities and weights that are not positive and finite count
/// as zero capacity and zero weight, so that bad input gives rate 0, never NaN.
pub fn max_min_rates(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut solver = Solver::default();
    solver.solve(capacities, flows.iter().map(|f| (f.uses.as_slice(), f.cap)));
    solver.rates
}

/// The same with its buffers kept, for callers that solve many times.
#[derive(Debug, Default, Clone)]
pub struct Solver {
    left: Vec<f64>,
    weight: Vec<f64>,
    active: Vec<u32>,
    users: Vec<Vec<usize>>,
    touched: Vec<usize>,
    frozen: Vec<bool>,
    rates: Vec<f64>,
}

impl Solver {
    /// Rates of the last [`Solver::solve`], one per flow.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Solves for flows given as `(uses, cap)`.
    pub fn solve<'a>(
        &mut self,
        capacities: &[f64],
        flows: impl Iterator<Item = (&'a [(usize, f64)], f64)> + Clone,
    ) {
        self.reset(capacities, flows.clone());
        let all: Vec<(&[(usize, f64)], f64)> = flows.collect();
        let mut by_cap: Vec<usize> = (0..all.len()).filter(|f| !self.frozen[*f]).collect();
        by_cap.sort_by(|a, b| all[*a].1.total_cmp(&all[*b].1));
        let mut next_cap = 0;
        let mut level = 0.0_f64;
        loop {
            while next_cap < by_cap.len() && self.frozen[by_cap[next_cap]] {
                next_cap += 1;
            }
            let Some(&first) = by_cap.get(next_cap) else {
                return;
            };
            let mut step = (all[first].1 - level).max(0.0);
            let mut full: Option<usize> = None;
            for &r in &self.touched {
                if self.active[r] > 0 {
                    let room = self.left[r] / self.weight[r];
                    if room < step {
                        step = room;
                        full = Some(r);
                    }
                }
            }
            if !step.is_finite() {
                return; // Nothing holds the flows that are left.
            }
            level += step;
            for &r in &self.touched {
                if self.active[r] > 0 {
                    self.left[r] = (self.left[r] - step * self.weight[r]).max(0.0);
                }
            }
            match full {
                None => self.freeze(first, level, all[first].0),
                Some(_) => self.freeze_full(capacities, level, &all),
            }
            if let Some(r) = full {
                // Rounding may leave a crumb on the resource that set the step.
                let users = std::mem::take(&mut self.users[r]);
                for &f in &users {
                    if !self.frozen[f] {
                        self.freeze(f, level, all[f].0);
                    }
                }
                self.users[r] = users;
            }
        }
    }

    fn reset<'a>(
        &mut self,
        capacities: &[f64],
        flows: impl Iterator<Item = (&'a [(usize, f64)], f64)>,
    ) {
        let usable = |x: f64| if x.is_finite() && x > 0.0 { x } else { 0.0 };
        self.left.clear();
        self.left.extend(capacities.iter().map(|c| usable(*c)));
        self.weight.clear();
        self.weight.resize(capacities.len(), 0.0);
        self.active.clear();
        self.active.resize(capacities.len(), 0);
        for users in &mut self.users {
            users.clear();
        }
        self.users.resize(capacities.len(), Vec::new());
        self.touched.clear();
        self.frozen.clear();
        self.rates.clear();
        for (f, (uses, cap)) in flows.enumerate() {
            let held = uses
                .iter()
                .any(|(r, w)| usable(*w) > 0.0 && *r < self.left.len());
            let stopped = cap.is_nan()
                || cap <= 0.0
                || uses.iter().any(|(r, w)| {
                    usable(*w) > 0.0 && self.left.get(*r).is_none_or(|left| *left <= 0.0)
                });
            self.frozen.push(stopped || !held);
            self.rates.push(if stopped {
                0.0
            } else if held {
                f64::INFINITY
            } else {
                cap
            });
            if stopped || !held {
                continue;
            }
            for (r, w) in uses {
                if usable(*w) > 0.0 {
                    if self.active[*r] == 0 {
                        self.touched.push(*r);
                    }
                    self.active[*r] += 1;
                    self.weight[*r] += w;
                    self.users[*r].push(f);
                }
            }
        }
        self.touched.sort_unstable();
        self.touched.dedup();
    }

    fn freeze(&mut self, flow: usize, rate: f64, uses: &[(usize, f64)]) {
        self.frozen[flow] = true;
        self.rates[flow] = rate;
        for (r, w) in uses {
            if *w > 0.0 && w.is_finite() {
                self.active[*r] -= 1;
                // The last user leaves exactly nothing, whatever the rounding.
                self.weight[*r] = if self.active[*r] == 0 {
                    0.0
                } else {
                    (self.weight[*r] - w).max(0.0)
                };
            }
        }
    }

    fn freeze_full(&mut self, capacities: &[f64], level: f64, all: &[(&[(usize, f64)], f64)]) {
        for at in 0..self.touched.len() {
            let r = self.touched[at];
            if self.active[r] > 0 && self.left[r] <= FULL * capacities[r] {
                let users = std::mem::take(&mut self.users[r]);
                for &f in &users {
                    if !self.frozen[f] {
                        self.freeze(f, level, all[f].0);
                    }
                }
                self.users[r] = users;
            }
        }
    }
}
