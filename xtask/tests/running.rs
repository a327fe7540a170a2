//! Requests at once: of a log's server, of the loads asked for, of the pasted line; one number.

mod common;

use std::path::Path;

use common::{answers, run};

/// A vLLM server of one request at a time, up to its pool.
const ONE_AT_A_TIME: &str = "(APIServer pid=1) INFO 06-19 05:50:41 [api_utils.py:339]  █ version 0.22.1\n\
    (APIServer pid=1) INFO 06-19 05:50:41 [api_utils.py:273] non-default args: {'model': 'own/model', \
    'max_model_len': 262144, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.82, \
    'max_num_batched_tokens': 2048, 'max_num_seqs': 1}\n\
    (Worker_TP0 pid=50) INFO 06-19 05:51:39 [gpu_worker.py:480] Available KV cache memory: 4.36 GiB\n";
/// The lines after which it serves.
const UP: &str = "(EngineCore pid=40) INFO 06-19 05:51:39 [kv_cache_utils.py:1744] GPU KV cache size: \
    50,000 tokens\n\
    (Worker_TP0 pid=50) INFO 06-19 05:51:59 [gpu_model_runner.py:100] Graph capturing finished in 2 \
    secs, took 0.05 GiB\n";

fn log(name: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("a path").to_string()
}

fn predict(log: &str, more: &str) -> String {
    let line = format!("predict --from-log {log} --gpu rtx-3090 --context 32k {more}");
    answers(&line.split_whitespace().collect::<Vec<_>>())
}

fn paste(text: &str) -> &str {
    let lines = text.lines().map(str::trim_start);
    let mut found =
        lines.filter(|line| line.contains(": vllm serve") || line.contains("llama-server"));
    found.next().unwrap_or_default()
}

/// GiB of a line of the ledger.
fn gib(text: &str, item: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(item));
    let figure = line.and_then(|line| line.trim_start()[item.len()..].split_whitespace().next());
    figure
        .and_then(|figure| figure.parse().ok())
        .unwrap_or(f64::NAN)
}

/// The ledger was for one request at a time, the table for four, and the paste ran 256.
#[test]
fn a_paste_from_a_log_runs_as_many_at_once_as_its_ledger_and_its_table() {
    let log = log("one-at-a-time.log", ONE_AT_A_TIME);
    let model = "--model qwen3.5-27b --quant int4 --draft mtp";
    let four = predict(&log, &format!("{model} --concurrency 1,2,3,4"));
    assert!(
        paste(&four).ends_with("--max-num-seqs 4 --max-num-batched-tokens 2048"),
        "{four}"
    );
    assert!(
        four.contains("runs 4 requests at once, as asked for; the server of"),
        "{four}"
    );
    let told = predict(
        &log,
        &format!("{model} --concurrency 1,2,3,4 --max-running 4"),
    );
    assert_eq!(
        gib(&four, "target: graphs"),
        gib(&told, "target: graphs"),
        "{told}"
    );
    // As the log ran, where nobody asks for more.
    let one = predict(&log, model);
    assert!(
        paste(&one).ends_with("--max-num-seqs 1 --max-num-batched-tokens 2048"),
        "{one}"
    );
    assert!(
        gib(&one, "target: graphs") < gib(&four, "target: graphs"),
        "{one}"
    );
    // The pasted line is one that the tool itself lets start.
    let words: Vec<&str> = paste(&four).split_whitespace().collect();
    let value = |flag: &str| {
        let at = words.iter().position(|word| *word == flag);
        words[at.expect("pasted") + 1].to_string()
    };
    let plan = format!(
        "plan --engine vllm@0.22.1 --gpu rtx-3090 --gpus 2 {model} --steps 3 --mem-fraction {} \
         --max-model-len {} --max-running {} --batched-tokens 2048",
        value("--gpu-memory-utilization"),
        value("--max-model-len"),
        value("--max-num-seqs")
    );
    let plan = answers(&plan.split_whitespace().collect::<Vec<_>>());
    assert!(plan.starts_with("FITS"), "{plan}");
}

