//! An engine or a version of it that is asked for beside a log of another.

use super::other_model::other_model;
use super::{EngineKind, Notes};
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;

/// Whether `--engine` asks for another engine or version than a log's.
pub(super) fn other_engine(args: &ScenarioArgs, log: &LogScenario) -> bool {
    let Some(asked) = &args.engine else {
        return false;
    };
    let (name, version) = match asked.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (asked.as_str(), None),
    };
    let said = |said: &Option<(String, usize)>, asked: &str| {
        let said = said.as_ref().map(|(said, _)| said);
        said.is_some_and(|said| said.eq_ignore_ascii_case(asked))
    };
    // A version beside a log that says none is that log's.
    let other_version = match (version, &log.engine_version) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(version), logged) => !said(logged, version),
    };
    !said(&log.engine, name) || other_version
}

/// The log's engine where `--engine` asks for another one, whatever the versions.
pub(super) fn engine_beside(args: &ScenarioArgs, log: &LogScenario) -> Option<EngineKind> {
    let kind = |name: &str| EngineKind::parse(&super::parse::engine(name).0);
    let asked = kind(args.engine.as_ref()?)?;
    let said = kind(&log.engine.as_ref()?.0)?;
    (asked != said).then_some(said)
}

/// Says what of a log is left beside an engine that did not write it.
pub(super) fn note_lent(wrote: EngineKind, args: &ScenarioArgs, shown: &str, notes: &mut Notes) {
    let wrote = wrote.title();
    let asked = args.engine.clone().unwrap_or_default();
    let sweep = match &args.baseline {
        Some(_) => format!(
            "; the plain sweep beside it is taken for {wrote}'s, and its steps stand for those of {asked}"
        ),
        None => String::new(),
    };
    notes.assume(
        format!(
            "--engine {asked}: {shown} is of {wrote}: the model and how it is cut are taken from it, its \
             fraction and its memory are not{sweep}"
        ),
        format!("a log and a plain sweep of {asked}"),
    );
}

/// What is said of a log whose engine is asked for in another version.
pub(super) fn of_other_version(
    args: &ScenarioArgs,
    log: &LogScenario,
    shown: &str,
) -> Option<String> {
    let other = other_engine(args, log) && engine_beside(args, log).is_none();
    let (said, _) = log.engine_version.as_ref().filter(|_| other)?;
    let asked = args.engine.as_ref().filter(|_| !other_model(args, log))?;
    Some(format!(
        "--engine {asked}: {shown} is of version {said}: its memory and speeds are left aside, its flags \
         are kept"
    ))
}
