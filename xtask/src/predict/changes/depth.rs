//! Another depth than the one that a flag, a log or a scenario fixes.

use spec_decode::economics::depth::TIE_SHARE;

use super::super::answer::{Change, Point, Verdict};
use super::super::costs::Costs;
use super::super::points::{Tried, try_depths, verdict_on};
use super::super::verdict::{steps as steps_of, users};
use crate::scenario::Scenario;

/// Another depth where a flag, a log or a scenario fixes one: of those that gain beyond a tie at a load
/// that the pool holds, and more there than they lose at any, the one that gains most in the mean. Where
/// none does, one that loses nowhere beyond a tie, nor in the mean, and surely pays at a load where the fixed one may not.
pub(super) fn another(scenario: &Scenario, costs: &Costs<'_>, points: &[Point]) -> Option<Change> {
    let run = scenario.steps?;
    let mut free = scenario.clone();
    free.steps = None;
    free.draft_tokens = None;
    let held = points.iter().filter(|point| point.fits != Some(false));
    let columns: Vec<(&Point, Vec<Tried>)> = held
        .map(|point| {
            let tried = try_depths(&free, costs, point.concurrency, scenario.context);
            (point, tried)
        })
        .collect();
    let depths = columns.first()?.1.iter().map(|tried| tried.depth.steps);
    let gains: Vec<Gains> = depths
        .filter_map(|steps| Gains::of(steps, &free, costs, &columns))
        .collect();
    let most = |a: &&Gains, b: &&Gains| a.mean.total_cmp(&b.mean);
    // Within a tie the two are one; what loses more than it gains is no advice.
    let beyond = |g: &&Gains| g.most.0 * (1.0 - TIE_SHARE) > 1.0 && g.most.0 * g.least.0 > 1.0;
    if let Some(best) = gains.iter().filter(beyond).max_by(most) {
        let (gain, at) = best.most;
        return Some(best.change(gain, format!("at {}{}", users(at), best.loss())));
    }
    let near = |g: &&Gains| g.mean >= 0.0 && g.least.0 > 1.0 - TIE_SHARE;
    let turning = gains.iter().filter(near).filter(|g| g.turns.is_some());
    let best = turning.max_by(most)?;
    let (gain, at) = best.turns?;
    let (at, may_not) = (users(at), steps_of(run));
    let why = format!("pays at {at}, which {may_not} may not{}", best.loss());
    Some(best.change(gain, why))
}

/// What a depth gains over the one that runs, each with its load.
struct Gains {
    steps: u32,
    mean: f64,
    most: (f64, u32),
    least: (f64, u32),
    /// At the first load where it surely pays and the other may not.
    turns: Option<(f64, u32)>,
}

impl Gains {
    fn of(
        steps: u32,
        free: &Scenario,
        costs: &Costs<'_>,
        columns: &[(&Point, Vec<Tried>)],
    ) -> Option<Self> {
        let mut gains = Vec::new();
        let mut turns = None;
        for (point, tried) in columns {
            let same = tried.iter().find(|tried| tried.depth.steps == steps)?;
            let plain_tok_s = f64::from(point.concurrency) * 1000.0 / same.cost.plain_ms;
            let gain = plain_tok_s * same.speedup / point.spec_tok_s;
            let gain = (gain, point.concurrency);
            let open = turns.is_none() && point.verdict == Verdict::MeasureFirst;
            let at = (point.concurrency, free.context);
            if open && verdict_on(free, costs, at, same) == Verdict::Pays {
                turns = Some(gain);
            }
            gains.push(gain);
        }
        let by_gain = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0);
        Some(Self {
            steps,
            mean: gains.iter().map(|(gain, _)| gain.ln()).sum::<f64>(),
            most: gains.iter().copied().max_by(by_gain)?,
            least: gains.iter().copied().min_by(by_gain)?,
            turns,
        })
    }

    /// Where it loses most, in words.
    fn loss(&self) -> String {
        let (least, at) = self.least;
        match (least - 1.0) * 100.0 {
            percent if percent < -0.5 => format!("; {percent:.0} % at {}", users(at)),
            _ => String::new(),
        }
    }

    fn change(&self, gain: f64, why: String) -> Change {
        Change {
            change: format!(
                "{} draft step{}",
                self.steps,
                if self.steps == 1 { "" } else { "s" }
            ),
            gain,
            why,
        }
    }
}
