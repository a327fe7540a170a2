//! Captures of graphs in an SGLang log.

use super::super::text::Doc;

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
