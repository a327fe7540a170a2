//! How the catalogue's figures are fitted, so that they can be fitted again without a group of
//! rows (`score`) or on other rows.

use super::chain::Chain;
use super::prior::Task;
use crate::head::HeadKind;

/// One measured curve: accept lengths of one target, draft, task and temperature by depth.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The head kind.
    pub head: HeadKind,
    /// The task, where known.
    pub task: Option<Task>,
    /// (depth, accept length), any order, at least two.
    pub points: Vec<(u32, f64)>,
}

/// One depth predicted from another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthPrediction {
    /// Drafted tokens per cycle.
    pub depth: u32,
    /// Accept length predicted from the anchor depth.
    pub predicted: f64,
    /// Accept length measured.
    pub measured: f64,
}

impl Curve {
    /// The point whose depth is nearest 3, the lower on a tie: from it the level is taken.
    pub fn anchor(&self) -> Option<(u32, f64)> {
        self.points
            .iter()
            .copied()
            .min_by_key(|(depth, _)| (depth.abs_diff(3), *depth))
    }

    /// Every other depth predicted from the anchor with this slope; empty when the anchor is
    /// impossible.
    pub fn predict(&self, slope: f64) -> Vec<DepthPrediction> {
        let Some((anchor_depth, anchor_length)) = self.anchor() else {
            return Vec::new();
        };
        let Ok(chain) = Chain::with_slope(anchor_length, anchor_depth, slope) else {
            return Vec::new();
        };
        self.points
            .iter()
            .filter(|(depth, _)| *depth != anchor_depth)
            .map(|&(depth, measured)| DepthPrediction {
                depth,
                predicted: chain.accept_length(depth),
                measured,
            })
            .collect()
    }
}

/// Slope of one head kind: a base, and offsets for mixed texts and for mathematics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlopeFit {
    /// Slope on code and unknown tasks.
    pub base: f64,
    /// Added on chat, questions, summaries, writing, translation.
    pub mixed: f64,
    /// Added on mathematics.
    pub math: f64,
}

impl SlopeFit {
    /// The slope of a task.
    pub fn slope(&self, task: Option<Task>) -> f64 {
        self.base + features(task)[1] * self.mixed + features(task)[2] * self.math
    }
}

/// 1, is the text mixed, is it mathematics.
fn features(task: Option<Task>) -> [f64; 3] {
    match task {
        Some(Task::Math) => [1.0, 0.0, 1.0],
        Some(Task::Code | Task::Tools) | None => [1.0, 0.0, 0.0],
        Some(_) => [1.0, 1.0, 0.0],
    }
}

/// Scale of a depth prediction's error, in tokens, for the weight of data against prior.
const ERROR_SCALE: f64 = 0.05;
/// Rows of one source move together: this many count as one.
const DESIGN_EFFECT: f64 = 6.0;
/// Spread of the task offsets before the fit, logit per position.
const OFFSET_SD: f64 = 0.05;

/// Fits a head kind's slope by (smoothed) least absolute errors of the depths predicted from the
/// anchor, pulled to `base_mean` ± `base_sd`; `with_tasks` lets the offsets move.
pub fn fit_slopes(curves: &[&Curve], base_mean: f64, base_sd: f64, with_tasks: bool) -> SlopeFit {
    let mut fit = SlopeFit {
        base: base_mean,
        mixed: 0.0,
        math: 0.0,
    };
    let offset_sd = if with_tasks { OFFSET_SD } else { 1e-6 };
    let prior = [(base_mean, base_sd), (0.0, offset_sd), (0.0, offset_sd)];
    for _ in 0..25 {
        // Iteratively reweighted Gauss-Newton: error ≈ e + g · Δslope.
        let mut normal = [[0.0; 3]; 3];
        let mut right = [0.0; 3];
        let at = [fit.base, fit.mixed, fit.math];
        for i in 0..3 {
            let weight = 1.0 / (prior[i].1 * prior[i].1);
            normal[i][i] += weight;
            right[i] += weight * (prior[i].0 - at[i]);
        }
        for curve in curves {
            let f = features(curve.task);
            let slope = fit.slope(curve.task);
            let above = curve.predict(slope + 0.01);
            let below = curve.predict(slope - 0.01);
            for (point, (a, b)) in curve.predict(slope).iter().zip(above.iter().zip(&below)) {
                let error = point.predicted - point.measured;
                let gradient = (a.predicted - b.predicted) / 0.02;
                let weight =
                    1.0 / (DESIGN_EFFECT * ERROR_SCALE * (error * error + 0.03 * 0.03).sqrt());
                for i in 0..3 {
                    for j in 0..3 {
                        normal[i][j] += weight * gradient * gradient * f[i] * f[j];
                    }
                    right[i] -= weight * gradient * f[i] * error;
                }
            }
        }
        let step = solve(
            normal.iter().map(|row| row.to_vec()).collect(),
            right.to_vec(),
        );
        fit.base += step[0];
        fit.mixed += step[1];
        fit.math += step[2];
        if step.iter().all(|s| s.abs() < 1e-6) {
            break;
        }
    }
    fit
}

/// One level for the fit of the prior: the mean level of a curve.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelRow {
    /// The head kind.
    pub head: HeadKind,
    /// The task, where known.
    pub task: Option<Task>,
    /// Sampling temperature, 0 where unknown.
    pub temperature: f64,
    /// Logit of the first position, from the curve's accept lengths.
    pub level: f64,
    /// Target and draft: rows of one pair share an error.
    pub pair: String,
}

