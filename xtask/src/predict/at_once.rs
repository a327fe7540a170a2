//! What vLLM is told of requests at once, and of the graphs that their verify needs.

use super::answer::Memory;
use super::flags::{Setting, head, push};
use super::launch;
use crate::scenario::EngineKind;

/// vLLM's flags for requests at once, and for graphs that hold all they verify, where that release
/// captures fewer by itself.
pub(super) fn vllm(setting: &Setting<'_>, memory: Option<&Memory>) -> Vec<String> {
    let scenario = setting.scenario;
    let drafts = head(setting).is_some();
    let mut flags = Vec::new();
    let Some(running) = launch::max_running(scenario, EngineKind::Vllm, drafts, memory) else {
        return flags;
    };
    push(&mut flags, "--max-num-seqs", running);
    let asked = scenario.engine.kind == EngineKind::Vllm;
    let version = scenario.engine.version.as_deref().filter(|_| asked);
    let verified = u64::from(setting.steps) + 1;
    let needed = version
        .and_then(kvplan::Version::find)
        .filter(|_| drafts)
        .and_then(|version| kvplan::vllm_graph_flag(version, running, verified));
    // What the log's server was told stands where it is enough.
    let told = scenario.ran.carried.flags.iter().find(|flag| {
        let name = flag.first().map(String::as_str);
        asked && name == Some(kvplan::VLLM_GRAPH_FLAG)
    });
    let told = told.and_then(|flag| flag.get(1)?.parse::<u64>().ok());
    let each = if drafts { verified } else { 1 };
    let least = kvplan::vllm_graph_size(running, each);
    let needed = needed.or(told.map(|_| (kvplan::VLLM_GRAPH_FLAG, least)));
    if let Some((flag, tokens)) = needed.filter(|needed| told.is_none_or(|told| told < needed.1)) {
        push(&mut flags, flag, tokens);
    }
    flags
}
