//! vLLM's logs of hybrids with MTP: the states of drafted tokens, those that prefix caching keeps, and
//! the older count of their tokens.

mod common;

use common::answers;

/// Qwen3.5-122B-A10B in FP8 on four cards with one drafted token. 50.67 GiB are 3870 blocks of 12 pages
/// of 1056 KiB; a request of 40,960 takes 39, and 3 groups x (2 + 1) of states with prefix caching.
fn log(name: &str, version: &str, prefix: bool, kv_tokens: &str, requests: &str) -> String {
    let (argument, mode) = match prefix {
        true => (
            "'enable_prefix_caching': True, ",
            "WARNING 11-28 09:02:20 [config.py:301] Mamba cache mode is set to 'align' for \
             Qwen3_5MoeForConditionalGeneration by default when prefix caching is enabled\n",
        ),
        false => ("", ""),
    };
    let text = format!(
        "INFO 11-28 09:02:11 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}\n\
         INFO 11-28 09:02:11 [utils.py:233] non-default args: {{'model': \
         'Qwen/Qwen3.5-122B-A10B-FP8', 'max_model_len': 40960, 'tensor_parallel_size': 4, \
         'gpu_memory_utilization': 0.9, {argument}'max_num_batched_tokens': 8192, 'max_num_seqs': 32, \
         'speculative_config': {{'method': 'mtp', 'num_speculative_tokens': 1}}}}\n{mode}\
         INFO 11-28 09:03:37 [gpu_model_runner.py:4820] Model loading took 30.44 GiB memory and 47.2 seconds\n\
         INFO 11-28 09:04:47 [gpu_worker.py:440] Available KV cache memory: 50.67 GiB\n\
         INFO 11-28 09:04:47 [kv_cache_utils.py:1319] GPU KV cache size: {kv_tokens} tokens\n\
         INFO 11-28 09:04:47 [kv_cache_utils.py:1324] Maximum concurrency for 40,960 tokens per \
         request: {requests}x\n\
         INFO 11-28 09:04:55 [gpu_model_runner.py:6018] Graph capturing finished in 7 secs, took 0.66 GiB\n\
         INFO 11-28 09:20:07 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
         generation throughput: 165.2 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: \
         1.1%, Prefix cache hit rate: 61.2%\n\
         INFO 11-28 09:20:17 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
         generation throughput: 168.8 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: \
         1.1%, Prefix cache hit rate: 61.2%\n"
    );
    let path = std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

fn aligned(name: &str) -> String {
    log(name, "0.20.1", true, "3,302,400", "80.62")
}

fn of(command: &str, log: &str, more: &[&str]) -> String {
    let card = ["--gpu", "rtx-pro-6000", "--gpus", "4", "--context", "32k"];
    answers(&[&[command, "--from-log", log], &card[..], more].concat())
}

/// Tokens with the draft and without.
fn tokens(log: &str, more: &[&str]) -> (u64, u64) {
    let text = of("predict", log, &[more, &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let tokens = |key: &str| json["memory"][key].as_u64().expect("tokens");
    (tokens("kv_tokens"), tokens("kv_tokens_without_speculation"))
}

#[test]
fn what_mtp_costs_a_hybrid_follows_the_steps_asked_for_beside_a_log() {
    let log = aligned("hybrid-steps");
    let at = |steps: &str| tokens(&log, &["--steps", steps]);
    assert_eq!(tokens(&log, &[]), (3_302_400, 3_862_983));
    assert_eq!(
        at("1"),
        (3_302_400, 3_862_983),
        "by hand: 3870 and 4244 blocks"
    );
    let costs: Vec<u64> = ["1", "2", "3", "5"]
        .map(at)
        .map(|(with, without)| without - with)
        .into();
    assert!(costs.is_sorted_by(|a, b| a + 100_000 < *b), "{costs:?}");
    for steps in ["1", "3"] {
        let (with, without) = at(steps);
        let words = format!("costs {} of 3,862,983 KV tokens", grouped(without - with));
        let text = of("predict", &log, &["--steps", steps]);
        assert!(text.contains(&words), "{words}: {text}");
        let plan = of("plan", &log, &["--steps", steps]);
        assert!(
            plan.contains(&format!(", {} tokens", grouped(with))),
            "{plan}"
        );
        assert_eq!(
            plan.contains("drafted 1, this one 3"),
            steps == "3",
            "{plan}"
        );
    }
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[test]
fn the_states_that_prefix_caching_keeps_are_counted_with_the_draft_and_without() {
    let on = aligned("hybrid-on");
    let off = log("hybrid-off", "0.20.1", false, "3,522,560", "86.00");
    // 4244 blocks by hand: of 39 + 3 x 2, and of 39 + 3 x 1.
    assert_eq!(tokens(&on, &[]).1, 3_862_983);
    assert_eq!(tokens(&off, &[]).1, 4_138_910);
    let plan = of("plan", &on, &[]);
    assert!(
        plan.contains("94.39 requests of 32,768"),
        "3870 / 41: {plan}"
    );
    let plain = of("plan", &on, &["--draft", "none"]);
    assert!(plain.contains("3,862,983 tokens"), "the same pool: {plain}");
    let paste = of("predict", &on, &[]);
    assert!(paste.contains("--enable-prefix-caching"), "{paste}");
}

/// vLLM to 0.20.0: 3870 blocks / 4 groups x 1056.
#[test]
fn a_hybrids_older_count_of_tokens_is_read_by_the_requests_beside_it() {
    let old = log("hybrid-old", "0.19.0", true, "1,021,152", "80.62");
    let (with, without) = tokens(&old, &[]);
    assert_eq!((with, without), (3_302_195, 3_862_983), "80.62 x 40,960");
    let plan = of("plan", &old, &[]);
    assert!(plan.contains("vllm 0.19.0 prints 1,021,152)"), "{plan}");
    let text = of("predict", &old, &[]);
    assert!(text.contains("36,324 tokens held"), "{text}");
    let explained = answers(&["explain", &old]);
    let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("requests hold 3,302,195"), "{explained}");
    let new = answers(&["explain", &aligned("hybrid-new")]);
    assert!(!new.contains("blocks over its groups"), "{new}");
}

/// A log of `text` under that name.
fn written(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

/// Qwen3.6-35B-A3B in another publisher's NVFP4, whose config asks for no cache in fp8 as that of the
/// catalogue does. 74.22 GiB are 3300 blocks of 11 pages of 1072 x 2048 bytes, 257 a request: in bf16.
#[test]
fn a_cache_format_that_nobody_says_is_the_one_that_the_printed_pool_is_of() {
    let log = |tokens: &str, requests: &str| {
        format!(
            "INFO 08-02 09:19:29 [api_utils.py:339]   █▄█▀ █     █     █     █  version 0.25.1\n\
             INFO 08-02 09:19:29 [api_utils.py:273] non-default args: {{'model': \
             'RedHatAI/Qwen3.6-35B-A3B-NVFP4', 'max_model_len': 262144, 'gpu_memory_utilization': 0.85, \
             'max_num_seqs': 32, 'speculative_config': {{'method': 'mtp', 'num_speculative_tokens': 3}}}}\n\
             INFO 08-02 09:22:17 [gpu_model_runner.py:5306] Model loading took 23.45 GiB memory and 125.6 seconds\n\
             INFO 08-02 09:33:53 [gpu_worker.py:538] Available KV cache memory: 74.22 GiB\n\
             INFO 08-02 09:33:53 [kv_cache_utils.py:2146] GPU KV cache size: {tokens} tokens\n\
             INFO 08-02 09:33:53 [kv_cache_utils.py:2147] Maximum concurrency for 262,144 tokens per \
             request: {requests}x\n"
        )
    };
    let of = |command: &str, log: &str| {
        answers(&[command, "--from-log", log, "--gpu", "gb10", "--sources"])
    };
    let bf16 = written("format-bf16", &log("3,366,051", "12.84"));
    let text = of("predict", &bf16);
    let source = format!("{bf16}:5: the pool printed there is of a cache in bf16");
    assert!(text.contains(&source), "{text}");
    let (_, paste) = text.split_once("\npaste\n").expect("a paste");
    assert!(!paste.contains("--kv-cache-dtype"), "{text}");
    assert!(text.contains("575,471 of 3,941,522 KV tokens"), "{text}");
    let plan = of("plan", &bf16);
    assert!(plan.contains("575,471 of 3,941,522 KV tokens"), "{plan}");
    // The same format by hand changes nothing; the other one leaves the log's tokens aside, although the
    // checkpoint asks for it.
    let by_hand = |format: &str| {
        let card = ["--gpu", "gb10", "--kv-dtype", format];
        answers(&[&["predict", "--from-log", &bf16], &card[..]].concat())
    };
    let same = by_hand("bf16");
    assert!(same.contains("575,471 of 3,941,522 KV tokens"), "{same}");
    let other = by_hand("fp8");
    // 7,758,649 less the 6,406,022 that a log of the same pool in fp8 prints.
    assert!(
        other.contains("1,352,627 of 7,758,649 KV tokens"),
        "{other}"
    );
    let none = answers(&[
        "predict",
        "--from-log",
        &bf16,
        "--gpu",
        "gb10",
        "--draft",
        "none",
        "--sources",
    ]);
    assert!(none.contains(&source), "{none}");
    // A pool that the default meets, and one that no format does, decide nothing.
    for (tokens, requests) in [("6,406,022", "24.44"), ("4,705,000", "17.95")] {
        let other = written(&format!("format-{requests}"), &log(tokens, requests));
        let text = of("predict", &other);
        assert!(
            text.contains("published checkpoints of that weight format ask for it"),
            "{text}"
        );
        let plan = of("plan", &other);
        let taken = "KV dtype fp8 (published checkpoints of that weight format ask for it)";
        assert!(plan.contains(taken), "{plan}");
    }
}

/// 437,020 tokens of 80 layers with 2 of 8 heads on a card: 33.34 GB in bf16, half in fp8.
#[test]
fn sglangs_pool_says_its_format_too() {
    let log = |each: &str| {
        let text = format!(
            "[2025-11-12 09:14:02] server_args=ServerArgs(model_path='meta-llama/Llama-3.3-70B-Instruct', \
             context_length=16384, dtype='bfloat16', mem_fraction_static=0.85, tp_size=4)\n\
             [2025-11-12 09:15:31 TP0] KV Cache is allocated. #tokens: 437020, K size: {each} GB, V size: \
             {each} GB\n\
             [2025-11-12 09:16:09 TP0] max_total_num_tokens=437020, chunked_prefill_size=8192, \
             max_prefill_tokens=16384, max_running_requests=48, context_len=16384, available_gpu_mem=9.10 GB\n"
        );
        let path = written(&format!("sglang-{each}"), &text);
        let card = ["--gpu", "a100-80gb-sxm", "--sources"];
        answers(&[&["predict", "--from-log", &path], &card[..]].concat())
    };
    let half = log("8.34");
    assert!(
        half.contains("the pool printed there is of a cache in fp8"),
        "{half}"
    );
    let whole = log("16.67");
    assert!(whole.contains("the engines' default"), "{whole}");
}
