//! Real servers, one test each: figures from public logs, named by what they show.

use kvplan::{
    Engine, GIB, Known, KvDtype, KvLayout, Model, Observed, Plan, Setup, Sharding, SpecKind,
    Speculation, catalog,
};

fn model(name: &str, quant: Option<&str>) -> Model {
    catalog::find_in(name, quant)
        .unwrap_or_else(|e| panic!("{e}"))
        .model
}

fn setup<'a>(model: &'a Model, tp: u64, engine: &str, card_gib: f64) -> Setup<'a> {
    let engine = Engine::parse(engine).unwrap_or_else(|e| panic!("{e}"));
    Setup::new(model, Sharding::tp(tp), engine, card_gib)
}

fn plan(setup: &Setup<'_>) -> Plan {
    let plan = kvplan::plan(setup).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        (plan.ledger.sum() - setup.card_gib).abs() < 1e-6,
        "the ledger adds up to the card"
    );
    plan
}

#[track_caller]
fn close(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "{got}, expected {expected} +- {tolerance}"
    );
}

/// RTX PRO 6000, `nvidia-smi`.
const PRO_6000: f64 = 97_887.0 / 1024.0;
const H100: f64 = 81_559.0 / 1024.0;
const H200: f64 = 143_771.0 / 1024.0;

// ---- the default scenario -----------------------------------------------------------------------

fn story(model: &Model, fraction: Option<f64>) -> Setup<'_> {
    let mut setup = setup(model, 8, "sglang", PRO_6000);
    setup.observed.free_before_gib = Some(94.0);
    setup.observed.free_after_gib = Some(21.7);
    setup.kv_dtype = Some(KvDtype::Bf16);
    setup.fraction = fraction;
    setup
}

#[test]
fn the_story_refuses_0_55_by_20_6_gib_and_gives_10_42_at_0_88() {
    let kimi = model("kimi-k2.5", None);
    let refused = plan(&story(&kimi, Some(0.55)));
    let refusal = refused.refusal.expect("refused");
    close(refusal.short_gib, 20.6, 0.005);
    assert!(refusal.remedy.contains("0.770"), "{}", refusal.remedy);
    close(refused.interval.min, 0.7691, 0.0001);
    assert!(!refused.fits && refused.kv_tokens == 0);

    let served = plan(&story(&kimi, Some(0.88)));
    close(served.pool_gib, 10.42, 0.005);
    close(served.kv_tokens as f64, 159_200.0, 100.0);
    assert!(served.fits);
    assert!(plan(&story(&kimi, Some(0.7691))).refusal.is_some());
    assert!(plan(&story(&kimi, Some(0.770))).refusal.is_none());
}

#[test]
fn the_story_backwards_says_0_88_was_in_use_and_0_55_cannot_start() {
    let known = Known {
        free_before_gib: Some(94.0),
        free_after_gib: Some(21.7),
        pool_gib: Some(10.42),
        bytes_per_token: Some(70_272.0),
        ..Known::default()
    };
    let inferred = known.infer();
    close(inferred.known.fraction.expect("fraction"), 0.88, 0.0005);
    assert_eq!(inferred.first_legal_fraction, Some(0.77));
    close(
        inferred.known.tokens.expect("tokens") as f64,
        159_200.0,
        100.0,
    );
    let belief = kvplan::check_belief(&inferred, 0.55).expect("enough figures");
    assert!(!belief.agrees && !belief.believed_starts);
    close(belief.short_gib, 20.6, 0.005);
    assert!(kvplan::check_belief(&inferred, 0.88).is_some_and(|b| b.agrees));
}

#[test]
fn the_story_weights_computed_from_the_architecture_stand_near_the_observed_72_3() {
    let kimi = model("kimi-k2.5", None);
    let plan = plan(&story(&kimi, Some(0.88)));
    close(plan.weights_gib, 72.3, 1e-9);
    // Tensors alone, without the constant fitted on this log and another: within 1 %.
    let tensors = kimi.total_weight_bytes(&Sharding::tp(8)) / GIB;
    close(tensors, 72.3, 0.72);
}

