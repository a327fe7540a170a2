//! What an engine's release lacks for the line that is pasted for it.

mod common;

use common::answers;

fn of(model: &str, engine: &str, more: &[&str]) -> String {
    let common = ["predict", "--model", model, "--engine", engine];
    let box_of = ["--box", "hgx-b300-8", "--tp", "8"];
    let all = common.iter().chain(&box_of).chain(more).copied();
    answers(&all.collect::<Vec<_>>())
}

#[test]
fn a_draft_that_the_named_release_cannot_serve_is_answered_for_by_the_release_that_can() {
    let text = of("qwen3-30b-a3b", "vllm@0.10.2", &[]);
    let line = "vLLM 0.10.2 (--engine) does not serve EAGLE-3 for Qwen3MoeForCausalLM; answered for 0.11.1, the \
                first that does; newer ones differ: --engine vllm@VERSION; 0.10.2 serves --draft ngram";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\n  vllm (0.11.1): vllm serve"), "{text}");
    // But for what says so, it is that release's answer.
    let of_first = of("qwen3-30b-a3b", "vllm@0.11.1", &[]);
    let unsaid = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("does not serve"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let same = unsaid(&text).replace("vllm (0.11.1): ", "vllm: ");
    assert_eq!(same.trim_end(), unsaid(&of_first).trim_end());
    let json = of("qwen3-30b-a3b", "vllm@0.10.2", &["--json"]);
    assert!(json.contains("\"needs\": \"0.11.1\""), "{json}");
    for served in [
        of("qwen3-30b-a3b", "vllm@0.11.1", &[]),
        of("qwen3-30b-a3b", "vllm@0.10.2", &["--draft", "ngram"]),
        // A build known by its month has no number.
        of("qwen3-30b-a3b", "vllm@2025-06", &[]),
    ] {
        assert!(!served.contains("does not serve"), "{served}");
        assert!(!served.contains("or newer): "), "{served}");
    }
}

#[test]
fn a_model_that_the_named_release_does_not_know_is_told() {
    let text = of("qwen3-next-80b-a3b", "vllm@0.10.1", &[]);
    let line = "vLLM 0.10.1 (--engine) does not serve Qwen3NextForCausalLM; answered for 0.10.2, the first";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_line_that_no_release_runs_says_so_where_no_version_is_named() {
    let text = of("glm-4.7", "vllm", &["--draft", "eagle3", "--accept", "3@3"]);
    assert!(
        text.contains("serves EAGLE-3 for Glm4MoeForCausalLM"),
        "{text}"
    );
    assert!(text.contains("; --draft mtp is served"), "{text}");
    assert!(text.contains("vllm (in no release to "), "{text}");
}

#[test]
fn releases_of_vllm_without_the_name_mtp_are_told_no_method() {
    let old = of("deepseek-v3", "vllm@0.10.2", &["--quant", "nvfp4"]);
    assert!(old.contains("'{\"num_speculative_tokens\":"), "{old}");
    let new = of("deepseek-v3", "vllm@0.11.0", &["--quant", "nvfp4"]);
    assert!(new.contains("{\"method\":\"mtp\""), "{new}");
}

#[test]
fn a_line_of_the_other_engine_stands_beside_only_where_a_release_runs_it() {
    let of = |engine: &[&str]| {
        let common = ["predict", "--model", "gemma-3-27b", "--box", "hgx-b300-8"];
        let all = common.iter().chain(engine).copied();
        answers(&all.collect::<Vec<_>>())
    };
    let text = of(&["--draft", "eagle3"]);
    assert!(text.contains("\n  sglang: python -m sglang"), "{text}");
    assert!(!text.contains("vllm"), "{text}");
    // Asked for, it is shown, with what it lacks.
    let text = of(&["--draft", "eagle3", "--engine", "vllm"]);
    assert!(text.contains("vllm (in no release to "), "{text}");
}

#[test]
fn a_plain_head_beside_packed_weights_needs_the_release_that_gives_it_a_format_of_its_own() {
    let args = |command: &'static str, engine: &'static str, quant: &'static str| {
        let box_of = ["--gpu", "rtx-3090", "--gpus", "4", "--draft", "eagle3"];
        let model = [command, "--model", "qwen3-32b", "--quant", quant];
        answers(&[&model[..], &box_of, &["--engine", engine]].concat())
    };
    let line = "vLLM 0.11.0 (--engine) does not serve an EAGLE-3 head whose format is not its target's (int4 \
                here); answered for 0.11.1, the first that does; newer ones differ: --engine vllm@VERSION; \
                0.11.0 serves --draft ngram";
    let text = args("predict", "vllm@0.11.0", "int4");
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\n  vllm (0.11.1): "), "{text}");
    assert!(args("plan", "vllm@0.11.0", "int4").contains(line));
    for (engine, quant) in [
        ("vllm@0.11.1", "int4"),
        ("vllm@0.10.2", "int4"),
        ("vllm@0.11.0", "fp8"),
        ("sglang@0.5.4", "int4"),
    ] {
        for command in ["predict", "plan"] {
            let text = args(command, engine, quant);
            assert!(!text.contains("does not serve"), "{engine} {quant}: {text}");
        }
    }
}

/// The line pasted for SGLang 0.5.7 could not start: it gives these experts a kernel that the card cannot run.
#[test]
fn mxfp4_experts_on_an_rtx_blackwell_need_the_sglang_that_has_a_kernel_for_them() {
    let of = |engine: &str, card: &str| {
        answers(&[
            "predict",
            "--model",
            "openai/gpt-oss-120b",
            "--gpu",
            card,
            "--engine",
            engine,
        ])
    };
    let line =
        "SGLang 0.5.7 (--engine) does not serve MXFP4 experts on rtx-pro-6000; answered for 0.5.10";
    let text = of("sglang@0.5.7", "rtx-pro-6000");
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\n  sglang (0.5.10): "), "{text}");
    for served in [
        of("sglang@0.5.10", "rtx-pro-6000"),
        of("sglang", "rtx-pro-6000"),
        of("vllm@0.12.0", "rtx-pro-6000"),
        of("sglang@0.5.7", "h100"),
    ] {
        assert!(!served.contains("MXFP4 experts on"), "{served}");
    }
}
