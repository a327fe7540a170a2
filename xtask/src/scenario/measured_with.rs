//! An accept length is of the draft that it was measured with.

use kvplan::Model;
use spec_decode::HeadKind;

use super::Notes;
use super::merge::{Given, Merged, is_look_up};
use super::model::{self, Draft};
use crate::explain::LogScenario;

/// How an accept length was measured, as far as is known.
#[derive(Debug, Clone, Default)]
pub(super) struct AcceptOf {
    /// The draft, as `--draft` takes it.
    pub(super) draft: Option<String>,
    /// The class that the engine of its server loads, with file and line, where a flag names its log.
    pub(super) class: Option<(String, String)>,
    /// Why it is none of the model's.
    pub(super) forced: Option<String>,
    /// Tokens that its requests held.
    pub(super) held_tokens: Option<f64>,
}

impl AcceptOf {
    pub(super) fn of_log(log: &LogScenario) -> Self {
        Self {
            draft: super::merge::draft_of_log(log).map(|(name, _)| name),
            forced: log.accept_forced.clone(),
            held_tokens: log.held.as_ref().map(|held| f64::from(held.tokens)),
            class: None,
        }
    }

    /// Of what `--accept` gives; its files are read once more for the rest.
    pub(super) fn of_flag(accept: &str) -> Self {
        Self {
            draft: draft_of_file(accept),
            class: class_of_files(accept),
            ..Self::default()
        }
    }
}

/// The draft of the log that `--accept` names, as `--draft` takes it.
fn draft_of_file(accept: &str) -> Option<String> {
    let path = std::path::Path::new(accept);
    let text = crate::input::read_text(path.is_file().then_some(path)?).ok()?;
    let log = crate::explain::scenario_from_log(&text, accept).ok()?;
    super::merge::draft_of_log(&log).map(|(name, _)| name)
}

/// The class that the first log says of those that `--accept` names, with file and line.
fn class_of_files(accept: &str) -> Option<(String, String)> {
    let (files, _) = super::accept_files::named(std::path::Path::new(accept));
    files.iter().find_map(|path| {
        let text = crate::input::read_text(path.is_file().then_some(path)?).ok()?;
        let shown = path.display().to_string();
        let log = crate::explain::scenario_from_log(&text, &shown).ok()?;
        let (class, line) = log.class?;
        Some((class, format!("{shown}:{line}")))
    })
}

/// Says that the accept length at hand was measured with another model, where its log names a class of other
/// layers.
fn another_model(merged: &Merged, target: &Model, notes: &mut Notes) -> bool {
    let (Some((class, at)), Some(given)) = (&merged.accept_of.class, &merged.accept) else {
        return false;
    };
    let other = super::other_model::of_other_layers(class, &target.architecture);
    if other {
        notes.assume(
            format!(
                "--accept {} is left aside: it is of another model, {class} ({at}), this answer of {}",
                given.value, target.architecture
            ),
            "",
        );
    }
    other
}

/// Says that the accept length at hand is another draft's or another model's, where it is.
pub(super) fn another(merged: &Merged, target: &Model, draft: &Draft, notes: &mut Notes) -> bool {
    if another_model(merged, target, notes) {
        return true;
    }
    let Some(with) = &merged.accept_of.draft else {
        return false;
    };
    let given_none = merged.accept.is_none() && merged.assumed.accept_length.is_none();
    if given_none || is_of(with, merged, target, draft) {
        return false;
    }
    let given = merged
        .accept
        .as_ref()
        .map(|given| match given.source.as_str() {
            "--accept" => format!("--accept {}", given.value),
            place => place.to_string(),
        });
    let place = given.unwrap_or_else(|| "the scenario".to_string());
    let name = match notes.given("method").as_str() {
        "n-gram look-up" => "n-gram look-up".to_string(),
        method => asked(merged).map_or(method.to_string(), str::to_string),
    };
    notes.assume(
        format!(
            "{place}: its accept length was measured with {with}, and is left aside for {name}"
        ),
        "",
    );
    true
}

fn asked(merged: &Merged) -> Option<&str> {
    merged.draft.as_ref().map(|given| given.value.trim())
}

/// Whether a draft that a log names is the one that is resolved, as far as the names tell.
fn is_of(with: &str, merged: &Merged, target: &Model, draft: &Draft) -> bool {
    let own = resolved(with, merged, target);
    let kind = own.as_ref().map(|own| own.head);
    let Some(kind) = kind.or_else(|| kind_by_name(with)) else {
        // Some model; which kind its name does not say.
        return draft.passes().is_some() && draft.model.is_some();
    };
    if level(kind) != level(draft.head) {
        return false;
    }
    if kind == HeadKind::DraftModel {
        return own.is_none_or(|own| own.is_like(draft));
    }
    // A kind alone, or a file that is on this machine, names no other head.
    let public = |name: &&str| {
        let local = name.starts_with(['/', '.', '~']) || std::path::Path::new(name).exists();
        name.contains('/') && !local
    };
    let (Some(asked), Some(with)) = (asked(merged).filter(public), Some(with).filter(public))
    else {
        return true;
    };
    last(asked).eq_ignore_ascii_case(last(with))
}

fn last(name: &str) -> &str {
    name.trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(name)
}

fn kind_by_name(name: &str) -> Option<HeadKind> {
    if super::suffix::is_suffix(name) {
        return None;
    }
    if is_look_up(name) {
        return Some(HeadKind::NGram);
    }
    HeadKind::parse(model::names_head(name).unwrap_or(name)).ok()
}

/// One MTP module or several are the target's own.
fn level(kind: HeadKind) -> HeadKind {
    match kind {
        HeadKind::MtpModules => HeadKind::Mtp,
        other => other,
    }
}

fn resolved(name: &str, merged: &Merged, target: &Model) -> Option<Draft> {
    let given = Given::new(name.to_string(), "");
    let owner = model::model_name_of(merged, target);
    let found = model::named_draft(&given, owner, target, &mut Notes::default(), None);
    found.ok().flatten()
}

/// Says that the only accept length known of look-up is of passes that found something, where it is.
pub(super) fn of_hits(merged: &Merged, head: HeadKind, notes: &mut Notes) -> bool {
    if head != HeadKind::NGram {
        return false;
    }
    let file = |accept: &str| {
        let path = std::path::Path::new(accept);
        let text = crate::input::read_text(path.is_file().then_some(path)?).ok()?;
        let read = crate::explain::accept_from_log(&text, accept)
            .ok()?
            .of_look_up();
        read.counts_drafts
            .then_some((read.source, read.accept_length))
    };
    let of_log = || {
        let (length, line) = merged.ran.accept_of_hits?;
        Some((format!("{}:{line}", merged.ran.file), length))
    };
    let found = match &merged.accept {
        Some(given) => file(&given.value),
        None => of_log(),
    };
    let Some((place, length)) = found else {
        return false;
    };
    notes.assume(
        format!(
            "{place}: accept length {length:.2} {}, and is left aside",
            crate::explain::UPPER_BOUND
        ),
        "",
    );
    true
}

/// Says what a figure that the user types of look-up is taken for.
pub(super) fn note_typed(given: &Given<String>, head: HeadKind, notes: &mut Notes) {
    let file = std::path::Path::new(&given.value).is_file();
    if head == HeadKind::NGram && given.source == "--accept" && !file {
        notes.assume(
            format!(
                "--accept {}: taken as of all passes (vLLM prints that of passes which found something to copy)",
                given.value
            ),
            "tokens generated over those less the accepted",
        );
    }
}
