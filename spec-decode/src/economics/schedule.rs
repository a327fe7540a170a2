//! The best depth over loads and contexts, and the forms in which engines take it.

use super::depth::{self, DepthOption, TIE_SHARE};
use super::{DepthChoice, OperatingPoint, StepCost};

/// Depth choices over a grid of concurrencies and contexts.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthTable {
    /// Rising.
    pub concurrencies: Vec<u32>,
    /// Rising, tokens.
    pub contexts: Vec<u32>,
    /// One row per context, one choice per concurrency.
    pub choices: Vec<Vec<DepthChoice>>,
    /// What runs in these, with its speedup: one row per context, one entry per concurrency.
    pub runs: Vec<Vec<(u32, f64)>>,
    /// Ranges of load by context.
    ranges: Vec<Vec<DepthRange>>,
}

/// A range of loads with one depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepthRange {
    /// First concurrency.
    pub concurrency_from: u32,
    /// Last concurrency; up to just before the next point of the grid.
    pub concurrency_to: u32,
    /// Up to this context, tokens.
    pub context_to: u32,
    /// Drafted tokens; 0 is off.
    pub steps: u32,
}

impl DepthTable {
    /// Chooses at every point. Lists are sorted and freed of duplicates and zeros (a context of 0
    /// stays).
    pub fn new(
        cost: &impl StepCost,
        accept_lengths: &[f64],
        concurrencies: &[u32],
        contexts: &[u32],
    ) -> Self {
        let costed = |concurrency: u32, context: u32| {
            let at = OperatingPoint {
                concurrency: f64::from(concurrency),
                context: f64::from(context),
            };
            depth::options(cost, at, accept_lengths)
        };
        Self::of(costed, |_, _, _| true, concurrencies, contexts)
    }

