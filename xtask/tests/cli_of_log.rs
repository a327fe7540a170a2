//! What a log settles and what it leaves open: the box, the context.

mod common;

use common::answers;

/// A server of two GPUs in a box of four, with requests of about 3,000 tokens.
const LOG: &str = "[2026-01-23 19:35:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=2, \
                   context_length=16384, quantization='awq', mem_fraction_static=0.85, version='0.5.5')\n\
                   [2026-01-23 19:35:35 TP0] Decode batch. #running-req: 1, #token: 3000, token usage: \
                   0.05, cuda graph: True, gen throughput (token/s): 61.20, #queue-req: 0\n\
                   [2026-01-23 19:35:37 TP0] Decode batch. #running-req: 1, #token: 3040, token usage: \
                   0.05, cuda graph: True, gen throughput (token/s): 61.10, #queue-req: 0\n";

fn of_log(name: &str, more: &[&str]) -> String {
    let path = std::env::temp_dir().join(format!("of-log-{name}-{}.log", std::process::id()));
    std::fs::write(&path, LOG).expect("a file");
    let file = path.display().to_string();
    let mut args = vec![
        "predict",
        "--from-log",
        &file,
        "--gpu",
        "rtx-3090",
        "--draft",
        "eagle3",
    ];
    args.extend(more);
    let text = answers(&args);
    std::fs::remove_file(path).ok();
    text
}

#[test]
fn a_topology_beside_a_log_says_how_many_gpus_the_box_has() {
    let topology = ["--topology", "docs/examples/topo-4x3090.txt"];
    let text = of_log("box", &topology);
    assert!(text.contains("the box holds 2 such replicas"), "{text}");
    let whole = of_log("whole", &[&topology[..], &["--tp", "4"]].concat());
    assert!(whole.contains("at TP 4"), "{whole}");
    // Without a topology a wider cut asks for a wider box.
    let wider = of_log("wider", &["--tp", "4"]);
    assert!(wider.contains("at TP 4"), "{wider}");
}

#[test]
fn the_context_that_the_requests_of_a_log_held_is_printed() {
    let text = of_log("context", &[]);
    let said = text
        .lines()
        .find(|line| line.contains("(what requests held,"));
    let said = said.unwrap_or_else(|| panic!("{text}"));
    assert!(
        said.contains("context 30") && said.contains("--context"),
        "{said}"
    );
}

#[test]
fn a_context_cites_the_line_of_the_log_that_shows_it() {
    let context = |name: &str, log: &str| {
        let path = std::env::temp_dir().join(format!("cites-{name}-{}.log", std::process::id()));
        std::fs::write(&path, log).expect("a file");
        let file = path.display().to_string();
        let text = answers(&[
            "predict",
            "--from-log",
            &file,
            "--gpu",
            "rtx-3090",
            "--sources",
        ]);
        let of = |line: &&str| line.starts_with("  context  ");
        let line = text.lines().find(of).unwrap_or_else(|| panic!("{text}"));
        line.replace(&file, "LOG")
    };
    // The last line is of a longer request.
    let last = "[2026-01-23 19:35:39 TP0] Decode batch. #running-req: 1, #token: 9000, token usage: 0.15, \
                cuda graph: True, gen throughput (token/s): 59.00, #queue-req: 0\n";
    let held = context("sglang", &format!("{LOG}{last}"));
    assert!(
        held.contains("  3040  ") && held.contains("LOG:3 ("),
        "{held}"
    );
    let window = |usage: f64| {
        format!(
            "(APIServer pid=1) INFO 10-14 19:05:15 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 \
             tokens/s, Avg generation throughput: 45.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV \
             cache usage: {usage}%, Prefix cache hit rate: 0.0%\n"
        )
    };
    let vllm = "(APIServer pid=1) INFO 10-14 19:02:15 [utils.py:233] non-default args: {'model': \
                'Qwen/Qwen3-32B-AWQ', 'max_model_len': 16384, 'tensor_parallel_size': 2}\n\
                (EngineCore_DP0 pid=2) INFO 10-14 19:03:15 [kv_cache_utils.py:1087] GPU KV cache size: \
                100,000 tokens\n";
    let windows = [4.0, 6.0, 9.0].map(window).concat();
    let held = context("vllm", &format!("{vllm}{windows}"));
    assert!(
        held.contains("  3000  ") && held.contains("LOG:4 ("),
        "{held}"
    );
    // Where no request shows what it held, the pool may be less than the limit.
    let ready = "(EngineCore_DP0 pid=2) INFO 10-14 19:03:25 [gpu_model_runner.py:2933] Graph capturing \
                 finished in 4 secs, took 0.55 GiB\n";
    let small = vllm.replace("100,000", "12,000") + ready;
    let all = context("pool", &small);
    assert!(
        all.contains("  12000  ") && all.contains("LOG:2 (all that the"),
        "{all}"
    );
}

