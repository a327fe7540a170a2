//! `catalog/acceptance.toml`, parsed once.

use std::sync::OnceLock;

use toml::{Table, Value};

use super::task::Task;
use crate::head::HeadKind;

#[derive(Debug)]
pub(super) struct Catalogue {
    pub(super) spread: SpreadEntry,
    pub(super) temperature: TemperatureEntry,
    pub(super) context: ContextEntry,
    pub(super) head: Vec<HeadEntry>,
    pub(super) trained: Vec<TrainedEntry>,
    pub(super) task: Vec<TaskEntry>,
}

#[derive(Debug)]
pub(super) struct SpreadEntry {
    pub(super) level_sd: f64,
    pub(super) task_unknown_sd: f64,
    /// Between the offsets of tasks.
    pub(super) task_sd: f64,
    /// Of one pair's own difference between two tasks.
    pub(super) task_pair_sd: f64,
    pub(super) source: String,
}

#[derive(Debug)]
pub(super) struct TemperatureEntry {
    pub(super) level_per_unit: f64,
    pub(super) source: String,
}

#[derive(Debug)]
pub(super) struct ContextEntry {
    pub(super) accept_length_beyond: f64,
    pub(super) level_sd_beyond: f64,
    /// Tokens of text that recipes train EAGLE heads on: the least and the usual.
    pub(super) recipe_least: f64,
    pub(super) recipe_usual: f64,
    pub(super) source: String,
}

#[derive(Debug)]
pub(super) struct HeadEntry {
    pub(super) kind: String,
    /// Positions it was trained to draft, where that decides the slope.
    pub(super) trained_steps: Option<u32>,
    pub(super) level: f64,
    pub(super) slope: f64,
    pub(super) slope_sd: f64,
    pub(super) source: String,
}

/// Models whose head is known to be trained for few positions.
#[derive(Debug)]
pub(super) struct TrainedEntry {
    pub(super) head: String,
    pub(super) steps: u32,
    /// Parts of the model's name, lower case.
    pub(super) models: Vec<String>,
    /// Names with these parts are other models.
    pub(super) but_not: Vec<String>,
    pub(super) source: String,
}

#[derive(Debug)]
pub(super) struct TaskEntry {
    pub(super) name: String,
    pub(super) level_offset: f64,
    pub(super) slope_offset: f64,
    /// Target-draft pairs behind the offset, where they are few.
    pub(super) pairs: Option<f64>,
    pub(super) data_sets: Vec<String>,
    pub(super) source: String,
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

    /// A list of texts, empty where there is none.
    fn texts(&self, key: &str) -> Vec<String> {
        let texts = self.table.get(key).and_then(Value::as_array);
        let texts = texts.into_iter().flatten();
        texts
            .filter_map(|n| n.as_str().map(str::to_string))
            .collect()
    }
}

/// Parses by hand: a derive would bring the compiler's whole macro stack into a small library.
pub(super) fn parse_catalogue() -> Result<Catalogue, String> {
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
            task_sd: spread.number("task_sd")?,
            task_pair_sd: spread.number("task_pair_sd")?,
            source: spread.text("source")?,
        },
        temperature: TemperatureEntry {
            level_per_unit: temperature.number("level_per_unit")?,
            source: temperature.text("source")?,
        },
        context: ContextEntry {
            accept_length_beyond: context.number("accept_length_beyond")?,
            level_sd_beyond: context.number("level_sd_beyond")?,
            recipe_least: context.number("recipe_least")?,
            recipe_usual: context.number("recipe_usual")?,
            source: context.text("source")?,
        },
        head: many("head")
            .iter()
            .map(head_from)
            .collect::<Result<_, _>>()?,
        trained: many("trained")
            .iter()
            .map(trained_from)
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
        trained_steps: entry.number("trained_steps").ok().map(|n| n as u32),
        level: entry.number("level")?,
        slope: entry.number("slope")?,
        slope_sd: entry.number("slope_sd")?,
        source: entry.text("source")?,
    })
}

fn trained_from(entry: &Entry) -> Result<TrainedEntry, String> {
    Ok(TrainedEntry {
        head: entry.text("head")?,
        steps: entry.number("steps")? as u32,
        models: entry.texts("models"),
        but_not: entry.texts("but_not"),
        source: entry.text("source")?,
    })
}

fn task_from(entry: &Entry) -> Result<TaskEntry, String> {
    Ok(TaskEntry {
        name: entry.text("name")?,
        level_offset: entry.number("level_offset")?,
        slope_offset: entry.number("slope_offset")?,
        pairs: entry.number("pairs").ok().filter(|pairs| *pairs >= 1.0),
        data_sets: entry.texts("data_sets"),
        source: entry.text("source")?,
    })
}

pub(super) fn catalogue() -> &'static Catalogue {
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
                task_sd: 0.5,
                task_pair_sd: 0.6,
                source: String::new(),
            },
            temperature: TemperatureEntry {
                level_per_unit: 0.0,
                source: String::new(),
            },
            context: ContextEntry {
                accept_length_beyond: 1.1,
                level_sd_beyond: 0.8,
                recipe_least: 2048.0,
                recipe_usual: 4096.0,
                source: String::new(),
            },
            head: Vec::new(),
            trained: Vec::new(),
            task: Vec::new(),
        }
    }
}

/// The entry of a head kind, that for its trained positions where there is one.
pub(super) fn head_entry(head: HeadKind, trained_steps: Option<u32>) -> Option<&'static HeadEntry> {
    let of_kind = || catalogue().head.iter().filter(|e| e.kind == head.name());
    let trained = |e: &&HeadEntry| e.trained_steps.is_some() && e.trained_steps == trained_steps;
    let any = |e: &&HeadEntry| e.trained_steps.is_none();
    of_kind().find(trained).or_else(|| of_kind().find(any))
}

pub(super) fn task_entry(task: Task) -> Option<&'static TaskEntry> {
    catalogue().task.iter().find(|e| e.name == task.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_parses_and_names_every_head_and_task() {
        let catalogue = parse_catalogue();
        assert_eq!(catalogue.as_ref().err(), None);
        for head in HeadKind::ALL {
            assert!(head_entry(head, None).is_some(), "{}", head.name());
        }
        for task in Task::ALL {
            assert!(task_entry(task).is_some(), "{}", task.name());
            assert_eq!(Task::parse(task.name()), Ok(task));
        }
        assert_eq!(catalogue.map(|c| c.task.len()), Ok(Task::ALL.len()));
    }
}
