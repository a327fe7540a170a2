//! What `predict` and `plan` take from the log of a server without a draft, and of one with.

mod common;

use common::answers;

/// The lines of a plain start-up that matter (vLLM 0.10.2, one H100).
const PLAIN: &str = "\
(APIServer pid=1) INFO 06-16 14:13:11 [api_server.py:1896] vLLM API server version 0.10.2
(APIServer pid=1) INFO 06-16 14:13:11 [utils.py:328] non-default args: {'model': 'Qwen/Qwen3-30B-A3B-Instruct-2507', 'dtype': 'bfloat16', 'max_model_len': 6144}
(EngineCore_DP0 pid=2) INFO 06-16 14:13:25 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-30B-A3B-Instruct-2507', speculative_config=None, max_seq_len=6144, tensor_parallel_size=1, kv_cache_dtype=auto
(EngineCore_DP0 pid=2) INFO 06-16 14:13:41 [gpu_model_runner.py:2392] Model loading took 56.9342 GiB and 13.398206 seconds
(EngineCore_DP0 pid=2) INFO 06-16 14:13:56 [gpu_worker.py:298] Available KV cache memory: 8.68 GiB
(EngineCore_DP0 pid=2) INFO 06-16 14:13:57 [kv_cache_utils.py:864] GPU KV cache size: 94,784 tokens
(EngineCore_DP0 pid=2) INFO 06-16 14:13:57 [kv_cache_utils.py:868] Maximum concurrency for 6,144 tokens per request: 15.43x
(EngineCore_DP0 pid=2) INFO 06-16 14:14:04 [gpu_model_runner.py:3118] Graph capturing finished in 7 secs, took 0.69 GiB
(EngineCore_DP0 pid=2) INFO 06-16 14:14:04 [gpu_worker.py:391] Free memory on device (78.57/79.18 GiB) on startup. Desired GPU memory utilization is (0.9, 71.26 GiB).
";