#[test]
fn the_story_ipc_buffers_move_the_pool_by_under_0_03_gib() {
    let kimi = model("kimi-k2.5", None);
    let buffers = plan(&story(&kimi, Some(0.88)))
        .ledger
        .gib_of("custom all-reduce");
    assert!(buffers > 0.02 && buffers < 0.03, "{buffers}");
}

// ---- sparse attention with an index -------------------------------------------------------------

#[test]
fn sglang_016_the_printed_pool_left_out_11_gib_of_index_keys() {
    let v32 = model("deepseek-v3.2", None);
    let layout = KvLayout::new(KvDtype::Fp8);
    let cell = v32.kv_bytes_per_token(&Sharding::tp(8), &layout);
    assert_eq!(cell, 40_016);
    let tokens = 1_462_784.0;
    close(tokens * cell as f64 / GIB, 54.52, 0.02);
    close(
        tokens * (cell + v32.index_bytes_per_token()) as f64 / GIB,
        65.49,
        0.02,
    );
}

#[test]
fn sglang_022_one_padding_page_shows_in_the_pool() {
    let glm = model("glm-5.1", None);
    let layout = KvLayout::new(KvDtype::Fp8);
    let cell = glm.kv_bytes_per_token(&Sharding::tp(8), &layout) + glm.index_bytes_per_token();
    assert_eq!(cell, 61_464);
    close((131_072.0 + 64.0) * cell as f64 / GIB, 7.51, 0.01);
}

#[test]
fn vllm_033_shared_indexers_are_stored_once() {
    let glm = model("glm-5.2", None);
    let layout = KvLayout::new(KvDtype::Fp8);
    let sharding = Sharding::tp(4);
    let target = glm.kv_bytes_per_token(&sharding, &layout) + glm.index_bytes_per_token();
    let with_mtp = target + glm.mtp_kv_bytes_per_token(&sharding, &layout);
    assert_eq!(with_mtp, 79 * 656 + 22 * 132);
    // 250,000 tokens over 4 decode-context ranks.
    close(250_000.0 / 4.0 * with_mtp as f64 / GIB, 3.19, 0.006);
}

#[test]
fn vllm_017_an_mtp_layer_is_one_more_layer_of_the_pool() {
    let glm = model("glm-5.1", None);
    let mut setup = setup(&glm, 8, "vllm@2026-05", PRO_6000);
    setup.kv_dtype = Some(KvDtype::Fp8);
    setup.fraction = Some(0.89);
    setup.context_tokens = Some(202_752);
    setup.observed.pool_gib = Some(25.09);
    setup.speculation = Some(mtp(3));
    let plan = plan(&setup);
    assert_eq!(plan.kv_bytes_per_token as u64, 62_252);
    close(plan.kv_tokens as f64, 432_832.0, 160.0);
    close(plan.max_concurrency, 2.13, 0.01);
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

// ---- hybrids ------------------------------------------------------------------------------------

#[test]
fn vllm_015_sliding_layers_are_padded_into_groups() {
    let gemma = model("gemma-3-27b", None);
    let mut setup = setup(&gemma, 1, "vllm@0.11", 192.0);
    setup.context_tokens = Some(4096);
    setup.observed.pool_gib = Some(109.86);
    let plan = plan(&setup);
    close(plan.kv_tokens as f64, 205_696.0, 16.0);
    close(plan.max_concurrency, 50.05, 0.01);
}

#[test]
fn vllm_gpt_oss_on_four_cards_counts_half_its_layers_a_group() {
    let oss = model("gpt-oss-120b", None);
    let mut setup = setup(&oss, 4, "vllm@0.10.2", H100);
    setup.context_tokens = Some(16_384);
    setup.big_card = Some(false);
    setup.mxfp4_kernels = Some(false);
    setup.fraction = Some(0.8);
    setup.observed.pool_gib = Some(45.32);
    let plan = plan(&setup);
    close(plan.computed_weights_gib, 17.22, 0.06);
    close(plan.kv_tokens as f64, 2_640_144.0, 600.0);
}

#[test]
fn sglang_014_state_slots_of_a_hybrid_are_361_times_the_matrix_states() {
    let qwen = model("qwen3.5-27b", None);
    let state = qwen.state_bytes_per_request(&Sharding::tp(1));
    assert_eq!(state.ssm, 48 * 48 * 128 * 128 * 4);
    close(361.0 * state.ssm as f64 / GIB, 50.77, 0.02);
    close(361.0 * state.conv as f64 / GIB, 0.99, 0.02);
}

#[test]
fn sglang_017_only_full_attention_layers_take_kv_under_dp_attention() {
    let next = model("qwen3-next-80b-a3b", None);
    let sharding = Sharding {
        dp_attention: 4,
        ep: 4,
        ..Sharding::tp(4)
    };
    let cell = next.kv_bytes_per_token(&sharding, &KvLayout::new(KvDtype::Bf16));
    assert_eq!(cell, 24_576);
    close(2_786_325.0 * cell as f64 / GIB, 2.0 * 31.89, 0.02);
}

#[test]
fn sglang_023_kv_heads_are_cut_by_four() {
    let qwen = model("qwen3.6-27b", None);
    let cell = qwen.kv_bytes_per_token(&Sharding::tp(4), &KvLayout::new(KvDtype::Bf16));
    close(1_048_576.0 * cell as f64 / GIB, 16.0, 0.01);
}

#[test]
fn pinning_state_slots_gives_the_rest_to_kv() {
    let qwen = model("qwen3.5-27b", None);
    let mut setup = setup(&qwen, 1, "sglang@0.5.17", PRO_6000);
    let automatic = plan(&setup).kv_tokens;
    setup.state_slots = Some(8);
    assert!(plan(&setup).kv_tokens > automatic);
}

// ---- drafts by era ------------------------------------------------------------------------------

fn eagle(draft: &Model) -> Speculation<'_> {
    Speculation {
        kind: SpecKind::Eagle,
        draft: Some(draft),
        steps: 5,
        topk: 8,
        draft_tokens: 32,
    }
}

