//! What a measurement says: the posterior of level and slope, and bands from it.
//!
//! The prior is normal in (level, slope). Evidence adds its log likelihood: counts are binomial,
//! so that a log of 50 cycles is not a log of 50,000; a published accept length without a number
//! of cycles carries the scatter that published curves have. The posterior is a grid laid around
//! its peak along the axes of its curvature, so it is as fine as the evidence is strong.

use super::band::AcceptanceBand;
use super::chain::{Chain, MAX_LEVEL};
use super::prior::AcceptancePrior;
use crate::error::AcceptanceError;

/// Cycles assumed behind figures that come without a number of cycles. 4000 cycles scatter an
/// accept length of 2.3 by 0.018, one of 4 by 0.03; public curves scatter around their own level
/// and slope by 0.011 (SpecBundle) to 0.035 (golden curves, cards).
pub const ASSUMED_CYCLES: f64 = 4000.0;

/// Least standard deviation of an accept length: two digits are printed.
const ROUNDING_SD: f64 = 0.003;

/// What two parameters leave of a curve however many cycles there are, in tokens at an accept
/// length of 2.5; it shrinks with the accepted tokens. Public curves leave 0.022 to 0.033 with
/// their own noise in it.
const FORM_SD: f64 = 0.02;

/// Degrees of freedom of the level's prior once there is evidence. A broken setup lies far out of
/// the spread of sound pairs, and then the measurement must win: Student's tails let it.
const TAIL_FREEDOM: f64 = 3.0;

/// One measurement of acceptance.
#[derive(Debug, Clone, PartialEq)]
pub enum Evidence {
    /// Tokens per verify, bonus token included, at one depth.
    AcceptLength {
        /// Drafted tokens per cycle.
        depth: u32,
        /// Tokens per verify.
        accept_length: f64,
        /// Verify passes it was averaged over, where known; else [`ASSUMED_CYCLES`].
        cycles: Option<f64>,
    },
    /// Cumulative rates by position, as vLLM prints them.
    PositionRates {
        /// Fraction of cycles in which position i was accepted.
        cumulative: Vec<f64>,
        /// Verify passes, where known; else [`ASSUMED_CYCLES`].
        cycles: Option<f64>,
    },
    /// Counts by position.
    PositionCounts {
        /// Verify passes.
        cycles: u64,
        /// Passes in which position i was accepted.
        accepted: Vec<u64>,
    },
}

impl Evidence {
    /// Refuses figures that no acceptance can have.
    ///
    /// # Errors
    /// The [`AcceptanceError`] that names the figure.
    pub fn check(&self) -> Result<(), AcceptanceError> {
        match self {
            Self::AcceptLength {
                depth,
                accept_length,
                cycles,
            } => {
                Chain::with_slope(*accept_length, *depth, 0.0)?;
                positive("cycles", *cycles)
            }
            Self::PositionRates { cumulative, cycles } => {
                check_rates(cumulative)?;
                positive("cycles", *cycles)
            }
            Self::PositionCounts { cycles, accepted } => {
                if accepted.is_empty() {
                    return Err(AcceptanceError::Empty("list of accepted counts"));
                }
                positive("cycles", Some(*cycles as f64))?;
                let mut before = *cycles;
                for (index, &count) in accepted.iter().enumerate() {
                    if count > before {
                        return Err(AcceptanceError::Counts {
                            position: index + 1,
                        });
                    }
                    before = count;
                }
                Ok(())
            }
        }
    }

    /// Variance of one cycle's tokens under the chain that fits a figure, for accept lengths.
    fn cycle_variance(&self, slope: f64) -> f64 {
        match self {
            Self::AcceptLength {
                depth,
                accept_length,
                ..
            } => {
                Chain::with_slope(*accept_length, *depth, slope).map_or(1.0, |c| c.variance(*depth))
            }
            _ => 0.0,
        }
    }

    /// Log likelihood of a chain, up to a constant.
    fn log_likelihood(&self, chain: &Chain, cycle_variance: f64) -> f64 {
        match self {
            Self::AcceptLength {
                depth,
                accept_length,
                cycles,
            } => {
                let cycles = cycles.unwrap_or(ASSUMED_CYCLES);
                let variance = (cycle_variance / cycles).max(ROUNDING_SD * ROUNDING_SD);
                let miss = chain.accept_length(*depth) - accept_length;
                -0.5 * miss * miss / variance
            }
            Self::PositionRates { cumulative, cycles } => {
                let n = cycles.unwrap_or(ASSUMED_CYCLES);
                let counts = cumulative.iter().map(|r| r * n);
                binomial(chain, n, counts)
            }
            Self::PositionCounts { cycles, accepted } => {
                binomial(chain, *cycles as f64, accepted.iter().map(|&k| k as f64))
            }
        }
    }
}

