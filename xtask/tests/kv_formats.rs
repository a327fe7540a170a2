//! The format of the KV cache: what a release takes by itself, and what the paste tells it.

mod common;

use common::run;

/// The pasted line of SGLang.
fn sglang(text: &str) -> &str {
    let line = text.lines().find(|line| line.contains("launch_server"));
    line.unwrap_or_default()
}

fn nvfp4(engine: &str, more: &str) -> String {
    let flags = format!(
        "--model deepseek-r1 --quant nvfp4 --gpu b200 --gpus 4 --concurrency 1 --engine {engine} {more}"
    );
    run("predict", &flags)
}

const ASSUMED: &str = "KV cache in fp8: published checkpoints of that weight format ask for it (the checkpoint's \
                       hf_quant_config.json or config.json, or --kv-dtype would settle it)";

/// Tokens of releases that read no such thing came out twice too many, with a flag that nobody asked for.
#[test]
fn a_release_that_does_not_read_what_a_checkpoint_asks_for_keeps_bf16() {
    for older in [
        "sglang@0.5.0",
        "sglang@0.5.2",
        "sglang@2025-08",
        "vllm@0.13.0",
    ] {
        let text = nvfp4(older, "");
        assert!(!text.contains("kv-cache-dtype"), "{older}: {text}");
        assert!(!text.contains(ASSUMED), "{older}: {text}");
    }
    for newer in ["sglang@0.5.3", "vllm@0.14.0"] {
        let text = nvfp4(newer, "");
        assert!(text.contains("--kv-cache-dtype fp8"), "{newer}: {text}");
        assert!(text.contains(ASSUMED), "{newer}: {text}");
    }
    let asked = nvfp4("sglang@0.5.0", "--kv-dtype fp8");
    assert!(
        sglang(&asked).contains("--kv-cache-dtype fp8_e4m3"),
        "{asked}"
    );
    assert!(!asked.contains(ASSUMED), "{asked}");
    let plan = "--model deepseek-r1 --quant nvfp4 --gpu b200 --gpus 4 --engine sglang@0.5.0";
    let plan = run("plan", plan);
    let own =
        "KV dtype bf16 (the engine's own: this release does not read what the checkpoint asks for)";
    assert!(plan.contains(own), "{plan}");
}

/// `--kv-dtype bf16` pasted nothing, and the engine took fp8.
#[test]
fn bf16_is_told_where_the_checkpoint_would_bring_fp8() {
    let told =
        |engine: &str| nvfp4(engine, "--kv-dtype bf16").contains("--kv-cache-dtype bfloat16");
    assert!(told("sglang@0.5.6") && told("vllm@0.24.0"));
    // It would take bf16 by itself; it has no word for it.
    assert!(!told("sglang@0.5.0") && !told("sglang@0.5.3"));
}
