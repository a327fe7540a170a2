//! Engine flags to paste, for the best setting.

use std::collections::BTreeMap;

use serde_json::json;
use spec_decode::HeadKind;

use super::answer::Memory;
use crate::scenario::file::ObservedFile;
use crate::scenario::{EngineChoice, EngineKind, Scenario};

/// A setting to express as flags.
pub(super) struct Setting<'a> {
    pub(super) scenario: &'a Scenario,
    /// 0: speculation off.
    pub(super) steps: u32,
    pub(super) topk: u32,
    pub(super) draft_tokens: u32,
    pub(super) allreduce: &'a str,
    /// The ledger of the engine that was asked for.
    pub(super) memory: &'a Memory,
    /// Depth by load in vLLM's form, where it varies.
    pub(super) schedule: Option<String>,
}

/// Flags by engine; only engines that can run the setting are listed. SGLang and vLLM stand beside
/// each other, so that the answer carries over; TensorRT-LLM and llama.cpp where they are asked for.
pub(super) fn engine_flags(setting: &Setting<'_>) -> BTreeMap<&'static str, Vec<String>> {
    let mut flags = BTreeMap::new();
    let asked = setting.scenario.engine.kind;
    if asked == EngineKind::LlamaCpp {
        flags.insert("llamacpp", llamacpp(setting));
        return flags;
    }
    flags.insert("sglang", sglang(setting));
    // SGLang alone drafts trees.
    let tree = setting.topk > 1 && setting.steps > 0;
    if !tree {
        flags.insert("vllm", vllm(setting));
    }
    if asked == EngineKind::TrtLlm && !tree {
        flags.insert("trtllm", trtllm(setting));
        if let Some(line) = trtllm_extra(setting) {
            flags.insert("trtllm_extra_yml", vec![line]);
        }
    }
    flags
}

/// The fraction for an engine's flag: of its own ledger, and only one that starts with room for
/// tokens. Observed figures are of the engine that was asked for.
fn fraction(setting: &Setting<'_>, engine: EngineKind) -> Option<f64> {
    let usable = |memory: &Memory| {
        let holds = memory.kv_tokens.is_some_and(|tokens| tokens > 0);
        memory
            .fraction
            .filter(|_| holds && memory.fits != Some(false))
    };
    if setting.scenario.engine.kind == engine {
        return usable(setting.memory);
    }
    let mut other = setting.scenario.clone();
    other.engine = EngineChoice {
        kind: engine,
        version: None,
    };
    other.mem_fraction = None;
    other.observed = ObservedFile::default();
    // An engine whose rules refuse the setting gets no fraction here.
    usable(&crate::plan::memory(&other).ok()?)
}

fn draft_path(setting: &Setting<'_>) -> Option<String> {
    let draft = setting.scenario.draft.as_ref()?;
    draft.model.as_ref()?;
    Some("DRAFT_PATH".to_string())
}

/// The head, where speculation is on.
fn head(setting: &Setting<'_>) -> Option<HeadKind> {
    let draft = setting.scenario.draft.as_ref()?;
    (setting.steps > 0).then_some(draft.head)
}

fn push(flags: &mut Vec<String>, name: &str, value: impl ToString) {
    flags.push(name.to_string());
    flags.push(value.to_string());
}

fn sglang(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "--tp", setting.scenario.tp);
    if let Some(head) = head(setting) {
        let algorithm = match head {
            HeadKind::Eagle3 => "EAGLE3",
            HeadKind::Eagle => "EAGLE",
            HeadKind::Mtp | HeadKind::MtpModules => "NEXTN",
            HeadKind::Parallel => "DFLASH",
            HeadKind::DraftModel => "STANDALONE",
            HeadKind::NGram => "NGRAM",
        };
        push(&mut flags, "--speculative-algorithm", algorithm);
        if let Some(path) = draft_path(setting) {
            push(&mut flags, "--speculative-draft-model-path", path);
        }
        // Look-ups and block drafts have no steps of their own.
        if !matches!(head, HeadKind::NGram | HeadKind::Parallel) {
            push(&mut flags, "--speculative-num-steps", setting.steps);
            push(&mut flags, "--speculative-eagle-topk", setting.topk);
        }
        push(
            &mut flags,
            "--speculative-num-draft-tokens",
            setting.draft_tokens,
        );
    }
    if setting.allreduce.starts_with("nccl") && setting.scenario.tp > 1 {
        flags.push("--disable-custom-all-reduce".to_string());
    }
    if let Some(fraction) = fraction(setting, EngineKind::Sglang) {
        push(&mut flags, "--mem-fraction-static", round_up(fraction));
    }
    match setting.scenario.kv_dtype {
        kvplan::KvDtype::Fp8 => push(&mut flags, "--kv-cache-dtype", "fp8_e4m3"),
        kvplan::KvDtype::Fp4 => push(&mut flags, "--kv-cache-dtype", "fp4_e2m1"),
        _ => {}
    }
    flags
}

