//! Which release of an engine serves a model, and which draft with it: read from the releases
//! themselves (`xtask/catalog/releases.toml`).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kvplan::{Model, Version};
use serde::Deserialize;
use spec_decode::HeadKind;

use super::{EngineChoice, EngineKind};

/// The table as text, compiled in.
const CATALOG: &str = include_str!("../../catalog/releases.toml");

#[derive(Debug, Default, Deserialize)]
struct Catalog {
    sglang: Releases,
    vllm: Releases,
    /// Class in a published config, class that the engines serve it by.
    same_as: BTreeMap<String, String>,
    /// Class, class whose layers it has.
    layers_of: BTreeMap<String, String>,
}

/// What was read of one engine.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Releases {
    /// Releases read, oldest first.
    pub(crate) read: Vec<String>,
    /// Kind of draft, releases that take it.
    methods: BTreeMap<String, String>,
    pub(crate) classes: BTreeMap<String, Class>,
}

/// Releases that serve a class, plain and with its drafts.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Class {
    pub(crate) known: String,
    eagle3: Option<String>,
    mtp: Option<String>,
    dflash: Option<String>,
}

pub(crate) type Number = (u32, u32, u32);

/// Whether a release has something.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Has {
    Yes,
    /// The next release that has it, where one does.
    No(Option<String>),
}

fn catalog() -> &'static Catalog {
    static ALL: OnceLock<Catalog> = OnceLock::new();
    ALL.get_or_init(|| toml::from_str(CATALOG).unwrap_or_default())
}

pub(crate) fn number(text: &str) -> Option<Number> {
    match Version::find(text)? {
        Version::Number(major, minor, patch) => Some((major, minor, patch)),
        Version::Date(..) => None,
    }
}

/// The release by which it is told what a version serves; of SGLang's builds of a month, of which no more
/// is known, the newest release that was out by then: an older one serves no more.
pub(crate) fn judged_by(engine: EngineKind, version: &str) -> Option<Number> {
    match Version::find(version)? {
        Version::Number(major, minor, patch) => Some((major, minor, patch)),
        Version::Date(year, month) if engine == EngineKind::Sglang => {
            crate::explain::newest_sglang_by((year, month))
        }
        Version::Date(..) => None,
    }
}

impl Releases {
    pub(crate) fn of(engine: EngineKind) -> Option<&'static Self> {
        match engine {
            EngineKind::Sglang => Some(&catalog().sglang),
            EngineKind::Vllm => Some(&catalog().vllm),
            EngineKind::TrtLlm | EngineKind::LlamaCpp => None,
        }
    }

    /// `spans` as the table writes them (`0.9.2..0.24.0 0.30.0`). A release between two that were
    /// read may be the first that has it.
    pub(crate) fn has(&self, at: Number, spans: Option<&str>) -> Has {
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
    pub(crate) fn draft<'a>(&'a self, class: &'a Class, head: HeadKind) -> Option<Draft<'a>> {
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

    /// Whether a release, the newest where none is said, serves a class with a kind of draft.
    fn has_draft(&self, at: Option<Number>, class: &Class, head: HeadKind) -> Has {
        let newest = || self.read.last().and_then(|read| number(read));
        let draft = self.draft(class, head);
        let both = draft.zip(at.or_else(newest));
        both.map_or(Has::Yes, |(draft, at)| self.serves(at, &draft))
    }

    /// Whether a release serves a draft, as far as both say.
    pub(crate) fn serves(&self, at: Number, draft: &Draft<'_>) -> Has {
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

/// Whether the newest release of SGLang or vLLM serves a model with a kind of draft, as far as one of
/// them knows the model.
pub(super) fn any_serves(target: &Model, head: HeadKind) -> bool {
    let Some(name) = class_of(target) else {
        return true;
    };
    let both = [EngineKind::Sglang, EngineKind::Vllm].map(Releases::of);
    let mut known = both.into_iter().flatten();
    known.any(|releases| {
        let class = releases.classes.get(name);
        class.is_some_and(|class| releases.has_draft(None, class, head) == Has::Yes)
    })
}

/// The first of some kinds of draft that an engine serves a model with: of its release, else of a
/// later one. Beside it who does not serve those before it. Of an engine that no table is of, SGLang
/// and vLLM tell whether there is code for the model; the last kind is taken where neither has any.
pub(super) fn first_served(
    target: &Model,
    engine: &EngineChoice,
    heads: &[HeadKind],
) -> (Option<HeadKind>, String) {
    let class = |releases: &'static Releases| releases.classes.get(class_of(target)?);
    let first = heads.first().copied();
    let Some(releases) = Releases::of(engine.kind) else {
        let both = [EngineKind::Sglang, EngineKind::Vllm].map(Releases::of);
        let known = || {
            both.into_iter()
                .flatten()
                .filter_map(|r| Some((r, class(r)?)))
        };
        let by_any = |head: &&HeadKind| {
            known().any(|(releases, class)| releases.has_draft(None, class, **head) == Has::Yes)
        };
        let served = heads.iter().find(by_any).or(heads.last()).copied();
        let unknown = known().next().is_none();
        let who = "no release of SGLang or vLLM serves".to_string();
        return (if unknown { first } else { served }, who);
    };
    let Some(class) = class(releases) else {
        return (first, String::new());
    };
    let title = engine.kind.title();
    let version = engine.version.as_deref();
    let at = version.and_then(|version| judged_by(engine.kind, version));
    let has = |head: &HeadKind| releases.has_draft(at, class, *head);
    let now = heads.iter().find(|head| has(head) == Has::Yes);
    let later = || heads.iter().find(|head| has(head) != Has::No(None));
    let who = match (version, now) {
        (Some(version), Some(_)) => format!("{title} {version} does not serve"),
        _ => {
            let newest = releases.read.last().map_or("", String::as_str);
            format!("no {title} release to {newest} serves")
        }
    };
    (now.or_else(later).copied(), who)
}

pub(crate) struct Draft<'a> {
    pub(crate) title: &'static str,
    method: Option<&'a str>,
    /// Of drafts that the target's code must serve.
    pub(crate) of_class: Option<Option<&'a str>>,
}

/// The class by which the engines serve a model, where any release read knows it.
pub(crate) fn class_of(model: &Model) -> Option<&'static str> {
    served_as(&model.architecture)
}

/// The same of a class as a config or a log names it.
fn served_as(class: &str) -> Option<&'static str> {
    let catalog = catalog();
    let name = catalog.same_as.get(class).map_or(class, String::as_str);
    let of = |releases: &'static Releases| releases.classes.get_key_value(name);
    let (name, _) = of(&catalog.sglang).or_else(|| of(&catalog.vllm))?;
    Some(name)
}

