//! What the pasted line drafts at each load: a list by load where the engine takes one, else one
//! depth; and the ledger and the rows of that line.

use super::answer::{Memory, Point, Verdict};
use super::costs::Costs;
use super::depth_room;
use super::map::Map;
use super::points::{Tried, point, try_depths, verdict_on};
use crate::scenario::{EngineKind, Scenario};
use spec_decode::HeadKind;
use spec_decode::cycle::GraphLadder;
use spec_decode::economics::DepthRange;

/// Depths of the pasted lines.
pub(super) struct Pasted {
    /// Of an engine that takes one for all loads; 0 where nothing drafts.
    pub(super) one: u32,
    /// Of one that takes a list; empty where one depth serves every load.
    pub(super) list: Vec<DepthRange>,
    /// Why there is no list, where depths differ by load.
    pub(super) no_list: Option<NoList>,
    /// Whether the engine that was asked for takes the list.
    pub(super) takes_list: bool,
}

/// Why vLLM gets no list of depths by load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoList {
    /// Its first runner takes none.
    Runner,
    /// Its second runner drafts as deep at every load.
    DraftsAll,
    /// The verify of so many users would replay a graph of another depth.
    Graphs(u32),
}

impl NoList {
    pub(super) fn why(self) -> String {
        match self {
            Self::Runner => {
                "with a list by load vLLM's first runner, which runs this draft, cuts all graphs"
                    .to_string()
            }
            Self::DraftsAll => {
                "with a list by load vLLM's second runner lets a small model draft the deepest of it at every \
                 load, and verifies fewer"
                    .to_string()
            }
            Self::Graphs(users) => format!(
                "with a list by load vLLM would run the verify of {} in a graph of another depth, cut at \
                 attention",
                super::verdict::users(users)
            ),
        }
    }
}

impl Pasted {
    pub(super) fn new(
        scenario: &Scenario,
        costs: &Costs<'_>,
        map: Option<&Map<'_>>,
        memory: &Memory,
    ) -> Self {
        let day = super::map::best_of_the_day(scenario, costs).map(|day| day.fixed_depth);
        let day = day.filter(|steps| *steps > 0);
        let one = day.or_else(|| for_all_loads(scenario, costs, memory));
        let by_draft = none_with_this_draft(scenario);
        let mut list = map.map_or_else(Vec::new, Map::own_ranges);
        let without_its_graph = loses_its_graph(scenario, &list);
        let no_list = match without_its_graph {
            _ if list.len() < 2 => None,
            users => by_draft.or(users.map(NoList::Graphs)),
        };
        if list.len() < 2 || no_list.is_some() {
            list.clear();
        }
        Self {
            one: one.unwrap_or(0),
            list,
            no_list,
            takes_list: super::flags::takes_depth_by_load(scenario),
        }
    }

    /// The deepest that a line drafts: what its memory must hold.
    pub(super) fn deepest(&self, takes_list: bool) -> u32 {
        let listed = self.list.iter().map(|range| range.steps).max();
        listed.filter(|_| takes_list).unwrap_or(self.one)
    }

    /// The one depth that drafts at every load; `None` where there is a list.
    pub(super) fn for_all(&self) -> Option<u32> {
        let by_load = self.takes_list && !self.list.is_empty();
        Some(self.one).filter(|steps| *steps > 0 && !by_load)
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
        crate::plan::memory(&self.as_planned(scenario, self.takes_list))
    }

    /// A scenario for the memory model, with the depth that the line drafts.
    pub(super) fn as_planned(&self, scenario: &Scenario, takes_list: bool) -> Scenario {
        let mut planned = scenario.clone();
        planned.ledger_steps = Some(self.deepest(takes_list)).filter(|steps| *steps > 0);
        planned
    }

    /// Sets what the line serves, which without its draft no head keeps short.
    pub(super) fn set_limit(&self, scenario: &Scenario, memory: &mut Memory, drafts: bool) {
        memory.length.let_in = memory.length.let_in.filter(|_| drafts);
        memory.length.drafted = memory.length.drafted.filter(|_| drafts);
        // Of the depth that the line drafts, as the rest of its ledger.
        memory.pasted_limit = limit(&self.as_planned(scenario, self.takes_list), memory);
    }

