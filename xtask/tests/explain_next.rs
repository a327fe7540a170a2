//! The command that `explain` ends with: `predict` and `simulate` take it once its capitals are
//! filled in.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn xtask(words: &[&str], folder: &Path) -> anyhow::Result<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(words)
        .current_dir(folder)
        .output()?)
}

/// What stands in capitals, and what a reader of any of the samples could put there. Models with
/// MTP layers, with many heads, and small: one of them goes with each sample. Some ran on 16 cards,
/// which few machines have.
const FILL: [(&str, &str); 7] = [
    ("QUANT", "int4"),
    ("GPU", "gb200"),
    ("GPUS", "8"),
    ("ENGINE", "sglang"),
    ("DRAFT", "eagle3"),
    ("USERS", "16"),
    ("VERSION", "0.5.12"),
];
const MODELS: [&str; 2] = ["deepseek-v3", "llama-3.1-8b"];

/// The words of a command, its capitals replaced.
fn filled(command: &str, model: &str) -> Vec<String> {
    let mut words = Vec::new();
    let plain = command.strip_prefix("cargo xtask ").unwrap_or(command);
    for word in plain.split(' ') {
        let word = word.trim_matches('\'');
        let (head, tail) = word.rsplit_once('@').unwrap_or(("", word));
        let put = match tail {
            "MODEL" => model,
            "STEPS" => "3",
            _ => FILL.iter().find(|f| f.0 == tail).map_or(tail, |f| f.1),
        };
        // `2.46@STEPS`; a load that is not said is told behind the file.
        match (head, tail) {
            ("", _) => words.push(put.to_string()),
            (head, _) => words.push(format!("{head}@{put}")),
        }
    }
    words
}

fn samples() -> Option<(PathBuf, Vec<String>)> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let data = std::env::var_os("SHARED_DATA").map_or_else(|| beside.into(), PathBuf::from);
    let folder = data.join("inputs");
    let mut files = Vec::new();
    for kind in ["bench", "sglang_logs", "vllm_logs", "nccl", "topo"] {
        for entry in std::fs::read_dir(folder.join(kind)).ok()?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".source") {
                files.push(format!("{kind}/{name}"));
            }
        }
    }
    files.sort();
    Some((folder, files))
}

/// Served by a patched engine that pads 64 heads to 96 for three GPUs: refused in one line.
const PADDED: &str = "sgl-29-dsv41-dspark-3nodes";

