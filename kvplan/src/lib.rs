//! How much memory everything takes: weights, KV cache, state, buffers, for every engine and version.
//!
//! Bytes only: no time, no links, no devices (a card's capacity comes in as a number), no I/O.
//! All sizes are bytes or GiB (2^30) as the name says; counts saturate instead of overflowing.

pub mod catalog;
mod config;
mod formats;
mod kv;
mod model;
mod params;
mod quant;
mod weights;

pub use config::ConfigError;
pub use formats::{KvDtype, WeightFormat};
pub use kv::{KvLayout, StateBytes};
pub use model::{
    Attention, CompressedMla, DraftHead, DraftKind, Ffn, Gqa, Indexer, Layer, LayerFormats,
    LinearState, Mamba2, Mla, Model, Moe, Vision,
};
pub use params::{ParamGroup, ParamLine};
pub use quant::{QUANT_NAMES, Quant};
pub use weights::{Sharding, WeightLine};

/// Bytes of one GiB, the unit in which engines print what they call "GB".
pub const GIB: f64 = 1_073_741_824.0;

/// Product that saturates at `u64::MAX`: absurd inputs give absurd sizes, never a panic.
pub(crate) fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1u64, |total, factor| total.saturating_mul(*factor))
}
