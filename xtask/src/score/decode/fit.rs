//! Launch and host costs fitted to measured servers, with priors; leaving one model out at a time
//! gives the figures that `score` reports.
//!
//! A step is linear in these costs, so each row is reduced to a few numbers once; what is left is a
//! small robust least-squares problem in the logarithms of the costs.

use crate::step_time::{Engine, Overhead, Server, before, loaded};

use super::rows::{Load, Row};

/// Groups of engine versions that share costs.
pub(crate) const PROFILES: usize = 4;
/// Costs of a profile: fixed factor, host ms, sequence us, prefill share.
const OWN: usize = 4;
/// All costs: those of the profiles, small kernel us, expert-parallel us, rank skew us.
pub(crate) const COSTS: usize = PROFILES * OWN + 3;
const SMALL_KERNEL: usize = PROFILES * OWN;
const EXPERT_PARALLEL: usize = SMALL_KERNEL + 1;
const RANK_SKEW: usize = SMALL_KERNEL + 2;

/// What the costs were taken to be before any server was seen: kernels alone sum to the step;
/// schedulers in Python take about a millisecond, overlapped ones little; a prefill delays others
/// by a fifth more than its roofline, less where a batch starts together (SGLang).
const PRIOR: [f64; COSTS] = [
    0.9, 1.0, 20.0, 1.2, // vLLM before 0.20
    0.9, 0.2, 8.0, 1.2, // vLLM
    0.9, 0.5, 20.0, 0.7, // SGLang
    0.8, 0.5, 20.0, 1.2, // TensorRT-LLM
    1.0, 20.0, 1.0,
];
/// How sure: standard deviation of the logarithm, against rows that are right within 15 %.
const PRIOR_SD: [f64; COSTS] = [
    0.15, 0.5, 0.4, 0.2, 0.15, 0.5, 0.4, 0.2, 0.15, 0.5, 0.4, 0.2, 0.15, 0.5, 0.4, 0.2, 0.3, 0.5,
    0.7,
];
/// Weight of the prior against the rows.
const PRIOR_WEIGHT: f64 = 4.0;
/// Residuals beyond this (ln) count less and less: rows with labels that do not fit exist.
const ROBUST: f64 = 0.15;
/// Added before taking logarithms, so that a cost may go to nought.
const SHIFT: f64 = 0.05;
const ROUNDS: usize = 12;

/// Which profile an engine's version has.
pub(crate) fn profile(engine: Engine, version: Option<&str>) -> usize {
    match engine {
        Engine::Vllm if before(version, (0, 20, 0)) => 0,
        Engine::Vllm | Engine::Llamacpp => 1,
        Engine::Sglang => 2,
        Engine::Trtllm => 3,
    }
}

/// Numbers of a point: load, work ms, fixed ms, ms per us of a small kernel, of expert parallelism,
/// of rank skew.
const POINT: usize = 6;

/// A row as the numbers the costs multiply, at a few loads up to its own.
#[derive(Debug, Clone)]
pub(crate) struct Reduced {
    profile: usize,
    sglang: bool,
    measured_ms: f64,
    /// At each load what [`POINT`] says.
    points: Vec<[f64; POINT]>,
    prefill_ms: f64,
    clients: f64,
    /// Tokens of an answer; none for a steady decode step.
    output: Option<f64>,
}

/// A server whose step is its work alone, and the same with each cost that is not the host's at 1.
fn variants(row: &Row) -> [Overhead; POINT - 1] {
    let bare = Overhead {
        fixed_factor: 0.0,
        small_kernel_us: 0.0,
        host_ms: 0.0,
        sequence_us: 0.0,
        expert_parallel_us: 0.0,
        rank_skew_us: 0.0,
        ..Overhead::of(row.engine, row.version.as_deref())
    };
    let fixed = Overhead {
        fixed_factor: 1.0,
        ..bare
    };
    let small = Overhead {
        small_kernel_us: 1.0,
        ..fixed
    };
    let expert = Overhead {
        expert_parallel_us: 1.0,
        ..bare
    };
    let skew = Overhead {
        rank_skew_us: 1.0,
        ..bare
    };
    [bare, fixed, small, expert, skew]
}

