//! The checkpoint that is loaded where the engine makes the weight format itself: FP8 of a BF16 one.

use kvplan::{Model, catalog};

use super::merge::Merged;
use super::model::{config_files, read_config};

/// FP8 with one scale a channel or tensor.
pub(super) const ONE_SCALE: &str = "fp8-dynamic";
/// The only format that is asked of engines while they load.
const MADE: &str = "fp8";

/// Whether an engine has to make the FP8 out of the BF16 checkpoint that is named; none makes blocks.
pub(super) fn made_while_loading(name: &str, quant: &str) -> bool {
    let published = || catalog::find_in(name, None).map(|found| found.quant);
    quant == MADE && name.contains('/') && published().is_ok_and(|quant| quant == "bf16")
}

/// The checkpoint of the flags, the file or the log.
pub(super) fn of(merged: &Merged) -> Option<Model> {
    let quant = merged.quant.as_ref().map(|quant| quant.value.as_str());
    loaded_from(&merged.model.as_ref()?.value, quant)
}

/// The model as the repository or folder that is named stores it, where the engine has to make the
/// format of `--quant` of that.
pub(crate) fn loaded_from(name: &str, quant: Option<&str>) -> Option<Model> {
    let quant = quant.filter(|quant| *quant == MADE)?;
    // A config alone stands for a checkpoint that nobody named.
    if name.ends_with(".json") || !name.contains('/') {
        return None;
    }
    if let Some(files) = config_files(name).ok()? {
        return read_config(&files, name).ok();
    }
    let found = made_while_loading(name, quant).then(|| catalog::find_in(name, Some("bf16")));
    Some(found?.ok()?.model)
}

/// The format that `--quant` makes of a model that is named, where the catalogue knows it: by the engine,
/// or as published.
pub(crate) fn in_format(name: &str, quant: &str) -> Option<Model> {
    let made = made_while_loading(name, quant).then_some(ONE_SCALE);
    let found = catalog::find_in(name, Some(made.unwrap_or(quant)));
    Some(found.ok()?.model)
}
