//! `simulate --trace`: one all-reduce per algorithm for ui.perfetto.dev (Chrome trace format), one
//! track a link, one a GPU.

use std::path::Path;

use pcie_sim::pattern::Pattern;
use pcie_sim::plan::Plan;
use pcie_sim::sim::{simulate, us_from_ps};
use pcie_sim::{Topology, all_reduce_plan};
use serde_json::{Value, json};

use super::Answer;
use crate::input;

/// Most steps of one round that are drawn; a ring of 16 has 30.
const REPEATS_MAX: u32 = 64;

/// Writes the trace of the size that details are shown for.
pub(super) fn write(path: &Path, answer: &Answer) -> anyhow::Result<()> {
    let bytes = answer.sizes[answer.detail()];
    let mut events = Vec::new();
    for (pid, algorithm) in answer.algorithms.iter().enumerate() {
        let plan = all_reduce_plan(
            &answer.topology,
            &answer.ranks,
            *algorithm,
            bytes,
            &answer.options,
        );
        if let Ok((plan, _)) = plan {
            let name = format!("{} {bytes} B", plan.name);
            events.push(
                json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}),
            );
            draw(answer, &plan, pid, &mut events);
        }
    }
    let text = serde_json::to_string(&json!({"traceEvents": events, "displayTimeUnit": "ns"}))?;
    std::fs::write(path, text).map_err(|e| {
        input::error(format!(
            "--trace {}: cannot be written ({e}); check the folder",
            path.display()
        ))
    })
}

fn draw(answer: &Answer, plan: &Plan, pid: usize, events: &mut Vec<Value>) {
    let t = &answer.topology;
    let run = plan.run(t, &answer.options.constants);
    let mut now_us = plan.base_us;
    for gpu in &answer.ranks {
        events.push(json!({"ph": "M", "pid": pid, "tid": gpu, "name": "thread_name", "args": {"name": format!("gpu {gpu}")}}));
        events.push(span("start", pid, *gpu, 0.0, plan.base_us));
    }
    for (round, (step_us, transfer_us)) in plan
        .rounds
        .iter()
        .zip(run.round_us.iter().zip(&run.transfer_us))
    {
        let mut pattern = Pattern::new(t, &round.transfers, &answer.options.constants);
        for flow in &mut pattern.flows {
            flow.cap = flow.cap.min(round.cap_gb_s);
        }
        let result = simulate(&pattern.capacities_gb_s, &pattern.tasks(&round.transfers));
        for _ in 0..round.repeat.min(REPEATS_MAX) {
            let start = now_us + (step_us - transfer_us);
            for gpu in &answer.ranks {
                events.push(span(round.label, pid, *gpu, now_us, *step_us));
            }
            for (i, (flow, span_ps)) in pattern.flows.iter().zip(&result.spans).enumerate() {
                let transfer = &round.transfers[i];
                let label = format!("{} to {}", transfer.from, transfer.to);
                for (link, _) in flow.uses.iter().filter(|(l, _)| *l < t.links.len()) {
                    events.push(span(
                        &label,
                        pid,
                        LINK_TRACKS + link,
                        start + us_from_ps(span_ps.start_ps),
                        us_from_ps(span_ps.end_ps - span_ps.start_ps),
                    ));
                }
            }
            now_us += step_us;
        }
    }
    name_links(t, pid, events);
}

/// Track numbers of links begin here.
const LINK_TRACKS: usize = 1000;

fn name_links(t: &Topology, pid: usize, events: &mut Vec<Value>) {
    let used: std::collections::BTreeSet<u64> = events
        .iter()
        .filter(|e| e["pid"] == pid && e["ph"] == "X")
        .filter_map(|e| e["tid"].as_u64())
        .collect();
    for (i, link) in t.links.iter().enumerate() {
        if used.contains(&((LINK_TRACKS + i) as u64)) {
            events.push(json!({"ph": "M", "pid": pid, "tid": LINK_TRACKS + i, "name": "thread_name", "args": {"name": link.name}}));
        }
    }
}

fn span(name: &str, pid: usize, tid: usize, start_us: f64, length_us: f64) -> Value {
    json!({"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": length_us})
}