/// Reduces a row; `server` is the row's with any costs.
pub(crate) fn reduce(row: &Row, mut server: Server<'_>) -> Reduced {
    let shares: &[f64] = match row.load {
        Load::Decode => &[1.0],
        Load::Serving { .. } => &[0.25, 0.5, 0.75, 1.0],
    };
    let (prefill_ms, output) = match row.load {
        Load::Decode => (0.0, None),
        Load::Serving { input, output } => (server.prefill_ms(input), Some(output)),
    };
    let mut points = vec![[0.0; POINT]; shares.len()];
    for (point, share) in points.iter_mut().zip(shares) {
        point[0] = (row.concurrency * share).max(1.0);
    }
    for (index, variant) in variants(row).iter().enumerate() {
        server = server.with_overhead(*variant);
        for point in &mut points {
            point[index + 1] = server.plain_ms(point[0], row.context);
        }
    }
    for point in &mut points {
        let [load, work, fixed, small, expert, skew] = *point;
        *point = [
            load,
            work,
            fixed - work,
            small - fixed,
            expert - work,
            skew - work,
        ];
    }
    Reduced {
        profile: profile(row.engine, row.version.as_deref()),
        sglang: row.engine == Engine::Sglang,
        measured_ms: row.measured_ms,
        points,
        prefill_ms,
        clients: row.concurrency,
        output,
    }
}

impl Reduced {
    /// The step or time per output token with these costs, ms.
    pub(crate) fn predict(&self, costs: &[f64; COSTS]) -> f64 {
        let own = self.profile * OWN;
        let expert = if self.sglang {
            costs[EXPERT_PARALLEL]
        } else {
            0.0
        };
        let at = |point: &[f64; POINT]| {
            point[1]
                + costs[own] * (point[2] + costs[SMALL_KERNEL] * point[3])
                + expert * point[4]
                + costs[RANK_SKEW] * point[5]
                + costs[own + 1]
                + costs[own + 2] * 1e-3 * point[0]
        };
        let step = |load: f64| {
            let mut below: Option<&[f64; POINT]> = None;
            for point in &self.points {
                if point[0] >= load {
                    return match below {
                        Some(low) if point[0] > low[0] => {
                            let part = (load - low[0]) / (point[0] - low[0]);
                            at(low) + (at(point) - at(low)) * part
                        }
                        _ => at(point),
                    };
                }
                below = Some(point);
            }
            below.map_or(0.0, at)
        };
        match self.output {
            None => step(self.clients),
            Some(output) => {
                let delay_ms = self.prefill_ms * costs[own + 3];
                loaded(&step, delay_ms, self.clients, output).tpot_ms
            }
        }
    }
}

/// Costs that fit the rows, by damped Gauss-Newton from the prior. Rows of one steady decode sweep
/// weigh more than served ones, which also carry clients and queues.
pub(crate) fn fit(rows: &[&Reduced]) -> [f64; COSTS] {
    let mut logs = PRIOR.map(|cost| (cost + SHIFT).ln());
    let mut best = loss(rows, &logs);
    let mut damping = 1e-3;
    for _ in 0..ROUNDS {
        let (matrix, gradient) = normal_equations(rows, &logs);
        let mut moved = false;
        for _ in 0..6 {
            let Some(step) = solve(&matrix, &gradient, damping) else {
                damping *= 10.0;
                continue;
            };
            let mut next = logs;
            for (value, change) in next.iter_mut().zip(step) {
                *value = (*value + change.clamp(-1.0, 1.0)).max(SHIFT.ln());
            }
            let found = loss(rows, &next);
            if found < best {
                moved = best - found > 1e-6 * best;
                (best, logs) = (found, next);
                damping *= 0.3;
                break;
            }
            damping *= 10.0;
        }
        if !moved {
            break;
        }
    }
    costs(&logs)
}

fn costs(logs: &[f64; COSTS]) -> [f64; COSTS] {
    logs.map(|log| (log.exp() - SHIFT).max(0.0))
}

/// Weight of a steady decode step against a served one.
const STEADY_WEIGHT: f64 = 3.0;

fn weight(row: &Reduced) -> f64 {
    if row.output.is_none() {
        STEADY_WEIGHT
    } else {
        1.0
    }
}

