//! A log whose server captured no CUDA graphs: the answer and its paste are of one that does.

mod common;

use common::{answers, with_log};

/// Qwen3.6-27B of 1,024 at once on one card of 96 GB; 364 blocks for states beside graphs.
const HYBRID: &str = "\
(APIServer pid=1) INFO 09-14 19:02:15 [utils.py:233] vLLM API server version 0.28.0
(APIServer pid=1) INFO 09-14 19:02:15 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3.6-27B-FP8', 'gpu_memory_utilization': 0.56, 'max_num_seqs': 1024, 'max_model_len': 16384, 'enforce_eager': True}
(EngineCore_DP0 pid=2) INFO 09-14 19:04:02 [model_runner.py:302] Model loading took 28.9 GiB and 2.417308 seconds
(EngineCore_DP0 pid=2) INFO 09-14 19:04:12 [gpu_worker.py:508] Available KV cache memory: 18.20 GiB
(EngineCore_DP0 pid=2) INFO 09-14 19:04:12 [kv_cache_utils.py:2146] GPU KV cache size: 221,000 tokens
(APIServer pid=1) INFO:     Application startup complete.
";

/// A dense model, which served one user.
const DENSE: &str = "\
INFO 11-29 14:42:34 [api_utils.py:273] non-default args: {'max_model_len': 10240, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 128, ASKED'model': 'meta-llama/Llama-3.1-8B-Instruct'}
INFO 11-29 14:42:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', tensor_parallel_size=1
INFO 11-29 14:43:02 [model_runner.py:302] Model loading took 15.0 GiB and 2.417308 seconds
INFO 11-29 14:43:12 [gpu_worker.py:508] Available KV cache memory: 108.87 GiB
INFO 11-29 14:43:12 [kv_cache_utils.py:2146] GPU KV cache size: 891,872 tokens
INFO 11-29 14:43:43 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 60.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%, Prefix cache hit rate: 0.0%
INFO 11-29 14:43:53 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 60.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%, Prefix cache hit rate: 0.0%
INFO 11-29 14:44:03 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 60.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%, Prefix cache hit rate: 0.0%
";

const NONE: &str = "the log's server captured no CUDA graphs, this one does";

fn of(log: &str, words: &str) -> String {
    with_log("eager", log, |file| {
        let words = words.replace("LOG", file);
        let words: Vec<&str> = words.split_whitespace().collect();
        answers(&words).replace(file, "LOG")
    })
}

/// The number that the log's server ran was pasted, with which vLLM does not start once it captures graphs.
#[test]
fn requests_at_once_of_a_server_without_graphs_are_told_by_the_blocks_that_graphs_want() {
    let asked = "--from-log LOG --gpu rtx-pro-6000 --gpus 1 --draft none";
    let why = "the log's server, without CUDA graphs, took 1,024 at once; with them vLLM starts only with a block of \
               the pool for the states of each; there are 364";
    let plan = of(HYBRID, &format!("plan {asked}"));
    assert!(
        plan.contains(&format!("start with --max-num-seqs 256: {why}")),
        "{plan}"
    );
    assert!(plan.contains(&format!("LOG:2: {NONE}")), "{plan}");
    let predict = of(HYBRID, &format!("predict {asked}"));
    assert!(
        predict.contains("--max-model-len 16384 --max-num-seqs 256\n"),
        "{predict}"
    );
    assert!(predict.contains(why) && predict.contains(NONE), "{predict}");
    // As it ran.
    let eager = of(HYBRID, &format!("plan {asked} --graph-max-batch 0"));
    assert!(eager.contains("18.20 GiB of KV, 221,000 tokens"), "{eager}");
    assert!(
        !eager.contains("start with") && !eager.contains(NONE),
        "{eager}"
    );
    // What has its block anyway stays, and so does a number that is asked for.
    let few = HYBRID.replace("'max_num_seqs': 1024", "'max_num_seqs': 64");
    assert!(of(&few, &format!("predict {asked}")).contains("--max-num-seqs 64\n"));
    let refused = of(HYBRID, &format!("plan {asked} --max-running 1024"));
    assert!(refused.starts_with("REFUSED"), "{refused}");
}

