//! The areas hold their figures, and the bare law reproduces what was published of it.

use super::*;

fn runs() -> Option<Runs> {
    let data = crate::step_time::tests_data()?;
    Some(Runs::load(&data).unwrap_or_else(|e| panic!("{e:#}")))
}

#[test]
fn shipped_constants_are_what_the_sweeps_give() {
    let Some(runs) = runs() else { return };
    let best = runs.constants();
    let shipped = Constants::SHIPPED;
    // One step of the grid either way: the optimum is flat.
    assert!(
        (best.pcie.fixed_ms - shipped.pcie.fixed_ms).abs() < 0.11,
        "{best:?}"
    );
    assert!(
        (best.pcie.share_of_plain - shipped.pcie.share_of_plain).abs() < 0.011,
        "{best:?}"
    );
    assert!((best.exponent - shipped.exponent).abs() < 0.051, "{best:?}");
}

#[test]
fn the_bare_law_reproduces_its_published_figures() {
    // 0.9 ms a draft step, log interpolation, accept lengths as they stand: 0.052, 188 of 191
    // that pay and 20 of 23 that lose. Same rows, same rules as the areas.
    let Some(runs) = runs() else { return };
    let mut errors = Vec::new();
    let (mut pays, mut loses) = ((0, 0), (0, 0));
    for row in &runs.rows {
        for (measured, predicted) in bare(row) {
            errors.push((predicted / measured).ln().abs());
            if measured > 1.07 {
                pays = (pays.0 + usize::from(predicted > 1.0), pays.1 + 1);
            } else if measured < 0.93 {
                loses = (loses.0 + usize::from(predicted < 1.0), loses.1 + 1);
            }
        }
    }
    assert_eq!((pays, loses), ((188, 191), (20, 23)));
    assert!((quantile(&errors, 0.5).unwrap_or(0.0) - 0.052).abs() < 0.001);
}

/// Rows inside the sweep by the bare law: measured, predicted.
fn bare(row: &SweepRow) -> Vec<(f64, f64)> {
    let steps: Vec<(f64, f64)> = row
        .points
        .iter()
        .map(|p| (p.concurrency, 1000.0 * p.concurrency / p.plain_tok_s))
        .collect();
    let read = |n: f64| {
        let above = steps.partition_point(|(c, _)| *c < n);
        let (x1, y1) = *steps.get(above)?;
        let (x0, y0) = steps[above.saturating_sub(1)];
        let share = if x1 > x0 {
            (n / x0).ln() / (x1 / x0).ln()
        } else {
            0.0
        };
        Some(y0 * (y1 / y0).powf(share))
    };
    let mut level = None;
    let mut found = Vec::new();
    for (point, (c, plain_ms)) in row.points.iter().zip(&steps) {
        let Some(verify_ms) = read(c * f64::from(row.draft_tokens)) else {
            continue;
        };
        let ratio = plain_ms / (verify_ms + 0.9 * f64::from(row.depth));
        match (point.accept_length, level) {
            (Some(own), _) => found.push((point.speedup(), own * ratio)),
            (None, Some(level)) => found.push((point.speedup(), level * ratio)),
            (None, None) => level = Some(point.speedup() / ratio),
        }
    }
    found
}

#[test]
fn from_baseline_holds_its_figures() {
    let Some(data) = crate::step_time::tests_data() else {
        return;
    };
    let areas = score(&data).unwrap_or_else(|e| panic!("{e:#}"));
    let of = |name: &str| {
        areas
            .iter()
            .find(|a| a.area == name)
            .unwrap_or_else(|| panic!("{name}"))
    };
    let inside = of("speedup.from_baseline");
    assert!(inside.median_error.is_some_and(|e| e <= 0.04), "{inside:?}");
    assert!(inside.p90_error.is_some_and(|e| e <= 0.12), "{inside:?}");
    assert!(inside.right.is_some_and(|r| r >= 0.95), "{inside:?}");
    let beyond = of("speedup.from_baseline_extrapolated");
    assert!(beyond.median_error.is_some_and(|e| e <= 0.12), "{beyond:?}");
    let table = of("speedup.from_baseline_table");
    assert!(table.median_error.is_some_and(|e| e <= 0.10), "{table:?}");
    assert!(table.right.is_some_and(|r| r >= 0.88), "{table:?}");
}
