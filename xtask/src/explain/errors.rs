//! The error that ended a server, by the traceback that it printed: of several the first, which the
//! others follow from.

use super::facts::Facts;
use super::text::{Doc, cut};

/// Printed by servers that are up, and by no other.
const UP: [&str; 7] = [
    "Application startup complete",
    "Uvicorn running on",
    "The server is fired up",
    "Avg generation throughput:",
    "Decode batch",
    "Prefill batch",
    // Of a request that was answered, with whichever status.
    "HTTP/1.1\" ",
];

/// What SGLang and vLLM say when one of their processes ends; a request that failed says none of it.
const ENDS: [&str; 8] = [
    "failed to start",
    "initialization failed",
    "encountered a fatal error",
    "encountered an issue",
    "hit an exception",
    "eceived sigquit from a child process",
    "scheduler is dead",
    "died unexpectedly",
];

/// Errors by which one process tells that another ended.
const RELAYED: [&str; 10] = [
    "RuntimeError: cancelled",
    "initialization failed",
    "failed to start",
    "EngineDeadError",
    "EngineGenerateError",
    "ChildFailedError",
    "CancelledError",
    "scheduler is dead",
    "BrokenPipeError",
    "EOFError",
];

/// Said when a server that is up is told to end; what its processes print then is of that end.
const TOLD_TO_END: [&str; 2] = ["API server: shutdown triggered", "INFO:     Shutting down"];

/// What a device that has no memory left says, in small letters; the processor's allocator says the last
/// of them too.
const NO_MEMORY: [&str; 7] = [
    "out of memory",
    "outofmemory",
    "out_of_memory",
    "status_alloc_failed",
    "errormemoryallocation",
    "failed to allocate memory",
    "not enough memory",
];

/// What captures graphs, the last to begin being the one that an error falls into; `None` behind them.
const CAPTURES: [(&str, Option<&str>); 3] = [
    ("Capturing CUDA graph", Some("CUDA graphs")),
    (
        "Capturing model for speculator",
        Some("the draft's CUDA graphs"),
    ),
    ("Graph capturing finished", None),
];

/// Bytes of an error that are shown.
const LONGEST: usize = 240;

/// Sets `error` and, where the traceback says so, `error_at`; what the readers took for an end without
/// a word is none then. An error that they know by its own words stays theirs.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    let known = facts
        .text("error_kind")
        .is_some_and(|kind| kind != "ends-before-kv-sizing");
    if facts.text("engine").is_none() || known {
        return;
    }
    let own = doc.lines.iter().filter(|(line, _)| *line >= facts.run_line);
    let mut up = false;
    let mut ends: Option<(usize, &str)> = None;
    let mut errors: Vec<(usize, &str, &str)> = Vec::new();
    let mut place = "";
    // NCCL says why it failed in a line of its own.
    let mut nccl_without_memory = false;
    for (line, text) in own {
        // A request that was refused was taken by a server that is up.
        let mut marks = UP.iter().chain(super::warnings::REFUSED.iter());
        if marks.any(|phrase| text.contains(phrase)) {
            (up, ends, place) = (true, None, "");
            nccl_without_memory = false;
            errors.clear();
            continue;
        }
        if up && ends.is_none() && TOLD_TO_END.iter().any(|phrase| text.contains(phrase)) {
            break;
        }
        nccl_without_memory |= text.contains("Cuda failure") && without_memory(text);
        let said = message(text);
        if said.starts_with("File \"") {
            place = said;
        } else if is_error(said) || !place.is_empty() && is_qualified(said) {
            errors.push((*line, said, place));
            place = "";
        } else if let Some(told) = said.find("CUDA error: ").and_then(|at| said.get(at..)) {
            errors.push((*line, told, ""));
        }
        if ends.is_none() && ENDS.iter().any(|phrase| text.contains(phrase)) {
            ends = Some((*line, said));
        }
    }
    let relayed = |said: &str| RELAYED.iter().any(|phrase| said.contains(phrase));
    let first = errors.iter().find(|(_, said, _)| !relayed(said));
    let found = first.or(errors.first()).copied();
    // A server that is up prints tracebacks of requests too.
    let found = match ends {
        None if up => None,
        _ => found.or(ends.map(|(line, said)| (line, said, ""))),
    };
    let Some((line, said, place)) = found else {
        return;
    };
    facts.remove("ends_in");
    facts.remove("error_kind");
    let by_nccl = nccl_without_memory && ["NCCL", "nccl"].iter().any(|name| said.contains(name));
    if without_memory(said) || by_nccl {
        facts.set("error_kind", "out-of-memory", line);
        return;
    }
    tell(doc, facts, (line, said, place));
}

