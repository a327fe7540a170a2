//! Whole requests by Monte Carlo: accept lengths cycle by cycle, the cut at a request's end, and
//! batches whose requests finish unevenly. The closed forms beside it are exact, so that each
//! checks the other.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::acceptance::chain::{Chain, MAX_DEPTH};

/// Longest request and largest batch that are simulated.
pub const MAX_TOKENS: u32 = 1 << 20;

/// One run of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRun {
    /// The seed it ran with, to be printed.
    pub seed: u64,
    /// Cycles until the last request was done.
    pub cycles: u64,
    /// Time of all cycles, ms.
    pub time_ms: f64,
    /// Tokens that were delivered.
    pub tokens: u64,
    /// Tokens that were accepted beyond a request's end and thrown away.
    pub cut_tokens: u64,
    /// Cycles by number of tokens made (index 0 is one token), before the cut.
    pub histogram: Vec<u64>,
}

impl BatchRun {
    /// Mean accept length over all cycles, before the cut.
    pub fn accept_length(&self) -> f64 {
        let cycles: u64 = self.histogram.iter().sum();
        let tokens: f64 = (1u32..)
            .zip(&self.histogram)
            .map(|(tokens, &n)| f64::from(tokens) * n as f64)
            .sum();
        tokens / cycles.max(1) as f64
    }

    /// Standard error of [`Self::accept_length`].
    pub fn accept_length_error(&self) -> f64 {
        let cycles: u64 = self.histogram.iter().sum();
        let mean = self.accept_length();
        let square: f64 = (1u32..)
            .zip(&self.histogram)
            .map(|(tokens, &n)| (f64::from(tokens) - mean).powi(2) * n as f64)
            .sum();
        let n = cycles.max(2) as f64;
        (square / (n - 1.0) / n).sqrt()
    }

    /// Tokens delivered per cycle and request: what a benchmark prints as accept length.
    pub fn delivered_per_cycle(&self) -> f64 {
        let cycles: u64 = self.histogram.iter().sum();
        self.tokens as f64 / cycles.max(1) as f64
    }
}

/// Tokens of one cycle: 1 + accepted drafts.
fn cycle_tokens(alphas: &[f64], rng: &mut impl Rng) -> u32 {
    let mut tokens = 1;
    for &alpha in alphas {
        if rng.random::<f64>() >= alpha {
            break;
        }
        tokens += 1;
    }
    tokens
}

/// Runs a batch whose requests start together and want `output_tokens` each; `cycle_ms(active)`
/// is the cost of a cycle with that many requests still running.
pub fn run_batch(
    chain: &Chain,
    depth: u32,
    output_tokens: &[u32],
    cycle_ms: impl Fn(usize) -> f64,
    seed: u64,
) -> BatchRun {
    let alphas = chain.alphas(depth.min(MAX_DEPTH));
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut left: Vec<u32> = output_tokens
        .iter()
        .map(|&n| n.min(MAX_TOKENS))
        .filter(|&n| n > 0)
        .collect();
    let mut run = BatchRun {
        seed,
        cycles: 0,
        time_ms: 0.0,
        tokens: left.iter().map(|&n| u64::from(n)).sum(),
        cut_tokens: 0,
        histogram: vec![0; alphas.len() + 1],
    };
    while !left.is_empty() {
        run.cycles += 1;
        run.time_ms += cycle_ms(left.len());
        for remaining in &mut left {
            let tokens = cycle_tokens(&alphas, &mut rng);
            if let Some(count) = run.histogram.get_mut(tokens as usize - 1) {
                *count += 1;
            }
            run.cut_tokens += u64::from(tokens.saturating_sub(*remaining));
            *remaining = remaining.saturating_sub(tokens);
        }
        left.retain(|&n| n > 0);
    }
    run
}

/// P(a cycle makes exactly t tokens), index 0 for one token.
pub fn token_probabilities(chain: &Chain, depth: u32) -> Vec<f64> {
    let depth = depth.min(MAX_DEPTH);
    let mut survival = 1.0;
    let mut probabilities = Vec::with_capacity(depth as usize + 1);
    for position in 1..=depth {
        let next = survival * chain.alpha(position);
        probabilities.push(survival - next);
        survival = next;
    }
    probabilities.push(survival);
    probabilities
}

/// Expected cycles of a request with `output_tokens`, exact: by the number of tokens left.
pub fn expected_cycles(chain: &Chain, depth: u32, output_tokens: u32) -> f64 {
    let probabilities = token_probabilities(chain, depth);
    let n = output_tokens.min(MAX_TOKENS) as usize;
    let mut expected = vec![0.0; n + 1];
    for left in 1..=n {
        let later: f64 = probabilities
            .iter()
            .enumerate()
            .take_while(|(index, _)| index + 1 < left)
            .map(|(index, p)| p * expected[left - index - 1])
            .sum();
        expected[left] = 1.0 + later;
    }
    expected[n]
}

