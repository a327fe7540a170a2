//! What is printed to paste: keys that the named version takes, the draft that was named.

mod common;

use common::answers;

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let common = [
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--accept",
        "2.9@3",
    ];
    common.into_iter().chain(more.iter().copied()).collect()
}

/// The lines under `paste`.
fn paste(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| *line != "paste").skip(1);
    lines.take_while(|line| !line.is_empty()).collect()
}

#[test]
fn a_depth_by_load_is_pasted_only_for_a_vllm_that_has_it() {
    let loads = "1,8,64,256";
    let key = "num_speculative_tokens_per_batch_size";
    let new = answers(&with(&["--engine", "vllm@0.29.0", "--concurrency", loads]));
    assert!(paste(&new).join("").contains(key), "{new}");
    // 0.24 takes the key, and runs it without whole graphs; 0.25 mostly.
    for version in ["0.11.1", "0.24.0", "0.28.0"] {
        let smaller = format!(
            "predict --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --engine vllm@{version}"
        );
        let old = answers(&smaller.split(' ').collect::<Vec<_>>());
        assert!(!paste(&old).join("").contains(key), "{old}");
        assert!(
            paste(&old).join("").contains("num_speculative_tokens"),
            "{old}"
        );
        let said = format!("at every load: vLLM {version} has no depth by load in whole graphs");
        assert!(old.contains(&said), "{old}");
    }
}

#[test]
fn an_engine_that_was_named_is_pasted_alone() {
    let named = answers(&with(&["--engine", "vllm"]));
    let lines = paste(&named);
    assert!(
        lines.len() == 2 && lines[0].starts_with("  vllm: vllm serve MODEL_PATH "),
        "{named}"
    );
    assert_eq!(
        lines[1],
        "  MODEL_PATH: the checkpoint of qwen3-32b in bf16; DRAFT_PATH: the head trained for it"
    );
    assert_eq!(paste(&answers(&with(&[]))).len(), 3);
}

#[test]
fn a_draft_named_by_its_repository_is_pasted_by_it() {
    let name = "RedHatAI/Qwen3-32B-speculator.eagle3";
    let text = answers(&with(&["--draft", name]));
    for line in paste(&text)
        .iter()
        .filter(|line| !line.contains("MODEL_PATH:"))
    {
        assert!(line.contains(name), "{text}");
    }
    assert!(!text.contains("DRAFT_PATH"), "{text}");
    let text = answers(&with(&["--draft", name, "--engine", "trtllm"]));
    let extra = format!("speculative_model_dir: {name}");
    assert!(paste(&text).join("").contains(&extra), "{text}");
}

/// The lines under `paste` of a `predict` with these flags.
fn pasted(flags: &[&str]) -> String {
    let arguments: Vec<&str> = ["predict"]
        .into_iter()
        .chain(flags.iter().copied())
        .collect();
    let text = answers(&arguments);
    let lines = paste(&text).join("\n");
    assert!(!lines.is_empty(), "{text}");
    lines
}

#[test]
fn the_checkpoint_that_was_named_is_pasted_and_only_fp8_is_made_while_loading() {
    let named = pasted(&["--model", "Qwen/Qwen3-32B-AWQ", "--gpu", "h100"]);
    for line in [
        "--model-path Qwen/Qwen3-32B-AWQ ",
        "vllm serve Qwen/Qwen3-32B-AWQ ",
    ] {
        assert!(named.contains(line), "{named}");
    }
    assert!(!named.contains("--quantization"), "{named}");
    let online = pasted(&[
        "--model",
        "Qwen/Qwen3-32B",
        "--quant",
        "fp8",
        "--gpu",
        "h100",
    ]);
    assert!(
        online.contains("Qwen/Qwen3-32B --quantization fp8"),
        "{online}"
    );
    let other = pasted(&[
        "--model",
        "Qwen/Qwen3-32B",
        "--quant",
        "awq",
        "--gpu",
        "h100",
    ]);
    assert!(
        other.contains("MODEL_PATH: the checkpoint of qwen3-32b in awq"),
        "{other}"
    );
}

#[test]
fn a_hybrid_with_a_draft_gets_the_state_strategy_of_sglang_s_releases_that_refuse_without() {
    let model = [
        "--model",
        "qwen3.5-122b-a10b",
        "--gpu",
        "h100",
        "--gpus",
        "4",
        "--engine",
    ];
    // These releases keep drafted states for every request that may run, 48 unless told.
    let told = ["--max-running", "8"];
    let of = |engine: &str| pasted(&[&model[..], &[engine], &told].concat());
    let old = of("sglang@0.5.9");
    for part in [
        "SGLANG_ENABLE_SPEC_V2=1 python",
        "--mamba-scheduler-strategy extra_buffer",
    ] {
        assert!(old.contains(part), "{old}");
    }
    assert!(
        !of("sglang@0.5.18").contains("mamba"),
        "its own choice since 0.5.14"
    );
}

