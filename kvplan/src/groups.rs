//! vLLM's KV groups: layers of one kind share block tables; kinds with unequal counts are padded;
//! a request takes one block table per group.

use crate::engine::vllm;
use crate::kv::{KvLayout, layer_index_bytes, layer_kv_bytes, window};
use crate::model::{Attention, Layer};
use crate::setup::{Setup, SpecKind};

/// Layers of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    /// Bytes a token takes in one layer; for state layers 0.
    bytes_per_token: u64,
    /// Window in tokens; `None` keeps all.
    window: Option<u64>,
    /// Bytes of the state of a request in one layer; 0 for attention.
    state_bytes: u64,
    /// Layers of this kind.
    layers: u64,
    /// How many of them are the draft's.
    draft_layers: u64,
}

/// How the pool is cut.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Groups {
    kinds: Vec<Kind>,
    /// Tokens of a block.
    block: u64,
    /// Layers of a group; kinds are padded to a multiple.
    group_layers: u64,
    /// Bytes of one layer's page.
    page_bytes: u64,
    /// States kept for prefixes, beside those that follow.
    prefix: PrefixStates,
    /// Drafted tokens: a request keeps a state for each beside its own.
    drafted: u64,
}

/// What a request keeps in a state layer for prefix caching (`mamba_cache_mode`): `MambaSpec` counts
/// 1, 2 or one a block, and one a drafted token on top (kv_cache_interface.py, 0.16.0 to 0.33.0).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrefixStates {
    /// Nothing: its own state alone (`none`).
    #[default]
    Off,
    /// The last state at a block's end (`align`).
    Align,
    /// A state at each block's end (`all`).
    All,
}

/// Tokens that blocks are a multiple of where each ends with a state: Mamba's chunks (128 and 256).
const CHUNK_TOKENS: u64 = 256;

/// Tokens drafted for each sequence.
fn drafted(setup: &Setup<'_>) -> u64 {
    setup
        .speculation
        .map_or(0, |spec| spec.draft_tokens.saturating_sub(1))
}

/// Tokens of a block where nothing asks for more: 64 for MLA, 16 else.
fn base_block(setup: &Setup<'_>) -> u64 {
    let mla = |layer: &Layer| matches!(layer.attention, Attention::Mla(_));
    let default = if setup.model.layers.iter().any(mla) {
        64
    } else {
        16
    };
    setup.page_tokens.unwrap_or(default).max(1)
}

impl Groups {
    /// Groups of a setup: target layers, and the draft's as further layers.
    pub(crate) fn of(setup: &Setup<'_>) -> Self {
        let layout = KvLayout::new(setup.kv_dtype());
        let mut kinds: Vec<Kind> = Vec::new();
        for (layer, count) in setup.model.layer_kinds() {
            add(&mut kinds, setup, &layout, (&layer, count), false);
        }
        match setup.speculation.map(|spec| (spec.kind, spec.draft)) {
            Some((SpecKind::Mtp, _)) => {
                for layer in &setup.model.mtp_layers {
                    add(&mut kinds, setup, &layout, (layer, 1), true);
                }
            }
            Some((_, Some(draft))) => {
                for (layer, count) in draft.layer_kinds() {
                    add(&mut kinds, setup, &layout, (&layer, count), true);
                }
            }
            _ => {}
        }
        let own = || vllm::prefix_states(setup.engine.version, setup.model);
        let prefix = setup.prefix_states.unwrap_or_else(own);
        let base = match prefix {
            PrefixStates::All => base_block(setup).max(CHUNK_TOKENS),
            PrefixStates::Off | PrefixStates::Align => base_block(setup),
        };
        Self {
            prefix,
            drafted: drafted(setup),
            ..Self::cut(kinds, base)
        }
    }

