//! What a log says of its server is kept, whatever stands around it.

mod common;

use common::{SGLANG_LOG, answers, with_log};

/// A plain start-up (vLLM 0.10.2, one H100).
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

fn facts(log: &str) -> serde_json::Value {
    let text = with_log("facts", log, |file| answers(&["explain", "--json", file]));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["facts"].clone()
}

fn plan(name: &str, log: &str, more: &str) -> String {
    with_log(name, log, |file| {
        let mut words = vec!["plan", "--from-log", file, "--gpu", "h100-sxm"];
        words.extend(more.split_whitespace());
        answers(&words)
    })
}

/// A plain server's log with the next command below it was read as that of a speculative server.
#[test]
fn a_start_line_below_a_log_says_nothing_of_the_server_that_printed_it() {
    let vllm = "vllm serve Qwen/Qwen3-32B --max-num-seqs 7 --speculative-config \
                '{\"method\": \"eagle3\", \"model\": \"a/b-eagle3\", \"num_speculative_tokens\": 3}'";
    let sglang = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 8 \
                  --speculative-algorithm EAGLE3 --speculative-draft-model-path a/b-eagle3 \
                  --speculative-num-steps 3 --kv-cache-dtype fp8_e4m3";
    let engine_line_alone: String = PLAIN.lines().skip(2).map(|l| format!("{l}\n")).collect();
    let no_arguments: String = SGLANG_LOG
        .lines()
        .skip(1)
        .map(|l| format!("{l}\n"))
        .collect();
    let above = "$ python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4";
    for (log, command) in [
        (PLAIN, vllm),
        (&engine_line_alone, vllm),
        (SGLANG_LOG, sglang),
        (&format!("{above}\n{no_arguments}"), sglang),
    ] {
        let alone = facts(log);
        let noted = facts(&format!("{log}\nto try tonight:\n  {command}\n"));
        for name in [
            "spec_algorithm",
            "spec_tokens",
            "spec_steps",
            "draft_model",
            "tp",
            "kv_dtype",
            "max_running_requests",
            "model",
        ] {
            assert_eq!(noted[name]["value"], alone[name]["value"], "{name}: {log}");
        }
    }
    // A command without a log, or above one without arguments, is what there is.
    assert_eq!(facts(vllm)["spec_tokens"]["value"], 3.0);
    assert_eq!(facts(sglang)["spec_steps"]["value"], 3.0);
    let drafted = facts(&format!("$ {sglang}\n{no_arguments}"));
    assert_eq!(drafted["spec_steps"]["value"], 3.0);
}

/// `explain` showed 78.57 GiB free before the weights; the ledger had what such a card usually has.
#[test]
fn what_vllm_found_free_at_its_start_is_in_the_ledger() {
    let text = plan("free", PLAIN, "--draft none");
    let line = text
        .lines()
        .find(|l| l.starts_with("CUDA context and NCCL"));
    // 79.18 - 78.57.
    assert!(line.is_some_and(|line| line.ends_with(" 0.610")), "{text}");
}

/// Look-up costs no KV, but its pool was 94,800 tokens beside the 94,784 of the log.
#[test]
fn look_up_beside_a_plain_log_has_the_very_pool_of_the_log() {
    let text = plan("ngram", PLAIN, "--draft ngram");
    assert_eq!(text.matches("94,784 tokens").count(), 2, "{text}");
}

/// From 0.21 on graphs come out of the utilisation, so without a draft its graphs are tokens too.
#[test]
fn what_a_drafts_graphs_took_from_a_vllm_pool_is_given_back() {
    let drafts = "speculative_config=SpeculativeConfig(method='eagle3', model='a/b-eagle3', num_spec_tokens=3)";
    let log = PLAIN.replace("speculative_config=None", drafts);
    let pool = |log: &str| {
        let text = plan("graphs", log, "--gpus 1");
        let line = text.lines().nth(1).unwrap_or_default().trim().to_string();
        line.split(" GiB")
            .next()
            .and_then(|gib| gib.parse::<f64>().ok())
    };
    // 0.34 of weights; half of the 0.69 of graphs.
    assert_eq!(pool(&log), Some(9.02));
    assert_eq!(pool(&log.replace("0.10.2", "0.22.0")), Some(9.37));
}

