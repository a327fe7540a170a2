//! What a draft costs where SGLang chooses the fraction. Its log prints the fraction that it chose as if
//! somebody had set it, and it chooses a smaller one beside a draft: the log's fraction on both sides
//! would hide what the draft takes.

use kvplan::EngineKind;

use super::{Report, report};
use crate::predict::answer::CostOfChoice;
use crate::scenario::Scenario;

/// Fractions are printed with three decimals.
const SAME: f64 = 0.0006;

/// The pools at the fractions that SGLang chooses with the draft and without, where the fraction of
/// the log is the one it chooses for that server and the other differs.
///
/// # Errors
/// As the plan.
pub(super) fn cost(own: &Report, scenario: &Scenario) -> anyhow::Result<Option<CostOfChoice>> {
    let cost = &own.cost;
    let sglang = own.engine.kind == EngineKind::Sglang;
    if !sglang || scenario.draft.is_none() || !scenario.by_log("mem_fraction") {
        return Ok(None);
    }
    let drafted = scenario.ran.speculates;
    let (ran, other) = if drafted {
        (&cost.with, &cost.without)
    } else {
        (&cost.without, &cost.with)
    };
    let Some((chosen, others)) = ran.automatic_fraction.zip(other.automatic_fraction) else {
        return Ok(None);
    };
    if (chosen - ran.fraction).abs() > SAME || (chosen - others).abs() <= SAME {
        return Ok(None);
    }
    let at = |fraction: f64| {
        let mut moved = scenario.clone();
        moved.ran = scenario.ran.clone().at_other_fraction(false);
        moved.mem_fraction = Some(fraction);
        let cost = report(&moved, None, None)?.cost;
        anyhow::Ok(if drafted { cost.without } else { cost.with })
    };
    // By the difference of the two fractions: a log's figures are rounded, its pool is not planned.
    let (then, now) = (at(others)?, at(ran.fraction)?.kv_tokens);
    let moved = then.kv_tokens as i64 - now as i64;
    let tokens = other.kv_tokens.saturating_add_signed(moved);
    let (ran, other) = ((ran.fraction, ran.kv_tokens), (then.fraction, tokens));
    let (with, without) = if drafted { (ran, other) } else { (other, ran) };
    Ok(Some(CostOfChoice {
        fractions: [with.0, without.0],
        tokens: [with.1, without.1],
    }))
}
