//! Start lines of TensorRT-LLM and llama.cpp.

use spec_decode::HeadKind;

use super::flags::{Setting, draft_path, fraction, head, memory_of, push};
use super::launch;
use crate::scenario::EngineKind;

/// Flags of trtllm-serve; speculation stands in the file of [`trtllm_extra`].
pub(super) fn trtllm(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = vec![launch::model_path(setting.scenario)];
    push(&mut flags, "--tp_size", setting.scenario.tp);
    let memory = memory_of(setting, EngineKind::TrtLlm);
    if let Some(fraction) = memory.as_ref().and_then(fraction) {
        // Of the memory free after the weights, so rounding up is safe.
        push(&mut flags, "--kv_cache_free_gpu_memory_fraction", fraction);
    }
    let drafts = head(setting).is_some();
    let running = launch::max_running(
        setting.scenario,
        EngineKind::TrtLlm,
        drafts,
        memory.as_ref(),
    );
    if let Some(running) = running {
        push(&mut flags, EngineKind::TrtLlm.running_flag(), running);
    }
    if trtllm_extra(setting).is_some() {
        push(&mut flags, "--extra_llm_api_options", "extra.yml");
    }
    flags
}

/// The line of TensorRT-LLM's extra options (YAML) that turns speculation on; `None` where it is
/// off or the engine has no such method.
pub(super) fn trtllm_extra(setting: &Setting<'_>) -> Option<String> {
    let steps = setting.steps;
    let path = draft_path(setting).unwrap_or_default();
    let config = match head(setting)? {
        HeadKind::Eagle3 | HeadKind::Eagle => {
            format!("decoding_type: Eagle, max_draft_len: {steps}, speculative_model_dir: {path}")
        }
        HeadKind::Mtp | HeadKind::MtpModules => {
            format!("decoding_type: MTP, num_nextn_predict_layers: {steps}")
        }
        HeadKind::DraftModel => format!(
            "decoding_type: DraftTarget, max_draft_len: {steps}, speculative_model_dir: {path}"
        ),
        HeadKind::NGram => format!("decoding_type: NGram, max_draft_len: {steps}"),
        HeadKind::Parallel => return None,
    };
    Some(format!("speculative_config: {{{config}}}"))
}

/// Flags of llama-server.
pub(super) fn llamacpp(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "-m", "MODEL.gguf");
    push(&mut flags, "-ngl", 99);
    if let Some(cells) = setting.memory.kv_tokens.filter(|cells| *cells > 0) {
        push(&mut flags, "-c", cells);
        let slots = cells / setting.scenario.context.max(1);
        push(&mut flags, "-np", slots.max(1));
    }
    match head(setting) {
        Some(HeadKind::DraftModel) => {
            push(&mut flags, "-md", "DRAFT.gguf");
            push(&mut flags, "--draft-max", setting.steps);
        }
        Some(HeadKind::NGram) => {
            push(&mut flags, "--spec-type", "ngram-simple");
            push(&mut flags, "--draft-max", setting.steps);
        }
        // See [`launch::missing`].
        Some(_) | None => {}
    }
    let cache = setting.scenario.kv_dtype;
    if cache != kvplan::KvDtype::Bf16 {
        push(&mut flags, "-ctk", cache.name());
        push(&mut flags, "-ctv", cache.name());
    }
    flags
}
