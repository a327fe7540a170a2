//! A server whose tensor-parallel group spans hosts is no box of the models.

mod common;

use common::answers;

/// One card on each of four hosts, under Ray.
fn log(more: &str) -> String {
    let fewer = "WARNING 09-10 23:26:52 [ray_utils.py:200] tensor_parallel_size=4 is bigger than a reserved \
                 number of GPUs (1 GPUs) in a node 2e184c98. Tensor parallel workers can be spread out to 2+ \
                 nodes which can degrade the performance.\n";
    format!(
        "INFO 09-10 23:26:12 [utils.py:326] non-default args: {{'model': 'gpt-oss-120b', 'max_model_len': \
         16384, 'tensor_parallel_size': 4, 'gpu_memory_utilization': 0.8{more}}}\n\
         INFO 09-10 23:26:51 [core.py:74] Initializing a V1 LLM engine (v0.10.1.1) with config: \
         model='gpt-oss-120b', speculative_config=None, tensor_parallel_size=4\n{fewer}{fewer}\
         (RayWorkerWrapper pid=343, ip=10.0.0.224) WARNING 09-10 23:27:29 [custom_all_reduce.py:85] Custom \
         allreduce is disabled because this process group spans across nodes.\n\
         INFO 09-10 23:47:50 [gpu_model_runner.py:2007] Model loading took 17.2217 GiB and 1219.49 seconds\n\
         INFO 09-10 23:48:38 [gpu_worker.py:276] Available KV cache memory: 45.32 GiB\n\
         INFO 09-10 23:48:39 [kv_cache_utils.py:1013] GPU KV cache size: 2,640,144 tokens\n\
         INFO 09-10 23:48:39 [kv_cache_utils.py:1017] Maximum concurrency for 16,384 tokens per request: 284.25x\n"
    )
}

/// Lines of a load that held.
fn speeds() -> String {
    let line = |second: u32| {
        format!(
            "INFO 09-10 23:59:{second} [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
             generation throughput: 21.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, \
             Prefix cache hit rate: 0.0%\n"
        )
    };
    (10..50).step_by(10).map(line).collect()
}

const SPANS: &str = "the log's server spans 4 hosts (";

#[test]
fn an_all_reduce_over_the_network_is_the_first_that_is_said() {
    let text = common::with_log("hosts", &log(""), |path| answers(&["explain", path]));
    let first = text.lines().next().unwrap_or_default();
    let said = first.contains("tensor parallelism over 4 hosts") && first.starts_with("COSTS");
    assert!(said, "{text}");
    assert!(text.contains("--pipeline-parallel-size 4"), "{text}");
    assert!(text.contains("--gpus 1 --tp 1"), "{text}");
    assert!(!text.contains("not judged"), "{text}");
}

#[test]
fn one_box_is_answered_for_without_speeds_and_switches_of_several() {
    let asked = |command: &str, text: &str| {
        common::with_log("hosts", text, |path| {
            let card = [
                "--gpu",
                "a100-80gb-sxm",
                "--draft",
                "none",
                "--context",
                "4k",
            ];
            let all = [&[command, "--from-log", path], &card[..]].concat();
            answers(&all).replace(path, "LOG")
        })
    };
    let silent = asked("predict", &log(""));
    assert_eq!(silent.matches(SPANS).count(), 1, "{silent}");
    assert!(!silent.contains("all-reduce by nccl"), "{silent}");
    let paste = silent.split_once("paste").expect("a paste").1;
    assert!(!paste.contains("--disable-custom-all-reduce"), "{paste}");
    assert!(asked("plan", &log("")).contains(SPANS));
    let loaded = asked("predict", &(log("") + &speeds()));
    let speeds_of = |text: &str| {
        let table = text
            .split_once("users  plain")
            .and_then(|(_, rest)| rest.split_once("all-reduce, us"));
        table.expect("a table of speeds").0.to_string()
    };
    assert_eq!(speeds_of(&loaded), speeds_of(&silent), "{loaded}");
    // What it was told is still told; such a server does not come to say why.
    let told = log(", 'disable_custom_all_reduce': True");
    let quiet = told.lines().filter(|line| !line.contains("Custom "));
    let told = asked("predict", &(quiet.collect::<Vec<_>>().join("\n") + "\n"));
    assert!(told.contains(SPANS), "{told}");
    let paste = told.split_once("paste").expect("a paste").1;
    assert!(paste.contains("--disable-custom-all-reduce"), "{told}");
}

#[test]
fn the_sweep_of_such_a_server_is_none_of_one_box() {
    let text = common::with_log("hosts", &(log("") + &speeds()), |path| {
        let box_of_four = ["--gpu", "a100-80gb-sxm", "--gpus", "4", "--tp", "4"];
        let model = ["predict", "--model", "gpt-oss-120b", "--baseline", path];
        answers(&[&model, &box_of_four[..]].concat())
    });
    assert!(text.contains("it ran over 4 hosts ("), "{text}");
    assert!(text.contains("all speeds are computed"), "{text}");
}