fn positive(what: &'static str, value: Option<f64>) -> Result<(), AcceptanceError> {
    match value {
        Some(v) if !(v.is_finite() && v > 0.0) => {
            Err(AcceptanceError::NotPositive { what, value: v })
        }
        _ => Ok(()),
    }
}

/// Checks cumulative rates: probabilities that do not rise (by more than their rounding).
pub(crate) fn check_rates(cumulative: &[f64]) -> Result<(), AcceptanceError> {
    if cumulative.is_empty() {
        return Err(AcceptanceError::Empty("list of position rates"));
    }
    let mut before = 1.0;
    for (index, &rate) in cumulative.iter().enumerate() {
        let position = index + 1;
        if !(0.0..=1.0).contains(&rate) {
            return Err(AcceptanceError::Rate { position, rate });
        }
        // Engines print two or three digits; a rise within rounding is not one.
        if rate > before + 0.0051 {
            return Err(AcceptanceError::RatesRise { position });
        }
        before = rate;
    }
    Ok(())
}

/// Σ over positions of log Binomial(accepted_i | accepted_(i-1), alpha_i), without constants.
fn binomial(chain: &Chain, cycles: f64, accepted: impl Iterator<Item = f64>) -> f64 {
    let mut reached = cycles;
    let mut total = 0.0;
    for (count, step) in accepted.zip(chain.steps()) {
        let count = count.min(reached);
        total += count * step.accepted.max(LEAST).ln()
            + (reached - count) * step.refused.max(LEAST).ln();
        reached = count;
        if reached <= 0.0 {
            break;
        }
    }
    total
}

/// Keeps a logarithm finite where a position is certain to more digits than a number has.
const LEAST: f64 = 1e-300;

/// Half-width of the grid in standard deviations, and its points per axis.
const GRID_SDS: f64 = 4.5;
const GRID_POINTS: i32 = 37;

/// Level and slope after the evidence: weighted chains around the peak.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    chains: Vec<(Chain, f64)>,
    peak: Chain,
    /// Whether anything was measured: the prior's spread holds the form's error already.
    measured: bool,
}

impl Posterior {
    /// The posterior from a prior and any number of measurements (none gives the prior).
    ///
    /// # Errors
    /// The [`AcceptanceError`] of the first impossible measurement.
    pub fn new(prior: &AcceptancePrior, evidence: &[Evidence]) -> Result<Self, AcceptanceError> {
        for item in evidence {
            item.check()?;
        }
        // The scatter of one cycle belongs to the figure, not to each candidate chain.
        let variances: Vec<f64> = evidence
            .iter()
            .map(|e| e.cycle_variance(prior.slope.mean))
            .collect();
        let density = |level: f64, slope: f64| -> f64 {
            let chain = Chain::new(level, slope);
            let z_level = (level - prior.level.mean) / prior.level.sd.max(1e-3);
            let z_slope = (slope - prior.slope.mean) / prior.slope.sd.max(1e-3);
            let level_prior = if evidence.is_empty() {
                -0.5 * z_level * z_level
            } else {
                -0.5 * (TAIL_FREEDOM + 1.0) * (z_level * z_level / TAIL_FREEDOM).ln_1p()
            };
            let terms = evidence.iter().zip(&variances);
            let likelihood: f64 = terms.map(|(e, v)| e.log_likelihood(&chain, *v)).sum();
            likelihood + level_prior - 0.5 * z_slope * z_slope
        };
        let start = start_level(prior, evidence);
        let peak = climb(&density, start, prior.slope.mean);
        let mut posterior = Self::grid_around(&density, peak);
        posterior.measured = !evidence.is_empty();
        Ok(posterior)
    }

    /// The posterior of one accept length at one depth with the head's default prior.
    ///
    /// # Errors
    /// [`AcceptanceError::AcceptLength`] when it is impossible at this depth.
    pub fn from_accept_length(
        prior: &AcceptancePrior,
        accept_length: f64,
        depth: u32,
    ) -> Result<Self, AcceptanceError> {
        Self::new(
            prior,
            &[Evidence::AcceptLength {
                depth,
                accept_length,
                cycles: None,
            }],
        )
    }

    /// The most probable chain.
    pub fn chain(&self) -> Chain {
        self.peak
    }

