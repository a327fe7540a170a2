//! SGLang server logs of every era. The lines are those of `model_runner.py`, `memory_pool.py`,
//! `scheduler.py` and their successors; what changed over the versions is noted where it matters.

mod captures;
mod pressure;
mod run;
mod traces;

use super::args::{argument, argument_number, flag, flag_number};
use super::facts::{EAGER, Facts};
use super::speeds::{self, Interval};
use super::text::{Doc, cut, number_after};

use captures::Graphs;
use run::Run;

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Args,
    Begin,
    End,
    Pool,
    Mamba,
    Window,
    Dtype,
    PoolEnd,
    Budget,
    GraphBegin,
    GraphEnd(Graphs),
    Ready,
    Fired,
    Decode,
    Prefill,
    Retract,
    MinViable,
    NotEnough,
    OutOfMemory,
}

/// Phrases that no other engine prints, and what they mean.
const PHRASES: &[(&str, Kind)] = &[
    ("server_args=", Kind::Args),
    ("server_args: ", Kind::Args),
    ("ServerArgs(", Kind::Args),
    ("Load weight begin", Kind::Begin),
    // 0.1.x
    ("load weight begin", Kind::Begin),
    ("load weight end", Kind::End),
    ("Load weight end", Kind::End),
    ("KV Cache is allocated", Kind::Pool),
    ("Mamba Cache is allocated", Kind::Mamba),
    ("SWAKVPool mem usage:", Kind::Window),
    ("Using KV cache dtype: torch.", Kind::Dtype),
    ("memory calculation: bytes_per_full_token=", Kind::Budget),
    ("rest_memory=", Kind::Budget),
    ("Memory pool end", Kind::PoolEnd),
    ("The available memory for KV cache is", Kind::Budget),
    ("graph begin.", Kind::GraphBegin),
    ("graph end.", Kind::GraphEnd(Graphs::Decode)),
    ("max_total_num_tokens=", Kind::Ready),
    ("max_total_num_tokens: ", Kind::Ready),
    ("max_total_num_tokens = ", Kind::Ready),
    // 0.1.x
    ("max_total_num_token=", Kind::Ready),
    ("The server is fired up", Kind::Fired),
    ("Decode batch", Kind::Decode),
    ("Prefill batch", Kind::Prefill),
    ("Retract requests.", Kind::Retract),
    // before 0.5
    ("Decode out of memory happened", Kind::Retract),
    ("Loaded weights leave no GPU memory", Kind::MinViable),
    ("Not enough memory. Please try to increase", Kind::NotEnough),
    ("Not enough memory; increase --mem-", Kind::NotEnough),
    ("OutOfMemoryError", Kind::OutOfMemory),
    ("CUDA out of memory", Kind::OutOfMemory),
];

/// One line of interest: what it is, who printed it, and the text behind the phrase.
#[derive(Debug)]
struct Event<'a> {
    kind: Kind,
    at: usize,
    line: usize,
    rank: &'a str,
    rest: &'a str,
}

/// Reads SGLang facts; nothing where the text is no SGLang log.
pub(crate) fn read(doc: &Doc, facts: &mut Facts) {
    let events = events(doc);
    if !recognised(doc, &events) {
        return;
    }
    facts.kinds.push("sglang-log");
    facts.set("engine", "sglang", events.first().map_or(1, |e| e.line));
    let runs = run::split(&events);
    let chosen = runs.iter().rposition(Run::has_memory);
    let (mut own, mut arguments) = (events.as_slice(), None);
    if let Some(last) = chosen.or(runs.len().checked_sub(1)) {
        let count = runs.iter().filter(|r| r.has_memory()).count();
        if count > 1 {
            facts.notes.push(format!(
                "{count} server starts in one file; the facts are those of the last, from line {}",
                runs.get(last).map_or(0, |r| r.line)
            ));
        }
        if let Some(run) = runs.get(last) {
            run.report(facts);
            own = events.get(run.first..).unwrap_or(own);
            facts.run_line = if last > 0 { run.line } else { 0 };
            arguments = own.iter().find(|event| event.kind == Kind::Args);
        }
        earlier_starts(runs.get(..last).unwrap_or(&[]), facts);
    }
    version(doc, facts);
    // Commands of earlier starts say nothing of one that prints its own arguments, nor do those below.
    if facts.run_line == 0 || arguments.is_none() {
        let at = |event: &Event| event.at;
        let end = super::reduce::own_until(doc, arguments.map(at), own.first().map(at));
        let told = arguments.is_some_and(|event| event.rest.contains("speculative_algorithm"));
        flags(doc, end, !told, facts);
        super::reduce::told(doc, end, facts);
    }
    traces::ranks(doc, facts);
    let start = own.first().filter(|_| facts.run_line > 0);
    traces::kernels(doc, start.map_or(0, |event| event.at), facts);
    decode(own, facts);
    pressure::read(doc, own, facts);
    failure(own, facts);
}

