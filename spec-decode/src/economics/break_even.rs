//! Up to which load and context it pays, and which input would flip the answer.

use super::{Economy, OperatingPoint, StepCost};

/// Concurrencies at which a setting pays, within what was asked about.
#[derive(Debug, Clone, PartialEq)]
pub struct PayRange {
    /// Intervals (from, to) with a speedup above 1, in rising order. There can be several: with
    /// experts, speculation can lose at a few users, win at more, and lose again when the compute
    /// limit is reached.
    pub intervals: Vec<(f64, f64)>,
}

impl PayRange {
    /// The largest concurrency that still pays; `None` where none does.
    pub fn up_to(&self) -> Option<f64> {
        self.intervals.last().map(|i| i.1)
    }
}

/// Grid points per doubling of concurrency between which a crossing is looked for.
const POINTS_PER_DOUBLING: f64 = 4.0;

/// Where a chain of `depth` with this accept length pays between concurrency 1 and
/// `max_concurrency`. Crossings are found to 0.1 %.
pub fn pay_range(
    cost: &impl StepCost,
    context: f64,
    depth: u32,
    accept_length: f64,
    max_concurrency: f64,
) -> PayRange {
    let gain = |log: f64| {
        let at = OperatingPoint {
            concurrency: log.exp2(),
            context,
        };
        Economy::of_chain(cost, at, depth).speedup(accept_length) - 1.0
    };
    let top = max_concurrency.clamp(1.0, 1e6).log2();
    let steps = (top * POINTS_PER_DOUBLING).ceil().max(1.0) as u32;
    let mut intervals = Vec::new();
    let mut open = (gain(0.0) > 0.0).then_some(0.0);
    let mut before = 0.0;
    for step in 1..=steps {
        let here = top * f64::from(step) / f64::from(steps);
        let pays = gain(here) > 0.0;
        match (open, pays) {
            (Some(from), false) => {
                intervals.push((from, crossing(&gain, before, here)));
                open = None;
            }
            (None, true) => open = Some(crossing(&gain, before, here)),
            _ => {}
        }
        before = here;
    }
    intervals.extend(open.map(|from| (from, top)));
    PayRange {
        intervals: intervals
            .into_iter()
            .map(|(from, to): (f64, f64)| (from.exp2(), to.exp2()))
            .collect(),
    }
}

/// Bisects for the change of sign between two points.
fn crossing(gain: &impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    let low_pays = gain(low) > 0.0;
    for _ in 0..12 {
        let middle = 0.5 * (low + high);
        if (gain(middle) > 0.0) == low_pays {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// An input whose change alone turns the verdict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flip {
    /// `accept_length`, `concurrency`, `context`, `verify_ms`, `draft_ms`, `plain_ms`.
    pub input: &'static str,
    /// Its value now.
    pub from: f64,
    /// Its value at a speedup of 1.
    pub to: f64,
}

impl Flip {
    /// How far it is: |ln(to / from)|; infinite from 0.
    pub fn distance(&self) -> f64 {
        if self.from > 0.0 && self.to > 0.0 {
            (self.to / self.from).ln().abs()
        } else {
            f64::INFINITY
        }
    }
}

/// Most concurrency and context that are searched for a flip.
const MAX_CONCURRENCY: f64 = 1024.0;
const MAX_CONTEXT: f64 = 1_048_576.0;

/// Every single input that would flip the answer at an operating point, the nearest first. Inputs
/// that cannot (a draft that costs nothing already) are absent.
pub fn flips(
    cost: &impl StepCost,
    at: OperatingPoint,
    depth: u32,
    accept_length: f64,
) -> Vec<Flip> {
    let plain_ms = cost.plain_ms(at);
    let verify_ms = cost.verify_ms(at, depth.saturating_add(1));
    let draft_ms = cost.draft_ms(at, depth);
    let pays = Economy::new(plain_ms, verify_ms + draft_ms).speedup(accept_length) > 1.0;
    let break_even = Economy::new(plain_ms, verify_ms + draft_ms).break_even_accept_length();
    let mut found = Vec::new();
    let mut add = |input: &'static str, from: f64, to: f64| {
        if to.is_finite() && to > 0.0 && from > 0.0 {
            found.push(Flip { input, from, to });
        }
    };
    if break_even <= f64::from(depth) + 1.0 {
        add("accept_length", accept_length, break_even);
    }
    add("verify_ms", verify_ms, accept_length * plain_ms - draft_ms);
    add("draft_ms", draft_ms, accept_length * plain_ms - verify_ms);
    add("plain_ms", plain_ms, (verify_ms + draft_ms) / accept_length);
    let range = pay_range(cost, at.context, depth, accept_length, MAX_CONCURRENCY);
    let edges = range.intervals.iter().flat_map(|i| [i.0, i.1]);
    let nearest = edges
        .filter(|c| *c > 1.0 && *c < MAX_CONCURRENCY * 0.999)
        .min_by(|a, b| {
            let distance = |c: &f64| (c / at.concurrency.max(1.0)).ln().abs();
            distance(a).total_cmp(&distance(b))
        });
    if let Some(concurrency) = nearest {
        add("concurrency", at.concurrency, concurrency);
    }
    if let Some(context) = context_flip(cost, at, depth, accept_length, pays) {
        add("context", at.context.max(1.0), context);
    }
    found.sort_by(|a, b| a.distance().total_cmp(&b.distance()));
    found
}

/// The nearest longer context (or shorter, where it does not pay now) with a speedup of 1.
fn context_flip(
    cost: &impl StepCost,
    at: OperatingPoint,
    depth: u32,
    accept_length: f64,
    pays: bool,
) -> Option<f64> {
    let gain = |log: f64| {
        let there = OperatingPoint {
            context: log.exp2(),
            ..at
        };
        Economy::of_chain(cost, there, depth).speedup(accept_length) - 1.0
    };
    let start = at.context.max(1.0).log2();
    let (end, steps) = if pays {
        (MAX_CONTEXT.log2(), 40u32)
    } else {
        (0.0, 40)
    };
    let mut before = start;
    for step in 1..=steps {
        let here = start + (end - start) * f64::from(step) / f64::from(steps);
        if (gain(here) > 0.0) != pays {
            return Some(crossing(&gain, before, here).exp2());
        }
        before = here;
    }
    None
}
