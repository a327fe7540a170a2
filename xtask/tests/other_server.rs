//! What a log shows of memory holds for its own server: its card, its weights.

mod common;

use std::path::PathBuf;

use common::answers;

/// A vLLM server with an EAGLE-3 head on one card of 141 GB.
const LOG: &str = "\
INFO 11-29 14:42:34 [api_utils.py:273] non-default args: {'max_model_len': 10240, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 128, 'speculative_config': {'method': 'eagle3', 'model': 'models/llama8b-e3', 'num_speculative_tokens': 5}, 'model': 'models/llama8b'}
INFO 11-29 14:42:34 [model.py:598] Resolved architecture: LlamaForCausalLM
INFO 11-29 14:42:34 [speculative.py:924] Overriding draft model max model len from 131072 to 10240
INFO 11-29 14:42:34 [scheduler.py:252] Chunked prefill is enabled with max_num_batched_tokens=16384.
INFO 11-29 14:42:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='models/llama8b', tensor_parallel_size=1
INFO 11-29 14:43:02 [model_runner.py:302] Model loading took 15.58 GiB and 2.417308 seconds
INFO 11-29 14:43:12 [gpu_worker.py:508] Available KV cache memory: 107.79 GiB
INFO 11-29 14:43:12 [kv_cache_utils.py:2146] GPU KV cache size: 856,288 tokens
INFO 11-29 14:43:17 [model_runner.py:726] Graph capturing finished in 5 secs, took 1.14 GiB
INFO 11-29 14:43:33 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 3.45, Accepted throughput: 1230.02 tokens/s, Drafted throughput: 2508.54 tokens/s, Accepted: 12452 tokens, Drafted: 25395 tokens, Per-position acceptance rate: 0.783, 0.594, 0.456, 0.347, 0.272, Avg Draft acceptance rate: 49.0%
";

fn log(name: &str) -> PathBuf {
    let name = format!("other-server-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, LOG).expect("a file");
    path
}

fn of(name: &str, more: &str) -> String {
    let path = log(name);
    let shown = path.display().to_string();
    let mut all = vec![if more.contains("concurrency") {
        "predict"
    } else {
        "plan"
    }];
    all.extend(["--from-log", &shown, "--model", "llama-3.1-8b"]);
    all.extend(more.split_whitespace());
    let text = answers(&all);
    std::fs::remove_file(path).ok();
    text
}

/// The best figure of a line of the ledger.
fn line(text: &str, item: &str) -> f64 {
    let row = text
        .lines()
        .find(|row| row.trim_start().starts_with(item))
        .unwrap_or_else(|| panic!("{item}: {text}"));
    let figures = row.trim_start().trim_start_matches(item);
    let first = figures.split_whitespace().next();
    first
        .and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("{row}"))
}

#[test]
fn a_pool_that_its_fraction_cannot_leave_on_a_card_is_of_another_card() {
    for card in ["rtx-5090", "h100", "a100-80gb-sxm", "rtx-pro-6000", "b200"] {
        let text = of("card", &format!("--gpu {card} --concurrency 1,64"));
        let aside = text.matches("is of another card").count();
        assert_eq!(aside, 1, "{card}: {text}");
        assert!(!text.contains("that server ran"), "{card}: {text}");
        assert!(!text.contains("107.79"), "{card}: {text}");
        let activation = line(&text, "activations of the profile run");
        assert!((0.0..4.0).contains(&activation), "{card}: {text}");
    }
    let two = of(
        "two",
        "--gpu rtx-5090 --gpus 2 --kv-dtype fp8 --concurrency 1,64",
    );
    assert!(two.contains("is of another card"), "{two}");
    assert!(two.contains("beyond 18 users the KV pool is full"), "{two}");
    let own = of("own", "--gpu h200 --concurrency 1,64");
    assert!(own.contains("that server ran"), "{own}");
    assert!(!own.contains("left aside"), "{own}");
}

#[test]
fn a_pool_beside_other_weights_is_left_aside_and_said() {
    for command in ["", " --concurrency 1,64,128"] {
        let text = of("fp8", &format!("--gpu h200 --quant fp8{command}"));
        assert_eq!(text.matches("is of other weights").count(), 1, "{text}");
        let activation = line(&text, "activations of the profile run");
        assert!(activation < 2.0, "{text}");
        assert!(!text.contains("894,160"), "{text}");
    }
}

#[test]
fn a_box_of_the_logs_own_card_has_the_logs_pool_in_a_comparison() {
    let text = of(
        "compare",
        "--gpu h200 --compare 1x-h200,2x-rtx-5090 --concurrency 1,64",
    );
    let rows = text.lines().filter(|row| row.starts_with("1x-h200"));
    for row in rows {
        assert!(row.ends_with("856,288"), "{text}");
    }
    // One card of two serves: rows of it say so, and what the box holds.
    let rows: Vec<&str> = text
        .lines()
        .filter(|row| row.starts_with("2x-rtx-5090"))
        .collect();
    assert!(
        rows.iter()
            .any(|row| row.starts_with("2x-rtx-5090, 1 of its 2 replicas")),
        "{text}"
    );
}

