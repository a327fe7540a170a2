//! Flags act or say that they do not; what cannot be is refused in one line that names its place.

mod common;

use common::{answers, xtask};

use std::path::PathBuf;

fn refuses(arguments: &[&str], words: &[&str]) {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(
        error.trim_end().lines().count(),
        1,
        "{arguments:?}: {error}"
    );
    for word in words {
        assert!(error.contains(word), "{arguments:?}: no {word}: {error}");
    }
}

fn json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&answers(arguments)).expect("JSON")
}

fn temporary(name: &str, content: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("xtask-flags-{}-{name}", std::process::id()));
    std::fs::write(&path, content).expect("a temporary file");
    path
}

const MODEL: [&str; 5] = ["predict", "--model", "qwen3-32b", "--gpu", "h100"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    MODEL.iter().chain(more).copied().collect()
}

#[test]
fn what_the_parser_refuses_takes_one_line() {
    refuses(&["predict", "--gpus", "-1"], &["--gpus"]);
    refuses(
        &["predict", "--mem-fraction", "-0.5"],
        &["--mem-fraction -0.5"],
    );
    refuses(&["predict", "--seed", "-1"], &["--seed"]);
    refuses(
        &["predict", "--baseline-context", "-5"],
        &["--baseline-context -5"],
    );
    refuses(&["accept", "--depths", "-1"], &["--depths -1"]);
    refuses(&["predict", "--tp", "99999999999"], &["--tp"]);
    refuses(
        &["predict", "--box", "hgx-h200-8", "--gpus", "2"],
        &["--box", "--gpus"],
    );
    refuses(&["predict", "--modle", "x"], &["--model"]);
    refuses(&["predcit"], &["predict"]);
    refuses(&["explain"], &["FILE"]);
    refuses(&[], &["--help"]);
    assert!(answers(&["predict", "--help"]).lines().count() > 20);
    assert!(answers(&["--version"]).starts_with("xtask"));
}

#[test]
fn fewer_gpus_alone_take_part_of_the_default_box() {
    let all = json(&["predict", "--json"]);
    let half = json(&["predict", "--gpus", "4", "--json"]);
    assert_eq!(all["scenario"]["tp"]["value"], 8);
    assert_eq!(half["scenario"]["tp"]["value"], 4);
    refuses(&["predict", "--gpus", "16"], &["--gpus 16", "8"]);
}

#[test]
fn a_task_that_an_assumed_accept_length_overrides_is_said_so() {
    let text = answers(&["predict", "--task", "code", "--temperature", "0"]);
    assert!(text.contains("--task and --temperature: ignored"), "{text}");
    let text = answers(&["predict", "--task", "code", "--accept", "2.3@3"]);
    assert!(text.contains("--task: the accept length is"), "{text}");
}

#[test]
fn a_kv_format_that_the_engine_lacks_is_refused() {
    refuses(&with(&["--kv-dtype", "q8_0"]), &["--kv-dtype q8_0", "fp8"]);
    refuses(
        &with(&["--kv-dtype", "q8_0", "--engine", "vllm"]),
        &["vllm"],
    );
    refuses(
        &with(&["--kv-dtype", "fp8", "--engine", "llamacpp"]),
        &["q8_0"],
    );
    answers(&with(&["--kv-dtype", "q8_0", "--engine", "llamacpp"]));
}

#[test]
fn decode_context_parallelism_is_refused_where_the_engine_has_none() {
    let two = ["--gpus", "2", "--dcp", "2"];
    for engine in ["trtllm", "llamacpp"] {
        refuses(
            &[&MODEL[..], &two, &["--engine", engine]].concat(),
            &["--dcp 2", engine],
        );
    }
    let text = answers(&[&MODEL[..], &two].concat());
    assert!(text.contains("dcp 2: only the step times"), "{text}");
}

#[test]
fn an_engine_version_is_a_number_with_a_point_or_a_month() {
    for version in ["sglang@", "vllm@99", "vllm@0.0.1", "vllm@abc"] {
        refuses(&with(&["--engine", version]), &[version, "2026-05"]);
    }
    let text = answers(&with(&["--engine", "vllm@9.1"]));
    assert!(text.contains("vllm 9.1: newer than"), "{text}");
    answers(&with(&["--engine", "vllm@2026-05"]));
}