#[test]
fn every_sample_with_a_model_or_a_speed_ends_in_a_command_that_runs() -> anyhow::Result<()> {
    let Some((folder, files)) = samples() else {
        eprintln!("skipped: no measured data beside the checkout");
        return Ok(());
    };
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !file.contains(PADDED)) {
        let output = xtask(&["explain", "--json", file], &folder)?;
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let known = |name: &str| !said["facts"][name]["value"].is_null();
        let names = ["model", "gen_tok_s", "output_tok_s"];
        let class = said["facts"]["model_class"]["value"].as_str().unwrap_or("");
        let Some(command) = said["predict"].as_str() else {
            // Models that denoise blocks are not predicted.
            if names.iter().any(|name| known(name)) && !class.contains("Diffusion") {
                wrong.push(format!("{file}: no command"));
            }
            continue;
        };
        let mut why = String::new();
        let runs = MODELS.iter().any(|model| {
            let words = filled(command, model);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match xtask(&words, &folder) {
                Ok(output) if output.status.success() => true,
                Ok(output) => {
                    why.push_str(&String::from_utf8_lossy(&output.stderr));
                    false
                }
                Err(_) => false,
            }
        });
        if !runs {
            wrong.push(format!("{file}: {command}\n{why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn next_of(folder: &Path, files: &[&str]) -> anyhow::Result<Value> {
    let mut words = vec!["explain", "--json"];
    words.extend(files);
    let output = xtask(&words, folder)?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

const ARGUMENTS: &str = "[2025-11-23 19:34:55] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', \
    tp_size=2, mem_fraction_static=0.88, SPECULATION)\n\
    [2025-11-23 19:35:15 TP0] Load weight begin. avail mem=94.00 GB\n\
    [2025-11-23 19:35:25 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail \
    mem=63.00 GB, mem usage=31.00 GB.\n";
const BENCH: &str = "============ Serving Benchmark Result ============\n\
    Backend:                                 sglang\n\
    Max request concurrency:                 8\n\
    Successful requests:                     32\n\
    Total input tokens:                      32000\n\
    Total generated tokens:                  16000\n\
    Output token throughput (tok/s):         310.00\n";
const SPECULATION: &str = "speculative_algorithm='EAGLE3', speculative_draft_model_path='a/b-eagle3', \
    speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4";

#[test]
fn a_bench_beside_a_log_is_the_baseline_or_the_accept_length() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next");
    std::fs::create_dir_all(&folder)?;
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text);
    write("plain.log", &ARGUMENTS.replace(", SPECULATION", ""))?;
    write("spec.log", &ARGUMENTS.replace("SPECULATION", SPECULATION))?;
    write("plain.txt", BENCH)?;
    write("spec.txt", &format!("{BENCH}Accept length: 2.31\n"))?;

    let plain = next_of(&folder, &["plain.log", "plain.txt"])?;
    let command = plain["predict"].as_str().unwrap_or("");
    let load = "--context 1250 --concurrency 8 --baseline plain.txt";
    assert!(command.ends_with(load), "{command}");

    let spec = next_of(&folder, &["spec.log", "spec.txt"])?;
    let command = spec["predict"].as_str().unwrap_or("");
    assert!(command.contains("--accept 2.31@3"), "{command}");
    assert!(!command.contains("--baseline"), "{command}");

    // A bench that says no accept length, beside the log of a server that speculates.
    let open = next_of(&folder, &["spec.log", "plain.txt"])?;
    let command = open["predict"].as_str().unwrap_or("");
    assert!(!command.contains("--baseline"), "{command}");
    assert!(
        open["left_out"][0]
            .as_str()
            .is_some_and(|why| why.contains("plain.txt"))
    );
    Ok(())
}

/// A bench with the lines of a speculating server in it says nothing of another bench.
#[test]
fn a_speculating_servers_bench_does_not_make_another_bench_plain() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next-unsaid");
    std::fs::create_dir_all(&folder)?;
    let drafting = "(APIServer pid=1) INFO 05-01 19:24:24 [metrics.py:101] SpecDecoding metrics: Mean \
        acceptance length: 2.28, Accepted throughput: 95.80 tokens/s, Drafted throughput: 146.00 tokens/s, \
        Accepted: 958 tokens, Drafted: 1460 tokens, Per-position acceptance rate: 0.780, 0.500, Avg Draft \
        acceptance rate: 64.0%\n";
    std::fs::write(folder.join("spec.txt"), format!("{BENCH}{drafting}"))?;
    std::fs::write(folder.join("other.txt"), BENCH)?;
    for files in [["spec.txt", "other.txt"], ["other.txt", "spec.txt"]] {
        let next = next_of(&folder, &files)?;
        let command = next["predict"].as_str().unwrap_or("");
        assert!(command.contains("--baseline other.txt"), "{command}");
        let provided = next["provided"][0].as_str().unwrap_or("");
        assert!(
            provided.contains("if other.txt ran without speculation, which nothing here says"),
            "{next}"
        );
    }
    Ok(())
}

#[test]
fn a_bench_alone_names_what_to_fill_in() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next-alone");
    std::fs::create_dir_all(&folder)?;
    let table = "{\"model_id\": \"zai-org/GLM-9-Large\", \"max_concurrency\": 4, \
        \"output_throughput\": 500.0, \"completed\": 8, \"total_input_tokens\": 800, \
        \"total_output_tokens\": 400}";
    std::fs::write(folder.join("r.json"), table)?;
    let said = next_of(&folder, &["r.json"])?;
    assert_eq!(
        said["predict"],
        "cargo xtask predict --model MODEL --engine ENGINE --gpu GPU --gpus GPUS --context 125 \
         --concurrency 4 --baseline r.json"
    );
    let fill: Vec<&str> = said["fill_in"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(fill.len(), 4);
    assert!(
        fill[0].contains("config.json of zai-org/GLM-9-Large"),
        "{fill:?}"
    );
    Ok(())
}

/// It ended in single flags, and the pool that the log says was planned anew without it.
#[test]
fn the_next_command_takes_the_log_itself_and_the_other_files_by_flag() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next-log");
    std::fs::create_dir_all(&folder)?;
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text);
    write("spec.log", &ARGUMENTS.replace("SPECULATION", SPECULATION))?;
    write("spec.txt", &format!("{BENCH}Accept length: 2.31\n"))?;
    let said = next_of(&folder, &["spec.log", "spec.txt"])?;
    assert_eq!(
        said["predict"],
        "cargo xtask predict --from-log spec.log --gpu GPU --context 1250 --accept 2.31@3"
    );
    // Whom nobody can name a file for: facts as flags.
    let piped = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["explain", "--json", "-"])
        .stdin(std::fs::File::open(folder.join("spec.log"))?)
        .output()?;
    let said: Value = serde_json::from_slice(&piped.stdout)?;
    let command = said["predict"].as_str().unwrap_or("");
    assert!(command.contains("--tp 2 --mem-fraction 0.88"), "{command}");
    assert!(!command.contains("--from-log"), "{command}");
    Ok(())
}

