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
