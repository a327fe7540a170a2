//! Links on the command line: `simulate`, `--allreduce`, `--allreduce-table` and `--compare` tell one
//! story.

mod common;

use common::{answers, refusal};
use serde_json::Value;

fn json(flags: &[&str]) -> Value {
    let text = answers(&[flags, &["--json"]].concat());
    serde_json::from_str(&text).expect("JSON")
}

fn rows<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Times by algorithm and size.
fn times(simulated: &Value) -> Vec<(&str, u64, f64)> {
    let of = |row: &'_ Value| (row["bytes"].as_u64(), row["time_us"].as_f64());
    rows(simulated, "results")
        .iter()
        .filter_map(|row| Some((row["algorithm"].as_str()?, of(row).0?, of(row).1?)))
        .collect()
}

#[test]
fn every_kernel_that_is_advised_can_be_asked_for() {
    let base = ["predict", "--model", "qwen3-32b", "--box", "hgx-h200-8"];
    let base = [&base[..], &["--engine", "vllm@0.24", "--concurrency", "1"]].concat();
    let now = json(&base);
    let advised: Vec<&Value> = rows(&now, "changes")
        .iter()
        .filter(|change| {
            let what = change["change"].as_str().unwrap_or("");
            what.starts_with("all-reduce by ")
        })
        .collect();
    assert!(!advised.is_empty());
    for change in advised {
        let name = change["change"].as_str().unwrap_or("").rsplit(' ').next();
        let then = json(&[&base[..], &["--allreduce", name.expect("a name")]].concat());
        let tok_s = |of: &Value| of["points"][0]["spec_tok_s"].as_f64().expect("tok/s");
        let gain = tok_s(&then) / tok_s(&now);
        let said = change["gain"].as_f64().expect("a gain");
        assert!((gain / said - 1.0).abs() < 1e-3, "{name:?}: {gain} {said}");
    }
    let error = refusal(&[&base[..], &["--allreduce", "fastest"]].concat());
    let names = error.rsplit("one of ").next().unwrap_or("").trim();
    let help = answers(&["predict", "--help"]);
    assert!(help.contains(&names.replace(", ", "|")), "{names}\n{help}");
}

#[test]
fn the_all_reduces_of_predict_are_those_of_simulate() {
    for (name, tp) in [
        ("two-switch-8", "8"),
        ("4x-rtx-3090-nvlink", "2"),
        ("dgx-a100", "4"),
    ] {
        let model = ["predict", "--model", "qwen3-32b", "--quant", "int4"];
        let found = json(&[&model[..], &["--box", name, "--tp", tp]].concat());
        let group = found["scenario"]["placement"]["value"].as_array().cloned();
        let count: u64 = tp.parse().expect("a number");
        let group = group.unwrap_or_else(|| (0..count).map(Value::from).collect());
        let group: Vec<String> = group.iter().map(ToString::to_string).collect();
        let group = group.join(",");
        let sizes: Vec<String> = rows(&found, "allreduce")
            .iter()
            .map(|row| row["bytes"].to_string())
            .collect();
        let sizes = sizes.join(",");
        let line = ["simulate", "--box", name, "--ranks", &group];
        let simulated = json(&[&line[..], &["--bytes", &sizes]].concat());
        for row in rows(&found, "allreduce") {
            let (bytes, us) = (row["bytes"].as_u64(), row["time_us"].as_f64());
            let same = times(&simulated).iter().any(|time| {
                (Some(time.0), Some(time.1), Some(time.2)) == (row["algorithm"].as_str(), bytes, us)
            });
            assert!(same, "{name} {row}");
        }
    }
}

