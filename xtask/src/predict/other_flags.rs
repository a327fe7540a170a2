//! Start lines of TensorRT-LLM and llama.cpp.

use spec_decode::HeadKind;

use super::flags::{Setting, draft_path, fraction, head, memory_of, push};
use super::{checkpoint, kernels, launch};
use crate::scenario::{EngineKind, Scenario};

/// Flags of trtllm-serve; speculation stands in the file of [`trtllm_extra`].
pub(super) fn trtllm(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = vec![checkpoint::path(setting.scenario, EngineKind::TrtLlm)];
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
    let limit = launch::log_limit(setting.scenario, memory.as_ref());
    if let Some(tokens) = setting.scenario.max_model_len.or(limit) {
        push(&mut flags, "--max_seq_len", tokens);
    }
    if let Some(tokens) = setting.scenario.ran.batched_tokens {
        push(&mut flags, "--max_num_tokens", tokens);
    }
    if trtllm_extra(setting).is_some() {
        push(&mut flags, "--extra_llm_api_options", "extra.yml");
    }
    flags
}

/// Lines of TensorRT-LLM's extra options (YAML): speculation, where it is on and the engine has such a
/// method, a cache in another format, and NCCL, where it is asked for.
pub(super) fn trtllm_extra(setting: &Setting<'_>) -> Option<Vec<String>> {
    let cache = matches!(setting.scenario.kv_dtype, kvplan::KvDtype::Fp8).then(|| {
        // The file's word replaces that of the flags.
        let memory = memory_of(setting, EngineKind::TrtLlm);
        let fraction = memory
            .as_ref()
            .and_then(fraction)
            .map(|f| format!(", free_gpu_memory_fraction: {f}"));
        format!(
            "kv_cache_config: {{dtype: fp8{}}}",
            fraction.unwrap_or_default()
        )
    });
    let nccl = setting
        .allreduce
        .kernel()
        .filter(|_| setting.scenario.tp > 1);
    let nccl = nccl
        .filter(|kernel| kernel.is_nccl())
        .map(|_| kernels::TRTLLM_NCCL.to_string());
    let lines: Vec<String> = drafting(setting)
        .into_iter()
        .chain(cache)
        .chain(nccl)
        .collect();
    (!lines.is_empty()).then_some(lines)
}

fn drafting(setting: &Setting<'_>) -> Option<String> {
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

/// How llama.cpp's cards share the model, which is not how it shares it by itself.
pub(super) fn split(scenario: &Scenario) -> Option<String> {
    let several = scenario.engine.kind == EngineKind::LlamaCpp && scenario.tp > 1;
    several.then(|| {
        "llama.cpp by itself cuts by layers, and its cards take turns; these figures are of cards that \
         share every layer, -sm row as pasted"
            .to_string()
    })
}

/// Flags of llama-server.
pub(super) fn llamacpp(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "-m", "MODEL.gguf");
    push(&mut flags, "-ngl", 99);
    if setting.scenario.tp > 1 {
        // By itself it cuts by layers, and the cards take turns.
        push(&mut flags, "-sm", "row");
    }
    if let Some(cells) = setting.memory.kv_tokens.filter(|cells| *cells > 0) {
        push(&mut flags, "-c", cells);
        let slots = cells / setting.scenario.context.max(1);
        let told = setting.scenario.running();
        push(&mut flags, "-np", told.unwrap_or(slots).max(1));
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
