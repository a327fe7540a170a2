//! Shapes that engines refuse although the bytes would fit, and what cures them.

use kvplan::{Ffn, Model, WeightFormat};

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
        notes.misfit(
            format!(
                "NVFP4 weights run on {}, which has no FP4 units: many SGLang builds refuse them \
                 there (vLLM unpacks them by Marlin)",
                gpu.name
            ),
            "--engine vllm, or --quant fp8 or awq",
        );
    }
    warn_fp8_experts(model, gpu, engine, notes);
    if let Some(limit) = model.max_positions.filter(|limit| context > *limit) {
        notes.misfit(
            format!(
                "context {context} is beyond the model's own {limit} tokens: engines refuse it \
                 without rope scaling (YaRN)"
            ),
            "the model card's rope_scaling",
        );
    }
}

/// SGLang runs FP8 experts by a Triton kernel that multiplies in FP8, which cards before Ada cannot:
/// "type fp8e4nv not supported in this architecture" (sglang#5871 on A10, #13471 on A800, #12887).
/// The way by Marlin, as dense layers have it since #8990, was an open request (#30681) in July 2026.
fn warn_fp8_experts(model: &Model, gpu: &Gpu, engine: EngineKind, notes: &mut Notes) {
    let fp8 = [WeightFormat::Fp8, WeightFormat::Fp8Block];
    let experts = model
        .layers
        .iter()
        .any(|layer| matches!(layer.ffn, Ffn::Moe(_)) && fp8.contains(&layer.formats.experts));
    let without_fp8 = matches!(gpu.family, Family::Volta | Family::Turing | Family::Ampere);
    if experts && without_fp8 && engine == EngineKind::Sglang {
        notes.misfit(
            format!(
                "FP8 experts run on {}, which has no FP8 arithmetic: SGLang's kernel is reported to crash \
                 there (`fp8e4nv not supported in this architecture`: sglang#5871, #12887; its mend \
                 #30681 was open in July 2026); vLLM unpacks them by Marlin",
                gpu.name
            ),
            "--engine vllm, or --quant awq or bf16",
        );
    }
}
