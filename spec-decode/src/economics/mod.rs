//! When speculation pays: step costs come in as functions, verdict figures go out.
//!
//! A plain step at concurrency `c` makes one token per sequence; a cycle drafts `depth` tokens,
//! verifies `depth + 1` and makes `accept_length` of them. Speedup = accept length x plain step /
//! cycle. It can never exceed the accept length, because a cycle contains a target forward over
//! at least the tokens of a plain step.

pub mod break_even;
pub mod chance;
pub mod depth;
pub mod draft;
pub mod goodput;
pub mod schedule;

pub use break_even::{Flip, PayRange, flips, pay_range};
pub use chance::{probability_pays, speedup_band};
pub use depth::{DepthChoice, DepthOption, choose_depth, pick};
pub use goodput::{Goodput, LoadShare, goodput};
pub use schedule::{DepthRange, DepthTable};

/// A further draft step in plain steps, where nothing is known of the box: the cost that predicts
/// the speedups at other depths of 64 public groups of runs best (0.065; ten pairs on their own
/// give 0.044 to 0.16).
pub const DRAFT_STEP_SHARE: f64 = 0.065;

/// Where the machine runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperatingPoint {
    /// Sequences decoded at a time.
    pub concurrency: f64,
    /// Tokens of context each holds.
    pub context: f64,
}

/// Step costs, given from outside (a sweep, a roofline, a measurement).
pub trait StepCost {
    /// One plain decode step, ms.
    fn plain_ms(&self, at: OperatingPoint) -> f64;
    /// The target's verify forward over `verify_tokens` per sequence, ms.
    fn verify_ms(&self, at: OperatingPoint, verify_tokens: u32) -> f64;
    /// Everything else in a cycle (draft passes, sampling, host), ms.
    fn draft_ms(&self, at: OperatingPoint, depth: u32) -> f64;
}

/// Step costs from two functions: `forward(concurrency, verify_tokens, context)` and
/// `draft(concurrency, depth, context)`, both in ms.
#[derive(Debug, Clone, Copy)]
pub struct CostFns<F, D> {
    /// Target forward over `verify_tokens` per sequence; 1 token is a plain step.
    pub forward: F,
    /// Draft passes and the rest of a cycle.
    pub draft: D,
}

impl<F, D> StepCost for CostFns<F, D>
where
    F: Fn(f64, u32, f64) -> f64,
    D: Fn(f64, u32, f64) -> f64,
{
    fn plain_ms(&self, at: OperatingPoint) -> f64 {
        (self.forward)(at.concurrency, 1, at.context)
    }
    fn verify_ms(&self, at: OperatingPoint, verify_tokens: u32) -> f64 {
        (self.forward)(at.concurrency, verify_tokens, at.context)
    }
    fn draft_ms(&self, at: OperatingPoint, depth: u32) -> f64 {
        (self.draft)(at.concurrency, depth, at.context)
    }
}

/// One cycle against one plain step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Economy {
    /// One plain decode step, ms.
    pub plain_ms: f64,
    /// One cycle, ms; never below the plain step.
    pub cycle_ms: f64,
    /// True where the given cost was below the plain step and was raised to it: the cost
    /// functions contradict each other.
    pub raised: bool,
}

impl Economy {
    /// Of a plain step and a cycle, both in ms.
    pub fn new(plain_ms: f64, cycle_ms: f64) -> Self {
        let raised = cycle_ms < plain_ms || cycle_ms.is_nan();
        Self {
            plain_ms,
            cycle_ms: if raised { plain_ms } else { cycle_ms },
            raised,
        }
    }

    /// Of a chain of `depth` drafted tokens at an operating point.
    pub fn of_chain(cost: &impl StepCost, at: OperatingPoint, depth: u32) -> Self {
        Self::new(
            cost.plain_ms(at),
            cost.verify_ms(at, depth.saturating_add(1)) + cost.draft_ms(at, depth),
        )
    }

    /// The accept length at which speculation breaks even: a cycle in plain steps (R).
    pub fn break_even_accept_length(&self) -> f64 {
        if self.plain_ms > 0.0 {
            self.cycle_ms / self.plain_ms
        } else {
            f64::INFINITY
        }
    }

    /// Speedup over plain decoding at this accept length; at most the accept length.
    pub fn speedup(&self, accept_length: f64) -> f64 {
        let speedup = accept_length / self.break_even_accept_length();
        debug_assert!(speedup <= accept_length * (1.0 + 1e-9));
        speedup
    }

    /// Tokens per second of all sequences together.
    pub fn tok_s(&self, accept_length: f64, concurrency: f64) -> f64 {
        if self.cycle_ms > 0.0 {
            1000.0 * concurrency * accept_length / self.cycle_ms
        } else {
            0.0
        }
    }
}
