//! A scenario: what is served, where and how, resolved once, every value with its source.

mod accept_files;
mod acceptance;
mod all_reduce;
pub(crate) mod aside;
mod attention;
mod beyond;
mod cache;
pub(crate) mod checkpoint;
mod config_name;
mod context;
mod default_draft;
mod draft_graphs;
pub(crate) mod drafted;
mod ended;
mod engine;
pub(crate) mod file;
mod first_serving;
pub(crate) mod hardware;
mod head;
mod heads;
mod hosts;
pub(crate) mod lists;
pub(crate) mod log_weights;
mod measured_with;
pub(crate) mod merge;
pub(crate) mod model;
pub(crate) mod nccl;
mod other;
mod other_engine;
mod other_model;
mod overlap;
pub(crate) mod parse;
mod placement;
mod ran;
pub(crate) mod releases;
pub(crate) mod served;
pub(crate) mod shapes;
pub(crate) mod suffix;
mod sweep;
pub(crate) mod tree;
mod walk;

pub(crate) use accept_files::named as named_files;
pub(crate) use acceptance::{Acceptance, Known, PRIOR_DEPTH, training_of};
pub(crate) use all_reduce::{MOVED, allreduce_names, names_allreduce};
pub(crate) use aside::ONE_GROUP;
pub(crate) use beyond::unmeasured_band;
pub(crate) use cache::E5M2;
pub(crate) use default_draft::is_own as drafts_by_itself;
pub(crate) use engine::{EngineChoice, EngineKind, newer_than_known};
pub(crate) use first_serving::AnsweredFor;
pub(crate) use head::LoggedHead;
pub(crate) use heads::lend_output_head;
pub(crate) use model::{Draft, draft_names, names_draft};
pub(crate) use placement::list;
pub(crate) use ran::{OWN_POOL, Ran};

use pcie_sim::box_spec::BoxSpec;
use serde_json::{Value, json};

use crate::cli::ScenarioArgs;
use crate::gpus::Gpu;
use crate::input;
use crate::predict::answer::{Assumption, Input};
use crate::step_time::cycle;
use crate::step_time::verify_graphs::Attends;
use file::{AssumedFile, ObservedFile};
use served::Served;

