//! The log of a plain server of a release that does not serve the draft, busy with prompts: figures as
//! printed by vLLM 0.10.2 on one H100.

mod common;

use common::{answers, with_log};

const START: &str = "\
INFO 06-16 14:13:11 [api_server.py:1896] vLLM API server version 0.10.2
INFO 06-16 14:13:11 [utils.py:328] non-default args: {'model': 'Qwen/Qwen3-30B-A3B-Instruct-2507', 'dtype': 'bfloat16', 'max_model_len': 6144}
INFO 06-16 14:13:19 [scheduler.py:222] Chunked prefill is enabled with max_num_batched_tokens=8192.
INFO 06-16 14:13:25 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-30B-A3B-Instruct-2507', speculative_config=None, tensor_parallel_size=1
INFO 06-16 14:13:41 [gpu_model_runner.py:2392] Model loading took 56.9342 GiB and 13.398206 seconds
INFO 06-16 14:13:56 [gpu_worker.py:298] Available KV cache memory: 8.68 GiB
INFO 06-16 14:13:57 [kv_cache_utils.py:864] GPU KV cache size: 94,784 tokens
INFO 06-16 14:13:57 [kv_cache_utils.py:868] Maximum concurrency for 6,144 tokens per request: 15.43x
INFO 06-16 14:14:04 [gpu_model_runner.py:3118] Graph capturing finished in 7 secs, took 0.69 GiB
INFO 06-16 14:14:04 [gpu_worker.py:391] Free memory on device (78.57/79.18 GiB) on startup. Desired GPU memory utilization is (0.9, 71.26 GiB). Actual usage is 56.93 GiB for weight, 5.58 GiB for peak activation, 0.07 GiB for non-torch memory, and 0.69 GiB for CUDAGraph memory. Current kv cache memory in use is 9318930329 bytes.
INFO 06-16 14:14:07 [api_server.py:1971] Starting vLLM API server 0 on http://0.0.0.0:8000
";

/// Lines 12 to 14.
const WINDOWS: &str = "\
INFO 06-16 14:14:37 [loggers.py:123] Engine 000: Avg prompt throughput: 13432.4 tokens/s, Avg generation throughput: 443.6 tokens/s, Running: 18 reqs, Waiting: 0 reqs, GPU KV cache usage: 10.6%, Prefix cache hit rate: 51.9%
INFO 06-16 14:14:47 [loggers.py:123] Engine 000: Avg prompt throughput: 19753.2 tokens/s, Avg generation throughput: 867.6 tokens/s, Running: 22 reqs, Waiting: 0 reqs, GPU KV cache usage: 13.3%, Prefix cache hit rate: 56.8%
INFO 06-16 14:14:57 [loggers.py:123] Engine 000: Avg prompt throughput: 19795.7 tokens/s, Avg generation throughput: 878.6 tokens/s, Running: 5 reqs, Waiting: 0 reqs, GPU KV cache usage: 2.7%, Prefix cache hit rate: 59.5%
";

/// Lines 15 to 18: one error.
fn refused(tokens: u64) -> String {
    let at = "ERROR 06-16 14:16:20 [serving_chat.py:251]";
    format!(
        "{at} Error in preprocessing prompt inputs\n\
         {at} Traceback (most recent call last):\n\
         {at}     raise ValueError(\n\
         {at} ValueError: This model's maximum context length is 6144 tokens. However, your request has {tokens} \
         input tokens. Please reduce the length of the input messages.\n"
    )
}

fn of_log(log: &str, command: &str, more: &str) -> String {
    with_log("busy", log, |file| {
        let mut args = vec![command];
        if command != "explain" {
            args.extend(["--gpu", "h100", "--from-log"]);
        }
        args.push(file);
        args.extend(more.split_whitespace());
        answers(&args).replace(file, "LOG")
    })
}

fn line<'a>(text: &'a str, of: &str) -> &'a str {
    let found = text.lines().find(|line| line.contains(of));
    found.unwrap_or_else(|| panic!("no {of}: {text}"))
}

#[test]
fn the_context_of_a_log_busy_with_prompts_is_what_its_requests_held() {
    let log = format!("{START}{WINDOWS}");
    let more = "--draft eagle3 --concurrency 1,16,64";
    let text = of_log(&log, "predict", more);
    let context = line(&text, "context 558 tokens: LOG:12 (what requests held, ");
    assert!(
        context.contains(
            "the middle of 3 windows, lines 12 to 14; shared prefixes count once, and 59.5 %"
        ),
        "{context}"
    );
    assert!(!text.contains("more than the KV pool holds"), "{text}");
    // Without them the limit is all that is known, and the pool holds 15 such requests.
    let unseen = of_log(START, "predict", more);
    assert!(unseen.contains("no request shows what it held"), "{unseen}");
    assert!(unseen.contains("more than the KV pool holds"), "{unseen}");
}

