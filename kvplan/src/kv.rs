//! KV cache and state: bytes a token, bytes a request.

use crate::formats::KvDtype;
use crate::model::{Attention, Layer, LinearState, Mamba2, Model};
use crate::product;
use crate::weights::Sharding;

/// How an engine lays MLA and its index out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Element format.
    pub dtype: KvDtype,
    /// The fp8 sparse-attention layout of MLA: latent with scales per 128 and rope kept in bf16
    /// (656 B for 512 + 64) instead of one byte an element.
    pub dsa_fp8: bool,
    /// Whether index keys are stored (and so must be counted).
    pub index_cache: bool,
}

impl KvLayout {
    /// Plain cache in `dtype`, index keys counted, DSA layout where the dtype is fp8.
    pub fn new(dtype: KvDtype) -> Self {
        Self {
            dtype,
            dsa_fp8: dtype == KvDtype::Fp8,
            index_cache: true,
        }
    }
}

/// State of linear-attention and state-space layers, bytes per request slot and rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateBytes {
    /// Matrix states.
    pub ssm: u64,
    /// Convolution tails.
    pub conv: u64,
}

impl StateBytes {
    /// Both together.
    pub fn total(&self) -> u64 {
        self.ssm.saturating_add(self.conv)
    }
}

/// Query heads of a token mixer; 0 where it has none.
pub(crate) fn query_heads(attention: &Attention) -> u64 {
    match attention {
        Attention::Gqa(a) => a.heads,
        Attention::Mla(a) => a.heads,
        Attention::Compressed(a) => a.heads,
        Attention::Linear(_) | Attention::Mamba(_) | Attention::None => 0,
    }
}

/// The window of a layer's cache, `None` for a full one.
pub(crate) fn window(layer: &Layer) -> Option<u64> {
    match layer.attention {
        Attention::Gqa(gqa) => gqa.window,
        Attention::Compressed(a) => Some(a.window),
        _ => None,
    }
}

/// Bytes one token takes in one layer on one rank, index keys not included. A sliding layer
/// takes this for each token inside its window. For DeepSeek-V4 this is the window's entry.
pub(crate) fn layer_kv_bytes(layer: &Layer, sharding: &Sharding, layout: &KvLayout) -> u64 {
    match &layer.attention {
        Attention::Gqa(gqa) if gqa.shares_cache => 0,
        Attention::Gqa(gqa) => {
            let heads = gqa.kv_heads.div_ceil(sharding.attention_tp()).max(1);
            let width = gqa.head_dim.saturating_add(gqa.v_head_dim);
            layout.dtype.bytes(product(&[heads, width]))
        }
        Attention::Mla(mla) => {
            let (latent, rope) = (mla.kv_lora_rank, mla.qk_rope_head_dim);
            if layout.dsa_fp8 && mla.indexer.is_some() {
                // One byte an element of the latent, an f32 scale per 128, rope in bf16.
                return latent
                    .saturating_add(product(&[latent / 128, 4]))
                    .saturating_add(product(&[rope, 2]));
            }
            layout.dtype.bytes(latent.saturating_add(rope))
        }
        Attention::Compressed(a) => layout.dtype.bytes(a.head_dim),
        Attention::Linear(_) | Attention::Mamba(_) | Attention::None => 0,
    }
}

/// Bytes one token's index key takes in one layer: a byte an element and an f32 scale per 128.
pub(crate) fn layer_index_bytes(layer: &Layer) -> u64 {
    let indexer = match &layer.attention {
        Attention::Gqa(gqa) => gqa.indexer,
        Attention::Mla(mla) => mla.indexer,
        Attention::Compressed(_) | Attention::Linear(_) | Attention::Mamba(_) => None,
        Attention::None => None,
    };
    indexer.filter(|indexer| indexer.own).map_or(0, |indexer| {
        indexer
            .head_dim
            .saturating_add(product(&[indexer.head_dim / 128, 4]))
    })
}

impl Model {
    /// Bytes a token takes on one rank over all layers that keep every token (sliding layers
    /// count as if they did), index keys not included.
    pub fn kv_bytes_per_token(&self, sharding: &Sharding, layout: &KvLayout) -> u64 {
        sum(&self.layers, sharding, |layer| {
            layer_kv_bytes(layer, sharding, layout)
        })
    }

    /// Bytes a token takes on one rank in layers that keep every token; sliding layers do not
    /// count.
    pub fn full_kv_bytes_per_token(&self, sharding: &Sharding, layout: &KvLayout) -> u64 {
        sum(&self.layers, sharding, |layer| {
            match (&layer.attention, window(layer)) {
                // Compressed layers keep one entry per `ratio` tokens beyond the window.
                (Attention::Compressed(a), _) if a.ratio > 0 => {
                    let index = a.indexer.filter(|indexer| indexer.own).map_or(0, |i| {
                        i.head_dim.saturating_add(product(&[i.head_dim / 128, 4]))
                    });
                    layout.dtype.bytes(a.head_dim).saturating_add(index) / a.ratio
                }
                (_, None) => layer_kv_bytes(layer, sharding, layout),
                _ => 0,
            }
        })
    }

