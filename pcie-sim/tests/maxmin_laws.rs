//! Laws of max-min fair sharing, hand-solved systems, and an oracle by linear programming.

use pcie_sim::maxmin::{Flow, max_min_rates};
use proptest::prelude::*;

fn flow(resources: &[usize]) -> Flow {
    Flow {
        uses: resources.iter().map(|r| (*r, 1.0)).collect(),
        cap: f64::INFINITY,
    }
}

#[test]
fn three_flows_two_links_by_hand() {
    // A takes both links (10 and 4), B the first, C the second: A and C share 4, B gets the rest.
    let rates = max_min_rates(&[10.0, 4.0], &[flow(&[0, 1]), flow(&[0]), flow(&[1])]);
    assert_eq!(rates, vec![2.0, 8.0, 2.0]);
}

#[test]
fn a_cap_leaves_its_share_to_the_others() {
    let mut slow = flow(&[0]);
    slow.cap = 1.0;
    assert_eq!(
        max_min_rates(&[9.0], &[slow, flow(&[0]), flow(&[0])]),
        vec![1.0, 4.0, 4.0]
    );
}

#[test]
fn weights_are_overhead_and_not_priority() {
    // Both run at one rate r with 2 r + r = 9.
    let heavy = Flow {
        uses: vec![(0, 2.0)],
        cap: f64::INFINITY,
    };
    assert_eq!(max_min_rates(&[9.0], &[heavy, flow(&[0])]), vec![3.0, 3.0]);
}

#[test]
fn parking_lot_by_hand() {
    // One long flow over four links of 1, one short on each: all get one half.
    let mut flows = vec![flow(&[0, 1, 2, 3])];
    flows.extend((0..4).map(|l| flow(&[l])));
    for rate in max_min_rates(&[1.0; 4], &flows) {
        assert!((rate - 0.5).abs() < 1e-12);
    }
}

#[test]
fn bad_input_gives_zero_and_never_nan() {
    let flows = [
        flow(&[0]),
        flow(&[1]),
        flow(&[7]),
        Flow {
            uses: vec![],
            cap: 3.0,
        },
        Flow {
            uses: vec![(2, f64::NAN)],
            cap: f64::NAN,
        },
    ];
    let rates = max_min_rates(&[0.0, f64::NAN, 5.0], &flows);
    assert_eq!(rates, vec![0.0, 0.0, 0.0, 3.0, 0.0]);
}

fn system() -> impl Strategy<Value = (Vec<f64>, Vec<Flow>)> {
    (1usize..7).prop_flat_map(|links| {
        let capacities = prop::collection::vec(0.5f64..100.0, links);
        let one = (
            prop::collection::btree_map(0..links, 0.5f64..2.5, 1..=links),
            prop_oneof![3 => Just(f64::INFINITY), 1 => 0.1f64..50.0],
        )
            .prop_map(|(uses, cap)| Flow {
                uses: uses.into_iter().collect(),
                cap,
            });
        (capacities, prop::collection::vec(one, 1..9))
    })
}

