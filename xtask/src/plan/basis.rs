//! What the ledger and the cost of a draft rest on, in words.

use kvplan::{CostBasis, Plan, SpeculationCost};

use super::Report;
use crate::predict::answer::Assumption;
use crate::scenario::Scenario;
use crate::table::thousands;

/// What the cost of the draft rests on, where that is not a plan like any other.
pub(super) fn rests_on(report: &Report) -> &'static str {
    match report.cost.basis {
        CostBasis::Planned | CostBasis::SeenBoth => "",
        CostBasis::Seen => rests_on_the_log(&report.cost),
        CostBasis::Estimates => " (estimated: the log has no run without it)",
        CostBasis::SeenWithout => {
            " (estimated: the log is of a run without it, whose pool stands above)"
        }
    }
}

/// What tokens and GiB rest on, where the pool was seen with the draft.
fn rests_on_the_log(cost: &SpeculationCost) -> &'static str {
    let (with, plain) = (&cost.with.ledger, &cost.without.ledger);
    let lines = || with.lines.iter();
    // Of the target's lines the log shows those with the draft.
    let moved = with.more_than(plain).into_iter();
    let moved: Vec<String> = moved
        .filter(|row| !row.of_draft && row.gib.abs() >= 0.005)
        .map(|row| row.item)
        .collect();
    let banded = |line: &kvplan::Line| {
        (line.speculation || moved.contains(&line.item)) && line.high > line.low
    };
    let estimated = lines().chain(&plain.lines).any(banded);
    // Captures that a log does not name are not told apart.
    let graphs = lines().any(|line| line.item == "graphs of target and draft");
    match (estimated, graphs) {
        (true, false) => {
            " (tokens: the log's pool against what it says was free; beside it: estimated)"
        }
        (true, true) => {
            " (tokens: the log's pool against what it says was free; beside it: estimated, without its \
             graphs, which the log counts with the target's)"
        }
        (false, false) => {
            " (tokens: the log's pool against what it says was free; beside it: the log's)"
        }
        (false, true) => {
            " (tokens: the log's pool against what it says was free; beside it: the log's, without its \
             graphs, which it counts with the target's)"
        }
    }
}

/// How the tokens of a pool of padded groups are counted, beside requests of a context.
pub(super) fn hybrids_tokens(plan: &Plan, engine: kvplan::Engine, context: u64) -> String {
    let printed = plan.printed_tokens(engine);
    let how = match plan.tokens_in_requests_of.filter(|of| *of != context) {
        Some(of) => format!(
            "in {:.2} requests of {}",
            plan.kv_tokens as f64 / of as f64,
            thousands(of as f64)
        ),
        None => "requests x their length".to_string(),
    };
    if printed == plan.kv_tokens {
        return format!("{how}, as the engine counts hybrids");
    }
    format!("{how}; {engine} prints {}", thousands(printed as f64))
}

/// What is left of a log whose server drafted another number of tokens.
pub(super) fn at_another_depth(report: &Report) -> Option<String> {
    let (ran, asked) = report.other_depth?;
    Some(format!(
        "the log's server drafted {ran}, this one {asked}: the pool is its own, the tokens are counted with \
         the states that {asked} drafted tokens take"
    ))
}

/// What the scenario takes for the shapes that the ledger is of, as `predict` says it of the same: whose
/// they are where nobody gave the draft's or the model's own, and in which format; and in which layout.
pub(super) fn shapes_taken(scenario: &Scenario) -> impl Iterator<Item = &Assumption> {
    let of_shapes = ["draft: ", "model: ", "weights in "];
    let all = scenario.assumptions.iter();
    all.filter(move |taken| {
        let of_shapes = of_shapes.iter().any(|of| taken.what.starts_with(of));
        of_shapes || taken.what.contains(crate::scenario::ONE_GROUP)
    })
}
