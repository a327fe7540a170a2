//! A server that was told to draft and seldom did.

use super::super::{Finding, Severity, count};
use crate::explain::facts::Facts;

/// Windows without a draft, and what is likely behind them.
pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(windows) = facts.windows.filter(|windows| windows.mostly_plain()) else {
        return;
    };
    let head = facts.text("draft_model").and_then(kvplan::named_head);
    let said = head.and_then(|head| head.reach_tokens);
    let printed = facts.number("draft_max_model_len");
    let reach = printed.or(said.map(|tokens| tokens as f64));
    let served = facts.number("max_model_len");
    let short = reach.filter(|reach| served.is_none_or(|served| *reach < served));
    let (why, mend) = match short {
        Some(reach) => (
            format!(
                "its head reaches {} tokens, and vLLM drafts nothing for the whole batch while one request \
                 in it is longer",
                count(reach)
            ),
            "a head that reaches further, a vLLM that lengthens it (0.27, 0.29 for experts), or a \
             --max-model-len within its reach",
        ),
        None => (
            "vLLM drafts nothing for the whole batch while one request in it is longer than the head \
             reaches"
                .to_string(),
            "compare max_position_embeddings of the head's config.json with the requests",
        ),
    };
    let mut finding = Finding::new(
        Severity::Costly,
        facts,
        "engine",
        format!(
            "{} of {} throughput windows drafted nothing",
            windows.all - windows.drafted,
            windows.all
        ),
        why,
        mend,
    );
    finding.place = format!("{}:{}", facts.file, windows.line);
    found.push(finding);
}
