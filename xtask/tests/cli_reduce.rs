//! Which all-reduce the figures are reckoned with: the one asked for, the log's, the version's, and
//! the one behind a sweep of one's own.

mod common;

use common::{answers, xtask};

/// GLM-5.1 on eight PCIe cards by a build that runs vLLM's own kernel over PCIe.
const LOG: &str = "\
(APIServer pid=1) INFO 05-15 03:30:49 [utils.py:306]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.20.2rc1.dev249
(APIServer pid=1) INFO 05-15 03:30:49 [utils.py:240] non-default args: {'model': 'Qwen/Qwen3-30B-A3B-Instruct-2507', 'max_model_len': 32768, 'tensor_parallel_size': 8, 'gpu_memory_utilization': 0.865}
(EngineCore pid=310) INFO 05-15 03:31:06 [core.py:109] Initializing a V1 LLM engine (v0.20.2) with config: model='Qwen/Qwen3-30B-A3B-Instruct-2507', speculative_config=None, max_seq_len=32768, tensor_parallel_size=8, kv_cache_dtype=auto
(Worker pid=350) INFO 05-15 03:31:20 [custom_all_reduce.py:355] PCIe custom allreduce enabled via VLLM_ENABLE_PCIE_ALLREDUCE=1 (backend=cpp, using vLLM C++ custom allreduce).
(Worker pid=350) INFO 05-15 03:31:20 [custom_all_reduce.py:490] Using dynamic C++ custom allreduce cutoff (cutoff=57344 bytes, ignore_cutoff_max_rows=8).
";

const SWEEP: &str = "concurrency,tok_s\n1,59\n2,92.4\n4,164.3\n8,251.5\n16,429.2\n32,600\n";

