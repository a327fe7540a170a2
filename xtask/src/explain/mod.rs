//! `explain`: what a log or bench output says, what is wrong, what to change.
//!
//! Readers go by what engines and tools print, never by a file's name. A text may be a paste with
//! colours lost, lines wrapped or cut, several runs in a row; [`text::Doc`] makes that one thing.

mod accept;
mod args;
mod arguments;
mod bench_facts;
pub(crate) mod carried;
mod config;
mod drafting;
mod era;
mod errors;
mod facts;
mod findings;
mod forced;
#[cfg(test)]
mod forms;
mod fraction;
mod held;
#[cfg(test)]
pub(crate) mod hostile;
mod hosts;
mod llamacpp;
mod look_up;
mod machine;
mod matrix;
mod nccl;
mod next;
pub(crate) mod overlap;
mod p2p;
mod prometheus;
mod ratios;
mod reduce;
mod refused;
mod render;
mod scenario;
mod servers;
mod sglang;
#[cfg(test)]
mod shapes;
pub(crate) mod speeds;
pub(crate) mod starts;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod trtllm;
mod vllm;
mod warnings;

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

pub(crate) use accept::{AcceptReading, LogAcceptance, accept_from_log};
pub(crate) use arguments::newest_sglang_by;
pub(crate) use facts::{Facts, Value};
use findings::Finding;
pub(crate) use hosts::of_server as hosts_of_server;
pub(crate) use look_up::{OVER_ALL, UPPER_BOUND};
pub(crate) use nccl::times_us as nccl_times_us;
pub(crate) use reduce::{NO_CUSTOM, Off};
pub(crate) use scenario::{LogScenario, scenario_from_facts, scenario_from_log};

use crate::input;

/// Fact names of the contract: absent ones are null in `--json`.
const CONTRACT: &[&str] = &[
    "accept_length",
    "accept_length_source",
    "avg_busbw_gb_s",
    "bar1_mib",
    "bidirectional_gb_s",
    "chunked_prefill_size",
    "concurrency",
    "context_len",
    "draft_vocab",
    "engine",
    "engine_version",
    "error",
    "error_at",
    "error_kind",
    "free_after_gib",
    "free_after_pool_gib",
    "free_before_gib",
    "free_when_ready_gib",
    "gen_tok_s",
    "gpu_blocks",
    "gpu_memory_utilization",
    "gpus",
    "graph_gib",
    "head_dim",
    "kv_bytes_per_token",
    "kv_gib",
    "kv_heads",
    "kv_needed_gib",
    "kv_tokens",
    "layers",
    "longest_context",
    "max_concurrency",
    "max_model_len",
    "max_running_requests",
    "mean_itl_ms",
    "mean_tpot_ms",
    "mean_ttft_ms",
    "mem_fraction",
    "memory_mib",
    "op",
    "output_tok_s",
    "ranks",
    "requests_per_s",
    "sliding_window",
    "spec_tokens",
    "unidirectional_gb_s",
    "weights_gib",
];

/// How standard input is named.
const STANDARD_INPUT: &str = "standard input";

/// Longest text that is tried as a model's configuration, bytes: real ones are under a tenth.
const LONGEST_CONFIG: usize = 8 << 20;

/// Reads the facts in a text; `name` is what the user called it. Never fails: a text that says
/// nothing gives no facts.
pub(crate) fn facts_from_text(text: &str, name: &str) -> Facts {
    if let Some(facts) = servers::one_of_several(text, name) {
        return facts;
    }
    let doc = text::Doc::new(text);
    facts_from_doc(&doc, text, name)
}

fn facts_from_doc(doc: &text::Doc, text: &str, name: &str) -> Facts {
    let mut facts = Facts::new(name);
    facts.notes.clone_from(&doc.left_out);
    servers::read(doc, &mut facts);
    if servers::memory(&facts) == 0 {
        trtllm::read(doc, &mut facts);
        llamacpp::read(doc, &mut facts);
    }
    errors::read(doc, &mut facts);
    warnings::read(doc, &mut facts);
    hosts::read(doc, &mut facts);
    era::read(doc, &mut facts);
    forced::read(doc, &mut facts);
    prometheus::read(doc, text, &mut facts);
    card(doc, &mut facts);
    let no_json = bench_facts::read(doc, text, &mut facts);
    machine::read(doc, text, &mut facts);
    nccl::read(doc, &mut facts);
    p2p::read(doc, text, &mut facts);
    if facts.is_empty() && text.len() <= LONGEST_CONFIG {
        config::read(text, &mut facts);
    }
    if facts.kinds.is_empty() {
        facts.notes.extend(no_json);
    }
    findings::derive(&mut facts);
    facts
}

