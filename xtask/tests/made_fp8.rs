//! FP8 that an engine makes of a BF16 checkpoint while it loads: where the cards have no room for both, it is
//! neither called fitting nor pasted.

mod common;

use common::run;

const BOX: &str =
    "--model Qwen/Qwen3.6-27B --gpu rtx-3090 --gpus 4 --tp 2 --context 8k --concurrency 1,2";
const STORED: &str = "--model Qwen/Qwen3.6-27B-FP8";

/// The headline was PAYS, and the paste a server that ends in CUDA out of memory at every fraction.
#[test]
fn what_runs_out_while_loading_is_refused_and_the_stored_checkpoint_named() {
    let text = run("predict", &format!("{BOX} --quant fp8"));
    assert!(text.starts_with("DOES NOT FIT"), "{text}");
    assert!(text.contains("out of memory while it loads"), "{text}");
    assert!(text.contains(STORED), "{text}");
    assert!(!text.contains("--quantization fp8"), "{text}");
    let plan = run("plan", &format!("{BOX} --quant fp8"));
    assert!(plan.starts_with("REFUSED"), "{plan}");
    assert!(plan.contains("no fraction works: it runs out"), "{plan}");
    // In BF16 the weights fill the cards, and the same holds of FP8 made of them.
    let bf16 = run("predict", &format!("{BOX} --quant bf16"));
    assert!(bf16.contains(STORED), "{bf16}");
    assert!(!bf16.contains("--quant fp8"), "{bf16}");
}

#[test]
fn what_is_named_instead_fits() {
    let stored = BOX.replace("--model Qwen/Qwen3.6-27B", STORED);
    let text = run("predict", &stored);
    assert!(!text.starts_with("DOES NOT FIT"), "{text}");
    let four = BOX.replace("--tp 2", "--tp 4");
    let text = run("predict", &format!("{four} --quant fp8"));
    assert!(text.contains("--quantization fp8 --tp 4"), "{text}");
}

/// vLLM makes each weight as it is read; the line of SGLang beside it names what that can load.
#[test]
fn each_line_names_a_checkpoint_that_its_engine_can_load() {
    let line = format!("{BOX} --quant fp8 --engine vllm --json");
    let answer: serde_json::Value =
        serde_json::from_str(&run("predict", &line)).unwrap_or_else(|e| panic!("{e}"));
    let flags = |engine: &str| answer["engine_flags"][engine].to_string();
    let vllm = flags("vllm");
    assert!(
        vllm.contains("\"Qwen/Qwen3.6-27B\",\"--quantization\",\"fp8\""),
        "{vllm}"
    );
    let sglang = flags("sglang");
    assert!(sglang.contains("\"Qwen/Qwen3.6-27B-FP8\""), "{sglang}");
    assert!(!sglang.contains("--quantization"), "{sglang}");
}

#[test]
fn the_bf16_checkpoint_stands_for_the_path_only_where_it_loads() {
    let or = "or its BF16 one with --quantization fp8";
    let on = |gpu: &str| {
        run(
            "predict",
            &format!("--model qwen3-32b --quant fp8-dynamic --gpus 2 --gpu {gpu}"),
        )
    };
    assert!(!on("rtx-3090").contains(or));
    assert!(on("h100-sxm").contains(or));
}
