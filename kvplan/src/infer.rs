//! Backwards: what a log's figures say about the ones it does not print. SGLang's identity
//! `pool + states = free after - free before x (1 - fraction)` ties them; bytes a token ties the pool
//! to its tokens.

use crate::GIB;
use crate::engine::sglang::first_legal;

/// Figures of a log, any of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Known {
    /// Free before weights, GiB.
    pub free_before_gib: Option<f64>,
    /// Free after weights, GiB.
    pub free_after_gib: Option<f64>,
    /// KV pool, GiB.
    pub pool_gib: Option<f64>,
    /// States of linear and Mamba layers beside it, GiB; nothing is 0.
    pub state_gib: Option<f64>,
    /// KV tokens.
    pub tokens: Option<u64>,
    /// The fraction that really applied.
    pub fraction: Option<f64>,
    /// Bytes a token takes on a card, from the model.
    pub bytes_per_token: Option<f64>,
    /// Weights on a card, GiB, from the model.
    pub weights_gib: Option<f64>,
}

/// What follows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inferred {
    /// Everything known or following.
    pub known: Known,
    /// At or below this fraction the engine refuses.
    pub fraction_min: Option<f64>,
    /// First three-digit fraction that is not refused.
    pub first_legal_fraction: Option<f64>,
    /// GiB kept outside the fraction.
    pub reserve_gib: Option<f64>,
    /// Half the width of the fraction that the rounding of the figures leaves open.
    pub fraction_uncertainty: Option<f64>,
    /// Names of what was inferred, in the order it was.
    pub inferred: Vec<&'static str>,
}

/// Log figures are printed to two decimals.
const PRINTED_GIB: f64 = 0.005;

impl Known {
    /// Fills in what follows from what is known, until nothing more does.
    pub fn infer(self) -> Inferred {
        let mut out = Inferred {
            known: self,
            ..Inferred::default()
        };
        // Each round can only fill one of seven places.
        for _ in 0..7 {
            if !out.step() {
                break;
            }
        }
        let known = out.known;
        if let (Some(before), Some(after)) = (known.free_before_gib, known.free_after_gib)
            && before > 0.0
        {
            let min = 1.0 - after / before;
            out.fraction_min = Some(min);
            out.first_legal_fraction = Some(first_legal(min));
        }
        if let (Some(before), Some(fraction)) = (known.free_before_gib, known.fraction) {
            out.reserve_gib = Some(before * (1.0 - fraction));
            out.fraction_uncertainty = Some(3.0 * PRINTED_GIB / before.max(PRINTED_GIB));
        }
        out
    }

    /// The pool, states in, that another fraction would have given, GiB; negative: refused, short by
    /// that.
    pub fn pool_at(&self, fraction: f64) -> Option<f64> {
        Some(self.free_after_gib? - self.free_before_gib? * (1.0 - fraction))
    }
}

