//! What repository names consist of: maker, model, release, precision.

use super::{Entry, entries};
use crate::gguf::GgufMix;

/// Endings of repository names that say the precision, longest first.
const PRECISIONS: [(&str, &str); 18] = [
    ("-fp8-dynamic", "fp8-dynamic"),
    ("-fp8-block", "fp8-block"),
    ("-gptq-int4", "gptq"),
    ("-awq-int4", "awq"),
    ("-awq-4bit", "awq"),
    ("-bnb-4bit", "bnb-4bit"),
    ("-w8a16", "w8a16"),
    ("-w8a8", "w8a8"),
    ("-int8", "int8"),
    ("-w4a16", "w4a16"),
    ("-nvfp4", "nvfp4"),
    ("-mxfp4", "mxfp4"),
    ("-bf16", "bf16"),
    ("-int4", "int4"),
    ("-gptq", "gptq"),
    ("-awq", "awq"),
    ("-fp8", "fp8"),
    ("-fp4", "nvfp4"),
];

/// Endings that do not change the shapes.
const RELEASES: [&str; 10] = [
    ".gguf",
    "-gguf",
    "-instruct-2507",
    "-thinking-2507",
    "-instruct",
    "-thinking",
    "-hf",
    "-it",
    "-chat",
    // A whole checkpoint that keeps the model's own MTP layers.
    "-mtp",
];

/// The precision that a repository's name or a path ends in, whether or not the model is known.
pub fn precision_in(name: &str) -> Option<String> {
    taken_apart(&normal(name.trim_end_matches('/'))).1
}

/// The repository of the FP8 checkpoint that the maker of a BF16 one publishes beside it, called as makers
/// call theirs; `None` where the catalogue knows of none.
pub fn stored_fp8(repository: &str) -> Option<String> {
    let (maker, name) = repository.split_once('/')?;
    let local = maker.is_empty() || maker.starts_with(['.', '~']) || name.contains('/');
    let (entry, precision) = taken_apart(&normal(name));
    let entry = entry.filter(|_| !local && precision.is_none())?;
    let published = entry.default_quant == "bf16" && entry.published_fp8().is_some();
    published.then(|| format!("{repository}-FP8"))
}

/// The last part of a name, in the catalogue's spelling.
pub(super) fn normal(name: &str) -> String {
    let tail = name.trim().rsplit('/').next().unwrap_or_default();
    let full = tail.to_ascii_lowercase().replace(['_', ' '], "-");
    let full = full.replace("-quantized.", "-");
    full.replace(".quantized.", "-")
}

/// The entry of a name less its endings, and the precision among these.
pub(super) fn taken_apart(full: &str) -> (Option<&'static Entry>, Option<String>) {
    let mut plain = full;
    let mut quant = None;
    loop {
        if let Some(entry) = exact(plain) {
            return (Some(entry), quant);
        }
        let precision = PRECISIONS
            .iter()
            .find(|(ending, _)| plain.ends_with(ending));
        let release = RELEASES.iter().find(|ending| plain.ends_with(**ending));
        if let Some((ending, format)) = precision {
            plain = plain.strip_suffix(ending).unwrap_or(plain);
            quant = quant.or(Some((*format).to_string()));
        } else if let Some(ending) = release {
            plain = plain.strip_suffix(ending).unwrap_or(plain);
        } else if let Some((rest, mixture)) = gguf_ending(plain) {
            plain = rest;
            quant = quant.or(Some(mixture.to_string()));
        } else {
            return (None, quant);
        }
    }
}

/// A name that ends in a GGUF mixture (`qwen3-8b-q4-k-m`, `qwen3-8b-gguf:iq4-xs`), in its two parts.
fn gguf_ending(name: &str) -> Option<(&str, &str)> {
    let cuts = name.match_indices(['-', ':', '.']).map(|(at, _)| at);
    cuts.filter_map(|at| Some((name.get(..at)?, name.get(at + 1..)?)))
        .find(|(_, ending)| GgufMix::parse(ending).is_some())
}

/// Makers that repository names repeat in front of the model's own.
const MAKERS: [&str; 10] = [
    "meta-llama-",
    "meta-",
    "qwen-",
    "google-",
    "openai-",
    "mistralai-",
    "deepseek-ai-",
    "zai-org-",
    "moonshotai-",
    "nvidia-",
];

/// The entry of a name, or of the name behind its maker's.
fn exact(name: &str) -> Option<&'static Entry> {
    by_name(name).or_else(|| {
        MAKERS
            .iter()
            .find_map(|maker| by_name(name.strip_prefix(maker)?))
    })
}

fn by_name(name: &str) -> Option<&'static Entry> {
    entries()
        .iter()
        .find(|entry| entry.name == name || entry.aliases.iter().any(|alias| alias == name))
}
