//! `explain` as users meet it: the binary, its text, its exit codes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use expect_test::expect;
use serde_json::Value;

const STORY: &str = include_str!("data/story.log");

fn explain(args: &[&str], stdin: Option<&[u8]>) -> anyhow::Result<Output> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("explain")
        .args(args)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // The child may refuse before it has read everything.
        let _ = pipe.write_all(stdin.unwrap_or(b""));
    }
    Ok(child.wait_with_output()?)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn the_story_0_88_was_in_use_and_0_55_can_never_start() -> anyhow::Result<()> {
    let output = explain(&["story.log"], None)?;
    assert_eq!(output.status.code(), Some(0));
    expect![[r#"
        WRONG  0.88 was in use, not 0.55; 0.55 can never start here   [story.log:4]
               why  21.7 - 94 x (1 - f) = 10.42 GiB of KV gives f = 0.880
               do   the setting 0.55 belongs to another start; look for --mem-fraction-static in what
                    launched this one (absent, the engine chooses by itself)
        WRONG  --mem-fraction-static 0.55 must be refused, by every version   [story.log:1]
               why  21.7 - 94 x 0.45 = -20.6 GiB: short by 20.6 GiB before the first KV token. Lowering the
                    fraction makes it worse: it is a share of what was free before the weights, weights
                    included
               do   anything from 0.770 starts; 0.88 is proven here (10.42 GiB of KV), every 0.01 above or
                    below it is 0.94 GiB

        story.log   (sglang-log)
          engine                 sglang             line 2
          engine_version_range   0.5.3 or later, out by 2026-03 line 3  (by the lines it prints and their dates)
          model                  moonshotai/Kimi-K2.5 line 1
          tp                     8                  line 1
          mem_fraction           0.55               line 1
          mem_fraction_in_use    0.88               line 4  (1 - (free after - KV) / free before, +- 0.0002)
          free_before_gib        94                 line 2
          weights_gib            72.3               line 3
          free_after_gib         21.7               line 3
          kv_gib                 10.42              line 4
          kv_tokens              159218             line 4
          free_after_pool_gib    10.9               line 5

        next   cargo xtask predict --from-log story.log --gpu GPU
               with the card it ran on for GPU (rtx-5090, h100)
    "#]].assert_eq(&text(&output));
    Ok(())
}

#[test]
fn standard_input_says_the_same_as_the_file() -> anyhow::Result<()> {
    let file = explain(&["story.log"], None)?;
    let piped = explain(&["-"], Some(STORY.as_bytes()))?;
    // All but the command, which names the file or says what it would take from it.
    let facts = |output: &Output| {
        let text = text(output);
        let (facts, _) = text.split_once("\nnext ").unwrap_or((&text, ""));
        facts.to_string()
    };
    let shown = facts(&file).replace("story.log", "standard input");
    assert_eq!(shown, facts(&piped));
    Ok(())
}

#[test]
fn json_gives_facts_with_lines_and_null_where_the_log_is_silent() -> anyhow::Result<()> {
    let output = explain(&["--json", "story.log"], None)?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(json["schema"], 1);
    assert_eq!(json["facts"]["kv_gib"]["value"], 10.42);
    assert_eq!(json["facts"]["free_before_gib"]["line"], 2);
    assert_eq!(json["facts"]["mem_fraction"]["value"], 0.55);
    assert_eq!(json["facts"]["mem_fraction_in_use"]["value"], 0.88);
    assert_eq!(json["facts"]["accept_length"]["value"], Value::Null);
    assert_eq!(json["findings"][0]["severity"], "broken");
    for key in ["what", "why", "do", "where"] {
        assert!(json["findings"][0][key].is_string(), "{key}");
    }
    Ok(())
}

/// Refused with exit code 2 and one line that says why.
fn refused(output: &Output, reason: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(error.contains(reason), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn binary_empty_missing_and_huge_files_are_refused_in_one_line() -> anyhow::Result<()> {
    let binary = scratch("binary.log");
    std::fs::write(&binary, b"\x7fELF\x00\x01\x02")?;
    let empty = scratch("empty.log");
    std::fs::write(&empty, b" \n\n")?;
    let huge = scratch("huge.log");
    std::fs::File::create(&huge)?.set_len(2 << 30)?;
    let prose = scratch("prose.md");
    std::fs::write(&prose, "Dear diary, nothing was measured today.\n")?;
    for (path, reason) in [
        (&binary, "is binary"),
        (&empty, "is empty"),
        (&huge, "MiB"),
        (&prose, "nothing recognised"),
        (&scratch("nowhere.log"), "cannot be read"),
    ] {
        refused(&explain(&[&path.to_string_lossy()], None)?, reason);
    }
    std::fs::remove_file(huge)?;
    refused(&explain(&["-"], None)?, "is empty");
    refused(&explain(&["-"], Some(b"\x00\x01"))?, "is binary");
    Ok(())
}

#[test]
fn several_files_are_explained_together_the_heaviest_finding_first() -> anyhow::Result<()> {
    let output = explain(&["shm.log", "story.log"], None)?;
    let text = text(&output);
    let wrong = text.find("WRONG");
    let costs = text.find("COSTS");
    assert!(wrong.is_some() && wrong < costs, "{text}");
    assert!(text.contains("shm.log   (nccl-debug)"), "{text}");
    Ok(())
}

#[test]
fn a_full_pool_and_a_refused_all_reduce_are_findings_and_the_command_keeps_the_load()
-> anyhow::Result<()> {
    let output = explain(&["inputs/sglang-full.log", "inputs/nccl-tests.txt"], None)?;
    let text = text(&output);
    for words in [
        "1 request was thrown out and must be computed again   [inputs/sglang-full.log:33]",
        "5 in the queue at 98 % in use   [inputs/sglang-full.log:32]",
        "the engine's own all-reduce is off; NCCL does it   [inputs/sglang-full.log:5]",
        "--from-log inputs/sglang-full.log",
        "--allreduce-table inputs/nccl-tests.txt",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    Ok(())
}

#[test]
fn the_drafts_repository_in_a_log_passes_into_the_command() -> anyhow::Result<()> {
    let log = "[2026-03-01 22:10:05] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', \
               tp_size=1, mem_fraction_static=0.85, speculative_algorithm='EAGLE3', \
               speculative_draft_model_path='RedHatAI/Qwen3-32B-speculator.eagle3', \
               speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)\n\
               [2026-03-01 22:10:05 TP0] Load weight begin. avail mem=94.00 GB\n";
    let text = text(&explain(&["-"], Some(log.as_bytes()))?);
    let next = "--draft RedHatAI/Qwen3-32B-speculator.eagle3";
    assert!(text.contains(next), "{text}");
    Ok(())
}

/// A vLLM start in short: the engine's own lines of `extra`, room for 1.55 requests.
fn vllm_start(extra: &str) -> String {
    format!(
        "(APIServer pid=1) INFO 06-19 05:50:41 [api_utils.py:273] non-default args: {{'model': \
         'some/model-26b', 'max_model_len': 262144, 'tensor_parallel_size': 2{extra}}}\n\
         (Worker_TP0 pid=50) INFO 06-19 05:51:39 [gpu_worker.py:480] Available KV cache memory: 4.36 GiB\n\
         (EngineCore pid=40) INFO 06-19 05:51:39 [kv_cache_utils.py:1744] GPU KV cache size: 406,513 tokens\n\
         (EngineCore pid=40) INFO 06-19 05:51:39 [kv_cache_utils.py:1745] Maximum concurrency for \
         262,144 tokens per request: 1.55x\n"
    )
}

/// A server of one request at a time without a draft was told to drop the draft.
#[test]
fn what_lets_more_run_at_a_time_is_what_stops_them_here() -> anyhow::Result<()> {
    let remedy = |extra: &str| -> anyhow::Result<String> {
        let output = explain(&["-", "--json"], Some(vllm_start(extra).as_bytes()))?;
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let findings = said["findings"].as_array().cloned().unwrap_or_default();
        let found = findings.iter().find(|f| {
            f["what"]
                .as_str()
                .is_some_and(|what| what.contains("of full length"))
        });
        Ok(found.map_or(String::new(), |f| {
            f["do"].as_str().unwrap_or("").to_string()
        }))
    };
    let one = remedy(", 'max_num_seqs': 1")?;
    assert_eq!(
        one,
        "for more at a time raise --max-num-seqs: at 1 a further request waits, however short"
    );
    assert_eq!(
        remedy(", 'max_num_seqs': 8")?,
        "for more at a time: fp8 KV, or a shorter context"
    );
    let drafts = ", 'kv_cache_dtype': 'fp8', 'speculative_config': {'method': 'ngram', \
                  'num_speculative_tokens': 3}";
    assert_eq!(
        remedy(drafts)?,
        "for more at a time: a shorter context, or no draft"
    );
    Ok(())
}

/// A catalogue name was asked for, of a model that no catalogue can hold.
#[test]
fn a_model_that_denoises_blocks_is_said_to_be_outside_of_what_is_predicted() -> anyhow::Result<()> {
    let log = vllm_start("").replace(
        "(Worker_TP0",
        "(APIServer pid=1) INFO 06-19 05:50:52 [model.py:611] Resolved architecture: \
         DiffusionGemmaForBlockDiffusion\n(Worker_TP0",
    );
    let output = explain(&["-"], Some(log.as_bytes()))?;
    let shown = text(&output);
    assert!(
        shown.contains("note   DiffusionGemmaForBlockDiffusion denoises blocks of tokens"),
        "{shown}"
    );
    assert!(!shown.contains("next   cargo xtask predict"), "{shown}");
    let plain = log.replace(
        "DiffusionGemmaForBlockDiffusion",
        "Gemma4ForConditionalGeneration",
    );
    let shown = text(&explain(&["-"], Some(plain.as_bytes()))?);
    assert!(!shown.contains("denoises"), "{shown}");
    assert!(shown.contains("next   cargo xtask predict"), "{shown}");
    Ok(())
}

/// A bench of streams says nothing of drafts; beside the log of a plain server it is a baseline.
#[test]
fn a_bench_that_does_not_say_whether_it_drafted_is_a_baseline_with_an_if() -> anyhow::Result<()> {
    let bench = scratch("streams.txt");
    let streams = |n: u32, tok_s: f64| {
        format!(
            "=== {n} concurrent streams, 2 run(s) each ===\n  total_toks=1491  total_wall=20.14s  \
             aggregate_TPS={tok_s}\n  per-stream  mean=73.99  CV=3.7%\n\n"
        )
    };
    std::fs::write(&bench, streams(1, 74.03) + &streams(2, 128.74))?;
    let name = bench.to_string_lossy().into_owned();
    let alone = explain(&[&name, "--json"], None)?;
    let said: Value = serde_json::from_slice(&alone.stdout)?;
    assert!(
        said["predict"]
            .as_str()
            .is_some_and(|line| line.contains("--baseline")),
        "{said}"
    );
    let why = said["provided"][0].as_str().unwrap_or("");
    assert!(why.contains("ran without speculation"), "{said}");
    let beside = explain(&["-", &name, "--json"], Some(vllm_start("").as_bytes()))?;
    let said: Value = serde_json::from_slice(&beside.stdout)?;
    assert!(
        said["predict"]
            .as_str()
            .is_some_and(|line| line.contains("--baseline")),
        "{said}"
    );
    assert_eq!(said["provided"], serde_json::json!([]), "{said}");
    Ok(())
}

#[test]
fn a_slot_of_fewer_lanes_is_found_in_lspci_too() -> anyhow::Result<()> {
    let listing = "01:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090]\n\
                   \t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1\n\
                   \t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)\n";
    let said = text(&explain(&["-"], Some(listing.as_bytes()))?);
    assert!(said.contains("the slot gives x8 of x16"), "{said}");
    Ok(())
}

#[test]
fn pythons_own_m_names_no_model() -> anyhow::Result<()> {
    let bench = "$ python3 -m sglang.bench_serving --backend sglang --max-concurrency 4\n\
                 ============ Serving Benchmark Result ============\n\
                 Backend: sglang\nMax request concurrency: 4\nSuccessful requests: 16\n\
                 Output token throughput (tok/s): 200.0\nMean TPOT (ms): 20.0\n";
    let said = text(&explain(&["-"], Some(bench.as_bytes()))?);
    assert!(said.contains("concurrency"), "{said}");
    assert!(!said.contains("bench_serving line"), "{said}");
    Ok(())
}

/// Every figure of a bench was said to stand where its block begins.
#[test]
fn each_figure_of_a_bench_is_cited_by_its_own_line() -> anyhow::Result<()> {
    let block = "\n============ Serving Benchmark Result ============\nBackend: sglang\n\
                 Successful requests: 64\nOutput token throughput (tok/s): 1226.05\n\
                 Accept length: 2.27\nMean TPOT (ms): 13.28\n";
    let said = text(&explain(&["-"], Some(block.as_bytes()))?);
    let lines: Vec<Vec<&str>> = said
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    for (name, line) in [
        ("concurrency", "4"),
        ("output_tok_s", "5"),
        ("accept_length", "6"),
        ("mean_tpot_ms", "7"),
    ] {
        let row = lines.iter().find(|row| row.first() == Some(&name));
        assert_eq!(
            row.map(|row| &row[2..4]),
            Some(&["line", line][..]),
            "{said}"
        );
    }
    Ok(())
}

/// Beside `--kv-dtype` the sweep was moved from the engine's own format, of which `explain` said nothing.
#[test]
fn a_sweep_beside_a_piped_log_of_another_kv_format_is_told_how_to_say_its_own() -> anyhow::Result<()>
{
    let log = "[2026-07-11 09:14:02] server_args=ServerArgs(model_path='meta-llama/Llama-3.3-70B-Instruct', \
               quantization='fp8', tp_size=4, kv_cache_dtype='fp8_e4m3', speculative_algorithm=None)\n";
    let joined = |log: &str, sweep: &str| -> anyhow::Result<String> {
        let path = scratch("piped-kv.csv");
        std::fs::write(&path, sweep)?;
        let output = explain(&["-", &path.display().to_string()], Some(log.as_bytes()))?;
        let words = text(&output);
        Ok(words.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let sweep = "concurrency,tok_s\n1,98\n8,700\n32,2300\n";
    let told = joined(log, sweep)?;
    assert!(told.contains("--kv-dtype fp8_e4m3"), "{told}");
    let says = "does not say its KV format and is taken to be of the engine's own, its steps moved to fp8_e4m3";
    assert!(told.contains(says), "{told}");
    let start = "# sglang.launch_server --kv-cache-dtype fp8_e4m3";
    assert!(
        told.contains(&format!("or write `{start}` above")),
        "{told}"
    );
    // Followed it is of that format.
    let followed = joined(log, &format!("{start}\n{sweep}"))?;
    assert!(!followed.contains(says), "{followed}");
    let own = joined(&log.replace("fp8_e4m3", "auto"), sweep)?;
    assert!(!own.contains(says), "{own}");
    Ok(())
}