fn vllm(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "--tensor-parallel-size", setting.scenario.tp);
    if let Some(head) = head(setting) {
        push(
            &mut flags,
            "--speculative-config",
            vllm_config(setting, head),
        );
    }
    if setting.allreduce.starts_with("nccl") && setting.scenario.tp > 1 {
        flags.push("--disable-custom-all-reduce".to_string());
    }
    if let Some(fraction) = fraction(setting, EngineKind::Vllm) {
        push(&mut flags, "--gpu-memory-utilization", round_up(fraction));
    }
    if setting.scenario.kv_dtype == kvplan::KvDtype::Fp8 {
        push(&mut flags, "--kv-cache-dtype", "fp8");
    }
    if setting.scenario.dcp > 1 {
        push(
            &mut flags,
            "--decode-context-parallel-size",
            setting.scenario.dcp,
        );
    }
    flags
}

fn vllm_config(setting: &Setting<'_>, head: HeadKind) -> serde_json::Value {
    let method = match head {
        HeadKind::Eagle3 => "eagle3",
        HeadKind::Mtp | HeadKind::MtpModules => "mtp",
        HeadKind::Eagle => "eagle",
        HeadKind::DraftModel => "draft_model",
        HeadKind::NGram => "ngram",
        HeadKind::Parallel => "dflash",
    };
    let mut config = json!({"method": method, "num_speculative_tokens": setting.steps});
    if let (Some(path), Some(map)) = (draft_path(setting), config.as_object_mut()) {
        map.insert("model".to_string(), json!(path));
    }
    let schedule = setting
        .schedule
        .as_deref()
        .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    if let (Some(table), Some(map)) = (schedule, config.as_object_mut()) {
        let largest = table
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|row| row.get(2).and_then(serde_json::Value::as_u64))
            .max();
        // The engine wants the largest depth of the schedule beside it.
        map.insert("num_speculative_tokens".to_string(), json!(largest));
        map.insert("num_speculative_tokens_per_batch_size".to_string(), table);
    }
    config
}

/// Flags of trtllm-serve; speculation stands in the file of [`trtllm_extra`].
fn trtllm(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "--tp_size", setting.scenario.tp);
    if let Some(fraction) = fraction(setting, EngineKind::TrtLlm) {
        // Of the memory free after the weights, so rounding up is safe.
        push(
            &mut flags,
            "--kv_cache_free_gpu_memory_fraction",
            round_up(fraction),
        );
    }
    if trtllm_extra(setting).is_some() {
        push(&mut flags, "--extra_llm_api_options", "extra.yml");
    }
    flags
}

/// The line of TensorRT-LLM's extra options (YAML) that turns speculation on; `None` where it is
/// off or the engine has no such method.
fn trtllm_extra(setting: &Setting<'_>) -> Option<String> {
    let steps = setting.steps;
    let config = match head(setting)? {
        HeadKind::Eagle3 | HeadKind::Eagle => format!(
            "decoding_type: Eagle, max_draft_len: {steps}, speculative_model_dir: DRAFT_PATH"
        ),
        HeadKind::Mtp | HeadKind::MtpModules => {
            format!("decoding_type: MTP, num_nextn_predict_layers: {steps}")
        }
        HeadKind::DraftModel => format!(
            "decoding_type: DraftTarget, max_draft_len: {steps}, speculative_model_dir: DRAFT_PATH"
        ),
        HeadKind::NGram => format!("decoding_type: NGram, max_draft_len: {steps}"),
        HeadKind::Parallel => return None,
    };
    Some(format!("speculative_config: {{{config}}}"))
}

fn llamacpp(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    match head(setting) {
        Some(HeadKind::DraftModel) => {
            push(&mut flags, "-md", "DRAFT.gguf");
            push(&mut flags, "--draft-max", setting.steps);
        }
        Some(HeadKind::NGram) => {
            push(&mut flags, "--spec-type", "ngram-simple");
            push(&mut flags, "--draft-max", setting.steps);
        }
        // See [`missing`].
        Some(_) | None => {}
    }
    let cache = setting.scenario.kv_dtype;
    if cache != kvplan::KvDtype::Bf16 {
        push(&mut flags, "-ctk", cache.name());
        push(&mut flags, "-ctv", cache.name());
    }
    flags
}

/// What no flags are given for, and why.
pub(super) fn missing(scenario: &Scenario) -> Option<String> {
    let head = scenario.draft.as_ref()?.head;
    match scenario.engine.kind {
        EngineKind::LlamaCpp if !matches!(head, HeadKind::DraftModel | HeadKind::NGram) => {
            Some(format!(
                "no llama.cpp flags for {} heads: builds differ in whether and how they load them \
                 (docs/speculative.md of yours says)",
                head.name()
            ))
        }
        EngineKind::TrtLlm if head == HeadKind::Parallel => Some(format!(
            "no TensorRT-LLM option for {} heads is known here",
            head.name()
        )),
        _ => None,
    }
}

/// Three decimals, rounded up: a fraction at the wall rounded down would be refused.
fn round_up(fraction: f64) -> String {
    format!("{:.3}", (fraction * 1000.0).ceil() / 1000.0)
}