    /// The same from a function that costs the depths (rising) at a concurrency and a context.
    /// `serves(concurrency, context, depth)` can rule out that a depth stands in for the best
    /// there, however near it comes.
    pub fn of(
        costed: impl Fn(u32, u32) -> Vec<DepthOption>,
        serves: impl Fn(u32, u32, u32) -> bool,
        concurrencies: &[u32],
        contexts: &[u32],
    ) -> Self {
        let sorted = |values: &[u32], least: u32| {
            let mut values: Vec<u32> = values.iter().copied().filter(|v| *v >= least).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let (concurrencies, contexts) = (sorted(concurrencies, 1), sorted(contexts, 0));
        let (mut choices, mut ranges, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for &context in &contexts {
            let columns: Vec<Column> = concurrencies
                .iter()
                .map(|&load| Column::new(load, costed(load, context), |k| serves(load, context, k)))
                .collect();
            let fewest = fewest_ranges(&columns, context, |load| costed(load, context));
            let lasting = off_for_good(fewest);
            runs.push(columns.iter().map(|column| column.run(&lasting)).collect());
            ranges.push(lasting);
            choices.push(columns.into_iter().map(|column| column.choice).collect());
        }
        Self {
            concurrencies,
            contexts,
            choices,
            runs,
            ranges,
        }
    }

    /// Ranges of load with one depth, for every context: as few as keep every load of the grid
    /// within 5 % of its best (a switch costs graphs and warm-up), the first load's best where it
    /// does. They meet where the next depth becomes the faster one. Above a load where it is off
    /// it stays off, whatever a heavier load would gain: a server that ramps passes between.
    pub fn ranges(&self) -> Vec<DepthRange> {
        self.ranges.concat()
    }

    fn ranges_at(&self, context: u32) -> Vec<DepthRange> {
        // The first context of the grid that covers it, else the last.
        let context_to = self
            .contexts
            .iter()
            .copied()
            .find(|c| *c >= context)
            .or(self.contexts.last().copied());
        let mut ranges = self.ranges();
        ranges.retain(|r| Some(r.context_to) == context_to);
        ranges
    }

    /// vLLM's `num_speculative_tokens_per_batch_size` (in `--speculative-config`) at a context:
    /// `[[from, to, K], …]`, starting at 1 without gaps. `num_speculative_tokens` beside it must
    /// be the largest K. Depths below the full one may run outside full graphs (measured: -14 %
    /// for one stream, vllm#49548): compare before use.
    pub fn vllm_schedule(&self, context: u32) -> String {
        let entries: Vec<String> = self
            .ranges_at(context)
            .iter()
            .map(|r| {
                format!(
                    "[{}, {}, {}]",
                    r.concurrency_from, r.concurrency_to, r.steps
                )
            })
            .collect();
        format!("[{}]", entries.join(", "))
    }

    /// SGLang's `--speculative-adaptive-config` JSON at a context: candidate steps by batch size
    /// (the best depth and those that tie with it, as anchors of each range). Needs top-k 1.
    pub fn sglang_adaptive(&self, context: u32) -> String {
        let row = self
            .contexts
            .iter()
            .position(|c| *c >= context)
            .unwrap_or(self.contexts.len().saturating_sub(1));
        let entries: Vec<String> = self
            .ranges_at(context)
            .iter()
            .map(|range| {
                let mut steps = vec![range.steps];
                let choices = self.choices.get(row).into_iter().flatten();
                for (concurrency, choice) in self.concurrencies.iter().zip(choices) {
                    let inside = range.concurrency_from..=range.concurrency_to;
                    if inside.contains(concurrency) {
                        steps.push(choice.best.depth);
                        steps.extend(&choice.ties);
                    }
                }
                steps.sort_unstable();
                steps.dedup();
                format!(
                    "\"{}\": {{\"candidate_steps\": {steps:?}}}",
                    range.concurrency_from
                )
            })
            .collect();
        format!("{{{}}}", entries.join(", "))
    }
}

/// A load of the grid and what may run there.
struct Column {
    load: u32,
    choice: DepthChoice,
    /// Speedup of the best, 1 where that is off.
    top: f64,
    /// Depths within a tie of the best that do not lose, with their share of the best's speedup.
    kept: Vec<(u32, f64)>,
}

impl Column {
    fn new(load: u32, options: Vec<DepthOption>, serves: impl Fn(u32) -> bool) -> Self {
        let choice = depth::choose(&options);
        let best = choice.best;
        let speedups = options.iter().map(|o| o.speedup);
        let top = speedups.fold(depth::OFF.speedup, f64::max);
        let kept = std::iter::once(&depth::OFF)
            .chain(&options)
            .filter(|o| o.depth == best.depth || (o.speedup >= 1.0 && serves(o.depth)))
            .map(|o| (o.depth, o.speedup / top))
            .filter(|(_, share)| *share >= 1.0 - TIE_SHARE)
            .collect();
        Self {
            load,
            choice,
            top,
            kept,
        }
    }

    /// The depth that the ranges name at this load, and its speedup.
    fn run(&self, ranges: &[DepthRange]) -> (u32, f64) {
        let inside = |r: &&DepthRange| (r.concurrency_from..=r.concurrency_to).contains(&self.load);
        let steps = ranges.iter().find(inside).map_or(0, |range| range.steps);
        let share = self.share(steps).filter(|_| steps > 0);
        match share {
            Some(share) => (steps, share * self.top),
            None => (0, depth::OFF.speedup),
        }
    }

    fn share(&self, depth: u32) -> Option<f64> {
        let found = self.kept.iter().find(|(kept, _)| *kept == depth);
        found.map(|(_, share)| *share)
    }
}

/// Ranges as long as one depth serves: from the left, which gives the fewest.
fn fewest_ranges(
    columns: &[Column],
    context_to: u32,
    costed: impl Fn(u32) -> Vec<DepthOption>,
) -> Vec<DepthRange> {
    let mut ranges: Vec<DepthRange> = Vec::new();
    let mut rest = columns;
    while let Some(first) = rest.first() {
        let served = |depth: u32| rest.iter().take_while(|c| c.share(depth).is_some()).count();
        let longest = first.kept.iter().map(|(depth, _)| served(*depth)).max();
        let longest = longest.unwrap_or(1).max(1);
        let (run, after) = rest.split_at(longest);
        let steps = steadiest(run, first.choice.best.depth);
        let from = match ranges.last_mut() {
            None => 1,
            Some(before) => {
                let from = crossing(
                    before.concurrency_to,
                    first.load,
                    (before.steps, steps),
                    &costed,
                );
                before.concurrency_to = from - 1;
                from
            }
        };
        ranges.push(DepthRange {
            concurrency_from: from,
            concurrency_to: run.last().map_or(first.load, |c| c.load),
            context_to,
            steps,
        });
        rest = after;
    }
    ranges
}

/// The ranges up to where it is switched off: that lasts.
fn off_for_good(mut ranges: Vec<DepthRange>) -> Vec<DepthRange> {
    let off = ranges.iter().skip(1).position(|range| range.steps == 0);
    let (Some(before), Some(last)) = (off, ranges.last().copied()) else {
        return ranges;
    };
    ranges.truncate(before + 2);
    if let Some(off) = ranges.last_mut() {
        off.concurrency_to = last.concurrency_to;
    }
    ranges
}

/// Of the depths that serve a whole run: the preferred one, else the one whose worst load is best.
fn steadiest(run: &[Column], preferred: u32) -> u32 {
    let worst = |depth: u32| -> Option<f64> {
        let shares = run.iter().map(|column| column.share(depth));
        shares.reduce(|a, b| Some(a?.min(b?))).flatten()
    };
    if worst(preferred).is_some() {
        return preferred;
    }
    let first = run.first().map_or(&[][..], |column| &column.kept);
    let scored = first
        .iter()
        .filter_map(|(depth, _)| Some((*depth, worst(*depth)?)));
    let best = scored.reduce(|a, b| if b.1 > a.1 { b } else { a });
    best.map_or(preferred, |(depth, _)| depth)
}

/// First load above `low` (which the old depth serves) and up to `high` (which the new one serves)
/// where the new depth is the faster, by halving: costs are known at every load.
fn crossing(
    low: u32,
    high: u32,
    (old, new): (u32, u32),
    costed: impl Fn(u32) -> Vec<DepthOption>,
) -> u32 {
    let (mut low, mut high) = (low, high);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let options = costed(middle);
        let speedup = |depth: u32| {
            let found = options.iter().find(|o| o.depth == depth);
            found.map_or(depth::OFF.speedup, |o| o.speedup)
        };
        match speedup(new) > speedup(old) {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}
