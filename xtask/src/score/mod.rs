//! `score`: the error of every model against measured data. One file per group of areas; each
//! reads its part of the data folder and returns [`Area`]s.

mod acceptance;
mod bands;
mod collective;
mod decode;
mod engine;
mod inputs;
mod memory;
pub(crate) mod names;
#[cfg(test)]
mod peer_errors;
mod report;
mod scratch;
mod speedup;
mod thresholds;
mod through;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::Rows;

/// One line of the score table. Errors are |ln(predicted / measured)| unless the area says
/// otherwise; `right` is a fraction; `None` where the figure has no meaning for the area.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Area {
    /// Name as in the contract, for example `memory.cases`.
    pub(crate) area: String,
    /// Rows scored.
    pub(crate) n: usize,
    /// Rows that could not be placed.
    pub(crate) skipped: usize,
    /// Median error (over boxes, the median of each box's median, where rows come from boxes).
    pub(crate) median_error: Option<f64>,
    /// 90th percentile of the error.
    pub(crate) p90_error: Option<f64>,
    /// Mean error.
    pub(crate) mean_error: Option<f64>,
    /// Fraction right.
    pub(crate) right: Option<f64>,
    /// Mean width of the bands.
    pub(crate) width: Option<f64>,
    /// How it was split, what the peer reaches on the same rows, why rows were skipped.
    pub(crate) notes: Vec<String>,
    /// Single rows, worst first, as many as `--rows` asks for; of areas that keep them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rows: Vec<ScoredRow>,
}

/// A measured figure beside its prediction.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ScoredRow {
    /// Where from, and at which setting.
    pub(crate) what: String,
    /// In the area's unit: a speedup, ms, us or GB/s.
    pub(crate) measured: f64,
    /// The same of the model, its own group left out of the fit.
    pub(crate) predicted: f64,
}

impl ScoredRow {
    /// |ln(predicted / measured)|.
    fn error(&self) -> f64 {
        (self.predicted / self.measured).ln().abs()
    }
}

/// Rows that `--rows worst` shows of an area.
const WORST: usize = 10;

impl Area {
    /// An area with nothing filled in yet.
    pub(crate) fn new(area: &str) -> Self {
        Self {
            area: area.to_string(),
            n: 0,
            skipped: 0,
            median_error: None,
            p90_error: None,
            mean_error: None,
            right: None,
            width: None,
            notes: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Puts the worst rows first and drops those that are not asked for.
    fn keep(&mut self, rows: Rows) {
        self.rows.sort_by(|a, b| b.error().total_cmp(&a.error()));
        self.rows.truncate(match rows {
            Rows::None => 0,
            Rows::Worst => WORST,
            Rows::All => usize::MAX,
        });
    }

    /// Fills `n`, median, p90 and mean from the errors of single rows.
    pub(crate) fn with_errors(mut self, errors: &[f64]) -> Self {
        self.n = errors.len();
        self.median_error = quantile(errors, 0.5);
        self.p90_error = quantile(errors, 0.9);
        self.mean_error = mean(errors);
        self
    }
}

/// Linear-interpolated quantile of unsorted values; `None` of nothing.
pub(crate) fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    if sorted.is_empty() {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let position = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}

/// Arithmetic mean; `None` of nothing.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Splits a JSON-lines text into values, naming file and line where one does not parse.
pub(crate) fn json_lines(path: &Path) -> anyhow::Result<Vec<serde_json::Value>> {
    let text = crate::input::read_text(path)?;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        rows.push(
            serde_json::from_str(line).map_err(|e| {
                crate::input::error(format!("{}:{}: {e}", path.display(), index + 1))
            })?,
        );
    }
    Ok(rows)
}

/// Runs `cargo xtask score`.
pub(crate) fn run(args: &crate::cli::ScoreArgs) -> anyhow::Result<ExitCode> {
    let data: PathBuf = args.data.clone();
    if !data.is_dir() {
        return Err(crate::input::error(format!(
            "--data {}: no such folder; it has the layout of ../shared/data",
            data.display()
        )));
    }
    let mut areas = areas(&data, args.only.as_deref().unwrap_or(""))?;
    areas.iter_mut().for_each(|area| area.keep(args.rows));
    if areas.is_empty() {
        return Err(crate::input::error(format!(
            "--only {}: no area begins so",
            args.only.as_deref().unwrap_or("")
        )));
    }
    if args.json {
        crate::input::print(
            &(serde_json::to_string_pretty(&serde_json::json!({"schema": 1, "areas": areas}))?
                + "\n"),
        )?;
    } else {
        crate::input::print(&report::text(&areas, args.rows))?;
    }
    if let Some(path) = &args.write {
        crate::input::write_text(path, &report::markdown(&areas), "--write")?;
    }
    if args.check {
        let missed = thresholds::missed(&areas);
        for line in &missed {
            println!("{line}");
        }
        if !missed.is_empty() {
            return Ok(ExitCode::from(1));
        }
        println!("every threshold is kept");
    }
    Ok(ExitCode::SUCCESS)
}

/// A group of areas: their common beginnings, and the function that scores them.
type Group = (
    &'static [&'static str],
    fn(&Path) -> anyhow::Result<Vec<Area>>,
);

/// Each group is one line here and one file beside.
const GROUPS: [Group; 10] = [
    (&["memory."], memory::score),
    (&["collective.", "contention"], collective::score),
    (&["acceptance."], acceptance::score),
    (&["speedup.from_baseline"], speedup::score),
    (
        &["speedup.from_scratch", "engine.from_scratch"],
        scratch::score,
    ),
    (&["engine.from_sweep"], engine::score),
    (&["decode."], decode::score),
    (&["bands"], bands::score),
    (&["predict.bands"], through::score),
    (&["inputs."], inputs::score),
];

/// The areas whose name begins with `prefix`, in the order of the contract.
fn areas(data: &Path, prefix: &str) -> anyhow::Result<Vec<Area>> {
    let mut areas = Vec::new();
    for (names, score) in GROUPS {
        let wanted = names
            .iter()
            .any(|name| name.starts_with(prefix) || prefix.starts_with(name));
        if wanted {
            areas.extend(
                score(data)?
                    .into_iter()
                    .filter(|a| a.area.starts_with(prefix)),
            );
        }
    }
    Ok(areas)
}