#[test]
fn more_users_than_the_engine_runs_by_itself_are_pasted_where_they_were_asked_for() {
    let model = ["--model", "qwen3-8b", "--gpu", "h100", "--engine", "sglang"];
    let asked = pasted(&[&model[..], &["--concurrency", "1,64"]].concat());
    assert!(asked.contains("--max-running-requests 64"), "{asked}");
    let few = pasted(&[&model[..], &["--concurrency", "1,32"]].concat());
    assert!(!few.contains("--max-running-requests"), "{few}");
    let text = answers(&[&["predict"], &model[..]].concat());
    assert!(
        text.contains("64 users: SGLang runs 48 at once by itself"),
        "{text}"
    );
}

#[test]
fn a_context_asked_for_by_the_engines_name_is_pasted_under_it() {
    let model = [
        "--model",
        "qwen3-8b",
        "--gpu",
        "h100",
        "--max-model-len",
        "16k",
    ];
    let lines = pasted(&model);
    for part in ["--context-length 16384", "--max-model-len 16384"] {
        assert!(lines.contains(part), "{lines}");
    }
}

#[test]
fn an_all_reduce_that_was_asked_for_is_switched_on_or_said_to_be_in_no_release() {
    let box8 = ["--model", "kimi-k2.5", "--box", "two-switch-8", "--engine"];
    let islands = [&box8[..], &["vllm@0.30", "--allreduce", "island"]].concat();
    assert!(
        pasted(&islands).contains("VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1 vllm serve"),
        "{}",
        pasted(&islands)
    );
    let sglang = [
        &["predict"],
        &box8[..],
        &["sglang", "--allreduce", "one-shot"],
    ]
    .concat();
    let text = answers(&sglang);
    assert!(
        text.contains(
            "--allreduce one-shot: in no release, only in forks (b12x); so no flag gives it"
        ),
        "{text}"
    );
    let mesh = [
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--gpus",
        "4",
        "--engine",
        "vllm",
    ];
    let forced = pasted(&[&mesh[..], &["--allreduce", "one-shot"]].concat());
    assert!(
        forced.contains("VLLM_CUSTOM_ALLREDUCE_ALGO=1stage vllm serve"),
        "{forced}"
    );
}

#[test]
fn look_up_is_pasted_with_its_own_flags_and_has_no_draft() {
    let model = ["--model", "qwen3-32b", "--gpu", "h100", "--draft", "ngram"];
    let lines = pasted(&[&model[..], &["--accept", "2.9@4"]].concat());
    for part in [
        "--speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1 --speculative-num-draft-tokens",
        r#""method":"ngram","num_speculative_tokens":"#,
        r#""prompt_lookup_max":4"#,
    ] {
        assert!(lines.contains(part), "{lines}");
    }
    assert!(
        !lines.contains("DRAFT_PATH") && !lines.contains("num-steps"),
        "{lines}"
    );
}

/// The answer as JSON.
fn json(flags: &[&str]) -> serde_json::Value {
    let text = answers(&[&["predict", "--json"], flags].concat());
    serde_json::from_str(&text).expect("valid JSON")
}

const GLM: [&str; 10] = [
    "--model",
    "glm-4.6",
    "--draft",
    "mtp",
    "--box",
    "hgx-h200-8",
    "--engine",
    "vllm@0.24",
    "--context",
    "4k",
];

#[test]
fn the_rows_are_of_the_one_depth_pasted_where_it_serves_every_load() {
    let loads = [&GLM[..], &["--concurrency", "1,2,4,8,16,32,64,128"]].concat();
    let text = answers(&[&["predict"], &loads[..]].concat());
    let lines = paste(&text).join("");
    assert!(!lines.contains("per_batch_size"), "{text}");
    let answer = json(&loads);
    let config = &answer["engine_flags"]["vllm"];
    let config = config
        .as_array()
        .expect("flags")
        .iter()
        .filter_map(|f| f.as_str());
    let config = config.filter_map(|flag| serde_json::from_str::<serde_json::Value>(flag).ok());
    let pasted = config
        .filter_map(|config| config["num_speculative_tokens"].as_u64())
        .next()
        .expect("a depth");
    for point in answer["points"].as_array().expect("rows") {
        assert_eq!(point["steps"].as_u64(), Some(pasted), "{point}");
        let ties = point["ties"].as_array().expect("ties");
        let near = ties.iter().any(|depth| depth.as_u64() == Some(pasted));
        assert!(near && point["faster"].is_null(), "{pasted}: {point}");
    }
    assert_eq!(answer["best"]["steps"].as_u64(), Some(pasted));
}

