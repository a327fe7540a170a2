//! Areas `engine.*`: our own measurements of vLLM with forced acceptance, predicted from the plain
//! rows beside them.

use std::collections::BTreeMap;
use std::path::Path;

use kvplan::{KvDtype, Sharding};
use serde::Deserialize;
use spec_decode::bands::{AcceptSource, Situation, StepSource};
use spec_decode::cycle::{DraftStep, Growth, Speculation, Sweep, cycle};

use super::Area;
use super::speedup::Scored;
use super::speedup::law::Predicted;
use super::speedup::rows::Shape;
use crate::step_time::sweep::{Held, plain_sweep};

/// One row of `engine/*.jsonl`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct EngineRow {
    /// Engine.
    pub(crate) engine: String,
    /// Its version.
    pub(crate) engine_version: Option<String>,
    /// Card as the driver prints it.
    pub(crate) gpu: String,
    /// Tensor-parallel size.
    pub(crate) tp: u32,
    /// Model as the data call it.
    pub(crate) model: String,
    /// Prompt tokens.
    pub(crate) context: f64,
    /// Tokens made per request.
    pub(crate) output_tokens: f64,
    /// Sequences decoded at a time.
    pub(crate) concurrency: f64,
    /// Tokens a second of all sequences.
    pub(crate) decode_tok_s: f64,
    /// `none`, or the head kind.
    pub(crate) method: String,
    /// Draft steps.
    pub(crate) num_speculative_tokens: Option<u32>,
    /// Accept length as it came out.
    pub(crate) accept_length_observed: Option<f64>,
    /// Speedup over the plain row of the same context and concurrency.
    pub(crate) speedup_measured: Option<f64>,
}

impl EngineRow {
    /// Tokens held per sequence in the middle of the run.
    pub(crate) fn held_tokens(&self) -> f64 {
        self.context + self.output_tokens / 2.0
    }
}

/// Reads every `engine/*.jsonl`.
pub(crate) fn load(data: &Path) -> anyhow::Result<Vec<EngineRow>> {
    let folder = data.join("engine");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .map_err(|e| crate::input::error(format!("{}: {e}", folder.display())))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        for (index, value) in super::json_lines(&path)?.into_iter().enumerate() {
            rows.push(serde_json::from_value(value).map_err(|e| {
                crate::input::error(format!("{}:{}: {e}", path.display(), index + 1))
            })?);
        }
    }
    Ok(rows)
}

/// Rows that share a plain sweep: model, card, ranks, engine and context.
pub(super) type Key = (String, String, u32, String, u64);

/// The plain sweep that a row belongs to.
pub(super) fn key(row: &EngineRow) -> Key {
    (
        row.model.clone(),
        row.gpu.clone(),
        row.tp,
        row.engine.clone(),
        row.context as u64,
    )
}

/// The plain rows as a sweep; without the KV where the model or the card is not known.
fn sweep(row: &EngineRow, catalogue_name: &str, points: &[(f64, f64)]) -> Option<Sweep> {
    let found = kvplan::catalog::find(catalogue_name).ok();
    let growth = if Shape::of(catalogue_name).experts {
        Growth::EXPERTS
    } else {
        Growth::DENSE
    };
    let reading = found.zip(crate::gpus::find(&row.gpu).ok()).map(|(f, gpu)| {
        let held = Held {
            model: &f.model,
            gpu,
            sharding: Sharding::tp(u64::from(row.tp)),
            kv_dtype: KvDtype::Bf16,
            tokens: row.held_tokens(),
        };
        held.reading()
    });
    plain_sweep(points, &row.engine, growth, reading).ok()
}

/// The plain sweeps: (users, tokens a second over all users).
pub(super) fn plain_rows(rows: &[EngineRow]) -> BTreeMap<Key, Vec<(f64, f64)>> {
    let mut plain: BTreeMap<Key, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows.iter().filter(|r| r.method == "none") {
        let point = (row.concurrency, row.decode_tok_s);
        plain.entry(key(row)).or_default().push(point);
    }
    plain
}

/// Every speculative row predicted from the plain rows of its context, with its own accept length.
pub(crate) fn scored(data: &Path) -> anyhow::Result<(Vec<Scored>, usize)> {
    let rows = load(data)?;
    let names = super::names::Names::load(data)?;
    let plain = plain_rows(&rows);
    let situation = Situation::new(StepSource::Sweep, AcceptSource::Measured);
    let (mut found, mut skipped) = (Vec::new(), 0);
    for (index, row) in rows.iter().filter(|r| r.method != "none").enumerate() {
        let name = names.model(&row.model).0;
        let points = plain.get(&key(row)).map(Vec::as_slice).unwrap_or_default();
        match predict(row, index, name, points) {
            Some(predicted) => found.push(Scored::new(predicted, situation, "engine")),
            None => skipped += 1,
        }
    }
    Ok((found, skipped))
}

fn predict(row: &EngineRow, index: usize, name: &str, points: &[(f64, f64)]) -> Option<Predicted> {
    let sweep = sweep(row, name, points)?;
    let depth = row.num_speculative_tokens?;
    let accept_length = row.accept_length_observed?;
    let law = cycle(
        &sweep,
        DraftStep::LOCAL,
        &Speculation {
            concurrency: row.concurrency,
            verified_tokens: f64::from(depth) + 1.0,
            draft_steps: f64::from(depth),
        },
    );
    Some(Predicted {
        sweep: index,
        concurrency: row.concurrency,
        measured: row.speedup_measured?,
        speedup: law.speedup(accept_length),
        accept_length,
        outside: law.extrapolated,
        beyond: law.beyond,
    })
}

/// Area `engine.from_sweep`.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let (scored, skipped) = scored(data)?;
    let errors: Vec<f64> = scored
        .iter()
        .map(|s| s.predicted.log_error().abs())
        .collect();
    let mut area = Area::new("engine.from_sweep").with_errors(&errors);
    area.skipped = skipped;
    for outside in [false, true] {
        let part: Vec<f64> = scored
            .iter()
            .filter(|s| s.predicted.outside == outside)
            .map(|s| s.predicted.log_error().abs())
            .collect();
        if let Some(median) = super::quantile(&part, 0.5) {
            let side = if outside { "beyond" } else { "inside" };
            area.notes.push(format!(
                "{side} the sweep: n {}, median {median:.3}",
                part.len()
            ));
        }
    }
    Ok(vec![area])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_model_on_one_h200_is_predicted_from_its_plain_rows() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let areas = score(&data).unwrap_or_else(|e| panic!("{e:#}"));
        assert!(areas[0].n >= 17, "{areas:?}");
        assert!(
            areas[0].median_error.is_some_and(|e| e <= 0.05),
            "{areas:?}"
        );
    }
}
