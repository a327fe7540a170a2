//! Laws that hold for every input.

use kvplan::{
    Engine, EngineKind, Known, KvDtype, KvLayout, Model, Quant, Setup, Sharding, SpecKind,
    Speculation, Version, catalog,
};
use proptest::prelude::*;

const MODELS: [&str; 10] = [
    "kimi-k2.5",
    "llama-3.1-8b",
    "qwen3-32b",
    "qwen3.5-27b",
    "gpt-oss-120b",
    "glm-5.2",
    "deepseek-v4-flash",
    "gemma-3-27b",
    "nemotron-3-nano-30b-a3b",
    "mixtral-8x7b",
];

/// Models in their usual precision, and one in four as a GGUF mixture.
fn any_model() -> impl Strategy<Value = Model> {
    let mixtures = vec!["", "", "", "", "", "", "q4_k_m", "iq3_xs"];
    let names = prop::sample::select(MODELS.to_vec());
    (names, prop::sample::select(mixtures)).prop_map(|(name, mixture)| {
        let found = catalog::find(name).unwrap_or_else(|error| panic!("{error}"));
        match Quant::parse(mixture) {
            Some(quant) => found.model.requantised(&quant),
            None => found.model,
        }
    })
}

fn any_engine() -> impl Strategy<Value = Engine> {
    let kinds = vec![
        EngineKind::Sglang,
        EngineKind::Vllm,
        EngineKind::TensorRtLlm,
        EngineKind::LlamaCpp,
    ];
    (prop::sample::select(kinds), 2024u32..2027, 1u32..13)
        .prop_map(|(kind, year, month)| Engine::at(kind, Version::Date(year, month)))
}

fn any_kv() -> impl Strategy<Value = KvDtype> {
    prop::sample::select(vec![
        KvDtype::Bf16,
        KvDtype::Fp8,
        KvDtype::Fp4,
        KvDtype::Q8_0,
    ])
}

fn mtp(steps: u64) -> Speculation<'static> {
    Speculation {
        kind: SpecKind::Mtp,
        draft: None,
        steps,
        topk: 1,
        draft_tokens: steps + 1,
    }
}