/// Loads that are shown where the user names none.
const DEFAULT_CONCURRENCY: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Everything a prediction needs.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) model: kvplan::Model,
    /// The same as stored, where the engine makes `--quant`'s format while it loads.
    pub(crate) checkpoint: Option<kvplan::Model>,
    /// The model as it was named: a catalogue name, a repository, a file or a folder.
    pub(crate) model_given: String,
    /// The weight format that was asked for beside it.
    pub(crate) quant_given: Option<String>,
    pub(crate) draft: Option<Draft>,
    pub(crate) gpu: &'static Gpu,
    pub(crate) wiring: BoxSpec,
    /// GPUs of the tensor-parallel group, by number in the box.
    pub(crate) ranks: Vec<usize>,
    /// Every group of that size that the box holds side by side; the first is `ranks`.
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) tp: u32,
    pub(crate) dcp: u32,
    /// Ranks that whole experts are spread over, as asked for or as the log's server was told; 1: none.
    pub(crate) ep: u32,
    /// A cut of the weights that the engine refuses.
    pub(crate) uncut: Option<kvplan::Uncut>,
    pub(crate) engine: EngineChoice,
    /// Where that is not the release that was named.
    pub(crate) answered_for: Option<AnsweredFor>,
    pub(crate) mem_fraction: Option<f64>,
    pub(crate) kv_dtype: kvplan::KvDtype,
    /// The one that the user's plain sweep ran with, as far as is known.
    pub(crate) swept_kv_dtype: kvplan::KvDtype,
    pub(crate) context: u64,
    pub(crate) concurrency: Vec<u32>,
    /// Share of time at each of them, where a distribution was given.
    pub(crate) load_shares: Option<Vec<f64>>,
    pub(crate) steps: Option<u32>,
    pub(crate) topk: Option<u32>,
    pub(crate) draft_tokens: Option<u32>,
    pub(crate) acceptance: Acceptance,
    /// The user's own plain sweep: (users, tokens a second over all users).
    pub(crate) baseline: Option<Vec<(f64, f64)>>,
    /// Its points with what each was measured by, where its file says.
    pub(crate) swept: Vec<crate::explain::speeds::LoadSpeed>,
    /// Tokens of context that the sweep's points are of, where its file says.
    pub(crate) sweep_context: Option<f64>,
    /// Plain steps saved in the box file, where they are of this server and no sweep is given.
    pub(crate) served: Option<Served>,
    /// `nccl`, `one-shot`, …, or `auto`.
    pub(crate) allreduce: String,
    /// What a plain sweep is taken to have run with: the log's, else the engine's own choice.
    pub(crate) swept_allreduce: String,
    /// Whether the start line of a log keeps its engine, this one, from its own all-reduce.
    pub(crate) told_no_custom: bool,
    /// Whether that log says that FlashInfer's all-reduce is not there.
    pub(crate) no_flashinfer: bool,
    /// The user's own all-reduce times: (bytes, µs).
    pub(crate) allreduce_table: Option<Vec<(u64, f64)>>,
    pub(crate) observed: ObservedFile,
    /// What the log shows of the server that wrote it.
    pub(crate) ran: Ran,
    /// The draft of the log's server, where another or none is asked for and its pool is seen without.
    pub(crate) given_back: Option<Draft>,
    /// Context at which the observed times were seen, tokens.
    pub(crate) observed_context: u64,
    pub(crate) inputs: Vec<Input>,
    pub(crate) assumptions: Vec<Assumption>,
    /// Those of them that say that model, card and engine do not go together, or only to a limit.
    pub(crate) misfits: Vec<String>,
    pub(crate) seed: u64,
    /// Most requests at once that the engine is told to run, where `predict` was told.
    pub(crate) max_running: Option<u64>,
    /// Requests at once for loads asked for beyond what a log's server ran.
    pub(crate) running_for_loads: Option<u64>,
    /// Batches that SGLang is to capture as graphs, where that is not what a log's server did.
    pub(crate) graphs: Option<GraphBatch>,
    /// State slots of a hybrid, where `predict` was told.
    pub(crate) state_slots: Option<u64>,
    /// Longest context that the engine is told to serve, where `predict` was told, tokens.
    pub(crate) max_model_len: Option<u64>,
    /// Draft steps that the memory must hold, where no depth is fixed: the deepest pasted.
    pub(crate) ledger_steps: Option<u32>,
    /// What is left aside of a log whose server had another card or other weights.
    pub(crate) left_aside: Vec<String>,
}

/// The largest batch that SGLang captures as a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GraphBatch {
    /// To be captured, requests.
    pub(crate) largest: u64,
    /// Captured where nobody tells it, requests.
    pub(crate) by_itself: u64,
}

impl GraphBatch {
    /// What it must be told.
    pub(crate) fn typed(self) -> Option<u64> {
        Some(self.largest).filter(|largest| *largest != self.by_itself)
    }
}

/// Collects inputs and assumptions while resolving.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    inputs: Vec<Input>,
    assumptions: Vec<Assumption>,
    misfits: Vec<String>,
}

impl Notes {
    fn input(&mut self, name: &'static str, value: impl Into<Value>, source: impl Into<String>) {
        self.inputs.push(Input {
            name,
            value: value.into(),
            source: source.into(),
        });
    }

    /// An input that is known already, as text.
    fn given(&self, name: &str) -> String {
        let found = self.inputs.iter().find(|input| input.name == name);
        let text = found.and_then(|input| input.value.as_str());
        text.unwrap_or_default().to_string()
    }

    /// What model, card and engine do not do together.
    fn misfit(&mut self, what: String, settled_by: &str) {
        self.misfits.push(what.clone());
        self.assume(what, settled_by);
    }

    fn assume(&mut self, what: impl Into<String>, settled_by: impl Into<String>) {
        self.assumptions.push(Assumption {
            what: what.into(),
            settled_by: settled_by.into(),
        });
    }
}

