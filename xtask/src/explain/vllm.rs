//! vLLM logs of every era: V0 (`llm_engine.py`, `worker.py`), V1 (`gpu_worker.py`,
//! `kv_cache_utils.py`), and the errors that end a start.

mod limits;
mod load;
mod memory;
mod windows;

pub(super) use limits::{no_graphs, pool_tokens};

use super::args::{argument, argument_number, flag, flag_number};
use super::carried;
use super::facts::{EAGER, Facts};
use super::text::Doc;

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Version,
    Args,
    Engine,
    Architecture,
    Weights,
    Instance,
    Available,
    Blocks,
    Tokens,
    Concurrency,
    Graphs,
    GraphPool,
    Reserved,
    NoMemory,
    FreeMemory,
    TooLong,
    TooLongV0,
    DraftLength,
    Length,
    Batched,
    StateMode,
    Speed,
    Drafts,
    OutOfMemory,
}

const PHRASES: &[(&str, Kind)] = &[
    ("vLLM API server version", Kind::Version),
    ("non-default args:", Kind::Args),
    ("args: Namespace(", Kind::Args),
    ("EngineArgs(", Kind::Args),
    ("LLM engine (v", Kind::Engine),
    ("LLM engine with config:", Kind::Engine),
    ("Resolved architecture: ", Kind::Architecture),
    ("Loading model weights took", Kind::Weights),
    ("Model loading took", Kind::Weights),
    ("the current vLLM instance can use", Kind::Instance),
    // 0.6.4 to 0.6.6
    ("Memory profiling results:", Kind::Instance),
    ("Available KV cache memory:", Kind::Available),
    ("# GPU blocks:", Kind::Blocks),
    ("# cuda blocks:", Kind::Blocks),
    ("# rocm blocks:", Kind::Blocks),
    ("num_gpu_blocks is:", Kind::Blocks),
    // `GPU KV cache size:`, on other devices XPU, NPU.
    (" KV cache size:", Kind::Tokens),
    ("Initial free memory", Kind::Reserved),
    ("Total non KV cache memory:", Kind::Instance),
    ("CUDA graph pool memory:", Kind::GraphPool),
    ("Maximum concurrency for", Kind::Concurrency),
    ("Graph capturing finished in", Kind::Graphs),
    ("No available memory for the cache blocks", Kind::NoMemory),
    ("Free memory on device", Kind::FreeMemory),
    (
        "To serve at least one request with the model",
        Kind::TooLong,
    ),
    (
        "is larger than the maximum number of tokens that can be stored in KV cache",
        Kind::TooLongV0,
    ),
    (
        "Overriding draft model max model len from",
        Kind::DraftLength,
    ),
    ("Using max model len ", Kind::Length),
    (
        "Chunked prefill is enabled with max_num_batched_tokens=",
        Kind::Batched,
    ),
    // Of hybrids with prefix caching, 0.16 and later.
    ("Mamba cache mode is set to '", Kind::StateMode),
    ("Prefix caching in Mamba cache '", Kind::StateMode),
    ("Avg generation throughput:", Kind::Speed),
    ("SpecDecoding metrics:", Kind::Drafts),
    // The banner of 0.20 and later.
    ("█ version", Kind::Version),
    ("OutOfMemoryError", Kind::OutOfMemory),
    ("CUDA out of memory", Kind::OutOfMemory),
];

#[derive(Debug, Clone, Copy)]
struct Event<'a> {
    kind: Kind,
    at: usize,
    line: usize,
    /// The words before the phrase.
    before: &'a str,
    rest: &'a str,
}

