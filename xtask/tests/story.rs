//! The night the project began with, as figures: what was observed must come out, from the flags
//! that were set and the wiring that is assumed.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the tool starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn tok_s(answer: &Value) -> f64 {
    answer["points"][0]["spec_tok_s"].as_f64().expect("a rate")
}

#[test]
fn forcing_the_one_shot_kernel_lands_at_38_tok_s_and_far_under_nccl() {
    let nccl = tok_s(&json(&["predict", "--json"]));
    let forced = tok_s(&json(&["predict", "--allreduce", "one-shot", "--json"]));
    assert!((forced / 38.0 - 1.0).abs() <= 0.20, "{forced}");
    assert!(nccl / forced >= 1.9, "{nccl} against {forced}");
}

#[test]
fn a_pass_has_122_all_reduces_of_14_kb_a_token() {
    let answer = json(&["predict", "--json"]);
    let rows = answer["allreduce"].as_array().expect("all-reduce rows");
    let bytes: Vec<u64> = rows.iter().filter_map(|r| r["bytes"].as_u64()).collect();
    assert!(
        bytes.contains(&14_336) && bytes.contains(&57_344),
        "{bytes:?}"
    );
    for row in rows {
        let time_us = row["time_us"].as_f64().expect("a time");
        let per_pass_ms = row["per_pass_ms"].as_f64().expect("a sum");
        let count = per_pass_ms * 1000.0 / time_us;
        assert!((count - 122.0).abs() < 1e-6, "{count}");
    }
}

#[test]
fn without_the_pinned_verify_the_answer_from_scratch_stands_beside() {
    let answer = json(&["predict", "--json"]);
    let observed = answer["observed"].as_array().expect("observed rows");
    let verify = observed
        .iter()
        .find(|row| {
            row["what"]
                .as_str()
                .is_some_and(|w| w.starts_with("verify"))
        })
        .expect("the verify row");
    assert_eq!(verify["observed"].as_f64(), Some(30.0));
    let computed = verify["computed"].as_f64().expect("a computed verify");
    assert!(computed > 5.0 && computed < 30.0, "{computed}");
    let pinned = answer["points"][0]["verify_ms"].as_f64().expect("a verify");
    assert!((pinned - 30.0).abs() < 0.01, "{pinned}");
}

#[test]
fn the_fraction_of_that_night_was_0_88_and_0_55_can_never_start() {
    let figures = [
        "plan",
        "--free-before-gib",
        "94",
        "--free-after-gib",
        "21.7",
        "--kv-gib",
        "10.42",
        "--mem-fraction",
        "0.55",
        "--json",
    ];
    let plan = json(&figures);
    let inferred = plan["inferred_fraction"].as_f64().expect("a fraction");
    assert!((inferred - 0.88).abs() < 0.001, "{inferred}");
    let text = plan.to_string();
    assert!(text.contains("20.6"), "{text}");
    assert!(text.contains("0.770") || text.contains("0.77"), "{text}");
}