impl Inferred {
    /// Fills one place; `false` when nothing follows.
    fn step(&mut self) -> bool {
        let k = &mut self.known;
        let state = k.state_gib.unwrap_or(0.0);
        let filled = if let (None, Some(tokens), Some(cell)) =
            (k.pool_gib, k.tokens, k.bytes_per_token)
        {
            k.pool_gib = Some(tokens as f64 * cell / GIB);
            "KV pool"
        } else if let (None, Some(pool), Some(cell)) = (k.tokens, k.pool_gib, k.bytes_per_token)
            && cell > 0.0
            && pool >= 0.0
        {
            k.tokens = Some((pool * GIB / cell) as u64);
            "tokens"
        } else if let (None, Some(pool), Some(tokens)) = (k.bytes_per_token, k.pool_gib, k.tokens)
            && tokens > 0
        {
            k.bytes_per_token = Some(pool * GIB / tokens as f64);
            "bytes a token"
        } else if let (None, Some(before), Some(after)) =
            (k.weights_gib, k.free_before_gib, k.free_after_gib)
        {
            k.weights_gib = Some(before - after);
            "weights"
        } else if let (None, Some(before), Some(after), Some(pool)) =
            (k.fraction, k.free_before_gib, k.free_after_gib, k.pool_gib)
            && before > 0.0
        {
            k.fraction = Some(1.0 - (after - pool - state) / before);
            "fraction"
        } else if let (None, Some(before), Some(after), Some(fraction)) =
            (k.pool_gib, k.free_before_gib, k.free_after_gib, k.fraction)
        {
            k.pool_gib = Some(after - before * (1.0 - fraction) - state);
            "KV pool"
        } else if let (None, Some(before), Some(pool), Some(fraction)) =
            (k.free_after_gib, k.free_before_gib, k.pool_gib, k.fraction)
        {
            k.free_after_gib = Some(pool + state + before * (1.0 - fraction));
            "free after"
        } else if let (None, Some(after), Some(pool), Some(fraction)) =
            (k.free_before_gib, k.free_after_gib, k.pool_gib, k.fraction)
            && fraction < 1.0
        {
            k.free_before_gib = Some((after - pool - state) / (1.0 - fraction));
            "free before"
        } else if let (None, Some(before), Some(weights)) =
            (k.free_after_gib, k.free_before_gib, k.weights_gib)
        {
            k.free_after_gib = Some(before - weights);
            "free after"
        } else if let (None, Some(after), Some(weights)) =
            (k.free_before_gib, k.free_after_gib, k.weights_gib)
        {
            k.free_before_gib = Some(after + weights);
            "free before"
        } else {
            return false;
        };
        self.inferred.push(filled);
        true
    }
}

/// A fraction someone believes in, against what the figures say.
#[derive(Debug, Clone, PartialEq)]
pub struct BeliefCheck {
    /// The fraction believed.
    pub believed: f64,
    /// The fraction the figures give.
    pub used: f64,
    /// Whether they agree within the rounding of the figures.
    pub agrees: bool,
    /// Whether the believed fraction can start at all.
    pub believed_starts: bool,
    /// GiB it is short by; 0 where it starts.
    pub short_gib: f64,
    /// One sentence.
    pub sentence: String,
}

/// Checks a believed fraction against a log's figures; `None` where they do not give one.
pub fn check_belief(inferred: &Inferred, believed: f64) -> Option<BeliefCheck> {
    let used = inferred.known.fraction?;
    let pool = inferred.known.pool_at(believed)?;
    let agrees =
        (used - believed).abs() <= inferred.fraction_uncertainty.unwrap_or(0.001).max(0.0006);
    let starts = pool > 0.0;
    let legal = inferred.first_legal_fraction.unwrap_or(1.0);
    let sentence = if agrees {
        format!("the figures agree with {believed}")
    } else if starts {
        let what = match inferred.known.state_gib {
            Some(state) if state > 0.0 => " of KV and states",
            _ => "",
        };
        format!("the run used {used:.3}, not {believed}: that would give {pool:.2} GiB{what}")
    } else {
        format!(
            "the run used {used:.3}, not {believed}: {believed} is refused, short by {:.1} GiB; the \
             first setting that starts is {legal:.3}",
            -pool
        )
    };
    Some(BeliefCheck {
        believed,
        used,
        agrees,
        believed_starts: starts,
        short_gib: (-pool).max(0.0),
        sentence,
    })
}

/// Tokens that a pool holds, whole pages only.
pub fn tokens_in_pool(pool_gib: f64, bytes_per_token: f64, page_tokens: u64) -> u64 {
    let page = page_tokens.max(1);
    if !(bytes_per_token > 0.0 && pool_gib > 0.0) {
        return 0;
    }
    (pool_gib * GIB / (bytes_per_token * page as f64)) as u64 * page
}

/// vLLM's pool from the parts its log prints, GiB; negative where they exceed the utilisation.
pub fn pool_of_utilisation(
    total_gib: f64,
    utilisation: f64,
    weights_gib: f64,
    activation_gib: f64,
    non_torch_gib: f64,
) -> f64 {
    total_gib * utilisation - weights_gib - activation_gib - non_torch_gib
}
