//! Flags over the log over the scenario file: one value each, with where it came from.

use std::path::PathBuf;

use super::all_reduce::Told;
use super::file::{DEFAULT, ScenarioFile};
use super::hardware::BoxRequest;
use super::parse;
use super::ran::Ran;
use super::{Assumed, Notes, ObservedFile};
use crate::cli::ScenarioArgs;
use crate::explain;
use crate::explain::carried::ATTENTION;
use crate::input;

/// A value and where it was given.
#[derive(Debug, Clone)]
pub(crate) struct Given<T> {
    pub(crate) value: T,
    pub(crate) source: String,
    /// Assumed by a scenario file rather than observed or asked for.
    pub(crate) assumed: bool,
}

impl<T> Given<T> {
    pub(super) fn new(value: T, source: impl Into<String>) -> Self {
        Self {
            value,
            source: source.into(),
            assumed: false,
        }
    }
}

impl<T: std::fmt::Display> Given<T> {
    /// The value as an error names it: `--flag VALUE`, or the file and line that say so.
    pub(crate) fn shown(&self, flag: &str) -> String {
        format!("{} {}", self.named(flag), self.value)
    }

    /// The same without the value.
    pub(crate) fn named(&self, flag: &str) -> String {
        if self.source.starts_with("--") || self.assumed {
            return flag.to_string();
        }
        let name = flag.trim_start_matches('-').replace('-', "_");
        format!("{}: {name}", self.source)
    }
}

/// Everything that was given, unresolved.
#[derive(Debug, Clone, Default)]
pub(crate) struct Merged {
    pub(crate) model: Option<Given<String>>,
    pub(crate) quant: Option<Given<String>>,
    pub(crate) draft: Option<Given<String>>,
    pub(crate) hardware: BoxRequest,
    pub(crate) tp: Option<Given<u32>>,
    pub(crate) ep: Option<Given<u32>>,
    pub(crate) dcp: Option<Given<u32>>,
    pub(crate) engine: Option<Given<String>>,
    pub(crate) mem_fraction: Option<Given<f64>>,
    pub(crate) kv_dtype: Option<Given<String>>,
    pub(super) attention_backend: Option<Given<String>>,
    pub(crate) context: Option<Given<String>>,
    pub(crate) concurrency: Option<Given<String>>,
    pub(crate) steps: Option<Given<u32>>,
    pub(crate) topk: Option<Given<u32>>,
    pub(crate) draft_tokens: Option<Given<u32>>,
    pub(crate) accept: Option<Given<String>>,
    /// How that was measured.
    pub(super) accept_of: super::measured_with::AcceptOf,
    /// What of the log is left aside, and why.
    pub(super) left_aside: Vec<String>,
    pub(crate) task: Option<Given<String>>,
    pub(crate) temperature: Option<Given<f64>>,
    pub(crate) baseline: Option<PathBuf>,
    pub(crate) baseline_context: Option<Given<String>>,
    pub(crate) allreduce: Option<Given<String>>,
    /// What the log says of the all-reduce of its server.
    pub(super) told_all_reduce: Option<Told>,
    /// The engine that wrote the log, where another one is asked for.
    pub(super) lent_by: Option<super::EngineKind>,
    pub(crate) allreduce_table: Option<PathBuf>,
    pub(crate) observed: ObservedFile,
    pub(crate) ran: Ran,
    /// Tensor-parallel size of the log's server, and file and line.
    pub(super) log_tp: Option<(u32, String)>,
    /// KV format of the server that a log or scenario describes, and where that stands.
    pub(super) described_kv_dtype: Option<(String, String)>,
    /// Whether what a log says of the model is said of the one asked for.
    pub(super) log_is_of_the_model: bool,
    pub(crate) assumed: Assumed,
    pub(crate) seed: u64,
}