/// A server of four 80 GB cards with a head; the log shows what the head took: 0.62 GiB of weights,
/// 0.42 of KV, 0.38 and 0.27 of graphs.
const DRAFTS: &str = "\
[2025-11-12 09:14:02] server_args=ServerArgs(model_path='meta-llama/Llama-3.3-70B-Instruct', context_length=16384, dtype='bfloat16', mem_fraction_static=0.85, max_running_requests=48, chunked_prefill_size=8192, tp_size=4, speculative_algorithm='EAGLE3', speculative_draft_model_path='yuhuili/EAGLE3-LLaMA3.3-Instruct-70B', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
[2025-11-12 09:14:25 TP0] Load weight begin. avail mem=77.92 GB
[2025-11-12 09:15:31 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=45.03 GB, mem usage=32.89 GB.
[2025-11-12 09:15:31 TP0] KV Cache is allocated. #tokens: 437020, K size: 16.67 GB, V size: 16.67 GB
[2025-11-12 09:15:31 TP0] Memory pool end. avail mem=11.67 GB
[2025-11-12 09:15:52 TP0] Capture cuda graph end. Time elapsed: 19.84 s. mem usage=1.31 GB. avail mem=10.30 GB.
[2025-11-12 09:15:53 TP0] Load weight begin. avail mem=10.30 GB
[2025-11-12 09:15:56 TP0] Load weight end. type=LlamaForCausalLMEagle3, dtype=torch.bfloat16, avail mem=9.68 GB, mem usage=0.62 GB.
[2025-11-12 09:15:56 TP0] KV Cache is allocated. #tokens: 437020, K size: 0.21 GB, V size: 0.21 GB
[2025-11-12 09:15:56 TP0] Memory pool end. avail mem=9.26 GB
[2025-11-12 09:16:04 TP0] Capture draft cuda graph end. Time elapsed: 7.12 s. mem usage=0.38 GB. avail mem=9.37 GB.
[2025-11-12 09:16:08 TP0] Capture draft extend cuda graph end. Time elapsed: 3.88 s. mem usage=0.27 GB. avail mem=9.10 GB.
[2025-11-12 09:16:09 TP0] max_total_num_tokens=437020, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=16384, available_gpu_mem=9.10 GB
";

const A100: &str = "--gpu a100-80gb-sxm";

fn plan_of(name: &str, log: &str, more: &str) -> String {
    let path = std::env::temp_dir().join(format!("drafts-{name}-{}.log", std::process::id()));
    std::fs::write(&path, log).expect("a file");
    let file = path.display().to_string();
    let mut args = vec!["plan", "--from-log", &file];
    args.extend(more.split_whitespace());
    let text = answers(&args);
    std::fs::remove_file(path).ok();
    text
}

/// GiB of a line of the ledger that has no band.
fn row(text: &str, item: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(item))?;
    line.split_whitespace().last()?.parse().ok()
}

#[test]
fn what_a_logs_draft_costs_is_all_that_the_log_shows_of_it() {
    let text = plan_of("cost", DRAFTS, A100);
    // 10.30 free before it loads, 9.10 when ready: its embedding is let go in between. A plain server
    // captures fewer sizes.
    let costs = "costs no KV tokens, at 0.850 with and without it; beside the pool 1.94 GiB: the draft's weights \
                 0.13, KV pool 0.42, graphs 0.65, the target's graphs 0.74 more";
    assert!(text.contains(costs), "{text}");
    assert!(text.contains("beside it: estimated)"), "{text}");
    assert_eq!(row(&text, "target: graphs"), Some(1.31), "{text}");
    assert_eq!(row(&text, "draft: graphs"), Some(0.65), "{text}");
    // Captures that no line gives to the draft are not said to be in it.
    let unnamed = DRAFTS
        .replace("draft extend cuda", "cuda")
        .replace("draft cuda", "cuda");
    let text = plan_of("unnamed", &unnamed, A100);
    assert!(text.contains("without its graphs"), "{text}");
}

