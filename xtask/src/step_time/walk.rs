//! Kernels that verify over the cache slower than a plain step reads it. Most do not split it: one block of threads
//! walks all tokens of a sequence for one head, whatever the card has room for, where a plain step's kernel splits
//! them. FlashInfer's splits, and multiplies by tiles (`tiles.rs`).
//!
//! Source: FlashAttention 2 splits for one query token alone (`num_splits > 1` is refused for more, vLLM 0.11.1
//! to 0.33.0); vLLM's unified Triton kernel takes its 3D grid for one query token alone to 0.32.0;
//! SGLang's Triton backend verifies by `extend_attention_fwd`, grid (sequences, heads, 1), 0.5.9 to 0.5.23
//! (its kernel that splits runs on AMD's gfx95 alone). Measured on an H200 (docs/HARDWARE.md "Verifying over a long context").

use kvplan::{Attention, Sharding};

use super::attention::{BLOCK_GB_S, Reading, gqa, mla};
use super::layer::{Batch, LayerKind, Rank};
use super::tiles::Tiles;
use super::{Draft, Server, bounded, context_bounded};
use crate::gpus::{Family, Gpu};

/// A kernel whose verify takes longer over the cache than a plain step's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// vLLM's FlashAttention 2, on cards that are neither Hopper nor data-centre Blackwell.
    FlashAttention2,
    /// vLLM's unified Triton kernel.
    TritonOfVllm,
    /// SGLang's Triton kernel for extending a prefix.
    TritonOfSglang,
    /// FlashInfer's kernel after FlashAttention 3, on Hopper.
    FlashInfer3,
    /// FlashInfer's of other cards: it splits, and multiplies by tiles.
    FlashInfer(Tiles),
}

/// What a multiprocessor of Hopper and later data-centre cards multiplies by the instructions that these kernels
/// use (`mma.sync`), TFLOPS of bf16: with [`BLOCK_GB_S`] FlashAttention 2 needs 19.1 ns a token of 512 bytes there
/// (19.3 measured).
pub(super) const MMA_SM_TFLOPS: f64 = 4.4;
/// Blocks of FlashAttention 2 that share a multiprocessor get so much more done than one, where its memory holds two.
const SHARED_GAIN: f64 = 1.29;
/// One turn of vLLM's Triton kernel: 32 tokens, whatever the heads (45 ns a token on an H200).
const TRITON_TURN: (f64, f64) = (32.0, 1440.0);
/// SGLang's kernel on Hopper takes so many times what the law says (65, 105 and 155 ns a token, measured there).
const SGLANG_ON_HOPPER: f64 = 2.45;
/// A token of 512 bytes by FlashInfer's kernel after FlashAttention 3, ns (an H200).
const FLASHINFER_3_NS: f64 = 13.4;
/// What a verify's kernel costs beside the walk, us.
const FIXED_US: f64 = 3.5;

/// Attention of one layer on one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) query: f64,
    pub(super) cached: f64,
    /// Elements of key and of value that one query head meets in a token.
    pub(super) row: f64,
}

