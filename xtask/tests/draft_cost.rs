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
            ", at 0.880 with and without it; beside the pool 1.04 GiB more, in all 2.18: the draft's weights 0.72, KV pool 0.54, graphs 0.92",
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
    let all = after(&said, "in all ");
    assert!((pool + beside - all).abs() < 0.011, "{said}");
    let rows = ["the draft's weights ", "KV pool ", "graphs "].map(|row| after(&said, row));
    assert!((rows.iter().sum::<f64>() - all).abs() < 0.016, "{said}");
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
