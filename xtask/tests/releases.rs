//! What an engine's release lacks for the line that is pasted for it.

mod common;

use std::path::Path;

use common::{answers, with_log};

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
        // When vLLM's releases were out is not known here.
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

/// Grok-2: the config states no weight format, the server was told one.
const GROK: &str = r#"{"architectures": ["Grok1ForCausalLM"], "vocab_size": 131072, "hidden_size": 8192,
"intermediate_size": 32768, "moe_intermediate_size": 16384, "max_position_embeddings": 131072,
"num_experts_per_tok": 2, "num_local_experts": 8, "residual_moe": true, "num_attention_heads": 64,
"num_key_value_heads": 8, "num_hidden_layers": 64, "head_dim": 128, "model_type": "git",
"torch_dtype": "bfloat16"}"#;

/// Its server of before 0.5.3: no line names a version or the weights' format but a kernel's file.
const GROK_LOG: &str = "\
[2025-09-11 10:25:33 TP0] Load weight end. type=Grok1ForCausalLM, dtype=torch.bfloat16, avail mem=40.69 GB, mem usage=36.73 GB.
[2025-09-11 10:25:43 TP0] KV Cache is allocated. #tokens: 903439, K size: 13.79 GB, V size: 13.79 GB
[2025-09-11 10:25:43 TP7] KV Cache is allocated. #tokens: 903439, K size: 13.79 GB, V size: 13.79 GB
[2025-09-11 10:25:43 TP0] Memory pool end. avail mem=11.22 GB
[2025-09-11 10:25:47 TP3] Config file not found at configs/triton_3_4_0/E=8,N=2048,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json. Fallback to triton version 3.1.0
[2025-09-11 10:26:01 TP0] max_total_num_tokens=903439, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=3529, context_len=131072, available_gpu_mem=10.26 GB
[2025-09-11 10:26:22 TP0] Decode batch. #running-req: 1, #token: 48, token usage: 0.00, cuda graph: True, gen throughput (token/s): 98.88, #queue-req: 0,
";

/// What `predict` answers of that server.
fn of_grok(log: &str, config: &str, more: &[&str]) -> String {
    with_log("grok-config", config, |config| {
        with_log("grok", log, |log| {
            let common = ["predict", "--from-log", log, "--model", config];
            let card = ["--gpu", "h100-sxm", "--context", "4k"];
            let stem = Path::new(config).file_stem().and_then(|stem| stem.to_str());
            let text = answers(&[&common[..], &card, more].concat());
            text.replace(log, "LOG")
                .replace(stem.expect("a name"), "grok-2")
        })
    })
}

/// The line was pasted for that server without a word: no release takes it.
#[test]
fn a_log_that_shows_only_its_month_is_told_that_no_release_serves_the_draft() {
    let line = "no SGLang release to 0.5.23 serves EAGLE-3 for Grok1ForCausalLM";
    for engine in [
        &[][..],
        &["--engine", "sglang"],
        &["--engine", "sglang@0.5.2"],
    ] {
        let text = of_grok(
            GROK_LOG,
            GROK,
            &[&["--draft", "eagle3"][..], engine].concat(),
        );
        assert!(
            text.lines().nth(2).is_some_and(|l| l.contains(line)),
            "{engine:?}: {text}"
        );
        assert!(
            text.contains("\n  sglang (in no release to 0.5.23): "),
            "{text}"
        );
    }
}

#[test]
fn a_log_of_before_the_release_that_serves_the_draft_is_answered_for_by_that() {
    let text = of_grok(GROK_LOG, GROK, &["--draft", "ngram"]);
    let line = "SGLang 2025-09 (LOG:1; 0.5.2 at the newest) does not serve n-gram look-up; answered for \
                0.5.3, the first that does";
    assert!(
        text.lines().nth(2).is_some_and(|l| l.contains(line)),
        "{text}"
    );
    assert!(text.contains("\n  sglang (0.5.3): "), "{text}");
    // The lines of a later release allow it.
    let later = GROK_LOG
        .replace("2025-09", "2025-12")
        .replace("batch.", "batch,");
    let text = of_grok(&later, GROK, &["--draft", "ngram"]);
    assert!(
        !text.contains("does not serve") && text.contains("\n  sglang: "),
        "{text}"
    );
}

/// Its own log was called another server's, of other weights.
#[test]
fn the_file_of_a_moe_kernel_says_the_weights_format_where_the_config_states_none() {
    let by_log = of_grok(GROK_LOG, GROK, &[]);
    let note = "weights in fp8: by the name of its MoE kernels' tuned config, LOG:5 (--quant";
    assert!(by_log.contains(note), "{by_log}");
    assert!(!by_log.contains("is of other weights"), "{by_log}");
    let asked = of_grok(GROK_LOG, GROK, &["--quant", "fp8"]);
    let unsaid = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains(note));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(unsaid(&by_log), unsaid(&asked));
    // A config that states its format keeps it.
    let blocks = r#""quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "head_dim""#;
    let stated = of_grok(GROK_LOG, &GROK.replace("\"head_dim\"", blocks), &[]);
    assert!(!stated.contains("tuned config"), "{stated}");
    assert!(!stated.contains("FP8 with one scale a tensor"), "{stated}");
}

/// `plan` said that no version was given, `predict` did not; and `plan` said twice what FP8 is taken for.
#[test]
fn plan_and_predict_say_that_the_newest_release_is_taken_and_what_fp8_is_once() {
    let server = "--model qwen3-235b-a22b --quant fp8 --gpu h100-sxm --gpus 4 --engine sglang";
    for command in ["plan", "predict"] {
        let line = format!("{command} {server}");
        let text = common::answers(&line.split_whitespace().collect::<Vec<_>>());
        let count = |words: &str| text.matches(words).count();
        assert_eq!(
            count("SGLang version not given: the rules of "),
            1,
            "{text}"
        );
        assert_eq!(count("FP8 as its maker publishes it"), 1, "{text}");
        let named = common::answers(
            &format!("{line}@0.5.17")
                .split_whitespace()
                .collect::<Vec<_>>(),
        );
        assert!(!named.contains("version not given"), "{named}");
    }
}