/// A plain SGLang server on four 48 GB cards; its pool is 0.02 GiB beyond what the free figures give.
const PLAIN_SGLANG: &str = "\
[2026-07-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', context_length=32768, mem_fraction_static=0.848, max_running_requests=48, chunked_prefill_size=4096, tp_size=4, speculative_algorithm=None)
[2026-07-11 09:14:17 TP0] Load weight begin. avail mem=46.21 GB
[2026-07-11 09:14:38 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=30.71 GB, mem usage=15.50 GB.
[2026-07-11 09:14:39 TP0] KV Cache is allocated. #tokens: 388300, K size: 11.85 GB, V size: 11.85 GB
[2026-07-11 09:14:39 TP0] Memory pool end. avail mem=6.99 GB
[2026-07-11 09:14:52 TP0] Capture cuda graph end. Time elapsed: 12.31 s. mem usage=0.81 GB. avail mem=6.18 GB.
[2026-07-11 09:15:05 TP0] max_total_num_tokens=388300, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=48, context_len=32768, available_gpu_mem=6.18 GB
[2026-07-11 09:15:08] The server is fired up and ready to roll!
";

fn log(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

fn plan(log: &str, more: &[&str]) -> String {
    let card = [
        "plan",
        "--from-log",
        log,
        "--gpu",
        "h100-sxm",
        "--gpus",
        "1",
    ];
    answers(&[&card, more].concat())
}

fn memory(arguments: &[&str]) -> (u64, u64) {
    let text = answers(arguments);
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let tokens = |key: &str| json["memory"][key].as_u64().expect("tokens");
    (tokens("kv_tokens"), tokens("kv_tokens_without_speculation"))
}

/// GiB, tokens, bytes a token, requests and their length on each line of a pool.
fn pools(text: &str) -> Vec<[f64; 5]> {
    let number = |text: &str| text.replace(',', "").parse::<f64>().ok();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let before = |word: &str| {
            let at = words
                .iter()
                .position(|w| w.trim_end_matches([',', ':']) == word)?;
            number(words.get(at.checked_sub(1)?)?)
        };
        let per = words.iter().position(|w| *w == "B,")?;
        let length = words.iter().rposition(|w| *w == "requests")?;
        let gib = words.iter().position(|w| *w == "GiB")?;
        Some([
            number(words.get(gib.checked_sub(1)?)?)?,
            before("tokens")?,
            number(words.get(per.checked_sub(1)?)?)?,
            before("requests")?,
            number(words.get(length + 2)?)?,
        ])
    };
    text.lines()
        .filter(|l| l.contains(" of KV"))
        .filter_map(line)
        .collect()
}

/// 94,784 tokens of a server without a draft were shown as those with one, in GiB of 92,864.
#[test]
fn the_pool_of_a_plain_servers_log_is_the_plain_figure_and_the_draft_takes_from_it() {
    let log = log("plain-pool", PLAIN);
    let text = plan(&log, &[]);
    let lines = pools(&text);
    let [plain, drafted] = lines[..] else {
        panic!("{text}")
    };
    assert_eq!(plain[..2], [8.68, 94_784.0], "{text}");
    // By hand: 71.26 - 56.93 - 0.34 (head) - 5.58 - 0.07 = 8.34 GiB, of 100,352 B.
    assert!((drafted[0] - 8.34).abs() < 0.011, "{text}");
    assert!((drafted[1] - 89_200.0).abs() < 150.0, "{text}");
    for [gib, tokens, bytes, requests, length] in lines {
        let product = tokens * bytes / 1_073_741_824.0;
        assert!((product - gib).abs() < 0.012, "{product} {text}");
        assert!((tokens / length - requests).abs() < 0.02, "{text}");
    }
    let predict = [
        "predict",
        "--from-log",
        &log,
        "--gpu",
        "h100-sxm",
        "--gpus",
        "1",
        "--json",
    ];
    let (with, without) = memory(&predict);
    assert_eq!((with as f64, without as f64), (drafted[1], plain[1]));
}

#[test]
fn naming_the_draft_or_what_the_log_says_itself_changes_no_figure() {
    let log = log("plain-same", PLAIN);
    let figures = |text: String| text.lines().take(5).map(str::to_string).collect::<Vec<_>>();
    let by_itself = figures(plan(&log, &[]));
    for more in [
        &["--draft", "eagle3"][..],
        &["--mem-fraction", "0.9"],
        &["--tp", "1"],
        &["--engine", "vllm@0.10.2"],
        &["--model", "Qwen3-30B-A3B-Instruct-2507"],
        &["--accept", "rates:.65,.40,.24"],
    ] {
        assert_eq!(figures(plan(&log, more)), by_itself, "{more:?}");
    }
}

#[test]
fn observed_with_draft_says_that_the_pool_is_the_one_with_the_draft() {
    let log = log("plain-flag", PLAIN);
    let with = |text: &str| pools(text).last().map(|pool| pool[1]);
    assert_eq!(
        with(&plan(&log, &["--observed-with-draft"])),
        Some(94_784.0)
    );
    // By flags alone, and for SGLang, where the figures give the fraction: the default box.
    let figures = [
        "plan",
        "--free-before-gib",
        "94",
        "--free-after-gib",
        "21.7",
        "--kv-gib",
        "10.42",
    ];
    let plain = pools(&answers(&figures));
    let drafted = pools(&answers(
        &[&figures[..], &["--observed-with-draft"]].concat(),
    ));
    assert!(
        (plain[0][0] - 10.42).abs() < 0.01 && plain[1][0] < 9.5,
        "{plain:?}"
    );
    assert!(
        (drafted[1][0] - 10.42).abs() < 0.01 && drafted[0][0] > 11.0,
        "{drafted:?}"
    );
}

/// 6,144 of the log became 92,864 in the paste without a word, and that did not start.
#[test]
fn the_pasted_limit_is_the_logs_own_and_the_pasted_flags_start() {
    let path = log("plain-paste", PLAIN);
    let predict = [
        "predict",
        "--from-log",
        &path,
        "--gpu",
        "h100-sxm",
        "--gpus",
        "1",
    ];
    let text = answers(&predict);
    assert!(
        text.contains("--gpu-memory-utilization 0.900 --max-model-len 6144 --dtype bfloat16\n"),
        "{text}"
    );
    let fed = plan(
        &path,
        &[
            "--draft",
            "eagle3",
            "--mem-fraction",
            "0.900",
            "--max-model-len",
            "6144",
        ],
    );
    assert!(fed.starts_with("FITS"), "{fed}");
    // A limit that the pool holds without the draft only.
    let long = PLAIN
        .replace("6144", "92864")
        .replace("6,144", "92,864")
        .replace("15.43x", "1.02x");
    let path = log("plain-long", &long);
    let predict = [
        "predict",
        "--from-log",
        &path,
        "--gpu",
        "h100-sxm",
        "--gpus",
        "1",
    ];
    let text = answers(&predict);
    assert!(!text.contains("--max-model-len 92864"), "{text}");
    assert!(
        text.contains("does not keep the limit of 92864 tokens"),
        "{text}"
    );
}

#[test]
fn an_sglang_pool_without_a_draft_shrinks_by_what_the_draft_takes() {
    let log = log("plain-sglang", PLAIN_SGLANG);
    let card = [
        "--from-log",
        &log,
        "--gpu",
        "a40",
        "--gpus",
        "4",
        "--draft",
        "eagle3",
    ];
    let text = answers(&[&["plan"], &card[..]].concat());
    let lines = pools(&text);
    let [plain, drafted] = lines[..] else {
        panic!("{text}")
    };
    assert_eq!(plain[1], 388_300.0, "{text}");
    let (with, without) = memory(&[&["predict"], &card[..], &["--json"]].concat());
    assert_eq!((with as f64, without as f64), (drafted[1], plain[1]));
    // The head's weights and tables on a card, and its layer beside 64 in each token.
    let head = 0.4..1.6;
    let gib = plain[1] * plain[2] / 1_073_741_824.0 - drafted[1] * drafted[2] / 1_073_741_824.0;
    assert!(head.contains(&gib), "{gib} {text}");
}

/// One server on an H200, with and without the head (vLLM 0.24, logs of the data): what the plain
/// log foretells is what the other one printed.
#[test]
fn the_pool_with_a_draft_foretold_from_a_plain_log_is_the_one_that_was_measured() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let data = std::env::var("SHARED_DATA").unwrap_or_else(|_| beside.to_string());
    let file = |name: &str| format!("{data}/inputs/vllm_logs/h200-llama8b-{name}.log");
    if !std::path::Path::new(&file("base")).exists() {
        println!("skipped: no ../shared/data");
        return;
    }
    let of = |name: &str| {
        let log = file(name);
        let words = ["--from-log", &log, "--gpu", "h200", "--gpus", "1"];
        let model = ["--model", "llama-3.1-8b", "--json"];
        memory(&[&["predict"], &words[..], &model].concat())
    };
    let ((foretold, plain), (measured, without)) = (of("base"), of("e3k3"));
    assert_eq!((plain, measured), (891_872, 855_488));
    // The head's weights are the log's (random ones hold no output head); what a drafting server's
    // passes hold more than a plain one's is in no row.
    let close = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs() < 0.006;
    assert!(close(foretold, measured), "{foretold} {measured}");
    assert!(close(without, plain), "{without} {plain}");
}

