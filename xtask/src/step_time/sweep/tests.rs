//! The sweep's law beside the model it is fed with.

use super::*;
use crate::step_time::{Engine, Overhead, Setup};
use kvplan::{KvDtype, Sharding};

fn with_server<T>(model: &str, gpu: &str, then: impl FnOnce(&Server<'_>) -> T) -> T {
    let found = kvplan::catalog::find(model).expect("in the catalogue");
    let setup = Setup {
        sharding: Sharding::tp(1),
        kv_dtype: KvDtype::Bf16,
        overhead: Overhead::of(Engine::Vllm, None),
        graphs: true,
        ladder: GraphLadder::Exact,
    };
    let gpu = crate::gpus::find(gpu).expect("in the catalogue");
    then(&Server::new(&found.model, gpu, &setup, &|_| 0.0))
}

#[test]
fn a_sequence_of_llama_8b_reads_128_kib_a_token() {
    with_server("llama-3.1-8b", "h200", |server| {
        let ms = |tokens| BySequence::of(server, tokens).reading.ms_per_sequence;
        // 8,000 tokens of 131,072 bytes at 4.8 TB/s and the share; 8.1 us of host work.
        let cache_ms = 8000.0 * 131_072.0 / (4.8e9 * 0.95);
        assert!((ms(8000.0) - ms(0.0) - cache_ms).abs() < 1e-3);
        assert!((ms(0.0) - 0.0081).abs() < 1e-9, "{}", ms(0.0));
    });
}

#[test]
fn a_long_cache_on_a_consumer_card_is_read_once_by_a_verify_of_grouped_queries() {
    with_server("qwen3-32b", "rtx-5090", |server| {
        let context = 32_768.0;
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0]
            .map(|n| (n, server.plain_ms(n, context)))
            .to_vec();
        let apart = BySequence::of(server, context);
        let law = SweepLaw::of_engine(
            &points,
            GraphLadder::Exact,
            Constants::of(server),
            Some(apart),
        );
        let law = law.unwrap_or_else(|e| panic!("{e}"));
        let at = Speculation {
            concurrency: 1.0,
            verified_tokens: 4.0,
            draft_steps: 3.0,
        };
        let verify_ms = law.cycle(None, &at).verify_ms;
        let model_ms = server.verify(1.0, 4.0, context).total();
        assert!(
            (verify_ms / model_ms).ln().abs() < 0.1,
            "{verify_ms} {model_ms}"
        );
        // Prompts that all share cost the sweep nothing, so nothing is taken apart.
        let flat: Vec<(f64, f64)> = points.iter().map(|p| (p.0, points[0].1)).collect();
        let law = SweepLaw::of_engine(
            &flat,
            GraphLadder::Exact,
            Constants::of(server),
            Some(apart),
        );
        let law = law.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(law.sweep().kv().ms_per_sequence, 0.0);
    });
}

#[test]
fn a_sweep_of_the_models_own_plain_steps_gives_the_models_own_cycle() {
    // Experts less so: what their verify costs beyond the operations is a factor from scratch only.
    for (model, gpu, within, deeper) in [
        ("qwen3-1.7b", "rtx-5090", 0.085, 0.16),
        ("llama-3.1-8b", "h200", 0.085, 0.20),
        ("qwen3-32b", "rtx-pro-6000-server", 0.085, 0.16),
        ("qwen3-30b-a3b", "h100", 0.14, 0.25),
        ("gpt-oss-120b", "h200", 0.14, 0.25),
    ] {
        with_server(model, gpu, |server| {
            let loads: Vec<f64> = (0..13).map(|n| 2.0f64.powi(n)).collect();
            // A sweep of so small a model at 8k is mostly cache, of which the law leaves some to each token.
            let long = if model == "qwen3-1.7b" {
                1024.0
            } else {
                8192.0
            };
            for context in [0.0, long] {
                let points: Vec<(f64, f64)> = loads
                    .iter()
                    .map(|n| (*n, server.plain_ms(*n, context)))
                    .collect();
                let apart = BySequence::of(server, context);
                let constants = Constants::of(server);
                let law = SweepLaw::of_engine(&points, GraphLadder::Exact, constants, Some(apart))
                    .unwrap_or_else(|e| panic!("{e}"));
                let known = Known {
                    server,
                    draft: None,
                    draft_tp: 1,
                    context,
                };
                for users in [1.0, 8.0, 64.0] {
                    for steps in [1.0, 3.0, 7.0, 15.0] {
                        let at = Speculation {
                            concurrency: users,
                            verified_tokens: steps + 1.0,
                            draft_steps: steps,
                        };
                        let read = law.cycle(Some(&known), &at);
                        let chain = crate::step_time::cycle::Chain {
                            sequences: users,
                            verified_tokens: steps + 1.0,
                            draft_steps: steps,
                            context,
                        };
                        let own = crate::step_time::cycle::cycle(server, None, 1, &chain);
                        let off = (read.speedup(1.0) / own.speedup(1.0)).ln();
                        let within = if steps > 3.0 { deeper } else { within };
                        assert!(
                            off.abs() < within,
                            "{model} {context} {users} {steps}: {off}"
                        );
                        assert!(law.slower(Some(&known), users) < 1e-6);
                    }
                }
            }
        });
    }
}

