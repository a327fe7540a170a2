//! Runs the tool as users do, from the repository's root.

// Every test binary compiles this file and takes what it needs of it.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the tool starts")
}

/// What is printed when the tool answers.
pub(crate) fn answers(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The answer of a command with flags in one line.
pub(crate) fn run(command: &str, flags: &str) -> String {
    let words: Vec<&str> = std::iter::once(command)
        .chain(flags.split_whitespace())
        .collect();
    answers(&words)
}

/// The one line with which the tool refuses its input.
pub(crate) fn refusal(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(
        error.trim_end().lines().count(),
        1,
        "{arguments:?}: {error}"
    );
    error
}

/// A plain server of SGLang up to its limits.
pub(crate) const SGLANG_LOG: &str = "\
[2026-07-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', context_length=32768, mem_fraction_static=0.848, max_running_requests=48, chunked_prefill_size=4096, tp_size=4, speculative_algorithm=None)
[2026-07-11 09:14:17 TP0] Load weight begin. avail mem=46.21 GB
[2026-07-11 09:14:38 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=30.71 GB, mem usage=15.50 GB.
[2026-07-11 09:14:39 TP0] KV Cache is allocated. #tokens: 388300, K size: 11.85 GB, V size: 11.85 GB
[2026-07-11 09:14:39 TP0] Memory pool end. avail mem=6.99 GB
[2026-07-11 09:15:05 TP0] max_total_num_tokens=388300, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=48, context_len=32768, available_gpu_mem=6.18 GB
";

/// Writes a file, runs on it, takes it away again.
pub(crate) fn with_log<T>(name: &str, text: &str, run: impl Fn(&str) -> T) -> T {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("log-{name}-{}-{count}.log", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, text).expect("a file");
    let result = run(&path.display().to_string());
    let _ = std::fs::remove_file(path);
    result
}

/// A serving bench of requests of 3584 and 1024 tokens.
pub(crate) fn bench(users: u32, tpot_ms: f64, accept: Option<f64>) -> String {
    let accept = accept.map_or_else(String::new, |length| format!("Accept length: {length}\n"));
    let output = f64::from(users) * 950.0 / tpot_ms;
    format!(
        "============ Serving Benchmark Result ============\n\
         Backend: sglang\n\
         Max request concurrency: {users}\n\
         Successful requests: 10\n\
         Total input tokens: 35840\n\
         Total generated tokens: 10240\n\
         Output token throughput (tok/s): {output:.2}\n\
         {accept}\
         Mean TTFT (ms): 900.00\n\
         Mean TPOT (ms): {tpot_ms:.2}\n\
         Mean ITL (ms): {tpot_ms:.2}\n\
         Median ITL (ms): {:.2}\n\
         ==================================================\n",
        tpot_ms * 0.9
    )
}
