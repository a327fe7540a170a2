//! A log and the model asked for beside it: diffusion models, names that the catalogue lacks, speeds of
//! a bench printed into the log.

mod common;

use common::{answers, refusal, xtask};

/// A server of two cards whose log ends behind its pool.
const LOG: &str = "\
(APIServer pid=1) INFO 06-19 05:50:41 [api_utils.py:273] non-default args: {'model_tag': '/models/NAME', 'model': '/models/NAME', 'max_model_len': 32768, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.85, 'max_num_seqs': 4}
(APIServer pid=1) INFO 06-19 05:50:42 [core.py:70] Initializing a V1 LLM engine (v0.22.1) with config: model='/models/NAME'
(APIServer pid=1) INFO 06-19 05:50:52 [model.py:611] Resolved architecture: CLASS
(Worker_TP0 pid=50) INFO 06-19 05:51:39 [gpu_worker.py:480] Available KV cache memory: 4.37 GiB
(EngineCore pid=40) INFO 06-19 05:51:39 [kv_cache_utils.py:1744] GPU KV cache size: 35,728 tokens
(EngineCore pid=40) INFO 06-19 05:51:39 [kv_cache_utils.py:1745] Maximum concurrency for 32,768 tokens per request: 1.09x
";

const DIFFUSION: &str = "is a diffusion language model: it decodes blocks of tokens by itself";

const BOX: [&str; 2] = ["--box", "2x-rtx-3090-nvlink"];

