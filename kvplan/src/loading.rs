//! What stands on a card while an engine makes the weight format itself, of a checkpoint that stores
//! another (`--quantization fp8` on BF16).
//!
//! Sources. SGLang 0.5.23: `DefaultModelLoader` builds the model on the card (`load_model`), each weight in
//! the checkpoint's format (`create_fp8_weight_` and `create_weights` of fp8.py: `params_dtype` where the
//! checkpoint is not FP8), reads all of them, and only then quantises module after module
//! (`load_weights_and_postprocess`); so it was in January 2025 (sglang#2895). vLLM 0.14.0 and 0.15.0 take
//! the same room (`create_weights` of fp8.py); from 0.16.0 on (vllm#31914) a weight has none until it is
//! read, and is quantised then.

use crate::GIB;
use crate::engine::{Engine, EngineKind};
use crate::parts;
use crate::pool::Pool;
use crate::refusal::{MORE_ROOM, Refusal};
use crate::setup::{Plan, Setup};

/// What stands on one card before anything is quantised, GiB: the least that loading takes. The copy in
/// the other format of the module that is at work comes on top.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loading {
    /// Tensors of the checkpoint.
    pub checkpoint_gib: f64,
    /// Gone before the weights.
    pub gone_gib: f64,
    /// What both are more than the card.
    pub short_gib: f64,
}

/// Whether the whole checkpoint stands on the cards before an engine makes another format of it.
fn holds_all_first(engine: Engine) -> bool {
    match engine.kind {
        EngineKind::Sglang => true,
        EngineKind::Vllm => !engine.version.since((0, 16, 0), (2026, 2)),
        // They make no format while loading.
        EngineKind::TensorRtLlm | EngineKind::LlamaCpp => false,
    }
}

/// What stands on one card of a setup before anything is quantised, where that does not fit. A server that
/// was seen with its weights loaded had the room.
pub fn runs_out_loading(setup: &Setup<'_>) -> Option<Loading> {
    let seen = setup.observed;
    let loaded = seen.served || seen.free_after_gib.is_some() || seen.weights_gib.is_some();
    let first = !loaded && holds_all_first(setup.engine);
    let checkpoint = setup.checkpoint.filter(|_| first)?;
    let checkpoint_gib = checkpoint.total_weight_bytes(&setup.sharding) / GIB;
    let free = parts::free_before_gib(setup);
    let loading = Loading {
        checkpoint_gib,
        gone_gib: setup.card_gib - free,
        short_gib: checkpoint_gib - free,
    };
    (loading.short_gib > 0.0).then_some(loading)
}

/// Refuses a plan that runs out of memory while it loads, whatever its fraction.
pub(crate) fn refuse(plan: &mut Plan, setup: &Setup<'_>) {
    let Some(loading) = runs_out_loading(setup) else {
        return;
    };
    plan.loading = Some(loading);
    plan.refusal = Some(Refusal {
        short_gib: loading.short_gib,
        card_short_gib: 0.0,
        engine_says: "CUDA out of memory, while it loads the weights".to_string(),
        remedy: MORE_ROOM.to_string(),
    });
    plan.fits = false;
    plan.kv_tokens = 0;
    plan.pool = Pool::of_tokens(0);
    plan.pool_low = None;
    (plan.max_concurrency, plan.longest_context) = (0.0, 0);
}