/// At 0.89 and 0.91 the pool of the log was set aside and one of estimates shown: 3 GiB more on both
/// sides of the log's own.
#[test]
fn a_nudge_of_the_fraction_moves_the_logs_pool_by_its_share_of_the_card() {
    let path = log("plain-nudge", PLAIN);
    let own = pools(&plan(&path, &[]));
    for fraction in [0.85, 0.89, 0.91, 0.93] {
        let text = plan(&path, &["--mem-fraction", &fraction.to_string()]);
        let moved = pools(&text);
        let share = (fraction - 0.9) * 79.18;
        for (moved, own) in moved.iter().zip(&own) {
            assert!(
                (moved[0] - own[0] - share).abs() < 0.03,
                "{fraction} {text}"
            );
            let tokens = moved[0] * 1_073_741_824.0 / moved[2];
            assert!((moved[1] / tokens - 1.0).abs() < 0.002, "{fraction} {text}");
        }
        assert!(text.contains("legal from 0.8020"), "{text}");
        assert!(
            text.contains("the pool is the log's own at 0.900"),
            "{text}"
        );
    }
    // SGLang's pool follows from what was free, which the log says.
    let path = log("sglang-nudge", PLAIN_SGLANG);
    let card = [
        "plan",
        "--from-log",
        &path,
        "--gpu",
        "rtx-6000-ada",
        "--gpus",
        "4",
    ];
    let own = pools(&answers(&card));
    let text = answers(&[&card[..], &["--mem-fraction", "0.858"]].concat());
    let (moved, share) = (pools(&text), 0.01 * 46.21);
    assert!((moved[0][0] - own[0][0] - share).abs() < 0.03, "{text}");
    assert!(text.contains("ran at 0.848"), "{text}");
}

