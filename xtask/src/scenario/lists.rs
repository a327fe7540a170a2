//! `--model list`, `--gpu list`, `--box list`: the names that are known, one a line.

use spec_decode::HeadKind;

use super::releases;
use crate::gpus;
use crate::table::{plain, text};

/// What to print where one of the flags asks for its list; no other flag is needed beside it.
pub(crate) fn asked(
    model: Option<&str>,
    card: Option<&str>,
    wiring: Option<&str>,
) -> Option<String> {
    let list = |flag: Option<&str>| flag.is_some_and(|name| name.trim() == "list");
    if list(model) {
        return Some(models());
    }
    if list(card) {
        return Some(cards());
    }
    list(wiring).then(boxes)
}

fn models() -> String {
    let mut table = plain(
        &[
            "model",
            "10^9 parameters",
            "usual format",
            "drafts",
            "also named",
        ],
        &[0, 2, 3, 4],
    );
    for entry in kvplan::catalog::entries() {
        let Ok(found) = kvplan::catalog::find(&entry.name) else {
            continue;
        };
        table.add_row([
            entry.name.clone(),
            billions(found.model.total_params()),
            entry.default_quant.clone(),
            drafts(&found.model, &entry.name),
            entry.aliases.join(", "),
        ]);
    }
    text(&table, 0)
}

/// The drafts that the catalogue has of a model, but layers of its own that no engine serves.
fn drafts(model: &kvplan::Model, name: &str) -> String {
    let mut kinds = kvplan::catalog::draft_kinds(name);
    kinds.retain(|kind| kind != "mtp" || releases::any_serves(model, HeadKind::Mtp));
    kinds.join(", ")
}

fn billions(params: u64) -> String {
    format!("{:.1}", params as f64 / 1e9)
}

fn cards() -> String {
    let mut table = plain(&["gpu", "GiB", "GB/s", "also named"], &[0, 3]);
    for gpu in gpus::all() {
        table.add_row([
            gpu.name.clone(),
            format!("{:.0}", gpu.memory_gib),
            format!("{:.0}", gpu.bandwidth_gb_s),
            gpus::other_names(gpu).join(", "),
        ]);
    }
    text(&table, 0)
}

fn boxes() -> String {
    let mut table = plain(&["box", "GPUs"], &[0, 1]);
    for name in pcie_sim::catalog::names() {
        let Ok(wiring) = pcie_sim::catalog::find(name) else {
            continue;
        };
        // A measured box of a card that nothing is known of serves the scores alone.
        if let Some(gpu) = wiring.gpu.as_deref().filter(|gpu| gpus::find(gpu).is_ok()) {
            table.add_row([name.to_string(), format!("{} x {gpu}", wiring.gpu_count())]);
        }
    }
    text(&table, 0)
}
