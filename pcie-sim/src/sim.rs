//! Event-driven simulation of transfers that wait for each other, in integer picoseconds.
//!
//! A task starts when the tasks it waits for are done, sits out its delay, then moves its bytes at
//! its max-min fair rate, which changes whenever another transfer starts or ends. No randomness:
//! the same input gives the same trace bit for bit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::maxmin::{Flow, Solver};

/// Picoseconds in a microsecond.
const PS_PER_US: f64 = 1e6;
/// Longest time simulated, ps (about 106 days): what never ends is cut here.
pub const TIME_MAX_PS: u64 = 1 << 63;

/// A step of a collective, or one transfer.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Tasks that must be done before this one starts, indices below its own.
    pub after: Vec<usize>,
    /// Fixed time before the bytes move, ps.
    pub delay_ps: u64,
    /// Payload bytes to move.
    pub bytes: f64,
    /// What the bytes take of the capacities (in GB/s, so weights are per payload byte).
    pub flow: Flow,
}

/// When a task began to move bytes and when it was done, ps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// All it waited for was done.
    pub ready_ps: u64,
    /// Its delay was over.
    pub start_ps: u64,
    /// Its last byte had arrived.
    pub end_ps: u64,
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// One per task.
    pub spans: Vec<Span>,
    /// When all was done, ps.
    pub end_ps: u64,
    /// Bytes that went over each resource, weights included.
    pub resource_bytes: Vec<f64>,
}

/// Microseconds as picoseconds, rounded up; negative and NaN count as 0.
pub fn ps_from_us(us: f64) -> u64 {
    let ps = (us * PS_PER_US).ceil();
    if ps.is_nan() || ps <= 0.0 {
        0
    } else if ps >= TIME_MAX_PS as f64 {
        TIME_MAX_PS
    } else {
        ps as u64
    }
}

/// Picoseconds as microseconds.
pub fn us_from_ps(ps: u64) -> f64 {
    ps as f64 / PS_PER_US
}

/// Runs the tasks over `capacities_gb_s`. A task that waits for itself or a later task never
/// starts, and one whose rate is 0 never ends: both get [`TIME_MAX_PS`].
pub fn simulate(capacities_gb_s: &[f64], tasks: &[Task]) -> Run {
    Engine::new(capacities_gb_s, tasks).run()
}

struct Engine<'a> {
    capacities: &'a [f64],
    tasks: &'a [Task],
    waiting: Vec<usize>,
    followers: Vec<Vec<usize>>,
    /// Tasks in their delay, as a heap by time then index.
    delayed: BinaryHeap<Reverse<(u64, usize)>>,
    /// Tasks that move bytes, and when each ends at its present rate.
    moving: Vec<usize>,
    ends: Vec<u64>,
    /// Those that end now; kept to save its allocation.
    done: Vec<usize>,
    /// Bytes left of each task at the time of the last solve.
    left: Vec<f64>,
    solved_at: u64,
    spans: Vec<Span>,
    now: u64,
    solver: Solver,
}

impl<'a> Engine<'a> {
    fn new(capacities: &'a [f64], tasks: &'a [Task]) -> Self {
        let mut followers = vec![Vec::new(); tasks.len()];
        let mut waiting = vec![0; tasks.len()];
        for (i, task) in tasks.iter().enumerate() {
            waiting[i] = task.after.len();
            for &before in &task.after {
                if before < i {
                    followers[before].push(i);
                }
            }
        }
        let never = Span {
            ready_ps: TIME_MAX_PS,
            start_ps: TIME_MAX_PS,
            end_ps: TIME_MAX_PS,
        };
        Engine {
            capacities,
            tasks,
            waiting,
            followers,
            delayed: BinaryHeap::new(),
            moving: Vec::new(),
            ends: Vec::new(),
            done: Vec::new(),
            left: tasks.iter().map(|t| t.bytes.max(0.0)).collect(),
            solved_at: 0,
            spans: vec![never; tasks.len()],
            now: 0,
            solver: Solver::new(capacities, tasks.iter().map(|t| &t.flow)),
        }
    }

