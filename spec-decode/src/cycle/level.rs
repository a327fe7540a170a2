//! The accept length of a sweep, from what was measured: several noisy readings of one quantity,
//! pulled towards what is known of such heads.

/// What is known of the accept length before a measurement, in ln(accept length).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelPrior {
    /// Typical accept length at the depth in use.
    pub accept_length: f64,
    /// Standard deviation of its logarithm between pairs and tasks.
    pub log_sd: f64,
}

/// Scatter of one reading's logarithm where there is no second reading to show it. Source:
/// 30-second cells of the RTX PRO 6000 sweeps, 10 to 90 % = 2.00 to 2.41 around 2.19.
pub const ONE_READING_LOG_SD: f64 = 0.073;

/// Least scatter that several readings are believed to have.
const LEAST_LOG_SD: f64 = 0.03;

/// Error of the step law's logarithm inside a sweep, less the readings' own scatter: half of the
/// rows of the RTX PRO 6000 sweeps are within 0.03 with it.
const LAW_LOG_SD: f64 = 0.035;

/// Error of the step law's logarithm per unit of ln(tokens / last measured tokens).
pub const LOG_SD_PER_BEYOND: f64 = 0.2;

/// Accept length of a sweep from the lengths read at its points. Acceptance belongs to the head
/// and the text, not to the load, so the readings are pooled; their own scatter says how far to
/// trust them. `None` of no positive readings.
pub fn steady_level(readings: &[f64], prior: LevelPrior) -> Option<f64> {
    let logs: Vec<f64> = readings
        .iter()
        .filter(|r| r.is_finite() && **r >= 1.0)
        .map(|r| r.ln())
        .collect();
    if logs.is_empty() {
        return None;
    }
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let sd = if logs.len() > 1 {
        (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0))
            .sqrt()
            .max(LEAST_LOG_SD)
    } else {
        ONE_READING_LOG_SD
    };
    Some(shrink(mean, sd * sd / n, prior))
}

/// Accept length from one measured speed: `implied` by the law at a point that lies `beyond` the
/// sweep (ln; 0 inside), at most `verified_tokens`.
pub fn level_of_speed(implied: f64, beyond: f64, verified_tokens: f64, prior: LevelPrior) -> f64 {
    let law = LAW_LOG_SD.powi(2) + (LOG_SD_PER_BEYOND * beyond).powi(2);
    let variance = ONE_READING_LOG_SD.powi(2) + law;
    shrink(implied.max(1.0).ln(), variance, prior).min(verified_tokens.max(1.0))
}

/// Degrees of freedom of the prior's tails, as of the acceptance posterior: a setup far from every
/// sound pair is believed.
const TAIL_DEGREES: f64 = 3.0;

/// The most likely level of a reading with this variance, under a prior with Student's tails.
fn shrink(log: f64, variance: f64, prior: LevelPrior) -> f64 {
    let middle = prior.accept_length.max(1.0).ln();
    let spread = prior.log_sd.powi(2).max(f64::MIN_POSITIVE);
    let mut level = log;
    // The tails are a normal prior whose variance grows with the distance; it settles quickly.
    for _ in 0..30 {
        let off = (level - middle).powi(2) / spread;
        let tail = spread * (TAIL_DEGREES + off) / (TAIL_DEGREES + 1.0);
        let weight = variance / (variance + tail).max(f64::MIN_POSITIVE);
        level = (1.0 - weight) * log + weight * middle;
    }
    level.exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: LevelPrior = LevelPrior {
        accept_length: 2.5,
        log_sd: 0.13,
    };

    #[test]
    fn many_scattered_readings_become_one_level() {
        // GLM-5.1, DCP 1, 16k: readings of one head between 2.1 and 3.0.
        let level = steady_level(&[2.143, 3.001, 2.41], PRIOR);
        assert!(level.is_some_and(|l| (l - 2.49).abs() < 0.02), "{level:?}");
        assert_eq!(steady_level(&[], PRIOR), None);
        assert_eq!(steady_level(&[f64::NAN, 0.0], PRIOR), None);
    }

    #[test]
    fn a_single_outlier_is_pulled_towards_the_prior_and_more_so_beyond_the_sweep() {
        let inside = level_of_speed(3.2, 0.0, 4.0, PRIOR);
        let beyond = level_of_speed(3.2, 0.7, 4.0, PRIOR);
        assert!(2.5 < beyond && beyond < inside && inside < 3.2);
        assert!(level_of_speed(9.0, 0.0, 4.0, PRIOR) <= 4.0);
    }
}
