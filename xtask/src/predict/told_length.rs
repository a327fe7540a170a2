//! The longest request that vLLM is told to take.

use super::answer::Memory;
use super::launch;
use crate::scenario::Scenario;

/// The context to tell vLLM: what was asked for as such, else one that its pool surely holds, since by
/// default it serves the model's own and refuses to start where that does not fit; and no longer one
/// than the head lets in.
pub(crate) fn vllm_context(scenario: &Scenario, memory: Option<&Memory>) -> Option<u64> {
    if scenario.max_model_len.is_some() {
        return scenario.max_model_len;
    }
    if let Some(limit) = launch::told_limit(scenario, memory) {
        return Some(limit);
    }
    if let Some(limit) = launch::log_limit(scenario, memory) {
        return Some(limit);
    }
    let length = &memory?.length;
    // A length of our own choice lets in nothing that stops drafting for the whole batch.
    let drafted = length.drafted.unwrap_or(u64::MAX);
    let by_pool = length
        .longest
        .map(|longest| with_room(scenario, longest).min(drafted));
    let told = by_pool.into_iter().chain(length.let_in).min();
    // The model's own needs no flag.
    told.filter(|told| {
        by_pool.is_some() || scenario.model.max_positions.is_none_or(|own| *told < own)
    })
}

/// What a pool that holds so much is told, for the context that was asked for.
fn with_room(scenario: &Scenario, longest: u64) -> u64 {
    // A pool that starts holds one request of the context.
    let held = scenario.context;
    let longest = longest.max(held);
    let asked = scenario.asked_context().is_some() && !scenario.by_log("context");
    // The longest that a request can grow which holds so many tokens in the mean.
    let room = held.saturating_mul(2);
    if asked { room.min(longest) } else { longest }
}
