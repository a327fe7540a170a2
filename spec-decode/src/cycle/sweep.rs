//! A plain concurrency sweep, read robustly: what a decode step costs at any number of tokens.

use std::fmt;

use super::graphs::GraphLadder;

/// How a step grows beyond the last measured point: fixed cost + slope x tokens ^ exponent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// Exponent of the token count.
    pub exponent: f64,
    /// Typical slope over fixed cost; it decides where the sweep has few points.
    pub typical_slope: f64,
}

impl Growth {
    /// Mixture of experts: more tokens touch more experts, ever more slowly, while compute and
    /// all-reduce payloads go on growing. Fitted on the speculative rows beyond the last plain
    /// point of `data/speculation/sweeps.jsonl`; the same when any one model is left out. The
    /// slope is that of the long sweeps there (0.13 to 0.17).
    pub const EXPERTS: Self = Self {
        exponent: 0.7,
        typical_slope: 0.15,
    };
    /// Dense: the weights are read whole at any batch, compute grows with the tokens. The slope is
    /// bf16 weights over rates: a token's compute over the time to read them, 1 / 206 on an H100.
    pub const DENSE: Self = Self {
        exponent: 1.0,
        typical_slope: 0.005,
    };
}

/// Weight of the typical slope, as a share of one point at one token.
const TYPICAL_WEIGHT: f64 = 0.3;

/// KV reading that does not grow as a plain step does: known from the architecture, or from a
/// second sweep at another context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvReading {
    /// Reading one sequence's KV once, ms.
    pub ms_per_sequence: f64,
    /// How often a verify of D tokens reads it: 1 (one pass) to D (kernels that treat the tokens
    /// as separate sequences).
    pub verify_multiplier: f64,
}

/// A value read from a sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Step time, ms.
    pub step_ms: f64,
    /// True where the token count lies outside the measured points.
    pub extrapolated: bool,
    /// ln(tokens / last measured tokens) beyond the sweep, ln(first / tokens) below it, else 0.
    pub beyond: f64,
}

/// Why a sweep cannot be used.
#[derive(Debug, Clone, PartialEq)]
pub enum SweepError {
    /// No points.
    Empty,
    /// A concurrency, rate or time that is not a positive finite number.
    NotPositive {
        /// Which point, from 0, in the order given.
        index: usize,
        /// What is wrong with it: `concurrency`, `tok/s` or `step ms`.
        what: &'static str,
        /// The value given.
        value: f64,
    },
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the sweep has no points: give concurrency,tok_s lines"),
            Self::NotPositive { index, what, value } => write!(
                f,
                "point {} of the sweep has {what} {value}: it must be a positive number",
                index + 1
            ),
        }
    }
}

impl std::error::Error for SweepError {}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    tokens: f64,
    step_ms: f64,
}

/// A plain sweep: step time by tokens, without the KV part where that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    points: Vec<Point>,
    measured: Vec<(f64, f64)>,
    ladder: GraphLadder,
    growth: Growth,
    kv: KvReading,
    fixed: f64,
    slope: f64,
}

impl Sweep {
    /// From `(concurrency, tok/s of all sequences together)`, in any order.
    ///
    /// # Errors
    /// [`SweepError`] where there are no points or one is not positive.
    pub fn from_tok_s(
        points: &[(f64, f64)],
        ladder: GraphLadder,
        growth: Growth,
    ) -> Result<Self, SweepError> {
        let mut steps = Vec::with_capacity(points.len());
        for (index, &(concurrency, tok_s)) in points.iter().enumerate() {
            check(index, "concurrency", concurrency)?;
            check(index, "tok/s", tok_s)?;
            steps.push((concurrency, 1000.0 * concurrency / tok_s));
        }
        Self::from_step_ms(&steps, ladder, growth)
    }

    /// From `(concurrency, step ms)`, in any order; points of one concurrency are averaged.
    ///
    /// # Errors
    /// [`SweepError`] where there are no points or one is not positive.
    pub fn from_step_ms(
        points: &[(f64, f64)],
        ladder: GraphLadder,
        growth: Growth,
    ) -> Result<Self, SweepError> {
        if points.is_empty() {
            return Err(SweepError::Empty);
        }
        for (index, &(concurrency, step_ms)) in points.iter().enumerate() {
            check(index, "concurrency", concurrency)?;
            check(index, "step ms", step_ms)?;
        }
        let mut measured = points.to_vec();
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        let kv = KvReading {
            ms_per_sequence: 0.0,
            verify_multiplier: 1.0,
        };
        let mut sweep = Self {
            points: Vec::new(),
            measured,
            ladder,
            growth,
            kv,
            fixed: 0.0,
            slope: 0.0,
        };
        sweep.rebuild();
        Ok(sweep)
    }

