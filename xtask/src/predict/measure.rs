//! The measurement worth most where the band of a load holds 1.

use spec_decode::bands::{AcceptSource, Conditions, ResidualModel, Situation, StepSource};
use spec_decode::verdict::{Measurement, doubts, worth};

use super::answer::{Measure, Memory, Point, Verdict};
use super::costs::Costs;
use super::measured::{self, Both};
use super::{launch, points, verdict};
use crate::scenario::{Known, Scenario};
use crate::table::thousands;

/// Shortest requests that a plain sweep is asked to run with, tokens: a prompt, and output enough
/// that most steps run with every request in them.
const SHORTEST_REQUEST: u64 = 256;

/// Doubt of the draft's host time, or of the verify's kernel, ln, from which it is the first thing to measure: a
/// tenth of the cycle.
const TIME_DECIDES: f64 = 0.1;

/// For the lightest load left open among those that the pool holds; where none is, for the lightest at which
/// a faster depth may not pay.
pub(super) fn of_the_open(
    scenario: &Scenario,
    costs: &Costs<'_>,
    points: &[Point],
    memory: &Memory,
) -> Option<Measure> {
    let lightest = points.first()?.concurrency;
    let runs = |p: &&Point| p.concurrency == lightest || p.fits != Some(false);
    let open = |p: &Point| p.verdict == Verdict::MeasureFirst;
    let faster = |p: &Point| p.faster.filter(|_| p.leaves_faster_open());
    let mut held = points.iter().filter(runs);
    let (point, faster) = match held.clone().find(|p| open(p)) {
        Some(point) => (point, None),
        None => held.find_map(|p| Some((p, Some(faster(p)?))))?,
    };
    if let Some(both) = both_measured(scenario, point) {
        return Some(both);
    }
    let load = (point.concurrency, point.context);
    let steps = faster.map_or(point.steps, |faster| faster.steps);
    let (point, conditions) = points::row(scenario, costs, load, None, Some(steps))?;
    let cost = costs.cycle(load.0, load.1, point.steps, point.draft_tokens);
    let decides = |(shorter, _): (f64, f64)| shorter > TIME_DECIDES;
    let how = match decides(cost.host_doubt()) {
        true => Some(
            "run both: what the host needs to launch the draft decides, which neither a plain sweep nor an accept \
             length shows",
        ),
        false => decides(cost.walk_doubt(costs.pin.as_ref())).then_some(
            "run both at this context: what the verify's attention kernel takes decides, which neither a plain \
             sweep nor an accept length shows",
        ),
    };
    let mut measure = match how {
        Some(how) => Measure {
            what: BOTH.to_string(),
            how: how.to_string(),
            concurrency: point.concurrency,
            width_now: Some(point.speedup_high / point.speedup_low),
            width_after: None,
        },
        None => of_the_point(scenario, &point, &conditions, memory),
    };
    let at = verdict::users(point.concurrency);
    if faster.is_some() {
        let steps = verdict::steps(point.steps);
        let how = format!(
            "{} (for the {:.2} with {steps} at {at})",
            measure.how, point.speedup
        );
        measure.how = how;
    } else if point.concurrency != lightest {
        measure.how = format!("{} (for what is open at {at})", measure.how);
    }
    Some(measure)
}

/// Where both speeds of the load are at hand: what is left is to measure them alike, or longer.
fn both_measured(scenario: &Scenario, point: &Point) -> Option<Measure> {
    let both = measured::at(scenario, point.concurrency)?;
    let users = verdict::users(point.concurrency);
    let how = match both {
        Both::Alike(ratio) if point.speedup_measured => format!(
            "measured as {:.2}x at {users}, which is too near to 1 for short runs",
            ratio.ratio
        ),
        Both::Alike(_) => return None,
        Both::Unlike(drafted, plain, why) => format!(
            "{} tok/s with the draft over {} without at {users} is no answer (computed {:.2}x), as {why}; then \
             --baseline PLAIN --accept SPECULATIVE",
            thousands(drafted),
            thousands(plain),
            point.speedup,
        ),
    };
    Some(Measure {
        what: match point.speedup_measured {
            true => "both servers for longer".to_string(),
            false => "both servers with one bench".to_string(),
        },
        how,
        concurrency: point.concurrency,
        width_now: Some(point.speedup_high / point.speedup_low),
        width_after: None,
    })
}