    /// Interval of the level that holds `coverage` of the posterior.
    pub fn level_interval(&self, coverage: f64) -> (f64, f64) {
        self.interval(coverage, |c| c.level)
    }

    /// Interval of the slope that holds `coverage` of the posterior.
    pub fn slope_interval(&self, coverage: f64) -> (f64, f64) {
        self.interval(coverage, |c| c.slope)
    }

    /// Band of the accept length at one depth that holds `coverage` (0.9 for 90 %): the
    /// parameters' spread and, once measured, what the chain's form misses however long the log.
    pub fn band(&self, depth: u32, coverage: f64) -> AcceptanceBand {
        let values = self.sorted(|c| c.accept_length(depth));
        let tail = 0.5 * (1.0 - coverage.clamp(0.0, 1.0));
        let mid = weighted_quantile(&values, 0.5);
        let low = mid - weighted_quantile(&values, tail);
        let high = weighted_quantile(&values, 1.0 - tail) - mid;
        let form = if self.measured {
            FORM_SD * ((mid - 1.0) / 1.5).min(1.0) * normal_quantile(1.0 - tail)
        } else {
            0.0
        };
        AcceptanceBand {
            depth,
            low: (mid - low.hypot(form)).max(1.0),
            mid,
            high: (mid + high.hypot(form)).min(f64::from(depth) + 1.0),
        }
    }

    /// [`Self::band`] for depths `1 ..= depth`.
    pub fn bands(&self, depth: u32, coverage: f64) -> Vec<AcceptanceBand> {
        (1..=depth).map(|d| self.band(d, coverage)).collect()
    }

    /// P(accept length at this depth is above a threshold), for "does it pay".
    pub fn probability_above(&self, depth: u32, accept_length: f64) -> f64 {
        self.chains
            .iter()
            .filter(|(c, _)| c.accept_length(depth) > accept_length)
            .map(|(_, w)| w)
            .sum::<f64>()
            .clamp(0.0, 1.0)
    }

    /// The weighted chains themselves (weights sum to 1), for sums over the posterior.
    pub fn chains(&self) -> &[(Chain, f64)] {
        &self.chains
    }

    fn interval(&self, coverage: f64, of: impl Fn(&Chain) -> f64) -> (f64, f64) {
        let values = self.sorted(of);
        let tail = 0.5 * (1.0 - coverage.clamp(0.0, 1.0));
        (
            weighted_quantile(&values, tail),
            weighted_quantile(&values, 1.0 - tail),
        )
    }

    fn sorted(&self, of: impl Fn(&Chain) -> f64) -> Vec<(f64, f64)> {
        let mut values: Vec<(f64, f64)> = self.chains.iter().map(|(c, w)| (of(c), *w)).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        values
    }

    /// Lays the grid along the axes of the curvature at the peak.
    fn grid_around(density: &impl Fn(f64, f64) -> f64, peak: (f64, f64)) -> Self {
        let hessian = Hessian::at(density, peak);
        let (axis_a, axis_b) = hessian.axes();
        let at_peak = density(peak.0, peak.1);
        let step = 2.0 * GRID_SDS / f64::from(GRID_POINTS - 1);
        let mut chains = Vec::with_capacity((GRID_POINTS * GRID_POINTS) as usize);
        let mut total = 0.0;
        for i in 0..GRID_POINTS {
            let u = -GRID_SDS + step * f64::from(i);
            for j in 0..GRID_POINTS {
                let v = -GRID_SDS + step * f64::from(j);
                let level = peak.0 + u * axis_a.0 + v * axis_b.0;
                let slope = peak.1 + u * axis_a.1 + v * axis_b.1;
                let weight = (density(level, slope) - at_peak).exp();
                if weight > 1e-9 {
                    chains.push((Chain::new(level, slope), weight));
                    total += weight;
                }
            }
        }
        let peak = Chain::new(peak.0, peak.1);
        if chains.is_empty() || !total.is_finite() {
            return Self {
                chains: vec![(peak, 1.0)],
                peak,
                measured: false,
            };
        }
        for (_, weight) in &mut chains {
            *weight /= total;
        }
        Self {
            chains,
            peak,
            measured: false,
        }
    }
}

