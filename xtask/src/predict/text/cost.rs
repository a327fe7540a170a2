//! What the draft costs of the pool, in words.

use super::super::answer::{Answer, Memory};
use super::input_text;
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
    if let Some(fractions) = memory.of_both_logs {
        return Some(by_both_logs(memory, with, without, fractions));
    }
    // SGLang chooses another fraction beside a draft, which one that is set hides.
    let at = match memory.fraction.filter(|_| sglang) {
        Some(fraction) if memory.fraction_given => {
            format!(", at {fraction:.3} with and without it{}", choice(memory))
        }
        Some(_) if memory.set_instead.is_none() => {
            ", with and without it at the fraction that SGLang chooses".to_string()
        }
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

/// What the draft costs by the pools of two logs.
fn by_both_logs(memory: &Memory, with: u64, without: u64, fractions: [Option<f64>; 2]) -> String {
    let at = match fractions {
        [Some(drafted), Some(plain)] if (drafted - plain).abs() > 0.0006 => {
            format!(" ({drafted:.3} with it, {plain:.3} without)")
        }
        _ => String::new(),
    };
    if with >= without {
        return format!("costs no KV tokens by the pools of the two logs{at}");
    }
    format!(
        "costs {} of {} KV tokens ({:.2} GiB) by the pools of the two logs{at}",
        thousands(without.saturating_sub(with) as f64),
        thousands(without as f64),
        memory.pool_gib_lost.unwrap_or(0.0),
    )
}

/// What the draft costs where SGLang chooses the fraction.
fn choice(memory: &Memory) -> String {
    memory.cost_of_choice.map_or_else(String::new, |choice| {
        let [with, without] = choice.tokens;
        format!(
            "; {} of {} where SGLang chooses it ({:.3} with, {:.3} without)",
            thousands(without.saturating_sub(with) as f64),
            thousands(without as f64),
            choice.fractions[0],
            choice.fractions[1],
        )
    })
}
