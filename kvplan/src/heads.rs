//! Public draft heads by the name of their repository, as far as a source says what their own
//! config holds. A head that is not here has shapes and a reach that nobody told.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use crate::model::Model;

const FILE: &str = include_str!("../catalog/heads.json");

#[derive(Debug, Deserialize)]
struct Entry {
    names: Vec<String>,
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
    /// Tokens of context that its config reaches, where no shapes are known.
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
    Some(NamedHead {
        model: config
            .and_then(|config| Model::from_config_value(config, last.unwrap_or(name)).ok()),
        reach_tokens: entry.max_position_embeddings,
        unlike: entry.unlike.as_deref(),
        source: &entry.source,
    })
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
                let reach = head.model.as_ref().and_then(|model| model.max_positions);
                assert!(reach.or(head.reach_tokens).is_some(), "{name}");
                assert!(
                    head.model.is_none_or(|model| model.draft.is_some()),
                    "{name}"
                );
                assert!(!head.source.is_empty(), "{name}");
            }
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
