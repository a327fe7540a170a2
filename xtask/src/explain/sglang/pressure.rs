//! What a running server says of a pool that is full, and of its all-reduce.

use super::super::facts::Facts;
use super::super::speeds::{Busiest, put_busiest, sglang_tokens};
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
    load(events, facts);
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

/// The heaviest load of the decode lines, and the share of the prompts' tokens that was cached.
fn load(events: &[Event], facts: &mut Facts) {
    let decode = events.iter().filter(|e| e.kind == Kind::Decode);
    let loads = decode.filter_map(|event| {
        let usage = number_after(event.rest, "token usage:").filter(|u| (0.0..=1.0).contains(u));
        Some(Busiest {
            running: number_after(event.rest, "#running-req:")?,
            usage_percent: usage.map(|usage| (usage * 1e4).round() / 100.0),
            line: event.line,
        })
    });
    put_busiest(loads, facts);
    let (mut cached, mut all, mut last) = (0.0, 0.0, 0);
    for event in events.iter().filter(|e| e.kind == Kind::Prefill) {
        let tokens = |key: &str| number_after(event.rest, key).filter(|n| (0.0..1e9).contains(n));
        if let (Some(new), Some(hit)) = (tokens("#new-token:"), tokens("#cached-token:")) {
            cached += hit;
            all += new + hit;
            last = event.line;
        }
    }
    let percent = (cached / all * 1000.0_f64).round() / 10.0;
    if percent > 0.0 {
        let how = "cached tokens over all of the prefill lines";
        facts.derive("prefix_hit_percent", percent, last, how);
    }
}

/// Tokens of context that a request held while decoding: at the load seen in most of the lines whose speed
/// counts, else the median over the decode lines.
fn held(events: &[Event], facts: &mut Facts) {
    let counted = facts
        .speeds
        .iter()
        .filter_map(|speed| Some((speed.held_tokens?, *speed)));
    if let Some((tokens, speed)) = counted.max_by_key(|(_, speed)| speed.lines) {
        let how = format!(
            "median over the decode lines whose speed counts, {} running",
            speed.running
        );
        facts.derive(
            "held_tokens_per_request",
            tokens.round(),
            speed.held_line,
            how,
        );
        return;
    }
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

#[cfg(test)]
mod tests {
    use crate::explain::facts_from_text;

    #[test]
    fn decode_lines_say_the_heaviest_load_and_prefill_lines_what_of_the_prompts_was_cached() {
        let text = "[2026-01-23 19:30:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=1)\n\
            [2026-01-23 19:35:38 TP0] Prefill batch. #new-seq: 1, #new-token: 400, #cached-token: 1600, \
            token usage: 0.02, #running-req: 0, #queue-req: 0\n\
            [2026-01-23 19:35:39 TP0] Decode batch. #running-req: 8, #token: 16000, token usage: 0.25, \
            cuda graph: True, gen throughput (token/s): 300.00, #queue-req: 0\n\
            [2026-01-23 19:35:40 TP0] Decode batch. #running-req: 2, #token: 5000, token usage: 0.08, \
            cuda graph: True, gen throughput (token/s): 90.00, #queue-req: 0\n";
        let facts = facts_from_text(text, "f.log");
        let of = |name: &str| Some((facts.number(name)?, facts.get(name)?.line));
        assert_eq!(of("most_running"), Some((8.0, 3)));
        assert_eq!(of("kv_usage_percent"), Some((25.0, 3)));
        assert_eq!(of("prefix_hit_percent"), Some((80.0, 2)));
        assert_eq!(of("held_tokens_per_request"), Some((2250.0, 3)));
    }
}
