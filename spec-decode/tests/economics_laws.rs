//! Laws of "does it pay" as properties, and the published break-evens they must give back.

use proptest::prelude::*;
use spec_decode::economics::chance::normal_cdf;
use spec_decode::economics::depth::TIE_SHARE;
use spec_decode::economics::{
    CostFns, DepthOption, DepthTable, Economy, LoadShare, OperatingPoint, StepCost, choose_depth,
    flips, goodput, pay_range, probability_pays, speedup_band,
};
use spec_decode::{AcceptancePrior, Chain, HeadKind, Posterior, PriorQuery};

/// A family of rising costs: floor, per-token part, KV read once, a draft step.
fn cost(floor: f64, per_token: f64, kv: f64, draft: f64) -> impl StepCost {
    CostFns {
        forward: move |c: f64, tokens: u32, context: f64| {
            floor + per_token * (c * f64::from(tokens)).powf(0.8) + kv * c * context
        },
        draft: move |_: f64, depth: u32, _: f64| draft * f64::from(depth),
    }
}

fn at(concurrency: f64, context: f64) -> OperatingPoint {
    OperatingPoint {
        concurrency,
        context,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn speedup_never_exceeds_the_accept_length(
        plain in 1e-6f64..1e6, cycle in 0.0f64..1e6, accept_length in 1.0f64..9.0,
    ) {
        let speedup = Economy::new(plain, cycle).speedup(accept_length);
        prop_assert!(speedup <= accept_length * (1.0 + 1e-12));
    }

    #[test]
    fn the_best_depth_is_the_best_and_its_ties_are_close(
        floor in 1.0f64..30.0, per_token in 0.01f64..2.0, draft in 0.0f64..3.0,
        level in -1.0f64..3.0, concurrency in 1.0f64..200.0,
    ) {
        let cost = cost(floor, per_token, 1e-6, draft);
        let chain = Chain::new(level, -0.47);
        let lengths: Vec<f64> = (1..=8).map(|d| chain.accept_length(d)).collect();
        let choice = choose_depth(&cost, at(concurrency, 1000.0), &lengths);
        prop_assert!(choice.best.speedup >= 1.0);
        for (depth, length) in (1u32..).zip(&lengths) {
            let speedup = Economy::of_chain(&cost, at(concurrency, 1000.0), depth).speedup(*length);
            prop_assert!(speedup <= choice.best.speedup + 1e-12);
            let close = speedup >= choice.best.speedup * (1.0 - TIE_SHARE);
            prop_assert_eq!(choice.ties.contains(&depth), close && depth != choice.best.depth);
        }
    }

    #[test]
    fn at_the_break_even_accept_length_the_speedup_is_1(
        plain in 1.0f64..50.0, more in 1.0f64..5.0,
    ) {
        let economy = Economy::new(plain, plain * more);
        let speedup = economy.speedup(economy.break_even_accept_length());
        prop_assert!((speedup - 1.0).abs() < 1e-12);
    }

    #[test]
    fn every_flip_flips(
        floor in 1.0f64..30.0, per_token in 0.05f64..2.0, draft in 0.1f64..3.0,
        accept_length in 1.2f64..3.8, concurrency in 1.0f64..100.0,
    ) {
        let point = at(concurrency, 4096.0);
        let base = cost(floor, per_token, 2e-6, draft);
        let pays = |e: Economy, length: f64| e.speedup(length);
        for flip in flips(&base, point, 3, accept_length) {
            let economy = Economy::of_chain(&base, point, 3);
            let (plain, verify) = (base.plain_ms(point), base.verify_ms(point, 4));
            let drafts = base.draft_ms(point, 3);
            let speedup = match flip.input {
                "accept_length" => pays(economy, flip.to),
                "verify_ms" => accept_length * plain / (flip.to + drafts),
                "draft_ms" => accept_length * plain / (verify + flip.to),
                "plain_ms" => accept_length * flip.to / (verify + drafts),
                "concurrency" => pays(Economy::of_chain(&base, at(flip.to, 4096.0), 3), accept_length),
                "context" => pays(Economy::of_chain(&base, at(concurrency, flip.to), 3), accept_length),
                other => return Err(TestCaseError::fail(other.to_string())),
            };
            prop_assert!((speedup - 1.0).abs() < 2e-3, "{flip:?} {speedup}");
        }
    }

    #[test]
    fn a_schedule_is_never_worse_than_one_depth_nor_one_depth_than_off(
        floor in 1.0f64..30.0, per_token in 0.05f64..2.0, draft in 0.1f64..3.0, level in -1.0f64..2.5,
    ) {
        let cost = cost(floor, per_token, 1e-6, draft);
        let chain = Chain::new(level, -0.47);
        let lengths: Vec<f64> = (1..=6).map(|d| chain.accept_length(d)).collect();
        let load = [1.0, 4.0, 16.0, 64.0].map(|concurrency| LoadShare { concurrency, share: 0.25 });
        let g = goodput(&cost, 2000.0, &lengths, &load).unwrap();
        prop_assert!(g.scheduled_tok_s >= g.fixed_tok_s * (1.0 - 1e-12));
        prop_assert!(g.fixed_tok_s >= g.plain_tok_s);
    }

    #[test]
    fn it_pays_inside_the_ranges_and_not_outside(
        floor in 1.0f64..30.0, per_token in 0.05f64..2.0, draft in 0.1f64..2.0,
        accept_length in 1.1f64..3.8,
    ) {
        let cost = cost(floor, per_token, 1e-6, draft);
        let range = pay_range(&cost, 4096.0, 3, accept_length, 256.0);
        prop_assert!(range.intervals.windows(2).all(|w| w[0].1 < w[1].0));
        for load in 1..=256 {
            let c = f64::from(load);
            let speedup = Economy::of_chain(&cost, at(c, 4096.0), 3).speedup(accept_length);
            // Crossings are found to a thousandth of the load.
            let near = |end: f64| (c / end - 1.0).abs() < 2e-3;
            if !range.intervals.iter().any(|&(from, to)| near(from) || near(to)) {
                let inside = range.intervals.iter().any(|&(from, to)| from < c && c < to);
                prop_assert_eq!(inside, speedup > 1.0, "{} {}", load, speedup);
            }
        }
    }

    #[test]
    fn depth_ranges_cover_every_load_once_and_stay_within_a_tie(
        floor in 1.0f64..30.0, per_token in 0.05f64..2.0, draft in 0.1f64..2.0, level in -0.5f64..2.5,
    ) {
        let cost = cost(floor, per_token, 1e-6, draft);
        let chain = Chain::new(level, -0.47);
        let lengths: Vec<f64> = (1..=7).map(|d| chain.accept_length(d)).collect();
        let loads = [1, 2, 4, 8, 16, 32, 64, 128];
        let table = DepthTable::new(&cost, &lengths, &loads, &[0, 32_768]);
        for context in [0u32, 32_768] {
            let ranges: Vec<_> = table.ranges().into_iter().filter(|r| r.context_to == context).collect();
            prop_assert_eq!(ranges[0].concurrency_from, 1);
            prop_assert_eq!(ranges[ranges.len() - 1].concurrency_to, 128);
            prop_assert!(ranges.windows(2).all(|w| w[0].concurrency_to + 1 == w[1].concurrency_from));
            for load in loads {
                let range = ranges.iter().find(|r| (r.concurrency_from..=r.concurrency_to).contains(&load)).unwrap();
                let point = at(f64::from(load), f64::from(context));
                let best = choose_depth(&cost, point, &lengths).best.speedup;
                let chosen = match range.steps {
                    0 => 1.0,
                    k => Economy::of_chain(&cost, point, k).speedup(lengths[k as usize - 1]),
                };
                prop_assert!(chosen >= best * (1.0 - TIE_SHARE) - 1e-12 && chosen >= 1.0);
            }
        }
    }
}

/// Speedups by depth 1, 2, 3 at a load: the best depth falls from 3 to 1, and 2 is never far off.
fn flat(load: u32, _context: u32) -> Vec<DepthOption> {
    let tilt = f64::from(load).log2() / 7.0;
    let option = |depth: u32, speedup: f64| DepthOption {
        depth,
        accept_length: 4.0,
        break_even_accept_length: 1.0,
        speedup,
    };
    vec![
        option(1, 1.80 + 0.2 * tilt),
        option(2, 1.94),
        option(3, 2.0 - 0.2 * tilt),
    ]
}

#[test]
fn one_depth_serves_all_loads_where_one_is_within_a_tie_of_every_best() {
    let loads = [1, 2, 4, 8, 16, 32, 64, 128];
    let table = DepthTable::of(flat, |_, _, _| true, &loads, &[4096]);
    assert_eq!(table.choices[0][0].best.depth, 3);
    assert_eq!(table.choices[0][7].best.depth, 1);
    assert_eq!(table.vllm_schedule(4096), "[[1, 128, 2]]");
    // The first load's own best is taken where it serves.
    let few = DepthTable::of(flat, |_, _, _| true, &[1, 2, 4], &[4096]);
    assert_eq!(few.vllm_schedule(4096), "[[1, 4, 3]]");
}

#[test]
fn depths_are_switched_where_the_next_becomes_faster_not_at_the_next_load_asked_for() {
    let without_two = |load: u32, context: u32| {
        let mut options = flat(load, context);
        options.remove(1);
        options
    };
    let table = DepthTable::of(without_two, |_, _, _| true, &[1, 128], &[4096]);
    // Both make 1.9 at a tilt of a half: 11.3 users.
    assert_eq!(table.vllm_schedule(4096), "[[1, 11, 3], [12, 128, 1]]");
    let strict = DepthTable::of(
        flat,
        |load, _, depth| load < 64 || depth == 1,
        &[1, 64],
        &[0],
    );
    assert_eq!(strict.ranges().len(), 2, "what does not serve is not kept");
}

/// 8 depths x 32 concurrencies x 8 contexts. The best of many runs, because others share the
/// machine; ten times the room where nothing is optimised.
#[test]
fn the_whole_optimisation_takes_under_a_millisecond() {
    let cost = cost(8.0, 0.35, 1e-6, 0.8);
    let optimise = || {
        let started = std::time::Instant::now();
        let chain = Chain::from_accept_length(2.4, 3, HeadKind::Eagle3).unwrap();
        let lengths = chain.accept_lengths(8);
        let contexts = (0..8).map(|i| f64::from(i) * 16_384.0);
        let points = contexts.flat_map(|context| (1..=32).map(move |c| at(f64::from(c), context)));
        let depths: u32 = points
            .map(|point| choose_depth(&cost, point, &lengths).best.depth)
            .sum();
        assert!(depths > 0);
        started.elapsed().as_secs_f64()
    };
    let best = (0..60).map(|_| optimise()).fold(f64::INFINITY, f64::min);
    let limit = if cfg!(debug_assertions) { 1e-2 } else { 1e-3 };
    assert!(best < limit, "{best} s");
}

#[test]
fn a_non_monotone_cost_gives_two_paying_ranges() {
    // Experts: dear at a few users (each drafted token loads new ones), fine at medium load,
    // compute bound at the end.
    let experts = CostFns {
        forward: |c: f64, tokens: u32, _: f64| {
            let touched = |n: f64| 384.0 * (1.0 - (1.0 - 8.0f64 / 384.0).powf(n));
            let n = c * f64::from(tokens);
            3.0 + 0.15 * touched(n) + 0.02 * (n - 150.0).max(0.0)
        },
        draft: |_: f64, depth: u32, _: f64| 0.3 * f64::from(depth),
    };
    let range = pay_range(&experts, 0.0, 3, 2.05, 512.0);
    assert_eq!(range.intervals.len(), 2, "{range:?}");
    assert!(range.up_to().is_some_and(|c| c > 100.0));
}

/// Kimi-K2.6 INT4 on 8 RTX PRO 6000: plain 92, 151, 240, 351, 636, 958, 1497, 2223 tok/s at 1 to
/// 128 users; speculation with accept length 2.19 measured 122, 177, 338, 493, 754, 1129, 1675,
/// 2246. Break-even 1.68 for one user, and it still pays at 64.
#[test]
fn a_published_sweep_gives_its_break_even_back() {
    let plain = [92.4, 151.0, 240.0, 351.0, 636.0, 958.0, 1497.0, 2223.0];
    let step = move |tokens: f64| {
        let log = tokens.max(1.0).log2().min(7.0);
        let (below, share) = (log.floor().min(6.0) as usize, log - log.floor().min(6.0));
        let ms = |i: usize| 1000.0 * f64::powi(2.0, i as i32) / plain[i];
        (ms(below).ln() * (1.0 - share) + ms(below + 1).ln() * share).exp()
    };
    let cost = CostFns {
        forward: move |c: f64, tokens: u32, _: f64| step(c * f64::from(tokens)),
        draft: |_: f64, depth: u32, _: f64| 0.9 * f64::from(depth),
    };
    let one = Economy::of_chain(&cost, at(1.0, 0.0), 3).break_even_accept_length();
    assert!((one / 1.68 - 1.0).abs() < 0.1, "{one}");
    let speedup = Economy::of_chain(&cost, at(8.0, 0.0), 3).speedup(2.19);
    assert!((speedup / (493.0 / 351.0) - 1.0).abs() < 0.12, "{speedup}");
}

#[test]
fn engines_take_the_table_in_their_own_forms() {
    let cost = cost(8.0, 0.35, 0.0, 0.8);
    let chain = Chain::from_accept_length(2.4, 3, HeadKind::Eagle3).unwrap();
    let lengths: Vec<f64> = (1..=6).map(|d| chain.accept_length(d)).collect();
    let table = DepthTable::new(&cost, &lengths, &[1, 2, 4, 8, 16, 32, 64, 128], &[8192]);
    let schedule: Vec<[u32; 3]> = serde_json::from_str(&table.vllm_schedule(8192)).unwrap();
    assert_eq!(schedule[0][0], 1);
    assert!(
        schedule
            .windows(2)
            .all(|w| w[0][1] + 1 == w[1][0] && w[0][2] > w[1][2])
    );
    let adaptive: serde_json::Value = serde_json::from_str(&table.sglang_adaptive(8192)).unwrap();
    let first = &adaptive["1"]["candidate_steps"];
    assert!(
        first
            .as_array()
            .is_some_and(|steps| steps.contains(&schedule[0][2].into()))
    );
    assert_eq!(adaptive.as_object().map(|o| o.len()), Some(schedule.len()));
}

#[test]
fn the_chance_that_it_pays_follows_the_posterior_and_the_scatter_of_the_cost() {
    let prior = AcceptancePrior::new(&PriorQuery::of(HeadKind::Eagle3));
    let posterior = Posterior::from_accept_length(&prior, 2.3, 3).unwrap();
    let chance = |break_even: f64, log_sd: f64| probability_pays(&posterior, 3, break_even, log_sd);
    assert!(chance(1.7, 0.07) > 0.99);
    assert!(chance(2.9, 0.07) < 0.01);
    assert!((chance(2.3, 0.07) - 0.5).abs() < 0.05);
    // Agreement with the plain count where the cost is certain.
    let exact = posterior.probability_above(3, 2.25);
    assert!((chance(2.25, 0.0) - exact).abs() < 1e-9);
    let (low, mid, high) = speedup_band(&posterior, 3, 1.7, 0.07, 0.9);
    assert!(low < mid && mid < high && (mid - 2.3 / 1.7).abs() < 0.02);
    let inside = |s: f64| probability_pays(&posterior, 3, 1.7 * s, 0.07);
    assert!((inside(low) - inside(high) - 0.9).abs() < 0.005);
    for (z, p) in [(0.0, 0.5), (1.0, 0.841_345), (-1.96, 0.024_998)] {
        assert!((normal_cdf(z) - p).abs() < 1e-6);
    }
}

#[test]
fn above_a_load_where_it_is_off_it_is_not_switched_on_again() {
    let dip = |load: u32, _: u32| {
        let speedup = if (9..=16).contains(&load) { 0.7 } else { 1.3 };
        vec![DepthOption {
            depth: 2,
            accept_length: 2.4,
            break_even_accept_length: 2.4 / speedup,
            speedup,
        }]
    };
    let table = DepthTable::of(dip, |_, _, _| true, &[1, 8, 16, 32], &[4096]);
    assert_eq!(table.vllm_schedule(4096), "[[1, 8, 2], [9, 32, 0]]");
}
