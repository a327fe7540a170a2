//! The verify's attention kernel where it takes longer over the cache than a plain step's, by engine, release, card
//! and cache format.

use kvplan::{Attention, Version};
use spec_decode::HeadKind;

use super::{EngineKind, Scenario};
use crate::explain::carried::ATTENTION;
use crate::gpus::Family;
use crate::step_time::tiles::Tiles;
use crate::step_time::verify_graphs::{Attends, has_sinks};
use crate::step_time::walk::Walk;

impl Scenario {
    /// The kernel that verifies, where it takes longer over the cache than a plain step's.
    pub(crate) fn walk(&self) -> Option<Walk> {
        match self.engine.kind {
            EngineKind::Vllm => self.walk_of_vllm(),
            EngineKind::Sglang => self.walk_of_sglang(),
            EngineKind::TrtLlm | EngineKind::LlamaCpp => None,
        }
    }

    /// FlashAttention 3 (Hopper) and 4 split; version 2, which all other cards run, does for one query token
    /// alone. Triton's kernel splits verifies from 0.33.0 on.
    fn walk_of_vllm(&self) -> Option<Walk> {
        let attends = self.attends();
        let seen = self.ran.verify_graphs.as_ref();
        let version = self.engine.version.as_deref().and_then(Version::find);
        match attends.backend_or(seen) {
            "FLASH_ATTN" if self.older_or_rtx() => Some(Walk::FlashAttention2),
            "FLASHINFER" => self.flashinfer_of_vllm(&attends),
            "TRITON_ATTN" if !version.is_none_or(|v| v.since((0, 33, 0), (2026, 11))) => {
                Some(Walk::TritonOfVllm)
            }
            _ => None,
        }
    }

    /// Where a verify is no graph of its own kernels (XQA, TRT-LLM), it goes the way of prompts: sizes of each
    /// batch, causal. Source: backends/flashinfer.py, 0.17.1 to 0.33.0.
    fn flashinfer_of_vllm(&self, attends: &Attends<'_>) -> Option<Walk> {
        let own_kernels = !matches!(self.gpu.family, Family::Ampere | Family::Ada);
        match self.gpu.family {
            _ if own_kernels && attends.whole_by("FLASHINFER") => None,
            Family::Hopper => Some(Walk::FlashInfer3),
            _ => Some(Walk::FlashInfer(Tiles {
                graph: false,
                masked: false,
            })),
        }
    }

    /// Its Triton backend is what it takes by itself where neither FlashAttention 3 nor the kernels of data-centre
    /// Blackwell run, for latent attention and for sinks (FlashInfer has none). Source:
    /// `_get_default_attn_backend` of server_args.py, 0.5.9, 0.5.13 and 0.5.23.
    fn walk_of_sglang(&self) -> Option<Walk> {
        let seen = self.ran.verify_graphs.as_ref();
        let seen = seen.and_then(|seen| seen.backend.as_deref());
        let told = self.ran.carried.value(ATTENTION).or(seen);
        let own = match self.older_or_rtx() {
            true if self.dense_latent() || has_sinks(&self.model) => "triton",
            true => "flashinfer",
            false => "",
        };
        match told.unwrap_or(own) {
            "triton" => Some(Walk::TritonOfSglang),
            // Drafts of one pass have no tree, and what they verify is causal.
            "flashinfer" if self.gpu.family != Family::Blackwell => Some(Walk::FlashInfer(Tiles {
                graph: true,
                masked: self.acceptance.head != HeadKind::Parallel,
            })),
            _ => None,
        }
    }

    /// Whether vLLM verifies by XQA on a card that it was not measured on.
    pub(crate) fn verifies_by_xqa(&self) -> bool {
        let attends = self.attends();
        let seen = self.ran.verify_graphs.as_ref();
        self.engine.kind == EngineKind::Vllm
            && self.gpu.family == Family::BlackwellRtx
            && attends.backend_or(seen) == "FLASHINFER"
            && attends.whole_by("FLASHINFER")
    }

    fn older_or_rtx(&self) -> bool {
        matches!(
            self.gpu.family,
            Family::Ampere | Family::Ada | Family::BlackwellRtx
        )
    }

    fn dense_latent(&self) -> bool {
        let dense = |layer: &kvplan::Layer| matches!(layer.attention, Attention::Mla(mla) if mla.indexer.is_none());
        self.model.layers.iter().any(dense)
    }

    /// How far the time of a walk may lie off, as shares of it. The kernels were measured on Hopper alone; what
    /// other cards need is told from their data sheets, and one public sweep on RTX cards (docs/HARDWARE.md).
    pub(crate) fn walk_band(&self) -> (f64, f64) {
        match (self.gpu.family, self.walk()) {
            // Between powers of two of users its blocks fill the card unevenly.
            (Family::Hopper, Some(Walk::FlashInfer(_))) => (0.6, 1.6),
            (Family::Hopper, _) => (0.9, 1.1),
            _ => (0.6, 1.6),
        }
    }

    /// The kernel in words.
    pub(crate) fn walk_told(&self) -> Option<&'static str> {
        Some(match self.walk()? {
            Walk::FlashAttention2 => "vLLM's FlashAttention 2",
            Walk::TritonOfVllm => "vLLM's Triton attention",
            Walk::TritonOfSglang => "SGLang's Triton attention",
            Walk::FlashInfer3 | Walk::FlashInfer(_) => "FlashInfer's kernel for several tokens",
        })
    }

    /// Whether SGLang runs this model by FlashInfer: all but sinks, which that has none of.
    pub(crate) fn takes_flashinfer(&self) -> bool {
        !has_sinks(&self.model)
    }
}
