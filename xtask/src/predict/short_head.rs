//! A head whose own config reaches fewer tokens than the server takes: what the engines make of it.

use super::flags::{Setting, head, vllm_context};
use super::launch;
use crate::scenario::EngineKind;
use crate::table::thousands;

/// What SGLang refuses such a head without: model_config.py of every release read, 0.5.1 to 0.5.23
/// (pull request 9388; its own tests of a DFlash head set it too). From 0.5.3 on it also lengthens
/// the head's rotary table (10787).
pub(super) const SGLANG: &str = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1";
/// First vLLM release that may lengthen that table (pull request 49343 was opened a week behind
/// 0.25.1). Those before index past its end, or on another runner draft nothing there (issue 48894).
const VLLM_LENGTHENS: ((u32, u32, u32), (u32, u32)) = ((0, 26, 0), (2026, 8));

/// How far the head of a setting reaches, where its server takes longer requests or may.
struct Short {
    /// Tokens; `None` where the head's own config is not known to fall short.
    reach: Option<u64>,
    served: u64,
}

fn short(setting: &Setting<'_>, served: Option<u64>) -> Option<Short> {
    head(setting)?;
    let draft = setting.scenario.draft.as_ref()?;
    draft.model.as_ref()?;
    let served = served.or(setting.scenario.model.max_positions)?;
    let reach = draft.reach().filter(|reach| *reach < served);
    (reach.is_some() || draft.stands_in).then_some(Short { reach, served })
}

/// Whether SGLang's line needs its variable.
pub(super) fn in_sglang(setting: &Setting<'_>, told: Option<u64>) -> bool {
    short(setting, told).is_some()
}

/// What is said of it for the engine that was asked for.
pub(super) fn told(setting: &Setting<'_>) -> Option<String> {
    let scenario = setting.scenario;
    let memory = Some(setting.memory);
    match scenario.engine.kind {
        EngineKind::Sglang if setting.runs => {
            let limit = launch::told_limit(scenario, memory);
            let found = short(setting, scenario.max_model_len.or(limit))?;
            let served = thousands(found.served as f64);
            Some(match found.reach {
                Some(reach) => format!(
                    "{SGLANG} in the paste: SGLang refuses a head that reaches {} of the {served} tokens \
                     served without it; beyond its reach less is accepted",
                    thousands(reach as f64)
                ),
                None => format!(
                    "{SGLANG} in the paste: SGLang refuses a head whose config reaches less than the \
                     {served} tokens served without it"
                ),
            })
        }
        EngineKind::Vllm if setting.runs => {
            let version = scenario.engine.version.as_deref();
            let version = version.and_then(kvplan::Version::find)?;
            let (number, date) = VLLM_LENGTHENS;
            let found = short(setting, vllm_context(scenario, memory))?;
            let reach = found.reach.filter(|_| !version.since(number, date))?;
            Some(format!(
                "vLLM to 0.25 stops with an assert at a request beyond the head's {} tokens, or drafts \
                 nothing there (vllm#48894): raise max_position_embeddings in a copy of the head, or \
                 --max-model-len {reach}",
                thousands(reach as f64)
            ))
        }
        _ => None,
    }
}
