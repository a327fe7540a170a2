//! Figures of memory that one answer gives twice: each must be traceable to the other.

mod common;

use common::{answers, refusal, with_log};

fn run(line: &str) -> String {
    answers(&line.split_whitespace().collect::<Vec<_>>())
}

/// The figure behind the first of some words.
fn after(text: &str, words: &str) -> f64 {
    let rest = text.split_once(words).map(|(_, rest)| rest);
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    let figure = word.map(|word| {
        word.trim_matches(|c: char| "():".contains(c))
            .replace(',', "")
    });
    figure
        .and_then(|figure| figure.parse().ok())
        .unwrap_or_else(|| panic!("{words}: {text}"))
}

/// GiB of the rows of a draft.
fn rows_of_draft(plan: &str) -> f64 {
    let rows = plan.lines().filter(|line| line.starts_with("draft: "));
    let gib = |line: &str| {
        let mut figures = line
            .split_whitespace()
            .filter_map(|w| w.parse::<f64>().ok());
        figures.next().unwrap_or_else(|| panic!("{line}"))
    };
    rows.map(gib).sum()
}

const HYBRID: &str = "--box 2x-rtx-3090-nvlink --engine vllm@0.22.1 --context 16k --concurrency 1,2,4 \
                      --model qwen3.6-27b";

/// A draft took 4.21 GiB of which its rows named 1.56, and look-up 2.96 of which they named nothing: the
/// states of drafted tokens stood in no row.
#[test]
fn the_rows_of_a_draft_add_up_to_what_it_costs_though_a_hybrid_keeps_states() {
    for draft in ["mtp", "ngram"] {
        let plan = run(&format!("plan {HYBRID} --quant int4 --draft {draft}"));
        let takes = plan.split_once("the draft costs ").map(|(_, rest)| rest);
        let takes = takes.unwrap_or_else(|| panic!("{plan}"));
        let cost = after(takes, "(");
        let rows = rows_of_draft(&plan);
        assert!((cost - rows).abs() < 0.03, "{cost} {rows}: {plan}");
        assert!(plan.contains("draft: states of drafted tokens"), "{plan}");
        assert!(!plan.contains("beside the pool"), "{plan}");
    }
    // A windowed model keeps no states: there the draft's layer pads the groups of the others.
    let plan = run(
        "plan --model gpt-oss-120b --gpu h100 --gpus 2 --engine vllm@0.22.1 --context 2k --draft eagle3",
    );
    let takes = plan.split_once("the draft costs ").map(|(_, rest)| rest);
    let cost = after(takes.expect("a cost"), "(");
    assert!((cost - rows_of_draft(&plan)).abs() < 0.03, "{plan}");
}

/// A fraction below what the model's own 262,144 tokens need was pasted without a context: vLLM refuses
/// that start.
#[test]
fn a_fraction_that_is_chosen_is_pasted_with_the_context_that_fits_it_and_is_plans() {
    // Its graphs lie outside the utilisation.
    let hybrid = HYBRID.replace("vllm@0.22.1", "vllm@0.20.1");
    // The states of so few want fewer blocks than one request of the pasted limit.
    let hybrid = format!("{hybrid} --max-running 50");
    let flags = format!("{hybrid} --quant fp8 --task code --steps 3");
    let predict = run(&format!("predict {flags}"));
    let set = after(&predict, "set --gpu-memory-utilization ").to_string();
    assert!(
        predict.contains(&format!(
            "--gpu-memory-utilization {set} --max-model-len 32768"
        )),
        "{predict}"
    );
    let flags = format!("{hybrid} --quant fp8 --mem-fraction {set}");
    let plan = run(&format!("plan {flags}"));
    assert!(
        !plan.starts_with("REFUSED") && !plan.contains("activation wall, 0"),
        "{plan}"
    );
    // Of the pool at vLLM's own, which a plain server keeps.
    let cost = after(&predict, "costs ");
    let own = run(&format!("plan {hybrid} --quant fp8 --task code --steps 3"));
    assert_eq!(cost, after(&own, "the draft costs "), "{predict}{own}");
    // The pasted limit wants more: room for one request of twice the context.
    let pasted = after(&predict, "legal fraction: ");
    assert_eq!(pasted, after(&plan, "legal from "), "{predict}{plan}");
    let least = after(
        &predict,
        "request of 32,768 tokens, which the engine wants room for); from ",
    );
    let of_plan = after(&plan, "one request of 32,768 tokens, as told; ");
    assert_eq!(least, of_plan, "{predict}{plan}");
}

