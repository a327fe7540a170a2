//! Public draft heads by the name of their repository, as far as a source says what their own
//! config holds. A head that is not here has shapes and a reach that nobody told.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use crate::model::Model;
use crate::quant::Quant;

const FILE: &str = include_str!("../catalog/heads.json");

#[derive(Debug, Deserialize)]
struct Entry {
    names: Vec<String>,
    /// What it was trained for: names in the catalogue and of repositories.
    targets: Vec<String>,
    source: String,
    /// Where nothing but the reach is known.
    max_position_embeddings: Option<u64>,
    /// How it is known to differ from the heads that others train for its target.
    unlike: Option<String>,
    config: Option<Value>,
}

/// What is known of a head.
#[derive(Debug, Clone)]
pub struct NamedHead {
    /// Its shapes, where they are known.
    pub model: Option<Model>,
    /// Tokens of context that its config reaches, where that is known.
    pub reach_tokens: Option<u64>,
    /// How its shapes are known to differ from the usual ones.
    pub unlike: Option<&'static str>,
    /// Where that is from.
    pub source: &'static str,
}

fn entries() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| serde_json::from_str(FILE).unwrap_or_default())
}

/// A head by its repository (`yuhuili/EAGLE3-LLaMA3.1-Instruct-8B`), or by a folder that bears its
/// name, a hub's cache too.
pub fn named_head(name: &str) -> Option<NamedHead> {
    let is = |known: &String| {
        let own = known.rsplit('/').next().unwrap_or(known);
        let cached = format!("models--{}", known.replace('/', "--"));
        name.split(['/', '\\'])
            .any(|part| part.eq_ignore_ascii_case(own) || part.eq_ignore_ascii_case(&cached))
    };
    let entry = entries().iter().find(|entry| entry.names.iter().any(is))?;
    let config = entry.config.as_ref();
    let last = name.trim_end_matches('/').rsplit('/').next();
    let model =
        config.and_then(|config| Model::from_config_value(config, last.unwrap_or(name)).ok());
    let own = model.as_ref().and_then(|model| model.max_positions);
    Some(NamedHead {
        model,
        reach_tokens: entry.max_position_embeddings.or(own),
        unlike: entry.unlike.as_deref(),
        source: &entry.source,
    })
}

/// The repository of a public EAGLE-3 head trained for a model, by the model's name in the catalogue or
/// that of its repository, in any format of its weights.
pub fn head_for(model: &str) -> Option<&'static str> {
    let name = model.trim_end_matches('/').rsplit('/').next()?;
    let name = name.to_ascii_lowercase();
    let format = |rest: &str| {
        rest.strip_prefix('-')
            .is_some_and(|f| Quant::parse(f).is_some())
    };
    let alike = |target: &String| {
        let rest = name.strip_prefix(target.as_str());
        rest.is_some_and(|rest| rest.is_empty() || format(rest))
    };
    let entry = entries().iter().find(|head| head.targets.iter().any(alike));
    entry?.names.first().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_has_a_source_and_shapes_or_a_reach() {
        assert_eq!(entries().len(), 4, "the file is read");
        for entry in entries() {
            for name in &entry.names {
                let head = named_head(name).expect("found by its own name");
                assert!(head.reach_tokens.is_some(), "{name}");
                assert!(
                    head.model.is_none_or(|model| model.draft.is_some()),
                    "{name}"
                );
                assert!(!head.source.is_empty(), "{name}");
            }
        }
    }

    #[test]
    fn a_public_head_is_known_by_its_target_in_any_format_and_by_no_other_model() {
        let llama = Some("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B");
        assert_eq!(head_for("llama-3.1-8b"), llama);
        assert_eq!(head_for("meta-llama/Llama-3.1-8B-Instruct"), llama);
        assert_eq!(head_for("org/Llama-3.1-8B-Instruct-FP8"), llama);
        assert_eq!(head_for("kimi-k2.5"), Some("AQ-MedAI/Kimi-K25-eagle3"));
        for other in ["llama-3-8b", "kimi-k2-thinking", "kimi-k2.6", "qwen3-32b"] {
            assert_eq!(head_for(other), None, "{other}");
        }
    }

    #[test]
    fn a_head_is_found_in_a_folder_and_a_hubs_cache_but_not_by_half_a_name() {
        let reach = |name: &str| named_head(name).and_then(|head| head.reach_tokens);
        assert_eq!(reach("/models/eagle3-llama3.3-instruct-70b/"), Some(2048));
        let cache = "/hub/models--yuhuili--EAGLE3-LLaMA3.3-Instruct-70B/snapshots/0a1b";
        assert_eq!(reach(cache), Some(2048));
        assert!(named_head("me/EAGLE3-LLaMA3.3-Instruct-70B-tuned").is_none());
    }
}
