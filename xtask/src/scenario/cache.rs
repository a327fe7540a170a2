//! What the KV cache is told: its format, the memory fraction, the GPUs that share it.

use super::engine::{EngineChoice, EngineKind};
use super::{Notes, Scenario, input, merge};
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;

/// The FP8 of fewer digits, which engines are told by name.
pub(crate) const E5M2: &str = "fp8_e5m2";

/// What is served, by which engine and on which card.
pub(super) type Serving<'a> = (&'a kvplan::Model, &'a EngineChoice, &'a crate::gpus::Gpu);

/// The format of the KV cache that the engine takes where nobody says one.
pub(super) fn kv_by_itself(
    (model, choice, gpu): Serving<'_>,
) -> anyhow::Result<(kvplan::KvDtype, kvplan::KvReason)> {
    let rules = crate::plan::engine(choice)?;
    Ok(kvplan::kv_by_itself(model, rules, gpu.compute_major()))
}

/// The format of the KV cache.
pub(super) fn kv_dtype(
    merged: &merge::Merged,
    serving: Serving<'_>,
    notes: &mut Notes,
) -> anyhow::Result<kvplan::KvDtype> {
    let engine = serving.1.kind;
    let Some(given) = &merged.kv_dtype else {
        let (dtype, why) = kv_by_itself(serving)?;
        notes.input("kv_dtype", dtype.name(), why.said());
        if why == kvplan::KvReason::UsualCheckpoint {
            notes.assume(
                format!("KV cache in {}: {}", dtype.name(), why.said()),
                "the checkpoint's hf_quant_config.json or config.json, or --kv-dtype",
            );
        }
        return Ok(dtype);
    };
    let dtype = kvplan::KvDtype::parse(&given.value).ok_or_else(|| {
        input::error(format!(
            "{}: not a KV format; give bf16, fp8, fp4, or a GGUF type such as q8_0",
            given.shown("--kv-dtype")
        ))
    })?;
    let llamacpp = engine == EngineKind::LlamaCpp;
    let runs = match dtype {
        kvplan::KvDtype::Bf16 => true,
        kvplan::KvDtype::Fp8 => !llamacpp,
        kvplan::KvDtype::Fp4 => engine == EngineKind::Sglang || engine == EngineKind::TrtLlm,
        _ => llamacpp,
    };
    if !runs {
        return Err(input::error(format!(
            "{}: {} has no such KV cache; give {}",
            given.shown("--kv-dtype"),
            engine.name(),
            match engine {
                EngineKind::LlamaCpp => "f16, q8_0, q5_1, q5_0, q4_1 or q4_0",
                EngineKind::Vllm => "bf16 or fp8",
                EngineKind::Sglang | EngineKind::TrtLlm => "bf16, fp8 or fp4",
            }
        )));
    }
    // As it was typed where the name says more than bytes: Ampere reads only the one of the two.
    let shown = match given.value.trim().to_ascii_lowercase().replace('-', "_") == E5M2 {
        true => E5M2,
        false => dtype.name(),
    };
    notes.input("kv_dtype", shown, given.source.clone());
    Ok(dtype)
}

/// The flags, which ask for a KV format, with the one that the log's server had, where only the pool that
/// it prints shows that.
pub(super) fn beside_the_logs_own(args: &ScenarioArgs) -> ScenarioArgs {
    let asks = args.kv_dtype.is_some() && args.from_log.is_some();
    let alone = asks.then(|| ScenarioArgs {
        kv_dtype: None,
        ..args.clone()
    });
    ScenarioArgs {
        kv_dtype_of_log: alone.and_then(|alone| by_the_pool(&alone)),
        ..args.clone()
    }
}

/// The format that the log's pool shows, where nobody asks for one. What is wrong with the flags is told
/// of those that were given.
fn by_the_pool(args: &ScenarioArgs) -> Option<kvplan::KvDtype> {
    let mut notes = Notes::default();
    let merged = merge::merge(args, &mut notes).ok()?;
    let mut scenario = Scenario::from_merged(&merged, &mut notes).ok()?;
    scenario.inputs = notes.inputs;
    let (dtype, _) = crate::plan::kv_format_of_the_pool(&scenario)?;
    Some(dtype)
}

/// A log whose pool alone shows its KV format, as one that says it where the pool stands.
pub(super) fn with_its_own(mut log: LogScenario, args: &ScenarioArgs) -> LogScenario {
    let shown = args.kv_dtype_of_log.zip(log.kv_tokens);
    let shown = shown.map(|(dtype, (_, line))| (dtype.name().to_string(), line));
    log.kv_dtype = log.kv_dtype.or(shown);
    log
}

/// The memory fraction that was given.
pub(super) fn mem_fraction(
    merged: &merge::Merged,
    notes: &mut Notes,
) -> anyhow::Result<Option<f64>> {
    if let Some(held) = merged.ran.held_by_others() {
        notes.assume(held, "");
    }
    let Some(given) = &merged.mem_fraction else {
        return Ok(None);
    };
    if !(given.value > 0.0 && given.value <= 1.0) {
        return Err(input::error(format!(
            "{}: give a fraction above 0 and up to 1, such as 0.88",
            given.shown("--mem-fraction")
        )));
    }
    notes.input("mem_fraction", given.value, given.source.clone());
    Ok(Some(given.value))
}

/// GPUs that share one copy of the KV cache.
pub(super) fn dcp(
    merged: &merge::Merged,
    tp: u32,
    engine: EngineKind,
    notes: &mut Notes,
) -> anyhow::Result<u32> {
    let Some(given) = &merged.dcp else {
        return Ok(1);
    };
    if given.value == 0 || !tp.is_multiple_of(given.value) {
        return Err(input::error(format!(
            "{}: must divide the tensor-parallel size {tp}",
            given.shown("--dcp")
        )));
    }
    if given.value > 1 && matches!(engine, EngineKind::TrtLlm | EngineKind::LlamaCpp) {
        return Err(input::error(format!(
            "{}: {} has no decode context parallelism; leave it out",
            given.shown("--dcp"),
            engine.name()
        )));
    }
    if given.value > 1 && engine == EngineKind::Sglang {
        notes.assume(
            format!(
                "dcp {}: only the step times follow it; SGLang's memory rules and flags for it are \
                 not known here",
                given.value
            ),
            "--engine vllm, whose KV pool is divided by it",
        );
    }
    notes.input("dcp", given.value, given.source.clone());
    Ok(given.value)
}
