//! The limits a start names, how it ended, and how fast it ran.

use super::super::args::argument;
use super::super::facts::{EAGER, Facts};
use super::super::speeds::{self, Interval};
use super::super::text::{Doc, leading_number, number_after};
use super::{Event, Kind};
use crate::table::thousands;

/// Whether verifies were captured whole or cut at attention, and the backend that decides it. What a
/// plain server captures is of single tokens.
pub(super) fn graphs(doc: &Doc, facts: &mut Facts) {
    backend(doc, facts);
    if let Some(at) = doc.after_all("setting cudagraph_mode=NONE").next() {
        facts.set_if_absent(EAGER, "true", doc.line_at(at));
    }
    let cut = [
        "setting cudagraph_mode=PIECEWISE",
        "<CUDAGraphMode.PIECEWISE:",
    ];
    let first = |marks: &[&str]| marks.iter().find_map(|mark| doc.after_all(mark).next());
    let drafts = facts.get("spec_algorithm").is_some() || facts.get("spec_tokens").is_some();
    let captured = first(&["CUDA graphs (decode, FULL)"]).filter(|_| drafts);
    let found = match (first(&cut), captured) {
        (Some(at), _) => (at, "piecewise"),
        (None, Some(at)) => (at, "whole"),
        _ => return,
    };
    facts.set("cuda_graphs", found.1, doc.line_at(found.0));
}

/// Whether settings say that no graphs are captured: `NONE` as typed, 0, or `<CUDAGraphMode.NONE: 0>` as printed.
/// Python's `None` is what nobody set.
pub(crate) fn no_graphs(settings: &str) -> bool {
    let mode = argument(settings, "cudagraph_mode").unwrap_or_default();
    let mode = mode.trim_start_matches('<').trim_end_matches(':');
    let mode = mode.trim_start_matches("CUDAGraphMode.");
    mode == "0" || mode.eq_ignore_ascii_case("none")
}

/// `Using FLASH_ATTN attention backend out of …`, `Using AttentionBackendEnum.FLASHINFER backend.`,
/// before 0.11.1 `Using Flash Attention backend on V1 engine.`: the first is the target's.
fn backend(doc: &Doc, facts: &mut Facts) {
    const OLD: [(&str, &str); 3] = [
        ("Flash Attention backend on V1", "FLASH_ATTN"),
        ("FlashInfer backend on V1", "FLASHINFER"),
        ("Triton backend on V1", "TRITON_ATTN"),
    ];
    let named = doc.after_all("Using ").find_map(|at| {
        let rest = doc.window(at, 80);
        if let Some((_, name)) = OLD.iter().find(|(words, _)| rest.starts_with(words)) {
            return Some((at, *name));
        }
        let (word, rest) = rest.split_once(' ')?;
        let name = word.trim_start_matches("AttentionBackendEnum.");
        let attends = ["ATTN", "MLA", "FLASHINFER", "FLEX_ATTENTION"];
        let is = rest.starts_with("attention backend") || rest.starts_with("backend.");
        let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let fits = is && name.chars().all(upper) && attends.iter().any(|part| name.contains(part));
        fits.then_some((at, name))
    });
    if let Some((at, name)) = named {
        facts.set("attention_backend", name.to_string(), doc.line_at(at));
    }
}

/// How many requests of full length fit, and the errors that name a limit.
pub(super) fn limits(run: &[Event], facts: &mut Facts) {
    let fits = run.iter().filter(|e| e.kind == Kind::Concurrency);
    let fits = fits.map(|e| {
        (
            e,
            number_after(e.rest, "per request:").unwrap_or(f64::INFINITY),
        )
    });
    if let Some((event, requests)) = fits.min_by(|a, b| a.1.total_cmp(&b.1)) {
        if let Some((length, _)) = leading_number(event.rest) {
            facts.set_if_absent("max_model_len", length, event.line);
        }
        facts.set("max_concurrency", requests, event.line);
    }
    for event in run {
        match event.kind {
            Kind::TooLong => too_long(event, facts),
            Kind::TooLongV0 => {
                if let Some(tokens) = number_after(event.rest, "(") {
                    facts.set("kv_tokens", tokens, event.line);
                }
                if let Some(length) = number_after(event.before, "max seq len (") {
                    facts.set("max_model_len", length, event.line);
                }
            }
            Kind::FreeMemory => {
                if let Some(free) = number_after(event.rest, "(") {
                    facts.set("free_before_gib", free, event.line);
                }
                if let Some(total) = number_after(event.rest, "/") {
                    facts.set("total_gib", total, event.line);
                }
                desired(event, facts);
            }
            // What the head's own config reaches, before it is cut to the target's length.
            Kind::DraftLength => number(event, "draft_max_model_len", facts),
            // A front end may print what it takes before the server prints its own.
            Kind::Batched => {
                if let Some((tokens, _)) = leading_number(event.rest) {
                    facts.set("max_num_batched_tokens", tokens, event.line);
                }
            }
            _ => {}
        }
    }
    head_length(run, facts);
    by_blocks(facts);
}

