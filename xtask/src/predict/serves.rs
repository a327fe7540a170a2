//! Which release of an engine serves a model, and which draft with it: read from the releases
//! themselves (`xtask/catalog/releases.toml`). Nothing is refused: what a release lacks is told.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kvplan::Version;
use serde::{Deserialize, Serialize};
use spec_decode::HeadKind;

use super::answer::Answer;
use super::flags::Setting;
use crate::scenario::{EngineKind, Scenario};

/// The table as text, compiled in.
const CATALOG: &str = include_str!("../../catalog/releases.toml");

#[derive(Debug, Default, Deserialize)]
struct Catalog {
    sglang: Releases,
    vllm: Releases,
    /// Class in a published config, class that the engines serve it by.
    same_as: BTreeMap<String, String>,
}

/// What was read of one engine.
#[derive(Debug, Default, Deserialize)]
struct Releases {
    /// Releases read, oldest first.
    read: Vec<String>,
    /// Kind of draft, releases that take it.
    methods: BTreeMap<String, String>,
    classes: BTreeMap<String, Class>,
}

/// Releases that serve a class, plain and with its drafts.
#[derive(Debug, Default, Deserialize)]
struct Class {
    known: String,
    eagle3: Option<String>,
    mtp: Option<String>,
    dflash: Option<String>,
}

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

type Number = (u32, u32, u32);

/// Whether a release has something.
#[derive(Debug, Clone, PartialEq)]
enum Has {
    Yes,
    /// The next release that has it, where one does.
    No(Option<String>),
}

fn catalog() -> &'static Catalog {
    static ALL: OnceLock<Catalog> = OnceLock::new();
    ALL.get_or_init(|| toml::from_str(CATALOG).unwrap_or_default())
}

fn number(text: &str) -> Option<Number> {
    match Version::find(text)? {
        Version::Number(major, minor, patch) => Some((major, minor, patch)),
        Version::Date(..) => None,
    }
}

impl Releases {
    fn of(engine: EngineKind) -> Option<&'static Self> {
        match engine {
            EngineKind::Sglang => Some(&catalog().sglang),
            EngineKind::Vllm => Some(&catalog().vllm),
            EngineKind::TrtLlm | EngineKind::LlamaCpp => None,
        }
    }

    /// `spans` as the table writes them (`0.9.2..0.24.0 0.30.0`). A release between two that were
    /// read may be the first that has it.
    fn has(&self, at: Number, spans: Option<&str>) -> Has {
        for span in spans.unwrap_or_default().split_whitespace() {
            let (from, until) = span.split_once("..").unwrap_or((span, ""));
            let Some(first) = number(from) else { continue };
            let lacked = |read: &Number| *read >= at && *read < first;
            if at < first
                && self
                    .read
                    .iter()
                    .filter_map(|r| number(r))
                    .any(|r| lacked(&r))
            {
                return Has::No(Some(from.to_string()));
            }
            if number(until).is_none_or(|until| at < until) {
                return Has::Yes;
            }
        }
        Has::No(None)
    }

    /// What a kind of draft needs of a release with this class: the method and the model code.
    fn draft<'a>(&'a self, class: &'a Class, head: HeadKind) -> Option<Draft<'a>> {
        let (method, title) = match head {
            HeadKind::Eagle3 => ("eagle3", "EAGLE-3"),
            HeadKind::Mtp | HeadKind::MtpModules => ("mtp", "MTP"),
            HeadKind::Parallel => ("dflash", "DFlash"),
            HeadKind::DraftModel => ("draft_model", "a draft model"),
            HeadKind::NGram => ("ngram", "n-gram look-up"),
            HeadKind::Eagle => return None,
        };
        let of_class = match head {
            HeadKind::Eagle3 => Some(class.eagle3.as_deref()),
            HeadKind::Mtp | HeadKind::MtpModules => Some(class.mtp.as_deref()),
            // vLLM taps a target for block drafts as for EAGLE-3.
            HeadKind::Parallel => Some(class.dflash.as_deref().or(class.eagle3.as_deref())),
            HeadKind::DraftModel | HeadKind::NGram | HeadKind::Eagle => None,
        };
        Some(Draft {
            title,
            method: self.methods.get(method).map(String::as_str),
            of_class,
        })
    }

    /// Whether a release serves a draft, as far as both say.
    fn serves(&self, at: Number, draft: &Draft<'_>) -> Has {
        let method = self.has(at, draft.method);
        let class = draft.of_class.map_or(Has::Yes, |spans| self.has(at, spans));
        match (method, class) {
            (Has::Yes, other) | (other, Has::Yes) => other,
            (Has::No(Some(a)), Has::No(Some(b))) => {
                Has::No(Some(if number(&a) > number(&b) { a } else { b }))
            }
            _ => Has::No(None),
        }
    }
}

struct Draft<'a> {
    title: &'static str,
    method: Option<&'a str>,
    /// Of drafts that the target's code must serve.
    of_class: Option<Option<&'a str>>,
}

/// The class by which the engines serve a model, where any release read knows it.
fn class_of(scenario: &Scenario) -> Option<&'static str> {
    let name = scenario.model.architecture.as_str();
    let catalog = catalog();
    let name = catalog.same_as.get(name).map_or(name, String::as_str);
    let of = |releases: &'static Releases| releases.classes.get_key_value(name);
    let (name, _) = of(&catalog.sglang).or_else(|| of(&catalog.vllm))?;
    Some(name)
}

/// What the lines to paste need that their engines' releases lack.
pub(super) fn lacking(setting: &Setting<'_>) -> Vec<Lack> {
    let engines = [EngineKind::Sglang, EngineKind::Vllm];
    let lacks = engines.map(|engine| lack(setting.scenario, engine, super::flags::head(setting)));
    lacks
        .into_iter()
        .flatten()
        .filter(|_| setting.runs)
        .collect()
}

fn lack(scenario: &Scenario, engine: EngineKind, head: Option<HeadKind>) -> Option<Lack> {
    let releases = Releases::of(engine)?;
    let name = class_of(scenario)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_releases_reads_and_every_catalogue_model_has_its_class_in_it() {
        let catalog: Catalog = toml::from_str(CATALOG).expect("reads");
        assert!(catalog.vllm.classes.len() > 150 && catalog.sglang.classes.len() > 150);
        for name in kvplan::catalog::names() {
            let found = kvplan::catalog::find(name).expect("listed");
            let class = &found.model.architecture;
            let class = catalog.same_as.get(class).unwrap_or(class);
            let in_one = [&catalog.sglang, &catalog.vllm];
            assert!(
                in_one.iter().any(|r| r.classes.contains_key(class)),
                "{name}: {class}"
            );
        }
    }

    #[test]
    fn a_release_between_those_read_may_be_the_first_and_a_gap_is_a_gap() {
        let releases = Releases {
            read: ["0.14.1", "0.16.0", "0.17.0"].map(String::from).to_vec(),
            ..Releases::default()
        };
        let has = |at, spans| releases.has(at, spans);
        let no = |first: &str| Has::No(Some(first.to_string()));
        assert_eq!(has((0, 14, 0), Some("0.16.0")), no("0.16.0"));
        assert_eq!(has((0, 15, 1), Some("0.16.0")), Has::Yes);
        assert_eq!(has((0, 18, 0), Some("0.16.0")), Has::Yes);
        assert_eq!(has((0, 16, 0), Some("0.14.1..0.16.0 0.17.0")), no("0.17.0"));
        assert_eq!(has((0, 17, 0), Some("0.14.1..0.16.0")), Has::No(None));
        assert_eq!(has((0, 17, 0), None), Has::No(None));
    }
}
