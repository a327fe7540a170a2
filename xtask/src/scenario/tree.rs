//! Steps, tree width and verified tokens, and what of them does not fit together.

use spec_decode::trees::wasted_drafts;

use super::Notes;
use super::engine::EngineKind;
use super::merge::{Given, Merged};
use super::parse;
use crate::input;

/// Steps, width and verified tokens, each where it was given.
pub(super) type Tree = (Option<u32>, Option<u32>, Option<u32>);

/// Reads `--steps`, `--topk` and `--draft-tokens`, and says what follows from some of them alone.
pub(super) fn resolve(merged: &Merged, notes: &mut Notes) -> anyhow::Result<Tree> {
    let mut value = |name: &'static str, flag: &str, given: &Option<Given<u32>>, max: u32| {
        let Some(given) = given else {
            return Ok(None);
        };
        if !(1..=max).contains(&given.value) {
            return Err(input::error(format!(
                "{}: give a number from 1 to {max}",
                given.shown(flag)
            )));
        }
        notes.input(name, given.value, given.source.clone());
        Ok(Some(given.value))
    };
    let steps = value("steps", "--steps", &merged.steps, 64)?;
    let topk = value("topk", "--topk", &merged.topk, 64)?;
    let draft_tokens = value("draft_tokens", "--draft-tokens", &merged.draft_tokens, 1024)?;
    match topk {
        Some(topk) if topk > 1 => a_tree(merged, steps, topk, draft_tokens, notes),
        _ => a_chain((steps, topk, draft_tokens), keeps_fewer(merged), notes),
    }
}

fn a_tree(
    merged: &Merged,
    steps: Option<u32>,
    topk: u32,
    draft_tokens: Option<u32>,
    notes: &mut Notes,
) -> anyhow::Result<Tree> {
    let shown = merged
        .topk
        .as_ref()
        .map_or_else(|| format!("--topk {topk}"), |given| given.shown("--topk"));
    let Some(tokens) = draft_tokens else {
        return Err(input::error(format!(
            "{shown}: how many tokens are verified decides; add --draft-tokens N (the root included)"
        )));
    };
    if tokens < 2 {
        return Err(input::error(format!(
            "--draft-tokens {tokens}: a tree verifies at least 2 (the root included)"
        )));
    }
    notes.assume(
        format!(
            "a tree of width {topk} with {tokens} verified tokens: accepted as small measured trees \
             are (about a chain of 3 steps, whatever their shape), each of its draft passes billed \
             as a chain's; only SGLang runs trees"
        ),
        "--accept measured with this tree, or a chain (--topk 1)",
    );
    note_waste(steps, topk, tokens, notes);
    Ok((steps, Some(topk), draft_tokens))
}

/// Whether the engine verifies fewer tokens than a chain drafts where it is told to: SGLang before
/// [`sglang_adjusts`].
fn keeps_fewer(merged: &Merged) -> bool {
    let Some((name, version)) = merged.engine.as_ref().map(|e| parse::engine(&e.value)) else {
        return false;
    };
    EngineKind::parse(&name) == Some(EngineKind::Sglang)
        && version.is_some_and(|version| !sglang_adjusts(&version))
}

/// Whether a version of SGLang sets the draft tokens of a chain to its steps + 1, whatever it is told
/// (`server_args.py`: "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1"); every
/// 0.5 does.
pub(crate) fn sglang_adjusts(version: &str) -> bool {
    kvplan::Version::find(version).is_none_or(|version| version.since((0, 5, 0), (2025, 8)))
}

fn a_chain(
    (steps, topk, draft_tokens): Tree,
    keeps_fewer: bool,
    notes: &mut Notes,
) -> anyhow::Result<Tree> {
    let Some(tokens) = draft_tokens else {
        return Ok((steps, topk, None));
    };
    if tokens < 2 {
        return Err(input::error(format!(
            "--draft-tokens {tokens}: counts the root, so there are at least 2"
        )));
    }
    let Some(steps) = steps else {
        let steps = (tokens - 1).min(64);
        notes.assume(
            format!(
                "{steps} draft steps: --draft-tokens {tokens} less the root, one a step (a chain)"
            ),
            "--steps",
        );
        return Ok((Some(steps), topk, Some(steps + 1)));
    };
    let most = steps.saturating_add(1);
    if tokens < most && keeps_fewer {
        note_waste(Some(steps), 1, tokens, notes);
        return Ok((Some(steps), topk, Some(tokens)));
    }
    if tokens != most {
        notes.assume(
            format!(
                "{most} tokens verified, not {tokens}: engines verify the root and every step of a chain \
                 of {steps}"
            ),
            "--topk, for a tree",
        );
        return Ok((Some(steps), topk, Some(most)));
    }
    Ok((Some(steps), topk, Some(tokens)))
}

fn note_waste(steps: Option<u32>, topk: u32, tokens: u32, notes: &mut Notes) {
    let Some(steps) = steps else { return };
    if let Some(waste) = wasted_drafts(steps, topk, tokens) {
        notes.assume(format!("{}: {}", waste.what, waste.mend), "");
    }
}