#[test]
fn the_map_has_the_depths_of_the_table() {
    let dense = ["--model", "qwen3-32b", "--gpu", "h100", "--context", "4k"];
    for flags in [&GLM[..], &dense[..]] {
        let answer = json(flags);
        let cells = answer["depth_map"].as_array().expect("cells");
        for point in answer["points"].as_array().expect("rows") {
            let here = |key: &str, cell: &serde_json::Value| cell[key] == point[key];
            let mut own = cells
                .iter()
                .filter(|c| here("concurrency", c) && here("context", c));
            let cell = own
                .next()
                .expect("the scenario's own context is in the map");
            let off = point["off_in_paste"] == true || point["speedup"].as_f64() < Some(1.0);
            let same = here("steps", cell) && here("speedup", cell);
            let shown = if off { cell["steps"] == 0 } else { same };
            assert!(shown, "{point} {cell}");
        }
    }
}

#[test]
fn a_head_past_what_its_config_reaches_is_measured_first_and_its_figure_is_in_the_band() {
    let server = "--model llama-3.3-70b --quant fp8 --box hgx-h200-8 --tp 4 --context";
    let server: Vec<&str> = server.split(' ').collect();
    let of = |context| [&server[..], &[context]].concat();
    let (within, beyond) = (json(&of("2k")), json(&of("32k")));
    assert_eq!(within["verdict"], "pays");
    assert_eq!(beyond["verdict"], "measure-first");
    let what = beyond["measure"]["what"].as_str().unwrap_or_default();
    assert!(what.contains("how far your head reaches"), "{what}");
    let how = beyond["measure"]["how"].as_str().unwrap_or_default();
    let pasted = format!("--accept LENGTH@{}", beyond["best"]["steps"]);
    assert!(
        how.contains(&pasted),
        "measured at the steps that are pasted: {how}"
    );
    let length = |answer: &serde_json::Value| answer["scenario"]["accept_length"]["value"].as_f64();
    assert!(
        length(&beyond) < Some(1.3) && length(&within) > Some(2.0),
        "{what}"
    );
    let measured = json(&[&of("32k")[..], &["--accept", "2.6@3"]].concat());
    assert_eq!(measured["verdict"], "pays", "what was measured is believed");
    // A head that reaches as far as the context does not fall.
    let long = ["--model", "qwen3-32b", "--gpu", "h100", "--context"];
    let at = |context| length(&json(&[&long[..], &[context]].concat()));
    assert_eq!(at("2k"), at("32k"));
}

#[test]
fn context_flags_beside_a_measured_accept_length_are_said_to_do_nothing() {
    let measured = [
        "accept",
        "--accept",
        "2.4@3",
        "--context",
        "32k",
        "--trained-context",
        "2k",
    ];
    let text = answers(&measured);
    assert!(
        text.contains("--context and --trained-context: no effect"),
        "{text}"
    );
    let alone = answers(&["accept", "--trained-context", "2k"]);
    assert!(alone.contains("no effect without --context"), "{alone}");
}

#[test]
fn a_card_without_bf16_is_told_another_format() {
    for (card, told) in [("v100", true), ("t4", true), ("rtx-3090", false)] {
        let lines = pasted(&["--model", "llama-3.1-8b", "--quant", "int4", "--gpu", card]);
        assert_eq!(
            lines.matches("--dtype half").count(),
            2 * usize::from(told),
            "{lines}"
        );
    }
}

#[test]
fn requests_at_once_that_the_memory_does_not_hold_are_not_pasted() {
    let server = "--model qwen3-next-80b-a3b --quant awq --gpu rtx-3090 --gpus 4 --engine sglang --concurrency 1,512";
    let lines = pasted(&server.split(' ').collect::<Vec<_>>());
    assert!(!lines.contains("--max-running-requests"), "{lines}");
}

/// Loads at which three steps lose (8 users), all do (16), and some gain again (32).
const DIP: &str = "users,tok_s\n1,59\n2,92.4\n4,164.3\n8,251.5\n16,429.2\n32,318.1\n";

/// A server with this sweep, as arguments.
fn with_dip(engine: &str, more: &str) -> Vec<String> {
    with_sweep(DIP, engine, more)
}

fn with_sweep(sweep: &str, engine: &str, more: &str) -> Vec<String> {
    let path = std::env::temp_dir().join(format!(
        "sweep-{}-{}.csv",
        std::process::id(),
        sweep.len() + more.len()
    ));
    std::fs::write(&path, sweep).expect("a temporary file");
    let run = format!(
        "predict {more} --box two-switch-8 --engine {engine} --context 2k \
         --concurrency 1,2,4,8,16,32 --baseline {}",
        path.display()
    );
    run.split_whitespace().map(str::to_string).collect()
}

