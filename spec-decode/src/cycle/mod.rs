//! The cycle law: a speculative cycle at concurrency `c` that verifies `D` tokens per sequence
//! costs what a plain step over `c * D` tokens costs, less the KV that is read once rather than
//! `D` times, plus the draft steps.
//!
//! It holds for chains whose verify runs inside the engine's graphs; [`departures()`] tells from
//! figures where it does not. `docs/step-law.md` says how well it does and on what.

pub mod departures;
pub mod graphs;
pub mod level;
pub mod sweep;

pub use departures::{Departure, Figures, departures};
pub use graphs::GraphLadder;
pub use level::{LevelPrior, level_of_speed, steady_level};
pub use sweep::{Growth, KvReading, Reading, Sweep, SweepError};

use crate::economics::{Economy, OperatingPoint, StepCost};

/// What one draft step costs: launches and small transfers, plus a share of the target's plain
/// step at the same concurrency (the draft is a layer or two and a head of the same width, so it
/// grows with the batch as the target does).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftStep {
    /// Launches, small all-reduces, sampling, ms.
    pub fixed_ms: f64,
    /// Share of the plain step at the same concurrency.
    pub share_of_plain: f64,
}

impl DraftStep {
    /// Draft spread over GPUs that talk over PCIe. The fixed part is fitted on
    /// `data/speculation/sweeps.jsonl`: 0.5, flat to 0.6, inside the sweeps whichever source is left
    /// out; cycles from scratch want the more.
    pub const PCIE: Self = Self {
        fixed_ms: 0.6,
        share_of_plain: SHARE_OF_PLAIN,
    };
    /// One GPU, or GPUs joined by NVLink, in graphs: picking tokens and building inputs. vLLM 0.24
    /// on H200 with 3 steps (`docs/HARDWARE.md`): beside the forwards of heads of 8B, 32B and 70B
    /// (two GPUs) 0.07, 0.14 and 0.20 ms a step, 2 to 4 % of a plain step in all with those
    /// forwards. Public reports of Llama-3.1-8B on one H100 have 0.43 ms a step in all (SGLang),
    /// of which 0.31 is the forward, and 1.0 (vLLM of mid-2025).
    pub const LOCAL: Self = Self {
        fixed_ms: 0.12,
        share_of_plain: 0.02,
    };

    /// One draft step beside a plain step of `plain_ms`, ms.
    pub fn ms(&self, plain_ms: f64) -> f64 {
        self.fixed_ms + self.share_of_plain * plain_ms
    }
}

/// Share of a plain step in a draft step. Public speculative runs at batch 8 lose 0.04 to 0.16
/// plain steps per draft step, one more verified token included; a layer of 61 to 78 and a head
/// are at the lower end.
const SHARE_OF_PLAIN: f64 = 0.05;

/// A chain at an operating point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speculation {
    /// Sequences decoded at a time.
    pub concurrency: f64,
    /// Tokens verified per sequence, the root included (`D`; a chain of depth K has K + 1).
    pub verified_tokens: f64,
    /// Draft steps per cycle (`K`; 1 for heads that draft all positions in one pass).
    pub draft_steps: f64,
}

/// What a cycle costs, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cycle {
    /// One plain step at the same concurrency.
    pub plain_ms: f64,
    /// The verify.
    pub verify_ms: f64,
    /// All draft steps.
    pub draft_ms: f64,
    /// True where the verify lies outside the sweep.
    pub extrapolated: bool,
    /// How far outside, ln; 0 inside.
    pub beyond: f64,
}

impl Cycle {
    /// Verify and draft together, ms; never below the plain step.
    pub fn total_ms(&self) -> f64 {
        (self.verify_ms + self.draft_ms).max(self.plain_ms)
    }

    /// Speedup at this accept length. It can never exceed the accept length: a cycle contains a
    /// target pass over at least the tokens of a plain step.
    pub fn speedup(&self, accept_length: f64) -> f64 {
        let speedup = Economy::new(self.plain_ms, self.total_ms()).speedup(accept_length);
        assert!(
            speedup.is_nan() || speedup <= accept_length * (1.0 + 1e-9),
            "a speedup of {speedup} above the accept length {accept_length} is impossible"
        );
        speedup
    }

