//! The verdict: pays, does not pay, or measure first, and then what to measure.

use std::fmt;

use crate::bands::{AcceptSource, Band, Situation, StepSource};

/// Whether speculation pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The whole band lies above 1.
    Pays,
    /// The whole band lies below 1.
    DoesNotPay,
    /// The band holds 1: a measurement must decide.
    MeasureFirst,
}

/// The least that counts as a gain. Bands are printed to hundredths, and know no more: an end that
/// reads 1.00 is no gain.
const LEAST_GAIN: f64 = 1.005;

impl Verdict {
    /// Of a band: only a band that lies whole on one side of 1 decides. One that ends at 1, since
    /// no more is possible, holds no gain.
    pub fn of(band: &Band) -> Self {
        if band.low >= LEAST_GAIN {
            Self::Pays
        } else if band.high < LEAST_GAIN {
            Self::DoesNotPay
        } else {
            Self::MeasureFirst
        }
    }

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pays => "pays",
            Self::DoesNotPay => "does-not-pay",
            Self::MeasureFirst => "measure-first",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that can be measured before deciding, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Measurement {
    /// The accept length on the user's own prompts: a few minutes, any load.
    AcceptLength,
    /// The plain sweep continued to as many users as tokens are verified.
    LongerSweep,
    /// A plain sweep over concurrency.
    PlainSweep,
    /// Both runs, plain and speculative, at the operating point.
    Both,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcceptLength => "the accept length on your own prompts (--accept)",
            Self::LongerSweep => {
                "the plain sweep up to users x verified tokens (--baseline with more points)"
            }
            Self::PlainSweep => "a plain sweep over concurrency (--baseline)",
            Self::Both => "plain and speculative speed at this operating point",
        })
    }
}

/// Uncertainty that one measurement would remove.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Doubt {
    /// What would remove it.
    pub measurement: Measurement,
    /// Standard deviation of ln(speedup) with everything as it is.
    pub log_sd_now: f64,
    /// The same after the measurement.
    pub log_sd_after: f64,
}

/// Value of one measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// The measurement.
    pub measurement: Measurement,
    /// Expected gain of the decision in ln(speed): the loss it is expected to avoid.
    pub log_gain: f64,
}

/// Measurements worth taking at a prediction, the most valuable first; a cheaper one goes before
/// a dearer one that is worth less than 10 % more. `log_speedup` is the prediction's logarithm.
pub fn worth(log_speedup: f64, doubts: &[Doubt]) -> Vec<Value> {
    let mut values: Vec<Value> = doubts
        .iter()
        .map(|doubt| Value {
            measurement: doubt.measurement,
            log_gain: value_of_information(log_speedup, doubt.log_sd_now, doubt.log_sd_after),
        })
        .collect();
    values.sort_by(|a, b| b.log_gain.total_cmp(&a.log_gain));
    for i in 1..values.len() {
        let (best, next) = (values[0], values[i]);
        if next.measurement < best.measurement && next.log_gain * 1.1 >= best.log_gain {
            values.swap(0, i);
        }
    }
    values
}

/// What could be measured in a situation, with the deviation that would remain, by the typical
/// deviation of the situation it leads to.
pub fn doubts(
    situation: Situation,
    extrapolated: bool,
    log_sd: impl Fn(Situation, bool) -> f64,
) -> Vec<Doubt> {
    let now = log_sd(situation, extrapolated);
    let mut found = Vec::new();
    let doubt = |measurement, log_sd_after| Doubt {
        measurement,
        log_sd_now: now,
        log_sd_after,
    };
    if situation.accept == AcceptSource::Prior {
        let next = Situation::new(situation.step, AcceptSource::Measured);
        found.push(doubt(Measurement::AcceptLength, log_sd(next, extrapolated)));
    }
    match situation.step {
        StepSource::Scratch => {
            let next = Situation::new(StepSource::Sweep, situation.accept);
            found.push(doubt(Measurement::PlainSweep, log_sd(next, false)));
        }
        StepSource::Sweep if extrapolated => {
            found.push(doubt(Measurement::LongerSweep, log_sd(situation, false)));
        }
        StepSource::Sweep => {}
    }
    found.retain(|d| d.log_sd_after < now);
    if found.is_empty() {
        found.push(doubt(Measurement::Both, 0.0));
    }
    found
}

