//! The fraction to set where the engine's own or a log's does not do: the one that `predict` answers for,
//! and at which both commands say what a draft costs.

use kvplan::{EngineKind, Fit, Plan};

use super::cost::{At, By};
use super::wall::{band, typed};
use super::{Report, fraction_flag, report, starts};
use crate::cli::PlanArgs;
use crate::scenario::Scenario;
use crate::table::{at_most, thousands};

/// What a fraction that ran out of memory is lowered by at least: about 1 GiB of a large card.
const STEP_DOWN: f64 = 0.01;

/// A plan at another fraction.
pub(super) struct Instead {
    pub(super) report: Report,
    /// The scenario at that fraction.
    pub(super) scenario: Scenario,
    /// What to set, and why.
    pub(super) why: String,
    /// The pool without the draft, where it is not one of that fraction, and GiB of a token there.
    pub(super) without: Option<(At, f64)>,
}

/// The fraction to set instead; `None` where that of the report stands.
///
/// # Errors
/// As the plan.
pub(super) fn of(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Option<Instead>> {
    // Nothing mends a load that runs out of memory.
    if own.engine.kind == EngineKind::LlamaCpp || own.cost.with.loading.is_some() {
        return Ok(None);
    }
    for other in [
        below_where_it_ran_out,
        below_a_plain_servers,
        above_where_it_was_refused,
        beside_the_engines_own,
    ] {
        if let Some(found) = other(own, scenario, args)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Nobody asked for the fraction that is refused, too small or above the wall: one that carries the
/// context, which the flags to paste then set.
fn beside_the_engines_own(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Option<Instead>> {
    let plan = &own.cost.with;
    if own.told || plan.interval.is_empty() || good(plan, scenario.context) {
        return Ok(None);
    }
    for fraction in better_fractions(plan) {
        let other = report(scenario, args, Some(fraction))?;
        if good(&other.cost.with, scenario.context) {
            return Ok(Some(Instead {
                why: set_instead(own, fraction, scenario.context),
                without: without_the_draft(own, scenario, args, fraction)?,
                scenario: scenario.clone(),
                report: other,
            }));
        }
    }
    Ok(None)
}

/// The pool that a plain server would have, at the engine's own fraction or, where that does not do
/// without the draft either, at the one to set then. `None` where that is below the one with the draft: a
/// draft only takes, so that such a one would be for more requests at once (SGLang's plain default).
fn without_the_draft(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    with: f64,
) -> anyhow::Result<Option<(At, f64)>> {
    let plain = &own.cost.without;
    if !own.speculates {
        return Ok(None);
    }
    if good(plain, scenario.context) {
        return Ok(Some(seen(plain, By::Engine)));
    }
    // Clear of the wall's band, as the one with the draft: at the middle of it would be another footing.
    let clear = typed(plain.interval.max_low);
    if clear < with || clear <= plain.interval.min {
        return Ok(None);
    }
    let other = report(scenario, args, Some(clear))?.cost.without;
    Ok(good(&other, scenario.context).then(|| seen(&other, By::Advice)))
}

fn seen(plan: &Plan, by: By) -> (At, f64) {
    let per_token = plan.pool_gib / plan.kv_tokens.max(1) as f64;
    (At::of(plan, by), per_token)
}

/// The scenario of a log at another fraction.
fn at(own: &Report, scenario: &Scenario, fraction: f64) -> Scenario {
    let vllm = own.engine.kind == EngineKind::Vllm;
    let mut other = scenario.clone();
    other.ran = scenario.ran.clone().at_other_fraction(vllm);
    other.mem_fraction = Some(fraction);
    other
}

/// The fraction in the log of a plain server was set for a run without a draft: where the draft brings
/// it above the activation wall, one that is legal with it.
fn below_a_plain_servers(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Option<Instead>> {
    let plan = &own.cost.with;
    let of_plain = scenario.by_log("mem_fraction") && !scenario.ran.speculates;
    let too_high = starts(plan) && plan.fraction > plan.interval.max;
    if scenario.draft.is_none() || !of_plain || !too_high || plan.interval.is_empty() {
        return Ok(None);
    }
    // Below the wall's band first: what stayed up there with a draft nobody has seen.
    for fraction in [plan.interval.max_low, plan.interval.max].map(typed) {
        let other = at(own, scenario, fraction);
        let lower = report(&other, args, None)?;
        if good(&lower.cost.with, scenario.context) {
            let ran = scenario.ran.stayed_up;
            return Ok(Some(Instead {
                // The pool that is given up is that of the server that ran.
                without: ran.then(|| seen(&own.cost.without, By::Told)),
                why: format!(
                    "set {} {fraction:.3}: the {:.3} of the log's server, which {} without a draft, is \
                     above the middle of the activation wall with one, {} ({})",
                    fraction_flag(own),
                    plan.fraction,
                    if ran { "ran" } else { "was to run" },
                    at_most(plan.interval.max, 3),
                    band(&plan.interval),
                ),
                report: lower,
                scenario: other,
            }));
        }
    }
    Ok(None)
}

/// The fraction of a log's server that ran out of memory with it: one clear of the activation wall, and
/// of that fraction.
fn below_where_it_ran_out(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Option<Instead>> {
    let plan = &own.cost.with;
    let ended = scenario.ran.ran_out.as_ref();
    let Some(ended) =
        ended.filter(|_| scenario.by_log("mem_fraction") && !plan.interval.is_empty())
    else {
        return Ok(None);
    };
    let fraction = typed(plan.interval.max_low.min(plan.fraction - STEP_DOWN));
    let other = at(own, scenario, fraction);
    let lower = report(&other, args, None)?;
    Ok(starts(&lower.cost.with).then(|| Instead {
        why: format!(
            "set {} {fraction:.3}: at {:.3} the log's server ran out of memory ({ended})",
            fraction_flag(own),
            plan.fraction,
        ),
        report: lower,
        scenario: other,
        without: None,
    }))
}

/// The fraction of a log's server that did not get past its pool: one that does.
fn above_where_it_was_refused(
    own: &Report,
    scenario: &Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Option<Instead>> {
    let plan = &own.cost.with;
    let refused = scenario.by_log("mem_fraction") && !scenario.ran.came_up && !starts(plan);
    for fraction in better_fractions(plan).filter(|_| refused) {
        let other = at(own, scenario, fraction);
        let higher = report(&other, args, None)?;
        if good(&higher.cost.with, scenario.context) {
            return Ok(Some(Instead {
                why: format!(
                    "set {} {fraction:.3}: {:.3}, as in the log, is refused",
                    fraction_flag(own),
                    plan.fraction,
                ),
                report: higher,
                scenario: other,
                without: None,
            }));
        }
    }
    Ok(None)
}

/// Whether a plan starts inside the walls and holds one request of the context.
pub(super) fn good(plan: &Plan, context: u64) -> bool {
    plan.fit(context) == Fit::Fits
}

/// Fractions to take instead, best first: clear of the activation wall's band, the middle of the legal
/// interval, its top. Three digits, as people type it.
fn better_fractions(plan: &Plan) -> impl Iterator<Item = f64> {
    let interval = &plan.interval;
    let (min, max) = (interval.min, interval.max);
    [interval.max_low, f64::midpoint(min, max), max]
        .into_iter()
        .map(typed)
        .filter(move |fraction| *fraction > min && *fraction <= max)
}

/// Why another fraction than the engine's own, in the words of the flag.
fn set_instead(own: &Report, fraction: f64, context: u64) -> String {
    let plan = &own.cost.with;
    let why = if starts(plan) && plan.fraction > plan.interval.max {
        let i = &plan.interval;
        format!(
            "is above the middle of the activation wall, {} ({})",
            at_most(i.max, 3),
            band(i)
        )
    } else if starts(plan) && plan.pool.requests(context) < 1.0 {
        format!(
            "leaves {} tokens, less than one request of {}",
            thousands(plan.kv_tokens as f64),
            thousands(context as f64)
        )
    } else {
        "is refused".to_string()
    };
    format!(
        "set {} {fraction:.3}: the engine's own {:.3} {why}",
        fraction_flag(own),
        plan.fraction
    )
}
