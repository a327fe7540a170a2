//! Bands: how far a prediction may be off, learned from what predictions of the same kind were
//! off by. Nothing here is taste: [`ResidualModel::shipped`] holds what `score` measured.

use std::collections::BTreeSet;
use std::fmt;

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

    /// The scale that applies with its typical error: the situation's own, or that of the same
    /// situation with the accept length measured where its band is the wider. To know less never
    /// narrows a band, whatever a small sample says.
    fn widest(&self, conditions: &Conditions) -> (&Scale, f64) {
        let half = |s: &Scale| s.typical(conditions) * s.quantiles[NINETY];
        let own = self.scale(conditions.situation);
        let known = self.scale(Situation::new(
            conditions.situation.step,
            AcceptSource::Measured,
        ));
        let scale = if half(known) > half(own) { known } else { own };
        (scale, scale.typical(conditions))
    }

    /// The band of a predicted speedup. Neither end exceeds `most`, the largest speedup that is
    /// possible (the accept length where it is measured, else the verified tokens).
    pub fn band(&self, speedup: f64, most: f64, conditions: &Conditions) -> Band {
        let (scale, typical) = self.widest(conditions);
        let half = typical * scale.quantiles[NINETY];
        let cap = |x: f64| if x > most { most } else { x };
        Band {
            speedup: cap(speedup),
            low: cap(speedup * (-half).exp()),
            high: cap(speedup * half.exp()),
            log_sd: half / NORMAL_90,
            probability_pays: scale.probability_below(speedup.ln() / typical),
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
            let from = if others.is_empty() { &own } else { &others };
            let scale = Self::typical_of(from);
            ratios.extend(
                own.iter()
                    .map(|r| r.log_error.abs() / scale.typical(&r.conditions)),
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
                (features, r.log_error.abs())
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

    /// Probability that a prediction's signed error over its typical error stays below `ratio`:
    /// symmetric, linear between the known levels, with a thin tail beyond the last.
    pub fn probability_below(&self, ratio: f64) -> f64 {
        if ratio.is_nan() {
            return 0.5;
        }
        let size = ratio.abs();
        let mut before = (0.0, 0.0);
        let mut within = None;
        for (&bound, level) in self.quantiles.iter().zip(LEVELS) {
            if size <= bound && bound > before.0 {
                let share = (size - before.0) / (bound - before.0);
                within = Some(before.1 + share * (level - before.1));
                break;
            }
            before = (bound.max(before.0), level);
        }
        let within = within.unwrap_or_else(|| {
            let excess = if before.0 > 0.0 {
                size / before.0 - 1.0
            } else {
                f64::INFINITY
            };
            1.0 - (1.0 - before.1) * (-excess).exp()
        });
        0.5 + 0.5 * within * ratio.signum()
    }
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

/// Measured by `score`; see `docs/step-law.md`. Order of [`Situation::ALL`]. A test of `score`
/// learns them again.
const SHIPPED: [Scale; Situation::ALL.len()] = [
    Scale {
        base: 0.0447,
        per_beyond: 0.0554,
        per_log_concurrency: 0.0025,
        quantiles: [0.73, 1.49, 2.07, 3.17, 5.65],
    },
    Scale {
        base: 0.102,
        per_beyond: 0.0467,
        per_log_concurrency: 0.0,
        quantiles: [0.69, 1.18, 1.72, 2.98, 13.0],
    },
    Scale {
        base: 0.071,
        per_beyond: 0.0,
        per_log_concurrency: 0.0263,
        quantiles: [0.78, 1.75, 2.65, 3.55, 4.88],
    },
    Scale {
        base: 0.154,
        per_beyond: 0.0,
        per_log_concurrency: 0.0039,
        quantiles: [0.78, 1.45, 1.99, 3.33, 6.58],
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
        assert!(known < prior && known < scratch && scratch <= nothing);
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
        fn probability_rises_with_the_ratio(a in -9.0f64..9.0, b in -9.0f64..9.0) {
            let scale = &SHIPPED[0];
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(scale.probability_below(low) <= scale.probability_below(high) + 1e-12);
        }
    }
}
