//! What is known before anything is measured: level and slope by head kind, task, temperature
//! and context, from `catalog/acceptance.toml`.

use std::sync::OnceLock;

use toml::{Table, Value};

use super::chain::Chain;
use crate::error::AcceptanceError;
use crate::head::HeadKind;

/// Mean and standard deviation of a logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation between curves.
    pub sd: f64,
}

/// What the requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    /// Chat, open questions.
    Chat,
    /// Code.
    Code,
    /// Mathematics with written reasoning.
    Math,
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
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::Code,
        Self::Math,
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
            known: "chat, code, math, hard-qa, summary, tools, writing, translation, \
                    or a data set's name",
        })
    }
}

/// What decides the prior. `None` where unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriorQuery {
    /// The head kind.
    pub head: HeadKind,
    /// The task.
    pub task: Option<Task>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Tokens of context while decoding.
    pub context_tokens: Option<f64>,
    /// Longest context that the head was trained on.
    pub trained_context_tokens: Option<f64>,
}

impl PriorQuery {
    /// Only the head kind is known.
    pub fn of(head: HeadKind) -> Self {
        Self {
            head,
            task: None,
            temperature: None,
            context_tokens: None,
            trained_context_tokens: None,
        }
    }
}

/// Level and slope before a measurement, with what was assumed.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptancePrior {
    /// Logit of the first position.
    pub level: Spread,
    /// Change of the logit per position.
    pub slope: Spread,
    /// Where the figures come from and what was assumed, one line each.
    pub sources: Vec<String>,
}

#[derive(Debug)]
struct Catalogue {
    spread: SpreadEntry,
    temperature: TemperatureEntry,
    context: ContextEntry,
    head: Vec<HeadEntry>,
    task: Vec<TaskEntry>,
}

#[derive(Debug)]
struct SpreadEntry {
    level_sd: f64,
    task_unknown_sd: f64,
    source: String,
}

#[derive(Debug)]
struct TemperatureEntry {
    level_per_unit: f64,
    source: String,
}

#[derive(Debug)]
struct ContextEntry {
    accept_length_beyond: f64,
    level_sd_beyond: f64,
    source: String,
}

#[derive(Debug)]
struct HeadEntry {
    kind: String,
    level: f64,
    slope: f64,
    slope_sd: f64,
    source: String,
}

#[derive(Debug)]
struct TaskEntry {
    name: String,
    level_offset: f64,
    slope_offset: f64,
    data_sets: Vec<String>,
    source: String,
}

/// One table of the catalogue, by name, for errors.
struct Entry<'a> {
    name: &'a str,
    table: &'a Table,
}

impl Entry<'_> {
    fn number(&self, key: &str) -> Result<f64, String> {
        let number = match self.table.get(key) {
            Some(Value::Float(f)) => Some(*f),
            Some(Value::Integer(i)) => Some(*i as f64),
            _ => None,
        };
        number.ok_or_else(|| format!("{}: no number {key}", self.name))
    }

    fn text(&self, key: &str) -> Result<String, String> {
        let text = self.table.get(key).and_then(Value::as_str);
        text.map(str::to_string)
            .ok_or_else(|| format!("{}: no text {key}", self.name))
    }
}

/// Parses by hand: a derive would bring the compiler's whole macro stack into a small library.
fn parse_catalogue() -> Result<Catalogue, String> {
    let root: Table = include_str!("../../catalog/acceptance.toml")
        .parse()
        .map_err(|e: toml::de::Error| e.to_string())?;
    let one = |name: &'static str| -> Result<Entry, String> {
        let table = root.get(name).and_then(Value::as_table);
        table
            .map(|table| Entry { name, table })
            .ok_or_else(|| format!("no table {name}"))
    };
    let many = |name: &'static str| -> Vec<Entry> {
        let entries = root.get(name).and_then(Value::as_array);
        let tables = entries.into_iter().flatten().filter_map(Value::as_table);
        tables.map(|table| Entry { name, table }).collect()
    };
    let (spread, temperature, context) = (one("spread")?, one("temperature")?, one("context")?);
    Ok(Catalogue {
        spread: SpreadEntry {
            level_sd: spread.number("level_sd")?,
            task_unknown_sd: spread.number("task_unknown_sd")?,
            source: spread.text("source")?,
        },
        temperature: TemperatureEntry {
            level_per_unit: temperature.number("level_per_unit")?,
            source: temperature.text("source")?,
        },
        context: ContextEntry {
            accept_length_beyond: context.number("accept_length_beyond")?,
            level_sd_beyond: context.number("level_sd_beyond")?,
            source: context.text("source")?,
        },
        head: many("head")
            .iter()
            .map(head_from)
            .collect::<Result<_, _>>()?,
        task: many("task")
            .iter()
            .map(task_from)
            .collect::<Result<_, _>>()?,
    })
}