/// The paste dropped the backends, chunk sizes and formats of the log without a word.
#[test]
fn the_paste_keeps_what_the_log_was_told_of_speed_and_memory() {
    let told = "'max_model_len': 6144, 'attention_backend': 'FLASHINFER', 'trust_remote_code': True, \
                'max_num_batched_tokens': 4096, 'served_model_name': ['my qwen'], 'port': 8001, \
                'tool_call_parser': 'hermes'}";
    let log = PLAIN.replace("'max_model_len': 6144}", told);
    let predict = |log: &str, more: &str| {
        with_log("carried", log, |file| {
            // The card that the figures of each log are of.
            let card = match log.contains("server_args") {
                true => "rtx-6000-ada",
                false => "h100-sxm",
            };
            let mut words = vec!["predict", "--from-log", file, "--gpu", card];
            words.extend(more.split_whitespace());
            answers(&words)
        })
    };
    let paste = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(": vllm serve ") || line.contains(" sglang."));
        line.unwrap_or_else(|| panic!("{text}")).to_string()
    };
    let text = predict(&log, "");
    let line = paste(&text);
    for words in [
        "--attention-backend FLASHINFER",
        "--trust-remote-code",
        "--max-num-batched-tokens 4096",
        "--served-model-name 'my qwen'",
        "--dtype bfloat16",
    ] {
        assert_eq!(line.matches(words).count(), 1, "{words}: {line}");
    }
    let left = "leaves out, of what ";
    let told = text.lines().find(|line| line.contains(left));
    assert!(
        told.is_some_and(|line| line.contains(": port, tool_call_parser")),
        "{text}"
    );
    // Another engine has flags of its own.
    let other = predict(&log, "--engine sglang");
    assert!(
        !paste(&other).contains("FLASHINFER") && !other.contains(left),
        "{other}"
    );
    let told =
        "tp_size=4, attention_backend='fa3', moe_runner_backend='auto', tool_call_parser=None";
    let line = paste(&predict(&SGLANG_LOG.replace("tp_size=4", told), "--gpus 4"));
    assert!(
        line.contains(" --attention-backend fa3 --chunked-prefill-size 4096"),
        "{line}"
    );
    assert!(!line.contains("moe-runner"), "{line}");
}

/// The command that `explain` ends with had `--accept 2.1@STEPS` for look-up, with nothing to fill in.
#[test]
fn the_command_after_a_look_up_log_runs_as_it_stands() {
    let drafts =
        "speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)";
    let log = format!(
        "{}(APIServer pid=1) INFO 06-16 14:20:04 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: \
         2.10, Accepted throughput: 55.00 tokens/s, Drafted throughput: 200.00 tokens/s, Accepted: 550 tokens, \
         Drafted: 2000 tokens, Per-position acceptance rate: 0.500, 0.300, 0.200, 0.100, Avg Draft acceptance \
         rate: 27.5%\n",
        PLAIN.replace("speculative_config=None", drafts)
    );
    with_log("look-up", &log, |file| {
        let text = answers(&["explain", "--json", file]);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let command = json["predict"].as_str().expect("a command");
        let words = command.replace("--gpu GPU", "--gpu h100-sxm");
        let words: Vec<&str> = words.split_whitespace().skip(2).collect();
        let text = answers(&words);
        assert!(text.contains("n-gram look-up, 4 steps"), "{command} {text}");
    });
}

fn pools(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| line.contains(" of KV"));
    lines
        .map(|line| line.split(" requests of").next().unwrap_or_default().trim())
        .collect()
}

/// The draft's buffers were added to the target's, the cache of one slot was taken for all four, of two
/// cards one was used, and the draft was an EAGLE-3 head.
#[test]
fn a_llama_cpp_server_with_a_small_model_is_planned_as_its_log_shows_it() {
    let log = include_str!("data/llama-draft.log");
    let said = facts(log);
    for (name, value) in [
        ("weights_gib", 18.3958),
        ("draft_weights_gib", 0.5859),
        ("kv_gib", 8.0),
        ("draft_kv_gib", 3.5),
        ("kv_tokens", 32_768.0),
        // 1,024 tokens of which 600 were accepted.
        ("accept_length", 1024.0 / 424.0),
    ] {
        let found = said[name]["value"].as_f64().unwrap_or(f64::NAN);
        assert!((found - value).abs() < 1e-3, "{name}: {found}");
    }
    let run = |command: &'static str, log: &str| {
        let words = |file: &str| answers(&[command, "--from-log", file, "--gpu", "rtx-3090"]);
        with_log("llama", log, words)
    };
    // Two cards, half of each cache on either.
    assert_eq!(
        pools(&run("plan", log)),
        [
            "4.00 GiB of KV, 32,768 tokens of 131072 B, 4.00",
            "with the draft 5.75 GiB of KV, 32,768 tokens of 188416 B, 4.00"
        ]
    );
    let text = run("predict", log);
    assert!(text.contains("draft model, 2 steps"), "{text}");
    assert!(text.contains(" -sm row -c 32768 -np 4 -md "), "{text}");
    // One cache for all slots.
    let shared = log.replace(
        "8192 cells,  64 layers,  4/4",
        "8192 cells,  64 layers,  4/1",
    );
    assert!(
        run("predict", &shared).contains(" -c 8192 -np 4 "),
        "{shared}"
    );
}

