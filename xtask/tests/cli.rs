//! The command line as users meet it: exit codes, one-line errors, JSON keys, any file given.

mod common;

use common::xtask;

use std::path::{Path, PathBuf};
use std::process::Output;

fn shared_data() -> Option<PathBuf> {
    let path = std::env::var_os("SHARED_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: no measured data at {}", path.display());
    None
}

/// Answered, or refused in one line with exit code 2: nothing else may happen to an input.
fn answers_or_refuses(output: &Output, what: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(2) => {
            assert_eq!(error.trim_end().lines().count(), 1, "{what}: {error}");
            assert!(error.starts_with("error: "), "{what}: {error}");
            assert!(error.len() < 1500, "{what}: {error}");
        }
        code => panic!("{what}: exit code {code:?}: {error}"),
    }
}

fn refuses(arguments: &[&str], word: &str) {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(
        error.trim_end().lines().count(),
        1,
        "{arguments:?}: {error}"
    );
    assert!(error.contains(word), "{arguments:?}: {error}");
}

fn temporary(name: &str, content: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("xtask-cli-{}-{name}", std::process::id()));
    std::fs::write(&path, content).expect("a temporary file");
    path
}

/// Keys of the contract, by where they stand (a JSON pointer) in the default answer.
const CONTRACT: [(&str, &str); 6] = [
    (
        "",
        "schema scenario verdict because best break_even_accept_length pays_up_to_concurrency \
         points memory allreduce flips engine_flags depth_table",
    ),
    (
        "/best",
        "steps topk draft_tokens draft_tp allreduce speedup speedup_low speedup_high \
         probability_pays",
    ),
    (
        "/points/0",
        "concurrency context steps accept_length baseline_tok_s spec_tok_s speedup speedup_low \
         speedup_high baseline_step_ms cycle_ms draft_ms verify_ms verify_parts_ms",
    ),
    (
        "/points/0/verify_parts_ms",
        "weights experts kv compute allreduce launch other",
    ),
    (
        "/memory",
        "fits kv_tokens kv_tokens_without_speculation fraction_min fraction_max ledger",
    ),
    (
        "/allreduce/0",
        "algorithm bytes time_us time_us_low time_us_high",
    ),
];

#[test]
fn the_default_prediction_has_every_key_of_the_contract() {
    let output = xtask(&["predict", "--json"]);
    assert!(output.status.success());
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (pointer, keys) in CONTRACT {
        let part = answer.pointer(pointer).expect(pointer);
        for key in keys.split_whitespace() {
            assert!(part.get(key).is_some(), "no {key} in {pointer}");
        }
    }
    assert!(answer["engine_flags"]["sglang"].is_array());
    assert!(answer["engine_flags"]["vllm"].is_array());
}

