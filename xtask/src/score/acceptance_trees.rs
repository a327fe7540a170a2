//! `acceptance.trees`: accept lengths of trees. Where the same pair, task and engine has a chain
//! of depth 3, the tree is predicted from it (the ratio of small trees fitted without the row's
//! source); where nothing is measured, the share inside the prior's band is noted.

use std::collections::BTreeMap;

use serde_json::Value;
use spec_decode::trees::{RankModel, dynamic_tree, tree_accept_length};
use spec_decode::{AcceptancePrior, Chain, HeadKind, PriorQuery, Task};

use super::{head_of, task_of};
use crate::score::{Area, mean, quantile};

/// A run with its tree flags.
struct Run {
    source: String,
    key: String,
    head: HeadKind,
    task: Option<Task>,
    temperature: Option<f64>,
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
                head: head_of(row)?,
                task: task_of(row),
                temperature: row["temperature"].as_f64(),
                steps: number(row, "steps")?,
                topk: number(row, "topk")?,
                draft_tokens: number(row, "draft_tokens")?,
                accept_length: row["tau"].as_f64()?,
            })
        })
        .collect()
}

pub(super) fn area(measurements: &[Value]) -> Area {
    let runs = read(measurements);
    let chains: BTreeMap<&str, f64> = runs
        .iter()
        .filter(|r| r.topk == 1 && r.steps == 3)
        .map(|r| (r.key.as_str(), r.accept_length))
        .collect();
    let trees: Vec<&Run> = runs.iter().filter(|r| r.topk > 1).collect();
    let small: Vec<(&Run, f64)> = trees
        .iter()
        .filter(|r| r.draft_tokens <= 8)
        .filter_map(|r| Some((*r, *chains.get(r.key.as_str())?)))
        .collect();
    let (mut errors, mut shipped, mut ideal) = (Vec::new(), Vec::new(), Vec::new());
    let mut large = Vec::new();
    for run in &trees {
        let Some(chain_of_three) = chains.get(run.key.as_str()) else {
            continue;
        };
        let Ok(chain) = Chain::from_accept_length(*chain_of_three, 3, run.head) else {
            continue;
        };
        let (steps, topk, tokens) = (run.steps, run.topk, run.draft_tokens);
        let estimate = tree_accept_length(&chain, steps, topk, tokens).accept_length;
        if run.draft_tokens > 8 {
            large.push((estimate - run.accept_length).abs());
            continue;
        }
        shipped.push((estimate - run.accept_length).abs());
        let ratios: Vec<f64> = small
            .iter()
            .filter(|(r, _)| r.source != run.source)
            .map(|(r, three)| r.accept_length / three)
            .collect();
        let ratio = quantile(&ratios, 0.5).unwrap_or(1.0);
        errors.push((ratio * chain_of_three - run.accept_length).abs());
        let model = RankModel::new(chain);
        let promised = dynamic_tree(&model, steps, topk, tokens).accept_length(&model);
        ideal.push((promised - run.accept_length).abs());
    }
    let mut area = Area::new("acceptance.trees").with_errors(&errors);
    area.skipped = trees.len() - errors.len() - large.len();
    let shown = |v: Option<f64>| v.map_or_else(|| "-".to_string(), |v| format!("{v:.3}"));
    area.notes = vec![
        "error in accept length of trees to 8 tokens, from the pair's chain of depth 3; trees without such a chain skipped".into(),
        format!("with the shipped ratio: mean {}", shown(mean(&shipped))),
        format!("an ideal rank tree on the same rows: mean {}", shown(mean(&ideal))),
        format!("larger trees beside a chain: mean {} over {}", shown(mean(&large)), large.len()),
        prior_coverage(&trees),
    ];
    area
}

/// Share of trees inside the prior's 90 % band, shipped figures.
fn prior_coverage(trees: &[&Run]) -> String {
    let mut inside: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in trees {
        let prior = AcceptancePrior::new(&PriorQuery {
            task: run.task,
            temperature: run.temperature,
            ..PriorQuery::of(run.head)
        });
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
