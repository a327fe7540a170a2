//! `collective.*` and `contention`: times of collectives and rates of copies against what was
//! measured on boxes whose wiring is known. Everything fitted is fitted again without the box.

mod fit;
mod rows;
mod sources;
mod wiring;

use std::collections::BTreeMap;
use std::path::Path;

use pcie_sim::Constants;

use super::{Area, ScoredRow, mean, quantile};
use rows::{Kind, Row, Rows};

/// Fits on all boxes but each one in turn.
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

/// The row for `--rows`.
fn shown(row: &Row, constants: &Constants) -> Option<ScoredRow> {
    Some(ScoredRow {
        what: format!(
            "{}, {} GPUs, {} bytes: {}",
            row.group,
            row.ranks.len(),
            row.bytes,
            row.label(constants)
        ),
        measured: row.measured,
        predicted: row.predict(constants)?,
    })
}

fn area(rows: &Rows, kind: Kind, without: &BTreeMap<&str, Constants>, default: &Constants) -> Area {
    let mut by_group: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut with_default: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let (mut all, mut single) = (Vec::new(), Vec::new());
    let mut unplaced = 0;
    for row in rows.rows.iter().filter(|r| r.kind == kind) {
        let constants = without.get(row.group.as_str()).unwrap_or(default);
        match error(row, constants) {
            Some(e) => {
                by_group.entry(&row.group).or_default().push(e);
                all.push(e);
                single.extend(shown(row, constants));
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
    area.rows = single;
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

    /// The shipped constants are rounded, and shared where few rows tell them apart; `--nocapture`
    /// prints each beside what a fit on all boxes gives.
    #[test]
    fn the_constants_compiled_in_err_hardly_more_than_a_fit_on_all_rows() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let rows = sources::read(&data).expect("rows").rows;
        let mut fitted = fit::fit_without(&fit::prepare(&rows), "");
        let mut shipped = Constants::default();
        for p in pcie_sim::constants::PARAMETERS {
            let (ours, theirs) = (*(p.at)(&mut shipped), *(p.at)(&mut fitted));
            println!("{}: {ours:.4}, fitted {theirs:.4}", p.name);
        }
        for kind in Kind::ALL {
            let median = |constants: &Constants| {
                let of_kind = rows.iter().filter(|r| r.kind == kind);
                let errors: Vec<f64> = of_kind.filter_map(|r| error(r, constants)).collect();
                quantile(&errors, 0.5).expect("rows of every kind")
            };
            let (ours, theirs) = (median(&shipped), median(&fitted));
            println!("{}: median {ours:.3}, fitted {theirs:.3}", kind.area());
            // The fit has seen these very rows.
            assert!(ours < theirs + 0.05, "{}: {ours} {theirs}", kind.area());
        }
    }
}
