//! What would flip the answer: each input alone, everything else as it is.

use serde_json::json;

use super::answer::{Flip, Memory, Point};
use super::costs::{Costs, all_reduces};
use super::links::{Choice, Links};
use super::map::CONTEXTS;
use super::other_kernel;
use super::points::{best, try_depths};
use crate::scenario::{Draft, Known, Scenario};
use crate::table::thousands;

/// Inputs that turn gain into loss or loss into gain.
pub(super) fn flips(
    scenario: &Scenario,
    costs: &Costs<'_>,
    links: &Links<'_>,
    memory: &Memory,
    points: &[Point],
) -> anyhow::Result<Vec<Flip>> {
    let Some(first) = points.first().filter(|_| scenario.draft.is_some()) else {
        return Ok(Vec::new());
    };
    let mut found = vec![accept_length(scenario, first)];
    found.extend(load(points));
    found.extend(context(scenario, costs, memory, first));
    found.extend(algorithms(scenario, costs, links, first));
    found.extend(kernels(scenario, costs, links, first)?);
    Ok(found)
}

fn accept_length(scenario: &Scenario, first: &Point) -> Flip {
    let from = super::verdict::accept_length(scenario, first);
    let to = first.break_even_accept_length;
    let now = format!(
        "({from:.2} now, {}, {})",
        steps(first.steps),
        super::verdict::users(first.concurrency)
    );
    let most = f64::from(first.steps) + 1.0;
    let note = match (from >= to, to > most) {
        (true, _) => format!("accept length under {to:.2} {now}"),
        (false, false) => format!("accept length over {to:.2} {now}"),
        (false, true) => {
            format!(
                "no accept length: it would take {to:.2}, and at most {most:.2} is accepted {now}"
            )
        }
    };
    Flip {
        input: "accept_length".to_string(),
        from: json!(round(from)),
        to: json!(round(to)),
        note,
    }
}

/// A load at which it turns.
fn load(points: &[Point]) -> Option<Flip> {
    let first = points.first()?;
    let pays = first.gains();
    let turning = points.iter().find(|p| p.gains() != pays)?;
    let back = points
        .iter()
        .filter(|p| p.concurrency > turning.concurrency && p.fits != Some(false))
        .find(|p| p.gains() == pays || pays && p.speedup > 1.0);
    let load = turning.concurrency;
    let note = match back {
        None => format!("{load} users or more: {}", as_run(turning)),
        // Said, not pasted: one step in the sweep does not switch it on again.
        Some(p) => format!(
            "{load} users: {} (at {} again {})",
            as_run(turning),
            p.concurrency,
            as_run(p)
        ),
    };
    Some(Flip {
        input: "concurrency".to_string(),
        from: json!(first.concurrency),
        to: json!(turning.concurrency),
        note,
    })
}

/// A load's speedup, and whether it is run at all there.
fn as_run(point: &Point) -> String {
    let off = match point.off_in_paste {
        true => " at best, off in the paste",
        false => "",
    };
    format!("{:.2}x with {}{off}", point.speedup, steps(point.steps))
}

fn steps(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} step{plural}")
}

/// The longest context that the server takes, and that what is known of the acceptance speaks of: a
/// measured accept length stands still where the head's fell beyond its reach.
fn longest(scenario: &Scenario) -> u64 {
    let told = scenario.max_model_len.or(scenario.ran.context_limit);
    let reach = scenario.draft.as_ref().and_then(Draft::reach);
    [
        scenario.model.max_positions,
        told,
        reach.filter(|_| measured(scenario)),
    ]
    .into_iter()
    .flatten()
    .min()
    .unwrap_or(u64::MAX)
}

/// Whether the accept length is one of a context, which says nothing of longer ones.
fn measured(scenario: &Scenario) -> bool {
    !matches!(scenario.acceptance.known, Known::Prior(_))
}

/// The context nearest to the scenario's at which the lightest load turns, with the depth that it is run with:
/// a longer one, or a shorter one where it does not gain. A sweep's steps are moved there as they are to a context
/// asked for.
fn context(scenario: &Scenario, costs: &Costs<'_>, memory: &Memory, first: &Point) -> Option<Flip> {
    let (run, own) = (first.steps, scenario.context);
    let pays = first.gains();
    let users = first.concurrency;
    let speedup = |context: u64| {
        let tried = try_depths(scenario, costs, users, context);
        let same = tried.iter().find(|t| t.depth.steps == run);
        same.map(|t| t.speedup)
    };
    let turned = |context: &u64| speedup(*context).is_some_and(|there| (there > 1.0) != pays);
    let longest = longest(scenario);
    let drafts = |context: &u64| {
        *context <= longest
            && super::short_head::drafts_at(scenario, *context)
            && memory.holds(users, *context) != Some(false)
    };
    // A gain at a longer context that rests on an accept length measured at this one is none.
    let far = CONTEXTS
        .into_iter()
        .filter(|c| *c > own && (pays || !measured(scenario)));
    let near = CONTEXTS.into_iter().rev().filter(|c| *c < own && !pays);
    let seen = |context: &u64| drafts(context) && turned(context);
    let listed = far.clone().find(seen).or_else(|| near.clone().find(seen))?;
    // Between the last that has not turned and the first that has.
    let before = |contexts: &mut dyn Iterator<Item = u64>| {
        let kept = contexts.take_while(|c| *c != listed).filter(drafts);
        kept.last().unwrap_or(own)
    };
    let mut kept = match listed > own {
        true => before(&mut far.clone()),
        false => before(&mut near.clone()),
    };
    let mut there = listed;
    while kept.abs_diff(there) > there.max(kept) / 100 {
        let middle = kept.midpoint(there);
        match turned(&middle) {
            true => there = middle,
            false => kept = middle,
        }
    }
    let at = rounded(kept.midpoint(there));
    Some(Flip {
        input: "context".to_string(),
        from: json!(own),
        to: json!(at),
        note: format!(
            "context {} about {} tokens, with {}: {:.2}x at {}{}{}",
            if listed > own { "over" } else { "under" },
            thousands(at as f64),
            steps(run),
            speedup(listed)?,
            thousands(listed as f64),
            other_depth(scenario, costs, (users, listed), pays),
            doubt_of(scenario, listed),
        ),
    })
}

