//! Cycles of vLLM 0.24.0 that wait for the host: n-gram look-up and a small model as draft, against those measured
//! on one H200 (docs/HARDWARE.md).

mod common;

use common::answers;

/// Milliseconds of a cycle by load, from flags alone; and the first line of the answer.
fn cycles(model: &str, draft: &str, engine: &str) -> (Vec<(u64, f64)>, String) {
    let line = format!(
        "predict --model {model} --quant bf16 --gpu h200 --engine {engine} --max-running 64 --max-model-len 16384 \
         --context 2200 --concurrency 1,8,32 --steps 3 --accept rates:.5,.3,.2 --draft {draft}"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let text = answers(&words);
    let json = answers(&[words.as_slice(), &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let points = json["points"].as_array().expect("points");
    let row = |point: &serde_json::Value| {
        Some((point["concurrency"].as_u64()?, point["cycle_ms"].as_f64()?))
    };
    let rows = points.iter().filter_map(row).collect();
    (rows, text)
}

fn near(rows: &[(u64, f64)], measured: &[(u64, f64)], within: f64) {
    for (users, ms) in measured {
        let row = rows.iter().find(|(n, _)| n == users);
        let (_, computed) = row.expect("the load was asked for");
        let off = computed / ms - 1.0;
        assert!(off.abs() < within, "{users} users: {computed} for {ms}");
    }
}

#[test]
fn n_gram_cycles_of_vllm_0_24_last_as_long_as_measured_on_one_h200() {
    let (rows, _) = cycles("qwen3-8b", "ngram", "vllm@0.24.0");
    near(&rows, &[(1, 6.74), (8, 7.59), (32, 10.32)], 0.04);
    let (rows, _) = cycles("qwen3-32b", "ngram", "vllm@0.24.0");
    near(&rows, &[(1, 21.8), (8, 23.26), (32, 29.55)], 0.08);
}

/// The answer was PAYS 1.63x (1.29 to 2.05) on the 32B; measured it made 0.79x.
#[test]
fn a_small_model_drafts_at_the_pace_of_vllms_host() {
    let (rows, text) = cycles("qwen3-8b", "qwen3-0.6b", "vllm@0.24.0");
    near(&rows, &[(1, 44.2), (8, 46.4), (32, 43.5)], 0.08);
    assert!(text.starts_with("DOES NOT PAY"), "{text}");
    let (rows, text) = cycles("qwen3-32b", "qwen3-0.6b", "vllm@0.24.0");
    near(&rows, &[(1, 47.9), (8, 48.1)], 0.10);
    assert!(text.starts_with("MEASURE FIRST"), "{text}");
    assert!(
        text.contains("vLLM runs a draft model outside CUDA graphs"),
        "{text}"
    );
    assert!(
        text.contains("what the host needs to launch the draft decides"),
        "{text}"
    );
}

/// Graphs between the layers from 0.26 to 0.30; SGLang drafts in one.
#[test]
fn releases_and_engines_with_graphs_for_a_draft_model_wait_less() {
    let at_one = |engine: &str| cycles("qwen3-8b", "qwen3-0.6b", engine).0[0].1;
    let (none, pieces) = (at_one("vllm@0.24.0"), at_one("vllm@0.26.0"));
    assert!(pieces < 0.5 * none, "{pieces} {none}");
    assert!(at_one("vllm@0.33.0") > 2.0 * pieces);
    assert!(at_one("sglang@0.5.13") < 0.3 * none);
}

/// Pools of the same runs; and why a look-up has fewer tokens than no draft: the line ended in a colon.
#[test]
fn pools_of_look_up_and_of_a_small_model_are_as_measured_on_one_h200() {
    for (model, draft, measured) in [
        ("qwen3-8b", "none", 814_368.0),
        ("qwen3-8b", "ngram --steps 3", 811_792.0),
        ("qwen3-8b", "qwen3-0.6b --steps 3", 452_064.0),
        ("qwen3-32b", "ngram --steps 3", 266_272.0),
        ("qwen3-32b", "qwen3-0.6b --steps 3", 181_888.0),
    ] {
        let line = format!(
            "plan --model {model} --quant bf16 --gpu h200 --engine vllm@0.24.0 --max-running 64 --max-model-len 16384 \
             --context 2200 --draft {draft}"
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        let json = answers(&[words.as_slice(), &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let tokens = json["memory"]["kv_tokens"].as_f64().expect("tokens");
        assert!((tokens / measured - 1.0).abs() < 0.01, "{line}: {tokens}");
        let text = answers(&words);
        let why = "vLLM's first runner counts the target's graphs inside the fraction";
        assert_eq!(text.contains(why), draft != "none", "{text}");
    }
}

/// PAYS (1.06 to 2.03) rested on a time that nobody measured; the band reaches to that without any graph.
#[test]
fn a_release_that_was_not_run_holds_the_time_without_graphs() {
    let line = "predict --model qwen3-8b --quant bf16 --gpu h200 --engine vllm@0.28.0 --draft qwen3-0.6b --steps 2 \
                --concurrency 1";
    let words: Vec<&str> = line.split_whitespace().collect();
    let text = answers(&words);
    assert!(!text.starts_with("PAYS"), "{text}");
    assert!(text.contains("us a layer, not run there"), "{text}");
}
