//! Engine settings and observed figures of `plan`, and what of them cannot be.

use kvplan::Known;

use crate::cli::{PlanArgs, ScenarioArgs};
use crate::input;
use crate::scenario::{EngineKind, Scenario, parse};

/// Engine settings that only memory depends on.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Knobs {
    /// Longest context the engine is told to serve (--context-length, --max-model-len); requests
    /// are taken to hold that many tokens where --context does not say, as in predict
    #[arg(long, aliases = ["context-length"], value_name = "TOKENS", value_parser = parse::tokens)]
    pub(crate) max_model_len: Option<u64>,
    /// Requests at once the engine is told to run (--max-running-requests, --max-num-seqs)
    #[arg(
        long,
        aliases = ["max-running-requests", "max-num-seqs"],
        value_name = "N"
    )]
    pub(crate) max_running: Option<u64>,
    /// Tokens of one pass (--chunked-prefill-size, --max-num-batched-tokens)
    #[arg(
        long,
        aliases = ["chunked-prefill-size", "max-num-batched-tokens"],
        value_name = "TOKENS",
        value_parser = parse::tokens
    )]
    pub(crate) batched_tokens: Option<u64>,
    /// Largest batch captured as a graph; 0 for none
    #[arg(
        long,
        aliases = ["cuda-graph-max-bs", "cuda-graph-max-bs-decode", "max-cudagraph-capture-size"],
        value_name = "N"
    )]
    pub(crate) graph_max_batch: Option<u64>,
    /// Cap on the pool (--max-total-tokens)
    #[arg(long, value_name = "TOKENS", value_parser = parse::tokens)]
    pub(crate) max_total_tokens: Option<u64>,
    /// State slots of hybrids (--max-mamba-cache-size)
    #[arg(long, aliases = ["max-mamba-cache-size"], value_name = "N")]
    pub(crate) state_slots: Option<u64>,
    /// State share of hybrids (--mamba-full-memory-ratio)
    #[arg(long, aliases = ["mamba-full-memory-ratio"], value_name = "R")]
    pub(crate) state_ratio: Option<f64>,
    /// The observed figures come from a run that had the draft loaded
    #[arg(long)]
    pub(crate) observed_with_draft: bool,
}

/// The scenario asked for: requests of the longest context that the engine is told to serve, where
/// nobody says what they hold.
pub(crate) fn asked_load(asked: &ScenarioArgs, max_model_len: Option<u64>) -> ScenarioArgs {
    let mut wanted = asked.clone();
    let told = max_model_len.map(|tokens| tokens.to_string());
    wanted.context = wanted.context.or(told);
    wanted
}

/// Refuses requests longer than the engine is told to serve.
pub(crate) fn within_limit(scenario: &Scenario) -> anyhow::Result<()> {
    let context = scenario.context;
    match scenario.max_model_len.filter(|limit| context > *limit) {
        Some(limit) => Err(input::error(format!(
            "--context {context}: more than --max-model-len {limit}, the longest that the engine is told to take"
        ))),
        None => Ok(()),
    }
}

/// Largest count of tokens that any setting can mean.
const MAX_TOKENS: u64 = 1 << 32;
/// Most requests at once, graph sizes or slots that any setting can mean.
const MAX_COUNT: u64 = 1 << 20;
/// Largest figure a card's log can show, GiB.
const MAX_GIB: f64 = 10_000.0;

/// Refuses settings that no engine takes and figures that no log shows.
pub(super) fn check(args: &PlanArgs) -> anyhow::Result<()> {
    let knobs = &args.knobs;
    let counts = [
        ("--max-model-len", knobs.max_model_len, 1, parse::MAX_TOKENS),
        ("--max-running", knobs.max_running, 1, MAX_COUNT),
        ("--batched-tokens", knobs.batched_tokens, 1, MAX_TOKENS),
        ("--graph-max-batch", knobs.graph_max_batch, 0, MAX_COUNT),
        ("--max-total-tokens", knobs.max_total_tokens, 1, MAX_TOKENS),
        ("--state-slots", knobs.state_slots, 0, MAX_COUNT),
    ];
    for (flag, value, least, most) in counts {
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            return Err(input::error(format!(
                "{flag} {value}: give a number from {least} to {most}"
            )));
        }
    }
    if let Some(ratio) = knobs
        .state_ratio
        .filter(|ratio| !(0.0..=1000.0).contains(ratio))
    {
        return Err(input::error(format!(
            "--state-ratio {ratio}: give a ratio of 0 or more, such as 0.9"
        )));
    }
    let figures = [
        ("--free-before-gib", args.free_before_gib),
        ("--free-after-gib", args.free_after_gib),
        ("--kv-gib", args.kv_gib),
        ("--state-gib", args.state_gib),
    ];
    for (flag, value) in figures {
        if let Some(value) = value.filter(|value| !(*value > 0.0 && *value <= MAX_GIB)) {
            return Err(input::error(format!(
                "{flag} {value}: give the GiB that the log shows (engines print it as GB)"
            )));
        }
    }
    Ok(())
}

/// Refuses settings that another engine takes: unread, they would stand for what they do not do.
pub(super) fn of_engine(args: &PlanArgs, engine: EngineKind) -> anyhow::Result<()> {
    let knobs = &args.knobs;
    let sglang = engine == EngineKind::Sglang;
    let capped = sglang || engine == EngineKind::TrtLlm;
    let instead = match engine {
        EngineKind::Vllm => "vLLM's is --num-gpu-blocks-override, which is not planned with",
        _ => "llama.cpp's pool is what its slots need (--max-running, --max-model-len)",
    };
    let settings = [
        (
            "--max-total-tokens",
            knobs.max_total_tokens.is_some() && !capped,
            instead,
        ),
        (
            "--state-ratio",
            knobs.state_ratio.is_some() && !sglang,
            "SGLang's alone; other engines keep states in the pool or by request",
        ),
    ];
    match settings.into_iter().find(|(_, foreign, _)| *foreign) {
        Some((flag, _, instead)) => Err(input::error(format!(
            "{flag} is not {}'s: {instead}; leave it out",
            engine.title()
        ))),
        None => Ok(()),
    }
}

/// Refuses figures that cannot come from one run.
pub(super) fn check_together(known: &Known) -> anyhow::Result<()> {
    if let (Some(before), Some(after)) = (known.free_before_gib, known.free_after_gib)
        && after > before
    {
        return Err(input::error(format!(
            "--free-after-gib {after}, as given or as pool and fraction give it: more than the \
             {before} GiB free before the weights (--free-before-gib)"
        )));
    }
    if let (Some(after), Some(pool)) = (known.free_after_gib, known.pool_gib)
        && pool + known.state_gib.unwrap_or(0.0) > after
    {
        return Err(input::error(format!(
            "--kv-gib {pool}: more than the {after} GiB free after the weights (--free-after-gib); \
             take both from one run and one rank"
        )));
    }
    Ok(())
}

/// Refuses free memory that the card does not have.
pub(super) fn fits_the_card(known: &Known, card_gib: f64) -> anyhow::Result<()> {
    match known.free_before_gib.filter(|gib| *gib > card_gib) {
        Some(gib) => Err(input::error(format!(
            "--free-before-gib {gib:.2}, as given or as the other figures give it: more than the \
             {card_gib:.2} GiB of the card (--gpu)"
        ))),
        None => Ok(()),
    }
}
