//! Bands: how far a prediction may be off, learned from what predictions of the same kind were
//! off by. Nothing here is taste: [`ResidualModel::shipped`] holds what `score` measured.

use std::collections::BTreeSet;
use std::fmt;

use crate::cycle::level::ONE_READING_LOG_SD;

/// Where the step times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepSource {
    /// The user's plain sweep.
    Sweep,
    /// The architecture, the card and the links alone.
    Scratch,
}

/// Where the accept length comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AcceptSource {
    /// Measured on the user's traffic, or read off one speculative speed.
    Measured,
    /// The head kind's prior.
    Prior,
}

/// What a prediction knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Situation {
    /// Step times.
    pub step: StepSource,
    /// Accept length.
    pub accept: AcceptSource,
}

impl Situation {
    /// Every situation, the best informed first.
    pub const ALL: [Self; 4] = [
        Self::new(StepSource::Sweep, AcceptSource::Measured),
        Self::new(StepSource::Sweep, AcceptSource::Prior),
        Self::new(StepSource::Scratch, AcceptSource::Measured),
        Self::new(StepSource::Scratch, AcceptSource::Prior),
    ];

    /// Of both sources.
    pub const fn new(step: StepSource, accept: AcceptSource) -> Self {
        Self { step, accept }
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.step, self.accept) {
            (StepSource::Sweep, AcceptSource::Measured) => "sweep and accept length measured",
            (StepSource::Sweep, AcceptSource::Prior) => "sweep measured, accept length assumed",
            (StepSource::Scratch, AcceptSource::Measured) => "accept length measured, no sweep",
            (StepSource::Scratch, AcceptSource::Prior) => "nothing measured",
        })
    }
}

/// The conditions of one prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// What it knows.
    pub situation: Situation,
    /// How far the verify lies outside the sweep, ln; 0 inside and without a sweep.
    pub beyond: f64,
    /// Sequences decoded at a time.
    pub concurrency: f64,
    /// How far down the 90 % band of the accept length reaches, ln; 0 where the residuals hold its
    /// error already.
    pub accept_down: f64,
    /// How far up it reaches, ln.
    pub accept_up: f64,
}

/// A scored prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct Residual {
    /// Its conditions.
    pub conditions: Conditions,
    /// Box, model or source it belongs to; left out whole when scored.
    pub group: String,
    /// ln(predicted / measured).
    pub log_error: f64,
}

impl Residual {
    /// The part of the error that the accept length's own band does not explain.
    fn excess(&self) -> f64 {
        let conditions = &self.conditions;
        // Predicted too high means measured below, where the lower side must reach.
        let explained = if self.log_error > 0.0 {
            conditions.accept_down
        } else {
            conditions.accept_up
        };
        (self.log_error.powi(2) - explained.powi(2)).max(0.0).sqrt()
    }
}

/// Typical error of one situation: `base + per_beyond * beyond + per_log_concurrency * ln(c)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// At one user, inside the sweep.
    pub base: f64,
    /// Per ln outside the sweep.
    pub per_beyond: f64,
    /// Per ln of concurrency.
    pub per_log_concurrency: f64,
    /// Error over typical error that [`LEVELS`] of the predictions stay below.
    pub quantiles: [f64; LEVELS.len()],
}

/// Shares of predictions for which [`Scale::quantiles`] holds the bound.
pub const LEVELS: [f64; 5] = [0.5, 0.8, 0.9, 0.95, 0.99];

/// A band around a predicted speedup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    /// The prediction.
    pub speedup: f64,
    /// Lower end of the 90 % band.
    pub low: f64,
    /// Upper end of the 90 % band.
    pub high: f64,
    /// Standard deviation of ln(speedup), from the 90 % band.
    pub log_sd: f64,
    /// Probability that the true speedup is above 1.
    pub probability_pays: f64,
}

/// Typical errors by situation.
#[derive(Debug, Clone, PartialEq)]
pub struct ResidualModel {
    scales: [Scale; Situation::ALL.len()],
}

/// Index of the 90 % level in [`LEVELS`].
const NINETY: usize = 2;