/// How a plain sweep reaches as many users as tokens are verified.
enum Reach {
    /// The pool holds them at the context asked for.
    Held,
    /// With requests no longer than that many tokens; so many users it holds at the context asked
    /// for, tokens.
    Shorter(u64, u64, u64),
    /// No requests worth timing are short enough, or the sweep reaches what the server runs.
    Never,
}

/// Users that a plain sweep is asked to reach: the tokens of a verify, or as many as the server is known
/// to run at once.
fn most_swept(scenario: &Scenario, verified: u64) -> u64 {
    let log = scenario.ran.told_running();
    let log = log.map(|ran| scenario.running_for_loads.unwrap_or(ran).max(ran));
    let runs = scenario.max_running.or(log);
    runs.map_or(verified, |runs| runs.min(verified))
}

fn reach(scenario: &Scenario, memory: &Memory, verified: u64) -> Reach {
    let tokens = most_swept(scenario, verified);
    let swept = scenario.own_loads().into_iter().max();
    if tokens < verified && swept.is_some_and(|swept| u64::from(swept) >= tokens) {
        return Reach::Never;
    }
    let pool = memory.swept_pool;
    let Some(pool) = pool else {
        return Reach::Held;
    };
    let users = u32::try_from(tokens).unwrap_or(u32::MAX);
    if !memory.slots_carry(users) {
        return Reach::Never;
    }
    let ran = scenario.input("baseline_context");
    let ran = ran.and_then(|input| input.value.as_u64());
    let context = ran.unwrap_or(scenario.context).max(1);
    let longest = pool / tokens.max(1);
    match longest {
        longest if longest >= context => Reach::Held,
        // Pools are paged: a round figure of whole pages.
        longest if longest >= SHORTEST_REQUEST => {
            Reach::Shorter(longest / 16 * 16, pool / context, context)
        }
        _ => Reach::Never,
    }
}

/// Whether a verify was observed and no plain step that it can be compared with.
fn only_the_verify_was_seen(scenario: &Scenario) -> bool {
    let seen = &scenario.observed;
    seen.verify_ms.is_some() && seen.plain_tok_s.is_none() && !scenario.has_own_steps()
}

/// Whether it is not known how far the head reaches, and the one taken for it reaches less than the context.
fn reach_is_asked(scenario: &Scenario, context: u64) -> bool {
    let past = scenario.acceptance.past_reach(context);
    // Another's reach moves nothing of a head that was named, and may not be its own.
    let open = !matches!(scenario.acceptance.known, Known::Measured(_));
    scenario.draft.as_ref().is_some_and(|draft| {
        let less = draft.reach().is_some_and(|reach| reach < context);
        less && !draft.reach_known && (past || (open && draft.stands_in))
    })
}

/// What the scenario itself leaves open, and how to settle it.
fn named_by_the_scenario(scenario: &Scenario, point: &Point) -> Option<(String, String)> {
    if only_the_verify_was_seen(scenario) {
        return Some((
            "plain tokens a second with one user, speculation off".to_string(),
            "the verify time is known, the plain step it must be compared with is not; one \
             minute, one request"
                .to_string(),
        ));
    }
    let past = scenario.acceptance.past_reach(point.context);
    if reach_is_asked(scenario, point.context) {
        return Some((
            "how far your head reaches (max_position_embeddings in its config.json)".to_string(),
            format!(
                "it is not known here, and the head taken for it reaches less than {} tokens: --draft with \
                 that file answers for yours, and where it reaches as far, so does --accept LENGTH@{}",
                thousands(f64::from(u32::try_from(point.context).unwrap_or(u32::MAX))),
                point.steps
            ),
        ));
    }
    if past {
        return Some((
            format!("the accept length at {} tokens of context", point.context),
            format!(
                "the head's config reaches less, and whether it falls there decides; a few minutes of \
                 your own requests with the pasted flags, then --accept LENGTH@{}",
                point.steps
            ),
        ));
    }
    // A measured pair is narrower than anything computed.
    let pair = runs_both(scenario) && measured::at(scenario, point.concurrency).is_none();
    pair.then(|| {
        let how = "run both, as at the loads that were measured";
        (BOTH.to_string(), how.to_string())
    })
}