/// Two digits say what a middle knows, and half a step of the second where the first is small.
fn rounded(tokens: u64) -> u64 {
    let digit = 10_u64.pow(tokens.max(1).ilog10().saturating_sub(1));
    let unit = match tokens / digit {
        first if first < 30 => (digit / 2).max(1),
        _ => digit,
    };
    (tokens + unit / 2) / unit * unit
}

/// The depth that gains at a context where the one that runs does not.
fn other_depth(
    scenario: &Scenario,
    costs: &Costs<'_>,
    (users, context): (u32, u64),
    pays: bool,
) -> String {
    let tried = try_depths(scenario, costs, users, context);
    let other = best(&tried).filter(|best| pays && best.speedup > 1.0);
    other.map_or_else(String::new, |best| {
        format!(" ({:.2}x with {})", best.speedup, steps(best.depth.steps))
    })
}

/// What is open of the acceptance at another context.
fn doubt_of(scenario: &Scenario, context: u64) -> String {
    let reach = scenario.draft.as_ref().and_then(Draft::reach);
    match reach.filter(|reach| *reach < context) {
        Some(reach) => format!(", beyond the head's {}", thousands(reach as f64)),
        None if measured(scenario) => ", if as much is accepted there".to_string(),
        None => String::new(),
    }
}

/// Forcing another all-reduce, told where it changes the tokens a second by more than 5 %.
fn algorithms(
    scenario: &Scenario,
    costs: &Costs<'_>,
    links: &Links<'_>,
    first: &Point,
) -> Vec<Flip> {
    if scenario.tp < 2 || costs.has_sweep() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for algorithm in [
        pcie_sim::Algorithm::Nccl,
        pcie_sim::Algorithm::OneShot,
        pcie_sim::Algorithm::TwoShot,
    ] {
        let Some(spec_tok_s) =
            speculative_tok_s(scenario, costs, links, Choice::One(algorithm), first)
        else {
            continue;
        };
        let ratio = spec_tok_s / first.spec_tok_s;
        let against_plain = spec_tok_s / first.baseline_tok_s;
        let flips = (against_plain > 1.0) != (first.speedup > 1.0);
        if flips && (ratio - 1.0).abs() > 0.05 {
            found.push(Flip {
                input: "allreduce".to_string(),
                from: json!(scenario.allreduce),
                to: json!(algorithm.name()),
                note: format!(
                    "forcing the {} all-reduce: {:.0} tok/s, {ratio:.2}x of {}",
                    algorithm.name(),
                    spec_tok_s,
                    scenario.allreduce
                ),
            });
        }
    }
    found
}

/// Attention kernels that split the cache, where the verify's own does not and that decides.
fn kernels(
    scenario: &Scenario,
    costs: &Costs<'_>,
    links: &Links<'_>,
    first: &Point,
) -> anyhow::Result<Vec<Flip>> {
    let mut found = Vec::new();
    for other in other_kernel::all(scenario) {
        let other_links = Links::new(&other.scenario)?;
        let choice = Choice::parse(&scenario.allreduce)?;
        let all_reduce = all_reduces(&other.scenario, &other_links, choice);
        let split = other_kernel::costs(&other.scenario, (&all_reduce, links), costs)?;
        let Some((run, speedup)) = other_kernel::drafted(&other, &split, first) else {
            continue;
        };
        if !first.gains() {
            found.push(Flip {
                input: other.input.to_string(),
                from: json!(other.instead_of),
                to: json!(other.value),
                note: format!("{}: {speedup:.2}x with {}", other.change, steps(run)),
            });
        }
    }
    Ok(found)
}

/// Speculative tokens a second at the first point's load with another all-reduce.
pub(super) fn speculative_tok_s(
    scenario: &Scenario,
    costs: &Costs<'_>,
    links: &Links<'_>,
    choice: Choice,
    first: &Point,
) -> Option<f64> {
    links
        .time(choice, super::payload_bytes(scenario, 1, 1))
        .ok()?;
    let all_reduce = all_reduces(scenario, links, choice);
    let mut other = Costs::new(scenario, &all_reduce, links).ok()?;
    other.pin = costs.pin;
    other.measured.clone_from(&costs.measured);
    let tried = try_depths(scenario, &other, first.concurrency, first.context);
    let run = tried.iter().find(|t| t.depth.steps == first.steps);
    let best = run.or_else(|| best(&tried))?;
    Some(f64::from(first.concurrency) * 1000.0 / best.cost.plain_ms * best.speedup)
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
