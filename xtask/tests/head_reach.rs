//! How far a head must reach to draft.

mod common;

use common::{answers, run};
use serde_json::Value;

/// A head of 8,192 tokens beside `--max-model-len 8192` did not pay, for the last two tokens of the longest
/// request; nor did one whose log prints the length that it took from its target.
#[test]
fn a_reach_of_what_the_server_takes_pays_as_a_longer_one_does_and_more_reach_is_never_worse() {
    let config = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("reaching.json");
    let asked = |reach: u64, more: &[&str]| {
        let text = format!(
            r#"{{"architectures":["LlamaForCausalLMEagle3"],"hidden_size":2048,"intermediate_size":12288,
            "max_position_embeddings":{reach},"model_type":"llama","num_attention_heads":32,
            "num_key_value_heads":4,"num_hidden_layers":1,"head_dim":128,"torch_dtype":"bfloat16",
            "vocab_size":151936,"draft_vocab_size":32000}}"#
        );
        std::fs::write(&config, text).expect("written");
        let own = "predict --model qwen3-30b-a3b --quant fp8 --gpu h100 --gpus 2 --engine vllm@0.24 --kv-dtype fp8 \
                   --accept 2.4@2 --draft";
        let mut flags: Vec<&str> = own.split_whitespace().collect();
        flags.push(config.to_str().expect("a path"));
        answers(&[&flags[..], more].concat())
    };
    let rank = |text: &str| match text.split_once("   ").map(|(word, _)| word) {
        Some("PAYS") => 2,
        Some("MEASURE FIRST") => 1,
        _ => 0,
    };
    let served = ["--context", "8k", "--max-model-len", "8192"];
    for more in [
        &served[..],
        &["--context", "8190", "--max-model-len", "8192"],
        &["--context", "8k"],
    ] {
        let of = |reach: u64| asked(reach, more);
        let ranks: Vec<u8> = [2048, 8000, 8192, 8194, 40960]
            .map(|reach| rank(&of(reach)))
            .into();
        assert!(ranks.is_sorted(), "{more:?}: {ranks:?}");
        assert_eq!(ranks[2..], [2, 2, 2], "{more:?}");
        assert_eq!(ranks[..2], [0, 0], "{more:?}");
    }
    assert_eq!(asked(8192, &served), asked(40960, &served));
    let log = "INFO 11-28 09:02:11 [api_server.py:1] vLLM API server version 0.24.0\n\
        INFO 11-28 09:02:11 [utils.py:1] non-default args: {'model': 'Qwen/Qwen3-30B-A3B-FP8', \
        'max_model_len': 8192, 'kv_cache_dtype': 'fp8', 'tensor_parallel_size': 2, 'speculative_config': {'method': 'eagle3', \
        'model': 'a/b-eagle3', 'num_speculative_tokens': 2}}\n\
        INFO 11-28 09:02:16 [model.py:514] Resolved architecture: Eagle3LlamaForCausalLM\n\
        INFO 11-28 09:02:16 [model.py:1661] Using max model len 8192\n";
    common::with_log("reach", log, |file| {
        let of = |more: &[&str]| {
            let own = ["predict", "--from-log", file, "--gpu", "h100"];
            answers(&[&own[..], &["--accept", "2.4@2", "--context"], more].concat())
        };
        let within = of(&["8k"]);
        assert!(
            within.starts_with("PAYS") && !within.contains("needs a head"),
            "{within}"
        );
        // How far it reaches beyond what its server took, the log does not say.
        let longer = of(&["8300", "--max-model-len", "8300"]);
        let needs = "needs a head that reaches 8,300 tokens: the log's, which may be cut to what its server \
                     took, reaches 8,192, and";
        assert!(
            longer.starts_with("PAYS") && longer.contains(needs),
            "{longer}"
        );
        // The flag that names the log's head again knows no less of it.
        let (plain, named) = (of(&["8k"]), of(&["8k", "--draft", "a/b-eagle3"]));
        assert_eq!(plain, named);
    });
}

