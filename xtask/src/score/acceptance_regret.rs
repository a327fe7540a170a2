//! `acceptance.depth_regret`: speedup lost by following the depth that is advised from one run.
//!
//! Given one measured run at the depth nearest 3 (accept length and speedup), the depth is picked
//! among those that were measured: accept lengths by the chain, cycle cost by the run's own
//! break-even plus a cost per further draft step that is fitted on the other sources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use spec_decode::acceptance::prior::slope_of;
use spec_decode::economics::DRAFT_STEP_SHARE;
use spec_decode::{Chain, PriorQuery};

use super::{head_of, query_of};
use crate::score::{Area, mean, quantile};

/// Runs of one pair and task that differ in depth only: depth → (accept length, speedup).
struct Group {
    source: String,
    query: PriorQuery,
    runs: BTreeMap<u32, (f64, f64)>,
}

fn read(measurements: &[Value]) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for row in measurements {
        let depth = row["steps"].as_u64().and_then(|d| u32::try_from(d).ok());
        let (Some(head), Some(depth), Some(1), Some(accept_length), Some(speedup)) = (
            head_of(row),
            depth,
            row["topk"].as_u64(),
            row["tau"].as_f64(),
            row["speedup"].as_f64(),
        ) else {
            continue;
        };
        let key: Vec<String> = [
            "source",
            "method",
            "model",
            "draft",
            "dataset",
            "temperature",
            "batch",
            "ctx",
            "dcp",
            "gpu",
        ]
        .iter()
        .map(|k| row[*k].to_string())
        .collect();
        groups
            .entry(key.join("|"))
            .or_insert_with(|| Group {
                source: row["source"].as_str().unwrap_or_default().to_string(),
                query: query_of(row, head),
                runs: BTreeMap::new(),
            })
            .runs
            .insert(depth, (accept_length, speedup));
    }
    groups.into_values().filter(|g| g.runs.len() >= 2).collect()
}

/// Predicted speedup of every measured depth from the run nearest depth 3.
fn predict(group: &Group, cost_per_step: f64) -> Option<BTreeMap<u32, f64>> {
    let (&anchor, &(accept_length, speedup)) = group
        .runs
        .iter()
        .min_by_key(|(depth, _)| (depth.abs_diff(3), **depth))?;
    let slope = slope_of(&group.query).mean;
    let chain = Chain::with_slope(accept_length, anchor, slope).ok()?;
    let break_even = accept_length / speedup;
    let at = |depth: u32| {
        let further = f64::from(depth) - f64::from(anchor);
        chain.accept_length(depth) / (break_even + cost_per_step * further).max(0.1)
    };
    Some(group.runs.keys().map(|&d| (d, at(d))).collect())
}

/// Errors of the predicted speedups, anchor left out.
fn errors(group: &Group, cost_per_step: f64) -> Vec<f64> {
    let predicted = predict(group, cost_per_step).unwrap_or_default();
    predicted
        .iter()
        .map(|(depth, speedup)| (speedup / group.runs[depth].1).ln().abs())
        .filter(|e| *e > 1e-9)
        .collect()
}

/// The cost per step (in plain steps) with the least mean error.
fn fit_cost(groups: &[&Group]) -> f64 {
    let candidates = (0..=40).map(|i| 0.005 * f64::from(i));
    let loss = |c: f64| {
        let all: Vec<f64> = groups.iter().flat_map(|g| errors(g, c)).collect();
        mean(&all).unwrap_or(f64::INFINITY)
    };
    candidates
        .map(|c| (loss(c), c))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(DRAFT_STEP_SHARE, |(_, c)| c)
}

pub(super) fn area(measurements: &[Value]) -> Area {
    let groups = read(measurements);
    let sources: BTreeSet<&str> = groups.iter().map(|g| g.source.as_str()).collect();
    let costs: BTreeMap<&str, f64> = sources
        .iter()
        .map(|source| {
            let rest: Vec<&Group> = groups.iter().filter(|g| g.source != *source).collect();
            (*source, fit_cost(&rest))
        })
        .collect();
    let (mut regrets, mut shipped, mut always, mut right, mut misses) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut skipped = 0;
    for group in &groups {
        let top = group.runs.values().map(|r| r.1).fold(0.0, f64::max);
        let regret = |cost: f64| {
            let predicted = predict(group, cost)?;
            let (depth, _) = predicted.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
            Some(1.0 - group.runs[depth].1 / top)
        };
        let cost = costs
            .get(group.source.as_str())
            .copied()
            .unwrap_or(DRAFT_STEP_SHARE);
        let (Some(ours), Some(as_shipped)) = (regret(cost), regret(DRAFT_STEP_SHARE)) else {
            skipped += 1;
            continue;
        };
        regrets.push(ours);
        shipped.push(as_shipped);
        right.push(f64::from(u8::from(ours < 1e-9)));
        misses.extend(errors(group, cost));
        let nearest = group.runs.iter().min_by_key(|(d, _)| (d.abs_diff(3), **d));
        always.extend(nearest.map(|(_, run)| 1.0 - run.1 / top));
    }
    let mut area = Area::new("acceptance.depth_regret").with_errors(&regrets);
    area.skipped = skipped;
    area.right = mean(&right);
    let shown = |v: Option<f64>| v.map_or_else(|| "-".to_string(), |v| format!("{v:.4}"));
    area.notes = vec![
        "error = share of the best measured speedup that is lost; cost per draft step fitted without the row's source; right = best depth named".into(),
        format!("with the shipped cost per draft step: {}", shown(mean(&shipped))),
        format!("always the depth nearest 3: {}", shown(mean(&always))),
        format!("largest regret: {}", shown(quantile(&regrets, 1.0))),
        format!("error of the speedups predicted at the other depths: {}", shown(mean(&misses))),
    ];
    area
}