#[test]
fn a_table_of_simulate_s_own_times_changes_nothing() {
    let line = ["predict", "--model", "llama-3.1-8b", "--box", "4x-rtx-3090"];
    let line = [&line[..], &["--concurrency", "1,8"]].concat();
    let sizes: Vec<String> = (0..160)
        .map(|i| (1024.0 * 1.08_f64.powi(i)).to_string())
        .map(|bytes| bytes.split('.').next().unwrap_or("1").to_string())
        .collect();
    let sizes = sizes.join(",");
    let simulated = json(&[
        "simulate",
        "--box",
        "4x-rtx-3090",
        "--algorithm",
        "engine",
        "--bytes",
        &sizes,
    ]);
    let table: String = times(&simulated)
        .iter()
        .map(|(_, bytes, us)| format!("{bytes},{us:.3}\n"))
        .collect();
    let file = std::env::temp_dir().join(format!("links-{}.csv", std::process::id()));
    std::fs::write(&file, format!("bytes,time_us\n{table}")).expect("written");
    let path = file.display().to_string();
    let (own, by_table) = (
        json(&line),
        json(&[&line[..], &["--allreduce-table", &path]].concat()),
    );
    std::fs::remove_file(&file).expect("removed");
    for (a, b) in rows(&own, "points").iter().zip(rows(&by_table, "points")) {
        for key in ["baseline_tok_s", "spec_tok_s"] {
            let (a, b) = (a[key].as_f64().expect("a"), b[key].as_f64().expect("b"));
            assert!((a / b - 1.0).abs() < 0.005, "{key} {a} {b}");
        }
    }
}

const SWEPT: [&str; 11] = [
    "predict",
    "--model",
    "qwen3-32b",
    "--quant",
    "int4",
    "--gpu",
    "rtx-3090",
    "--gpus",
    "4",
    "--baseline",
    "docs/examples/plain-4x3090.csv",
];

#[test]
fn what_was_measured_on_one_box_is_no_other_box_s() {
    let boxes = "4x-rtx-3090,4x-h100";
    let swept = json(&[&SWEPT[..], &["--compare", boxes]].concat());
    let row = |name: &str| {
        let found = rows(&swept, "compared")
            .iter()
            .find(|row| row["name"] == name);
        found.expect("a row")["baseline_tok_s"].clone()
    };
    for name in ["4x-rtx-3090", "4x-h100"] {
        let model = ["predict", "--model", "qwen3-32b", "--quant", "int4"];
        let computed = json(&[&model[..], &["--box", name]].concat());
        assert_eq!(row(name), computed["points"][0]["baseline_tok_s"], "{name}");
    }
    let left_out = swept["compared_left_out"].to_string();
    assert!(
        left_out.contains("of 4x-rtx-3090, not of 4x-h100"),
        "{left_out}"
    );
}

#[test]
fn an_all_reduce_beside_figures_measured_with_another_is_left_out() {
    let path = std::env::temp_dir().join(format!("xtask-links-times-{}.csv", std::process::id()));
    std::fs::write(&path, "4096,20\n65536,40\n").expect("writes");
    let table = path.display().to_string();
    let timed = ["--allreduce-table", table.as_str(), "--compare"];
    let text = answers(&[&SWEPT[..], &timed, &["nccl,host-staged"]].concat());
    assert!(
        text.contains("left out  host-staged: what --allreduce-table measured"),
        "{text}"
    );
    let error = refusal(&[&SWEPT[..], &timed, &["host-staged"]].concat());
    assert!(
        error.contains("without --allreduce-table both are computed"),
        "{error}"
    );
    // A sweep is moved by the difference of the two.
    let text = answers(&[&SWEPT[..], &["--compare", "nccl,host-staged"]].concat());
    assert!(!text.contains("left out"), "{text}");
}

#[test]
fn a_box_that_is_listed_has_a_card_that_is_known() {
    let list = answers(&["simulate", "--box", "list"]);
    let cards = answers(&["simulate", "--gpu", "list"]);
    let known: Vec<&str> = cards.lines().filter_map(|l| l.split(' ').next()).collect();
    for line in list.lines().skip(1) {
        let card = line.rsplit(' ').next().unwrap_or("");
        assert!(known.contains(&card), "{line}");
    }
    assert!(list.lines().count() > 50, "{list}");
}

#[test]
fn a_size_is_read_as_it_is_printed_and_nothing_is_shown_twice() {
    let found = json(&[
        "simulate",
        "--bytes",
        "10.4k,10.4 KiB,1.5m",
        "--algorithm",
        "nccl,nccl",
    ]);
    let sizes: Vec<u64> = times(&found).iter().map(|row| row.1).collect();
    assert_eq!(sizes, [10_649, 1_572_864]);
}

