//! Whether vLLM's scheduler works ahead while the GPU computes, as its log says.

use super::facts::Facts;
use super::text::Doc;

/// How vLLM says it, since 0.14.0 (config/vllm.py).
const SAID: [(&str, &str); 2] = [
    ("Asynchronous scheduling is enabled", "enabled"),
    ("Asynchronous scheduling is disabled", "disabled"),
];

/// How it warns that a draft switches it off: to 0.32, and since.
pub(super) const OFF_BY_DRAFT: [&str; 2] = [
    "Async scheduling not supported with ",
    "Async scheduling is disabled because the V1 model runner does not support it with ",
];

/// The fact that such a warning is kept as.
pub(super) const DRAFT_WAITS: &str = "async_scheduling_off_by";

/// The fact: `enabled` or `disabled`.
const NAME: &str = "async_scheduling";

/// What a log says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    /// Whether the scheduler overlaps the step.
    pub(crate) on: bool,
    /// Whether the draft is what switches it off.
    pub(crate) by_draft: bool,
    /// The line.
    pub(crate) line: usize,
}

/// Reads it, of the start that the facts are of.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    let run = facts.run_line;
    for (phrase, word) in SAID {
        let mut lines = doc.after_all(phrase).map(|at| doc.line_at(at));
        if let Some(line) = lines.find(|line| *line >= run) {
            facts.set(NAME, word, line);
        }
    }
}

/// What the facts say. A warning names a draft, or what does so beside it.
pub(super) fn of_facts(facts: &Facts) -> Option<Said> {
    let warned = facts.get(DRAFT_WAITS);
    let why = facts.text(DRAFT_WAITS).unwrap_or("");
    Some(Said {
        on: warned.is_none() && facts.text(NAME) == Some("enabled"),
        by_draft: why.contains("speculative decoding"),
        line: warned.or_else(|| facts.get(NAME))?.line,
    })
}
