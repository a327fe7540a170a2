//! The error that ended a server, and what is known of it.

use super::{Finding, Severity};
use crate::explain::facts::Facts;

/// Why, and what to do, of an error whose cause is known.
type Known = (String, String);

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(error) = facts.text("error") else {
        return;
    };
    let (why, mend) = known(facts, error).unwrap_or_else(|| {
        let place = facts.text("error_at");
        (
            format!(
                "the first error of those that end it{}; the later ones follow from it",
                place.map_or_else(String::new, |file| format!(", raised in {file}"))
            ),
            match super::drafts(facts) {
                true => "the same start without the draft tells whether the draft is the cause",
                false => "read the lines above it",
            }
            .to_string(),
        )
    });
    let during = facts.text("error_capturing");
    let during = during.map_or_else(String::new, |what| format!(" as it captured {what}"));
    found.push(Finding::new(
        Severity::Broken,
        facts,
        "error",
        format!("the server ended with an error{during}: {error}"),
        why,
        mend,
    ));
}

fn known(facts: &Facts, error: &str) -> Option<Known> {
    let has = |phrase: &str| error.contains(phrase);
    let engine = facts.text("engine").unwrap_or("engine");
    if has("not supported for now") || has("does not recognize this architecture") {
        return Some((
            format!("this {engine} has no class for the model's architecture"),
            format!(
                "a later {engine} (and transformers); for a head, one whose config.json names a class that it has"
            ),
        ));
    }
    let eagle3 = ["Eagle3 is only supported for", "EAGLE3 interface"];
    if eagle3.iter().any(|phrase| has(phrase)) || has("eagle3_layers_to_capture") {
        return Some((
            format!("this {engine} takes no EAGLE-3 head for this model"),
            format!(
                "a later {engine}, the model's own MTP layers, or look-up (--draft mtp, ngram in predict)"
            ),
        ));
    }
    let by_its_figures = context_refused(error)
        .or_else(|| too_few_blocks(error))
        .or_else(|| blocks_cut(facts, error));
    if by_its_figures.is_some() {
        return by_its_figures;
    }
    let drafting = super::drafts(facts);
    if let Some(bound) = facts
        .number("index_bound")
        .filter(|_| drafting && engine == "vllm")
    {
        return Some((
            format!(
                "an index went beyond {bound}: vLLM to 0.25 does that at a request longer than the head's \
                 own config reaches (vllm#48894)"
            ),
            format!(
                "where the head's max_position_embeddings is {bound}, raise it in a copy of the head, or \
                 --max-model-len {bound}, or a later vLLM (pull request 49343)"
            ),
        ));
    }
    let of_draft = facts
        .text("error_capturing")
        .is_some_and(|what| what.contains("draft"));
    if has("illegal memory access") && of_draft && engine == "vllm" {
        return Some((
            "a fault of vLLM's second model runner, open for 0.24.0 (vllm#47561): it comes and goes with \
             the sizes captured"
                .to_string(),
            "a release with pull request 48261, which mends one cause; or another --max-num-seqs: on H200 \
             two models that died so at 64 came up at 128; at last --enforce-eager, with which the host \
             launches every kernel of every draft and verify"
                .to_string(),
        ));
    }
    let weights = has("KeyError") && (has("weight") || has("layers."));
    if weights && drafting {
        return head_in_the_targets_format(facts).or_else(|| {
            Some((
                "a weight of the checkpoint has no place in the class that loads it".to_string(),
                format!(
                    "a head made for this target and this {engine} (its config.json names the class), or \
                     a later {engine}"
                ),
            ))
        });
    }
    None
}

/// vLLM's refusal of more requests at once than the pool of a model with states has blocks.
fn too_few_blocks(error: &str) -> Option<Known> {
    let (before, after) = error.split_once(") exceeds available Mamba cache blocks (")?;
    let asked: u64 = before.rsplit('(').next()?.parse().ok()?;
    let blocks: u64 = after.split(')').next()?.parse().ok()?;
    let raised = "a higher --gpu-memory-utilization, which makes more blocks";
    Some((
        format!(
            "since 0.20.0 vLLM starts a model with linear or Mamba layers only where each of max_num_seqs requests \
             has a block of the pool for its states, whatever they hold: {asked} are allowed, {blocks} blocks are there"
        ),
        match blocks {
            0 => raised.to_string(),
            _ => format!(
                "--max-num-seqs {blocks} or fewer: as many as are to be served at once; or {raised}"
            ),
        },
    ))
}

