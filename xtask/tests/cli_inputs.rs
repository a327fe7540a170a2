//! Files as people have them: bench outputs, per-user sweeps, nccl-tests tables.

mod common;

use common::{answers, refusal};

use std::path::{Path, PathBuf};

fn temporary(name: &str, content: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("xtask-inputs-{}-{name}", std::process::id()));
    std::fs::write(&path, content).expect("a temporary file");
    path
}

const BENCH: &str = "xtask/tests/data/inputs/bench-serving.txt";
const NCCL: &str = "xtask/tests/data/inputs/nccl-tests.txt";
const CARD: [&str; 7] = [
    "predict",
    "--model",
    "qwen3-32b",
    "--gpu",
    "h100",
    "--accept",
    "2.3@3",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    CARD.iter().chain(more).copied().collect()
}

#[test]
fn a_bench_that_prints_times_between_tokens_gives_its_decode_speed_not_the_throughput_with_prefill()
{
    let run = with(&["--concurrency", "4", "--baseline", BENCH]);
    let text = answers(&run);
    assert!(
        text.contains("4 users / median ITL 15.21 ms = 263.0 tok/s"),
        "{text}"
    );
    assert!(text.contains("167.42 tok/s counts prefill too"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&answers(&[&run[..], &["--json"]].concat())).expect("JSON");
    let plain = json["points"][0]["baseline_tok_s"].as_f64().expect("one");
    assert!((plain - 263.0).abs() < 0.1, "{plain}");
}

#[test]
fn a_bench_whose_server_queued_or_that_set_no_limit_keeps_its_throughput() {
    let block = |more: &str| {
        format!(
            "Serving Benchmark Result\n{more}Successful requests: 400\n\
             Output token throughput (tok/s): 900\nMean TPOT (ms): 50\n"
        )
    };
    let peak = "Max request concurrency: 400\nPeak output token throughput (tok/s): 1000\n";
    for (more, words) in [(peak, "fastest second"), ("", "set no limit")] {
        let path = temporary("queued.txt", &block(more));
        let shown = path.to_string_lossy().into_owned();
        let run = with(&["--concurrency", "400", "--baseline", &shown, "--json"]);
        let text = answers(&run);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let plain = json["points"][0]["baseline_tok_s"].as_f64().expect("one");
        assert!((plain - 900.0).abs() < 0.1, "{plain}");
        assert!(text.contains(words), "{text}");
        let _ = std::fs::remove_file(path);
    }
}

#[test]
fn a_sweep_of_one_users_tokens_is_refused() {
    let path = temporary("each.csv", "concurrency,tok_s\n1,54.2\n2,49.2\n4,42.7\n");
    let shown = path.to_string_lossy().into_owned();
    let error = refusal(&with(&["--baseline", &shown]));
    assert!(error.contains("are these per user?"), "{error}");
    // A server past its knee stays level: no slip.
    std::fs::write(&path, "concurrency,tok_s\n64,5000\n128,4950\n").expect("written");
    answers(&with(&["--baseline", &shown]));
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_decimal_comma_is_named() {
    let path = temporary("comma.csv", "concurrency;tok_s\n1;54,2\n");
    let shown = path.to_string_lossy().into_owned();
    let error = refusal(&with(&["--baseline", &shown]));
    assert!(error.contains("a decimal comma; write 54.2"), "{error}");
    let _ = std::fs::remove_file(path);
}

#[test]
fn an_nccl_tests_table_is_an_allreduce_table() {
    let run = [
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "rtx-3090",
        "--gpus",
        "4",
        "--quant",
        "int4",
        "--concurrency",
        "1",
        "--json",
        "--allreduce-table",
    ];
    let json: serde_json::Value =
        serde_json::from_str(&answers(&[&run[..], &[NCCL]].concat())).expect("JSON");
    let row = &json["allreduce"][0];
    assert_eq!(row["algorithm"], "your table");
    // Between 28.41 us at 1 KiB and 33.82 us at 16 KiB: hidden 5120 in two bytes.
    assert_eq!(row["bytes"], 10_240);
    let time_us = row["time_us"].as_f64().expect("a time");
    assert!((29.03..33.82).contains(&time_us), "{time_us}");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(NCCL))
        .expect("the table");
    let other = temporary("gather.txt", &format!("# all_gather_perf\n{text}"));
    let shown = other.to_string_lossy().into_owned();
    let error = refusal(&[&run[..], &[&shown]].concat());
    assert!(error.contains("times of all_gather"), "{error}");
    let _ = std::fs::remove_file(other);
}

#[test]
fn engines_own_names_of_flags_are_taken() {
    let run = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&answers(&[&with(more)[..], &["--json"]].concat())).expect("JSON")
    };
    let own = run(&["--gpus", "2", "--tp", "2", "--mem-fraction", "0.8"]);
    for (tp, fraction) in [
        ("--tensor-parallel-size", "--gpu-memory-utilization"),
        ("--tp-size", "--mem-fraction-static"),
    ] {
        let theirs = run(&["--gpus", "2", tp, "2", fraction, "0.8"]);
        assert_eq!(theirs["points"], own["points"]);
        assert_eq!(theirs["memory"], own["memory"]);
    }
    let own = run(&["--context", "8k"]);
    for name in ["--max-model-len", "--context-length"] {
        assert_eq!(run(&[name, "8192"])["points"], own["points"]);
    }
    let free = run(&[]);
    let own = run(&["--max-running", "8"]);
    assert_ne!(own["memory"]["ledger"], free["memory"]["ledger"]);
    let error = refusal(&with(&["--max-num-seqs", "0"]));
    assert!(error.contains("--max-running"), "{error}");
    for name in ["--max-running-requests", "--max-num-seqs"] {
        assert_eq!(run(&[name, "8"])["memory"], own["memory"]);
        answers(&["plan", name, "16", "--context-length", "8192"]);
    }
}

