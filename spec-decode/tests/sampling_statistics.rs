//! The sampler itself (not its algebra) keeps the target's distribution: chi-square over
//! thousands of random pairs, with the chance of a false alarm controlled over all of them.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use spec_decode::sampling::{
    Rule, SampledNode, expected_acceptance, sample, verify_chain, verify_tree, without,
};

const SEED: u64 = 5;

/// A random distribution, some entries zero, some tiny.
fn random_distribution(tokens: usize, rng: &mut Pcg64Mcg) -> Vec<f64> {
    let mut weights: Vec<f64> = (0..tokens)
        .map(|_| {
            let u: f64 = rng.random();
            if u < 0.15 { 0.0 } else { u.powi(3) }
        })
        .collect();
    weights[0] += 1e-3;
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// P(chi-square with `freedom` degrees exceeds `x`): regularised upper gamma by series and
/// continued fraction.
fn chi_square_tail(x: f64, freedom: f64) -> f64 {
    let (a, x) = (freedom / 2.0, x / 2.0);
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut total, mut n) = (1.0 / a, 1.0 / a, a);
        for _ in 0..500 {
            n += 1.0;
            term *= x / n;
            total += term;
        }
        1.0 - front * total
    } else {
        let mut b = x + 1.0 - a;
        let (mut c, mut d) = (1e300, 1.0 / b);
        let mut h = d;
        for i in 1..500 {
            let an = -f64::from(i) * (f64::from(i) - a);
            b += 2.0;
            d = 1.0 / (an * d + b);
            c = b + an / c;
            h *= d * c;
        }
        front * h
    }
}

fn ln_gamma(x: f64) -> f64 {
    // Stirling after shifting up: more than enough digits for a test.
    let mut x = x;
    let mut shift = 0.0;
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * (std::f64::consts::TAU).ln() + inverse / 12.0
        - inverse.powi(3) / 360.0
}

/// p-value of observed counts against a distribution, rare cells pooled; `None` with one cell.
/// The likelihood-ratio form of chi-square with Williams' correction: Pearson's has too heavy a
/// tail where 8 are expected (24 of them once gave 1e-7 where the exact tail is 5e-6).
fn p_value(counts: &[u32], distribution: &[f64]) -> Option<f64> {
    let draws: f64 = counts.iter().map(|&c| f64::from(c)).sum();
    let (mut pooled, mut pooled_expected) = (0.0, 0.0);
    let mut cells = Vec::new();
    for (&count, &p) in counts.iter().zip(distribution) {
        if p == 0.0 {
            assert_eq!(count, 0, "a token that the target never makes");
        } else if p * draws < 8.0 {
            pooled += f64::from(count);
            pooled_expected += p * draws;
        } else {
            cells.push((f64::from(count), p * draws));
        }
    }
    if pooled_expected >= 8.0 {
        cells.push((pooled, pooled_expected));
    } else if let Some(last) = cells.last_mut() {
        *last = (last.0 + pooled, last.1 + pooled_expected);
    }
    if cells.len() < 2 {
        return None;
    }
    let term = |o: f64, e: f64| if o > 0.0 { o * (o / e).ln() } else { 0.0 };
    let ratio: f64 = 2.0 * cells.iter().map(|(o, e)| term(*o, *e)).sum::<f64>();
    let freedom = cells.len() as f64 - 1.0;
    let inverse: f64 = cells.iter().map(|(_, e)| 1.0 / e).sum();
    let williams = 1.0 + (inverse - 1.0 / draws) / (6.0 * freedom);
    Some(chi_square_tail(ratio / williams, freedom))
}

/// With every null true, the smallest of n p-values is below 0.001 / n once in 1000 such tests
/// (Bonferroni), and p-values are uniform: their distribution function strays by more than
/// 1.95 / sqrt(n) once in 1000 (Kolmogorov).
fn assert_null(mut p_values: Vec<f64>) {
    let n = p_values.len() as f64;
    p_values.sort_by(f64::total_cmp);
    assert!(p_values[0] > 0.001 / n, "smallest of {n}: {}", p_values[0]);
    let stray = (0..p_values.len())
        .map(|i| ((i as f64 + 0.5) / n - p_values[i]).abs())
        .fold(0.0, f64::max);
    assert!(
        stray < 1.95 / n.sqrt(),
        "p-values are not uniform: {stray} over {n}"
    );
}

#[test]
fn the_chi_square_tail_is_right() {
    for (x, freedom, expected) in [
        (3.841, 1.0, 0.05),
        (18.307, 10.0, 0.05),
        (2.558, 10.0, 0.99),
    ] {
        assert!((chi_square_tail(x, freedom) - expected).abs() < 1e-4);
    }
}

/// First token of a verified chain over random pairs.
#[test]
fn chains_keep_the_targets_distribution() {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    for rule in [Rule::FullRejection, Rule::TargetOnly] {
        let mut p_values = Vec::new();
        for _ in 0..1200 {
            let tokens = rng.random_range(2..7);
            let target = vec![random_distribution(tokens, &mut rng); 2];
            let draft = vec![random_distribution(tokens, &mut rng)];
            let mut counts = vec![0u32; tokens];
            for _ in 0..400 {
                let drafted = [sample(&draft[0], &mut rng)];
                let verified = verify_chain(rule, &target, &draft, &drafted, &mut rng);
                counts[verified.tokens[0]] += 1;
            }
            p_values.extend(p_value(&counts, &target[0]));
        }
        assert!(p_values.len() > 1000);
        assert_null(p_values);
    }
}