/// What the pools of earlier starts prove: the last of them is a fraction known to work here.
fn earlier_starts(runs: &[Run], facts: &mut Facts) {
    for run in runs.iter().filter(|run| run.has_memory()).take(16) {
        let mut said = Facts::new(&facts.file);
        run.report(&mut said);
        let Some((fraction, _)) = super::findings::fraction_in_use(&said) else {
            continue;
        };
        let rounded = (fraction * 1e4).round() / 1e4;
        let kv = said.number("kv_gib").unwrap_or(0.0);
        facts.notes.push(format!(
            "the start at line {} had {rounded} in use: {kv} GiB of KV",
            run.line
        ));
        let how = format!("the pool of {kv} GiB in the start at line {}", run.line);
        facts.derive("earlier_fraction_in_use", rounded, run.line, how);
    }
}

/// A phrase of the list is enough, except those that others print as well.
fn recognised(doc: &Doc, events: &[Event]) -> bool {
    let own = |kind: Kind| {
        !matches!(
            kind,
            Kind::OutOfMemory | Kind::GraphBegin | Kind::GraphEnd(_) | Kind::Args
        )
    };
    let printed = |event: &Event| {
        event.kind == Kind::Args
            && ["mem_fraction_static", "speculative_num_steps"]
                .iter()
                .any(|key| event.rest.contains(key))
    };
    events.iter().any(|event| own(event.kind) || printed(event))
        || ["ServerArgs(model_path=", "server_args={'model_path'"]
            .iter()
            .any(|begin| doc.flat.contains(begin))
        || doc.flat.contains("sglang.launch_server")
        || doc.flat.contains("sglang serve")
        || flag_number(&doc.flat, "--mem-fraction-static").is_some()
        || flag_number(&doc.flat, "--speculative-num-steps").is_some()
}

/// Every phrase of the list with its surroundings, in order.
fn events(doc: &Doc) -> Vec<Event<'_>> {
    let phrases: Vec<&str> = PHRASES.iter().map(|(phrase, _)| *phrase).collect();
    let found: Vec<(usize, usize, Kind)> = doc
        .find_all(&phrases)
        .into_iter()
        .filter_map(|(at, end, index)| {
            let kind = match PHRASES.get(index)?.1 {
                Kind::GraphEnd(_) => Kind::GraphEnd(Graphs::of(doc, at)),
                kind => kind,
            };
            Some((at, end, kind))
        })
        // `server_args=ServerArgs(` is one.
        .filter(|(_, end, kind)| {
            *kind != Kind::Args || !doc.window(*end, 12).starts_with("ServerArgs(")
        })
        .collect();
    let mut events = Vec::with_capacity(found.len());
    for (index, (at, end, kind)) in found.iter().enumerate() {
        let next = found.get(index + 1).map_or(doc.flat.len(), |next| next.0);
        let limit = if *kind == Kind::Args { 60_000 } else { 600 };
        let rest = doc.window(*end, limit.min(next.saturating_sub(*end)));
        events.push(Event {
            kind: *kind,
            at: *at,
            line: doc.line_at(*at),
            rank: rank_tag(doc.flat.get(..*at).unwrap_or("")),
            rest,
        });
    }
    events
}

/// The rank tag in the bracket before a record (`[2025-09-11 10:25:43 DP0 TP0 EP0]`, `[gpu=0]`),
/// empty where there is none.
fn rank_tag(text: &str) -> &str {
    let mut start = text.len().saturating_sub(120);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let mut tail = text.get(start..).unwrap_or("");
    // A label of the pool may stand between: `[2026-… TP0] [draft] KV Cache is allocated`.
    for _ in 0..2 {
        let Some(close) = tail.rfind(']') else {
            return "";
        };
        // A paste may begin within the bracket.
        let open = tail.get(..close).and_then(|before| before.rfind('['));
        let inside = tail.get(open.map_or(0, |open| open + 1)..close);
        let inside = inside.unwrap_or("");
        let begin = inside.find(|c: char| c.is_ascii_alphabetic());
        let tag = begin.and_then(|at| inside.get(at..)).unwrap_or("");
        let Some(open) = open else {
            return tag;
        };
        if inside.starts_with(|c: char| c.is_ascii_digit()) || is_rank(tag) {
            return tag;
        }
        tail = tail.get(..open).unwrap_or("");
    }
    ""
}

