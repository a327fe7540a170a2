//! Which head's config stands for the draft that was asked for, where that is no file.

use kvplan::{Attention, DraftKind, Model, NamedHead};
use serde_json::json;

use super::merge::Merged;
use super::model::{Draft, head, named};
use super::{EngineChoice, EngineKind, Notes};
use crate::input;
use crate::table::thousands;

/// Vocabulary of an assumed EAGLE-3 head (SpecForge's default).
const ASSUMED_DRAFT_VOCAB: u64 = 32_000;

/// The config of the very head that was named, and its source, where that is known.
pub(super) fn own_config(wanted: &str) -> Option<(Model, &'static str)> {
    let head = known(wanted)?;
    Some((head.model?, head.source))
}

fn known(wanted: &str) -> Option<NamedHead> {
    named(wanted).and_then(kvplan::named_head)
}

/// How far the head of a log's server reaches, where that is the draft. One that drafted with more
/// tokens held than is said of it serves what the server does.
pub(super) fn reach_of_log(merged: &Merged) -> Option<u64> {
    of_log(merged)?;
    let ran = &merged.ran;
    match drafted_beyond(merged) {
        Some(held) => Some(ran.context_limit.unwrap_or(held).max(held)),
        None => ran.draft_reach,
    }
}

/// The draft, where the log names it; a flag may name it again.
fn of_log(merged: &Merged) -> Option<&str> {
    let ran = &merged.ran;
    let same = |asked: &str| {
        let said = ran.draft.as_deref();
        said.is_some_and(|said| said.eq_ignore_ascii_case(asked))
    };
    let given = merged.draft.as_ref()?;
    let draft = given.value.trim();
    (given.source.starts_with(&ran.file) || same(draft)).then_some(draft)
}

/// Tokens that a log's requests held while it drafted, where that is more than its head is said to
/// reach: vLLM would have drafted nothing there.
fn drafted_beyond(merged: &Merged) -> Option<u64> {
    let windows = merged
        .ran
        .windows
        .filter(|windows| !windows.mostly_plain())?;
    let said = said_reach(merged)?;
    windows.drafted_held.filter(|held| *held > said)
}

fn said_reach(merged: &Merged) -> Option<u64> {
    let told = || known(of_log(merged)?)?.reach_tokens;
    merged.ran.draft_reach.or_else(told)
}

/// Whether the length that a log prints of its head may be the server's, which vLLM gives a draft whose
/// config says none (`spec_target_max_model_len` in its config): the head reaches that, and nobody knows
/// how much further.
fn may_be_cut(merged: &Merged) -> bool {
    let ran = &merged.ran;
    let by_table = of_log(merged)
        .and_then(known)
        .is_some_and(|head| head.reach_tokens.is_some() || head.model.is_some());
    ran.draft_reach.is_some() && ran.draft_reach == ran.context_limit && !by_table
}

/// Says what a log shows of a head that is said to reach less.
pub(super) fn note_beyond(merged: &Merged, notes: &mut Notes) {
    let Some((held, said)) = drafted_beyond(merged).zip(said_reach(merged)) else {
        return;
    };
    notes.assume(
        format!(
            "draft: the log shows drafts of requests that held {} tokens, so its head reaches further than \
             the {} said of it",
            thousands(held as f64),
            thousands(said as f64)
        ),
        "--draft with its config.json",
    );
}

/// The draft, with what a log says of the head of its server: how far it reaches, and that it has no
/// output head of its own.
pub(super) fn resolve(
    merged: &Merged,
    (target, engine): (&Model, &EngineChoice),
    notes: &mut Notes,
) -> anyhow::Result<Option<Draft>> {
    let draft = super::model::draft(merged, target, engine, notes)?;
    super::overlap::note((target, engine), draft.as_ref(), &merged.ran, notes);
    super::draft_graphs::note(engine, draft.as_ref(), notes);
    let Some(mut draft) = draft else {
        return Ok(None);
    };
    note_beyond(merged, notes);
    if let (Some(head), Some(reach)) = (&mut draft.model, reach_of_log(merged)) {
        head.max_positions = Some(reach);
        draft.reach_known = !may_be_cut(merged);
    }
    let by_flag = merged.draft.as_ref();
    let by_flag = by_flag.is_some_and(|given| given.source.starts_with("--"));
    let dummy = merged.ran.random_weights && merged.ran.speculates;
    let lends = dummy && engine.kind == EngineKind::Vllm && !by_flag;
    if let Some(head) = draft.model.as_mut().filter(|_| lends)
        && borrows_output_head(head, target)
    {
        notes.assume(
            "draft: the log's has random weights, so that vLLM lends it the target's output head: it holds \
             none of its own, and each draft step reads the target's",
            "--draft with a trained head's config.json",
        );
    }
    Ok(Some(draft))
}

/// Gives a head the target's output head, as vLLM does where no checkpoint brought one: with dummy
/// weights none is read (`has_own_lm_head` in vLLM's `spec_decode`), so that every draft step pays for
/// the target's whole vocabulary. Its log shows weights that are smaller by the head's own table.
pub(crate) fn lend_output_head(head: &mut Model, target: &Model) {
    if let Some(draft) = &mut head.draft {
        draft.draft_vocab = target.vocab;
    }
}

