//! What the answer says of a verify whose kernel takes longer over the cache than a plain step's.

use super::answer::{Assumption, Point};
use super::costs::Costs;
use super::{other_kernel, verdict};
use crate::gpus::Family;
use crate::scenario::Scenario;
use crate::step_time::walk::Walk;
use crate::table::thousands;

/// Of a row that it makes so much longer it is told.
const TOLD_SHARE: f64 = 0.03;
/// From so many tokens of context on it is told that what a kernel does on such a card is not measured.
const LONG_CONTEXT: u64 = 4096;
const SETTLED_BY: &str = "a run with the draft at this context";

/// The kernel, what it adds at the lightest load and what would run another.
pub(super) fn told(scenario: &Scenario, costs: &Costs<'_>, points: &[Point]) -> Option<Assumption> {
    let drafts = |point: &&Point| point.steps > 0 && !point.off_in_paste;
    let Some(kernel) = scenario.walk_told() else {
        return points
            .iter()
            .find(drafts)
            .and_then(|point| by_xqa(scenario, point));
    };
    let mut rows = points.iter().filter(drafts).map(|point| {
        let cost = costs.cycle(
            point.concurrency,
            point.context,
            point.steps,
            point.draft_tokens,
        );
        (point, cost)
    });
    let Some((point, cost)) = rows.find(|(_, cost)| cost.walk.ms > TOLD_SHARE * cost.cycle_ms())
    else {
        return points
            .iter()
            .find(drafts)
            .and_then(|point| hidden(scenario, point));
    };
    let (low, high) = scenario.walk_band();
    let does = does(scenario.walk()?, cost.walk.ms);
    Some(Assumption {
        what: format!(
            "{kernel} {does}, of the cycle of {:.1} at {} and {} tokens, growing with the context ({low} to {high} of \
             that in the band; docs/HARDWARE.md), without which it would be {:.2}x there; {}",
            cost.cycle_ms(),
            verdict::users(point.concurrency),
            thousands(point.context as f64),
            point.speedup * cost.cycle_ms() / (cost.cycle_ms() - cost.walk.ms),
            others(scenario),
        ),
        settled_by: SETTLED_BY.to_string(),
    })
}

fn does(walk: Walk, more_ms: f64) -> String {
    match walk {
        Walk::FlashInfer(tiles) => {
            let masks = if tiles.masked { ", and masks each" } else { "" };
            format!(
                "multiplies whole tiles of query rows, most of them empty{masks}: {more_ms:.1} ms beyond the reading of the cache"
            )
        }
        _ => format!(
            "does not split a verify over the cache as it splits a plain step: {more_ms:.1} ms"
        ),
    }
}

fn others(scenario: &Scenario) -> String {
    let all = other_kernel::all(scenario).into_iter();
    let changes: Vec<String> = all.map(|other| other.change).collect();
    match (changes.is_empty(), scenario.walk()) {
        (true, Some(Walk::FlashInfer(_))) => {
            "no kernel of the engine is known to do it faster here".to_string()
        }
        (true, _) => "no other kernel of the engine is known to split it here".to_string(),
        (false, Some(Walk::FlashInfer(_))) => {
            format!("{} does it faster", changes.join(" or "))
        }
        (false, _) => format!("by {} it would be split", changes.join(" or ")),
    }
}

/// Of tiles that hide behind the reading of the cache, on a card that they were not measured on.
fn hidden(scenario: &Scenario, point: &Point) -> Option<Assumption> {
    let tiles = matches!(scenario.walk(), Some(Walk::FlashInfer(_)));
    let open = scenario.gpu.family != Family::Hopper && point.context >= LONG_CONTEXT;
    (tiles && open).then(|| Assumption {
        what: "the verify's attention, by FlashInfer: taken as measured alone on an H200, scaled by this card's data sheet; it then \
               hides behind the reading of the cache (docs/HARDWARE.md)"
            .to_string(),
        settled_by: SETTLED_BY.to_string(),
    })
}

/// Of the kernel that vLLM has for RTX Blackwell, measured on Hopper alone.
fn by_xqa(scenario: &Scenario, point: &Point) -> Option<Assumption> {
    let told = scenario.verifies_by_xqa() && point.context >= LONG_CONTEXT;
    told.then(|| Assumption {
        what: "the verify's attention, by XQA: taken to read the cache once, as a plain step does; on an H200 4 tokens took 2 to 10 % \
               longer with a bf16 cache, 5 to 50 % with fp8 (docs/HARDWARE.md)"
            .to_string(),
        settled_by: SETTLED_BY.to_string(),
    })
}

/// That vLLM launches a verify layer by layer, and what that takes its host.
pub(super) fn in_pieces(scenario: &Scenario, points: &[Point]) -> Option<Assumption> {
    let host_ms = scenario.verify_host_ms();
    let drafts = points
        .iter()
        .any(|point| point.steps > 0 && !point.off_in_paste);
    let (low, high) = scenario.launching_hosts();
    (host_ms > 0.0 && drafts).then(|| Assumption {
        what: format!(
            "vLLM cuts the CUDA graph of a verify at attention here ({}): {host_ms:.1} ms of host time a verify, by a draft model \
             launched so on one H200's host ({low} to {high} of that in the band; docs/HARDWARE.md); a cycle is the longer of this \
             and of what the GPU does",
            scenario.attends().backend_or(scenario.ran.verify_graphs.as_ref())
        ),
        settled_by: "a run with the draft".to_string(),
    })
}