/// From 262,144 tokens, the model's own limit, to 32,768 without a word.
#[test]
fn a_limit_of_a_log_that_no_longer_fits_is_told() {
    let log = log("limit.log", ONE_AT_A_TIME);
    let text = predict(
        &log,
        "--model qwen3.5-27b --quant int4 --draft mtp --steps 3 --max-running 256",
    );
    assert!(!paste(&text).contains("--max-model-len 262144"), "{text}");
    assert!(
        text.contains("does not keep the limit of 262144 tokens"),
        "{text}"
    );
    let kept = predict(&log, "--model qwen3.5-27b --quant int4 --draft none");
    assert!(paste(&kept).contains("--max-model-len 262144"), "{kept}");
    assert!(!kept.contains("does not keep the limit"), "{kept}");
}

/// A pool that was seen with one request at a time is smaller with 256: graphs and sampler grow.
#[test]
fn a_pool_of_a_log_gives_up_what_more_requests_at_once_take() {
    let log = log("came-up.log", &format!("{ONE_AT_A_TIME}{UP}"));
    let model = "--model qwen3-32b --quant int4 --draft none";
    let one = predict(&log, model);
    assert!((gib(&one, "target: KV pool") - 4.36).abs() < 0.006, "{one}");
    let many = predict(&log, &format!("{model} --max-running 256"));
    let grown = |item: &str| gib(&many, item) - gib(&one, item);
    let taken = grown("target: graphs") + grown("activations of the profile run");
    assert!(taken > 0.5, "{many}");
    assert!(
        (grown("target: KV pool") + taken).abs() < 0.03,
        "{taken} {many}"
    );
    assert!(
        many.contains("the log's server ran 1 at once, this one 256"),
        "{many}"
    );
}

