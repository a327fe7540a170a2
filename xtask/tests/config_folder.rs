//! A config is the same model whatever its folder is called.

mod common;

use std::path::{Path, PathBuf};

use common::{answers, run};

/// A folder with DeepSeek-V3's shapes, as its `config.json` has them.
fn folder(name: &str) -> PathBuf {
    let catalogue = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvplan/catalog/deepseek.json");
    let text = std::fs::read_to_string(catalogue).expect("the catalogue");
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let models = all.as_array().expect("models");
    let model = models.iter().find(|model| model["name"] == "deepseek-v3");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut config = model.expect("deepseek-v3")["config"].clone();
    config["quantization_config"] = serde_json::json!({
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    folder
}

fn predict(model: &Path, more: &str) -> String {
    let model = model.display().to_string();
    let flags =
        "--gpu h200-sxm --gpus 8 --engine sglang --context 4k --concurrency 1,8 --draft mtp";
    let words = flags.split(' ').chain(more.split_whitespace());
    let words: Vec<&str> = ["predict", "--model", &model]
        .into_iter()
        .chain(words)
        .collect();
    answers(&words)
}

/// In a hub's cache or a folder of one's own DeepSeek's MTP layer was taken for one that was trained on
/// its own states: 4 steps at 2.10x, for 2 at 1.65x.
#[test]
fn deepseeks_layer_is_known_by_the_architecture_in_any_folder() {
    let named = folder("DeepSeek-V3");
    let cache = folder("models--deepseek-ai--DeepSeek-V3/snapshots/9b4c9a1f2e");
    // All but the lines that show the model's name or path.
    let rows = |text: &str| {
        let names = ["prod-chat", "DeepSeek-V3"];
        let lines = text
            .lines()
            .filter(|line| !names.iter().any(|name| line.contains(name)));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    for more in ["", "--accept 2.5@3"] {
        let as_named = predict(&named, more);
        assert!(as_named.contains("--trust-remote-code"), "{as_named}");
        for other in [cache.clone(), folder("prod-chat")] {
            let other = predict(&other, more);
            assert_eq!(rows(&other), rows(&as_named));
            assert!(other.contains("--trust-remote-code"), "{other}");
        }
    }
    assert!(predict(&cache, "").contains("DeepSeek-V3 on 8x-h200-sxm"));
    let file = named.join("config.json").display().to_string();
    let by_file = [
        "accept", "--head", "mtp", "--model", &file, "--accept", "2.5@3",
    ];
    let by_name = by_file.map(|word| if word == file { "deepseek-v3" } else { word });
    let length = |words: &[&str]| {
        answers(words)
            .lines()
            .find(|l| l.trim_start().starts_with("2 "))
            .map(str::to_string)
    };
    assert_eq!(length(&by_file), length(&by_name));
}

/// 1.3 GiB of a 4-bit checkpoint's draft hung on a format that nobody had named.
#[test]
fn the_format_of_an_mtp_layer_beside_four_bits_is_assumed_aloud() {
    let of = |format_and_card: &str| {
        let flags =
            "--model deepseek-v3 --gpus 8 --engine sglang --draft mtp --context 4k --concurrency 1";
        run("predict", &format!("{flags} {format_and_card}"))
    };
    let said = "draft: the MTP layer in bf16, where the rest is in 4 bits";
    assert!(of("--quant int4 --gpu h100").contains(said));
    assert!(!of("--quant fp8 --gpu h200").contains("the MTP layer in"));
}

/// "128 requests do not fit 0 KV tokens, so it probably held less: --baseline-context tells".
#[test]
fn a_sweep_beside_what_does_not_fit_is_of_another_server() {
    let sweep = "1,60\n8,380\n32,1100\n";
    let text = common::with_log("sweep", sweep, |sweep| {
        let flags =
            "--model deepseek-v3 --gpu h100 --gpus 8 --engine sglang --draft mtp --context 4k";
        run(
            "predict",
            &format!("{flags} --accept 2.5@3 --baseline {sweep}"),
        )
    });
    assert!(text.starts_with("DOES NOT FIT"), "{text}");
    assert!(
        text.contains("its server had another weight format, card or number of cards"),
        "{text}"
    );
    assert!(!text.contains("so it probably held less"), "{text}");
}
