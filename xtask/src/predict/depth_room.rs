//! Whether the server of an answer, told another depth and nothing else, still carries a load: states and
//! graphs of more drafted tokens take room from the requests.

use super::answer::{Memory, Point};
use crate::scenario::Scenario;

/// Leaves out of each row the depth that would do better there, where the memory at that depth and the same
/// fraction does not carry the row's load.
pub(super) fn only_carried(scenario: &Scenario, memory: &Memory, points: &mut [Point]) {
    // Of one that does not fit at all the rows say what it would reach if it did.
    if super::does_not_fit(memory) {
        return;
    }
    let mut known: Vec<(u32, Option<Memory>)> = Vec::new();
    for point in points {
        let Some(steps) = point.faster.map(|faster| faster.steps) else {
            continue;
        };
        if !known.iter().any(|(at, _)| *at == steps) {
            known.push((steps, at_depth(scenario, memory, steps)));
        }
        let there = known.iter().find(|(at, _)| *at == steps);
        let there = there.and_then(|(_, there)| there.as_ref());
        let carries = there.and_then(|there| there.holds(point.concurrency, point.context));
        point.faster = point.faster.filter(|_| carries != Some(false));
    }
}

/// The memory of the same server at another depth.
fn at_depth(scenario: &Scenario, memory: &Memory, steps: u32) -> Option<Memory> {
    let mut other = scenario.clone();
    other.ledger_steps = Some(steps);
    other.mem_fraction = scenario.mem_fraction.or(memory.fraction);
    crate::plan::memory(&other).ok()
}