/// How far a reading of the accept length may lie from what another minute of the same server
/// shows, ln, at 90 %: readings scatter by [`ONE_READING_LOG_SD`].
pub const READING_HALF_WIDTH: f64 = NORMAL_90 * ONE_READING_LOG_SD;

/// Two-sided 90 % point of the normal distribution: turns a 90 % half-width into a deviation.
const NORMAL_90: f64 = 1.645;

impl ResidualModel {
    /// What `score` measured on the data of this project: every situation's errors, each source
    /// predicted with constants fitted on the others.
    pub fn shipped() -> Self {
        Self { scales: SHIPPED }
    }

    /// Learns from scored predictions; a situation without any keeps the shipped figures.
    pub fn fit(residuals: &[Residual]) -> Self {
        let mut scales = SHIPPED;
        for (scale, situation) in scales.iter_mut().zip(Situation::ALL) {
            let own: Vec<&Residual> = residuals
                .iter()
                .filter(|r| r.conditions.situation == situation && r.log_error.is_finite())
                .collect();
            if own.len() >= LEAST_RESIDUALS {
                *scale = Scale::fit(&own);
            }
        }
        Self { scales }
    }

    /// The scale of a situation.
    pub fn scale(&self, situation: Situation) -> &Scale {
        let index = match (situation.step, situation.accept) {
            (StepSource::Sweep, AcceptSource::Measured) => 0,
            (StepSource::Sweep, AcceptSource::Prior) => 1,
            (StepSource::Scratch, AcceptSource::Measured) => 2,
            (StepSource::Scratch, AcceptSource::Prior) => 3,
        };
        &self.scales[index]
    }

    /// The 90 % half-width of the step's part: the situation's own, or as much as the whole band
    /// needs to be no narrower than with the accept length measured. To know less never narrows a
    /// band, whatever a small sample says.
    fn step_half(&self, conditions: &Conditions) -> f64 {
        let half = |s: &Scale| s.typical(conditions) * s.quantiles[NINETY];
        let own = half(self.scale(conditions.situation));
        let Situation { step, accept } = conditions.situation;
        if accept == AcceptSource::Measured {
            return own;
        }
        let known = half(self.scale(Situation::new(step, AcceptSource::Measured)));
        let narrower = conditions.accept_down.min(conditions.accept_up).max(0.0);
        let missing = known * known + READING_HALF_WIDTH * READING_HALF_WIDTH - narrower * narrower;
        own.max(missing.max(0.0).sqrt())
    }

    /// The band of a predicted speedup: the step's error and the accept length's own band, which
    /// are independent. Neither end exceeds `most`, the largest speedup that is possible.
    pub fn band(&self, speedup: f64, most: f64, conditions: &Conditions) -> Band {
        let step = self.step_half(conditions);
        let down = step.hypot(conditions.accept_down.max(0.0)).max(1e-6);
        let up = step.hypot(conditions.accept_up.max(0.0)).max(1e-6);
        let cap = |x: f64| if x > most { most } else { x };
        let log = speedup.ln();
        // The side that faces 1 decides how likely it is to pay.
        let facing = if log > 0.0 { down } else { up };
        Band {
            speedup: cap(speedup),
            low: cap(speedup * (-down).exp()),
            high: cap(speedup * up.exp()),
            log_sd: (down + up) / 2.0 / NORMAL_90,
            probability_pays: normal_cdf(log / facing * NORMAL_90),
        }
    }
}

/// Predictions that a situation needs before its figures are learned.
const LEAST_RESIDUALS: usize = 12;

impl Scale {
    /// Typical error under these conditions; never 0.
    pub fn typical(&self, conditions: &Conditions) -> f64 {
        let log_concurrency = conditions.concurrency.max(1.0).ln();
        (self.base
            + self.per_beyond * conditions.beyond.max(0.0)
            + self.per_log_concurrency * log_concurrency)
            .max(1e-6)
    }