/// Merges flags, log and scenario file. The default scenario stands only without a model and a log.
pub(super) fn merge(args: &ScenarioArgs, notes: &mut Notes) -> anyhow::Result<Merged> {
    let name = match (&args.scenario, &args.model, &args.from_log) {
        (Some(name), _, _) => Some(name.clone()),
        (None, None, None) => Some(DEFAULT.to_string()),
        _ => None,
    };
    let mut merged = Merged {
        seed: args.seed,
        ..Merged::default()
    };
    if let Some(name) = &name {
        let file = ScenarioFile::load(name)?;
        notes.input(
            "scenario",
            file.title
                .clone()
                .or(file.name.clone())
                .unwrap_or_else(|| name.clone()),
            if args.scenario.is_some() {
                "--scenario"
            } else {
                "the default"
            },
        );
        apply_file(&mut merged, file, name);
    }
    if let Some(path) = &args.from_log {
        let shown = path.display().to_string();
        let log = explain::scenario_from_log(&input::read_text(path)?, &shown)?;
        let log = super::cache::with_its_own(log, args);
        let log = super::hosts::on_one_box(log, &shown, &mut merged, notes);
        let aside = super::other_model::check(args, &log, &shown, notes)?;
        merged.left_aside.extend(aside);
        apply_log(&mut merged, log, args, &shown, notes);
    }
    apply_flags(&mut merged, args);
    if let (None, Some(log)) = (&merged.model, &args.from_log) {
        return Err(input::error(format!(
            "--from-log {}: does not name the model; add --model NAME",
            log.display()
        )));
    }
    Ok(merged)
}

fn apply_file(merged: &mut Merged, file: ScenarioFile, name: &str) {
    let source = format!("scenario {name}");
    let text = |value: Option<String>| value.map(|v| Given::new(v, &source));
    let number = |value: Option<u32>| value.map(|v| Given::new(v, &source));
    merged.model = text(file.model);
    merged.quant = text(file.quant);
    merged.accept_of.draft.clone_from(&file.draft);
    merged.draft = text(file.draft);
    merged.hardware = BoxRequest {
        box_name: file.box_name,
        gpu: file.gpu,
        gpus: file.gpus,
        topology: file.topology.map(PathBuf::from),
        ..BoxRequest::default()
    };
    merged.tp = number(file.tp);
    merged.ep = number(file.ep);
    merged.dcp = number(file.dcp);
    merged.engine = text(file.engine);
    merged.mem_fraction = file.mem_fraction.map(|v| Given::new(v, &source));
    merged.described_kv_dtype = file.kv_dtype.clone().map(|kv| (kv, source.to_string()));
    merged.kv_dtype = text(file.kv_dtype);
    merged.attention_backend = text(file.attention_backend);
    merged.context = text(file.context);
    merged.concurrency = text(file.concurrency);
    merged.steps = number(file.steps);
    merged.topk = number(file.topk);
    merged.draft_tokens = number(file.draft_tokens);
    merged.accept = text(file.accept);
    merged.task = text(file.task);
    merged.temperature = file.temperature.map(|v| Given::new(v, &source));
    merged.baseline = file.baseline.map(PathBuf::from);
    merged.baseline_context = text(file.baseline_context);
    merged.allreduce = text(file.allreduce);
    if merged.context.is_none()
        && let Some(context) = &file.assumed.context
    {
        merged.context = Some(Given {
            value: context.value.to_string(),
            source: context.why.clone(),
            assumed: true,
        });
    }
    merged.observed = file.observed;
    merged.assumed = file.assumed;
}

/// A weight format that a log names: engines as often print the loader there (compressed-tensors).
pub(crate) fn weight_format((name, line): (String, usize)) -> Option<(String, usize)> {
    let name = name.to_ascii_lowercase().replace("_marlin", "");
    let name = if name == "modelopt_fp4" {
        "nvfp4".to_string()
    } else {
        name
    };
    kvplan::Quant::parse(&name).map(|_| (name, line))
}

/// Drafts copied from the context, without a model.
pub(crate) fn is_look_up(algorithm: &str) -> bool {
    let lower = algorithm.to_ascii_lowercase();
    ["ngram", "suffix", "lookahead"]
        .iter()
        .any(|word| lower.contains(word))
}

