//! What the draft costs of the pool, in words.

use super::super::answer::{Answer, Memory};
use super::input_text;
use crate::plan::CostByFraction;
use crate::table::thousands;

/// One line; none without a draft or a pool.
pub(super) fn memory_cost(answer: &Answer) -> Option<String> {
    let memory = &answer.memory;
    answer.best.as_ref()?;
    let with = memory.kv_tokens?;
    let without = memory
        .kv_tokens_without_speculation
        .filter(|tokens| *tokens > 0)?;
    let sglang = input_text(answer, "engine").starts_with("sglang");
    let fraction = memory.fraction.filter(|_| sglang && !memory.by_both_logs);
    let by_fraction = memory.cost_by_fraction.as_ref();
    let at_its_own = |cost: &&CostByFraction| {
        fraction.is_none_or(|fraction| (fraction - cost.fractions[0]).abs() < 0.001)
    };
    if let Some(cost) = by_fraction.filter(at_its_own) {
        return Some(cost.words());
    }
    let at = match fraction {
        Some(fraction) if memory.fraction_given => {
            let choice = by_fraction.map_or_else(String::new, choice);
            format!(", at {fraction:.3} with and without it{choice}")
        }
        Some(_) if memory.set_instead.is_none() => {
            ", with and without it at the fraction that SGLang chooses".to_string()
        }
        _ if memory.by_both_logs => " by the pools of the two logs".to_string(),
        _ => String::new(),
    };
    if with >= without {
        return Some(format!("costs no KV tokens{at}"));
    }
    let gib = memory.pool_gib_lost;
    let counted = counted_in(memory);
    Some(format!(
        "costs {} of {} KV tokens{counted}{}{at}",
        thousands(without.saturating_sub(with) as f64),
        thousands(without as f64),
        gib.map_or_else(String::new, |gib| format!(" ({gib:.2} GiB)"))
    ))
}

/// At which length of requests vLLM counts a hybrid's tokens: of shorter ones it counts fewer.
pub(in super::super) fn counted_in(memory: &Memory) -> String {
    let of = memory.tokens_in_requests_of.map(|of| thousands(of as f64));
    of.map_or_else(String::new, |of| format!(" in requests of {of}"))
}

/// What the draft costs where SGLang chooses the fraction and a plain server's is kept.
fn choice(cost: &CostByFraction) -> String {
    format!(
        "; {} of {} where SGLang chooses it ({:.3} with, {:.3} without)",
        thousands(cost.lost() as f64),
        thousands(cost.tokens[1] as f64),
        cost.fractions[0],
        cost.fractions[1],
    )
}
