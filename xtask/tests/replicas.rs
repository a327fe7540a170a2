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
            "tok/s are of one replica of 2 GPUs; the box holds 2 such replicas (GPUs 0,1 / 2,3), whose \
             all-reduces share"
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
        shown.contains(
            "the box holds 4 such replicas (GPUs 0,1 / 2,3 / 4,5 / 6,7), whose all-reduces share no link"
        ),
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

/// Two GPUs on a bridge, two without: a box of which only one pair is fast.
const HALF_BRIDGED: &str = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n\
    GPU0\t X \tNV4\tPHB\tPHB\t0-23\t0\n\
    GPU1\tNV4\t X \tPHB\tPHB\t0-23\t0\n\
    GPU2\tPHB\tPHB\t X \tPHB\t0-23\t0\n\
    GPU3\tPHB\tPHB\tPHB\t X \t0-23\t0\n";

/// The bridged pair was given the time of the slower one.
#[test]
fn groups_on_unlike_links_have_each_their_own_time() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("half-bridged.txt");
    std::fs::write(&path, HALF_BRIDGED).expect("written");
    let box_flags = [
        "--gpu",
        "rtx-3090",
        "--topology",
        path.to_str().expect("a path"),
    ];
    let groups = |more: &[&str]| -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args([&["simulate", "--bytes", "40k"], &box_flags[..], more].concat())
            .output()
            .expect("the tool starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("groups"));
        line.expect("groups").to_string()
    };
    // A group by itself: "0,1 at once 11.0 us each (11.0 alone)".
    let alone = |pair: &str| {
        let line = groups(&["--groups", pair]);
        let (_, time) = line.split_once("at once ").expect("a time");
        time.split(' ').next().expect("a time").to_string()
    };
    let (fast, slow) = (alone("0,1"), alone("2,3"));
    assert_ne!(fast, slow);
    let both = groups(&[]);
    let each = format!("0,1 {fast} us ({fast} alone) / 2,3 {slow} us ({slow} alone) at once;");
    assert!(both.contains(&each), "{both}");
    // `predict` shows the tok/s of the fast pair: it says that the other is slower.
    let (_, shown) = predict(&[&box_flags[..], &["--tp", "2"]].concat());
    assert!(
        shown.contains("the first is shown, an all-reduce of GPUs 2,3 takes"),
        "{shown}"
    );
    let (_, alike) = predict(&["--box", "4x-rtx-3090-nvlink", "--tp", "2"]);
    assert!(!alike.contains("the first is shown"), "{alike}");
}

/// A box of three ran at TP 2 in the comparison without a word.
#[test]
fn a_comparison_says_how_many_gpus_of_each_box_take_part() {
    let boxes = "2x-rtx-3090-nvlink,ikllama258-3x3090,4x-rtx-3090";
    let (code, shown) = predict(&["--concurrency", "1", "--compare", boxes]);
    assert_eq!(code, Some(0), "{shown}");
    let row = |name: &str| -> Vec<String> {
        let named = |line: &&str| line.trim_start().starts_with(&format!("{name} "));
        let line = shown.lines().find(named).unwrap_or_default();
        line.split_whitespace().map(str::to_string).collect()
    };
    assert_eq!(row("compared")[1], "TP", "{shown}");
    assert_eq!(row("2x-rtx-3090-nvlink")[1..3], ["2", "1"], "{shown}");
    assert_eq!(
        row("ikllama258-3x3090")[1..5],
        ["2", "of", "3", "1"],
        "{shown}"
    );
    assert_eq!(row("4x-rtx-3090")[1..3], ["4", "1"], "{shown}");
    let why = "ikllama258-3x3090: tensor parallelism over 2 of the box's 3 GPUs (as many GPUs as";
    assert!(shown.contains(why), "{shown}");
}

/// Two sockets of four cards in pairs under a switch each: the model put a group across the sockets
/// for a gain of 2 % under a band of half.
#[test]
fn groups_whose_times_are_alike_stay_on_their_socket() {
    let near = |a: usize, b: usize| match (a == b, a / 2 == b / 2, a / 4 == b / 4) {
        (true, ..) => " X ",
        (_, true, _) => "PIX",
        (_, _, true) => "NODE",
        _ => "SYS",
    };
    let mut matrix = String::new();
    for b in 0..8 {
        matrix += &format!("\tGPU{b}");
    }
    matrix += "\tCPU Affinity\tNUMA Affinity\n";
    for a in 0..8 {
        matrix += &format!("GPU{a}");
        for b in 0..8 {
            matrix += &format!("\t{}", near(a, b));
        }
        let socket = a / 4;
        matrix += &format!("\t{}-{}\t{socket}\n", socket * 64, socket * 64 + 63);
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two-sockets.txt");
    std::fs::write(&path, matrix).expect("written");
    let box_flags = [
        "--gpu",
        "rtx-pro-6000-server",
        "--topology",
        path.to_str().expect("a path"),
        "--tp",
        "4",
    ];
    let (code, shown) = predict(&box_flags);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("such replicas (GPUs 0,1,2,3 / 4,5,6,7), whose all-reduces share no link"),
        "{shown}"
    );
    assert!(!shown.contains("CUDA_VISIBLE_DEVICES"), "{shown}");
}