fn head_from(entry: &Entry) -> Result<HeadEntry, String> {
    Ok(HeadEntry {
        kind: entry.text("kind")?,
        level: entry.number("level")?,
        slope: entry.number("slope")?,
        slope_sd: entry.number("slope_sd")?,
        source: entry.text("source")?,
    })
}

fn task_from(entry: &Entry) -> Result<TaskEntry, String> {
    let names = entry.table.get("data_sets").and_then(Value::as_array);
    Ok(TaskEntry {
        name: entry.text("name")?,
        level_offset: entry.number("level_offset")?,
        slope_offset: entry.number("slope_offset")?,
        data_sets: names
            .into_iter()
            .flatten()
            .filter_map(|n| n.as_str().map(str::to_string))
            .collect(),
        source: entry.text("source")?,
    })
}

fn catalogue() -> &'static Catalogue {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| parse_catalogue().unwrap_or_else(|_| Catalogue::empty()))
}

impl Catalogue {
    /// Keeps the library free of panics; a test parses the real one, so this cannot ship.
    fn empty() -> Self {
        Self {
            spread: SpreadEntry {
                level_sd: 0.6,
                task_unknown_sd: 0.35,
                source: String::new(),
            },
            temperature: TemperatureEntry {
                level_per_unit: 0.0,
                source: String::new(),
            },
            context: ContextEntry {
                accept_length_beyond: 1.1,
                level_sd_beyond: 0.8,
                source: String::new(),
            },
            head: Vec::new(),
            task: Vec::new(),
        }
    }
}

fn head_entry(head: HeadKind) -> Option<&'static HeadEntry> {
    catalogue().head.iter().find(|e| e.kind == head.name())
}

fn task_entry(task: Task) -> Option<&'static TaskEntry> {
    catalogue().task.iter().find(|e| e.name == task.name())
}

/// Slope of a head kind over all tasks: mean and spread between curves.
pub fn slope_of_head(head: HeadKind) -> Spread {
    head_entry(head).map_or(
        Spread {
            mean: -0.15,
            sd: 0.15,
        },
        |e| Spread {
            mean: e.slope,
            sd: e.slope_sd,
        },
    )
}

/// Slope of a head kind on a task.
pub fn slope_for(head: HeadKind, task: Option<Task>) -> Spread {
    let slope = slope_of_head(head);
    let offset = task.and_then(task_entry).map_or(0.0, |t| t.slope_offset);
    Spread {
        mean: slope.mean + offset,
        sd: slope.sd,
    }
}

/// Level offset of a task; of an unknown one the mean over chat, code, math, questions, summaries.
fn task_level(task: Option<Task>) -> f64 {
    let offset = |t: Task| task_entry(t).map_or(0.0, |e| e.level_offset);
    match task {
        Some(task) => offset(task),
        None => {
            let common = [
                Task::Chat,
                Task::Code,
                Task::Math,
                Task::HardQa,
                Task::Summary,
            ];
            common.iter().map(|&t| offset(t)).sum::<f64>() / common.len() as f64
        }
    }
}

/// Trained lengths over which a head's gain falls to 1/e (the catalogue's `[context]`).
const DECAY_RATIO: f64 = 3.0;