/// The length printed behind the architecture of a head is that of its own config.
fn head_length(run: &[Event], facts: &mut Facts) {
    let mut of_head = false;
    for event in run {
        match event.kind {
            Kind::Architecture => {
                let class = event.rest.split_whitespace().next().unwrap_or("");
                of_head = ["Eagle", "DFlash"].iter().any(|kind| class.contains(kind));
            }
            Kind::Length if of_head => number(event, "draft_max_model_len", facts),
            _ => {}
        }
    }
}

/// Tokens that the pool holds: as printed, or requests x their length where that is another figure. To
/// 0.20.0 vLLM printed a hybrid's blocks over its groups (`_report_kv_cache_config`).
pub(in crate::explain) fn pool_tokens(facts: &Facts) -> Option<f64> {
    let printed = facts.number("kv_tokens")?;
    Some(tokens_of_requests(facts, printed).unwrap_or(printed))
}

/// The pool as its share in use tells what requests hold. A hybrid's does not: a short request takes whole
/// blocks of a thousand tokens and more, and its states stand in blocks too.
pub(super) fn pool_by_tokens(facts: &Facts) -> Option<f64> {
    let hybrid = facts.get("attention_block_tokens").is_some();
    pool_tokens(facts).filter(|_| !hybrid)
}

/// "Setting attention block size to 1072 tokens to ensure that attention page size is >= mamba page size."
pub(super) fn hybrid_blocks(doc: &Doc, facts: &mut Facts) {
    let said = "Setting attention block size to ";
    let found = doc.after_all(said).next();
    if let Some((at, tokens)) =
        found.and_then(|at| Some((at, leading_number(doc.window(at, 20))?.0)))
    {
        facts.set("attention_block_tokens", tokens, doc.line_at(at));
    }
}

fn tokens_of_requests(facts: &Facts, printed: f64) -> Option<f64> {
    let requests = facts.number("max_concurrency").filter(|n| *n > 0.0)?;
    let length = facts.number("max_model_len").filter(|n| *n >= 1024.0)?;
    let held = requests * length;
    // Requests are printed with two decimals, and take whole blocks. Hybrids' counts are 2 to 4 times apart.
    let same = 0.9..=1.1;
    (held.is_finite() && printed > 0.0 && !same.contains(&(held / printed))).then_some(held)
}

/// Says which tokens those of a hybrid's older line are.
fn by_blocks(facts: &mut Facts) {
    let printed = facts.number("kv_tokens");
    if let Some(held) = printed.and_then(|printed| tokens_of_requests(facts, printed)) {
        facts.notes.push(format!(
            "kv_tokens is a hybrid's blocks over its groups, as vLLM prints it to 0.20.0: requests hold \
             {} (max_concurrency x max_model_len), which is what `predict --from-log` takes",
            thousands(held)
        ));
    }
}

fn number(event: &Event, fact: &'static str, facts: &mut Facts) {
    if let Some((value, _)) = leading_number(event.rest) {
        facts.set_if_absent(fact, value, event.line);
    }
}

/// `desired GPU memory utilization (0.08, 9.73 GiB)`, in the report of a start that went well
/// `Desired GPU memory utilization is (0.9, 71.26 GiB)`.
fn desired(event: &Event, facts: &mut Facts) {
    let Some(pair) = event
        .rest
        .split("utilization")
        .nth(1)
        .map(|tail| tail.trim_start_matches([' ', 'i', 's', '(']))
    else {
        return;
    };
    let Some((fraction, rest)) = leading_number(pair) else {
        return;
    };
    facts.set_if_absent("gpu_memory_utilization", fraction, event.line);
    if let Some((wanted, _)) = leading_number(rest.trim_start_matches(',')) {
        facts.set("wanted_gib", wanted, event.line);
    }
}

/// `… max seq len (1048576), (4.78 GiB KV cache is needed, which is larger than the available KV
/// cache memory (4.0 GiB). … the estimated maximum model length is 849536.`
fn too_long(event: &Event, facts: &mut Facts) {
    let rest = event.rest;
    if let Some(length) = number_after(rest, "max seq len (") {
        facts.set("max_model_len", length, event.line);
    }
    let needed = rest.find("GiB KV cache is needed").and_then(|at| {
        let before = rest.get(..at)?.trim_end();
        let start = before.rfind([' ', '('])? + 1;
        leading_number(before.get(start..)?)
    });
    if let Some((needed, _)) = needed {
        facts.set("kv_needed_gib", needed, event.line);
    }
    let had = number_after(rest, "available KV cache memory (");
    if let Some(had) = had {
        facts.set("kv_gib", had, event.line);
    }
    if let Some(longest) = number_after(rest, "estimated maximum model length is") {
        facts.set("longest_context", longest, event.line);
    }
}