/// `TP0`, `DP0 TP1 EP1`, `gpu=0`.
fn is_rank(tag: &str) -> bool {
    let first = tag.split(' ').next().unwrap_or("");
    let names = ["TP", "DP", "PP", "EP", "ATTN", "MOE", "gpu="];
    names.iter().any(|name| first.starts_with(name))
        && first.ends_with(|c: char| c.is_ascii_digit())
}

/// Version, where the text names it beside the engine; of several starts the last one's.
fn version(doc: &Doc, facts: &mut Facts) {
    let keys = [
        "sglang version:",
        "sglang==",
        "sglang:v",
        "SGLang v",
        "sglang-v",
    ];
    let named = |at: usize| {
        let word = doc.window(at, 40).trim_start();
        let word = word
            .split([' ', ',', ')', '`', '"', '\'', '-'])
            .next()
            .unwrap_or("");
        let good = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
        good.then(|| (word.trim_end_matches('.').to_string(), doc.line_at(at)))
    };
    for key in keys {
        let mut found = doc.after_all(key).filter_map(named);
        let found = match facts.run_line {
            0 => found.next(),
            _ => found.last(),
        };
        if let Some((version, line)) = found {
            facts.set_if_absent("engine_version", version, line);
            return;
        }
    }
}

/// Settings from a printed `ServerArgs`.
fn server_args(rest: &str, line: usize, facts: &mut Facts) {
    let rest = super::reduce::before_a_start(rest);
    let numbers: &[(&str, &'static str)] = &[
        ("mem_fraction_static", "mem_fraction"),
        ("tp_size", "tp"),
        ("dp_size", "dp"),
        ("pp_size", "pp"),
        ("nnodes", "nodes"),
        ("ep_size", "ep_size"),
        ("dcp_size", "dcp"),
        ("chunked_prefill_size", "chunked_prefill_size"),
        ("context_length", "context_len"),
        ("max_running_requests", "max_running_requests"),
        ("max_total_tokens", "max_total_tokens_flag"),
        ("cuda_graph_max_bs", "cuda_graph_max_bs"),
        ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
        ("page_size", "page_size"),
    ];
    for (key, name) in numbers {
        let said = argument_number(rest, key).into_iter();
        said.for_each(|value| facts.set(name, value, line));
    }
    for (key, name) in [("model_path", "model"), ("quantization", "quant")] {
        if let Some(value) = argument(rest, key) {
            facts.set(name, value, line);
        }
    }
    if let Some(dtype) = argument(rest, "kv_cache_dtype").filter(|d| *d != "auto") {
        facts.set("kv_dtype", dtype, line);
    }
    let device = argument(rest, "device").unwrap_or("cuda");
    for (key, name) in [
        ("disable_custom_all_reduce", "custom_all_reduce_disabled"),
        ("disable_cuda_graph", EAGER),
        ("disable_decode_cuda_graph", EAGER),
        ("enable_dp_attention", "dp_attention"),
    ] {
        // Of another device there is no such kernel.
        let of_device = key != "disable_custom_all_reduce" || device == "cuda";
        if let Some(value @ ("True" | "true")) = argument(rest, key).filter(|_| of_device) {
            facts.set(name, value.to_lowercase(), line);
        }
    }
    super::carried::sglang(rest, line, facts);
    // Steps, width and draft tokens have defaults that are printed also when speculation is off.
    let Some(algorithm) = argument(rest, "speculative_algorithm") else {
        return;
    };
    facts.set("spec_algorithm", algorithm, line);
    for (key, name) in [
        ("speculative_num_steps", "spec_steps"),
        ("speculative_eagle_topk", "spec_topk"),
        ("speculative_num_draft_tokens", "spec_draft_tokens"),
    ] {
        if let Some(value) = argument_number(rest, key) {
            facts.set(name, value, line);
        }
    }
    if let Some(draft) = argument(rest, "speculative_draft_model_path") {
        facts.set("draft_model", draft, line);
    }
}

/// Settings from a command line before `end`, where no printed arguments gave them.
fn flags(doc: &Doc, end: usize, drafting: bool, facts: &mut Facts) {
    let text = doc.flat.get(..end).unwrap_or("");
    super::carried::experts_of_a_start(doc, text, facts);
    super::starts::read(doc, end, facts);
    let asked = |fact: &str| drafting || !(fact.starts_with("spec_") || fact == "draft_model");
    for (name, fact) in [
        ("--mem-fraction-static", "mem_fraction"),
        ("--context-length", "context_len"),
        ("--tp-size", "tp"),
        ("--tensor-parallel-size", "tp"),
        ("--tp", "tp"),
        ("--nnodes", "nodes"),
        ("--max-running-requests", "max_running_requests"),
        ("--chunked-prefill-size", "chunked_prefill_size"),
        ("--speculative-num-steps", "spec_steps"),
        ("--speculative-eagle-topk", "spec_topk"),
        ("--speculative-num-draft-tokens", "spec_draft_tokens"),
    ] {
        if let Some((value, at)) = flag_number(text, name).filter(|_| asked(fact)) {
            facts.set_if_absent(fact, value, doc.line_at(at));
        }
    }
    if let Some(value) = argument_number(text, "mem_fraction_static") {
        let line = doc.line_at(text.find("mem_fraction_static").unwrap_or(0));
        facts.set_if_absent("mem_fraction", value, line);
    }
    for (name, fact) in [
        ("--model-path", "model"),
        ("--speculative-algorithm", "spec_algorithm"),
        ("--speculative-draft-model-path", "draft_model"),
        ("--kv-cache-dtype", "kv_dtype"),
    ] {
        if let Some((value, at)) = flag(text, name).filter(|_| asked(fact)) {
            facts.set_if_absent(fact, value, doc.line_at(at));
        }
    }
}

/// Decode lines: the usual speed, acceptance, and how many ran outside a graph.
fn decode(events: &[Event], facts: &mut Facts) {
    let mut intervals: Vec<Interval> = Vec::new();
    let (mut lines, mut eager, mut last) = (0.0, 0.0, 0);
    let (mut accept, mut weight) = (0.0, 0.0);
    for event in events.iter().filter(|e| e.kind == Kind::Decode) {
        last = event.line;
        lines += 1.0;
        // `cuda graph`, on other devices `cpu graph`, `npu graph`.
        if event.rest.contains("graph: False") {
            eager += 1.0;
        }
        let running = number_after(event.rest, "#running-req:");
        let length = number_after(event.rest, "accept len:");
        if let Some(tok_s) = number_after(event.rest, "gen throughput (token/s):") {
            intervals.push(Interval {
                who: event.rank,
                running: running.unwrap_or(1.0),
                tok_s,
                tokens: speeds::sglang_tokens(event.rest),
                accept_length: length,
                prefill: false,
                line: event.line,
            });
        }
        if let Some(length) = length {
            let running = running.unwrap_or(1.0).clamp(1.0, 1e6);
            accept += length * running;
            weight += running;
        }
    }
    if lines == 0.0 {
        return;
    }
    facts.set("decode_lines", lines, last);
    if eager > 0.0 {
        facts.set("decode_lines_outside_graph", eager, last);
    }
    if weight > 0.0 {
        facts.derive(
            "accept_length",
            accept / weight,
            last,
            format!("mean over {lines} decode lines, weighted by running requests"),
        );
        facts.set("accept_length_source", "sglang accept len", last);
    }
    speeds::put(&intervals, "decode lines", facts);
}

/// Printed by a server that runs.
fn alive(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Fired | Kind::Ready | Kind::Decode | Kind::Prefill
    )
}

