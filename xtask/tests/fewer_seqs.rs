//! What vLLM's pool gains where it is told to run no more at once than the loads asked for.

mod common;

use common::answers;

/// 256 requests at once were planned for 4 users, and nothing said that telling vLLM so holds half as many tokens more.
#[test]
fn a_limit_of_the_loads_asked_for_that_leaves_much_more_pool_is_told_and_gives_it() {
    for server in [
        "--model qwen3-8b --gpu rtx-4090 --engine vllm --context 4k --concurrency 1,4",
        // 64 users are shown and 8 held.
        "--model qwen3-8b --gpu rtx-4090 --engine vllm --context 4k",
        "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 2 --engine vllm@0.24.0 --context 8k --concurrency 1,8",
    ] {
        let of = |more: &str| {
            let line = format!("predict {server} {more}");
            answers(&line.split_whitespace().collect::<Vec<_>>())
        };
        let text = of("");
        let (_, offer) = text
            .split_once("(vLLM's default for this card, arg_utils.py): --max-num-seqs ")
            .unwrap_or_else(|| panic!("{text}"));
        let (most, _) = offer.split_once(',').expect("a limit");
        let (_, tokens) = offer.split_once("leave the pool ").expect("a pool");
        let (tokens, _) = tokens.split_once(" tokens for ").expect("tokens");
        let count = |text: &str| text.replace(',', "").parse::<u64>().expect("tokens");
        let json: serde_json::Value =
            serde_json::from_str(&of(&format!("--max-running {most} --json"))).expect("JSON");
        assert_eq!(json["memory"]["kv_tokens"], count(tokens), "{text}");
        let followed = of(&format!("--max-running {most}"));
        assert!(!followed.contains("would leave the pool"), "{followed}");
    }
    // A twentieth more that lets no load in is not worth a shorter queue.
    let roomy =
        "predict --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --engine vllm --context 8k";
    let text = answers(&roomy.split_whitespace().collect::<Vec<_>>());
    assert!(!text.contains("would leave the pool"), "{text}");
}

/// 4 requests at once were held at the fraction that is advised, and 2 at vLLM's own, which does for as few.
#[test]
fn a_limit_beside_a_fraction_that_is_advised_is_named_with_it_and_holds_as_many() {
    let server = "predict --model qwen3-32b --quant awq --gpu rtx-4090 --engine vllm@0.33.0";
    let of = |more: &str| {
        let line = format!("{server} {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let text = of("");
    let (_, offer) = text
        .split_once("the KV pool is full (")
        .unwrap_or_else(|| panic!("{text}"));
    let (offer, _) = offer.split_once(')').expect("an end");
    let (requests, flags) = offer.split_once(" with ").expect("a way");
    assert!(flags.starts_with("--gpu-memory-utilization ") && flags.contains(" --max-num-seqs "));
    let json: serde_json::Value =
        serde_json::from_str(&of(&format!("{flags} --json"))).expect("JSON");
    let held = &json["memory"]["most_at_once"]["requests"];
    assert_eq!(held.to_string(), requests, "{text}");
}

/// The line to paste had no draft, and what fewer requests at once leave the pool was told beside one.
#[test]
fn beside_a_paste_without_the_draft_fewer_requests_are_those_of_the_plain_server() {
    let server = "--model qwen3-30b-a3b --quant fp8 --gpu rtx-4090 --gpus 2 --engine vllm@0.33.0 --context 16k \
                  --concurrency 1,4 --draft";
    let of = |more: &str| {
        let line = format!("predict {server} {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let text = of("eagle3 --accept 1.05@3");
    assert!(text.starts_with("DOES NOT PAY"), "{text}");
    let plain = of("none");
    let told = |text: &str| {
        let line = text.lines().find(|line| line.contains("max_num_seqs "));
        line.map(str::to_string)
    };
    assert!(told(&plain).is_some_and(|line| line.contains("would leave")));
    assert_eq!(told(&text), told(&plain), "{text}{plain}");
}

/// "legal from 0.9083 … to 0.908".
#[test]
fn a_narrow_range_of_fractions_ends_above_its_start() {
    let line = "plan --model qwen3-32b --quant int4 --gpu rtx-4090 --engine sglang --context 32k";
    let text = answers(&line.split_whitespace().collect::<Vec<_>>());
    let (_, range) = text.split_once("legal from ").expect("a range");
    let figures: Vec<f64> = range
        .split(' ')
        .take(5)
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(figures.len() == 2 && figures[0] < figures[1], "{range}");
}

/// The engines' name of the flag, as a remedy is told in, was no flag here.
#[test]
fn a_cache_format_is_taken_by_the_engines_name_of_its_flag() {
    let of = |flag: &str| {
        let line = format!(
            "predict --model qwen3-8b --gpu rtx-4090 --engine vllm --context 4k {flag} fp8"
        );
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    assert_eq!(of("--kv-cache-dtype"), of("--kv-dtype"));
}