    fn cut(kinds: Vec<Kind>, base: u64) -> Self {
        let largest_token = kinds.iter().map(|k| k.bytes_per_token).max().unwrap_or(0);
        let state = kinds.iter().map(|k| k.state_bytes).max().unwrap_or(0);
        // Blocks grow until a page of attention holds the state of a layer.
        let block = match state.checked_div(largest_token) {
            Some(_) if state > 0 => {
                let tokens = state.div_ceil(largest_token).div_ceil(base);
                tokens.saturating_mul(base).max(base)
            }
            _ => base,
        };
        let page_bytes = largest_token.saturating_mul(block).max(state);
        let hybrid = kinds
            .iter()
            .any(|k| k.window.is_some() || k.state_bytes > 0)
            && kinds
                .iter()
                .any(|k| k.window.is_none() && k.state_bytes == 0);
        let counts = || kinds.iter().map(|k| k.layers);
        let (least, most) = (counts().min().unwrap_or(1), counts().max().unwrap_or(1));
        let group_layers = if !hybrid {
            counts().fold(0u64, u64::saturating_add)
        } else if (most as f64) < 1.25 * least as f64 {
            most
        } else {
            least
        };
        Self {
            kinds,
            block,
            group_layers: group_layers.max(1),
            page_bytes,
            prefix: PrefixStates::Off,
            drafted: 0,
        }
    }

    /// Whether layers of unlike kinds share the pool.
    pub(crate) fn hybrid(&self) -> bool {
        self.group_count() > 1
    }

    /// Tokens of a block of one kind: every group has pages of one size, so a kind that takes fewer
    /// bytes a token puts more tokens into a page (vLLM's `unify_kv_cache_spec_page_size`).
    fn block_of(&self, kind: &Kind) -> u64 {
        let own = kind.bytes_per_token.saturating_mul(self.block);
        let ratio = self.page_bytes.checked_div(own).unwrap_or(1).max(1);
        self.block.saturating_mul(ratio)
    }

    fn groups_of(&self, kind: &Kind) -> u64 {
        kind.layers.div_ceil(self.group_layers)
    }

    fn group_count(&self) -> u64 {
        if self.uniform() {
            return 1;
        }
        self.kinds.iter().map(|kind| self.groups_of(kind)).sum()
    }

    fn uniform(&self) -> bool {
        let layers: u64 = self.kinds.iter().map(|k| k.layers).sum();
        self.group_layers >= layers
    }

    /// Bytes of one block over the layers of a group.
    fn block_bytes(&self) -> f64 {
        if self.uniform() {
            // Kinds may differ in width (a draft beside the target); each has its own page.
            let bytes: u64 = self
                .kinds
                .iter()
                .map(|k| k.bytes_per_token.saturating_mul(k.layers))
                .fold(0, u64::saturating_add);
            return bytes as f64 * self.block as f64;
        }
        self.page_bytes as f64 * self.group_layers as f64
    }

    /// Blocks in a pool.
    pub(crate) fn blocks(&self, pool_bytes: f64) -> u64 {
        let block = self.block_bytes();
        if block > 0.0 {
            (pool_bytes / block) as u64
        } else {
            0
        }
    }

    /// Tokens as the log line to 0.20.0 counts them (`_report_kv_cache_config`).
    pub(crate) fn tokens(&self, blocks: u64) -> u64 {
        (blocks / self.group_count().max(1)).saturating_mul(self.block)
    }

    /// Blocks that one request of `context` tokens takes, over all groups.
    pub(crate) fn request_blocks(&self, context: u64, batched: u64) -> u64 {
        if self.uniform() {
            return context.div_ceil(self.block);
        }
        let of = |kind: &Kind| self.blocks_of(kind, context, batched);
        self.kinds.iter().map(of).fold(0, u64::saturating_add)
    }

    /// States that one request keeps in a state layer.
    fn states(&self, context: u64) -> u64 {
        let kept = match self.prefix {
            PrefixStates::Off => 1,
            PrefixStates::Align => 2,
            PrefixStates::All => context.div_ceil(self.block),
        };
        kept.saturating_add(self.drafted)
    }