fn llama_draft() -> Model {
    match catalog::find_draft("llama-3.1-8b", "eagle3").expect("draft") {
        catalog::Draft::Head { model, .. } => *model,
        catalog::Draft::Mtp => panic!("llama has no MTP layers"),
    }
}

#[test]
fn sglang_029_an_eagle3_head_with_its_own_embedding_is_1_77_gib() {
    let bytes = llama_draft().total_weight_bytes(&Sharding::tp(1));
    close(bytes / GIB, 1.77, 0.01);
}

#[test]
fn sglang_013_mtp_of_a_27b_is_two_vocabulary_tables_and_a_layer() {
    let qwen = model("qwen3.8-27b", None);
    let mut setup = setup(&qwen, 1, "sglang@0.5.17", PRO_6000);
    setup.speculation = Some(mtp(3));
    let ledger = plan(&setup).ledger;
    close(
        ledger.gib_of("draft: its own vocabulary tables"),
        4.74,
        0.01,
    );
    close(ledger.gib_of("draft: weights") + 4.74, 5.53, 0.06);
    let layout = KvLayout::new(KvDtype::Bf16);
    assert_eq!(qwen.mtp_kv_bytes_per_token(&Sharding::tp(1), &layout), 4096);
    assert_eq!(qwen.kv_bytes_per_token(&Sharding::tp(1), &layout), 65_536);
}

#[test]
fn sglang_010_counted_draft_weights_raise_the_least_fraction_to_0_9335() {
    let known = Known {
        // 8x H200: what DeepSeek-V4-Pro left, less the NextN draft of 3.07 GiB.
        free_before_gib: Some(138.05),
        free_after_gib: Some(12.25 - 3.07),
        ..Known::default()
    };
    close(known.infer().fraction_min.expect("walls"), 0.9335, 0.0004);
}