/// The draft of a log, as `--draft` takes it, and its line.
pub(crate) fn draft_of_log(log: &explain::LogScenario) -> Option<(String, usize)> {
    let algorithm = log.spec_algorithm.as_ref().and_then(|(name, line)| {
        let lower = name.to_ascii_lowercase();
        // The engines name their own MTP module by the algorithm, without a draft path.
        let word = match () {
            () if lower.contains("mtp") || lower.contains("nextn") => "mtp",
            () if super::suffix::is_suffix(name) => "suffix",
            () if is_look_up(name) => "ngram",
            () => return None,
        };
        Some((word.to_string(), *line))
    });
    log.draft.clone().or(algorithm)
}

fn apply_log(
    merged: &mut Merged,
    log: explain::LogScenario,
    args: &ScenarioArgs,
    shown: &str,
    notes: &mut Notes,
) {
    let whole = log.clone();
    merged.log_is_of_the_model = !super::other_model::other_model(args, &log);
    merged.ran = Ran::of(&log, shown).beside(args, &log);
    let other_weights = super::other::of_other_weights(args, &log, shown);
    let other_version = super::other_engine::of_other_version(args, &log, shown);
    for left in other_weights.into_iter().chain(other_version) {
        notes.assume(left.clone(), "a log of that server");
        merged.left_aside.push(left);
    }
    let at = |line: usize| format!("{shown}:{line}");
    merged.log_tp = log.tp.map(|(tp, line)| (tp, at(line)));
    merged.described_kv_dtype = log.kv_dtype.clone().map(|(kv, line)| (kv, at(line)));
    let text = |value: Option<(String, usize)>| value.map(|(v, line)| Given::new(v, at(line)));
    let number = |value: Option<(u32, usize)>| value.map(|(v, line)| Given::new(v, at(line)));
    merged.model = text(log.model).or(merged.model.take());
    merged.quant = text(super::other_model::format_said(args, &whole, shown, notes))
        .or_else(|| super::other_model::format_by_name(args, &whole, shown))
        .or(merged.quant.take());
    merged.draft = text(draft_of_log(&whole)).or(merged.draft.take());
    merged.tp = number(log.tp).or(merged.tp.take());
    merged.dcp = number(log.dcp).or(merged.dcp.take());
    if let Some((engine, line)) = &log.engine {
        // A flag replaces the log's engine, and with it what was taken of the version.
        let unsaid = &mut Notes::default();
        let said = if args.engine.is_some() {
            unsaid
        } else {
            &mut *notes
        };
        let value = engine_at(engine, &whole, shown, said);
        merged.engine = Some(Given::new(value, at(*line)));
    }
    merged.lent_by = super::other_engine::engine_beside(args, &whole);
    if let Some(engine) = merged.lent_by {
        super::other_engine::note_lent(engine, args, shown, notes);
    }
    // A fraction means another share of the card in each engine.
    merged.mem_fraction = log
        .mem_fraction
        .filter(|_| merged.lent_by.is_none())
        .map(|(v, line)| Given::new(v, at(line)))
        .or(merged.mem_fraction.take());
    merged.kv_dtype = text(log.kv_dtype).or(merged.kv_dtype.take());
    super::context::load(merged, &whole, args, shown);
    merged.told_all_reduce = Told::beside(&whole, args, shown);
    if merged.hardware.gpu.is_none() {
        merged.hardware.gpu = log.gpu.map(|(gpu, _)| gpu);
    }
    note_died(&whole, shown, notes);
    merged.hardware.peers_by = whole.custom_all_reduce.map(at);
    merged.hardware.nccl.log(&whole, shown);
    if args.gpus.is_none() && merged.hardware.gpus.is_none() {
        // As many as the server took, or as are asked for: a log seldom says what else is in the box.
        let took = log.tp.or(log.gpus);
        merged.hardware.gpus = took.map(|(gpus, _)| gpus).max(args.tp);
        let own = took.filter(|(tp, _)| Some(*tp) == merged.hardware.gpus);
        merged.hardware.gpus_by = own.map(|(_, line)| format!("{shown}:{line}"));
    }
    apply_log_speculation(merged, &whole, shown, notes);
}

/// Says that a log's server was not seen to start.
fn note_died(log: &explain::LogScenario, shown: &str, notes: &mut Notes) {
    if let Some(line) = log.died {
        let what = format!(
            "{shown}:{line}: that server ended with an error before it took requests (explain names it), and \
             the paste has its flags"
        );
        notes.assume(what, "a start that comes up");
    }
}

