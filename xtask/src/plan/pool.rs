//! A pool, in words.

use kvplan::Plan;

use super::{Report, basis};
use crate::table::thousands;

/// At which fraction the pool without the draft is, where that may be taken for another.
pub(super) fn without_it_at(report: &Report) -> String {
    let cost = report.draft_cost.as_ref();
    cost.filter(|cost| cost.by_fraction())
        .map_or_else(String::new, |_| {
            format!("at {:.3} without the draft ", report.cost.without.fraction)
        })
}

/// GiB, tokens and requests of a pool.
pub(super) fn pool(plan: &Plan, engine: kvplan::Engine, context: u64) -> String {
    let requests = plan.pool.requests(context);
    // 4.999 requests are four: two digits must not make five of them.
    let requests = requests.min(requests.floor() + 0.99);
    if plan.pool.grouped() {
        // A window or a state takes the same however long the request is, so no figure of bytes a
        // token holds at every context.
        let tokens = basis::hybrids_tokens(plan, engine, context);
        return format!(
            "{:.2} GiB of KV, {} tokens ({tokens}), {:.2} requests of {} tokens",
            plan.pool_gib,
            thousands(plan.kv_tokens as f64),
            requests,
            thousands(context as f64),
        );
    }
    format!(
        "{:.2} GiB of KV{}, {} tokens of {:.0} B, {:.2} requests of {} tokens",
        plan.pool_gib,
        own_pool(plan),
        thousands(plan.kv_tokens as f64),
        plan.kv_bytes_per_token,
        requests,
        thousands(context as f64),
    )
}

/// The draft's pool beside the target's, where the figure is the target's alone.
fn own_pool(plan: &Plan) -> String {
    let gib = plan.ledger.gib_of("draft: KV pool");
    let alone = (plan.pool_gib - plan.ledger.gib_of("target: KV pool")).abs() < 0.005;
    let of_tokens = plan.kv_tokens as f64 * plan.kv_bytes_per_token / kvplan::GIB;
    // States and windows of llama.cpp stand beside what a token takes.
    let fixed = plan.pool_gib - of_tokens;
    if fixed > 0.005
        && !plan
            .ledger
            .lines
            .iter()
            .any(|line| line.item == "target: KV pool")
    {
        return format!(" ({fixed:.2} of it states and windows)");
    }
    if gib < 0.005 || !alone {
        return String::new();
    }
    // SGLang takes what its budget does not price from what lies outside the fraction: all of it in
    // older versions, what a head's layer holds beyond one of the target's in newer ones.
    let reserve = gib - (of_tokens - plan.pool_gib);
    let from = match reserve {
        _ if reserve < 0.005 => String::new(),
        _ if gib - reserve < 0.005 => " from the reserve".to_string(),
        _ => format!(", {reserve:.2} of it from the reserve"),
    };
    format!(" and {gib:.2} of the draft's{from}")
}
