//! Bands: how far a prediction may be off, learned from what predictions of the same kind were
//! off by. Nothing here is taste: [`ResidualModel::shipped`] holds what `score` measured.

mod learn;

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
    /// Tokens of one verify, all sequences together.
    pub tokens: f64,
    /// Share of a cycle that comes on top of a plain step, 0 to 1: `1 - speedup / accept length`.
    pub extra_share: f64,
    /// How far the verify lies outside the sweep, ln; 0 inside and without a sweep.
    pub beyond: f64,
    /// How much slower the measured plain step is than the architecture and the card explain, ln; 0
    /// where it is faster, or where nothing is known of the server.
    pub slower: f64,
    /// How far down the 90 % band of the accept length itself reaches, ln: of a reading what its
    /// count of cycles leaves open, else the prior's. 0 where the residuals hold it already.
    pub accept_down: f64,
    /// How far up it reaches, ln.
    pub accept_up: f64,
}

/// One public build of eleven captures its CUDA graphs up to 31 tokens only (GLM-5.1 on eight PCIe
/// cards): its verifies of 8 and 16 users run outside them.
const OUTSIDE_GRAPHS_CHANCE: f64 = 1.0 / 11.0;
/// What that build's verifies lose there, ln: they reach 0.55 of what the graph would give. Public
/// single-user speeds without graphs lose 0.82 and 0.95 (DGX Spark 59 to 26 tok/s, RTX 5090 62 to 24).
const OUTSIDE_GRAPHS_LOSS: f64 = 0.6;
/// Tokens that every engine captures, and from which on that build does not.
const GRAPHS_SURE_TO: f64 = 16.0;
const GRAPHS_DOUBTED_FROM: f64 = 32.0;

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
    /// How far down a verify may fall that leaves the engine's CUDA graphs, ln: the 90 % reach of a
    /// risk of that chance and loss, since a sweep shows it and nothing else does.
    fn outside_graphs(&self) -> f64 {
        if self.situation.step == StepSource::Sweep {
            return 0.0;
        }
        let chance = OUTSIDE_GRAPHS_CHANCE;
        let log_sd = OUTSIDE_GRAPHS_LOSS * (chance * (1.0 - chance)).sqrt();
        let over = (self.tokens.max(1.0) / GRAPHS_SURE_TO).ln();
        let doubted = (GRAPHS_DOUBTED_FROM / GRAPHS_SURE_TO).ln();
        NORMAL_90 * log_sd * (over / doubted).clamp(0.0, 1.0)
    }

    /// What the variance of a sweep's error grows with: one, tokens beyond its end, what its plain
    /// steps hold unexplained.
    fn features(&self) -> [f64; 3] {
        [1.0, self.beyond.max(0.0), self.slower.max(0.0).powi(2)]
    }

    /// The accept length's part of a side, ln. What is learned of a sweep, which every prediction
    /// errs by, holds the scatter of one reading: a prior's band replaces it.
    fn accept(&self, side: Side) -> f64 {
        let own = match side {
            Side::Down => self.accept_down.max(0.0),
            Side::Up => self.accept_up.max(0.0),
        };
        match self.situation.accept {
            AcceptSource::Measured => own,
            AcceptSource::Prior => less(own, READING_HALF_WIDTH),
        }
    }

    /// The extra's share, kept where a band can be laid around it.
    fn extra(&self) -> f64 {
        if self.extra_share.is_finite() {
            self.extra_share.clamp(1e-3, 0.999)
        } else {
            0.999
        }
    }
}

/// `sqrt(whole^2 - part^2)`, 0 where the part is all.
fn less(whole: f64, part: f64) -> f64 {
    (whole * whole - part * part).max(0.0).sqrt()
}

/// How far the 90 % band of a step reaches, as learned: independent parts, so their squares add.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Inside the sweep, ln of the speedup, which every prediction errs by; from scratch, what comes
    /// on top of that, ln of the cycle's extra over a plain step.
    pub reach: f64,
    /// For a verify outside the sweep by a factor of e, ln; it grows with the root of the distance, as
    /// what further tokens cost is not known for any of the steps between. 0 from scratch.
    pub beyond: f64,
    /// Per ln that the measured plain step is slower than explained: what it waits for may be paid
    /// once a cycle or by every token. 0 from scratch.
    pub slower: f64,
    /// How far the upper side reaches over the lower one. What goes wrong makes a verify slower, so
    /// that errors may lean down; learned where a sweep is given, else 1: it would be the bias of a few
    /// models, and the next one's may be of the other sign.
    pub up_share: f64,
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

/// Learned reaches by where the step times come from. What the accept length adds is its own band,
/// so the situations without a measured one learn nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct ResidualModel {
    sweep: Scale,
    scratch: Scale,
}