/// The head, the share of memory and the pool of the log were not taken over.
#[test]
fn a_tensorrt_llm_server_is_planned_as_its_log_shows_it() {
    let log = include_str!("data/trtllm-eagle.log");
    let head = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B";
    assert_eq!(facts(log)["draft_model"]["value"], head);
    let text = plan("trt", log, "");
    let drafted = "with the draft 33.69 GiB of KV, 436,128 tokens of 82944 B, 26.62";
    assert_eq!(pools(&text).last(), Some(&drafted), "{text}");
    assert!(
        text.starts_with("FITS     free_gpu_memory_fraction 0.850"),
        "{text}"
    );
    let predict = |log: &str| {
        with_log("trt", log, |file| {
            answers(&["predict", "--from-log", file, "--gpu", "h100-sxm"])
        })
    };
    let text = predict(log);
    for words in [
        " --kv_cache_free_gpu_memory_fraction 0.850 --max_batch_size 64 --max_seq_len 16384 --max_num_tokens 8192",
        &format!("max_draft_len: 3, speculative_model_dir: {head}}}"),
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let fp8 = log.replace(
        "max_gpu_total_bytes=0, dtype='auto'",
        "max_gpu_total_bytes=0, dtype='fp8'",
    );
    let text = predict(&fp8);
    assert!(
        text.contains("kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0."),
        "{text}"
    );
}

/// A fraction that nobody gave was worked out of the pool, and pasted as 0.885.
#[test]
fn a_share_that_vllm_was_not_told_is_its_default() {
    let cut = PLAIN
        .lines()
        .take(8)
        .map(|l| format!("{l}\n"))
        .collect::<String>();
    let text = plan("default", &cut, "--draft none");
    assert!(
        text.starts_with("FITS     --gpu-memory-utilization 0.900"),
        "{text}"
    );
}

#[test]
fn the_logs_of_a_plain_and_of_a_speculative_server_tell_what_the_draft_costs() {
    let drafted = PLAIN
        .replace(
            "speculative_config=None",
            "speculative_config=SpeculativeConfig(method='eagle3', model='a/b-eagle3', num_spec_tokens=3)",
        )
        .replace("94,784", "89,200");
    let both = |drafted: &str| {
        with_log("plain", PLAIN, |plain| {
            with_log("drafted", drafted, |drafted| {
                let text = answers(&["explain", plain, drafted]);
                // Long names wrap the lines elsewhere.
                text.split_whitespace().collect::<Vec<_>>().join(" ")
            })
        })
    };
    let text = both(&drafted);
    assert!(
        text.contains("with the draft the pool holds 5,584 tokens fewer"),
        "{text}"
    );
    assert!(!text.contains("also differ"), "{text}");
    let text = both(&drafted.replace("is (0.9, 71.26", "is (0.8, 71.26"));
    assert!(
        text.contains("also differ in gpu_memory_utilization"),
        "{text}"
    );
    // Of another model it is no cost.
    let other = drafted.replace("Qwen3-30B-A3B-Instruct-2507", "Qwen3-32B");
    assert!(!both(&other).contains("with the draft"), "{other}");
}

/// "They also differ in max_running_requests" of two servers that were told none: SGLang takes 48 beside a draft.
#[test]
fn requests_at_once_that_sglang_takes_by_itself_are_no_other_setting() {
    let log = |spec: &str, tokens: u32, running: u32| {
        format!(
            "[2026-11-30 10:00:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B-FP8', tp_size=2, \
             mem_fraction_static=0.87, max_running_requests=None, {spec})\n\
             [2026-11-30 10:01:12 TP0] max_total_num_tokens={tokens}, chunked_prefill_size=2048, \
             max_prefill_tokens=16384, max_running_requests={running}, context_len=16384, \
             available_gpu_mem=3.10 GB\n"
        )
    };
    let head = "speculative_algorithm='EAGLE3', speculative_draft_model_path='a/b-eagle3', \
                speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4";
    let (plain, drafted) = (
        log("speculative_algorithm=None", 81_539, 2048),
        log(head, 67_943, 48),
    );
    let text = with_log("alike", &plain, |plain| {
        with_log("alike-drafted", &drafted, |drafted| {
            answers(&["explain", plain, drafted])
        })
    });
    assert!(text.contains("13,596 tokens fewer"), "{text}");
    assert!(!text.contains("also differ"), "{text}");
}

/// The format, the slots and the pool of llama.cpp of 2024 were not read: an 8B in 4 bits was planned in 16.
#[test]
fn a_llama_cpp_log_of_2024_says_its_format_its_slots_and_its_pool() {
    let log = "llama_model_loader: - kv   2:  general.name str              = Meta Llama 3.1 8B Instruct\n\
               llm_load_print_meta: model ftype      = Q4_K - Medium\n\
               llm_load_tensors:      CUDA0 buffer size =  4403.49 MiB\n\
               llama_new_context_with_model: n_ctx      = 8192\n\
               llama_kv_cache_init:      CUDA0 KV buffer size =   544.00 MiB\n\
               llama_new_context_with_model: KV self size  =  544.00 MiB, K (q8_0):  272.00 MiB, V (q8_0):  272.00 MiB\n\
               INFO [                    init] initializing slots | n_slots=4\n\
               slot         init: id  0 | task -1 | new slot n_ctx_slot = 2048\n";
    let said = facts(log);
    for (name, value) in [("quant", "q4_k"), ("kv_dtype", "q8_0")] {
        assert_eq!(said[name]["value"], value, "{said}");
    }
    for (name, value) in [
        ("max_running_requests", 4.0),
        ("kv_tokens", 8192.0),
        ("context_len", 2048.0),
    ] {
        assert_eq!(said[name]["value"], value, "{said}");
    }
    let words = |file: &str| {
        answers(&[
            "predict",
            "--from-log",
            file,
            "--gpu",
            "rtx-4090",
            "--draft",
            "none",
        ])
    };
    let text = with_log("old", log, words);
    assert!(text.contains(" -c 8192 -np 4 "), "{text}");
}

/// Started without the variable, that server's pool holds less than the answer says.
#[test]
fn a_variable_that_the_pool_of_a_log_depends_on_is_pasted() {
    let said = "(EngineCore_DP0 pid=2) WARNING 06-16 14:13:50 [gpu_worker.py:494] CUDA graph memory profiling \
        is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it, CUDA graph memory is not accounted \
        for during KV cache allocation.\n";
    let of = |log: &str, more: &[&str]| {
        with_log("variable", log, |file| {
            let own = ["predict", "--from-log", file, "--gpu", "h100-sxm"];
            answers(&[&own, more].concat())
        })
    };
    let pasted = ": VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 vllm serve ";
    let log = format!("{PLAIN}{said}");
    assert!(of(&log, &[]).contains(pasted), "{}", of(&log, &[]));
    assert!(!of(PLAIN, &[]).contains("VLLM_MEMORY"));
    let other = of(&log, &["--engine", "vllm@0.21.0"]);
    assert!(!other.contains("VLLM_MEMORY"), "{other}");
}

/// Its memory went without a word, and with it how many requests it was told to run.
#[test]
fn another_version_of_a_logs_engine_keeps_its_flags_and_says_what_it_leaves_aside() {
    let log = PLAIN.replace(
        "'max_model_len': 6144",
        "'max_model_len': 6144, 'max_num_seqs': 24",
    );
    let other = plan("version", &log, "--engine vllm@0.11.0");
    let told = "is of version 0.10.2: its memory and speeds are left aside, its flags are kept";
    assert_eq!(other.matches(told).count(), 1, "{other}");
    assert!(!other.contains("max_num_seqs 1024"), "{other}");
    assert!(!other.contains("8.68 GiB of KV"), "{other}");
    let own = plan("version", &log, "--engine vllm@0.10.2");
    assert!(
        own.contains("8.68 GiB of KV") && !own.contains("left aside"),
        "{own}"
    );
}

/// 15.50 GiB seen in a log stood beside the band of the computed part that it replaces.
#[test]
fn weights_seen_in_a_log_have_no_band_of_computed_ones() {
    let text = with_log("weights", SGLANG_LOG, |file| {
        let card = ["--gpu", "rtx-a6000", "--gpus", "4", "--context", "8k"];
        answers(&[&["predict", "--from-log", file], &card[..]].concat())
    });
    let mut rows = text.lines().filter(|line| line.starts_with("  weights "));
    let seen = |row: &str| row.split_whitespace().eq(["weights", "15.50"]);
    assert!(rows.any(seen), "{text}");
}
