//! Shapes that engines refuse although the bytes would fit, and what cures them.

use kvplan::{Ffn, Model, WeightFormat};

use super::{EngineKind, Notes, Ran};
use crate::gpus::{Family, Gpu};

/// The ranks that a log's server spread whole experts over (1: none), and the log less a number of
/// them that does not go with this cut: SGLang divides the ranks by it.
pub(super) fn expert_ranks(ran: &Ran, tp: u32) -> (Ran, u32) {
    let mut ran = ran.clone();
    let flags = &mut ran.carried.flags;
    let named = |flag: &Vec<String>, name: &str| flag.first().is_some_and(|word| word == name);
    if flags.iter().any(|flag| named(flag, VLLM_EXPERTS)) {
        return (ran, tp);
    }
    let Some(at) = flags.iter().position(|flag| named(flag, SGLANG_EXPERTS)) else {
        return (ran, 1);
    };
    let told = flags.get(at).and_then(|flag| flag.get(1)?.parse().ok());
    if let Some(told) = told.filter(|told| *told > 0 && tp.is_multiple_of(*told)) {
        return (ran, told);
    }
    flags.remove(at);
    ran.carried.left.insert(0, "ep_size".to_string());
    (ran, 1)
}

/// The flags that put whole experts on each rank.
pub(crate) const VLLM_EXPERTS: &str = "--enable-expert-parallel";
/// SGLang's, with the ranks.
pub(crate) const SGLANG_EXPERTS: &str = "--ep-size";

/// Why the engine refuses the weights cut like this, where it does.
pub(super) fn uncut(
    model: &Model,
    (tp, ep): (u32, u32),
    engine: EngineKind,
) -> Option<kvplan::Uncut> {
    let engine = match engine {
        EngineKind::Sglang => kvplan::EngineKind::Sglang,
        EngineKind::Vllm => kvplan::EngineKind::Vllm,
        EngineKind::TrtLlm | EngineKind::LlamaCpp => return None,
    };
    let sharding = kvplan::Sharding {
        ep: u64::from(ep),
        ..kvplan::Sharding::tp(u64::from(tp))
    };
    sharding.uncut(model, engine)
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
