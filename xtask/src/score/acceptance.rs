//! Areas `acceptance.*`: accept lengths by depth from one measured depth, and with nothing
//! measured. Everything fitted is fitted again without the row's source; a source that the
//! shipped figures were not fitted on is scored with the shipped figures as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use spec_decode::acceptance::fit::{Curve, SlopeFit, fit_slopes};
use spec_decode::acceptance::prior::slope_for;
use spec_decode::{AcceptancePrior, Evidence, HeadKind, Posterior, PriorQuery, Task};

use super::{Area, json_lines, mean};

#[path = "acceptance_prior.rs"]
mod prior;
#[path = "acceptance_regret.rs"]
mod regret;
#[path = "acceptance_trees.rs"]
mod trees;

/// Sources that the catalogue's figures were fitted on.
const FITTED_ON: [&str; 16] = [
    "specbundle/Qwen3-30B-A3B-Instruct-2507",
    "specbundle/Qwen3-235B-A22B-Instruct-2507",
    "specbundle/Qwen3-Coder-30B-A3B-Instruct",
    "specbundle/Qwen3-Coder-480B-A35B-Instruct",
    "specbundle/Ling-flash-2.0",
    "specbundle/Llama-3.1-8B-Instruct",
    "specbundle/Llama-4-Scout-17B-16E-Instruct",
    "inferencex-golden/dsv4_mtp",
    "inferencex-golden/glm5.2_mtp",
    "inferencex-golden/kimik3_dspark",
    "inferencex-golden/minimaxm3_eagle3",
    "inferencex-golden/qwen3.5_mtp",
    "vllm#16035",
    "vllm-blog/p-eagle",
    "card/redhat-llama4-maverick",
    "sglang#23336",
];

/// Fewer curves than this cannot fit a head kind again; the shipped figures are used.
const FEWEST_CURVES: usize = 3;

/// A curve with what it is grouped by.
struct Row {
    source: String,
    curve: Curve,
}

pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let folder = data.join("speculation");
    let (rows, skipped) = read_chains(&folder.join("chains.jsonl"))?;
    let (eagle3, other): (Vec<Row>, Vec<Row>) = rows
        .into_iter()
        .partition(|r| r.curve.head == HeadKind::Eagle3);
    let measurements = json_lines(&folder.join("measurements.jsonl"))?;
    Ok(vec![
        depth_area("acceptance.depth_eagle3", &eagle3, 0),
        depth_area("acceptance.depth_other", &other, skipped),
        prior::area(&measurements),
        regret::area(&measurements),
        trees::area(&measurements),
    ])
}

/// The head kind of a row's `method`, where it is one we know.
pub(super) fn head_of(row: &Value) -> Option<HeadKind> {
    HeadKind::parse(row["method"].as_str()?).ok()
}

/// The task of a row's `dataset`, where it is one we know.
pub(super) fn task_of(row: &Value) -> Option<Task> {
    Task::parse(row["dataset"].as_str()?).ok()
}

/// Reads the curves; counts those with fewer than two depths or an unknown method.
fn read_chains(path: &Path) -> anyhow::Result<(Vec<Row>, usize)> {
    let mut rows = Vec::new();
    let mut skipped = 0;
    for row in json_lines(path)? {
        let lengths = row["accept_length_by_depth"].as_object();
        let points: Vec<(u32, f64)> = lengths
            .into_iter()
            .flatten()
            .filter_map(|(depth, length)| Some((depth.parse().ok()?, length.as_f64()?)))
            .collect();
        match head_of(&row) {
            Some(head) if points.len() >= 2 => rows.push(Row {
                source: row["source"].as_str().unwrap_or_default().to_string(),
                curve: Curve {
                    head,
                    task: task_of(&row),
                    points,
                },
            }),
            _ => skipped += 1,
        }
    }
    Ok((rows, skipped))
}

/// The slope's mean and spread before any curve of the head kind is seen (acceptance reports).
fn slope_prior(head: HeadKind) -> (f64, f64) {
    match head {
        HeadKind::Eagle => (-0.4, 0.2),
        HeadKind::Mtp => (-0.25, 0.1),
        HeadKind::MtpModules => (0.1, 0.1),
        HeadKind::Parallel => (-0.2, 0.1),
        _ => (-0.15, 0.15),
    }
}

fn fitted_on(source: &str) -> bool {
    FITTED_ON.iter().any(|known| source.starts_with(known))
}

/// The slope fit of a head kind from the fitted-on rows other than a source's.
fn fit_without(rows: &[Row], head: HeadKind, source: &str) -> Option<SlopeFit> {
    let curves: Vec<&Curve> = rows
        .iter()
        .filter(|r| r.curve.head == head && r.source != source && fitted_on(&r.source))
        .map(|r| &r.curve)
        .collect();
    let (base, sd) = slope_prior(head);
    // A kind known from one source only falls back to what reports say of it.
    (curves.len() >= FEWEST_CURVES || fitted_on(source))
        .then(|| fit_slopes(&curves, base, sd, head == HeadKind::Eagle3))
}

