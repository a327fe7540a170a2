//! Hybrids: which layers cache, which keep a state, by the fields their public configs use.
//! Parameter counts are those the model cards give.

use kvplan::{KvDtype, KvLayout, Model, Sharding};

/// Billions of parameters, KV bytes a token, state bytes a request; 16 bits, one card.
fn read(config: &str) -> (f64, u64, u64) {
    let model = Model::from_config_json(config, "hybrid").unwrap_or_else(|e| panic!("{e}"));
    let one = Sharding::tp(1);
    (
        model.total_params() as f64 / 1e9,
        model.kv_bytes_per_token(&one, &KvLayout::new(KvDtype::Bf16)),
        model.state_bytes_per_request(&one).ssm,
    )
}

#[track_caller]
fn near(got: f64, expected: f64) {
    assert!(
        (got / expected - 1.0).abs() < 0.01,
        "{got}, expected {expected}"
    );
}

#[test]
fn jamba_attends_in_one_layer_of_eight_and_mixes_experts_in_every_second() {
    // Jamba-1.5-Mini, 51.6 B: layers 4, 12, 20, 28 attend, the odd ones have 16 experts.
    let config = |offset: u64| {
        format!(
            r#"{{"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
            "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2,
            "attn_layer_period": 8, "attn_layer_offset": {offset}, "expert_layer_period": 2,
            "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_expand": 2, "mamba_d_conv": 4}}"#
        )
    };
    let (billions, cell, state) = read(&config(4));
    near(billions, 51.6);
    assert_eq!(cell, 4 * 8 * 128 * 2 * 2);
    assert_eq!(state, 28 * 8192 * 16 * 4);
    let model = Model::from_config_json(&config(4), "jamba").unwrap_or_else(|e| panic!("{e}"));
    for (index, layer) in model.layers.iter().enumerate() {
        let attends = matches!(layer.attention, kvplan::Attention::Gqa(_));
        assert_eq!(attends, index % 8 == 4, "layer {index}");
        let experts = matches!(layer.ffn, kvplan::Ffn::Moe(_));
        assert_eq!(experts, index % 2 == 1, "layer {index}");
    }
    // The offset moves the layers and adds none.
    assert_eq!(read(&config(0)).1, cell);
}

#[test]
fn nemotron_h_is_read_by_the_letters_of_its_pattern() {
    // Nemotron-H-56B: 54 M, 10 *, 54 - in 118 letters.
    let pattern = format!("M-M-M-M*-{}M-M-M-M-M-", "M-M-M-M-M*-".repeat(9));
    let (mamba, stars) = (54, 10);
    let (billions, cell, state) = read(&format!(
        r#"{{"model_type": "nemotron_h", "hidden_size": 8192, "num_hidden_layers": {},
            "num_attention_heads": 64, "num_key_value_heads": 8, "attention_head_dim": 128,
            "vocab_size": 131072, "intermediate_size": 32768, "mamba_num_heads": 256,
            "mamba_head_dim": 64, "ssm_state_size": 256, "n_groups": 8, "mlp_hidden_act": "relu2",
            "hybrid_override_pattern": "{pattern}"}}"#,
        pattern.len()
    ));
    near(billions, 56.3);
    assert_eq!(cell, stars * 8 * 128 * 2 * 2);
    assert_eq!(state, mamba * 256 * 64 * 256 * 4);
}

#[test]
fn qwen3_next_attends_fully_in_the_last_layer_of_every_interval() {
    // Qwen3-Next-80B-A3B has no layer_types, only the interval.
    let (billions, cell, state) = read(
        r#"{"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "vocab_size": 151936, "intermediate_size": 5120, "num_experts": 512,
            "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "full_attention_interval": 4,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128}"#,
    );
    near(billions, 79.7);
    assert_eq!(cell, 12 * 2 * 256 * 2 * 2);
    assert_eq!(state, 36 * 32 * 128 * 128 * 4);
}

/// llama.cpp prints 72 MiB of S and 3.37 of R for one slot of it; they were not on the ledger.
#[test]
fn llama_cpp_keeps_a_state_for_every_slot() {
    let next = kvplan::catalog::find("qwen3-next-80b-a3b").unwrap_or_else(|e| panic!("{e}"));
    let engine = kvplan::Engine::parse("llamacpp").unwrap_or_else(|e| panic!("{e}"));
    let states = |slots| {
        let mut setup = kvplan::Setup::new(&next.model, Sharding::tp(1), engine, 288.0);
        setup.context_tokens = Some(8192);
        setup.max_running = Some(slots);
        let plan = kvplan::plan(&setup).unwrap_or_else(|e| panic!("{e}"));
        plan.ledger.gib_of("recurrent states") * 1024.0
    };
    assert!((states(1) - 75.375).abs() < 0.01, "{}", states(1));
    assert!((states(4) / states(1) - 4.0).abs() < 1e-9);
}

