//! Batches that engines capture as CUDA graphs: in the steps, in the ledger and in the line to paste.

mod common;

use common::{answers, with_log};

/// A server on two RTX 5090 with so much in its printed arguments; it captured graphs of 0.21 GB.
fn log(name: &str, told: &str) -> String {
    let running = told.split_once("max_running_requests=");
    let running = running.and_then(|(_, rest)| rest.split(',').next());
    let running = running.filter(|n| *n != "None").unwrap_or("2048");
    let draft = match told.contains("EAGLE3") {
        true => {
            "[2026-03-14 19:02:34 TP0] Load weight begin. avail mem=2.93 GB\n\
             [2026-03-14 19:02:35 TP0] Load weight end. elapsed=1.2 s, type=LlamaForCausalLMEagle3, \
             avail mem=2.46 GB, mem usage=0.47 GB.\n"
        }
        false => "",
    };
    let text = format!(
        "[2026-03-14 19:02:04] server_args=ServerArgs(model_path='Qwen/Qwen3-30B-A3B-FP8', \
         context_length=None, mem_fraction_static=0.881, {told}, tp_size=2, disable_cuda_graph=False)\n\
         [2026-03-14 19:02:15 TP0] Load weight begin. avail mem=30.46 GB\n\
         [2026-03-14 19:02:24 TP0] Load weight end. elapsed=8.71 s, type=Qwen3MoeForCausalLM, \
         avail mem=15.87 GB, mem usage=14.59 GB.\n\
         [2026-03-14 19:02:24 TP0] KV Cache is allocated. #tokens: 267501, K size: 6.12 GB, V size: 6.12 GB\n\
         [2026-03-14 19:02:24 TP0] Memory pool end. avail mem=3.59 GB\n\
         [2026-03-14 19:02:25 TP0] Capture cuda graph begin. avail mem=3.14 GB\n\
         [2026-03-14 19:02:34 TP0] Capture cuda graph end. Time elapsed: 9.12 s. mem usage=0.21 GB. \
         avail mem=2.93 GB.\n\
         {draft}\
         [2026-03-14 19:02:35 TP0] max_total_num_tokens=267501, chunked_prefill_size=2048, \
         max_running_requests={running}, context_len=40960, available_gpu_mem=2.93 GB\n\
         [2026-03-14 19:02:38] The server is fired up and ready to roll!\n"
    );
    let path = std::env::temp_dir().join(format!("graphs-{name}-{}.log", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

fn of_log(name: &str, told: &str, flags: &str) -> String {
    let file = log(name, told);
    let start = "predict --engine sglang@0.5.9 --gpu rtx-5090 --context 4k --from-log";
    let words = start.split(' ').chain([file.as_str()]);
    let text = answers(&words.chain(flags.split(' ')).collect::<Vec<_>>());
    let _ = std::fs::remove_file(&file);
    text
}

/// The number behind a flag of the pasted line.
fn pasted(text: &str, flag: &str) -> Option<u64> {
    let (_, lines) = text.split_once("\npaste\n")?;
    let line = lines.lines().find(|line| line.contains("sglang"))?;
    let (_, rest) = line.split_once(&format!("{flag} "))?;
    rest.split(' ').next()?.parse().ok()
}

/// GiB of a line of the ledger.
fn gib(text: &str, item: &str) -> f64 {
    let line = text.lines().find(|l| l.trim_start().starts_with(item));
    let words = line.and_then(|line| line.split_whitespace().nth(item.split(' ').count()));
    words.and_then(|w| w.parse().ok()).unwrap_or(f64::NAN)
}

const DRAFTED: &str = "speculative_algorithm='EAGLE3', speculative_num_steps=3, \
                       speculative_eagle_topk=1, speculative_num_draft_tokens=4";

/// A log with graphs to 32 of a server told to run 64 was pasted with both, below rows for 64.
#[test]
fn the_paste_captures_all_that_it_runs_and_says_where_the_log_did_not() {
    let told = format!("max_running_requests=64, {DRAFTED}, cuda_graph_max_bs=32");
    let text = of_log("narrow", &told, "--draft eagle3 --concurrency 1,16,48");
    assert_eq!(pasted(&text, "--max-running-requests"), Some(64), "{text}");
    assert_eq!(pasted(&text, "--cuda-graph-max-bs"), Some(64), "{text}");
    assert!(
        text.contains("the paste has --cuda-graph-max-bs 64, not the 32 of "),
        "{text}"
    );
    // A healthy one of 16 that is asked for more.
    let told = format!("max_running_requests=16, {DRAFTED}, cuda_graph_max_bs=16");
    let text = of_log("raised", &told, "--draft eagle3 --concurrency 1,40");
    let running = pasted(&text, "--max-running-requests");
    assert!(running > Some(16), "{text}");
    assert_eq!(pasted(&text, "--cuda-graph-max-bs"), running, "{text}");
    let kept = of_log("kept", &told, "--draft eagle3 --concurrency 1,16");
    assert_eq!(pasted(&kept, "--cuda-graph-max-bs"), Some(16), "{kept}");
    assert!(!kept.contains("the paste has --cuda-graph"), "{kept}");
}

/// SGLang captures 24 on two such cards by itself and runs 48 with a draft.
#[test]
fn rows_beyond_what_sglang_captures_by_itself_are_pasted_with_graphs_for_them() {
    let server = "predict --engine sglang@0.5.9 --model qwen3-30b-a3b --quant fp8 --gpu rtx-5090 --gpus 2 \
                  --context 4k --concurrency";
    let of = |loads: &str| {
        let words: Vec<&str> = server.split_whitespace().chain([loads]).collect();
        answers(&words)
    };
    let (few, many) = (of("1,8,24"), of("1,8,32"));
    assert_eq!(pasted(&few, "--cuda-graph-max-bs"), None, "{few}");
    assert!(pasted(&many, "--cuda-graph-max-bs") >= Some(32), "{many}");
    assert!(many.contains("by itself SGLang captures to 24"), "{many}");
    assert!(gib(&many, "target: graphs") > gib(&few, "target: graphs"));
}

/// 7 sizes to 24 without a draft, 16 with one: the plain log's graphs stood for both.
#[test]
fn graphs_of_a_plain_log_grow_with_the_sizes_that_a_draft_captures() {
    let told = "max_running_requests=None, speculative_algorithm=None, cuda_graph_max_bs=24";
    let drafts = of_log("plain", told, "--draft eagle3 --concurrency 1,2,4,8");
    let plain = of_log("plain", told, "--draft none --concurrency 1,2,4,8");
    assert_eq!(gib(&plain, "target: graphs"), 0.21, "{plain}");
    let grown = gib(&drafts, "target: graphs");
    assert!((grown - 0.21 * 16.0 / 7.0).abs() < 0.006, "{drafts}");
    assert_eq!(gib(&drafts, "draft: graphs"), grown, "{drafts}");
    let banded = |l: &&str| l.contains("target: graphs") && l.contains('-');
    assert!(
        drafts.lines().any(|l| banded(&l)),
        "a ratio has a band: {drafts}"
    );
    // And back: the graphs of a log that drafted, without the draft.
    let told = format!("max_running_requests=48, {DRAFTED}, cuda_graph_max_bs=24");
    let without = of_log("drafted", &told, "--draft none --concurrency 1,8");
    let fewer = gib(&without, "target: graphs");
    assert!((fewer - 0.21 * 7.0 / 16.0).abs() < 0.006, "{without}");
}

/// 0.5.20 knows --cuda-graph-max-bs no more: its two successors make it ambiguous.
#[test]
fn graphs_are_asked_for_by_the_flag_that_the_release_knows() {
    let of = |engine: &str| {
        let server = "predict --model qwen3-30b-a3b --quant fp8 --gpu rtx-5090 --gpus 2 --draft none \
                      --context 2k --concurrency 1,64 --engine";
        let words: Vec<&str> = server.split_whitespace().chain([engine]).collect();
        answers(&words)
    };
    for engine in ["sglang@0.5.14", "sglang"] {
        let text = of(engine);
        let graphs = pasted(&text, "--cuda-graph-max-bs-decode");
        assert!(graphs >= Some(64), "{engine}: {text}");
    }
    let old = of("sglang@0.5.13");
    assert!(pasted(&old, "--cuda-graph-max-bs") >= Some(64), "{old}");
}

/// The log that named its backend was told to name it.
#[test]
fn a_backend_of_a_build_of_one_s_own_is_named_and_one_of_the_releases_is_believed() {
    let log = |backend: &str| {
        format!(
            "INFO 05-15 03:30:49 [utils.py:240] non-default args: {{'model': 'Qwen/Qwen3-32B-AWQ', \
             'tensor_parallel_size': 2, 'attention_backend': '{backend}'}}\n\
             INFO 05-15 03:30:50 [core.py:109] Initializing a V1 LLM engine (v0.24.0) with config\n"
        )
    };
    let of = |backend: &str| {
        with_log(backend, &log(backend), |file| {
            let more = "--gpu rtx-4090 --gpus 2 --draft eagle3 --steps 2 --concurrency 3,12,22";
            let words = ["predict", "--from-log", file].into_iter();
            answers(&words.chain(more.split_whitespace()).collect::<Vec<_>>())
        })
    };
    let own = of("MY_ATTN");
    assert!(
        own.contains("(MY_ATTN, in no release, taken to be as FLASH_ATTN)"),
        "{own}"
    );
    for released in ["FLASH_ATTN", "FLASHINFER"] {
        let text = of(released);
        assert!(!text.contains("a verify is padded"), "{text}");
    }
}

/// Plain steps ran as they are beside verifies that were padded: 735 tok/s for 5 users, and 1.09x.
#[test]
fn plain_steps_from_flags_are_padded_to_the_graphs_of_their_engine() {
    let steps = |engine: &str, loads: &str| {
        let words =
            "predict --model gpt-oss-120b --gpu h200 --draft eagle3 --steps 3 --json --engine";
        let more = [engine, "--concurrency", loads];
        let text = answers(&words.split(' ').chain(more).collect::<Vec<_>>());
        let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let points = answer["points"].as_array().expect("points").clone();
        let experts = |point: &serde_json::Value| point["baseline_parts_ms"]["experts"].as_f64();
        let all: Option<Vec<f64>> = points.iter().map(experts).collect();
        all.expect("the experts of each load")
    };
    for engine in ["vllm@0.24.0", "sglang@0.5.13"] {
        let found = steps(engine, "4,5,7,8");
        assert!(found[0] < found[1], "{engine}: {found:?}");
        assert!(
            found[1] == found[3] && found[2] == found[3],
            "{engine}: {found:?}"
        );
    }
    // SGLang has a graph of 12, vLLM none between 8 and 16; llama.cpp pads nothing.
    let [vllm, sglang] = ["vllm@0.24.0", "sglang@0.5.13"].map(|e| steps(e, "9,12,16"));
    assert!(vllm[0] == vllm[2] && vllm[1] == vllm[2], "{vllm:?}");
    assert!(
        sglang[0] == sglang[1] && sglang[1] < sglang[2],
        "{sglang:?}"
    );
    let none = steps("llamacpp", "5,8");
    assert!(none[0] < none[1], "{none:?}");
}
