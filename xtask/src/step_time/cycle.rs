//! A speculative cycle from scratch: the verify, and the draft steps one after the other.

use super::{Draft, Server, StepParts};

/// A chain at an operating point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chain {
    /// Sequences decoded at a time.
    pub(crate) sequences: f64,
    /// Tokens verified per sequence, the root included.
    pub(crate) verified_tokens: f64,
    /// Draft steps of a cycle.
    pub(crate) draft_steps: f64,
    /// Cached tokens per sequence.
    pub(crate) context: f64,
}

/// Parts of a cycle beside those of a plain step, ms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct CycleParts {
    /// A plain step at the same point.
    pub(crate) plain: StepParts,
    /// The verify.
    pub(crate) verify: StepParts,
    /// All draft steps.
    pub(crate) draft: StepParts,
}

impl CycleParts {
    /// Verify and draft, ms; never below the plain step.
    pub(crate) fn total_ms(&self) -> f64 {
        (self.verify.total() + self.draft.total()).max(self.plain.total())
    }

    /// Speedup at this accept length; at most the accept length.
    pub(crate) fn speedup(&self, accept_length: f64) -> f64 {
        accept_length * self.plain.total() / self.total_ms()
    }
}

/// The cycle of a chain. Token counts are padded as the engine pads them (`padded`): a pass over
/// 12 tokens that replays a graph captured for 16 costs what 16 cost.
pub(crate) fn cycle(
    server: &Server<'_>,
    draft: Option<Draft<'_>>,
    draft_tp: u64,
    chain: &Chain,
    padded: impl Fn(f64) -> f64,
) -> CycleParts {
    let sequences = chain.sequences;
    let verified = chain.verified_tokens.max(1.0);
    let per_sequence = padded(sequences * verified) / sequences;
    let draft_step = draft.map_or_else(StepParts::default, |draft| {
        server.draft(draft, draft_tp, padded(sequences), chain.context)
    });
    CycleParts {
        plain: server.plain(sequences, chain.context),
        verify: server.verify(sequences, per_sequence, chain.context),
        draft: draft_step.times(chain.draft_steps.max(0.0)),
    }
}
