//! Another attention kernel, where the verify's own walks the cache.

use super::super::answer::Change;
use super::super::costs::{Costs, all_reduces};
use super::super::links::{Choice, Links};
use super::super::other_kernel::{self, OtherKernel};
use super::super::verdict::{steps, users as at};
use super::advised::{Advised, OverLoads};
use crate::scenario::Scenario;

/// What each of the kernels that split the cache gains over what is advised: with the draft where it gains on
/// plain decoding there, whether or not it does now.
pub(super) fn others(
    scenario: &Scenario,
    (links, costs): (&Links<'_>, &Costs<'_>),
    points: &[Advised<'_>],
) -> anyhow::Result<Vec<Change>> {
    let all = other_kernel::all(scenario).into_iter();
    let gains = all.map(|other| gain(other, scenario, (links, costs), points));
    let found: anyhow::Result<Vec<Option<Change>>> = gains.collect();
    Ok(found?.into_iter().flatten().collect())
}

fn gain(
    other: OtherKernel,
    scenario: &Scenario,
    (links, costs): (&Links<'_>, &Costs<'_>),
    points: &[Advised<'_>],
) -> anyhow::Result<Option<Change>> {
    let choice = Choice::parse(&scenario.allreduce)?;
    let other_links = Links::new(&other.scenario)?;
    let all_reduce = all_reduces(&other.scenario, &other_links, choice);
    let split = other_kernel::costs(&other.scenario, (&all_reduce, links), costs)?;
    let reduce_now = all_reduces(scenario, links, choice);
    let mut now = Costs::new(scenario, &reduce_now, links)?;
    now.pin = costs.pin;
    let first = points.first().map(|load| load.point);
    let Some((run, speedup)) = first.and_then(|point| other_kernel::drafted(&other, &split, point))
    else {
        return Ok(None);
    };
    let gain = OverLoads::of(points, |load| {
        let (tok_s, _) = other_kernel::best_at(&other.scenario, &split, load.point);
        tok_s / load.tok_s(scenario, &now)
    });
    let first = first.map_or_else(String::new, |point| at(point.concurrency));
    let why = format!(
        "{}: {speedup:.2}x with {} at {first}",
        other.why,
        steps(run)
    );
    Ok(Some(gain.change(&other.change, why)))
}