impl AcceptancePrior {
    /// The prior for what is known.
    pub fn new(query: &PriorQuery) -> Self {
        let catalogue = catalogue();
        let mut sources = Vec::new();
        let head_level = head_entry(query.head).map_or(0.9, |entry| {
            sources.push(format!("head {}: {}", entry.kind, entry.source));
            entry.level
        });
        let mut level_sd = catalogue.spread.level_sd;
        match query.task.and_then(task_entry) {
            Some(entry) => sources.push(format!("task {}: {}", entry.name, entry.source)),
            None => {
                level_sd = level_sd.hypot(catalogue.spread.task_unknown_sd);
                sources.push(
                    "task not known: between chat, code, math, questions and summaries".into(),
                );
            }
        }
        let temperature = query
            .temperature
            .filter(|t| t.is_finite())
            .unwrap_or(0.0)
            .clamp(0.0, 2.0);
        if temperature > 0.0 {
            sources.push(format!("temperature: {}", catalogue.temperature.source));
        }
        sources.push(format!("spread: {}", catalogue.spread.source));
        let slope = slope_for(query.head, query.task);
        let mut level = Spread {
            mean: head_level
                + task_level(query.task)
                + temperature * catalogue.temperature.level_per_unit,
            sd: level_sd,
        };
        if let (Some(context), Some(trained)) = (query.context_tokens, query.trained_context_tokens)
            && context > trained
        {
            // The one head measured: 2.30, 1.40, 1.09 at 1, 5 and 8 times its trained length.
            // Others fall otherwise, so the spread grows as the gain goes.
            let kept = (-(context / trained.max(1.0) - 1.0) / DECAY_RATIO).exp();
            let within = Chain::new(level.mean, slope.mean).accept_length(3);
            let least = catalogue.context.accept_length_beyond.min(within);
            let length = least.max(1.0 + (within - 1.0) * kept);
            if let Ok(chain) = Chain::with_slope(length, 3, slope.mean) {
                let beyond_sd = (1.0 - kept) * catalogue.context.level_sd_beyond;
                level = Spread {
                    mean: chain.level,
                    sd: level.sd.hypot(beyond_sd),
                };
            }
            sources.push(format!(
                "context {context} is beyond the head's trained length {trained}: {}",
                catalogue.context.source
            ));
        }
        Self {
            level,
            slope,
            sources,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_parses_and_names_every_head_and_task() {
        let catalogue = parse_catalogue();
        assert_eq!(catalogue.as_ref().err(), None);
        for head in HeadKind::ALL {
            assert!(head_entry(head).is_some(), "{}", head.name());
        }
        for task in Task::ALL {
            assert!(task_entry(task).is_some(), "{}", task.name());
            assert_eq!(Task::parse(task.name()), Ok(task));
        }
        assert_eq!(catalogue.map(|c| c.task.len()), Ok(Task::ALL.len()));
    }

    #[test]
    fn data_set_names_find_their_task() {
        for (name, task) in [
            ("SPEED-Bench/coding", Task::Code),
            ("SPEED-Bench/code", Task::Code),
            ("GSM8K", Task::Math),
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

    #[test]
    fn one_token_past_the_trained_context_changes_next_to_nothing() {
        let level = |context: f64| {
            let mut query = PriorQuery::of(HeadKind::Eagle3);
            query.trained_context_tokens = Some(2048.0);
            query.context_tokens = Some(context);
            AcceptancePrior::new(&query).level.mean
        };
        assert!((0.0..0.01).contains(&(level(2048.0) - level(2049.0))));
    }

    #[test]
    fn a_head_far_beyond_its_trained_context_is_expected_to_accept_next_to_nothing() {
        let mut query = PriorQuery::of(HeadKind::Eagle3);
        query.context_tokens = Some(40_960.0);
        query.trained_context_tokens = Some(2048.0);
        let prior = AcceptancePrior::new(&query);
        let length = Chain::new(prior.level.mean, prior.slope.mean).accept_length(3);
        assert!((length - 1.1).abs() < 1e-6, "{length}");
        query.trained_context_tokens = Some(32_768.0);
        assert!(AcceptancePrior::new(&query).level.mean > 0.5);
    }
}