impl Walk {
    /// The backend that runs it, by its engine's name.
    pub(crate) fn backend(self) -> &'static str {
        match self {
            Walk::FlashAttention2 => "FLASH_ATTN",
            Walk::TritonOfVllm => "TRITON_ATTN",
            Walk::TritonOfSglang => "triton",
            // SGLang's alone is masked.
            Walk::FlashInfer(tiles) if tiles.graph => "flashinfer",
            Walk::FlashInfer3 | Walk::FlashInfer(_) => "FLASHINFER",
        }
    }

    /// Time that one block needs for one cached token, ns.
    pub(crate) fn token_ns(self, gpu: &Gpu, row: f64) -> f64 {
        let sm_tflops = gpu.tflops_bf16.max(1.0) / f64::from(gpu.sm_count.max(1));
        let read_ns = 2.0 * row / BLOCK_GB_S;
        let multiply_ns = |rows: f64| 2.0 * rows * row / (sm_tflops.min(MMA_SM_TFLOPS) * 1e3);
        match self {
            Walk::FlashAttention2 => read_ns + multiply_ns(64.0),
            Walk::TritonOfVllm => TRITON_TURN.1 / TRITON_TURN.0,
            Walk::FlashInfer3 | Walk::FlashInfer(_) => FLASHINFER_3_NS * row / 256.0,
            Walk::TritonOfSglang => {
                // Its tiles by head size: 128 queries on Hopper, 64 elsewhere, 32 of a latent.
                let on_hopper = gpu.family == Family::Hopper;
                let rows = match row {
                    row if row > 512.0 => 32.0,
                    row if row <= 256.0 && on_hopper => 128.0,
                    _ => 64.0,
                };
                let hopper = if on_hopper { SGLANG_ON_HOPPER } else { 1.0 };
                hopper * (read_ns + multiply_ns(rows))
            }
        }
    }

    /// Blocks that a card works on as if alone.
    fn at_once(self, gpu: &Gpu) -> f64 {
        let roomy = matches!(gpu.arch.as_str(), "sm_80" | "sm_90" | "sm_100" | "sm_103");
        let gain = match self {
            Walk::FlashAttention2 if roomy => SHARED_GAIN,
            _ => 1.0,
        };
        gain * f64::from(gpu.sm_count.max(1))
    }

    fn us(self, gpu: &Gpu, read: &Reading, heads: &Heads, kv_bytes: f64) -> f64 {
        let blocks = match self {
            Walk::FlashInfer(tiles) => return tiles.us(gpu, read, heads, kv_bytes),
            Walk::TritonOfVllm => heads.cached,
            Walk::FlashAttention2 | Walk::FlashInfer3 | Walk::TritonOfSglang => heads.query,
        } * read.sequences;
        let waves = (blocks / self.at_once(gpu)).max(1.0);
        FIXED_US + read.context * self.token_ns(gpu, heads.row) * waves * 1e-3
    }

    /// How much longer a verify of one layer takes than with a kernel that splits, us.
    fn layer_more_us(self, rank: &Rank<'_>, kind: &LayerKind, batch: &Batch) -> f64 {
        let gpu = rank.gpu;
        let (heads, read, split) = match &kind.layer.attention {
            Attention::Gqa(a) if a.indexer.is_none() => {
                let row = (a.head_dim + a.v_head_dim) as f64;
                let heads = Heads {
                    query: rank.heads(a.heads),
                    cached: rank.heads(a.kv_heads),
                    row,
                };
                let read = rank.reading(batch, a.window);
                let split = gqa(gpu, &read, heads.query, heads.cached, row, rank.kv_bytes());
                (heads, read, split)
            }
            Attention::Mla(a) if a.indexer.is_none() => {
                let (latent, rope) = (a.kv_lora_rank as f64, a.qk_rope_head_dim as f64);
                let query = rank.heads(a.heads) * rank.sharding.dcp.max(1) as f64;
                let heads = Heads {
                    query,
                    cached: 1.0,
                    row: 2.0 * latent + rope,
                };
                let read = rank.reading(batch, None);
                (
                    heads,
                    read,
                    mla(gpu, &read, query, latent, rope, rank.kv_bytes()),
                )
            }
            _ => return 0.0,
        };
        (self.us(gpu, &read, &heads, rank.kv_bytes()) - split.total_us()).max(0.0)
    }
}

