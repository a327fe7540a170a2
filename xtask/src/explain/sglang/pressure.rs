//! What a running server says of a pool that is full, and of its all-reduce.

use super::super::facts::Facts;
use super::super::speeds::sglang_tokens;
use super::super::text::{Doc, custom_all_reduce_off, number_after};
use super::{Event, Kind};

/// Share of the pool in use from which it is the pool that makes requests wait.
pub(super) const FULL: f64 = 0.9;

/// Requests thrown out of the pool, requests that wait for it, tokens that a request holds, whether prefills
/// run in their graphs, and why the engine's own all-reduce is off.
pub(super) fn read(doc: &Doc, events: &[Event], facts: &mut Facts) {
    if let Some(at) = custom_all_reduce_off(doc) {
        let why = doc.window(at, 160).split('.').next().unwrap_or("").trim();
        facts.set("custom_all_reduce_disabled", why, doc.line_at(at));
    }
    retracted(events, facts);
    waiting(events, facts);
    held(events, facts);
    super::captures::unused_by_prefills(doc, events, facts);
}

fn retracted(events: &[Event], facts: &mut Facts) {
    let lines = events.iter().filter(|e| e.kind == Kind::Retract);
    let (mut requests, mut count, mut last) = (0.0, 0, 0);
    for event in lines {
        requests += number_after(event.rest, "#retracted_reqs:").unwrap_or(1.0);
        count += 1;
        last = event.line;
    }
    if count > 0 {
        let how = format!("over {count} line{}", if count == 1 { "" } else { "s" });
        facts.derive("retracted_requests", requests, last, how);
    }
}

/// The longest queue seen while the pool was full.
fn waiting(events: &[Event], facts: &mut Facts) {
    let mut worst: Option<(f64, f64, usize)> = None;
    for event in events.iter().filter(|e| e.kind == Kind::Decode) {
        let (Some(usage), Some(queue)) = (
            number_after(event.rest, "token usage:"),
            number_after(event.rest, "#queue-req:"),
        ) else {
            continue;
        };
        let full = (FULL..=1.0).contains(&usage) && queue > 0.0;
        if full && worst.is_none_or(|(longest, _, _)| queue > longest) {
            worst = Some((queue, usage, event.line));
        }
    }
    if let Some((queue, usage, line)) = worst {
        facts.set("queued_at_full_pool", queue, line);
        facts.set("token_usage", usage, line);
    }
}

/// Tokens of context that a request held while decoding, the median over the decode lines.
fn held(events: &[Event], facts: &mut Facts) {
    let decode = events.iter().filter(|e| e.kind == Kind::Decode);
    let figures: Vec<(f64, usize)> = decode
        .filter_map(|event| {
            let running = number_after(event.rest, "#running-req:").filter(|n| *n >= 1.0)?;
            let tokens = sglang_tokens(event.rest)?;
            Some((tokens / running, event.line))
        })
        .collect();
    if let Some((middle, line)) = crate::explain::speeds::middle_and_line(&figures) {
        facts.derive(
            "held_tokens_per_request",
            middle.round(),
            line,
            "median over the decode lines of tokens held by running requests",
        );
    }
}
