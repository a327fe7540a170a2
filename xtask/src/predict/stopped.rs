//! What an engine would not serve: the answer, and rows of `--compare`.

use serde::Serialize;

use super::answer::Answer;
use crate::scenario::shapes;

/// Why an answer, or a row of `--compare`, does not run or does not draft.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Stopped {
    /// `does not start` (the cut is refused), `does not fit`, or of a head that reaches too little `stops`
    /// or `drafts nothing`.
    pub(crate) word: &'static str,
    pub(crate) why: String,
}

impl Answer {
    /// Whether whole experts on each rank, which the paste asks for, would start a cut that is refused.
    pub(crate) fn starts_by_whole_experts(&self) -> bool {
        let flags = [shapes::SGLANG_EXPERTS, shapes::VLLM_EXPERTS];
        let mut words = self.engine_flags.values().flatten();
        self.cut_refused && words.any(|word| flags.contains(&word.as_str()))
    }

    /// Why rows of `--compare` do not run, a line a name.
    pub(crate) fn stopped_rows(&self) -> Vec<String> {
        let rows = self.compared.iter();
        let mut lines: Vec<String> = rows
            .filter_map(|row| {
                let stopped = row.stopped.as_ref()?;
                Some(format!("{}: {}", row.name, stopped.why))
            })
            .collect();
        // The rows of a name are neighbours.
        lines.dedup();
        lines
    }
}
