//! What drafts where nothing says it: a draft that the engine serves this model with.

use kvplan::{Model, catalog};
use spec_decode::HeadKind;

use super::model::{self, Draft};
use super::releases::{class_of, first_served};
use super::{EngineChoice, Notes, heads};

/// The model's own MTP layers, else an EAGLE-3 head, else look-up: the first that is served.
pub(super) fn of(
    model_name: &str,
    target: &Model,
    engine: &EngineChoice,
    notes: &mut Notes,
) -> anyhow::Result<Draft> {
    let heads = candidates(target);
    let kinds: Vec<HeadKind> = heads.iter().map(|(head, _)| *head).collect();
    let (first, who) = first_served(target, engine, &kinds);
    let passed = heads.iter().take_while(|(head, _)| first != Some(*head));
    let passed: Vec<&str> = passed.map(|(_, title)| *title).collect();
    if !passed.is_empty() {
        let class = class_of(target).unwrap_or(&target.name);
        let what = format!(
            "draft: not {}, which {who} for {class}",
            passed.join(" or ")
        );
        notes.assume(what, "");
    }
    match first {
        Some(HeadKind::Mtp) => {
            notes.assume("draft: the model's own MTP layers", "--draft");
            Ok(model::mtp(target, "the checkpoint", notes))
        }
        Some(_) => eagle3(model_name, target, notes),
        None => Ok(model::look_up("assumed", notes)),
    }
}

/// Heads that a model may be served with, the first to be tried first.
fn candidates(target: &Model) -> Vec<(HeadKind, &'static str)> {
    let own = (!target.mtp_layers.is_empty()).then_some((HeadKind::Mtp, "MTP"));
    let own = own.into_iter();
    own.chain([(HeadKind::Eagle3, "EAGLE-3")]).collect()
}

/// Whether a model's own MTP layers are what drafts in the default engine.
pub(crate) fn is_own(target: &Model) -> bool {
    let engine = EngineChoice {
        kind: super::EngineKind::Sglang,
        version: None,
    };
    let kinds: Vec<HeadKind> = candidates(target).iter().map(|(head, _)| *head).collect();
    first_served(target, &engine, &kinds).0 == Some(HeadKind::Mtp)
}

fn eagle3(model_name: &str, target: &Model, notes: &mut Notes) -> anyhow::Result<Draft> {
    if let Ok(catalog::Draft::Head { model, source }) = catalog::find_draft(model_name, "eagle3") {
        let (model, ..) = heads::of_catalogue(*model, &source, "eagle3", None, notes);
        let draft = model::head(model, "eagle3", &source, target, notes)?;
        // Nobody named this very head.
        return Ok(Draft {
            reach_known: false,
            ..draft
        });
    }
    heads::assumed(target, None, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::EngineKind;

    fn drafts(name: &str, engine: EngineKind) -> (Option<&'static str>, Model, Vec<String>) {
        let target = catalog::find(name).expect("listed").model;
        let mut notes = Notes::default();
        let engine = EngineChoice {
            kind: engine,
            version: None,
        };
        let draft = of(name, &target, &engine, &mut notes).expect("resolves");
        let title = match draft.head {
            HeadKind::Mtp | HeadKind::MtpModules => Some("mtp"),
            HeadKind::Eagle3 => Some("eagle3"),
            _ => None,
        };
        let said = notes.assumptions.into_iter().map(|a| a.what).collect();
        (title, target, said)
    }

    #[test]
    fn the_default_draft_of_every_catalogue_model_is_one_that_its_engine_serves() {
        for name in catalog::names() {
            for engine in [EngineKind::Sglang, EngineKind::Vllm] {
                let (title, target, _) = drafts(name, engine);
                let head = match title {
                    Some("mtp") => HeadKind::Mtp,
                    Some(_) => HeadKind::Eagle3,
                    None => continue,
                };
                let engine = EngineChoice {
                    kind: engine,
                    version: None,
                };
                let (served, _) = first_served(&target, &engine, &[head]);
                assert_eq!(served, Some(head), "{name} on {engine:?}");
            }
        }
    }

    #[test]
    fn layers_that_no_engine_serves_are_passed_over_with_the_reason() {
        for name in ["minimax-m2.5", "minimax-m2.7"] {
            for engine in [EngineKind::Sglang, EngineKind::Vllm, EngineKind::TrtLlm] {
                let (title, _, said) = drafts(name, engine);
                assert_eq!(title, Some("eagle3"), "{name} on {engine:?}");
                assert!(said[0].starts_with("draft: not MTP, which no "), "{said:?}");
            }
        }
        assert_eq!(drafts("minimax-m3", EngineKind::Sglang).0, Some("eagle3"));
        assert_eq!(drafts("minimax-m3", EngineKind::Vllm).0, Some("mtp"));
        // No head's taps either: look-up is left.
        let (title, _, said) = drafts("mixtral-8x7b", EngineKind::Vllm);
        assert_eq!(title, None);
        assert!(said[0].contains("not EAGLE-3, which no vLLM"), "{said:?}");
        assert_eq!(drafts("glm-4.7", EngineKind::Vllm).0, Some("mtp"));
    }
}
