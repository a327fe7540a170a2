//! Captures of graphs in an SGLang log.

use super::super::facts::Facts;
use super::super::text::Doc;
use super::{Event, Kind};

/// What a capture is of: `Capture draft extend cuda graph end.`, `Capture piecewise CUDA graph end.`
/// (0.5.10 to 0.5.13), `Capture target prefill CUDA graph end.` (since).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Graphs {
    Decode,
    Draft,
    Prefill,
}

impl Graphs {
    pub(super) fn of(doc: &Doc, at: usize) -> Self {
        let before = doc.flat.get(..at).unwrap_or("");
        let words = before.rsplit([']', '.']).next().unwrap_or("");
        if words.contains("draft") {
            Self::Draft
        } else if words.contains("piecewise") || words.contains("prefill") {
            Self::Prefill
        } else {
            Self::Decode
        }
    }
}

/// The prefill lines, where each says that it ran in no graph, beside graphs of 0.5.10 to 0.5.13.
pub(super) fn unused_by_prefills(doc: &Doc, events: &[Event], facts: &mut Facts) {
    if !doc.flat.contains("Capture piecewise CUDA graph end") {
        return;
    }
    let lines = events.iter().filter(|event| event.kind == Kind::Prefill);
    let told: Vec<&Event> = lines
        .filter(|event| event.rest.contains("graph: "))
        .collect();
    let outside = |event: &&Event| event.rest.contains("graph: False");
    if let Some(last) = told.last().filter(|_| told.iter().all(outside)) {
        facts.set("prefills_outside_graphs", told.len() as f64, last.line);
    }
}