#[test]
fn a_kv_format_that_the_log_says_is_not_called_the_default() {
    let path = log(
        "plain-kv",
        &PLAIN.replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8"),
    );
    assert!(!plan(&path, &[]).contains("KV dtype"));
    let path = log("plain-no-kv", PLAIN);
    assert!(plan(&path, &[]).contains("KV dtype bf16 (the default)"));
}

#[test]
fn an_all_reduce_kernel_that_the_log_shows_is_said_where_nccl_is_reckoned_with() {
    let two = PLAIN.replace("tensor_parallel_size=1", "tensor_parallel_size=2");
    let kernel = "INFO 05-15 03:31:20 [custom_all_reduce.py:355] PCIe custom allreduce enabled via \
        VLLM_ENABLE_PCIE_ALLREDUCE=1 (backend=cpp, using vLLM C++ custom allreduce).\n\
        INFO 05-15 03:31:20 [custom_all_reduce.py:490] Using dynamic C++ custom allreduce cutoff \
        (cutoff=57344 bytes, ignore_cutoff_max_rows=8).\n";
    let path = log("plain-kernel", &format!("{two}{kernel}"));
    let card = ["--from-log", &path, "--gpu", "rtx-pro-6000", "--gpus", "2"];
    let said = "vLLM's own kernel over PCIe up to 57,344 bytes, NCCL above";
    let text = answers(&[&["predict"], &card[..]].concat());
    assert!(text.contains(said), "{text}");
    let asked = answers(&[&["predict"], &card[..], &["--allreduce", "one-shot"]].concat());
    assert!(!asked.contains(said), "{asked}");
}

#[test]
fn the_fraction_that_a_log_says_is_pasted_as_it_says_it() {
    let log = log("plain-sglang-fraction", PLAIN_SGLANG);
    let card = ["--gpu", "rtx-6000-ada", "--gpus", "4"];
    let text = answers(&[&["predict", "--from-log", &log], &card[..]].concat());
    assert!(text.contains("--mem-fraction-static 0.848 "), "{text}");
}

