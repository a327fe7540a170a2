//! The pool of an SGLang start and the fraction that it proves.

use kvplan::{Inferred, Known};

use crate::explain::facts::Facts;
use crate::scenario::merge::is_look_up;

/// The figures of one SGLang start, as kvplan ties them together.
pub(super) struct Pool {
    pub(super) before: f64,
    pub(super) after: f64,
    pub(super) tied: Inferred,
}

impl Pool {
    /// GiB of KV at a fraction.
    pub(super) fn kv(&self, fraction: f64) -> f64 {
        self.tied.known.pool_at(fraction).unwrap_or(0.0)
    }

    /// The fraction at which the pool is empty.
    pub(super) fn least(&self) -> f64 {
        self.tied.fraction_min.unwrap_or(0.0)
    }

    /// The first three-digit setting above the least.
    pub(super) fn first_setting(&self) -> f64 {
        self.tied.first_legal_fraction.unwrap_or(1.0)
    }
}

/// State of linear layers shares the budget; it is part of what the fraction gave. A budget below
/// nothing beside a pool with tokens in it is of another start.
fn target_pool(facts: &Facts) -> Option<f64> {
    let came_to_a_pool = facts.number("kv_tokens").is_some_and(|tokens| tokens > 0.0);
    facts
        .number("kv_budget_gib")
        .filter(|gib| *gib > 0.0 || !came_to_a_pool)
        .or_else(|| Some(facts.number("kv_gib")? + facts.number("mamba_state_gib").unwrap_or(0.0)))
}

pub(super) fn pool(facts: &Facts) -> Option<Pool> {
    let before = facts.number("free_before_gib").filter(|b| *b > 0.0)?;
    let after = facts.number("free_after_gib")?;
    let pool_gib =
        target_pool(facts).map(|target| target + draft_share(facts, before, after, target));
    let known = Known {
        free_before_gib: Some(before),
        free_after_gib: Some(after),
        pool_gib,
        ..Known::default()
    };
    (after <= before).then(|| Pool {
        before,
        after,
        tied: known.infer(),
    })
}

/// What of the budget went to the draft's own pool, GiB: builds differ in whether they take it from
/// the same budget, and the flag tells.
fn draft_share(facts: &Facts, before: f64, after: f64, target: f64) -> f64 {
    let share = facts.number("mem_fraction").and_then(|flag| {
        let budget = after - before * (1.0 - flag);
        let share = facts.number("draft_kv_gib")?;
        let off = |share: f64| (target + share - budget).abs();
        (off(share) < off(0.0)).then_some(share)
    });
    share.unwrap_or(0.0)
}

/// Whether the pool is smaller for the draft: builds of SGLang size the pool before the draft is
/// loaded or after, and with its layer or without; the other engines' pools are what is left.
pub(super) fn draft_takes_from_the_pool(facts: &Facts) -> bool {
    if facts.text("engine") != Some("sglang") {
        return true;
    }
    if facts.text("spec_algorithm").is_some_and(is_look_up) {
        return false;
    }
    let (Some(sized), Some(draft)) = (facts.get("kv_gib"), facts.get("draft_weights_gib")) else {
        return true;
    };
    let share = || {
        let (before, after) = (
            facts.number("free_before_gib")?,
            facts.number("free_after_gib")?,
        );
        Some(draft_share(facts, before, after, target_pool(facts)?))
    };
    draft.line < sized.line || share().is_some_and(|gib| gib > 0.0)
}

/// Is the pool short of what the flag gives by no more than a draft layer takes whose pool was not
/// printed? Then it proves no fraction.
fn short_by_a_draft(facts: &Facts) -> bool {
    let short = || {
        let flag = facts.number("mem_fraction")?;
        let (before, after) = (
            facts.number("free_before_gib")?,
            facts.number("free_after_gib")?,
        );
        let target = target_pool(facts)?;
        let missing = after - before * (1.0 - flag) - target;
        Some(missing > 0.0 && missing < MOST_SHARE * target)
    };
    facts.get("spec_algorithm").is_some()
        && facts.number("draft_kv_gib").is_none()
        && short().unwrap_or(false)
}

/// Most that one draft layer takes beside a target's pool: one layer of 16 (the fewest of a model
/// that has a head).
const MOST_SHARE: f64 = 1.0 / 16.0;

/// Fraction in use as the pool proves it, and how far it can be off by the rounding of the log.
pub(crate) fn fraction_in_use(facts: &Facts) -> Option<(f64, f64)> {
    if facts
        .text("engine")
        .is_some_and(|engine| engine != "sglang")
    {
        return None;
    }
    if short_by_a_draft(facts) {
        return None;
    }
    let tied = pool(facts)?.tied;
    let fraction = tied.known.fraction?;
    let slack = tied.fraction_uncertainty.unwrap_or(0.001);
    (0.0..=1.0).contains(&fraction).then_some((fraction, slack))
}

#[cfg(test)]
mod tests {
    use crate::explain::facts_from_text;

    #[test]
    fn a_budget_below_nothing_beside_a_pool_is_of_another_start_and_proves_no_fraction() {
        let loaded = "Load weight end. type=A, avail mem=24.12 GB, mem usage=17.17 GB.\n\
            Memory pool end. avail mem=12.13 GB\n";
        let ready = "max_total_num_tokens=268319, chunked_prefill_size=8192, max_running_requests=1, \
            context_len=32768, available_gpu_mem=10.35 GB\n";
        let refused = "FAIL total_rest_memory=-3.05 GB\n";
        let facts = facts_from_text(&format!("{loaded}{ready}{refused}"), "f");
        assert_eq!(facts.number("kv_budget_gib"), Some(-3.05));
        assert_eq!(facts.number("mem_fraction_in_use"), None);
    }
}
