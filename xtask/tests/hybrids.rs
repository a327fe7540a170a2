//! Hybrids: state slots limit how many requests run at once, in `plan`, `predict` and the report
//! alike; figures of a run are read with the states beside the pool, and alone.

mod common;

use common::answers;
use serde_json::Value;

const CARD: [&str; 6] = ["--gpu", "rtx-4090", "--gpus", "8", "--tp", "8"];

fn of_hybrid(command: &str, flags: &[&str]) -> String {
    let mut arguments = vec![command, "--model", "qwen3.5-27b"];
    arguments.extend(CARD);
    arguments.extend(flags);
    answers(&arguments)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// `plan` with figures of a log and nothing else, as JSON.
fn of_figures(flags: &str) -> Value {
    let arguments: Vec<&str> = ["plan", "--json"]
        .into_iter()
        .chain(flags.split(' '))
        .collect();
    json(&answers(&arguments))
}

#[test]
fn loads_above_the_state_slots_are_marked_and_the_limit_stands_on_top() {
    let text = of_hybrid("predict", &["--mem-fraction", "0.7"]);
    let answer = json(&of_hybrid("predict", &["--mem-fraction", "0.7", "--json"]));
    let most = &answer["memory"]["most_at_once"];
    assert_eq!(most["wall"], "state slots", "{most}");
    let requests = most["requests"].as_u64().expect("a limit");
    let limit = format!("runs {requests} request");
    assert!(
        text.lines().nth(2).is_some_and(|l| l.contains(&limit)),
        "{text}"
    );
    assert!(text.contains("no state slot is left") || text.contains("the state slots carry fewer"));
    for row in answer["points"].as_array().expect("rows") {
        let fits = row["concurrency"].as_u64() <= Some(requests);
        assert_eq!(row["fits"], fits, "{row}");
    }
    assert!(text.contains("more than the state slots carry"), "{text}");
    assert!(!text.contains("48 at once by itself"), "{text}");
}

#[test]
fn plan_and_predict_agree_on_requests_at_once() {
    for model in [
        "qwen3.5-27b",
        "qwen3-next-80b-a3b",
        "nemotron-3-nano-30b-a3b",
    ] {
        for engine in ["sglang@0.5.12", "sglang", "vllm"] {
            let of = |command| {
                let shared = ["--gpu", "h100-sxm", "--gpus", "4", "--steps", "3", "--json"];
                let mut arguments = vec![command, "--model", model, "--engine", engine];
                arguments.extend(shared);
                json(&answers(&arguments))["memory"]["most_at_once"].clone()
            };
            assert_eq!(of("plan"), of("predict"), "{model} {engine}");
        }
    }
}

#[test]
fn pinned_slots_are_planned_and_pasted() {
    let flags = ["--state-slots", "40", "--mem-fraction", "0.85"];
    let text = of_hybrid("predict", &flags);
    assert!(text.contains("runs 8 requests at once"), "{text}");
    assert!(text.contains("--max-mamba-cache-size 40"), "{text}");
}

#[test]
fn the_pool_of_a_hybrid_gives_its_fraction_back() {
    let shared = ["--draft", "none", "--json", "--mem-fraction"];
    let planned = json(&of_hybrid("plan", &[&shared[..], &["0.8"]].concat()));
    let gib = |name: &str| {
        let lines = planned["memory"]["ledger"].as_array().expect("lines");
        let line = lines.iter().find(|line| line["item"] == name);
        line.and_then(|line| line["gib"].as_f64()).expect("a line")
    };
    let before = 24.02 - gib("driver, CUDA context, NCCL");
    let after = before - planned["weights_gib"]["used"].as_f64().expect("weights");
    let seen = |states: bool| {
        let figures = [
            ("--free-before-gib", before),
            ("--free-after-gib", after),
            ("--kv-gib", gib("target: KV pool")),
            ("--state-gib", gib("target: state pool")),
        ];
        let mut flags = vec!["--draft".to_string(), "none".into(), "--json".into()];
        for (flag, value) in &figures[..if states { 4 } else { 3 }] {
            flags.extend([flag.to_string(), format!("{value:.3}")]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        json(&of_hybrid("plan", &flags))["inferred_fraction"].as_f64()
    };
    for states in [false, true] {
        let fraction = seen(states).expect("inferred");
        assert!((fraction - 0.8).abs() < 0.003, "{states}: {fraction}");
    }
}

#[test]
fn figures_by_flag_are_never_joined_by_those_of_the_built_in_night() {
    let text = answers(&[
        "plan",
        "--free-before-gib",
        "23.09",
        "--free-after-gib",
        "14.47",
    ]);
    assert!(
        text.starts_with("assumed  kimi-k2.5 on rtx-pro-6000-server"),
        "{text}"
    );
    for word in ["10.42", "0.55", "-66"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    assert!(text.contains("0.3733 are refused"), "{text}");
    let answer = of_figures("--free-before-gib 23.09 --free-after-gib 14.47 --kv-gib 11.07");
    assert!(
        answer["memory"].is_null() && answer["believed"].is_null(),
        "{answer}"
    );
    let fraction = answer["inferred_fraction"].as_f64().expect("inferred");
    assert!((fraction - 0.8528).abs() < 0.0001, "{fraction}");
    // Figures that may be of the default model still plan it.
    let night = of_figures("--free-before-gib 94 --free-after-gib 21.7 --kv-gib 10.42");
    assert!(night["memory"]["kv_tokens"].is_u64(), "{night}");
}

/// A log that shows what was free and names no model is of the one named by flag.
#[test]
fn what_a_log_says_was_free_is_taken_where_it_names_no_model() {
    let folder = std::env::temp_dir().join(format!("hybrids-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let log = folder.join("server.log");
    let text = "[20:52:05] Load weight end. elapsed=2.57 s, type=Qwen3ForCausalLM, \
                avail mem=14.47 GB, mem usage=8.62 GB.\n\
                [20:52:05] Memory pool end. avail mem=3.40 GB\n\
                [20:53:40] The server is fired up and ready to roll!\n";
    std::fs::write(&log, text).expect("written");
    let arguments = ["plan", "--model", "qwen3-4b", "--gpu", "rtx-4090"];
    let path = log.to_str().expect("a path");
    let text = answers(&[&arguments[..], &["--from-log", path]].concat());
    assert!(!text.contains("before weights not observed"), "{text}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn the_report_has_the_limit_the_marks_and_the_states_by_name() {
    let folder = std::env::temp_dir().join(format!("hybrids-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join("page.html");
    let path = page.to_str().expect("a path");
    let text = answers(&[
        "predict",
        "--model",
        "qwen3.5-27b",
        "--quant",
        "int4",
        "--gpu",
        "rtx-4090",
        "--gpus",
        "8",
        "--tp",
        "2",
        "--report",
        path,
    ]);
    let page = std::fs::read_to_string(&page).expect("a page");
    for word in [
        "tok/s are of one replica",
        "requests at once",
        "more than the state slots carry",
        "states ",
    ] {
        assert!(page.contains(word), "{word}: {text}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// The draft's share was its layers over all slots for layers, those of states included: 0.13 GiB
/// beside 214,537 tokens of 2 KiB.
#[test]
fn a_drafts_pool_in_vllm_is_its_bytes_of_the_tokens_that_the_pool_holds() {
    let line = "predict --model qwen3.5-27b --quant int4 --draft mtp --steps 3 --engine vllm@0.22.1 --context 32k \
                --gpu rtx-3090 --gpus 2 --json";
    let text = answers(&line.split_whitespace().collect::<Vec<_>>());
    let said: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let memory = &said["memory"];
    let lines = memory["ledger"].as_array().expect("lines");
    let found = lines.iter().find(|line| line["item"] == "draft: KV pool");
    let gib = found
        .and_then(|line| line["gib"].as_f64())
        .expect("a draft's pool");
    // One layer of 4 heads of 256 over two cards, keys and values of 2 bytes.
    let bytes_per_token = 2.0 * 2.0 * 256.0 * 2.0;
    let tokens = memory["kv_tokens"].as_f64().expect("tokens");
    let by_hand = tokens * bytes_per_token / 1_073_741_824.0;
    assert!((gib - by_hand).abs() < 0.01 * by_hand, "{gib} {by_hand}");
}

/// Four slots where a request takes five: "short by 1280007.25 GiB"; and a flag without effect was taken
/// in silence, or pasted for a model without states.
#[test]
fn state_slots_that_no_request_runs_with_are_refused() {
    let refused = |model: &str, engine: &str, slots: &str| -> String {
        let args = [
            "plan", "--model", model, "--gpu", "h100", "--gpus", "4", "--engine", engine,
        ];
        common::refusal(&[&args[..], &["--state-slots", slots]].concat())
    };
    let few = refused("qwen3-next-80b-a3b", "sglang", "1");
    assert!(few.contains("--state-slots 1: a request takes"), "{few}");
    let none = refused("qwen3-32b", "sglang", "5");
    assert!(none.contains("has none to set"), "{none}");
    let engine = refused("qwen3-next-80b-a3b", "vllm", "5");
    assert!(engine.contains("has none to set"), "{engine}");
}

/// vLLM counts a hybrid's tokens as requests times their length, so that one pool came to 4.0 and to 5.4
/// million tokens at two contexts, and the cost line did not say at which.
#[test]
fn the_tokens_that_a_draft_costs_say_of_which_requests_they_are() {
    for (context, said) in [("8k", "8,192"), ("64k", "65,536")] {
        let words = ["--engine", "vllm", "--context", context];
        let model = ["predict", "--model", "qwen3-next-80b-a3b", "--quant", "fp8"];
        let text = answers(&[&model[..], &words, &["--gpu", "h100", "--gpus", "4"]].concat());
        let line = text.lines().find(|line| line.contains("  costs "));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(
            line.contains(&format!("KV tokens in requests of {said} (")),
            "{line}"
        );
    }
    // A dense model holds as many whatever they are.
    let dense = of_dense(&["--engine", "vllm", "--context", "8k"]);
    assert!(!dense.contains("in requests of"), "{dense}");
}

fn of_dense(words: &[&str]) -> String {
    let model = ["predict", "--model", "qwen3-32b", "--gpu", "h100"];
    answers(&[&model[..], words].concat())
}

/// A row named six steps for six users, where the server beside it carries four at that depth.
#[test]
fn a_row_names_no_depth_at_which_the_server_does_not_carry_it() {
    let of = |more: &str| {
        let line = "predict --model Qwen/Qwen3.6-27B --gpu rtx-3090 --gpus 4 --topology \
                    docs/examples/topo-4x3090.txt --context 12k --concurrency 1,2,4,6 --json";
        let words: Vec<&str> = line
            .split_whitespace()
            .chain(more.split_whitespace())
            .collect();
        json(&answers(&words))
    };
    let answer = of("");
    let six = |answer: &Value| answer["points"][3].clone();
    assert_eq!(six(&answer)["fits"], true, "{}", six(&answer));
    let fraction = answer["memory"]["fraction"].to_string();
    let deeper = of(&format!("--steps 6 --mem-fraction {fraction}"));
    let gains = |answer: &Value| six(answer)["speedup"].as_f64().expect("a speedup");
    assert!(gains(&deeper) > 1.05 * gains(&answer));
    assert_eq!(six(&deeper)["fits"], false, "{}", six(&deeper));
    assert!(six(&answer)["faster"].is_null(), "{}", six(&answer));
}
