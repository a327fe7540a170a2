//! The slopes of the catalogue, fitted: one fall that learned heads share, an offset for the head
//! kind and the text, and every draft's own, which is what is not known of the next draft.

use super::fit::{Curve, solve};
use super::task::Task;
use crate::head::HeadKind;

/// Head kinds whose slope is fitted; the others keep what reports say of them.
const HEADS: [HeadKind; 4] = [
    HeadKind::Eagle3,
    HeadKind::Mtp,
    HeadKind::Parallel,
    HeadKind::Eagle,
];

/// Places of the shared effects: the fall, mixed texts, mathematics, sums, a head trained for one
/// position (instead of the fall and its kind), then the head kinds.
const FALL: usize = 0;
const MIXED: usize = 1;
const MATH: usize = 2;
const SUMS: usize = 3;
const ONE_STEP: usize = 4;
const KINDS: usize = 5;
const SHARED: usize = KINDS + HEADS.len();

/// Before any curve: (mean, sd) in logits at the second position. The fall and the offsets wide;
/// kinds close together (learned heads fall alike); a head trained for one position by the engine
/// reports of DeepSeek's module: 0.82 to 0.90 accepted at depth 1 (vllm#12755, sglang#3582), 2.46
/// and 2.61 tokens at depth 3 (cookbook), between them slopes from -1.1 to -2.4.
const SHARED_PRIOR: [(f64, f64); SHARED] = [
    (-0.4, 0.3),
    (0.0, 0.1),
    (0.0, 0.1),
    (0.0, 0.1),
    (-1.6, 0.4),
    (0.0, 0.05),
    (0.0, 0.05),
    (0.0, 0.05),
    (0.0, 0.05),
];
/// Spread of a draft's own offset.
const DRAFT_SD: f64 = 0.2;

/// Weight of the data against the priors: an absolute error of this many tokens costs one unit,
/// and errors below [`ROUND`] tokens are as good as none.
const ERROR_SCALE: f64 = 0.1;
const ROUND: f64 = 0.02;

/// Slopes by head kind, training and task, without any draft's own offset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlopeFit {
    shared: [f64; SHARED],
}

impl SlopeFit {
    /// The slope expected of a draft that was not among the curves.
    pub fn slope(&self, head: HeadKind, trained_steps: Option<u32>, task: Option<Task>) -> f64 {
        shared_effects(head, trained_steps, task)
            .iter()
            .map(|&place| self.shared[place])
            .sum()
    }

    /// Offsets of mixed texts, of mathematics, and of sums, for the notes.
    pub fn task_offsets(&self) -> [f64; 3] {
        let sums = self.shared[MATH] + self.shared[SUMS];
        [self.shared[MIXED], self.shared[MATH], sums]
    }
}

/// The shared effects that add up to a curve's slope.
fn shared_effects(head: HeadKind, trained_steps: Option<u32>, task: Option<Task>) -> Vec<usize> {
    let mut effects = if trained_steps == Some(1) {
        vec![ONE_STEP]
    } else {
        let kind = HEADS.iter().position(|&h| h == head);
        [FALL].into_iter().chain(kind.map(|k| KINDS + k)).collect()
    };
    match task {
        Some(Task::Sums) => effects.extend([MATH, SUMS]),
        Some(Task::Math) => effects.push(MATH),
        Some(Task::Code | Task::Tools) | None => {}
        Some(_) => effects.push(MIXED),
    }
    effects
}

/// Fits all head kinds together by (smoothed) least absolute errors of the depths predicted from
/// the anchor, the measure that is scored. Every draft has an offset of its own, so that a draft
/// with many curves does not speak for the others.
pub fn fit_slopes(curves: &[&Curve]) -> SlopeFit {
    let mut drafts: Vec<&str> = curves.iter().map(|c| c.draft.as_str()).collect();
    drafts.sort_unstable();
    drafts.dedup();
    let rows: Vec<(&Curve, Vec<usize>)> = curves
        .iter()
        .filter(|c| HEADS.contains(&c.head))
        .map(|&curve| {
            let mut effects = shared_effects(curve.head, curve.trained_steps, curve.task);
            let draft = drafts.binary_search(&curve.draft.as_str()).unwrap_or(0);
            effects.push(SHARED + draft);
            (curve, effects)
        })
        .collect();
    let own = std::iter::repeat_n((0.0, DRAFT_SD), drafts.len());
    let prior: Vec<(f64, f64)> = SHARED_PRIOR.into_iter().chain(own).collect();
    let mut at: Vec<f64> = prior.iter().map(|p| p.0).collect();
    for _ in 0..40 {
        let step = newton_step(&rows, &prior, &at);
        for (value, change) in at.iter_mut().zip(&step) {
            *value += change.clamp(-0.2, 0.2);
        }
        if step.iter().all(|s| s.abs() < 1e-5) {
            break;
        }
    }
    let mut shared = [0.0; SHARED];
    shared.copy_from_slice(&at[..SHARED]);
    SlopeFit { shared }
}

/// One step of iteratively reweighted Gauss-Newton: error ≈ e + g · Δslope.
fn newton_step(rows: &[(&Curve, Vec<usize>)], prior: &[(f64, f64)], at: &[f64]) -> Vec<f64> {
    let n = prior.len();
    let mut normal = vec![vec![0.0; n]; n];
    let mut right = vec![0.0; n];
    for (i, (mean, sd)) in prior.iter().enumerate() {
        normal[i][i] = 1.0 / (sd * sd);
        right[i] = (mean - at[i]) / (sd * sd);
    }
    for (curve, effects) in rows {
        let slope: f64 = effects.iter().map(|&i| at[i]).sum();
        let beside = curve.predict(slope + 0.01);
        for (point, moved) in curve.predict(slope).iter().zip(&beside) {
            let error = point.predicted - point.measured;
            let gradient = (moved.predicted - point.predicted) / 0.01;
            let weight = 1.0 / (ERROR_SCALE * (error * error + ROUND * ROUND).sqrt());
            for &i in effects {
                for &j in effects {
                    normal[i][j] += weight * gradient * gradient;
                }
                right[i] -= weight * gradient * error;
            }
        }
    }
    solve(normal, right)
}