/// What `predict --from-log` says of a log with these words, as JSON.
fn from_log(name: &str, log: &str, more: &[&str]) -> Value {
    let file = std::env::temp_dir().join(format!("links-{name}-{}.log", std::process::id()));
    std::fs::write(&file, log).expect("written");
    let path = file.display().to_string();
    let found = json(&[&["predict", "--from-log", &path][..], more].concat());
    std::fs::remove_file(&file).expect("removed");
    found
}

#[test]
fn a_start_line_with_the_switch_that_is_advised_runs_that_kernel() {
    let cards = [
        ("hgx-h200-8", "sglang", "8"),
        ("hgx-h200-8", "vllm", "8"),
        ("hgx-h200-8", "vllm@0.24.0", "8"),
        ("two-switch-8", "vllm@0.30.0", "8"),
        ("4x-rtx-pro-6000", "vllm@0.30.0", "4"),
    ];
    for (number, (name, engine, tp)) in cards.into_iter().enumerate() {
        let base = ["predict", "--model", "llama-3.3-70b", "--box", name];
        let base = [
            &base[..],
            &["--engine", engine, "--tp", tp, "--concurrency", "1"],
        ]
        .concat();
        let asked = json(&base);
        for kernel in ["nccl", "one-shot-push", "island"] {
            let has = |row: &&Value| {
                let algorithm = row["algorithm"].as_str().unwrap_or("");
                let same = algorithm == kernel || kernel == "nccl" && algorithm.starts_with("nccl");
                same && row["switched_by"]
                    .as_str()
                    .is_some_and(|by| by != "by itself")
            };
            let Some(row) = rows(&asked, "allreduce").iter().find(has) else {
                continue;
            };
            let words = row["switched_by"].as_str().expect("a switch").split(' ');
            let (flags, env): (Vec<&str>, Vec<&str>) = words.partition(|w| w.starts_with('-'));
            let server = match engine.starts_with("vllm") {
                true => "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size",
                false => {
                    "python -m sglang.launch_server --model-path meta-llama/Llama-3.3-70B-Instruct --tp"
                }
            };
            let log = format!("{} {server} {tp} {}\n", env.join(" "), flags.join(" "));
            let more = ["--box", name, "--engine", engine];
            let read = from_log(&format!("{number}-{kernel}"), &log, &more);
            assert_eq!(
                read["scenario"]["allreduce"]["value"], kernel,
                "{name} {log}"
            );
        }
    }
}

#[test]
fn a_server_told_to_reduce_by_nccl_is_reckoned_with_nccl_and_keeps_the_flag() {
    let log = "[2026-03-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-32B-FP8', \
               tp_size=4, mem_fraction_static=0.77, disable_custom_all_reduce=True)\n";
    let found = from_log("nccl", log, &["--gpu", "h100", "--gpus", "4"]);
    assert_eq!(found["scenario"]["allreduce"]["value"], "nccl");
    let line = found["engine_flags"]["sglang"].to_string();
    assert!(line.contains("--disable-custom-all-reduce"), "{line}");
}

