//! What is printed to paste: keys that the named version takes, the draft that was named.

mod common;

use common::answers;

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let common = [
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--accept",
        "2.9@3",
    ];
    common.into_iter().chain(more.iter().copied()).collect()
}

/// The lines under `paste`.
fn paste(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| *line != "paste").skip(1);
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn a_depth_by_load_is_pasted_only_for_a_vllm_that_has_it() {
    let loads = "1,8,64,256";
    let key = "num_speculative_tokens_per_batch_size";
    let new = answers(&with(&["--engine", "vllm@0.24.0", "--concurrency", loads]));
    assert!(paste(&new).join("").contains(key), "{new}");
    let old = answers(&with(&["--engine", "vllm@0.11.0", "--concurrency", loads]));
    assert!(!paste(&old).join("").contains(key), "{old}");
    assert!(
        paste(&old).join("").contains("num_speculative_tokens"),
        "{old}"
    );
    assert!(old.contains("vLLM 0.11.0 has no depth by load"), "{old}");
}

#[test]
fn an_engine_that_was_named_is_pasted_alone() {
    let named = answers(&with(&["--engine", "vllm"]));
    let lines = paste(&named);
    assert!(
        lines.len() == 1 && lines[0].starts_with("  vllm: "),
        "{named}"
    );
    assert_eq!(paste(&answers(&with(&[]))).len(), 2);
}

#[test]
fn a_draft_named_by_its_repository_is_pasted_by_it() {
    let name = "RedHatAI/Qwen3-32B-speculator.eagle3";
    let text = answers(&with(&["--draft", name]));
    for line in paste(&text) {
        assert!(
            line.contains(name) && !line.contains("DRAFT_PATH"),
            "{text}"
        );
    }
    let text = answers(&with(&["--draft", name, "--engine", "trtllm"]));
    let extra = format!("speculative_model_dir: {name}");
    assert!(paste(&text).join("").contains(&extra), "{text}");
}