#[test]
fn falcon_h1_has_attention_and_mamba_in_every_layer() {
    // Falcon-H1-7B, 7.59 B: the Mamba branch was not counted, and its state was 0.
    let (billions, cell, state) = read(
        r#"{"model_type": "falcon_h1", "hidden_size": 3072, "num_hidden_layers": 44,
            "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
            "vocab_size": 130048, "intermediate_size": 12288, "mamba_d_conv": 4,
            "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_expand": 2,
            "mamba_n_groups": 1, "mamba_n_heads": 24, "tie_word_embeddings": false}"#,
    );
    near(billions, 7.59);
    assert_eq!(cell, 44 * 2 * 128 * 2 * 2);
    assert_eq!(state, 44 * 24 * 128 * 256 * 4);
}

#[test]
fn lfm2_caches_only_where_its_index_list_says_and_shrinks_its_feed_forward() {
    // LFM2-1.2B, 1.17 B: 6 of 16 layers attend; 12288 written, 8192 used.
    let (billions, cell, state) = read(
        r#"{"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
            "block_ff_dim": 12288, "block_multiple_of": 256, "block_auto_adjust_ff_dim": true,
            "block_ffn_dim_multiplier": 1.0, "conv_L_cache": 3, "tie_embedding": true,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14]}"#,
    );
    near(billions, 1.17);
    assert_eq!(cell, 6 * 8 * 64 * 2 * 2);
    assert_eq!(state, 0);
}

#[test]
fn granite_hybrids_without_experts_take_the_shared_width() {
    // Granite-4.0-h-micro, 3.19 B; 4 of 40 layers attend; head size "auto" in some releases.
    let mut kinds = vec!["\"mamba\""; 40];
    for layer in [5, 15, 25, 35] {
        kinds[layer] = "\"attention\"";
    }
    let (billions, cell, state) = read(&format!(
        r#"{{"model_type": "granitemoehybrid", "hidden_size": 2048, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 100352,
            "intermediate_size": 512, "shared_intermediate_size": 8192, "num_local_experts": 0,
            "num_experts_per_tok": 0, "mamba_n_heads": 64, "mamba_d_head": "auto",
            "mamba_expand": 2, "mamba_d_state": 128, "mamba_n_groups": 1,
            "tie_word_embeddings": true, "layer_types": [{}]}}"#,
        kinds.join(",")
    ));
    near(billions, 3.19);
    assert_eq!(cell, 4 * 8 * 64 * 2 * 2);
    assert_eq!(state, 36 * 64 * 64 * 128 * 4);
}

#[test]
fn gemma_3n_keeps_no_cache_in_its_last_layers() {
    // Gemma-3n-E4B: 20 of 35 layers cache; 6.87 B with the embeddings every layer has.
    let kinds: Vec<&str> = (1..=35)
        .map(|layer| {
            if layer % 5 == 0 {
                "\"full_attention\""
            } else {
                "\"sliding_attention\""
            }
        })
        .collect();
    let (billions, cell, _) = read(&format!(
        r#"{{"model_type": "gemma3n_text", "hidden_size": 2048, "num_hidden_layers": 35,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
            "vocab_size": 262400, "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256, "intermediate_size": 16384,
            "num_kv_shared_layers": 15, "sliding_window": 512, "layer_types": [{}]}}"#,
        kinds.join(",")
    ));
    near(billions, 6.87);
    assert_eq!(cell, 20 * 2 * 256 * 2 * 2);
}

#[test]
fn mixers_that_nothing_describes_are_refused_not_counted_as_attention() {
    for kind in ["recurrent_gemma", "zamba2", "rwkv7", "falcon_mamba"] {
        let config = format!(
            r#"{{"model_type": "{kind}", "hidden_size": 2560, "num_hidden_layers": 26,
                "num_attention_heads": 10, "vocab_size": 256000, "intermediate_size": 15360}}"#
        );
        let error = Model::from_config_json(&config, kind).expect_err(kind);
        assert!(error.to_string().contains("not modelled"), "{error}");
    }
}