/// The line at which it had captured all its graphs, or took requests.
pub(super) fn ready(doc: &Doc, run: &[Event], facts: &mut Facts) {
    let marks = [
        "init engine (",
        "Starting vLLM API server on",
        "Starting vLLM server on",
        "Application startup complete",
    ];
    let start = run.first().map_or(0, |event| event.at);
    let first = |mark: &&str| doc.after_all(mark).find(|at| *at > start);
    if let Some(at) = marks.iter().filter_map(first).min() {
        facts.set("ready", "true", doc.line_at(at));
    }
}

/// How it ended, where it ended badly.
pub(super) fn failure(run: &[Event], facts: &mut Facts) {
    let Some(event) = run.iter().rev().find(|e| match e.kind {
        Kind::NoMemory | Kind::TooLong | Kind::TooLongV0 | Kind::OutOfMemory => true,
        Kind::FreeMemory => e.rest.contains("less than"),
        _ => false,
    }) else {
        let sized = run.iter().any(|e| {
            matches!(
                e.kind,
                Kind::Tokens | Kind::Blocks | Kind::Available | Kind::Speed
            )
        });
        let started = run.iter().find(|e| e.kind == Kind::Weights);
        if let (Some(weights), false) = (started, sized) {
            facts.set("error_kind", "ends-before-kv-sizing", weights.line);
        }
        return;
    };
    if run.iter().any(|e| e.at > event.at && e.kind == Kind::Speed) {
        return;
    }
    let kind = match event.kind {
        Kind::NoMemory => "no-memory-for-kv",
        Kind::FreeMemory => "too-little-free-at-start",
        Kind::TooLong | Kind::TooLongV0 => "context-does-not-fit",
        _ => "out-of-memory",
    };
    facts.set("error_kind", kind, event.line);
}

/// `Avg generation throughput` by the requests running: windows in which prompts took more than
/// output did are left out.
pub(super) fn speed(run: &[Event], facts: &mut Facts) {
    let pool = pool_by_tokens(facts);
    let intervals: Vec<Interval> = run
        .iter()
        .filter(|event| event.kind == Kind::Speed)
        .filter_map(|event| {
            let (tok_s, _) = leading_number(event.rest)?;
            let prompt = number_after(event.before, "Avg prompt throughput:").unwrap_or(0.0);
            Some(Interval {
                who: engine_number(event.before),
                running: number_after(event.rest, "Running:")?,
                tok_s,
                tokens: held(event.rest, pool),
                accept_length: None,
                prefill: prompt > tok_s,
                line: event.line,
            })
        })
        .collect();
    speeds::put(&intervals, "windows", facts);
    // One decimal of a percent says nothing of less than half a percent: of the loads that tell what
    // they held, the one seen in most lines (of equals the heaviest, which tells it best).
    let told = |held: f64, running: f64| pool.is_some_and(|pool| held * running >= 0.005 * pool);
    for speed in &mut facts.speeds {
        let running = speed.running;
        speed.held_tokens = speed.held_tokens.filter(|held| told(*held, running));
    }
    let telling = facts.speeds.iter().filter_map(|speed| {
        let held = speed.held_tokens?;
        told(held, speed.running).then_some((held, *speed))
    });
    if let Some((held, speed)) = telling.max_by_key(|(_, speed)| speed.lines) {
        let how = format!(
            "the share of the pool in use at {} running, over these",
            speed.running
        );
        facts.derive(
            "held_tokens_per_request",
            held.round(),
            speed.held_line,
            how,
        );
    }
}

/// `Engine 000:` before the line of one data-parallel engine.
fn engine_number(before: &str) -> &str {
    let after = before.rsplit("Engine ").next().unwrap_or("");
    let word = after.split(':').next().unwrap_or("");
    if word.len() < before.len() && word.bytes().all(|b| b.is_ascii_digit()) {
        word
    } else {
        ""
    }
}

/// Tokens held, by the share of the pool in use; a share of 0.0 % is taken as half of what rounds
/// to it.
pub(super) fn held(rest: &str, pool: Option<f64>) -> Option<f64> {
    let percent = number_after(rest, "KV cache usage:").filter(|p| (0.0..=100.0).contains(p))?;
    Some(pool? * percent.max(0.025) / 100.0)
}