/// Robust residual: the arc tangent flattens beyond [`ROBUST`].
fn residual(row: &Reduced, costs: &[f64; COSTS]) -> f64 {
    weight(row) * ((row.predict(costs) / row.measured_ms).ln() / ROBUST).atan()
}

fn prior_residual(index: usize, logs: &[f64; COSTS]) -> f64 {
    PRIOR_WEIGHT * (logs[index] - (PRIOR[index] + SHIFT).ln()) / PRIOR_SD[index]
}

fn loss(rows: &[&Reduced], logs: &[f64; COSTS]) -> f64 {
    let costs = costs(logs);
    let data: f64 = rows.iter().map(|row| residual(row, &costs).powi(2)).sum();
    data + (0..COSTS)
        .map(|i| prior_residual(i, logs).powi(2))
        .sum::<f64>()
}

type Matrix = [[f64; COSTS]; COSTS];

fn normal_equations(rows: &[&Reduced], logs: &[f64; COSTS]) -> (Matrix, [f64; COSTS]) {
    let mut matrix = [[0.0; COSTS]; COSTS];
    let mut gradient = [0.0; COSTS];
    let nudge = 1e-4;
    let here = costs(logs);
    let moved: Vec<[f64; COSTS]> = (0..COSTS)
        .map(|i| {
            let mut next = *logs;
            next[i] += nudge;
            costs(&next)
        })
        .collect();
    for row in rows {
        let base = residual(row, &here);
        let mut slopes = [0.0; COSTS];
        for (i, slope) in slopes.iter_mut().enumerate() {
            // Costs of other engines do not touch this row.
            if i < SMALL_KERNEL && i / OWN != row.profile {
                continue;
            }
            *slope = (residual(row, &moved[i]) - base) / nudge;
        }
        for i in 0..COSTS {
            gradient[i] -= slopes[i] * base;
            for j in 0..COSTS {
                matrix[i][j] += slopes[i] * slopes[j];
            }
        }
    }
    for i in 0..COSTS {
        let slope = PRIOR_WEIGHT / PRIOR_SD[i];
        gradient[i] -= slope * prior_residual(i, logs);
        matrix[i][i] += slope * slope;
    }
    (matrix, gradient)
}

/// Gaussian elimination with the diagonal raised by `damping`; `None` where it is singular.
fn solve(matrix: &Matrix, right: &[f64; COSTS], damping: f64) -> Option<[f64; COSTS]> {
    let mut a = *matrix;
    let mut b = *right;
    for (i, row) in a.iter_mut().enumerate() {
        row[i] *= 1.0 + damping;
    }
    for i in 0..COSTS {
        let pivot = (i..COSTS).max_by(|x, y| a[*x][i].abs().total_cmp(&a[*y][i].abs()))?;
        a.swap(i, pivot);
        b.swap(i, pivot);
        if a[i][i].abs() < 1e-12 {
            return None;
        }
        let (pivot_row, pivot_right) = (a[i], b[i]);
        for (row, right) in a.iter_mut().zip(&mut b).skip(i + 1) {
            let factor = row[i] / pivot_row[i];
            for (cell, above) in row.iter_mut().zip(pivot_row) {
                *cell -= factor * above;
            }
            *right -= factor * pivot_right;
        }
    }
    for i in (0..COSTS).rev() {
        let known: f64 = a[i].iter().zip(b).skip(i + 1).map(|(x, y)| x * y).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    Some(b)
}

/// The compiled-in costs with those of `costs` in their places.
#[cfg(test)]
pub(crate) fn overhead(engine: Engine, version: Option<&str>, costs: &[f64; COSTS]) -> Overhead {
    let own = profile(engine, version) * OWN;
    let base = Overhead::of(engine, version);
    Overhead {
        fixed_factor: costs[own],
        host_ms: costs[own + 1],
        sequence_us: costs[own + 2],
        prefill_share: costs[own + 3],
        small_kernel_us: costs[SMALL_KERNEL],
        rank_skew_us: costs[RANK_SKEW],
        expert_parallel_us: if engine == Engine::Sglang {
            costs[EXPERT_PARALLEL]
        } else {
            0.0
        },
        ..base
    }
}