#[test]
fn a_log_that_names_only_the_class_of_the_model_ends_in_a_command_too() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next-class");
    std::fs::create_dir_all(&folder)?;
    let line = "[20:52:05] Load weight end. elapsed=2.57 s, type=Qwen3_5ForConditionalGeneration, \
        avail mem=14.47 GB, mem usage=8.62 GB.\n\
        [20:52:05] Memory pool end. avail mem=3.40 GB\n";
    std::fs::write(folder.join("class.log"), line)?;
    let text = xtask(&["explain", "class.log"], &folder)?.stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(
        text.contains("model_class            Qwen3_5ForConditionalGeneration"),
        "{text}"
    );
    assert!(
        text.contains("next   cargo xtask predict --from-log class.log --model MODEL"),
        "{text}"
    );
    assert!(text.contains("config.json of the Qwen3_5For"), "{text}");
    Ok(())
}

const LINKS: &str = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n\
    GPU0\t X \tPHB\t0-31\t0\t\tN/A\nGPU1\tPHB\t X \t0-31\t0\t\tN/A\n";
const PEERS: &str = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n";

#[test]
fn peer_access_in_a_file_of_its_own_is_joined_with_the_wiring() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next-peers");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("topo.txt"), LINKS)?;
    std::fs::write(folder.join("p2p.txt"), PEERS)?;
    std::fs::write(folder.join("WIRING"), format!("{LINKS}\n{PEERS}"))?;
    std::fs::write(
        folder.join("plain.log"),
        ARGUMENTS.replace(", SPECULATION", ""),
    )?;
    let both = "both in one file for WIRING: cat topo.txt p2p.txt > WIRING";
    for files in [
        &["p2p.txt", "topo.txt"][..],
        &["plain.log", "topo.txt", "p2p.txt"],
    ] {
        let said = next_of(&folder, files)?;
        let command = said["predict"].as_str().unwrap_or("");
        assert!(command.contains("--topology WIRING --gpu GPU"), "{command}");
        assert_eq!(said["fill_in"][0], both, "{command}");
    }
    // The joined file has both, and peer access on.
    let said = next_of(&folder, &["WIRING"])?;
    assert_eq!(said["facts"]["p2p"]["value"], "on");
    assert_eq!(said["facts"]["farthest_link"]["value"], "PHB");
    let command = said["predict"].as_str().unwrap_or("");
    assert_eq!(command, "cargo xtask simulate --topology WIRING --gpu GPU");
    let words = "simulate --topology WIRING --gpu rtx-5090 --json";
    let words: Vec<&str> = words.split(' ').collect();
    let joined = String::from_utf8(xtask(&words, &folder)?.stdout)?;
    assert!(joined.contains("one-shot"), "{joined}");
    Ok(())
}

