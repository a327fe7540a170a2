//! Real servers, one test each: the default scenario, sparse attention, hybrids, drafts by era,
//! automatic fractions. Figures from public logs.

mod common;

use common::{H100, H200, PRO_6000, close, head_of, model, mtp, plan, setup};
use kvplan::{GIB, Known, KvDtype, KvLayout, Model, Setup, Sharding, SpecKind, Speculation};

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
fn workspaces_of_sparse_attention_are_of_the_longest_request_that_the_server_takes() {
    let glm = model("glm-5.1", None);
    let workspaces = |context: u64, served: Option<u64>, fraction: f64| {
        let mut setup = setup(&glm, 8, "vllm@2026-05", PRO_6000);
        setup.kv_dtype = Some(KvDtype::Fp8);
        setup.fraction = Some(fraction);
        setup.context_tokens = Some(context);
        setup.served_context = served;
        let plan = plan(&setup);
        let gib = plan.ledger.gib_of("sparse-attention workspaces");
        (gib, plan.interval.min)
    };
    let served = Some(202_752);
    let (told, _) = workspaces(202_752, None, 0.89);
    let (long, wall) = workspaces(8192, served, 0.89);
    let (short, short_wall) = workspaces(8192, None, 0.89);
    assert_eq!(long, told);
    assert!(long > short + 1.5, "{long} {short}");
    // The wall of a request is that of a server told no more, and one whose pool is less is told less.
    close(wall, short_wall, 1e-9);
    assert_eq!(workspaces(8192, served, wall + 0.01).0, short);
}

#[test]
fn vllm_017_an_mtp_layer_is_one_more_layer_of_the_pool() {
    let glm = model("glm-5.1", None);
    let mut setup = setup(&glm, 8, "vllm@2026-05", PRO_6000);
    setup.kv_dtype = Some(KvDtype::Fp8);
    setup.fraction = Some(0.89);
    setup.context_tokens = Some(202_752);
    setup.observed.pool_gib = Some(25.09);
    setup.observed.pool_with_draft = true;
    setup.speculation = Some(mtp(3));
    let plan = plan(&setup);
    assert_eq!(plan.kv_bytes_per_token as u64, 62_252);
    close(plan.kv_tokens as f64, 432_832.0, 160.0);
    close(plan.max_concurrency, 2.13, 0.01);
}

// ---- hybrids ------------------------------------------------------------------------------------

