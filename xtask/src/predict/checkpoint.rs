//! The checkpoint in a start line: its path, and what the engine is told of how it is loaded.

use std::path::Path;

use super::flags::push;
use crate::gpus::Family;
use crate::scenario::{EngineKind, Scenario};

/// Stands where the checkpoint belongs that nobody named.
pub(super) const MODEL: &str = "MODEL_PATH";
/// Families whose own start lines carry --trust-remote-code: the repository brings code.
const OWN_CODE: [&str; 6] = ["kimi", "deepseek", "minimax", "nemotron", "mimo", "step"];

/// The checkpoint as it was named, where that can be served.
pub(super) fn path(scenario: &Scenario, engine: EngineKind) -> String {
    let given = scenario.model_given.as_str();
    let by_flag = scenario.quant_given.is_some();
    let path = Path::new(given);
    if given.ends_with(".json") {
        let folder = path.parent().filter(|_| path.ends_with("config.json"));
        let named = folder.and_then(Path::to_str).filter(|f| !f.is_empty());
        return named.unwrap_or(MODEL).to_string();
    }
    let named = path.is_dir() || given.contains('/');
    // The repository is of another format than asked for: only FP8 is made while loading, where there is
    // room for it.
    if named && (!by_flag || says_format(scenario) || online(scenario, engine).is_some()) {
        return given.to_string();
    }
    let stored = stored_instead(scenario, engine);
    stored.unwrap_or_else(|| MODEL.to_string())
}

/// Whether the name itself says the format that --quant asks for.
fn says_format(scenario: &Scenario) -> bool {
    let name = scenario.model_given.to_ascii_lowercase();
    let quant = scenario.quant_given.as_deref();
    quant.is_some_and(|quant| name.contains(quant))
}

/// The FP8 checkpoint that is published beside the BF16 one, where an engine lacks the room to make its own.
fn stored_instead(scenario: &Scenario, engine: EngineKind) -> Option<String> {
    scenario.checkpoint.as_ref()?;
    let lacks = !crate::plan::loads_in_bf16(scenario, engine);
    lacks.then(|| kvplan::catalog::stored_fp8(&scenario.model_given))?
}

/// The format that an engine makes of a BF16 checkpoint while loading, where that is asked for and it has
/// the room.
fn online(scenario: &Scenario, engine: EngineKind) -> Option<&'static str> {
    let quant = scenario.quant_given.as_deref()?;
    let makes = |kind: EngineKind| matches!(kind, EngineKind::Sglang | EngineKind::Vllm);
    let named = scenario.model_given.contains('/') && !scenario.model_given.ends_with(".json");
    let wanted = quant == "fp8" && !says_format(scenario);
    let room = || scenario.checkpoint.is_none() || crate::plan::loads_in_bf16(scenario, engine);
    (makes(scenario.engine.kind) && named && wanted && room()).then_some("fp8")
}

/// Whether the card has no BF16, which the engines refuse unless they are told another format.
fn without_bf16(scenario: &Scenario) -> bool {
    matches!(scenario.gpu.family, Family::Volta | Family::Turing)
}

/// Whether the repository brings code of its own.
fn own_code(scenario: &Scenario) -> bool {
    let names = [&scenario.model.name, &scenario.model.architecture];
    names.into_iter().any(|name| {
        let name = name.to_ascii_lowercase();
        OWN_CODE.iter().any(|family| name.starts_with(family))
    })
}

/// What SGLang and vLLM alike are told of how a checkpoint is loaded.
pub(super) fn flags(scenario: &Scenario, engine: EngineKind, flags: &mut Vec<String>) {
    if own_code(scenario) {
        flags.push("--trust-remote-code".to_string());
    }
    if let Some(format) = online(scenario, engine) {
        push(flags, "--quantization", format);
    }
    if without_bf16(scenario) {
        push(flags, "--dtype", "half");
    }
}
