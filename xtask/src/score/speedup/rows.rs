//! The sweeps of `speculation/sweeps.jsonl` as the law needs them.

use std::path::Path;

use crate::score::names::Names;
use kvplan::{Attention, Ffn};
use serde::Deserialize;
use spec_decode::acceptance::prior::trained_steps;
use spec_decode::cycle::{Growth, LevelPrior};
use spec_decode::{AcceptancePrior, Chain, HeadKind, PriorQuery, Task};

/// One measured point.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Point {
    /// Sequences decoded at a time.
    pub(crate) concurrency: f64,
    /// Tokens a second of all sequences, plain.
    pub(crate) plain_tok_s: f64,
    /// The same with speculation.
    pub(crate) spec_tok_s: f64,
    /// Accept length read at this point, bonus token included.
    pub(crate) accept_length: Option<f64>,
}

impl Point {
    /// Measured speedup.
    pub(crate) fn speedup(&self) -> f64 {
        self.spec_tok_s / self.plain_tok_s
    }
}

/// One sweep: a model on a box at one context.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SweepRow {
    /// Report it comes from; the group that is left out.
    pub(crate) source: String,
    /// Model as the data call it.
    pub(crate) model: String,
    /// Head kind as the data call it.
    pub(crate) method: String,
    /// Draft steps.
    pub(crate) depth: u32,
    /// Tokens verified per sequence.
    pub(crate) draft_tokens: u32,
    /// Engine.
    pub(crate) engine: String,
    /// Its version, where known.
    pub(crate) engine_version: Option<String>,
    /// Card as the data call it.
    pub(crate) gpu: String,
    /// Tensor-parallel size.
    pub(crate) tp: Option<u32>,
    /// Decode-context-parallel size.
    pub(crate) dcp: Option<u32>,
    /// Context as the data write it: `0`, `16k`, `~83k actual …`.
    pub(crate) context: Option<String>,
    /// What was asked.
    pub(crate) dataset: Option<String>,
    /// Sampling temperature.
    pub(crate) temperature: Option<f64>,
    /// `PCIe5`, `NVLink`, or absent.
    pub(crate) interconnect: Option<String>,
    /// The points.
    pub(crate) points: Vec<Point>,
    /// What the architecture says.
    #[serde(skip)]
    pub(crate) shape: Shape,
}

/// What the law needs of a model's architecture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// A mixture of experts.
    pub(crate) experts: bool,
    /// Multi-head latent attention over the whole context (no sparse index).
    pub(crate) latent: bool,
}

impl Shape {
    /// Of a catalogue model; of one that the catalogue lacks by the size of active parameters in
    /// its name (`30B-A3B`).
    pub(crate) fn of(name: &str) -> Self {
        let Ok(found) = kvplan::catalog::find(name) else {
            return Self {
                experts: names_active_size(name),
                ..Self::default()
            };
        };
        let layers = &found.model.layers;
        Self {
            experts: layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_))),
            latent: layers
                .iter()
                .any(|l| matches!(l.attention, Attention::Mla(mla) if mla.indexer.is_none())),
        }
    }
}

impl SweepRow {
    /// Context in tokens; 0 where the row does not say.
    pub(crate) fn context_tokens(&self) -> f64 {
        self.context
            .as_deref()
            .and_then(context_tokens)
            .unwrap_or(0.0)
    }

    /// Whether the draft's small transfers cross PCIe.
    pub(crate) fn over_pcie(&self) -> bool {
        let said = self.interconnect.as_deref().map(str::to_ascii_lowercase);
        let several = self.tp.is_some_and(|tp| tp > 1);
        match said {
            Some(link) if link.contains("nvlink") => false,
            Some(link) if link.contains("pcie") => several,
            _ => {
                let tp = u64::from(self.tp.unwrap_or(1));
                several && crate::gpus::find(&self.gpu).is_ok_and(|g| !g.links_by_itself(tp))
            }
        }
    }

    /// How the model's step grows beyond a sweep.
    pub(crate) fn growth(&self) -> Growth {
        if self.shape.experts {
            Growth::EXPERTS
        } else {
            Growth::DENSE
        }
    }

    /// What is known of the accept length before it is measured.
    pub(crate) fn prior(&self) -> LevelPrior {
        let task = self.dataset.as_deref().and_then(|d| Task::parse(d).ok());
        let head = HeadKind::parse(&self.method).unwrap_or(HeadKind::Mtp);
        let query = PriorQuery {
            task,
            temperature: self.temperature,
            trained_steps: trained_steps(head, &self.model),
            ..PriorQuery::of(head)
        };
        // What is drafted beyond the verified tokens is never checked.
        let checked = self.draft_tokens.saturating_sub(1).max(1);
        level_prior(&query, self.depth.min(checked))
    }
}