/// The engine with the version that the log prints, else with the one that its lines are of.
fn engine_at(engine: &str, log: &explain::LogScenario, shown: &str, notes: &mut Notes) -> String {
    let settled = "--engine NAME@VERSION";
    match (&log.engine_version, &log.version_by_lines) {
        (Some((version, _)), _) if parse::is_version(version) => format!("{engine}@{version}"),
        (Some((version, line)), _) => {
            let what = format!(
                "{shown}:{line}: version {version} names no release; the newest rules are used"
            );
            notes.assume(what, settled);
            engine.to_string()
        }
        (None, Some((version, range, line))) => {
            let what = format!(
                "{shown}:{line}: prints no version; by its lines {engine} {range}: its rules are \
                 taken to be those of {version}"
            );
            notes.assume(what, settled);
            format!("{engine}@{version}")
        }
        (None, None) => engine.to_string(),
    }
}

/// Depth, width and accept length of a log.
fn apply_log_speculation(
    merged: &mut Merged,
    log: &explain::LogScenario,
    shown: &str,
    notes: &mut Notes,
) {
    let at = |line: usize| format!("{shown}:{line}");
    let number = |value: Option<(u32, usize)>| value.map(|(v, line)| Given::new(v, at(line)));
    if super::suffix::drafts(log) {
        return;
    }
    merged.steps = number(log.steps).or(merged.steps.take());
    merged.topk = number(log.topk).or(merged.topk.take());
    merged.draft_tokens = number(log.draft_tokens).or(merged.draft_tokens.take());
    if let Some((length, line)) = log.accept_length
        && let Some((steps, _)) = log.steps
    {
        if (1.0..=f64::from(steps) + 1.0).contains(&length) {
            // Where it says more than the mean, as `--accept LOG` reads it.
            let whole = log.accept_rates.as_ref().map(|_| shown.to_string());
            let value = whole.unwrap_or_else(|| format!("{length}@{steps}"));
            merged.accept = Some(Given::new(value, at(line)));
            merged.accept_of = super::measured_with::AcceptOf::of_log(log);
        } else {
            notes.assume(
                format!(
                    "{}: accept length {length} cannot come from {steps} draft steps; left out",
                    at(line)
                ),
                "--accept LENGTH@DEPTH",
            );
        }
    }
}

/// Takes back what flags say is of another model or server than the one that is asked about.
fn take_back(merged: &mut Merged, args: &ScenarioArgs) {
    if args.model.is_some() && !merged.log_is_of_the_model {
        super::other_model::take_back(merged, args.from_log.is_some());
    }
    let cut = args.tp.or(args.ep).is_some();
    if cut || args.quant.is_some() || args.engine.is_some() {
        // Cut, stored or served otherwise: the observed figures are of another server.
        merged.observed = ObservedFile::default();
    }
    let own_draft = merged.draft.as_ref().map(|draft| &draft.value);
    merged.observed.of_another_draft = args.draft.is_some() && args.draft.as_ref() != own_draft;
    if args.kv_dtype.is_some() || args.dcp.is_some() {
        // The cache is read otherwise: the times seen are not this run's, the memory still is.
        merged.observed.verify_ms = None;
        merged.observed.spec_tok_s = None;
        merged.observed.public = None;
    }
    // Steps, width and verified tokens belong together: one given takes back the others' defaults.
    let other = |asked: Option<u32>, own: &Option<Given<u32>>| {
        asked.is_some() && asked != own.as_ref().map(|own| own.value)
    };
    let other_tree = other(args.steps, &merged.steps) || other(args.topk, &merged.topk);
    let other_tokens = other(args.draft_tokens, &merged.draft_tokens);
    if other_tree && args.draft_tokens.is_none() {
        merged.draft_tokens = None;
    }
    if other_tokens && args.steps.is_none() {
        merged.steps = None;
    }
}

