//! Families of 2024 to 2026 by the fields their public configs use: parameters as the model cards
//! publish them, KV bytes a token by hand. Configs as deep as a pattern can make them.

use std::time::{Duration, Instant};

use kvplan::{Attention, Ffn, KvDtype, KvLayout, Model, Sharding};
use serde_json::{Value, json};

fn table() -> Vec<Value> {
    serde_json::from_str(include_str!("published.json")).expect("the table is JSON")
}

fn read(config: &Value, name: &str) -> Model {
    Model::from_config_json(&config.to_string(), name).unwrap_or_else(|error| panic!("{error}"))
}

fn named(name: &str) -> Model {
    let row = table().into_iter().find(|row| row["name"] == name);
    read(&row.expect("in the table")["config"], name)
}

fn cell(model: &Model) -> u64 {
    model.kv_bytes_per_token(&Sharding::tp(1), &KvLayout::new(KvDtype::Bf16))
}

#[test]
fn parameters_are_within_one_percent_of_the_model_cards() {
    let mut wrong = Vec::new();
    for row in table() {
        let name = row["name"].as_str().expect("a name");
        let model = read(&row["config"], name);
        let billions = model.total_params() as f64 / 1e9;
        let published = row["billions"].as_f64().expect("billions");
        if (billions / published - 1.0).abs() > 0.01 {
            wrong.push(format!("{name}: {billions:.2} B, published {published}"));
        }
        if Some(cell(&model)) != row["kv_bytes_per_token"].as_u64() {
            wrong.push(format!("{name}: {} bytes a token", cell(&model)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ring and Ling linear: four full layers of twenty; the rest were counted as full attention.
#[test]
fn lightning_groups_end_in_a_layer_that_attends() {
    let ring = named("ring-mini-linear");
    for (index, layer) in ring.layers.iter().enumerate() {
        let attends = matches!(layer.attention, Attention::Gqa(_));
        assert_eq!(attends, index % 5 == 4, "layer {index}");
    }
    assert_eq!(cell(&ring), 4 * 4 * 128 * 2 * 2);
    let state = ring.state_bytes_per_request(&Sharding::tp(1)).ssm;
    assert_eq!(state, 16 * 16 * 128 * 128 * 4);
}

/// LongCat's layer has two attentions: 56 latents a token in 28 layers.
#[test]
fn a_longcat_layer_caches_twice_and_has_experts_once() {
    let longcat = named("longcat-flash");
    assert_eq!(cell(&longcat), 2 * 28 * (512 + 64) * 2);
    let mixtures = longcat.layers.iter().map(|layer| layer.ffn);
    let mixtures = mixtures.filter(|ffn| matches!(ffn, Ffn::Moe(_)));
    assert_eq!(mixtures.count(), 28);
    // The module drafts with a dense layer: well under a billion, not 20.
    assert!(longcat.mtp_params() < 1_000_000_000);
}

/// Step 3.5: 8 KV heads in every layer under another name, 96 query heads where there is a window,
/// experts by an enumeration in text, dense draft layers.
#[test]
fn step_names_its_kv_heads_groups() {
    let step = named("step-3.5-flash");
    for (index, layer) in step.layers.iter().enumerate() {
        let Attention::Gqa(gqa) = layer.attention else {
            panic!("layer {index} has no softmax attention")
        };
        assert_eq!(
            (gqa.heads, gqa.kv_heads),
            if index % 4 == 0 { (64, 8) } else { (96, 8) }
        );
        assert_eq!(matches!(layer.ffn, Ffn::Moe(_)), index >= 3);
    }
    assert!(step.mtp_params() < 1_000_000_000, "{}", step.mtp_params());
}

/// Mistral-Large-3 and Mistral-Small as their `params.json` has them: it was refused for its names.
#[test]
fn mistrals_own_params_are_read_as_the_config_they_stand_for() {
    let large = read(
        &json!({"dim": 7168, "n_layers": 61, "head_dim": 192, "hidden_dim": 16_384,
            "n_heads": 128, "n_kv_heads": 128, "vocab_size": 131_072, "tied_embeddings": false,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "max_seq_len": 294_912,
            "moe": {"num_experts": 128, "num_experts_per_tok": 4, "expert_hidden_dim": 4096,
                "num_shared_experts": 1, "first_k_dense_replace": 3},
            "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
            "vision_encoder": {"hidden_size": 1664, "num_hidden_layers": 48,
                "intermediate_size": 8192}}),
        "params.json",
    );
    let billions = large.total_params() as f64 / 1e9;
    assert!((billions / 675.0 - 1.0).abs() < 0.01, "{billions}");
    assert_eq!(cell(&large), 61 * (512 + 64) * 2);
    assert_eq!(large.layers[10].formats.experts, kvplan::WeightFormat::Fp8);
    let small = read(
        &json!({"dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 32_768,
            "n_heads": 32, "n_kv_heads": 8, "rope_theta": 1e8, "norm_eps": 1e-5,
            "vocab_size": 131_072, "max_position_embeddings": 131_072}),
        "params.json",
    );
    assert_eq!(cell(&small), 40 * 8 * 128 * 2 * 2);
    let billions = small.total_params() as f64 / 1e9;
    assert!((billions / 23.57 - 1.0).abs() < 0.01, "{billions}");
}

/// ERNIE-4.5-VL lists the widths of its text and vision experts; it was refused for that.
#[test]
fn text_and_vision_experts_count_together() {
    let config = |width: Value| {
        let config = json!({"model_type": "ernie4_5_moe_vl", "hidden_size": 2560,
            "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4,
            "intermediate_size": 12_288, "moe_num_experts": [64, 64],
            "moe_intermediate_size": width, "moe_k": 6, "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1, "vocab_size": 103_424});
        Model::from_config_json(&config.to_string(), "ernie")
    };
    let both = config(json!([1536, 512])).unwrap_or_else(|e| panic!("{e}"));
    let text = config(json!(1536)).unwrap_or_else(|e| panic!("{e}"));
    let more = both.total_params() - text.total_params();
    assert_eq!(
        more,
        27 * 64 * 3 * 2560 * 512,
        "the shared ones are of the first width"
    );
    assert!(config(json!([1536, 512, 7])).is_err());
}

/// Pixtral's tower has three matrices a feed-forward: 0.4 B in Mistral-Small, not 0.3.
#[test]
fn a_gated_vision_tower_is_counted_with_its_gate() {
    let tower = |kind: &str| {
        let config = json!({"model_type": "mistral3",
            "text_config": {"model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40,
                "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "intermediate_size": 32_768, "vocab_size": 131_072},
            "vision_config": {"model_type": kind, "hidden_size": 1024, "num_hidden_layers": 24,
                "intermediate_size": 4096}});
        read(&config, kind).vision.expect("a tower").params as f64 / 1e9
    };
    assert!(
        (tower("pixtral") - 0.44).abs() < 0.01,
        "{}",
        tower("pixtral")
    );
    assert!((tower("siglip") - 0.34).abs() < 0.01, "{}", tower("siglip"));
}

/// Exaone writes the pattern as letters; it was refused as no number.
#[test]
fn a_window_pattern_of_letters_is_read() {
    let exaone = named("exaone-4-32b");
    let full = exaone.layers.iter().filter(|layer| match layer.attention {
        Attention::Gqa(gqa) => gqa.window.is_none(),
        _ => false,
    });
    assert_eq!(full.count(), 16);
}

/// Configs as deep as `layers`, each with lists of that length.
fn deep(layers: usize) -> Vec<(&'static str, String)> {
    let pattern = json!({"model_type": "nemotron_h", "hidden_size": 4480, "vocab_size": 131_072,
        "num_hidden_layers": layers, "intermediate_size": 15_680, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 80,
        "ssm_state_size": 128, "n_groups": 8,
        "hybrid_override_pattern": "M-*-".repeat(layers / 4)});
    let mixture = |more: Value| {
        let mut config = json!({"model_type": "qwen3_moe", "hidden_size": 4096,
            "num_hidden_layers": layers, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 12_288, "moe_intermediate_size": 1536,
            "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151_936});
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        config
    };
    let excluding = |tail: &str| {
        let names = (0..layers).map(|layer| format!("model.layers.{layer}.{tail}"));
        let names: Vec<String> = names.collect();
        let block = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": names});
        mixture(json!({"quantization_config": block}))
    };
    let block = |layer: usize| {
        json!({"attention": {"n_heads_in_group": 8, "window_length": layer + 1},
               "ffn": {"ffn_mult": 2.0}})
    };
    let searched: Vec<Value> = (0..layers).map(block).collect();
    let dense: Vec<usize> = (0..layers).collect();
    let configs = [
        ("letters", pattern),
        ("dense layers", mixture(json!({"mlp_only_layers": dense}))),
        (
            "a width a layer",
            mixture(json!({"moe_intermediate_size": vec![1536; layers]})),
        ),
        ("exclusions", excluding("self_attn.q_proj")),
        ("globs", excluding("self_attn*")),
        ("a search", mixture(json!({"block_configs": searched}))),
    ];
    configs
        .map(|(what, config)| (what, config.to_string()))
        .into()
}

/// Lists as long as the model is deep were searched, or built, anew for every layer: optimised, 4000
/// layers by letters took 1.6 s, 4000 with their exclusions 18 s, and 10,000 six times as long. The
/// bound leaves room for a busy machine.
#[test]
fn a_config_of_ten_thousand_layers_is_read_in_linear_time() {
    for (what, text) in deep(10_000) {
        let start = Instant::now();
        let model = Model::from_config_json(&text, what).unwrap_or_else(|e| panic!("{e}"));
        assert!(model.total_params() > 0);
        let took = start.elapsed();
        println!("{what}: {took:?}");
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}

/// A list with an entry a layer gives each layer its own.
#[test]
fn a_width_a_layer_is_taken_layer_by_layer() {
    let config = json!({"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 3,
        "num_attention_heads": 8, "vocab_size": 1000, "intermediate_size": [1024, 2048, 4096]});
    let model = read(&config, "matryoshka");
    let widths = model.layers.iter().map(|layer| match layer.ffn {
        Ffn::Dense { inter, .. } => inter,
        _ => 0,
    });
    assert_eq!(widths.collect::<Vec<_>>(), [1024, 2048, 4096]);
    let short = json!({"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 3,
        "num_attention_heads": 8, "vocab_size": 1000, "intermediate_size": [1024, 2048]});
    let error = Model::from_config_json(&short.to_string(), "short").expect_err("two for three");
    assert!(error.to_string().contains("intermediate_size"), "{error}");
}
