//! Whose acceptance is asked for: the head and its target, by flag, by the log, or by default.

use std::path::Path;

use spec_decode::HeadKind;

use super::figures::Figure;
use crate::cli::AcceptCommandArgs;
use crate::input;
use crate::scenario::{drafts_by_itself, model::all_names};

/// The head where neither a flag nor a log says.
const USUAL: HeadKind = HeadKind::Eagle3;

/// Head and target.
pub(super) struct Subject {
    pub(super) head: HeadKind,
    /// The target's name, where it is known.
    pub(super) model: Option<String>,
    /// Head, target and line, where a log says.
    pub(super) by_log: Option<String>,
    /// What was taken for granted, and what disagrees.
    pub(super) notes: Vec<String>,
}

/// The head that a model of the catalogue brings along, where it is what drafts. Of a config's path
/// the name alone counts.
fn of_the_model(name: &str) -> anyhow::Result<Option<HeadKind>> {
    match kvplan::catalog::find(name) {
        Ok(found) => Ok(drafts_by_itself(&found.model).then_some(HeadKind::Mtp)),
        Err(_) if Path::new(name).exists() => Ok(None),
        Err(e) => {
            let names = all_names(&e.message);
            Err(input::error(format!("--model {name}: {e}{names}")))
        }
    }
}

impl Subject {
    /// `--head` and `--model`; where they are not given, what the first log says that names its draft.
    pub(super) fn of(args: &AcceptCommandArgs, figures: &[Figure]) -> anyhow::Result<Self> {
        let asked = match &args.head {
            Some(name) => Some(
                HeadKind::parse(name).map_err(|e| input::error(format!("--head {name}: {e}")))?,
            ),
            None => None,
        };
        let mut logged = figures.iter().filter_map(|figure| figure.logged.as_ref());
        let first = logged.next();
        let own = args.model.as_deref().map(of_the_model);
        let own = own.transpose()?.flatten();
        let known = asked.or(first.map(|log| log.kind));
        let head = known.or(own).unwrap_or(USUAL);
        // The target of another head than the log's may be another one.
        let of_log = first.filter(|log| log.kind == head);
        let model = args
            .model
            .clone()
            .or_else(|| of_log.and_then(|log| log.model.clone()));
        let by_log = of_log.filter(|_| asked.is_none()).map(|log| {
            let of = model
                .as_ref()
                .map_or(String::new(), |model| format!(" of {model}"));
            format!("{} head{of} by {}", head.name(), log.at)
        });
        let mut notes = Vec::new();
        if asked.is_none() && by_log.is_none() {
            let why = if own.is_some() {
                "the model's own"
            } else {
                "the default"
            };
            notes.push(format!(
                "{} head: {why} (--head KIND where it is another)",
                head.name()
            ));
        }
        notes.extend(
            first
                .into_iter()
                .chain(logged)
                .filter(|log| log.kind != head)
                .map(|log| {
                    format!(
                        "{}: drafts with {}, read as {} all the same",
                        log.at,
                        log.kind.name(),
                        head.name()
                    )
                }),
        );
        Ok(Self {
            head,
            model,
            by_log,
            notes,
        })
    }
}
