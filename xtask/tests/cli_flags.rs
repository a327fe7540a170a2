//! Flags act or say that they do not; what cannot be is refused in one line that names its place.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the tool starts")
}

fn refuses(arguments: &[&str], words: &[&str]) {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(
        error.trim_end().lines().count(),
        1,
        "{arguments:?}: {error}"
    );
    for word in words {
        assert!(error.contains(word), "{arguments:?}: no {word}: {error}");
    }
}

fn answers(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&answers(arguments)).expect("JSON")
}

fn temporary(name: &str, content: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("xtask-flags-{}-{name}", std::process::id()));
    std::fs::write(&path, content).expect("a temporary file");
    path
}

const MODEL: [&str; 5] = ["predict", "--model", "qwen3-32b", "--gpu", "h100"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    MODEL.iter().chain(more).copied().collect()
}

#[test]
fn what_the_parser_refuses_takes_one_line() {
    refuses(&["predict", "--gpus", "-1"], &["--gpus"]);
    refuses(
        &["predict", "--mem-fraction", "-0.5"],
        &["--mem-fraction -0.5"],
    );
    refuses(&["predict", "--tp", "99999999999"], &["--tp"]);
    refuses(
        &["predict", "--box", "hgx-h200-8", "--gpus", "2"],
        &["--box", "--gpus"],
    );
    refuses(&["predict", "--modle", "x"], &["--model"]);
    refuses(&["predcit"], &["predict"]);
    refuses(&["explain"], &["FILE"]);
    refuses(&[], &["--help"]);
    assert!(answers(&["predict", "--help"]).lines().count() > 20);
    assert!(answers(&["--version"]).starts_with("xtask"));
}

#[test]
fn fewer_gpus_alone_take_part_of_the_default_box() {
    let all = json(&["predict", "--json"]);
    let half = json(&["predict", "--gpus", "4", "--json"]);
    assert_eq!(all["scenario"]["tp"]["value"], 8);
    assert_eq!(half["scenario"]["tp"]["value"], 4);
    refuses(&["predict", "--gpus", "16"], &["--gpus 16", "8"]);
}

#[test]
fn a_task_that_an_assumed_accept_length_overrides_is_said_so() {
    let text = answers(&["predict", "--task", "code", "--temperature", "0"]);
    assert!(text.contains("--task and --temperature: ignored"), "{text}");
    let text = answers(&["predict", "--task", "code", "--accept", "2.3@3"]);
    assert!(text.contains("--task: the accept length is"), "{text}");
}

#[test]
fn a_kv_format_that_the_engine_lacks_is_refused() {
    refuses(&with(&["--kv-dtype", "q8_0"]), &["--kv-dtype q8_0", "fp8"]);
    refuses(
        &with(&["--kv-dtype", "q8_0", "--engine", "vllm"]),
        &["vllm"],
    );
    refuses(
        &with(&["--kv-dtype", "fp8", "--engine", "llamacpp"]),
        &["q8_0"],
    );
    answers(&with(&["--kv-dtype", "q8_0", "--engine", "llamacpp"]));
}

#[test]
fn decode_context_parallelism_is_refused_where_the_engine_has_none() {
    let two = ["--gpus", "2", "--dcp", "2"];
    for engine in ["trtllm", "llamacpp"] {
        refuses(
            &[&MODEL[..], &two, &["--engine", engine]].concat(),
            &["--dcp 2", engine],
        );
    }
    let text = answers(&[&MODEL[..], &two].concat());
    assert!(text.contains("dcp 2: only the step times"), "{text}");
}

#[test]
fn an_engine_version_is_a_number_with_a_point_or_a_month() {
    for version in ["sglang@", "vllm@99", "vllm@0.0.1", "vllm@abc"] {
        refuses(&with(&["--engine", version]), &[version, "2026-05"]);
    }
    let text = answers(&with(&["--engine", "vllm@9.1"]));
    assert!(text.contains("vllm 9.1: newer than"), "{text}");
    answers(&with(&["--engine", "vllm@2026-05"]));
}

#[test]
fn counts_and_alphas_are_read_by_predict_too() {
    for form in ["counts:10000:6500,4000,2400", "alphas:.65,.61538,.6"] {
        let answer = json(&with(&["--accept", form, "--steps", "3", "--json"]));
        let length = answer["points"][0]["accept_length"].as_f64().expect("one");
        assert!((length - 2.29).abs() < 0.05, "{form}: {length}");
    }
    refuses(
        &with(&["--accept", "rates:"]),
        &["--accept rates:", "empty"],
    );
    refuses(&with(&["--accept", "counts:7"]), &["counts:CYCLES"]);
}

#[test]
fn a_box_file_needs_no_suffix_and_a_config_is_named_by_its_file() {
    let show = xtask(&["simulate", "--gpu", "h100", "--gpus", "2"]);
    assert!(show.status.success());
    let path = temporary("box", "not a box = [");
    let shown = path.to_string_lossy().into_owned();
    refuses(&["simulate", "--box", &shown], &[&shown]);
    let nested = temporary("nest.json", "[1");
    let shown = nested.to_string_lossy().into_owned();
    refuses(
        &["predict", "--model", &shown, "--gpu", "h100"],
        &[&format!("{shown}: ")],
    );
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(nested);
}

#[test]
fn a_scenario_file_takes_what_the_flags_take_and_names_types_in_words() {
    let base = "model = \"qwen3-8b\"\ngpu = \"h100\"\ngpus = 1\n";
    let path = temporary(
        "a.toml",
        &format!("{base}context = \"32k\"\nconcurrency = \"1,2\"\n"),
    );
    let shown = path.to_string_lossy().into_owned();
    let answer = json(&["predict", "--scenario", &shown, "--json"]);
    assert_eq!(answer["scenario"]["context"]["value"], 32768);
    assert_eq!(answer["points"][1]["concurrency"], 2);
    std::fs::write(&path, format!("{base}tp = \"two\"\n")).expect("written");
    refuses(
        &["predict", "--scenario", &shown],
        &[&format!("{shown}:4: "), "whole number"],
    );
    let _ = std::fs::remove_file(path);
}