/// The error, the place that raised it, and what lines before it say of it.
fn tell(doc: &Doc, facts: &mut Facts, (line, said, place): (usize, &str, &str)) {
    let first = cut(said, LONGEST);
    let more = if first.len() < said.len() { "…" } else { "" };
    facts.set("error", format!("{first}{more}"), line);
    if said.contains("device-side assert") {
        let mut lines = doc.lines.iter().filter(|(at, _)| *at >= facts.run_line);
        let bound = lines.find_map(|(at, text)| Some((*at, index_bound(text)?)));
        if let Some((at, bound)) = bound {
            facts.set("index_bound", bound, at);
        }
    }
    if let Some(what) = capturing(doc, facts.run_line..line) {
        facts.set("error_capturing", what, line);
    }
    if let Some(file) = place
        .strip_prefix("File \"")
        .and_then(|p| p.split('"').next())
    {
        let name = file.rsplit('/').next().unwrap_or(file);
        facts.set("error_at", name, line);
    }
}

/// Whether a device says that it has no memory left.
fn without_memory(text: &str) -> bool {
    let small = text.to_ascii_lowercase();
    let said = NO_MEMORY.iter().any(|phrase| small.contains(phrase));
    said && !small.contains("cpuallocator")
}

/// What was being captured behind these lines.
fn capturing(doc: &Doc, lines: std::ops::Range<usize>) -> Option<&'static str> {
    let before = doc.lines.iter().filter(|(at, _)| lines.contains(at));
    let mut captures = before.filter_map(|(_, text)| {
        let mut known = CAPTURES.iter();
        known.find(|(phrase, _)| text.contains(phrase))
    });
    captures.next_back()?.1
}

/// What a compiled kernel's index stayed not under:
/// ``Assertion `index out of bounds: 0 <= tl.broadcast_to(tmp10, [XBLOCK]) < 2048` failed``.
fn index_bound(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("index out of bounds: 0 <= ")?;
    let (_, bound) = rest.split_once('`')?.0.rsplit_once("< ")?;
    bound.parse::<u32>().ok().map(f64::from)
}

/// A line without what the engine's logger prints before it: `(Worker_TP0 pid=1) ERROR 11-21 09:58:34
/// [core.py:708] …`, `[2026-01-01 10:00:00 TP0] …`.
fn message(line: &str) -> &str {
    let mut text = line.trim_start();
    if let Some((_, rest)) = text
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(") "))
        .filter(|(process, _)| process.contains("pid="))
    {
        text = rest.trim_start();
    }
    let logged = ["ERROR", "INFO", "WARNING", "CRITICAL", "["];
    if logged.iter().any(|level| text.starts_with(level)) {
        text = text.split_once("] ").map_or(text, |(_, rest)| rest);
    }
    text.trim()
}

/// Whether a message is the last line of a traceback: `KeyError: 'x'`, `torch.OutOfMemoryError: …`.
fn is_error(said: &str) -> bool {
    let name = said.split(':').next().unwrap_or("");
    let last = name.rsplit('.').next().unwrap_or("");
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    name.len() < 80
        && name.chars().all(plain)
        && last.starts_with(|c: char| c.is_ascii_uppercase())
        && ["Error", "Exception", "Interrupt"]
            .iter()
            .any(|end| last.ends_with(end))
}

/// The same by another name, with the module that it is of: `triton.runtime.errors.OutOfResources: out
/// of resource: shared memory`.
fn is_qualified(said: &str) -> bool {
    let Some((name, _)) = said.split_once(": ") else {
        return false;
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let last = name.rsplit_once('.').map(|(_, last)| last);
    name.chars().all(plain)
        && last.is_some_and(|last| last.starts_with(|c: char| c.is_ascii_uppercase()))
}