/// A log that stops in the middle of a step: no error line, and no later step.
fn silent_end(events: &[Event], facts: &mut Facts) {
    let sized = events
        .iter()
        .any(|event| matches!(event.kind, Kind::Pool | Kind::Ready));
    let stage = match events.last().map(|event| (event.kind, event.line)) {
        Some((Kind::GraphBegin, line)) => ("during graph capture", line),
        Some((Kind::Begin, line)) => ("while weights load", line),
        Some((Kind::End, line)) if sized => ("once the draft's weights are loaded", line),
        Some((Kind::End, line)) => (super::findings::BEFORE_POOL, line),
        _ => return,
    };
    facts.set("ends_in", stage.0, stage.1);
}

/// How it ended, where it ended badly.
fn failure(events: &[Event], facts: &mut Facts) {
    let Some(event) = events.iter().rev().find(|e| {
        matches!(
            e.kind,
            Kind::MinViable | Kind::NotEnough | Kind::OutOfMemory
        )
    }) else {
        silent_end(events, facts);
        return;
    };
    let later = events.iter().any(|e| e.line > event.line && alive(e.kind));
    if later {
        return;
    }
    let kind = match event.kind {
        Kind::OutOfMemory => "out-of-memory",
        _ => "no-memory-for-kv",
    };
    facts.set("error_kind", kind, event.line);
    let text = cut(event.rest, 400);
    if let Some(fraction) = number_after(text, "--mem-fraction-static=")
        .or_else(|| number_after(text, "mem_fraction_static="))
    {
        facts.set("mem_fraction", fraction, event.line);
    }
    let viable = text
        .split("minimum viable")
        .nth(1)
        .and_then(|tail| tail.rsplit_once("= ").or_else(|| tail.split_once('=')))
        .and_then(|(_, number)| super::text::leading_number(number));
    if let Some((viable, _)) = viable.filter(|(v, _)| (0.0..=1.0).contains(v)) {
        facts.set("mem_fraction_min", viable, event.line);
    }
}
