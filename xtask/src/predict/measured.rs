//! Speedups that were measured: a speed with the draft over a plain one of the same load. They answer
//! for their own load and depth, and scale the cycles of others by measured over computed.

use super::answer::{Assumption, Input};
use super::assumed::users_of;
use super::costs::{Costs, all_reduces};
use super::links::{Choice, Links};
use super::points::{Depth, accept_length};
use crate::explain::speeds::{By, LoadSpeed, same_context};
use crate::scenario::Scenario;
use crate::scenario::drafted::Drafted;
use crate::table::thousands;

/// ln half-width of the 90 % band of a measured speedup: how far another reading lies from it. Source:
/// eight public sweeps of RTX PRO 6000 boxes (248 triples of neighbouring contexts at one load, 30
/// seconds a reading): nine in ten readings are within 0.072 of what the others say of them, and two such
/// differ by the root of 2 more.
const REPEATED_90: f64 = 0.10;

/// How far a speedup may be above the accept length, ln: as readings of that scatter.
const ABOVE_ACCEPT: f64 = spec_decode::bands::READING_HALF_WIDTH;

/// A measured speedup.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ratio {
    pub(super) users: u32,
    pub(super) ratio: f64,
    /// What ran, whatever is asked for.
    shape: Depth,
    topk: u32,
    /// Tokens that a request held, where told.
    held: Option<f64>,
    file: String,
    /// Times per output token with the draft and without, ms, where these were set against each other.
    pub(super) tpot_ms: Option<(f64, f64)>,
}

/// Both speeds of a load.
pub(super) enum Both {
    /// Measured alike.
    Alike(Ratio),
    /// Tokens a second with the draft and without, and what they differ by.
    Unlike(f64, f64, String),
}

/// What was measured of a load with this run's draft and without.
pub(super) fn both(scenario: &Scenario, run: &Drafted, speed: &LoadSpeed) -> Option<Both> {
    let users = whole(speed.running)?;
    let of_load = |at: f64| at == speed.running;
    let mut swept = scenario.baseline.iter().flatten();
    let (_, plain_tok_s) = *swept.find(|(at, _)| of_load(*at))?;
    let unlike = |why: String| Some(Both::Unlike(speed.tok_s, plain_tok_s, why));
    let plain = scenario.swept.iter().filter(|plain| of_load(plain.running));
    let alike = plain.map(|plain| Ok((speed.over(plain)?, plain)));
    // Of several contexts the one that is alike.
    let found: Option<Result<_, String>> = alike.reduce(|a, b| a.or(b));
    let (ratio, plain) = match found {
        Some(Ok(found)) => found,
        Some(Err(why)) => return unlike(why),
        None => {
            return unlike("the sweep's file does not say how its speeds were taken".to_string());
        }
    };
    if scenario.input("accept_forced").is_some() {
        return unlike("what is accepted was forced in that server".to_string());
    }
    if run.in_log && scenario.ran.eager.is_some() {
        return unlike("that server captured no CUDA graphs".to_string());
    }
    if scenario.swept_kv_dtype != scenario.kv_dtype {
        return unlike("the plain sweep is of another KV format".to_string());
    }
    let own = run.of(scenario);
    let steps = own.steps?;
    let ratio = Ratio {
        users,
        ratio,
        shape: Depth {
            steps,
            tokens: own.draft_tokens.unwrap_or(steps.saturating_add(1)),
        },
        topk: own.topk.unwrap_or(1),
        held: speed.held_tokens,
        file: run.file.clone(),
        tpot_ms: speed.tpot_ms().zip(plain.tpot_ms()),
    };
    let most = accept_at(scenario, &ratio).1 * ABOVE_ACCEPT.exp();
    if ratio.ratio > most {
        return unlike(format!(
            "a pass gives {most:.2} tokens at most, so that the two did not run alike"
        ));
    }
    Some(Both::Alike(ratio))
}

/// The same at a load, of whichever run shows it; one that was measured alike first.
pub(super) fn at(scenario: &Scenario, users: u32) -> Option<Both> {
    let runs = scenario.drafted();
    let of_load = runs.iter().flat_map(|run| {
        let speeds = run.speeds.iter();
        let speeds = speeds.filter(|speed| speed.running == f64::from(users));
        speeds.filter_map(|speed| both(scenario, run, speed))
    });
    let mut first = None;
    for found in of_load {
        if matches!(found, Both::Alike(_)) {
            return Some(found);
        }
        first = first.or(Some(found));
    }
    first
}

