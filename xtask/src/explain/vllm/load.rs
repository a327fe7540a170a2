//! What ran and what it held, by the throughput windows: also by those that say nothing of the speed of
//! decoding, as prompts took more than output in them.

use super::super::facts::Facts;
use super::super::speeds::{self, Busiest};
use super::super::text::{leading_number, number_after};
use super::{Event, Kind};
use crate::table::thousands;

/// A throughput window, tokens a second.
struct Window {
    prompt: f64,
    output: f64,
    running: f64,
    /// Tokens that all requests held, where its share of the pool tells it.
    held: Option<f64>,
    line: usize,
}

/// Shares of the pool below this are rounded too coarsely to tell tokens, percent.
const LEAST_USAGE: f64 = 0.5;

pub(super) fn read(run: &[Event], facts: &mut Facts) {
    let pool = super::limits::pool_by_tokens(facts);
    let speed = || run.iter().filter(|event| event.kind == Kind::Speed);
    let windows: Vec<Window> = speed().filter_map(|event| window(event, pool)).collect();
    let busiest = speed().filter_map(|event| {
        Some(Busiest {
            running: number_after(event.rest, "Running:")?,
            usage_percent: usage(event),
            line: event.line,
        })
    });
    speeds::put_busiest(busiest, facts);
    let mut hits = speed().rev().filter_map(|event| {
        let percent = number_after(event.rest, "Prefix cache hit rate:")?;
        ((0.0..=100.0).contains(&percent) && percent > 0.0).then_some((percent, event.line))
    });
    // It counts from the start, or over the last thousand requests: the last window has seen most.
    if let Some((percent, line)) = hits.next() {
        facts.set("prefix_hit_percent", percent, line);
    }
    held(&windows, facts);
    left_out(&windows, facts);
}

fn window(event: &Event, pool: Option<f64>) -> Option<Window> {
    let (output, _) = leading_number(event.rest)?;
    let told = usage(event).is_some_and(|percent| percent >= LEAST_USAGE);
    Some(Window {
        prompt: number_after(event.before, "Avg prompt throughput:").unwrap_or(0.0),
        output,
        running: number_after(event.rest, "Running:")?,
        held: super::limits::held(event.rest, pool).filter(|_| told),
        line: event.line,
    })
}

fn usage(event: &Event) -> Option<f64> {
    number_after(event.rest, "KV cache usage:").filter(|p| (0.0..=100.0).contains(p))
}

/// What a request held, where no window whose speed counts tells it.
fn held(windows: &[Window], facts: &mut Facts) {
    if facts.get("held_tokens_per_request").is_some() {
        return;
    }
    let ran = windows.iter().filter(|window| window.running >= 1.0);
    let figures: Vec<(f64, usize)> = ran
        .filter_map(|window| Some((window.held? / window.running, window.line)))
        .collect();
    let Some((middle, line)) = speeds::middle_and_line(&figures) else {
        return;
    };
    let ends = figures.first().zip(figures.last());
    let lines = match ends {
        Some((first, last)) if first.1 < last.1 => {
            format!("{} windows, lines {} to {}", figures.len(), first.1, last.1)
        }
        _ => "one window".to_string(),
    };
    let how =
        format!("the share of the pool in use over the requests running, the middle of {lines}");
    facts.derive("held_tokens_per_request", middle.round(), line, how);
}

/// Says which windows are left out of the speeds, and what their load was.
fn left_out(windows: &[Window], facts: &mut Facts) {
    let gave = |window: &&Window| window.output > 0.0;
    let all = windows.iter().filter(gave).count();
    let busy: Vec<&Window> = windows
        .iter()
        .filter(gave)
        .filter(|window| window.prompt > window.output)
        .collect();
    let (Some(first), Some(heaviest)) = (
        busy.first(),
        busy.iter().max_by(|a, b| a.prompt.total_cmp(&b.prompt)),
    ) else {
        return;
    };
    let (prompts, outputs) = busy.iter().fold((0.0, 0.0), |(prompts, outputs), window| {
        (prompts + window.prompt, outputs + window.output)
    });
    facts.set("windows_left_out", busy.len() as f64, first.line);
    facts.notes.push(format!(
        "left out of the speeds: {} of {all} throughput windows, in which prompts took more than output, up to {} \
         tokens/s beside {} (line {}), in all {:.0} tokens in for one out; `predict` leaves out what prompts \
         cost",
        busy.len(),
        thousands(heaviest.prompt.round()),
        thousands(heaviest.output.round()),
        heaviest.line,
        prompts / outputs
    ));
}
