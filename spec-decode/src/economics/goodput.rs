//! Tokens per second under a distribution of load.

use super::{Economy, OperatingPoint, StepCost, choose_depth};

/// A share of the time at one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadShare {
    /// Sequences decoded at a time.
    pub concurrency: f64,
    /// Weight; shares need not sum to 1.
    pub share: f64,
}

/// Time-weighted tokens per second of all sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goodput {
    /// Without speculation.
    pub plain_tok_s: f64,
    /// With one depth at every load.
    pub fixed_tok_s: f64,
    /// The depth of [`Self::fixed_tok_s`]: the best single one, 0 for off.
    pub fixed_depth: u32,
    /// With the best depth (or off) at every load.
    pub scheduled_tok_s: f64,
}

/// Goodput at a context under a distribution of load; `accept_lengths[k - 1]` is that of depth k.
/// `None` when no share has weight.
pub fn goodput(
    cost: &impl StepCost,
    context: f64,
    accept_lengths: &[f64],
    load: &[LoadShare],
) -> Option<Goodput> {
    let usable = |l: &&LoadShare| l.share > 0.0 && l.share.is_finite() && l.concurrency > 0.0;
    let total: f64 = load.iter().filter(usable).map(|l| l.share).sum();
    if total <= 0.0 {
        return None;
    }
    let mut plain = 0.0;
    let mut scheduled = 0.0;
    let mut by_depth = vec![0.0; accept_lengths.len()];
    for l in load.iter().filter(usable) {
        let at = OperatingPoint {
            concurrency: l.concurrency,
            context,
        };
        let share = l.share / total;
        let plain_ms = cost.plain_ms(at);
        let plain_tok_s = Economy::new(plain_ms, plain_ms).tok_s(1.0, l.concurrency);
        plain += share * plain_tok_s;
        let best = choose_depth(cost, at, accept_lengths).best;
        scheduled += share * plain_tok_s * best.speedup;
        for (depth, (sum, accept_length)) in (1u32..).zip(by_depth.iter_mut().zip(accept_lengths)) {
            let economy = Economy::of_chain(cost, at, depth);
            *sum += share * economy.tok_s(*accept_length, l.concurrency);
        }
    }
    let (fixed_depth, fixed) = (1u32..)
        .zip(by_depth)
        .fold((0, plain), |best, (depth, tok_s)| {
            if tok_s > best.1 { (depth, tok_s) } else { best }
        });
    Some(Goodput {
        plain_tok_s: plain,
        fixed_tok_s: fixed,
        fixed_depth,
        scheduled_tok_s: scheduled,
    })
}
