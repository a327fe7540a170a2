//! How the catalogue's figures are fitted, so that they can be fitted again without a group of
//! rows (`score`) or on other rows.

use super::chain::Chain;
pub use super::slopes::{SlopeFit, fit_slopes};
use super::task::Task;
use crate::head::HeadKind;

/// One measured curve: accept lengths of one target, draft, task and temperature by depth.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The head kind.
    pub head: HeadKind,
    /// Positions the head was trained to draft, where known to matter.
    pub trained_steps: Option<u32>,
    /// The task, where known.
    pub task: Option<Task>,
    /// Source, target and draft: curves of one draft fall alike.
    pub draft: String,
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
        self.predict_with(|length, depth| Chain::with_slope(length, depth, slope).ok())
    }

    /// [`Self::predict`] with constant acceptance, the textbook form, to compare with.
    pub fn predict_constant(&self) -> Vec<DepthPrediction> {
        self.predict_with(|length, depth| Chain::constant_from(length, depth).ok())
    }

    fn predict_with(&self, chain: impl Fn(f64, u32) -> Option<Chain>) -> Vec<DepthPrediction> {
        let Some((anchor_depth, anchor_length)) = self.anchor() else {
            return Vec::new();
        };
        let Some(chain) = chain(anchor_length, anchor_depth) else {
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
const LEVEL_TASKS: [Task; 6] = [
    Task::Code,
    Task::Math,
    Task::Sums,
    Task::HardQa,
    Task::Summary,
    Task::Tools,
];
/// Before the fit: heads, then tasks against chat, then per unit of temperature (mean, sd).
/// Means and spreads from the tables of the public reports; wide enough that a dozen rows decide.
const LEVEL_PRIOR: [(f64, f64); 11] = [
    (0.9, 0.5),
    (1.0, 0.5),
    (1.0, 0.5),
    (0.3, 0.5),
    (0.6, 0.4),
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
        None if t == Task::Math || t == Task::Sums => 0.1,
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
pub(super) fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
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