/// P(a request with `output_tokens` is still running after t cycles), t = 0, 1, …, exact; ends
/// when it is below 1e-12. Time grows with the square of `output_tokens`.
pub fn still_running(chain: &Chain, depth: u32, output_tokens: u32) -> Vec<f64> {
    let probabilities = token_probabilities(chain, depth);
    let n = output_tokens.min(MAX_TOKENS) as usize;
    // made[k]: P(k tokens made so far, k < n).
    let mut made = vec![0.0; n];
    let mut running = Vec::new();
    if n > 0 {
        made[0] = 1.0;
    }
    for _ in 0..=n {
        let total: f64 = made.iter().sum();
        if total < 1e-12 {
            break;
        }
        running.push(total);
        let mut next = vec![0.0; n];
        for (tokens, &p_here) in made.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            for (index, &p) in probabilities.iter().enumerate() {
                if let Some(cell) = next.get_mut(tokens + index + 1) {
                    *cell += p_here * p;
                }
            }
        }
        made = next;
    }
    running
}

/// Expected time of a batch with a cycle cost of `base_ms + per_request_ms x active`, exact.
pub fn expected_batch_ms(
    chain: &Chain,
    depth: u32,
    output_tokens: &[u32],
    base_ms: f64,
    per_request_ms: f64,
) -> f64 {
    let running: Vec<Vec<f64>> = output_tokens
        .iter()
        .map(|&n| still_running(chain, depth, n))
        .collect();
    let longest = running.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .map(|t| {
            let at = |r: &Vec<f64>| r.get(t).copied().unwrap_or(0.0);
            let active: f64 = running.iter().map(at).sum();
            let all_done: f64 = running.iter().map(|r| 1.0 - at(r)).product();
            base_ms * (1.0 - all_done) + per_request_ms * active
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_lengths_agree_with_the_closed_form() {
        for (seed, (level, slope, depth)) in (1u64..).zip([
            (0.9, -0.14, 3),
            (2.0, -0.1, 7),
            (-0.3, 0.1, 5),
            (1.5, -0.5, 8),
        ]) {
            let chain = Chain::new(level, slope);
            let run = run_batch(&chain, depth, &[4000; 16], |_| 1.0, seed);
            let off = (run.accept_length() - chain.accept_length(depth)).abs();
            assert!(
                off < 3.0 * run.accept_length_error(),
                "seed {seed}: off by {off}"
            );
            // The estimated error itself is that of the closed-form variance.
            let cycles: u64 = run.histogram.iter().sum();
            let exact = (chain.variance(depth) / cycles as f64).sqrt();
            assert!((run.accept_length_error() / exact - 1.0).abs() < 0.05);
        }
    }

    #[test]
    fn cycles_of_short_requests_agree_with_the_recurrence() {
        let chain = Chain::new(1.2, -0.47);
        for (seed, tokens) in (11u64..).zip([1u32, 2, 5, 16, 64]) {
            let exact = expected_cycles(&chain, 5, tokens);
            let counts: Vec<f64> = (0..4000)
                .map(|i| run_batch(&chain, 5, &[tokens], |_| 1.0, seed * 10_000 + i).cycles as f64)
                .collect();
            let (mean, error) = mean_and_error(&counts);
            assert!(
                (mean - exact).abs() <= 3.0 * error + 1e-12,
                "{tokens}: {mean} {exact}"
            );
        }
    }

    #[test]
    fn uneven_batches_agree_with_the_closed_form() {
        let chain = Chain::new(0.9, -0.47);
        let lengths = [3, 10, 25, 25, 60, 120];
        let exact = expected_batch_ms(&chain, 3, &lengths, 9.0, 0.7);
        let times: Vec<f64> = (0..3000)
            .map(|i| {
                run_batch(
                    &chain,
                    3,
                    &lengths,
                    |active| 9.0 + 0.7 * active as f64,
                    500 + i,
                )
                .time_ms
            })
            .collect();
        let (mean, error) = mean_and_error(&times);
        assert!(
            (mean - exact).abs() < 3.0 * error,
            "{mean} ± {error} against {exact}"
        );
    }

    #[test]
    fn a_benchmark_of_short_requests_prints_a_shorter_accept_length() {
        // Known shift: about half a draft per request, so minus ~0.5 / length relative.
        let chain = Chain::new(1.2, -0.47);
        let (long_run, tokens) = (chain.accept_length(3), 128u32);
        let printed = f64::from(tokens) / expected_cycles(&chain, 3, tokens);
        let loss = 1.0 - printed / long_run;
        assert!(
            loss > 0.1 / f64::from(tokens) && loss < 2.0 / f64::from(tokens),
            "{loss}"
        );
    }

    #[test]
    fn tokens_made_are_those_delivered_plus_those_cut() {
        let chain = Chain::new(2.5, 0.0);
        let run = run_batch(&chain, 6, &[50, 51, 52], |_| 1.0, 7);
        let made: u64 = (1u64..).zip(&run.histogram).map(|(t, n)| t * n).sum();
        assert_eq!(made, run.tokens + run.cut_tokens);
        assert_eq!(run.tokens, 153);
    }

    fn mean_and_error(values: &[f64]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, (variance / n).sqrt())
    }
}
