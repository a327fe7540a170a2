//! Fits find again what made their data, and give the catalogue's figures on real curves.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use spec_decode::acceptance::fit::{
    Curve, DepthPrediction, LevelFit, LevelRow, SlopeFit, fit_slopes,
};
use spec_decode::{Chain, HeadKind, Task};

/// A curve of a draft of its own, without noise.
fn curve(draft: &str, task: Option<Task>, chain: &Chain) -> Curve {
    Curve {
        head: HeadKind::Eagle3,
        trained_steps: None,
        task,
        draft: draft.to_string(),
        points: [3, 5, 7].map(|d| (d, chain.accept_length(d))).to_vec(),
    }
}

fn fit(curves: &[Curve]) -> SlopeFit {
    fit_slopes(&curves.iter().collect::<Vec<_>>())
}

#[test]
fn slopes_and_task_offsets_are_found_again() {
    let tasks = [
        (Some(Task::Code), -0.5),
        (Some(Task::Chat), -0.42),
        (Some(Task::Math), -0.58),
        (Some(Task::Sums), -0.68),
        (None, -0.5),
    ];
    let mut rng = Pcg64Mcg::seed_from_u64(3);
    let curves: Vec<Curve> = (0..300)
        .map(|i| {
            let (task, slope) = tasks[i % tasks.len()];
            let own = rng.random_range(-0.1..0.1);
            let chain = Chain::new(rng.random_range(0.0..2.2), slope + own);
            curve(&i.to_string(), task, &chain)
        })
        .collect();
    let found = fit(&curves);
    for (task, slope) in tasks {
        let ours = found.slope(HeadKind::Eagle3, None, task);
        assert!((ours - slope).abs() < 0.03, "{task:?} {ours} {slope}");
    }
    let [mixed, math, sums] = found.task_offsets();
    assert!(mixed > 0.05 && math < -0.05 && sums < math, "{found:?}");
}

#[test]
fn no_curves_leave_the_slopes_where_they_were_believed() {
    let found = fit(&[]);
    assert!((found.slope(HeadKind::Eagle3, None, None) + 0.4).abs() < 1e-9);
    assert!((found.slope(HeadKind::Mtp, Some(1), None) + 1.6).abs() < 1e-9);
    assert_eq!(found.task_offsets(), [0.0; 3]);
}

#[test]
fn a_draft_with_many_curves_does_not_speak_for_the_others() {
    let level = |i: u32| 0.5 + 0.05 * f64::from(i);
    let of_one = (0..30).map(|i| curve("one", None, &Chain::new(level(i), -0.9)));
    let of_ten = (0..10).map(|i| curve(&i.to_string(), None, &Chain::new(level(i), -0.4)));
    let found = fit(&of_one.chain(of_ten).collect::<Vec<_>>());
    let slope = found.slope(HeadKind::Eagle3, None, None);
    assert!((-0.55..-0.4).contains(&slope), "{slope}");
}

#[test]
fn a_head_kind_without_curves_falls_as_the_others_do_and_one_trained_for_a_step_apart() {
    let level = |i: u32| 0.5 + 0.1 * f64::from(i);
    let mut curves: Vec<Curve> = (0..12)
        .map(|i| curve(&i.to_string(), None, &Chain::new(level(i), -0.6)))
        .collect();
    curves.push(Curve {
        head: HeadKind::Mtp,
        trained_steps: Some(1),
        ..curve("once", None, &Chain::new(1.8, -2.0))
    });
    let found = fit(&curves);
    let parallel = found.slope(HeadKind::Parallel, None, None);
    assert!((parallel + 0.57).abs() < 0.06, "{parallel}");
    assert!(found.slope(HeadKind::Mtp, Some(1), None) < -1.5);
    assert!((found.slope(HeadKind::Mtp, None, None) - parallel).abs() < 1e-6);
}

/// Published curves (model card, Llama-4-Maverick with an EAGLE-3 head, temperature 0.6).
#[test]
fn real_curves_give_a_falling_slope_and_small_errors() {
    let lengths = [
        (Task::Code, [1.83, 2.45, 2.94, 3.26, 3.47, 3.57, 3.62]),
        (Task::Sums, [1.86, 2.56, 3.08, 3.53, 3.73, 3.91, 4.02]),
        (Task::Summary, [1.69, 2.12, 2.37, 2.52, 2.6, 2.63, 2.63]),
    ];
    let curves: Vec<Curve> = lengths
        .iter()
        .map(|(task, lengths)| Curve {
            points: (1u32..).zip(lengths.iter().copied()).collect(),
            ..curve("card", Some(*task), &Chain::new(0.0, 0.0))
        })
        .collect();
    assert_eq!(curves[0].anchor(), Some((3, 2.94)));
    let found = fit(&curves);
    let slope = found.slope(HeadKind::Eagle3, None, Some(Task::Code));
    assert!((-0.9..-0.45).contains(&slope), "{slope}");
    let miss = |points: Vec<DepthPrediction>| {
        let errors = points.iter().map(|p| (p.predicted - p.measured).abs());
        errors.sum::<f64>() / 6.0
    };
    for curve in &curves {
        let ours = found.slope(curve.head, None, curve.task);
        let fitted = curve.predict(ours);
        assert_eq!(fitted.len(), 6);
        let slopes = (0..30).map(|i| -0.05 * f64::from(i));
        let own = slopes.map(|slope| miss(curve.predict(slope)));
        assert!(own.fold(1.0, f64::min) < 0.04, "{curve:?}");
        assert!(miss(fitted) < 0.5 * miss(curve.predict_constant()));
    }
}

#[test]
fn the_anchor_is_the_depth_nearest_3_and_the_lower_on_a_tie() {
    let curve = |depths: &[u32]| Curve {
        points: depths.iter().map(|d| (*d, 1.5)).collect(),
        ..curve("any", None, &Chain::new(0.0, 0.0))
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
    assert_eq!(fit.named().len(), 11);
}
