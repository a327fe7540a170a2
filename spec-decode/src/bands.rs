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
    /// How far down what is known of the step's own doubt reaches, ln, at 90 %; 0 where nothing is.
    pub step_down: f64,
    /// How far up, ln.
    pub step_up: f64,
}

/// One public build of eleven (GLM-5.1 on eight PCIe cards) captures its graphs up to 31 tokens: its
/// verifies of 8 and 16 users run outside them, at 0.55 of what the graph would give. From scratch
/// nothing tells such a build from the others: half of that loss (ln) is allowed for.
const OUTSIDE_GRAPHS: f64 = 0.33;
/// Users up to which a verify of a few tokens each is in every engine's graphs.
const GRAPHS_SURE_BELOW: f64 = 4.0;
/// From so many times as many on, none is sure.
const GRAPHS_DOUBTED_OVER: f64 = 2.0;

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

/// A side of a band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Below the prediction.
    Down,
    /// Above it.
    Up,
}

impl Conditions {
    /// How far down a verify may fall that leaves the engine's CUDA graphs, ln: not seen from
    /// scratch, and growing with the tokens of a pass up to [`GRAPHS_SURE_BELOW`] times
    /// [`GRAPHS_DOUBTED_OVER`] users.
    fn outside_graphs(&self) -> f64 {
        if self.situation.step == StepSource::Sweep {
            return 0.0;
        }
        let users = self.concurrency.max(1.0) / GRAPHS_SURE_BELOW;
        OUTSIDE_GRAPHS * (users.ln() / GRAPHS_DOUBTED_OVER.ln()).clamp(0.0, 1.0)
    }

    /// What the typical error grows with: one, tokens beyond the sweep, load. A sweep shows what
    /// each load costs.
    fn features(&self) -> [f64; 3] {
        let load = match self.situation.step {
            StepSource::Sweep => 0.0,
            StepSource::Scratch => self.concurrency.max(1.0).ln(),
        };
        [1.0, self.beyond.max(0.0), load]
    }

    /// What is known of the step's own doubt on a side, ln.
    fn step(&self, side: Side) -> f64 {
        match side {
            Side::Down => self.step_down.max(0.0),
            Side::Up => self.step_up.max(0.0),
        }
    }

    /// The accept length's own part of a side, ln.
    fn accept(&self, side: Side) -> f64 {
        match side {
            Side::Down => self.accept_down.max(0.0),
            Side::Up => self.accept_up.max(0.0),
        }
    }
}

impl Residual {
    /// Where the measurement lies.
    fn side(&self) -> Side {
        // Predicted too high means measured below.
        if self.log_error > 0.0 {
            Side::Down
        } else {
            Side::Up
        }
    }

    /// The part of the error that the known doubts do not explain.
    fn excess(&self) -> f64 {
        let (side, conditions) = (self.side(), &self.conditions);
        let explained = conditions.accept(side).hypot(conditions.step(side));
        (self.log_error.powi(2) - explained.powi(2)).max(0.0).sqrt()
    }
}

/// Typical error of one situation: a base, and what it grows by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// At one user, inside the sweep.
    pub base: f64,
    /// Per ln outside the sweep.
    pub per_beyond: f64,
    /// Per ln of concurrency; 0 with a sweep, which shows what each load costs.
    pub per_log_concurrency: f64,
    /// How far below the prediction the shortest interval that holds [`LEVEL`] of the measurements
    /// reaches, over the typical error.
    pub down: f64,
    /// The same above.
    pub up: f64,
}

/// Share of measurements that a band holds.
pub const LEVEL: f64 = 0.9;

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

    /// The step's part of one side of the 90 % band: the situation's own, or as much as the whole
    /// side needs to reach no less far than with the accept length measured. To know less never
    /// narrows a band, whatever a small sample says.
    fn step_reach(&self, conditions: &Conditions, side: Side) -> f64 {
        let reach = |s: &Scale| s.typical(conditions) * s.quantile(side);
        let own = reach(self.scale(conditions.situation));
        let Situation { step, accept } = conditions.situation;
        if accept == AcceptSource::Measured {
            return own;
        }
        let known = reach(self.scale(Situation::new(step, AcceptSource::Measured)));
        let narrower = conditions.accept(side);
        let missing = known * known + READING_HALF_WIDTH * READING_HALF_WIDTH - narrower * narrower;
        own.max(missing.max(0.0).sqrt())
    }

    /// The band of a predicted speedup: the step's error and the accept length's own band, which
    /// are independent. Neither end exceeds `most`, the largest speedup that is possible.
    pub fn band(&self, speedup: f64, most: f64, conditions: &Conditions) -> Band {
        let reach = |side| {
            let step = self.step_reach(conditions, side);
            let known = conditions.accept(side).hypot(conditions.step(side));
            let reach = step.hypot(known).max(1e-6);
            match side {
                Side::Down => reach.hypot(conditions.outside_graphs()),
                Side::Up => reach,
            }
        };
        let (down, up) = (reach(Side::Down), reach(Side::Up));
        let cap = |x: f64| if x > most { most } else { x };
        let log = speedup.ln();
        // The side that faces 1 decides how likely it is to pay.
        let facing = if log > 0.0 { down } else { up };
        Band {
            speedup: cap(speedup),
            low: cap(speedup * (-down).exp()),
            high: cap(speedup * up.exp()),
            log_sd: (down + up) / 2.0 / NORMAL_90,
            probability_pays: if most <= 1.0 {
                0.0
            } else {
                normal_cdf(log / facing * NORMAL_90)
            },
        }
    }
}