/// "The head's config reaches less" was said of a config that is not known; and the newest vLLM was answered
/// with the other head's reach (0.78x), an older one as if this head reached the context (1.35x).
#[test]
fn how_far_an_unknown_head_reaches_is_not_known_for_any_engine_and_asked_first() {
    let mut verdicts = Vec::new();
    let head = "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3";
    for engine in ["vllm", "vllm@0.26"] {
        let server = "--model qwen3-30b-a3b --quant fp8 --gpu h100-sxm --gpus 1 --concurrency 1 --context 16k";
        let text = run(
            "predict",
            &format!("{server} --engine {engine} --draft {head}"),
        );
        assert!(text.contains("measure how far your head reaches"), "{text}");
        assert!(!text.contains("the head's config reaches less"), "{text}");
        verdicts.push(text.lines().next().unwrap_or_default().to_string());
    }
    assert!(verdicts[0].starts_with("MEASURE FIRST"), "{verdicts:?}");
    assert_eq!(verdicts[0], verdicts[1]);
}

fn at_context(flags: &str) -> Value {
    let server = "--model qwen3-32b --quant awq --gpu rtx-5090 --gpus 2 --engine vllm --kv-dtype fp8 --concurrency 1 --json";
    let text = run("predict", &format!("{server} --context {flags}"));
    serde_json::from_str(&text).expect("valid JSON")
}

/// A head whose config says 40,960 was answered with PAYS at 16k, though one trained on short text accepted
/// 1.09 there (speculators#684).
#[test]
fn a_long_reach_is_not_taken_for_long_training() {
    let long = at_context("16k --draft eagle3");
    assert_eq!(long["verdict"], "measure-first");
    let measure = &long["measure"]["what"];
    assert_eq!(
        measure,
        "the accept length at 16384 tokens of context (--accept)"
    );
    let said = long["assumptions"].to_string();
    assert!(
        said.contains(
            "from 1.04 to 3.36 (not measured): the low end is a head trained on short text"
        ),
        "{said}"
    );
    // The middle stays, and so does the band of short contexts and of what was measured.
    let short = at_context("4k --draft eagle3");
    assert_eq!(
        short["scenario"]["accept_length"]["value"],
        long["scenario"]["accept_length"]["value"]
    );
    assert_eq!(short["verdict"], "pays");
    assert!(
        short["assumptions"]
            .to_string()
            .contains("from 1.79 to 3.36 (not measured)")
    );
    assert_eq!(
        at_context("16k --draft eagle3 --accept 2.6@3")["verdict"],
        "pays"
    );
    // A small model is not trained on the texts of a head's recipe.
    let small = at_context("16k --draft qwen3-0.6b")["assumptions"].to_string();
    assert!(!small.contains("trained on short text"), "{small}");
}

/// "--max-model-len 4096 keeps such requests out" was said beside a line that let them in.
#[test]
fn a_limit_that_keeps_the_server_up_is_in_the_line_that_drafts() {
    let of = |command: &str, more: &str| {
        let own = "--model llama-3.3-70b --quant fp8 --gpu l40s --gpus 4 --draft eagle3";
        common::run(command, &format!("{own} {more}"))
    };
    let in_paste = |text: &str| {
        let line = text.lines().find(|line| line.contains("vllm serve"));
        line.expect("a line").contains("--max-model-len 4096")
    };
    for context in ["1k", "4k"] {
        let stops = of(
            "predict",
            &format!("--engine vllm@0.24 --context {context} --accept 2.3@3"),
        );
        assert!(in_paste(&stops), "{stops}");
        let told = "--max-model-len 4096 in the paste";
        assert_eq!(stops.matches(told).count(), 1, "{stops}");
        assert!(
            stops.contains(&format!("{told} keeps such requests out")),
            "{stops}"
        );
        let plan = of("plan", &format!("--engine vllm@0.24 --context {context}"));
        assert!(
            plan.contains("start with --max-model-len 4096: a longer request"),
            "{plan}"
        );
    }
    // No head cuts a line that does not draft, or whose server decodes such requests without drafts.
    let off = of("predict", "--engine vllm@0.24 --context 1k --accept 1.0@3");
    assert!(off.starts_with("DOES NOT PAY") && !in_paste(&off), "{off}");
    let plain = of(
        "predict",
        "--engine vllm@0.13.0 --context 4k --accept 2.3@3",
    );
    assert!(!in_paste(&plain), "{plain}");
    assert!(
        plain.contains("with --max-model-len 4096 added it lets no such requests in"),
        "{plain}"
    );
}