fn depth_area(name: &str, rows: &[Row], skipped: usize) -> Area {
    let mut fits: BTreeMap<(HeadKind, &str), Option<SlopeFit>> = BTreeMap::new();
    let (mut errors, mut constant, mut shipped) = (Vec::new(), Vec::new(), Vec::new());
    let mut by_head: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut signed = Vec::new();
    for row in rows {
        let (head, task) = (row.curve.head, row.curve.task);
        let ours = slope_for(head, task).mean;
        let slope = if fitted_on(&row.source) {
            fits.entry((head, row.source.as_str()))
                .or_insert_with(|| fit_without(rows, head, &row.source))
                .map_or(ours, |fit| fit.slope(task))
        } else {
            ours
        };
        for point in row.curve.predict(slope) {
            let error = point.predicted - point.measured;
            errors.push(error.abs());
            signed.push(error);
            by_head.entry(head.name()).or_default().push(error.abs());
        }
        let absolute = |slope| {
            let points = row.curve.predict(slope);
            points.into_iter().map(|p| (p.predicted - p.measured).abs())
        };
        constant.extend(absolute(0.0));
        shipped.extend(absolute(ours));
    }
    let mut area = Area::new(name).with_errors(&errors);
    area.skipped = skipped;
    area.notes = vec![
        "error in accept length (tokens); slope fitted without the row's source".to_string(),
        note("constant alpha on the same rows", &constant),
        note("the shipped slopes, in sample", &shipped),
        format!("bias {:+.3}", mean(&signed).unwrap_or(f64::NAN)),
    ];
    area.notes
        .extend(by_head.iter().map(|(head, errors)| note(head, errors)));
    area.notes.push(two_depths(rows));
    area.notes.push(bands(rows));
    if let Some(head) = rows.first().map(|r| r.curve.head) {
        area.notes.push(all_rows_fit(rows, head));
    }
    area
}

fn posterior(curve: &Curve, measured: &[(u32, f64)]) -> Option<Posterior> {
    let prior = AcceptancePrior::new(&PriorQuery {
        task: curve.task,
        ..PriorQuery::of(curve.head)
    });
    let evidence: Vec<Evidence> = measured
        .iter()
        .map(|&(depth, accept_length)| Evidence::AcceptLength {
            depth,
            accept_length,
            cycles: None,
        })
        .collect();
    Posterior::new(&prior, &evidence).ok()
}

/// Error at the other depths when a second depth (the next deeper one) is measured too.
fn two_depths(rows: &[Row]) -> String {
    let mut errors = Vec::new();
    for row in rows {
        let mut points = row.curve.points.clone();
        points.sort_unstable_by_key(|p| p.0);
        let Some(anchor) = row.curve.anchor() else {
            continue;
        };
        let Some(second) = points.iter().copied().find(|p| p.0 >= anchor.0 + 2) else {
            continue;
        };
        let Some(posterior) = posterior(&row.curve, &[anchor, second]) else {
            continue;
        };
        let others = points.iter().filter(|p| p.0 != anchor.0 && p.0 != second.0);
        errors.extend(others.map(|p| (posterior.band(p.0, 0.9).mid - p.1).abs()));
    }
    note("with a second depth measured, the rest", &errors)
}

/// Coverage and width of the 90 % bands at the depths that were not measured.
fn bands(rows: &[Row]) -> String {
    let (mut inside, mut widths) = (Vec::new(), Vec::new());
    for row in rows {
        let Some(anchor) = row.curve.anchor() else {
            continue;
        };
        let Some(posterior) = posterior(&row.curve, &[anchor]) else {
            continue;
        };
        for &(depth, length) in row.curve.points.iter().filter(|p| p.0 != anchor.0) {
            let band = posterior.band(depth, 0.9);
            inside.push(f64::from(u8::from(
                (band.low..=band.high).contains(&length),
            )));
            widths.push(band.width());
        }
    }
    format!(
        "the 90 % bands of the shipped figures hold {:.3}, mean width {:.3}",
        mean(&inside).unwrap_or(f64::NAN),
        mean(&widths).unwrap_or(f64::NAN)
    )
}

/// What a fit on all rows gives, to be compared with the catalogue.
fn all_rows_fit(rows: &[Row], first: HeadKind) -> String {
    let heads: BTreeSet<HeadKind> = rows.iter().map(|r| r.curve.head).chain([first]).collect();
    let fits: Vec<String> = heads
        .into_iter()
        .map(|head| {
            let curves: Vec<&Curve> = rows
                .iter()
                .filter(|r| r.curve.head == head)
                .map(|r| &r.curve)
                .collect();
            let (base, sd) = slope_prior(head);
            let fit = fit_slopes(&curves, base, sd, head == HeadKind::Eagle3);
            format!(
                "{} {:.3} (mixed {:+.3}, math {:+.3})",
                head.name(),
                fit.base,
                fit.mixed,
                fit.math
            )
        })
        .collect();
    format!("slopes fitted on all rows: {}", fits.join("; "))
}

fn note(what: &str, errors: &[f64]) -> String {
    format!(
        "{what}: mean {:.4} over {}",
        mean(errors).unwrap_or(f64::NAN),
        errors.len()
    )
}