#[test]
fn without_its_draft_a_logs_server_has_what_the_log_says_of_the_target() {
    let text = plan_of("none", DRAFTS, &format!("{A100} --draft none"));
    // (45.03 - 0.15 x 77.92) GiB of 81,920 B.
    assert!(text.contains("437,020 tokens"), "{text}");
    assert!(!text.contains("not observed"), "{text}");
    // 1.31 GiB of the 23 sizes that a draft captures to 48 requests, 10 without.
    let graphs = text.lines().find(|line| line.starts_with("target: graphs"));
    assert!(
        graphs.is_some_and(|line| line.contains(" 0.570 ")),
        "{text}"
    );
}

/// `plan` said 87,248 tokens without the head of the log, and with `--draft none` 89,376 and TIGHT.
#[test]
fn without_its_draft_a_vllm_logs_server_has_the_pool_that_is_said_beside_it() {
    let log = include_str!("data/shapes/vllm-compose-eagle3.log");
    let card = "--gpu rtx-5090 --gpus 2";
    let pool = |text: &str| {
        let line = text.lines().find(|line| line.contains(" of KV, "));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_string()
    };
    for more in ["", "--mem-fraction 0.9"] {
        let both = plan_of("vllm", log, &format!("{card} {more}"));
        let none = plan_of("vllm", log, &format!("{card} {more} --draft none"));
        assert_eq!(pool(&none), pool(&both), "{more}");
        assert!(none.starts_with("FITS"), "{none}");
        assert!(none.contains("the log's server drafted"), "{none}");
    }
}

/// `--kv-dtype` threw away all that the log had measured, even where it named the format in use.
#[test]
fn beside_another_kv_format_a_log_keeps_what_does_not_depend_on_it() {
    let plain = plan_of("kv", DRAFTS, A100);
    let fp8 = plan_of("kv-fp8", DRAFTS, &format!("{A100} --kv-dtype fp8"));
    assert!(!fp8.contains("not observed"), "{fp8}");
    for item in [
        "driver, CUDA context, NCCL",
        "weights: engine's own",
        "draft: weights",
        "target: graphs",
        "draft: graphs",
    ] {
        let (now, then) = (row(&fp8, item), row(&plain, item));
        assert!(now.is_some() && now == then, "{item}: {now:?} {then:?}");
    }
    // Half the bytes a token in (45.03 - 0.15 x 77.92) GiB.
    assert!(fp8.contains("of 40960 B"), "{fp8}");
    assert!(fp8.contains("874,0"), "{fp8}");
    // The format that the server took by itself is no other.
    let same = plan_of("kv-bf16", DRAFTS, &format!("{A100} --kv-dtype bf16"));
    let figures = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("assumed"));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(figures(&same), figures(&plain));
}

/// A module of DeepSeek's own: the pool is sized before it is loaded and without its layer, 15.78 GiB
/// are free when ready, and no line prints a version.
const MODULE: &str = "xtask/tests/data/mtp.log";

/// `accept` took an EAGLE-3 head, though the log names model and draft: 1.75 at one step where
/// `predict` said 1.87 of the same log.
#[test]
fn accept_takes_head_and_model_of_the_log_and_agrees_with_predict() {
    let told = answers(&["accept", "--accept", MODULE, "--depths", "1..3"]);
    let first = told.lines().next().unwrap_or_default();
    let head = format!("mtp head of deepseek-v3.1 by {MODULE}:1, accept length 2.60 from");
    assert!(first.starts_with(&head), "{told}");
    let log = ["predict", "--from-log", MODULE, "--gpu", "h200"];
    for depth in ["1", "2"] {
        let cell = |line: &str| {
            let mut words = line.split_whitespace();
            (words.next()? == depth).then(|| words.next().map(str::to_string))?
        };
        let length = told.lines().find_map(cell).unwrap_or_default();
        let text = answers(&[&log[..], &["--steps", depth]].concat());
        assert!(
            text.contains(&format!("accept length {length} at {depth} step")),
            "{text}"
        );
    }
    let flag = answers(&["accept", "--accept", MODULE, "--head", "eagle3"]);
    assert!(flag.starts_with("eagle3 head, accept"), "{flag}");
    assert!(flag.contains("drafts with mtp, read as eagle3"), "{flag}");
    let figure = answers(&["accept", "--accept", "2.6@3"]);
    assert!(figure.contains("eagle3 head: the default"), "{figure}");
}

/// The head line said 0.5.6, "assumed" the rules of 2025-12 all the same.
#[test]
fn a_version_by_flag_settles_what_a_log_does_not_print() {
    let log = ["predict", "--from-log", MODULE, "--gpu", "h200"];
    let open = answers(&log);
    assert!(open.contains("prints no version"), "{open}");
    let settled = answers(&[&log[..], &["--engine", "sglang@0.5.6"]].concat());
    assert!(!settled.contains("prints no version"), "{settled}");
    assert!(
        settled.contains("memory rules of sglang 0.5.6"),
        "{settled}"
    );
}

