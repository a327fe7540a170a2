//! How bands are learned from scored predictions.

use std::collections::BTreeSet;

use super::{LEVEL, Residual, Scale, Side, less};

impl Residual {
    /// Where the measurement lies.
    fn side(&self) -> Side {
        // Predicted too high means measured below.
        if self.log_error > 0.0 {
            Side::Down
        } else {
            Side::Up
        }
    }

    /// The part of the error that the accept length's own band does not explain, ln.
    fn excess(&self) -> f64 {
        less(self.log_error, self.conditions.accept(self.side()))
    }

    /// By how much the extra of the cycle would have to be another to explain what of that is more
    /// than predictions from a sweep err by, ln.
    fn extra_off(&self, sweep: &Scale) -> f64 {
        let side = self.side();
        let excess = less(self.excess(), sweep.share(side) * sweep.reach);
        let extra = self.conditions.extra();
        match side {
            Side::Down => (excess.exp_m1() / extra).ln_1p(),
            // No cycle is shorter than a plain step: what is gained beyond that was accepted.
            Side::Up => -(1.0 + (-excess).exp_m1() / extra).max(LEAST_EXTRA).ln(),
        }
    }
}

/// Least share of the predicted extra that a cycle is believed to have had.
const LEAST_EXTRA: f64 = 1e-3;

impl Scale {
    /// Parts and their 90 % reach. The reach is that of groups whose typical errors come from the
    /// other groups, so that it holds for a box that has not been seen.
    pub(super) fn of_sweep(residuals: &[&Residual]) -> Self {
        let groups: BTreeSet<&str> = residuals.iter().map(|r| r.group.as_str()).collect();
        let mut ratios = Vec::with_capacity(residuals.len());
        for group in &groups {
            let (own, others): (Vec<&Residual>, Vec<&Residual>) =
                residuals.iter().partition(|r| r.group == *group);
            // Without a group that holds most of the rows there is too little to learn from.
            let rest = if own.len() * 2 > residuals.len() {
                residuals
            } else {
                &others
            };
            let typical = Self::typical(rest);
            let weight = weight(own.len());
            ratios.extend(own.iter().map(|r| {
                let ratio = r.excess() / typical.reach_at(&r.conditions);
                match r.side() {
                    Side::Down => (ratio, weight),
                    Side::Up => (-ratio, weight),
                }
            }));
        }
        let (reach, up) = shortest(ratios);
        let typical = Self::typical(residuals);
        Self {
            reach: reach * typical.reach,
            beyond: reach * typical.beyond,
            slower: reach * typical.slower,
            up_share: up / reach.max(f64::MIN_POSITIVE),
        }
    }

    /// The factor on the cycle's extra, beside what predictions from a sweep err by.
    pub(super) fn of_scratch(residuals: &[&Residual], sweep: &Self) -> Self {
        Self {
            reach: order_statistic(
                residuals
                    .iter()
                    .map(|r| (r.extra_off(sweep), weight(rows_of(residuals, &r.group))))
                    .collect(),
            ),
            beyond: 0.0,
            slower: 0.0,
            up_share: 1.0,
        }
    }

    /// Typical errors in place of 90 % reaches.
    fn typical(residuals: &[&Residual]) -> Self {
        let rows: Vec<([f64; 3], f64, f64)> = residuals
            .iter()
            .map(|r| {
                let weight = weight(rows_of(residuals, &r.group));
                (r.conditions.features(), r.excess(), weight)
            })
            .collect();
        let [reach, beyond, slower] = typical_errors(&rows);
        Self {
            reach,
            beyond,
            slower,
            up_share: 1.0,
        }
    }
}