/// How far a reading of the accept length may lie from what another minute of the same server
/// shows, ln, at 90 %: readings scatter by [`ONE_READING_LOG_SD`].
pub const READING_HALF_WIDTH: f64 = NORMAL_90 * ONE_READING_LOG_SD;

/// Two-sided 90 % point of the normal distribution: turns a 90 % half-width into a deviation.
pub const NORMAL_90: f64 = 1.645;

impl ResidualModel {
    /// What `score` measured on the data of this project: errors with a measured accept length, each
    /// source predicted with constants fitted on the others.
    pub fn shipped() -> Self {
        SHIPPED
    }

    /// Learns from the scored predictions whose accept length was measured; a source of step times
    /// without any keeps the shipped figures.
    pub fn fit(residuals: &[Residual]) -> Self {
        let of = |step: StepSource| -> Vec<&Residual> {
            let situation = Situation::new(step, AcceptSource::Measured);
            residuals
                .iter()
                .filter(|r| r.conditions.situation == situation && r.log_error.is_finite())
                .collect()
        };
        let (sweep, scratch) = (of(StepSource::Sweep), of(StepSource::Scratch));
        let mut model = SHIPPED;
        if sweep.len() >= LEAST_RESIDUALS {
            model.sweep = Scale::of_sweep(&sweep);
        }
        if scratch.len() >= LEAST_RESIDUALS {
            model.scratch = Scale::of_scratch(&scratch, &model.sweep);
        }
        model
    }

    /// What was learned for a source of step times.
    pub fn scale(&self, step: StepSource) -> &Scale {
        match step {
            StepSource::Sweep => &self.sweep,
            StepSource::Scratch => &self.scratch,
        }
    }

    /// How far a side of the band reaches, ln.
    fn reach(&self, conditions: &Conditions, side: Side) -> f64 {
        let modelled = self.scratch.extra_at(conditions, side);
        let step = match conditions.situation.step {
            // Beyond its end a sweep is continued by the step model, which knows no less there
            // than it does without a sweep.
            StepSource::Sweep => {
                let part = |part: f64| self.sweep.share(side) * part;
                let slower = part(self.sweep.slower * conditions.slower.max(0.0));
                let beyond = part(self.sweep.beyond * conditions.beyond.max(0.0).sqrt());
                beyond.min(modelled).hypot(slower)
            }
            StepSource::Scratch => modelled,
        };
        let known = self.sweep.share(side) * self.sweep.reach;
        let known = known.hypot(step).hypot(conditions.accept(side)).max(1e-6);
        match side {
            Side::Down => known.hypot(conditions.outside_graphs()),
            Side::Up => known,
        }
    }

    /// The band of a predicted speedup: the step's error and the accept length's own band, which
    /// are independent. Neither end exceeds `most`, the largest speedup that is possible.
    pub fn band(&self, speedup: f64, most: f64, conditions: &Conditions) -> Band {
        let (down, up) = (
            self.reach(conditions, Side::Down),
            self.reach(conditions, Side::Up),
        );
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

/// Predictions that a source of step times needs before its figures are learned.
const LEAST_RESIDUALS: usize = 12;

impl Scale {
    /// Share of the reach that a side has.
    fn share(&self, side: Side) -> f64 {
        match side {
            Side::Down => 1.0,
            Side::Up => self.up_share,
        }
    }

    /// What modelled steps add, ln of the speedup: a cycle is a plain step, which the speedup holds
    /// as well, and an extra, which may be larger or smaller by the learned factor.
    fn extra_at(&self, conditions: &Conditions, side: Side) -> f64 {
        let extra = conditions.extra();
        match side {
            Side::Down => (extra * self.reach.exp_m1()).ln_1p(),
            Side::Up => -(extra * (-self.reach).exp_m1()).ln_1p(),
        }
    }

    /// The 90 % reach of a sweep's prediction, ln of the speedup.
    fn reach_at(&self, conditions: &Conditions) -> f64 {
        let parts = [self.reach, self.beyond, self.slower].map(|part| part * part);
        let grown = parts.iter().zip(conditions.features());
        grown.map(|(part, by)| part * by).sum::<f64>().sqrt()
    }
}

/// P(Z < z). Logistic approximation of the normal distribution (Bowling et al. 2009), error under
/// 0.00014.
pub fn normal_cdf(z: f64) -> f64 {
    1.0 / (1.0 + (-(0.070_56 * z.powi(3) + 1.597_6 * z)).exp())
}

/// Learned from measured rows sent through `predict` (`score`, area `predict.bands`; a test learns
/// them again).
const SHIPPED: ResidualModel = ResidualModel {
    sweep: Scale {
        reach: 0.138,
        beyond: 0.183,
        slower: 0.348,
        up_share: 0.987,
    },
    scratch: Scale {
        reach: 0.559,
        beyond: 0.0,
        slower: 0.0,
        up_share: 1.0,
    },
};

#[cfg(test)]
mod tests;
