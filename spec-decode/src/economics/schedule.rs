//! The best depth over loads and contexts, and the forms in which engines take it.

use super::depth::TIE_SHARE;
use super::{DepthChoice, OperatingPoint, StepCost, choose_depth, depth};

/// Depth choices over a grid of concurrencies and contexts.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthTable {
    /// Rising.
    pub concurrencies: Vec<u32>,
    /// Rising, tokens.
    pub contexts: Vec<u32>,
    /// One row per context, one choice per concurrency.
    pub choices: Vec<Vec<DepthChoice>>,
    /// Speedups by context, concurrency, depth (index 0 is depth 1), for ties along the load.
    speedups: Vec<Vec<Vec<f64>>>,
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
        let sorted = |values: &[u32], least: u32| {
            let mut values: Vec<u32> = values.iter().copied().filter(|v| *v >= least).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let (concurrencies, contexts) = (sorted(concurrencies, 1), sorted(contexts, 0));
        let (mut choices, mut speedups) = (Vec::new(), Vec::new());
        for &context in &contexts {
            let points = concurrencies.iter().map(|&c| OperatingPoint {
                concurrency: f64::from(c),
                context: f64::from(context),
            });
            let (mut row, mut speeds) = (Vec::new(), Vec::new());
            for at in points {
                row.push(choose_depth(cost, at, accept_lengths));
                let options = depth::options(cost, at, accept_lengths);
                speeds.push(options.iter().map(|o| o.speedup).collect());
            }
            choices.push(row);
            speedups.push(speeds);
        }
        Self {
            concurrencies,
            contexts,
            choices,
            speedups,
        }
    }

    /// Ranges of load with one depth, for every context. A depth is kept along the load as long
    /// as it ties with the best (within 5 %): every switch costs graphs and warm-up.
    pub fn ranges(&self) -> Vec<DepthRange> {
        let mut ranges = Vec::new();
        for (row, (&context_to, choices)) in self.contexts.iter().zip(&self.choices).enumerate() {
            let mut open: Option<DepthRange> = None;
            for (column, (&concurrency, choice)) in
                self.concurrencies.iter().zip(choices).enumerate()
            {
                let best = choice.best;
                if let Some(range) = &mut open {
                    let kept = match range.steps {
                        0 => 1.0,
                        k => self.speedup(row, column, k),
                    };
                    // Never kept where it loses against plain decoding.
                    if kept >= best.speedup * (1.0 - TIE_SHARE) && kept >= 1.0 {
                        range.concurrency_to = self.last_before_next(column);
                        continue;
                    }
                    ranges.push(*range);
                }
                open = Some(DepthRange {
                    concurrency_from: if column == 0 { 1 } else { concurrency },
                    concurrency_to: self.last_before_next(column),
                    context_to,
                    steps: best.depth,
                });
            }
            ranges.extend(open);
        }
        ranges
    }

    fn speedup(&self, row: usize, column: usize, depth: u32) -> f64 {
        let speeds = self.speedups.get(row).and_then(|r| r.get(column));
        speeds
            .and_then(|s| s.get(depth as usize - 1))
            .copied()
            .unwrap_or(0.0)
    }

    fn last_before_next(&self, column: usize) -> u32 {
        match self.concurrencies.get(column + 1) {
            Some(next) => next - 1,
            None => self.concurrencies.get(column).copied().unwrap_or(1),
        }
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
