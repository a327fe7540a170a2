//! Verifying over a long context: what was measured on an H200, and which servers walk the cache for it
//! (docs/HARDWARE.md).

mod common;

use common::answers;
use serde_json::Value;

fn predict(line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().collect();
    let asked = [&["predict", "--json"], words.as_slice()].concat();
    serde_json::from_str(&answers(&asked)).unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Llama-3.1-8B in vLLM 0.24.0, EAGLE-3 with 3 steps: users, context, ms of a plain step and of a cycle.
const MEASURED: [(u64, u64, f64, f64); 7] = [
    (1, 2_200, 4.91, 6.41),
    (4, 2_200, 5.13, 6.73),
    (16, 2_200, 6.00, 7.96),
    (1, 33_000, 5.89, 7.48),
    (4, 33_000, 8.74, 10.70),
    (16, 33_000, 20.24, 23.72),
    (1, 98_500, 7.88, 9.66),
];

/// Each further token was taken to read a tenth of the cache again: cycles at 32k came out up to 24 % too long.
#[test]
fn steps_and_cycles_of_a_dense_model_at_long_context_are_met() {
    for (users, context, plain_ms, cycle_ms) in MEASURED {
        let answer = predict(&format!(
            "--model llama-3.1-8b --quant bf16 --gpu h200 --engine vllm@0.24.0 --max-running 64 --max-model-len 131072 \
             --draft eagle3 --steps 3 --accept rates:.75,.55,.4 --context {context} --concurrency {users}"
        ));
        let point = &answer["points"][0];
        for (key, measured) in [("baseline_step_ms", plain_ms), ("cycle_ms", cycle_ms)] {
            let ms = point[key].as_f64().expect("ms");
            let error = (ms / measured).ln().abs();
            assert!(
                error < 0.06,
                "{users} x {context}, {key}: {ms} for {measured}"
            );
        }
    }
}

/// The middle speedup and whether a verify is said not to be split.
fn walks(line: &str) -> (f64, bool) {
    let answer = predict(line);
    let said = answer["assumptions"]
        .to_string()
        .contains("does not split a verify");
    (
        answer["points"][0]["speedup"].as_f64().expect("a speedup"),
        said,
    )
}

#[test]
fn a_verify_that_is_not_split_costs_more_the_longer_the_context() {
    let on = |box_: &str, more: &str, context: &str| {
        walks(&format!(
            "--model qwen3-14b --quant bf16 --gpu {box_} --gpus 2 --draft eagle3 --steps 3 --accept 2.6@3 --concurrency 1 \
             --context {context} {more}"
        ))
    };
    let (short, _) = on("rtx-5090", "--engine vllm@0.30.0", "1k");
    let (long, said) = on("rtx-5090", "--engine vllm@0.30.0", "16k");
    assert!(said && long < 0.75 * short, "{short} then {long}");
    // An FP8 cache takes FlashInfer, Hopper FlashAttention 3, and SGLang FlashInfer: all split.
    for (gpu, engine) in [
        ("rtx-5090", "--engine vllm@0.30.0 --kv-dtype fp8"),
        ("h100-sxm", "--engine vllm@0.30.0"),
        ("rtx-5090", "--engine sglang@0.5.23"),
    ] {
        let (short, _) = on(gpu, engine, "1k");
        let (long, said) = on(gpu, engine, "16k");
        assert!(
            !said && long > 0.85 * short,
            "{gpu} {engine}: {short} then {long}"
        );
    }
}

#[test]
fn sinks_and_latents_are_walked_where_triton_verifies() {
    let sinks = "--model gpt-oss-20b --gpu rtx-4090 --draft eagle3 --concurrency 1 --context 16k";
    assert!(walks(&format!("{sinks} --engine vllm@0.32.0")).1);
    assert!(!walks(&format!("{sinks} --engine vllm@0.33.0")).1);
    assert!(walks(&format!("{sinks} --engine sglang@0.5.23")).1);
    let latent = "--model kimi-k2.5 --draft eagle3 --concurrency 1 --context 8k";
    assert!(
        walks(&format!(
            "{latent} --box 8x-rtx-pro-6000-direct --engine sglang@0.5.23"
        ))
        .1
    );
    assert!(
        !walks(&format!(
            "{latent} --gpu h200 --gpus 8 --engine sglang@0.5.23"
        ))
        .1
    );
}
