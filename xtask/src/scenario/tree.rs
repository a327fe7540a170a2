//! Steps, tree width and verified tokens, and what of them does not fit together.

use spec_decode::trees::{TREE_HALF_WIDTH, wasted_drafts};

use super::engine::EngineKind;
use super::merge::{Given, Merged};
use super::{Notes, Scenario};
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
        _ => a_chain(steps, topk, draft_tokens, notes),
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
            "a tree of width {topk} with {tokens} verified tokens: its accept length is computed from the \
             chain's (nine in ten measured trees within {TREE_HALF_WIDTH} tokens; of more than 8 verified \
             tokens only three were measured), its draft passes are billed as a chain's; only SGLang runs trees"
        ),
        "a run of it beside a plain sweep (--from-log, --baseline)",
    );
    note_waste(steps, topk, tokens, notes);
    Ok((steps, Some(topk), draft_tokens))
}

fn a_chain(
    steps: Option<u32>,
    topk: Option<u32>,
    draft_tokens: Option<u32>,
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
    if tokens > most {
        notes.assume(
            format!(
                "{most} tokens verified, not {tokens}: a chain of {steps} steps has no more, and \
                 engines lower it to that"
            ),
            "--topk, for a tree",
        );
        return Ok((Some(steps), topk, Some(most)));
    }
    note_waste(Some(steps), 1, tokens, notes);
    Ok((Some(steps), topk, Some(tokens)))
}

fn note_waste(steps: Option<u32>, topk: u32, tokens: u32, notes: &mut Notes) {
    let Some(steps) = steps else { return };
    if let Some(waste) = wasted_drafts(steps, topk, tokens) {
        notes.assume(format!("{}: {}", waste.what, waste.mend), "");
    }
}

/// First SGLang that sets the draft tokens of a chain to its steps + 1, whatever it is told
/// (`server_args.py`: "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1"): every
/// 0.5 does.
const SGLANG_SETS_TOKENS: ((u32, u32, u32), (u32, u32)) = ((0, 5, 0), (2025, 8));

/// Refuses a flag for fewer verified tokens than a chain has where the engine has no such setting.
///
/// # Errors
/// `--draft-tokens` is no setting of the engine.
pub(crate) fn check_tokens(scenario: &Scenario) -> anyhow::Result<()> {
    let by_flag = |input: &&crate::predict::answer::Input| input.source.starts_with("--");
    let given = scenario.input("draft_tokens").filter(by_flag);
    let chain = scenario.topk.unwrap_or(1) <= 1;
    let fewer = scenario.steps.zip(scenario.draft_tokens);
    let fewer = fewer.filter(|(steps, tokens)| chain && tokens <= steps);
    let Some((steps, tokens)) = fewer.filter(|_| given.is_some()) else {
        return Ok(());
    };
    let (number, date) = SGLANG_SETS_TOKENS;
    let version = scenario.engine.version.as_deref();
    let old = version
        .and_then(kvplan::Version::find)
        .is_some_and(|version| !version.since(number, date));
    if scenario.engine.kind == EngineKind::Sglang && old {
        return Ok(());
    }
    Err(input::error(format!(
        "--draft-tokens {tokens}: {} verifies the root and every step of a chain, {} tokens at {steps} steps; \
         leave it out, or give --steps {}",
        scenario.engine.kind.title(),
        steps.saturating_add(1),
        tokens.saturating_sub(1)
    )))
}
