//! Areas `acceptance.*`: accept lengths by depth from one measured depth, and with nothing
//! measured. Everything fitted is fitted again without the row's source; a source that the
//! shipped figures were not fitted on is scored with the shipped figures as they are.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use spec_decode::acceptance::fit::{Curve, DepthPrediction, SlopeFit, fit_slopes};
use spec_decode::acceptance::prior::{slope_of, trained_steps};
use spec_decode::{AcceptancePrior, Evidence, HeadKind, Posterior, PriorQuery, Task};

use super::{Area, json_lines, mean};

#[path = "acceptance_prior.rs"]
mod prior;
#[path = "acceptance_regret.rs"]
mod regret;
#[path = "acceptance_trees.rs"]
mod trees;

/// Sources that the catalogue's figures were fitted on.
const FITTED_ON: [&str; 18] = [
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
    "spark-vllm#343",
    "qwen38-mtp#11",
];

/// A curve with what it is grouped by.
struct Row {
    source: String,
    curve: Curve,
}

pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let folder = data.join("speculation");
    let (rows, skipped) = read_chains(&folder.join("chains.jsonl"))?;
    let fits = fits_without(&rows);
    let (eagle3, other): (Vec<Row>, Vec<Row>) = rows
        .into_iter()
        .partition(|r| r.curve.head == HeadKind::Eagle3);
    let measurements = json_lines(&folder.join("measurements.jsonl"))?;
    let rates = read_rates(&measurements);
    let mut of_eagle3 = depth_area("acceptance.depth_eagle3", &eagle3, &fits, 0);
    of_eagle3.notes.push(unseen(&rates, true));
    let mut of_other = depth_area("acceptance.depth_other", &other, &fits, skipped);
    of_other.notes.push(unseen(&rates, false));
    Ok(vec![
        of_eagle3,
        of_other,
        prior::area(&measurements),
        regret::area(&measurements),
        trees::area(&measurements),
    ])
}

/// The head kind of a row's `method`, where it is one we know.
pub(super) fn head_of(row: &Value) -> Option<HeadKind> {
    HeadKind::parse(row["method"].as_str()?).ok()
}

/// What the prior may know of a row: head kind, task, temperature, and what its model says of the
/// head's training.
pub(super) fn query_of(row: &Value, head: HeadKind) -> PriorQuery {
    PriorQuery {
        task: task_of(row),
        temperature: row["temperature"].as_f64(),
        trained_steps: trained_steps(head, row["model"].as_str().unwrap_or_default()),
        ..PriorQuery::of(head)
    }
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
        match row_of(&row, points) {
            Some(row) => rows.push(row),
            None => skipped += 1,
        }
    }
    Ok((rows, skipped))
}

/// A curve of a known head kind with at least two depths.
fn row_of(row: &Value, points: Vec<(u32, f64)>) -> Option<Row> {
    let head = head_of(row).filter(|_| points.len() >= 2)?;
    Some(Row {
        source: row["source"].as_str().unwrap_or_default().to_string(),
        curve: Curve {
            head,
            trained_steps: query_of(row, head).trained_steps,
            task: task_of(row),
            draft: ["source", "model", "draft"]
                .map(|k| row[k].to_string())
                .join("|")
                + head.name(),
            points,
        },
    })
}

/// Curves out of the positions' rates of single runs, from sources that no slope was fitted on.
fn read_rates(measurements: &[Value]) -> Vec<Row> {
    let unseen = measurements
        .iter()
        .filter(|row| !fitted_on(row["source"].as_str().unwrap_or_default()));
    unseen
        .filter_map(|row| {
            let rates = row["accept_per_pos_cumulative"].as_array()?;
            let mut length = 1.0;
            let lengths = rates.iter().filter_map(Value::as_f64).map(|rate| {
                length += rate;
                length
            });
            let points: Vec<(u32, f64)> = (1..).zip(lengths).collect();
            row_of(row, points)
                .filter(|_| rates.len() >= 3 && row["topk"].as_u64().is_none_or(|k| k == 1))
        })
        .collect()
}

/// Error on single runs' position rates, each source counted once, shipped slopes.
fn unseen(rows: &[Row], eagle3: bool) -> String {
    let mut by_source: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let asked = rows
        .iter()
        .filter(|r| (r.curve.head == HeadKind::Eagle3) == eagle3);
    for row in asked {
        let points = row.curve.predict(slope_of(&query(&row.curve)).mean);
        let errors = points.iter().map(|p| (p.predicted - p.measured).abs());
        by_source.entry(&row.source).or_default().extend(errors);
    }
    let means: Vec<f64> = by_source.values().filter_map(|e| mean(e)).collect();
    note(
        "position rates of sources that no slope was fitted on, mean by source",
        &means,
    )
}