/// Reads vLLM facts; nothing where the text is no vLLM log.
pub(crate) fn read(doc: &Doc, facts: &mut Facts) {
    let events = events(doc);
    let own = |event: &&Event| event.kind != Kind::OutOfMemory;
    let acceptance = doc.flat.contains("SpecDecoding metrics:")
        || doc
            .flat
            .contains("Speculative metrics: Draft acceptance rate");
    let Some(first) = events
        .iter()
        .find(own)
        .map(|event| event.line)
        .or_else(|| acceptance.then_some(1))
        .or_else(|| flag(&doc.flat, "--gpu-memory-utilization").map(|f| doc.line_at(f.1)))
        .or_else(|| started(doc))
    else {
        return;
    };
    facts.kinds.push("vllm-log");
    facts.set("engine", "vllm", first);
    let starts = starts(&events);
    let chosen = starts
        .iter()
        .rposition(|run| run.iter().any(|e| of_memory(e.kind)))
        .or(starts.len().checked_sub(1));
    if let Some(run) = chosen.and_then(|index| starts.get(index)) {
        let count = starts
            .iter()
            .filter(|run| run.iter().any(|e| of_memory(e.kind)))
            .count();
        if count > 1 {
            facts.notes.push(format!(
                "{count} server starts in one file; the facts are those of the last, from line {}",
                run.first().map_or(0, |e| e.line)
            ));
        }
        if chosen.is_some_and(|index| index > 0) {
            facts.run_line = run.first().map_or(0, |e| e.line);
        }
        settings(run, facts);
        memory::read(run, facts);
        limits::limits(run, facts);
        limits::ready(doc, run, facts);
        limits::failure(run, facts);
        limits::hybrid_blocks(doc, facts);
        limits::speed(run, facts);
        load::read(run, facts);
        facts.windows = windows::read(run, facts);
    }
    let run = chosen.and_then(|index| starts.get(index)).copied();
    commands(doc, run.unwrap_or(&[]), facts);
    limits::graphs(doc, facts);
    acceptance_facts(doc, facts);
    super::overlap::read(doc, facts);
    super::reduce::of_vllm(doc, facts);
    super::carried::environment(doc, facts);
}

/// Start lines in the text, as far as they are of this run: printed arguments are all that was given,
/// the engine's own line says at least whether it drafts, and commands of earlier starts or below what
/// the server printed say nothing.
fn commands(doc: &Doc, run: &[Event], facts: &mut Facts) {
    let printed = |kind: Kind| run.iter().find(|e| e.kind == kind);
    let (given, engine) = (printed(Kind::Args), printed(Kind::Engine));
    let arguments = given.or(engine).map(|event| event.at);
    if arguments.is_some() && facts.run_line > 0 {
        return;
    }
    let end = super::reduce::own_until(doc, arguments, run.first().map(|event| event.at));
    if given.is_none() {
        let told = engine.is_some_and(|event| event.rest.contains("speculative_config"));
        flags(doc, end, !told, facts);
    }
    super::reduce::told(doc, end, facts);
}

/// The line of a start command with a model and a flag behind it.
fn started(doc: &Doc) -> Option<usize> {
    let whole = |at: &usize| {
        let mut words = doc.window(*at, 300).split(' ');
        words.nth(1).is_some_and(|word| word.starts_with("--"))
    };
    let at = doc.after_all("vllm serve ").find(whole)?;
    Some(doc.line_at(at))
}

fn events(doc: &Doc) -> Vec<Event<'_>> {
    let phrases: Vec<&str> = PHRASES.iter().map(|(phrase, _)| *phrase).collect();
    let found: Vec<(usize, usize, Kind)> = doc
        .find_all(&phrases)
        .into_iter()
        .filter_map(|(at, end, index)| Some((at, end, PHRASES.get(index)?.1)))
        .collect();
    found
        .iter()
        .enumerate()
        .map(|(index, (at, end, kind))| {
            let next = found.get(index + 1).map_or(doc.flat.len(), |next| next.0);
            let limit = match kind {
                Kind::Args | Kind::Engine => 60_000,
                _ => 900,
            };
            let rest = doc.window(*end, limit.min(next.saturating_sub(*end)));
            Event {
                kind: *kind,
                at: *at,
                line: doc.line_at(*at),
                before: last_bytes(doc.flat.get(..*at).unwrap_or(""), 60),
                rest: match kind {
                    Kind::Args | Kind::Engine => super::reduce::before_a_start(rest),
                    _ => rest,
                },
            }
        })
        .collect()
}

/// The last `limit` bytes or fewer, beginning at a character.
fn last_bytes(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.get(start..).unwrap_or("")
}

fn of_memory(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Weights
            | Kind::Available
            | Kind::Blocks
            | Kind::Tokens
            | Kind::NoMemory
            | Kind::FreeMemory
            | Kind::TooLong
            | Kind::TooLongV0
    )
}

