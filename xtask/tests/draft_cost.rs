//! What a draft costs in memory reads the same in `plan` and in `predict`.

mod common;

use common::{SGLANG_LOG, answers, with_log};

/// The sentence from "costs" to the end of its line.
fn cost(command: &str, flags: &str) -> String {
    let words: Vec<&str> = flags.split_whitespace().collect();
    let text = answers(&[&[command], words.as_slice()].concat());
    let found = text.lines().find_map(|line| line.split_once(" costs "));
    let (_, cost) = found.unwrap_or_else(|| panic!("{command} {flags}: {text}"));
    cost.to_string()
}

fn after(text: &str, words: &str) -> f64 {
    let figure = text.split_once(words).and_then(|(_, rest)| {
        let end = |c: char| !c.is_ascii_digit() && c != '.';
        rest.split(end).next()?.parse().ok()
    });
    figure.unwrap_or_else(|| panic!("{words}: {text}"))
}

/// `predict` said "at 0.880 with and without it" and no more, `plan` tokens and "beside the pool" at no
/// fraction.
#[test]
fn plan_and_predict_say_the_cost_of_a_draft_in_the_same_words_and_figures() {
    let fewer = "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --draft eagle3";
    let one = "--model llama-3.1-8b --gpu h100-sxm --gpus 1 --draft eagle3";
    for (flags, said) in [
        (
            "",
            ", at 0.880 with and without it; beside the pool 2.08 GiB more stay free with it, in all 0.93 more: the draft's weights 0.72, KV pool 0.54, graphs 0.92, request-to-token table 1.95 less, the target's graphs 1.16 less (48 requests at once with it, 2,048 without)",
        ),
        (
            fewer,
            ", at 0.679 with and without it (SGLang's own); beside the pool ",
        ),
        (
            &format!("{one} --mem-fraction 0.9"),
            ", at 0.900 with and without it",
        ),
        (
            &format!("{one} --engine sglang@0.5.5"),
            ": SGLang chooses 0.810 with it, 0.835 without; ",
        ),
        (
            &format!("{fewer} --engine sglang@0.5.5"),
            ": SGLang chooses 0.743 with it, 0.827 without",
        ),
        (
            &format!("{one} --engine vllm"),
            ", at 0.920 with and without it (vLLM's own)",
        ),
        (
            &format!("{one} --engine vllm@0.19"),
            ", at 0.900 with and without it (vLLM's own); beside the pool ",
        ),
        (
            &format!("{one} --engine vllm --mem-fraction 0.85"),
            ", at 0.850 with and without it",
        ),
        // Graphs of the draft bring vLLM's own above the wall: advised is a lower one with it alone.
        (
            &format!("{fewer} --engine vllm@0.19"),
            ": 0.835 with it (advised), 0.900 without (vLLM's own)",
        ),
        (
            &format!("{one} --engine trtllm"),
            ", at 0.900 with and without it (TensorRT-LLM's own); ",
        ),
        (
            "--model qwen3-next-80b-a3b --quant fp8 --gpu h100 --gpus 4 --engine vllm --draft mtp --steps 2",
            " (vLLM's own), with 2 draft steps",
        ),
        (
            "--model kimi-k2.5 --quant int4 --gpu rtx-pro-6000 --gpus 8 --draft eagle3",
            " with and without it (advised); beside the pool ",
        ),
    ] {
        let (plan, predict) = (cost("plan", flags), cost("predict", flags));
        assert_eq!(plan, predict, "{flags}");
        assert!(plan.contains(said), "{flags}: {plan}");
    }
}

/// "and 1.04 GiB beside the pool" did not say of what.
#[test]
fn what_lies_beside_the_pool_is_named_and_adds_up() {
    let flags = "--model llama-3.1-8b --gpu h100-sxm --gpus 1 --draft eagle3 --engine sglang@0.5.5";
    let said = cost("plan", flags);
    let (pool, beside) = (after(&said, "("), after(&said, "beside the pool "));
    assert!(
        said.contains(" GiB more stay free with it, in all "),
        "{said}"
    );
    let all = after(&said, "in all it takes ");
    assert!((pool - beside - all).abs() < 0.011, "{said}");
    let more = ["the draft's weights ", "KV pool ", "graphs "].map(|row| after(&said, row));
    let less = ["table ", "the target's graphs "].map(|row| after(&said, row));
    let rows = more.iter().sum::<f64>() - less.iter().sum::<f64>();
    assert!((rows - all).abs() < 0.026, "{said}");
}

