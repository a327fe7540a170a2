//! Names as users write them: drafts by repository, small models as drafts, other names of one
//! model, boxes from a topology.

mod common;

use common::{answers as answer, refusal};

const CARD: [&str; 5] = ["predict", "--gpu", "h100", "--concurrency", "1"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    CARD.iter().chain(more).copied().collect()
}

#[test]
fn a_small_model_of_the_catalogue_drafts_for_its_family() {
    let text = answer(&with(&["--model", "qwen3-32b", "--draft", "qwen3-0.6b"]));
    assert!(text.contains("draft model,"), "{text}");
    assert!(text.contains(r#""method":"draft_model""#), "{text}");
    assert!(
        text.contains("--speculative-algorithm STANDALONE"),
        "{text}"
    );
    let whole = answer(&with(&[
        "--model",
        "qwen3-32b",
        "--draft",
        "Qwen/Qwen3-0.6B",
    ]));
    assert!(whole.contains("draft model,"), "{whole}");
}

#[test]
fn a_draft_of_another_vocabulary_or_no_smaller_or_unknown_is_refused_by_the_name_given() {
    for (draft, words) in [
        ("llama-3.1-8b", "vocabulary of 128256"),
        ("qwen3-32b", "is not smaller"),
        ("qwen3-0.7b", "--draft qwen3-0.7b: no such file"),
    ] {
        let error = refusal(&with(&["--model", "qwen3-32b", "--draft", draft]));
        assert!(error.contains(words), "{draft}: {error}");
    }
}

#[test]
fn a_repository_that_names_its_head_is_that_kind() {
    let draft = "RedHatAI/Qwen3-32B-speculator.eagle3";
    let text = answer(&with(&["--model", "qwen3-32b", "--draft", draft]));
    assert!(text.contains("EAGLE-3,"), "{text}");
}

#[test]
fn the_draft_that_a_vllm_log_names_is_taken_from_it() {
    let log = "xtask/tests/data/shapes/vllm-compose-eagle3.log";
    let text = answer(&with(&["--from-log", log]));
    assert!(text.contains("EAGLE-3, 3 steps"), "{text}");
}

#[test]
fn a_model_is_shown_by_the_name_given() {
    let text = answer(&[
        "predict", "--model", "GLM-4.6", "--gpu", "h100", "--gpus", "8",
    ]);
    assert!(text.contains("glm-4.6 on 8x-h100"), "{text}");
    assert!(text.contains("glm-4.6 has the shapes of glm-4.7"), "{text}");
}

#[test]
fn a_box_from_a_topology_is_named_by_its_cards() {
    let topology = "docs/examples/topo-4x3090.txt";
    let text = answer(&[
        "predict",
        "--model",
        "qwen3-32b",
        "--quant",
        "int4",
        "--gpu",
        "rtx-3090",
        "--topology",
        topology,
    ]);
    assert!(text.contains("on 4x-rtx-3090 from topo -m"), "{text}");
}

/// Found by the mutation run over scenario files, which took it for a slip.
#[test]
fn a_context_of_0_is_decoding_from_an_empty_prompt() {
    let text = answer(&with(&["--model", "qwen3-8b", "--context", "0", "--json"]));
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let point = &answer["points"][0];
    for name in ["speedup", "baseline_tok_s", "spec_tok_s", "cycle_ms"] {
        assert!(
            point[name].as_f64().is_some_and(|n| n > 0.0),
            "{name}: {point}"
        );
    }
}

/// The server of that log runs at 0.92; the middle of the wall's band is under it, its end above.
#[test]
fn a_fraction_inside_the_band_of_the_wall_is_not_called_impossible() {
    let log = "xtask/tests/data/shapes/vllm-compose-eagle3.log";
    let text = answer(&["predict", "--from-log", log, "--gpu", "rtx-5090"]);
    assert!(!text.contains("DOES NOT FIT"), "{text}");
}

#[test]
fn drafts_by_look_up_in_a_log_are_taken_from_it() {
    let log = "xtask/tests/data/ngram.log";
    let text = answer(&["predict", "--from-log", log, "--gpu", "h100"]);
    assert!(text.contains("n-gram look-up, 4 steps"), "{text}");
    let said = answer(&["explain", log]);
    assert!(!said.contains("--steps"), "{said}");
}

#[test]
fn repositories_that_repeat_the_maker_or_spell_the_format_out_are_found() {
    for name in [
        "ibnzterrell/Meta-Llama-3.3-70B-Instruct-AWQ-INT4",
        "RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16",
        "bartowski/meta-llama_Llama-3.3-70B-Instruct-AWQ",
    ] {
        let text = answer(&with(&["--model", name, "--json"]));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            json["scenario"]["model"]["value"], "llama-3.3-70b",
            "{name}"
        );
        let quant = json["scenario"]["quant"]["value"].as_str().expect("one");
        assert!(["awq", "w4a16"].contains(&quant), "{name}: {quant}");
        // 70.6 G parameters at 4 bits and a scale each 128: a quarter of 141 GB.
        let lines = json["memory"]["ledger"].as_array().expect("lines");
        let weights: f64 = lines
            .iter()
            .filter(|l| l["item"].as_str().is_some_and(|i| i.starts_with("weights")))
            .filter_map(|l| l["gib"].as_f64())
            .sum();
        assert!((35.0..40.0).contains(&weights), "{name}: {weights}");
    }
}

/// 20.9 G parameters with experts of 4 bits: 12.8 GiB whole, and not the 39 GiB of BF16.
#[test]
fn a_small_model_drafts_in_the_format_it_is_published_in() {
    for name in ["gpt-oss-20b", "openai/gpt-oss-20b"] {
        let args = [
            "predict",
            "--model",
            "gpt-oss-120b",
            "--engine",
            "vllm",
            "--gpu",
            "rtx-5090",
            "--gpus",
            "4",
            "--draft",
            name,
            "--json",
        ];
        let json: serde_json::Value = serde_json::from_str(&answer(&args)).expect("JSON");
        let lines = json["memory"]["ledger"].as_array().expect("lines");
        let draft = lines.iter().find(|l| l["item"] == "draft: weights");
        let gib = draft.and_then(|l| l["gib"].as_f64()).expect("weights");
        assert!((3.0..3.5).contains(&gib), "{name}: {gib} on each of four");
        let said = "gpt-oss-20b as a model of its own, in mxfp4-experts";
        assert!(json["assumptions"].to_string().contains(said), "{name}");
    }
}

/// sglang#5871, #12887: `fp8e4nv not supported in this architecture`.
#[test]
fn fp8_experts_on_cards_without_fp8_are_warned_of_under_sglang_alone() {
    let said = |gpu: &str, model: &str, engine: &str| {
        let args = [
            "predict", "--quant", "fp8", "--gpu", gpu, "--gpus", "2", "--model", model, "--engine",
            engine,
        ];
        answer(&args).contains("fp8e4nv not supported")
    };
    let moe = "qwen3-coder-30b-a3b";
    assert!(said("a100-80gb-sxm", moe, "sglang"));
    assert!(said("rtx-3090", moe, "sglang"));
    assert!(!said("a100-80gb-sxm", moe, "vllm"));
    assert!(!said("h100", moe, "sglang"));
    assert!(!said("a100-80gb-sxm", "qwen3-32b", "sglang"));
}

#[test]
fn accept_refuses_a_model_that_it_does_not_know() {
    let unknown = refusal(&["accept", "--accept", "2.52@3", "--model", "nosuch"]);
    assert!(unknown.contains("--model nosuch"), "{unknown}");
    let near = refusal(&["accept", "--accept", "2.52@3", "--model", "deepseek-v3.3"]);
    assert!(near.contains("did you mean"), "{near}");
}

/// "--gpu 4090: is the card's name, not how many; give --gpu NAME --gpus 4090".
#[test]
fn a_card_named_by_its_number_is_that_card() {
    for number in ["3090", "4090", "5090", "5080"] {
        let text = common::answers(&["predict", "--model", "qwen3-8b", "--gpu", number]);
        assert!(text.contains(&format!("on 1x-rtx-{number} ")), "{text}");
    }
    let count = common::refusal(&["predict", "--model", "qwen3-8b", "--gpu", "8"]);
    assert!(
        count.contains("not how many") && count.contains("--gpus 8"),
        "{count}"
    );
    let unknown = common::refusal(&["predict", "--model", "qwen3-8b", "--gpu", "6000"]);
    assert!(
        unknown.contains("no such GPU") && unknown.contains("6000"),
        "{unknown}"
    );
}