impl Server<'_> {
    /// The same server whose verifies walk the cache.
    pub(crate) fn with_walk(mut self, walk: Option<Walk>) -> Self {
        self.walk = walk;
        self
    }

    /// Whether they do.
    pub(crate) fn walks(&self) -> bool {
        self.walk.is_some()
    }

    /// How much longer a cycle takes because its verify walks the cache, ms: the target's layers, and the
    /// draft's own over the tokens just verified.
    pub(crate) fn walk_more_ms(
        &self,
        draft: Option<(Draft<'_>, u64)>,
        (sequences, tokens): (f64, f64),
        context: f64,
    ) -> (f64, f64) {
        let Some(walk) = self.walk.filter(|_| tokens > 1.0) else {
            return (0.0, 0.0);
        };
        let batch = Batch {
            sequences: bounded(sequences),
            tokens: bounded(tokens),
            rows: bounded(sequences * tokens),
            context: context_bounded(context),
            passes: 1.0,
            shared_prefix: 0.0,
        };
        let of = |rank: &Rank<'_>, kinds: &[LayerKind]| -> f64 {
            let us = |kind: &LayerKind| kind.count * walk.layer_more_us(rank, kind, &batch);
            kinds.iter().map(us).sum::<f64>() * 1e-3
        };
        let drafts = match draft {
            None => 0.0,
            Some((Draft::Mtp, _)) => {
                of(&self.rank, &self.mtp_kinds) / self.model.mtp_modules.max(1) as f64
            }
            Some((Draft::Head(head), tp)) => {
                let rank = Rank {
                    sharding: Sharding::tp(tp),
                    hidden: head.hidden as f64,
                    ..self.rank
                };
                of(&rank, &LayerKind::of(&head.layers))
            }
        };
        (of(&self.rank, &self.kinds), drafts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::find;

    /// Measured alone on an H200: 4 query tokens of each sequence, us a layer.
    #[test]
    fn walks_of_a_verify_are_met_as_measured_alone() {
        let gpu = find("h200").expect("catalogue");
        let at = |kernel: Walk, (query, cached, row), (users, context), measured_us: f64| {
            let read = Reading {
                sequences: users,
                tokens: 4.0,
                context,
                passes: 1.0,
                shared_prefix: 0.0,
                splits: 1.0,
            };
            let us = kernel.us(gpu, &read, &Heads { query, cached, row }, 2.0);
            let error = (us / measured_us).ln().abs();
            assert!(
                error < 0.13,
                "{kernel:?} {query} {users} x {context}: {us:.0} for {measured_us}"
            );
        };
        use Walk::*;
        at(FlashAttention2, (32.0, 8.0, 256.0), (1.0, 2048.0), 42.9);
        at(FlashAttention2, (8.0, 2.0, 256.0), (1.0, 32768.0), 650.8);
        at(FlashAttention2, (32.0, 8.0, 256.0), (16.0, 32768.0), 1945.0);
        at(FlashAttention2, (64.0, 8.0, 256.0), (16.0, 8192.0), 914.3);
        at(TritonOfVllm, (32.0, 8.0, 256.0), (1.0, 32768.0), 1494.8);
        at(TritonOfVllm, (8.0, 2.0, 256.0), (16.0, 8192.0), 354.9);
        at(TritonOfSglang, (32.0, 8.0, 256.0), (1.0, 32768.0), 2135.3);
        at(TritonOfSglang, (64.0, 8.0, 256.0), (16.0, 8192.0), 3848.4);
        at(TritonOfSglang, (8.0, 1.0, 512.0), (1.0, 32768.0), 3432.6);
        at(
            TritonOfSglang,
            (16.0, 1.0, 1088.0),
            (16.0, 32768.0),
            10066.9,
        );
    }

    /// vLLM 0.24.0 on an H200, Llama-3.1-8B with an EAGLE-3 head of one layer, 3 steps: cycles with FlashAttention 2
    /// less those with version 3, ms.
    #[test]
    fn served_cycles_grow_by_the_walk() {
        let target = kvplan::catalog::find("llama-3.1-8b")
            .expect("a model")
            .model;
        let Ok(kvplan::catalog::Draft::Head { model: head, .. }) =
            kvplan::catalog::find_draft("llama-3.1-8b", "eagle3")
        else {
            panic!("no head");
        };
        let gpu = find("h200").expect("catalogue");
        let setup = super::super::Setup {
            sharding: Sharding::tp(1),
            kv_dtype: kvplan::KvDtype::Bf16,
            overhead: super::super::Overhead::of(super::super::Engine::Vllm, Some("0.24.0")),
            graphs: true,
            ladder: spec_decode::cycle::GraphLadder::Exact,
        };
        let server =
            Server::new(&target, gpu, &setup, &|_| 0.0).with_walk(Some(Walk::FlashAttention2));
        for (users, context, measured_ms) in [
            (1.0, 2400.0, 1.17),
            (16.0, 2400.0, 3.07),
            (1.0, 33000.0, 19.54),
            (4.0, 33000.0, 15.87),
            (16.0, 33000.0, 50.77),
        ] {
            let draft = Some((Draft::Head(&head), 1));
            let (verify_ms, draft_ms) = server.walk_more_ms(draft, (users, 4.0), context);
            let error = ((verify_ms + draft_ms) / measured_ms).ln().abs();
            assert!(
                error < 0.15,
                "{users} x {context}: {verify_ms:.2} + {draft_ms:.2} for {measured_ms}"
            );
        }
    }

    /// `data/speculation/sweeps.jsonl`, SGLang 0.5.9, Qwen3.5-397B at TP 4 on RTX PRO 6000: from an empty context to 16k,
    /// 32k and 64k a cycle of one user grows by 12.4, 23.9 and 48 ms, 15 layers of it attention.
    #[test]
    fn the_rtx_sweep_that_walks_is_met() {
        let gpu = find("rtx-pro-6000").expect("catalogue");
        let ns = Walk::TritonOfSglang.token_ns(gpu, 512.0);
        for (context, grown_ms) in [(16384.0, 12.4), (32768.0, 23.9), (65536.0, 48.3)] {
            let ms = 15.0 * context * ns * 1e-6;
            assert!(
                (ms / grown_ms - 1.0f64).abs() < 0.12,
                "{context}: {ms:.1} for {grown_ms}"
            );
        }
    }
}
