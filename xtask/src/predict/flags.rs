//! Engine flags to paste, for the best setting.

use std::collections::BTreeMap;

use serde_json::json;
use spec_decode::HeadKind;

use crate::scenario::{EngineKind, Scenario};

/// A setting to express as flags.
pub(super) struct Setting<'a> {
    pub(super) scenario: &'a Scenario,
    /// 0: speculation off.
    pub(super) steps: u32,
    pub(super) topk: u32,
    pub(super) draft_tokens: u32,
    pub(super) allreduce: &'a str,
    pub(super) mem_fraction: Option<f64>,
    /// Depth by load in vLLM's form, where it varies.
    pub(super) schedule: Option<String>,
}

/// Flags by engine; only engines that can run the setting are listed.
pub(super) fn engine_flags(setting: &Setting<'_>) -> BTreeMap<&'static str, Vec<String>> {
    let mut flags = BTreeMap::new();
    let asked = setting.scenario.engine.kind;
    if asked != EngineKind::LlamaCpp {
        flags.insert("sglang", sglang(setting));
        flags.insert("vllm", vllm(setting));
    } else {
        flags.insert("llamacpp", llamacpp(setting));
    }
    flags
}

fn draft_path(setting: &Setting<'_>) -> Option<String> {
    let draft = setting.scenario.draft.as_ref()?;
    draft.model.as_ref()?;
    Some("DRAFT_PATH".to_string())
}

fn push(flags: &mut Vec<String>, name: &str, value: impl ToString) {
    flags.push(name.to_string());
    flags.push(value.to_string());
}

fn sglang(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "--tp", setting.scenario.tp);
    if setting.steps > 0
        && let Some(draft) = &setting.scenario.draft
    {
        let algorithm = match draft.head {
            HeadKind::Eagle3 => "EAGLE3",
            HeadKind::Mtp | HeadKind::MtpModules => "NEXTN",
            _ => "EAGLE",
        };
        push(&mut flags, "--speculative-algorithm", algorithm);
        if let Some(path) = draft_path(setting) {
            push(&mut flags, "--speculative-draft-model-path", path);
        }
        push(&mut flags, "--speculative-num-steps", setting.steps);
        push(&mut flags, "--speculative-eagle-topk", setting.topk);
        push(
            &mut flags,
            "--speculative-num-draft-tokens",
            setting.draft_tokens,
        );
    }
    if setting.allreduce.starts_with("nccl") && setting.scenario.tp > 1 {
        flags.push("--disable-custom-all-reduce".to_string());
    }
    if let Some(fraction) = setting.mem_fraction {
        push(&mut flags, "--mem-fraction-static", round_up(fraction));
    }
    if setting.scenario.kv_dtype == kvplan::KvDtype::Fp8 {
        push(&mut flags, "--kv-cache-dtype", "fp8_e4m3");
    }
    flags
}

fn vllm(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    push(&mut flags, "--tensor-parallel-size", setting.scenario.tp);
    if setting.steps > 0
        && let Some(draft) = &setting.scenario.draft
    {
        let method = match draft.head {
            HeadKind::Eagle3 => "eagle3",
            HeadKind::Mtp | HeadKind::MtpModules => "mtp",
            HeadKind::Eagle => "eagle",
            HeadKind::DraftModel => "draft_model",
            _ => "eagle3",
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
        push(&mut flags, "--speculative-config", config);
    }
    if setting.allreduce.starts_with("nccl") && setting.scenario.tp > 1 {
        flags.push("--disable-custom-all-reduce".to_string());
    }
    if setting.scenario.engine.kind == EngineKind::Vllm
        && let Some(fraction) = setting.mem_fraction
    {
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

fn llamacpp(setting: &Setting<'_>) -> Vec<String> {
    let mut flags = Vec::new();
    if setting.steps > 0 {
        push(&mut flags, "--draft-max", setting.steps);
        push(&mut flags, "-md", "DRAFT.gguf");
    }
    flags
}

/// Three decimals, rounded up: a fraction at the wall rounded down would be refused.
fn round_up(fraction: f64) -> String {
    format!("{:.3}", (fraction * 1000.0).ceil() / 1000.0)
}