/// The card, as kernels look their tuning up: `…,device_name=NVIDIA_H100_80GB_HBM3,dtype=….json`.
fn card(doc: &text::Doc, facts: &mut Facts) {
    for at in doc.after_all("device_name=").take(8) {
        let word = text::cut(doc.window(at, 120), 120);
        let word = word
            .split([',', '.', ' ', '\'', '"', ')'])
            .next()
            .unwrap_or("");
        if word.len() > 3 && word.starts_with(|c: char| c.is_ascii_uppercase()) {
            facts.set_if_absent("gpu", word.replace('_', " "), doc.line_at(at));
            return;
        }
    }
}

/// Runs `cargo xtask explain`.
pub(crate) fn run(args: &crate::cli::ExplainArgs) -> anyhow::Result<ExitCode> {
    let mut files = Vec::new();
    for path in &args.files {
        let (text, name) = read_input(path)?;
        let facts = facts_from_text(&text, &name);
        if facts.kinds.is_empty() && args.files.len() == 1 {
            return Err(input::error(format!(
                "{name}: nothing recognised in it; explain reads SGLang, vLLM, TensorRT-LLM and \
                 llama.cpp logs, bench outputs, nccl-tests, NCCL_DEBUG, p2pBandwidthLatencyTest, \
                 nvbandwidth, nvidia-smi, lspci, topologies and config.json{}",
                facts
                    .notes
                    .iter()
                    .map(|note| format!("; {note}"))
                    .collect::<String>()
            )));
        }
        files.push(facts);
    }
    let findings = findings::find(&files);
    let next = next::command_line(&files);
    let ratios = ratios::ratios(&files);
    if args.json {
        let mut report = report(&files, &findings, next.as_ref());
        if let (false, Some(map)) = (ratios.is_empty(), report.as_object_mut()) {
            map.insert("speedups".to_string(), serde_json::to_value(&ratios)?);
        }
        crate::input::print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else {
        let ratios = ratios::lines(&ratios);
        crate::input::print(&render::text(&files, &findings, &ratios, next.as_ref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `{schema, facts, files, findings, predict, fill_in, left_out, provided}`; `facts` is the first file's word on each name.
fn report(files: &[Facts], findings: &[Finding], next: Option<&next::Next>) -> serde_json::Value {
    let mut merged = serde_json::Map::new();
    for facts in files {
        if let serde_json::Value::Object(map) = facts.to_json(&[]) {
            for (name, fact) in map {
                merged.entry(name).or_insert(fact);
            }
        }
    }
    for name in CONTRACT {
        merged
            .entry((*name).to_string())
            .or_insert_with(|| json!({"value": null}));
    }
    let each: Vec<serde_json::Value> = files
        .iter()
        .map(|facts| {
            json!({
                "file": facts.file,
                "kinds": facts.kinds,
                "facts": facts.to_json(&[]),
                "notes": facts.notes,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "facts": merged,
        "files": each,
        "findings": findings,
        "predict": next.map(|next| &next.command),
        "fill_in": next.map(|next| &next.fill_in),
        "left_out": next.map(|next| &next.left_out),
        "provided": next.map(|next| &next.provided),
    })
}

/// A file, or standard input for `-`.
fn read_input(path: &Path) -> anyhow::Result<(String, String)> {
    let (text, name) = if path == Path::new("-") {
        let mut bytes = Vec::new();
        let limit = input::MAX_FILE_BYTES + 1;
        std::io::stdin()
            .lock()
            .take(limit)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 == limit {
            return Err(input::error(format!(
                "standard input: more than the {} MiB that are read; cut it to the part that matters",
                input::MAX_FILE_BYTES >> 20
            )));
        }
        let name = STANDARD_INPUT;
        (input::text_from_bytes(bytes, name)?, name.to_string())
    } else {
        (input::read_text(path)?, path.display().to_string())
    };
    if text.trim().is_empty() {
        return Err(input::error(format!(
            "{name}: is empty; nothing to explain"
        )));
    }
    Ok((text, name))
}

/// The folder of measured data for tests, where it is there: `SHARED_DATA`, else beside the
/// checkout.
#[cfg(test)]
pub(crate) fn shared_data() -> Option<std::path::PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let path = std::env::var_os("SHARED_DATA").map_or_else(|| beside.into(), Into::into);
    let path: std::path::PathBuf = path;
    path.is_dir().then_some(path)
}
