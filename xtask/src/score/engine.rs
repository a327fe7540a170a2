//! Areas `engine.*`: our own measurements of vLLM with forced acceptance, predicted from the plain
//! rows beside them.
//!
//! Each speculative run is one closed batch: all requests start together and make as many tokens,
//! and the batch is done when its unluckiest request is. See [`stretch`].

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use spec_decode::HeadKind;
use spec_decode::bands::{AcceptSource, Situation, StepSource};
use spec_decode::cycle::{Cycle, Speculation};

use super::Area;
use super::names::Names;
use super::scratch::{Asked, Rig};
use super::speedup::Scored;
use super::speedup::law::Predicted;
use crate::step_time::cycle::graph_ladder;
use crate::step_time::sweep::{BySequence, Constants, Known, SweepLaw, steps_ms};

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
    /// Cumulative chance that each drafted position is accepted, as forced.
    #[serde(default)]
    pub(crate) synthetic_position_rates: Option<Vec<f64>>,
    /// Accept length as it came out.
    pub(crate) accept_length_observed: Option<f64>,
    /// What the weights were.
    pub(crate) weights: Option<String>,
    /// Speedup over the plain row of the same context and concurrency.
    pub(crate) speedup_measured: Option<f64>,
}

impl EngineRow {
    /// Tokens held per sequence in the middle of the run.
    pub(crate) fn held_tokens(&self) -> f64 {
        self.context + self.output_tokens / 2.0
    }

    /// Its server; `None` where a catalogue lacks a part of it.
    pub(crate) fn rig(&self, names: &Names) -> Option<Rig> {
        let (model, quant) = names.model(&self.model);
        let mut rig = Rig::new(&Asked {
            model,
            quant,
            gpu: names.gpu(&self.gpu),
            tp: self.tp,
            dcp: 1,
            engine: &self.engine,
            version: self.engine_version.as_deref(),
            head: HeadKind::parse(&self.method).ok()?,
        })
        .ok()?;
        if self.lends_output_head() {
            rig.lend_output_head();
        }
        Some(rig)
    }

    /// Whether the draft ran with the target's output head ([`crate::scenario::lend_output_head`]).
    pub(crate) fn lends_output_head(&self) -> bool {
        let dummy = |weights: &String| weights.starts_with("dummy");
        self.engine == "vllm" && self.weights.as_ref().is_some_and(dummy)
    }
}

/// Reads every `engine/*.jsonl`; rows that lack a field are left out and counted.
pub(crate) fn load(data: &Path) -> anyhow::Result<(Vec<EngineRow>, usize)> {
    let folder = data.join("engine");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .map_err(|e| crate::input::error(format!("{}: {e}", folder.display())))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    paths.sort();
    let (mut rows, mut skipped) = (Vec::new(), 0);
    for path in paths {
        for value in super::json_lines(&path)? {
            match serde_json::from_value(value) {
                Ok(row) => rows.push(row),
                Err(_) => skipped += 1,
            }
        }
    }
    Ok((rows, skipped))
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
    let (rows, mut skipped) = load(data)?;
    let names = Names::load(data)?;
    let plain = plain_rows(&rows);
    let situation = Situation::new(StepSource::Sweep, AcceptSource::Measured);
    let mut found = Vec::new();
    for (index, row) in rows.iter().filter(|r| r.method != "none").enumerate() {
        let points = plain.get(&key(row)).map(Vec::as_slice).unwrap_or_default();
        match predict(row, index, &names, points) {
            Some(predicted) => found.push(Scored::new(predicted, situation, "engine")),
            None => skipped += 1,
        }
    }
    Ok((found, skipped))
}

fn predict(
    row: &EngineRow,
    index: usize,
    names: &Names,
    points: &[(f64, f64)],
) -> Option<Predicted> {
    let rig = row.rig(names)?;
    let accept_length = row.accept_length_observed?;
    let measured = row.speedup_measured?;
    rig.known(row.held_tokens(), |known| {
        let law = SweepLaw::of_engine(
            &steps_ms(points),
            graph_ladder(
                &row.engine,
                row.engine_version.as_deref(),
                known.whole_graphs(row.engine_version.as_deref()),
            ),
            Constants::of(known.server),
            Some(BySequence::of(known.server, known.context)),
        )
        .ok()?;
        let cycle = cycle(&law, known, row, row.concurrency)?;
        let stretch = row.stretch(|users| cycle_ms(&law, known, row, users));
        Some(Predicted {
            sweep: index,
            concurrency: row.concurrency,
            tokens: row.concurrency * (f64::from(row.num_speculative_tokens?) + 1.0),
            measured,
            speedup: cycle.speedup(accept_length) / stretch,
            accept_length,
            outside: cycle.extrapolated,
            beyond: cycle.beyond,
            slower: law.slower(Some(known), row.concurrency),
            accept_log_sd: 0.0,
        })
    })
}

