//! A log beside another card than its own, beside a plain sweep, and beside its own settings.

mod common;

use std::path::{Path, PathBuf};

use common::{answers, xtask};

/// A server of eight cards of 141 GB, with its own MTP layers.
const HEAD: &str = "\
[2025-11-12 09:11:03] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3.1', context_length=None, mem_fraction_static=0.882, max_running_requests=128, chunked_prefill_size=8192, tp_size=8, speculative_algorithm='EAGLE', speculative_draft_model_path='deepseek-ai/DeepSeek-V3.1', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
[2025-11-12 09:11:32 TP0] Load weight begin. avail mem=138.05 GB
[2025-11-12 09:13:06 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=58.07 GB, mem usage=79.98 GB.
[2025-11-12 09:13:07 TP0] KV Cache is allocated. #tokens: 638391, KV size: 41.78 GB
[2025-11-12 09:13:08 TP0] Memory pool end. avail mem=16.23 GB
[2025-11-12 09:13:09 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=16.13 GB
[2025-11-12 09:14:02 TP0] Capture cuda graph end. Time elapsed: 52.88 s. mem usage=1.36 GB. avail mem=14.77 GB.
[2025-11-12 09:14:04 TP0] Load weight begin. avail mem=14.73 GB
[2025-11-12 09:14:39 TP0] Load weight end. type=DeepseekV3ForCausalLMNextN, dtype=torch.bfloat16, avail mem=12.92 GB, mem usage=1.81 GB.
[2025-11-12 09:14:40 TP0] KV Cache is allocated. #tokens: 638391, KV size: 0.68 GB
[2025-11-12 09:15:10 TP0] max_total_num_tokens=638391, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=128, context_len=163840, available_gpu_mem=11.44 GB
[2025-11-12 09:15:19] The server is fired up and ready to roll!
";

/// Users, and tokens a second over all of them.
const LOADS: [(u32, f64); 4] = [(16, 989.0), (32, 1567.0), (64, 2419.0), (128, 3513.0)];

fn file(name: &str, text: &str) -> PathBuf {
    let name = format!("other-card-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

fn log(name: &str) -> PathBuf {
    let mut text = HEAD.to_string();
    for (users, tok_s) in LOADS {
        for second in 0..3 {
            text.push_str(&format!(
                "[2025-11-12 09:20:0{second} TP0] Decode batch, #running-req: {users}, #token: {}, token \
                 usage: 0.09, accept len: 2.50, accept rate: 0.62, cuda graph: True, gen throughput \
                 (token/s): {tok_s}, #queue-req: 0, \n",
                users * 4100
            ));
        }
    }
    file(name, &text)
}

/// A plain bench of 3,584 tokens in and 1,024 out.
fn bench(name: &str, users: u32, tpot_ms: f64) -> PathBuf {
    let requests = users * 4;
    let text = format!(
        "============ Serving Benchmark Result ============\n\
         Backend:                                 sglang\n\
         Max request concurrency:                 {users}\n\
         Successful requests:                     {requests}\n\
         Total input tokens:                      {}\n\
         Total generated tokens:                  {}\n\
         Output token throughput (tok/s):         {:.2}\n\
         Mean TPOT (ms):                          {tpot_ms}\n",
        requests * 3584,
        requests * 1024,
        940.0 * f64::from(users) / tpot_ms,
    );
    file(name, &text)
}

fn predict(log: &Path, more: &[&str]) -> String {
    let log = log.display().to_string();
    let mut args = vec!["predict", "--from-log", &log, "--context", "4k"];
    args.extend(more);
    answers(&args)
}

#[test]
fn memory_that_a_log_shows_of_a_larger_card_is_left_aside_and_said() {
    let path = log("larger");
    let log = path.display().to_string();
    for card in ["h100", "rtx-4090"] {
        for command in ["plan", "predict"] {
            let words = [
                command,
                "--from-log",
                &log,
                "--gpu",
                card,
                "--context",
                "4k",
            ];
            let output = xtask(&words);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let word = ["FITS", "PAYS", "MEASURE"]
                .iter()
                .find(|w| text.starts_with(**w));
            assert!(word.is_none(), "{text}");
            assert!(!text.contains("estimates above"), "{text}");
            let left = text
                .lines()
                .filter(|line| line.contains("is of another card"));
            let left: Vec<&str> = left.collect();
            assert_eq!(left.len(), 1, "{text}");
            assert!(left[0].contains("138.1 GiB were free"), "{}", left[0]);
        }
    }
    // Its own card.
    let own = answers(&[
        "plan",
        "--from-log",
        &log,
        "--gpu",
        "h200",
        "--context",
        "4k",
    ]);
    assert!(
        own.starts_with("FITS") && own.contains("638,391 tokens"),
        "{own}"
    );
    assert!(!own.contains("another card"), "{own}");
    std::fs::remove_file(path).ok();
}

#[test]
fn what_a_log_lacks_of_a_far_larger_card_is_not_billed_to_the_driver() {
    let path = log("smaller");
    let log = path.display().to_string();
    let words = [
        "plan",
        "--from-log",
        &log,
        "--gpu",
        "b300-sxm",
        "--context",
        "4k",
    ];
    let text = answers(&words);
    assert!(text.contains("is of another card"), "{text}");
    let driver = text.lines().find(|line| line.starts_with("driver, CUDA"));
    let gib = driver.and_then(|line| line.split_whitespace().nth(4)?.parse::<f64>().ok());
    assert!(gib.is_some_and(|gib| gib < 5.0), "{text}");
    std::fs::remove_file(path).ok();
}

#[test]
fn settings_that_a_log_has_itself_leave_its_speeds() {
    let path = log("steps");
    let loads = ["--gpu", "h200", "--concurrency", "16,64"];
    for same in [
        &["--steps", "3"][..],
        &["--steps", "3", "--topk", "1", "--draft-tokens", "4"],
    ] {
        let text = predict(&path, &[&loads[..], same].concat());
        assert!(text.contains("log: speculative, 64 users"), "{text}");
    }
    let other = predict(&path, &[&loads[..], &["--steps", "2"]].concat());
    let own = "log: speculative, 64 users, 3 steps, ";
    assert!(other.contains(own), "{other}");
    std::fs::remove_file(path).ok();
}

#[test]
fn every_load_of_a_log_that_is_asked_for_is_shown_and_the_others_are_counted() {
    let path = log("loads");
    let all = predict(&path, &["--gpu", "h200", "--concurrency", "16,32,64,128"]);
    for (users, _) in LOADS {
        assert!(
            all.contains(&format!("log: speculative, {users} users")),
            "{all}"
        );
    }
    assert!(!all.contains("not shown"), "{all}");
    let some = predict(&path, &["--gpu", "h200", "--concurrency", "16"]);
    assert!(some.contains("1 other load of the log not shown"), "{some}");
    std::fs::remove_file(path).ok();
}

#[test]
fn a_load_that_log_and_sweep_both_show_is_told_by_both() {
    let path = log("both");
    let (low, high) = (bench("16", 16, 24.5), bench("64", 64, 42.1));
    let sweep = format!("{},{}", low.display(), high.display());
    let text = predict(
        &path,
        &[
            "--gpu",
            "h200",
            "--concurrency",
            "64",
            "--accept",
            "1.9@3",
            "--baseline",
            &sweep,
        ],
    );
    let told = "are not set against your plain sweep: one is of a log's lines and one of a bench";
    let mut told = text.lines().filter(|line| line.contains(told));
    let line = told.next().unwrap_or_default();
    assert!(line.contains("64 users are not set"), "{text}");
    let settles =
        "--baseline PLAIN.log, the plain server's own log of the same requests, would settle it";
    assert!(line.contains(settles) && told.next().is_none(), "{text}");
    let measure = text
        .lines()
        .find(|line| line.trim_start().starts_with("measure "));
    let measure = measure.unwrap_or_else(|| panic!("{text}"));
    let both = "2,419 tok/s with the draft over 1,520 without at 64 users is no answer";
    assert!(measure.contains(both), "{measure}");
    assert!(!measure.contains("256 users"), "{measure}");
    for file in [path, low, high] {
        std::fs::remove_file(file).ok();
    }
}

#[test]
fn benches_of_one_load_each_are_one_sweep_and_the_next_line_names_all() {
    let (low, high) = (bench("low", 16, 24.5), bench("high", 64, 42.1));
    let (a, b) = (low.display().to_string(), high.display().to_string());
    for (first, second) in [(&a, &b), (&b, &a)] {
        let text = answers(&["explain", first, second]);
        let next = text.lines().find(|line| line.starts_with("next"));
        let next = next.unwrap_or_else(|| panic!("{text}"));
        assert!(next.contains("--concurrency 16,64"), "{next}");
        assert!(
            next.contains(&format!("--baseline {first},{second}")),
            "{next}"
        );
    }
    for file in [low, high] {
        std::fs::remove_file(file).ok();
    }
}

#[test]
fn what_a_draft_costs_says_at_which_fraction() {
    let path = log("cost");
    let set = predict(&path, &["--gpu", "h200", "--concurrency", "16"]);
    // 0.882 is what SGLang chooses beside the draft: its log prints it as if it had been set.
    let choice =
        "costs 31,641 of 670,032 KV tokens (2.07 GiB): SGLang chooses 0.882 with it, 0.897 without";
    assert!(set.contains(choice), "{set}");
    let box_of_log = [
        "predict",
        "--model",
        "deepseek-v3.1",
        "--gpu",
        "h200",
        "--gpus",
        "8",
        "--engine",
        "sglang@0.5.5",
        "--draft",
        "mtp",
        "--accept",
        "2.5@3",
        "--context",
        "4k",
    ];
    let own = answers(&box_of_log);
    let said = "KV tokens (2.07 GiB): SGLang chooses 0.882 with it, 0.897 without";
    assert!(own.contains(said), "{own}");
    // The default case's fraction was found from what its run printed: SGLang did not choose it.
    assert!(answers(&["predict"]).contains("KV tokens (1.14 GiB), at 0.880 with and without it"));
    std::fs::remove_file(path).ok();
}

#[test]
fn a_log_that_ends_out_of_memory_has_a_fault() {
    let form = |message: &str| {
        let start: Vec<&str> = HEAD.lines().take(2).collect();
        let log = format!(
            "{}\n[2025-11-12 09:11:41 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  \
             File \"/sgl-workspace/sglang/python/sglang/srt/layers/quantization/fp8.py\", line 611, in \
             create_weights\n    torch.empty(\n{message}\n\n[2025-11-12 09:11:41] Received sigquit from a \
             child process. It usually means the child failed.\nKilled\n",
            start.join("\n")
        );
        let path = file("oom", &log);
        let text = answers(&["explain", &path.display().to_string()]);
        std::fs::remove_file(path).ok();
        text
    };
    for message in [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 462.00 MiB. GPU 0 has a total \
         capacity of 79.19 GiB of which 281.94 MiB is free.",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 462.00 MiB (GPU 0; 79.19 GiB \
         total capacity; 76.28 GiB already allocated; 281.94 MiB free; 76.30 GiB reserved in total by \
         PyTorch)",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 462.00 MiB.",
    ] {
        let text = form(message);
        assert!(text.starts_with("WRONG  out of memory"), "{text}");
        assert!(text.contains("the weights fill the card"), "{text}");
        assert!(!text.contains("no fault found"), "{text}");
    }
}

/// Of a vLLM server whose log says neither its card nor what was free on it.
#[test]
fn a_pool_far_under_that_of_its_flags_is_of_a_smaller_card() {
    let log = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/shapes/vllm-compose-eagle3.log"
    );
    let plan = |card: &str, more: &[&str]| {
        let common = ["plan", "--from-log", log, "--gpu", card];
        let all: Vec<&str> = common.iter().chain(more).copied().collect();
        answers(&all)
    };
    for card in ["rtx-pro-6000", "h100", "h200", "a100-80gb"] {
        let text = plan(card, &[]);
        assert!(
            text.contains("is of another card: its pool is 9.8 GiB"),
            "{text}"
        );
        let profile = text.lines().find(|line| line.starts_with("activations of"));
        let gib = profile.and_then(|line| line.split_whitespace().nth(5)?.parse::<f64>().ok());
        assert!(gib.is_some_and(|gib| gib < 10.0), "{text}");
        let json = plan(card, &["--json"]);
        assert!(
            json.contains("\"left_aside\": \"") && json.contains("its pool is"),
            "{json}"
        );
    }
    let own = plan("rtx-5090", &[]);
    assert!(!own.contains("another card"), "{own}");
    assert!(plan("rtx-5090", &["--json"]).contains("\"left_aside\": null"));
}

#[test]
fn a_log_that_names_another_card_is_left_aside_and_says_so() {
    let named = format!("{HEAD}Using configuration from E=257,device_name=NVIDIA_H200.json\n");
    let path = file("named", &named);
    let log = path.display().to_string();
    for command in ["plan", "predict"] {
        let of = |card: &str| {
            let output = xtask(&[command, "--from-log", &log, "--gpu", card]);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let text = of("gb200");
        let said = format!("{log} is of another card: it ran on NVIDIA H200 ({log}:");
        assert!(text.contains(&said), "{text}");
        assert!(!of("h200").contains("another card"));
    }
    std::fs::remove_file(path).ok();
}

/// What was free is printed with two decimals: a pool 60 tokens smaller than they give costs no more.
#[test]
fn the_rounding_of_a_log_is_no_cost_of_its_draft() {
    let path = file("rounding", &HEAD.replace("638391", "638330"));
    let set = predict(&path, &["--gpu", "h200", "--concurrency", "16"]);
    assert!(set.contains("costs 31,641 of "), "{set}");
    std::fs::remove_file(path).ok();
}

/// "memory fraction: 1.494005292224318 is not above 0 and at most 1" of a log whose card was not the one given.
#[test]
fn a_pool_that_does_not_go_onto_the_card_given_is_another_cards() {
    let log = "INFO 08-22 15:27:08 llm_engine.py:70] Initializing an LLM engine with config: \
               model='meta-llama/Llama-2-13b-chat-hf', dtype=torch.float16, tensor_parallel_size=1, seed=0)\n\
               INFO 08-22 15:27:21 llm_engine.py:196] # GPU blocks: 865, # CPU blocks: 327\n";
    common::with_log("old", log, |path| {
        let refused = common::refusal(&["predict", "--from-log", path, "--gpu", "rtx-3090"]);
        assert!(
            refused.contains(path) && refused.contains("--gpu is the card"),
            "{refused}"
        );
        let own = common::answers(&["predict", "--from-log", path, "--gpu", "a100-80gb-sxm"]);
        assert!(own.contains("llama-2-13b on 1x-a100-80gb-sxm"), "{own}");
    });
}
