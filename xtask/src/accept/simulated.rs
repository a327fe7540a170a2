//! `--simulate`: what a benchmark of whole requests prints, and how far such benchmarks lie apart by
//! chance.

use serde_json::{Value, json};
use spec_decode::acceptance::metrics::truncated_by_request_end;
use spec_decode::bands::NORMAL_90;
use spec_decode::montecarlo::run_batch;
use spec_decode::{Chain, Posterior};

use super::rounded;
use crate::cli::AcceptCommandArgs;
use crate::input;
use crate::scenario::parse;

/// Requests that `--simulate` runs.
const SIMULATED_REQUESTS: usize = 256;

/// What a benchmark of short requests would print.
pub(super) struct Simulated {
    depth: u32,
    output_tokens: u32,
    seed: u64,
    long_run: f64,
    printed: f64,
    printed_exact: f64,
    spread: Spread,
}

impl Simulated {
    pub(super) fn as_json(&self) -> Value {
        json!({"depth": self.depth, "output_tokens": self.output_tokens, "seed": self.seed,
               "accept_length": rounded(self.long_run), "printed": rounded(self.printed),
               "printed_exact": rounded(self.printed_exact),
               "printed_low": rounded(self.spread.all.0),
               "printed_high": rounded(self.spread.all.1),
               "one_request_low": rounded(self.spread.one.0),
               "one_request_high": rounded(self.spread.one.1)})
    }

    pub(super) fn as_text(&self) -> String {
        format!(
            "simulated  {} requests of {} tokens at depth {}, seed {}: accept length {:.3}; a \
             benchmark prints {:.3} (exactly {:.3}), because the last cycle of a request is cut; nine \
             such benchmarks in ten print {:.3} to {:.3}, single requests {:.2} to {:.2}\n",
            SIMULATED_REQUESTS,
            self.output_tokens,
            self.depth,
            self.seed,
            self.long_run,
            self.printed,
            self.printed_exact,
            self.spread.all.0,
            self.spread.all.1,
            self.spread.one.0,
            self.spread.one.1
        )
    }
}

pub(super) fn simulate(
    args: &AcceptCommandArgs,
    posterior: &Posterior,
    depths: &[u32],
) -> anyhow::Result<Option<Simulated>> {
    let Some(text) = &args.simulate else {
        return Ok(None);
    };
    let output_tokens = parse::count("--simulate", text)?;
    let output_tokens = u32::try_from(output_tokens)
        .ok()
        .filter(|n| (1..=65_536).contains(n))
        .ok_or_else(|| {
            input::error(format!(
                "--simulate {text}: give output tokens from 1 to 65536"
            ))
        })?;
    let depth = depths.last().copied().unwrap_or(1);
    let chain = posterior.chain();
    let requests = vec![output_tokens; SIMULATED_REQUESTS];
    let run = run_batch(&chain, depth, &requests, |_| 1.0, args.seed);
    let printed = run.delivered_per_cycle();
    let load = (SIMULATED_REQUESTS, output_tokens);
    Ok(Some(Simulated {
        depth,
        output_tokens,
        seed: run.seed,
        long_run: run.accept_length(),
        printed,
        spread: spread((&chain, depth), load, run.seed, printed),
        printed_exact: truncated_by_request_end(&chain, depth, output_tokens),
    }))
}

/// 90 % ranges of the accept length that is printed.
struct Spread {
    /// Of benchmarks of as many requests as were drawn.
    all: (f64, f64),
    /// Of one request.
    one: (f64, f64),
}

/// Draws the requests again, one by one; the ranges lie around what their benchmark printed.
fn spread(
    (chain, depth): (&Chain, u32),
    (requests, output_tokens): (usize, u32),
    seed: u64,
    printed: f64,
) -> Spread {
    let cycles = |seed: u64| run_batch(chain, depth, &[output_tokens], |_| 1.0, seed).cycles as f64;
    let drawn: Vec<f64> = (1u64..)
        .take(requests)
        .map(|request| cycles(seed.wrapping_add(request)))
        .collect();
    let count = drawn.len().max(2) as f64;
    let mean = drawn.iter().sum::<f64>() / count;
    let square: f64 = drawn.iter().map(|cycles| (cycles - mean).powi(2)).sum();
    let half_width = NORMAL_90 * (square / (count - 1.0)).sqrt();
    let tokens = f64::from(output_tokens);
    let range = |half_width: f64| {
        let middle = tokens / printed.max(1.0);
        let most = (f64::from(depth) + 1.0).min(tokens);
        let high = tokens / (middle - half_width).max(1.0);
        (
            (tokens / (middle + half_width)).max(1.0),
            high.min(most).max(printed),
        )
    };
    Spread {
        all: range(half_width / count.sqrt()),
        one: range(half_width),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec_decode::HeadKind;

    #[test]
    fn nine_benchmarks_in_ten_of_other_seeds_print_within_the_range() {
        let chain = Chain::from_accept_length(2.3, 3, HeadKind::Eagle3).expect("a chain");
        let benchmark = |requests: usize, seed: u64| {
            let wanted = vec![200; requests];
            run_batch(&chain, 3, &wanted, |_| 1.0, seed).delivered_per_cycle()
        };
        let long: f64 = benchmark(20_000, 7);
        let found = spread((&chain, 3), (64, 200), 1, long);
        let inside = |(low, high): (f64, f64), requests: usize| {
            let printed = (100..300).map(|seed| benchmark(requests, seed));
            printed.filter(|p| (low..=high).contains(p)).count()
        };
        // Of 200: 180, give or take what 64 draws leave of a deviation.
        assert!(
            (160..=196).contains(&inside(found.all, 64)),
            "{:?}",
            found.all
        );
        assert!(
            (160..=196).contains(&inside(found.one, 1)),
            "{:?}",
            found.one
        );
    }

    #[test]
    fn requests_of_one_token_print_one_whatever_was_drawn() {
        let chain = Chain::from_accept_length(2.3, 3, HeadKind::Eagle3).expect("a chain");
        let found = spread((&chain, 3), (64, 1), 1, 1.0);
        assert_eq!((found.all, found.one), ((1.0, 1.0), (1.0, 1.0)));
    }
}