#[test]
fn the_speeds_of_a_server_without_graphs_are_not_set_against_one_that_captures_them() {
    let eager = DENSE.replace("ASKED", "'enforce_eager': True, ");
    let text = of(&eager, "predict --from-log LOG --gpu h200 --draft none");
    let why = "it may be: it captured no CUDA graphs (LOG:1), this answer is of a server that does";
    assert!(text.contains(why), "{text}");
    assert!(!text.contains("the graphs are the log's own"), "{text}");
    let swept = "predict --model llama-3.1-8b --gpu h200 --baseline LOG --concurrency 1";
    let aside = "--baseline LOG is left aside, all speeds are computed: its server captured no CUDA graphs (LOG:1)";
    assert!(of(&eager, swept).contains(aside), "{}", of(&eager, swept));
    let plain = DENSE.replace("ASKED", "");
    let own = of(&plain, "predict --from-log LOG --gpu h200 --draft none");
    assert!(own.contains("the graphs are the log's own"), "{own}");
    assert!(!of(&plain, swept).contains("left aside"));
}

/// As it is typed, as vLLM prints it, and as it says that it fell back to it; `None` is what nobody set.
#[test]
fn no_graph_mode_is_a_server_without_graphs() {
    let of_mode = |asked: &str, off: bool| {
        let text = of(&DENSE.replace("ASKED", asked), "explain LOG");
        assert_eq!(text.contains("CUDA graphs are off"), off, "{asked}: {text}");
    };
    for (mode, off) in [
        ("'NONE'", true),
        ("0", true),
        ("<CUDAGraphMode.NONE: 0>", true),
        ("None", false),
        ("<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>", false),
    ] {
        let asked = format!("'compilation_config': {{'cudagraph_mode': {mode}}}, ");
        of_mode(&asked, off);
    }
    let fell_back = "WARNING 11-29 14:42:58 [gpu_model_runner.py:4500] CUDAGraphMode.FULL is not supported with \
                     FLASHINFER backend; setting cudagraph_mode=NONE\n";
    let text = of(
        &format!("{}{fell_back}", DENSE.replace("ASKED", "")),
        "explain LOG",
    );
    assert!(text.contains("CUDA graphs are off"), "{text}");
    // An engine that captured some had them.
    let captured = "INFO 11-29 14:43:17 [model_runner.py:726] Graph capturing finished in 5 secs, took 1.14 GiB\n";
    let asked = DENSE.replace("ASKED", "'compilation_config': {'cudagraph_mode': 0}, ");
    let text = of(&format!("{asked}{captured}"), "explain LOG");
    assert!(!text.contains("CUDA graphs are off"), "{text}");
}

/// vLLM takes an `enforce_eager` of the draft alone, which was read as the server's.
#[test]
fn a_draft_without_graphs_is_not_a_server_without() {
    let draft = "'speculative_config': {'method': 'eagle3', 'model': 'x/Llama-EAGLE3', 'num_speculative_tokens': 3, \
                 'enforce_eager': True}, ";
    for (asked, off) in [(draft, false), ("'enforce_eager': True, ", true)] {
        let text = of(&DENSE.replace("ASKED", asked), "explain LOG");
        assert_eq!(text.contains("CUDA graphs are off"), off, "{text}");
    }
}

#[test]
fn sglang_says_it_by_either_flag_and_keeps_its_pool() {
    for (flag, off) in [
        ("disable_cuda_graph=True", true),
        ("disable_decode_cuda_graph=True", true),
        ("disable_cuda_graph=False", false),
    ] {
        let log = common::SGLANG_LOG.replace("tp_size=4", &format!("tp_size=4, {flag}"));
        let text = of(
            &log,
            "predict --from-log LOG --gpu rtx-6000-ada --gpus 4 --draft none",
        );
        assert!(text.contains("23.70"), "{text}");
        let kept = text.contains("LOG:1: the log's server captured no CUDA graphs");
        assert_eq!(kept, off, "{text}");
        assert_eq!(
            text.contains("the pool and the graphs are the log's own"),
            !off,
            "{text}"
        );
    }
}

/// `explain` offered the log of a server without graphs as the sweep, which `predict` then left aside.
#[test]
fn a_log_without_graphs_is_not_offered_as_the_sweep() {
    let eager = DENSE.replace("ASKED", "'enforce_eager': True, ");
    let drafting = "INFO 11-29 14:42:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: \
                    model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=SpeculativeConfig(method='eagle3', \
                    model='x/Llama-EAGLE3', num_spec_tokens=3), tensor_parallel_size=1\n";
    with_log("drafting", drafting, |spec| {
        let text = of(&eager, &format!("explain LOG {spec}"));
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let aside = "--baseline LOG: its server captured no CUDA graphs (line 1), which predict leaves aside";
        assert!(joined.contains(aside), "{text}");
        let (_, next) = text.split_once("\nnext ").expect("a command");
        let command = next.lines().next().unwrap_or_default();
        assert!(!command.contains("--baseline"), "{text}");
        let plain = of(&DENSE.replace("ASKED", ""), &format!("explain LOG {spec}"));
        assert!(plain.contains("--baseline LOG"), "{plain}");
    });
}
