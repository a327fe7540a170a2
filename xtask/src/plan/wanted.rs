//! The load that was asked for, and the setting that carries it.

use kvplan::{EngineKind, Fit, Plan, PlanError, Setup, TargetAnswer};

use super::{Report, fraction_flag};
use crate::predict::launch::flag_at_once;
use crate::scenario::Scenario;
use crate::table::thousands;

/// A load, and what carries it: one search for the `wanted` line of `plan` and the head of `predict`.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// Tokens of a request.
    pub(super) context: u64,
    /// Requests at once.
    pub(super) requests: u64,
    /// The least fraction that carries them, or the nearest load there is.
    pub(super) answer: TargetAnswer,
    /// The least fraction with a KV cache in fp8, where none does without.
    pub(super) fp8: Option<TargetAnswer>,
    /// What the engine must be told to run as many at once.
    pub(super) running: Option<String>,
}

impl Wanted {
    /// Searches for what carries a load on the server of a setup, whose plan is given.
    pub(super) fn of(
        scenario: &Scenario,
        (setup, plan): (&Setup<'_>, &Plan),
        (context, requests): (u64, u64),
    ) -> Result<Self, PlanError> {
        let answer = kvplan::for_target(setup, context, requests)?;
        let fp8 = match answer.reached {
            true => None,
            false => in_fp8(setup, plan, (context, requests)),
        };
        Ok(Self {
            context,
            requests,
            answer,
            fp8,
            running: flag_at_once(scenario, requests),
        })
    }

    /// The flags of the fraction of an answer, as the engine takes them; `context` is the longest request
    /// that it is to hold.
    fn flags(&self, report: &Report, answer: &TargetAnswer, context: u64) -> String {
        let told = report.length.presupposed(&answer.plan, context);
        let told = self.running.iter().cloned().chain(told);
        let told: String = told.map(|flag| format!(" {flag}")).collect();
        format!("{} {:.3}{told}", fraction_flag(report), answer.fraction)
    }

    /// What carries all of it: a fraction, or with it a KV cache in fp8; and what is to be said of one inside
    /// the band of the activation wall. `None` where nothing does.
    fn all_by(&self, report: &Report) -> Option<(String, &'static str)> {
        let (answer, format) = match &self.fp8 {
            Some(fp8) => (fp8, "--kv-cache-dtype fp8 "),
            None => (Some(&self.answer).filter(|answer| answer.reached)?, ""),
        };
        let flags = self.flags(report, answer, self.context);
        let risk = match answer.fraction > answer.plan.interval.max_low {
            true => ", inside the band of the activation wall",
            false => "",
        };
        Some((format!("{format}{flags}"), risk))
    }

    /// The same in few words.
    pub(super) fn carried_by(&self, report: &Report) -> Option<String> {
        let (flags, risk) = self.all_by(report)?;
        Some(format!("{flags}{risk}"))
    }
}

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

/// What carries the load wanted.
pub(super) fn target(
    scenario: &Scenario,
    setup: &Setup<'_>,
    plan: &Plan,
) -> Result<Option<Wanted>, PlanError> {
    let load = wanted_load(scenario, plan);
    load.map(|load| Wanted::of(scenario, (setup, plan), load))
        .transpose()
}

/// Says the least fraction that carries it, or the nearest load there is.
pub(super) fn words(report: &Report, out: &mut String) {
    let Some(wanted) = &report.target else {
        return;
    };
    // The context itself is the setting: the first line has said whether it fits. And no fraction
    // mends a cut that is refused.
    if report.engine.kind == EngineKind::LlamaCpp || report.uncut.is_some() {
        return;
    }
    let (context, requests, answer) = (wanted.context, wanted.requests, &wanted.answer);
    let plural = if requests == 1 { "" } else { "s" };
    let load = format!(
        "{requests} request{plural} of {} tokens",
        thousands(context as f64)
    );
    let plan = &report.cost.with;
    let said = if answer.reached {
        let flags = wanted.flags(report, answer, context);
        let risky = risky(answer);
        match plan.fit(context) == Fit::Fits && plan.carries(context, requests) {
            true => format!("they fit; {flags} would be the least{risky}"),
            false => format!("set {flags}{risky}"),
        }
    } else {
        let fp8 = wanted.all_by(report);
        let fp8 = fp8.map_or_else(String::new, |(flags, risk)| {
            format!("; with {flags} carries it{risk}")
        });
        let longest = match answer.requests > 0 {
            true => context,
            false => answer.context_tokens,
        };
        match nearest_load(answer.requests, requests, answer.context_tokens) {
            Some(nearest) => format!(
                "out of reach; at most, with {}, {nearest}{}{fp8}",
                wanted.flags(report, answer, longest),
                match clear_of_the_band(answer) {
                    true => " (clear of the activation wall's band)",
                    false => "",
                }
            ),
            None => format!("out of reach at any {}{fp8}", fraction_flag(report)),
        }
    };
    out.push_str(&format!("\nwanted     {load}: {said}\n"));
}

/// What is said of a fraction inside the band of the activation wall.
fn risky(answer: &TargetAnswer) -> String {
    let interval = &answer.plan.interval;
    match answer.fraction > interval.max_low {
        true => format!(
            ", inside the band of the activation wall ({}): it may start and then run out",
            super::wall::band(interval)
        ),
        false => String::new(),
    }
}

/// Whether a fraction is the low end of the band of the activation wall, typed.
fn clear_of_the_band(answer: &TargetAnswer) -> bool {
    let interval = &answer.plan.interval;
    answer.fraction <= interval.max_low && interval.max_low < interval.max
}

/// The least fraction that carries a load out of reach with a KV cache in fp8, where one does and
/// nobody asked for a format that is no larger.
fn in_fp8(setup: &Setup<'_>, plan: &Plan, (context, requests): (u64, u64)) -> Option<TargetAnswer> {
    let wider = plan.kv_dtype == kvplan::KvDtype::Bf16;
    if !wider || setup.engine.kind == EngineKind::LlamaCpp {
        return None;
    }
    let mut other = setup.clone();
    other.kv_dtype = Some(kvplan::KvDtype::Fp8);
    let answer = kvplan::for_target(&other, context, requests).ok()?;
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
