//! Real servers, one test each: refusals, other engines, loads, logs nothing was fitted on.

mod common;

use common::{H100, H200, PRO_6000, close, model, mtp, plan, setup};
use kvplan::{KvDtype, KvLayout, Model, Observed, Setup, Sharding};

fn story(model: &Model, fraction: Option<f64>) -> Setup<'_> {
    let mut setup = setup(model, 8, "sglang", PRO_6000);
    setup.observed.free_before_gib = Some(94.0);
    setup.observed.free_after_gib = Some(21.7);
    setup.kv_dtype = Some(KvDtype::Bf16);
    setup.fraction = fraction;
    setup
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

/// SGLang keeps a pool of their own for window layers of listed architectures only: Gemma 3 is not
/// on the list, gpt-oss since 2026. vLLM does since its hybrid allocator.
#[test]
fn windows_save_memory_only_where_the_engine_has_a_pool_for_them() {
    let cell = |name: &str, engine: &str| {
        let model = model(name, None);
        let mut setup = setup(&model, 2, engine, PRO_6000);
        setup.kv_dtype = Some(KvDtype::Bf16);
        plan(&setup).kv_bytes_per_token
    };
    let every_layer = |name: &str| {
        let layout = KvLayout::new(KvDtype::Bf16);
        model(name, None).kv_bytes_per_token(&Sharding::tp(2), &layout) as f64
    };
    let gemma = every_layer("gemma-3-27b");
    assert_eq!(cell("gemma-3-27b", "sglang@0.5.5"), gemma);
    assert_eq!(cell("gemma-3-27b", "sglang@0.5.18"), gemma);
    let oss = every_layer("gpt-oss-120b");
    assert_eq!(cell("gpt-oss-120b", "sglang@0.5.5"), oss);
    // Half the layers have windows and get 0.8 of the tokens.
    close(cell("gpt-oss-120b", "sglang@0.5.16"), 0.9 * oss, 1e-6);
    let concurrency = |engine: &str| {
        let gemma = model("gemma-3-27b", None);
        let mut setup = setup(&gemma, 2, engine, PRO_6000);
        setup.context_tokens = Some(65_536);
        plan(&setup).max_concurrency
    };
    assert!(concurrency("vllm@0.11") > 2.0 * concurrency("vllm@0.8.5"));
}

/// The message that a refusal carries changed in June 2026; where a pinned state pool eats a positive
/// rest, the older one still comes.
#[test]
fn sglang_refuses_in_the_words_of_its_version() {
    let llama = model("llama-3.1-8b", None);
    let says = |engine: &str| {
        let mut setup = setup(&llama, 1, engine, H100);
        setup.fraction = Some(0.15);
        plan(&setup).refusal.expect("refused").engine_says
    };
    assert!(says("sglang@0.5.12").starts_with("Not enough memory"));
    let newest = says("sglang@0.5.16");
    assert!(
        newest.contains("minimum viable mem_fraction_static is 0.19"),
        "{newest}"
    );

    let hybrid = model("qwen3.5-27b", None);
    let mut pinned = setup(&hybrid, 1, "sglang@0.5.16", PRO_6000);
    pinned.state_slots = Some(400);
    let refusal = plan(&pinned).refusal.expect("refused");
    assert!(refusal.engine_says.starts_with("Not enough memory"));
    assert!(
        refusal.remedy.contains("--max-mamba-cache-size"),
        "{}",
        refusal.remedy
    );
}

/// sgl-21: weights of 30.06 GiB and more on a card with 30.06 free. The engine advises a fraction
/// above 1.000, which is no setting; the wall is told as it is, not cut to 1.
#[test]
fn weights_larger_than_the_card_are_not_answered_with_a_fraction() {
    let qwen = model("qwen3-30b-a3b", None);
    let mut setup = setup(&qwen, 1, "sglang@2026-07", 32_607.0 / 1024.0);
    setup.observed.free_before_gib = Some(30.06);
    setup.fraction = Some(0.85);
    let plan = plan(&setup);
    let share = plan.computed_weights_gib / 30.06;
    assert!(share > 1.8, "{share}");
    // Weights, and one token of 48 layers x 4 heads x 128 x K and V in two bytes.
    let token_gib = f64::from(48 * 4 * 128 * 2 * 2) / kvplan::GIB;
    close(plan.interval.min, share + token_gib / 30.06, 1e-9);
    let refusal = plan.refusal.expect("refused");
    assert!(refusal.engine_says.starts_with("CUDA out of memory"));
    assert!(refusal.remedy.contains("more GPUs"), "{}", refusal.remedy);
}