#[test]
fn vllm_015_sliding_layers_are_padded_into_groups() {
    let gemma = model("gemma-3-27b", None);
    let mut setup = setup(&gemma, 1, "vllm@0.11", 192.0);
    setup.context_tokens = Some(4096);
    setup.observed.pool_gib = Some(109.86);
    let plan = plan(&setup);
    close(plan.printed_tokens(setup.engine) as f64, 205_696.0, 16.0);
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
    let printed = plan.printed_tokens(setup.engine);
    close(printed as f64, 2_640_144.0, 600.0);
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
    head_of("llama-3.1-8b")
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
    close(ledger.freed_gib, 4.74, 0.01);
    close(ledger.draft_loaded_gib(), 5.53, 0.06);
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
fn an_eagle_heads_weights_and_pool_lie_in_the_reserve_up_to_0_5_13_and_in_the_budget_after() {
    let llama = model("llama-3.1-8b", None);
    let draft = llama_draft();
    let at = |version: &str, kind: Option<SpecKind>| {
        let mut setup = setup(&llama, 1, version, H100);
        setup.fraction = Some(0.8);
        setup.speculation = kind.map(|kind| Speculation {
            kind,
            ..eagle(&draft)
        });
        plan(&setup)
    };
    let eagle = Some(SpecKind::Eagle);
    for version in [
        "sglang@0.4.6",
        "sglang@0.5.5",
        "sglang@0.5.11",
        "sglang@0.5.13",
    ] {
        let (with, without) = (at(version, eagle), at(version, None));
        assert_eq!(
            with.kv_tokens, without.kv_tokens,
            "{version}: the pool does not see the draft"
        );
        assert!(
            with.interval.max < without.interval.max,
            "{version}: the reserve does"
        );
    }
    // Block drafts were priced first, their weights counted with those of heads.
    let block = at("sglang@0.5.13", Some(SpecKind::Block));
    let counted = at("sglang@0.5.14", eagle);
    assert!(block.kv_tokens < at("sglang@0.5.13", None).kv_tokens);
    assert!(
        counted.kv_tokens < block.kv_tokens,
        "weights are counted too"
    );
    let old = at("sglang@0.4.6", eagle);
    assert!(old.ledger.gib_of("verify: slots above the budget") > 0.0);
}

/// `_cell_size * (1 + draft layers / layers)` (pool_configurator.py of 0.5.14 to 0.5.23): 1,152 B a layer
/// of Kimi's compressed keys, where its head keeps eight times that.
#[test]
fn the_budget_prices_a_heads_layer_as_one_of_the_targets() {
    let kimi = model("kimi-k2.5", None);
    let draft = head_of("kimi-k2.5");
    let mut setup = setup(&kimi, 8, "sglang@0.5.16", H200);
    setup.speculation = Some(eagle(&draft));
    let with = plan(&setup);
    close(with.kv_bytes_per_token, 62.0 * 1_152.0, 1.0);
    let pool = with.ledger.gib_of("draft: KV pool");
    assert!(pool > 1.5 * with.kv_tokens as f64 * 1_152.0 / GIB, "{pool}");
    close(with.ledger.sum(), H200, 1e-9);
}

/// Servers of 0.5.13 on H200 with weights at random, run for docs/HARDWARE.md: tokens of the pool without
/// and with an EAGLE-3 head, all at the fractions SGLang chose.
#[test]
fn pools_of_sglang_0_5_13_on_h200_are_foretold_from_flags_with_a_head_and_without() {
    for (name, tp, tokens, fractions) in [
        ("llama-3.1-8b", 1, [906_067, 874_140], [0.903, 0.875]),
        ("llama-3.3-70b", 2, [386_378, 361_004], [0.902, 0.874]),
        ("qwen3-32b", 1, [264_521, 248_558], [0.903, 0.875]),
        ("qwen3-30b-a3b", 1, [750_533, 707_962], [0.903, 0.875]),
    ] {
        let target = model(name, None);
        let draft = head_of(name);
        for (drafts, (seen, fraction)) in tokens.iter().zip(fractions).enumerate() {
            let mut setup = setup(&target, tp, "sglang@0.5.13", H200);
            setup.speculation = (drafts == 1).then(|| eagle(&draft));
            let plan = plan(&setup);
            close(
                plan.automatic_fraction.expect("sglang has one"),
                fraction,
                0.0006,
            );
            close(plan.kv_tokens as f64 / f64::from(*seen), 1.0, 0.006);
        }
    }
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

/// 0.5.13 to 0.5.19 had the chunk and the graphs of 0.5.20, and so 3 GiB more in reserve.
#[test]
fn cards_of_20_to_35_gib_keep_the_small_chunk_up_to_0_5_19() {
    let qwen = model("qwen3-8b", None);
    let auto = |version: &str, tp| plan(&setup(&qwen, tp, version, 24.0)).automatic_fraction;
    // 512 + 1.5 x 2048 + 2 x 24 + 128 MiB; on four cards 2 x 80 and 512.
    assert_eq!(auto("sglang@0.5.6", 1), Some(0.847));
    // And 8 MiB for each of 42 sizes of prefill, 50 with the larger chunk.
    assert_eq!(auto("sglang@0.5.19", 1), Some(0.833));
    assert_eq!(auto("sglang@0.5.19", 4), Some(0.813));
    // 512 + 1.5 x 4096 + 2 x 48 + 128 MiB.
    assert_eq!(auto("sglang@0.5.20", 1), Some(0.704));
}

#[test]
fn the_automatic_fraction_of_kimi_on_96_gb_is_below_its_weights() {
    let kimi = model("kimi-k2.6", None);
    let plan = plan(&setup(&kimi, 8, "sglang@0.5.12", 97_871.0 / 1024.0));
    assert!(plan.automatic_fraction.expect("auto") < plan.interval.min + 0.01);
}

#[test]
fn the_draft_pool_of_a_sliding_window_target_is_left_out_of_the_budget_up_to_0_5_14() {
    let oss = model("gpt-oss-120b", None);
    let draft = head_of("gpt-oss-120b");
    let at = |version: &str, drafts: bool| {
        let mut setup = setup(&oss, 2, version, PRO_6000);
        setup.fraction = Some(0.85);
        setup.speculation = drafts.then(|| eagle(&draft));
        plan(&setup)
    };
    let (with, without) = (at("sglang@0.5.14", true), at("sglang@0.5.14", false));
    assert_eq!(with.kv_bytes_per_token, without.kv_bytes_per_token);
    assert!(with.ledger.gib_of("draft: KV pool") > 0.0);
    assert!(with.interval.max < without.interval.max + with.ledger.freed_gib / PRO_6000);
    assert!(at("sglang@0.5.15", true).kv_bytes_per_token > without.kv_bytes_per_token);
}

/// A server of two cards had 5.12 GB free once the draft's pool was there and 5.39 when its graphs began,
/// a second rank 5.42 and 5.70: the head's embedding stood in the ledger for good.
#[test]
fn an_eagle3_heads_own_embedding_is_let_go_before_its_graphs() {
    let moe = model("qwen3-30b-a3b", None);
    let draft = head_of("qwen3-30b-a3b");
    let mut setup = setup(&moe, 2, "sglang@0.5.5", 64.0);
    setup.speculation = Some(eagle(&draft));
    let ledger = plan(&setup).ledger;
    close(ledger.freed_gib, 5.39 - 5.12, 0.03);
    close(ledger.sum(), 64.0, 1e-9);
}

/// gpt-oss-20b drafts for gpt-oss-120b: half the layers of both keep a window of 128, and all are of
/// one width, so the pool is theirs by layers: 36 of the target, 24 of the draft.
#[test]
fn vllm_splits_the_pool_between_two_windowed_models_by_what_their_layers_keep() {
    let (oss, small) = (model("gpt-oss-120b", None), model("gpt-oss-20b", None));
    let mut setup = setup(&oss, 2, "vllm@0.24", PRO_6000);
    setup.context_tokens = Some(32_768);
    setup.speculation = Some(Speculation {
        kind: SpecKind::Standalone,
        draft: Some(&small),
        steps: 3,
        topk: 1,
        draft_tokens: 4,
    });
    let plan = plan(&setup);
    let line = |item: &str| {
        let found = plan.ledger.lines.iter().find(|line| line.item == item);
        found.map_or(0.0, |line| line.gib)
    };
    let (target, draft) = (line("target: KV pool"), line("draft: KV pool"));
    close(draft / (target + draft), 24.0 / 60.0, 1e-9);
    close(target + draft, plan.pool_gib, 1e-9);
}
