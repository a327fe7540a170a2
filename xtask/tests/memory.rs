//! What `predict` and `plan` say of memory, each as someone stumbled over it.

use std::process::Command;

fn xtask(args: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args.split_whitespace())
        .output()
        .expect("runs");
    String::from_utf8_lossy(if output.status.success() {
        &output.stdout
    } else {
        &output.stderr
    })
    .into_owned()
}

/// The lines of a start-up that matter (vLLM 0.11.0, two 32 GB cards).
const SERVED: &str = "\
(APIServer pid=1) INFO 10-14 19:02:15 [api_server.py:1839] vLLM API server version 0.11.0
(APIServer pid=1) INFO 10-14 19:02:15 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-32B-FP8', 'model': 'Qwen/Qwen3-32B-FP8', 'max_model_len': 40960, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.93, 'max_num_seqs': 8, 'speculative_config': {'method': 'eagle3', 'model': 'RedHatAI/Qwen3-32B-speculator.eagle3', 'num_speculative_tokens': 3}}
(Worker_TP0 pid=3) INFO 10-14 19:03:03 [gpu_model_runner.py:2653] Model loading took 16.8012 GiB and 21.031180 seconds
(Worker_TP0 pid=3) INFO 10-14 19:03:35 [gpu_worker.py:298] Available KV cache memory: 10.62 GiB
(EngineCore_DP0 pid=2) INFO 10-14 19:03:36 [kv_cache_utils.py:1087] GPU KV cache size: 85,648 tokens
(EngineCore_DP0 pid=2) INFO 10-14 19:03:36 [kv_cache_utils.py:1091] Maximum concurrency for 40,960 tokens per request: 2.09x
(Worker_TP0 pid=3) INFO 10-14 19:03:40 [gpu_model_runner.py:3480] Graph capturing finished in 4 secs, took 0.41 GiB
(APIServer pid=1) INFO:     Application startup complete.
";

fn served_log(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()));
    std::fs::write(&path, SERVED).expect("writes");
    path.display().to_string()
}

/// The fraction of the first flag of a name in a text.
fn flag(text: &str, name: &str) -> Option<f64> {
    let (_, after) = text.split_once(&format!("{name} "))?;
    after.split_whitespace().next()?.parse().ok()
}

fn legal(text: &str) -> Option<(f64, f64)> {
    let (_, after) = text.split_once("legal fraction: ")?;
    let mut words = after.split_whitespace();
    let low = words.next()?.parse().ok()?;
    words.next();
    Some((low, words.next()?.parse().ok()?))
}

#[test]
fn a_log_of_a_server_that_served_is_not_told_that_it_does_not_fit() {
    let log = served_log("served");
    let text = xtask(&format!("predict --from-log {log} --gpu rtx-5090"));
    assert!(text.starts_with("PAYS"), "{text}");
    assert!(!text.contains("above the activation wall"), "{text}");
    assert!(text.contains("--gpu-memory-utilization 0.930"), "{text}");
    let plan = xtask(&format!(
        "plan --from-log {log} --gpu rtx-5090 --context 40960"
    ));
    assert!(plan.contains("10.62 GiB of KV, 85,648 tokens"), "{plan}");
    assert!(plan.contains("2.09 requests of 40,960"), "{plan}");
    let _ = std::fs::remove_file(log);
}

#[test]
fn the_pasted_fraction_lies_in_the_printed_range() {
    for (flags, name) in [
        (
            "--model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 --context 40k",
            "--gpu-memory-utilization",
        ),
        (
            "--model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 --context 64k",
            "--gpu-memory-utilization",
        ),
        (
            "--model glm-4.5-air --quant awq --gpu rtx-3090 --gpus 4 --engine sglang --context 8k \
             --mem-fraction 0.95",
            "--mem-fraction-static",
        ),
    ] {
        let text = xtask(&format!("predict {flags}"));
        let (low, high) = legal(&text).expect("a range");
        let (_, paste) = text.split_once("\npaste").expect("flags");
        let pasted = flag(paste, name).expect("a fraction");
        assert!(
            low < pasted && pasted <= high,
            "{pasted} of {low} to {high}"
        );
    }
}