impl Scenario {
    /// Resolves flags, the scenario file and the log they name.
    ///
    /// # Errors
    /// One line that names the flag or the file and line.
    pub(crate) fn resolve(args: &ScenarioArgs) -> anyhow::Result<Self> {
        let mut notes = Notes::default();
        let args = &cache::beside_the_logs_own(args);
        let mut merged = merge::merge(args, &mut notes)?;
        let mut told = notes.clone();
        let mut scenario = Self::from_merged(&merged, &mut notes)?;
        // Who said the format stands among these.
        scenario.inputs.clone_from(&notes.inputs);
        if let Some((dtype, source)) = crate::plan::kv_format_of_the_pool(&scenario) {
            merged.kv_dtype = Some(merge::Given::new(dtype.name().to_string(), source));
            notes = told.clone();
            scenario = Self::from_merged(&merged, &mut notes)?;
        }
        // Other weights first, then the card beside those.
        for _ in 0..2 {
            let Some(otherwise) = crate::plan::not_of_this_server(&scenario) else {
                break;
            };
            log_weights::leave_aside(&mut merged, &scenario, &otherwise, &mut told);
            notes = told.clone();
            scenario = Self::from_merged(&merged, &mut notes)?;
        }
        scenario = scenario.at_the_first_that_serves(
            &mut merged,
            args.at_release.as_ref(),
            &told,
            &mut notes,
        )?;
        scenario.inputs = notes.inputs;
        scenario.assumptions = notes.assumptions;
        scenario.misfits = notes.misfits;
        crate::plan::pool_of_its_tokens(&mut scenario);
        crate::predict::at_measured_depth(&mut scenario);
        match args.baseline_is_of_another_box {
            true => Ok(scenario),
            false => crate::predict::without_refuted_collapse(scenario),
        }
    }

    fn from_merged(merged: &merge::Merged, notes: &mut Notes) -> anyhow::Result<Self> {
        let hardware = hardware::noted(&merged.hardware, notes)?;
        let engine = engine::resolve(merged, notes)?;
        let model = ran::stretched(model::target(merged, notes)?, merged);
        let tp = tensor_parallel(merged, &hardware.wiring, &model, engine.kind, notes)?;
        let (merged, baseline) = &aside::of_this_server(merged, (tp, &hardware, &model), notes)?;
        let (target, serving) = ((&model, &engine), (&model, &engine, hardware.gpu));
        let draft = heads::resolve(merged, target, notes)?;
        let (allreduce, swept) = all_reduce::resolve(merged, &hardware, target, tp, notes)?;
        let served = sweep::served(merged, &hardware.served, (&model, tp, &*allreduce), notes);
        let (context, measured) = context::resolve(merged, (baseline, &served), notes)?;
        let baseline = sweep::at_context(baseline.clone(), context, notes);
        let (ran, ep) = shapes::expert_ranks(merged, (&model, tp), engine.kind, notes)?;
        shapes::warn(&model, hardware.gpu, engine.kind, context, notes);
        let measured = measured || placement::measured(merged, tp);
        let groups = placement::groups(&hardware, tp, (&*allreduce, model.hidden), measured, notes);
        let (concurrency, load_shares) = concurrency(merged, notes)?;
        let (steps, topk, draft_tokens) = tree::resolve(merged, notes)?;
        Ok(Self {
            acceptance: acceptance::resolve(merged, target, draft.as_ref(), context, steps, notes)?,
            kv_dtype: cache::kv_dtype(merged, serving, notes)?,
            swept_kv_dtype: sweep::kv_dtype(baseline.as_ref(), merged, serving, notes)?,
            mem_fraction: cache::mem_fraction(merged, notes)?,
            uncut: shapes::uncut(&model, (tp, ep), engine.kind),
            ep,
            dcp: cache::dcp(merged, tp, engine.kind, notes)?,
            sweep_context: baseline.as_ref().and_then(|sweep| sweep.context),
            swept: sweep::seen(baseline.as_ref()),
            baseline: baseline.map(|sweep| sweep.points),
            allreduce,
            swept_allreduce: swept,
            told_no_custom: all_reduce::told_no_custom(merged),
            no_flashinfer: all_reduce::no_flashinfer(merged).is_some(),
            served,
            allreduce_table: sweep::allreduce_table(merged.allreduce_table.as_deref(), notes)?,
            observed: merged.observed.clone(),
            ran: attention::asked(merged, ran, serving, notes)?,
            given_back: Ran::draft_given_back(merged, &model),
            observed_context: merged.assumed.context.as_ref().map_or(context, |c| c.value),
            quant_given: merged.quant.as_ref().map(|g| g.value.to_ascii_lowercase()),
            checkpoint: checkpoint::of(merged),
            model_given: merged.model.clone().map_or_else(String::new, |g| g.value),
            model,
            draft,
            gpu: hardware.gpu,
            wiring: hardware.wiring,
            ranks: groups.first().cloned().unwrap_or_default(),
            groups,
            tp,
            engine,
            answered_for: None,
            context,
            concurrency,
            load_shares,
            steps,
            topk,
            draft_tokens,
            inputs: Vec::new(),
            assumptions: Vec::new(),
            misfits: Vec::new(),
            seed: merged.seed,
            max_running: None,
            running_for_loads: None,
            graphs: None,
            state_slots: None,
            max_model_len: None,
            ledger_steps: None,
            left_aside: merged.left_aside.clone(),
        })
    }