const LISTED: &str = "00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e\n\
    \tBus: primary=00, secondary=01, subordinate=01, sec-latency=0\n\
    \t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n\
    \t\tLnkSta:\tSpeed 32GT/s, Width x16\n\n\
    00:02.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e\n\
    \tBus: primary=00, secondary=02, subordinate=02, sec-latency=0\n\
    \t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n\
    \t\tLnkSta:\tSpeed 32GT/s, Width x16\n\n\
    01:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)\n\
    \t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n\n\
    02:00.0 3D controller: NVIDIA Corporation Device 2bb5 (rev a1)\n\
    \t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n";
const DRAWN: &str = "-[0000:00]-+-01.1-[01]----00.0  NVIDIA Corporation GB202 [GeForce RTX 5090]\n\
    \x20          \\-02.1-[02]----00.0  NVIDIA Corporation GB202 [GeForce RTX 5090]\n";

#[test]
fn every_listing_that_topology_reads_goes_on_to_the_next_command() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-next-listed");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(
        folder.join("plain.log"),
        ARGUMENTS.replace(", SPECULATION", ""),
    )?;
    for (name, text) in [("vv.txt", LISTED), ("tv.txt", DRAWN)] {
        std::fs::write(folder.join(name), text)?;
        let flag = format!("--topology {name}");
        for files in [&[name][..], &["plain.log", name]] {
            let said = next_of(&folder, files)?;
            let command = said["predict"].as_str().unwrap_or("");
            assert!(command.contains(&flag), "{files:?}: {command}");
        }
        let words = ["simulate", "--topology", name, "--gpu", "rtx-5090"];
        assert!(xtask(&words, &folder)?.status.success(), "{name}");
    }
    // Cards without what they hang on are no wiring.
    let cards = LISTED.lines().filter(|line| line.contains("3D"));
    std::fs::write(
        folder.join("cards.txt"),
        cards.collect::<Vec<_>>().join("\n"),
    )?;
    let said = next_of(&folder, &["cards.txt"])?;
    assert!(said["predict"].is_null(), "{said}");
    Ok(())
}

#[test]
fn a_topology_that_was_piped_in_is_a_file_to_fill_in() -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["explain", "-", "--json"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(LINKS.as_bytes())?;
    }
    let said: Value = serde_json::from_slice(&child.wait_with_output()?.stdout)?;
    assert_eq!(
        said["predict"],
        "cargo xtask simulate --topology FILE --gpu GPU"
    );
    assert_eq!(said["fill_in"][0], "the file that was piped in for FILE");
    Ok(())
}

#[test]
fn a_plain_log_as_its_own_baseline_gives_its_own_speeds_back() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-own-speeds");
    std::fs::create_dir_all(&folder)?;
    let window = |running: u32, tok_s: f64, usage: f64| {
        format!(
            "INFO 05-14 10:10:00 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
             generation throughput: {tok_s} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV \
             cache usage: {usage}%, Prefix cache hit rate: 0.0%\n"
        )
    };
    let head = "INFO 05-14 10:00:00 [api_server.py:1977] vLLM API server version 0.18.0\n\
        INFO 05-14 10:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-32B', \
        'max_model_len': 40960, 'tensor_parallel_size': 4, 'gpu_memory_utilization': 0.9}\n\
        INFO 05-14 10:00:35 [gpu_model_runner.py:2602] Model loading took 15.2667 GiB and 20.5 seconds\n\
        INFO 05-14 10:00:50 [gpu_worker.py:298] Available KV cache memory: 53.77 GiB\n\
        INFO 05-14 10:00:50 [kv_cache_utils.py:1087] GPU KV cache size: 880,960 tokens\n\
        INFO 05-14 10:01:10 [gpu_model_runner.py:3480] Graph capturing finished in 15 secs, took 0.85 GiB\n";
    // The second shows what requests held only by a share of the pool that rounds to a few tokens.
    for usages in [[0.3, 5.4], [0.0, 0.1]] {
        let windows = [
            (1, usages[0]),
            (1, usages[0]),
            (4, usages[1]),
            (4, usages[1]),
        ];
        let windows =
            windows.map(|(running, usage)| window(running, 40.0 * f64::from(running), usage));
        std::fs::write(
            folder.join("own.log"),
            format!("{head}{}", windows.concat()),
        )?;
        let next = next_of(&folder, &["own.log"])?;
        let mut words = filled(next["predict"].as_str().unwrap_or(""), "qwen3-32b");
        words.push("--json".to_string());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = xtask(&words, &folder)?;
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let points = said["points"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(points.len(), 2, "{words:?}");
        for point in points {
            let users = point["concurrency"].as_f64().unwrap_or(0.0);
            let speed = point["baseline_tok_s"].as_f64().unwrap_or(0.0);
            assert!(
                (speed / (40.0 * users) - 1.0).abs() < 0.02,
                "{users} users: {speed}"
            );
        }
    }
    Ok(())
}