#[test]
fn buffers_of_an_all_reduce_that_a_log_says_is_off_are_not_in_the_ledger() {
    let row = "custom all-reduce IPC buffers";
    let of = |text: &str| {
        let gpus = ["--gpu", "rtx-6000-ada", "--gpus", "4"];
        common::with_log("no-custom", text, |path| {
            answers(&[&["plan", "--from-log", path], &gpus[..]].concat())
        })
    };
    let on = common::SGLANG_LOG;
    assert!(of(on).contains(row));
    let by_flag = on.replace("tp_size=4", "tp_size=4, disable_custom_all_reduce=True");
    assert!(!of(&by_flag).contains(row));
    let found = format!(
        "{on}[2026-07-11 09:15:06 TP0] Custom allreduce is disabled because it's not supported on more \
         than two PCIe-only GPUs.\n"
    );
    assert!(!of(&found).contains(row));
}

/// The same server without its head, whose load held nowhere.
const PLAIN: &str = "\
INFO 11-29 14:52:34 [api_utils.py:273] non-default args: {'max_model_len': 10240, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 128, 'model': 'models/llama8b'}
INFO 11-29 14:52:34 [scheduler.py:252] Chunked prefill is enabled with max_num_batched_tokens=16384.
INFO 11-29 14:52:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='models/llama8b', tensor_parallel_size=1
INFO 11-29 14:53:02 [model_runner.py:302] Model loading took 15.0 GiB and 2.417308 seconds
INFO 11-29 14:53:12 [gpu_worker.py:508] Available KV cache memory: 108.87 GiB
INFO 11-29 14:53:12 [kv_cache_utils.py:2146] GPU KV cache size: 891,872 tokens
";

/// `explain` said that predict takes the figure from the two logs, `predict` refused the plain one, since
/// it showed no speed.
#[test]
fn the_pool_of_a_plain_log_without_a_speed_is_the_one_without_the_draft() {
    let said = common::with_log("drafted", LOG, |drafted| {
        common::with_log("plain", PLAIN, |plain| {
            let both = answers(&["explain", drafted, plain]);
            assert!(both.contains(&format!("--baseline {plain}")), "{both}");
            let model = ["--model", "llama-3.1-8b", "--gpu", "h200"];
            let alone = [&["predict", "--baseline", plain], &model[..]].concat();
            assert!(common::refusal(&alone).contains("shows no speed"));
            ["plan", "predict"].map(|command| {
                let logs = [command, "--from-log", drafted, "--baseline", plain];
                answers(&[&logs, &model[..]].concat())
            })
        })
    });
    for text in &said {
        let cost = "costs 35,584 of 891,872 KV tokens";
        assert!(text.contains(cost), "{text}");
        assert!(text.contains("by the pools of the two logs"), "{text}");
    }
    let [_, predict] = said;
    assert!(predict.contains("its pool of 891,872 tokens alone is taken"));
}

/// The figures were of the log's 16,384 tokens a pass, the line to paste of vLLM's own 8,192.
#[test]
fn the_paste_sets_the_passes_that_the_logs_own_server_came_to() {
    let text = of("passes", "--gpu h200 --concurrency 1,8");
    assert!(text.contains("--max-num-batched-tokens 16384"), "{text}");
}

/// A card of 32 GB was told the 16,384 tokens that vLLM takes by itself on one of 141 GB, and lost pool to
/// them.
#[test]
fn passes_that_nobody_told_are_not_those_of_another_server() {
    for other in [
        "--gpu rtx-5090 --quant fp8",
        "--gpu rtx-5090",
        "--gpu h200 --quant fp8",
        "--gpu h200 --engine vllm",
        "--gpu h200 --gpus 2 --tp 2",
    ] {
        let text = of("derived", &format!("{other} --concurrency 1,8"));
        assert!(
            !text.contains("--max-num-batched-tokens"),
            "{other}: {text}"
        );
    }
    let plan = of("derived", "--gpu rtx-5090 --quant fp8");
    assert!(plan.contains("max_num_batched_tokens 2048"), "{plan}");
    let told = LOG.replace(
        "'max_num_seqs': 128",
        "'max_num_seqs': 128, 'max_num_batched_tokens': 4096",
    );
    let typed = format!(
        "$ vllm serve models/llama8b --max-model-len 10240 --max-num-batched-tokens 4096\n{}",
        LOG.split_once('\n').expect("lines").1
    );
    for log in [told, typed] {
        let text = common::with_log("told", &log, |path| {
            let words = ["predict", "--from-log", path, "--model", "llama-3.1-8b"];
            let asked = ["--gpu", "rtx-5090", "--quant", "fp8", "--engine", "vllm"];
            answers(&[&words[..], &asked].concat())
        });
        assert!(text.contains("--max-num-batched-tokens 4096"), "{text}");
    }
}

/// `--batched-tokens` beside a log changed nothing, silently.
#[test]
fn other_passes_than_the_logs_move_its_pool() {
    let pool = |passes: &str| {
        let text = of(passes, &format!("--gpu h200 --batched-tokens {passes}"));
        let tokens = text.split_once("with the draft ").expect("its pool").1;
        let gib = tokens.split(' ').next().expect("GiB");
        gib.parse::<f64>().expect("GiB")
    };
    assert!((pool("16384") - 107.79).abs() < 0.01);
    assert!(pool("4096") > 108.5 && pool("32768") < 106.5);
}
