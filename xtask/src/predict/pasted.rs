//! What the pasted line drafts at each load: a list by load where the engine takes one, else one
//! depth; and the ledger and the rows of that line.

use super::answer::{Memory, Point, Verdict};
use super::costs::Costs;
use super::map::Map;
use super::points::{Tried, best, point, try_depths, verdict_on};
use crate::scenario::Scenario;
use spec_decode::HeadKind;
use spec_decode::economics::DepthRange;
use spec_decode::economics::depth::TIE_SHARE;

/// Depths of the pasted lines.
pub(super) struct Pasted {
    /// Of an engine that takes one for all loads; 0 where nothing drafts.
    pub(super) one: u32,
    /// Of one that takes a list; empty where one depth serves every load.
    pub(super) list: Vec<DepthRange>,
    /// Whether the engine that was asked for takes the list.
    pub(super) takes_list: bool,
}

impl Pasted {
    pub(super) fn new(
        scenario: &Scenario,
        costs: &Costs<'_>,
        map: Option<&Map<'_>>,
        memory: &Memory,
    ) -> Self {
        let one = map.and_then(Map::one_depth);
        let of_the_day = || super::map::best_of_the_day(scenario, costs).map(|day| day.fixed_depth);
        let one = one.or_else(|| of_the_day().filter(|steps| *steps > 0));
        let one = one.or_else(|| gains_most(scenario, costs, memory));
        // Look-up takes one depth for all loads.
        let listed = map.filter(|_| scenario.acceptance.head != HeadKind::NGram);
        let mut list = listed.map_or_else(Vec::new, Map::own_ranges);
        if list.len() < 2 {
            list.clear();
        }
        Self {
            one: one.unwrap_or(0),
            list,
            takes_list: super::flags::takes_depth_by_load(scenario),
        }
    }

    /// The deepest that a line drafts: what its memory must hold.
    pub(super) fn deepest(&self, takes_list: bool) -> u32 {
        let listed = self.list.iter().map(|range| range.steps).max();
        listed.filter(|_| takes_list).unwrap_or(self.one)
    }

    /// Steps at a load; 0: off.
    pub(super) fn at(&self, load: u32) -> u32 {
        let inside = |r: &&DepthRange| (r.concurrency_from..=r.concurrency_to).contains(&load);
        let listed = self.list.iter().find(inside).map(|range| range.steps);
        listed.filter(|_| self.takes_list).unwrap_or(self.one)
    }

    /// The ledger of the line of the engine that was asked for.
    ///
    /// # Errors
    /// Inputs no engine could run with.
    pub(super) fn memory(&self, scenario: &Scenario) -> anyhow::Result<Memory> {
        let mut memory = crate::plan::memory(&self.as_planned(scenario, self.takes_list))?;
        memory.pasted_limit = limit(scenario, &memory);
        Ok(memory)
    }

    /// A scenario for the memory model, with the depth that the line drafts.
    pub(super) fn as_planned(&self, scenario: &Scenario, takes_list: bool) -> Scenario {
        let mut planned = scenario.clone();
        planned.ledger_steps = Some(self.deepest(takes_list)).filter(|steps| *steps > 0);
        planned
    }

    /// The rows of the answer: at every load the depth that the line drafts there; the best one where
    /// no line drafts, or this one not at that load.
    pub(super) fn points(
        &self,
        scenario: &Scenario,
        costs: &Costs<'_>,
        memory: &Memory,
        drafts: bool,
    ) -> Vec<Point> {
        let row = |users: &u32| {
            let steps = self.at(*users);
            let run = Some(steps).filter(|steps| drafts && *steps > 0);
            let at = (*users, scenario.context);
            let mut point = point(scenario, costs, at, Some(memory), run)?;
            point.off_in_paste = drafts && steps == 0 && scenario.draft.is_some();
            Some(point)
        };
        scenario.concurrency.iter().filter_map(row).collect()
    }
}

/// Of the depths whose verdict at the lightest load is the best one's there: the one that gains most
/// over the loads that the pool holds, each counted alike (the mean of ln speedup). Within a tie of the
/// most it is the best at the lightest, unless another gains no less and surely at more loads.
fn gains_most(scenario: &Scenario, costs: &Costs<'_>, memory: &Memory) -> Option<u32> {
    scenario.draft.as_ref()?;
    let context = scenario.context;
    let lightest = *scenario.concurrency.first()?;
    let held = |users: &u32| *users == lightest || memory.holds(*users, context) != Some(false);
    let loads: Vec<u32> = scenario.concurrency.iter().copied().filter(held).collect();
    let columns: Vec<Vec<Tried>> = loads
        .iter()
        .map(|users| try_depths(scenario, costs, *users, context))
        .collect();
    let first = columns.first()?;
    let on = |t: &Tried| verdict_on(scenario, costs, (lightest, context), t);
    let preferred = best(first)?;
    let gain = |steps: u32| -> f64 {
        let of = |column: &Vec<Tried>| {
            let found = column.iter().find(|t| t.depth.steps == steps);
            found.map_or(0.0, |t| t.speedup.ln())
        };
        columns.iter().map(of).sum::<f64>() / columns.len() as f64
    };
    let alike = first.iter().filter(|t| on(t) == on(preferred));
    let gains: Vec<(u32, f64)> = alike
        .map(|t| (t.depth.steps, gain(t.depth.steps)))
        .collect();
    let most = gains.iter().map(|(_, gain)| *gain).fold(f64::MIN, f64::max);
    let surely = |steps: u32| {
        let at = loads.iter().zip(&columns);
        let pays = at.filter(|(users, column)| {
            let found = column.iter().find(|t| t.depth.steps == steps);
            found.is_some_and(|t| {
                verdict_on(scenario, costs, (**users, context), t) == Verdict::Pays
            })
        });
        pays.count()
    };
    // What gains less and surely at more loads is no reason to leave the best at the lightest.
    let least = gain(preferred.depth.steps).max(most - TIE_SHARE);
    let near = gains.iter().filter(|(_, gain)| *gain >= least);
    let ranked = near.map(|(steps, gain)| {
        let is_preferred = *steps == preferred.depth.steps;
        (*steps, (surely(*steps), is_preferred), *gain)
    });
    let best = ranked.max_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)));
    best.map(|(steps, ..)| steps)
}

/// The context that the line serves and the least fraction that holds one request of it, where
/// that is another than the answer's: the engine starts with no pool below it.
fn limit(scenario: &Scenario, memory: &Memory) -> Option<(u64, f64)> {
    if scenario.engine.kind != crate::scenario::EngineKind::Vllm {
        return None;
    }
    let told = super::flags::vllm_context(scenario, Some(memory));
    let tokens = told.or(scenario.model.max_positions)?;
    if tokens == scenario.context {
        return None;
    }
    let mut longer = scenario.clone();
    longer.context = tokens;
    longer.mem_fraction = memory.fraction;
    let min = crate::plan::memory(&longer).ok()?.fraction_min?;
    Some((tokens, min))
}