/// Another head's shapes stood in without a word in `plan`, and so did a reach under the context.
#[test]
fn plan_says_whose_shapes_and_reach_it_takes_in_the_words_of_predict() {
    let on = "--model llama-3.3-70b --quant fp8 --gpu h100 --gpus 4 --engine vllm@0.24 --draft";
    for (head, context, short) in [
        (
            "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
            "4k",
            "the head reaches 2,048 tokens, not 4,096, and",
        ),
        (
            "a/b-eagle3",
            "8k",
            "needs a head that reaches 8,192 tokens: how far the one named does is not known",
        ),
        ("a/b-eagle3", "2k", ""),
    ] {
        let all = |command: &str, more: &str| {
            common::run(command, &format!("{on} {head} --context {context}{more}"))
        };
        let (plan, predict) = (all("plan", ""), all("predict", ""));
        let said = |text: &str, mark: &str| {
            let line = text.lines().find_map(|line| Some((line.find(mark)?, line)));
            line.map(|(at, line)| line[at..].to_string())
        };
        let taken = predict.lines().find(|line| line.contains("its shapes"));
        let taken = taken.expect("a head that stands in").trim();
        assert!(plan.contains(taken), "{taken}: {plan}");
        let json = all("plan", " --json");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let what = json["assumptions"][0]["what"]
            .as_str()
            .expect("an assumption");
        assert!(taken.starts_with(what), "{json}");
        match short {
            "" => assert!(json["falls_short"].is_null(), "{json}"),
            short => {
                assert!(said(&plan, short).is_some(), "{plan}");
                assert_eq!(said(&plan, short), said(&predict, short));
                assert_eq!(json["falls_short"].as_str(), said(&plan, short).as_deref());
            }
        }
    }
}

/// At 10k a head was offered for the paste that the next run says stops the engine: only reaches of heads
/// without known shapes were looked at.
#[test]
fn no_head_is_offered_whose_config_reaches_less_than_requests_hold() {
    let said = |context: &str| {
        let flags =
            "--model llama-3.1-8b --gpu h200 --engine vllm@0.24.0 --draft eagle3 --concurrency 1";
        let words: Vec<&str> = flags.split(' ').chain(["--context", context]).collect();
        answers(&[&["predict"], words.as_slice()].concat())
    };
    let offer = "such as yuhuili/EAGLE3-LLaMA3.1-Instruct-8B";
    assert!(said("2k").contains(offer));
    assert!(!said("10k").contains(offer));
}

/// Between the 2,048 tokens of the head whose shapes were taken and 4,096 the reach of a named head was not
/// asked for.
#[test]
fn how_far_a_named_head_reaches_is_asked_beyond_the_one_taken_for_it() {
    let said = |context: &str| {
        common::run(
            "predict",
            &format!(
                "--model qwen3-30b-a3b --quant fp8 --gpu rtx-3090 --gpus 2 --engine vllm --kv-dtype fp8 --draft some/Qwen3-a3B_eagle3 --concurrency 16 --context {context}"
            ),
        )
    };
    let asked = "how far your head reaches (max_position_embeddings in its config.json)";
    let (short, within) = (said("4k"), said("2k"));
    assert!(
        short.starts_with("MEASURE FIRST") && short.contains(asked),
        "{short}"
    );
    assert!(!within.contains(asked), "{within}");
}