/// Loads whose two speeds are both at hand and not set against each other, by run and why.
pub(super) fn not_set(scenario: &Scenario) -> Vec<Assumption> {
    let mut found: Vec<(String, String, String, Vec<u32>)> = Vec::new();
    for run in scenario.drafted() {
        for speed in &run.speeds {
            let Some(Both::Unlike(_, _, why)) = both(scenario, &run, speed) else {
                continue;
            };
            // Of another run the ratio may be at hand.
            let users = whole(speed.running).filter(|users| {
                let told = at(scenario, *users);
                matches!(told, Some(Both::Unlike(..)))
            });
            let Some(users) = users else {
                continue;
            };
            let same = |known: &&mut (String, String, String, Vec<u32>)| {
                known.0 == run.file && known.1 == why
            };
            match found.iter_mut().find(same) {
                Some(known) => known.3.push(users),
                None => {
                    let settled_by = plain_like(scenario, speed).unwrap_or_default();
                    let file = run.file.clone();
                    found.push((file, why, settled_by.to_string(), vec![users]));
                }
            }
        }
    }
    let told = found
        .into_iter()
        .map(|(file, why, settled_by, loads)| Assumption {
            what: format!(
                "{file}: its speeds at {} are not set against your plain sweep: {why}",
                users_of(&loads)
            ),
            settled_by,
        });
    told.collect()
}

/// What sets the two speeds of a load against each other, where both are at hand and were taken otherwise.
pub(super) fn what_sets(scenario: &Scenario, users: u32) -> Option<&'static str> {
    let runs = scenario.drafted();
    let mut speeds = runs.iter().flat_map(|run| &run.speeds);
    let of_load = speeds.find(|speed| speed.running == f64::from(users));
    let speed = of_load.filter(|_| at(scenario, users).is_some())?;
    plain_like(scenario, speed)
}

/// A plain speed taken as this one was, where the sweep has none.
fn plain_like(scenario: &Scenario, speed: &LoadSpeed) -> Option<&'static str> {
    let mut plain = scenario.swept.iter();
    let taken_alike =
        |plain: &LoadSpeed| plain.running == speed.running && speed.over(plain).is_ok();
    match (plain.any(taken_alike), speed.by) {
        (true, _) => None,
        (false, By::Lines) => {
            Some("--baseline PLAIN.log, the plain server's own log of the same requests,")
        }
        (false, _) => Some("--baseline with the same bench of the plain server"),
    }
}

/// The context at which a speed is taken whose lines do not say it, tokens, where it stands over a plain one.
pub(super) fn context_taken(scenario: &Scenario, run: &Drafted, speed: &LoadSpeed) -> Option<u64> {
    match both(scenario, run, speed)? {
        Both::Alike(ratio) => Some(accept_at(scenario, &ratio).0),
        Both::Unlike(..) => None,
    }
}

/// Fixes the depth that was measured, where nothing else does: the answer is of what ran.
pub(super) fn fix_depth(scenario: &mut Scenario) {
    let free = scenario.steps.is_none() && scenario.draft_tokens.is_none();
    if !free || scenario.topk.is_some_and(|topk| topk > 1) {
        return;
    }
    let runs = scenario.drafted();
    let found = runs.iter().find(|run| is_alike(scenario, run));
    let chain = found.filter(|run| run.topk.unwrap_or(1) <= 1);
    let Some((steps, file)) = chain.and_then(|run| Some((run.steps?, run.file.clone()))) else {
        return;
    };
    scenario.steps = Some(steps);
    scenario.inputs.push(Input {
        name: "steps",
        value: steps.into(),
        source: format!("the measurement in {file}"),
    });
}

/// Whether a load of this run was measured alike without the draft.
pub(super) fn is_alike(scenario: &Scenario, run: &Drafted) -> bool {
    let alike = |speed| matches!(both(scenario, run, speed), Some(Both::Alike(_)));
    run.speeds.iter().any(alike)
}

/// A load as whole users.
pub(super) fn whole(running: f64) -> Option<u32> {
    let whole = (1.0..=65_536.0).contains(&running) && running.fract() == 0.0;
    whole.then_some(running as u32)
}

/// The context of a ratio, tokens, and the accept length there of the shape that ran.
fn accept_at(scenario: &Scenario, ratio: &Ratio) -> (u64, f64) {
    let own = scenario.context as f64;
    let told = ratio.held.or(scenario.sweep_context);
    // What counts as the context of the answer is taken to be of it.
    let other = told.filter(|tokens| !same_context(*tokens, own));
    let context = other.map_or(scenario.context, |tokens| tokens.clamp(0.0, 1e9) as u64);
    (
        context,
        accept_length(scenario, (ratio.shape, ratio.topk), context),
    )
}

/// Measured speedups by rising load, and how they scale what is computed.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Each with the logarithm of measured over computed.
    ratios: Vec<(Ratio, f64)>,
    /// The context of the answer, tokens, and its tree width.
    context: u64,
    topk: u32,
}