fn used(flows: &[Flow], rates: &[f64], links: usize) -> Vec<f64> {
    let mut used = vec![0.0; links];
    for (f, r) in flows.iter().zip(rates) {
        for (l, w) in &f.uses {
            used[*l] += w * r;
        }
    }
    used
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_link_over_capacity((caps, flows) in system()) {
        let rates = max_min_rates(&caps, &flows);
        for (u, c) in used(&flows, &rates, caps.len()).iter().zip(&caps) {
            prop_assert!(*u <= c * (1.0 + 1e-9), "{u} over {c}");
        }
    }

    /// The certificate of max-min fairness: each flow is at its cap, or has a full link on which
    /// no flow is faster.
    #[test]
    fn each_flow_has_its_bottleneck((caps, flows) in system()) {
        let rates = max_min_rates(&caps, &flows);
        let used = used(&flows, &rates, caps.len());
        for (f, rate) in flows.iter().zip(&rates) {
            let at_cap = *rate >= f.cap * (1.0 - 1e-9);
            let held = f.uses.iter().any(|(l, _)| {
                used[*l] >= caps[*l] * (1.0 - 1e-9)
                    && flows.iter().zip(&rates).all(|(g, other)| {
                        !g.uses.iter().any(|(m, _)| m == l) || *other <= rate * (1.0 + 1e-9)
                    })
            });
            prop_assert!(at_cap || held, "{rates:?} {used:?} {caps:?}");
        }
    }

    /// With every link shared by all, one more flow can only take. (On networks in general a flow
    /// that joins may free another by slowing what holds it, so the law is stated per bottleneck.)
    #[test]
    fn a_new_flow_never_raises_the_slowest((caps, flows) in system(), extra in 0usize..6) {
        let before = max_min_rates(&caps, &flows);
        let mut more = flows.clone();
        more.push(flow(&[extra % caps.len()]));
        let after = max_min_rates(&caps, &more);
        let least = |r: &[f64]| r.iter().copied().fold(f64::INFINITY, f64::min);
        prop_assert!(least(&after[..flows.len()]) <= least(&before) * (1.0 + 1e-9));
    }

    #[test]
    fn doubling_capacities_and_caps_doubles_rates((caps, flows) in system()) {
        let double: Vec<f64> = caps.iter().map(|c| c * 2.0).collect();
        let mut wide = flows.clone();
        for f in &mut wide {
            f.cap *= 2.0;
        }
        let (a, b) = (max_min_rates(&caps, &flows), max_min_rates(&double, &wide));
        for (x, y) in a.iter().zip(&b) {
            prop_assert!((y - 2.0 * x).abs() <= 1e-9 * y.max(1.0));
        }
    }

    #[test]
    fn order_of_flows_does_not_matter((caps, flows) in system()) {
        let forward = max_min_rates(&caps, &flows);
        let mut turned = flows.clone();
        turned.reverse();
        let mut backward = max_min_rates(&caps, &turned);
        backward.reverse();
        for (x, y) in forward.iter().zip(&backward) {
            prop_assert!((x - y).abs() <= 1e-9 * x.max(1.0));
        }
    }

    /// Oracle: lexicographic linear programming. Raise the least rate as far as an LP allows, fix
    /// the flows that cannot go higher, repeat. The LP is solved by a small simplex below.
    #[test]
    fn agrees_with_linear_programming((caps, flows) in system()) {
        let rates = max_min_rates(&caps, &flows);
        let oracle = by_linear_programming(&caps, &flows);
        for (x, y) in rates.iter().zip(&oracle) {
            prop_assert!((x - y).abs() <= 1e-6 * x.max(1.0), "{rates:?} {oracle:?}");
        }
    }
}

/// Max-min by repeated linear programs over the rates themselves.
fn by_linear_programming(caps: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut fixed: Vec<Option<f64>> = vec![None; flows.len()];
    while fixed.iter().any(Option::is_none) {
        let level = largest_level(caps, flows, &fixed, None);
        let mut any = false;
        for f in 0..flows.len() {
            // A flow is done when it cannot rise above the level while the others keep it.
            if fixed[f].is_none() {
                let most = largest_level(caps, flows, &fixed, Some((f, level)));
                if most <= level * (1.0 + 1e-9) + 1e-12 {
                    fixed[f] = Some(level);
                    any = true;
                }
            }
        }
        assert!(any, "an LP level without a bottleneck");
    }
    fixed.into_iter().map(|r| r.unwrap_or(0.0)).collect()
}

