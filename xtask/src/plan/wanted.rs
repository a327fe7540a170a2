//! The load that was asked for, and the setting that carries it.

use kvplan::{EngineKind, Fit, Plan, PlanError, Setup, TargetAnswer};

use super::{Report, fraction_flag};
use crate::scenario::Scenario;
use crate::table::thousands;

/// Tokens of a request, requests, and what carries them.
pub(super) type Wanted = (u64, u64, TargetAnswer);

/// Context and requests, where both were asked for on the command line, or the context alone and
/// not one request of it fits.
fn wanted_load(scenario: &Scenario, plan: &Plan) -> Option<(u64, u64)> {
    let by_flag = |name: &str| {
        let input = scenario.input(name)?;
        input.source.starts_with("--").then_some(())
    };
    by_flag("context")?;
    if by_flag("concurrency").is_none() {
        let short = plan.fit(scenario.context) == Fit::TooShort;
        return short.then_some((scenario.context, 1));
    }
    let requests = scenario.concurrency.iter().copied().max()?;
    Some((scenario.context, u64::from(requests)))
}

/// Tokens of the one request that must fit: vLLM wants room for the longest it is told to serve.
pub(super) fn one_request(setup: &Setup<'_>, context: u64) -> u64 {
    match setup.engine.kind {
        EngineKind::Vllm => context.max(setup.context_tokens.unwrap_or(0)),
        _ => context,
    }
}

/// The least fraction whose pool holds one request of a context, where the one planned starts with
/// less or not at all.
pub(super) fn least_for_one(setup: &Setup<'_>, plan: &Plan, context: u64) -> Option<f64> {
    let short = matches!(plan.fit(context), Fit::TooShort | Fit::Refused);
    if !short || setup.engine.kind == EngineKind::LlamaCpp {
        return None;
    }
    let answer = kvplan::for_target(setup, one_request(setup, context), 1).ok()?;
    answer.reached.then_some(answer.fraction)
}

/// Says it; nothing where a remedy names that fraction already.
pub(super) fn holds_one(report: &Report, remedy: &str) -> Option<String> {
    let least = report.least_for_one.map(|least| format!("{least:.3}"))?;
    let told = remedy.contains(&least) || report.uncut.is_some();
    (!told).then(|| {
        // That pool holds no more than this one request.
        let one = report.context.max(report.cost.with.context_tokens);
        let with = report.length.below_own(one);
        let with = with.map_or_else(String::new, |told| format!(" {told}"));
        format!(
            "{} {least}{with} is the first that holds one request of {} tokens",
            fraction_flag(report),
            thousands(report.context as f64)
        )
    })
}

/// The setting that carries the load wanted.
pub(super) fn target(
    scenario: &Scenario,
    setup: &Setup<'_>,
    plan: &Plan,
) -> Result<Option<Wanted>, PlanError> {
    let Some((context, requests)) = wanted_load(scenario, plan) else {
        return Ok(None);
    };
    let answer = kvplan::for_target(setup, context, requests)?;
    Ok(Some((context, requests, answer)))
}

/// Says the least fraction that carries it, or the nearest load there is.
pub(super) fn words(report: &Report, out: &mut String) {
    let Some((context, requests, answer)) = &report.target else {
        return;
    };
    // The context itself is the setting: the first line has said whether it fits. And no fraction
    // mends a cut that is refused.
    if report.engine.kind == EngineKind::LlamaCpp || report.uncut.is_some() {
        return;
    }
    let plural = if *requests == 1 { "" } else { "s" };
    let load = format!(
        "{requests} request{plural} of {} tokens",
        thousands(*context as f64)
    );
    let flag = fraction_flag(report);
    let plan = &report.cost.with;
    let with = match answer.reached || answer.requests > 0 {
        true => presupposed(report, &answer.plan, *context),
        false => presupposed(report, &answer.plan, answer.context_tokens),
    };
    if answer.reached {
        let fits = plan.fit(*context) == Fit::Fits && plan.carries(*context, *requests);
        let interval = &answer.plan.interval;
        let risky = if answer.fraction > interval.max_low {
            format!(
                ", inside the band of the activation wall ({}): it may start and then run out",
                super::wall::band(interval)
            )
        } else {
            String::new()
        };
        out.push_str(&format!(
            "\nwanted     {load}: {}{risky}\n",
            match fits {
                true => format!(
                    "they fit; {flag} {:.3}{with} would be the least",
                    answer.fraction
                ),
                false => format!("set {flag} {:.3}{with}", answer.fraction),
            }
        ));
    } else {
        let fp8 = report
            .target_fp8
            .as_ref()
            .map_or_else(String::new, |least| {
                let told = presupposed(report, &least.plan, *context);
                format!(
                    "; with --kv-dtype fp8 {flag} {:.3}{told} carries it",
                    least.fraction
                )
            });
        let nearest = nearest_load(answer.requests, *requests, answer.context_tokens);
        out.push_str(&match nearest {
            Some(nearest) => format!(
                "\nwanted     {load}: out of reach; at most, with {flag} {:.3}{with}, {nearest}{}{fp8}\n",
                answer.fraction,
                match clear_of_the_band(answer) {
                    true => " (clear of the activation wall's band)",
                    false => "",
                }
            ),
            None => format!("\nwanted     {load}: out of reach at any {flag}{fp8}\n"),
        });
    }
}

/// The flag that a fraction presupposes beside its own, after it.
fn presupposed(report: &Report, plan: &Plan, context: u64) -> String {
    let told = report.length.presupposed(plan, context);
    told.map_or_else(String::new, |told| format!(" {told}"))
}

/// Whether a fraction is the low end of the band of the activation wall, typed.
fn clear_of_the_band(answer: &TargetAnswer) -> bool {
    let interval = &answer.plan.interval;
    answer.fraction <= interval.max_low && interval.max_low < interval.max
}

/// The least fraction that carries a load out of reach with a KV cache in fp8, where one does and
/// nobody asked for a format that is no larger.
pub(super) fn in_fp8(
    setup: &Setup<'_>,
    plan: &Plan,
    wanted: Option<&Wanted>,
) -> Option<TargetAnswer> {
    let (context, requests, answer) = wanted?;
    let wider = plan.kv_dtype == kvplan::KvDtype::Bf16;
    if answer.reached || !wider || setup.engine.kind == EngineKind::LlamaCpp {
        return None;
    }
    let mut other = setup.clone();
    other.kv_dtype = Some(kvplan::KvDtype::Fp8);
    let answer = kvplan::for_target(&other, *context, *requests).ok()?;
    Some(answer).filter(|answer| answer.reached)
}

/// The most requests of the context asked for, and the longest context of the requests asked for.
fn nearest_load(held: u64, asked: u64, context: u64) -> Option<String> {
    let plural = |n: u64| if n == 1 { "" } else { "s" };
    let requests = (held > 0).then(|| format!("{held} request{} of that context", plural(held)));
    let shorter = (context > 0).then(|| {
        let tokens = thousands(context as f64);
        match held > 0 {
            true => format!("{asked} of {tokens} tokens"),
            false => format!("{asked} request{} of {tokens} tokens", plural(asked)),
        }
    });
    let both: Vec<String> = requests.into_iter().chain(shorter).collect();
    (!both.is_empty()).then(|| both.join(", or "))
}