/// Names between a class and the one whose layers it has, at most.
const MOST_NAMES: usize = 4;

/// The text class whose layers a model of `class` has; `None` of drafts' own classes, of code that runs any
/// model, and of pictures around a text model that only the config names.
pub(crate) fn layers_of(class: &str) -> Option<&'static str> {
    let inner = |class: &&'static str| {
        let stem = class.strip_suffix("ForConditionalGeneration");
        let text = || served_as(&format!("{}ForCausalLM", stem?));
        let named = catalog().layers_of.get(*class);
        named.map(String::as_str).or_else(text)
    };
    let names = std::iter::successors(served_as(class), inner).take(MOST_NAMES);
    names.last().filter(|name| name.ends_with("ForCausalLM"))
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

    #[test]
    fn layers_are_those_of_the_text_model_and_of_the_code() {
        let catalog: Catalog = toml::from_str(CATALOG).expect("reads");
        for (class, layers) in &catalog.layers_of {
            for name in [class, layers] {
                assert!(served_as(name).is_some(), "{name}");
            }
            assert!(layers_of(class).is_some(), "{class}");
        }
        for alike in [
            [
                "Qwen3_5MoeForConditionalGeneration",
                "Qwen3_5MoeForCausalLM",
            ],
            ["KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"],
            ["Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration"],
            ["MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM"],
            ["DeepseekV32ForCausalLM", "DeepseekV3ForCausalLM"],
            ["QuantMixtralForCausalLM", "MixtralForCausalLM"],
            ["TorchNativePhi3ForCausalLM", "LlamaForCausalLM"],
        ] {
            let [a, b] = alike.map(layers_of);
            assert!(a.is_some() && a == b, "{alike:?}: {a:?} {b:?}");
        }
        let other = [
            "LlamaForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
        ];
        let layers = other.map(layers_of);
        assert!(layers.iter().all(Option::is_some));
        assert!(layers[0] != layers[1] && layers[1] != layers[2]);
        for unknown in [
            "LlamaForCausalLMEagle3",
            "Qwen3_5MoeMTP",
            "DeepseekV3ForCausalLMNextN",
            "TransformersForCausalLM",
            "Mistral3ForConditionalGeneration",
            "InternVLForConditionalGeneration",
        ] {
            assert_eq!(layers_of(unknown), None, "{unknown}");
        }
    }
}