#[test]
fn a_speedup_never_exceeds_its_accept_length() {
    let output = xtask(&["predict", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for point in answer["points"].as_array().expect("points") {
        let speedup = point["speedup"].as_f64().expect("a speedup");
        let accept_length = point["accept_length"].as_f64().expect("an accept length");
        assert!(speedup <= accept_length + 1e-9);
    }
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let model = ["predict", "--model", "qwen3-8b", "--gpu", "rtx-4090"];
    let with = |more: &[&'static str]| -> Vec<&'static str> {
        model.iter().chain(more).copied().collect()
    };
    refuses(&with(&["--gpus", "0"]), "--gpus 0");
    refuses(&with(&["--gpus", "4", "--tp", "3"]), "--tp 3");
    refuses(&with(&["--gpus", "4", "--tp", "8"]), "--tp 8");
    refuses(&with(&["--context", "-1"]), "--context");
    refuses(&with(&["--context", "999999999999"]), "--context");
    refuses(&with(&["--concurrency", "0"]), "--concurrency");
    refuses(&with(&["--concurrency", ""]), "--concurrency");
    refuses(&with(&["--accept", "9.5@3"]), "--accept");
    refuses(&with(&["--accept", "2.3"]), "@3");
    refuses(&with(&["--temperature", "-1"]), "--temperature");
    refuses(&with(&["--mem-fraction", "1.5"]), "--mem-fraction");
    refuses(&with(&["--engine", "tgi"]), "--engine");
    refuses(&with(&["--kv-dtype", "int3"]), "--kv-dtype");
    refuses(&with(&["--quant", "int3"]), "int3");
    refuses(&with(&["--allreduce", "magic"]), "--allreduce");
    refuses(&with(&["--steps", "0"]), "--steps");
    refuses(
        &["predict", "--model", "qwen3-8bb", "--gpu", "rtx-4090"],
        "qwen3-8b",
    );
    refuses(
        &["predict", "--model", "qwen3-8b", "--gpu", "rtx-4900"],
        "rtx-4090",
    );
    refuses(
        &["predict", "--model", "qwen3-8b", "--box", "no-such-box"],
        "no-such-box",
    );
    refuses(&["predict", "--model", "qwen3-8b"], "--gpu");
    refuses(
        &["predict", "--model", "missing.json", "--gpu", "h100"],
        "missing.json",
    );
    refuses(&["predict", "--scenario", "missing.toml"], "missing.toml");
    refuses(&["explain", "missing.log"], "missing.log");
    refuses(&["score", "--data", "missing"], "missing");
}

#[test]
fn files_that_are_not_what_they_should_be_are_refused() {
    let truncated = temporary("truncated.json", b"{\"architectures\": [\"LlamaForCau");
    let binary = temporary("binary.json", &[0_u8, 159, 146, 150, 0, 1, 2]);
    let empty = temporary("empty.json", b"");
    let list = temporary("list.json", b"[1,2,3]");
    for path in [&truncated, &binary, &empty, &list] {
        let shown = path.to_string_lossy().into_owned();
        refuses(&["predict", "--model", &shown, "--gpu", "h100"], "error");
        let with_topology = [
            "predict",
            "--model",
            "qwen3-8b",
            "--gpu",
            "h100",
            "--topology",
            shown.as_str(),
        ];
        refuses(&with_topology, "error");
        let with_baseline = [
            "predict",
            "--model",
            "qwen3-8b",
            "--gpu",
            "h100",
            "--baseline",
            shown.as_str(),
        ];
        refuses(&with_baseline, "error");
    }
    for path in [truncated, binary, empty, list] {
        let _ = std::fs::remove_file(path);
    }
}

#[test]
fn a_file_of_two_gigabytes_is_refused_without_reading_it() {
    let path = temporary("huge.json", b"{");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the file just made");
    file.set_len(2 << 30).expect("a sparse file");
    let shown = path.to_string_lossy().into_owned();
    refuses(&["predict", "--model", &shown, "--gpu", "h100"], "MiB");
    refuses(&["explain", &shown], "MiB");
    let _ = std::fs::remove_file(path);
}

#[test]
fn absurd_numbers_in_a_config_do_not_break_anything() {
    let config = br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama",
        "hidden_size":4294967295,"intermediate_size":18446744073709551615,
        "num_hidden_layers":1000000000,"num_attention_heads":1,"num_key_value_heads":1,
        "vocab_size":99999999999}"#;
    let path = temporary("absurd.json", config);
    let shown = path.to_string_lossy().into_owned();
    let output = xtask(&["predict", "--model", &shown, "--gpu", "h100"]);
    answers_or_refuses(&output, "absurd config");
    let _ = std::fs::remove_file(path);
}

#[test]
fn every_config_and_every_topology_is_answered_or_refused_in_one_line() {
    let Some(data) = shared_data() else {
        return;
    };
    let files = |folder: &str| -> Vec<String> {
        let mut found: Vec<String> = std::fs::read_dir(data.join(folder))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_file())
            .map(|path| path.to_string_lossy().into_owned())
            .filter(|name| !name.ends_with(".source") && !name.ends_with(".tsv"))
            .collect();
        found.sort();
        found
    };
    let mut configs = files("hf_configs");
    configs.extend(files("hf_configs/drafts"));
    configs.extend(files("hf_configs/mlc_presets"));
    let topologies = files("topologies");
    assert!(configs.len() > 100 && topologies.len() > 15);
    // Every config once and every topology once, paired in turn.
    let pairs = configs.len().max(topologies.len());
    for index in 0..pairs {
        let config = &configs[index % configs.len()];
        let topology = &topologies[index % topologies.len()];
        let output = xtask(&[
            "predict",
            "--model",
            config,
            "--gpu",
            "rtx-4090",
            "--topology",
            topology,
        ]);
        answers_or_refuses(&output, &format!("{config} with {topology}"));
    }
}

#[test]
fn figures_observed_on_the_default_box_say_nothing_of_another_card() {
    let output = xtask(&["plan", "--gpu", "h200", "--gpus", "8", "--json"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(json["inferred_fraction"].is_null(), "{text}");
    let most = json["memory"]["kv_tokens"].as_u64().expect("tokens");
    assert!(
        most > 500_000,
        "an H200 holds more than the default card: {most}"
    );
}

#[test]
fn a_log_says_how_many_gpus_took_part_where_only_the_card_is_given() {
    let log = "docs/examples/story.log";
    let output = xtask(&[
        "predict",
        "--from-log",
        log,
        "--gpu",
        "rtx-pro-6000",
        "--json",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["memory"]["fits"], true, "{text}");
}

#[test]
fn completions_name_every_command_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = xtask(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        let script = String::from_utf8_lossy(&output.stdout);
        for command in [
            "predict",
            "plan",
            "simulate",
            "accept",
            "explain",
            "verify-hw",
        ] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn an_answer_is_not_surer_than_the_accept_length_it_assumes() {
    let output = xtask(&[
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--gpus",
        "2",
        "--steps",
        "3",
        "--json",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let accept = xtask(&["accept", "--depths", "3", "--json"]);
    let prior: serde_json::Value =
        serde_json::from_str(&String::from_utf8_lossy(&accept.stdout)).expect("JSON");
    let prior = &prior["depths"][0];
    let low = prior["low"].as_f64().expect("low") / prior["accept_length"].as_f64().expect("mean");
    for point in json["points"].as_array().expect("points") {
        let band =
            point["speedup_low"].as_f64().expect("low") / point["speedup"].as_f64().expect("mean");
        assert!(band <= low + 0.01, "{band} is narrower than {low}: {point}");
    }
}