/// A plain server on two H100 with the pool that its flags give; weights and pool are put in.
fn log(weights: &str, pool: &str, tokens: &str, requests: &str) -> String {
    format!(
        "(EngineCore_DP0 pid=4233) INFO 11-28 09:12:20 [core.py:93] Initializing a V1 LLM engine (v0.11.2) with config: model='openai/gpt-oss-120b', speculative_config=None, max_seq_len=131072, tensor_parallel_size=2, quantization=mxfp4, kv_cache_dtype=auto, gpu_memory_utilization=0.9, enforce_eager=False\n\
         (Worker_TP0 pid=4301) INFO 11-28 09:13:04 [gpu_model_runner.py:3338] Model loading took {weights} GiB memory and 29.811275 seconds\n\
         (Worker_TP0 pid=4301) INFO 11-28 09:13:54 [gpu_worker.py:359] Available KV cache memory: {pool} GiB\n\
         (EngineCore_DP0 pid=4233) INFO 11-28 09:13:54 [kv_cache_utils.py:1229] GPU KV cache size: {tokens} tokens\n\
         (EngineCore_DP0 pid=4233) INFO 11-28 09:13:54 [kv_cache_utils.py:1234] Maximum concurrency for 131,072 tokens per request: {requests}x\n\
         (Worker_TP0 pid=4301) INFO 11-28 09:14:12 [gpu_model_runner.py:4244] Graph capturing finished in 17 secs, took 0.78 GiB\n\
         (EngineCore_DP0 pid=4233) INFO 11-28 09:14:12 [core.py:250] init engine (profile, create kv cache, warmup model) took 67.90 seconds\n"
    )
}

fn of_log(text: &str, line: &str) -> String {
    with_log("traced", text, |file| {
        let (command, flags) = line.split_once(' ').unwrap_or((line, ""));
        run(&format!("{command} --from-log {file} --gpu h100 {flags}"))
    })
}

/// A pool 11 GiB short of its flags was healthy, with "activations 18.54 (12.98 to 24.10)".
#[test]
fn a_logs_pool_far_below_its_flags_is_said_and_is_no_activation() {
    let short = log("32.28", "19.90", "579,600", "8.32");
    let whole = log("32.28", "31.05", "904,480", "12.98");
    let said = "smaller than the flags it shows give";
    for line in [
        "plan --draft none",
        "predict --gpus 8 --context 2k --concurrency 1",
    ] {
        let text = of_log(&short, line);
        assert!(
            text.contains("the log's pool is 11.1 GiB (8.7 to 13.6) smaller"),
            "{text}"
        );
        let row = after(&text, "activations of the profile run");
        assert!((row - 7.38).abs() < 0.01, "{text}");
        let missing = after(&text, "taken by what the log does not show");
        assert!((missing - 11.15).abs() < 0.01, "{text}");
        let text = of_log(&whole, line);
        assert!(
            !text.contains(said) && !text.contains("does not show"),
            "{text}"
        );
    }
}

#[test]
fn weights_of_a_log_beyond_what_those_computed_may_be_off_are_said() {
    let line = "plan --draft none";
    let more = of_log(&log("33.3562", "31.05", "904,480", "12.98"), line);
    assert!(
        more.contains("loaded 33.36 GiB of weights, 32.28 are computed"),
        "{more}"
    );
    let same = of_log(&log("32.40", "31.05", "904,480", "12.98"), line);
    assert!(!same.contains("of weights"), "{same}");
}

/// "Model loading took 57.82 GiB" stood beside weights of 57.88 (57.85 to 57.91), and what they were too
/// much was taken from the activations.
#[test]
fn weights_that_a_vllm_log_prints_are_those_of_the_ledger_a_drafts_with_them() {
    let plain = log("32.40", "31.05", "904,480", "12.98");
    let drafts = plain.replace(
        "speculative_config=None",
        "speculative_config=SpeculativeConfig(method='eagle3', model='head', num_spec_tokens=3)",
    );
    let loaded = |text: &str| -> f64 {
        let rows = text
            .lines()
            .filter(|line| line.starts_with("weights: ") || line.starts_with("draft: weights"));
        let gib = |line: &str| {
            let mut words = line
                .split_whitespace()
                .filter_map(|w| w.parse::<f64>().ok());
            words.next().unwrap_or_default()
        };
        rows.map(gib).sum()
    };
    for (log, draft) in [(&plain, "none"), (&drafts, "eagle3")] {
        let text = of_log(log, &format!("plan --draft {draft}"));
        assert!((loaded(&text) - 32.40).abs() < 0.006, "{text}");
    }
    let text = of_log(&plain, "plan --draft eagle3");
    let head = after(&text, "draft: weights");
    assert!(
        head > 0.1 && (loaded(&text) - head - 32.40).abs() < 0.006,
        "{text}"
    );
}