/// Splits the events into server starts: at a version or argument line after memory lines, and
/// where weights load again after the pool of an earlier start was settled.
fn starts<'a, 'b>(events: &'b [Event<'a>]) -> Vec<&'b [Event<'a>]> {
    let mut cuts = vec![0];
    let mut settled = false;
    let mut had_memory = false;
    for (index, event) in events.iter().enumerate() {
        let fresh = match event.kind {
            Kind::Version | Kind::Args => had_memory,
            Kind::Engine => settled,
            Kind::Weights => settled,
            _ => false,
        };
        if fresh {
            cuts.push(index);
            settled = false;
            had_memory = false;
        }
        had_memory |= of_memory(event.kind);
        settled |= matches!(
            event.kind,
            Kind::Concurrency | Kind::NoMemory | Kind::TooLong | Kind::TooLongV0
        );
    }
    cuts.push(events.len());
    cuts.windows(2)
        .filter_map(|pair| events.get(pair[0]..pair[1]))
        .collect()
}

/// Version and settings: those given (non-default args), then the engine's own line.
fn settings(run: &[Event], facts: &mut Facts) {
    for event in run {
        match event.kind {
            Kind::Version => version(event.rest, event.line, facts),
            Kind::Engine => {
                let word = event.rest.split(')').next().unwrap_or("");
                if event.rest.len() > word.len() {
                    version(word, event.line, facts);
                }
            }
            Kind::Architecture => {
                let class = event.rest.split_whitespace().next().unwrap_or("");
                if !class.is_empty() {
                    facts.set_if_absent("model_class", class, event.line);
                }
            }
            Kind::StateMode => {
                if let Some((mode, _)) = event.rest.split_once('\'') {
                    facts.set("mamba_cache_mode", mode, event.line);
                }
            }
            _ => {}
        }
    }
    // Whatever the mode of the V1 engine is, V0 of 0.10.1 captures.
    let captured = run.iter().any(|event| event.kind == Kind::Graphs);
    for kind in [Kind::Args, Kind::Engine] {
        for event in run.iter().filter(|event| event.kind == kind) {
            arguments(event.rest, event.line, facts);
            if !captured && no_graphs(&without_speculation(event.rest).0) {
                facts.set_if_absent(EAGER, "true", event.line);
            }
            if kind == Kind::Args {
                super::carried::vllm(event.rest, facts);
            }
        }
    }
}

fn version(text: &str, line: usize, facts: &mut Facts) {
    let word = text.split_whitespace().next().unwrap_or("");
    let word = word.trim_end_matches([',', ';']);
    if word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.') && word.len() < 80 {
        facts.set_if_absent("engine_version", word, line);
    }
}

fn arguments(rest: &str, line: usize, facts: &mut Facts) {
    let (outer, inner) = without_speculation(rest);
    for (key, name) in [
        ("gpu_memory_utilization", "gpu_memory_utilization"),
        ("max_model_len", "max_model_len"),
        ("max_seq_len", "max_model_len"),
        ("tensor_parallel_size", "tp"),
        ("pipeline_parallel_size", "pp"),
        ("nnodes", "nodes"),
        ("data_parallel_size", "dp"),
        ("decode_context_parallel_size", "dcp"),
        ("max_num_seqs", "max_running_requests"),
        ("max_num_batched_tokens", "max_num_batched_tokens"),
        ("num_speculative_tokens", "spec_tokens"),
        ("num_spec_tokens", "spec_tokens"),
        ("block_size", "block_size"),
        ("max_capture_size", "graph_tokens"),
        ("max_cudagraph_capture_size", "graph_tokens"),
    ] {
        if let Some(value) = argument_number(rest, key) {
            facts.set_if_absent(name, value, line);
        }
    }
    for (key, name) in [
        ("model", "model"),
        ("model_tag", "model"),
        ("quantization", "quant"),
    ] {
        if let Some(value) = argument(&outer, key) {
            facts.set_if_absent(name, value, line);
        }
    }
    if let Some(dtype) = argument(&outer, "kv_cache_dtype").filter(|d| *d != "auto") {
        facts.set_if_absent("kv_dtype", dtype, line);
    }
    for (key, name) in [
        ("enable_expert_parallel", "ep"),
        ("disable_custom_all_reduce", "custom_all_reduce_disabled"),
    ] {
        if argument(rest, key).is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            facts.set_if_absent(name, "true", line);
        }
    }
    // A draft may have one of its own.
    if argument(&outer, "enforce_eager").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
        facts.set_if_absent(EAGER, "true", line);
    }
    if let Some(method) = argument(inner, "method") {
        facts.set_if_absent("spec_algorithm", method, line);
    }
    if let Some(draft) = argument(inner, "model").or_else(|| argument(inner, "draft_model")) {
        facts.set_if_absent("draft_model", draft, line);
    }
}

