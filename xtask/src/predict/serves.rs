//! What the lines to paste need that their engines' releases lack. Nothing is refused: what a release
//! lacks is told.

use kvplan::Version;
use serde::Serialize;
use spec_decode::HeadKind;

use super::answer::Answer;
use super::flags::Setting;
use crate::scenario::releases::{Class, Has, Number, Releases, class_of, number};
use crate::scenario::{EngineKind, Scenario};

/// What a release lacks for the line pasted for its engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Lack {
    /// The engine, as typed.
    pub(crate) engine: &'static str,
    /// One line: what is missing, and since when it is there.
    pub(crate) what: String,
    /// The release that the line needs; none read has it where empty.
    pub(crate) needs: Option<String>,
    /// Whether it is the engine that was asked for.
    #[serde(skip)]
    pub(crate) asked: bool,
    /// The newest release read.
    #[serde(skip)]
    newest: String,
}

/// What the lines to paste need that their engines' releases lack.
pub(super) fn lacking(setting: &Setting<'_>) -> Vec<Lack> {
    let engines = [EngineKind::Sglang, EngineKind::Vllm];
    let pasted = engines
        .into_iter()
        .filter(|engine| pastes(setting, *engine));
    let lacks = pasted.filter_map(|engine| lack_of(setting, engine));
    lacks.filter(|_| setting.runs).collect()
}

fn lack_of(setting: &Setting<'_>, engine: EngineKind) -> Option<Lack> {
    lack(setting.scenario, engine, super::flags::head(setting))
}

/// Whether a line is given for an engine: for one beside that asked for only where a release runs it.
pub(super) fn pastes(setting: &Setting<'_>, engine: EngineKind) -> bool {
    let runs = || lack_of(setting, engine).is_none_or(|lack| lack.needs.is_some());
    setting.scenario.engine.kind == engine || runs()
}

fn lack(scenario: &Scenario, engine: EngineKind, head: Option<HeadKind>) -> Option<Lack> {
    let releases = Releases::of(engine)?;
    let name = class_of(&scenario.model)?;
    let asked = scenario.engine.kind == engine;
    let said = scenario.engine.version.as_deref().filter(|_| asked);
    // A build known by its month has no number.
    let at = match said {
        Some(said) => number(said)?,
        None => number(&kvplan::Engine::newest(engine.rules()).version.to_string())?,
    };
    // What a log shows running runs.
    let runs = asked && !scenario.ran.file.is_empty();
    if runs && head.is_none_or(|head| scenario.ran.drafted_with(head)) {
        return None;
    }
    let newest = releases.read.last()?;
    let title = engine.title();
    let lack = |missing: String, verb: &str, needs: Option<String>, instead: String| {
        let what = match (&needs, said) {
            (Some(first), Some(said)) => format!("{title} {said} {verb} {missing}, {first} does"),
            (Some(first), None) => format!("{missing}: needs {title} {first} or newer"),
            (None, _) => format!("no {title} release to {newest} serves {missing}"),
        };
        Lack {
            engine: engine.name(),
            what: what + &instead,
            needs,
            asked,
            newest: newest.clone(),
        }
    };
    let class = releases.classes.get(name);
    let known = releases.has(at, class.map(|class| class.known.as_str()));
    if let Has::No(first) = known
        && !runs
    {
        return Some(lack(
            name.to_string(),
            "does not serve",
            first,
            String::new(),
        ));
    }
    let class = class?;
    let draft = releases.draft(class, head?)?;
    let Has::No(first) = releases.serves(at, &draft) else {
        return None;
    };
    let missing = match draft.of_class {
        Some(_) => format!("{} for {name}", draft.title),
        None => draft.title.to_string(),
    };
    let instead = instead(scenario, releases, class, at, head?);
    Some(lack(missing, "does not serve", first, instead))
}

/// A draft that the release does serve.
fn instead(
    scenario: &Scenario,
    releases: &Releases,
    class: &Class,
    at: Number,
    head: HeadKind,
) -> String {
    let own_layers = !scenario.model.mtp_layers.is_empty();
    let others = [
        ("mtp", HeadKind::Mtp, own_layers),
        ("eagle3", HeadKind::Eagle3, true),
        ("ngram", HeadKind::NGram, true),
    ];
    let serves = |(_, other, there): &&(&str, HeadKind, bool)| {
        let draft = releases.draft(class, *other);
        *there
            && *other != head
            && draft.is_some_and(|draft| releases.serves(at, &draft) == Has::Yes)
    };
    let found = others.iter().find(serves);
    found.map_or_else(String::new, |(name, ..)| {
        format!("; --draft {name} is served")
    })
}

/// The engine's name before its line, with the release that the line needs.
pub(crate) fn label(answer: &Answer, engine: &str) -> String {
    let lack = answer.lacking.iter().find(|lack| lack.engine == engine);
    match lack.map(|lack| (&lack.needs, &lack.newest)) {
        None => engine.to_string(),
        Some((Some(first), _)) => format!("{engine} ({first} or newer)"),
        Some((None, newest)) => format!("{engine} (in no release to {newest})"),
    }
}

/// What the engine that was asked for lacks.
pub(crate) fn of_asked(answer: &Answer) -> Option<&str> {
    let lack = answer.lacking.iter().find(|lack| lack.asked)?;
    Some(&lack.what)
}

/// The method by which the paste's vLLM is told a draft. Before 0.11.0 each family's own layers had
/// a name of their own, and are found where no method is told (config.py).
pub(super) fn vllm_method(scenario: &Scenario, head: HeadKind) -> Option<&'static str> {
    let asked = scenario.engine.kind == EngineKind::Vllm;
    let version = scenario.engine.version.as_deref().filter(|_| asked);
    let version = version.and_then(Version::find);
    let named = version.is_none_or(|version| version.since((0, 11, 0), (2025, 10)));
    Some(match head {
        HeadKind::Eagle3 => "eagle3",
        HeadKind::Mtp | HeadKind::MtpModules => return named.then_some("mtp"),
        HeadKind::Eagle => "eagle",
        HeadKind::DraftModel => "draft_model",
        HeadKind::NGram => "ngram",
        HeadKind::Parallel => "dflash",
    })
}