    /// Whether nothing says which all-reduce runs: the engine chooses by itself.
    pub(crate) fn reduces_by_own_choice(&self) -> bool {
        let input = self.input("allreduce");
        input.is_none_or(|input| all_reduce::is_own_choice(&input.source))
    }

    /// The sizes that passes are padded to.
    pub(crate) fn graph_ladder(&self) -> spec_decode::cycle::GraphLadder {
        let version = self.engine.version.as_deref();
        let whole = self.attends().whole(self.ran.verify_graphs.as_ref());
        cycle::graph_ladder(self.engine.kind.name(), version, whole)
    }

    /// What vLLM chooses its attention by.
    pub(crate) fn attends(&self) -> Attends<'_> {
        Attends {
            model: &self.model,
            family: self.gpu.family,
            cache: self.kv_dtype,
            version: self.engine.version.as_deref(),
        }
    }

    /// A cut that the engine refuses, where no log shows it serving.
    pub(crate) fn refused_cut(&self) -> Option<&kvplan::Uncut> {
        self.uncut.as_ref().filter(|_| !self.ran.served())
    }

    /// Requests at once that the server is told to run: by flag, for the loads asked for, else as
    /// many as the log's was.
    pub(crate) fn running(&self) -> Option<u64> {
        let told = self.max_running.or(self.running_for_loads);
        told.or(self.ran.told_running())
    }

    /// Draft steps that memory is reckoned with: those asked for, else the most that are pasted, else 3.
    pub(crate) fn steps_for_memory(&self) -> u32 {
        self.steps.or(self.ledger_steps).unwrap_or(3)
    }

    /// Whether steps measured on the user's own server or box are given.
    pub(crate) fn has_own_steps(&self) -> bool {
        self.baseline.is_some() || self.served.is_some()
    }

    /// Loads at which they were measured.
    pub(crate) fn own_loads(&self) -> Vec<u32> {
        let swept = self.baseline.iter().flatten();
        let saved = self.served.iter().flat_map(|served| &served.plain_step);
        let saved = saved.map(|step| step.sequences);
        let whole = |users: &f64| users.fract() == 0.0;
        let swept = swept.map(|(users, _)| *users).filter(whole);
        match self.baseline {
            Some(_) => swept.map(|users| users as u32).collect(),
            None => saved.collect(),
        }
    }

    /// Whether the weights are in BF16 only because nobody named another format.
    pub(crate) fn weights_assumed_bf16(&self) -> bool {
        let bf16 = |input: &Input| input.value == "bf16" && input.source != "--quant";
        self.input("quant").is_some_and(bf16)
    }

    /// The context, where a flag asked for it or a log shows it.
    pub(crate) fn asked_context(&self) -> Option<u64> {
        let input = self.input("context")?;
        (input.source.starts_with("--context") || self.by_log("context")).then_some(self.context)
    }

    /// Whether a flag, a log or a scenario file says the KV format.
    pub(crate) fn asks_kv_dtype(&self) -> bool {
        let source = self.input("kv_dtype").map(|input| input.source.as_str());
        let by_itself = |source: &str| kvplan::KvReason::ALL.iter().any(|why| why.said() == source);
        source.is_some_and(|source| !by_itself(source))
    }

    /// Whether an input is of the log.
    pub(crate) fn by_log(&self, name: &str) -> bool {
        let log = &self.ran.file;
        let source = self.input(name).map(|input| input.source.as_str());
        !log.is_empty() && source.is_some_and(|source| source.starts_with(log))
    }

    /// What an engine must be told to run on the group: by itself it takes the first GPUs.
    pub(crate) fn visible_devices(&self) -> Option<String> {
        let moved = self.ranks.iter().enumerate().any(|(i, gpu)| i != *gpu);
        moved.then(|| format!("CUDA_VISIBLE_DEVICES={}", placement::list(&self.ranks)))
    }

    /// The resolved input of a name, as text.
    pub(crate) fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| i.name == name)
    }
}

