//! Another depth than the one that a flag, a log or a scenario fixes.

use spec_decode::economics::depth::TIE_SHARE;

use super::super::answer::{Change, Memory, Verdict};
use super::super::costs::Costs;
use super::super::pasted::{doublings, for_all_loads};
use super::super::points::{Tried, try_depths, verdict_on};
use super::super::verdict::{steps as steps_of, users};
use crate::scenario::Scenario;

/// A load, what the fixed depth reaches there, and what the others do.
struct Column {
    users: u32,
    speedup: f64,
    pays: bool,
    tried: Vec<Tried>,
}

/// Other depths where a flag, a log or a scenario fixes one, over the loads of [`for_all_loads`]: the one that
/// it takes where none is fixed, if that gains beyond a tie on the fixed one and on plain decoding at a load,
/// and more there than it loses at any; and, unless that is one, the most gaining of those that gain and
/// surely pay at a load where the fixed one may not.
pub(super) fn others(scenario: &Scenario, costs: &Costs<'_>, memory: &Memory) -> Vec<Change> {
    let Some(run) = scenario.steps else {
        return Vec::new();
    };
    let mut free = scenario.clone();
    free.steps = None;
    if free.topk.unwrap_or(1) <= 1 {
        free.draft_tokens = None;
    }
    let column = |users: u32| {
        let at = (users, scenario.context);
        let fixed = try_depths(scenario, costs, users, scenario.context);
        let fixed = fixed.first()?;
        Some(Column {
            users,
            speedup: fixed.speedup,
            pays: verdict_on(scenario, costs, at, fixed) == Verdict::Pays,
            tried: try_depths(&free, costs, users, scenario.context),
        })
    };
    let loads = doublings(scenario, memory).into_iter();
    let columns: Vec<Column> = loads.filter_map(column).collect();
    let first = columns.first().into_iter();
    let gains: Vec<Gains> = first
        .flat_map(|column| &column.tried)
        .filter_map(|tried| Gains::of(tried.depth.steps, &free, costs, &columns))
        .collect();
    let most = |a: &&Gains, b: &&Gains| a.mean.total_cmp(&b.mean);
    // Within a tie the two are one; what loses more than it gains is no advice.
    let beyond = |g: &&Gains| {
        let most = g.most.map_or(0.0, |(gain, _)| gain);
        most * (1.0 - TIE_SHARE) > 1.0 && most * g.least.0 > 1.0
    };
    let free_choice = for_all_loads(&free, costs, memory);
    let faster = gains.iter().find(|g| Some(g.steps) == free_choice);
    let faster = faster.filter(beyond);
    let turning = gains.iter().filter(|g| g.turns.is_some()).max_by(most);
    let turning = turning.filter(|_| faster.is_none_or(|g| g.turns.is_none()));
    let mut found = Vec::new();
    if let Some((best, (gain, at))) = faster.and_then(|g| Some((g, g.most?))) {
        let why = format!("at {}{}", users(at), best.other_end(gain));
        found.push(best.change(gain, why));
    }
    if let Some((best, (gain, at))) = turning.and_then(|g| Some((g, g.turns?))) {
        let (at, may_not) = (users(at), steps_of(run));
        let why = format!(
            "pays at {at}, which {may_not} may not{}",
            best.other_end(gain)
        );
        found.push(best.change(gain, why));
    }
    found
}

/// What a depth gains over the one that runs, each with its load.
struct Gains {
    steps: u32,
    mean: f64,
    /// Of the loads at which it gains on plain decoding.
    most: Option<(f64, u32)>,
    least: (f64, u32),
    /// At the first load where it surely pays and the other may not.
    turns: Option<(f64, u32)>,
}

impl Gains {
    fn of(steps: u32, free: &Scenario, costs: &Costs<'_>, columns: &[Column]) -> Option<Self> {
        let mut gains = Vec::new();
        let (mut most, mut turns) = (None, None);
        for column in columns {
            let mut tried = column.tried.iter();
            let same = tried.find(|tried| tried.depth.steps == steps)?;
            let gain = (same.speedup / column.speedup, column.users);
            if same.speedup > 1.0 && most.is_none_or(|(most, _)| gain.0 > most) {
                most = Some(gain);
            }
            let at = (column.users, free.context);
            let open = turns.is_none() && !column.pays && gain.0 > 1.0;
            if open && verdict_on(free, costs, at, same) == Verdict::Pays {
                turns = Some(gain);
            }
            gains.push(gain);
        }
        let by_gain = |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0);
        Some(Self {
            steps,
            mean: gains.iter().map(|(gain, _)| gain.ln()).sum::<f64>(),
            most,
            least: gains.iter().copied().min_by(by_gain)?,
            turns,
        })
    }

    /// Where it gains least, in words, if that is less.
    fn other_end(&self, told: f64) -> String {
        let (least, at) = self.least;
        // No "-0 %".
        let percent = |gain: f64| ((gain - 1.0) * 100.0).round() + 0.0;
        match percent(least) {
            less if less < percent(told) => format!("; {less:+.0} % at {}", users(at)),
            _ => String::new(),
        }
    }

    fn change(&self, gain: f64, why: String) -> Change {
        let s = if self.steps == 1 { "" } else { "s" };
        Change {
            change: format!("{} draft step{s}", self.steps),
            gain,
            why,
        }
    }
}