    /// The rows of the answer: at every load the depth that the line drafts there, the best one where it does not
    /// at that load; where no line drafts the one depth that it would have for all of them.
    pub(super) fn points(
        &self,
        scenario: &Scenario,
        costs: &Costs<'_>,
        memory: &Memory,
        drafts: bool,
    ) -> Vec<Point> {
        let row = |users: &u32| {
            let steps = if drafts { self.at(*users) } else { self.one };
            let run = Some(steps).filter(|steps| *steps > 0);
            let at = (*users, scenario.context);
            let mut point = point(scenario, costs, at, Some(memory), run)?;
            point.off_in_paste = drafts && steps == 0 && scenario.draft.is_some();
            Some(point)
        };
        let mut points: Vec<Point> = scenario.concurrency.iter().filter_map(row).collect();
        depth_room::only_carried(scenario, memory, &mut points);
        points
    }
}

/// Why look-ups and small models get no list: until they moved to vLLM's second runner (n-gram with 0.32.0, draft
/// models with 0.31.0) the first cuts all graphs for one (`_maybe_override_dynamic_sd_cudagraph_mode`). There
/// look-up obeys it: `draft_tokens` beyond the list are struck out. A draft model's `propose`
/// (`standalone_ar`) does not look at it to 0.33.0: all its steps run.
fn none_with_this_draft(scenario: &Scenario) -> Option<NoList> {
    let asked = scenario.engine.kind == EngineKind::Vllm;
    let version = scenario.engine.version.as_deref().filter(|_| asked);
    let version = version.and_then(kvplan::Version::find);
    let second =
        |number, date| version.is_none_or(|version: kvplan::Version| version.since(number, date));
    match scenario.acceptance.head {
        HeadKind::NGram if second((0, 32, 0), (2026, 11)) => None,
        HeadKind::DraftModel if second((0, 31, 0), (2026, 10)) => Some(NoList::DraftsAll),
        HeadKind::NGram | HeadKind::DraftModel => Some(NoList::Runner),
        _ => None,
    }
}

/// The lightest load asked for that does not replay, with the depth that a list gives it, a graph of its
/// own: vLLM takes the smallest whole one that holds its tokens, and where that is one of another depth in
/// the list a graph cut at attention (`CudaGraphManager._init_candidates` and `dispatch`, 0.29 to 0.33).
fn loses_its_graph(scenario: &Scenario, list: &[DepthRange]) -> Option<u32> {
    let ladder = GraphLadder::VllmRounded;
    if scenario.engine.kind == EngineKind::Vllm && scenario.graph_ladder() != ladder {
        return None;
    }
    let of = |users: u32| {
        let range = list.iter().find(|r| r.concurrency_to >= users)?;
        let tokens = f64::from(users) * f64::from(range.steps + 1);
        let size = |steps: u32| ladder.padded_of(tokens / f64::from(steps + 1), tokens);
        let own = size(range.steps);
        Some(list.iter().all(|other| size(other.steps) >= own))
    };
    let mut loads = scenario.concurrency.iter().copied();
    loads.find(|users| of(*users) == Some(false))
}

/// The rule of [`for_all_loads`] in words.
pub(crate) const RULE: &str = "of depths with the best verdict at the lightest load (a sure gain counts up to 25 % \
    under the fastest depth), those within 3 % of the best of them in the mean over the loads, doubling from there \
    to the heaviest, at which any gains; of these the one that surely pays at most of these loads, then the \
    shallowest";

/// Depths this close in the mean over the loads (a share) are one.
const NEAR_SHARE: f64 = 0.03;

/// What may be given up of the fastest depth's speedup (a share) for one that surely pays.
const SURE_COSTS_SHARE: f64 = 0.25;

