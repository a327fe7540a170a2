//! Best depth over load and context, in the forms that engines take, and the goodput of a day.

use std::cell::RefCell;
use std::collections::HashMap;

use spec_decode::economics::{DepthOption, DepthRange, DepthTable, LoadShare, goodput};

use super::answer::{DepthCell, DepthRow, Goodput, Memory, Point};
use super::costs::Costs;
use super::pasted::{Judged, SureEnough};
use super::points::{Tried, depths, try_depths, verdict_on};
use super::short_head::drafts_at;
use crate::scenario::Scenario;

/// Contexts of the map, tokens, beside the scenario's own.
pub(super) const CONTEXTS: [u64; 6] = [1024, 4096, 16384, 32768, 65536, 131_072];

/// The choices over load and context.
pub(super) struct Map<'a> {
    table: DepthTable,
    context: u32,
    /// Whether the engine drafts at that context.
    drafts_here: bool,
    memory: Option<&'a Memory>,
    /// The depth of every load at that context, where one is pasted.
    one: Option<u32>,
}

/// Accept length by depth, index 0 for depth 1. A depth that the scenario rules out is given 0
/// tokens a cycle, so that it is never chosen.
fn accept_lengths(scenario: &Scenario) -> Vec<f64> {
    let allowed: Vec<u32> = depths(scenario).iter().map(|d| d.steps).collect();
    let deepest = allowed.iter().copied().max().unwrap_or(0);
    (1..=deepest)
        .map(|depth| {
            if allowed.contains(&depth) {
                scenario.acceptance.band(depth).1
            } else {
                0.0
            }
        })
        .collect()
}

/// The table from the very depths, costs and bands that the answer's rows have. At the scenario's context
/// a depth that may not pay does not stand where another surely does; where none surely does those that the
/// lightest load may run do.
fn table(scenario: &Scenario, costs: &Costs<'_>, contexts: &[u32]) -> DepthTable {
    let own = u32::try_from(scenario.context).unwrap_or(u32::MAX);
    let sure_at = |load: u32| -> SureEnough {
        let at = (load, scenario.context);
        let on = |t: &Tried| Judged::new(t, verdict_on(scenario, costs, at, t));
        let tried = try_depths(scenario, costs, at.0, at.1);
        SureEnough::of(&tried.iter().map(on).collect::<Vec<_>>())
    };
    let lightest = scenario.concurrency.iter().min().map(|load| sure_at(*load));
    let known: RefCell<HashMap<u32, SureEnough>> = RefCell::default();
    let may = |load: u32, context: u32| -> Option<SureEnough> {
        let new = || {
            let mut may = sure_at(load);
            let there = lightest.as_ref().filter(|_| !may.pay);
            may.steps
                .retain(|steps| there.is_none_or(|there| there.steps.contains(steps)));
            may
        };
        let mut known = known.borrow_mut();
        (context == own).then(|| known.entry(load).or_insert_with(new).clone())
    };
    let costed = |load: u32, context: u32| -> Vec<DepthOption> {
        let may = may(load, context);
        let drafts = drafts_at(scenario, u64::from(context));
        let runs = |steps: u32| drafts && may.as_ref().is_none_or(|may| may.steps.contains(&steps));
        let option = |t: Tried| DepthOption {
            depth: t.depth.steps,
            accept_length: t.accept_length,
            break_even_accept_length: t.cost.break_even(),
            speedup: match runs(t.depth.steps) {
                true => t.speedup,
                false => 0.0,
            },
        };
        let tried = try_depths(scenario, costs, load, u64::from(context));
        tried.into_iter().map(option).collect()
    };
    let serves = |load: u32, context: u32, depth: u32| -> bool {
        depth > 0 || may(load, context).is_none_or(|may| may.lose)
    };
    DepthTable::of(costed, serves, &scenario.concurrency, contexts)
}

impl<'a> Map<'a> {
    /// Chooses at every load and context; `None` without a draft.
    pub(super) fn new(scenario: &Scenario, costs: &Costs<'_>) -> Option<Self> {
        scenario.draft.as_ref()?;
        if scenario.topk.is_some_and(|topk| topk > 1) {
            // The table is one of chains.
            return None;
        }
        let small = |context: u64| u32::try_from(context).unwrap_or(u32::MAX);
        let own = small(scenario.context);
        let mut contexts = vec![own];
        if !costs.has_sweep() {
            // A sweep speaks of its own context only.
            let longest = scenario.model.max_positions.unwrap_or(u64::MAX);
            contexts.extend(
                CONTEXTS
                    .iter()
                    .filter(|c| **c <= longest)
                    .map(|c| small(*c)),
            );
        }
        Some(Self {
            table: table(scenario, costs, &contexts),
            context: own,
            drafts_here: drafts_at(scenario, scenario.context),
            memory: None,
            one: None,
        })
    }