/// State slots that an engine keeps for one running request, at most (SGLang with overlap and
/// speculation keeps three to five).
const SLOTS_PER_REQUEST_MAX: f64 = 6.0;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    /// Every GiB has a line, whatever the setup; a plan that fits has no negative line and no
    /// more than the card.
    #[test]
    fn the_ledger_adds_up_to_the_card_and_a_fit_never_exceeds_it(
        model in any_model(), engine in any_engine(), kv in any_kv(),
        tp in prop::sample::select(vec![1u64, 2, 4, 8]),
        card in 4.0f64..300.0, fraction in prop::option::of(0.05f64..1.0),
        steps in 0u64..6, context in prop::option::of(1u64..2_000_000),
    ) {
        let mut setup = Setup::new(&model, Sharding::tp(tp), engine, card);
        setup.fraction = fraction;
        setup.kv_dtype = Some(kv);
        setup.context_tokens = context;
        setup.speculation = (steps > 0 && !model.mtp_layers.is_empty()).then(|| mtp(steps));
        let Ok(plan) = kvplan::plan(&setup) else { return Ok(()) };
        prop_assert!((plan.ledger.sum() - card).abs() < 1e-6 * card, "{}", plan.ledger.sum());
        for line in &plan.ledger.lines {
            prop_assert!(line.gib.is_finite() && line.low <= line.high + 1e-12, "{line:?}");
        }
        if plan.fits {
            for line in &plan.ledger.lines {
                let signed = line.item.starts_with("weights: observed");
                prop_assert!(signed || line.gib >= -1e-9, "{line:?}");
            }
            let used: f64 = plan.ledger.lines.iter().rev().skip(1).map(|l| l.gib).sum();
            prop_assert!(used <= card + 1e-9, "{used} of {card}");
        }
        if plan.refusal.is_some() {
            prop_assert!(!plan.fits && plan.kv_tokens == 0);
        }
    }

    /// More fraction, more tokens; more card, more tokens; smaller KV elements, more tokens. A
    /// hybrid gives its states whole slots: where a larger pool takes one request more, tokens fall
    /// by what that request's slots hold (Qwen3.5-27B, TP 2, SGLang: 226,930 at 0.7930, 225,391 at
    /// 0.7935), never by more.
    #[test]
    fn tokens_grow_with_the_fraction_the_card_and_smaller_elements(
        model in any_model(), engine in any_engine(),
        tp in prop::sample::select(vec![1u64, 2, 4, 8]),
        card in 40.0f64..300.0, fraction in 0.3f64..0.9, more in 0.0f64..0.09,
    ) {
        let tokens = |card: f64, fraction: f64, kv: KvDtype| {
            let mut setup = Setup::new(&model, Sharding::tp(tp), engine, card);
            setup.big_card = Some(true);
            setup.batched_tokens = Some(4096);
            setup.graph_max_batch = Some(64);
            setup.context_tokens = Some(2048);
            setup.fraction = Some(fraction);
            setup.kv_dtype = Some(kv);
            kvplan::plan(&setup).map(|plan| plan.kv_tokens)
        };
        let Ok(base) = tokens(card, fraction, KvDtype::Bf16) else { return Ok(()) };
        let sharding = Sharding::tp(tp);
        let state = model.state_bytes_per_request(&sharding).total() as f64;
        let cell = model.kv_bytes_per_token(&sharding, &KvLayout::new(KvDtype::Fp8)).max(1) as f64;
        let base = base.saturating_sub((SLOTS_PER_REQUEST_MAX * state / cell).ceil() as u64);
        prop_assert!(tokens(card, fraction + more, KvDtype::Bf16)? >= base);
        prop_assert!(tokens(card * 1.1, fraction, KvDtype::Bf16)? >= base);
        prop_assert!(tokens(card, fraction, KvDtype::Fp8)? >= base);
    }

    /// A longer pass, more rows to sample, more graphs and a longer context never add tokens to a
    /// pool that the engine cuts from a fixed fraction.
    #[test]
    fn larger_passes_batches_and_contexts_never_add_tokens(
        model in any_model(), engine in any_engine(),
        tp in prop::sample::select(vec![1u64, 2, 4, 8]), card in 40.0f64..300.0,
        batched in 512u64..32_768, running in 1u64..1024, graphs in 0u64..512,
        context in 512u64..65_536, more in 1u64..8,
    ) {
        let pool = |batched: u64, running: u64, graphs: u64, context: u64| {
            let mut setup = Setup::new(&model, Sharding::tp(tp), engine, card);
            setup.fraction = Some(0.85);
            setup.batched_tokens = Some(batched);
            setup.max_running = Some(running);
            setup.graph_max_batch = Some(graphs);
            setup.context_tokens = Some(context);
            kvplan::plan(&setup).map(|plan| plan.pool_gib)
        };
        // llama.cpp has no fraction: its pool is what the load needs.
        if engine.kind == EngineKind::LlamaCpp {
            return Ok(());
        }
        let Ok(base) = pool(batched, running, graphs, context) else { return Ok(()) };
        let larger = [
            pool(batched * more, running, graphs, context)?,
            pool(batched, running * more, graphs, context)?,
            pool(batched, running, graphs * more, context)?,
            pool(batched, running, graphs, context * more)?,
        ];
        for (knob, pool) in larger.iter().enumerate() {
            prop_assert!(*pool <= base + 1e-9, "knob {knob}: {pool} {base}");
        }
    }

    /// Fewer bits, fewer bytes on every rank (segments of an allocator may round the other way).
    #[test]
    fn smaller_weight_formats_take_less(
        name in prop::sample::select(MODELS.to_vec()),
        tp in prop::sample::select(vec![1u64, 2, 4, 8]),
    ) {
        let sizes = ["bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"];
        let gib = |quant: &str| {
            let model = catalog::find_in(name, Some(quant)).map(|found| found.model).expect(quant);
            let setup = Setup::new(&model, Sharding::tp(tp), Engine::newest(EngineKind::Vllm), 300.0);
            kvplan::plan(&setup).map(|plan| plan.computed_weights_gib)
        };
        for pair in sizes.windows(2) {
            let (Ok(larger), Ok(smaller)) = (gib(pair[0]), gib(pair[1])) else { return Ok(()) };
            prop_assert!(smaller < larger, "{pair:?}: {larger} {smaller}");
        }
    }

    /// Segments never hold less than the tensors, nor much more.
    #[test]
    fn segments_cost_at_most_2_mib_a_matrix_and_a_tenth_of_small_ones(
        model in any_model(), tp in prop::sample::select(vec![1u64, 2, 4, 8]),
    ) {
        let weights = |engine: &str| {
            let engine = Engine::parse(engine).expect(engine);
            let setup = Setup::new(&model, Sharding::tp(tp), engine, 4000.0);
            kvplan::plan(&setup).map(|plan| plan.computed_weights_gib)
        };
        let (Ok(sglang), Ok(vllm)) = (weights("sglang"), weights("vllm")) else { return Ok(()) };
        let layers = model.layers.len() as f64;
        prop_assert!(sglang > vllm);
        // Twelve matrices a layer at most, the rotary table and the modules.
        prop_assert!(sglang - vllm < layers * 12.0 * 3.0 / 1024.0 + 1.5, "{sglang} {vllm}");
    }

    /// Speculation never gives tokens, and never costs less than nothing. Slots of states that it
    /// leaves to fewer requests go to the pool.
    #[test]
    fn speculation_never_adds_tokens(
        model in any_model(), engine in any_engine(), card in 40.0f64..300.0,
        steps in 1u64..6,
    ) {
        let mut setup = Setup::new(&model, Sharding::tp(8), engine, card);
        setup.fraction = Some(0.85);
        setup.context_tokens = Some(2048);
        setup.speculation = Some(mtp(steps));
        let Ok(cost) = kvplan::speculation_cost(&setup) else { return Ok(()) };
        // States come in whole slots, so one slot's bytes may fall to either side.
        let slot = model.state_bytes_per_request(&setup.sharding).total() * (steps + 2);
        let slack = slot as f64 / cost.without.kv_bytes_per_token.max(1.0);
        let (with, without) = (cost.with.kv_tokens, cost.without.kv_tokens);
        let carried = |plan: &kvplan::Plan| plan.state_slots.map(kvplan::StateSlots::requests);
        let fewer = carried(&cost.with) < carried(&cost.without);
        prop_assert!(fewer || with as f64 <= without as f64 + slack, "{with} {without}");
        prop_assert!(cost.draft_gib >= 0.0);
    }

    /// The fraction of a pool gives the pool back.
    #[test]
    fn the_inferred_fraction_gives_the_pool_back(
        before in 10.0f64..300.0, used in 0.05f64..0.95, pool_share in 0.01f64..1.0,
        cell in 1000.0f64..500_000.0,
    ) {
        let after = before * (1.0 - used);
        let pool = after * pool_share;
        let known = Known {
            free_before_gib: Some(before), free_after_gib: Some(after), pool_gib: Some(pool),
            bytes_per_token: Some(cell), ..Known::default()
        };
        let inferred = known.infer();
        let fraction = inferred.known.fraction.expect("four of four");
        let again = Known {
            free_before_gib: Some(before), free_after_gib: Some(after),
            fraction: Some(fraction), ..Known::default()
        };
        prop_assert!((again.infer().known.pool_gib.expect("pool") - pool).abs() < 1e-9);
        // From any three the fourth.
        let no_before = Known {
            free_after_gib: Some(after), pool_gib: Some(pool), fraction: Some(fraction),
            ..Known::default()
        };
        if fraction < 0.999 {
            let got = no_before.infer().known.free_before_gib.expect("before");
            prop_assert!((got / before - 1.0).abs() < 1e-6);
        }
        prop_assert!(inferred.fraction_min.expect("walls") < fraction);
    }

    /// Tokens of the planned fraction, turned into a pool and back into a fraction, are the same.
    #[test]
    fn sglang_tokens_of_a_fraction_give_the_fraction_back(
        fraction in 0.78f64..0.95, model in prop::sample::select(vec!["kimi-k2.5", "kimi-k2.6"]),
    ) {
        let model = catalog::find(model).map(|found| found.model).expect("catalogue");
        let mut setup = Setup::new(&model, Sharding::tp(8), Engine::newest(EngineKind::Sglang), 95.6);
        setup.fraction = Some(fraction);
        setup.observed.free_before_gib = Some(94.0);
        setup.observed.free_after_gib = Some(21.7);
        let plan = kvplan::plan(&setup).expect("plan");
        let known = Known {
            free_before_gib: Some(94.0), free_after_gib: Some(21.7),
            tokens: Some(plan.kv_tokens), bytes_per_token: Some(plan.kv_bytes_per_token),
            ..Known::default()
        };
        let again = known.infer().known.fraction.expect("fraction");
        prop_assert!((again - fraction).abs() < 1e-6, "{again} {fraction}");
    }

    /// Twice the ranks halve heads, feed-forward, experts and vocabulary, and leave latents,
    /// routers and norms whole.
    #[test]
    fn tensor_parallelism_halves_what_it_should_and_nothing_else(
        name in prop::sample::select(vec!["kimi-k2.5", "deepseek-v3", "glm-5.1"]),
        tp in prop::sample::select(vec![1u64, 2, 4, 8, 16]),
    ) {
        use kvplan::ParamGroup as G;
        let model = catalog::find(name).map(|found| found.model).expect("catalogue");
        let at = |tp: u64, group: G| {
            let lines = model.weight_bytes(&Sharding::tp(tp));
            lines.iter().find(|line| line.group == group).map_or(0.0, |line| line.bytes)
        };
        for group in [G::Embedding, G::Head, G::Dense, G::Experts, G::SharedExperts] {
            let (one, two) = (at(tp, group), at(2 * tp, group));
            prop_assert!((one / two - 2.0).abs() < 1e-9, "{group:?}: {one} {two}");
        }
        for group in [G::Router, G::Norms, G::Indexer, G::Vision] {
            prop_assert_eq!(at(tp, group), at(2 * tp, group));
        }
        prop_assert!(at(tp, G::Attention) > at(2 * tp, G::Attention));
        prop_assert!(at(tp, G::Attention) < 2.0 * at(2 * tp, G::Attention));
        // The latent is on every rank.
        let layout = KvLayout::new(KvDtype::Bf16);
        let cell = |tp| model.kv_bytes_per_token(&Sharding::tp(tp), &layout);
        prop_assert_eq!(cell(tp), cell(2 * tp));
    }

    /// KV heads are cut until there is one a rank, then copied.
    #[test]
    fn kv_heads_are_never_cut_below_one(tp in prop::sample::select(vec![1u64, 2, 4, 8, 16, 32])) {
        let model = catalog::find("qwen3-235b-a22b").map(|f| f.model).expect("catalogue");
        let cell = model.kv_bytes_per_token(&Sharding::tp(tp), &KvLayout::new(KvDtype::Bf16));
        prop_assert_eq!(cell, 94 * (4 / tp.min(4)) * 128 * 2 * 2);
    }
}