/// Both engines' refusal of weights cut into parts that are no whole number of FP8 blocks.
fn blocks_cut(facts: &Facts, error: &str) -> Option<Known> {
    let (before, after) = error.split_once(" is not divisible by weight quantization block")?;
    let own: u64 = before.rsplit(' ').next()?.parse().ok()?;
    let (_, block) = after.split_once("= ")?;
    let block: u64 = block.trim_end_matches('.').parse().ok()?;
    let number = |name: &str| facts.number(name).filter(|n| (1.0..1e4).contains(n));
    let tp = number("tp").filter(|tp| *tp > 1.0)? as u64;
    // Experts are cut by the ranks that share one, other weights by all.
    let experts = ["gate's", "down's"].iter().any(|of| before.contains(of));
    let shared_by = match experts {
        true => (tp / number("ep_size").map_or(1, |ep| ep as u64)).max(1),
        false => tp,
    };
    let width = own.checked_mul(shared_by)?;
    let whole = |ranks: u64| {
        let part = width.checked_div(ranks).unwrap_or(0);
        width.is_multiple_of(ranks) && part.is_multiple_of(block)
    };
    let fewer = (1..tp).rev().find(|n| tp.is_multiple_of(*n) && whole(*n))?;
    let spread = match (experts, facts.text("engine")) {
        (false, _) => String::new(),
        (true, Some("vllm")) => {
            ", or --enable-expert-parallel, which leaves experts whole".to_string()
        }
        (true, _) => format!(", or --ep-size {tp}, which leaves experts whole"),
    };
    let of = if experts { "experts" } else { "weights" };
    Some((
        format!(
            "{of} of width {width} over {shared_by} ranks are {own} wide, not a multiple of the {block} of \
             the FP8 blocks"
        ),
        format!("--tp {fewer}{spread}"),
    ))
}

/// SGLang's refusal of a context longer than the config of the draft, or of the model, reaches.
fn context_refused(error: &str) -> Option<Known> {
    let in_brackets = |behind: &str| {
        let (_, rest) = error.split_once(behind)?;
        rest.strip_prefix('(')?
            .split_once(')')?
            .0
            .parse::<u64>()
            .ok()
    };
    let served = in_brackets(" context_length ")?;
    let reach = in_brackets("the derived context_length ")?;
    let allow = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1";
    Some(match error.contains("Target model's") {
        true => (
            format!("the draft's config reaches {reach} tokens, the server takes {served}"),
            format!(
                "{allow} before the command, which drafts worse beyond {reach} tokens, or \
                 --context-length {reach}"
            ),
        ),
        false => (
            format!("--context-length {served} is more than the model's config reaches"),
            format!("--context-length {reach}; {allow} lifts it at the risk of wrong output"),
        ),
    })
}

/// The head's plain weights find no place in layers that were laid out for the target's format.
fn head_in_the_targets_format(facts: &Facts) -> Option<Known> {
    let version = facts
        .text("engine_version")
        .and_then(kvplan::Version::find)?;
    let vllm = facts.text("engine") == Some("vllm");
    let shared = vllm && kvplan::vllm_head_in_targets_format(version);
    let eagle3 = facts
        .text("spec_algorithm")
        .is_some_and(|head| head.eq_ignore_ascii_case("eagle3"));
    let quant = facts.text("quant").filter(|_| shared && eagle3)?;
    let packed = ["awq", "gptq", "compressed", "marlin", "bitsandbytes"];
    packed.iter().any(|format| quant.contains(format)).then(|| {
        (
            format!(
                "vLLM 0.11.0 lays an EAGLE-3 head out in its target's format ({quant}), where the head's \
                 own weights find no place (pull request 25883)"
            ),
            "vLLM 0.11.1 or later, or a target that is not quantised".to_string(),
        )
    })
}