/// Levels by head and task, and the temperature's effect.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelFit {
    coefficients: Vec<f64>,
}

/// Heads and tasks with a coefficient; the others share that of a like one.
const LEVEL_HEADS: [HeadKind; 4] = [
    HeadKind::Eagle3,
    HeadKind::Mtp,
    HeadKind::Parallel,
    HeadKind::Eagle,
];
const LEVEL_TASKS: [Task; 5] = [
    Task::Code,
    Task::Math,
    Task::HardQa,
    Task::Summary,
    Task::Tools,
];
/// Before the fit: heads, then tasks against chat, then per unit of temperature (mean, sd).
/// Means and spreads from the tables of the public reports; wide enough that a dozen rows decide.
const LEVEL_PRIOR: [(f64, f64); 10] = [
    (0.9, 0.5),
    (1.0, 0.5),
    (1.0, 0.5),
    (0.3, 0.5),
    (0.6, 0.4),
    (0.6, 0.4),
    (0.0, 0.4),
    (-0.4, 0.4),
    (1.5, 0.8),
    (-0.2, 0.1),
];
/// Spread of a pair's level, and of a curve within its pair after the task's term (logits).
const PAIR_SD: f64 = 0.42;
const CURVE_SD: f64 = 0.32;

fn level_features(head: HeadKind, task: Option<Task>, temperature: f64) -> Vec<f64> {
    let like = match head {
        HeadKind::MtpModules => HeadKind::Mtp,
        HeadKind::DraftModel | HeadKind::NGram => HeadKind::Eagle3,
        other => other,
    };
    let heads = LEVEL_HEADS.iter().map(|&h| f64::from(u8::from(h == like)));
    let tasks = LEVEL_TASKS.iter().map(|&t| match task {
        Some(Task::Translation) => f64::from(u8::from(t == Task::HardQa)),
        Some(task) => f64::from(u8::from(t == task)),
        None if t == Task::Tools => 0.0,
        None => 0.2,
    });
    heads.chain(tasks).chain([temperature]).collect()
}

impl LevelFit {
    /// Generalised least squares with one shared error per pair, pulled to the tables' figures.
    pub fn new(rows: &[LevelRow]) -> Self {
        let n = LEVEL_PRIOR.len();
        let mut normal = vec![vec![0.0; n]; n];
        let mut right = vec![0.0; n];
        for (i, (mean, sd)) in LEVEL_PRIOR.iter().enumerate() {
            normal[i][i] += 1.0 / (sd * sd);
            right[i] += mean / (sd * sd);
        }
        let mut pairs: Vec<&str> = rows.iter().map(|r| r.pair.as_str()).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let within = 1.0 / (CURVE_SD * CURVE_SD);
        for pair in pairs {
            let members: Vec<&LevelRow> = rows.iter().filter(|r| r.pair == pair).collect();
            // Inverse of CURVE_SD² I + PAIR_SD² 1 1ᵀ (Sherman-Morrison).
            let shared = PAIR_SD * PAIR_SD
                / (CURVE_SD * CURVE_SD + members.len() as f64 * PAIR_SD * PAIR_SD);
            let mut sum = vec![0.0; n];
            let mut sum_level = 0.0;
            for row in &members {
                let f = level_features(row.head, row.task, row.temperature);
                for i in 0..n {
                    for j in 0..n {
                        normal[i][j] += within * f[i] * f[j];
                    }
                    right[i] += within * f[i] * row.level;
                    sum[i] += f[i];
                }
                sum_level += row.level;
            }
            for i in 0..n {
                for j in 0..n {
                    normal[i][j] -= within * shared * sum[i] * sum[j];
                }
                right[i] -= within * shared * sum[i] * sum_level;
            }
        }
        Self {
            coefficients: solve(normal, right),
        }
    }

    /// The level expected for a head, task and temperature.
    pub fn level(&self, head: HeadKind, task: Option<Task>, temperature: f64) -> f64 {
        level_features(head, task, temperature)
            .iter()
            .zip(&self.coefficients)
            .map(|(f, c)| f * c)
            .sum()
    }

    /// Coefficients with their names, for the notes.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let names = LEVEL_HEADS
            .iter()
            .map(|h| h.name())
            .chain(LEVEL_TASKS.iter().map(|t| t.name()))
            .chain(["temperature"]);
        names.zip(self.coefficients.iter().copied()).collect()
    }
}

/// Solves a small symmetric positive system by elimination; a singular one gives zeros there.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for pivot in 0..n {
        let scale = a[pivot][pivot];
        if scale.abs() < 1e-12 {
            continue;
        }
        let pivot_row = a[pivot].clone();
        for row in (pivot + 1)..n {
            let factor = a[row][pivot] / scale;
            for (cell, above) in a[row].iter_mut().zip(&pivot_row).skip(pivot) {
                *cell -= factor * above;
            }
            b[row] -= factor * b[pivot];
        }
    }
    let mut x = vec![0.0; n];
    for row in (0..n).rev() {
        let rest: f64 = ((row + 1)..n).map(|k| a[row][k] * x[k]).sum();
        if a[row][row].abs() >= 1e-12 {
            x[row] = (b[row] - rest) / a[row][row];
        }
    }
    x
}
