//! Serving engines: which one, which version, and what that version does with memory. One file an
//! engine; this one reads names and versions.

pub(crate) mod kv_default;
pub(crate) mod llamacpp;
pub(crate) mod sglang;
pub(crate) mod trtllm;
pub(crate) mod vllm;

use std::fmt;

/// A serving engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// TensorRT-LLM.
    TensorRtLlm,
    /// llama.cpp and forks.
    LlamaCpp,
}

impl EngineKind {
    /// Name as typed on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::TensorRtLlm => "trtllm",
            Self::LlamaCpp => "llamacpp",
        }
    }

    /// The flag that sets the memory fraction.
    pub fn fraction_flag(self) -> &'static str {
        match self {
            Self::Sglang => "--mem-fraction-static",
            Self::Vllm => "--gpu-memory-utilization",
            Self::TensorRtLlm => "free_gpu_memory_fraction",
            Self::LlamaCpp => "--ctx-size",
        }
    }
}

/// A release number, or the month of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Major, minor, patch.
    Number(u32, u32, u32),
    /// Year and month.
    Date(u32, u32),
}

impl Version {
    /// Whether this is at or after a release, known by number and by month.
    pub fn since(self, number: (u32, u32, u32), date: (u32, u32)) -> bool {
        match self {
            Self::Number(major, minor, patch) => (major, minor, patch) >= number,
            Self::Date(year, month) => (year, month) >= date,
        }
    }

    /// Finds a version in text such as `0.11.0 V1`, `0.5.x 2026-07`, `fork, 2026-05`.
    pub fn find(text: &str) -> Option<Self> {
        let words = || text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-'));
        let number = words().find_map(number_in);
        let date = words().find_map(date_in);
        match (number, date) {
            // A development build calls itself 0.0.0; its date says more.
            (Some(Self::Number(0, 0, 0)) | None, Some(date)) => Some(date),
            (number, _) => number,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(major, minor, patch) => write!(f, "{major}.{minor}.{patch}"),
            Self::Date(year, month) => write!(f, "{year}-{month:02}"),
        }
    }
}

/// `0.5.12`, `v0.24`, `0.20.2rc1.dev249`; not `0.5.x`, which leaves the month to say.
fn number_in(word: &str) -> Option<Version> {
    let word = word.trim_start_matches(['v', 'V']).trim_matches('.');
    let mut parts = word.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = leading_digits(parts.next()?)?;
    let patch = match parts.next() {
        Some(part) => leading_digits(part)?,
        None => 0,
    };
    Some(Version::Number(major, minor, patch))
}

fn leading_digits(text: &str) -> Option<u32> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// `2026-05` or `2026-05-20`.
fn date_in(word: &str) -> Option<Version> {
    let mut parts = word.split('-');
    let year = parts.next()?.parse::<u32>().ok()?;
    let month = parts.next()?.parse::<u32>().ok()?;
    let plausible = (2022..2100).contains(&year) && (1..=12).contains(&month);
    plausible.then_some(Version::Date(year, month))
}

/// An engine at a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// Which engine.
    pub kind: EngineKind,
    /// Which version; where none was given, the newest whose rules are known here.
    pub version: Version,
    /// Whether the version was assumed.
    pub assumed_version: bool,
}

impl Engine {
    /// Engines [`Engine::parse`] takes, for an error line.
    pub const NAMES: &str =
        "sglang, vllm, trtllm, llamacpp, each with @VERSION (0.5.12) or @YYYY-MM";

    /// An engine at the newest version whose rules are known here.
    pub fn newest(kind: EngineKind) -> Self {
        let version = match kind {
            EngineKind::Sglang => Version::Number(0, 5, 23),
            EngineKind::Vllm => Version::Number(0, 33, 0),
            EngineKind::TensorRtLlm => Version::Number(1, 2, 0),
            EngineKind::LlamaCpp => Version::Date(2026, 9),
        };
        Self {
            kind,
            version,
            assumed_version: true,
        }
    }

    /// An engine at a version.
    pub fn at(kind: EngineKind, version: Version) -> Self {
        Self {
            kind,
            version,
            assumed_version: false,
        }
    }

    /// The engine whose rules are used for this one: itself, or the newest known here for a release
    /// after that.
    pub fn rules(self) -> Self {
        match (self.version, Self::newest(self.kind).version) {
            (Version::Number(a, b, c), Version::Number(x, y, z)) if (a, b, c) > (x, y, z) => {
                Self::at(self.kind, Version::Number(x, y, z))
            }
            _ => self,
        }
    }

    /// Reads `sglang`, `vllm@0.11`, `sglang@2026-05`.
    ///
    /// # Errors
    /// One line that says what is known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let kind = match name
            .trim()
            .to_ascii_lowercase()
            .replace(['-', '_', '.', ' '], "")
            .as_str()
        {
            "sglang" | "sgl" => EngineKind::Sglang,
            "vllm" => EngineKind::Vllm,
            "trtllm" | "tensorrtllm" | "trt" => EngineKind::TensorRtLlm,
            "llamacpp" | "ikllamacpp" | "llama" => EngineKind::LlamaCpp,
            _ => {
                return Err(format!(
                    "engine `{name}` is not known; known: {}",
                    Self::NAMES
                ));
            }
        };
        match version {
            None => Ok(Self::newest(kind)),
            Some(version) => Version::find(version)
                .map(|version| Self::at(kind, version))
                .ok_or_else(|| {
                    format!("`{version}` is no version; write {name}@0.5.12 or {name}@2026-05")
                }),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_logs_and_notes_write_them() {
        let find = |text| Version::find(text).map(|v| v.to_string());
        assert_eq!(find("0.4.3/0.4.4 era").as_deref(), Some("0.4.3"));
        assert_eq!(find("0.5.x 2026-07").as_deref(), Some("2026-07"));
        assert_eq!(find("0.0.0.dev (2026-09)").as_deref(), Some("2026-09"));
        assert_eq!(find("0.11.0 V1").as_deref(), Some("0.11.0"));
        assert_eq!(find("main 2026-08-26").as_deref(), Some("2026-08"));
        assert_eq!(find("v0.20.2rc1.dev249+fork").as_deref(), Some("0.20.2"));
        assert_eq!(find("2026-07 fork").as_deref(), Some("2026-07"));
        assert_eq!(find("nightly"), None);
    }
}
