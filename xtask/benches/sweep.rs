//! Sweeps of `predict`, whole processes with everything that they print. A point is a load at a
//! context and a depth: 256 loads at 8 depths for the table, and the map of best depths again.

use std::process::Command;

fn main() {
    println!(
        "expected: 12,288 operating points from scratch under 1 s, 4,096 on a sweep under 0.4 s"
    );
    divan::main();
}

/// As many loads as one call takes, from 1 up.
fn loads() -> String {
    let loads: Vec<String> = (1..=256).map(|users| users.to_string()).collect();
    loads.join(",")
}

fn predict(context: &str, more: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["predict", "--model", "qwen3-32b", "--gpu", "h100"])
        .args(["--draft", "eagle3", "--engine", "vllm", "--json"])
        .args(["--concurrency", &loads(), "--context", context])
        .args(more)
        .output()
        .unwrap_or_else(|error| panic!("the tool does not start: {error}"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    divan::black_box(output.stdout);
}

/// The map has 5 contexts: 256 x 8 x (1 + 5) points.
#[divan::bench(sample_count = 10)]
fn points_12288_from_scratch() {
    predict("2k", &[]);
}

/// A sweep speaks of its own context alone: 256 x 8 x 2 points.
#[divan::bench(sample_count = 10)]
fn points_4096_on_a_sweep() {
    let path = std::env::temp_dir().join(format!("sweep-bench-{}.csv", std::process::id()));
    let sweep = "concurrency,tok_s\n1,60\n8,450\n32,1600\n128,4700\n";
    std::fs::write(&path, sweep).unwrap_or_else(|error| panic!("{error}"));
    predict("2k", &["--baseline", &path.display().to_string()]);
    let _ = std::fs::remove_file(&path);
}