/// The plain one computed, as if no log had printed it, where `predict` took both from the logs.
#[test]
fn plan_takes_the_pools_that_two_logs_print() {
    let drafted = SGLANG_LOG
        .replace("speculative_algorithm=None", "speculative_algorithm='EAGLE3', speculative_draft_model_path='AngelSlim/Qwen3-32B_eagle3', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4")
        .replace("0.848", "0.823")
        .replace("388300", "370000")
        .replace("11.85", "11.29")
        .replace("6.99", "8.13");
    let decoded = "Decode batch, #running-req: 1, #token: 4000, token usage: 0.01, cuda graph: True, \
                   gen throughput (token/s): 60.00, #queue-req: 0,\n";
    let plain = format!(
        "{SGLANG_LOG}[2026-07-11 09:16:00 TP0] {decoded}[2026-07-11 09:16:05 TP0] {decoded}"
    )
    .replace("tp_size=4,", "tp_size=4, cuda_graph_max_bs=512,");
    let drafted = drafted.replace("tp_size=4,", "tp_size=4, cuda_graph_max_bs=512,");
    with_log("plain", &plain, |plain| {
        with_log("drafted", &drafted, |drafted| {
            let flags = format!(
                "--from-log {drafted} --gpu rtx-6000-ada --concurrency 1 --baseline {plain}"
            );
            let said = cost("plan", &flags);
            assert_eq!(said, cost("predict", &flags));
            assert!(
                said.starts_with(
                    "18,300 of 388,300 KV tokens (1.12 GiB) by the pools of the two logs: 0.824 with it, 0.848 without"
                ),
                "{said}"
            );
            let words: Vec<&str> = flags.split_whitespace().collect();
            let text = answers(&[&["plan"], words.as_slice()].concat());
            assert!(
                text.contains("at 0.848 without the draft 23.70 GiB of KV, 388,300 tokens"),
                "{text}"
            );
        });
    });
}

/// Two logs gave the pools, rows of one ledger what lies beside them: 0.04 GiB for 0.73.
#[test]
fn beside_the_pools_of_two_vllm_logs_lie_the_graphs_that_they_print() {
    let log = |more: &str, kv: &str, tokens: &str, graphs: &str| {
        format!(
            "(APIServer pid=1) INFO 10-02 09:40:01 [utils.py:253] non-default args: {{'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 10240, 'gpu_memory_utilization': 0.9{more}}}\n\
             (EngineCore pid=2) INFO 10-02 09:40:02 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='meta-llama/Llama-3.1-8B-Instruct'\n\
             (EngineCore pid=2) INFO 10-02 09:41:02 [gpu_worker.py:440] Available KV cache memory: {kv} GiB\n\
             (EngineCore pid=2) INFO 10-02 09:41:02 [kv_cache_utils.py:1711] GPU KV cache size: {tokens} tokens\n\
             (EngineCore pid=2) INFO 10-02 09:41:22 [gpu_model_runner.py:5100] Graph capturing finished in 9 secs, took {graphs} GiB\n"
        )
    };
    let head = ", 'speculative_config': {'method': 'eagle3', 'model': 'yuhuili/EAGLE3-LLaMA3.1-Instruct-8B', 'num_speculative_tokens': 5}";
    let (plain, drafted) = (
        log("", "108.87", "891,872", "0.41"),
        log(head, "107.79", "856,288", "1.14"),
    );
    with_log("plain-v", &plain, |plain| {
        with_log("drafted-v", &drafted, |drafted| {
            let flags = format!(
                "--from-log {drafted} --model llama-3.1-8b --gpu h200 --concurrency 1 --baseline {plain}"
            );
            let said = cost("plan", &flags);
            assert_eq!(said, cost("predict", &flags));
            assert!(
                said.starts_with(
                    "35,584 of 891,872 KV tokens (4.34 GiB) by the pools of the two logs"
                ),
                "{said}"
            );
            let beside = "; beside the pool 0.73 GiB more, in all 5.07: graphs of 1.14 with it, 0.41 without, as printed";
            assert!(said.ends_with(beside), "{said}");
        });
    });
}

/// 41 GiB were said to lie beside the pool of a hybrid: states of drafted tokens, which are in it.
#[test]
fn nothing_is_said_to_lie_beside_a_hybrids_pool_that_is_in_it() {
    let flags = "--model qwen3.5-35b-a3b --gpu h100 --engine vllm --draft mtp --context 2k";
    let said = cost("predict", flags);
    assert!(
        said.contains("in requests of") && !said.contains("beside the pool"),
        "{said}"
    );
}

