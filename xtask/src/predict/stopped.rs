//! Rows of `--compare` that an engine would not serve.

use serde::Serialize;

use super::answer::Answer;

/// Why a row of `--compare` does not run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Stopped {
    /// `does not start` (the cut is refused) or `does not fit`.
    pub(crate) word: &'static str,
    pub(crate) why: String,
}

impl Answer {
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
