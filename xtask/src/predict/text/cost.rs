//! What the draft costs of the pool, in words.

use super::super::answer::{Answer, Memory};
use crate::table::thousands;

/// One line, the same as in `plan`; none without a draft or a pool.
pub(crate) fn memory_cost(answer: &Answer) -> Option<String> {
    answer.best.as_ref()?;
    let cost = answer.memory.draft_cost.as_ref()?;
    Some(cost.words())
}

/// At which length of requests vLLM counts a hybrid's tokens: of shorter ones it counts fewer.
pub(in super::super) fn counted_in(memory: &Memory) -> String {
    let of = memory.tokens_in_requests_of.map(|of| thousands(of as f64));
    of.map_or_else(String::new, |of| format!(" in requests of {of}"))
}