    /// Features and quantiles. The quantiles are those of groups predicted by the scale of the
    /// other groups, so that they hold for a box that has not been seen.
    fn fit(residuals: &[&Residual]) -> Self {
        let mut ratios = Vec::with_capacity(residuals.len());
        let groups: BTreeSet<&str> = residuals.iter().map(|r| r.group.as_str()).collect();
        for group in &groups {
            let (own, others): (Vec<&Residual>, Vec<&Residual>) =
                residuals.iter().partition(|r| r.group == *group);
            // Without a group that holds most of the rows there is too little to learn from.
            let scale = if own.len() * 2 > residuals.len() {
                Self::typical_of(residuals)
            } else {
                Self::typical_of(&others)
            };
            ratios.extend(
                own.iter()
                    .map(|r| r.excess() / scale.typical(&r.conditions)),
            );
        }
        ratios.sort_by(f64::total_cmp);
        let mut scale = Self::typical_of(residuals);
        for (quantile, level) in scale.quantiles.iter_mut().zip(LEVELS) {
            *quantile = order_statistic(&ratios, level);
        }
        scale
    }

    /// The typical error alone, quantiles left at 0.
    fn typical_of(residuals: &[&Residual]) -> Self {
        let rows: Vec<([f64; 3], f64)> = residuals
            .iter()
            .map(|r| {
                let c = &r.conditions;
                let features = [1.0, c.beyond.max(0.0), c.concurrency.max(1.0).ln()];
                (features, r.excess())
            })
            .collect();
        let [base, per_beyond, per_log_concurrency] = typical_errors(&rows);
        Self {
            base,
            per_beyond,
            per_log_concurrency,
            quantiles: [0.0; LEVELS.len()],
        }
    }
}

/// P(Z < z). Logistic approximation of the normal distribution (Bowling et al. 2009), error under
/// 0.00014.
pub fn normal_cdf(z: f64) -> f64 {
    1.0 / (1.0 + (-(0.070_56 * z.powi(3) + 1.597_6 * z)).exp())
}

/// Non-negative least squares of |error| on the features by reweighted coordinate descent: an
/// error counts relative to its own typical size, so large ones do not decide alone.
fn typical_errors(rows: &[([f64; 3], f64)]) -> [f64; 3] {
    let mut coefficients = [0.05, 0.0, 0.0];
    for _ in 0..25 {
        for j in 0..3 {
            let (mut up, mut down) = (0.0, 0.0);
            for (x, y) in rows {
                let fitted: f64 = x.iter().zip(&coefficients).map(|(a, b)| a * b).sum();
                // Mean of |error| is wanted with relative weight: large scales scatter more.
                let weight = 1.0 / fitted.max(0.01).powi(2);
                let rest = y - (fitted - x[j] * coefficients[j]);
                up += weight * x[j] * rest;
                down += weight * x[j] * x[j];
            }
            if down > 0.0 {
                coefficients[j] = (up / down).max(if j == 0 { 0.005 } else { 0.0 });
            }
        }
    }
    coefficients
}

/// The order statistic that bounds `level` of the values with the finite-sample correction of
/// conformal prediction: the ceil((n + 1) level)-th smallest.
fn order_statistic(sorted: &[f64], level: f64) -> f64 {
    let rank = ((sorted.len() + 1) as f64 * level).ceil() as usize;
    let index = rank.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(index).copied().unwrap_or(0.0)
}