/// Typical errors of the features' parts, whose squares add: the most likely under errors with
/// Laplace's tails, by multiplicative steps, which keep every part positive.
fn typical_errors(rows: &[([f64; 3], f64, f64)]) -> [f64; 3] {
    let mut squares = [START * START; 3];
    for _ in 0..STEPS {
        let (mut up, mut down) = ([0.0; 3], [0.0; 3]);
        for (features, error, weight) in rows {
            let parts = features.iter().zip(&squares);
            let square: f64 = parts.map(|(by, part)| by * part).sum();
            let size = square.sqrt().max(LEAST_ERROR);
            for (j, by) in features.iter().enumerate() {
                up[j] += weight * by * error / size.powi(3);
                down[j] += weight * by / size.powi(2);
            }
        }
        for (j, part) in squares.iter_mut().enumerate() {
            // Of a part that no row speaks of nothing is learned.
            *part *= if down[j] > 0.0 { up[j] / down[j] } else { 0.0 };
        }
    }
    squares[0] = squares[0].max(LEAST_ERROR * LEAST_ERROR);
    squares.map(f64::sqrt)
}

/// Where the typical errors start from, ln.
const START: f64 = 0.1;
/// Steps after which they no longer move by a thousandth.
const STEPS: usize = 120;
/// Least typical error, ln.
const LEAST_ERROR: f64 = 0.005;

/// Rows of a group.
fn rows_of(residuals: &[&Residual], group: &str) -> usize {
    residuals.iter().filter(|r| r.group == group).count()
}

/// Weight of each of a group's rows. They err together, though not wholly: a group counts for more
/// than one row and for less than all of its rows.
fn weight(rows: usize) -> f64 {
    (rows.max(1) as f64).powf(-GROUP_EXPONENT)
}

/// 0 counts every row, 1 every group once.
const GROUP_EXPONENT: f64 = 0.5;

/// What [`LEVEL`] of weights is with the finite-sample correction of conformal prediction: one more
/// of the mean weight, outside.
fn held(sizes: &[(f64, f64)]) -> f64 {
    let total: f64 = sizes.iter().map(|(_, weight)| weight).sum();
    LEVEL * total * (1.0 + 1.0 / sizes.len().max(1) as f64) - 1e-9
}

/// The size that [`LEVEL`] of weighted sizes stay within.
fn order_statistic(mut sizes: Vec<(f64, f64)>) -> f64 {
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted = held(&sizes);
    let mut sum = 0.0;
    sizes
        .iter()
        .find(|(_, weight)| {
            sum += weight;
            sum >= wanted
        })
        .or(sizes.last())
        .map_or(0.0, |(size, _)| *size)
}

/// Two quite different intervals may be all but the shortest, so that one row more makes the learned
/// sides jump from one to the other: of those up to this many times as long the most even is taken.
const EVEN_WITHIN: f64 = 1.05;

/// The most even of the shortest intervals around 0 that hold [`LEVEL`] of weighted values: how far it
/// reaches above 0, and below.
fn shortest(mut values: Vec<(f64, f64)>) -> (f64, f64) {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted = held(&values);
    let (mut holding, mut sum, mut next) = (Vec::new(), 0.0, 0);
    for (first, weight) in &values {
        while let Some((_, more)) = values.get(next).filter(|_| sum < wanted) {
            sum += more;
            next += 1;
        }
        let last = values.get(next.saturating_sub(1)).map_or(0.0, |v| v.0);
        if sum >= wanted {
            holding.push((last.max(0.0), (-first).max(0.0)));
        }
        sum -= weight;
    }
    let length = |ends: &(f64, f64)| ends.0 + ends.1;
    let least = holding.iter().map(length).fold(f64::INFINITY, f64::min);
    let uneven = |ends: &(f64, f64)| (ends.0 - ends.1).abs();
    let best = holding
        .into_iter()
        .filter(|ends| length(ends) <= least * EVEN_WITHIN)
        .min_by(|a, b| uneven(a).total_cmp(&uneven(b)));
    best.unwrap_or_else(|| {
        let ends = (values.last(), values.first());
        (
            ends.0.map_or(0.0, |v| v.0.max(0.0)),
            ends.1.map_or(0.0, |v| (-v.0).max(0.0)),
        )
    })
}
