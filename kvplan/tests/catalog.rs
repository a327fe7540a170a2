//! The catalogue: every name resolves, totals are the published ones, typing errors get hints.

use kvplan::Sharding;
use kvplan::catalog::{self, Draft};

#[test]
fn every_entry_reads_and_its_total_is_the_published_one_within_one_percent() {
    assert!(
        catalog::names().len() >= 60,
        "a catalogue file did not parse"
    );
    for entry in catalog::entries() {
        let found = catalog::find(&entry.name).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        let total = found.model.total_params() as f64 / 1e9;
        println!("{} {total:.2} {:?}", entry.name, entry.published_params_b);
        if let Some(published) = entry.published_params_b {
            let error = (total / published - 1.0).abs();
            assert!(
                error < 0.01,
                "{}: {total:.2} B, published {published}",
                entry.name
            );
        }
        for kind in catalog::draft_kinds(&entry.name) {
            catalog::find_draft(&entry.name, &kind).unwrap_or_else(|e| panic!("{e}"));
        }
        for alias in &entry.aliases {
            assert_eq!(catalog::find(alias).map(|f| f.name), Ok(entry.name.clone()));
        }
    }
}

#[test]
fn a_repository_name_finds_the_model_and_its_precision() {
    let found = catalog::find("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8").expect("found");
    assert_eq!(
        (found.name.as_str(), found.quant.as_str()),
        ("qwen3-235b-a22b", "fp8")
    );
    let found = catalog::find("lukealonso/GLM-5.1-NVFP4-MTP").expect("found");
    assert_eq!(
        (found.name.as_str(), found.quant.as_str()),
        ("glm-5.1", "nvfp4")
    );
    let found = catalog::find("nvidia/Kimi-K2.5-NVFP4").expect("found");
    assert_eq!(
        (found.name.as_str(), found.quant.as_str()),
        ("kimi-k2.5", "nvfp4")
    );
}

/// The first release of Qwen3-30B-A3B was given the 262,144 positions of the one of July 2025.
#[test]
fn releases_of_one_shape_reach_what_their_own_configs_say() {
    for (name, positions) in [
        ("Qwen/Qwen3-30B-A3B-FP8", 40_960),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262_144),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", 262_144),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262_144),
        ("Qwen/Qwen3-235B-A22B", 40_960),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", 262_144),
        ("Qwen/Qwen3-4B", 40_960),
        ("Qwen/Qwen3-4B-Instruct-2507", 262_144),
        ("Qwen/Qwen3-8B-AWQ", 40_960),
        ("Qwen/Qwen3-32B-FP8", 40_960),
        ("Qwen/QwQ-32B", 40_960),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", 32_768),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8192),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("zai-org/GLM-4.5-FP8", 131_072),
        ("zai-org/GLM-4.6", 202_752),
        ("moonshotai/Kimi-K2-Thinking", 262_144),
    ] {
        let found = catalog::find(name).expect(name);
        assert_eq!(found.model.max_positions, Some(positions), "{name}");
    }
}

#[test]
fn a_misspelt_name_is_answered_with_near_ones() {
    let error = catalog::find("kimi-k25").expect_err("no such model");
    assert!(error.to_string().contains("kimi-k2.5"), "{error}");
    let error = catalog::find("kimi").expect_err("no such model");
    assert!(error.to_string().contains("kimi-k2"), "{error}");
    let error = catalog::find("zzzzqqqq").expect_err("no such model");
    assert!(error.to_string().contains("config.json"), "{error}");
}

#[test]
fn drafts_are_heads_or_the_models_own_layers() {
    assert!(matches!(
        catalog::find_draft("glm-5.1", "mtp"),
        Ok(Draft::Mtp)
    ));
    assert!(matches!(
        catalog::find_draft("qwen3-32b", "EAGLE3"),
        Ok(Draft::Head { .. })
    ));
    let error = catalog::find_draft("qwen3-14b", "mtp").expect_err("none");
    assert!(error.to_string().contains("it has: none"), "{error}");
}

#[test]
fn every_catalogue_name_of_the_data_is_there() {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let path = std::env::var("SHARED_DATA").unwrap_or_else(|_| default.to_string());
    let Ok(text) = std::fs::read_to_string(format!("{path}/names.tsv")) else {
        println!("skipped: no data folder at {path}");
        return;
    };
    for line in text.lines().filter(|line| line.starts_with("model\t")) {
        let cells: Vec<&str> = line.split('\t').collect();
        let quant = (!cells[3].starts_with("by ")).then_some(cells[3]);
        catalog::find_in(cells[2], quant).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

#[test]
fn a_safetensors_index_wins_over_the_estimate() {
    let llama = catalog::find("llama-3.1-8b").expect("found").model;
    // The index of the published checkpoint: 8,030,261,248 parameters of 2 bytes.
    let index = r#"{"metadata": {"total_size": 16060522496}, "weight_map": {}}"#;
    let scaled = llama.clone().with_checkpoint(index).expect("an index");
    let bytes = scaled.total_weight_bytes(&Sharding::tp(1));
    assert!((bytes - 16_060_522_496.0).abs() < 1.0, "{bytes}");
    let header = r#"{"a": {"dtype": "BF16", "data_offsets": [0, 16060522496]}}"#;
    assert!(llama.clone().with_checkpoint(header).is_ok());
    let other = r#"{"metadata": {"total_size": 1000}}"#;
    assert!(
        llama
            .clone()
            .with_checkpoint(other)
            .is_err_and(|e| e.contains("different models"))
    );
    assert!(llama.with_checkpoint("{}").is_err());
}

/// `total_size` of DeepSeek-V3's safetensors index: 688,586,727,753 bytes, the MTP module with its own
/// two vocabulary tables among them.
#[test]
fn deepseek_v3_weighs_what_its_index_says() {
    let model = catalog::find("deepseek-v3").expect("model").model;
    let whole = Sharding::tp(1);
    let bytes = model.total_weight_bytes(&whole)
        + model.mtp_weight_bytes(&whole)
        + 2.0 * model.vocab_table_bytes(&whole);
    let off = bytes / 688_586_727_753.0 - 1.0;
    assert!(off.abs() < 0.001, "{bytes}: {off}");
}
