//! What the lines to paste need that their engines' releases lack. Nothing is refused: what a release
//! lacks is told.

use kvplan::Version;
use serde::Serialize;
use spec_decode::HeadKind;

use super::answer::Answer;
use super::flags::Setting;
use crate::gpus::Family;
use crate::scenario::releases::{Class, Has, Number, Releases, class_of, judged_by, number};
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
    /// What is missing, and what the release serves instead.
    #[serde(skip)]
    missing: (String, String),
    /// Whether the figures are of the release that the line needs.
    #[serde(skip)]
    answered: bool,
    /// The newest release read.
    #[serde(skip)]
    newest: String,
}

impl Lack {
    /// The same where the answer is of the first release that has it; `by`: who named the other.
    pub(crate) fn answered_for(mut self, said: &str, by: &str, release: &str) -> Self {
        let title = EngineKind::parse(self.engine).map_or(self.engine, EngineKind::title);
        let (missing, instead) = &self.missing;
        self.what = format!(
            "{title} {said} ({by}) does not serve {missing}; answered for {release}, the first that does; newer \
             ones differ: --engine {}@VERSION{instead}",
            self.engine
        );
        self.answered = true;
        self
    }
}

/// What the lines to paste need that their engines' releases lack.
pub(super) fn lacking(setting: &Setting<'_>) -> Vec<Lack> {
    let engines = [EngineKind::Sglang, EngineKind::Vllm];
    let pasted = engines
        .into_iter()
        .filter(|engine| pastes(setting, *engine));
    let answered = setting.scenario.answered_for.as_ref();
    let lacks = pasted.filter_map(|engine| {
        let answered = answered.filter(|_| setting.scenario.engine.kind == engine);
        answered
            .map(|answered| answered.lack.clone())
            .or_else(|| lack_of(setting, engine))
    });
    lacks.filter(|_| setting.runs).collect()
}

/// What the release that was named lacks, with the draft that is asked for.
pub(crate) fn lack_of_asked(scenario: &Scenario) -> Option<Lack> {
    let head = scenario.draft.as_ref().map(|draft| draft.head);
    lack(scenario, scenario.engine.kind, head)
}

fn lack_of(setting: &Setting<'_>, engine: EngineKind) -> Option<Lack> {
    lack(setting.scenario, engine, super::flags::head(setting))
}

/// Whether a line is given for an engine: for one beside that asked for only where a release runs it.
pub(super) fn pastes(setting: &Setting<'_>, engine: EngineKind) -> bool {
    let runs = || lack_of(setting, engine).is_none_or(|lack| lack.needs.is_some());
    setting.scenario.engine.kind == engine || runs()
}

/// What does not go together: what the engine that was asked for lacks for model and draft, and what
/// stood out as they were read.
pub(crate) fn misfits(scenario: &Scenario) -> Vec<String> {
    let answered = scenario.answered_for.as_ref();
    let lack = answered
        .map(|answered| answered.lack.clone())
        .or_else(|| lack_of_asked(scenario))
        .map(|lack| lack.what);
    lack.iter().chain(&scenario.misfits).cloned().collect()
}

