//! What flags ask for otherwise than a log says.

use super::other_engine::other_engine;
use super::other_model::{last, other_model};
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;

/// What flags ask for otherwise than a log's server had it, and so which of its figures no longer
/// hold. Each flag takes those that depend on it:
///
/// | figure | ranks | weight format | decode ranks | KV format | depth |
/// |---|---|---|---|---|---|
/// | free before the weights | x | | | | |
/// | free after them, weights, the draft's | x | x | | | |
/// | graphs | x | x | x | | |
/// | states of linear layers | x | x | | | x |
/// | KV pool | x | x | x | x, not vLLM's: what is left | x where states share it |
/// | tokens in it | x | x | x | x | x where states share it |
/// | speeds | x | x | x | x | are of the depth it drafted |
///
/// With another fraction the pool is another; `at_other_fraction` and `without_its_draft` see to the
/// rest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Other {
    pub(super) ranks: bool,
    pub(super) weights: bool,
    pub(super) decode_ranks: bool,
    pub(super) kv_format: bool,
    pub(super) depth: bool,
}

impl Other {
    pub(super) fn of(args: &ScenarioArgs, log: &LogScenario) -> Self {
        let count = |asked: Option<u32>, said: Option<(u32, usize)>| {
            asked.is_some_and(|asked| asked != said.map_or(1, |(said, _)| said))
        };
        // A model that the flag must name has its format named there too.
        let model = log.model.as_ref();
        let model = model.and_then(|(name, _)| kvplan::catalog::find(last(name)).ok());
        let stored = |asked: &String| match &log.quant {
            Some((said, _)) => !asked.eq_ignore_ascii_case(said),
            None => true,
        };
        Self {
            ranks: count(args.tp, log.tp) || other_experts(args, log),
            weights: model.is_some() && args.quant.as_ref().is_some_and(stored),
            decode_ranks: count(args.dcp, log.dcp),
            kv_format: args.kv_dtype.as_ref().is_some_and(|asked| {
                let by_itself = model.map(|found| kv_by_itself(&found.model, args, log));
                other_kv_format(asked, log, by_itself.unwrap_or_default())
            }),
            depth: other_depth(args, log),
        }
    }
}

/// Whether whole experts are to be spread over other ranks than the log's server had.
fn other_experts(args: &ScenarioArgs, log: &LogScenario) -> bool {
    let tp = log.tp.map_or(1, |(tp, _)| tp);
    let own = super::shapes::told_experts(&log.carried, tp).unwrap_or(1);
    args.ep.is_some_and(|asked| asked != own)
}

/// What `--quant` leaves aside of a log that names another format.
pub(super) fn of_other_weights(
    args: &ScenarioArgs,
    log: &LogScenario,
    shown: &str,
) -> Option<String> {
    let beside = !(other_model(args, log) || other_engine(args, log));
    let other = beside && log.kv_tokens.is_some() && Other::of(args, log).weights;
    let asked = args.quant.as_ref().filter(|_| other)?;
    Some(format!(
        "{shown} is of other weights than --quant {asked}: its pool, graphs and speeds are left aside"
    ))
}

/// Whether flags ask for other draft steps, width or verified tokens than a log has.
fn other_depth(args: &ScenarioArgs, log: &LogScenario) -> bool {
    let said = |value: Option<(u32, usize)>| value.map(|(n, _)| n);
    let differs = |asked: Option<u32>, said: Option<u32>| asked.is_some() && asked != said;
    let steps = said(log.steps);
    let chain = steps.and_then(|steps| steps.checked_add(1));
    differs(args.steps, steps)
        || differs(args.topk, said(log.topk).or(Some(1)))
        || differs(args.draft_tokens, said(log.draft_tokens).or(chain))
}

/// What the log's engine takes on the card asked about.
fn kv_by_itself(model: &kvplan::Model, args: &ScenarioArgs, log: &LogScenario) -> kvplan::KvDtype {
    let version = log.engine_version.as_ref();
    let version = version.map_or(String::new(), |(version, _)| format!("@{version}"));
    let engine = log.engine.as_ref();
    let engine =
        engine.and_then(|(name, _)| kvplan::Engine::parse(&format!("{name}{version}")).ok());
    let card = args.gpu.as_ref();
    let card = card.and_then(|name| crate::gpus::find(name).ok());
    match engine {
        Some(engine) => {
            kvplan::kv_by_itself(model, engine, card.and_then(|card| card.compute_major())).0
        }
        None => model.kv_dtype.unwrap_or_default(),
    }
}

/// Whether another KV format is asked for than a log says, or than its server took `by_itself`.
fn other_kv_format(asked: &str, log: &LogScenario, by_itself: kvplan::KvDtype) -> bool {
    let said = log.kv_dtype.as_ref().map(|(said, _)| said.as_str());
    if said.is_some_and(|said| said.eq_ignore_ascii_case(asked)) {
        return false;
    }
    let said = said.map_or(Some(by_itself), kvplan::KvDtype::parse);
    said.is_none() || said != kvplan::KvDtype::parse(asked)
}
