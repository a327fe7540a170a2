//! The engine and its version.

use super::merge::Merged;
use super::{Notes, parse};
use crate::input;

/// Which serving engine, and the version that its formulas are taken from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EngineChoice {
    pub(crate) kind: EngineKind,
    pub(crate) version: Option<String>,
}

/// The engines whose memory and step costs are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKind {
    Sglang,
    Vllm,
    TrtLlm,
    LlamaCpp,
}

impl EngineKind {
    /// Name as typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::TrtLlm => "trtllm",
            Self::LlamaCpp => "llamacpp",
        }
    }

    /// Name as its makers write it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Sglang => "SGLang",
            Self::Vllm => "vLLM",
            Self::TrtLlm => "TensorRT-LLM",
            Self::LlamaCpp => "llama.cpp",
        }
    }

    /// The flag that says how many requests run at once.
    pub(crate) fn running_flag(self) -> &'static str {
        match self {
            Self::Sglang => "--max-running-requests",
            Self::Vllm => "--max-num-seqs",
            Self::TrtLlm => "--max_batch_size",
            Self::LlamaCpp => "-np",
        }
    }

    /// The same engine as the memory rules name it.
    pub(crate) fn rules(self) -> kvplan::EngineKind {
        match self {
            Self::Sglang => kvplan::EngineKind::Sglang,
            Self::Vllm => kvplan::EngineKind::Vllm,
            Self::TrtLlm => kvplan::EngineKind::TensorRtLlm,
            Self::LlamaCpp => kvplan::EngineKind::LlamaCpp,
        }
    }

    /// The engine of a name, however it is spelt.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name.replace(['-', '_', '.'], "").as_str() {
            "sglang" => Some(Self::Sglang),
            "vllm" => Some(Self::Vllm),
            "trtllm" | "tensorrtllm" => Some(Self::TrtLlm),
            "llamacpp" | "llama" => Some(Self::LlamaCpp),
            _ => None,
        }
    }
}

/// Reads `--engine NAME[@VERSION]`; SGLang where nothing says it.
pub(super) fn resolve(merged: &Merged, notes: &mut Notes) -> anyhow::Result<EngineChoice> {
    let (text, source) = match &merged.engine {
        Some(given) => (given.value.clone(), given.source.clone()),
        None => {
            notes.assume("engine: SGLang", "--engine");
            ("sglang".to_string(), "assumed".to_string())
        }
    };
    let shown = merged
        .engine
        .as_ref()
        .map_or_else(|| format!("--engine {text}"), |g| g.shown("--engine"));
    let (name, version) = parse::engine(&text);
    let kind = EngineKind::parse(&name).ok_or_else(|| {
        input::error(format!(
            "{shown}: not an engine known here; give sglang, vllm, trtllm or llamacpp, with \
             @VERSION where it matters"
        ))
    })?;
    check_version(kind, &text, version.as_deref(), &shown, notes)?;
    notes.input("engine", text, source);
    Ok(EngineChoice { kind, version })
}

/// Says that a version is newer than the memory rules, which are then the newest known.
pub(crate) fn newer_than_known(kind: EngineKind, version: &str) -> Option<String> {
    let asked = kvplan::Engine::at(kind.rules(), kvplan::Version::find(version)?);
    let used = asked.rules().version;
    (used != asked.version).then(|| {
        format!(
            "{} {version}: newer than the rules known here, those of {used} are used",
            kind.name()
        )
    })
}

/// A version is a number with a point (0.5.12) or a month (2026-05). One that no release had is
/// refused; one newer than the rules known here takes the newest rules, and that is said.
fn check_version(
    kind: EngineKind,
    text: &str,
    version: Option<&str>,
    shown: &str,
    notes: &mut Notes,
) -> anyhow::Result<()> {
    let newest = kvplan::Engine::newest(kind.rules()).version;
    let wrong = |what: &str| {
        input::error(format!(
            "{shown}: {what}; write {0}@{newest} or {0}@2026-05, or leave the version out",
            kind.name()
        ))
    };
    let Some(version) = version else {
        return if text.contains('@') {
            Err(wrong("no version behind the @"))
        } else {
            Ok(())
        };
    };
    // llama.cpp counts builds (b6123): nothing here depends on them.
    if kind == EngineKind::LlamaCpp {
        return Ok(());
    }
    let found = kvplan::Version::find(version)
        .ok_or_else(|| wrong("not a version (two numbers with a point, or a month)"))?;
    if matches!(found, kvplan::Version::Number(0, 0, _)) {
        return Err(wrong("no release has this number"));
    }
    if let Some(note) = newer_than_known(kind, version) {
        notes.assume(note, "");
    }
    Ok(())
}