#[test]
fn the_draft_pool_lies_in_the_reserve_before_april_2026_and_in_the_cell_after() {
    let llama = model("llama-3.1-8b", None);
    let draft = llama_draft();
    let at = |version: &str, spec: bool| {
        let mut setup = setup(&llama, 1, version, H100);
        setup.fraction = Some(0.8);
        setup.speculation = spec.then(|| eagle(&draft));
        plan(&setup)
    };
    for version in ["sglang@0.4.6", "sglang@0.5.5"] {
        let (with, without) = (at(version, true), at(version, false));
        assert_eq!(
            with.kv_tokens, without.kv_tokens,
            "{version}: the pool does not see the draft"
        );
        assert!(
            with.interval.max < without.interval.max,
            "{version}: the reserve does"
        );
    }
    let priced = at("sglang@0.5.11", true);
    let counted = at("sglang@0.5.16", true);
    assert!(priced.kv_tokens < at("sglang@0.5.11", false).kv_tokens);
    assert!(
        counted.kv_tokens < priced.kv_tokens,
        "weights are counted too"
    );
    let old = at("sglang@0.4.6", true);
    assert!(old.ledger.gib_of("verify: slots above the budget") > 0.0);
}

// ---- automatic fractions ------------------------------------------------------------------------

#[test]
fn automatic_fractions_of_generation_c_are_the_tabulated_ones() {
    let llama = model("llama-3.1-8b", None);
    let kimi = model("kimi-k2.5", None);
    let auto = |model: &Model, tp, card, spec: bool| {
        let mut setup = setup(model, tp, "sglang@0.5.8", card);
        setup.speculation = spec.then(|| Speculation {
            kind: SpecKind::Eagle,
            ..mtp(3)
        });
        plan(&setup).automatic_fraction.expect("sglang has one")
    };
    let b200 = 183_359.0 / 1024.0;
    for (card, tp, plain, spec) in [
        (PRO_6000, 8, 0.848, 0.827),
        (H100, 8, 0.818, 0.793),
        (H200, 8, 0.897, 0.882),
        (b200, 8, 0.852, 0.841),
    ] {
        close(auto(&llama, tp, card, false), plain, 0.0011);
        close(auto(&llama, tp, card, true), spec, 0.0011);
    }
    close(auto(&llama, 1, PRO_6000, false), 0.863, 0.0011);
    close(auto(&kimi, 8, PRO_6000, false), 0.771, 0.001);
    close(auto(&kimi, 8, PRO_6000, true), 0.752, 0.001);
}

#[test]
fn automatic_fractions_of_generations_a_and_b() {
    let qwen = model("qwen3-0.6b", None);
    let auto = |version: &str, tp, card| plan(&setup(&qwen, tp, version, card)).automatic_fraction;
    assert_eq!(auto("sglang@0.4.1", 1, H100), Some(0.88));
    assert_eq!(auto("sglang@0.4.4", 4, 24.0), Some(0.85));
    assert_eq!(auto("sglang@0.4.10", 1, 16_303.0 / 1024.0), Some(0.818));
}

#[test]
fn the_automatic_fraction_of_kimi_on_96_gb_is_below_its_weights() {
    let kimi = model("kimi-k2.6", None);
    let plan = plan(&setup(&kimi, 8, "sglang@0.5.12", 97_871.0 / 1024.0));
    assert!(plan.automatic_fraction.expect("auto") < plan.interval.min + 0.01);
}

// ---- refusals -----------------------------------------------------------------------------------

#[test]
fn vllm_029_a_4b_with_4_89_gib_starts_with_35600_tokens_and_no_more() {
    let qwen = model("qwen3-4b", None);
    let mut setup = setup(&qwen, 1, "vllm@0.10", 16_303.0 / 1024.0);
    setup.context_tokens = Some(40_960);
    setup.observed.pool_gib = Some(4.89);
    let plan = plan(&setup);
    let refusal = plan.refusal.expect("refused");
    assert!(
        refusal.engine_says.contains("5.62 GiB"),
        "{}",
        refusal.engine_says
    );
    close(plan.longest_context as f64, 35_600.0, 40.0);
    assert!(!plan.fits);
}

#[test]
fn vllm_030_replicated_kv_heads_need_11_75_gib_for_256k() {
    let qwen = model("qwen3-235b-a22b", Some("fp8"));
    let mut setup = setup(&qwen, 4, "vllm@0.11", H100);
    setup.context_tokens = Some(262_144);
    setup.observed.pool_gib = Some(8.03);
    let refusal = plan(&setup).refusal.expect("refused");
    assert!(
        refusal.engine_says.contains("11.75 GiB"),
        "{}",
        refusal.engine_says
    );
}