    /// The same sweep with the KV part of a step told apart: it grows with sequences, the rest
    /// with tokens. KV that the sweep's own growth contradicts is cut to what it allows.
    #[must_use]
    pub fn with_kv(mut self, kv: KvReading) -> Self {
        let allowed = self
            .measured
            .iter()
            .map(|&(concurrency, step_ms)| KV_SHARE_LIMIT * step_ms / concurrency)
            .fold(f64::INFINITY, f64::min)
            .min(self.growth_by_sequence());
        self.kv = KvReading {
            ms_per_sequence: kv.ms_per_sequence.max(0.0).min(allowed),
            verify_multiplier: kv.verify_multiplier.max(1.0),
        };
        self.rebuild();
        self
    }

    /// What a further sequence adds over the whole sweep, ms: no part of it can cost more. Prompts
    /// that the sequences share, which are read once, show here. No bound with one point.
    fn growth_by_sequence(&self) -> f64 {
        match (self.measured.first(), self.measured.last()) {
            (Some(first), Some(last)) if last.0 > first.0 => {
                ((last.1 - first.1) / (last.0 - first.0)).max(0.0)
            }
            _ => f64::INFINITY,
        }
    }

    /// Orders, pads, merges and makes the points monotone: a step over more tokens never costs
    /// less, so a dip is noise and is pooled with its neighbours (in log time).
    fn rebuild(&mut self) {
        let mut points: Vec<(Point, f64)> = Vec::with_capacity(self.measured.len());
        for &(concurrency, step_ms) in &self.measured {
            let tokens = self.ladder.padded(concurrency);
            let core_ms = step_ms - concurrency * self.kv.ms_per_sequence;
            let log_ms = core_ms.max(f64::MIN_POSITIVE).ln();
            match points.last_mut() {
                Some((last, weight)) if last.tokens == tokens => {
                    last.step_ms = (last.step_ms * *weight + log_ms) / (*weight + 1.0);
                    *weight += 1.0;
                }
                _ => points.push((
                    Point {
                        tokens,
                        step_ms: log_ms,
                    },
                    1.0,
                )),
            }
        }
        let logs = pool(
            &points
                .iter()
                .map(|(p, w)| (p.step_ms, *w))
                .collect::<Vec<_>>(),
        );
        self.points = points
            .iter()
            .zip(logs)
            .map(|((point, _), log_ms)| Point {
                tokens: point.tokens,
                step_ms: log_ms.exp(),
            })
            .collect();
        (self.fixed, self.slope) = fixed_and_slope(&self.points, self.growth);
    }

    /// Largest number of tokens measured.
    pub fn last_tokens(&self) -> f64 {
        self.points.last().map_or(0.0, |p| p.tokens)
    }

    /// Tokens that a pass over `tokens` of `sequences` really computes.
    pub fn padded_of(&self, sequences: f64, tokens: f64) -> f64 {
        self.ladder.padded_of(sequences, tokens)
    }

    /// The part of a step that computes `padded` tokens which grows with them, ms: without what is
    /// paid by sequence.
    pub fn core_ms(&self, padded: f64) -> f64 {
        self.core(padded)
    }

    /// The KV part in use, after the cut of [`Sweep::with_kv`].
    pub fn kv(&self) -> KvReading {
        self.kv
    }

    /// What one plain step costs at a concurrency: the measured figure itself where there is one.
    pub fn plain_ms(&self, concurrency: f64) -> f64 {
        let same: Vec<f64> = self
            .measured
            .iter()
            .filter(|(c, _)| *c == concurrency)
            .map(|(_, step_ms)| step_ms.ln())
            .collect();
        if same.is_empty() {
            let tokens = self.ladder.padded(concurrency);
            return self.core(tokens) + concurrency * self.kv.ms_per_sequence;
        }
        (same.iter().sum::<f64>() / same.len() as f64).exp()
    }