fn cycle(law: &SweepLaw, known: &Known<'_>, row: &EngineRow, users: f64) -> Option<Cycle> {
    let depth = f64::from(row.num_speculative_tokens?);
    Some(law.cycle(
        Some(known),
        &Speculation {
            concurrency: users,
            verified_tokens: depth + 1.0,
            draft_steps: depth,
        },
    ))
}

fn cycle_ms(law: &SweepLaw, known: &Known<'_>, row: &EngineRow, users: f64) -> f64 {
    cycle(law, known, row, users).map_or(0.0, |c| c.total_ms())
}

impl EngineRow {
    /// How much longer than at its mean rate the run's closed batch takes ([`stretch`]); 1 where
    /// the forced rates are not given.
    pub(crate) fn stretch(&self, cycle_ms: impl Fn(f64) -> f64) -> f64 {
        let Some(rates) = &self.synthetic_position_rates else {
            return 1.0;
        };
        stretch(rates, self.output_tokens, self.concurrency, cycle_ms)
    }
}

/// A closed batch of `users` requests that make `output_tokens` each, with speculation: the cycles
/// that a request needs scatter with its luck, and ever fewer requests run on to the end. Total
/// time over that of the mean number of cycles, at cycle times by requests still running. `rates`:
/// cumulative chances by position. Plain decoding has no luck, so its batch ends at once.
fn stretch(rates: &[f64], output_tokens: f64, users: f64, cycle_ms: impl Fn(f64) -> f64) -> f64 {
    // Tokens of a cycle: P(at least k + 1) is the k-th rate.
    let mean: f64 = 1.0 + rates.iter().sum::<f64>();
    let at_least = rates.iter().zip(1_u32..);
    let square: f64 = 1.0 + at_least.map(|(p, k)| p * f64::from(2 * k + 1)).sum::<f64>();
    let cycles = output_tokens / mean;
    let spread = (square - mean * mean).max(0.0).sqrt() / mean * cycles.sqrt();
    let count = users.round().clamp(1.0, 4096.0) as u32;
    let (mut total_ms, mut before) = (0.0, 0.0);
    for rank in 1..=count {
        // Expected order statistics of normal draws (Blom).
        let share = (f64::from(rank) - 0.375) / (f64::from(count) + 0.25);
        let ends = (cycles + spread * normal_quantile(share)).max(before);
        total_ms += (ends - before) * cycle_ms(f64::from(count - rank + 1));
        before = ends;
    }
    let stretch = total_ms / (cycles * cycle_ms(f64::from(count)));
    if stretch.is_finite() { stretch } else { 1.0 }
}

/// z with P(Z < z) = `share`, by bisection of the distribution that the bands use.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if spec_decode::bands::normal_cdf(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
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
    fn a_closed_batch_waits_for_its_unluckiest_request() {
        let rates = [0.75, 0.55, 0.4];
        let flat = |_: f64| 6.0;
        assert!((stretch(&rates, 192.0, 1.0, flat) - 1.0).abs() < 1e-9);
        // 71 cycles, give or take 3.8; the last of 64 needs 2.35 deviations more than the mean.
        let of_64 = stretch(&rates, 192.0, 64.0, flat);
        assert!((1.12..1.14).contains(&of_64), "{of_64}");
        assert!(stretch(&rates, 192.0, 8.0, flat) < of_64);
        // Fewer requests run faster cycles, so the wait is shorter; certainty needs none.
        assert!(stretch(&rates, 192.0, 64.0, |users| 5.0 + 0.1 * users) < of_64);
        assert!((stretch(&[1.0, 1.0], 192.0, 64.0, flat) - 1.0).abs() < 1e-9);
    }

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
