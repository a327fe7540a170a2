//! How SGLang and vLLM are told the format of the KV cache.

use kvplan::KvDtype;

use crate::scenario::{E5M2, EngineChoice, EngineKind, Scenario};

/// Flag and value; none where the engine takes it by itself. A cache in bf16 must be told where a checkpoint
/// or a kernel brings another; SGLang has that word from 0.5.4 on, vLLM from 0.11.0.
pub(super) fn flag(scenario: &Scenario, engine: &EngineChoice) -> Vec<String> {
    let input = scenario.input("kv_dtype");
    let typed = input.and_then(|input| input.value.as_str());
    // A log's server has it by itself.
    let by_flag = input.is_some_and(|input| input.source == "--kv-dtype");
    let value = match (scenario.kv_dtype, engine.kind) {
        (KvDtype::Fp8, _) if typed == Some(E5M2) => E5M2,
        (KvDtype::Fp8, EngineKind::Sglang) => "fp8_e4m3",
        (KvDtype::Fp8, _) => "fp8",
        (KvDtype::Fp4, EngineKind::Sglang) => "fp4_e2m1",
        (KvDtype::Bf16, _) if by_flag && brings_another(scenario, engine) => "bfloat16",
        _ => return Vec::new(),
    };
    vec!["--kv-cache-dtype".to_string(), value.to_string()]
}

/// Whether an engine takes another format than bf16 where nobody says one.
fn brings_another(scenario: &Scenario, engine: &EngineChoice) -> bool {
    let major = scenario.gpu.compute_major();
    let own = crate::plan::engine(engine).map(|rules| {
        let (own, _) = kvplan::kv_by_itself(&scenario.model, rules, major);
        own
    });
    let says = |version: kvplan::Version| version.since((0, 5, 4), (2025, 10));
    let version = engine.version.as_deref().and_then(kvplan::Version::find);
    let takes_it = engine.kind != EngineKind::Sglang || version.is_none_or(says);
    takes_it && own.is_ok_and(|own| own != KvDtype::Bf16)
}
