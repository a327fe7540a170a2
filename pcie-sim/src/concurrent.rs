//! Several collectives at once, as one graph of tasks: who slows whom.
//!
//! Each plan becomes a chain of steps; the transfers of a step wait for all of the step before.
//! Port and state effects are those of all transfers together, since the plans drift against each
//! other; so a plan that runs alone here may take a little longer than by itself.

use crate::constants::Constants;
use crate::pattern::{Pattern, Transfer};
use crate::plan::Plan;
use crate::sim::{Run, Task, ps_from_us, simulate, us_from_ps};
use crate::topology::Topology;

/// Most tasks simulated; steps beyond are taken as if they took as long as those before.
const TASKS_MAX: usize = 20_000;

/// What each plan takes alone and beside the others, us.
#[derive(Debug, Clone, PartialEq)]
pub struct Concurrent {
    /// Each plan by itself.
    pub alone_us: Vec<f64>,
    /// Each plan while all run, started at the same time.
    pub together_us: Vec<f64>,
}

impl Concurrent {
    /// The largest factor by which a plan is slowed.
    pub fn slowdown(&self) -> f64 {
        self.alone_us
            .iter()
            .zip(&self.together_us)
            .filter(|(a, _)| **a > 0.0)
            .map(|(a, b)| b / a)
            .fold(1.0, f64::max)
    }
}

/// Runs `plans` at once on a box.
pub fn concurrent(t: &Topology, plans: &[Plan], c: &Constants) -> Concurrent {
    let alone_us = plans
        .iter()
        .map(|p| run_graph(t, std::slice::from_ref(p), c)[0])
        .collect();
    Concurrent {
        alone_us,
        together_us: run_graph(t, plans, c),
    }
}

/// The graph of `plans`, with the last task of each plan and how much was left out of it.
struct Graph {
    tasks: Vec<Task>,
    /// Per plan: tasks of its last step, and the factor for steps that were left out.
    last: Vec<(Vec<usize>, f64)>,
    pattern: Pattern,
}

fn run_graph(t: &Topology, plans: &[Plan], c: &Constants) -> Vec<f64> {
    let graph = build(t, plans, c);
    let run: Run = simulate(&graph.pattern.capacities_gb_s, &graph.tasks);
    plans
        .iter()
        .zip(&graph.last)
        .map(|(plan, (last, factor))| {
            let end = last.iter().map(|i| run.spans[*i].end_ps).max().unwrap_or(0);
            plan.base_us + (us_from_ps(end) - plan.base_us).max(0.0) * factor
        })
        .collect()
}

fn build(t: &Topology, plans: &[Plan], c: &Constants) -> Graph {
    let all: Vec<Transfer> = plans
        .iter()
        .flat_map(|p| p.rounds.iter())
        .flat_map(|r| r.transfers.iter().copied())
        .collect();
    let pattern = Pattern::new(t, &all, c);
    let steps: usize = plans
        .iter()
        .flat_map(|p| p.rounds.iter())
        .map(|r| (r.transfers.len() + 1) * r.repeat as usize)
        .sum();
    let keep = (TASKS_MAX as f64 / steps.max(1) as f64).min(1.0);
    let mut tasks = Vec::new();
    let mut last = Vec::new();
    let mut first_flow = 0;
    for plan in plans {
        let solo = plan.run(t, c);
        let mut before: Vec<usize> = Vec::new();
        let mut delay_us = plan.base_us;
        let (mut wanted, mut done) = (0.0, 0.0);
        for (index, round) in plan.rounds.iter().enumerate() {
            let flows = &pattern.flows[first_flow..first_flow + round.transfers.len()];
            first_flow += round.transfers.len();
            let repeats = ((f64::from(round.repeat) * keep).ceil() as u32).min(round.repeat);
            wanted += f64::from(round.repeat) * solo.round_us[index];
            done += f64::from(repeats) * solo.round_us[index];
            // What the step's latency adds beyond the part that overlaps its transfers.
            let latency_us = solo.round_us[index] - solo.transfer_us[index];
            for _ in 0..repeats {
                before = push_step(&mut tasks, &before, delay_us + latency_us, round, flows);
                delay_us = 0.0;
            }
        }
        last.push((before, if done > 0.0 { wanted / done } else { 1.0 }));
    }
    Graph {
        tasks,
        last,
        pattern,
    }
}

/// One step: a join that waits for the step before and sits out the latency, then the transfers.
fn push_step(
    tasks: &mut Vec<Task>,
    before: &[usize],
    delay_us: f64,
    round: &crate::plan::Round,
    flows: &[crate::maxmin::Flow],
) -> Vec<usize> {
    let join = tasks.len();
    tasks.push(Task {
        after: before.to_vec(),
        delay_ps: ps_from_us(delay_us),
        bytes: 0.0,
        flow: crate::maxmin::Flow {
            uses: Vec::new(),
            cap: 0.0,
        },
    });
    if flows.is_empty() {
        return vec![join];
    }
    let mut out = Vec::with_capacity(flows.len());
    for (flow, transfer) in flows.iter().zip(&round.transfers) {
        let mut flow = flow.clone();
        flow.cap = flow.cap.min(round.cap_gb_s);
        out.push(tasks.len());
        tasks.push(Task {
            after: vec![join],
            delay_ps: 0,
            bytes: transfer.bytes,
            flow,
        });
    }
    out
}
