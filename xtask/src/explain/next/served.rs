//! What the server was: its engine, release and formats.

use super::super::facts::Facts;
use super::super::scenario::LogScenario;
use super::{Words, short};
use crate::scenario::merge::weight_format;
use crate::scenario::parse;

/// The weights' format and the engine.
pub(super) fn served(line: &mut Words, said: &LogScenario, bench: Option<&Facts>) {
    let quant = said.quant.clone().and_then(weight_format);
    line.push("--quant", quant.map(|(quant, _)| quant));
    engine(line, said, bench);
}

/// The fraction and the KV format.
pub(super) fn memory(line: &mut Words, said: &LogScenario) {
    line.push("--mem-fraction", said.mem_fraction.map(|(f, _)| short(f)));
    let kv_dtype = said.kv_dtype.as_ref().map(|(dtype, _)| dtype.clone());
    let known = kv_dtype.filter(|dtype| kvplan::KvDtype::parse(dtype).is_some());
    line.push("--kv-dtype", known);
}

/// The release of SGLang, where what it printed fits several that are told other flags.
pub(super) fn version(line: &mut Words) {
    line.gap(
        "--engine",
        "sglang@VERSION",
        "its release for VERSION (`python -m pip show sglang`)".to_string(),
    );
}

fn engine(line: &mut Words, said: &LogScenario, bench: Option<&Facts>) {
    if said.version_open {
        return version(line);
    }
    let by_bench = bench.and_then(|bench| bench.text("bench_engine"));
    let named = said.engine.as_ref().map(|(engine, _)| engine.as_str());
    let spoken = bench.and_then(|bench| bench.text("bench_backend"));
    if let Some(engine) = spoken.filter(|_| named.or(by_bench).is_none()) {
        line.provided.push(format!(
            "--engine is right if the server was {engine}, which the bench's backend names: others answer \
             that client too"
        ));
    }
    let word = match named.or(by_bench).or(spoken) {
        Some(engine) => {
            let version = said.engine_version.as_ref().map(|(version, _)| version);
            let version = version.filter(|version| parse::is_version(version));
            let by_lines = said
                .version_by_lines
                .as_ref()
                .map(|(version, _, _)| version);
            match version.or(by_lines) {
                Some(version) => format!("{engine}@{version}"),
                None => engine.to_string(),
            }
        }
        None => {
            let what = "the engine that was measured for ENGINE (sglang, vllm, trtllm, llamacpp)";
            line.gap("--engine", "ENGINE", what.to_string());
            return;
        }
    };
    line.push("--engine", Some(word));
}
