//! What a draft costs by the fraction. SGLang chooses a smaller one beside a draft, and its log prints the
//! one that it chose as if somebody had set it: the log's fraction on both sides would hide what the draft
//! takes.

use kvplan::EngineKind;

use super::cost::{At, By, DraftCost, SAME};
use super::wall::typed;
use super::{Report, fraction_flag, report, starts};
use crate::cli::PlanArgs;
use crate::scenario::Scenario;

/// A setting that gives tokens back, and how many.
type Back = Option<(String, u64)>;

/// The pools at the fractions that SGLang chooses with the draft and without, where the fraction of
/// the log is the one it chooses for that server, or there is none, and the other differs; and what
/// gives the tokens back.
///
/// # Errors
/// As the plan.
pub(super) fn of(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    found: &DraftCost,
) -> anyhow::Result<Option<([At; 2], Back)>> {
    let cost = &own.cost;
    let sglang = own.engine.kind == EngineKind::Sglang;
    let logged = scenario.by_log("mem_fraction");
    if !sglang || (own.told && !logged) {
        return Ok(None);
    }
    let drafted = !own.told || scenario.ran.speculates;
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
    let at = |fraction: f64| -> anyhow::Result<_> {
        let cost = moved(scenario, args, fraction)?.cost;
        Ok(if drafted { cost.without } else { cost.with })
    };
    // By the difference of the two fractions: a log's figures are rounded, its pool is not planned.
    let mut beside = At::of(other, By::Engine);
    if own.told {
        let (then, now) = (at(others)?, at(ran.fraction)?.kv_tokens);
        let by = then.kv_tokens as i64 - now as i64;
        beside.fraction = then.fraction;
        beside.tokens = other.kv_tokens.saturating_add_signed(by);
    }
    let ran = At::of(ran, By::Engine);
    if !drafted {
        return Ok(Some(([beside, ran], None)));
    }
    let mut moved = found.clone();
    [moved.with, moved.without] = [ran, beside];
    let back = back(own, scenario, args, &moved)?;
    Ok(Some(([ran, beside], back)))
}

/// The same by the pools of two logs, a drafting server's and a plain one's: who chose their fractions,
/// and what gives the tokens back.
///
/// # Errors
/// As the plan.
pub(super) fn by_both_logs(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    found: &mut DraftCost,
    chosen: Option<([At; 2], Back)>,
) -> anyhow::Result<()> {
    let printed = scenario
        .ran
        .plain_pool
        .as_ref()
        .and_then(|pool| pool.fraction);
    let Some((with, _)) = scenario.ran.fraction.zip(printed) else {
        found.unsaid = true;
        return Ok(());
    };
    found.with.fraction = with;
    let close = |[with, without]: [At; 2]| with.same(found.with) && without.same(found.without);
    if chosen.is_some_and(|(chosen, _)| close(chosen)) {
        (found.with.by, found.without.by) = (By::Engine, By::Engine);
    }
    found.back = back(own, scenario, args, found)?;
    Ok(())
}

/// The scenario at another fraction than its log's.
fn moved(scenario: &Scenario, args: Option<&PlanArgs>, fraction: f64) -> anyhow::Result<Report> {
    let mut moved = scenario.clone();
    moved.ran = scenario.ran.clone().at_other_fraction(false);
    moved.mem_fraction = Some(fraction);
    report(&moved, args, None)
}

/// The plain server's fraction, where it is clear of the wall with the draft and holds more.
fn back(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    cost: &DraftCost,
) -> anyhow::Result<Back> {
    let (with, without) = (cost.with.fraction, cost.without.fraction);
    let clear = |plan: &kvplan::Plan| plan.fraction <= typed(plan.interval.max_low) + SAME;
    if without <= with + SAME {
        return Ok(None);
    }
    let there = moved(scenario, args, without)?.cost.with;
    if !starts(&there) || !clear(&there) {
        return Ok(None);
    }
    let now = moved(scenario, args, with)?.cost.with.kv_tokens;
    let gained = there.kv_tokens.saturating_sub(now);
    let lost = cost.lost();
    // A log's free memory is rounded to 0.01 GiB.
    let rounding = (0.02 / cost.gib_per_token.max(f64::MIN_POSITIVE)) as u64;
    let gained = match gained + rounding >= lost {
        true => lost,
        false => gained,
    };
    let setting = format!("{} {without:.3}", fraction_flag(own));
    Ok((gained > 0).then_some((setting, gained)))
}
