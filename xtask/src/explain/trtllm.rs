//! TensorRT-LLM logs, of the engine runtime and of the PyTorch backend.

use super::args::{argument, argument_number};
use super::facts::Facts;
use super::speeds::{self, Interval};
use super::text::{Doc, leading_number, number_after};

/// What only it prints.
const OWN: [&str; 5] = [
    "for max tokens in paged KV cache (",
    "[TensorRT-LLM][INFO]",
    "[TRT-LLM] [I]",
    "available KV cache memory when calculating max tokens:",
    "TensorRT-LLM engine args:",
];

/// Reads the facts; nothing where the text is no such log.
pub(crate) fn read(doc: &Doc, facts: &mut Facts) {
    let Some(first) = OWN.iter().find_map(|phrase| doc.after_all(phrase).next()) else {
        return;
    };
    facts.kinds.push("tensorrt-llm-log");
    facts.set("engine", "trtllm", doc.line_at(first));
    pool(doc, facts);
    memory(doc, facts);
    settings(doc, facts);
    iterations(doc, facts);
}

/// `[MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)`; of several
/// pools (a dry run, window sizes) the last counts.
fn pool(doc: &Doc, facts: &mut Facts) {
    let Some(at) = doc.after_all(OWN[0]).last() else {
        return;
    };
    let line = doc.line_at(at);
    facts.set("engine", "trtllm", line);
    if let Some((tokens, _)) = leading_number(doc.window(at, 30)) {
        facts.set("kv_tokens", tokens, line);
    }
    let start = doc
        .flat
        .get(..at)
        .and_then(|before| before.rfind("Allocated "))
        .filter(|start| at - start < 120);
    if let Some((gib, _)) = start.and_then(|start| leading_number(doc.window(start + 10, 30))) {
        facts.set("kv_gib", gib, line);
    }
}

fn memory(doc: &Doc, facts: &mut Facts) {
    if let Some(at) = doc.after_all("max tokens in paged kv cache: total:").last() {
        let window = doc.window(at, 100);
        if let Some((total, _)) = leading_number(window) {
            facts.set("total_gib", total, doc.line_at(at));
        }
        if let Some(free) = number_after(window, "available:") {
            facts.set("free_after_gib", free, doc.line_at(at));
        }
    }
    // The share is of what is free after the weights, not of the card.
    if let Some(at) = doc.after_all(OWN[3]).last() {
        let (window, line) = (doc.window(at, 260), doc.line_at(at));
        if let Some((gib, _)) = leading_number(window) {
            facts.set("kv_budget_gib", gib, line);
        }
        for (key, name) in [
            ("fraction is set", "kv_fraction_of_free"),
            ("device total memory", "total_gib"),
        ] {
            if let Some(value) = number_after(window, key) {
                facts.set(name, value, line);
            }
        }
    }
    if let Some(at) = doc.after_all("Number of tokens per block:").last()
        && let Some((block, _)) = leading_number(doc.window(at, 20))
    {
        facts.set("block_size", block, doc.line_at(at));
    }
    if let Some(at) = doc.after_all("GB for model weights").next() {
        let before = doc.flat.get(..at).and_then(|text| text.rfind("Use "));
        let before = before.filter(|start| at - start < 60);
        if let Some((gib, _)) = before.and_then(|start| leading_number(doc.window(start + 4, 30))) {
            facts.set("weights_gib", gib, doc.line_at(at));
        }
    }
}

