//! What is advised at a load, and what another box gains on that.

use super::super::answer::{Change, Point};
use super::super::costs::Costs;
use super::super::points::{best, try_depths};
use super::super::verdict::users as at;
use crate::scenario::Scenario;

/// A load with what is advised there.
pub(super) struct Advised<'a> {
    pub(super) point: &'a Point,
    drafts: bool,
}

impl<'a> Advised<'a> {
    pub(super) fn new(point: &'a Point, drafts: bool) -> Self {
        let drafts = drafts && !point.off_in_paste;
        Self { point, drafts }
    }

    /// Tokens a second of what is advised there, as computed.
    pub(super) fn tok_s(&self, scenario: &Scenario, costs: &Costs<'_>) -> f64 {
        let users = self.point.concurrency;
        match self.drafts {
            true => tok_s(scenario, costs, users, self.point.steps),
            false => {
                f64::from(users) * 1000.0 / costs.cycle(users, scenario.context, 0, 1).plain_ms
            }
        }
    }

    /// What another box does there, over what this one does.
    fn gain(&self, scenario: &Scenario, other: &Costs<'_>) -> f64 {
        let users = self.point.concurrency;
        if self.drafts {
            return tok_s(scenario, other, users, self.point.steps) / self.point.spec_tok_s;
        }
        let plain_ms = other.cycle(users, scenario.context, 0, 1).plain_ms;
        self.point.baseline_step_ms / plain_ms
    }
}

/// What a change gains over the loads that the pool holds.
pub(super) struct OverLoads {
    /// In their mean.
    mean: f64,
    /// Least, and at how many users.
    least: (f64, u32),
    /// That nothing is advised to draft at any of them.
    plain: bool,
}

impl OverLoads {
    /// Of a gain at each load that the pool holds; at the lightest where it holds none.
    pub(super) fn of(points: &[Advised<'_>], gain: impl Fn(&Advised<'_>) -> f64) -> Self {
        let held = |(at, load): &(usize, &Advised<'_>)| *at == 0 || load.point.fits != Some(false);
        let held = || points.iter().enumerate().filter(held);
        let gains = held().map(|(_, load)| (gain(load), load.point.concurrency));
        let gains: Vec<(f64, u32)> = gains.collect();
        // What gains at one load may lose at others.
        let logs = gains.iter().map(|(gain, _)| gain.ln()).sum::<f64>();
        let least = gains.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            mean: (logs / gains.len().max(1) as f64).exp(),
            least: least.copied().unwrap_or((1.0, 1)),
            plain: false,
        }
    }

    pub(super) fn change(self, change: &str, why: String) -> Change {
        let (least, users) = self.least;
        let why = match (least - 1.0) * 100.0 {
            percent if percent < -0.5 => format!("{why}; {percent:.0} % at {}", at(users)),
            _ => why,
        };
        let why = match self.plain {
            true => format!("{why}; without the draft"),
            false => why,
        };
        Change {
            change: change.to_string(),
            gain: self.mean,
            why,
        }
    }
}

/// The gains of other costs, each with what is advised.
pub(super) fn over_loads(
    scenario: &Scenario,
    costs: &Costs<'_>,
    points: &[Advised<'_>],
) -> OverLoads {
    let drafts = |load: &Advised<'_>| load.drafts && load.point.fits != Some(false);
    OverLoads {
        plain: !points.first().is_some_and(|load| load.drafts) && !points.iter().any(drafts),
        ..OverLoads::of(points, |load| load.gain(scenario, costs))
    }
}

/// Tokens a second with the steps that run; with the best ones where none do.
fn tok_s(scenario: &Scenario, costs: &Costs<'_>, users: u32, steps: u32) -> f64 {
    let tried = try_depths(scenario, costs, users, scenario.context);
    let run = tried.iter().find(|t| t.depth.steps == steps);
    run.or_else(|| best(&tried)).map_or(f64::NAN, |t| {
        f64::from(users) * 1000.0 / t.cost.plain_ms * t.speedup
    })
}
