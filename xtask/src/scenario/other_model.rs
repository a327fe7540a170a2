//! A log and the model that is asked for beside it: whether they are one, and what holds of the log
//! where they are not.

use super::Notes;
use super::merge::{Given, weight_format};
use super::model::{config_files, read_config};
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;
use crate::input;

/// The last part of a path or repository name.
pub(super) fn last(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether `--model` asks for another model than a log's. Beside a log that names none, or one that
/// is not known here, it says which that is; a diffusion language model's log is of none that is.
pub(super) fn other_model(args: &ScenarioArgs, log: &LogScenario) -> bool {
    if log.denoises.is_some() {
        return args.model.is_some();
    }
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
    let left = format!(
        "{shown} is of another model ({named}): its weight format, draft, memory, speeds and further flags are left \
         aside{}",
        kept(args, log)
    );
    notes.assume(left.clone(), "a log of this model");
    Ok(Some(left))
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
    let model = match config_files(named) {
        Ok(Some(files)) => read_config(&files, named).ok(),
        _ => kvplan::catalog::find(named).ok().map(|found| found.model),
    };
    let plain = |layer: &kvplan::Layer| matches!(layer.formats.experts, Bf16 | F16 | F32);
    model.is_some_and(|model| model.layers.iter().all(plain))
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