fn answered(run: &[String]) -> (String, serde_json::Value) {
    let flags: Vec<&str> = run.iter().map(String::as_str).collect();
    let json = answers(&[&flags[..], &["--json"]].concat());
    (
        answers(&flags),
        serde_json::from_str(&json).expect("valid JSON"),
    )
}

#[test]
fn what_the_headline_says_pays_holds_for_the_one_depth_pasted() {
    let (text, answer) = answered(&with_dip("vllm@0.20.2", "--model glm-5.1 --accept 2.4@3"));
    let lines = paste(&text).join("");
    let (_, after) = lines
        .split_once("num_speculative_tokens\":")
        .expect("a depth");
    let pasted: u32 = after[..1].parse().expect("one digit");
    let fixed = format!("--model glm-5.1 --accept 2.4@3 --steps {pasted}");
    let (_, alone) = answered(&with_dip("vllm@0.20.2", &fixed));
    let up_to = answer["pays_up_to_concurrency"].as_u64().expect("it pays");
    assert_eq!(alone["pays_up_to_concurrency"].as_u64(), Some(up_to));
    assert!(up_to >= 8, "the depth that keeps most loads: {text}");
    let rows = |answer: &serde_json::Value| answer["points"].as_array().cloned().expect("rows");
    for (row, other) in rows(&answer).iter().zip(&rows(&alone)) {
        for key in ["steps", "speedup", "speedup_low", "speedup_high", "verdict"] {
            assert_eq!(row[key], other[key], "{key}: {row}");
        }
    }
    let first = &answer["points"][0];
    let head = format!(
        "{:.2}x for one user",
        first["speedup"].as_f64().expect("a speedup")
    );
    assert!(text.contains(&head), "{text}");
}

#[test]
fn above_a_load_where_it_is_off_the_paste_does_not_switch_it_on_again() {
    let (text, answer) = answered(&with_dip("vllm@0.29.0", "--model glm-5.1 --accept 2.4@3"));
    let lines = paste(&text).join("");
    assert!(lines.contains(",32,0]]"), "{text}");
    assert!(answer["points"][5]["speedup"].as_f64() > Some(1.0));
    assert!(text.contains("off in the paste"), "{text}");
    assert!(!text.contains("16 users or more"), "32 gain again: {text}");
}

#[test]
fn the_ledger_is_of_the_deepest_pasted() {
    let model = "--model qwen3.5-397b-a17b --quant nvfp4 --draft mtp --accept 3.6@3";
    let run = with_dip("vllm@0.29.0", model);
    let (text, answer) = answered(&run);
    let lines = paste(&text).join("");
    let (_, after) = lines
        .split_once("num_speculative_tokens\":")
        .expect("a depth");
    let deepest = &after[..1];
    assert!(deepest > "3", "another than the default: {text}");
    let fixed = [&run[..], &["--steps".to_string(), deepest.to_string()]].concat();
    let (_, fixed) = answered(&fixed);
    assert_eq!(answer["memory"]["kv_tokens"], fixed["memory"]["kv_tokens"]);
    assert_eq!(
        answer["memory"]["most_at_once"],
        fixed["memory"]["most_at_once"]
    );
}

#[test]
fn the_legal_fraction_is_of_the_context_that_the_pasted_line_serves() {
    let log = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/shapes/vllm-compose-eagle3.log"
    );
    let run = ["--from-log", log, "--gpu", "rtx-5090", "--context"];
    let text = answers(&[&["predict"], &run[..], &["4k"]].concat());
    assert!(
        paste(&text).join("").contains("--max-model-len 32768"),
        "{text}"
    );
    let longer = json(&[&run[..], &["32k"]].concat());
    let least = longer["memory"]["fraction_min"].as_f64().expect("a wall");
    let least = (least * 1e4).ceil() / 1e4;
    let said = format!("legal fraction: {least:.4} to ");
    assert!(
        text.contains(&said) && text.contains("32,768 tokens"),
        "{text}"
    );
    assert!(text.contains("for 4,096 tokens"), "{text}");
}

#[test]
fn no_depth_is_said_to_be_pasted_where_the_paste_drafts_nothing() {
    // Two users are dear, so that one does not pay and others do, each at a depth of its own.
    let sweep = "users,tok_s\n1,100\n2,104\n4,110\n8,390\n16,760\n32,1400\n64,2500\n";
    let run = with_sweep(sweep, "vllm@0.20.2", "--model glm-5.1 --accept 1.9@3");
    let (text, answer) = answered(&run);
    assert_eq!(answer["verdict"], "does-not-pay", "{text}");
    assert!(answer["points"][2]["speedup"].as_f64() > Some(1.5));
    assert!(
        !text.contains("step pasted") && !text.contains("steps pasted"),
        "{text}"
    );
}
