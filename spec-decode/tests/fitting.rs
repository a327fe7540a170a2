//! Fits find again what made their data, and give the catalogue's figures on real curves.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use spec_decode::acceptance::fit::{Curve, LevelFit, LevelRow, fit_slopes};
use spec_decode::{Chain, HeadKind, Task};

const TASKS: [Option<Task>; 4] = [Some(Task::Code), Some(Task::Chat), Some(Task::Math), None];

#[test]
fn slopes_and_task_offsets_are_found_again() {
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    let curves: Vec<Curve> = (0..200)
        .map(|i| {
            let task = TASKS[i % 4];
            let slope = match task {
                Some(Task::Chat) => -0.12,
                Some(Task::Math) => -0.26,
                _ => -0.2,
            };
            let chain = Chain::new(
                rng.random_range(0.0..2.2),
                slope + rng.random_range(-0.02..0.02),
            );
            let points = [3, 5, 7].map(|d| (d, chain.accept_length(d))).to_vec();
            Curve {
                head: HeadKind::Eagle3,
                task,
                points,
            }
        })
        .collect();
    let fit = fit_slopes(&curves.iter().collect::<Vec<_>>(), -0.1, 0.3, true);
    assert!((fit.slope(Some(Task::Code)) + 0.2).abs() < 0.01, "{fit:?}");
    assert!(
        (fit.slope(Some(Task::Chat)) + 0.12).abs() < 0.015,
        "{fit:?}"
    );
    assert!(
        (fit.slope(Some(Task::Math)) + 0.26).abs() < 0.015,
        "{fit:?}"
    );
    let without_tasks = fit_slopes(&curves.iter().collect::<Vec<_>>(), -0.1, 0.3, false);
    assert!(without_tasks.mixed.abs() < 1e-6 && without_tasks.math.abs() < 1e-6);
}

#[test]
fn no_curves_leave_the_slope_where_it_was_believed() {
    let fit = fit_slopes(&[], -0.25, 0.1, true);
    assert!((fit.base + 0.25).abs() < 1e-9 && fit.mixed == 0.0);
}

/// Published curves (model card, Llama-4-Maverick with an EAGLE-3 head, temperature 0.6).
#[test]
fn real_curves_give_a_falling_slope_and_small_errors() {
    let lengths = [
        (Task::Code, [1.83, 2.45, 2.94, 3.26, 3.47, 3.57, 3.62]),
        (Task::Math, [1.86, 2.56, 3.08, 3.53, 3.73, 3.91, 4.02]),
        (Task::Summary, [1.69, 2.12, 2.37, 2.52, 2.6, 2.63, 2.63]),
    ];
    let curves: Vec<Curve> = lengths
        .iter()
        .map(|(task, lengths)| Curve {
            head: HeadKind::Eagle3,
            task: Some(*task),
            points: (1u32..).zip(lengths.iter().copied()).collect(),
        })
        .collect();
    assert_eq!(curves[0].anchor(), Some((3, 2.94)));
    let fit = fit_slopes(&curves.iter().collect::<Vec<_>>(), -0.15, 0.3, false);
    assert!((-0.32..-0.18).contains(&fit.base), "{fit:?}");
    let errors: Vec<f64> = curves
        .iter()
        .flat_map(|c| c.predict(fit.base))
        .map(|p| (p.predicted - p.measured).abs())
        .collect();
    assert_eq!(errors.len(), 18);
    assert!(errors.iter().sum::<f64>() / 18.0 < 0.04, "{errors:?}");
}

#[test]
fn the_anchor_is_the_depth_nearest_3_and_the_lower_on_a_tie() {
    let curve = |depths: &[u32]| Curve {
        head: HeadKind::Mtp,
        task: None,
        points: depths.iter().map(|d| (*d, 1.5)).collect(),
    };
    assert_eq!(curve(&[4, 2]).anchor().map(|a| a.0), Some(2));
    assert_eq!(curve(&[1, 7, 3]).anchor().map(|a| a.0), Some(3));
    assert_eq!(curve(&[]).anchor(), None);
    // An impossible anchor (3.27 at depth 2 stands in a public table) predicts nothing.
    let impossible = Curve {
        points: vec![(2, 3.27), (5, 3.4)],
        ..curve(&[])
    };
    assert!(impossible.predict(-0.2).is_empty());
}

#[test]
fn levels_by_head_and_task_are_found_again_through_the_scatter_of_pairs() {
    let mut rng = Pcg64Mcg::seed_from_u64(8);
    let mut uniform = |width: f64| (rng.random::<f64>() - 0.5) * width;
    let mut rows = Vec::new();
    for pair in 0..300 {
        let head = if pair % 3 == 0 {
            HeadKind::Mtp
        } else {
            HeadKind::Eagle3
        };
        let of_pair = uniform(1.4);
        for (task, offset) in [(Task::Chat, 0.0), (Task::Code, 0.5), (Task::Summary, -0.6)] {
            let base = if head == HeadKind::Mtp { 1.4 } else { 0.8 };
            rows.push(LevelRow {
                head,
                task: Some(task),
                temperature: 0.0,
                level: base + offset + of_pair + uniform(0.8),
                pair: pair.to_string(),
            });
        }
    }
    let fit = LevelFit::new(&rows);
    for (head, task, level) in [
        (HeadKind::Eagle3, Task::Chat, 0.8),
        (HeadKind::Mtp, Task::Code, 1.9),
        (HeadKind::Eagle3, Task::Summary, 0.2),
    ] {
        let found = fit.level(head, Some(task), 0.0);
        assert!((found - level).abs() < 0.12, "{head:?} {task:?} {found}");
    }
    // Untouched coefficients stay at what reports say.
    assert!(
        (fit.level(HeadKind::Eagle3, Some(Task::Chat), 1.0)
            - fit.level(HeadKind::Eagle3, Some(Task::Chat), 0.0)
            + 0.2)
            .abs()
            < 1e-6
    );
    assert_eq!(fit.named().len(), 10);
}