#[test]
fn plan_keeps_the_limit_of_the_log_as_predict_does() {
    let log = log("limit", PLAIN);
    let line = |command: &'static str| {
        let load = ["--gpu", "h100", "--context", "2k"];
        answers(&[&[command, "--from-log", log.as_str()], &load[..]].concat())
    };
    let after = |text: &str, words: &str| -> Option<f64> {
        let (_, after) = text.split_once(words)?;
        after.split_whitespace().next()?.parse().ok()
    };
    let (plan, predict) = (line("plan"), line("predict"));
    let wall = after(&plan, "legal from ").expect("a wall");
    assert_eq!(Some(wall), after(&predict, "legal fraction: "), "{predict}");
    let own = "(pool wall: one request of 6,144 tokens, the log's limit; ";
    let shorter = after(&plan, own).expect("the wall of the context asked for");
    assert!(shorter < wall, "{plan}");
}

/// A plain server tuned close to its wall: with a draft its fraction is above the wall's band.
const TIGHT_PLAIN: &str = "\
[2025-09-14 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', kv_cache_dtype='fp8_e4m3', context_length=4096, mem_fraction_static=0.900, max_running_requests=48, tp_size=1, speculative_algorithm=None)
[2025-09-14 10:00:05] Load weight begin. avail mem=23.20 GB
[2025-09-14 10:00:25] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=7.87 GB, mem usage=15.33 GB.
[2025-09-14 10:00:28] KV Cache is allocated. #tokens: 80826, K size: 2.77 GB, V size: 2.77 GB
[2025-09-14 10:00:28] Memory pool end. avail mem=2.32 GB
[2025-09-14 10:00:39] Capture cuda graph end. Time elapsed: 9.90 s. mem usage=0.46 GB. avail mem=1.86 GB.
[2025-09-14 10:00:44] max_total_num_tokens=80826, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=4096, available_gpu_mem=1.86 GB
";

#[test]
fn a_draft_beside_a_tight_plain_server_is_answered_at_a_fraction_that_is_legal_with_it() {
    let path = format!("{}/tight-plain.log", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, TIGHT_PLAIN).expect("a log");
    let words = [
        "predict",
        "--json",
        "--from-log",
        &path,
        "--gpu",
        "rtx-3090",
    ];
    let json: serde_json::Value = serde_json::from_str(&answers(&words)).expect("JSON");
    let memory = &json["memory"];
    assert_eq!(memory["fits"], true, "{memory}");
    // What is given up is of the pool that the server had.
    assert_eq!(memory["kv_tokens_without_speculation"], 80_826);
    let because = json["because"].as_str().unwrap_or("");
    assert!(
        because.contains("the 0.900 of the log's server, which ran without a draft"),
        "{because}"
    );
    let flags = json["engine_flags"]["sglang"].as_array().expect("flags");
    let at = flags
        .iter()
        .position(|flag| flag == "--mem-fraction-static")
        .expect("a fraction");
    let pasted = flags[at + 1].as_str().expect("text");
    let asked = [&words[..], &["--mem-fraction", pasted]].concat();
    let followed: serde_json::Value = serde_json::from_str(&answers(&asked)).expect("JSON");
    assert_eq!(followed["memory"]["fits"], true, "{pasted}");
    assert_eq!(
        followed["memory"]["kv_tokens"], memory["kv_tokens"],
        "{pasted}"
    );
}

/// An SGLang server of a hybrid with MTP: 5.36 GiB of states, drafted copies in.
const HYBRID: &str = "\
[2026-07-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-Next-80B-A3B-Instruct-FP8', context_length=32768, mem_fraction_static=0.85, max_running_requests=16, tp_size=2, speculative_algorithm='NEXTN', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
[2026-07-11 09:14:17 TP0] Load weight begin. avail mem=77.80 GB
[2026-07-11 09:14:38 TP0] Load weight end. type=Qwen3NextForCausalLM, dtype=torch.bfloat16, avail mem=38.90 GB, mem usage=38.90 GB.
[2026-07-11 09:14:39 TP0] Mamba Cache is allocated. max_mamba_cache_size: 80, conv_state size: 0.05GB, ssm_state size: 2.86GB intermediate_ssm_state_cache size: 2.40GB intermediate_conv_window_cache size: 0.05GB
[2026-07-11 09:14:39 TP0] KV Cache is allocated. #tokens: 1574934, K size: 9.02 GB, V size: 9.02 GB
[2026-07-11 09:14:39 TP0] Memory pool end. avail mem=12.10 GB
[2026-07-11 09:15:05 TP0] max_total_num_tokens=1574934, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=16, context_len=32768, available_gpu_mem=9.18 GB
[2026-07-11 09:15:08] The server is fired up and ready to roll!
";