    /// Blocks that one request takes over the groups of a kind.
    fn blocks_of(&self, kind: &Kind, context: u64, batched: u64) -> u64 {
        let block = self.block_of(kind);
        let blocks = match (kind.state_bytes, kind.window) {
            (1.., _) => self.states(context),
            (0, None) => context.div_ceil(block),
            (0, Some(window)) => {
                let kept = window
                    .saturating_sub(1)
                    .saturating_add(batched)
                    .min(context);
                kept.div_ceil(block).saturating_add(1)
            }
        };
        blocks.saturating_mul(self.groups_of(kind))
    }

    /// The draft's share of what a request of `context` tokens takes, 0 to 1: of each kind by its
    /// layers, since a window or a state keeps less than a layer that sees all.
    pub(crate) fn draft_share(&self, context: u64, batched: u64) -> f64 {
        let takes = |kind: &Kind| match self.uniform() {
            true => kind.bytes_per_token as f64 * kind.layers as f64,
            false => self.blocks_of(kind, context, batched) as f64,
        };
        let of_draft =
            |kind: &Kind| takes(kind) * kind.draft_layers as f64 / kind.layers.max(1) as f64;
        let all: f64 = self.kinds.iter().map(takes).sum();
        let draft: f64 = self.kinds.iter().map(of_draft).sum();
        if all > 0.0 { draft / all } else { 0.0 }
    }

    /// Bytes that one request takes.
    pub(crate) fn request_bytes(&self, context: u64, batched: u64) -> f64 {
        self.request_blocks(context, batched) as f64 * self.block_bytes()
    }

    /// What a request of `context` tokens takes more than one of other groups, of what it takes: 0 to 1.
    pub(crate) fn share_beyond(&self, other: &Self, context: u64, batched: u64) -> f64 {
        let own = self.request_bytes(context, batched);
        let share = 1.0 - other.request_bytes(context, batched) / own.max(1.0);
        share.clamp(0.0, 1.0)
    }

    /// Whether layers keep a state of a request beside those that keep a cache.
    pub(crate) fn keeps_states(&self) -> bool {
        self.kinds.iter().any(|kind| kind.state_bytes > 0)
    }

    /// Bytes of so many blocks.
    pub(crate) fn bytes_of(&self, blocks: u64) -> f64 {
        blocks as f64 * self.block_bytes()
    }

    /// Whether a request keeps states of its drafted tokens.
    pub(crate) fn keeps_drafted_states(&self) -> bool {
        self.drafted > 0 && self.keeps_states()
    }

    /// Requests of `context` tokens that fit.
    pub(crate) fn concurrency(&self, blocks: u64, context: u64, batched: u64) -> f64 {
        blocks as f64 / self.request_blocks(context, batched).max(1) as f64
    }