fn file(name: &str, text: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-model");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

fn log(file_name: &str, name: &str, class: &str) -> String {
    let text = LOG.replace("NAME", name).replace("CLASS", class);
    file(file_name, &text)
}

#[test]
fn a_diffusion_model_is_refused_by_predict_and_plan_whatever_names_it() {
    let class = "DiffusionGemmaForBlockDiffusion";
    let by_class = log("class.log", "my-own-name", class);
    let by_name = log("name.log", "diffusiongemma-26b-a4b-it", "X");
    let config = format!(
        "{{\"architectures\": [\"{class}\"], \"text_config\": {{\"hidden_size\": 2816, \
         \"num_hidden_layers\": 30, \"num_attention_heads\": 16, \"vocab_size\": 262144, \
         \"intermediate_size\": 2112}}}}"
    );
    let config = file("config.json", &config);
    for what in [
        ["--from-log", &by_class],
        ["--from-log", &by_name],
        ["--model", &config],
        ["--model", "inclusionAI/LLaDA2.0-mini"],
    ] {
        for command in ["predict", "plan"] {
            let why = refusal(&[&[command], &what[..], &BOX].concat());
            assert!(why.contains(DIFFUSION), "{why}");
            assert!(!why.contains("config.json, or"), "{why}");
        }
    }
    // Its own config beside its log is no other model.
    let both = ["predict", "--from-log", &by_class, "--model", &config];
    assert!(refusal(&[&both[..], &BOX].concat()).contains(DIFFUSION));
    let shown = answers(&["explain", &config]);
    assert!(shown.contains("denoises blocks of tokens"), "{shown}");
}

#[test]
fn a_log_of_another_model_says_what_of_it_is_left_aside() {
    let of = log("aside.log", "x-fp8", "DiffusionGemmaForBlockDiffusion");
    let asked = ["--from-log", &of, "--model", "qwen3-32b", "--quant", "int4"];
    let aside = "is of another model (x-fp8); its weight format, draft, accept length, memory, speeds and \
                 further flags are left aside, kept: ";
    for command in ["predict", "plan"] {
        let shown = answers(&[&[command], &asked[..], &BOX].concat());
        assert!(shown.contains(aside), "{shown}");
    }
}

/// A drafting server on one card of 141 GB that names its model by a folder.
const DRAFTING: &str = "\
INFO 11-29 14:42:34 [api_utils.py:273] non-default args: {'max_model_len': 10240, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 128, 'kv_cache_dtype': 'fp8', 'speculative_config': {'method': 'eagle3', 'model': 'FOLDER-e3', 'num_speculative_tokens': 5}, 'model': 'FOLDER'}
INFO 11-29 14:42:34 [model.py:598] Resolved architecture: CLASS
INFO 11-29 14:42:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='FOLDER', tensor_parallel_size=1
INFO 11-29 14:43:02 [model_runner.py:302] Model loading took 15.58 GiB and 2.417308 seconds
INFO 11-29 14:43:12 [gpu_worker.py:508] Available KV cache memory: 107.79 GiB
INFO 11-29 14:43:12 [kv_cache_utils.py:2146] GPU KV cache size: 856,288 tokens
INFO 11-29 14:43:17 [model_runner.py:726] Graph capturing finished in 5 secs, took 1.14 GiB
INFO 11-29 14:43:33 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 3.45, Accepted throughput: 1230.02 tokens/s, Drafted throughput: 2508.54 tokens/s, Accepted: 12452 tokens, Drafted: 25395 tokens, Per-position acceptance rate: 0.783, 0.594, 0.456, 0.347, 0.272, Avg Draft acceptance rate: 49.0%
";

fn beside(folder: &str, class: &str, model: &str) -> [String; 2] {
    let text = DRAFTING.replace("FOLDER", folder).replace("CLASS", class);
    let of = file(&format!("{class}-{}.log", folder.len()), &text);
    ["predict", "plan"].map(|command| {
        let asked = [command, "--from-log", &of, "--model", model];
        let shown = answers(&[&asked[..], &["--gpu", "h200", "--sources"]].concat());
        shown.replace(&of, "LOG")
    })
}

/// The pool, weights and accept length of a Llama stood as those of the Qwen3 asked for, silently.
#[test]
fn a_log_whose_class_has_other_layers_is_of_another_model_whatever_its_folder_is_called() {
    let said = "LOG:2 is of another model: it names LlamaForCausalLM, --model qwen3-8b is Qwen3ForCausalLM; its \
                weight format, draft, accept length, memory, speeds and further flags are left aside, kept: engine, \
                TP, fraction";
    for folder in ["models/mine", "models/qwen3-8b"] {
        for text in beside(folder, "LlamaForCausalLM", "qwen3-8b") {
            assert_eq!(text.matches(said).count(), 1, "{text}");
            assert!(!text.contains("107.79") && !text.contains("3.45"), "{text}");
            assert!(!text.contains("observed less computed"), "{text}");
        }
    }
}

/// Beside a log of another name the accept length was taken as measured, and its KV format as asked for.
#[test]
fn what_a_log_of_another_model_accepted_is_not_this_models() {
    let class = "LlamaForCausalLM";
    for text in beside("meta-llama/Llama-3.1-8B-Instruct", class, "qwen3-8b") {
        assert!(text.contains("is of another model (Llama-3.1-8B-Instruct)"));
        assert!(!text.contains("3.45") && !text.contains("LOG:8"), "{text}");
    }
    let [predict, _] = beside("meta-llama/Llama-3.1-8B-Instruct", class, "qwen3-8b");
    assert!(predict.contains("(not measured)"), "{predict}");
    let format = predict.lines().find(|line| line.contains("kv_dtype"));
    assert!(
        format.is_some_and(|line| line.contains("bf16")),
        "{predict}"
    );
}

/// Only `--from-log` looked at the class.
#[test]
fn neither_sweep_nor_accept_length_of_a_log_is_taken_for_a_model_of_other_layers() {
    let flags = "--model qwen3-8b --gpu h200 --engine vllm@0.24.0 --concurrency 1";
    let flags: Vec<&str> = flags.split(' ').collect();
    let drafting = DRAFTING.replace("FOLDER", "models/mine");
    let speed = "INFO 11-29 14:43:43 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
                 throughput: 160.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.3%, Prefix cache \
                 hit rate: 0.0%\n";
    let plain = drafting
        .lines()
        .filter(|line| !line.contains("SpecDecoding"));
    let plain: Vec<String> = plain.map(str::to_string).collect();
    let config = "'speculative_config': {'method': 'eagle3', 'model': 'models/mine-e3', 'num_speculative_tokens': 5}, ";
    let plain = plain.join("\n").replace(config, "") + "\n" + &speed.repeat(3);
    let of = |flag: &str, text: &str, class: &str| {
        let name = format!("{}-{class}.log", &flag[2..]);
        let log = file(&name, &text.replace("CLASS", class));
        answers(&[&["predict", flag, &log], &flags[..]].concat()).replace(&log, "LOG")
    };
    let other = "it is of another model, LlamaForCausalLM (LOG:2), this answer of Qwen3ForCausalLM";
    let swept = of("--baseline", &plain, "LlamaForCausalLM");
    let aside = format!("--baseline LOG is left aside, all speeds are computed: {other}");
    assert!(swept.contains(&aside), "{swept}");
    let accepted = of("--accept", &drafting, "LlamaForCausalLM");
    let aside = format!("--accept LOG is left aside: {other}");
    assert!(accepted.contains(&aside), "{accepted}");
    assert!(accepted.contains("(not measured)"), "{accepted}");
    let own = of("--baseline", &plain, "Qwen3ForCausalLM")
        + &of("--accept", &drafting, "Qwen3ForCausalLM");
    assert!(!own.contains("left aside"), "{own}");
}

/// Drafts' own classes, pictures around the model, its code under another name, code for any model.
#[test]
fn another_class_of_the_same_layers_is_no_other_model() {
    for (class, model) in [
        ("LlamaForCausalLM", "llama-3.1-8b"),
        ("Eagle3LlamaForCausalLM", "qwen3-8b"),
        ("Qwen3VLForConditionalGeneration", "qwen3-8b"),
        ("TransformersForCausalLM", "qwen3-8b"),
        ("LlamaForCausalLM", "mistral-7b"),
        ("SomeonesForCausalLM", "qwen3-8b"),
    ] {
        for text in beside("models/mine", class, model) {
            assert!(!text.contains("another model"), "{class}: {text}");
        }
    }
}

/// The pool is the one that the log prints, also where it ends there; nothing says that it served.
#[test]
fn a_name_that_is_not_known_keeps_its_format_and_the_pool_of_its_log() {
    let of = log("tuned.log", "qwen-32b-tuned-W4A16", "Qwen3ForCausalLM");
    let asked = ["--from-log", &of, "--model", "qwen3-32b", "--draft", "none"];
    let shown = answers(&[&["plan", "--sources"], &asked[..], &BOX].concat());
    assert!(shown.contains("4.37 GiB of KV, 35,728 tokens"), "{shown}");
    assert!(!shown.contains("served"), "{shown}");
    let shown = answers(&[&["predict", "--sources"], &asked[..], &BOX].concat());
    let format = shown.lines().find(|line| line.trim().starts_with("quant "));
    let format = format.unwrap_or_else(|| panic!("{shown}"));
    assert!(
        format.contains("w4a16") && format.contains("tuned.log:1 (the name of its model)"),
        "{format}"
    );
    // What is asked for wins, and so does a format in the name asked for.
    for own in [
        &["--model", "qwen3-32b", "--quant", "fp8"][..],
        &["--model", "Qwen/Qwen3-32B-FP8"],
    ] {
        let asked = [&["predict", "--sources", "--from-log", &of], own, &BOX].concat();
        let shown = answers(&asked);
        assert!(!shown.contains("(the name of its model)"), "{shown}");
    }
}

const BENCH: &str = "\
========== CODE (prompt=78 chars, max_tokens=800) ==========
=== measured (2) ===
  run-1      wall=  6.55s  ttft=   142ms  toks= 800  wall_TPS=122.11  decode_TPS=SPEED
  run-2      wall=  6.54s  ttft=   142ms  toks= 800  wall_TPS=122.15  decode_TPS=SPEED

=== summary [code] (n=2) ===
  wall_TPS       mean= 122.13   std=  0.02   CV= 0.1%   min=122.11   max=122.15
  decode_TPS     mean= SPEED   std=  0.59   CV= 0.3%   min=SPEED   max=SPEED
  TTFT          mean=   143ms  std=    3ms  min=140ms  max=148ms

(APIServer pid=1) INFO 05-01 19:24:24 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 4.28, Accepted throughput: 95.80 tokens/s, Drafted throughput: 146.00 tokens/s, Accepted: 958 tokens, Drafted: 1460 tokens, Per-position acceptance rate: 0.880, 0.788, 0.644, 0.534, 0.435, Avg Draft acceptance rate: 65.6%
";

#[test]
fn the_speed_of_a_bench_in_the_log_stands_beside_the_computed_one() {
    let predict = |name: &str, speed: &str, draft: &str| {
        let of = file(name, &BENCH.replace("SPEED", speed));
        let asked = "--model qwen3.6-27b --quant int4 --context 600 --concurrency 1 --draft";
        let asked: Vec<&str> = asked.split(' ').collect();
        answers(&[&["predict", "--from-log", &of], &asked[..], &[draft], &BOX].concat())
    };
    let slow = predict("slow.txt", "60.00", "dflash");
    let row = slow.lines().find(|line| line.contains("log: speculative"));
    let row = row.unwrap_or_else(|| panic!("{slow}"));
    assert!(
        row.contains(" 60.0 ") && row.contains("below the band"),
        "{row}"
    );
    let why = "times slower than computed, outside the band";
    assert!(slow.contains(why), "{slow}");
    let fast = predict("fast.txt", "230.00", "dflash");
    assert!(fast.contains("log: speculative") && fast.contains("within the band"));
    assert!(!fast.contains("outside the band"), "{fast}");
    // Without a draft it is another server.
    assert!(!predict("none.txt", "60.00", "none").contains("log: speculative"));
    // A bench without a server's lines is a sweep.
    let plain = BENCH.replace("SPEED", "60.00");
    let plain = plain.split("(APIServer").next().unwrap_or_default();
    let of = file("plain.txt", plain);
    let output = xtask(&["predict", "--from-log", &of, "--model", "qwen3-8b"]);
    assert_eq!(output.status.code(), Some(2));
}
