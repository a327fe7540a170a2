//! Which windows of a server that was told to draft did so.

use super::super::facts::Facts;
use super::super::speeds::Windows;
use super::super::text::{leading_number, number_after};
use super::{Event, Kind};

/// A window and whether it drafted.
struct Window {
    line: usize,
    drafted: bool,
    /// Tokens that each request held at its end.
    held: Option<f64>,
}

/// Counts them; `None` where nothing was to draft by itself in every window: look-up finds nothing to
/// copy in some, and a depth by load is off at others.
pub(super) fn read(run: &[Event], facts: &Facts) -> Option<Windows> {
    let algorithm = facts.text("spec_algorithm").or(facts.text("draft_model"))?;
    let at_times = ["ngram", "suffix"];
    let by_load = |event: &&Event| event.rest.contains("num_speculative_tokens_per_batch_size");
    if at_times.iter().any(|word| algorithm.contains(word)) || run.iter().any(|e| by_load(&e)) {
        return None;
    }
    let mut windows: Vec<Window> = Vec::new();
    let pool = super::pool_tokens(facts);
    for event in run {
        match event.kind {
            Kind::Speed => windows.extend(window(event, pool)),
            Kind::Drafts => {
                let accepted = number_after(event.rest, "Mean acceptance length:");
                if let Some(last) = windows.last_mut() {
                    // Placeholders that a server verifies in place of drafts are never accepted.
                    last.drafted |= accepted.is_none_or(|length| length > 1.0);
                }
            }
            _ => {}
        }
    }
    let plain = windows.iter().find(|window| !window.drafted);
    let drafted = windows.iter().filter(|window| window.drafted);
    let held: Vec<f64> = drafted.clone().filter_map(|window| window.held).collect();
    let middle = crate::score::quantile(&held, 0.5).filter(|_| held.len() > 2);
    Some(Windows {
        all: windows.len(),
        drafted: drafted.count(),
        line: plain.map_or(0, |window| window.line),
        drafted_held: middle.map(|tokens| tokens as u64),
    })
}

/// A window in which requests that ran were given tokens.
fn window(event: &Event, pool: Option<f64>) -> Option<Window> {
    let (tok_s, _) = leading_number(event.rest)?;
    let running = number_after(event.rest, "Running:")?;
    let held = super::limits::held(event.rest, pool).map(|tokens| tokens / running);
    (tok_s >= 1.0 && running >= 1.0).then_some(Window {
        line: event.line,
        drafted: false,
        held: held.filter(|tokens| tokens.is_finite()),
    })
}
