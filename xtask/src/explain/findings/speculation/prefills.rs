//! Graphs of prefills beside a head, which cannot use them.

use super::super::{Finding, Severity, count};
use crate::explain::facts::Facts;

/// SGLang captures them without the hidden states that a head's prefill asks for, and takes a graph only
/// where both agree (`PiecewiseCudaGraphRunner.can_run`, 0.5.12 and 0.5.13; 0.5.14 captures them with those states).
pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    let (Some(gib), Some(lines)) = (
        facts.number("prefill_graph_gib").filter(|gib| *gib > 0.0),
        facts.number("prefills_outside_graphs"),
    ) else {
        return;
    };
    let method = facts.text("spec_algorithm").unwrap_or_default();
    if !method.to_ascii_uppercase().starts_with("EAGLE") {
        return;
    }
    found.push(Finding::new(
        Severity::Note,
        facts,
        "prefill_graph_gib",
        format!("{gib:.2} GiB of prefill graphs, and no prefill ran in one"),
        format!(
            "all {} prefill lines say \"cuda graph: False\": SGLang captures them without the hidden states \
             that the head needs of a prefill",
            count(lines)
        ),
        "--disable-piecewise-cuda-graph leaves them out; a higher --mem-fraction-static then turns them into KV \
         tokens",
    ));
}