/// The ledger had states as it reckons them beside a pool that was the log's.
#[test]
fn the_states_of_a_hybrids_log_stand_in_the_ledger() {
    let log = log("hybrid-states", HYBRID);
    let arguments = ["plan", "--from-log", &log, "--gpu", "h100-sxm", "--json"];
    let json: serde_json::Value = serde_json::from_str(&answers(&arguments)).expect("JSON");
    let lines = json["memory"]["ledger"].as_array().expect("lines");
    let states = lines.iter().filter(|line| {
        let item = line["item"].as_str().unwrap_or_default();
        item == "target: state pool" || item.starts_with("verify: states")
    });
    let gib: f64 = states.filter_map(|line| line["gib"].as_f64()).sum();
    // Slots are whole.
    assert!((gib - 5.36).abs() < 0.1, "{gib}: {json}");
    let _ = std::fs::remove_file(log);
}

/// A pasted start line says no version: naming its engine dropped its limit of requests.
#[test]
fn naming_the_engine_of_a_log_without_a_version_keeps_what_it_was_told() {
    let line = "vllm serve zai-org/GLM-4.5-Air --tensor-parallel-size 8 --gpu-memory-utilization 0.920 \
                --max-num-seqs 100 --kv-cache-dtype fp8\n";
    let log = log("no-version", line);
    let card = [
        "plan",
        "--from-log",
        &log,
        "--gpu",
        "rtx-a6000",
        "--gpus",
        "8",
    ];
    let plain = [&card[..], &["--draft", "none", "--context", "64k"]].concat();
    let alone = pools(&answers(&plain));
    assert_eq!(alone.len(), 1, "{}", answers(&plain));
    assert_eq!(
        alone,
        pools(&answers(&[&plain[..], &["--engine", "vllm"]].concat()))
    );
    let _ = std::fs::remove_file(log);
}

#[test]
fn a_full_pool_of_a_log_names_the_fraction_that_holds_more_and_it_does() {
    let lower = "'max_model_len': 6144, 'gpu_memory_utilization': 0.85";
    let vllm = PLAIN.replace("'max_model_len': 6144", lower);
    // 30.71 less 0.3 of 46.21 GiB, with room for the graphs of a draft above it.
    let sglang = PLAIN_SGLANG
        .replace("0.848", "0.70")
        .replace("388300", "276022")
        .replace("11.85 GB", "8.42 GB");
    let (sglang, vllm) = (log("fuller-sglang", &sglang), log("fuller-vllm", &vllm));
    for (log, card, context) in [(&sglang, "rtx-6000-ada", "16k"), (&vllm, "h100-sxm", "6k")] {
        let at = |more: &[&str]| {
            let asked = format!("--accept 3@3 --concurrency 1,8,16,32,48 --context {context}");
            let asked: Vec<&str> = asked.split(' ').collect();
            let from = ["predict", "--from-log", log, "--gpu", card];
            answers(&[&from[..], &asked, more].concat())
        };
        let text = at(&[]);
        let (_, way) = text
            .split_once(": the KV pool holds no more (")
            .expect(&text);
        let (held, fraction) = way.split_once(" with --").expect(&text);
        let fraction = fraction.split([' ', ')', ';']).nth(1).expect(&text);
        let more = at(&["--mem-fraction", fraction]);
        let line = format!("beyond {held} users the KV pool is full");
        assert!(more.contains(&line), "{text}\n{line}\n{more}");
    }
}
