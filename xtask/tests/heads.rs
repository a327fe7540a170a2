//! Public heads by name: whose config is taken, how far it reaches, and what the engines want of a
//! head that reaches less than their server takes.

mod common;

use common::{answers, refusal};

const BOX: [&str; 9] = [
    "predict",
    "--model",
    "llama-3.3-70b",
    "--quant",
    "fp8",
    "--gpu",
    "h100",
    "--gpus",
    "4",
];
const ALLOW: &str = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1";

fn with(more: &[&str]) -> String {
    let flags: Vec<&str> = BOX.iter().chain(more).copied().collect();
    answers(&flags)
}

/// One head's name was answered with another's config, which reaches twice as far, and nobody said so.
#[test]
fn a_named_head_has_its_own_reach_or_is_said_to_be_taken_from_another() {
    let known = with(&["--draft", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"]);
    for part in [
        "70B only the reach is known, 2,048 tokens (sglang#6783)",
        "its width is not the target's",
    ] {
        assert!(known.contains(part), "{known}");
    }
    let beyond = with(&[
        "--draft",
        "/models/sglang-EAGLE3-LLaMA3.3-Instruct-70B",
        "--context",
        "4k",
    ]);
    assert!(beyond.contains("reaches 2048 tokens of 4096"), "{beyond}");
    let unknown = with(&["--draft", "a/b-eagle3"]);
    assert!(
        unknown.contains("the config of a/b-eagle3 is not known here; its shapes are taken from"),
        "{unknown}"
    );
    assert!(
        unknown.contains("whose head reaches 4,096 tokens"),
        "{unknown}"
    );
    // By its kind it is the catalogue's, which is no one's in particular.
    for kind in ["eagle3", "llama-3.3-70b-eagle3"] {
        let text = with(&["--draft", kind]);
        let said = "the catalogue's EAGLE-3 head, whose config reaches 4,096 tokens";
        assert!(text.contains(said), "{text}");
    }
    // One whose config is known is that one: nothing of it is assumed, and no other model takes it.
    let own = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B";
    let text = answers(&[
        "predict",
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "h100",
        "--draft",
        own,
    ]);
    assert!(
        !text.contains("its shapes") && !text.contains("catalogue's"),
        "{text}"
    );
    let flags: Vec<&str> = BOX.iter().chain(&["--draft", own]).copied().collect();
    assert!(refusal(&flags).contains("the head of another model"));
}

/// SGLang ended with a ValueError on the pasted line.
#[test]
fn sglang_is_allowed_a_head_that_reaches_less_than_it_serves() {
    let paste = |text: &str| -> String {
        let lines = text.lines().skip_while(|line| *line != "paste");
        lines.collect::<Vec<_>>().join("\n")
    };
    let short = with(&["--draft", "eagle3"]);
    assert!(
        paste(&short).contains(&format!("  sglang: {ALLOW} python")),
        "{short}"
    );
    assert!(
        short.contains("refuses a head that reaches 4,096 of the 131,072 tokens served"),
        "{short}"
    );
    // Nobody knows how far this one reaches.
    let qwen = [
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--draft",
    ];
    let of_qwen = |draft: &'static str| answers(&[qwen.as_slice(), &[draft]].concat());
    let unknown = of_qwen("a/b-eagle3");
    assert!(unknown.contains(&format!("{ALLOW} python")));
    assert!(unknown.contains("in case the head's own config, which is not known here"));
    for text in [
        of_qwen("eagle3"),
        of_qwen("ngram"),
        of_qwen("none"),
        with(&["--draft", "eagle3", "--max-model-len", "4096"]),
    ] {
        assert!(!text.contains(ALLOW), "{text}");
    }
    let beyond = "a request longer than the head's 4,096 tokens";
    for (version, told) in [
        ("0.10.2", Some("0.10.2 stops with an assert at")),
        (
            "0.13.0",
            Some("0.13.0 drafts nothing for the whole batch while"),
        ),
        ("0.26.0", Some("0.26.0 stops with an assert at")),
        ("0.27.0", None),
    ] {
        let engine = format!("vllm@{version}");
        let text = with(&["--draft", "eagle3", "--engine", &engine]);
        let said = told.map(|told| format!("{told} {beyond}"));
        assert!(said.is_none_or(|said| text.contains(&said)), "{text}");
        assert_eq!(text.contains(beyond), told.is_some(), "{text}");
        assert!(!text.contains(ALLOW), "{text}");
    }
}

/// What SGLang prints of a head that reaches less than it serves is the head's own reach.
#[test]
fn a_log_says_how_far_the_head_of_its_server_reaches() {
    let log = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("reach.log");
    let text = "[2026-01-01 09:00:00] server_args=ServerArgs(model_path='meta-llama/Llama-3.3-70B-Instruct', \
        tp_size=4, speculative_algorithm='EAGLE3', speculative_draft_model_path='a/b-eagle3')\n\
        [2026-01-01 09:01:00 TP0] Warning: Target model's context_length (131072) is greater than the derived \
        context_length (2048). This may lead to incorrect model outputs or CUDA errors.\n";
    std::fs::write(&log, text).expect("written");
    let log = log.to_str().expect("a path");
    let card = ["--gpu", "h100", "--context", "4k"];
    let text = answers(&[&["predict", "--from-log", log], card.as_slice()].concat());
    for part in [
        "reaches 2048 tokens of 4096",
        "the config of a/b-eagle3 is not known here; its shapes are taken",
        "reaches 2,048 of the 131,072 tokens served",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// With a sweep only the accept length was told, although a longer context turned the answer.
#[test]
fn a_context_that_turns_the_answer_is_told_beside_a_sweep_too() {
    let sweep = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("turning.csv");
    std::fs::write(&sweep, "concurrency,tok_s\n1,103\n8,600\n64,2990\n").expect("written");
    let asked = |context: &str, more: &[&str]| {
        let own = ["--draft", "eagle3", "--context", context, "--steps", "5"];
        with(&[own.as_slice(), &["--concurrency", "1"], more].concat())
    };
    let sweep = sweep.to_str().expect("a path");
    let beside = ["--baseline", sweep, "--baseline-context", "4k"];
    let told = "\n  context over about ";
    assert!(asked("4k", &[]).contains(told));
    let text = asked("4k", &beside);
    let (_, speedup) = text.split_once(told).expect("told");
    let (_, speedup) = speedup
        .split_once(" tokens, with 5 steps: ")
        .expect("of the steps run");
    let (speedup, _) = speedup.split_once(" at 32,768").expect("its speedup");
    let there = asked("32k", &beside);
    assert!(
        there.contains(&format!("{speedup} for one user")),
        "{speedup}: {there}"
    );
}

/// The time that several users' decode speed goes by was the only one left out.
#[test]
fn the_median_time_between_tokens_of_a_bench_is_shown() {
    let bench = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-itl.txt");
    let text = "============ Serving Benchmark Result ============\n\
        Max request concurrency:                 64\n\
        Successful requests:                     256\n\
        Output token throughput (tok/s):         1585.90\n\
        Mean TTFT (ms):                          2480.50\n\
        Mean TPOT (ms):                          35.18\n\
        Mean ITL (ms):                           35.18\n\
        Median ITL (ms):                         21.34\n";
    std::fs::write(&bench, text).expect("written");
    let text = answers(&["explain", bench.to_str().expect("a path")]);
    assert!(text.contains("\n  median_itl_ms          21.34"), "{text}");
}

/// A context was offered that the log's server does not take, and a gain there by an accept length
/// that was measured at a shorter one.
#[test]
fn no_flip_names_a_context_that_is_not_served_or_holds_a_measured_length_flat() {
    let log = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("served.log");
    let shown = log.to_str().expect("a path");
    let of = |served: &str, more: &[&str]| {
        let text = format!(
            "[2026-01-01 09:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-30B-A3B-FP8', \
             context_length={served}, mem_fraction_static=0.85, tp_size=2, speculative_algorithm=None)\n"
        );
        std::fs::write(&log, text).expect("written");
        let own = [
            "predict",
            "--from-log",
            shown,
            "--gpu",
            "rtx-5090",
            "--draft",
            "eagle3",
        ];
        let load = ["--steps", "3", "--concurrency", "1", "--context", "1k"];
        answers(&[&own[..], &load, more].concat())
    };
    let flip = "\n  context over about ";
    let within = of("32768", &[]);
    assert!(within.contains(flip), "{within}");
    assert!(
        within.contains(" at 16,384, beyond the head's 2,048\n")
            && within.contains("tokens, with 3 steps: "),
        "{within}"
    );
    let served = of("8192", &[]);
    assert!(!served.contains(flip), "{served}");
    let measured = of("32768", &["--accept", "1.4@3"]);
    assert!(!measured.contains(flip), "{measured}");
    // A loss there is one at the latest.
    let layers = "predict --model qwen3.5-27b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.30.0 --context 1k \
                  --concurrency 1 --steps 3 --accept 1.65@3";
    let loss = answers(&layers.split_whitespace().collect::<Vec<_>>());
    let held = ", if as much is accepted there\n";
    assert!(loss.contains(flip) && loss.contains(held), "{loss}");
}

/// The line said twice as fast, and pasted a server that its own note said would not draft.
#[test]
fn a_head_that_reaches_less_than_the_context_does_not_pay_on_a_vllm_that_stops_drafting() {
    let known = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B";
    let asked = |draft: &str, engine: &str, context: &str| {
        with(&[
            "--draft",
            draft,
            "--engine",
            engine,
            "--context",
            context,
            "--accept",
            "2.5@3",
        ])
    };
    let beyond = asked(known, "vllm@0.13.0", "4k");
    for part in [
        "DOES NOT PAY   speeds below are what it would reach if it drafted at this context",
        "the head reaches 2,048 tokens, not 4,096, and",
        "vLLM 0.13.0 drafts nothing for the whole batch while a longer request is in it",
        "vLLM from 0.27, which lengthens it, SGLang with",
    ] {
        assert!(beyond.contains(part), "{beyond}");
    }
    assert!(!beyond.contains("--speculative-config"), "{beyond}");
    // Within its reach, in a release that lengthens it, and where the reach is another head's.
    for (draft, engine, context) in [
        (known, "vllm@0.13.0", "1k"),
        (known, "vllm@0.27.0", "4k"),
        ("eagle3", "vllm@0.13.0", "8k"),
    ] {
        let text = asked(draft, engine, context);
        assert!(!text.contains("DOES NOT PAY"), "{text}");
        assert!(text.contains("--speculative-config"), "{text}");
    }
}

/// The line said PAYS, and in its small print that the catalogue's head stops the server; of a head
/// that was named it said DOES NOT PAY.
#[test]
fn a_head_that_nobody_named_must_reach_the_context_where_vllm_does_not_draft_beyond_it() {
    let asked = |more: &[&str]| with(&[&["--engine", "vllm@0.24.0"][..], more].concat());
    let far = asked(&["--context", "8k"]);
    let told: Vec<&str> = far.lines().take(3).map(str::trim).collect();
    assert!(
        told.iter().any(|line| {
            line.starts_with("needs a head that reaches 8,192 tokens: ")
                && line.contains("the catalogue's, whose shapes are taken, reaches 4,096, and")
                && line.contains("stops with an assert at a longer request")
        }),
        "{far}"
    );
    // The answer is that head's: nothing falls beyond a reach, and nothing is to be measured there.
    let near = asked(&["--context", "2k"]);
    assert!(!near.contains("needs a head"), "{near}");
    for text in [&far, &near] {
        assert!(text.starts_with("PAYS"), "{text}");
        assert!(!text.contains("reaches less"), "{text}");
        // No speedup is told of a context at which nothing drafts.
        assert!(!text.contains("beyond the head's"), "{text}");
    }
    let borrowed = asked(&["--context", "8k", "--draft", "a/b-eagle3"]);
    assert!(
        borrowed.contains("not known here, the one whose shapes are taken reaches 4,096, and"),
        "{borrowed}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&asked(&["--context", "8k", "--json"])).expect("JSON");
    let needs = json.get("needs").and_then(|needs| needs.as_str());
    assert_eq!(needs, told.get(2).copied(), "{far}");
    // A release that lengthens it drafts on there, where less is accepted.
    let lengthened = with(&["--engine", "vllm@0.27.0", "--context", "8k"]);
    assert!(!lengthened.contains("needs a head"), "{lengthened}");
    assert!(
        lengthened.contains("reaches 4096 tokens of 8192"),
        "{lengthened}"
    );
}

/// What a server's own windows show of its head comes before what is said of it.
#[test]
fn a_log_that_drafts_beyond_the_reach_shows_a_longer_one_and_one_that_seldom_drafts_is_no_gain() {
    let answer = |name: &str, drafts: &[bool], draft: &str, context: &str| {
        let printed = match name {
            "printed.log" => {
                "INFO 11-28 09:02:16 [model.py:514] Resolved architecture: Eagle3LlamaForCausalLM\n\
                 INFO 11-28 09:02:16 [model.py:1661] Using max model len 2048\n"
            }
            _ => "",
        };
        let mut text = format!(
            "INFO 11-28 09:02:11 [api_server.py:1] vLLM API server version 0.13.0\n\
             INFO 11-28 09:02:11 [utils.py:1] non-default args: {{'model': \
             'meta-llama/Llama-3.3-70B-Instruct', 'max_model_len': 16384, 'tensor_parallel_size': 4, \
             'speculative_config': {{'method': 'eagle3', 'model': '{draft}', \
             'num_speculative_tokens': 3}}}}\n\
             {printed}INFO 11-28 09:04:20 [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens\n"
        );
        for drafted in drafts {
            text += "INFO 11-28 09:11:06 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, \
                Avg generation throughput: 79.5 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache \
                usage: 4.0%, Prefix cache hit rate: 0.0%\n";
            if *drafted {
                text += "INFO 11-28 09:11:06 [metrics.py:1] SpecDecoding metrics: Mean acceptance length: \
                    2.51, Accepted: 478 tokens, Drafted: 951 tokens, Per-position acceptance rate: 0.75, \
                    0.48, 0.28, Avg Draft acceptance rate: 50.3%\n";
            }
        }
        let log = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&log, text).expect("written");
        let log = log.to_str().expect("a path");
        let from = ["predict", "--from-log", log, "--gpu", "a100-80gb-sxm"];
        let said = answers(&[&from[..], &["--gpus", "4", "--context", context]].concat());
        (said, answers(&["explain", log]))
    };
    let known = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B";
    let (always, sound) = answer("always.log", &[true; 6], known, "8k");
    assert!(always.starts_with("PAYS"), "{always}");
    let shown =
        "drafts of requests that held 4,000 tokens, so its head reaches further than the 2,048";
    assert!(always.contains(shown), "{always}");
    assert!(!sound.contains("drafted nothing"), "{sound}");
    let seldom = [true, false, false, false, true, false];
    let (beyond, found) = answer("seldom.log", &seldom, known, "4k");
    assert!(beyond.starts_with("DOES NOT PAY"), "{beyond}");
    assert!(
        found.contains("4 of 6 throughput windows drafted nothing"),
        "{found}"
    );
    assert!(found.contains("its head reaches 2,048 tokens"), "{found}");
    // What it reached without drafts is no speed with them.
    assert!(!beyond.contains("log: speculative"), "{beyond}");
    assert!(always.contains("log: speculative"), "{always}");
    // Its own length stands behind the head's architecture.
    let (printed, _) = answer("printed.log", &seldom, "a/b-eagle3", "4k");
    assert!(printed.starts_with("DOES NOT PAY"), "{printed}");
    let (unknown, _) = answer("unknown.log", &seldom, "a/b-eagle3", "4k");
    assert!(unknown.starts_with("MEASURE FIRST"), "{unknown}");
    assert!(
        unknown.contains("drafted in 2 of 6 windows only"),
        "{unknown}"
    );
}

/// A head narrower than its target was billed as if it could read the target's embedding table.
#[test]
fn a_head_of_another_width_than_its_target_has_an_embedding_table_of_its_own() {
    let config = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("narrow.json");
    let text = r#"{"architectures":["LlamaForCausalLMEagle3"],"hidden_size":6144,
        "target_hidden_size":8192,"intermediate_size":16384,"max_position_embeddings":16384,
        "model_type":"llama","num_attention_heads":48,"num_key_value_heads":8,"num_hidden_layers":1,
        "head_dim":128,"torch_dtype":"float16","vocab_size":128256,"draft_vocab_size":32000}"#;
    std::fs::write(&config, text).expect("written");
    let text = answers(&[
        "plan",
        "--model",
        "llama-3.3-70b",
        "--engine",
        "vllm@0.13.0",
        "--gpu",
        "a100-80gb-sxm",
        "--gpus",
        "4",
        "--draft",
        config.to_str().expect("a path"),
    ]);
    let line = text.lines().find(|line| line.starts_with("draft: weights"));
    let gib = line.and_then(|line| line.split_whitespace().last()?.parse::<f64>().ok());
    // Layer, projection and own head are 0.578 GiB, a fourth of 128,256 x 6,144 in FP16 the rest.
    let table_gib = 128_256.0 * 6144.0 * 2.0 / 4.0 / f64::from(1 << 30);
    assert!(
        gib.is_some_and(|gib| (gib - 0.578 - table_gib).abs() < 0.002),
        "{text}"
    );
}

/// vLLM 0.24.0 on an H200 loaded 15.0 GiB of Llama-3.1-8B and 15.58 with an EAGLE-3 head of random weights
/// (no checkpoint brings the head's own output table, so that it takes the target's); 15.78 were computed.
#[test]
fn a_draft_of_random_weights_borrows_the_targets_output_head() {
    let log = |format: &str| {
        format!(
            "INFO 11-29 14:26:25 [utils.py:253] non-default args: {{'model': 'llama-3.1-8b', {format}\
             'max_model_len': 10240, 'speculative_config': {{'method': 'eagle3', 'model': 'models/llama8b-e3', \
             'num_speculative_tokens': 3}}}}\n\
             INFO 11-29 14:26:40 [core.py:94] Initializing a V1 LLM engine (v0.24.0) with config: \
             model='llama-3.1-8b', max_seq_len=10240, tensor_parallel_size=1, kv_cache_dtype=auto\n"
        )
    };
    let weights = |format: &str, more: &[&str]| -> (f64, bool) {
        common::with_log("dummy", &log(format), |file| {
            let of_log = ["--gpu", "h200", "--from-log", file];
            let plan = answers(&[&["plan"], &of_log[..], more].concat());
            let line = plan
                .lines()
                .find_map(|line| line.strip_prefix("draft: weights"));
            let gib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            let predict = answers(&[&["predict"], &of_log[..], more].concat());
            let lent = predict.contains("lends it the target's output head");
            (gib.unwrap_or_else(|| panic!("{plan}")), lent)
        })
    };
    let (dummy, lent) = weights("'load_format': 'dummy', ", &[]);
    assert!(lent && (dummy - 0.58).abs() < 0.05, "{dummy}");
    let (trained, lent) = weights("", &[]);
    assert!(
        !lent && (trained - dummy - 0.244).abs() < 0.01,
        "{trained} {dummy}"
    );
    // A flag asks for a trained one.
    let by_flag = weights("'load_format': 'dummy', ", &["--draft", "eagle3"]);
    assert_eq!(by_flag, (trained, false));
}

/// A repository's name was "no such file" and sent to `mtp`, and `mtp` sent to an EAGLE-3 head.
#[test]
fn gemmas_assistant_is_said_not_to_be_modelled() {
    for draft in ["google/gemma-4-26B-A4B-it-assistant", "mtp"] {
        let flags = [
            "predict",
            "--model",
            "gemma-4-26b-a4b",
            "--gpu",
            "h100",
            "--draft",
            draft,
        ];
        let why = refusal(&flags);
        assert!(
            why.contains("assistant") && why.contains("is not modelled"),
            "{why}"
        );
    }
}
