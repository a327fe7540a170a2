//! What a log shows of the memory of the server that wrote it.

use super::merge::{Given, Merged};
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;
use crate::explain::speeds::LoadSpeed;

/// Settings and figures of a server's log; they win over estimates.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ran {
    /// The log.
    pub(crate) file: String,
    /// Most requests at a time.
    pub(crate) max_running: Option<u64>,
    /// Tokens of one pass at most.
    pub(crate) batched_tokens: Option<u64>,
    /// What the graphs took, GiB.
    pub(crate) graph_gib: Option<f64>,
    /// Whether these were captured before the draft was loaded: the target's alone.
    pub(crate) target_graphs: bool,
    /// Free before the weights, GiB.
    pub(crate) free_before_gib: Option<f64>,
    /// Free after the target's weights, GiB.
    pub(crate) free_after_gib: Option<f64>,
    /// The draft's weights on one card, GiB, where they were loaded apart.
    pub(crate) draft_gib: Option<f64>,
    /// KV pool of one card, GiB.
    pub(crate) kv_gib: Option<f64>,
    /// Tokens in it; there where the server came up.
    pub(crate) kv_tokens: Option<u64>,
    /// Generation speeds by load.
    pub(crate) speeds: Vec<LoadSpeed>,
    /// Whether it speculated.
    pub(crate) speculates: bool,
    /// Share of the decode lines that ran outside a graph.
    pub(crate) outside_graph: f64,
}

/// The load of a log, as the command takes it that `explain` ends with: what requests held, else
/// what the server takes as far as its pool holds it; as many users as it runs at once.
pub(super) fn load(merged: &mut Merged, log: &LogScenario, args: &ScenarioArgs, shown: &str) {
    let pool = merged.ran.kv_tokens.unwrap_or(u64::MAX);
    let limit = log.context.filter(|_| args.model.is_none());
    if let Some((held, line)) = log.held_tokens {
        merged.context = Some(Given {
            value: held.to_string(),
            source: format!("{shown}:{line} (what requests held)"),
            assumed: false,
        });
    } else if let Some((limit, line)) = limit {
        merged.context = Some(Given {
            value: u64::from(limit).min(pool).to_string(),
            source: format!("{shown}:{line} (the server's limit; no request shows what it held)"),
            assumed: true,
        });
    }
    if let Some((loads, line)) = log.loads().filter(|_| args.model.is_none()) {
        merged.concurrency = Some(Given {
            value: loads,
            source: format!("{shown}:{line} (up to its most at once)"),
            assumed: false,
        });
    }
}

impl Ran {
    /// Of a log.
    pub(super) fn of(log: &LogScenario, shown: &str) -> Self {
        let whole = |value: Option<(u32, usize)>| value.map(|(n, _)| u64::from(n));
        let size = |value: Option<(f64, usize)>| {
            let gib = value.map(|(gib, _)| gib);
            gib.filter(|gib| gib.is_finite() && gib.abs() < 1e5)
        };
        Self {
            file: shown.to_string(),
            max_running: whole(log.max_running_requests),
            batched_tokens: whole(log.batched_tokens),
            graph_gib: size(log.graph_gib).filter(|gib| *gib >= 0.0),
            target_graphs: log
                .graph_gib
                .zip(log.draft_loaded)
                .is_some_and(|((_, graphs), draft)| graphs < draft),
            free_before_gib: size(log.free_before_gib).filter(|gib| *gib > 0.01),
            free_after_gib: size(log.free_after_gib).filter(|gib| *gib > 0.0),
            draft_gib: size(log.draft_weights_gib).filter(|gib| *gib > 0.0),
            kv_gib: size(log.kv_gib).filter(|gib| *gib > 0.0),
            kv_tokens: log
                .kv_tokens
                .filter(|(tokens, _)| *tokens < 1e15)
                .map(|(tokens, _)| tokens as u64),
            speeds: log.speeds.clone(),
            speculates: log.spec_algorithm.is_some() || log.accept_length.is_some(),
            outside_graph: log.outside_graph,
        }
    }

    /// What is left of it beside flags that ask for another server: nothing with another model, box
    /// or engine; with another cut, format or fraction, how the engine was told to run.
    /// A card named by flag is the log's own where the log names none or the same.
    pub(super) fn beside(self, args: &ScenarioArgs, gpu: Option<&(String, usize)>) -> Self {
        let card = |name: &str| crate::gpus::find(name).ok().map(|gpu| gpu.name.clone());
        let other_card = args
            .gpu
            .as_ref()
            .zip(gpu)
            .is_some_and(|(asked, (said, _))| card(asked).is_none() || card(asked) != card(said));
        if args.model.is_some() || args.engine.is_some() || other_card {
            return Self::default();
        }
        let mut left = self;
        // Speeds are of the depth it drafted with.
        let other_depth =
            args.steps.is_some() || args.topk.is_some() || args.draft_tokens.is_some();
        if left.speculates && other_depth {
            left.speeds = Vec::new();
        }
        let elsewhere = args.tp.is_some()
            || args.quant.is_some()
            || args.draft.is_some()
            || args.dcp.is_some()
            || args.kv_dtype.is_some()
            || args.mem_fraction.is_some();
        if elsewhere {
            return Self {
                graph_gib: None,
                free_before_gib: None,
                free_after_gib: None,
                draft_gib: None,
                kv_gib: None,
                kv_tokens: None,
                speeds: Vec::new(),
                ..left
            };
        }
        left
    }
}