fn tensor_parallel(
    merged: &merge::Merged,
    wiring: &BoxSpec,
    model: &kvplan::Model,
    engine: EngineKind,
    notes: &mut Notes,
) -> anyhow::Result<u32> {
    let have = u32::try_from(wiring.gpu_count()).unwrap_or(u32::MAX);
    let (tp, source) = match &merged.tp {
        Some(given) => (given.value, given.source.clone()),
        None => {
            let all = match merged.hardware.gpus {
                Some(gpus) => gpus.min(have),
                None => have,
            };
            // The most GPUs that the heads and widths divide by: 6 GPUs serve most models at TP 2,
            // not 6, and 8 one of 20 heads at 4, not 5.
            let divides = |tp: u32| {
                let heads = kvplan::Sharding::tp(u64::from(tp)).check(model).is_ok();
                let uncut = shapes::uncut(model, (tp, 1), engine);
                heads && uncut.is_none_or(|uncut| uncut.by_expert_parallelism)
            };
            let tp = (1..=all).rev().find(|tp| divides(*tp)).unwrap_or(1);
            let source = if tp < all {
                "as many GPUs as the model's heads and widths divide by"
            } else if all < have {
                "--gpus"
            } else {
                "all GPUs of the box"
            };
            (tp, source.to_string())
        }
    };
    let shown = merged
        .tp
        .as_ref()
        .map_or_else(|| format!("--tp {tp}"), |g| g.shown("--tp"));
    if tp == 0 {
        return Err(input::error(format!("{shown}: give at least 1")));
    }
    if tp > have {
        return Err(input::error(format!(
            "{shown}: the box has {have} GPU{}; give --tp up to {have}",
            if have == 1 { "" } else { "s" }
        )));
    }
    kvplan::Sharding::tp(u64::from(tp))
        .check(model)
        .map_err(|why| input::error(format!("{shown}: {why}")))?;
    if merged.tp.is_none() && tp < have {
        notes.assume(
            format!("tensor parallelism over {tp} of the box's {have} GPUs ({source})"),
            "--tp",
        );
    }
    notes.input("tp", tp, source);
    Ok(tp)
}

fn concurrency(merged: &merge::Merged, notes: &mut Notes) -> anyhow::Result<parse::Loads> {
    let ((values, shares), source) = match &merged.concurrency {
        Some(given) => (
            parse::concurrency(&given.named("--concurrency"), &given.value)?,
            given.source.clone(),
        ),
        None => (
            (DEFAULT_CONCURRENCY.to_vec(), None),
            "the usual loads".to_string(),
        ),
    };
    notes.input("concurrency", json!(values), source);
    Ok((values, shares))
}

/// The part of a scenario file that flags cannot say.
pub(crate) type Assumed = AssumedFile;