#[test]
fn beyond_a_dense_sweep_the_step_turns_from_reading_to_computing() {
    with_server("llama-3.1-8b", "h200", |server| {
        let constants = Constants::of(server);
        let points = [(1.0, 4.9), (8.0, 5.0), (64.0, 6.0), (128.0, 7.3)];
        let law = SweepLaw::of_engine(&points, GraphLadder::Exact, constants, None);
        let law = law.unwrap_or_else(|e| panic!("{e}"));
        let known = Known {
            server,
            draft: None,
            draft_tp: 1,
            context: 0.0,
        };
        let at = |users: f64| Speculation {
            concurrency: users,
            verified_tokens: 4.0,
            draft_steps: 3.0,
        };
        let (inside, outside) = (at(32.0), at(128.0));
        assert_eq!(law.cycle(Some(&known), &inside), law.cycle(None, &inside));
        let own = law.cycle(None, &outside).verify_ms;
        let with_model = law.cycle(Some(&known), &outside).verify_ms;
        let model = server.plain_ms(512.0, 0.0) / server.plain_ms(128.0, 0.0);
        assert!(with_model > own, "{with_model} {own}");
        assert!(
            (with_model - 7.3 * model).abs() < 0.2,
            "{with_model} {model}"
        );
    });
}

#[test]
fn plain_points_beyond_the_asked_load_move_a_verify_of_experts_less_than_its_band() {
    with_server("gpt-oss-120b", "h100", |server| {
        let verify_ms = |server: &Server<'_>, loads: &[f64]| {
            let points: Vec<(f64, f64)> = loads
                .iter()
                .map(|n| (*n, server.plain_ms(*n, 2048.0)))
                .collect();
            let apart = Some(BySequence::of(server, 2048.0));
            let constants = Constants::of(server);
            let law = SweepLaw::of_engine(&points, GraphLadder::Exact, constants, apart)
                .unwrap_or_else(|e| panic!("{e}"));
            let known = Known {
                server,
                draft: None,
                draft_tp: 1,
                context: 2048.0,
            };
            let at = Speculation {
                concurrency: 64.0,
                verified_tokens: 4.0,
                draft_steps: 3.0,
            };
            law.cycle(Some(&known), &at).verify_ms
        };
        let swept_ms = verify_ms(server, &[1.0, 16.0, 64.0, 128.0, 256.0]);
        // All but a few experts are in use at 64 tokens; the slope of those before says little.
        let touched = server.experts_touched(64.0);
        assert!(touched.is_some_and(|share| share > 0.6), "{touched:?}");
        for (loads, within) in [
            (&[1.0, 16.0, 64.0][..], 0.3),
            (&[1.0, 16.0, 64.0, 128.0], 0.15),
        ] {
            let off = (verify_ms(server, loads) / swept_ms).ln();
            assert!((0.0..within).contains(&off), "{loads:?}: {off}");
        }
    });
}
