//! TensorRT-LLM and llama.cpp logs.

use super::facts::Facts;
use super::text::{Doc, leading_number, number_after};

/// Reads the facts of either; nothing where the text is neither.
pub(crate) fn read(doc: &Doc, facts: &mut Facts) {
    tensorrt(doc, facts);
    llama(doc, facts);
}

/// `[MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)`; of several
/// pools (a dry run, window sizes) the last counts.
fn tensorrt(doc: &Doc, facts: &mut Facts) {
    let phrase = "for max tokens in paged KV cache (";
    let Some(at) = doc.after_all(phrase).last() else {
        return;
    };
    facts.kinds.push("tensorrt-llm-log");
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
    if let Some(at) = doc.after_all("max tokens in paged kv cache: total:").last() {
        let window = doc.window(at, 100);
        if let Some((total, _)) = leading_number(window) {
            facts.set("total_gib", total, doc.line_at(at));
        }
        if let Some(free) = number_after(window, "available:") {
            facts.set("free_after_gib", free, doc.line_at(at));
        }
    }
    if let Some(at) = doc.after_all("Number of tokens per block:").last()
        && let Some((block, _)) = leading_number(doc.window(at, 20))
    {
        facts.set("block_size", block, doc.line_at(at));
    }
}

/// llama.cpp: model, KV and compute buffers in MiB, context, acceptance of a server.
fn llama(doc: &Doc, facts: &mut Facts) {
    let own = [
        "llama_kv_cache",
        "llama_new_context",
        "llama_context:",
        "llm_load_tensors:",
        "load_tensors:",
    ];
    let Some(at) = own.iter().find_map(|phrase| doc.after_all(phrase).next()) else {
        return;
    };
    facts.kinds.push("llama-cpp-log");
    facts.set_if_absent("engine", "llamacpp", doc.line_at(at));
    let sum = |phrase: &str| {
        let mut total = 0.0;
        let mut last = None;
        for at in doc.after_all(phrase) {
            if let Some((mib, rest)) = leading_number(doc.window(at, 30))
                && rest.trim_start().starts_with("MiB")
            {
                total += mib;
                last = Some(doc.line_at(at));
            }
        }
        last.map(|line| (total / 1024.0, line))
    };
    for (phrase, name) in [
        ("model buffer size =", "weights_gib"),
        ("KV buffer size =", "kv_gib"),
        ("compute buffer size =", "compute_gib"),
    ] {
        if let Some((gib, line)) = sum(phrase) {
            facts.derive(name, gib, line, "sum over buffers, MiB / 1024");
        }
    }
    for phrase in ["n_ctx =", "n_ctx_per_seq ="] {
        if let Some(at) = doc.after_all(phrase).last()
            && let Some((context, _)) = leading_number(doc.window(at, 20))
        {
            facts.set_if_absent("context_len", context, doc.line_at(at));
        }
    }
}
