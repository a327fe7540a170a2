//! How much memory everything takes: weights, KV cache, state, buffers, for every engine and version.
//!
//! Bytes only: no time, no links, no devices (a card's capacity comes in as a number), no I/O.
//! All sizes are bytes or GiB (2^30) as the name says; counts saturate instead of overflowing.

pub mod catalog;
mod config;
mod cut;
mod engine;
mod fit;
mod formats;
mod gguf;
mod groups;
mod heads;
mod infer;
mod kv;
mod ledger;
mod loading;
mod model;
mod params;
mod parts;
mod plan;
mod pool;
mod proven;
mod quant;
mod refusal;
mod segments;
mod setup;
mod varied;
mod weights;

pub use config::{ConfigError, DENOISES, denoises};
pub use cut::Uncut;
pub use engine::kv_default::{KvReason, kv_by_itself};
pub use engine::sglang::{sglang_graph_batch, sglang_graph_flag};
pub use engine::vllm::{
    SecondRunner, VLLM_GRAPH_FLAG, VllmProfile, default_utilisation, vllm_graph_flag,
    vllm_graph_size, vllm_graph_tokens, vllm_head_in_targets_format, vllm_pool_of_tokens,
    vllm_requests_told, vllm_second_runner,
};
pub use engine::{Engine, EngineKind, Version};
pub use fit::{AtOnce, Fit, Wall};
pub use formats::{KvDtype, WeightFormat};
pub use gguf::GgufMix;
pub use groups::PrefixStates;
pub use heads::{NamedHead, head_for, named_head};
pub use infer::{BeliefCheck, Inferred, Known, check_belief, pool_of_utilisation, tokens_in_pool};
pub use kv::{KvLayout, StateBytes};
pub use ledger::{CostRow, Ledger, Line};
pub use loading::{Loading, runs_out_loading};
pub use model::{
    Attention, CompressedMla, DraftHead, DraftKind, Ffn, Gqa, Indexer, KvAsker, Layer,
    LayerFormats, LinearState, Mamba2, Mla, Model, Moe, Vision,
};
pub use params::{ParamGroup, ParamLine};
pub use parts::usual_sm_count;
pub use plan::{
    CostBasis, SpeculationCost, TargetAnswer, for_target, given_back, longest_sure, plan,
    speculation_cost, state_beside_pool, told_to_run,
};
pub use pool::{Pool, StateBlocks};
pub use proven::Fate;
pub use quant::{QUANT_NAMES, QUANTS, Quant};
pub use refusal::{MORE_ROOM, Refusal};
pub use setup::{
    Interval, Observed, Plan, PlanError, Setup, SpecKind, Speculation, StateSlots,
    card_gib_from_torch,
};
pub use weights::{Sharding, WeightLine};

/// Bytes of one GiB, the unit in which engines print what they call "GB".
pub const GIB: f64 = 1_073_741_824.0;

/// Product that saturates at `u64::MAX`: absurd inputs give absurd sizes, never a panic.
pub(crate) fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1u64, |total, factor| total.saturating_mul(*factor))
}
