//! The law on real sweeps, its properties, and the errors of others that it must not make.

use proptest::prelude::*;

use super::*;

/// Kimi-K2.6 INT4, 8x RTX PRO 6000, vLLM, DCP 1, empty context: concurrency, plain tok/s, tok/s
/// with EAGLE-3 at 3 steps. Source: local-inference-lab/rtx6kpro, kimi-k26-v1.
const KIMI: [(f64, f64, f64); 8] = [
    (1.0, 91.5, 112.5),
    (2.0, 151.3, 176.0),
    (4.0, 242.6, 261.4),
    (8.0, 350.0, 454.5),
    (16.0, 492.7, 729.7),
    (32.0, 858.8, 1104.0),
    (64.0, 1398.0, 1602.2),
    (128.0, 2164.7, 2044.3),
];

fn kimi() -> Sweep {
    let plain: Vec<(f64, f64)> = KIMI.iter().map(|&(c, p, _)| (c, p)).collect();
    sweep(&plain)
}

fn sweep(points: &[(f64, f64)]) -> Sweep {
    Sweep::from_tok_s(points, GraphLadder::VllmDefault, Growth::EXPERTS)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn chain3(concurrency: f64) -> Speculation {
    Speculation {
        concurrency,
        verified_tokens: 4.0,
        draft_steps: 3.0,
    }
}

#[test]
fn kimi_on_pcie_is_predicted_from_its_plain_sweep_and_accept_length() {
    // Accept length 2.25: median of the box's runs 2.19 to 2.27.
    for (c, plain, spec) in KIMI.iter().take(6) {
        let law = cycle(&kimi(), DraftStep::PCIE, &chain3(*c));
        let error = (law.speedup(2.25) / (spec / plain)).ln();
        assert!(!law.extrapolated);
        assert!(error.abs() < 0.1, "concurrency {c}: error {error:.3}");
    }
    let beyond = cycle(&kimi(), DraftStep::PCIE, &chain3(128.0));
    assert!(beyond.extrapolated && (beyond.beyond - 4.0_f64.ln()).abs() < 1e-9);
    let error = (beyond.speedup(2.25) / (2044.3 / 2164.7)).ln();
    assert!(error.abs() < 0.15, "beyond the sweep: error {error:.3}");
}

#[test]
fn a_cliff_of_the_plain_sweep_at_32_tokens_shows_in_the_verify_of_8_users() {
    // GLM-5.1 NVFP4, DCP 1: plain falls from 429 to 318 tok/s at 32; with 4 verified tokens the
    // speculative run falls at 8 users, from 247 to 201 tok/s.
    let glm = sweep(&[
        (1.0, 59.0),
        (2.0, 92.4),
        (4.0, 164.2),
        (8.0, 251.4),
        (16.0, 428.7),
        (32.0, 317.8),
    ]);
    let pays = cycle(&glm, DraftStep::PCIE, &chain3(4.0)).speedup(2.6);
    let loses = cycle(&glm, DraftStep::PCIE, &chain3(8.0)).speedup(2.6);
    assert!(pays > 1.4 && loses < 0.9, "{pays} {loses}");
}

#[test]
fn peer_error_a_speedup_above_the_accept_length_is_impossible() {
    // AIConfigurator, Llama-3.1-70B-FP8 TP2 on B200: 15.34 ms plain, 4.14 ms per token with 2.8
    // tokens a step: 3.7x. Its table has one token slower than four; ours is made monotone.
    let peer = Sweep::from_step_ms(
        &[(1.0, 15.34), (4.0, 11.6), (8.0, 10.94)],
        GraphLadder::Exact,
        Growth::DENSE,
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let law = cycle(
        &peer,
        DraftStep {
            fixed_ms: 0.0,
            share_of_plain: 0.0,
        },
        &chain3(1.0),
    );
    // The peer divides its slow plain step by its fast verify; made monotone, neither is.
    assert!(law.speedup(2.8) <= 2.8 && law.verify_ms >= sweep_of_peer_is_monotone(&peer));
}

/// The step over one token, after making sure that four tokens cost no less.
fn sweep_of_peer_is_monotone(peer: &Sweep) -> f64 {
    let (one, four) = (peer.step_ms(1.0).step_ms, peer.step_ms(4.0).step_ms);
    assert!(one <= four, "{one} {four}");
    one
}

#[test]
fn peer_error_verify_attention_is_not_billed_once_per_drafted_token_at_64k() {
    // AIConfigurator, MiniMax-M2.7 NVFP4 TP8 on RTX PRO 6000, 8 users at 64k: plain step 16.38 ms
    // of which attention 4.63; it bills 23.77 for a verify of 4 and sees no gain.
    let core = [(1.0, 9.0), (8.0, 11.75), (32.0, 16.0)];
    let plain: Vec<(f64, f64)> = core.map(|(c, ms)| (c, ms + c * 4.63 / 8.0)).to_vec();
    let law_with = |verify_multiplier| {
        let kv = KvReading {
            ms_per_sequence: 4.63 / 8.0,
            verify_multiplier,
        };
        let sweep = Sweep::from_step_ms(&plain, GraphLadder::Exact, Growth::EXPERTS)
            .unwrap_or_else(|e| panic!("{e}"))
            .with_kv(kv);
        cycle(&sweep, DraftStep::PCIE, &chain3(8.0))
    };
    let (once, each) = (law_with(1.0), law_with(4.0));
    assert!(once.speedup(2.8) > 1.7, "{}", once.speedup(2.8));
    assert!((each.verify_ms - once.verify_ms - 3.0 * 4.63).abs() < 1e-6);
    assert!(each.speedup(2.8) < 0.75 * once.speedup(2.8));
}

#[test]
fn slow_kernels_and_verifies_outside_graphs_are_told_from_figures() {
    let plain: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
        .map(|c: f64| (c, 10.0 + 0.2 * c + 1.0 * c))
        .to_vec();
    let kv = KvReading {
        ms_per_sequence: 1.0,
        verify_multiplier: 1.0,
    };
    let sweep = Sweep::from_step_ms(&plain, GraphLadder::Exact, Growth::EXPERTS)
        .unwrap_or_else(|e| panic!("{e}"))
        .with_kv(kv);
    let figures = |scale: f64, extra_kv: f64, in_graphs| {
        [4.0, 8.0].map(|c| {
            let ms = scale * cycle(&sweep, DraftStep::PCIE, &chain3(c)).total_ms() + extra_kv * c;
            Figures {
                speculation: chain3(c),
                topk: 1,
                spec_tok_s: Some(1000.0 * c * 2.5 / ms),
                accept_length: Some(2.5),
                verify_in_graphs: in_graphs,
            }
        })
    };
    let told = |f: &[Figures]| departures(&sweep, DraftStep::PCIE, f);
    assert_eq!(told(&figures(1.0, 0.0, None)), vec![]);
    assert!(matches!(
        told(&figures(1.0, 2.5, None))[..],
        [Departure::KvReadRepeatedly { multiplier }] if (multiplier - 3.5).abs() < 1e-6
    ));
    assert!(matches!(
        told(&figures(1.0, 0.0, Some(false)))[..],
        [Departure::VerifyOutsideGraphs { ratio: Some(_) }]
    ));
    assert!(matches!(
        told(&figures(0.7, 0.0, None))[..],
        [Departure::FasterThanLaw { .. }]
    ));
    let mut wide = figures(1.0, 0.0, None);
    wide[0].topk = 4;
    wide[0].speculation.verified_tokens = 16.0;
    wide.iter_mut().for_each(|f| f.spec_tok_s = None);
    assert!(matches!(told(&wide)[..], [Departure::WideTree { .. }]));
}

#[test]
fn bad_sweeps_are_refused_with_the_point_named() {
    let of = |p: &[(f64, f64)]| Sweep::from_tok_s(p, GraphLadder::Exact, Growth::DENSE);
    assert_eq!(of(&[]), Err(SweepError::Empty));
    let zero = of(&[(1.0, 90.0), (2.0, 0.0)])
        .map(|_| ())
        .map_err(|e| e.to_string());
    assert_eq!(
        zero,
        Err("point 2 of the sweep has tok/s 0: it must be a positive number".to_string())
    );
    assert!(of(&[(f64::NAN, 1.0)]).is_err());
}

prop_compose! {
    fn any_sweep()(
        steps in prop::collection::vec((1.0f64..300.0, 0.5f64..200.0), 1..9),
        dense in any::<bool>(),
        vllm in any::<bool>(),
        kv in 0.0f64..3.0,
        multiplier in 0.0f64..9.0,
    ) -> Sweep {
        let growth = if dense { Growth::DENSE } else { Growth::EXPERTS };
        let ladder = if vllm { GraphLadder::VllmDefault } else { GraphLadder::Exact };
        Sweep::from_step_ms(&steps, ladder, growth)
            .unwrap_or_else(|e| panic!("{e}"))
            .with_kv(KvReading { ms_per_sequence: kv, verify_multiplier: multiplier })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_step_never_gets_cheaper_with_more_tokens(s in any_sweep(), a in 1.0f64..3000.0, b in 1.0f64..3000.0) {
        let (few, many) = (a.min(b), a.max(b));
        let (x, y) = (s.read(1.0, few).step_ms, s.read(1.0, many).step_ms);
        prop_assert!(x.is_finite() && x > 0.0);
        prop_assert!(x <= y * (1.0 + 1e-9), "{x} over {few}, {y} over {many}");
    }

    #[test]
    fn speedup_is_at_most_the_accept_length(
        s in any_sweep(), c in 1.0f64..400.0, depth in 1u32..9, accept in 1.0f64..9.0,
    ) {
        let law = cycle(&s, DraftStep::PCIE, &Speculation {
            concurrency: c, verified_tokens: f64::from(depth) + 1.0, draft_steps: f64::from(depth),
        });
        let speedup = law.speedup(accept);
        prop_assert!(speedup > 0.0 && speedup <= accept * (1.0 + 1e-9));
        prop_assert!((law.speedup(law.break_even_accept_length()) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_deeper_chain_costs_more(s in any_sweep(), c in 1.0f64..400.0, depth in 1u32..9) {
        let cost = SweepCost { sweep: s, draft: DraftStep::LOCAL, one_pass: false };
        prop_assert!(cost.cycle(c, depth).total_ms() <= cost.cycle(c, depth + 1).total_ms() * (1.0 + 1e-9));
    }

    #[test]
    fn nothing_drafted_gains_and_costs_nothing(s in any_sweep(), c in 1.0f64..1024.0) {
        let law = cycle(&s, DraftStep::PCIE, &Speculation {
            concurrency: c, verified_tokens: 1.0, draft_steps: 0.0,
        });
        // The verify is read off the smoothed sweep, the plain step as it was measured.
        prop_assert!(law.speedup(1.0) <= 1.0 + 1e-9 && law.draft_ms == 0.0);
        prop_assert!((law.verify_ms - s.step_ms(c).step_ms).abs() <= 1e-9 * law.verify_ms);
    }

    #[test]
    fn more_accepted_is_more_speed_and_never_more_than_accepted(
        s in any_sweep(), c in 1.0f64..1024.0, tokens in 2u32..18,
        a in 1.0f64..17.0, b in 1.0f64..17.0,
    ) {
        let law = cycle(&s, DraftStep::LOCAL, &Speculation {
            concurrency: c, verified_tokens: f64::from(tokens), draft_steps: f64::from(tokens - 1),
        });
        let (few, many) = (law.speedup(a.min(b)), law.speedup(a.max(b)));
        prop_assert!(few <= many && many <= a.max(b) * (1.0 + 1e-9) && few > 0.0);
        prop_assert!(law.total_ms().is_finite() && law.beyond.is_finite() && law.beyond >= 0.0);
    }

    #[test]
    fn a_little_more_load_costs_a_little_more_where_nothing_is_padded(
        steps in prop::collection::vec(0.5f64..200.0, 1..6), c in 1.0f64..1024.0,
    ) {
        // One to five points at doubling loads, in any order of times: noise and dips as they come.
        let points: Vec<(f64, f64)> = steps
            .iter()
            .zip(0..)
            .map(|(ms, doubling)| (2.0f64.powi(doubling), *ms))
            .collect();
        let s = Sweep::from_step_ms(&points, GraphLadder::Exact, Growth::EXPERTS)
            .unwrap_or_else(|e| panic!("{e}"));
        let ms = |n: f64| s.step_ms(n).step_ms;
        let (here, there) = (ms(c), ms(c * 1.001));
        // Between two points of a sweep the step may grow 400-fold over one doubling at most.
        prop_assert!(here <= there * (1.0 + 1e-9) && there <= here * 1.01, "{here} {there}");
        // And a pass never costs more per token than the largest of its points.
        let dearest = points.iter().map(|(n, ms)| ms / n).fold(0.0, f64::max);
        prop_assert!(ms(c) / c <= dearest * 1.000_001, "{} {dearest}", ms(c) / c);
    }
}