/// The arguments without the body of `speculative_config`, which has a `model` of its own, and
/// that body.
fn without_speculation(rest: &str) -> (String, &str) {
    let whole = || (rest.to_string(), "");
    let Some(at) = rest.find("speculative_config") else {
        return whole();
    };
    let tail = rest.get(at..).unwrap_or("");
    let head = super::text::cut(tail, 60);
    let Some(open) = head.find(['{', '(']) else {
        return whole();
    };
    let mut depth = 0_usize;
    for (index, byte) in tail.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            let inner = tail.get(open..index).unwrap_or("");
            let after = tail.get(index..).unwrap_or("");
            let before = rest.get(..at).unwrap_or("");
            return (format!("{before}{after}"), inner);
        }
    }
    (
        rest.get(..at).unwrap_or("").to_string(),
        tail.get(open..).unwrap_or(""),
    )
}

/// Settings from a command line before `end`, where no printed arguments gave them.
fn flags(doc: &Doc, end: usize, drafting: bool, facts: &mut Facts) {
    let text = doc.flat.get(..end).unwrap_or("");
    super::starts::read(doc, end, facts);
    for (name, fact) in [
        ("--gpu-memory-utilization", "gpu_memory_utilization"),
        ("--max-model-len", "max_model_len"),
        ("--tensor-parallel-size", "tp"),
        ("-tp", "tp"),
        ("--max-num-seqs", "max_running_requests"),
        ("--num-speculative-tokens", "spec_tokens"),
    ] {
        if let Some((value, at)) =
            flag_number(text, name).filter(|_| drafting || fact != "spec_tokens")
        {
            facts.set_if_absent(fact, value, doc.line_at(at));
        }
    }
    if let Some((tokens, at)) = flag_number(text, carried::PASS) {
        facts.set_if_absent("max_num_batched_tokens", tokens, doc.line_at(at));
        let typed = [carried::PASS.to_string(), tokens.to_string()];
        facts.carried.flags.push(typed.to_vec());
    }
    if let Some((dtype, at)) = flag(text, "--kv-cache-dtype").filter(|d| d.0 != "auto") {
        facts.set_if_absent("kv_dtype", dtype, doc.line_at(at));
    }
    if let Some(at) = doc.after_all("vllm serve ").next().filter(|at| *at <= end) {
        let word = doc.window(at, 200).split(' ').next().unwrap_or("");
        if word.len() > 2 && !word.starts_with(['-', '$', '<', '{', '\\', '`']) {
            facts.set_if_absent("model", word, doc.line_at(at));
        }
    }
    let config = doc.after_all("--speculative-config").next();
    if let Some(at) = config.filter(|at| drafting && *at <= end) {
        let window = doc.window(at, 600);
        let body = window.split(" --").next().unwrap_or("");
        let line = doc.line_at(at);
        if let Some(depth) = argument_number(body, "num_speculative_tokens") {
            facts.set_if_absent("spec_tokens", depth, line);
        }
        for (key, name) in [("method", "spec_algorithm"), ("model", "draft_model")] {
            if let Some(value) = argument(body, key) {
                facts.set_if_absent(name, value, line);
            }
        }
    }
}

/// Accept length from the speculation lines.
fn acceptance_facts(doc: &Doc, facts: &mut Facts) {
    let Some(found) =
        super::accept::vllm_acceptance(doc, facts.run_line, facts.number("spec_tokens"))
    else {
        return;
    };
    if let Some(depth) = found.depth {
        facts.set_if_absent("spec_tokens", f64::from(depth), found.line);
    }
    if super::look_up::told(facts) {
        super::look_up::put(doc, &found, facts);
        return;
    }
    let how = format!("over {} intervals", found.intervals);
    if found.intervals > 1 {
        facts.derive("accept_length", found.accept_length, found.line, how);
    } else {
        facts.set("accept_length", found.accept_length, found.line);
    }
    facts.set("accept_length_source", found.source, found.line);
    if found.by_position {
        facts.set("accept_rates", "by position", found.line);
    }
}
