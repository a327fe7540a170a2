//! Fits the model's constants on every box but one: coordinate descent on the absolute log error.
//!
//! The start is [`Constants::neutral`], which owes nothing to the box that is left out as far as
//! the other boxes determine the constant; each constant is moved by factors, and only the rows
//! that it touches are run again.

use std::collections::BTreeMap;

use pcie_sim::Constants;
use pcie_sim::constants::{PARAMETERS, Parameter};

use super::rows::{Kind, Row};

/// Factors tried, coarse to fine, one list per pass.
const PASSES: [&[f64]; 5] = [
    &[0.5, 0.7, 0.85, 1.2, 1.45, 2.0],
    &[0.8, 0.9, 1.1, 1.25],
    &[0.85, 0.93, 1.07, 1.17],
    &[0.95, 1.05],
    &[0.975, 1.025],
];
/// Errors above this count as this: a row that no constant can mend must not steer the fit.
const CAP: f64 = 0.5;
/// A parameter moves only if the mean error of the rows it touches falls by at least this.
const WORTH: f64 = 1e-4;

/// Of a box with more rows than this only every third power of two is used.
const LONG: usize = 100;

/// A row that stands for all rows of one box, kernel, rank count and size.
pub(super) struct FitRow {
    row: Row,
    weight: f64,
    /// Indices of the parameters that move its prediction.
    moved_by: Vec<usize>,
}

/// One row per box, kernel, rank count and size (the median of repeats), weighted so that a
/// box with many rows counts more than one with few, but not in proportion; with the parameters that each depends on.
pub(super) fn prepare(rows: &[Row]) -> Vec<FitRow> {
    let mut unique: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *sizes.entry(&row.group).or_default() += 1;
    }
    for row in rows.iter().filter(|r| r.kind != Kind::Other) {
        let long = sizes.get(row.group.as_str()).is_some_and(|n| *n > LONG);
        if long && row.bytes.is_power_of_two() && row.bytes.ilog2() % 3 != 0 {
            continue;
        }
        let key = format!(
            "{}|{:?}|{:?}|{}|{:?}",
            row.group, row.kind, row.ranks, row.bytes, row.what
        );
        unique.entry(key).or_default().push(row);
    }
    let mut out: Vec<FitRow> = unique
        .into_values()
        .map(|mut same| {
            same.sort_by(|a, b| a.measured.total_cmp(&b.measured));
            FitRow {
                row: same[same.len() / 2].clone(),
                weight: 1.0,
                moved_by: Vec::new(),
            }
        })
        .collect();
    let mut counts: BTreeMap<(String, Kind), usize> = BTreeMap::new();
    for r in &out {
        *counts.entry((r.row.group.clone(), r.row.kind)).or_default() += 1;
    }
    let mut neutral = Constants::neutral();
    for r in &mut out {
        let n = counts
            .get(&(r.row.group.clone(), r.row.kind))
            .copied()
            .unwrap_or(1);
        r.weight = 1.0 / (n as f64).sqrt();
        r.moved_by = dependencies(&r.row, &mut neutral);
    }
    out
}

fn dependencies(row: &Row, constants: &mut Constants) -> Vec<usize> {
    let Some(base) = row.predict(constants) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for (i, p) in PARAMETERS.iter().enumerate() {
        if p.family
            .is_some_and(|f| f != row.topology.arch.family() as usize)
        {
            continue;
        }
        let moved = [0.6, 1.6].iter().any(|factor| {
            let kept = *(p.at)(constants);
            *(p.at)(constants) = kept * factor;
            let now = row.predict(constants);
            *(p.at)(constants) = kept;
            now.is_some_and(|x| (x / base - 1.0).abs() > 1e-6)
        });
        if moved {
            out.push(i);
        }
    }
    out
}

/// Constants fitted without the rows of `group`; with an empty name on all rows.
pub(super) fn fit_without(rows: &[FitRow], group: &str) -> Constants {
    let mut constants = Constants::neutral();
    let touched: Vec<Vec<&FitRow>> = (0..PARAMETERS.len())
        .map(|i| {
            rows.iter()
                .filter(|r| r.row.group != group && r.moved_by.contains(&i))
                .collect()
        })
        .collect();
    for factors in PASSES {
        for (parameter, rows) in PARAMETERS.iter().zip(&touched) {
            if !rows.is_empty() {
                improve(&mut constants, parameter, rows, factors);
            }
        }
    }
    constants
}

fn improve(constants: &mut Constants, parameter: &Parameter, rows: &[&FitRow], factors: &[f64]) {
    let start = *(parameter.at)(constants);
    let mut best = (loss(rows, constants) - WORTH, start);
    for factor in factors {
        *(parameter.at)(constants) = start * factor;
        let now = loss(rows, constants);
        if now < best.0 {
            best = (now, start * factor);
        }
    }
    *(parameter.at)(constants) = best.1;
}

fn loss(rows: &[&FitRow], constants: &Constants) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for r in rows {
        let error = super::error(&r.row, constants).unwrap_or(CAP).min(CAP);
        sum += r.weight * error;
        weights += r.weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::collective::rows::{Rows, What};
    use pcie_sim::Algorithm;
    use pcie_sim::nccl::NcclSetup;

    fn row(group: &str, name: &str, measured: f64) -> Row {
        Row {
            group: group.to_string(),
            kind: Kind::NcclPcie,
            topology: Rows::default().topology(name).expect("catalogue box"),
            ranks: vec![0, 1, 2, 3],
            bytes: 4096,
            measured,
            what: What::AllReduce {
                algorithm: Algorithm::Nccl,
                nccl: NcclSetup::default(),
            },
        }
    }

    /// What was measured on the box that is left out must not matter.
    #[test]
    fn the_fit_does_not_see_the_box_that_it_leaves_out() {
        let rows = |left_out: f64| {
            prepare(&[
                row("a", "wrx90-3sw-1s-8x", left_out),
                row("b", "asus-bcm-2s-8x", 16.0),
            ])
        };
        let fitted = fit_without(&rows(10.0), "a");
        assert_eq!(fitted, fit_without(&rows(90.0), "a"));
        assert_ne!(fitted, fit_without(&rows(90.0), "b"));
    }

    #[test]
    fn the_fit_meets_the_one_row_that_it_has() {
        let rows = prepare(&[row("b", "asus-bcm-2s-8x", 16.0)]);
        let fitted = fit_without(&rows, "");
        let error = super::super::error(&rows[0].row, &fitted).expect("runs");
        assert!(error < 0.05, "{error}");
    }
}