    fn run(mut self) -> Run {
        for i in 0..self.tasks.len() {
            if self.waiting[i] == 0 {
                self.ready(i);
            }
        }
        let mut gone = None;
        loop {
            if self.start_due() {
                self.share(None);
            } else if gone.is_some() {
                self.share(gone);
            }
            let delayed = self.delayed.peek().map_or(TIME_MAX_PS, |r| r.0.0);
            let next = self.ends.iter().copied().fold(delayed, u64::min);
            if next >= TIME_MAX_PS {
                break;
            }
            gone = self.advance(next);
        }
        let end_ps = self.spans.iter().map(|s| s.end_ps).max().unwrap_or(0);
        let mut resource_bytes = vec![0.0; self.capacities.len()];
        for task in self.tasks {
            for (r, w) in &task.flow.uses {
                if let Some(total) = resource_bytes.get_mut(*r) {
                    *total += w * task.bytes.max(0.0);
                }
            }
        }
        Run {
            spans: self.spans,
            end_ps,
            resource_bytes,
        }
    }

    fn ready(&mut self, task: usize) {
        let start = self
            .now
            .saturating_add(self.tasks[task].delay_ps)
            .min(TIME_MAX_PS);
        self.spans[task].ready_ps = self.now;
        self.spans[task].start_ps = start;
        self.delayed.push(Reverse((start, task)));
    }

    /// Moves tasks whose delay is over among the moving ones; those without bytes end at once.
    fn start_due(&mut self) -> bool {
        let mut started = false;
        while let Some(&Reverse((at, task))) = self.delayed.peek() {
            if at > self.now || at >= TIME_MAX_PS {
                break;
            }
            self.delayed.pop();
            if self.left[task] <= 0.0 {
                self.finish(task);
            } else {
                if !started {
                    // Those already moving have moved until now; a new one has not.
                    self.settle();
                    started = true;
                }
                self.moving.push(task);
            }
        }
        started
    }

    fn finish(&mut self, task: usize) {
        self.spans[task].end_ps = self.now;
        for follower in std::mem::take(&mut self.followers[task]) {
            self.waiting[follower] -= 1;
            if self.waiting[follower] == 0 {
                self.ready(follower);
            }
        }
    }

    /// Takes what has moved since the last solve from what is left.
    fn settle(&mut self) {
        let span_ns = (self.now - self.solved_at) as f64 / 1e3;
        self.solved_at = self.now;
        if span_ns > 0.0 {
            for &task in &self.moving {
                let moved = self.solver.rates()[task] * span_ns;
                self.left[task] = (self.left[task] - moved).max(0.0);
            }
        }
    }

    /// Shares the capacities anew and works out when each transfer ends; `gone` is the rate of the
    /// slowest that ended, where none has started.
    fn share(&mut self, gone: Option<f64>) {
        self.settle();
        match gone {
            Some(rate) => self.solver.solve_without(&self.moving, rate),
            None => self.solver.solve(&self.moving),
        }
        let rates = self.solver.rates();
        self.ends.clear();
        for &task in &self.moving {
            let rate = rates[task];
            self.ends.push(if rate > 0.0 {
                // GB/s is bytes per ns, so bytes / rate is ns.
                let span = ps_from_us(self.left[task] / rate / 1e3).max(1);
                self.now.saturating_add(span).min(TIME_MAX_PS)
            } else {
                TIME_MAX_PS
            });
        }
    }

    /// Moves time on; the rate of the slowest transfer that ended, where one did.
    fn advance(&mut self, to: u64) -> Option<f64> {
        self.now = to;
        let mut done = std::mem::take(&mut self.done);
        let mut kept = 0;
        for slot in 0..self.moving.len() {
            if self.ends[slot] <= to {
                done.push(self.moving[slot]);
            } else {
                self.moving[kept] = self.moving[slot];
                self.ends[kept] = self.ends[slot];
                kept += 1;
            }
        }
        self.moving.truncate(kept);
        self.ends.truncate(kept);
        for &task in &done {
            self.left[task] = 0.0;
            self.finish(task);
        }
        let rates = self.solver.rates();
        let slowest = done.iter().map(|t| rates[*t]).reduce(f64::min);
        done.clear();
        self.done = done;
        slowest
    }
}