fn fitted_on(source: &str) -> bool {
    FITTED_ON.iter().any(|known| source.starts_with(known))
}

/// The slopes fitted without each source in turn, and on all sources under the empty name.
fn fits_without(rows: &[Row]) -> BTreeMap<String, SlopeFit> {
    let known: Vec<&Row> = rows.iter().filter(|r| fitted_on(&r.source)).collect();
    let mut fits = BTreeMap::new();
    for left_out in known.iter().map(|r| r.source.as_str()).chain([""]) {
        fits.entry(left_out.to_string()).or_insert_with(|| {
            let rest = known.iter().filter(|r| r.source != left_out);
            fit_slopes(&rest.map(|r| &r.curve).collect::<Vec<_>>())
        });
    }
    fits
}

/// What is known of a curve before any of its depths.
fn query(curve: &Curve) -> PriorQuery {
    PriorQuery {
        task: curve.task,
        trained_steps: curve.trained_steps,
        ..PriorQuery::of(curve.head)
    }
}

fn depth_area(name: &str, rows: &[Row], fits: &BTreeMap<String, SlopeFit>, skipped: usize) -> Area {
    let (mut errors, mut constant, mut shipped) = (Vec::new(), Vec::new(), Vec::new());
    let mut by_head: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut signed = Vec::new();
    for row in rows {
        let curve = &row.curve;
        let ours = slope_of(&query(curve)).mean;
        let slope = fits.get(&row.source).map_or(ours, |fit| {
            fit.slope(curve.head, curve.trained_steps, curve.task)
        });
        for point in curve.predict(slope) {
            let error = point.predicted - point.measured;
            errors.push(error.abs());
            signed.push(error);
            let kind = match curve.trained_steps {
                Some(1) => "mtp trained for one position",
                _ => curve.head.name(),
            };
            by_head.entry(kind).or_default().push(error.abs());
        }
        let absolute = |points: Vec<DepthPrediction>| {
            let points = points.into_iter();
            points.map(|p| (p.predicted - p.measured).abs())
        };
        constant.extend(absolute(curve.predict_constant()));
        shipped.extend(absolute(curve.predict(ours)));
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
    area.notes.push(bands(rows, fits));
    area.notes
        .extend(fits.get("").map(|fit| shared_fit(rows, fit)));
    area
}

fn posterior(curve: &Curve, slope: Option<f64>, measured: &[(u32, f64)]) -> Option<Posterior> {
    let mut prior = AcceptancePrior::new(&query(curve));
    prior.slope.mean = slope.unwrap_or(prior.slope.mean);
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
        let Some(posterior) = posterior(&row.curve, None, &[anchor, second]) else {
            continue;
        };
        let others = points.iter().filter(|p| p.0 != anchor.0 && p.0 != second.0);
        errors.extend(others.map(|p| (posterior.band(p.0, 0.9).mid - p.1).abs()));
    }
    note("with a second depth measured, the rest", &errors)
}

/// Coverage and width of the 90 % bands at the depths that were not measured, slopes fitted
/// without the row's source.
fn bands(rows: &[Row], fits: &BTreeMap<String, SlopeFit>) -> String {
    let (mut inside, mut widths) = (Vec::new(), Vec::new());
    for row in rows {
        let Some(anchor) = row.curve.anchor() else {
            continue;
        };
        let curve = &row.curve;
        let fit = fits.get(&row.source);
        let slope = fit.map(|f| f.slope(curve.head, curve.trained_steps, curve.task));
        let Some(posterior) = posterior(curve, slope, &[anchor]) else {
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
        "the 90 % bands at the other depths hold {:.3}, mean width {:.3}",
        mean(&inside).unwrap_or(f64::NAN),
        mean(&widths).unwrap_or(f64::NAN)
    )
}

/// What a fit on all rows gives, to be compared with the catalogue.
fn shared_fit(rows: &[Row], fit: &SlopeFit) -> String {
    let kinds: BTreeMap<String, f64> = rows
        .iter()
        .map(|row| {
            let (head, steps) = (row.curve.head, row.curve.trained_steps);
            let trained = steps.map_or(String::new(), |n| format!(" trained for {n}"));
            let name = format!("{}{trained}", head.name());
            (name, fit.slope(head, steps, None))
        })
        .collect();
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(name, slope)| format!("{name} {slope:.3}"))
        .collect();
    let [mixed, math, sums] = fit.task_offsets();
    format!(
        "slopes fitted on all rows: {}; mixed texts {mixed:+.3}, math {math:+.3}, sums {sums:+.3}",
        kinds.join(", ")
    )
}

fn note(what: &str, errors: &[f64]) -> String {
    format!(
        "{what}: mean {:.4} over {}",
        mean(errors).unwrap_or(f64::NAN),
        errors.len()
    )
}