/// The accept length's prior at a depth.
fn level_prior(query: &PriorQuery, depth: u32) -> LevelPrior {
    let prior = AcceptancePrior::new(query);
    let at = |level: f64, slope: f64| Chain::new(level, slope).accept_length(depth).ln();
    let (level, slope) = (prior.level, prior.slope);
    // One deviation of either, which are independent.
    let of_level = at(level.mean + level.sd, slope.mean) - at(level.mean - level.sd, slope.mean);
    let of_slope = at(level.mean, slope.mean + slope.sd) - at(level.mean, slope.mean - slope.sd);
    LevelPrior {
        accept_length: at(level.mean, slope.mean).exp(),
        log_sd: of_level.hypot(of_slope) / 2.0,
    }
}

fn names_active_size(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.split(['-', '_', ' ']).any(|word| {
        word.strip_prefix('a')
            .and_then(|rest| rest.strip_suffix('b'))
            .is_some_and(|digits| digits.parse::<f64>().is_ok())
    })
}

/// `16k` is 16,384 tokens; a leading `~` and anything after the number are ignored.
fn context_tokens(text: &str) -> Option<f64> {
    let text = text.trim().trim_start_matches('~').to_ascii_lowercase();
    let digits: String = text
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let value: f64 = digits.parse().ok()?;
    let thousands = text
        .get(digits.len()..)
        .is_some_and(|rest| rest.starts_with('k'));
    Some(if thousands { value * 1024.0 } else { value })
}

/// Leaves the points with both rates, and says how many there were.
fn keep_whole_points(row: &mut serde_json::Value) -> usize {
    let Some(points) = row["points"].as_array_mut() else {
        return 1;
    };
    let all = points.len();
    let positive = |v: &serde_json::Value| v.as_f64().is_some_and(|x| x > 0.0);
    points.retain(|p| {
        ["concurrency", "plain_tok_s", "spec_tok_s"]
            .iter()
            .all(|key| positive(&p[key]))
    });
    all
}

/// Reads the sweeps; points without both rates, sweeps of fewer than two and rows that lack a
/// field are left out and counted.
pub(crate) fn load(data: &Path) -> anyhow::Result<(Vec<SweepRow>, usize)> {
    let path = data.join("speculation/sweeps.jsonl");
    let names = Names::load(data)?;
    let mut rows = Vec::new();
    let mut skipped = 0;
    for mut value in crate::score::json_lines(&path)? {
        let points = keep_whole_points(&mut value);
        match serde_json::from_value::<SweepRow>(value) {
            Ok(row) if row.points.len() >= 2 => {
                skipped += points - row.points.len();
                rows.push(row);
            }
            _ => skipped += points,
        }
    }
    for row in &mut rows {
        let name = names.model(&row.model).0;
        row.shape = Shape::of(name);
        row.points
            .sort_by(|a, b| a.concurrency.total_cmp(&b.concurrency));
    }
    Ok((rows, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_read_as_the_data_write_them() {
        assert_eq!(context_tokens("0"), Some(0.0));
        assert_eq!(context_tokens("16k"), Some(16384.0));
        assert_eq!(
            context_tokens("~83k actual (old `128k` label)"),
            Some(84992.0)
        );
        assert_eq!(context_tokens("none"), None);
    }

    #[test]
    fn a_head_trained_for_one_position_promises_less_at_depth_3() {
        let prior = |model: &str| {
            let row = serde_json::json!({
                "source": "made up", "model": model, "method": "mtp", "depth": 3,
                "draft_tokens": 4, "engine": "sglang", "gpu": "H200", "points": [],
            });
            serde_json::from_value::<SweepRow>(row).map(|row| row.prior().accept_length)
        };
        let (reused, usual) = (prior("DeepSeek-V3").ok(), prior("GLM-5.1").ok());
        assert!(reused.is_some() && reused < usual, "{reused:?} {usual:?}");
    }

    #[test]
    fn experts_and_latent_attention_come_from_the_catalogue_else_from_the_name() {
        let both = |name| {
            let shape = Shape::of(name);
            (shape.experts, shape.latent)
        };
        assert_eq!(both("kimi-k2.6"), (true, true));
        assert_eq!(both("glm-5.1"), (true, false));
        assert_eq!(both("llama-3.1-8b"), (false, false));
        assert_eq!(both("unheard-of-70B-A9B"), (true, false));
    }
}
