//! A log and the model that is asked for beside it: whether they are one, and what holds of the log
//! where they are not.

use super::Notes;
use super::merge::{Given, Merged, weight_format};
use super::model::{config_files, read_config};
use super::releases::layers_of;
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;
use crate::input;

/// The last part of a path or repository name.
pub(super) fn last(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether `--model` asks for another model than a log's. Beside a log that names none, or one that
/// is not known here, it says which that is, unless the log's class has other layers; a diffusion language
/// model's log is of none that is.
pub(super) fn other_model(args: &ScenarioArgs, log: &LogScenario) -> bool {
    if log.denoises.is_some() {
        return args.model.is_some();
    }
    named_otherwise(args, log) || of_other_class(args, log).is_some()
}

/// Whether the log's model has another name than the one asked for.
fn named_otherwise(args: &ScenarioArgs, log: &LogScenario) -> bool {
    let Some((asked, (said, _))) = args.model.as_ref().zip(log.model.as_ref()) else {
        return false;
    };
    let found = |name: &str| kvplan::catalog::find(last(name)).ok();
    match (found(asked), found(said)) {
        (_, None) => std::path::Path::new(said).exists() && asked != said,
        (None, Some(_)) => true,
        (Some(asked), Some(said)) => asked.model.name != said.model.name,
    }
}

/// The class that the log names, its line, and the class of the model asked for, where they surely are of
/// other layers.
fn of_other_class(args: &ScenarioArgs, log: &LogScenario) -> Option<(String, usize, String)> {
    let ((said, line), asked) = (log.class.as_ref()?, args.model.as_ref()?);
    let class = model_named(asked)?.architecture;
    of_other_layers(said, &class).then(|| (said.clone(), *line, class))
}

/// Whether two classes surely are of other layers.
pub(super) fn of_other_layers(said: &str, class: &str) -> bool {
    let layers = layers_of(said).zip(layers_of(class));
    layers.is_some_and(|(said, own)| said != own)
}

/// The model of a config's path or of the catalogue.
fn model_named(named: &str) -> Option<kvplan::Model> {
    match config_files(named) {
        Ok(Some(files)) => read_config(&files, named).ok(),
        _ => Some(kvplan::catalog::find(last(named)).ok()?.model),
    }
}

/// Says what of a log is left aside beside another model than its own.
///
/// # Errors
/// The log is of a diffusion language model, and no other model is asked for.
pub(super) fn check(
    args: &ScenarioArgs,
    log: &LogScenario,
    shown: &str,
    notes: &mut Notes,
) -> anyhow::Result<Option<String>> {
    if let (Some((name, line)), None) = (&log.denoises, &args.model) {
        let why = kvplan::DENOISES;
        return Err(input::error(format!(
            "{shown}:{line}: {} {why}",
            last(name)
        )));
    }
    if !other_model(args, log) {
        return Ok(None);
    }
    let named = log.model.as_ref().or(log.denoises.as_ref());
    let named = named.map_or("", |(name, _)| last(name));
    let classes = of_other_class(args, log).filter(|_| !named_otherwise(args, log));
    let of = match (classes, &args.model) {
        (Some((said, line, class)), Some(asked)) => format!(
            "{shown}:{line} is of another model: it names {said}, --model {asked} is {class}"
        ),
        _ => format!("{shown} is of another model ({named})"),
    };
    let left = format!(
        "{of}; its weight format, draft, accept length, memory, speeds and further flags are left aside{}",
        kept(args, log)
    );
    notes.assume(left.clone(), "a log of this model");
    Ok(Some(left))
}

/// Takes back what a scenario or a log says of another model than the one asked for: what was observed of it
/// says nothing of this one.
pub(super) fn take_back(merged: &mut Merged, by_log: bool) {
    merged.observed = super::ObservedFile::default();
    merged.assumed = super::Assumed::default();
    merged.quant = None;
    merged.draft = None;
    merged.steps = None;
    merged.topk = None;
    merged.draft_tokens = None;
    merged.accept = None;
    merged.accept_of = super::measured_with::AcceptOf::default();
    if by_log {
        // Some models choose their own, and a log does not say who did.
        merged.kv_dtype = None;
        merged.described_kv_dtype = None;
        merged.dcp = None;
    }
}

/// What of a server does not hang on its model, and no flag says otherwise.
fn kept(args: &ScenarioArgs, log: &LogScenario) -> String {
    let kept: Vec<&str> = [
        ("engine", log.engine.is_some() && args.engine.is_none()),
        ("TP", log.tp.is_some() && args.tp.is_none()),
        (
            "fraction",
            log.mem_fraction.is_some() && args.mem_fraction.is_none(),
        ),
    ]
    .into_iter()
    .filter_map(|(what, kept)| kept.then_some(what))
    .collect();
    match kept.is_empty() {
        true => String::new(),
        false => format!(", kept: {}", kept.join(", ")),
    }
}

/// The weight format that a log says. What it says by its kernels' names alone holds where no name
/// of the model and no config says more.
pub(super) fn format_said(
    args: &ScenarioArgs,
    log: &LogScenario,
    shown: &str,
    notes: &mut Notes,
) -> Option<(String, usize)> {
    let (format, line) = log.quant.clone().and_then(weight_format)?;
    if !log.quant_by_kernels {
        return Some((format, line));
    }
    let said = log.model.as_ref().map(|(name, _)| name.as_str());
    if said.and_then(kvplan::catalog::precision_in).is_some() {
        return None;
    }
    let named = args.model.as_deref().or(said)?;
    let taken = experts_are_plain(named);
    if taken && args.quant.is_none() && !other_model(args, log) {
        let what = format!(
            "weights in {format}: by the name of its MoE kernels' tuned config, {shown}:{line}"
        );
        notes.assume(what, "--quant");
    }
    taken.then_some((format, line))
}

/// Whether what a model is named by stores its experts plain.
fn experts_are_plain(named: &str) -> bool {
    use kvplan::WeightFormat::{Bf16, F16, F32};
    let plain = |layer: &kvplan::Layer| matches!(layer.formats.experts, Bf16 | F16 | F32);
    model_named(named).is_some_and(|model| model.layers.iter().all(plain))
}

/// The weight format that the name of a log's model ends in, where `--model` says which model of the
/// catalogue that is and no format.
pub(super) fn format_by_name(
    args: &ScenarioArgs,
    log: &LogScenario,
    shown: &str,
) -> Option<Given<String>> {
    let asked = args.model.as_ref()?;
    let (said, line) = log.model.as_ref().filter(|_| !other_model(args, log))?;
    let format = kvplan::catalog::precision_in(said)?;
    let known = kvplan::catalog::find_in(asked, Some(&format)).is_ok();
    let unsaid = known && kvplan::catalog::precision_in(asked).is_none();
    unsaid.then(|| Given::new(format, format!("{shown}:{line} (the name of its model)")))
}