#[test]
fn explain_lists_the_load_and_says_which_windows_are_left_out_of_the_speeds() {
    let text = of_log(&format!("{START}{WINDOWS}"), "explain", "");
    for (name, value) in [
        ("most_running", "22                 line 13"),
        ("kv_usage_percent", "13.3               line 13"),
        ("held_tokens_per_request", "558                line 12"),
        ("prefix_hit_percent", "59.5               line 14"),
    ] {
        assert!(line(&text, name).contains(value), "{text}");
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let said = "left out of the speeds: 3 of 3 throughput windows, in which prompts took more than output, up \
                to 19,796 tokens/s beside 879 (line 14), in all 24 tokens in for one out";
    assert!(words.join(" ").contains(said), "{text}");
    assert!(!text.contains("gen_tok_s"), "{text}");
}

#[test]
fn a_request_beyond_what_the_model_takes_is_told_no_longer_limit_and_its_traceback_is_judged() {
    let text = of_log(
        &format!("{START}{WINDOWS}{}", refused(18_244_677)),
        "explain",
        "",
    );
    assert!(
        text.contains("why  it was of 18,244,677 tokens, the server takes 6,144 tokens"),
        "{text}"
    );
    assert!(
        text.contains(
            "do   shorter requests: the model takes 262,144 tokens, so that no longer limit helps"
        ),
        "{text}"
    );
    assert!(!text.contains("not judged"), "{text}");
    let within = of_log(
        &format!("{START}{WINDOWS}{}", refused(9_000)),
        "explain",
        "",
    );
    assert!(within.contains("it was of 9,000 tokens"), "{within}");
    assert!(within.contains("or a longer limit"), "{within}");
    // Another error behind it, logged elsewhere, is not this one's.
    let other = "ERROR 06-16 14:16:21 [x.py:9] The disk is full.\n";
    let both = of_log(
        &format!("{START}{WINDOWS}{}{other}", refused(9_000)),
        "explain",
        "",
    );
    assert!(
        both.contains(
            "1 line of LOG says WARNING or ERROR and is not judged, the first is line 19"
        ),
        "{both}"
    );
}

#[test]
fn lines_of_the_budget_that_the_log_prints_have_no_band() {
    let text = of_log(START, "predict", "--draft none");
    for (item, gib) in [
        ("  activations of the profile run", "5.58"),
        ("  NCCL and context growth", "0.07"),
        ("  target: graphs", "0.69"),
    ] {
        let row = line(&text, item);
        assert!(row.ends_with(gib), "{row}");
    }
    // More requests at once than the log's: what they grow by is an estimate.
    let plan = |more: &str| of_log(START, "plan", &format!("--draft none --sources {more}"));
    let own = plan("");
    let activations = line(&own, "activations of the profile run");
    assert!(activations.contains("printed by the log's server"), "{own}");
    let passes = plan("--batched-tokens 131072");
    let activations = line(&passes, "activations of the profile run");
    assert!(
        activations.contains(" to ") && activations.contains("and what it grows by here"),
        "{passes}"
    );
}

#[test]
fn a_log_of_a_release_that_does_not_serve_the_draft_is_answered_for_by_the_first_that_does() {
    let more = "--draft eagle3 --concurrency 1,8";
    let text = of_log(START, "predict", more);
    let head: Vec<&str> = text.lines().take(3).collect();
    assert!(head[1].ends_with(", vllm@0.11.1"), "{text}");
    let lack = "vLLM 0.10.2 (LOG:1) does not serve EAGLE-3 for Qwen3MoeForCausalLM; answered for 0.11.1, the \
                first that does; newer ones differ: --engine vllm@VERSION; 0.10.2 serves --draft ngram";
    assert!(head[2].contains(lack), "{text}");
    assert_eq!(
        text.matches(lack).count(),
        2,
        "headline and assumed: {text}"
    );
    assert!(text.contains("memory rules of vllm 0.11.1"), "{text}");
    assert!(text.contains("\n  vllm (0.11.1): vllm serve"), "{text}");
    assert!(
        text.contains("vLLM 0.11.1 drafts nothing for the whole batch"),
        "{text}"
    );
    assert!(!text.contains("stops with an assert"), "{text}");
    // Both releases give a plain server one pool by rule, so the log's stands; its graphs do not.
    assert!(
        text.contains("its pool is kept, as the memory rules of 0.11.1 give"),
        "{text}"
    );
    assert!(
        text.contains("its speeds and graphs are left aside"),
        "{text}"
    );
    assert!(text.contains("of 94,784 KV tokens"), "{text}");
    // What is compared with it is of the same release.
    let both = of_log(START, "predict", &format!("{more} --compare eagle3,none"));
    let plain = |name: &str| {
        let row = both.lines().find(|row| row.starts_with(name));
        let words: Vec<&str> = row
            .unwrap_or_else(|| panic!("{both}"))
            .split_whitespace()
            .collect();
        words[2].to_string()
    };
    assert_eq!(plain("eagle3 "), plain("none "), "{both}");
    // The plain server itself is served as it ran.
    let own = of_log(START, "predict", "--draft none");
    assert!(own.contains("memory rules of vllm 0.10.2"), "{own}");
}

/// Prompts sort no whole rows from 0.18 on, and graphs are counted before the pool from 0.21 on.
#[test]
fn the_pool_of_a_log_is_left_aside_where_the_release_that_serves_the_draft_sizes_it_otherwise() {
    let log = START
        .replace("Qwen/Qwen3-30B-A3B-Instruct-2507", "zai-org/GLM-5")
        .replace("0.10.2", "0.20.2")
        .replace(
            "tensor_parallel_size=1",
            "tensor_parallel_size=8, quantization=fp8",
        )
        .replace("8.68 GiB", "33.30 GiB")
        .replace("94,784", "379,136")
        .replace("56.93", "88.96");
    let log: String = log
        .lines()
        .filter(|line| !line.contains("Free memory") && !line.contains("Maximum concurrency"))
        .map(|line| format!("{line}\n"))
        .collect();
    let text = with_log("aside", &log, |file| {
        let args = [
            "predict",
            "--from-log",
            file,
            "--gpu",
            "h200",
            "--draft",
            "eagle3",
        ];
        answers(&args).replace(file, "LOG")
    });
    assert!(
        text.contains(
            "LOG is of vLLM 0.20.2: its memory and speeds are left aside, as the memory rules of 0.22.0 give \
             another pool: it is computed by those; its flags are kept"
        ),
        "{text}"
    );
    assert!(!text.contains("of 379,136 KV tokens"), "{text}");
}

/// A hybrid's short requests were taken for requests of 13,464 tokens: they hold whole blocks and states.
#[test]
fn a_hybrids_share_of_the_pool_tells_no_context() {
    let said = "INFO 06-16 14:13:40 [interface.py:890] Setting attention block size to 1072 tokens to ensure \
                that attention page size is >= mamba page size.\n";
    let held = |log: &str| {
        with_log("hybrid-held", log, |file| answers(&["explain", file]))
            .lines()
            .any(|line| line.trim_start().starts_with("held_tokens_per_request"))
    };
    assert!(held(&format!("{START}{WINDOWS}")));
    let hybrid = format!("{START}{said}{WINDOWS}");
    assert!(!held(&hybrid));
    // Nor is it taken for the longest request that the server takes.
    let text = with_log("hybrid-context", &hybrid, |file| {
        answers(&[
            "predict",
            "--from-log",
            file,
            "--gpu",
            "h100",
            "--draft",
            "none",
        ])
    });
    assert!(text.contains("context 2048 tokens: "), "{text}");
}

/// 133.6 tok/s for one user: the mean of 162.7 and of the log's first window, part of which was idle. What the
/// front end printed before the server, 2048, was pasted for the server's own 8192.
#[test]
fn neither_a_slow_first_window_nor_what_stands_before_the_server_counts() {
    let window = |second: u32, tok_s: f64| {
        format!(
            "INFO 11-28 15:31:{second:02} [loggers.py:236] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
             throughput: {tok_s} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%\n"
        )
    };
    let passes = |tokens: u32| {
        format!(
            "INFO 11-28 15:27:15 [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens={tokens}.\n"
        )
    };
    let start = "INFO 11-28 15:27:40 [core.py:93] Initializing a V1 LLM engine (v0.11.2) with config: model='a/b'\n";
    let log = [
        passes(2048),
        passes(8192),
        start.to_string(),
        window(6, 104.5),
        window(16, 162.7),
        window(26, 163.1),
    ]
    .concat();
    let said = common::with_log("slow-first", &log, |log| common::answers(&["explain", log]));
    let fact = |name: &str| {
        said.lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap_or_default()
    };
    assert!(fact("gen_tok_s").contains("162."), "{said}");
    let json = common::with_log("slow-first", &log, |log| {
        common::answers(&["explain", log, "--json"])
    });
    assert!(json.contains("8192") && !json.contains("2048"), "{json}");
}