    /// Longest request that fits, whole blocks.
    pub(crate) fn longest(&self, blocks: u64, batched: u64) -> u64 {
        let (mut low, mut high) = (0u64, blocks);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let context = middle.saturating_mul(self.block);
            if self.request_blocks(context, batched) <= blocks {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low.saturating_mul(self.block)
    }

    /// Bytes a token takes on a rank over all layers, padding included, windows as if full.
    pub(crate) fn bytes_per_token(&self) -> f64 {
        let block_bytes = self.block_bytes();
        if self.uniform() {
            return block_bytes / self.block.max(1) as f64;
        }
        let tables = |kind: &Kind| self.groups_of(kind) as f64 / self.block_of(kind).max(1) as f64;
        block_bytes * self.kinds.iter().map(tables).sum::<f64>()
    }

    /// Layers of padding over all layers.
    #[cfg(test)]
    fn padding(&self) -> u64 {
        let padded: u64 = self
            .kinds
            .iter()
            .map(|k| self.groups_of(k) * self.group_layers)
            .sum();
        padded - self.kinds.iter().map(|k| k.layers).sum::<u64>()
    }
}

/// Adds layers of one shape, the target's or the draft's.
fn add(
    kinds: &mut Vec<Kind>,
    setup: &Setup<'_>,
    layout: &KvLayout,
    (layer, count): (&Layer, u64),
    of_draft: bool,
) {
    let one = crate::kv::layer_state_bytes(layer, &setup.sharding, drafted(setup));
    // Before the hybrid allocator (V1, summer 2025) a window saved no memory.
    let windows = setup.engine.version.since((0, 9, 2), (2025, 7));
    let bytes = layer_kv_bytes(layer, &setup.sharding, layout);
    let kind = Kind {
        bytes_per_token: bytes.saturating_add(layer_index_bytes(layer)),
        // DeepSeek-V4's layers keep compressed entries beside the window: counted as full ones, as
        // the 150,000 tokens in 7.7 GiB of a V4-Flash server are (vllm#51041).
        window: match layer.attention {
            Attention::Compressed(_) => None,
            _ => window(layer).filter(|_| windows),
        },
        state_bytes: one,
        layers: count,
        draft_layers: if of_draft { count } else { 0 },
    };
    if kind.bytes_per_token == 0 && kind.state_bytes == 0 {
        return;
    }
    let same = |k: &&mut Kind| {
        k.bytes_per_token == kind.bytes_per_token
            && k.window == kind.window
            && k.state_bytes == kind.state_bytes
    };
    match kinds.iter_mut().find(same) {
        Some(known) => {
            known.layers = known.layers.saturating_add(count);
            known.draft_layers = known.draft_layers.saturating_add(kind.draft_layers);
        }
        None => kinds.push(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gemma_27b() -> Groups {
        let kind = |window, layers| Kind {
            bytes_per_token: 16 * 128 * 2 * 2,
            window,
            state_bytes: 0,
            layers,
            draft_layers: 0,
        };
        Groups::cut(vec![kind(Some(1024), 52), kind(None, 10)], 16)
    }

    /// vLLM 0.22 log of a Gemma-4-26B-A4B body at TP 2: 4.36 GiB hold 1.5507 requests of 262,144
    /// (406,513 tokens). 25 sliding layers of 4 KiB a token, 5 that see all of 2 KiB.
    #[test]
    fn a_narrower_kind_puts_more_tokens_into_a_page() {
        let kind = |bytes_per_token, window, layers| Kind {
            bytes_per_token,
            window,
            state_bytes: 0,
            layers,
            draft_layers: 0,
        };
        let groups = Groups::cut(vec![kind(4096, Some(1024), 25), kind(2048, None, 5)], 16);
        assert_eq!(groups.group_count(), 6);
        let blocks = groups.blocks(4.36 * crate::GIB);
        let requests = groups.concurrency(blocks, 262_144, 2048);
        assert!((requests / 1.5507 - 1.0).abs() < 0.01, "{requests}");
        // Beyond the windows a token costs what the layers that see all take, no padding.
        let more = groups.request_bytes(262_144, 2048) - groups.request_bytes(131_072, 2048);
        assert_eq!(more, 131_072.0 * 5.0 * 2048.0);
    }

    /// vLLM log of Gemma-3-27B: 8 padding layers, 205,696 tokens, 50.05 requests of 4096.
    #[test]
    fn ten_full_and_52_sliding_layers_make_seven_groups_with_eight_layers_of_padding() {
        let groups = gemma_27b();
        assert_eq!((groups.group_count(), groups.padding()), (7, 8));
        let blocks = groups.blocks(109.86 * crate::GIB);
        assert!(blocks.abs_diff(89_997) < 10, "{blocks}");
        assert!(groups.tokens(blocks).abs_diff(205_696) <= 16);
        let concurrency = groups.concurrency(89_997, 4096, 8192);
        assert!((concurrency - 50.05).abs() < 0.01, "{concurrency}");
    }
}