fn settings(doc: &Doc, facts: &mut Facts) {
    for key in [
        "TensorRT-LLM version:",
        "TensorRT LLM version:",
        "TensorRT-LLM Version:",
    ] {
        let Some(at) = doc.after_all(key).next() else {
            continue;
        };
        let word = doc
            .window(at, 40)
            .trim_start()
            .split(' ')
            .next()
            .unwrap_or("");
        if word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.') {
            facts.set_if_absent("engine_version", word, doc.line_at(at));
        }
    }
    for phrase in ["LLM Args:", "engine args:", "LlmArgs("] {
        let Some(at) = doc.after_all(phrase).next() else {
            continue;
        };
        let (window, line) = (doc.window(at, 20_000), doc.line_at(at));
        for (key, name) in [
            ("tensor_parallel_size", "tp"),
            ("pipeline_parallel_size", "pp"),
            ("max_batch_size", "max_running_requests"),
            ("max_seq_len", "context_len"),
            ("max_num_tokens", "max_num_batched_tokens"),
            ("num_nextn_predict_layers", "spec_tokens"),
            ("max_draft_len", "spec_tokens"),
            ("free_gpu_memory_fraction", "kv_fraction_of_free"),
        ] {
            if let Some(value) = argument_number(window, key) {
                facts.set_if_absent(name, value, line);
            }
        }
        for (key, name) in [
            ("model", "model"),
            ("decoding_type", "spec_algorithm"),
            ("speculative_model_dir", "draft_model"),
            ("speculative_model", "draft_model"),
        ] {
            let value = argument(window, key)
                .map(path)
                .filter(|value| value.len() > 2);
            if let Some(value) = value {
                facts.set_if_absent(name, value, line);
            }
        }
        drafting(window, line, facts);
        let cache = window.split("KvCacheConfig(").nth(1);
        let cache = cache.and_then(|tail| argument(tail.split(')').next()?, "dtype"));
        if let Some(dtype) = cache.filter(|dtype| *dtype != "auto") {
            facts.set_if_absent("kv_dtype", dtype, line);
        }
    }
}

/// `PosixPath('/models/head')`.
fn path(value: &str) -> &str {
    let value = value.strip_prefix("PosixPath(").unwrap_or(value);
    value.trim_matches(['\'', '"'])
}

/// The method, by the class that holds its settings; the PyTorch backend's Eagle heads are EAGLE-3.
fn drafting(arguments: &str, line: usize, facts: &mut Facts) {
    for (class, name) in [
        ("Eagle3DecodingConfig(", "Eagle3"),
        ("EagleDecodingConfig(", "Eagle3"),
        ("MTPDecodingConfig(", "MTP"),
        ("NGramDecodingConfig(", "NGram"),
        ("DraftTargetDecodingConfig(", "DraftTarget"),
    ] {
        if arguments.contains(class) {
            facts.set_if_absent("spec_algorithm", name, line);
            return;
        }
    }
}

/// `iter = 5559, …, host_step_time = 12.5ms, …, num_scheduled_requests: 5, states =
/// {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 5}`: one step each.
fn iterations(doc: &Doc, facts: &mut Facts) {
    let mut intervals = Vec::new();
    let mut verifies = false;
    for at in doc.after_all("host_step_time =") {
        let window = doc.window(at, 300);
        let window = window.split("host_step_time =").next().unwrap_or("");
        let (Some((ms, unit)), Some(running), Some(tokens)) = (
            leading_number(window),
            number_after(window, "num_scheduled_requests:"),
            number_after(window, "'num_generation_tokens':"),
        ) else {
            continue;
        };
        let prompts = number_after(window, "'num_ctx_requests':").unwrap_or(0.0);
        if ms <= 0.0 || !unit.starts_with("ms") {
            continue;
        }
        // A speculative step verifies several tokens a request and keeps some of them.
        verifies |= tokens > running;
        intervals.push(Interval {
            who: "",
            running,
            tok_s: running * 1000.0 / ms,
            tokens: None,
            accept_length: None,
            prefill: prompts > 0.0 || tokens < running,
            line: doc.line_at(at),
        });
    }
    if let Some(step) = intervals.first() {
        facts.set_if_absent("ready", "true", step.line);
    }
    if !verifies && !intervals.is_empty() {
        speeds::put(&intervals, "steps", facts);
    }
}
