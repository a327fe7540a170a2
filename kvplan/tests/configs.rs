//! Every collected config: read rightly, or refused with a reason.

use std::path::PathBuf;

use kvplan::{KvDtype, KvLayout, Model, Sharding};

/// The data folder, or `None` (with a line printed) where it is absent.
fn data() -> Option<PathBuf> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let path = std::env::var_os("SHARED_DATA").map_or_else(|| default.into(), PathBuf::from);
    if path.join("hf_configs/index.tsv").is_file() {
        return Some(path);
    }
    println!("skipped: no data folder at {}", path.display());
    None
}

fn read(folder: &std::path::Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// ChatGLM's index row counts 32 key-value heads; the config says `multi_query_group_num` 2.
const INDEX_WRONG: &[&str] = &["mlc_presets/chatglm.json"];

#[test]
fn every_indexed_config_has_the_kv_bytes_of_the_index() {
    let Some(data) = data() else { return };
    let folder = data.join("hf_configs");
    let index = read(&folder, "index.tsv");
    let mut lines = index.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
    let column = |name: &str| header.iter().position(|h| *h == name).expect("column");
    let (kv, indexer) = (
        column("kv_bytes_per_token_bf16_tp1"),
        column("indexer_bytes_per_token"),
    );
    let mut wrong = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        let file = cells[0];
        let model = match Model::from_config_json(&read(&folder, file), file) {
            Ok(model) => model,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let layout = KvLayout::new(KvDtype::Bf16);
        let got = model.kv_bytes_per_token(&Sharding::tp(1), &layout);
        if let Ok(expected) = cells[kv].parse::<u64>()
            && expected != got
            && !INDEX_WRONG.contains(&file)
        {
            wrong.push(format!(
                "{file}: {got} bytes a token, index says {expected}"
            ));
        }
        if let Ok(expected) = cells[indexer].parse::<u64>()
            && expected != model.index_bytes_per_token()
        {
            wrong.push(format!(
                "{file}: index keys {}",
                model.index_bytes_per_token()
            ));
        }
        println!(
            "{file}\t{:.3}B\tactive {:.2}B\tmtp {:.2}B\t{:.2} GiB\t{} layers",
            model.total_params() as f64 / 1e9,
            model.active_params() as f64 / 1e9,
            model.mtp_params() as f64 / 1e9,
            model.total_weight_bytes(&Sharding::tp(1)) / kvplan::GIB,
            model.layers.len(),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_quantisation_file_alone_is_refused_with_what_to_give_instead() {
    let Some(data) = data() else { return };
    let folder = data.join("hf_configs");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("folder") {
        let file = entry
            .expect("entry")
            .file_name()
            .to_string_lossy()
            .into_owned();
        if !file.ends_with("_hf_quant_config.json") {
            continue;
        }
        seen += 1;
        let error = Model::from_config_json(&read(&folder, &file), &file).expect_err(&file);
        assert!(
            error.to_string().contains("give the config.json beside it"),
            "{error}"
        );
    }
    assert!(seen > 10, "{seen}");
}

/// Configs as users paste them, each with what a right reading gives.
#[test]
fn pasted_configs_read_as_their_notes_say() {
    let Some(data) = data() else { return };
    let folder = data.join("inputs/configs");
    let bytes = |file: &str| {
        let model = Model::from_config_json(&read(&folder, file), file)
            .unwrap_or_else(|error| panic!("{error}"));
        let layout = KvLayout::new(KvDtype::Bf16);
        (model.kv_bytes_per_token(&Sharding::tp(1), &layout), model)
    };
    for (file, expected) in [
        (
            "c-00-llama4-scout-fp8-dynamic-compressed-tensors.json",
            196_608,
        ),
        ("c-01-mistral-nemo-head-dim-not-derived.json", 163_840),
        ("c-03-deepseek-v2-lite-tabs-qlora-null.json", 31_104),
        ("c-04-kimi-k3-speculators-dspark-draft.json", 20_480),
        ("c-06-cosyvoice3-eagle3-24-layers.json", 12_288),
        ("c-07-qwen25vl-eagle3-mrope.json", 2048),
        ("c-09-eagle3-official-llama31-draft.json", 4096),
        ("c-12-falcon40b-repr-before-brace.txt", 122_880),
        ("c-13-jamba15-mini-period-offset.json", 16_384),
        ("c-15-qwen3-32b-awq-transformers5-repr.txt", 262_144),
        ("c-16-qwen3-asr-thinker-wrapper.json", 114_688),
        ("c-19-phi35-mini-longrope.json", 393_216),
    ] {
        assert_eq!(bytes(file).0, expected, "{file}");
    }
    for file in [
        "c-04-kimi-k3-speculators-dspark-draft.json",
        "c-06-cosyvoice3-eagle3-24-layers.json",
        "c-07-qwen25vl-eagle3-mrope.json",
        "c-09-eagle3-official-llama31-draft.json",
    ] {
        assert!(bytes(file).1.draft.is_some(), "{file} is a draft");
    }
    // 18.00 GB (by 2^30) of AWQ weights in the report, lm_head and embeddings at 16 bits.
    let awq = bytes("c-15-qwen3-32b-awq-transformers5-repr.txt").1;
    let gib = awq.total_weight_bytes(&Sharding::tp(1)) / kvplan::GIB;
    println!("awq {gib:.3} GiB");
    assert!((gib / 18.0 - 1.0).abs() < 0.02, "{gib}");
    // Attention is in the ignore list, experts are not.
    let scout = bytes("c-00-llama4-scout-fp8-dynamic-compressed-tensors.json").1;
    let formats = scout.layers[0].formats;
    assert_eq!(formats.attention_in, kvplan::WeightFormat::Bf16);
    assert_eq!(formats.experts, kvplan::WeightFormat::Fp8);
    let jamba = bytes("c-13-jamba15-mini-period-offset.json").1;
    let billions = jamba.total_params() as f64 / 1e9;
    assert!((billions / 51.6 - 1.0).abs() < 0.01, "{billions}");
    let exl = bytes("c-18-qwen3next-exl3-fractional-bits.json").1;
    assert!(
        exl.assumptions.iter().any(|a| a.contains("EXL")),
        "{:?}",
        exl.assumptions
    );
    let echo = read(&folder, "c-10-echo-model-no-numbers.json");
    let error = Model::from_config_json(&echo, "echo").expect_err("nothing to compute with");
    assert!(error.to_string().contains("num_hidden_layers"), "{error}");
}

/// Any leading part of a real config, and any config with a byte changed, gives one line or a model.
#[test]
fn truncated_and_damaged_configs_never_panic() {
    let Some(data) = data() else { return };
    let folder = data.join("hf_configs");
    for file in [
        "moonshotai--Kimi-K3_config.json",
        "openai--gpt-oss-20b_config.json",
    ] {
        let text = read(&folder, file);
        for cut in (0..text.len().min(6000)).step_by(97) {
            let Some(part) = text.get(..cut) else {
                continue;
            };
            if let Err(error) = Model::from_config_json(part, file) {
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
            let mut bytes = text.clone().into_bytes();
            if let Some(byte) = bytes.get_mut(cut) {
                *byte = b'9';
            }
            let damaged = String::from_utf8_lossy(&bytes);
            if let Err(error) = Model::from_config_json(&damaged, file) {
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        }
    }
}

/// Shapes of families that say them in their own way, from their published configs.
#[test]
fn families_with_their_own_spelling_are_read() {
    let total = |config: &str| {
        let model = Model::from_config_json(config, "family").unwrap_or_else(|e| panic!("{e}"));
        let layout = KvLayout::new(KvDtype::Bf16);
        let cell = model.kv_bytes_per_token(&Sharding::tp(1), &layout);
        (model.total_params() as f64 / 1e9, cell)
    };
    // gemma-3-4b-it leaves heads, head size and vocabulary to its class: 3.88 B without vision.
    let (billions, cell) = total(
        r#"{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
            "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}}"#,
    );
    assert!((billions / 3.88 - 1.0).abs() < 0.01, "{billions}");
    assert_eq!(cell, 34 * 4 * 256 * 2 * 2);
    // Granite-4.0-h-tiny: 4 attention layers of 40, 7 B.
    let mut kinds = vec!["\"mamba\""; 40];
    for layer in [5, 15, 25, 35] {
        kinds[layer] = "\"attention\"";
    }
    let (_, cell) = total(&format!(
        r#"{{"model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40,
            "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 100352,
            "intermediate_size": 512, "num_local_experts": 64, "num_experts_per_tok": 6,
            "shared_intermediate_size": 1024, "mamba_n_heads": 48, "mamba_d_head": 64,
            "mamba_d_state": 128, "mamba_n_groups": 1, "layer_types": [{}]}}"#,
        kinds.join(",")
    ));
    assert_eq!(cell, 4 * 4 * 128 * 2 * 2);
    // Hunyuan-A13B writes one entry a layer: 80 B.
    let (billions, _) = total(
        r#"{"model_type": "hunyuan_v1_moe", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
            "vocab_size": 128167, "intermediate_size": 3072, "num_experts": 64,
            "moe_topk": [8, 8], "moe_intermediate_size": [3072, 3072], "num_shared_expert": [1, 1],
            "tie_word_embeddings": true}"#,
    );
    assert!((billions / 80.4 - 1.0).abs() < 0.01, "{billions}");
}

#[test]
fn a_diffusion_language_model_is_refused_by_its_type_or_its_class() {
    let shapes = "\"hidden_size\": 2048, \"num_hidden_layers\": 20, \"num_attention_heads\": 16, \
                  \"intermediate_size\": 5120, \"vocab_size\": 157184";
    for named in [
        "\"model_type\": \"llada2_moe\"",
        "\"architectures\": [\"SDARForCausalLM\"], \"model_type\": \"own\"",
    ] {
        let config = format!("{{{named}, {shapes}}}");
        let why = Model::from_config_json(&config, "m").expect_err("refused");
        assert!(
            why.to_string().contains("diffusion language model"),
            "{why}"
        );
    }
    let dense = format!("{{\"model_type\": \"qwen3\", {shapes}}}");
    assert!(Model::from_config_json(&dense, "m").is_ok());
}

/// Grok-2 publishes `"sliding_window_size": -1`.
#[test]
fn a_window_of_minus_one_is_none() {
    let config = |window: &str| {
        let text = format!(
            r#"{{"architectures":["Grok1ForCausalLM"],"vocab_size":131072,"hidden_size":8192,
            "intermediate_size":32768,"moe_intermediate_size":16384,"num_experts_per_tok":2,
            "num_local_experts":8,"residual_moe":true,"num_attention_heads":64,"num_key_value_heads":8,
            "num_hidden_layers":64,"head_dim":128,"max_position_embeddings":131072{window}}}"#
        );
        Model::from_config_json(&text, "grok-2").expect("a model")
    };
    assert_eq!(
        config(r#","sliding_window_size":-1"#).layers,
        config("").layers
    );
}