fn file(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("reduce-{}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

fn predict(more: &[&str]) -> String {
    answers(&[&["predict"], more].concat())
}

fn json(more: &[&str]) -> serde_json::Value {
    serde_json::from_str(&predict(&[more, &["--json"]].concat())).expect("JSON")
}

const CARD: [&str; 4] = ["--gpu", "rtx-pro-6000-server", "--gpus", "8"];
const NVLINK: [&str; 10] = [
    "--model",
    "qwen3-32b",
    "--draft",
    "eagle3",
    "--gpu",
    "h100",
    "--gpus",
    "8",
    "--concurrency",
    "1",
];

fn plain_ms(answer: &serde_json::Value, row: usize) -> f64 {
    answer["points"][row]["baseline_step_ms"]
        .as_f64()
        .expect("a step")
}

/// Time at `bytes` of what was asked for, us: the first row of the table.
fn asked_us(answer: &serde_json::Value, bytes: u64) -> f64 {
    let rows = answer["allreduce"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row["bytes"] == bytes)
        .expect("a row");
    row["time_us"].as_f64().expect("a time")
}

#[test]
fn every_all_reduce_of_the_table_can_be_asked_for() {
    let help = answers(&["predict", "--help"]);
    let all = predict(&NVLINK);
    for name in [
        "one-shot-push",
        "one-shot",
        "two-shot",
        "island",
        "nccl",
        "engine",
    ] {
        assert!(
            all.contains(&format!("\n  {name}")),
            "no row of {name}: {all}"
        );
        assert!(help.contains(name), "{help}");
        let text = predict(&[&NVLINK[..], &["--allreduce", name]].concat());
        assert!(!text.contains("error"), "{text}");
    }
    let compared = predict(&[&NVLINK[..], &["--compare", "engine,one-shot-push"]].concat());
    assert!(compared.contains("\none-shot-push "), "{compared}");
    let refused = xtask(&["predict", "--allreduce", "ring"]);
    let error = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(error.contains("one-shot-push, two-shot"), "{error}");
}

#[test]
fn a_version_that_pushes_by_itself_is_reckoned_with_it() {
    let of = |engine| json(&[&NVLINK[..], &["--engine", engine]].concat());
    let (old, new, unsaid) = (of("vllm@0.24"), of("vllm@0.29"), of("vllm"));
    let pushed = json(
        &[
            &NVLINK[..],
            &["--engine", "vllm", "--allreduce", "one-shot-push"],
        ]
        .concat(),
    );
    assert_eq!(plain_ms(&new, 0), plain_ms(&unsaid, 0));
    assert!(plain_ms(&new, 0) < plain_ms(&old, 0) - 0.05);
    assert_eq!(plain_ms(&new, 0), plain_ms(&pushed, 0));
    // Half a mebibyte at most on eight Hopper cards; above that its own kernel.
    let loads = json(
        &[
            &NVLINK[..8],
            &["--engine", "vllm@0.29", "--concurrency", "256"],
        ]
        .concat(),
    );
    let own = json(
        &[
            &NVLINK[..8],
            &["--engine", "vllm@0.24", "--concurrency", "256"],
        ]
        .concat(),
    );
    assert_eq!(plain_ms(&loads, 0), plain_ms(&own, 0));
}

#[test]
fn a_sweep_of_one_s_own_is_moved_to_the_kernel_asked_for() {
    let (log, sweep) = (file("swept.log", LOG), file("sweep.csv", SWEEP));
    let from = [
        "--from-log",
        &log,
        "--baseline",
        &sweep,
        "--draft",
        "eagle3",
        "--concurrency",
        "1,16",
    ];
    let of = |more: &[&str]| json(&[&from, &CARD[..], more].concat());
    let (own, nccl) = (of(&[]), of(&["--allreduce", "nccl"]));
    assert!((plain_ms(&own, 0) - 1000.0 / 59.0).abs() < 0.01);
    let apart_us = asked_us(&nccl, 4096) - asked_us(&own, 4096);
    let passes = 2.0 * 48.0;
    let moved_ms = plain_ms(&nccl, 0) - plain_ms(&own, 0);
    let off_ms = (moved_ms - apart_us * passes / 1000.0).abs();
    assert!(off_ms < 0.1 * moved_ms, "{moved_ms} {apart_us}");
    let text = |more: &[&str]| predict(&[&from, &CARD[..], more].concat());
    let said = "the plain sweep is taken to have run with one-shot@57344";
    assert!(text(&["--allreduce", "nccl"]).contains(said));
    assert!(!text(&[]).contains(said));
    let compared = text(&["--compare", "one-shot@57344,nccl,two-shot"]);
    let row = |name: &str| {
        let line = compared
            .lines()
            .find(|l| l.starts_with(&format!("{name} ")))
            .expect("a row");
        line.split_whitespace().nth(2).map(str::to_string)
    };
    assert!(
        row("one-shot@57344") != row("nccl") && row("nccl") != row("two-shot"),
        "{compared}"
    );
}

#[test]
fn another_engine_than_the_log_s_says_what_it_borrows() {
    let (log, sweep) = (file("borrowed.log", LOG), file("borrowed.csv", SWEEP));
    let from = [
        "--from-log",
        &log,
        "--baseline",
        &sweep,
        "--draft",
        "eagle3",
        "--engine",
        "sglang",
    ];
    let text = predict(&[&from, &CARD[..]].concat());
    assert!(
        text.contains("its steps stand for those of sglang"),
        "{text}"
    );
    assert!(text.contains("is of vLLM"), "{text}");
    assert!(!text.contains("--mem-fraction-static 0.865"), "{text}");
    assert!(!text.contains("that server reduced by"), "{text}");
    let own = predict(&[&from[..6], &["--engine", "vllm"], &CARD[..]].concat());
    assert!(!own.contains("stand for those of"), "{own}");
    assert!(own.contains("--gpu-memory-utilization 0.865"), "{own}");
}

/// Verifies of one user by draft steps, ms, of a server whose log has a further line.
fn verifies(line: &str) -> Vec<f64> {
    let log = file(
        &format!("graphs-{}.log", line.len()),
        &format!("{LOG}{line}\n"),
    );
    let of = |steps: &str| {
        let more = [
            "--draft",
            "eagle3",
            "--concurrency",
            "1",
            "--context",
            "1k",
            "--steps",
            steps,
        ];
        let card = ["--gpu", "h100", "--gpus", "8"];
        let answer = json(&[&["--from-log", &log], &card[..], &more].concat());
        answer["points"][0]["verify_ms"].as_f64().expect("a verify")
    };
    ["3", "4", "7"].map(of).to_vec()
}

#[test]
fn whole_graphs_run_the_tokens_of_one_user_and_cut_ones_the_next_size() {
    let backend = |name: &str| {
        verifies(&format!(
            "INFO Using {name} attention backend out of potential backends: []."
        ))
    };
    let whole = backend("FLASH_ATTN");
    assert!(whole[0] < whole[1] && whole[1] < whole[2], "{whole:?}");
    let told = verifies("INFO compilation_config={'cudagraph_mode': <CUDAGraphMode.PIECEWISE: 1>}");
    for cut in [backend("FLASHINFER"), told] {
        // 5 and 8 tokens both run as 8, and only those asked for read a cache.
        let more = [cut[1] / cut[0], cut[2] / cut[1]];
        assert!(more[0] > 1.05 && more[1] > 1.0 && more[1] < 1.01, "{cut:?}");
    }
}

/// One server's two logs, of which one showed what a plain server captures, gave other rows.
#[test]
fn graphs_of_single_tokens_say_nothing_of_a_verify() {
    let backend = "INFO Using FLASHINFER attention backend out of potential backends: [].";
    let mode = "compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}";
    let bar = "Capturing CUDA graphs (decode, FULL): 100%|###| 35/35 [00:06<00:00,  5.2it/s]";
    assert_eq!(
        verifies(&format!("{backend}\n{mode}\n{bar}")),
        verifies(backend)
    );
    assert_eq!(verifies(&format!("{mode}\n{bar}")), verifies(""));
}

#[test]
fn a_sweep_faster_than_a_collapsing_fabric_allows_is_not_answered_with_its_all_reduces() {
    let log = file("collapse.log", LOG);
    let sweep = file("collapse.csv", "concurrency,tok_s\n1,150\n4,420\n");
    let with = |more: &[&str]| {
        let from = [
            "--from-log",
            &log,
            "--box",
            "two-switch-8",
            "--concurrency",
            "4",
            "--steps",
            "3",
        ];
        json(&[&from, more].concat())
    };
    let alone = with(&[]);
    let own = with(&["--baseline", &sweep]);
    // 4 users' tokens of 4 KiB, twice in each of 48 layers.
    let passes_ms = |answer: &serde_json::Value| asked_us(answer, 16384) * 2.0 * 48.0 / 1000.0;
    let step_ms = plain_ms(&own, 0);
    assert!(
        passes_ms(&alone) > step_ms,
        "{} {step_ms}",
        passes_ms(&alone)
    );
    assert!(passes_ms(&own) < step_ms, "{} {step_ms}", passes_ms(&own));
    let said = own["assumptions"].to_string();
    assert!(said.contains("without its collapse"), "{said}");
    assert!(!said.contains("with a collapsing fabric"), "{said}");
    let slow = file("collapse-slow.csv", "concurrency,tok_s\n1,45\n4,100\n");
    let slow = with(&["--baseline", &slow])["assumptions"].to_string();
    assert!(slow.contains("with a collapsing fabric"), "{slow}");
}

#[test]
fn fusion_that_sglang_switches_on_by_itself_is_reckoned_with_and_not_advised() {
    let of = |engine, more: &[&str]| {
        let model = ["--model", "qwen3-235b-a22b-fp8", "--draft", "eagle3"];
        let box_of = ["--gpu", "h100", "--gpus", "4", "--concurrency", "1"];
        predict(&[&model[..], &box_of, &["--engine", engine], more].concat())
    };
    let flag = "flashinfer-allreduce-fusion";
    assert!(of("sglang@0.5.6", &[]).contains(&format!("(--enable-{flag})")));
    for engine in ["sglang@0.5.9", "sglang@0.5.18", "sglang"] {
        let text = of(engine, &[]);
        assert!(!text.contains(&format!("enable-{flag}")), "{text}");
        assert!(!text.contains(&format!("--{flag}-backend")), "{text}");
    }
    // To leave every size to NCCL one has to say more.
    let nccl = of("sglang@0.5.18", &["--allreduce", "nccl"]);
    let off = format!("--disable-custom-all-reduce --enforce-disable-{flag}");
    assert!(nccl.contains(&off), "{nccl}");
}

/// vLLM on two cards, with what it printed of its all-reduce.
fn said(line: &str) -> String {
    format!(
        "INFO 06-19 05:50:41 [utils.py:240] non-default args: {{'model': 'Qwen/Qwen3-32B', \
         'max_model_len': 16384, 'tensor_parallel_size': 2}}\n\
         INFO 06-19 05:51:06 [core.py:109] Initializing a V1 LLM engine (v0.11.2) with config: \
         model='Qwen/Qwen3-32B', speculative_config=None, tensor_parallel_size=2\n{line}\n"
    )
}

/// `explain` said of a log that NCCL reduces, `predict --from-log` that the engine's own kernel does.
#[test]
fn what_a_log_says_of_the_engine_s_own_all_reduce_is_followed() {
    let reduced = |line: &str, card: &str| {
        common::with_log("said", &said(line), |log| {
            let answer = json(&["--from-log", log, "--gpu", card, "--quant", "int4"]);
            let by = answer["scenario"]["allreduce"]["value"].as_str();
            (by.unwrap_or_default().to_string(), answer)
        })
    };
    let off = "WARNING 06-19 05:51:18 [custom_all_reduce.py:144] Custom allreduce is disabled because \
        your platform lacks GPU P2P capability or P2P test failed. To silence this warning, specify \
        disable_custom_all_reduce=True explicitly.";
    assert_eq!(reduced(off, "h100").0, "nccl");
    let listed = |list: &str| {
        format!(
            "INFO 06-19 05:51:18 [cuda_communicator.py:245] Using [{list}] all-reduce backends (in \
             dispatch order) for group 'tp:0' out of potential backends: ['CUSTOM', 'PYNCCL']."
        )
    };
    assert_eq!(reduced(&listed("'PYNCCL'"), "h100").0, "nccl");
    let (on, _) = reduced(&listed("'CUSTOM', 'PYNCCL'"), "h100");
    assert_eq!(on, "engine");
    // Its kernel needs peer access, which the stock driver gives such cards over a bridge alone.
    let time = |line: &str, card: &str| asked_us(&reduced(line, card).1, 10_240);
    let text = |card: &str| {
        let custom = said(&listed("'CUSTOM', 'PYNCCL'"));
        common::with_log("peers", &custom, |log| {
            predict(&["--from-log", log, "--gpu", card, "--quant", "int4"])
        })
    };
    let bridged = text("rtx-3090");
    assert!(
        bridged.contains("an NVLink bridge joins the two, as "),
        "{bridged}"
    );
    assert!(!bridged.contains("no NVLink bridges"), "{bridged}");
    assert!(
        time(&listed("'CUSTOM', 'PYNCCL'"), "rtx-3090") < time("", "rtx-3090") / 2.0,
        "{bridged}"
    );
    let more = common::with_log("four", &said(&listed("'CUSTOM', 'PYNCCL'")), |log| {
        predict(&[
            "--from-log",
            log,
            "--gpu",
            "rtx-3090",
            "--gpus",
            "4",
            "--quant",
            "int4",
        ])
    });
    assert!(more.contains("no NVLink bridges fitted"), "{more}");
    let granted = text("rtx-4090");
    assert!(
        granted.contains("the driver grants peer access over PCIe, as "),
        "{granted}"
    );
}

/// `--disable-custom-all-reduce` was pasted for boxes on which nothing keeps the engine from its kernel.
#[test]
fn what_an_engine_leaves_off_by_its_own_rules_is_no_flag_of_another_box() {
    let asked = |why: &str, flags: &str| {
        let line = format!(
            "WARNING 06-19 05:51:18 [custom_all_reduce.py:144] Custom allreduce is disabled {why}.\n"
        );
        common::with_log("rules", &said(&line), |log| {
            let words = flags.split_whitespace();
            let all: Vec<&str> = ["--from-log", log, "--quant", "int4"]
                .into_iter()
                .chain(words)
                .collect();
            predict(&all)
        })
    };
    let flag = "all-reduce by nccl";
    for why in [
        "because this process group spans across nodes",
        "due to an unsupported world size: 3. Supported world sizes: [2, 4, 6, 8]",
        "because it's not supported on more than two PCIe-only GPUs",
    ] {
        let text = asked(why, "--gpu h100 --concurrency 1");
        assert!(!text.contains(flag), "{why}: {text}");
    }
    // The lack of peer access is the box's: it holds in another release, not for other ranks.
    let lacks = "because your platform lacks GPU P2P capability or P2P test failed";
    assert!(asked(lacks, "--gpu h100 --concurrency 1").contains(flag));
    assert!(asked(lacks, "--gpu h100 --engine vllm --concurrency 1").contains(flag));
    assert!(!asked(lacks, "--gpu h100 --gpus 4 --tp 4 --concurrency 1").contains(flag));
    let missing = "because of missing custom allreduce library";
    assert!(asked(missing, "--gpu h100 --concurrency 1").contains(flag));
    assert!(!asked(missing, "--gpu h100 --engine vllm --concurrency 1").contains(flag));
}

/// The log's server runs with the flag; the row of the kernel that it keeps off said "by itself".
#[test]
fn a_kernel_that_the_logs_flag_keeps_off_is_not_there_by_itself() {
    let log = |more: &str| {
        format!(
            "INFO 11-20 10:00:00 [utils.py:253] non-default args: {{'model': 'Qwen/Qwen3-32B', \
             'max_model_len': 16384, 'tensor_parallel_size': 2{more}}}\n\
             INFO 11-20 10:00:03 [core.py:94] Initializing a V1 LLM engine (v0.24.0) with config: \
             model='Qwen/Qwen3-32B', speculative_config=None, max_seq_len=16384, tensor_parallel_size=2, \
             kv_cache_dtype=auto\n"
        )
    };
    let table = |name: &str, more: &str| {
        let file = file(name, &log(more));
        let answer = predict(&["--from-log", &file, "--gpu", "rtx-pro-6000"]);
        std::fs::remove_file(file).ok();
        let row = |name: &str| {
            let found = answer
                .lines()
                .find(|line| line.trim_start().starts_with(name));
            found.unwrap_or_else(|| panic!("{answer}")).to_string()
        };
        (row("engine"), row("nccl"), answer.clone())
    };
    let (engine, nccl, answer) = table("off", ", 'disable_custom_all_reduce': True");
    assert!(
        engine.ends_with("without --disable-custom-all-reduce"),
        "{engine}"
    );
    assert!(nccl.ends_with("  --disable-custom-all-reduce"), "{nccl}");
    assert!(!answer.contains("(by itself)"), "{answer}");
    let (engine, ..) = table("on", "");
    assert!(engine.ends_with("by itself"), "{engine}");
}

/// Both NCCL and the engine's own kernel stood "by itself" in the table of TensorRT-LLM, and its paste for
/// `--allreduce nccl` ran the other.
#[test]
fn nccl_is_asked_of_tensorrt_llm_by_its_extra_options() {
    let given = [
        "--model",
        "gpt-oss-120b",
        "--box",
        "2x-rtx-pro-6000",
        "--engine",
        "trtllm",
    ];
    let own = predict(&given);
    let row = own.lines().find(|line| line.starts_with("  nccl"));
    let row = row.unwrap_or_else(|| panic!("{own}"));
    assert!(row.ends_with("  allreduce_strategy: NCCL"), "{row}");
    assert!(
        own.contains("  engine-one-shot") && own.contains("extra.yml: "),
        "{own}"
    );
    let pasted = |answer: &str| answer.matches("allreduce_strategy: NCCL").count();
    let asked = predict(&[&given[..], &["--allreduce", "nccl"]].concat());
    assert_eq!((pasted(&own), pasted(&asked)), (1, 2), "{asked}");
}

/// +31 % was told of a draft that the answer advises against, where plain steps gain 21 %.
#[test]
fn what_another_all_reduce_gains_is_of_plain_steps_where_the_draft_does_not_pay() {
    let of = |words: &str| json(&words.split(' ').collect::<Vec<_>>());
    let on = "--model llama-3.1-70b --quant int4 --gpu rtx-3090 --gpus 8 --concurrency 8";
    let answer = of(&format!("{on} --draft eagle3 --accept 1.01@3"));
    assert_eq!(answer["verdict"], "does-not-pay");
    let changes = answer["changes"].as_array().expect("changes");
    let staged = changes
        .iter()
        .find(|c| c["change"] == "all-reduce by host-staged")
        .expect("its gain");
    let plain = |reduce: &str| plain_ms(&of(&format!("{on} --draft none{reduce}")), 0);
    let gain = plain("") / plain(" --allreduce host-staged");
    let told = staged["gain"].as_f64().expect("a gain");
    assert!((told / gain - 1.0).abs() < 1e-6, "{told} {gain}");
    let why = staged["why"].as_str().expect("why");
    assert!(why.ends_with("; without the draft"), "{why}");
}

/// `simulate` and `predict` gave "engine" two times: the kernels behind it were not named.
#[test]
fn the_kernels_that_an_engine_takes_by_size_are_named() {
    let run = "predict --model qwen3-235b-a22b --quant fp8-dynamic --gpu h100 --gpus 8 --engine sglang \
               --draft eagle3 --concurrency 1,96";
    let text = answers(&run.split_whitespace().collect::<Vec<_>>());
    assert!(
        text.contains("\n  engine: one-shot-push, two-shot "),
        "{text}"
    );
}