fn of_the_point(
    scenario: &Scenario,
    point: &Point,
    conditions: &Conditions,
    memory: &Memory,
) -> Measure {
    let measure = |what: String, how: &str| Measure {
        what,
        how: how.to_string(),
        concurrency: point.concurrency,
        width_now: Some(point.speedup_high / point.speedup_low),
        width_after: None,
    };
    if let Some((what, how)) = named_by_the_scenario(scenario, point) {
        return measure(what, &how);
    }
    let model = ResidualModel::shipped();
    let log_sd = |situation: Situation, beyond: bool| {
        let at = informed(conditions, situation, beyond);
        model.band(1.0, f64::MAX, &at).log_sd
    };
    let beyond = conditions.situation.step == StepSource::Sweep && conditions.beyond > 0.0;
    // Beyond its last point the steps are the model's.
    let tokens = u64::from(point.concurrency) * u64::from(point.draft_tokens);
    let reach = reach(scenario, memory, tokens);
    let mut found = doubts(conditions.situation, beyond, log_sd);
    found.retain(|doubt| !is_sweep(doubt.measurement) || !matches!(reach, Reach::Never));
    let best = worth(point.speedup.ln(), &found);
    let Some(value) = best.first() else {
        return measure(
            BOTH.to_string(),
            match reach {
                Reach::Never => {
                    "run both; no sweep that the server holds reaches the tokens of a verify"
                }
                _ => "run both",
            },
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
    let short = is_sweep(value.measurement) && most_swept(scenario, tokens) < tokens;
    let reaches = value.measurement != Measurement::Both && !short;
    let mut how = "it narrows the band most for its effort".to_string();
    if is_sweep(value.measurement) {
        how.push_str(&match short {
            true => format!(
                ", to the {} users that the server runs",
                most_swept(scenario, tokens)
            ),
            false => format!(", where it reaches {tokens} users, the tokens of a verify"),
        });
        how.push_str(&flag_of_sweep(scenario, tokens));
        how.push_str(&shorter(scenario, &reach));
    }
    Measure {
        width_after: reaches.then_some(after.high / after.low),
        ..measure(what(scenario, value.measurement, point.context), &how)
    }
}

/// What is measured, and where that decides.
fn what(scenario: &Scenario, measurement: Measurement, context: u64) -> String {
    match measurement {
        Measurement::AcceptLength if scenario.acceptance.may_be_trained_short(context) => {
            format!("the accept length at {context} tokens of context (--accept)")
        }
        other => other.to_string(),
    }
}

const BOTH: &str = "plain and speculative speed at this load";

/// Whether both servers were run at some load.
fn runs_both(scenario: &Scenario) -> bool {
    let runs = scenario.drafted();
    runs.iter().any(|run| measured::is_alike(scenario, run))
}

fn is_sweep(measurement: Measurement) -> bool {
    matches!(
        measurement,
        Measurement::PlainSweep | Measurement::LongerSweep
    )
}

/// The flag without which the server runs fewer at once.
fn flag_of_sweep(scenario: &Scenario, verified: u64) -> String {
    let flag = launch::flag_of_sweep(scenario, most_swept(scenario, verified));
    flag.map_or_else(String::new, |flag| format!(" ({flag})"))
}

fn shorter(scenario: &Scenario, reach: &Reach) -> String {
    let Reach::Shorter(longest, held, context) = reach else {
        return String::new();
    };
    // Files that say their lengths take no flag.
    let by_flag = scenario.sweep_context.is_none() || scenario.input("baseline_context").is_some();
    let told = if by_flag { " (--baseline-context)" } else { "" };
    format!(
        "; the pool holds {held} of {} tokens, so run it with requests of at most {}{told}",
        thousands(*context as f64),
        thousands(*longest as f64)
    )
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