/// Slots of llama.cpp and SGLang's limit follow the loads asked for as vLLM's does.
#[test]
fn other_engines_run_the_loads_asked_for_beyond_those_of_a_log() {
    let args = "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, \
        mem_fraction_static=0.85, max_running_requests=2)\n";
    let path = log("sglang-two.log", args);
    let predict = |more: &str| {
        let line = format!("predict --from-log {path} --gpu h100 --context 8k --draft none {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let text = predict("--concurrency 1,8");
    assert!(text.contains("--max-running-requests 8"), "{text}");
    let text = predict("");
    assert!(text.contains("--max-running-requests 2"), "{text}");
    let trtllm = "predict --model qwen3-8b --gpu h100 --engine trtllm --draft none --max-running 8";
    let text = answers(&trtllm.split_whitespace().collect::<Vec<_>>());
    assert!(text.contains("--max_batch_size 8"), "{text}");
}

/// A pool that is full beyond three users holds four where the engine is told to run no more.
#[test]
fn fewer_requests_at_once_are_named_where_they_make_room_for_the_loads_shown() {
    let line = "predict --model qwen3.5-27b --quant int4 --draft mtp --engine vllm@0.22.1 --context 128k \
                --kv-dtype fp8 --gpu rtx-4090 --gpus 2 --concurrency 3,4";
    let text = answers(&line.split_whitespace().collect::<Vec<_>>());
    assert!(
        text.contains("of 4 asked for: the KV pool holds no more (4 with --max-num-seqs 4)"),
        "{text}"
    );
    let told = format!("{line} --max-running 4");
    let text = answers(&told.split_whitespace().collect::<Vec<_>>());
    assert!(text.contains("up to 4 users"), "{text}");
}

/// The paste ran 64 at once, the ledger was for the 48 that SGLang runs by itself.
#[test]
fn a_paste_for_loads_asked_for_has_the_ledger_of_as_many() {
    let table = |more: &str| {
        let line = format!("predict --concurrency 64 --json {more}");
        let json = answers(&line.split_whitespace().collect::<Vec<_>>());
        let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let flags = answer["engine_flags"]["sglang"].to_string();
        assert!(flags.contains("--max-running-requests\",\"64"), "{flags}");
        answer["memory"]["fraction_max"].as_f64().expect("a wall")
    };
    assert_eq!(table(""), table("--max-running 64"));
}

/// 8 requests at 3 steps verify 32 tokens where releases to 0.12 capture graphs to 16: the paste started a
/// server that ran them outside graphs, and the log of one that did was found without fault.
#[test]
fn graphs_reach_as_far_as_the_requests_at_once_verify() {
    let of = |version: &str, more: &str| {
        let line = format!(
            "predict --model qwen3-32b --quant int4 --engine vllm@{version} --gpu rtx-5090 --gpus 2 \
             --context 4k --concurrency 1,8 {more}"
        );
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let told = of("0.10.2", "--steps 3 --max-running 8");
    let end = "--max-num-seqs 8 --cuda-graph-sizes 32";
    assert!(paste(&told).ends_with(end), "{told}");
    let later = of("0.12.0", "--steps 5 --max-running 8");
    let end = "--max-num-seqs 8 --max-cudagraph-capture-size 48";
    assert!(paste(&later).ends_with(end), "{later}");
    for enough in [
        of("0.13.0", "--steps 3 --max-running 8"),
        of("0.10.2", "--steps 3"),
        of("0.10.2", "--draft none --max-running 8"),
    ] {
        assert!(!paste(&enough).contains("graph"), "{enough}");
    }
    let start = |seqs: u32, sizes: &str| {
        let text = format!(
            "INFO 11-21 09:14:02 [api_server.py:1839] vLLM API server version 0.11.0\n\
             INFO 11-21 09:14:02 [utils.py:233] non-default args: {{'model': 'Qwen/Qwen3-8B', \
             'max_num_seqs': {seqs}, 'speculative_config': {{'method': 'eagle3', 'model': 'a/b', \
             'num_speculative_tokens': 3}}}}\n\
             INFO 11-21 09:14:13 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: \
             model='Qwen/Qwen3-8B', compilation_config={{\"max_capture_size\":{sizes}}}\n"
        );
        answers(&[
            "explain",
            &log(&format!("graphs-{seqs}-{sizes}.log"), &text),
        ])
    };
    let found = start(8, "16");
    assert!(
        found.starts_with(
            "COSTS  the verify of more than 4 requests at once runs outside CUDA graphs"
        ),
        "{found}"
    );
    assert!(found.contains("--cuda-graph-sizes 32"), "{found}");
    assert!(!start(8, "32").contains("outside CUDA graphs"));
}

/// The paste told a drafting server the 2,166 that a plain one had taken by itself, and the table was
/// of 32,768 tokens for a server that takes 40,960.
#[test]
fn what_sglang_took_by_itself_is_not_pasted_and_the_table_is_of_the_server_pasted() {
    let text = |told: &str| {
        format!(
            "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, \
             mem_fraction_static=0.85, max_running_requests={told})\n\
             [2026-02-01 10:01:00 TP0] max_total_num_tokens=400000, chunked_prefill_size=8192, \
             max_prefill_tokens=16384, max_running_requests=2166, context_len=40960, \
             available_gpu_mem=9.45 GB\n"
        )
    };
    let (taken, told) = (
        log("sglang-taken.log", &text("None")),
        log("sglang-told.log", &text("2166")),
    );
    let with = |from: &str, more: &str| {
        let line = format!("predict {from} --gpu h100 --engine sglang@0.5.6 {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let of = |path: &str| format!("--from-log {path}");
    let drafts = with(&of(&taken), "--context 32k");
    assert!(!drafts.contains("--max-running-requests"), "{drafts}");
    let kept = with(&of(&told), "--context 32k");
    assert!(kept.contains("--max-running-requests 2166"), "{kept}");
    // Of one and the same server, whatever its requests hold; with a log and without.
    let table = "request-to-token table";
    let plain = |from: &str, context: &str| {
        let text = with(from, &format!("--draft none --context {context}"));
        gib(&text, table)
    };
    let scratch = "--model qwen3-8b";
    for from in [of(&taken).as_str(), scratch] {
        let (short, long) = (plain(from, "8k"), plain(from, "40960"));
        assert!(
            short > 0.3 && (short - long).abs() < 0.011,
            "{from}: {short} {long}"
        );
    }
    let scratch = gib(&with(scratch, "--context 32k"), table);
    assert!((gib(&drafts, table) - scratch).abs() < 0.011, "{drafts}");
}

/// The table of 2,048 requests of 262,144 tokens took 2 GiB, and "the weights fill the card" was said.
#[test]
fn a_table_of_requests_that_leaves_no_fraction_is_cured_by_fewer_of_them() {
    let server = "plan --model Qwen/Qwen3-30B-A3B-Instruct-2507-FP8 --tp 1 --gpus 1 --gpu rtx-5090 \
                  --engine sglang@0.5.9 --context 8k --draft none";
    let of = |more: &str| {
        let words: Vec<&str> = server.split_whitespace().collect();
        let more: Vec<&str> = more.split_whitespace().collect();
        answers(&[words, more].concat())
    };
    let (as_asked, cured) = (of(""), of("--max-running-requests 48"));
    assert!(
        as_asked.contains("with --max-running-requests 48 one does"),
        "{as_asked}"
    );
    assert!(!as_asked.contains("the weights fill"), "{as_asked}");
    assert!(!cured.contains("no fraction works"), "{cured}");
}

/// The pool beside a thousand requests at once holds 499; beside 500 of them it holds these.
#[test]
fn a_lighter_load_that_fits_is_run_whole_below_one_beyond_the_pool() {
    let of = |loads: &str| {
        let line = format!(
            "predict --model qwen3-30b-a3b --quant fp8 --gpu h200 --engine vllm@0.24.0 --draft eagle3 \
             --context 2k --concurrency {loads}"
        );
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let alone = of("1,500");
    assert!(alone.contains("--max-num-seqs 500"), "{alone}");
    let beyond = of("1,500,1000");
    // As many more as a server told to run them holds.
    assert!(beyond.contains("--max-num-seqs 504"), "{beyond}");
    assert!(
        beyond.contains("runs 504 requests at once, of 1,000 asked for"),
        "{beyond}"
    );
    assert!(!alone.contains("asked for:"), "{alone}");
}

#[test]
fn the_head_says_how_many_of_the_users_asked_for_run_at_once() {
    let of = |more: &str| {
        let line = format!("predict --model qwen3-8b --gpu rtx-3090 --gpus 1 --context 8k {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let head = |text: &str| text.lines().take(4).collect::<Vec<_>>().join("\n");
    let pool = head(&of("--engine vllm --concurrency 1,64"));
    assert!(
        pool.contains("of 64 asked for: the KV pool holds no more"),
        "{pool}"
    );
    let told = head(&of("--engine vllm --concurrency 1,2,4 --max-running 2"));
    assert!(
        told.contains("runs 2 requests at once, of 4 asked for"),
        "{told}"
    );
    assert!(
        !head(&of("--engine vllm")).contains("at once"),
        "nobody asked for a load"
    );
}

const ON_H100: &str = "--model qwen3-235b-a22b --quant fp8 --gpu h100-sxm --gpus 4 --engine sglang --draft eagle3 \
                       --context 4k";

fn asked(command: &str, more: &str) -> String {
    let line = format!("{command} {ON_H100} {more}");
    answers(&line.split_whitespace().collect::<Vec<_>>())
}

/// "64 with --mem-fraction-static 0.875": SGLang beside a draft runs 48 unless it is told.
#[test]
fn a_fraction_for_more_requests_than_sglang_runs_by_itself_is_named_with_the_flag() {
    let flags = "--mem-fraction-static 0.875 --max-running-requests 64";
    let predict = asked("predict", "--concurrency 1,32,64 --accept 2.6@3");
    assert!(
        predict.contains(&format!("holds no more (64 with {flags})")),
        "{predict}"
    );
    let plan = asked("plan", "--concurrency 64");
    assert!(plan.contains(&format!(": set {flags}\n")), "{plan}");
    let fits = asked("plan", "--concurrency 64 --mem-fraction 0.875");
    assert!(fits.starts_with("FITS"), "{fits}");
    let start =
        "start with --max-running-requests 64: by itself SGLang runs 48 at once beside a draft";
    assert!(fits.contains(&format!("{start}\n")), "{fits}");
    assert!(
        fits.contains(&format!("they fit; {flags} would be the least")),
        "{fits}"
    );
    // The fraction that it takes by itself follows the flag.
    let fp8 = asked("plan", "--concurrency 64 --kv-dtype fp8");
    assert!(
        fp8.starts_with("FITS     --mem-fraction-static 0.830"),
        "{fp8}"
    );
    assert!(
        fp8.contains(&format!("{start}, and chooses 0.819")),
        "{fp8}"
    );
    // Not where it runs as many.
    let few = asked("plan", "--concurrency 48 --mem-fraction 0.875");
    assert!(!few.contains("--max-running-requests"), "{few}");
    let told = asked(
        "plan",
        "--concurrency 64 --mem-fraction 0.875 --max-running 64",
    );
    assert!(!told.contains("--max-running-requests"), "{told}");
}

/// "it pays at every load shown, up to 64 users" under "runs 48 requests at once, of 64 asked for".
#[test]
fn loads_beyond_a_cap_of_ones_own_are_marked_as_those_of_the_pool_are() {
    let cap = "--max-running 48 --mem-fraction 0.875";
    let loads = "--concurrency 1,32,64 --accept 2.6@3";
    let text = asked("predict", &format!("{loads} {cap}"));
    let row = text.lines().find(|line| line.starts_with("   64 "));
    let mark = "more than --max-running-requests 48 runs";
    assert!(row.is_some_and(|row| row.contains(mark)), "{text}");
    assert!(
        text.contains("beyond 48 users --max-running-requests 48 runs no more"),
        "{text}"
    );
    let whose = "the speed if all ran at once; this server runs 48, the others wait";
    assert!(text.contains(whose), "{text}");
    let json = asked("predict", &format!("{loads} {cap} --json"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["points"][2]["fits"], false);
    assert_eq!(json["pays_up_to_concurrency"], 48);
    let plan = asked("plan", &format!("--concurrency 64 {cap}"));
    assert!(plan.starts_with("TIGHT"), "{plan}");
    assert!(
        plan.contains("runs 48 requests at once, of 64 asked for"),
        "{plan}"
    );
    assert!(
        plan.contains("set --mem-fraction-static 0.875 --max-running-requests 64"),
        "{plan}"
    );
    let held = asked(
        "predict",
        "--concurrency 1,32,48 --accept 2.6@3 --max-running 48 --mem-fraction 0.875",
    );
    assert!(
        !held.contains("more than") && !held.contains("the others wait"),
        "{held}"
    );
}

/// The clause hung on "it pays": "measure first" beside a full pool named no way out, and `predict` did not know
/// of the one that `plan` names.
#[test]
fn what_holds_more_is_named_whatever_the_verdict_and_as_plan_names_it() {
    let flags = "--model Qwen/Qwen3-32B-AWQ --gpu rtx-4090 --gpus 2 --engine sglang --draft eagle3 --context 16k";
    let run = |command: &str, flags: &str| {
        let line = format!("{command} {flags}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let open = run("predict", &format!("{flags} --concurrency 1,8"));
    let known = run(
        "predict",
        &format!("{flags} --concurrency 1,8 --accept 2.4@3"),
    );
    assert!(open.starts_with("MEASURE FIRST") && known.starts_with("PAYS"));
    let line = |text: &str| {
        let line = text.lines().find(|line| line.contains("of 8 asked for"));
        line.unwrap_or_else(|| panic!("{text}")).to_string()
    };
    assert_eq!(line(&open), line(&known));
    let plan = run("plan", &format!("{flags} --concurrency 8"));
    let (_, with) = plan
        .split_once("; with ")
        .unwrap_or_else(|| panic!("{plan}"));
    let (fp8, _) = with.split_once(" carries it").expect("a remedy");
    assert!(
        fp8.starts_with("--kv-cache-dtype fp8 --mem-fraction-static "),
        "{fp8}"
    );
    let said = line(&open);
    assert!(
        said.contains("the KV pool holds no more (3 with --mem-fraction-static "),
        "{said}"
    );
    assert!(said.contains(&format!("; 8 with {fp8}")), "{said}");
}

/// The head and the paste ran 64 users, and the line under them and the rows 123.
#[test]
fn a_load_above_what_fits_is_cut_to_one_number_throughout() {
    let qwen = "--model qwen3.6-27b --box 4x-h100 --quant";
    for flags in [
        format!("{qwen} fp8 --engine sglang@0.5.10 --concurrency 1,64,256 --context 4k"),
        format!("{qwen} int4 --engine sglang --concurrency 1,8,64 --context 32k --steps 1"),
        "--model deepseek-r1 --quant fp8 --box wrx90-2vs-1s-8x --engine sglang@0.5.16 --concurrency \
         1,32,128,256 --context 2k"
            .to_string(),
    ] {
        let text = run("predict", &flags);
        let after = |word: &str| -> Option<u64> {
            let number = text.split_once(word)?.1.split([' ', ',', ':']).next()?;
            number.parse().ok()
        };
        let runs = after("runs ").expect("a head");
        assert_eq!(after("beyond ").unwrap_or(runs), runs, "{flags}: {text}");
        assert_eq!(after("this server runs ").unwrap_or(runs), runs, "{flags}: {text}");
        assert_eq!(after("--max-running-requests ").unwrap_or(runs), runs, "{flags}: {text}");
    }
}