#[test]
fn the_size_and_the_rows_up_to_which_a_log_s_kernel_runs_are_reckoned_with() {
    let log = "INFO 05-15 03:31:18 model_runner.py:1097] Loading model weights took 14.9888 GB\n\
               INFO 05-15 03:31:20 [custom_all_reduce.py:355] PCIe custom allreduce enabled via \
               VLLM_ENABLE_PCIE_ALLREDUCE=1 (backend=cpp, using vLLM C++ custom allreduce).\n\
               INFO 05-15 03:31:20 [custom_all_reduce.py:490] Using dynamic C++ custom allreduce cutoff \
               (cutoff=57344 bytes, ignore_cutoff_max_rows=8).\n";
    let model = ["--model", "qwen3-32b", "--quant", "int4", "--tp", "4"];
    let more = [
        &model[..],
        &["--box", "4x-rtx-pro-6000", "--concurrency", "1,64"],
    ]
    .concat();
    let by_log = from_log("pcie", log, &more);
    // 8 rows of 10 KiB run the kernel whatever the cutoff.
    assert_eq!(by_log["scenario"]["allreduce"]["value"], "one-shot@81920");
    let few = from_log("pcie-few", &log.replace("rows=8", "rows=1"), &more);
    assert_eq!(few["scenario"]["allreduce"]["value"], "one-shot@57344");
    let asked = json(
        &[
            &["predict"][..],
            &more,
            &["--engine", "vllm", "--allreduce", "one-shot@80k"],
        ]
        .concat(),
    );
    assert_eq!(asked["scenario"]["allreduce"]["value"], "one-shot@81920");
    for kernel in ["one-shot", "nccl"] {
        let alone = json(
            &[
                &["predict"][..],
                &more,
                &["--engine", "vllm", "--allreduce", kernel],
            ]
            .concat(),
        );
        // One user's payload of 10 KiB is below the size, that of 64 above it.
        let point = if kernel == "one-shot" { 0 } else { 1 };
        let plain = |of: &Value| of["points"][point]["baseline_tok_s"].clone();
        assert_eq!(plain(&asked), plain(&alone), "{kernel}");
    }
    let told = by_log["assumptions"].to_string();
    assert!(told.contains("the paste switches on the kernel"), "{told}");
    // The row that is reckoned with is the server's own, and the paste is that server.
    let switch = "VLLM_ENABLE_PCIE_ALLREDUCE=1";
    assert!(by_log["allreduce"].to_string().contains(switch));
    let by_nccl = [&more[..], &["--allreduce", "nccl"]].concat();
    let nccl = from_log("pcie-nccl", log, &by_nccl);
    let switched = |of: &Value| of["engine_flags"]["vllm_env"].to_string().contains(switch);
    assert!(switched(&by_log) && !switched(&nccl));
    let error = refusal(&["predict", "--allreduce", "nccl@64k"]);
    assert!(error.contains("nccl has no largest size"), "{error}");
}

#[test]
fn a_slot_of_fewer_lanes_is_named_whichever_card_it_holds() {
    let card = |address: &str, lanes: u8| {
        format!(
            "GPU 00000000:{address}\n    Product Name : NVIDIA GeForce RTX 3090\n        GPU Link Info\n            \
             PCIe Generation\n                Max : 4\n                Current : 1\n            \
             Link Width\n                Max : 16x\n                Current : {lanes}x\n"
        )
    };
    let wiring = format!(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-31\t0\nGPU1\tPHB\t X \t0-31\t0\n\
         ==============NVSMI LOG==============\nAttached GPUs : 2\n{}{}",
        card("01:00.0", 16),
        card("41:00.0", 4)
    );
    let file = std::env::temp_dir().join(format!("xtask-narrow-{}.txt", std::process::id()));
    std::fs::write(&file, wiring).expect("written");
    let path = file.to_string_lossy().into_owned();
    let found = answers(&["explain", &path]);
    assert!(found.contains("the slot gives x4 of x16"), "{found}");
    let asked = ["predict", "--model", "qwen3-8b", "--gpu", "rtx-3090"];
    let told = answers(&[&asked[..], &["--topology", &path]].concat());
    assert!(told.contains("than the card's x16: gpu1 x4"), "{told}");
    std::fs::remove_file(file).ok();
}

/// The advice went away as soon as a sweep of the same box was given, which the mended links were taken
/// to have run.
#[test]
fn a_graph_file_for_nccl_is_advised_beside_a_sweep_of_the_same_box_too() {
    let path = std::env::temp_dir().join(format!("graph-file-{}.csv", std::process::id()));
    std::fs::write(&path, "concurrency,tok_s\n1,41.7\n4,107\n16,262\n").expect("a file");
    let file = path.display().to_string();
    let flags = "predict --model glm-4.6 --quant fp8 --tp 8 --engine vllm@0.22 --draft mtp --context 32k --kv-dtype fp8 \
                 --concurrency 1,4,16 --box 8x-rtx-pro-6000-direct --nccl-p2p-level SYS";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let gain = |more: &[&str]| {
        let now = json(&[&flags[..], more].concat());
        let advised = rows(&now, "changes").iter().find(|change| {
            let what = change["change"].as_str().unwrap_or("");
            what.contains("NCCL_GRAPH_FILE")
        });
        advised
            .and_then(|change| change["gain"].as_f64())
            .expect("the advice")
    };
    let (computed, swept) = (gain(&[]), gain(&["--baseline", &file]));
    std::fs::remove_file(path).ok();
    assert!((swept / computed - 1.0).abs() < 0.1, "{swept} {computed}");
}
