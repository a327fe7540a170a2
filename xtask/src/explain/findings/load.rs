//! A running server whose KV pool is full.

use super::{Finding, Severity, any_of, count, drafts, fp8_cache, show};
use crate::explain::facts::Facts;

/// What gives more room beside how this server ran, in the order of what it costs.
fn room(facts: &Facts) -> String {
    let ways = any_of(&[
        Some("fewer requests at once".to_string()),
        Some("a shorter context".to_string()),
        fp8_cache(facts).map(|_| "an fp8 KV cache".to_string()),
        Some("a larger memory fraction where `plan` shows one".to_string()),
    ]);
    if drafts(facts) {
        format!("{ways}; speculation itself takes room: `plan` says how many tokens")
    } else {
        ways
    }
}

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    let pool = facts.number("kv_tokens").map_or(String::new(), |tokens| {
        format!("the pool holds {} tokens; ", count(tokens))
    });
    if let Some(requests) = facts.number("retracted_requests") {
        let (s, were) = if requests == 1.0 {
            ("", "was")
        } else {
            ("s", "were")
        };
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "retracted_requests",
            format!(
                "the KV pool ran full: {} request{s} {were} thrown out and must be computed again",
                count(requests)
            ),
            format!("{pool}what a retracted request had decoded is prefilled once more"),
            room(facts),
        ));
    }
    let waiting = facts.number("queued_at_full_pool");
    if let Some((queued, usage)) = waiting.zip(facts.number("token_usage")) {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "queued_at_full_pool",
            format!(
                "requests wait for the KV pool: {} in the queue at {} % in use",
                count(queued),
                show(usage * 100.0)
            ),
            format!("{pool}more requests at once raise the wait, not the speed"),
            room(facts),
        ));
    }
}