/// Predictions that a situation needs before its figures are learned.
const LEAST_RESIDUALS: usize = 12;

impl Scale {
    fn quantile(&self, side: Side) -> f64 {
        match side {
            Side::Down => self.down,
            Side::Up => self.up,
        }
    }

    /// Typical error under these conditions; never 0.
    pub fn typical(&self, conditions: &Conditions) -> f64 {
        let [one, beyond, load] = conditions.features();
        (self.base * one + self.per_beyond * beyond + self.per_log_concurrency * load).max(1e-6)
    }

    /// Features and quantiles. The quantiles are those of groups predicted by the scale of the
    /// other groups, so that they hold for a box that has not been seen. Which side needs more is
    /// learned only where both step and accept length were measured: without, it would be the bias
    /// of a few models and heads, and the next one's may be of the other sign.
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
            let share = 1.0 / own.len() as f64;
            ratios.extend(own.iter().map(|r| {
                let ratio = r.excess() / scale.typical(&r.conditions);
                let signed = match r.side() {
                    Side::Down => ratio,
                    Side::Up => -ratio,
                };
                // A source's rows from scratch err together: it counts once, however many it has.
                // With a prior its head decides, whose own band is there already.
                let Situation { step, accept } = r.conditions.situation;
                let weight = match (step, accept) {
                    (StepSource::Scratch, AcceptSource::Measured) => share,
                    _ => 1.0,
                };
                (signed, weight)
            }));
        }
        let anchored = |r: &&Residual| {
            let Situation { step, accept } = r.conditions.situation;
            step == StepSource::Sweep && accept == AcceptSource::Measured
        };
        if !residuals.iter().all(anchored) {
            let sizes: Vec<(f64, f64)> = ratios.iter().map(|(r, w)| (r.abs(), *w)).collect();
            let reach = order_statistic(sizes);
            return Self {
                down: reach,
                up: reach,
                ..Self::typical_of(residuals)
            };
        }
        let (down, up) = shortest(ratios.into_iter().map(|(ratio, _)| ratio).collect());
        Self {
            down,
            up,
            ..Self::typical_of(residuals)
        }
    }

    /// The typical error alone, quantiles left at 0.
    fn typical_of(residuals: &[&Residual]) -> Self {
        let rows: Vec<([f64; 3], f64)> = residuals
            .iter()
            .map(|r| (r.conditions.features(), r.excess()))
            .collect();
        let [base, per_beyond, per_log_concurrency] = typical_errors(&rows);
        Self {
            base,
            per_beyond,
            per_log_concurrency,
            down: 0.0,
            up: 0.0,
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

/// The shortest interval around 0 that holds [`LEVEL`] of the values, with the finite-sample
/// correction of conformal prediction: how far it reaches above 0 (down for a measurement), and
/// below.
fn shortest(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let held = (((values.len() + 1) as f64 * LEVEL).ceil() as usize).clamp(1, values.len().max(1));
    values
        .windows(held)
        .filter_map(|w| Some((w.last()?.max(0.0), (-w.first()?).max(0.0))))
        .min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)))
        .unwrap_or((0.0, 0.0))
}

/// The size that [`LEVEL`] of weighted sizes stay within, with the same correction: one more of the
/// mean weight, beyond all others.
fn order_statistic(mut sizes: Vec<(f64, f64)>) -> f64 {
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = sizes.iter().map(|(_, weight)| weight).sum();
    let wanted = LEVEL * total * (1.0 + 1.0 / sizes.len().max(1) as f64) - 1e-9;
    let mut sum = 0.0;
    sizes
        .iter()
        .find(|(_, weight)| {
            sum += weight;
            sum >= wanted
        })
        .or(sizes.last())
        .map_or(0.0, |(size, _)| *size)
}

/// Learned from measured rows sent through `predict` (`score`, area `predict.bands`; a test learns
/// them again): what the accept length's own band leaves unexplained. Order of
/// [`Situation::ALL`].
const SHIPPED: [Scale; Situation::ALL.len()] = [
    Scale {
        base: 0.0404,
        per_beyond: 0.0554,
        per_log_concurrency: 0.0,
        down: 3.96,
        up: 2.38,
    },
    // The prior's own band holds nine in ten of these rows; no sample narrows it.
    Scale {
        base: 0.0176,
        per_beyond: 0.0225,
        per_log_concurrency: 0.0,
        down: 0.0,
        up: 0.0,
    },
    Scale {
        base: 0.0532,
        per_beyond: 0.0,
        per_log_concurrency: 0.0211,
        down: 3.28,
        up: 3.28,
    },
    Scale {
        base: 0.0395,
        per_beyond: 0.0,
        per_log_concurrency: 0.0048,
        down: 3.99,
        up: 3.99,
    },
];

#[cfg(test)]
mod tests;