#[test]
fn the_kv_format_that_a_log_prints_is_a_fact_and_no_default() {
    let text = answers(&["plan", "--from-log", MODULE, "--gpu", "h200"]);
    assert!(!text.contains("KV dtype bf16 (the default)"), "{text}");
    let told = answers(&["explain", MODULE]);
    let fact = told
        .lines()
        .find(|line| line.trim_start().starts_with("kv_dtype"));
    let words: Vec<&str> = fact.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words, ["kv_dtype", "bf16", "line", "5"], "{told}");
}

/// "no draft" was advised, and gains no token there; the fraction does.
#[test]
fn a_draft_that_takes_no_tokens_is_not_advised_away_and_the_fraction_is_named() {
    let advice = |text: &str| {
        let from = text
            .find("for more at a time")
            .unwrap_or_else(|| panic!("{text}"));
        let to = text[from..].find("\n\n").map_or(text.len(), |n| from + n);
        text[from..to]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let told = advice(&answers(&["explain", MODULE]));
    assert!(
        told.contains("a higher --mem-fraction-static (15.78 GiB stay free at 0.85"),
        "{told}"
    );
    assert!(!told.contains("no draft"), "{told}");
    // Loaded before the pool is sized, it does take tokens.
    let log = include_str!("data/mtp.log");
    let draft = |line: &&str| line.contains("avail mem=18.93 GB") || line.contains("NextN");
    let (mut first, mut rest): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut sized = false;
    for line in log.lines() {
        sized |= line.contains("KV Cache is allocated");
        match sized && !draft(&line) {
            true => rest.push(line),
            false => first.push(line),
        }
    }
    first.append(&mut rest);
    let path = std::env::temp_dir().join(format!("draft-first-{}.log", std::process::id()));
    std::fs::write(&path, first.join("\n")).expect("a file");
    let told = advice(&answers(&["explain", &path.display().to_string()]));
    std::fs::remove_file(path).ok();
    assert!(told.contains("or no draft"), "{told}");
}

/// Settings of graphs were left out without a word beside a log that shows what its graphs took.
#[test]
fn a_logs_graphs_follow_the_batches_that_are_captured() {
    let graphs = |name: &str, more: &str| {
        let text = plan_of(name, DRAFTS, &format!("{A100} {more}"));
        let gib = |item: &str| {
            let line = text.lines().find(|line| line.starts_with(item))?;
            line[item.len()..].split_whitespace().next()?.parse().ok()
        };
        (
            gib("target: graphs").unwrap_or(0.0_f64),
            gib("draft: graphs").unwrap_or(0.0_f64),
            text,
        )
    };
    let (target, draft, none) = graphs("graphs-0", "--graph-max-batch 0");
    assert_eq!((target, draft), (0.0, 0.0), "{none}");
    // 8 sizes of the 23 that 48 requests at once come to.
    for more in ["--graph-max-batch 8", "--max-running 8"] {
        let (target, draft, text) = graphs("graphs-8", more);
        assert!((target - 1.31 * 8.0 / 23.0).abs() < 1e-3, "{more}: {text}");
        assert!((draft - 0.65 * 8.0 / 23.0).abs() < 1e-3, "{more}: {text}");
    }
    let (_, _, text) = graphs("graphs-said", "--graph-max-batch 8");
    assert!(text.contains("by the number of sizes captured"), "{text}");
    // More than ever run at once changes nothing.
    let (target, _, text) = graphs("graphs-64", "--graph-max-batch 64");
    assert!((target - 1.31).abs() < 1e-3, "{text}");
}

/// The wall was that of the draft's pool at the log's fraction: "at most, with 0.955", and followed
/// 0.955 lay in the band of another wall.
#[test]
fn the_wall_of_a_log_is_the_one_that_stands_where_its_advice_is_followed() {
    let card = "--gpu h200 --context 16k --concurrency 64";
    let wall = |text: &str| {
        let line = text.lines().find(|line| line.contains("activation wall)"));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_string()
    };
    let run = |more: &str| {
        let more = format!("{card} {more}");
        let mut args = vec!["plan", "--from-log", MODULE];
        args.extend(more.split_whitespace());
        answers(&args)
    };
    let first = run("");
    let (_, said) = first
        .split_once("at most, with --mem-fraction-static ")
        .unwrap_or_else(|| panic!("{first}"));
    let fraction = said.split([' ', ',']).next().unwrap_or_default();
    let followed = run(&format!("--mem-fraction {fraction}"));
    assert_eq!(wall(&first), wall(&followed));
    assert!(
        followed.contains(said.lines().next().unwrap_or_default()),
        "{followed}"
    );
}

/// The log's three steps were priced at every load, and nothing said that fewer gain more at some.
#[test]
fn a_depth_that_gains_more_than_the_logs_is_told_with_its_load() {
    let log = [
        "predict",
        "--from-log",
        MODULE,
        "--gpu",
        "rtx-pro-6000",
        "--context",
        "512",
        "--accept",
        "1.8@3",
    ];
    let told = |more: &[&str]| {
        let text = answers(&[&log[..], more].concat());
        let line = text
            .lines()
            .find(|line| line.contains(" draft step") && line.contains("(at "));
        line.map(|line| line.trim().to_string())
    };
    let line = told(&["--concurrency", "16"]).unwrap_or_default();
    assert!(line.ends_with("1 draft step (at 16 users)"), "{line}");
    let gain = line
        .trim_start_matches('+')
        .split(' ')
        .next()
        .map(str::parse::<u32>);
    assert!(matches!(gain, Some(Ok(6..=20))), "{line}");
    assert_eq!(told(&["--concurrency", "16", "--steps", "1"]), None);
}

/// "+6 %" at 8 users cost 16 % at one, and nothing said so.
#[test]
fn another_depth_says_what_it_costs_at_the_other_loads_and_is_left_out_where_that_is_more() {
    let told = |accept: &str, users: &str| {
        let text = answers(&[
            "predict",
            "--model",
            "qwen3-32b",
            "--quant",
            "int4",
            "--gpu",
            "rtx-3090",
            "--gpus",
            "4",
            "--context",
            "4k",
            "--attention-backend",
            "fa3",
            "--steps",
            "3",
            "--accept",
            accept,
            "--concurrency",
            users,
        ]);
        let line = text
            .lines()
            .find(|line| line.contains(" draft step") && line.contains("(at "));
        line.map(|line| line.trim().to_string())
    };
    let line = told("2.3@3", "1,8").unwrap_or_default();
    let said = "2 draft steps (at 8 users; -";
    assert!(line.contains(said), "{line}");
    // What gains most at 32 users loses more at one.
    let one = |users| told("2.6@3", users).is_some_and(|line| line.contains("1 draft step (at "));
    assert!(one("32") && !one("1,32"));
}

/// The head of a log reaches what vLLM says before it cuts it; another head's reach made "pays" into
/// "measure first".
#[test]
fn the_reach_of_a_head_is_the_one_that_its_log_prints() {
    let log = |reach: &str| {
        format!(
            "INFO 11-29 14:26:18 [utils.py:253] non-default args: {{'model': 'meta-llama/Llama-3.1-8B-Instruct', \
             'max_model_len': 10240, 'speculative_config': {{'method': 'eagle3', 'model': 'models/head', \
             'num_speculative_tokens': 3}}}}\n\
             INFO 11-29 14:26:29 [speculative.py:924] Overriding draft model max model len from {reach} to 10240\n\
             INFO 11-29 14:26:29 [scheduler.py:252] Chunked prefill is enabled with max_num_batched_tokens=16384.\n\
             INFO 11-29 14:27:29 [gpu_worker.py:480] Available KV cache memory: 107.69 GiB\n"
        )
    };
    let said = |reach: &str| {
        let path = std::env::temp_dir().join(format!("reach-{reach}-{}.log", std::process::id()));
        std::fs::write(&path, log(reach)).expect("a file");
        let file = path.display().to_string();
        let text = answers(&[
            "predict",
            "--from-log",
            &file,
            "--gpu",
            "h200",
            "--context",
            "8k",
        ]);
        let plan = answers(&["plan", "--from-log", &file, "--gpu", "rtx-pro-6000"]);
        std::fs::remove_file(path).ok();
        let said: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with("  draft: the "))
            .collect();
        assert_eq!(said.len(), 1, "{text}");
        let reach = reach.replace("131072", "131,072").replace("4096", "4,096");
        let own = format!("in place of the log's, which reaches {reach} tokens");
        assert!(said[0].contains(&own), "{text}");
        assert!(!plan.contains("max_num_batched_tokens 8192"), "{plan}");
        text
    };
    let (far, near) = (said("131072"), said("4096"));
    assert!(!far.contains("the draft's config reaches"), "{far}");
    assert!(
        near.contains("the draft's config reaches 4096 tokens"),
        "{near}"
    );
}
