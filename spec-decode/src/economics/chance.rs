//! How sure: the chance that it pays, and the band of the speedup, from the acceptance posterior
//! and the scatter of the cycle cost.

use crate::acceptance::posterior::Posterior;

/// P(speedup > 1) at a depth: the accept length spreads as the posterior, ln(break-even) is
/// normal around ln(`break_even_accept_length`) with `log_sd`.
pub fn probability_pays(
    posterior: &Posterior,
    depth: u32,
    break_even_accept_length: f64,
    log_sd: f64,
) -> f64 {
    1.0 - speedup_below(posterior, depth, break_even_accept_length, log_sd, 1.0)
}

/// P(speedup <= `speedup`).
fn speedup_below(
    posterior: &Posterior,
    depth: u32,
    break_even_accept_length: f64,
    log_sd: f64,
    speedup: f64,
) -> f64 {
    posterior
        .chains()
        .iter()
        .map(|(chain, weight)| {
            let log = (chain.accept_length(depth) / break_even_accept_length / speedup).ln();
            let below = if log_sd > 1e-9 {
                normal_cdf(-log / log_sd)
            } else {
                f64::from(u8::from(log <= 0.0))
            };
            weight * below
        })
        .sum::<f64>()
        .clamp(0.0, 1.0)
}

/// (low, middle, high) of the speedup that hold `coverage` (0.9 for 90 %), never above
/// `depth + 1`.
pub fn speedup_band(
    posterior: &Posterior,
    depth: u32,
    break_even_accept_length: f64,
    log_sd: f64,
    coverage: f64,
) -> (f64, f64, f64) {
    let tail = 0.5 * (1.0 - coverage.clamp(0.0, 1.0));
    let most = f64::from(depth) + 1.0;
    let quantile = |q: f64| {
        let (mut low, mut high) = (1e-3f64.ln(), most.ln());
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            let below = speedup_below(
                posterior,
                depth,
                break_even_accept_length,
                log_sd,
                middle.exp(),
            );
            if below < q {
                low = middle;
            } else {
                high = middle;
            }
        }
        (0.5 * (low + high)).exp()
    };
    (quantile(tail), quantile(0.5), quantile(1.0 - tail))
}

/// P(standard normal <= z), to seven digits (Abramowitz and Stegun 26.2.17).
pub fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = poly * (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    if z >= 0.0 { 1.0 - tail } else { tail }
}