    /// The same with the memory that says what fits, and with what is pasted where that is one depth.
    pub(super) fn pasted(self, memory: &'a Memory, one: Option<u32>) -> Self {
        Self {
            memory: Some(memory),
            one,
            ..self
        }
    }

    fn fits(&self, users: u32, context: u32) -> Option<bool> {
        self.memory?.holds(users, u64::from(context))
    }

    /// One cell a load and context, by the rule of [`DepthTable::ranges`]; of the scenario's own context
    /// what its rows have.
    pub(super) fn cells(&self, points: &[Point]) -> Vec<DepthCell> {
        let own = |users: u32, context: u32| {
            let same = |point: &&Point| point.concurrency == users && context == self.context;
            let point = points.iter().find(same)?;
            let runs = !point.off_in_paste && point.speedup > 1.0 && self.drafts_here;
            Some(match runs {
                true => (point.steps, point.speedup),
                false => (0, 1.0),
            })
        };
        let rows = self.table.contexts.iter().zip(&self.table.runs);
        rows.flat_map(|(context, runs)| {
            let loads = self.table.concurrencies.iter().zip(runs);
            loads.map(move |(users, run)| {
                let (steps, speedup) = own(*users, *context).unwrap_or(*run);
                DepthCell {
                    concurrency: *users,
                    context: u64::from(*context),
                    steps,
                    speedup,
                    fits: self.fits(*users, *context),
                }
            })
        })
        .collect()
    }

    /// Ranges of load with one depth; contexts with the same ranges are one, and a load that the
    /// pool cannot hold is left out: it is never decoded at once.
    pub(super) fn rows(&self) -> Vec<DepthRow> {
        let mut ranges = self.table.ranges();
        let own = |range: &DepthRange| range.context_to == self.context && range.steps > 0;
        if ranges
            .iter()
            .filter(|r| r.context_to == self.context)
            .count()
            == 1
        {
            let told = ranges.iter_mut().filter(|range| own(range));
            told.for_each(|range| range.steps = self.one.unwrap_or(range.steps));
        }
        let of = |context: u32| -> Vec<(u32, u32, u32)> {
            ranges
                .iter()
                .filter(|r| r.context_to == context && self.held(r))
                .map(|r| (r.concurrency_from, r.concurrency_to, r.steps))
                .collect()
        };
        let contexts = &self.table.contexts;
        let last_of_its_kind = |context: u32| {
            let next = contexts.iter().find(|c| **c > context);
            next.is_none_or(|next| of(*next) != of(context))
        };
        ranges
            .iter()
            .filter(|r| last_of_its_kind(r.context_to) && self.held(r))
            .map(|r| DepthRow {
                concurrency_from: r.concurrency_from,
                concurrency_to: r.concurrency_to,
                context_to: u64::from(r.context_to),
                steps: r.steps,
            })
            .collect()
    }

    fn held(&self, range: &DepthRange) -> bool {
        self.fits(range.concurrency_from, range.context_to) != Some(false)
    }

    /// Depth by load at the scenario's context.
    pub(super) fn own_ranges(&self) -> Vec<DepthRange> {
        let mut ranges = self.table.ranges();
        ranges.retain(|r| r.context_to == self.context);
        ranges
    }
}

/// Tokens a second under the scenario's distribution of load with the best depths, one or by load;
/// `None` where it gives none.
pub(super) fn best_of_the_day(
    scenario: &Scenario,
    costs: &Costs<'_>,
) -> Option<spec_decode::economics::Goodput> {
    let shares = scenario.load_shares.as_ref()?;
    if scenario.draft.is_none() || scenario.topk.is_some_and(|topk| topk > 1) {
        return None;
    }
    let load: Vec<LoadShare> = scenario
        .concurrency
        .iter()
        .zip(shares)
        .map(|(users, share)| LoadShare {
            concurrency: f64::from(*users),
            share: *share,
        })
        .collect();
    goodput(
        costs,
        scenario.context as f64,
        &accept_lengths(scenario),
        &load,
    )
}

/// The same of what is pasted: the rows' speeds, each with its share.
pub(super) fn of_the_day(
    scenario: &Scenario,
    costs: &Costs<'_>,
    points: &[Point],
    steps: Option<u32>,
) -> Option<Goodput> {
    let best = best_of_the_day(scenario, costs)?;
    let shares = scenario.load_shares.as_ref()?;
    let speed = |point: &Point| match steps == Some(0) || point.off_in_paste {
        true => point.baseline_tok_s,
        false => point.spec_tok_s,
    };
    let of = |(users, share): (&u32, &f64)| {
        let row = points.iter().find(|point| point.concurrency == *users)?;
        Some(share * speed(row))
    };
    let pasted: Option<f64> = scenario.concurrency.iter().zip(shares).map(of).sum();
    Some(Goodput {
        plain_tok_s: best.plain_tok_s,
        fixed_tok_s: pasted? / shares.iter().sum::<f64>(),
        fixed_steps: steps,
        scheduled_tok_s: best.scheduled_tok_s,
    })
}