impl Measured {
    /// Of a scenario whose sweep ran on these links; nothing where no load was measured both ways.
    pub(super) fn of(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Option<Self>> {
        let runs = scenario.drafted();
        let mut ratios: Vec<Ratio> = Vec::new();
        for (run, speed) in runs
            .iter()
            .flat_map(|run| run.speeds.iter().map(move |s| (run, s)))
        {
            if let Some(Both::Alike(ratio)) = both(scenario, run, speed)
                && ratios.iter().all(|known| known.users != ratio.users)
            {
                ratios.push(ratio);
            }
        }
        if ratios.is_empty() {
            return Ok(None);
        }
        ratios.sort_by_key(|ratio| ratio.users);
        // As it was measured, whatever all-reduce is asked for.
        let all_reduce = all_reduces(scenario, links, Choice::parse(&scenario.swept_allreduce)?);
        let costs = Costs::new(scenario, &all_reduce, links)?;
        let scaled = ratios.into_iter().filter_map(|ratio| {
            let (context, accept) = accept_at(scenario, &ratio);
            let shape = ratio.shape;
            let cost = costs.cycle(ratio.users, context, shape.steps, shape.tokens);
            let factor = (ratio.ratio / cost.speedup(accept)).ln();
            factor.is_finite().then_some((ratio, factor))
        });
        Ok(Some(Self {
            ratios: scaled.collect(),
            context: scenario.context,
            topk: scenario.topk.unwrap_or(1),
        }))
    }

    /// Measured over computed at a load: between two that were measured by ln of the load, outside the
    /// nearest one's.
    pub(super) fn factor(&self, users: f64) -> f64 {
        let load = |at: &(Ratio, f64)| f64::from(at.0.users);
        let below = self.ratios.iter().rev().find(|at| load(at) <= users);
        let above = self.ratios.iter().find(|at| load(at) >= users);
        let (Some(low), Some(high)) = (below.or(above), above.or(below)) else {
            return 1.0;
        };
        let apart = (load(high) / load(low)).ln();
        let share = match apart > 0.0 {
            true => (users / load(low)).ln() / apart,
            false => 0.0,
        };
        (low.1 + share * (high.1 - low.1)).exp()
    }

    /// The ln half-width of the band of what was measured at this very load, context and shape.
    pub(super) fn half_width(&self, (users, context): (u32, u64), depth: Depth) -> Option<f64> {
        let mut ratios = self.ratios.iter().map(|(ratio, _)| ratio);
        let same = |ratio: &&Ratio| {
            let held = ratio.held.unwrap_or(self.context as f64);
            ratio.users == users
                && (ratio.shape, ratio.topk) == (depth, self.topk)
                && same_context(held, context as f64)
        };
        ratios.find(same).map(|_| REPEATED_90)
    }

    /// What the requests held in these runs, and which of them held too much or little to be the answer's
    /// own rows.
    fn held(&self) -> String {
        let known = |(ratio, _): &(Ratio, f64)| Some((ratio.users, ratio.held?));
        let held: Vec<(u32, f64)> = self.ratios.iter().filter_map(known).collect();
        let tokens = || held.iter().map(|(_, tokens)| *tokens);
        let low = thousands(tokens().fold(f64::MAX, f64::min));
        let high = thousands(tokens().fold(0.0, f64::max));
        let context = self.context as f64;
        let other = |at: &&(u32, f64)| !same_context(at.1, context);
        let other: Vec<String> = held
            .iter()
            .filter(other)
            .map(|at| at.0.to_string())
            .collect();
        let computed = match other.is_empty() {
            true => String::new(),
            false => format!(
                ", at {} over a quarter off the {} asked: such rows are computed from it",
                other.join(", "),
                thousands(context)
            ),
        };
        match held.is_empty() {
            true => String::new(),
            false if low == high => format!(" of about {high} tokens{computed}"),
            false => format!(" of {low} to {high} tokens{computed}"),
        }
    }

    /// What rests on it, in one line.
    pub(super) fn told(&self) -> Option<Assumption> {
        let (first, _) = self.ratios.first()?;
        let ratios = || self.ratios.iter().map(|(ratio, _)| ratio);
        let loads: Vec<String> = ratios().map(|ratio| ratio.users.to_string()).collect();
        let mut files: Vec<&str> = ratios().map(|ratio| ratio.file.as_str()).collect();
        files.dedup();
        let factors = self.ratios.iter().map(|(_, factor)| factor.exp());
        let low = factors.clone().fold(f64::MAX, f64::min);
        let high = factors.fold(f64::MIN, f64::max);
        let times = match format!("{low:.2}") == format!("{high:.2}") {
            true => format!("{low:.2}"),
            false => format!("{low:.2} to {high:.2}"),
        };
        let s = match loads.as_slice() {
            [one] if one == "1" => "",
            _ => "s",
        };
        let held = self.held();
        Some(Assumption {
            what: format!(
                "measured: the speedup with {} at {} user{s}{held} ({} over your plain sweep; nine in ten repeated \
                 readings are within {:.0} %); all else is computed, times measured over computed ({times})",
                super::verdict::steps(first.shape.steps),
                loads.join(", "),
                files.join(", "),
                100.0 * REPEATED_90,
            ),
            settled_by: String::new(),
        })
    }
}

#[cfg(test)]
mod tests;
