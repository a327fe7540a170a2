//! A group of fewer GPUs than the box holds.

use std::path::Path;
use std::process::Command;

fn predict(more: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["predict", "--model", "llama-3.1-8b", "--draft", "none"])
        .args(more)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the tool starts");
    let all = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&all).into_owned(),
    )
}

#[test]
fn speeds_of_two_gpus_of_four_are_said_to_be_of_one_replica() {
    let (code, shown) = predict(&["--box", "4x-rtx-3090", "--tp", "2"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains(
            "tok/s are of one replica of 2 GPUs; the box holds 2 such replicas, whose all-reduces share"
        ),
        "{shown}"
    );
    let (_, whole) = predict(&["--box", "4x-rtx-3090", "--tp", "4"]);
    assert!(!whole.contains("replica"), "{whole}");
}

/// Pairs under one switch have it to themselves; a group of four crosses no other's links either.
#[test]
fn replicas_under_their_own_switches_share_no_link() {
    let (code, shown) = predict(&["--box", "two-switch-8", "--tp", "2"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("the box holds 4 such replicas, whose all-reduces share no link"),
        "{shown}"
    );
}

#[test]
fn a_kernel_refused_for_want_of_peer_access_says_what_to_use() {
    let (code, shown) = predict(&[
        "--box",
        "4x-rtx-3090-nvlink",
        "--tp",
        "4",
        "--allreduce",
        "one-shot",
    ]);
    assert_eq!(code, Some(2), "{shown}");
    for part in ["use nccl", "NVLink joins only [0, 2] and [1, 3]", "driver"] {
        assert!(shown.contains(part), "{part} not in {shown}");
    }
}

/// Bridges join 0 with 2 and 1 with 3: a group of two left to the engine's order crosses the host.
#[test]
fn a_group_of_two_runs_on_a_bridged_pair_and_the_paste_says_which() {
    let pair = ["--box", "4x-rtx-3090-nvlink", "--tp", "2"];
    let (code, shown) = predict(&pair);
    assert_eq!(code, Some(0), "{shown}");
    for part in [
        "at TP 2 (GPUs 0,2)",
        "such replicas (GPUs 0,2 / 1,3), whose all-reduces share no link",
        "sglang: CUDA_VISIBLE_DEVICES=0,2 ",
        "vllm: CUDA_VISIBLE_DEVICES=0,2 ",
        "GPUs 0,1, which engines take by themselves",
    ] {
        assert!(shown.contains(part), "{part} not in {shown}");
    }
    let (_, json) = predict(&[&pair[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        json["replicas"]["gpus"],
        serde_json::json!([[0, 2], [1, 3]])
    );
    assert_eq!(
        json["scenario"]["placement"]["value"],
        serde_json::json!([0, 2])
    );
    // The bridge is worth something now; without one the engines' own order stands.
    let tok_s = |text: &serde_json::Value| text["points"][6]["baseline_tok_s"].as_f64();
    let (_, plain) = predict(&["--box", "4x-rtx-3090", "--tp", "2", "--json"]);
    let plain: serde_json::Value = serde_json::from_str(&plain).expect("JSON");
    assert!(tok_s(&json) > tok_s(&plain), "{plain}");
    assert_eq!(
        plain["replicas"]["gpus"],
        serde_json::json!([[0, 1], [2, 3]])
    );
    assert_eq!(plain["scenario"]["placement"], serde_json::Value::Null);
}