/// Learned from measured rows sent through `predict` (`score`, area `predict.bands`; a test learns
/// them again): what the accept length's own band leaves unexplained. Order of
/// [`Situation::ALL`].
const SHIPPED: [Scale; Situation::ALL.len()] = [
    Scale {
        base: 0.0395,
        per_beyond: 0.0687,
        per_log_concurrency: 0.0,
        quantiles: [0.0, 2.0, 3.55, 5.58, 12.1],
    },
    Scale {
        base: 0.0166,
        per_beyond: 0.0203,
        per_log_concurrency: 0.0,
        quantiles: [0.0, 0.0, 0.0, 8.75, 81.7],
    },
    Scale {
        base: 0.059,
        per_beyond: 0.0,
        per_log_concurrency: 0.0184,
        quantiles: [0.0, 2.25, 3.63, 6.21, 12.5],
    },
    Scale {
        base: 0.0271,
        per_beyond: 0.0,
        per_log_concurrency: 0.0064,
        quantiles: [0.0, 0.0, 2.9, 12.4, 31.7],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conditions(situation: Situation, beyond: f64, concurrency: f64) -> Conditions {
        Conditions {
            situation,
            beyond,
            concurrency,
            accept_down: 0.0,
            accept_up: 0.0,
        }
    }

    #[test]
    fn knowing_more_narrows_the_band_and_leaving_the_sweep_widens_it() {
        let model = ResidualModel::shipped();
        let width = |situation, beyond| {
            let band = model.band(1.3, 4.0, &conditions(situation, beyond, 8.0));
            (band.high / band.low).ln()
        };
        let [known, prior, scratch, nothing] = Situation::ALL.map(|s| width(s, 0.0));
        assert!(known < prior && known < scratch && scratch < nothing);
        assert!(prior <= nothing);
        assert!(width(Situation::ALL[0], 1.0) > known);
    }

    #[test]
    fn fitted_bands_cover_what_they_say_and_find_what_widens_them() {
        let mut residuals = Vec::new();
        for i in 0..400 {
            let beyond = f64::from(i % 2);
            // A triangle wave of errors between -1 and 1 times the true scale.
            let wave = (f64::from(i) * 0.618_034).fract() * 2.0 - 1.0;
            residuals.push(Residual {
                conditions: conditions(Situation::ALL[0], beyond, 4.0),
                group: "wave".to_string(),
                log_error: wave * (0.05 + 0.2 * beyond),
            });
        }
        let model = ResidualModel::fit(&residuals);
        let covered = residuals.iter().filter(|r| {
            let band = model.band(1.0, 9.0, &r.conditions);
            (band.low.ln()..=band.high.ln()).contains(&-r.log_error)
        });
        let share = covered.count() as f64 / residuals.len() as f64;
        assert!((0.88..0.93).contains(&share), "{share}");
        let inside = model
            .scale(Situation::ALL[0])
            .typical(&residuals[0].conditions);
        let outside = model
            .scale(Situation::ALL[0])
            .typical(&residuals[1].conditions);
        assert!(
            (4.0..6.0).contains(&(outside / inside)),
            "{}",
            outside / inside
        );
    }

    proptest! {
        #[test]
        fn a_band_holds_its_point_and_never_leaves_the_possible(
            speedup in 0.1f64..4.0, most in 1.0f64..5.0, beyond in 0.0f64..3.0, c in 1.0f64..500.0,
            index in 0usize..4,
        ) {
            let at = conditions(Situation::ALL[index], beyond, c);
            let band = ResidualModel::shipped().band(speedup, most, &at);
            prop_assert!(0.0 < band.low && band.low <= band.speedup);
            prop_assert!(band.speedup <= band.high && band.high <= most.max(0.0));
            prop_assert!((0.0..=1.0).contains(&band.probability_pays));
            prop_assert_eq!(speedup > 1.0, band.probability_pays > 0.5);
        }

        #[test]
        fn probability_rises_with_the_speedup(a in 0.1f64..4.0, b in 0.1f64..4.0) {
            let at = conditions(Situation::ALL[0], 0.0, 1.0);
            let pays = |s: f64| ResidualModel::shipped().band(s, 9.0, &at).probability_pays;
            prop_assert!(pays(a.min(b)) <= pays(a.max(b)) + 1e-12);
        }

        #[test]
        fn a_vaguer_accept_length_widens_every_band(
            index in 0usize..4, down in 0.0f64..0.5, up in 0.0f64..0.5, more in 0.0f64..0.5,
        ) {
            let mut at = conditions(Situation::ALL[index], 0.3, 8.0);
            (at.accept_down, at.accept_up) = (down, up);
            let narrow = ResidualModel::shipped().band(1.2, 9.0, &at);
            (at.accept_down, at.accept_up) = (down.hypot(more), up.hypot(more));
            let wide = ResidualModel::shipped().band(1.2, 9.0, &at);
            prop_assert!(wide.low <= narrow.low + 1e-9 && narrow.high <= wide.high + 1e-9);
            prop_assert!(narrow.low <= 1.2 * (-down).exp() + 1e-9);
            prop_assert!(narrow.high >= 1.2 * up.exp() - 1e-9);
        }
    }
}