/// vllm#21348 and AMD logs of 0.10: NCCL came up after the first look at the card, and counted.
#[test]
fn vllm_counts_nccl_before_0_11_and_the_context_in_its_first_versions() {
    let llama = model("llama-3.1-8b", None);
    let outside = |tp: u64, engine: &str| {
        let ledger = plan(&setup(&llama, tp, engine, H100)).ledger;
        ledger.gib_of("NCCL and context growth") + ledger.gib_of("custom all-reduce")
    };
    close(outside(1, "vllm@0.6.5"), 0.31, 0.01);
    close(outside(1, "vllm@0.7.3"), 0.13, 0.01);
    close(outside(1, "vllm@0.8.5"), 0.31, 0.01);
    close(outside(1, "vllm@0.11"), 0.13, 0.01);
    close(outside(2, "vllm@0.10.2"), 1.67, 0.01);
    close(outside(2, "vllm@0.11"), 0.55, 0.01);
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

/// Blocks of 32: a 16-bit scale, a 16-bit minimum in the _1 types, high bits in the 5-bit ones.
#[test]
fn gguf_cache_types_take_their_blocks() {
    for (name, bytes) in [
        ("q8_0", 34),
        ("q5_1", 24),
        ("q5_0", 22),
        ("q4_1", 20),
        ("q4_0", 18),
    ] {
        let dtype = KvDtype::parse(name).expect(name);
        assert_eq!(dtype.bytes(32), bytes, "{name}");
        let llama = model("llama-3.1-8b", None);
        let mut setup = setup(&llama, 1, "llamacpp", 24.0);
        setup.context_tokens = Some(8192);
        setup.kv_dtype = Some(dtype);
        // 8 heads of 128, keys and values, 32 layers.
        let gib = 8192.0 * 32.0 * 2048.0 / 32.0 * bytes as f64 / kvplan::GIB;
        close(plan(&setup).pool_gib, gib, 1e-9);
    }
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
fn the_nearest_load_named_for_a_target_out_of_reach_fits_below_the_activation_walls_band() {
    let kimi = model("kimi-k2.5", None);
    for (context, requests) in [(262_144, 64), (131_072, 3), (65_536, 7)] {
        let setup = story(&kimi, None);
        let never = kvplan::for_target(&setup, context, requests).expect("plan");
        assert!(!never.reached, "{requests} x {context}");
        assert!(never.fraction <= never.plan.interval.max_low);
        let mut followed = setup.clone();
        followed.fraction = Some(never.fraction);
        followed.context_tokens = Some(never.context_tokens);
        followed.observed.pool_gib = None;
        let plan = plan(&followed);
        assert!(plan.carries(never.context_tokens, requests), "{requests}");
        assert!(!plan.carries(never.context_tokens + 64, requests));
    }
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
fn vllm_a_35b_hybrid_with_mtp_holds_12_84_requests_of_256k() {
    let qwen = model("qwen3.6-35b-a3b", Some("nvfp4"));
    let mut setup = setup(&qwen, 1, "vllm@0.25", 128.0);
    setup.kv_dtype = Some(KvDtype::Bf16);
    setup.context_tokens = Some(262_144);
    setup.observed.pool_gib = Some(74.22);
    setup.observed.pool_with_draft = true;
    setup.speculation = Some(mtp(3));
    let plan = plan(&setup);
    // Blocks of 1072 tokens: the convolution keeps three taps more, and a request four states.
    close(plan.max_concurrency, 12.84, 0.01);
    close(plan.kv_tokens as f64, 3_366_051.0, 2000.0);
}

#[test]
fn vllm_a_hybrids_tokens_are_those_of_the_log_though_requests_hold_less_than_its_limit() {
    let oss = model("gpt-oss-20b", None);
    let mut setup = setup(&oss, 2, "vllm@0.24.0", 24.0);
    setup.context_tokens = Some(1_580);
    setup.observed.pool_gib = Some(12.03);
    setup.observed.tokens = Some(632_003);
    setup.observed.served = true;
    let at_its_own = plan(&setup).kv_tokens;
    assert_ne!(at_its_own, 632_003, "counted as if it were told 1580");
    setup.observed.tokens_context = Some(4096);
    assert_eq!(plan(&setup).kv_tokens, 632_003);
    // A pool of a run with the draft is not this one's: computed, at the same limit.
    setup.observed.pool_with_draft = true;
    let computed = plan(&setup).kv_tokens;
    assert!(computed != 632_003 && computed > at_its_own, "{computed}");
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

/// Logs that shaped a rule or were looked at while choosing one: they guard it, they do not prove
/// it. Weights (GiB a card) and pool (GiB) from flags alone.
#[test]
fn logs_that_shaped_a_rule_are_still_met() {
    // Set the padding of MXFP4 experts without native kernels.
    let oss = model("gpt-oss-20b", None);
    let mut gb10 = setup(&oss, 1, "vllm@0.13", 121.7);
    gb10.mxfp4_kernels = Some(false);
    gb10.fraction = Some(0.25);
    close(plan(&gb10).computed_weights_gib, 13.72, 0.06);

    // The sampler's law was chosen with this pool in view.
    let llama = model("llama-3.1-8b", None);
    let mut h200 = setup(&llama, 1, "vllm@0.11.2", H200);
    h200.observed.torch_total_gib = Some(139.8);
    h200.context_tokens = Some(1024);
    close(plan(&h200).computed_weights_gib, 14.96, 0.05);
    close(plan(&h200).pool_gib, 105.97, 1.0);

    // One of the two logs the forward pass is fitted on. Not monotone: chunked prefill switches on
    // above 32k, and 35k starts.
    let mut v0 = setup(&llama, 1, "vllm@0.6.4", 24.0);
    v0.observed.torch_total_gib = Some(23.58);
    v0.context_tokens = Some(29_000);
    let at_29k = plan(&v0);
    close(at_29k.pool_gib, 2.89, 0.06);
    assert!(at_29k.refusal.is_some());
    v0.context_tokens = Some(35_000);
    assert!(plan(&v0).refusal.is_none());

    // Prompted the line for sparse-attention workspaces; its weights set nothing.
    let glm = model("glm-5.1", None);
    let mut pro = setup(&glm, 8, "vllm@0.20.2", PRO_6000);
    pro.kv_dtype = Some(KvDtype::Fp8);
    close(plan(&pro).computed_weights_gib, 55.67, 0.3);
}

/// The two logs of this file that set no constant and chose no rule.
#[test]
fn two_servers_that_set_no_constant_come_out_within_2_percent() {
    let qwen = model("qwen3-235b-a22b", Some("fp8"));
    let mut h100 = setup(&qwen, 4, "sglang@2025-07", H100);
    h100.fraction = Some(0.93);
    close(plan(&h100).kv_tokens as f64, 367_404.0, 0.02 * 367_404.0);

    let small = model("qwen3-4b", None);
    let mut rtx = setup(&small, 1, "vllm@0.10", 16_303.0 / 1024.0);
    rtx.context_tokens = Some(40_960);
    close(plan(&rtx).pool_gib, 4.89, 0.02 * 4.89);
}

/// Figures of docs/kvplan.md under "Misses": (predicted, logged). What is predicted here must be
/// what the page says, so that a change of a rule shows there too.
#[test]
fn known_misses_are_as_large_as_the_notes_say() {
    let qwen = model("qwen3-235b-a22b", Some("fp8"));
    let pool = plan(&setup(&qwen, 4, "vllm@0.10", H100)).pool_gib;
    close(pool, 8.81, 0.05); // logged 8.11

    let awq = model("qwen2.5-14b", Some("awq"));
    let weights = plan(&setup(&awq, 1, "vllm@0.10", 24.0)).computed_weights_gib;
    close(weights, 9.30, 0.01); // logged 9.49

    let v4 = model("deepseek-v4-pro", None);
    let weights = plan(&setup(&v4, 8, "sglang@2026-07", H200)).computed_weights_gib;
    close(weights, 101.3, 0.1); // about 126 from its minimum fraction
}

/// vLLM prints target and MTP together: 21.8 beside 23.45 was the target alone.
#[test]
fn a_35b_loads_its_mtp_layers_with_its_weights() {
    let qwen = model("qwen3.6-35b-a3b", Some("nvfp4"));
    let mut setup = setup(&qwen, 1, "vllm@0.25.1", 122.13);
    setup.speculation = Some(mtp(3));
    let plan = plan(&setup);
    let loaded = plan.computed_weights_gib + plan.ledger.gib_of("draft: weights");
    close(loaded, 23.45, 0.02 * 23.45);
}

/// 256 experts of 75 layers at 4.5 bits are 380 GiB: a quarter is 95, and a 96 GB card has 95.6.
/// The notes of vllm-033 served something smaller (their model was named by its cell alone).
#[test]
fn vllm_033_an_unpruned_glm_5_2_in_nvfp4_cannot_lie_on_four_96_gb_cards() {
    let glm = model("glm-5.2", Some("nvfp4"));
    let mut four = setup(&glm, 4, "vllm@2026-06", PRO_6000);
    four.kv_dtype = Some(KvDtype::Fp8);
    four.sharding.dcp = 4;
    four.context_tokens = Some(250_000);
    let plain = plan(&four);
    assert!(
        plain.computed_weights_gib > PRO_6000,
        "{}",
        plain.computed_weights_gib
    );
    let refusal = plain.refusal.expect("refused");
    assert!(refusal.remedy.contains("more GPUs"), "{}", refusal.remedy);
    assert!(!refusal.remedy.contains("draft"), "{}", refusal.remedy);
    // Their pool lost 6.96 GiB to MTP: the 4.8 of weights and tables here, the rest graphs (an
    // estimate) and what the run of the draft adds to the profile.
    four.speculation = Some(mtp(3));
    let cost = kvplan::speculation_cost(&four).expect("cost");
    close(cost.draft_gib, 6.96, 0.22 * 6.96);
}

/// The cache of 50 sliding layers was counted over the whole context, in an fp8 that llama.cpp does
/// not have: 55 GiB for Gemma-4-31B at 131,072 tokens.
#[test]
fn llama_cpp_keeps_windows_of_sliding_layers_in_16_bits() {
    let gemma = model("gemma-4-31b", Some("nvfp4"));
    let mut setup = setup(&gemma, 1, "llamacpp", 96.0);
    setup.context_tokens = Some(131_072);
    let now = plan(&setup);
    // 10 layers see all (4 heads of 512, keys and values), 50 see 1024 (16 heads of 256); a cache
    // of the window and one micro-batch of 512.
    let full = 131_072.0 * 10.0 * 4.0 * 1024.0 * 2.0;
    let windows = 1536.0 * 50.0 * 16.0 * 512.0 * 2.0;
    close(now.pool_gib, (full + windows) / kvplan::GIB, 0.01);
    assert_eq!(now.kv_dtype, KvDtype::Bf16);
    setup.engine = kvplan::Engine::parse("llamacpp@2024-06").expect("engine");
    assert!(plan(&setup).pool_gib > 5.0 * now.pool_gib);
}

/// 0 GiB free before the weights, as a cut log can say, gave a pool of NaN.
#[test]
fn nothing_free_before_the_weights_is_refused_not_divided_by() {
    let llama = model("llama-3.1-8b", None);
    for engine in ["sglang", "vllm", "trtllm"] {
        let mut setup = setup(&llama, 1, engine, 80.0);
        setup.observed.free_before_gib = Some(0.0);
        setup.observed.free_after_gib = Some(0.0);
        let error = kvplan::plan(&setup).expect_err(engine);
        assert!(error.to_string().starts_with("free before"), "{error}");
    }
}
