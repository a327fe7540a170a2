//! A speculative cycle from scratch: the verify, and the draft steps one after the other.

use kvplan::{Attention, Ffn, Model};
use spec_decode::cycle::{DraftStep, GraphLadder};

use super::{Draft, Server, StepParts};
use crate::gpus::{Family, Gpu};

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
    /// Of those, what they last longer because the host launches them one by one, ms.
    pub(crate) host_bound_ms: f64,
    /// Of verify and draft, what they last longer because the kernel does not split the cache, ms.
    pub(crate) walked_ms: f64,
}

impl CycleParts {
    /// Verify and draft, ms.
    pub(crate) fn total_ms(&self) -> f64 {
        self.verify.total() + self.draft.total()
    }

    /// Speedup at this accept length; at most the accept length.
    pub(crate) fn speedup(&self, accept_length: f64) -> f64 {
        accept_length * self.plain.total() / self.total_ms()
    }
}

/// The measured draft step that applies: cards that talk over PCIe, or one card and NVLink.
pub(crate) fn draft_step(server: &Server<'_>) -> DraftStep {
    if server.over_pcie {
        DraftStep::PCIE
    } else {
        DraftStep::LOCAL
    }
}

/// Whether the verify's attention treats drafted tokens as sequences. Multi-head latent attention
/// without a sparse index has a multi-query kernel on Hopper and data-centre Blackwell (FlashMLA,
/// CUTLASS MLA); elsewhere Triton MLA runs, and Kimi-K2.6 cycles on RTX PRO 6000 at 64k follow the
/// plain step over c x D sequences.
pub(crate) fn cache_per_token(model: &Model, gpu: &Gpu) -> bool {
    let latent = model
        .layers
        .iter()
        .any(|l| matches!(l.attention, Attention::Mla(mla) if mla.indexer.is_none()));
    let multi_query = matches!(gpu.family, Family::Hopper | Family::Blackwell);
    latent && !multi_query
}

/// What a verify of a mixture of experts costs beyond a plain step, over what the operations say
/// (links and cache apart). Cycles of Kimi-K2.6, GLM-5.1 and Qwen3.5-397B over PCIe show it
/// (unbalanced experts, tiles that are not full). Anything from 1.1 to 1.4 does about as well.
const EXPERTS_GROWTH: f64 = 1.3;

fn has_experts(model: &Model) -> bool {
    model.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_)))
}

/// The ladder of an engine by name and version: vLLM rounds its sizes since 0.11.1 (the newest where
/// no version is known) where a verify runs as one `whole` graph.
pub(crate) fn graph_ladder(engine: &str, version: Option<&str>, whole: bool) -> GraphLadder {
    let version = version.and_then(kvplan::Version::find);
    let rounds = version.is_none_or(|version| version.since((0, 11, 1), (2025, 11)));
    GraphLadder::of_engine(engine, rounds && whole)
}

/// The cycle of a chain. A draft step costs at least what was measured on such links: launches and
/// small transfers show in no roofline.
pub(crate) fn cycle(
    server: &Server<'_>,
    draft: Option<Draft<'_>>,
    draft_tp: u64,
    chain: &Chain,
) -> CycleParts {
    let sequences = chain.sequences;
    let verified = chain.verified_tokens.max(1.0);
    let plain = server.plain(sequences, chain.context);
    let mut verify = server.verify(sequences, verified, chain.context);
    // NCCL may cross to a faster protocol between the two payloads; where exactly is not sure enough
    // to call a pass of more tokens the shorter one.
    verify.allreduce_ms = verify.allreduce_ms.max(plain.allreduce_ms);
    if cache_per_token(server.model, server.rank.gpu) && !server.walks() {
        verify.kv_ms = verify.kv_ms.max(verified * plain.kv_ms);
    }
    if has_experts(server.model) {
        // Neither the cache nor the links are the experts'.
        let beside = |step: &StepParts| step.total() - step.kv_ms - step.allreduce_ms;
        let more = beside(&verify) - beside(&plain);
        verify.other_ms += (EXPERTS_GROWTH - 1.0) * more.max(0.0);
    }
    // Measured operations are not quite monotone: a verify is a pass over the plain step's tokens
    // and more.
    verify.other_ms += (plain.total() - verify.total()).max(0.0);
    verify.other_ms += server.waited_ms(sequences);
    let mut step = draft.map_or_else(StepParts::default, |draft| {
        server.draft(draft, draft_tp, sequences, chain.context)
    });
    // Reading the draft's cache comes on top of either figure; the larger of both stands.
    let beside_cache_ms = step.total() - step.kv_ms;
    let measured = draft_step(server);
    step.other_ms += (measured.ms(plain.total()) - beside_cache_ms).max(0.0);
    let drafts = draft
        .filter(|_| chain.draft_steps >= 1.0)
        .map(|draft| (draft, draft_tp));
    let walked = server.walk_more_ms(drafts, (sequences, verified), chain.context);
    let mut draft = step.times(chain.draft_steps.max(0.0));
    verify.kv_ms += walked.0;
    draft.kv_ms += walked.1;
    let cycle_ms = verify.total() + draft.total();
    let host_bound_ms = server.host_bound_ms(chain.draft_steps, sequences, cycle_ms);
    draft.launch_ms += host_bound_ms;
    CycleParts {
        plain,
        verify,
        draft,
        host_bound_ms,
        walked_ms: walked.0 + walked.1,
    }
}
