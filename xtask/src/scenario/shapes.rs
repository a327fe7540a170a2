//! Shapes that engines refuse although the bytes would fit, and what cures them.

use kvplan::{Model, WeightFormat};

use super::{EngineKind, Notes};
use crate::gpus::{Family, Gpu};

/// Why the engine refuses the weights cut like this, where it does.
pub(super) fn uncut(model: &Model, tp: u32, engine: EngineKind) -> Option<kvplan::Uncut> {
    let engine = match engine {
        EngineKind::Sglang => kvplan::EngineKind::Sglang,
        EngineKind::Vllm => kvplan::EngineKind::Vllm,
        EngineKind::TrtLlm | EngineKind::LlamaCpp => return None,
    };
    kvplan::Sharding::tp(u64::from(tp)).uncut(model, engine)
}

/// Says what the engine or the model does not take as it stands.
pub(super) fn warn(model: &Model, gpu: &Gpu, engine: EngineKind, context: u64, notes: &mut Notes) {
    let nvfp4 = model
        .layers
        .iter()
        .any(|layer| [layer.formats.experts, layer.formats.dense].contains(&WeightFormat::Nvfp4));
    if nvfp4
        && engine == EngineKind::Sglang
        && !matches!(gpu.family, Family::Blackwell | Family::BlackwellRtx)
    {
        notes.assume(
            format!(
                "NVFP4 weights run on {}, which has no FP4 units: many SGLang builds refuse them \
                 there (vLLM unpacks them by Marlin)",
                gpu.name
            ),
            "--engine vllm, or --quant fp8 or awq",
        );
    }
    if let Some(limit) = model.max_positions.filter(|limit| context > *limit) {
        notes.assume(
            format!(
                "context {context} is beyond the model's own {limit} tokens: engines refuse it \
                 without rope scaling (YaRN)"
            ),
            "the model card's rope_scaling",
        );
    }
}