    /// The accept length at which speculation breaks even.
    pub fn break_even_accept_length(&self) -> f64 {
        Economy::new(self.plain_ms, self.total_ms()).break_even_accept_length()
    }

    /// The same cycle with a plain sweep of the same box at an empty or short context beside the
    /// one at the context in question, as a bench that prints contexts by concurrency gives it:
    /// the short one shows what tokens cost, the difference what reading the KV adds, and a verify
    /// reads that `verify_multiplier` times. Taken only where it lies less far outside what was
    /// measured. Where the kernel reads the KV once per token, both readings rest on how KV grows
    /// beyond the last point, and their middle is taken.
    #[must_use]
    pub fn beside_short_context(
        self,
        short: &Sweep,
        speculation: &Speculation,
        verify_multiplier: f64,
    ) -> Self {
        let concurrency = speculation.concurrency;
        let core = short.step_ms(concurrency * speculation.verified_tokens.max(1.0));
        if core.beyond >= self.beyond {
            return self;
        }
        let kv_ms = (self.plain_ms - short.step_ms(concurrency).step_ms).max(0.0);
        let times = verify_multiplier.clamp(1.0, speculation.verified_tokens.max(1.0));
        let verify_ms = core.step_ms + times * kv_ms;
        if times > 1.0 {
            return Self {
                verify_ms: (self.verify_ms * verify_ms).sqrt(),
                beyond: (self.beyond + core.beyond) / 2.0,
                ..self
            };
        }
        Self {
            verify_ms,
            extrapolated: core.extrapolated,
            beyond: core.beyond,
            ..self
        }
    }

    /// Accept length that a measured speculative rate (tok/s of all sequences) implies.
    pub fn accept_length_of_tok_s(&self, tok_s: f64, concurrency: f64) -> f64 {
        tok_s / concurrency * self.total_ms() / 1000.0
    }
}

/// The cycle by the law.
pub fn cycle(plain: &Sweep, draft: DraftStep, speculation: &Speculation) -> Cycle {
    let concurrency = speculation.concurrency;
    let plain_ms = plain.plain_ms(concurrency);
    let verify = plain.read(
        concurrency,
        concurrency * speculation.verified_tokens.max(1.0),
    );
    Cycle {
        plain_ms,
        verify_ms: verify.step_ms,
        draft_ms: speculation.draft_steps.max(0.0) * draft.ms(plain_ms),
        extrapolated: verify.extrapolated,
        beyond: verify.beyond,
    }
}

/// A sweep as step costs for the choice of depth.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepCost {
    /// The plain sweep; its own context is taken for every context asked about.
    pub sweep: Sweep,
    /// One draft step.
    pub draft: DraftStep,
    /// All positions drafted in one pass.
    pub one_pass: bool,
}

impl SweepCost {
    /// The cycle of a chain of `depth` drafted tokens.
    pub fn cycle(&self, concurrency: f64, depth: u32) -> Cycle {
        let steps = if self.one_pass { depth.min(1) } else { depth };
        let speculation = Speculation {
            concurrency,
            verified_tokens: f64::from(depth) + 1.0,
            draft_steps: f64::from(steps),
        };
        cycle(&self.sweep, self.draft, &speculation)
    }
}

impl StepCost for SweepCost {
    fn plain_ms(&self, at: OperatingPoint) -> f64 {
        self.sweep.plain_ms(at.concurrency)
    }
    fn verify_ms(&self, at: OperatingPoint, verify_tokens: u32) -> f64 {
        self.cycle(at.concurrency, verify_tokens.saturating_sub(1))
            .verify_ms
    }
    fn draft_ms(&self, at: OperatingPoint, depth: u32) -> f64 {
        self.cycle(at.concurrency, depth).draft_ms
    }
}

#[cfg(test)]
mod tests;
