//! The chain: P(position i accepted | 1..i-1 accepted, context) = sigmoid(x + c + b sqrt(i - 1)).
//!
//! `x` is the level (one number per target, draft, task and temperature). `b`, the slope, is what
//! a head loses as it feeds on its own states: errors add up like the steps of a random walk, so
//! with the root of the position. `c` is how easy the context is: what survives the first
//! positions stands in easy text, which holds the fall up, the more so the lower the level.
//! Constant acceptance over-promises deep drafts.

use super::prior::slope_of_head;
use crate::error::AcceptanceError;
use crate::head::HeadKind;

/// Levels are kept within ± this many logits: beyond, a position is accepted or refused with
/// certainty to nine digits, and solving for the level has no meaning.
pub const MAX_LEVEL: f64 = 20.0;

/// Deepest draft that is computed; deeper ones are treated as this deep (engines stop at 32).
pub const MAX_DEPTH: u32 = 256;

/// Standard deviation of the contexts' ease, in logits, within one task of one pair. Fitted with
/// the slopes on 80 public curves: 0.6 is picked whichever source is left out (0.55 to 0.7).
pub const CONTEXT_SPREAD: f64 = 0.6;

/// Hard, usual and easy contexts: share, and distance in units of the spread. The three-point
/// Gauss-Hermite rule; eleven points give the same lengths to 0.002.
const CONTEXTS: [(f64, f64); 3] = [
    (1.0 / 6.0, -1.732_050_807_568_877_2),
    (2.0 / 3.0, 0.0),
    (1.0 / 6.0, 1.732_050_807_568_877_2),
];

/// `1 / (1 + exp(-logit))`.
pub fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

/// A chain of drafted tokens, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chain {
    /// Logit of the first position's acceptance in a usual context.
    pub level: f64,
    /// Change of the logit from the first position to the second; to position i it is
    /// `sqrt(i - 1)` times that.
    pub slope: f64,
    /// Standard deviation of the logit between contexts.
    pub spread: f64,
}

/// One position of a chain, the earlier ones accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// P(accepted).
    pub accepted: f64,
    /// P(refused), to full precision where acceptance is all but certain.
    pub refused: f64,
}

/// Walks a chain's positions; what survives moves towards the easy contexts.
#[derive(Debug, Clone)]
struct Walk {
    chain: Chain,
    /// exp(-distance · spread) of each context: its odds of refusal against a usual one's.
    odds: [f64; 3],
    /// Share of each context among the cycles that reached the position.
    shares: [f64; 3],
    position: u32,
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.position >= MAX_DEPTH {
            return None;
        }
        let logit = self.chain.level + self.chain.slope * f64::from(self.position).sqrt();
        self.position += 1;
        let refusal = (-logit).exp();
        let mut by_context = self.shares;
        let mut step = Step {
            accepted: 0.0,
            refused: 0.0,
        };
        for (reached, odds) in by_context.iter_mut().zip(&self.odds) {
            let odds = refusal * odds;
            // odds / (1 + odds), without overflow.
            step.refused += *reached / (1.0 + odds.recip());
            *reached /= 1.0 + odds;
            step.accepted += *reached;
        }
        if step.accepted > 0.0 {
            self.shares = by_context.map(|reached| reached / step.accepted);
        }
        Some(step)
    }
}

impl Chain {
    /// A chain with this level and slope in contexts that differ by [`CONTEXT_SPREAD`]; values
    /// that are not finite become 0.
    pub fn new(level: f64, slope: f64) -> Self {
        let finite = |v: f64| if v.is_finite() { v } else { 0.0 };
        Self {
            level: finite(level).clamp(-MAX_LEVEL, MAX_LEVEL),
            slope: finite(slope).clamp(-MAX_LEVEL, MAX_LEVEL),
            spread: CONTEXT_SPREAD,
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
        Ok(Self {
            level: (alpha / (1.0 - alpha)).ln().clamp(-MAX_LEVEL, MAX_LEVEL),
            slope: 0.0,
            spread: 0.0,
        })
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
        Self::solved(accept_length, depth, |level| Self::new(level, slope))
    }

    /// Constant acceptance that has this accept length at this depth.
    ///
    /// # Errors
    /// [`AcceptanceError::AcceptLength`] outside `1 ..= depth + 1`.
    pub fn constant_from(accept_length: f64, depth: u32) -> Result<Self, AcceptanceError> {
        let at = |level: f64| Self {
            level,
            slope: 0.0,
            spread: 0.0,
        };
        Self::solved(accept_length, depth, at)
    }

    /// The one of a family, rising with its level, that has this accept length at this depth.
    fn solved(
        accept_length: f64,
        depth: u32,
        family: impl Fn(f64) -> Self,
    ) -> Result<Self, AcceptanceError> {
        let top = f64::from(depth) + 1.0;
        if depth == 0 || !(1.0..=top).contains(&accept_length) {
            return Err(AcceptanceError::AcceptLength {
                accept_length,
                depth,
            });
        }
        let miss = |level: f64| family(level).accept_length(depth) - accept_length;
        Ok(family(root(miss, -MAX_LEVEL, MAX_LEVEL)))
    }

    /// The hard, usual and easy contexts: the share of each and its chain.
    pub fn contexts(&self) -> [(f64, Self); 3] {
        CONTEXTS.map(|(share, distance)| {
            let alike = Self {
                level: self.level + distance * self.spread,
                spread: 0.0,
                ..*self
            };
            (share, alike)
        })
    }

    fn walk(&self) -> Walk {
        Walk {
            chain: *self,
            odds: CONTEXTS.map(|(_, distance)| (-distance * self.spread).exp()),
            shares: CONTEXTS.map(|(share, _)| share),
            position: 0,
        }
    }

    /// Every position's acceptance, given that the earlier ones are accepted; from position 1.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        self.walk()
    }