#[test]
fn a_context_beyond_the_pool_is_not_called_served() {
    let gemma = model("gemma-4-31b", Some("nvfp4"));
    let mut setup = setup(&gemma, 1, "sglang@2026-07", 24.0);
    setup.fraction = Some(0.93);
    setup.context_tokens = Some(131_072);
    assert!(!plan(&setup).fits);
}

// ---- other engines ------------------------------------------------------------------------------

#[test]
fn vllm_017_log_of_a_30b_on_one_h100_follows_from_its_flags() {
    let qwen = model("qwen3-30b-a3b", None);
    let mut setup = setup(&qwen, 1, "vllm@0.10.2", H100);
    setup.context_tokens = Some(6144);
    setup.observed.torch_total_gib = Some(79.18);
    let plan = plan(&setup);
    close(plan.computed_weights_gib, 56.93, 0.06);
    close(plan.pool_gib, 8.68, 0.3);
}

#[test]
fn trtllm_takes_its_fraction_of_free_not_of_total() {
    let qwen = model("qwen2.5-0.5b", None);
    for (name, free, fraction, pool, tokens) in [
        ("qwen2.5-0.5b", 8.73, 0.25, 2.18, 190_656.0),
        ("qwen2.5-1.5b", 16.25, 0.45, 7.31, 273_792.0),
    ] {
        let model = model(name, None);
        let mut setup = setup(&model, 1, "trtllm", 24.0);
        setup.observed.free_after_gib = Some(free);
        setup.observed.free_before_gib = Some(22.5);
        setup.fraction = Some(fraction);
        let plan = plan(&setup);
        close(plan.pool_gib, pool, 0.011);
        close(plan.kv_tokens as f64, tokens, tokens * 0.002);
    }
    assert!(plan(&setup(&qwen, 1, "trtllm", 24.0)).fits);
}

#[test]
fn lcpp_001_a_q8_0_latent_cache_is_1166_62_mib() {
    let r1 = model("deepseek-r1", None);
    let layout = KvLayout {
        dtype: KvDtype::Q8_0,
        dsa_fp8: false,
        index_cache: false,
    };
    let cell = r1.kv_bytes_per_token(&Sharding::tp(1), &layout);
    close(cell as f64 * 32_768.0 / 1_048_576.0, 1166.62, 0.05);
}

#[test]
fn fp4_latents_carry_a_scale_per_16() {
    let v3 = model("deepseek-v3", None);
    let cell = v3.kv_bytes_per_token(&Sharding::tp(8), &KvLayout::new(KvDtype::Fp4));
    assert_eq!(cell, 61 * (576 / 2 + 576 / 16));
}

#[test]
fn a_target_load_is_answered_with_the_least_fraction_or_the_nearest_load() {
    let kimi = model("kimi-k2.5", None);
    let setup = story(&kimi, None);
    let reached = kvplan::for_target(&setup, 32_768, 4).expect("plan");
    assert!(reached.reached && reached.plan.max_concurrency >= 4.0);
    let mut lower = setup.clone();
    lower.fraction = Some(reached.fraction - 0.002);
    assert!(plan(&lower).kv_tokens < 4 * 32_768);
    let never = kvplan::for_target(&setup, 262_144, 64).expect("plan");
    assert!(!never.reached && never.requests < 64);
}

#[test]
fn figures_of_a_log_win_over_the_estimate() {
    let llama = model("llama-3.1-8b", None);
    let mut setup = setup(&llama, 1, "sglang@0.4.1", H100);
    setup.observed = Observed {
        free_before_gib: Some(78.81),
        free_after_gib: Some(63.72),
        ..Observed::default()
    };
    let plan = plan(&setup);
    close(plan.pool_gib, 54.26, 0.01);
    close(plan.kv_tokens as f64, 444_500.0, 110.0);
    close(plan.ledger.gib_of("request-to-token"), 1.0, 0.01);
}