#[test]
fn what_the_answer_leaves_out_and_cards_that_are_unknown_are_named() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-left-out");
    std::fs::create_dir_all(&folder)?;
    let ranks = ARGUMENTS.replace("SPECULATION", "dp_size=4, enable_dp_attention=True");
    std::fs::write(folder.join("ranks.log"), ranks)?;
    let next = next_of(&folder, &["ranks.log"])?;
    let left_out = next["left_out"][0].as_str().unwrap_or("");
    assert!(
        left_out.starts_with("4 data-parallel ranks: they are not modelled"),
        "{next}"
    );

    let card = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n\nindex, name, memory.total [MiB]\n\
        0, NVIDIA RTX A4000, 16376 MiB\n1, NVIDIA RTX A4000, 16376 MiB\n";
    std::fs::write(folder.join("card.txt"), card)?;
    let next = next_of(&folder, &["card.txt"])?;
    let fill_in = next["fill_in"][0].as_str().unwrap_or("");
    assert!(
        fill_in.contains("NVIDIA RTX A4000 is not among them"),
        "{next}"
    );

    let lines = "INFO 12-10 10:05:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.31, \
        Accepted: 655 tokens, Drafted: 1500 tokens, Per-position acceptance rate: 0.680, 0.400, 0.230\n";
    std::fs::write(folder.join("lines.log"), lines)?;
    let next = next_of(&folder, &["lines.log"])?;
    let command = next["predict"].as_str().unwrap_or("");
    assert!(command.contains("predict --from-log lines.log"), "{next}");
    Ok(())
}

/// It was offered without GPUs, refused for 16 of them, and with the 8 of the refusal again for TP 16.
#[test]
fn a_server_over_two_machines_is_asked_for_as_on_one_of_them() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("two-machines-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let of = |nodes: &str| {
        format!(
            "[2026-02-11 09:14:02] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3.2', \
             mem_fraction_static=0.85, tp_size=16{nodes})\n"
        )
    };
    std::fs::write(folder.join("two.log"), of(", nnodes=2"))?;
    std::fs::write(folder.join("unsaid.log"), of(""))?;
    let told = xtask(&["explain", "two.log"], &folder)?;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let command = text
        .split_once("next   ")
        .and_then(|(_, next)| next.lines().next());
    let words = filled(command.unwrap_or_default(), "deepseek-v3.2");
    let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
    let on_h200: Vec<&str> = words
        .iter()
        .map(|w| if *w == "gb200" { "h200" } else { w })
        .collect();
    assert!(xtask(&on_h200, &folder)?.status.success(), "{text}");
    assert!(text.contains("several machines"), "{text}");
    // The card is not known before it is asked for.
    let ask = ["predict", "--from-log", "unsaid.log", "--gpu", "h200"];
    let refused = xtask(&ask, &folder)?;
    let refusal = String::from_utf8_lossy(&refused.stderr).into_owned();
    let advice = refusal
        .split_once("; give ")
        .and_then(|(_, rest)| rest.split_once(" ("));
    let advice: Vec<&str> = advice.map_or(Vec::new(), |(flags, _)| flags.split(' ').collect());
    let followed = xtask(&[&ask[..], &advice].concat(), &folder)?;
    assert!(followed.status.success(), "{refusal}");
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
