//! How SGLang and vLLM are told the format of the KV cache.

use kvplan::KvDtype;

use crate::scenario::{E5M2, EngineKind, Scenario};

/// Flag and value; none where the engine takes it by itself.
pub(super) fn flag(scenario: &Scenario, engine: EngineKind) -> Vec<String> {
    let typed = scenario
        .input("kv_dtype")
        .and_then(|input| input.value.as_str());
    let value = match (scenario.kv_dtype, engine) {
        (KvDtype::Fp8, _) if typed == Some(E5M2) => E5M2,
        (KvDtype::Fp8, EngineKind::Sglang) => "fp8_e4m3",
        (KvDtype::Fp8, _) => "fp8",
        (KvDtype::Fp4, EngineKind::Sglang) => "fp4_e2m1",
        _ => return Vec::new(),
    };
    vec!["--kv-cache-dtype".to_string(), value.to_string()]
}
