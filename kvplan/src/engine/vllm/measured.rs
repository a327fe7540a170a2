//! Lines of the budget that the log of a server prints: as printed where the setup is that server's, and
//! only what they grow by estimated.

use super::{ACTIVATION_SPREAD, GRAPHS_SPREAD, OUTSIDE_TORCH_SPREAD, graphs, max_seqs};
use crate::ledger::{Added, Ledger};
use crate::setup::{Setup, SpecKind};

/// What the log of a server prints of its profile run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VllmProfile {
    /// Its peak, GiB.
    pub activation_gib: f64,
    /// What grew outside torch meanwhile, GiB.
    pub non_torch_gib: Option<f64>,
}

/// Where a printed figure comes from.
const PRINTED: &str = "printed by the log's server";
const PRINTED_AND_GROWN: &str = "printed by the log's server, and what it grows by here";

/// Peak of the profile run, GiB.
pub(super) fn activation_gib(setup: &Setup<'_>) -> f64 {
    match &setup.observed.profile {
        Some(seen) => (seen.activation_gib + activation_grows(setup)).max(0.0),
        None => super::profile_gib(setup),
    }
}

/// What it grows by beside the run that printed it.
fn activation_grows(setup: &Setup<'_>) -> f64 {
    let mut ran = setup.clone();
    ran.max_running = setup.observed.running.or(ran.max_running);
    ran.batched_tokens = setup.observed.batched_tokens.or(ran.batched_tokens);
    super::profile_gib(setup) - super::profile_gib(&ran)
}

/// Adds a line with a band of so many GiB to both sides.
fn line<'a>(ledger: &'a mut Ledger, item: &str, gib: f64, off_gib: f64, source: &str) -> Added<'a> {
    match off_gib.abs() < 5e-4 {
        true => ledger.exact(item, gib, source),
        false => ledger.estimate(item, gib, off_gib.abs() / gib.abs().max(1e-9), source),
    }
}

/// How far that peak may be off, GiB.
pub(super) fn activation_off_gib(setup: &Setup<'_>, gib: f64) -> f64 {
    let seen = setup.observed.profile.as_ref();
    let estimated = seen.map_or(gib, |_| activation_grows(setup));
    (ACTIVATION_SPREAD * estimated).abs()
}

pub(super) fn activation_line(ledger: &mut Ledger, setup: &Setup<'_>, gib: f64) {
    let off = activation_off_gib(setup, gib);
    let source = match (setup.observed.profile, off > 0.0) {
        (None, _) => "a pass of max_num_batched_tokens, or the sampler over max_num_seqs rows",
        (Some(_), false) => PRINTED,
        (Some(_), true) => PRINTED_AND_GROWN,
    };
    line(ledger, "activations of the profile run", gib, off, source);
}

/// Memory outside torch that counts against the utilisation, GiB.
pub(super) fn non_torch_gib(setup: &Setup<'_>) -> f64 {
    let seen = setup.observed.profile.and_then(|seen| seen.non_torch_gib);
    seen.unwrap_or_else(|| super::growth_outside_torch_gib(setup))
}

/// How far that may be off, GiB.
pub(super) fn non_torch_off_gib(setup: &Setup<'_>, gib: f64) -> f64 {
    let seen = setup.observed.profile.and_then(|seen| seen.non_torch_gib);
    seen.map_or(OUTSIDE_TORCH_SPREAD * gib, |_| 0.0)
}

pub(super) fn non_torch_line(ledger: &mut Ledger, setup: &Setup<'_>, gib: f64) {
    let source = match setup.observed.profile.and_then(|seen| seen.non_torch_gib) {
        Some(_) => PRINTED,
        None => "outside torch",
    };
    let off = non_torch_off_gib(setup, gib);
    line(ledger, "NCCL and context growth", gib, off, source);
}

/// How far the graphs of all together may be off, GiB.
pub(super) fn graphs_off_gib(setup: &Setup<'_>) -> f64 {
    let (target, draft) = graphs::gib(setup, max_seqs(setup));
    let of_draft = if seen_together(setup) { 0.0 } else { draft };
    let total = target + draft;
    GRAPHS_SPREAD
        * match setup.observed.graph_gib {
            None => total,
            Some(seen) => (total - of_draft - seen.max(0.0)).abs() + of_draft,
        }
}

/// Whether graphs were seen of a run with a draft: their sum, which is split by an estimate.
fn seen_together(setup: &Setup<'_>) -> bool {
    let drafts = setup.speculation.is_some_and(|s| s.kind != SpecKind::Ngram);
    drafts && setup.observed.pool_with_draft
}

pub(super) fn graph_lines(ledger: &mut Ledger, setup: &Setup<'_>, graphs: (f64, f64), at: &str) {
    let (target, draft) = graphs;
    let (off, source) = match setup.observed.graph_gib {
        None => (target, at.to_string()),
        Some(_) if seen_together(setup) => {
            let split = "the log's server printed the sum; its split is estimated";
            (target, format!("{split}; {at}"))
        }
        Some(seen) if (target - seen.max(0.0)).abs() < 5e-4 => (0.0, format!("{PRINTED}; {at}")),
        Some(seen) => (target - seen.max(0.0), format!("{PRINTED_AND_GROWN}; {at}")),
    };
    line(
        ledger,
        "target: graphs",
        target,
        GRAPHS_SPREAD * off,
        &source,
    );
    let of_draft = match seen_together(setup) {
        true => source.as_str(),
        false => at,
    };
    line(
        ledger,
        "draft: graphs",
        draft,
        GRAPHS_SPREAD * draft,
        of_draft,
    )
    .of_speculation();
}
