//! A model with linear layers in vLLM: no line is pasted whose requests at once have no blocks.

mod common;

use std::path::Path;

use common::answers;

/// Qwen3.6-27B in FP8 with its MTP layer on one card of 96 GB.
fn run(command: &str, more: &str) -> String {
    let flags = "--model qwen3.6-27b --quant fp8 --gpu rtx-pro-6000 --gpus 1 --draft mtp --accept 2.9@3 --context 16k";
    let words = [command, flags, more].join(" ");
    answers(&words.split_whitespace().collect::<Vec<_>>())
}

/// The start line was without the flag, so that vLLM took 1,024 and might be refused: 1,031 blocks +- 26.
#[test]
fn the_pasted_line_says_how_many_at_once_where_the_default_may_have_too_few_blocks() {
    let text = run("predict", "--engine vllm@0.28.0 --concurrency 1,12");
    assert!(
        text.contains("--gpu-memory-utilization 0.920 --max-num-seqs 256"),
        "{text}"
    );
    let why = "--max-num-seqs 256 in the paste: by itself vLLM takes 1,024 at once and starts only with a block";
    assert!(text.contains(why), "{text}");
    let plan = run("plan", "--engine vllm@0.28.0");
    assert!(
        plan.contains("start with --max-num-seqs 256: by itself"),
        "{plan}"
    );
    // Before the check nothing is told, and who says a number keeps it.
    let older = run("predict", "--engine vllm@0.19.1 --concurrency 1,12");
    assert!(!older.contains("--max-num-seqs"), "{older}");
    let own = run(
        "predict",
        "--engine vllm@0.28.0 --concurrency 1,12 --max-running 12",
    );
    assert!(own.contains("--max-num-seqs 12"), "{own}");
    assert!(!own.contains("for the states"), "{own}");
}

#[test]
fn a_number_above_the_blocks_is_refused_and_the_legal_fraction_starts_where_it_has_them() {
    let plan = run(
        "plan",
        "--engine vllm@0.28.0 --mem-fraction 0.56 --max-running 1024",
    );
    assert!(plan.starts_with("REFUSED"), "{plan}");
    assert!(
        plan.contains("exceeds available Mamba cache blocks (372)"),
        "{plan}"
    );
    assert!(
        plan.contains("do: start with --max-num-seqs 340, or raise"),
        "{plan}"
    );
    let wall = "a block for the states of each of 1,024 requests at once)";
    assert!(
        plan.contains(&format!("legal from 0.9160 (pool wall: {wall}")),
        "{plan}"
    );
    let predict = run(
        "predict",
        "--engine vllm@0.28.0 --steps 4 --mem-fraction 0.56 --max-running 1024",
    );
    assert!(predict.contains("refused at 0.560"), "{predict}");
    // Beside the four drafted tokens that its line has.
    assert!(
        predict.contains("start with --max-num-seqs 330"),
        "{predict}"
    );
    assert!(
        predict.contains(&format!("legal fraction: 0.9272 to 0.9842 ({wall}")),
        "{predict}"
    );
    // Inside the band of the blocks it is no more than likely.
    let likely = run(
        "predict",
        "--engine vllm@0.28.0 --steps 3 --max-running 1024",
    );
    assert!(
        likely.contains("should it be refused, --max-num-seqs 1000"),
        "{likely}"
    );
    assert!(
        likely.contains(&format!("legal fraction: 0.9160 to 0.9842 ({wall}")),
        "{likely}"
    );
}

#[test]
fn a_log_that_ends_in_too_few_blocks_says_which_number_to_set() {
    let error = "ERROR 09-14 19:05:01 [core.py:936]";
    let text = format!(
        "(APIServer pid=1) INFO 09-14 19:02:15 [utils.py:233] vLLM API server version 0.28.0\n\
         (APIServer pid=1) INFO 09-14 19:02:15 [utils.py:233] non-default args: {{'model': \
         'Qwen/Qwen3.6-27B-FP8', 'gpu_memory_utilization': 0.56}}\n\
         (EngineCore_DP0 pid=2) {error} EngineCore failed to start.\n\
         (EngineCore_DP0 pid=2) {error} Traceback (most recent call last):\n\
         (EngineCore_DP0 pid=2) {error}   File \"/v/config/compilation.py\", line 1442, in resolve\n\
         (EngineCore_DP0 pid=2) {error} ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks \
         (372). Each decode sequence requires one Mamba cache block, so CUDA graph capture cannot proceed.\n"
    );
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mamba-blocks.log");
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("a path");
    let said = answers(&["explain", path]).replace("\n            ", " ");
    assert!(
        said.contains("1024 are allowed, 372 blocks are there"),
        "{said}"
    );
    assert!(said.contains("do   --max-num-seqs 372 or fewer"), "{said}");
    let next = answers(&[
        "predict",
        "--from-log",
        path,
        "--gpu",
        "rtx-pro-6000",
        "--gpus",
        "1",
    ]);
    assert!(
        next.contains("--gpu-memory-utilization 0.560 --max-num-seqs 256"),
        "{next}"
    );
}