    /// P(position accepted | the earlier ones are), `position` from 1.
    pub fn alpha(&self, position: u32) -> f64 {
        let index = position.clamp(1, MAX_DEPTH) as usize - 1;
        self.walk().nth(index).map_or(0.0, |step| step.accepted)
    }

    /// [`Self::alpha`] of positions `1 ..= depth`.
    pub fn alphas(&self, depth: u32) -> Vec<f64> {
        let steps = self.walk().take(depth as usize);
        steps.map(|step| step.accepted).collect()
    }

    /// P(positions `1 ..= position` all accepted): what vLLM prints as its per-position rate.
    pub fn survival(&self, position: u32) -> f64 {
        let steps = self.walk().take(position as usize);
        steps.map(|step| step.accepted).product()
    }

    /// Tokens per verify with the bonus token: `1 + Σ survival(k)`, `k = 1 ..= depth`.
    pub fn accept_length(&self, depth: u32) -> f64 {
        let mut survival = 1.0;
        let mut total = 1.0;
        for step in self.walk().take(depth as usize) {
            survival *= step.accepted;
            total += survival;
            if survival < 1e-15 {
                break;
            }
        }
        total
    }

    /// [`Self::accept_length`] of depths `1 ..= depth`, in one walk.
    pub fn accept_lengths(&self, depth: u32) -> Vec<f64> {
        let mut survival = 1.0;
        let mut total = 1.0;
        let steps = self.walk().take(depth as usize);
        steps
            .map(|step| {
                survival *= step.accepted;
                total += survival;
                total
            })
            .collect()
    }

    /// Variance of the tokens per verify, in tokens squared, for one cycle.
    pub fn variance(&self, depth: u32) -> f64 {
        // E[T²] = 1 + Σ (2k + 1) S_k for T = 1 + number accepted.
        let mut survival = 1.0;
        let (mut first, mut second) = (1.0, 1.0);
        for (step, position) in self.walk().take(depth as usize).zip(1u32..) {
            survival *= step.accepted;
            first += survival;
            second += (2.0 * f64::from(position) + 1.0) * survival;
        }
        (second - first * first).max(0.0)
    }
}

/// Where a rising function crosses zero (Illinois: false position whose stuck end is halved).
fn root(miss: impl Fn(f64) -> f64, low: f64, high: f64) -> f64 {
    let (mut low, mut high) = ((low, miss(low)), (high, miss(high)));
    if low.1 >= 0.0 {
        return low.0;
    }
    if high.1 <= 0.0 {
        return high.0;
    }
    let mut middle = 0.5 * (low.0 + high.0);
    let mut moved_low = None;
    for turn in 0..200 {
        let value = miss(middle);
        if value.abs() < 1e-12 || high.0 - low.0 < 1e-12 {
            break;
        }
        if value < 0.0 {
            low = (middle, value);
            high.1 *= if moved_low == Some(true) { 0.5 } else { 1.0 };
        } else {
            high = (middle, value);
            low.1 *= if moved_low == Some(false) { 0.5 } else { 1.0 };
        }
        moved_low = Some(value < 0.0);
        middle = if (5..=60).contains(&turn) {
            low.0 - low.1 * (high.0 - low.0) / (high.1 - low.1)
        } else {
            0.5 * (low.0 + high.0)
        };
    }
    middle
}
