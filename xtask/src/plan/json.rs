//! The JSON view of `plan`.

use serde_json::{Value, json};

use super::memory::to_memory;
use super::{DraftCost, Report};

/// The contract's `plan --json`.
pub(super) fn to_json(report: &Report) -> Value {
    let known = report.inferred.known;
    let plan = &report.cost.with;
    let mut memory = to_memory(report);
    let cost = report.draft_cost.as_ref();
    if let Some(cost) = cost {
        memory.kv_tokens_without_speculation = Some(cost.tokens()[1]);
    }
    if report.uncut.is_some() {
        memory.fits = Some(false);
    }
    json!({
        "schema": 1,
        "ignored_flags": report.ignored,
        "engine": report.engine.to_string(),
        "memory": (!report.foreign).then_some(memory),
        "assumed": report.assumed,
        "assumptions": report.taken,
        "falls_short": report.falls_short,
        "left_aside": (!report.left_aside.is_empty()).then(|| report.left_aside.join("; ")),
        "refused_cut": report.uncut,
        "pool_gib": plan.pool_gib,
        "kv_dtype": plan.kv_dtype.name(),
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "automatic_fraction": plan.automatic_fraction,
        "max_running": plan.max_running,
        "max_concurrency": plan.max_concurrency,
        "context_tokens": plan.context_tokens,
        "requests": {"context": report.context, "held": plan.pool.requests(report.context)},
        "state_slots": plan.state_slots.map(|slots| json!({
            "slots": slots.slots, "per_request": slots.per_request,
        })),
        "longest_context": plan.longest_context,
        "max_model_len": report.length.told,
        "weights_gib": {"computed": plan.computed_weights_gib, "used": plan.weights_gib},
        "speculation": report.speculates.then(|| json!({
            "tokens_lost": cost.map_or(report.cost.tokens_lost, DraftCost::lost),
            "context_lost": report.cost.context_lost,
            "gib": report.cost.draft_gib,
            "pool_gib_lost": cost.map_or_else(|| report.cost.pool_lost_gib(), DraftCost::pool_gib),
            "beside_pool_gib": cost.map_or_else(|| report.cost.beside_pool_gib(), DraftCost::beside_pool_gib),
            "fractions": cost.map(DraftCost::fractions),
            "pool_gib_without": report.cost.without.pool_gib,
        })),
        "refusal": plan.refusal.as_ref().map(refusal_json),
        "observed": {
            "free_before_gib": known.free_before_gib,
            "free_after_gib": known.free_after_gib,
            "kv_gib": known.pool_gib,
            "state_gib": known.state_gib,
            "kv_tokens": known.tokens,
        },
        "inferred_fraction": known.fraction,
        "fraction_refused_to": report.inferred.fraction_min,
        "first_legal_fraction": report.inferred.first_legal_fraction,
        "believed": report.belief.as_ref().map(|belief| json!({
            "fraction": belief.believed,
            "agrees": belief.agrees,
            "starts": belief.believed_starts,
            "short_gib": belief.short_gib,
        })),
        "target": report.target.as_ref().map(|wanted| json!({
            "context": wanted.context, "requests": wanted.requests, "reached": wanted.answer.reached,
            "fraction": wanted.answer.fraction, "carries_requests": wanted.answer.requests,
            "carries_context": wanted.answer.context_tokens, "running": wanted.running,
        })),
    })
}

fn refusal_json(refusal: &kvplan::Refusal) -> Value {
    json!({
        "short_gib": refusal.short_gib,
        "card_short_gib": refusal.card_short_gib,
        "engine_says": refusal.engine_says,
        "remedy": refusal.remedy,
    })
}