    /// Bytes a token's index keys take on one rank.
    pub fn index_bytes_per_token(&self) -> u64 {
        self.layers
            .iter()
            .fold(0u64, |sum, l| sum.saturating_add(layer_index_bytes(l)))
    }

    /// Bytes a token takes in the MTP layers on one rank, index keys included.
    pub fn mtp_kv_bytes_per_token(&self, sharding: &Sharding, layout: &KvLayout) -> u64 {
        self.mtp_layers.iter().fold(0u64, |sum, layer| {
            sum.saturating_add(layer_kv_bytes(layer, sharding, layout))
                .saturating_add(layer_index_bytes(layer))
        })
    }

    /// KV bytes that one request of `context` tokens needs on one rank, windows respected, state
    /// not included. Decode-context parallelism spreads tokens over `dcp` ranks.
    pub fn kv_bytes_per_request(
        &self,
        context: u64,
        sharding: &Sharding,
        layout: &KvLayout,
    ) -> u64 {
        let tokens = context.div_ceil(sharding.dcp.max(1));
        sum(&self.layers, sharding, |layer| {
            let per_token = layer_kv_bytes(layer, sharding, layout);
            let kept = window(layer).map_or(tokens, |window| tokens.min(window));
            let mut bytes = per_token.saturating_mul(kept);
            if layout.index_cache {
                bytes = bytes.saturating_add(layer_index_bytes(layer).saturating_mul(tokens));
            }
            if let Attention::Compressed(a) = &layer.attention
                && let Some(entries) = tokens.checked_div(a.ratio)
            {
                bytes = bytes.saturating_add(per_token.saturating_mul(entries));
            }
            bytes
        })
    }

    /// State per request slot on one rank.
    pub fn state_bytes_per_request(&self, sharding: &Sharding) -> StateBytes {
        let mut state = StateBytes::default();
        for layer in &self.layers {
            let (ssm, conv) = match &layer.attention {
                Attention::Linear(linear) => linear_state(linear, sharding),
                Attention::Mamba(mamba) => mamba_state(mamba, sharding),
                _ => continue,
            };
            state.ssm = state.ssm.saturating_add(ssm);
            state.conv = state.conv.saturating_add(conv);
        }
        state
    }
}

/// Bytes of a convolution-tail element: the tail is kept in the activation dtype.
const CONV_ELEMENT_BYTES: u64 = 2;

/// State of one request in one layer on one rank, bytes; `drafts` more taps of the convolution are
/// kept where drafted tokens may have to be taken back (vLLM).
pub(crate) fn layer_state_bytes(layer: &Layer, sharding: &Sharding, drafts: u64) -> u64 {
    let ((ssm, conv), kernel) = match &layer.attention {
        Attention::Linear(linear) => (linear_state(linear, sharding), linear.conv_kernel),
        Attention::Mamba(mamba) => (mamba_state(mamba, sharding), mamba.conv_kernel),
        _ => ((0, 0), 0),
    };
    let taps = kernel.saturating_sub(1).max(1);
    let more = (conv / taps).saturating_mul(drafts);
    ssm.saturating_add(conv).saturating_add(more)
}

fn linear_state(linear: &LinearState, sharding: &Sharding) -> (u64, u64) {
    let ranks = sharding.attention_tp();
    let value_heads = linear.value_heads.div_ceil(ranks);
    let key_heads = linear.key_heads.div_ceil(ranks);
    let ssm = product(&[
        value_heads,
        linear.key_dim,
        linear.value_dim,
        linear.state_element_bytes,
    ]);
    let channels = product(&[2, key_heads, linear.key_dim])
        .saturating_add(product(&[value_heads, linear.value_dim]));
    let taps = linear.conv_kernel.saturating_sub(1);
    (ssm, product(&[channels, taps, CONV_ELEMENT_BYTES]))
}

fn mamba_state(mamba: &Mamba2, sharding: &Sharding) -> (u64, u64) {
    let ranks = sharding.attention_tp();
    let heads = mamba.heads.div_ceil(ranks);
    let ssm = product(&[
        heads,
        mamba.head_dim,
        mamba.state,
        mamba.state_element_bytes,
    ]);
    let groups = mamba.groups.div_ceil(ranks).max(1);
    let channels =
        product(&[heads, mamba.head_dim]).saturating_add(product(&[2, groups, mamba.state]));
    let taps = mamba.conv_kernel.saturating_sub(1);
    (ssm, product(&[channels, taps, CONV_ELEMENT_BYTES]))
}

/// Sum over the layers of the fullest pipeline stage: the whole model's sum, times the share of
/// layers that stage has.
fn sum(layers: &[Layer], sharding: &Sharding, of: impl Fn(&Layer) -> u64) -> u64 {
    let total = layers
        .iter()
        .fold(0u64, |total, layer| total.saturating_add(of(layer)));
    if sharding.pp <= 1 {
        return total;
    }
    let count = (layers.len() as u64).max(1);
    let share = count.div_ceil(sharding.pp) as f64 / count as f64;
    (total as f64 * share).ceil() as u64
}
