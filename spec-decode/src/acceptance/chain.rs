//! The logit-linear chain: P(position i accepted | 1..i-1 accepted) = sigmoid(x + b (i - 1)).
//!
//! `x` is the level (one number per target, draft, task and temperature), `b` the slope along the
//! drafted positions, a property of the head kind. Constant acceptance over-promises deep drafts.

use super::prior::slope_of_head;
use crate::error::AcceptanceError;
use crate::head::HeadKind;

/// Levels are kept within ± this many logits: beyond, a position is accepted or refused with
/// certainty to nine digits, and solving for the level has no meaning.
pub const MAX_LEVEL: f64 = 20.0;

/// Deepest draft that is computed; deeper ones are treated as this deep (engines stop at 32).
pub const MAX_DEPTH: u32 = 256;

/// `1 / (1 + exp(-logit))`.
pub fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

/// A chain of drafted tokens, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chain {
    /// Logit of the first position's acceptance.
    pub level: f64,
    /// Change of the logit per position.
    pub slope: f64,
}

impl Chain {
    /// A chain with this level and slope; values that are not finite become 0.
    pub fn new(level: f64, slope: f64) -> Self {
        let finite = |v: f64| if v.is_finite() { v } else { 0.0 };
        Self {
            level: finite(level).clamp(-MAX_LEVEL, MAX_LEVEL),
            slope: finite(slope).clamp(-MAX_LEVEL, MAX_LEVEL),
        }
    }

    /// Constant acceptance `alpha` at every position (Leviathan et al., arXiv 2211.17192).
    ///
    /// # Errors
    /// [`AcceptanceError::Rate`] when `alpha` is not a probability.
    pub fn constant(alpha: f64) -> Result<Self, AcceptanceError> {
        if !(0.0..=1.0).contains(&alpha) {
            return Err(AcceptanceError::Rate {
                position: 1,
                rate: alpha,
            });
        }
        Ok(Self::new(
            (alpha / (1.0 - alpha)).ln().clamp(-MAX_LEVEL, MAX_LEVEL),
            0.0,
        ))
    }

    /// The chain of this head kind that has this accept length (bonus token included) at this
    /// depth.
    ///
    /// # Errors
    /// [`AcceptanceError::AcceptLength`] outside `1 ..= depth + 1`.
    pub fn from_accept_length(
        accept_length: f64,
        depth: u32,
        head: HeadKind,
    ) -> Result<Self, AcceptanceError> {
        Self::with_slope(accept_length, depth, slope_of_head(head).mean)
    }

    /// The chain with a given slope that has this accept length at this depth.
    ///
    /// # Errors
    /// [`AcceptanceError::AcceptLength`] outside `1 ..= depth + 1`.
    pub fn with_slope(accept_length: f64, depth: u32, slope: f64) -> Result<Self, AcceptanceError> {
        let top = f64::from(depth) + 1.0;
        if depth == 0 || !(1.0..=top).contains(&accept_length) {
            return Err(AcceptanceError::AcceptLength {
                accept_length,
                depth,
            });
        }
        // Monotone in the level, so bisection cannot miss; 60 halvings reach the last digit.
        let (mut low, mut high) = (-MAX_LEVEL, MAX_LEVEL);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if Self::new(middle, slope).accept_length(depth) < accept_length {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Self::new(0.5 * (low + high), slope))
    }

    /// P(position accepted | the earlier ones are), `position` from 1.
    pub fn alpha(&self, position: u32) -> f64 {
        sigmoid(self.level + self.slope * f64::from(position.max(1) - 1))
    }

    /// [`Self::alpha`] of positions `1 ..= depth`.
    pub fn alphas(&self, depth: u32) -> Vec<f64> {
        (1..=depth.min(MAX_DEPTH)).map(|i| self.alpha(i)).collect()
    }

    /// P(positions `1 ..= position` all accepted): what vLLM prints as its per-position rate.
    pub fn survival(&self, position: u32) -> f64 {
        (1..=position.min(MAX_DEPTH))
            .map(|i| self.alpha(i))
            .product()
    }

    /// Tokens per verify with the bonus token: `1 + Σ survival(k)`, `k = 1 ..= depth`.
    pub fn accept_length(&self, depth: u32) -> f64 {
        let mut survival = 1.0;
        let mut total = 1.0;
        for position in 1..=depth.min(MAX_DEPTH) {
            survival *= self.alpha(position);
            total += survival;
            if survival < 1e-15 {
                break;
            }
        }
        total
    }

    /// Variance of the tokens per verify, in tokens squared, for one cycle.
    pub fn variance(&self, depth: u32) -> f64 {
        // E[T²] = 1 + Σ (2k + 1) S_k for T = 1 + number accepted.
        let mut survival = 1.0;
        let (mut first, mut second) = (1.0, 1.0);
        for position in 1..=depth.min(MAX_DEPTH) {
            survival *= self.alpha(position);
            first += survival;
            second += (2.0 * f64::from(position) + 1.0) * survival;
        }
        (second - first * first).max(0.0)
    }
}