fn lack(scenario: &Scenario, engine: EngineKind, head: Option<HeadKind>) -> Option<Lack> {
    let releases = Releases::of(engine)?;
    let name = class_of(&scenario.model)?;
    let asked = scenario.engine.kind == engine;
    let said = scenario.engine.version.as_deref().filter(|_| asked);
    let at = match said {
        Some(said) => judged_by(engine, said)?,
        None => number(&kvplan::Engine::newest(engine.rules()).version.to_string())?,
    };
    // What a log shows running runs.
    let runs = asked && !scenario.ran.file.is_empty();
    if runs && head.is_none_or(|head| scenario.ran.drafted_with(head)) {
        return None;
    }
    let newest = releases.read.last()?;
    let title = engine.title();
    let lack = |missing: String, needs: Option<String>, instead: String| {
        let what = match (&needs, said) {
            (Some(first), Some(said)) => {
                format!("{title} {said} does not serve {missing}, {first} does")
            }
            (Some(first), None) => format!("{missing}: needs {title} {first} or newer"),
            (None, _) => format!("no {title} release to {newest} serves {missing}"),
        };
        Lack {
            engine: engine.name(),
            what: what + &instead,
            missing: (missing, instead),
            answered: false,
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
        return Some(lack(name.to_string(), first, String::new()));
    }
    if let Some((missing, first)) = no_kernel(scenario, engine, at).filter(|_| !runs) {
        return Some(lack(missing, Some(first.to_string()), String::new()));
    }
    let (class, head) = (class?, head?);
    let draft = releases.draft(class, head)?;
    let (missing, first) = match releases.serves(at, &draft) {
        Has::No(first) if draft.of_class.is_some() => {
            (format!("{} for {name}", draft.title), first)
        }
        Has::No(first) => (draft.title.to_string(), first),
        Has::Yes => {
            let own_format = format_of_its_own(scenario, engine, at, head)?;
            (own_format, Some(OWN_FORMAT_SINCE.to_string()))
        }
    };
    let instead = instead((scenario, engine), releases, class, at, head);
    Some(lack(missing, first, instead))
}

/// First SGLang release whose own MXFP4 experts run on compute capability 12. Before it gpt-oss is given
/// FlashInfer's kernel there (0.5.4.post2 to 0.5.9, server_args.py), which is of capability 10 alone
/// (issue 13061), or Triton's with a layout that the card cannot load (issues 8879, 9707); pull requests
/// 19718 and 20040 gave it one (`_swizzle_mxfp4` in mxfp4.py). vLLM falls back to Marlin by itself.
const MXFP4_ON_12_SINCE: (Number, &str) = ((0, 5, 10), "0.5.10");

/// Experts in a format for which a release has no kernel on the card.
fn no_kernel(
    scenario: &Scenario,
    engine: EngineKind,
    at: Number,
) -> Option<(String, &'static str)> {
    let (since, first) = MXFP4_ON_12_SINCE;
    let mxfp4 = |layer: &kvplan::Layer| layer.formats.experts == kvplan::WeightFormat::Mxfp4;
    let lacks = engine == EngineKind::Sglang
        && scenario.gpu.family == Family::BlackwellRtx
        && at < since
        && scenario.model.layers.iter().any(mxfp4);
    lacks.then(|| (format!("MXFP4 experts on {}", scenario.gpu.name), first))
}

/// First vLLM release that gives an EAGLE-3 head a weight format of its own (pull request 25883).
const OWN_FORMAT_SINCE: &str = "0.11.1";

/// A plain head whose weights find no place in layers laid out in its target's packed format.
fn format_of_its_own(
    scenario: &Scenario,
    engine: EngineKind,
    at: Number,
    head: HeadKind,
) -> Option<String> {
    let shared = engine == EngineKind::Vllm
        && head == HeadKind::Eagle3
        && kvplan::vllm_head_in_targets_format(Version::Number(at.0, at.1, at.2));
    let packed = |model: &kvplan::Model| {
        // What a checkpoint leaves plain in its own layers stays plain in the head's.
        let formats = model.layers.last().map(|layer| layer.formats);
        formats.is_some_and(|formats| {
            [formats.attention_in, formats.dense]
                .iter()
                .any(|format| matches!(format, kvplan::WeightFormat::Int4 { .. }))
        })
    };
    let draft = scenario.draft.as_ref()?.model.as_ref()?;
    (shared && packed(&scenario.model) && !packed(draft))
        .then(|| "an EAGLE-3 head whose format is not its target's (int4 here)".to_string())
}

/// A draft that the release does serve.
fn instead(
    (scenario, engine): (&Scenario, EngineKind),
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
        match scenario.engine.version.as_deref() {
            Some(said) if scenario.engine.kind == engine => {
                format!("; {said} serves --draft {name}")
            }
            _ => format!("; --draft {name} is served"),
        }
    })
}

/// The engine's name before its line, with the release that the line needs.
pub(crate) fn label(answer: &Answer, engine: &str) -> String {
    let lack = answer.lacking.iter().find(|lack| lack.engine == engine);
    let Some(lack) = lack else {
        return engine.to_string();
    };
    match &lack.needs {
        // Other releases have other figures, and take another line.
        Some(first) if lack.answered => format!("{engine} ({first})"),
        Some(first) => format!("{engine} ({first} or newer)"),
        None => format!("{engine} (in no release to {})", lack.newest),
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
        HeadKind::NGram => match scenario.ran.method.as_deref() {
            Some("ngram_gpu") => "ngram_gpu",
            _ => "ngram",
        },
        HeadKind::Parallel => "dflash",
    })
}
