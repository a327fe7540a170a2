//! What the answer says of a verify whose kernel does not split the cache.

use super::answer::{Assumption, Point};
use super::costs::Costs;
use super::{other_kernel, verdict};
use crate::scenario::Scenario;
use crate::table::thousands;

/// Of a row that it makes so much longer it is told.
const TOLD_SHARE: f64 = 0.03;

/// The kernel, what it adds at the lightest load and what would run another.
pub(super) fn told(scenario: &Scenario, costs: &Costs<'_>, points: &[Point]) -> Option<Assumption> {
    let kernel = scenario.walk_told()?;
    let other: Vec<String> = other_kernel::all(scenario)
        .into_iter()
        .map(|other| other.change)
        .collect();
    let other = match other.is_empty() {
        true => "no other kernel of the engine is known to split it here".to_string(),
        false => format!("by {} it would be split", other.join(" or ")),
    };
    let drafts = |point: &&Point| point.steps > 0 && !point.off_in_paste;
    let mut rows = points.iter().filter(drafts).map(|point| {
        let cost = costs.cycle(
            point.concurrency,
            point.context,
            point.steps,
            point.draft_tokens,
        );
        (point, cost)
    });
    let (point, cost) = rows.find(|(_, cost)| cost.walk.ms > TOLD_SHARE * cost.cycle_ms())?;
    let (low, high) = scenario.walk_band();
    Some(Assumption {
        what: format!(
            "{kernel} does not split a verify over the cache as it splits a plain step: {:.1} ms of the cycle of {:.1} at {} and {} tokens, growing with the context ({low} to {high} of \
             that in the band; docs/HARDWARE.md), without which it would be {:.2}x there; {other}",
            cost.walk.ms,
            cost.cycle_ms(),
            verdict::users(point.concurrency),
            thousands(point.context as f64),
            point.speedup * cost.cycle_ms() / (cost.cycle_ms() - cost.walk.ms),
        ),
        settled_by: "a run with the draft at this context".to_string(),
    })
}