fn apply_flags(merged: &mut Merged, args: &ScenarioArgs) {
    fn set<T: Clone>(slot: &mut Option<Given<T>>, flag: &str, value: &Option<T>) {
        if let Some(value) = value {
            *slot = Some(Given::new(value.clone(), flag));
        }
    }
    take_back(merged, args);
    let m = &mut *merged;
    set(&mut m.model, "--model", &args.model);
    set(&mut m.quant, "--quant", &args.quant);
    set(&mut m.draft, "--draft", &args.draft);
    set(&mut m.tp, "--tp", &args.tp);
    set(&mut m.ep, "--ep", &args.ep);
    set(&mut m.dcp, "--dcp", &args.dcp);
    set(&mut m.engine, "--engine", &args.engine);
    set(&mut m.mem_fraction, "--mem-fraction", &args.mem_fraction);
    set(&mut m.kv_dtype, "--kv-dtype", &args.kv_dtype);
    let attention = &args.attention_backend;
    set(&mut m.attention_backend, ATTENTION, attention);
    set(&mut m.context, "--context", &args.context);
    set(&mut m.concurrency, "--concurrency", &args.concurrency);
    set(&mut m.steps, "--steps", &args.steps);
    set(&mut m.topk, "--topk", &args.topk);
    set(&mut m.draft_tokens, "--draft-tokens", &args.draft_tokens);
    set(&mut m.accept, "--accept", &args.accept);
    if let Some(accept) = &args.accept {
        merged.accept_of = super::measured_with::AcceptOf::of_flag(accept);
    }
    if args.accept_is_of_another {
        merged.accept = None;
        merged.assumed.accept_length = None;
    }
    set(&mut merged.task, "--task", &args.task);
    set(&mut merged.temperature, "--temperature", &args.temperature);
    set(&mut merged.allreduce, "--allreduce", &args.allreduce);
    if args.baseline.is_some() {
        merged.baseline.clone_from(&args.baseline);
        merged.baseline_context = None;
    }
    set(
        &mut merged.baseline_context,
        "--baseline-context",
        &args.baseline_context,
    );
    if args.allreduce_table.is_some() {
        merged.allreduce_table.clone_from(&args.allreduce_table);
    }
    apply_box(merged, args);
}

fn apply_box(merged: &mut Merged, args: &ScenarioArgs) {
    if args.box_name.is_some() || args.gpu.is_some() {
        // Another box: what was observed on the scenario's says nothing of it. A log may lack its
        // box, and then names only how many GPUs took part.
        merged.observed = ObservedFile::default();
        if args.baseline.is_none() {
            merged.baseline = None;
            merged
                .baseline_context
                .take_if(|given| given.source != "--baseline-context");
        }
        if args.allreduce_table.is_none() {
            merged.allreduce_table = None;
        }
        let before = std::mem::take(&mut merged.hardware);
        match args.from_log {
            Some(_) if args.box_name.is_none() => {
                merged.hardware = before.of_another_card();
            }
            Some(_) => {}
            None => merged.tp = args.tp.map(|tp| Given::new(tp, "--tp")),
        }
    }
    merged.hardware.nccl.flags(&args.nccl);
    if args.box_name.is_some() {
        merged.hardware.box_name.clone_from(&args.box_name);
    }
    if args.gpu.is_some() {
        merged.hardware.gpu.clone_from(&args.gpu);
    }
    if args.gpus.is_some()
        && args.box_name.is_none()
        && args.gpu.is_none()
        && merged.tp.as_ref().map(|tp| tp.value) != args.gpus
    {
        // Some of the scenario's cards: cut otherwise than what was observed.
        merged.observed = ObservedFile::default();
        merged.tp = args.tp.map(|tp| Given::new(tp, "--tp"));
    }
    if args.gpus.is_some() {
        merged.hardware.gpus = args.gpus;
        merged.hardware.gpus_by = None;
    }
    if args.topology.is_some() {
        merged.hardware.topology.clone_from(&args.topology);
        if args.gpus.is_none() && args.from_log.is_some() {
            // The box is what the file shows; the log's server may have taken some of it.
            merged.hardware.gpus = None;
        }
        if merged.hardware.box_name.is_some() && args.box_name.is_none() {
            merged.hardware.box_name = None;
        }
    }
}