    /// A step over `tokens` of `sequences`, smoothed; `tokens == sequences` is a plain step, more
    /// tokens a verify.
    pub fn read(&self, sequences: f64, tokens: f64) -> Reading {
        let padded = self.ladder.padded_of(sequences, tokens);
        let first = self.points.first().map_or(0.0, |p| p.tokens);
        let beyond = (padded / self.last_tokens())
            .ln()
            .max((first / padded).ln());
        let times = if tokens > sequences {
            self.kv.verify_multiplier.min(tokens / sequences)
        } else {
            1.0
        };
        Reading {
            step_ms: self.core(padded) + times * sequences * self.kv.ms_per_sequence,
            extrapolated: beyond > 0.0,
            beyond: beyond.max(0.0),
        }
    }

    /// A step over `tokens`, as [`Sweep::read`] of as many sequences.
    pub fn step_ms(&self, tokens: f64) -> Reading {
        self.read(tokens, tokens)
    }

    /// The part of a step that grows with tokens, ms: log-log interpolation inside, the fitted
    /// growth hung on the last point beyond and on the first below.
    fn core(&self, tokens: f64) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return f64::NAN;
        };
        if tokens <= first.tokens {
            return first.step_ms * self.grown(first.tokens, tokens).min(1.0);
        }
        if tokens >= last.tokens {
            return last.step_ms * self.grown(last.tokens, tokens).max(1.0);
        }
        let above = self.points.partition_point(|p| p.tokens < tokens);
        let (Some(a), Some(b)) = (
            self.points.get(above.saturating_sub(1)),
            self.points.get(above),
        ) else {
            return last.step_ms;
        };
        let share = (tokens / a.tokens).ln() / (b.tokens / a.tokens).ln();
        (a.step_ms.ln() + share * (b.step_ms / a.step_ms).ln()).exp()
    }

    /// Step time at `to` tokens over that at `from` by the fitted growth.
    fn grown(&self, from: f64, to: f64) -> f64 {
        let power = |t: f64| self.fixed + self.slope * t.powf(self.growth.exponent);
        power(to) / power(from)
    }
}

/// KV may take at most this share of any measured step: weights and launches cost something.
const KV_SHARE_LIMIT: f64 = 0.9;

fn check(index: usize, what: &'static str, value: f64) -> Result<(), SweepError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(SweepError::NotPositive { index, what, value })
    }
}

/// Isotonic regression (pool adjacent violators) of `(value, weight)`.
fn pool(values: &[(f64, f64)]) -> Vec<f64> {
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(values.len());
    for &(value, weight) in values {
        let mut block = (value, weight, 1);
        while let Some(&(before, w, n)) = blocks.last() {
            if before <= block.0 {
                break;
            }
            blocks.pop();
            let total = w + block.1;
            block = ((before * w + block.0 * block.1) / total, total, n + block.2);
        }
        blocks.push(block);
    }
    blocks
        .into_iter()
        .flat_map(|(value, _, n)| std::iter::repeat_n(value, n))
        .collect()
}

/// Least squares of the relative error of `fixed + slope * tokens ^ exponent`, with the typical
/// slope as one light observation more; both at least 0.
fn fixed_and_slope(points: &[Point], growth: Growth) -> (f64, f64) {
    let Some(last) = points.last() else {
        return (1.0, 0.0);
    };
    let typical = TYPICAL_WEIGHT / (last.step_ms * last.step_ms);
    let mut s0 = typical * growth.typical_slope * growth.typical_slope;
    let mut s1 = -typical * growth.typical_slope;
    let mut s2 = typical;
    let (mut y0, mut y1) = (0.0, 0.0);
    for point in points {
        let x = point.tokens.powf(growth.exponent);
        let weight = 1.0 / (point.step_ms * point.step_ms);
        s0 += weight;
        s1 += weight * x;
        s2 += weight * x * x;
        y0 += weight * point.step_ms;
        y1 += weight * x * point.step_ms;
    }
    let determinant = s0 * s2 - s1 * s1;
    if determinant.is_nan() || determinant <= 1e-12 * s0 * s2 {
        return (1.0, growth.typical_slope);
    }
    let fixed = (y0 * s2 - y1 * s1) / determinant;
    let slope = (s0 * y1 - s1 * y0) / determinant;
    match (fixed < 0.0, slope < 0.0) {
        (_, true) => (1.0, 0.0),
        (true, false) => (0.0, 1.0),
        (false, false) => (fixed, slope),
    }
}