/// Numbers that no model has, in every numeric field.
fn absurd() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::json!(0)),
        Just(serde_json::json!(1)),
        Just(serde_json::json!(u64::MAX)),
        Just(serde_json::json!(-1)),
        Just(serde_json::json!(1e300)),
        Just(serde_json::json!(0.5)),
        Just(serde_json::json!("many")),
        Just(serde_json::json!(null)),
        Just(serde_json::json!([])),
        Just(serde_json::json!({})),
        (0u64..1 << 24).prop_map(|n| serde_json::json!(n)),
    ]
}

const FIELDS: [&str; 30] = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "sliding_window",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "index_head_dim",
    "index_n_heads",
    "layer_types",
    "hybrid_override_pattern",
    "quantization_config",
    "compress_ratios",
    "full_attention_interval",
    "linear_num_value_heads",
    "block_configs",
    "vision_config",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// A config with absurd numbers gives a model or one line, and a plan of it does not panic.
    #[test]
    fn absurd_configs_never_panic(
        edits in prop::collection::vec((prop::sample::select(FIELDS.to_vec()), absurd()), 0..6),
        card in prop_oneof![Just(0.0), Just(f64::NAN), Just(1e9), 1.0f64..1000.0],
        engine in any_engine(), tp in prop_oneof![Just(0u64), Just(1), Just(u64::MAX), 1u64..64],
    ) {
        let mut config = serde_json::json!({
            "model_type": "x", "num_hidden_layers": 4, "hidden_size": 512, "vocab_size": 1000,
            "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024,
        });
        for (field, value) in edits {
            config[field] = value;
        }
        match Model::from_config_json(&config.to_string(), "absurd") {
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
            Ok(model) => {
                let mut setup = Setup::new(&model, Sharding::tp(1), engine, card);
                setup.sharding.tp = tp;
                setup.speculation = (!model.mtp_layers.is_empty()).then(|| mtp(3));
                match kvplan::speculation_cost(&setup) {
                    Err(error) => prop_assert!(!error.to_string().contains('\n')),
                    Ok(cost) => prop_assert!(cost.with.pool_gib.is_finite()),
                }
            }
        }
    }

    /// Text that is no config gives one line.
    #[test]
    fn any_text_gives_one_line_or_a_model(text in "\\PC{0,200}") {
        if let Err(error) = Model::from_config_json(&text, "text") {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