/// The one depth for all loads. Loads are the doublings from the lightest asked for to the heaviest that
/// the pool holds, at which some depth gains: which loads between are listed changes nothing. Of depths
/// with the best verdict that is to be had at the lightest for [`SURE_COSTS_SHARE`], and near the most in the
/// mean of ln speedup, those that surely pay at most loads; of these the shallowest, which costs less memory
/// and hangs less on the acceptance.
pub(super) fn for_all_loads(
    scenario: &Scenario,
    costs: &Costs<'_>,
    memory: &Memory,
) -> Option<u32> {
    scenario.draft.as_ref()?;
    let columns: Vec<Vec<Judged>> = doublings(scenario, memory)
        .into_iter()
        .map(|users| judged(scenario, costs, users))
        .collect();
    let judged: Vec<&[Judged]> = columns.iter().map(Vec::as_slice).collect();
    chosen(&judged).and_then(|at| Some(columns.first()?.get(at)?.steps))
}

/// Which of the depths of each load is taken for all of them: see [`for_all_loads`].
fn chosen(columns: &[&[Judged]]) -> Option<usize> {
    at_least(had_for(SURE_COSTS_SHARE, columns.first()?)?, columns)
}

/// The surest depth of a load, however much faster another may be.
pub(super) fn surest(column: &[Judged]) -> Option<usize> {
    at_least(had_for(1.0, column)?, &[column])
}

/// The fastest depth of a load, however unsure.
pub(super) fn fastest(column: &[Judged]) -> Option<usize> {
    at_least(0, &[column])
}

/// The one taken for all loads of those at least so sure at the lightest.
fn at_least(surety: u8, columns: &[&[Judged]]) -> Option<usize> {
    let first = columns.first()?;
    let gaining: Vec<&[Judged]> = columns.iter().copied().filter(|c| top(c) > 1.0).collect();
    let counted = match gaining.is_empty() {
        true => columns.to_vec(),
        false => gaining,
    };
    let alike = first.iter().enumerate();
    let alike = alike.filter(|(_, t)| t.surety >= surety);
    let options = alike.map(|(at, _)| {
        let rows = counted.iter().filter_map(|column| column.get(at));
        let sure = rows.clone().filter(|t| t.surety == PAYS).count();
        let gain = rows.map(|t| t.speedup.ln()).sum::<f64>() / counted.len() as f64;
        OverLoads { at, gain, sure }
    });
    let options: Vec<OverLoads> = options.collect();
    let most = options.iter().map(|o| o.gain).fold(f64::MIN, f64::max);
    let near = || options.iter().filter(|o| o.gain >= most - NEAR_SHARE);
    let sure = near().map(|o| o.sure).max()?;
    near().find(|o| o.sure == sure).map(|o| o.at)
}

fn top(column: &[Judged]) -> f64 {
    column.iter().map(|t| t.speedup).fold(f64::MIN, f64::max)
}

/// The best verdict to be had at a load for a share of the fastest depth's speedup.
fn had_for(share: f64, column: &[Judged]) -> Option<u8> {
    let least = top(column) * (1.0 - share);
    let near = column.iter().filter(|t| t.speedup >= least);
    near.map(|t| t.surety).max()
}

/// The depths of a load that may be taken there: those as sure as is to be had for [`SURE_COSTS_SHARE`].
#[derive(Debug, Clone)]
pub(super) struct SureEnough {
    pub(super) steps: Vec<u32>,
    /// Whether they surely pay.
    pub(super) pay: bool,
    /// Whether every depth surely loses.
    pub(super) lose: bool,
}

impl SureEnough {
    pub(super) fn of(column: &[Judged]) -> Self {
        let least = had_for(SURE_COSTS_SHARE, column);
        let enough = column.iter().filter(|t| Some(t.surety) >= least);
        Self {
            steps: enough.map(|t| t.steps).collect(),
            pay: least == Some(PAYS),
            lose: column.iter().all(|t| t.surety == 0),
        }
    }
}

/// A depth over all loads: its mean ln speedup, and at how many it surely pays.
struct OverLoads {
    at: usize,
    gain: f64,
    sure: usize,
}

/// A depth at a load, with how sure its gain is.
pub(super) struct Judged {
    steps: u32,
    speedup: f64,
    surety: u8,
}