#[test]
fn the_draft_pool_of_a_sliding_window_target_is_left_out_of_the_budget() {
    let oss = model("gpt-oss-120b", None);
    let draft = match catalog::find_draft("gpt-oss-120b", "eagle3").expect("draft") {
        catalog::Draft::Head { model, .. } => *model,
        catalog::Draft::Mtp => panic!("a head"),
    };
    let mut setup = setup(&oss, 2, "sglang@0.5.16", PRO_6000);
    setup.fraction = Some(0.85);
    let without = plan(&setup);
    setup.speculation = Some(eagle(&draft));
    let with = plan(&setup);
    assert_eq!(with.kv_bytes_per_token, without.kv_bytes_per_token);
    assert!(with.interval.max < without.interval.max);
}

#[test]
fn vllm_a_35b_hybrid_with_mtp_holds_12_84_requests_of_256k() {
    let qwen = model("qwen3.6-35b-a3b", Some("nvfp4"));
    let mut setup = setup(&qwen, 1, "vllm@0.25", 128.0);
    setup.kv_dtype = Some(KvDtype::Bf16);
    setup.context_tokens = Some(262_144);
    setup.observed.pool_gib = Some(74.22);
    setup.speculation = Some(mtp(3));
    let plan = plan(&setup);
    println!("{} {}", plan.max_concurrency, plan.kv_tokens);
    close(plan.max_concurrency, 12.84, 0.7);
    close(plan.kv_tokens as f64, 3_366_051.0, 200_000.0);
}

#[test]
fn vllm_039_a_hybrids_tokens_are_its_concurrency_times_the_length() {
    let next = model("qwen3-next-80b-a3b", Some("w4a16"));
    for (pool, tokens) in [(16.63, 708_425.0), (5.85, 242_534.0)] {
        let mut setup = setup(&next, 1, "vllm@2026-05", 64.0);
        setup.kv_dtype = Some(KvDtype::Bf16);
        setup.context_tokens = Some(65_536);
        setup.max_running = Some(4);
        setup.observed.pool_gib = Some(pool);
        let plan = plan(&setup);
        println!("{} of {tokens}", plan.kv_tokens);
        close(plan.kv_tokens as f64, tokens, tokens * 0.05);
    }
}

/// Logs that nothing was fitted on: weights (GiB a card) and pool (GiB) from flags alone.
#[test]
fn servers_nothing_was_fitted_on_come_out_within_a_few_percent() {
    let oss = model("gpt-oss-20b", None);
    let mut gb10 = setup(&oss, 1, "vllm@0.13", 121.7);
    gb10.mxfp4_kernels = Some(false);
    gb10.fraction = Some(0.25);
    close(plan(&gb10).computed_weights_gib, 13.72, 0.06);

    let llama = model("llama-3.1-8b", None);
    let mut h200 = setup(&llama, 1, "vllm@0.11.2", H200);
    h200.observed.torch_total_gib = Some(139.8);
    h200.context_tokens = Some(1024);
    close(plan(&h200).computed_weights_gib, 14.96, 0.05);
    close(plan(&h200).pool_gib, 105.97, 1.0);

    let mut v0 = setup(&llama, 1, "vllm@0.6.4", 24.0);
    v0.observed.torch_total_gib = Some(23.58);
    v0.context_tokens = Some(29_000);
    let at_29k = plan(&v0);
    close(at_29k.pool_gib, 2.89, 0.3);
    assert!(at_29k.refusal.is_some());
    // Not monotone: chunked prefill switches on above 32k, and 35k starts.
    v0.context_tokens = Some(35_000);
    assert!(plan(&v0).refusal.is_none());

    let glm = model("glm-5.1", None);
    let mut pro = setup(&glm, 8, "vllm@0.20.2", PRO_6000);
    pro.kv_dtype = Some(KvDtype::Fp8);
    close(plan(&pro).computed_weights_gib, 55.67, 0.3);

    let qwen = model("qwen3-235b-a22b", Some("fp8"));
    let mut h100 = setup(&qwen, 4, "sglang@2025-07", H100);
    h100.fraction = Some(0.93);
    close(plan(&h100).kv_tokens as f64, 367_404.0, 0.03 * 367_404.0);

    let small = model("qwen3-4b", None);
    let mut rtx = setup(&small, 1, "vllm@0.10", 16_303.0 / 1024.0);
    rtx.context_tokens = Some(40_960);
    close(plan(&rtx).pool_gib, 4.89, 0.1);
}