/// Without `single`: the largest t such that all free flows have at least t. With it: the largest
/// rate of that flow when the other free flows have the level.
fn largest_level(
    caps: &[f64],
    flows: &[Flow],
    fixed: &[Option<f64>],
    single: Option<(usize, f64)>,
) -> f64 {
    // Variables: one rate per free flow above its floor, and for the common level one more.
    // max c x subject to A x <= b, x >= 0.
    let n = flows.len();
    let free: Vec<usize> = (0..n).filter(|f| fixed[*f].is_none()).collect();
    let floor = single.map_or(0.0, |(_, level)| level);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for (l, cap) in caps.iter().enumerate() {
        let weight = |f: usize| -> f64 {
            flows[f]
                .uses
                .iter()
                .filter(|(m, _)| *m == l)
                .map(|(_, w)| w)
                .sum()
        };
        let mut row = vec![0.0; free.len() + 1];
        let mut room = *cap;
        for (f, done) in fixed.iter().enumerate() {
            match done {
                Some(rate) => room -= weight(f) * rate,
                None => room -= weight(f) * floor,
            }
        }
        for (i, f) in free.iter().enumerate() {
            match single {
                None => row[free.len()] += weight(*f),
                Some((chosen, _)) if chosen == *f => row[i] = weight(*f),
                Some(_) => {}
            }
        }
        a.push(row);
        b.push(room.max(0.0));
    }
    for (i, f) in free.iter().enumerate() {
        if flows[*f].cap.is_finite() {
            let mut row = vec![0.0; free.len() + 1];
            match single {
                None => row[free.len()] = 1.0,
                Some((chosen, _)) if chosen == *f => row[i] = 1.0,
                Some(_) => continue,
            }
            a.push(row);
            b.push((flows[*f].cap - floor).max(0.0));
        }
    }
    let mut c = vec![0.0; free.len() + 1];
    match single {
        None => c[free.len()] = 1.0,
        Some((chosen, _)) => c[free.iter().position(|f| *f == chosen).expect("free")] = 1.0,
    }
    floor + simplex(&a, &b, &c)
}

/// Largest `c x` with `a x <= b`, `x >= 0`, `b >= 0`: dense tableau, Bland's rule.
fn simplex(a: &[Vec<f64>], b: &[f64], c: &[f64]) -> f64 {
    let (m, n) = (a.len(), c.len());
    let mut t = vec![vec![0.0; n + m + 1]; m + 1];
    for i in 0..m {
        t[i][..n].copy_from_slice(&a[i]);
        t[i][n + i] = 1.0;
        t[i][n + m] = b[i];
    }
    for j in 0..n {
        t[m][j] = -c[j];
    }
    while let Some(enter) = (0..n + m).find(|j| t[m][*j] < -1e-12) {
        let leave = (0..m)
            .filter(|i| t[*i][enter] > 1e-12)
            .min_by(|x, y| {
                let ratio = |i: usize| t[i][n + m] / t[i][enter];
                ratio(*x).total_cmp(&ratio(*y))
            })
            .expect("bounded");
        let pivot = t[leave][enter];
        for v in &mut t[leave] {
            *v /= pivot;
        }
        let row = t[leave].clone();
        for (i, line) in t.iter_mut().enumerate() {
            if i != leave {
                let factor = line[enter];
                for (v, r) in line.iter_mut().zip(&row) {
                    *v -= factor * r;
                }
            }
        }
    }
    t[m][n + m]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Solving again without some flows from what is known equals solving afresh.
    #[test]
    fn going_on_without_some_flows_equals_a_fresh_solve((caps, flows) in system(), gone in 0u16..512) {
        let mut solver = pcie_sim::maxmin::Solver::new(&caps, flows.iter());
        let all: Vec<usize> = (0..flows.len()).collect();
        solver.solve(&all);
        let (out, left): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|f| gone >> f & 1 == 1);
        let Some(slowest) = out.iter().map(|f| solver.rates()[*f]).reduce(f64::min) else {
            return Ok(());
        };
        solver.solve_without(&left, slowest);
        let kept: Vec<Flow> = left.iter().map(|f| flows[*f].clone()).collect();
        for (f, fresh) in left.iter().zip(max_min_rates(&caps, &kept)) {
            let now = solver.rates()[*f];
            prop_assert!((now - fresh).abs() <= 1e-6 * fresh.max(1.0), "{now} {fresh}");
        }
    }
}
