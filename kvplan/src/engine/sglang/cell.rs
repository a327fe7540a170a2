//! Bytes of a token in SGLang's pool, and which models get a pool of their own for window layers.

use super::DraftEra;
use crate::engine::Version;
use crate::kv::{KvLayout, window};
use crate::model::{Attention, Layer};
use crate::setup::Setup;

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

/// Whether the draft's pool is part of the cell. Configurators of window pools left it out in every
/// version seen (#28219, #31588, a log of 0.5.16).
pub(super) fn prices_draft(setup: &Setup<'_>, era: DraftEra) -> bool {
    let sliding = |layer: &Layer| match layer.attention {
        Attention::Gqa(gqa) => gqa.window.is_some(),
        _ => false,
    };
    let own_pool = setup.model.layers.iter().any(sliding)
        && window_pool(&setup.model.architecture, setup.engine.version);
    matches!(era, DraftEra::Counted | DraftEra::PricedPool) && !own_pool
}
