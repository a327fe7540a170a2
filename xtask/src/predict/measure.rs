//! The measurement worth most where the band of a load holds 1.

use spec_decode::bands::{AcceptSource, Conditions, ResidualModel, Situation, StepSource};
use spec_decode::verdict::{Measurement, doubts, worth};

use super::answer::{Measure, Point, Verdict};
use super::costs::Costs;
use super::{points, verdict};
use crate::scenario::Scenario;

/// For the lightest load left open, at its best depth or at the pasted one, among those that the
/// pool holds.
pub(super) fn of_the_open(
    scenario: &Scenario,
    costs: &Costs<'_>,
    points: &[Point],
) -> Option<Measure> {
    let open = |p: &Point| {
        let verdicts = [p.verdict, p.pasted_verdict()];
        verdicts.contains(&Verdict::MeasureFirst)
    };
    let lightest = points.first()?.concurrency;
    let runs = |p: &&Point| p.concurrency == lightest || p.fits != Some(false);
    let point = points.iter().filter(runs).find(|p| open(p))?;
    let (_, conditions) = points::row(scenario, costs, point.concurrency, point.context, None)?;
    let mut measure = of_the_point(scenario, point, &conditions);
    if point.concurrency != lightest {
        let at = verdict::users(point.concurrency);
        measure.how = format!("{} (for what is open, from {at} on)", measure.how);
    }
    Some(measure)
}

/// Whether a verify was observed and no plain step that it can be compared with.
fn only_the_verify_was_seen(scenario: &Scenario) -> bool {
    let seen = &scenario.observed;
    seen.verify_ms.is_some() && seen.plain_tok_s.is_none() && !scenario.has_own_steps()
}

fn of_the_point(scenario: &Scenario, point: &Point, conditions: &Conditions) -> Measure {
    let measure = |what: String, how: &str| Measure {
        what,
        how: how.to_string(),
        concurrency: point.concurrency,
        width_now: Some(point.speedup_high / point.speedup_low),
        width_after: None,
    };
    if only_the_verify_was_seen(scenario) {
        return measure(
            "plain tokens a second with one user, speculation off".to_string(),
            "the verify time is known, the plain step it must be compared with is not; one \
             minute, one request",
        );
    }
    if scenario.acceptance.past_reach(point.context) {
        return measure(
            format!("the accept length at {} tokens of context", point.context),
            "the head's config reaches less, and whether it falls there decides; a minute of your \
             own requests at 3 steps",
        );
    }
    let model = ResidualModel::shipped();
    let log_sd = |situation: Situation, beyond: bool| {
        let at = informed(conditions, situation, beyond);
        model.band(1.0, f64::MAX, &at).log_sd
    };
    let beyond = conditions.situation.step == StepSource::Sweep && conditions.beyond > 0.0;
    let found = doubts(conditions.situation, beyond, log_sd);
    let best = worth(point.speedup.ln(), &found);
    let Some(value) = best.first() else {
        return measure(
            "plain and speculative speed at this load".to_string(),
            "run both",
        );
    };
    let Situation { step, accept } = conditions.situation;
    let (then, beyond) = match value.measurement {
        Measurement::AcceptLength => (Situation::new(step, AcceptSource::Measured), beyond),
        Measurement::LongerSweep | Measurement::PlainSweep => {
            (Situation::new(StepSource::Sweep, accept), false)
        }
        Measurement::Both => (conditions.situation, beyond),
    };
    let at = informed(conditions, then, beyond);
    let most = points::most(point.accept_length, point.draft_tokens, &at);
    let after = model.band(point.speedup, most, &at);
    let mut how = "it narrows the band most for its effort".to_string();
    let sweeps = [Measurement::PlainSweep, Measurement::LongerSweep];
    if sweeps.contains(&value.measurement) {
        // Beyond its last point the steps are the model's.
        let tokens = u64::from(point.concurrency) * u64::from(point.draft_tokens);
        how.push_str(&format!(
            ", where it reaches {tokens} users, the tokens of a verify"
        ));
    }
    Measure {
        width_after: (value.measurement != Measurement::Both).then_some(after.high / after.low),
        ..measure(value.measurement.to_string(), &how)
    }
}

/// What a prediction rests on once a situation is reached, with what it knows already kept.
fn informed(conditions: &Conditions, situation: Situation, beyond: bool) -> Conditions {
    let known = situation.accept == AcceptSource::Measured;
    let learns = known && conditions.situation.accept == AcceptSource::Prior;
    Conditions {
        situation,
        beyond: if beyond { conditions.beyond } else { 0.0 },
        accept_down: if learns { 0.0 } else { conditions.accept_down },
        accept_up: if learns { 0.0 } else { conditions.accept_up },
        ..*conditions
    }
}
