//! Sweeps of `predict`, whole processes with everything that they print: 5 contexts of 256 loads, each
//! costed at 8 depths.

use std::process::Command;

fn main() {
    println!(
        "expected: 1,260 loads, 10,080 operating points of 8 depths each, under 1 s a process"
    );
    divan::main();
}

/// As many loads as one call takes, from 1 up.
fn loads() -> String {
    let loads: Vec<String> = (1..=256).map(|users| users.to_string()).collect();
    loads.join(",")
}

fn predict(more: &[&str]) {
    for context in ["2k", "4k", "8k", "16k", "32k"] {
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
}

#[divan::bench(sample_count = 10)]
fn points_10240_from_scratch() {
    predict(&[]);
}

#[divan::bench(sample_count = 10)]
fn points_10240_on_a_sweep() {
    let path = std::env::temp_dir().join(format!("sweep-bench-{}.csv", std::process::id()));
    let sweep = "concurrency,tok_s\n1,60\n8,450\n32,1600\n128,4700\n";
    std::fs::write(&path, sweep).unwrap_or_else(|error| panic!("{error}"));
    predict(&["--baseline", &path.display().to_string()]);
    let _ = std::fs::remove_file(&path);
}
