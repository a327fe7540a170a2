//! Laws of acceptance as properties.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use spec_decode::acceptance::metrics::{Metric, conditional, cumulative};
use spec_decode::acceptance::prior::{Spread, trained_steps};
use spec_decode::{AcceptancePrior, Chain, Evidence, HeadKind, Posterior, PriorQuery};

fn chains() -> impl Strategy<Value = Chain> {
    (-4.0f64..5.0, -2.5f64..0.6).prop_map(|(level, slope)| Chain::new(level, slope))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn accept_length_lies_between_1_and_depth_plus_1(chain in chains(), depth in 0u32..300) {
        let length = chain.accept_length(depth);
        prop_assert!(length >= 1.0 && length <= f64::from(depth) + 1.0);
    }

    #[test]
    fn accept_length_rises_with_depth_and_its_gain_falls(chain in chains(), depth in 1u32..40) {
        let at = |d| chain.accept_length(d);
        prop_assert!(at(depth + 1) >= at(depth));
        prop_assert!(at(depth + 1) - at(depth) <= at(depth) - at(depth - 1) + 1e-12);
    }

    #[test]
    fn accept_length_rises_with_every_alpha(
        alphas in prop::collection::vec(0.0f64..1.0, 1..12),
        which in any::<prop::sample::Index>(),
        more in 0.0f64..1.0,
    ) {
        let length = |a: &[f64]| Metric::ConditionalAlphas(a.to_vec()).accept_length().unwrap();
        let before = length(&alphas);
        let index = which.index(alphas.len());
        let mut raised = alphas.clone();
        raised[index] += (1.0 - raised[index]) * more;
        prop_assert!(length(&raised) >= before - 1e-12);
    }

    #[test]
    fn a_chain_is_found_again_from_its_accept_length(
        chain in chains(), depth in 1u32..12,
    ) {
        let length = chain.accept_length(depth);
        let again = Chain::with_slope(length, depth, chain.slope).unwrap();
        prop_assert!((again.accept_length(depth) - length).abs() < 1e-9);
    }

    #[test]
    fn conditional_and_cumulative_rates_are_inverse(chain in chains(), depth in 1u32..10) {
        let alphas = chain.alphas(depth);
        let rates = cumulative(&alphas).unwrap();
        prop_assert!((rates[depth as usize - 1] - chain.survival(depth)).abs() < 1e-12);
        for (a, b) in conditional(&rates).unwrap().iter().zip(&alphas) {
            prop_assert!((a - b).abs() < 1e-9);
        }
        let length = Metric::VllmPositionRates(rates).accept_length().unwrap();
        prop_assert!((length - chain.accept_length(depth)).abs() < 1e-9);
    }

    #[test]
    fn conversions_round_trip(length in 1.0f64..8.0, tokens in 8u32..16) {
        let kinds = [
            Metric::SglangAcceptLen(1.0),
            Metric::SglangAcceptRateOld { rate: 0.0, draft_tokens: tokens },
            Metric::SglangAcceptRateNew { rate: 0.0, draft_tokens: tokens },
            Metric::VllmMeanAcceptanceLength(1.0),
            Metric::VllmDraftAcceptanceRate { rate: 0.0, num_speculative_tokens: tokens },
            Metric::TrtllmAcceptanceLength(1.0),
            Metric::WithoutBonus(0.0),
            Metric::LlamaCppRate { rate: 0.0, drafts_per_cycle: f64::from(tokens) },
            Metric::StreamRate { tok_s: 1.0, cycle_ms: 17.0 },
        ];
        for kind in kinds {
            let printed = kind.with_accept_length(length).unwrap();
            let back = printed.accept_length().unwrap();
            prop_assert!((back - length).abs() < 1e-9, "{printed:?} {back}");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_and_possible_ones_are_not(
        length in -3.0f64..20.0, depth in 0u32..12,
    ) {
        let possible = depth > 0 && length >= 1.0 && length <= f64::from(depth) + 1.0;
        let chain = Chain::from_accept_length(length, depth, HeadKind::Mtp);
        prop_assert_eq!(chain.is_ok(), possible);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bands_hold_their_middle_and_nest(
        length in 1.05f64..3.9, cycles in prop::option::of(20.0f64..1e6), depth in 1u32..10,
    ) {
        let prior = AcceptancePrior::new(&PriorQuery::of(HeadKind::Eagle3));
        let evidence = Evidence::AcceptLength { depth: 3, accept_length: length, cycles };
        let posterior = Posterior::new(&prior, &[evidence]).unwrap();
        let (wide, narrow) = (posterior.band(depth, 0.9), posterior.band(depth, 0.5));
        prop_assert!(1.0 <= wide.low && wide.high <= f64::from(depth) + 1.0);
        prop_assert!(wide.low <= narrow.low + 1e-9 && narrow.high <= wide.high + 1e-9);
        prop_assert!(narrow.low <= narrow.mid && narrow.mid <= narrow.high);
        let total: f64 = posterior.chains().iter().map(|(_, w)| w).sum();
        prop_assert!((total - 1.0).abs() < 1e-9);
    }

    #[test]
    fn more_cycles_never_widen_the_band(chain in chains(), few in 30u64..300) {
        let prior = AcceptancePrior::new(&PriorQuery::of(HeadKind::Mtp));
        let width = |cycles: u64| {
            let accepted = (1..=4).map(|k| (chain.survival(k) * cycles as f64) as u64).collect();
            let evidence = Evidence::PositionCounts { cycles, accepted };
            Posterior::new(&prior, &[evidence]).unwrap().band(4, 0.9).width()
        };
        prop_assert!(width(few * 100) <= width(few) * 1.02 + 1e-6);
    }
}

/// Counts of a generated log.
fn generate(chain: &Chain, depth: u32, cycles: u64, rng: &mut Pcg64Mcg) -> Vec<u64> {
    let mut accepted = vec![0; depth as usize];
    let alphas = chain.alphas(depth);
    for _ in 0..cycles {
        for (alpha, count) in alphas.iter().zip(&mut accepted) {
            if rng.random::<f64>() >= *alpha {
                break;
            }
            *count += 1;
        }
    }
    accepted
}

/// A generated log's parameters lie inside the interval at the claimed rate: level, slope and the
/// accept length at an unmeasured depth, for short and long logs. The parameters are drawn from
/// the prior, so 90 % is exact for a Bayesian interval; 400 logs put 2.6 % on three sigma of 4 %.
#[test]
fn fitting_a_generated_log_recovers_its_parameters_at_the_claimed_rate() {
    let prior = AcceptancePrior {
        level: Spread { mean: 0.9, sd: 0.6 },
        slope: Spread {
            mean: -0.5,
            sd: 0.2,
        },
        sources: Vec::new(),
    };
    let mut rng = Pcg64Mcg::seed_from_u64(20);
    let mut normal = || {
        let (u, v): (f64, f64) = (rng.random(), rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    };
    let parameters: Vec<Chain> = (0..400)
        .map(|_| Chain::new(0.9 + 0.6 * normal(), -0.5 + 0.2 * normal()))
        .collect();
    let mut mean_widths = Vec::new();
    for cycles in [50, 1000] {
        let mut inside = [0u32; 3];
        let mut widths = 0.0;
        for chain in &parameters {
            let accepted = generate(chain, 3, cycles, &mut rng);
            let evidence = Evidence::PositionCounts { cycles, accepted };
            let posterior = Posterior::new(&prior, &[evidence]).unwrap();
            let within =
                |(low, high): (f64, f64), value: f64| u32::from(low <= value && value <= high);
            inside[0] += within(posterior.level_interval(0.9), chain.level);
            inside[1] += within(posterior.slope_interval(0.9), chain.slope);
            let band = posterior.band(6, 0.9);
            inside[2] += within((band.low, band.high), chain.accept_length(6));
            widths += band.width() / parameters.len() as f64;
        }
        for (what, hits) in ["level", "slope", "accept length at depth 6"]
            .iter()
            .zip(inside)
        {
            let rate = f64::from(hits) / parameters.len() as f64;
            assert!((rate - 0.9).abs() < 0.045, "{cycles} cycles: {what} {rate}");
        }
        mean_widths.push(widths);
    }
    // 1000 cycles must say much more than 50.
    assert!(mean_widths[1] < 0.5 * mean_widths[0], "{mean_widths:?}");
}

#[test]
fn two_depths_free_the_slope() {
    // DeepSeek-V4 MTP saturates (2.73 at 3, 2.825 at 5): where nothing says that its head was
    // trained for one position, the usual slope misses it.
    let prior = AcceptancePrior::new(&PriorQuery::of(HeadKind::Mtp));
    let at = |depth, accept_length| Evidence::AcceptLength {
        depth,
        accept_length,
        cycles: None,
    };
    let one = Posterior::new(&prior, &[at(3, 2.73)]).unwrap();
    let two = Posterior::new(&prior, &[at(3, 2.73), at(5, 2.825)]).unwrap();
    let miss = |p: &Posterior| (p.chain().accept_length(8) - 2.845).abs();
    assert!(miss(&one) > 0.3, "{}", miss(&one));
    assert!(miss(&two) < 0.12, "{}", miss(&two));
    assert!(two.band(8, 0.9).width() < 0.6 * one.band(8, 0.9).width());
    let mut query = PriorQuery::of(HeadKind::Mtp);
    query.trained_steps = trained_steps(HeadKind::Mtp, "DeepSeek-V4-Pro");
    let trained_once = AcceptancePrior::new(&query);
    let one = Posterior::new(&trained_once, &[at(3, 2.73)]).unwrap();
    assert!(miss(&one) < 0.12, "{}", miss(&one));
}

#[test]
fn easy_contexts_survive_and_hold_the_fall_up() {
    // The same first position and fall: where contexts differ, what survives is easier.
    let alike = Chain {
        spread: 0.0,
        ..Chain::new(0.0, -0.3)
    };
    let mixed = Chain::with_slope(alike.accept_length(1), 1, -0.3).unwrap();
    assert!((mixed.alpha(1) - alike.alpha(1)).abs() < 1e-9);
    for position in 2..9 {
        assert!(mixed.alpha(position) > alike.alpha(position) + 0.01);
    }
    // Without a fall the textbook's constant acceptance comes back.
    let constant = Chain::constant(0.7).unwrap();
    assert!((constant.alpha(9) - 0.7).abs() < 1e-12);
    assert!(Chain::new(0.8, 0.0).alpha(9) > Chain::new(0.8, 0.0).alpha(1));
}

#[test]
fn counts_near_the_largest_number_are_answered() {
    // Their sum once overflowed.
    let prior = AcceptancePrior::new(&PriorQuery::of(HeadKind::Eagle3));
    let counts = Evidence::PositionCounts {
        cycles: u64::MAX,
        accepted: vec![u64::MAX / 5 * 4, u64::MAX / 5 * 3],
    };
    let band = Posterior::new(&prior, &[counts]).unwrap().band(2, 0.9);
    assert!((band.mid - 2.4).abs() < 0.05, "{band:?}");
}

#[test]
fn the_constant_alpha_form_over_promises_deep_drafts() {
    // Llama-4-Maverick, GSM8K: 3.08 at depth 3, 4.02 at depth 7.
    let measured = 4.02;
    let constant = Chain::constant_from(3.08, 3).unwrap().accept_length(7);
    let ours = Chain::from_accept_length(3.08, 3, HeadKind::Eagle3)
        .unwrap()
        .accept_length(7);
    assert!(constant - measured > 0.5, "{constant}");
    assert!((ours - measured).abs() < 0.3, "{ours}");
}

#[test]
fn a_measurement_far_from_every_sound_pair_wins_over_the_prior() {
    // 1.04 at depth 4 once pulled to 1.11, with 1.04 outside its own band.
    let prior = AcceptancePrior::new(&PriorQuery::of(HeadKind::Eagle3));
    let posterior = Posterior::from_accept_length(&prior, 1.04, 4).unwrap();
    let band = posterior.band(4, 0.9);
    assert!(
        band.low <= 1.04 && 1.04 <= band.high && band.high < 1.07,
        "{band:?}"
    );
}
