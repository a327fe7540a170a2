//! A plain sweep read with what the architecture says of it: the one way in which `predict`,
//! `score` and `verify-hw` turn measured plain speeds into step times.

use kvplan::{Ffn, KvDtype, KvLayout, Model, Sharding};
use spec_decode::cycle::{GraphLadder, Growth, KvReading, Sweep, SweepError};

use crate::gpus::Gpu;

/// Share of the data sheet's bandwidth at which attention reads further KV. Source: slope of
/// `data/op_times/decode_attention_h200_sxm_vllm0.24.0.csv` (32 heads, 8 KV heads, batch 32 and
/// 64, 4k to 8k): 0.87 to 1.0.
const KV_BANDWIDTH_SHARE: f64 = 0.95;

/// What each sequence makes a plain step read besides the weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held<'a> {
    /// The target.
    pub(crate) model: &'a Model,
    /// The card.
    pub(crate) gpu: &'a Gpu,
    /// How it is split.
    pub(crate) sharding: Sharding,
    /// Format of the cache.
    pub(crate) kv_dtype: KvDtype,
    /// Cached tokens that a step reads for each sequence and for no other; 0 where a bench gives
    /// all sequences one prompt, which the card then reads once.
    pub(crate) tokens: f64,
}

impl Held<'_> {
    /// Reading one sequence's cache once, and the state of linear-attention layers once each way.
    /// A verify does so once for all its tokens.
    pub(crate) fn reading(&self) -> KvReading {
        let kv_bytes = self
            .model
            .kv_bytes_per_token(&self.sharding, &KvLayout::new(self.kv_dtype))
            as f64;
        let state_bytes = self.model.state_bytes_per_request(&self.sharding).total() as f64;
        let bytes_per_ms = self.gpu.bandwidth_gb_s * 1e6;
        let tokens = if reads_cache_once(self.gpu) {
            self.tokens.max(0.0)
        } else {
            0.0
        };
        let ms = tokens * kv_bytes / (bytes_per_ms * KV_BANDWIDTH_SHARE)
            + 2.0 * state_bytes / bytes_per_ms;
        KvReading {
            ms_per_sequence: if ms.is_finite() { ms } else { 0.0 },
            verify_multiplier: 1.0,
        }
    }
}

/// Whether a verify reads a sequence's cache once for all its tokens. On Hopper and the data-centre
/// Blackwell, attention packs the drafted tokens into one tile (`engine/vllm_h200.jsonl`, context
/// 8000: as if read once). Elsewhere it is left with what grows by token: on RTX PRO 6000 the
/// cycles of the sweeps at 16k to 128k cost what plain steps over c x D sequences cost, for latent
/// and for grouped-query attention (taking the cache apart errs by 0.2 at 32k and 0.4 at 128k).
fn reads_cache_once(gpu: &Gpu) -> bool {
    matches!(gpu.arch.as_str(), "sm_90" | "sm_100" | "sm_103")
}

/// How a model's step grows beyond a sweep.
pub(crate) fn growth(model: &Model) -> Growth {
    if model.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_))) {
        Growth::EXPERTS
    } else {
        Growth::DENSE
    }
}

/// A plain sweep of (users, tokens a second over all users).
///
/// # Errors
/// There are no points, or one is not positive.
pub(crate) fn plain_sweep(
    points: &[(f64, f64)],
    engine: &str,
    growth: Growth,
    reading: Option<KvReading>,
) -> Result<Sweep, SweepError> {
    let sweep = Sweep::from_tok_s(points, GraphLadder::of_engine(engine), growth)?;
    Ok(match reading {
        Some(reading) => sweep.with_kv(reading),
        None => sweep,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_of_llama_8b_reads_128_kib_a_token() {
        let found = kvplan::catalog::find("llama-3.1-8b").expect("in the catalogue");
        let held = |tokens| Held {
            model: &found.model,
            gpu: crate::gpus::find("h200").expect("in the catalogue"),
            sharding: Sharding::tp(1),
            kv_dtype: KvDtype::Bf16,
            tokens,
        };
        // 8,000 tokens of 131,072 bytes at 4.8 TB/s and the share.
        let ms = held(8000.0).reading().ms_per_sequence;
        assert!(
            (ms - 8000.0 * 131_072.0 / (4.8e9 * 0.95)).abs() < 1e-3,
            "{ms}"
        );
        assert!(held(0.0).reading().ms_per_sequence.abs() < 1e-12);
    }
}