#[test]
fn counts_and_alphas_are_read_by_predict_too() {
    for form in ["counts:10000:6500,4000,2400", "alphas:.65,.61538,.6"] {
        let answer = json(&with(&["--accept", form, "--steps", "3", "--json"]));
        let length = answer["points"][0]["accept_length"].as_f64().expect("one");
        assert!((length - 2.29).abs() < 0.05, "{form}: {length}");
    }
    refuses(
        &with(&["--accept", "rates:"]),
        &["--accept `rates:`: an empty list"],
    );
    refuses(&with(&["--accept", "counts:7"]), &["counts:CYCLES"]);
}

#[test]
fn a_box_file_needs_no_suffix_and_a_config_is_named_by_its_file() {
    let show = xtask(&["simulate", "--gpu", "h100", "--gpus", "2"]);
    assert!(show.status.success());
    let path = temporary("box", "not a box = [");
    let shown = path.to_string_lossy().into_owned();
    refuses(&["simulate", "--box", &shown], &[&shown]);
    let nested = temporary("nest.json", "[1");
    let shown = nested.to_string_lossy().into_owned();
    refuses(
        &["predict", "--model", &shown, "--gpu", "h100"],
        &[&format!("{shown}: ")],
    );
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(nested);
}

#[test]
fn a_scenario_file_takes_what_the_flags_take_and_names_types_in_words() {
    let base = "model = \"qwen3-8b\"\ngpu = \"h100\"\ngpus = 1\n";
    let path = temporary(
        "a.toml",
        &format!("{base}context = \"32k\"\nconcurrency = \"1,2\"\n"),
    );
    let shown = path.to_string_lossy().into_owned();
    let answer = json(&["predict", "--scenario", &shown, "--json"]);
    assert_eq!(answer["scenario"]["context"]["value"], 32768);
    assert_eq!(answer["points"][1]["concurrency"], 2);
    std::fs::write(&path, format!("{base}tp = \"two\"\n")).expect("written");
    refuses(
        &["predict", "--scenario", &shown],
        &[&format!("{shown}:4: "), "whole number"],
    );
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_bad_row_of_a_sweep_is_named_by_its_line_and_odd_ones_are_noted() {
    let path = temporary("sweep.csv", "");
    let shown = path.to_string_lossy().into_owned();
    let run = [&MODEL[..], &["--accept", "2.3@3", "--baseline", &shown]].concat();
    for bad in ["2,abc", "2,-5", "0,90", "4,nan", "2,1e308", "7", "1;90,5"] {
        std::fs::write(&path, format!("concurrency,tok_s\n1,90\n{bad}\n")).expect("written");
        refuses(&run, &[&format!("{shown}:3: "), "users,tok_s"]);
    }
    for good in [
        "# mine\nconcurrency,tok_s\n1,90 # one\n\"8\",\"500\"\n",
        "1,90,first\n8,500,last\n",
        "model,tok_s,users\na,90,1\na,500,8\n",
        "1 90\n8  500\n",
    ] {
        std::fs::write(&path, good).expect("written");
        let text = answers(&run);
        assert!(text.contains("500"), "{good}: {text}");
    }
    let absurd = r#"{"results": [{"concurrency": 1, "aggregate_tps": 1e300}]}"#;
    std::fs::write(&path, absurd).expect("written");
    refuses(&run, &[&shown, "no server reaches"]);
    std::fs::write(&path, "1,90\n1,91\n32,700\n64,650\n").expect("written");
    let text = answers(&run);
    assert!(text.contains("again in line 2"), "{text}");
    assert!(text.contains("throughput falls"), "{text}");
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_tree_is_priced_and_accepted_as_a_tree_and_vllm_gets_no_flags_for_it() {
    let run =
        |more: &[&'static str]| json(&[&with(&["--steps", "5", "--json"])[..], more].concat());
    let chain = run(&["--draft-tokens", "6"]);
    let tree = run(&["--topk", "8", "--draft-tokens", "32"]);
    let small = run(&["--topk", "3", "--draft-tokens", "6"]);
    let of =
        |answer: &serde_json::Value, key: &str| answer["points"][0][key].as_f64().expect("one");
    assert!(of(&tree, "accept_length") > of(&chain, "accept_length"));
    assert!(of(&small, "accept_length") < of(&chain, "accept_length"));
    assert!(of(&tree, "verify_ms") > of(&chain, "verify_ms"));
    assert!(tree["engine_flags"]["vllm"].is_null());
    assert!(chain["engine_flags"]["vllm"].is_array());
    refuses(&with(&["--topk", "4"]), &["--topk 4", "--draft-tokens"]);
}

#[test]
fn one_of_steps_and_draft_tokens_takes_back_what_the_scenario_says_of_the_other() {
    let deeper = json(&["predict", "--steps", "5", "--json"]);
    assert_eq!(deeper["best"]["draft_tokens"], 6);
    let wider = json(&["predict", "--draft-tokens", "8", "--json"]);
    assert_eq!(wider["best"]["steps"], 7);
    refuses(&["predict", "--topk", "4"], &["--draft-tokens"]);
}

#[test]
fn a_fraction_asked_for_is_planned_with_and_not_the_one_seen() {
    let asked = json(&["plan", "--mem-fraction", "0.9", "--json"]);
    assert_eq!(asked["memory"]["fraction"], 0.9);
    let seen = json(&["plan", "--json"]);
    assert!((seen["memory"]["fraction"].as_f64().expect("one") - 0.88).abs() < 0.001);
}

#[test]
fn draft_tokens_that_are_wasted_or_mean_steps_are_said_so() {
    let text = answers(&with(&["--draft-tokens", "16"]));
    assert!(text.contains("15 draft steps: --draft-tokens 16"), "{text}");
    let text = answers(&with(&["--steps", "3", "--draft-tokens", "64"]));
    assert!(text.contains("4 tokens verified, not 64"), "{text}");
    let old = [
        "--engine",
        "sglang@0.4.3",
        "--steps",
        "5",
        "--draft-tokens",
        "3",
    ];
    let text = answers(&with(&old));
    assert!(
        text.contains("3 of 5 drafted tokens are thrown away"),
        "{text}"
    );
}

#[test]
fn fewer_draft_tokens_than_the_engine_verifies_are_refused() {
    for engine in ["vllm", "sglang", "trtllm"] {
        let few = ["--engine", engine, "--steps", "4"];
        refuses(
            &with(&[&few[..], &["--draft-tokens", "2"]].concat()),
            &["--draft-tokens 2", "5 tokens at 4 steps"],
        );
        answers(&with(&[&few[..], &["--draft-tokens", "5"]].concat()));
    }
}

#[test]
fn a_fraction_to_paste_is_of_its_own_engine_and_starts() {
    let flag = |answer: &serde_json::Value, engine: &str, name: &str| -> Option<String> {
        let flags = answer["engine_flags"][engine].as_array()?;
        let at = flags.iter().position(|flag| flag == name)?;
        flags.get(at + 1)?.as_str().map(str::to_string)
    };
    let own = json(&with(&["--engine", "sglang", "--gpus", "2", "--json"]));
    let other = json(&with(&["--engine", "vllm", "--gpus", "2", "--json"]));
    let name = "--mem-fraction-static";
    let sglang = flag(&own, "sglang", name).expect("a fraction");
    assert_eq!(flag(&other, "sglang", name), Some(sglang));
    // 70B in bf16 fits no single card: no fraction is worth pasting.
    let tight = json(&[
        "predict",
        "--model",
        "llama-3.3-70b",
        "--quant",
        "bf16",
        "--gpu",
        "h100",
        "--json",
    ]);
    assert_eq!(
        flag(&tight, "sglang", name),
        None,
        "{}",
        tight["engine_flags"]
    );
    assert_eq!(flag(&tight, "vllm", "--gpu-memory-utilization"), None);
}

#[test]
fn flags_to_paste_name_the_method_of_the_head() {
    let trt = json(&with(&["--engine", "trtllm", "--json"]));
    let extra = trt["engine_flags"]["trtllm_extra_yml"][0]
        .as_str()
        .expect("a line");
    assert!(
        extra.contains("decoding_type: Eagle, max_draft_len:"),
        "{extra}"
    );
    let text = answers(&with(&["--engine", "llamacpp"]));
    assert!(
        text.contains("no llama.cpp flags for eagle3 heads"),
        "{text}"
    );
    assert!(!text.contains("-md"), "{text}");
}

#[test]
fn plan_names_the_flags_that_change_nothing() {
    let text = answers(&["plan", "--task", "code", "--accept", "2.3@3", "--seed", "7"]);
    assert!(
        text.contains("ignored    --accept, --task, --seed"),
        "{text}"
    );
    let plain = answers(&["plan"]);
    assert!(!plain.contains("ignored"), "{plain}");
    let vllm = [
        "plan",
        "--model",
        "kimi-k2.5",
        "--gpu",
        "h200",
        "--gpus",
        "8",
        "--engine",
        "vllm",
        "--json",
    ];
    let one = json(&vllm);
    let two = json(&[&vllm[..], &["--dcp", "2"]].concat());
    let tokens = |answer: &serde_json::Value| answer["memory"]["kv_tokens"].as_u64();
    assert!(tokens(&two) > tokens(&one), "dcp divides vLLM's KV");
    assert_eq!(two["ignored_flags"], serde_json::json!([]));
}

#[test]
fn readings_that_contradict_each_other_are_warned_of_and_stay_in_the_band() {
    let answer = json(&[
        "accept", "--accept", "2.3@3", "--accept", "3.9@3", "--depths", "3", "--json",
    ]);
    assert_eq!(answer["warnings"][0]["kind"], "readings-disagree");
    let band = &answer["depths"][0];
    assert!(band["low"].as_f64().expect("low") <= 2.31, "{band}");
    assert!(band["high"].as_f64().expect("high") >= 3.89, "{band}");
    let agree = json(&["accept", "--accept", "2.3@3", "--accept", "2.4@3", "--json"]);
    assert_eq!(agree["warnings"], serde_json::json!([]));
}

#[test]
fn a_log_that_names_an_unknown_model_is_blamed_by_its_line() {
    let log = "[2026-03-01 22:10:05] server_args=ServerArgs(model_path='/models/no-such-7b', \
               tokenizer_path='/models/no-such-7b', mem_fraction_static=0.8, tp_size=1)\n\
               [2026-03-01 22:10:06 TP0] Load weight begin. avail mem=79.00 GB\n";
    let path = temporary("unknown.log", log);
    let shown = path.to_string_lossy().into_owned();
    refuses(
        &["predict", "--from-log", &shown, "--gpu", "h100"],
        &[&format!("{shown}:1: model"), "--model"],
    );
    let _ = std::fs::remove_file(path);
}

#[test]
fn accept_says_what_a_flag_lacks() {
    refuses(&["accept", "--cycles", "500"], &["--cycles", "--accept"]);
    let text = answers(&["accept", "--head", "mtp", "--context", "32k"]);
    assert!(text.contains("--context: no effect"), "{text}");
    // What an EAGLE head was trained on nobody says, so the band goes down to one trained on short text.
    let eagle = |context: &str| answers(&["accept", "--context", context]);
    let (long, short) = (eagle("16k"), eagle("4k"));
    assert!(
        long.contains("2.61  1.04 to 3.36") && long.contains("trained on short text"),
        "{long}"
    );
    assert!(
        short.contains("2.61  1.79 to 3.36") && short.contains("--context: no effect"),
        "{short}"
    );
}

#[test]
fn a_log_without_a_model_is_told_so_and_a_loaders_name_is_no_weight_format() {
    let path = std::env::temp_dir().join(format!("xtask-log-{}.log", std::process::id()));
    let loaded = "[2026-03-01 22:10:05 TP0] Load weight begin. avail mem=94.00 GB\n\
        [2026-03-01 22:19:41 TP0] Load weight end. avail mem=21.70 GB, mem usage=72.30 GB.\n\
        [2026-03-01 22:19:42 TP0] max_total_num_tokens=159218, chunked_prefill_size=8192, \
        max_prefill_tokens=16384, max_running_requests=64, context_len=262144\n";
    let run = |text: &str| {
        std::fs::write(&path, text).expect("a temporary log");
        let shown = path.to_string_lossy().into_owned();
        let output = xtask(&["predict", "--from-log", &shown, "--gpu", "h100"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = run(loaded);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("does not name the model"), "{error}");
    let (code, error) = run(&format!(
        "$ python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 1 \
         --quantization compressed-tensors\n{loaded}"
    ));
    assert_eq!(code, Some(0), "{error}");
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_load_beyond_the_pool_is_not_called_one_that_does_not_pay() {
    let answer = |more: &[&str]| {
        let mut arguments = vec![
            "predict",
            "--model",
            "qwen3-14b",
            "--gpu",
            "rtx-4090",
            "--gpus",
            "2",
        ];
        arguments.extend(more);
        String::from_utf8_lossy(&xtask(&arguments).stdout).into_owned()
    };
    let crowded = answer(&["--concurrency", "8", "--mem-fraction", "0.72"]);
    assert!(crowded.contains("holds fewer than 8 users"), "{crowded}");
    let long = answer(&["--context", "16k", "--mem-fraction", "0.715"]);
    assert!(long.contains("without the draft"), "{long}");
}

#[test]
fn an_accept_length_of_one_is_told_to_be_a_broken_load() {
    let output = xtask(&[
        "predict", "--model", "qwen3-8b", "--gpu", "h100", "--accept", "1.0@3",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("taken as given, but"), "{text}");
    let sound = xtask(&[
        "predict", "--model", "qwen3-8b", "--gpu", "h100", "--accept", "2.4@3",
    ]);
    let text = String::from_utf8_lossy(&sound.stdout);
    assert!(!text.contains("taken as given, but"), "{text}");
}

#[test]
fn a_load_with_two_shares_is_refused_and_one_gpu_has_no_all_reduce() {
    refuses(
        &with(&["--concurrency", "1:1,1:2"]),
        &["--concurrency", "1 stands twice"],
    );
    let told = answers(&with(&["--allreduce", "one-shot"]));
    assert!(told.contains("--allreduce one-shot: changes nothing"));
}

#[test]
fn a_draft_of_which_nothing_is_accepted_does_not_pay() {
    let flags = with(&["--accept", "1.0@3", "--concurrency", "1,64", "--json"]);
    let answer = json(&flags);
    assert_eq!(answer["verdict"], "does-not-pay");
    for point in answer["points"].as_array().expect("points") {
        assert_eq!(point["verdict"], "does-not-pay", "{point}");
        assert_eq!(point["probability_pays"], 0.0);
        assert!(point["speedup_high"].as_f64().is_some_and(|s| s <= 1.0));
    }
    let warned = answer["assumptions"].to_string();
    assert!(
        warned.contains("no drafted token was ever accepted"),
        "{warned}"
    );
}

/// The FP8 that Ampere reads was pasted as the one that it does not.
#[test]
fn an_fp8_cache_is_pasted_as_it_was_asked_for() {
    let of = |engine: &str, dtype: &str| {
        let run = format!(
            "predict --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 2 --context 4k --concurrency 1 \
             --engine {engine} --kv-dtype {dtype}"
        );
        answers(&run.split_whitespace().collect::<Vec<_>>())
    };
    for engine in ["vllm", "sglang"] {
        let text = of(engine, "fp8_e5m2");
        assert!(text.contains("--kv-cache-dtype fp8_e5m2"), "{text}");
        let usual = of(engine, "fp8");
        assert!(
            !usual.contains("e5m2") && usual.contains("--kv-cache-dtype fp8"),
            "{usual}"
        );
    }
}

#[test]
fn a_flag_of_another_command_is_answered_with_where_to_look() {
    let error = common::refusal(&["simulate", "--engine", "vllm"]);
    assert!(error.contains("--help behind the command"), "{error}");
}