/// The same for the ledger of an EAGLE head, which then holds no such table: measured with random
/// weights, 0.58 GiB beside Llama-3.1-8B and 1.16 beside Qwen3-32B, less than the trained ones by it.
fn borrows_output_head(head: &mut Model, target: &Model) -> bool {
    let eagle = |draft: &kvplan::DraftHead| draft.kind != DraftKind::BlockDiffusion;
    if !head.draft.as_ref().is_some_and(eagle) {
        return false;
    }
    lend_output_head(head, target);
    head.tied_embeddings = true;
    true
}

/// The catalogue's head for a target, whether it stands in for one that was named, and whether its
/// reach is that one's own. Says what is taken from it: shapes, and how far it reaches where nobody says it of the head that was named.
pub(super) fn of_catalogue(
    mut model: Model,
    source: &str,
    wanted: &str,
    reach_of_log: Option<u64>,
    notes: &mut Notes,
) -> (Model, bool, bool) {
    let tokens = |reach: u64| format!("{} tokens", thousands(reach as f64));
    let Some(name) = named(wanted) else {
        let method = match model.draft.map(|draft| draft.kind) {
            Some(DraftKind::Eagle3) => "EAGLE-3",
            _ => "block-draft",
        };
        let reach = match (reach_of_log, model.max_positions) {
            (Some(reach), _) => format!(" in place of the log's, which reaches {}", tokens(reach)),
            (None, Some(reach)) => format!(", whose config reaches {}", tokens(reach)),
            (None, None) => String::new(),
        };
        notes.assume(
            format!("draft: the catalogue's {method} head{reach}"),
            "--draft",
        );
        return (model, false, reach_of_log.is_some());
    };
    let known = known(name);
    let told = known
        .as_ref()
        .and_then(|head| Some((head.reach_tokens?, head.source)));
    let unlike = known.as_ref().and_then(|head| head.unlike);
    let what = match (reach_of_log, told) {
        (Some(_), _) => format!("the config of {name} is not known here; its shapes are"),
        (None, Some((reach, by))) => {
            model.max_positions = Some(reach);
            let reach = tokens(reach);
            format!("of {name} only the reach is known, {reach} ({by}); its shapes are")
        }
        (None, None) => format!("the config of {name} is not known here; its shapes are"),
    };
    let anothers = model
        .max_positions
        .filter(|_| reach_of_log.is_none() && told.is_none());
    let reach = anothers.map_or_else(String::new, |reach| {
        format!(", whose head reaches {}", tokens(reach))
    });
    let unlike = unlike.map_or_else(String::new, |how| format!(", though {how}"));
    notes.assume(
        format!("draft: {what} taken from {source}{reach}{unlike}"),
        "--draft with its config.json",
    );
    (model, true, reach_of_log.is_some() || told.is_some())
}

/// Refuses the draft that Gemma 4's maker publishes beside it, which vLLM serves as `mtp`.
///
/// # Errors
/// It is asked for.
pub(super) fn refuse_assistant(wanted: &str, target: &Model) -> anyhow::Result<()> {
    let gemma = target.architecture.starts_with("Gemma4");
    let lower = wanted.to_ascii_lowercase();
    let asked = ["mtp", "nextn"].contains(&lower.as_str()) || lower.contains("assistant");
    match gemma && asked {
        true => Err(crate::input::error(format!(
            "--draft {wanted}: Gemma 4's assistant, which reads the target's own KV cache, is not modelled; \
             `eagle3`, `ngram` and `none` are"
        ))),
        false => Ok(()),
    }
}

/// A head of the usual shape: one dense layer as wide as the target, reduced vocabulary.
pub(super) fn assumed(
    target: &Model,
    name: Option<&str>,
    notes: &mut Notes,
) -> anyhow::Result<Draft> {
    let heads = target
        .layers
        .iter()
        .find_map(|layer| match layer.attention {
            Attention::Gqa(gqa) => Some((gqa.heads, gqa.kv_heads, gqa.head_dim)),
            Attention::Mla(mla) => Some((mla.heads, mla.heads, 128)),
            _ => None,
        })
        .unwrap_or((32, 8, 128));
    let config = json!({
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target.hidden,
        "intermediate_size": target.hidden.saturating_mul(4),
        "num_attention_heads": heads.0,
        "num_key_value_heads": heads.1,
        "head_dim": heads.2,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab,
        "draft_vocab_size": ASSUMED_DRAFT_VOCAB.min(target.vocab),
        "torch_dtype": "bfloat16",
    });
    let model = Model::from_config_json(&config.to_string(), "assumed EAGLE-3 head")
        .map_err(|e| input::error(format!("no draft is known for {} and {e}", target.name)))?;
    notes.assume(
        format!(
            "draft: an EAGLE-3 head of the usual shape (one dense layer, vocabulary {ASSUMED_DRAFT_VOCAB}); \
             the catalogue has none for this model"
        ),
        "--draft config.json",
    );
    let stands_in = name.is_some();
    let name = name.unwrap_or("assumed EAGLE-3 head");
    let draft = head(model, name, "assumed", target, notes)?;
    Ok(Draft {
        stands_in,
        reach_known: false,
        ..draft
    })
}
