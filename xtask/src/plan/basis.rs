//! What the cost of a draft rests on, in words.

use kvplan::{CostBasis, Plan};

use super::Report;

/// What the cost of the draft rests on, where that is not a plan like any other.
pub(super) fn rests_on(report: &Report) -> &'static str {
    match report.cost.basis {
        CostBasis::Planned => "",
        CostBasis::Seen => rests_on_the_log(&report.cost.with),
        CostBasis::Estimates => " (estimated: the log has no run without it)",
        CostBasis::SeenWithout => {
            " (estimated: the log is of a run without it, whose pool stands above)"
        }
    }
}

/// What tokens and GiB rest on, where the pool was seen with the draft.
fn rests_on_the_log(plan: &Plan) -> &'static str {
    let lines = || plan.ledger.lines.iter();
    let banded = |line: &kvplan::Line| line.speculation && line.high > line.low;
    // Captures that a log does not name are not told apart.
    let graphs = lines().any(|line| line.item == "graphs of target and draft");
    match (lines().any(banded), graphs) {
        (true, false) => " (tokens: the log's pool against what it says was free; GiB: estimated)",
        (true, true) => {
            " (tokens: the log's pool against what it says was free; GiB: estimated, without its \
             graphs, which the log counts with the target's)"
        }
        (false, false) => " (tokens: the log's pool against what it says was free; GiB: the log's)",
        (false, true) => {
            " (tokens: the log's pool against what it says was free; GiB: the log's, without its \
             graphs, which it counts with the target's)"
        }
    }
}