#[test]
fn a_fraction_above_the_wall_is_no_clean_gain_and_no_legal_one_is_said_so() {
    let glm = "predict --model glm-4.5-air --quant awq --gpu rtx-3090 --gpus 4 --engine sglang";
    let text = xtask(&format!("{glm} --context 8k --mem-fraction 0.95"));
    assert!(text.starts_with("MEASURE FIRST"), "{text}");
    assert!(text.contains("memory is tight: 0.950"), "{text}");
    let text = xtask("predict --model qwen3.6-27b --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0");
    assert!(text.contains("no fraction is legal"), "{text}");
    assert_eq!(legal(&text), None);
}

#[test]
fn predict_and_plan_count_the_requests_of_a_hybrid_alike() {
    let hybrid = "--model qwen3.6-27b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 \
                  --context 40k --mem-fraction 0.86";
    let plan = xtask(&format!("plan {hybrid}"));
    let (_, with) = plan.split_once("with the draft").expect("a draft");
    let (before, _) = with.split_once(" requests of 40,960").expect("requests");
    let requests: f64 = before
        .rsplit(' ')
        .next()
        .expect("a word")
        .parse()
        .expect("a number");
    let last = requests as u32;
    assert!(last > 2, "{requests}: a token count would give 1");
    let text = xtask(&format!(
        "predict {hybrid} --concurrency {last},{}",
        last + 1
    ));
    assert!(
        text.contains(&format!("beyond {last} users the KV pool is full")),
        "{text}"
    );
}

#[test]
fn too_small_an_automatic_fraction_is_answered_with_the_one_that_works() {
    let text = xtask(
        "predict --model glm-4.5-air --quant awq --gpu rtx-3090 --gpus 4 --engine sglang --context 8k",
    );
    assert!(text.starts_with("PAYS"), "{text}");
    assert!(text.contains("set --mem-fraction-static 0."), "{text}");
    let (_, paste) = text.split_once("\npaste").expect("flags");
    assert!(
        flag(paste, "--mem-fraction-static").is_some_and(|f| f > 0.75),
        "{paste}"
    );
}

#[test]
fn weights_nobody_named_a_format_for_are_said_to_be_bf16_and_the_cure_is_fewer_bits() {
    let text = xtask("predict --model qwen3.6-27b --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0");
    assert!(text.starts_with("DOES NOT FIT"), "{text}");
    assert!(text.contains("--quant fp8"), "{text}");
    assert!(
        text.contains("weights in BF16, as no other format is named"),
        "{text}"
    );
    assert!(!text.contains("raise --gpu-memory-utilization"), "{text}");
}

#[test]
fn a_pool_smaller_than_the_models_own_context_is_served_with_a_length() {
    let llama = "predict --model llama-3.3-70b --quant awq --gpu rtx-3090 --gpus 4 --engine vllm";
    let asked = xtask(&format!("{llama} --context 16k"));
    assert_eq!(flag(&asked, "--max-model-len"), Some(16_384.0), "{asked}");
    let longest = flag(&xtask(llama), "--max-model-len").expect("a length");
    assert!((65_536.0..131_072.0).contains(&longest), "{longest}");
    let beyond = xtask(
        "predict --model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 --context 64k",
    );
    assert!(
        beyond.contains("beyond the model's own 40960 tokens"),
        "{beyond}"
    );
}

#[test]
fn shapes_that_engines_refuse_are_named_with_the_cure() {
    let text = xtask("predict --model Qwen3-235B-A22B-FP8 --gpu h200 --gpus 8 --engine sglang");
    assert!(text.contains("--tp 4 or expert parallelism"), "{text}");
    assert!(!text.starts_with("PAYS"), "{text}");
    assert!(
        text.contains("--ep-size 8") && text.contains("--enable-expert-parallel"),
        "{text}"
    );
    let text = xtask("predict --model glm-4.5-air --gpu h200 --gpus 4 --tp 3");
    assert!(
        text.starts_with("error: --tp 3") && text.contains("8 KV heads"),
        "{text}"
    );
    let text =
        xtask("predict --model deepseek-v3.1 --quant nvfp4 --gpu h200 --gpus 8 --engine sglang");
    assert!(text.contains("no FP4 units"), "{text}");
}
