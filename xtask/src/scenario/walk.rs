//! Whether the verify's attention kernel walks the cache instead of splitting it, by engine, release, card and
//! cache format.

use kvplan::{Attention, Version};

use super::{EngineKind, Scenario};
use crate::explain::carried::ATTENTION;
use crate::gpus::Family;
use crate::step_time::verify_graphs::has_sinks;
use crate::step_time::walk::Walk;

impl Scenario {
    /// The kernel that verifies, where it does not split the cache.
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
            "TRITON_ATTN" if !version.is_none_or(|v| v.since((0, 33, 0), (2026, 11))) => {
                Some(Walk::TritonOfVllm)
            }
            _ => None,
        }
    }

    /// Its Triton backend is what it takes by itself where neither FlashAttention 3 nor the kernels of data-centre
    /// Blackwell run, for latent attention and for sinks (FlashInfer has none). Source:
    /// `_get_default_attn_backend` of server_args.py, 0.5.9, 0.5.13 and 0.5.23.
    fn walk_of_sglang(&self) -> Option<Walk> {
        let seen = self.ran.verify_graphs.as_ref();
        let seen = seen.and_then(|seen| seen.backend.as_deref());
        let triton = match self.ran.carried.value(ATTENTION).or(seen) {
            Some(told) => told == "triton",
            None => self.older_or_rtx() && (self.dense_latent() || has_sinks(&self.model)),
        };
        triton.then_some(Walk::TritonOfSglang)
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
        match self.gpu.family {
            Family::Hopper => (0.9, 1.1),
            _ => (0.6, 1.6),
        }
    }

    /// The kernel in words.
    pub(crate) fn walk_told(&self) -> Option<&'static str> {
        Some(match self.walk()? {
            Walk::FlashAttention2 => "vLLM's FlashAttention 2",
            Walk::TritonOfVllm => "vLLM's Triton attention",
            Walk::TritonOfSglang => "SGLang's Triton attention",
        })
    }

    /// Whether SGLang runs this model by FlashInfer: all but sinks, which that has none of.
    pub(crate) fn takes_flashinfer(&self) -> bool {
        !has_sinks(&self.model)
    }
}