/// "1,700,791 tokens (requests x the longest it is told to take), 439.92 requests of 2,048 tokens" is no
/// sum; `predict` counted one pool by the context and by the limit without a word.
#[test]
fn a_windowed_pool_says_in_which_requests_its_tokens_are_counted() {
    let flags =
        "--model openai/gpt-oss-120b --gpu h100 --gpus 8 --tp 2 --engine vllm@0.11.2 --context 2k";
    let told = format!("{flags} --max-model-len 131072 --concurrency 64 --draft eagle3");
    let plan = run(&format!("plan {told}"));
    let tokens = after(&plan, "GiB of KV, ");
    let requests = after(&plan, "tokens (in ");
    assert!(plan.contains("requests of 131,072"), "{plan}");
    assert!((tokens / 131_072.0 - requests).abs() < 0.01, "{plan}");
    // `predict` takes both flags, and its figures are plan's.
    let predict = run(&format!("predict {told} --steps 3"));
    assert!(
        predict.contains("KV tokens in requests of 131,072"),
        "{predict}"
    );
    assert_eq!(
        after(&predict, "costs "),
        after(&plan, "the draft costs "),
        "{predict}{plan}"
    );
    assert!(predict.contains("--max-model-len 131072"), "{predict}");
    let least = after(&predict, "legal fraction: ");
    assert_eq!(least, after(&plan, "legal from "), "{predict}{plan}");
    let own = run(&format!("plan {flags} --draft none"));
    let (tokens, requests) = (after(&own, "GiB of KV, "), after(&own, "), "));
    assert!((tokens / 2048.0 - requests).abs() < 0.02, "{own}");
}

#[test]
fn a_request_longer_than_the_engine_is_told_to_take_is_refused_by_plan_and_predict() {
    for command in ["plan", "predict"] {
        let line =
            format!("{command} --model qwen3-32b --gpu h100 --context 16k --max-model-len 8k");
        let error = refusal(&line.split_whitespace().collect::<Vec<_>>());
        assert!(error.contains("more than --max-model-len 8192"), "{error}");
    }
}

/// "--quant fp8 --mem-fraction 0.714 would fit" was reckoned for one request of the four asked for, where
/// the format alone holds all four at the fraction that stood there.
#[test]
fn what_would_fit_keeps_the_fraction_where_that_holds_the_loads_asked_for() {
    let flags = "--model gemma-4-26b-a4b --gpu rtx-3090 --gpus 2 --engine vllm@0.22.1 --context 16k \
                 --concurrency 1,2,4 --mem-fraction 0.82";
    let plan = run(&format!("plan {flags} --draft none"));
    assert!(plan.contains("--quant fp8"), "{plan}");
    assert!(!plan.contains("--quant fp8 --mem-fraction"), "{plan}");
    let followed = run(&format!("plan {flags} --draft none --quant fp8"));
    assert!(followed.starts_with("FITS"), "{followed}");
}

/// vLLM 0.24 on H200, 2026-11-30 (docs/HARDWARE.md): with a draft 2.10 GiB of graphs instead of 0.67, and
/// the pool lost the draft alone. The plan took both out of it, 2 % of the tokens.
#[test]
fn graphs_of_vllms_second_runner_are_not_taken_out_of_the_pool() {
    let tokens = |flags: &str| {
        let flags = format!(
            "plan {flags} --gpu h200-sxm --engine vllm@0.24.0 --max-model-len 16384 --json"
        );
        let text = answers(&flags.split_whitespace().collect::<Vec<_>>());
        let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        plan["memory"]["kv_tokens"].as_f64().expect("tokens")
    };
    let small = "--model qwen3-32b --gpus 1 --max-running 128";
    let large = "--model llama-3.1-70b --gpus 2";
    let head = "--draft eagle3 --steps 3";
    for (flags, measured) in [
        (format!("{small} --draft none"), 269_312.0),
        (format!("{small} {head}"), 259_744.0),
        (format!("{large} --max-running 64 --draft none"), 400_896.0),
        (format!("{large} --max-running 128 {head}"), 385_456.0),
    ] {
        let off = tokens(&flags) / measured - 1.0;
        assert!(off.abs() < 0.006, "{flags}: {off:+.4}");
    }
}

/// Rounding of the shares of a dense model's pool was a row of its own, "draft: padding … 0.00".
#[test]
fn a_dense_models_draft_has_no_row_of_padding() {
    let flags = "--model llama-3.3-70b --quant fp8 --box 4x-l40s --engine vllm --context 8k";
    for command in ["plan", "predict"] {
        let text = run(&format!("{command} {flags}"));
        assert!(text.contains("draft: KV pool"), "{text}");
        assert!(!text.contains("draft: padding"), "{text}");
    }
}

/// `legal from 0.7530` was printed of a wall at 0.75304, and 0.753 was refused.
#[test]
fn the_bounds_that_are_printed_are_legal_themselves() {
    for context in ["4k", "5k", "6k", "7k", "8k", "9k"] {
        let plan = |fraction: &str| {
            let own = format!(
                "plan --model qwen3-30b-a3b --quant fp8 --gpu rtx-4090 --gpus 2 --engine vllm@0.24 --context \
                 {context} --max-model-len {context}{fraction}"
            );
            answers(&own.split_whitespace().collect::<Vec<_>>())
        };
        let free = plan("");
        let from = after(&free, "legal from ");
        let (_, to) = free.split_once(" tokens) to ").expect("walls");
        let to = to.split_whitespace().next().expect("a bound");
        for fraction in [&format!("{from:.4}"), to] {
            let at = plan(&format!(" --mem-fraction {fraction}"));
            let works = !at.starts_with("REFUSED") && !at.contains("above the");
            assert!(works, "{fraction}: {at}");
        }
    }
}
