//! `collective.*` and `contention`: times of collectives and rates of copies against what was
//! measured on boxes whose wiring is known. Everything fitted is fitted again without the box.

mod fit;
mod rows;
mod sources;

use std::collections::BTreeMap;
use std::path::Path;

use pcie_sim::Constants;

use super::{Area, mean, quantile};
use rows::{Kind, Row, Rows};

/// Fits on all boxes but each one in turn. Printed with `--rows`-like detail by `residuals`.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let rows = sources::read(data)?;
    let groups = rows.groups();
    let without = fit_all(&rows, &groups);
    let default = Constants::default();
    let mut areas = Vec::new();
    for kind in Kind::ALL {
        areas.push(area(&rows, kind, &without, &default));
    }
    areas.insert(4, decision(&rows, &without));
    Ok(areas)
}

/// Constants without each box in turn. Boxes are independent, so they run side by side.
fn fit_all<'a>(rows: &Rows, groups: &'a [String]) -> BTreeMap<&'a str, Constants> {
    let prepared = fit::prepare(&rows.rows);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = groups.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = groups
            .chunks(share)
            .map(|chunk| {
                let prepared = &prepared;
                scope.spawn(move || {
                    chunk
                        .iter()
                        .map(|g| (g.as_str(), fit::fit_without(prepared, g)))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        // A worker that panicked leaves its boxes to the shipped constants.
        workers
            .into_iter()
            .filter_map(|w| w.join().ok())
            .flatten()
            .collect()
    })
}

/// `|ln(predicted / measured)|` of one row; None where the model cannot run it.
fn error(row: &Row, constants: &Constants) -> Option<f64> {
    let predicted = row.predict(constants)?;
    let ratio = (predicted / row.measured).ln().abs();
    ratio.is_finite().then_some(ratio)
}

fn area(rows: &Rows, kind: Kind, without: &BTreeMap<&str, Constants>, default: &Constants) -> Area {
    let mut by_group: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut with_default: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut all = Vec::new();
    let mut unplaced = 0;
    for row in rows.rows.iter().filter(|r| r.kind == kind) {
        let constants = without.get(row.group.as_str()).unwrap_or(default);
        match error(row, constants) {
            Some(e) => {
                by_group.entry(&row.group).or_default().push(e);
                all.push(e);
            }
            None => unplaced += 1,
        }
        if let Some(e) = error(row, default) {
            with_default.entry(&row.group).or_default().push(e);
        }
    }
    let median_of = |groups: &BTreeMap<&str, Vec<f64>>| {
        let medians: Vec<f64> = groups.values().filter_map(|e| quantile(e, 0.5)).collect();
        quantile(&medians, 0.5)
    };
    let mut area = Area::new(kind.area());
    area.n = all.len();
    area.skipped = rows.skipped_of(kind) + unplaced;
    area.median_error = median_of(&by_group);
    area.p90_error = quantile(&all, 0.9);
    area.mean_error = mean(&all);
    let per_box: Vec<String> = by_group
        .iter()
        .map(|(g, e)| format!("{g} {:.3} ({})", quantile(e, 0.5).unwrap_or(0.0), e.len()))
        .collect();
    area.notes
        .push("median of box medians, every box left out of the fit".to_string());
    if let Some(m) = median_of(&with_default) {
        area.notes
            .push(format!("with the shipped constants {m:.3}"));
    }
    area.notes.push(format!("by box: {}", per_box.join(", ")));
    area.notes.extend(rows.reasons_of(kind));
    area
}

/// Sizes where NCCL and a custom kernel were measured on one box: was the faster one named?
fn decision(rows: &Rows, without: &BTreeMap<&str, Constants>) -> Area {
    let mut by_key: BTreeMap<(&str, Vec<usize>, u64), Vec<&Row>> = BTreeMap::new();
    for row in &rows.rows {
        if row.bytes > 0 {
            by_key
                .entry((row.group.as_str(), row.ranks.clone(), row.bytes))
                .or_default()
                .push(row);
        }
    }
    let default = Constants::default();
    let (mut right, mut wrong) = (0_usize, Vec::new());
    for ((group, ranks, bytes), members) in &by_key {
        let constants = without.get(group).unwrap_or(&default);
        let nccl: Vec<&&Row> = members.iter().filter(|r| r.is_plain_nccl()).collect();
        for custom in members.iter().filter(|r| r.is_custom_kernel()) {
            let Some(nccl) = nccl.first() else { continue };
            let (Some(a), Some(b)) = (nccl.predict(constants), custom.predict(constants)) else {
                continue;
            };
            if (a < b) == (nccl.measured < custom.measured) {
                right += 1;
            } else {
                wrong.push(format!("{group} {} GPUs {bytes} B", ranks.len()));
            }
        }
    }
    let mut area = Area::new("collective.decision");
    area.n = right + wrong.len();
    area.right = (area.n > 0).then(|| right as f64 / area.n as f64);
    if !wrong.is_empty() {
        area.notes.push(format!("wrong: {}", wrong.join("; ")));
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Option<std::path::PathBuf> {
        let path = std::env::var_os("SHARED_DATA").map_or_else(
            || Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")).to_path_buf(),
            std::path::PathBuf::from,
        );
        path.is_dir().then_some(path)
    }

    /// Prints the constants fitted on all boxes: `cargo test fitted_constants -- --ignored --nocapture`.
    #[test]
    #[ignore = "prints constants, checks nothing"]
    fn fitted_constants() {
        let Some(data) = data() else { return };
        let rows = sources::read(&data).expect("rows");
        let mut c = fit::fit_without(&fit::prepare(&rows.rows), "");
        for p in pcie_sim::constants::PARAMETERS {
            println!("FIT\t{}\t{:.4}", p.name, *(p.at)(&mut c));
        }
    }

    /// Prints every row with its prediction: `cargo test residual_table -- --ignored --nocapture`.
    #[test]
    #[ignore = "prints a table, checks nothing"]
    fn residual_table() {
        let Some(data) = data() else { return };
        let rows = sources::read(&data).expect("rows");
        let c = Constants::default();
        for r in &rows.rows {
            let p = r.predict(&c).unwrap_or(f64::NAN);
            println!(
                "ROW\t{}\t{:?}\t{}\t{}\t{:.3}\t{:.3}\t{:.3}\t{}",
                r.group,
                r.kind,
                r.ranks.len(),
                r.bytes,
                r.measured,
                p,
                (p / r.measured).ln(),
                r.label(&c)
            );
        }
    }
}