#[test]
fn a_context_of_a_few_tokens_is_asked_about() {
    let text = answers(&with(&["--context", "32"]));
    assert!(text.contains("was 32k meant?"), "{text}");
    assert!(!answers(&with(&["--context", "32k"])).contains("meant?"));
}

#[test]
fn the_card_and_the_count_swapped_are_told_apart() {
    let error = refusal(&[
        "predict",
        "--model",
        "qwen3-32b",
        "--gpus",
        "rtx-5090",
        "--gpu",
        "2",
    ]);
    assert!(
        error.contains("--gpus is how many cards, --gpu which"),
        "{error}"
    );
    let error = refusal(&["predict", "--model", "qwen3-32b", "--gpu", "2"]);
    assert!(error.contains("--gpu NAME --gpus 2"), "{error}");
}

#[test]
fn without_a_draft_there_is_no_verdict_and_nothing_is_assumed_of_acceptance() {
    let text = answers(&[
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--draft",
        "none",
    ]);
    assert!(text.starts_with("NO DRAFT"), "{text}");
    for word in [
        "NOT PAY",
        "does not pay",
        "accept length",
        "speedup",
        "sweep",
    ] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_list_of_depths_is_taken_as_well_as_a_range() {
    let list = answers(&["accept", "--accept", "2.3@3", "--depths", "4,1,2,3"]);
    assert_eq!(
        list,
        answers(&["accept", "--accept", "2.3@3", "--depths", "1..4"])
    );
    let error = refusal(&["accept", "--accept", "2.3@3", "--depths", "0,2"]);
    assert!(error.contains("1..8 or 1,2,4"), "{error}");
}

#[test]
fn one_of_a_thing_is_told_in_the_singular() {
    let run = ["--steps", "1", "--concurrency", "1"];
    let text = answers(&with(&run));
    for plural in [" 1 steps", " 1 users"] {
        assert!(!text.contains(plural), "{text}");
    }
    let bench = "============ Serving Benchmark Result ============\n\
                 Max request concurrency: 1\nSuccessful requests: 4\n\
                 Output token throughput (tok/s): 40.0\nMean TPOT (ms): 20.0\n";
    let bench = temporary("one.txt", bench);
    let file = bench.to_string_lossy().into_owned();
    let text = answers(&with(&["--concurrency", "1", "--baseline", &file]));
    assert!(text.contains("1 user / mean TPOT 20 ms"), "{text}");
    std::fs::remove_file(bench).ok();
}

#[test]
fn a_plain_sweep_faster_than_the_weights_can_be_read_is_refused() {
    let sweep = temporary("fast.csv", "concurrency,tok_s\n1,386\n");
    let sweep = sweep.to_string_lossy().into_owned();
    let ada = ["predict", "--model", "qwen3-32b", "--gpus", "4"];
    let run = [&ada[..], &["--gpu", "rtx-6000-ada", "--baseline", &sweep]].concat();
    let error = refusal(&run);
    assert!(error.contains("386 tok/s at a load of 1"), "{error}");
    assert!(error.contains("reading the weights"), "{error}");
}

#[test]
fn a_kernel_that_cannot_run_here_is_left_out_of_a_comparison() {
    let ada = ["predict", "--model", "qwen3-32b", "--gpus", "4"];
    let ada = [&ada[..], &["--gpu", "rtx-6000-ada", "--concurrency", "8"]].concat();
    let text = answers(&[&ada[..], &["--compare", "nccl,island"]].concat());
    assert!(text.contains("left out  island: needs two"), "{text}");
    assert!(!text.lines().any(|l| l.starts_with("island ")), "{text}");
    let error = refusal(&[&ada[..], &["--compare", "island"]].concat());
    assert!(error.contains("--compare island: island: needs"), "{error}");
}

#[test]
fn a_task_known_by_a_data_set_says_what_it_is_taken_for() {
    let text = answers(&with(&["--task", "GSM8K"]));
    assert!(
        text.contains("requests like GSM8K: taken as sums"),
        "{text}"
    );
    let text = answers(&with(&["--task", "code"]));
    assert!(!text.contains("requests like"), "{text}");
}

#[test]
fn an_unknown_weight_format_is_the_fault_of_its_own_flag() {
    let error = refusal(&with(&["--quant", "q9_z"]));
    assert!(error.starts_with("error: --quant q9_z: "), "{error}");
}

#[test]
fn the_speed_in_a_log_stands_beside_the_computed_one_and_one_outside_the_band_is_explained() {
    let path = std::env::temp_dir().join(format!("xtask-speed-{}.log", std::process::id()));
    let decode = |speed: f64| {
        format!(
            "[2025-11-23 19:36:15 TP0] Decode batch, #running-req: 4, #token: 4000, token usage: \
             0.01, cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0\n"
        )
    };
    let log = |speed: f64| {
        format!(
            "[2025-11-23 19:34:55] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, \
             mem_fraction_static=0.88, speculative_algorithm=None)\n\
             [2025-11-23 19:35:15 TP0] Load weight begin. avail mem=78.81 GB\n{}",
            decode(speed).repeat(3)
        )
    };
    let shown = path.to_string_lossy().into_owned();
    let run = |speed: f64, more: &[&str]| {
        std::fs::write(&path, log(speed)).expect("a temporary log");
        let mut words = vec!["predict", "--from-log", &shown, "--gpu", "h100"];
        words.extend(more);
        answers(&words)
    };
    let usual = run(500.0, &[]);
    assert!(
        usual.contains("log: plain, 4 users, 1,000 tokens held"),
        "{usual}"
    );
    assert!(usual.contains("within the band"), "{usual}");
    assert!(!usual.contains("slower than computed"), "{usual}");
    let slow = run(100.0, &[]);
    assert!(slow.contains("below the band"), "{slow}");
    assert!(
        slow.contains("slower than computed, outside the band"),
        "{slow}"
    );
    assert!(slow.contains(&format!("--baseline {shown}")), "{slow}");
    // The log as the baseline answers for itself.
    let own = run(100.0, &["--baseline", &shown]);
    assert!(own.contains("within the band (90 to 111)"), "{own}");
    // Another card: nothing is observed of it.
    let other = run(500.0, &["--model", "qwen3-14b"]);
    assert!(!other.contains("log: plain"), "{other}");
    let _ = std::fs::remove_file(path);
}

/// A bench over contexts and users, as llm-decode-bench prints it.
fn matrix(heading: &str) -> String {
    format!(
        "{heading}\n\
         ╭────────────┬──────┬───────┬───────╮\n\
         │ ctx \\ conc │    1 │     2 │     4 │\n\
         ├────────────┼──────┼───────┼───────┤\n\
         │ 0          │ 60.0 │ 110.0 │  50.0 │\n\
         │ 16k        │ 50.0 │     ∅ │     ∅ │\n\
         ╰────────────┴──────┴───────┴───────╯\n"
    )
}

#[test]
fn a_table_headed_aggregate_is_believed_and_its_fall_is_a_cliff() {
    let path = temporary("cliff.txt", &matrix("Aggregate decode tok/s"));
    let shown = path.to_string_lossy().into_owned();
    let text = answers(&with(&["--baseline", &shown]));
    assert!(
        text.contains("to 50 at 4: a cliff of this server"),
        "{text}"
    );
    assert!(!text.contains("one user's"), "{text}");
    // Without the heading the file leaves it open.
    std::fs::write(&path, matrix("Decode tok/s")).expect("written");
    let error = refusal(&with(&["--baseline", &shown]));
    assert!(error.contains("are these per user?"), "{error}");
    std::fs::write(&path, "users,aggregate_tok_s\n1,60\n2,110\n4,50\n").expect("written");
    let text = answers(&with(&["--baseline", &shown]));
    assert!(text.contains("a cliff of this server"), "{text}");
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_bench_over_contexts_answers_at_the_context_asked_for_and_says_which_it_used() {
    let path = temporary("contexts.txt", &matrix("Aggregate decode tok/s"));
    let shown = path.to_string_lossy().into_owned();
    let run = |context: &str| {
        let words = ["--baseline", &shown, "--context", context];
        let json = answers(&with(&[&words[..], &["--json"]].concat()));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let plain = json["points"][0]["baseline_tok_s"].as_f64().expect("one");
        (plain, answers(&with(&words)))
    };
    let (plain, text) = run("16k");
    assert!((plain - 50.0).abs() < 1e-6, "{plain}");
    assert!(text.contains("row of 16,384 tokens of context"), "{text}");
    assert!(
        text.contains("the plain sweep is of 16384 tokens"),
        "{text}"
    );
    let (plain, text) = run("8k");
    assert!(plain > 50.0 && plain < 60.0, "{plain}");
    assert!(text.contains("rows of 0 and 16,384 tokens"), "{text}");
    let (plain, text) = run("32k");
    assert!(plain > 40.0 && plain < 50.0, "{plain}");
    assert!(
        text.contains("is of 16384 tokens of context; its steps at 32768 are the measured ones"),
        "{text}"
    );
    let _ = std::fs::remove_file(path);
}

#[test]
fn simulate_and_predict_name_a_kernel_alike_and_offer_none_of_a_version_not_in_force() {
    let island = |words: &[&str]| {
        let text = answers(words);
        let row = text.lines().find(|line| line.trim().starts_with("island"));
        row.unwrap_or_default().to_string()
    };
    // The second table of `simulate` names the kernels.
    let words = ["simulate", "--box", "two-switch-8", "--bytes", "49152"];
    let shown = island(&words);
    assert!(
        shown.ends_with("FlashInfer (vLLM from 0.30), ours"),
        "{shown}"
    );
    let model = ["predict", "--model", "kimi-k2.5", "--box", "two-switch-8"];
    let by = |engine: &str| island(&[&model[..], &["--engine", engine]].concat());
    let old = by("vllm@0.24");
    assert!(old.ends_with("  no"), "{old}");
    for new in ["vllm", "vllm@0.30"] {
        assert!(by(new).ends_with("FLASHINFER_PCIE_IPC=1"), "{}", by(new));
    }
}

/// What the FAQ asks: a model, and the boxes to compare it on.
#[test]
fn boxes_to_compare_need_no_other_box() {
    let output = common::xtask(&[
        "predict",
        "--model",
        "llama-3.1-8b",
        "--compare",
        "4x-rtx-3090,4x-rtx-3090-nvlink",
    ]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(shown.contains("on 4x-rtx-3090 at TP 4"), "{shown}");
    assert!(shown.contains("\n4x-rtx-3090-nvlink "), "{shown}");
}

/// Fixing the steps of the prediction would not say at what depth the log was measured.
#[test]
fn an_accept_length_of_unknown_depth_is_to_be_given_with_its_depth() {
    let path = std::env::temp_dir().join(format!("depthless-{}.log", std::process::id()));
    let line = "[2025-11-02 10:00:00 TP0] Decode batch. #running-req: 1, #token: 8123, token usage: \
                0.05, accept len: 2.45, cuda graph: True, gen throughput (token/s): 101.22, \
                #queue-req: 0, \n";
    std::fs::write(&path, line).expect("a temporary file");
    let file = path.display().to_string();
    let output = common::xtask(&[
        "predict",
        "--model",
        "llama-3.1-8b",
        "--box",
        "1x-h100",
        "--accept",
        &file,
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("accept length 2.45") && said.contains(&format!("give --accept {file}@N")),
        "{said}"
    );
    std::fs::remove_file(path).ok();
}

#[test]
fn a_logs_speeds_stay_at_the_context_its_requests_held_when_another_is_asked_for() {
    let line = |running: u32, speed: f64| {
        format!(
            "[2025-01-23 19:35:35 TP0] Decode batch. #running-req: {running}, #token: {}, token \
             usage: 0.01, cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0\n",
            running * 3000
        )
    };
    let log: String = [(1, 61.0), (1, 61.2), (8, 390.0), (8, 391.0)]
        .map(|(running, speed)| line(running, speed))
        .concat();
    let path = temporary("plain.log", &log);
    let shown = path.to_string_lossy().into_owned();
    let point = |context: &[&str]| -> (serde_json::Value, String) {
        let run = with(&["--concurrency", "8", "--steps", "3", "--baseline", &shown]);
        let text = answers(&[&run[..], context].concat());
        let json = answers(&[&run[..], context, &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        (json["points"][0].clone(), text)
    };
    let (own, text) = point(&[]);
    assert!(
        text.contains("sweep is of 3000 tokens of context, each"),
        "{text}"
    );
    let (far, text) = point(&["--context", "16k"]);
    let said = "sweep is of 3000 tokens of context; its steps at 16384 are the measured ones";
    assert!(text.contains(said), "{text}");
    let ms = |point: &serde_json::Value, name: &str| point[name].as_f64().expect("a time");
    assert!((1000.0 * 8.0 / ms(&own, "baseline_step_ms") - 391.0).abs() < 0.1);
    // 13,384 more tokens of 256 KiB for each of 8 users at 3.35 TB/s, or somewhat under.
    let read_ms = 13_384.0 * 8.0 * 262_144.0 / 3.35e9;
    for name in ["baseline_step_ms", "verify_ms"] {
        let more_ms = ms(&far, name) - ms(&own, name);
        assert!(
            (0.9 * read_ms..2.0 * read_ms).contains(&more_ms),
            "{name}: {more_ms} beside {read_ms}"
        );
    }
}

#[test]
fn accept_takes_the_head_that_the_named_model_brings_along() {
    let asked = ["accept", "--accept", "2.52@3", "--model", "deepseek-v3.1"];
    let own = answers(&asked);
    assert!(own.contains("mtp head: the model's own"), "{own}");
    let by_flag = answers(&[&asked[..], &["--head", "mtp"]].concat());
    let rows = |text: &str| text.split("assumed").next().map(str::to_string);
    assert_eq!(rows(&own), rows(&by_flag));
    // MiniMax-M2.5 has layers that no engine serves.
    for model in ["llama-3.1-8b", "minimax-m2.5"] {
        let eagle = answers(&["accept", "--accept", "2.52@3", "--model", model]);
        assert!(eagle.contains("eagle3 head: the default"), "{eagle}");
    }
}