const PAYS: u8 = 2;

impl Judged {
    pub(super) fn new(tried: &Tried, verdict: Verdict) -> Self {
        Self {
            steps: tried.depth.steps,
            speedup: tried.speedup,
            surety: match verdict {
                Verdict::Pays => PAYS,
                Verdict::MeasureFirst => 1,
                Verdict::DoesNotPay | Verdict::NoDraft => 0,
            },
        }
    }
}

fn judged(scenario: &Scenario, costs: &Costs<'_>, users: u32) -> Vec<Judged> {
    let at = (users, scenario.context);
    let on = |t: &Tried| verdict_on(scenario, costs, at, t);
    let tried = try_depths(scenario, costs, users, scenario.context);
    tried.iter().map(|t| Judged::new(t, on(t))).collect()
}

/// Loads from the lightest asked for on, each twice the one before, to the heaviest. Of the first that the
/// pool does not hold as many as it does, where that is nearer to it than to the one before.
pub(super) fn doublings(scenario: &Scenario, memory: &Memory) -> Vec<u32> {
    let (Some(first), Some(last)) = (scenario.concurrency.first(), scenario.concurrency.last())
    else {
        return Vec::new();
    };
    let (first, last) = (*first.max(&1), *last);
    let twice = |users: &u32| users.checked_mul(2).filter(|users| *users < last);
    let mut loads: Vec<u32> = std::iter::successors(Some(first), twice).collect();
    loads.extend((last > first).then_some(last));
    let held = memory.held(scenario.context).unwrap_or(last);
    let beyond = loads.iter().skip(1).position(|users| *users > held);
    if let Some(at) = beyond {
        let [before, over] = [at, at + 1].map(|at| loads.get(at).map_or(0.0, |l| f64::from(*l)));
        loads.truncate(at + 1);
        let nearer = f64::from(held).powi(2) > before * over;
        loads.extend(nearer.then_some(held));
    }
    loads
}

/// The context that the line serves and the least fraction that holds one request of it, where
/// that is another than the answer's: the engine starts with no pool below it.
fn limit(scenario: &Scenario, memory: &Memory) -> Option<(u64, f64)> {
    if scenario.engine.kind != EngineKind::Vllm {
        return None;
    }
    let told = super::vllm_context(scenario, Some(memory));
    let tokens = told.or(scenario.model.max_positions)?;
    if tokens <= scenario.context {
        return None;
    }
    let mut longer = scenario.clone();
    longer.context = tokens;
    longer.mem_fraction = memory.fraction;
    let min = crate::plan::memory(&longer).ok()?.fraction_min?;
    Some((tokens, min))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depths from 1 on of a load, each with its speedup and how sure it is.
    fn column(depths: &[(f64, u8)]) -> Vec<Judged> {
        let judged = |(steps, &(speedup, surety)): (u32, &(f64, u8))| Judged {
            steps,
            speedup,
            surety,
        };
        (1..).zip(depths).map(judged).collect()
    }

    fn steps(depths: &[(f64, u8)]) -> usize {
        chosen(&[&column(depths)]).map_or(0, |at| at + 1)
    }

    #[test]
    fn a_sure_gain_is_taken_up_to_a_quarter_under_the_fastest() {
        assert_eq!(steps(&[(1.6, PAYS), (1.92, PAYS), (2.05, 1)]), 2);
        assert_eq!(steps(&[(1.58, PAYS), (1.87, 1), (2.05, 1)]), 1);
        assert_eq!(steps(&[(1.52, PAYS), (1.87, 1), (2.05, 1)]), 3);
        assert_eq!(
            surest(&column(&[(1.1, PAYS), (1.87, 1), (2.05, 1)])),
            Some(0)
        );
    }

    #[test]
    fn loads_without_a_sure_depth_may_run_the_fastest() {
        let may = SureEnough::of(&column(&[(1.1, 1), (1.2, 1), (0.8, 0)]));
        assert_eq!((may.steps, may.pay, may.lose), (vec![1, 2], false, false));
    }
}
