//! Bytes of a token in SGLang's pool, and which models get a pool of their own for window layers.

use super::layout;
use crate::engine::Version;
use crate::kv::{self, KvLayout, layer_kv_bytes, window};
use crate::model::{Attention, Layer};
use crate::parts::DraftParts;
use crate::setup::{Setup, SpecKind};

/// Default of `--swa-full-tokens-ratio`: window layers get this share of the tokens of full ones.
const SWA_FULL_TOKENS_RATIO: f64 = 0.8;

/// A release by number and by month.
type Release = ((u32, u32, u32), (u32, u32));

/// First release and month with a window pool, and how the names of the architectures begin
/// (`is_hybrid_swa_model` in model_config.py, and server_args.py, which switched gpt-oss off until
/// 2026). Everything else with windows, Gemma 2 and 3 among them, keeps every token in every layer.
const WINDOW_POOLS: [(&str, Release); 11] = [
    ("Llama4", ((0, 4, 9), (2025, 7))),
    ("GptOss", ((0, 5, 8), (2026, 1))),
    ("MiMoV2", ((0, 5, 7), (2025, 12))),
    ("Step3p5", ((0, 5, 8), (2026, 1))),
    ("Step3p7", ((0, 5, 11), (2026, 4))),
    ("Gemma4", ((0, 5, 11), (2026, 4))),
    ("Laguna", ((0, 5, 13), (2026, 6))),
    ("Granite", ((0, 5, 13), (2026, 6))),
    ("Inkling", ((0, 5, 13), (2026, 6))),
    ("Mellum", ((0, 5, 13), (2026, 6))),
    ("DeepseekV4", ((0, 5, 11), (2026, 4))),
];

/// Whether window layers have a pool of their own, smaller than the full one.
fn window_pool(architecture: &str, version: Version) -> bool {
    WINDOW_POOLS.iter().any(|(start, (number, date))| {
        architecture.starts_with(start) && version.since(*number, *date)
    })
}

/// Bytes a token takes: layers that keep all tokens, and the window layers' share of the pool.
pub(super) fn cell_bytes(setup: &Setup<'_>, layout: &KvLayout) -> f64 {
    let model = setup.model;
    let index = if layout.index_cache {
        model.index_bytes_per_token()
    } else {
        0
    };
    let all = model.kv_bytes_per_token(&setup.sharding, layout);
    let full = model.full_kv_bytes_per_token(&setup.sharding, layout);
    let windows = model.layers.iter().any(|layer| window(layer).is_some());
    let compressed = |layer: &Layer| matches!(layer.attention, Attention::Compressed(_));
    if !windows || model.layers.iter().any(compressed) {
        return full.saturating_add(index) as f64;
    }
    let sliding = all.saturating_sub(full);
    let share = if window_pool(&model.architecture, setup.engine.version) {
        SWA_FULL_TOKENS_RATIO
    } else {
        1.0
    };
    full as f64 + share * sliding as f64
}

/// What the engine adds to a token's bytes for the draft's pool when it sizes the target's, bytes:
/// nothing in older releases, whose draft takes its pool out of the reserve. Else the target's own
/// bytes a layer times the draft's layers, right where both have one geometry (an MTP layer, a head
/// like its target), and too little for a head with keys of its own beside compressed ones. Read in
/// `pool_configurator.py` of the wheels 0.5.11 to 0.5.23.
pub(super) fn draft_cell_bytes(setup: &Setup<'_>, draft: &DraftParts, target_cell: f64) -> f64 {
    let Some(spec) = setup.speculation else {
        return 0.0;
    };
    let own = draft.kv_bytes_per_token as f64;
    let version = setup.engine.version;
    let window = setup
        .model
        .layers
        .iter()
        .any(|layer| match layer.attention {
            Attention::Gqa(gqa) => gqa.window.is_some(),
            _ => false,
        })
        && window_pool(&setup.model.architecture, version);
    let block = spec.kind == SpecKind::Block;
    let compressed = |layer: &Layer| matches!(layer.attention, Attention::Compressed(_));
    let first = match (block, window) {
        (false, _) if setup.model.layers.iter().any(compressed) => ((0, 5, 12), (2026, 5)),
        (true, false) => ((0, 5, 11), (2026, 5)),
        (true, true) => ((0, 5, 18), (2026, 8)),
        (false, false) => ((0, 5, 14), (2026, 7)),
        (false, true) => ((0, 5, 15), (2026, 7)),
    };
    if own <= 0.0 || !version.since(first.0, first.1) {
        return 0.0;
    }
    match spec.draft {
        Some(head) if !(block && version.since((0, 5, 18), (2026, 8))) => {
            let bytes = |layer: &Layer| layer_kv_bytes(layer, &setup.sharding, &layout(setup));
            let mut layers = setup.model.layers.iter().filter(|layer| bytes(layer) > 0);
            let each = if window {
                let full = layers.find(|layer| kv::window(layer).is_none());
                full.map_or(0, bytes) as f64
            } else {
                target_cell / layers.count().max(1) as f64
            };
            each * head.layers.len() as f64
        }
        // Layers of the target's own kind, or sizes the engine reads from the draft.
        _ => own,
    }
}