/// First and second token of verified trees: two children under the root, two under the first.
#[test]
fn trees_keep_the_targets_distribution() {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED + 1);
    for rule in [Rule::FullRejection, Rule::TargetOnly] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..900 {
            let tokens = rng.random_range(3..6);
            let mut pair = || {
                (
                    random_distribution(tokens, &mut rng),
                    random_distribution(tokens, &mut rng),
                )
            };
            let (root, after) = (pair(), pair());
            let mut counts = vec![0u32; tokens];
            let mut counts_after = vec![0u32; tokens];
            for _ in 0..350 {
                let tree = draw_tree(&root, &after, &mut rng);
                let verified = verify_tree(rule, &tree, &mut rng);
                counts[verified.tokens[0]] += 1;
                if let Some(&token) = verified.tokens.get(1) {
                    counts_after[token] += 1;
                }
            }
            first.extend(p_value(&counts, &root.0));
            second.extend(p_value(&counts_after, &after.0));
        }
        assert!(first.len() > 700 && second.len() > 400);
        assert_null(first);
        assert_null(second);
    }
}

/// Draws a tree without replacement: every node's next token has the same distributions `after`.
fn draw_tree(
    root: &(Vec<f64>, Vec<f64>),
    after: &(Vec<f64>, Vec<f64>),
    rng: &mut Pcg64Mcg,
) -> SampledNode {
    let leaf = |children| SampledNode {
        target: after.0.clone(),
        draft: after.1.clone(),
        children,
    };
    let mut draw_two = |draft: &[f64]| {
        let one = sample(draft, rng);
        let rest = without(draft, one);
        let two = (rest.iter().sum::<f64>() > 0.5).then(|| sample(&rest, rng));
        std::iter::once(one).chain(two).collect::<Vec<_>>()
    };
    let mut children = Vec::new();
    for token in draw_two(&root.1) {
        let below = draw_two(&after.1)
            .into_iter()
            .map(|t| (t, leaf(Vec::new())));
        children.push((token, leaf(below.collect())));
    }
    SampledNode {
        target: root.0.clone(),
        draft: root.1.clone(),
        children,
    }
}

#[test]
fn the_pair_that_once_looked_biased_is_not() {
    // 23 of 350 first tokens were token 2, where 7.8 were expected.
    let target = vec![
        0.000_543_8,
        0.319_606_1,
        0.022_384_5,
        0.476_193,
        0.181_272_6,
    ];
    let draft = vec![0.381_930_6, 0.0, 0.042_883_7, 0.165_641_2, 0.409_544_5];
    let mut rng = Pcg64Mcg::seed_from_u64(SEED + 4);
    let pair = (target.clone(), draft);
    let mut counts = vec![0u32; 5];
    for _ in 0..40_000 {
        let tree = draw_tree(&pair, &pair, &mut rng);
        counts[verify_tree(Rule::FullRejection, &tree, &mut rng).tokens[0]] += 1;
    }
    assert!(
        p_value(&counts, &target).is_some_and(|p| p > 1e-3),
        "{counts:?}"
    );
}

#[test]
fn a_sampler_that_accepts_too_often_is_caught() {
    // The test can fail: accept with min(1, 1.1 p / q) by tilting the draft that is reported.
    let mut rng = Pcg64Mcg::seed_from_u64(SEED + 2);
    let mut p_values = Vec::new();
    for _ in 0..1000 {
        let target = vec![random_distribution(4, &mut rng); 2];
        let honest = random_distribution(4, &mut rng);
        let reported = vec![honest.iter().map(|q| q / 1.1).collect::<Vec<f64>>()];
        let mut counts = vec![0u32; 4];
        for _ in 0..600 {
            let drafted = [sample(&honest, &mut rng)];
            let verified =
                verify_chain(Rule::FullRejection, &target, &reported, &drafted, &mut rng);
            counts[verified.tokens[0]] += 1;
        }
        p_values.extend(p_value_lenient(&counts, &target[0]));
    }
    assert!(std::panic::catch_unwind(|| assert_null(p_values)).is_err());
}

/// [`p_value`] where tokens of probability zero may appear.
fn p_value_lenient(counts: &[u32], distribution: &[f64]) -> Option<f64> {
    let (kept, p): (Vec<u32>, Vec<f64>) = counts
        .iter()
        .zip(distribution)
        .filter(|(_, p)| **p > 0.0)
        .map(|(c, p)| (*c, *p))
        .unzip();
    p_value(&kept, &p)
}

#[test]
fn acceptance_is_one_minus_total_variation_and_full_rejection_accepts_most() {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED + 3);
    for _ in 0..40 {
        let target = vec![random_distribution(5, &mut rng); 2];
        let draft = vec![random_distribution(5, &mut rng)];
        let mut accepted = [0.0; 2];
        let draws = 6000;
        for _ in 0..draws {
            let drafted = [sample(&draft[0], &mut rng)];
            for (slot, rule) in accepted
                .iter_mut()
                .zip([Rule::FullRejection, Rule::TargetOnly])
            {
                let verified = verify_chain(rule, &target, &draft, &drafted, &mut rng);
                *slot += (verified.tokens.len() - 1) as f64 / f64::from(draws);
            }
        }
        let exact = expected_acceptance(&target[0], &draft[0]);
        let error = (exact * (1.0 - exact) / f64::from(draws)).sqrt().max(1e-3);
        assert!(
            (accepted[0] - exact).abs() < 4.5 * error,
            "{accepted:?} {exact}"
        );
        assert!(accepted[1] <= accepted[0] + 6.0 * error);
    }
}
