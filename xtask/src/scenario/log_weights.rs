//! A log of a server that loaded other weights than those asked about: which format they are of.

use super::aside;
use super::merge::{Given, Merged};
use super::{Notes, Scenario};
use crate::plan::{Otherwise, usual_of_the_nearest, weights_as_loaded};

/// Name of the input that says that the log contradicts the weights.
pub(crate) const CONTRADICTED: &str = "weights_contradicted";

/// Leaves aside what a log shows of a server that is not the one asked about, and says what would settle it.
pub(super) fn leave_aside(
    merged: &mut Merged,
    scenario: &Scenario,
    otherwise: &Otherwise,
    told: &mut Notes,
) {
    let file = merged.ran.file.clone();
    let mut settled_by = "a log of this server".to_string();
    if let Otherwise::Weights(why) = otherwise {
        let format = format_of(merged);
        let asked = merged
            .quant
            .as_ref()
            .is_some_and(|quant| quant.source == "--quant");
        let or_log = if asked {
            " or a log of this server"
        } else {
            ""
        };
        let (by, gives) = match &format {
            Some((name, gib)) => (
                format!("--quant {name}, which gives {gib:.1} GiB,{or_log}"),
                format!("--quant {name} gives {gib:.1}"),
            ),
            None => (
                format!("--quant or the checkpoint's config.json{or_log}"),
                "--quant or the checkpoint's config.json says what they are".to_string(),
            ),
        };
        settled_by = by;
        let line = format!("by weights that {file} contradicts: {why}; {gives}");
        told.input(CONTRADICTED, line, file);
    }
    let left = aside::of_a_log(merged, scenario.engine.kind, otherwise);
    told.assume(left.clone(), settled_by);
    merged.left_aside.push(left);
}

/// The format in which the model takes what the log's server loaded, and GiB of one card in it: the nearest,
/// of those alike the most usual.
fn format_of(merged: &Merged) -> Option<(&'static str, f64)> {
    let fits = |name: &'static str| {
        let mut other = merged.clone();
        other.quant = Some(Given::new(name.to_string(), "--quant"));
        let scenario = Scenario::from_merged(&other, &mut Notes::default()).ok()?;
        let (gib, share) = weights_as_loaded(&scenario)?;
        Some(((name, gib), share.ln().abs()))
    };
    let found = kvplan::QUANTS.into_iter().filter_map(fits);
    usual_of_the_nearest(found.collect())
}