/// A level near the peak: that of the first measurement, else the prior's.
fn start_level(prior: &AcceptancePrior, evidence: &[Evidence]) -> f64 {
    let (length, depth) = match evidence.first() {
        Some(Evidence::AcceptLength {
            depth,
            accept_length,
            ..
        }) => (*accept_length, *depth),
        Some(Evidence::PositionRates { cumulative, .. }) => (
            1.0 + cumulative.iter().sum::<f64>(),
            cumulative.len() as u32,
        ),
        Some(Evidence::PositionCounts { cycles, accepted }) => (
            1.0 + accepted.iter().map(|&a| a as f64).sum::<f64>() / *cycles as f64,
            accepted.len() as u32,
        ),
        None => return prior.level.mean,
    };
    Chain::with_slope(length, depth, prior.slope.mean)
        .map_or(prior.level.mean, |c| c.level.clamp(-6.0, 6.0))
}

/// Newton's method with a step that shrinks until the density rises.
fn climb(density: &impl Fn(f64, f64) -> f64, level: f64, slope: f64) -> (f64, f64) {
    let mut at = (level, slope);
    let mut value = density(at.0, at.1);
    for _ in 0..60 {
        let hessian = Hessian::at(density, at);
        let (d_level, d_slope) = hessian.newton_step();
        let mut scale = 1.0;
        let mut moved = false;
        for _ in 0..30 {
            let next = (
                (at.0 + scale * d_level).clamp(-MAX_LEVEL, MAX_LEVEL),
                (at.1 + scale * d_slope).clamp(-6.0, 6.0),
            );
            let next_value = density(next.0, next.1);
            if next_value > value {
                moved = next_value - value > 1e-10;
                at = next;
                value = next_value;
                break;
            }
            scale *= 0.5;
        }
        if !moved {
            break;
        }
    }
    at
}

/// Gradient and curvature of a log density in two variables, by central differences.
struct Hessian {
    gradient: (f64, f64),
    /// Negative second derivatives: level-level, level-slope, slope-slope.
    curvature: (f64, f64, f64),
}

impl Hessian {
    fn at(density: &impl Fn(f64, f64) -> f64, (x, b): (f64, f64)) -> Self {
        let (h, k) = (1e-3, 3e-4);
        let f = density(x, b);
        let (xp, xm) = (density(x + h, b), density(x - h, b));
        let (bp, bm) = (density(x, b + k), density(x, b - k));
        let mixed = density(x + h, b + k) - density(x + h, b - k) - density(x - h, b + k)
            + density(x - h, b - k);
        Self {
            gradient: ((xp - xm) / (2.0 * h), (bp - bm) / (2.0 * k)),
            curvature: (
                ((2.0 * f - xp - xm) / (h * h)).max(1e-3),
                -mixed / (4.0 * h * k),
                ((2.0 * f - bp - bm) / (k * k)).max(1e-3),
            ),
        }
    }

    /// Curvature with the mixed term held so that the matrix stays positive definite.
    fn safe(&self) -> (f64, f64, f64) {
        let (a, c, d) = self.curvature;
        let limit = 0.999 * (a * d).sqrt();
        (a, c.clamp(-limit, limit), d)
    }

    fn newton_step(&self) -> (f64, f64) {
        let (a, c, d) = self.safe();
        let det = a * d - c * c;
        let (g, s) = self.gradient;
        ((d * g - c * s) / det, (a * s - c * g) / det)
    }

    /// Columns of the Cholesky factor of the covariance: one standard deviation along each.
    fn axes(&self) -> ((f64, f64), (f64, f64)) {
        let (a, c, d) = self.safe();
        let det = a * d - c * c;
        let (var_x, cov, var_b) = (d / det, -c / det, a / det);
        let l11 = var_x.sqrt();
        let l21 = cov / l11;
        let l22 = (var_b - l21 * l21).max(0.0).sqrt();
        ((l11, l21), (0.0, l22))
    }
}

/// Quantile of sorted (value, weight) pairs, interpolated between the middles of the weights.
fn weighted_quantile(sorted: &[(f64, f64)], q: f64) -> f64 {
    let Some(&(first, first_weight)) = sorted.first() else {
        return f64::NAN;
    };
    let mut before = (first, 0.5 * first_weight);
    let mut sum = 0.0;
    for &(value, weight) in sorted {
        let middle = sum + 0.5 * weight;
        if middle >= q {
            let span = middle - before.1;
            if span <= 0.0 {
                return value;
            }
            return before.0 + (value - before.0) * ((q - before.1) / span).clamp(0.0, 1.0);
        }
        before = (value, middle);
        sum += weight;
    }
    before.0
}

/// Quantile of the standard normal for `p >= 0.5` (Abramowitz and Stegun 26.2.23, to 0.0005).
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * (1.0 - p).max(1e-12).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    (t - above / below).max(0.0)
}