/// Expected loss in ln(speed) of the better of "on" and "off" at mean and deviation of
/// ln(speedup): off loses the gain, on loses the loss.
fn expected_loss(mean: f64, sd: f64) -> f64 {
    if sd <= 0.0 {
        return 0.0;
    }
    let z = mean.abs() / sd;
    sd * (density(z) - z * upper_tail(z))
}

/// Loss that a measurement which brings the deviation from `now` to `after` is expected to avoid.
/// Before it is taken the mean it will show is spread by what it removes.
fn value_of_information(mean: f64, now: f64, after: f64) -> f64 {
    let after = after.clamp(0.0, now.max(0.0));
    let spread = (now * now - after * after).sqrt();
    // Trapezoid over four deviations either side.
    let (mut total, mut weight) = (0.0, 0.0);
    for i in -40_i32..=40 {
        let z = f64::from(i) / 10.0;
        let w = density(z);
        total += w * expected_loss(mean + z * spread, after);
        weight += w;
    }
    (expected_loss(mean, now) - total / weight).max(0.0)
}

/// Density of the standard normal distribution.
fn density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// P(Z > z) of the standard normal for z >= 0. Abramowitz and Stegun 26.2.17, error under 1e-7.
fn upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    density(z) * poly
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn band(low: f64, high: f64) -> Band {
        Band {
            speedup: (low * high).sqrt(),
            low,
            high,
            log_sd: 0.1,
            probability_pays: 0.5,
        }
    }

    #[test]
    fn only_a_band_on_one_side_of_one_decides() {
        assert_eq!(Verdict::of(&band(1.01, 1.3)), Verdict::Pays);
        // `PAYS … (1.00 to 1.40)` contradicts itself.
        assert_eq!(Verdict::of(&band(1.0036, 1.4)), Verdict::MeasureFirst);
        assert_eq!(Verdict::of(&band(0.8, 1.0036)), Verdict::DoesNotPay);
        assert_eq!(Verdict::of(&band(0.7, 0.99)), Verdict::DoesNotPay);
        assert_eq!(Verdict::of(&band(0.99, 1.3)), Verdict::MeasureFirst);
        assert_eq!(Verdict::of(&band(0.7, 1.0)), Verdict::DoesNotPay);
        assert_eq!(
            Verdict::of(&band(f64::NAN, f64::NAN)),
            Verdict::MeasureFirst
        );
    }

    #[test]
    fn the_measurement_that_removes_most_doubt_is_named() {
        let sd = |s: Situation, extrapolated: bool| {
            let step: f64 = match s.step {
                StepSource::Sweep => 0.04,
                StepSource::Scratch => 0.10,
            };
            let accept: f64 = match s.accept {
                AcceptSource::Measured => 0.03,
                AcceptSource::Prior => 0.15,
            };
            step.hypot(accept)
                .hypot(if extrapolated { 0.12 } else { 0.0 })
        };
        let nothing = Situation::new(StepSource::Scratch, AcceptSource::Prior);
        let first = worth(0.05, &doubts(nothing, false, sd));
        assert_eq!(first[0].measurement, Measurement::AcceptLength);
        assert_eq!(first[1].measurement, Measurement::PlainSweep);
        let known = Situation::new(StepSource::Sweep, AcceptSource::Measured);
        let beyond = worth(0.05, &doubts(known, true, sd));
        assert_eq!(beyond[0].measurement, Measurement::LongerSweep);
        let inside = worth(0.0, &doubts(known, false, sd));
        assert_eq!(inside[0].measurement, Measurement::Both);
    }

    proptest! {
        #[test]
        fn information_is_never_worth_less_than_nothing_nor_more_than_certainty(
            mean in -1.0f64..1.0, now in 0.001f64..0.5, share in 0.0f64..1.0,
        ) {
            let value = value_of_information(mean, now, now * share);
            let certainty = expected_loss(mean, now);
            prop_assert!(value >= 0.0 && value <= certainty + 1e-6, "{value} of {certainty}");
        }

        #[test]
        fn doubt_is_worth_most_at_break_even(mean in 0.05f64..1.0, sd in 0.01f64..0.5) {
            prop_assert!(value_of_information(mean, sd, 0.0) <= value_of_information(0.0, sd, 0.0) + 1e-9);
        }
    }
}
