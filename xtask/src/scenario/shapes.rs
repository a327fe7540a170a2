//! Shapes that engines refuse although the bytes would fit, and what cures them.

use kvplan::{Ffn, Model, WeightFormat};

use super::merge::{Given, Merged};
use super::{EngineKind, Notes, Ran};
use crate::explain::carried::Carried;
use crate::gpus::{Family, Gpu};
use crate::input;

/// The ranks that whole experts are spread over (1: none), as asked for or else as the log's server
/// was told, and the log less what does not go with it.
///
/// # Errors
/// A number that this engine, model or cut cannot have.
pub(super) fn expert_ranks(
    merged: &Merged,
    (model, tp): (&Model, u32),
    engine: EngineKind,
    notes: &mut Notes,
) -> anyhow::Result<(Ran, u32)> {
    let mut ran = merged.ran.clone();
    let told = told_experts(&ran.carried, tp);
    let of_sglang = |flag: &Vec<String>| flag.first().is_some_and(|word| word == SGLANG_EXPERTS);
    let flags = &mut ran.carried.flags;
    let before = flags.len();
    if let Some(given) = &merged.ep {
        let of_vllm = |flag: &Vec<String>| flag.first().is_some_and(|word| word == VLLM_EXPERTS);
        flags.retain(|flag| !of_sglang(flag) && !of_vllm(flag));
        check_experts(given, (model, tp), engine)?;
        notes.input("ep", given.value, given.source.clone());
        return Ok((ran, given.value));
    }
    if told.is_none() {
        // A number that does not go with this cut: SGLang divides the ranks by it.
        flags.retain(|flag| !of_sglang(flag));
        if flags.len() < before {
            ran.carried.left.insert(0, "ep_size".to_string());
        }
    }
    Ok((ran, told.unwrap_or(1)))
}

/// The ranks that a server of `tp` ranks was told to spread whole experts over, where it can.
pub(super) fn told_experts(carried: &Carried, tp: u32) -> Option<u32> {
    let of = |name: &str| {
        let named = |flag: &&Vec<String>| flag.first().is_some_and(|word| word == name);
        carried.flags.iter().find(named)
    };
    if of(VLLM_EXPERTS).is_some() {
        return Some(tp);
    }
    let told: u32 = of(SGLANG_EXPERTS)?.get(1)?.parse().ok()?;
    (told > 0 && tp.is_multiple_of(told)).then_some(told)
}

/// Refuses ranks of experts that the engine, the model or the cut cannot have.
fn check_experts(
    given: &Given<u32>,
    (model, tp): (&Model, u32),
    engine: EngineKind,
) -> anyhow::Result<()> {
    let ranks = given.value;
    let of_layer = |layer: &kvplan::Layer| match layer.ffn {
        Ffn::Moe(moe) => Some(moe.experts),
        _ => None,
    };
    let experts = model.layers.iter().filter_map(of_layer).max();
    let why = match (engine, experts) {
        _ if ranks == 0 => "give at least 1".to_string(),
        (_, None) => format!("{} has no experts; leave it out", model.name),
        _ if ranks == 1 => return Ok(()),
        (EngineKind::TrtLlm | EngineKind::LlamaCpp, _) => {
            "known here for sglang and vllm alone; leave it out".to_string()
        }
        (EngineKind::Vllm, _) if ranks != tp => {
            format!("vLLM spreads experts over all ranks of the group: give {tp}, or 1")
        }
        _ if !tp.is_multiple_of(ranks) => format!("must divide the tensor-parallel size {tp}"),
        (EngineKind::Sglang, Some(n)) if !n.is_multiple_of(u64::from(ranks)) => {
            format!("does not divide the {n} experts of {}", model.name)
        }
        _ => return Ok(()),
    };
    Err(input::error(format!("{}: {why}", given.shown("--ep"))))
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
