//! `acceptance.trees`: accept lengths of trees. Where the same pair, task and engine has a chain
//! of depth 3, the tree is predicted from it (the draft's doubt fitted without the row's
//! source); where nothing is measured, the share inside the prior's band is noted.

use std::collections::BTreeMap;

use serde_json::Value;
use spec_decode::acceptance::prior::slope_of;
use spec_decode::trees::{tree_accept_length, unsure_tree_accept_length};
use spec_decode::{AcceptancePrior, Chain, PriorQuery};

use super::{head_of, query_of};
use crate::score::{Area, mean, quantile};

/// A run with its tree flags.
struct Run {
    source: String,
    key: String,
    query: PriorQuery,
    steps: u32,
    topk: u32,
    draft_tokens: u32,
    accept_length: f64,
}

fn read(measurements: &[Value]) -> Vec<Run> {
    let number = |row: &Value, key: &str| row[key].as_u64().and_then(|n| u32::try_from(n).ok());
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_string();
    measurements
        .iter()
        .filter_map(|row| {
            let key: Vec<String> = ["source", "model", "draft", "dataset", "temperature"]
                .iter()
                .map(|k| row[*k].to_string())
                .collect();
            Some(Run {
                source: text(row, "source"),
                key: key.join("|"),
                query: query_of(row, head_of(row)?),
                steps: number(row, "steps")?,
                topk: number(row, "topk")?,
                draft_tokens: number(row, "draft_tokens")?,
                accept_length: row["tau"].as_f64()?,
            })
        })
        .collect()
}

impl Run {
    /// The chain of the same pair and task, from its accept length at depth 3.
    fn chain(&self, of_three: f64) -> Option<Chain> {
        Chain::with_slope(of_three, 3, slope_of(&self.query).mean).ok()
    }

    fn flags(&self) -> (u32, u32, u32) {
        (self.steps, self.topk, self.draft_tokens)
    }
}

/// A small tree beside its chain, with the accept lengths that every doubt gives it.
struct Small<'a> {
    run: &'a Run,
    by_doubt: Vec<f64>,
}

/// Doubts tried, in logits: 0 (an ideal rank tree) to 3.
fn doubts() -> impl Iterator<Item = f64> {
    (0..=30).map(|i| 0.1 * f64::from(i))
}

/// Index of the doubt with the least mean error on trees of other sources.
fn best_doubt(small: &[Small], without: &str) -> usize {
    let loss = |index: usize| {
        let rest = small.iter().filter(|s| s.run.source != without);
        let errors = rest.map(|s| (s.by_doubt[index] - s.run.accept_length).abs());
        mean(&errors.collect::<Vec<_>>()).unwrap_or(f64::INFINITY)
    };
    (0..doubts().count())
        .min_by(|&a, &b| loss(a).total_cmp(&loss(b)))
        .unwrap_or(0)
}

pub(super) fn area(measurements: &[Value]) -> Area {
    let runs = read(measurements);
    let chains: BTreeMap<&str, f64> = runs
        .iter()
        .filter(|r| r.topk == 1 && r.steps == 3)
        .map(|r| (r.key.as_str(), r.accept_length))
        .collect();
    let trees: Vec<&Run> = runs.iter().filter(|r| r.topk > 1).collect();
    let (mut small, mut shipped, mut large) = (Vec::new(), Vec::new(), Vec::new());
    for run in &trees {
        let of_three = chains.get(run.key.as_str());
        let Some(chain) = of_three.and_then(|&length| run.chain(length)) else {
            continue;
        };
        let (steps, topk, tokens) = run.flags();
        let estimate = tree_accept_length(&chain, steps, topk, tokens).accept_length;
        let error = (estimate - run.accept_length).abs();
        if tokens > 8 {
            large.push(error);
            continue;
        }
        shipped.push(error);
        let at = |doubt| unsure_tree_accept_length(&chain, run.flags(), doubt);
        small.push(Small {
            run,
            by_doubt: doubts().map(at).collect(),
        });
    }
    let mut fits: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut errors, mut ideal) = (Vec::new(), Vec::new());
    for row in &small {
        let fit = *fits
            .entry(&row.run.source)
            .or_insert_with(|| best_doubt(&small, &row.run.source));
        errors.push((row.by_doubt[fit] - row.run.accept_length).abs());
        ideal.push((row.by_doubt[0] - row.run.accept_length).abs());
    }
    let mut area = Area::new("acceptance.trees").with_errors(&errors);
    area.skipped = trees.len() - errors.len() - large.len();
    let shown = |v: Option<f64>| v.map_or_else(|| "-".to_string(), |v| format!("{v:.3}"));
    area.notes = vec![
        "error in accept length of trees to 8 tokens, from the pair's chain of depth 3; trees without such a chain skipped".into(),
        format!("with the shipped doubt: mean {}", shown(mean(&shipped))),
        format!("doubt fitted on all: {:.1} logit", 0.1 * best_doubt(&small, "") as f64),
        format!("without doubt (an ideal rank tree): mean {}", shown(mean(&ideal))),
        format!("90 % of the errors are under {}", shown(quantile(&errors, 0.9))),
        format!("larger trees beside a chain: mean {} over {}", shown(mean(&large)), large.len()),
        prior_coverage(&trees),
    ];
    area
}

/// Share of trees inside the prior's 90 % band, shipped figures.
fn prior_coverage(trees: &[&Run]) -> String {
    let mut inside: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in trees {
        let prior = AcceptancePrior::new(&run.query);
        let at = |sds: f64| {
            let chain = Chain::new(prior.level.mean + sds * prior.level.sd, prior.slope.mean);
            tree_accept_length(&chain, run.steps, run.topk, run.draft_tokens)
        };
        let (low, mid, high) = (at(-1.645), at(0.0), at(1.645));
        let below = (mid.accept_length - low.accept_length).hypot(mid.half_width);
        let above = (high.accept_length - mid.accept_length).hypot(mid.half_width);
        let hit =
            (mid.accept_length - below..=mid.accept_length + above).contains(&run.accept_length);
        let size = if run.draft_tokens <= 8 {
            "to 8 tokens"
        } else {
            "larger"
        };
        inside
            .entry(size)
            .or_default()
            .push(f64::from(u8::from(hit)));
    }
    let shares: Vec<String> = inside
        .iter()
        .map(|(size, hits)| {
            format!(
                "{size} {:.3} of {}",
                mean(hits).unwrap_or(f64::NAN),
                hits.len()
            )
        })
        .collect();
    format!(
        "inside the prior's 90 % band, nothing measured: {}",
        shares.join(", ")
    )
}