/// "costs no KV tokens": the pool without the draft was of a lower fraction, at which hardly a request fits.
#[test]
fn a_higher_fraction_for_the_draft_does_not_hide_what_the_draft_takes() {
    let flags = "--model glm-4.6 --quant fp8 --gpu rtx-pro-6000-server --gpus 8 --tp 4 --engine vllm --context 8k";
    let said = cost("plan", flags);
    assert!(
        said.starts_with("no KV tokens: 0.968 with it (advised)"),
        "{said}"
    );
    let at_one = cost("plan", &format!("{flags} --mem-fraction 0.968"));
    let figures = at_one.split(" KV tokens").next().expect("figures");
    assert!(
        said.contains(&format!("; {figures} where both run at 0.968")),
        "{said} {at_one}"
    );
}

/// GiB of a row of the ledger that `plan` prints.
fn row(text: &str, item: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(item));
    let figure = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    figure.unwrap_or_else(|| panic!("{item}: {text}"))
}

/// "beside the pool 0.20 GiB more, in all 1.79", where the two ledgers differed by 0.41 and 2.01: the target's
/// graphs grow beside a draft, and the table of requests shrinks.
#[test]
fn what_a_draft_costs_is_the_difference_of_the_two_ledgers() {
    let server = "--model Qwen/Qwen3-32B-AWQ --gpu rtx-4090 --gpus 2 --context 4k --concurrency 8";
    for engine in [
        "--engine sglang",
        "--engine sglang --max-running 8",
        "--engine sglang@0.5.5",
        "--engine vllm",
        "--engine trtllm",
    ] {
        let [with, without] = ["eagle3", "none"].map(|draft| {
            let line = format!("plan {server} {engine} --draft {draft}");
            answers(&line.split_whitespace().collect::<Vec<_>>())
        });
        let said = cost("plan", &format!("{server} {engine} --draft eagle3"));
        let beside = match said.contains("beside the pool ") {
            true => after(&said, "beside the pool "),
            false => 0.0,
        };
        let less = said.split_once(" GiB more stay free").is_some();
        let beside = if less { -beside } else { beside };
        let free = row(&without, "free") - row(&with, "free");
        // Pools are of whole blocks.
        assert!((free - beside).abs() < 0.02, "{engine}: {free} {said}");
        let pool = row(&without, "target: KV pool") - row(&with, "target: KV pool");
        assert!(
            (pool - after(&said, "tokens (")).abs() < 0.02,
            "{engine}: {said}"
        );
    }
}

/// "50,000 tokens of 167936 B" beside 8.93 GiB and 18.58 requests, and what the machine fell short of was a cost
/// of the draft: 21,584 tokens for 14,336.
#[test]
fn a_log_that_prints_the_tokens_of_its_pool_alone_has_the_pool_that_they_take() {
    let start = "(APIServer pid=4121) INFO 11-30 20:01:11 [utils.py:253] non-default args: {'model_tag': \
        'Qwen/Qwen3-14B-AWQ', 'model': 'Qwen/Qwen3-14B-AWQ', 'gpu_memory_utilization': 0.92, \
        'speculative_config': {'method': 'eagle3', 'model': 'AngelSlim/Qwen3-14B_eagle3', \
        'num_speculative_tokens': 3}}\n";
    let gib = "(EngineCore_DP0 pid=4300) INFO 11-30 20:02:31 [gpu_worker.py:480] Available KV cache memory: 7.82 GiB\n";
    let tokens = "(EngineCore_DP0 pid=4300) INFO 11-30 20:02:31 [kv_cache_utils.py:1298] GPU KV cache \
        size: 50,000 tokens\n";
    let plan = |name: &str, text: &str, more: &str| {
        with_log(name, text, |log| {
            let line = format!("plan --from-log {log} --gpu rtx-4090 --gpus 1 --context 3k {more}");
            answers(&line.split_whitespace().collect::<Vec<_>>())
        })
    };
    let alone = plan("tokens-alone", &format!("{start}{tokens}"), "");
    let both = plan("tokens-and-gib", &format!("{start}{gib}{tokens}"), "");
    for text in [&alone, &both] {
        assert!(
            text.contains("with the draft 7.82 GiB of KV, 50,000 tokens"),
            "{text}"
        );
        assert!(
            text.contains("the draft costs 14,336 of 64,336 KV tokens"),
            "{text}"
        );
        let activations = row(text, "activations of the profile run");
        assert!((activations - 1.614).abs() < 0.002, "{text}");
    }
    let said = "prints the tokens of its KV cache and no GiB: 50,000 take 7.82";
    assert!(alone.contains(said) && !both.contains(said), "{alone}");
    // The same where the draft is left off.
    let plain = plan("tokens-alone", &format!("{start}{tokens}"), "--draft none");
    assert!(plain.contains("64,336 tokens of 163840 B"), "{plain}");
}
