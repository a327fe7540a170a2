//! The words in the pasted lines that the user replaces.

use std::collections::BTreeMap;

use spec_decode::HeadKind;

use super::checkpoint::MODEL;
use super::launch::DRAFT;
use crate::scenario::{EngineKind, Scenario};

/// Whether no FP8 of the model is in blocks, which no engine makes while loading.
fn one_scale(scenario: &Scenario) -> bool {
    let formats = scenario.model.layers.iter().map(|layer| layer.formats);
    let mut all = formats.flat_map(|of| [of.dense, of.experts, of.attention_in, of.attention_out]);
    !all.any(|format| format == kvplan::WeightFormat::Fp8Block)
}

/// Whether every engine of the lines that is told of a format has the room to make FP8 of the BF16 checkpoint.
fn room_for_bf16(scenario: &Scenario, flags: &BTreeMap<&'static str, Vec<String>>) -> bool {
    [EngineKind::Sglang, EngineKind::Vllm]
        .into_iter()
        .filter(|engine| flags.contains_key(engine.name()))
        .all(|engine| crate::plan::loads_in_bf16(scenario, engine))
}

/// What the placeholders of the pasted lines stand for.
pub(super) fn told(
    scenario: &Scenario,
    flags: &BTreeMap<&'static str, Vec<String>>,
) -> Option<String> {
    let holds = |word: &str| flags.values().flatten().any(|flag| flag.contains(word));
    let mut parts = Vec::new();
    if holds(MODEL) {
        let quant = scenario.input("quant").and_then(|q| q.value.as_str());
        // The format that a model is published in needs no name.
        let asked = scenario.quant_given.is_some() || scenario.weights_assumed_bf16();
        let format = quant.filter(|quant| asked && *quant != "as in the config");
        let in_format = format.map_or_else(String::new, |format| format!(" in {format}"));
        let or = match format {
            Some("fp8" | "fp8-dynamic")
                if one_scale(scenario) && room_for_bf16(scenario, flags) =>
            {
                ", or its BF16 one with --quantization fp8"
            }
            _ => "",
        };
        parts.push(format!(
            "{MODEL}: the checkpoint of {}{in_format}{or}",
            scenario.model.name
        ));
    }
    if holds(DRAFT) {
        parts.push(format!("{DRAFT}: {}", draft_of(scenario)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What stands for the draft: with a public head for that model, where one is known and no file was named.
fn draft_of(scenario: &Scenario) -> String {
    let named = scenario.input("draft").and_then(|d| d.value.as_str());
    let own = named.is_some_and(|draft| draft.ends_with(".json"));
    match scenario.draft.as_ref().map(|draft| draft.head) {
        Some(HeadKind::DraftModel) => "the small model".to_string(),
        Some(HeadKind::Eagle3) if !own => match that_reaches(scenario) {
            Some(head) => {
                let other = if own_name(scenario, head) {
                    ""
                } else {
                    "; the figures above are of another head: --draft with that name gives its own"
                };
                format!("a head trained for it, such as {head}{other}")
            }
            None => "the head trained for it".to_string(),
        },
        _ => "the head trained for it".to_string(),
    }
}

/// Whether that head is the one that is reckoned with.
fn own_name(scenario: &Scenario, head: &str) -> bool {
    let reckoned = scenario
        .draft
        .as_ref()
        .and_then(|draft| draft.model.as_ref());
    reckoned.is_some_and(|model| model.name.eq_ignore_ascii_case(head))
}

/// A public head for the model, unless it is known to reach less than requests hold here.
fn that_reaches(scenario: &Scenario) -> Option<&'static str> {
    let head = kvplan::head_for(&scenario.model_given)?;
    let reach = kvplan::named_head(head).and_then(|known| known.reach_tokens);
    reach
        .is_none_or(|reach| reach >= scenario.context)
        .then_some(head)
}
