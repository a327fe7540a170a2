//! The head that a log's server drafts with, for `accept`.

use spec_decode::HeadKind;

use super::Notes;
use super::merge::{Given, Merged, draft_of_log};
use super::model::{self, names_head};
use crate::explain::LogScenario;

/// What drafted in a log, and for which model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LoggedHead {
    /// The kind of head.
    pub(crate) kind: HeadKind,
    /// The target: its catalogue name where there is one, else as the log names it.
    pub(crate) model: Option<String>,
    /// `file:line` that says so.
    pub(crate) at: String,
}

impl LoggedHead {
    /// Of a log; `None` where it names no draft, or one whose kind neither it nor the catalogue tells.
    pub(crate) fn of(log: &LogScenario) -> Option<Self> {
        let (draft, line) = draft_of_log(log)?;
        let at = format!("{}:{line}", log.file);
        let named = log.model.as_ref().map(|(name, _)| name.clone());
        let merged = Merged {
            model: named.clone().map(|name| Given::new(name, &at)),
            ..Merged::default()
        };
        let unsaid = &mut Notes::default();
        let target = model::target(&merged, unsaid).ok();
        let given = Given::new(draft.clone(), &at);
        let resolved = target.as_ref().and_then(|target| {
            let name = model::model_name_of(&merged, target);
            let named = model::named_draft(&given, name, target, unsaid, None);
            named.ok().flatten()
        });
        Some(Self {
            kind: resolved
                .map(|draft| draft.head)
                .or_else(|| by_name(&draft))?,
            model: target.map(|target| target.name).or(named),
            at,
        })
    }
}

/// The kind that a draft's name tells where its target is not known here.
fn by_name(draft: &str) -> Option<HeadKind> {
    let kind = names_head(draft).unwrap_or(draft);
    match kind {
        "dflash" => Some(HeadKind::Parallel),
        kind => HeadKind::parse(kind).ok(),
    }
}
