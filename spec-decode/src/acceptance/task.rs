//! What the requests are: tasks, and the data sets that stand for them.

use super::catalogue::{TaskEntry, catalogue};
use crate::error::AcceptanceError;

/// What the requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    /// Chat, open questions.
    Chat,
    /// Code.
    Code,
    /// Mathematics with written reasoning.
    Math,
    /// Short sums told in words (GSM8K).
    Sums,
    /// Hard multiple-choice questions.
    HardQa,
    /// Summaries, finance questions, answers from long documents.
    Summary,
    /// Tool calls.
    Tools,
    /// Stories, role play.
    Writing,
    /// Translation and languages other than English.
    Translation,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 9] = [
        Self::Chat,
        Self::Code,
        Self::Math,
        Self::Sums,
        Self::HardQa,
        Self::Summary,
        Self::Tools,
        Self::Writing,
        Self::Translation,
    ];

    /// The name in flags and the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Code => "code",
            Self::Math => "math",
            Self::Sums => "sums",
            Self::HardQa => "hard-qa",
            Self::Summary => "summary",
            Self::Tools => "tools",
            Self::Writing => "writing",
            Self::Translation => "translation",
        }
    }

    /// Reads a task from a flag or a data set's name (`SPEED-Bench/coding`, `GSM8K`).
    ///
    /// # Errors
    /// [`AcceptanceError::Unknown`] with the known names.
    pub fn parse(name: &str) -> Result<Self, AcceptanceError> {
        let lower = name.trim().to_ascii_lowercase().replace('_', "-");
        let exact = Self::ALL.into_iter().find(|t| t.name() == lower);
        // A name with a separator is looked for as it stands, a plain one at the start of a word
        // ("math500", but not "history"). A mean over several data sets is no task; the longest
        // name found is the most telling.
        let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).collect();
        let found = |name: &&String| {
            if name.contains(|c: char| !c.is_alphanumeric()) {
                lower.contains(name.as_str())
            } else {
                words.iter().any(|w| w.starts_with(name.as_str()))
            }
        };
        let longest = |entry: &TaskEntry| {
            let names = entry.data_sets.iter().filter(found);
            names.map(String::len).max().unwrap_or(0)
        };
        let by_data_set = || {
            let entries = catalogue().task.iter().filter(|_| !lower.contains(','));
            let best = entries.max_by_key(|e| longest(e))?;
            (longest(best) > 0)
                .then(|| Self::ALL.into_iter().find(|t| t.name() == best.name))
                .flatten()
        };
        exact.or_else(by_data_set).ok_or(AcceptanceError::Unknown {
            what: "task",
            name: name.to_string(),
            known: "chat, code, math, sums, hard-qa, summary, tools, writing, translation, \
                    or a data set's name",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_set_names_find_their_task() {
        for (name, task) in [
            ("SPEED-Bench/coding", Task::Code),
            ("SPEED-Bench/code", Task::Code),
            ("GSM8K", Task::Sums),
            ("math500", Task::Math),
            ("MT-bench", Task::Chat),
            ("llm_decode_bench (synthetic chat)", Task::Chat),
            ("financeqa", Task::Summary),
            ("CNN/DM", Task::Summary),
            ("gpqa", Task::HardQa),
            ("BFCL simple", Task::Tools),
            ("SPEED-Bench/multilingual", Task::Translation),
            ("SWE-bench_Verified", Task::Code),
            ("edit_5k_char (blazedit)", Task::Code),
            ("livecodebench", Task::Code),
            ("AIME24", Task::Math),
            ("C-Eval", Task::HardQa),
            ("LongBench-v2", Task::Summary),
            ("SPEED-Bench/qa", Task::Chat),
        ] {
            assert_eq!(Task::parse(name), Ok(task), "{name}");
        }
        assert!(Task::parse("mean(MT-bench,HumanEval,GSM8K)").is_err());
        for none in ["random 1k/1k", "history", "paragraphs", "decode bench", ""] {
            assert!(Task::parse(none).is_err(), "{none}");
        }
    }
}
