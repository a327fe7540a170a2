//! What is printed: JSON by the contract, or text.

use serde_json::{Value, json};

use super::engine_mode;
use super::engine_url::EngineRun;
use super::machine::Outcome;
use super::table;

/// A run on this machine as JSON.
pub(crate) fn machine_json(outcome: &Outcome, held: Option<bool>, quick: bool) -> Value {
    let runs: Vec<Value> = outcome
        .runs
        .iter()
        .map(|r| json!({"allreduce": r.algorithm, "found": r.found}))
        .collect();
    let figures: Vec<String> = outcome.figures.iter().map(ToString::to_string).collect();
    json!({
        "schema": 1,
        "mode": "stand-in",
        "mock": outcome.mock,
        "quick": quick,
        "model": outcome.scenario.model.name,
        "gpu": outcome.scenario.gpu.name,
        "tp": outcome.scenario.tp,
        "facts": outcome.facts,
        "probes": figures,
        "all_reduce": outcome.curve,
        "runs": runs,
        "rows": outcome.rows,
        "findings": outcome.findings,
        "notes": outcome.notes,
        "held": held,
    })
}

/// The same as text.
pub(crate) fn machine_text(outcome: &Outcome, held: Option<bool>) -> String {
    let mut out = String::new();
    if outcome.mock {
        out.push_str("MOCK: several ranks share a GPU; times say nothing of a real group\n");
    }
    out.push_str(&table::render(&outcome.rows));
    out.push('\n');
    for finding in &outcome.findings {
        out.push_str(&format!(
            "why slow: {}\n  try first: {}\n",
            finding.what, finding.fix
        ));
    }
    for note in &outcome.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    out.push_str(verdict(held));
    out
}

/// A driven server as JSON.
pub(crate) fn engine_json(outcome: &engine_mode::Outcome, held: Option<bool>) -> Value {
    let points = |run: &Option<EngineRun>| run.as_ref().map(|r| json!(r));
    json!({
        "schema": 1,
        "mode": "engine",
        "plain": points(&outcome.plain),
        "speculative": points(&outcome.speculative),
        "rows": outcome.rows,
        "notes": outcome.notes,
        "held": held,
    })
}

/// The same as text.
pub(crate) fn engine_text(outcome: &engine_mode::Outcome, held: Option<bool>) -> String {
    let mut out = String::new();
    for run in [&outcome.plain, &outcome.speculative].into_iter().flatten() {
        out.push_str(&format!(
            "\n# {} at {}{}\n{}",
            run.model,
            run.url,
            if run.speculative() {
                ", speculative"
            } else {
                ", plain"
            },
            run.csv()
        ));
        if let Some(s) = &run.streamed {
            out.push_str(&format!(
                "# one request alone: first token {:.0} ms, then {:.1} tokens every {:.1} ms\n",
                s.first_token_ms, s.tokens_per_event, s.event_gap_ms
            ));
        }
    }
    out.push_str(&table::render(&outcome.rows));
    out.push('\n');
    for note in &outcome.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    out.push_str(verdict(held));
    out
}

fn verdict(held: Option<bool>) -> &'static str {
    match held {
        Some(true) => "HELD  every prediction is within its limit\n",
        Some(false) => "NOT HELD  predictions marked ! are outside their limit\n",
        None => "nothing to compare yet\n",
    }
}
