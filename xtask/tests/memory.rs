//! What `predict` and `plan` say of memory, each as someone stumbled over it.

use std::process::Command;

fn xtask(args: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args.split_whitespace())
        .output()
        .expect("runs");
    String::from_utf8_lossy(if output.status.success() {
        &output.stdout
    } else {
        &output.stderr
    })
    .into_owned()
}

/// The lines of a start-up that matter (vLLM 0.11.0, two 32 GB cards).
const SERVED: &str = "\
(APIServer pid=1) INFO 10-14 19:02:15 [api_server.py:1839] vLLM API server version 0.11.0
(APIServer pid=1) INFO 10-14 19:02:15 [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-32B-FP8', 'model': 'Qwen/Qwen3-32B-FP8', 'max_model_len': 40960, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.93, 'max_num_seqs': 8, 'speculative_config': {'method': 'eagle3', 'model': 'RedHatAI/Qwen3-32B-speculator.eagle3', 'num_speculative_tokens': 3}}
(Worker_TP0 pid=3) INFO 10-14 19:03:03 [gpu_model_runner.py:2653] Model loading took 16.8012 GiB and 21.031180 seconds
(Worker_TP0 pid=3) INFO 10-14 19:03:35 [gpu_worker.py:298] Available KV cache memory: 10.62 GiB
(EngineCore_DP0 pid=2) INFO 10-14 19:03:36 [kv_cache_utils.py:1087] GPU KV cache size: 85,648 tokens
(EngineCore_DP0 pid=2) INFO 10-14 19:03:36 [kv_cache_utils.py:1091] Maximum concurrency for 40,960 tokens per request: 2.09x
(Worker_TP0 pid=3) INFO 10-14 19:03:40 [gpu_model_runner.py:3480] Graph capturing finished in 4 secs, took 0.41 GiB
(APIServer pid=1) INFO:     Application startup complete.
";

/// The lines of an SGLang start-up that matter (four 48 GB cards, EAGLE-3), and of its serving.
const SERVED_SGLANG: &str = "\
[2026-02-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', context_length=32768, mem_fraction_static=0.848, max_running_requests=48, chunked_prefill_size=4096, tp_size=4, speculative_algorithm='EAGLE3', speculative_draft_model_path='AngelSlim/Qwen3-32B_eagle3', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
[2026-02-11 09:14:17 TP0] Load weight begin. avail mem=46.21 GB
[2026-02-11 09:14:38 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=30.71 GB, mem usage=15.50 GB.
[2026-02-11 09:14:39 TP0] KV Cache is allocated. #tokens: 382102, K size: 11.66 GB, V size: 11.66 GB
[2026-02-11 09:14:39 TP0] Memory pool end. avail mem=7.39 GB
[2026-02-11 09:14:52 TP0] Capture cuda graph end. Time elapsed: 12.31 s. mem usage=0.81 GB. avail mem=6.48 GB.
[2026-02-11 09:14:53 TP0] Load weight begin. avail mem=6.48 GB
[2026-02-11 09:14:55 TP0] Load weight end. type=LlamaForCausalLMEagle3, dtype=torch.bfloat16, avail mem=5.68 GB, mem usage=0.80 GB.
[2026-02-11 09:14:55 TP0] KV Cache is allocated. #tokens: 382102, K size: 0.18 GB, V size: 0.18 GB
[2026-02-11 09:14:55 TP0] Memory pool end. avail mem=5.31 GB
[2026-02-11 09:15:05 TP0] max_total_num_tokens=382102, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=48, context_len=32768, available_gpu_mem=4.71 GB
[2026-02-11 09:15:08] The server is fired up and ready to roll!
[2026-02-11 09:20:12 TP0] Decode batch, #running-req: 1, #token: 12100, token usage: 0.03, accept len: 2.30, accept rate: 0.58, cuda graph: True, gen throughput (token/s): 71.93, #queue-req: 0, 
[2026-02-11 09:20:14 TP0] Decode batch, #running-req: 1, #token: 12140, token usage: 0.03, accept len: 2.26, accept rate: 0.56, cuda graph: True, gen throughput (token/s): 69.90, #queue-req: 0, 
";

fn served_log(name: &str) -> String {
    written_log(name, SERVED)
}

fn written_log(name: &str, text: &str) -> String {
    let path = std::env::temp_dir().join(format!("{name}-{}.log", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

/// The fraction of the first flag of a name in a text.
fn flag(text: &str, name: &str) -> Option<f64> {
    let (_, after) = text.split_once(&format!("{name} "))?;
    after.split_whitespace().next()?.parse().ok()
}

fn legal(text: &str) -> Option<(f64, f64)> {
    let (_, after) = text.split_once("legal fraction: ")?;
    let mut words = after.split_whitespace();
    let low = words.next()?.parse().ok()?;
    words.next();
    Some((low, words.next()?.parse().ok()?))
}

#[test]
fn a_log_of_a_server_that_served_is_not_told_that_it_does_not_fit() {
    let log = served_log("served");
    let text = xtask(&format!("predict --from-log {log} --gpu rtx-5090"));
    assert!(!text.contains("DOES NOT FIT"), "{text}");
    assert!(!text.contains("above the activation wall"), "{text}");
    assert!(text.contains("--gpu-memory-utilization 0.930"), "{text}");
    let plan = xtask(&format!(
        "plan --from-log {log} --gpu rtx-5090 --context 40960"
    ));
    assert!(plan.contains("10.62 GiB of KV, 85,648 tokens"), "{plan}");
    assert!(plan.contains("2.09 requests of 40,960"), "{plan}");
    let _ = std::fs::remove_file(log);
}

#[test]
fn the_ledger_of_an_sglang_log_has_the_logs_own_pool_and_graphs() {
    let log = written_log("sglang-ledger", SERVED_SGLANG);
    let from = format!("plan --from-log {log} --gpu rtx-6000-ada --context 32k");
    let plan = xtask(&from);
    let line = |item: &str| -> f64 {
        let line = plan.lines().find(|line| line.starts_with(item));
        let figure = line.and_then(|line| line[item.len()..].split_whitespace().next());
        figure.and_then(|gib| gib.parse().ok()).unwrap_or(f64::NAN)
    };
    for (item, gib) in [
        ("target: KV pool", 23.32),
        // 0.80 as loaded, less the embedding that it lets go.
        ("draft: weights", 0.44),
        ("draft: KV pool", 0.36),
        ("target: graphs", 0.81),
    ] {
        assert!((line(item) - gib).abs() < 0.005, "{item} {gib}: {plan}");
    }
    assert!(plan.contains("23.32 GiB of KV and 0.36"), "{plan}");
    assert!(!plan.contains("not observed"), "{plan}");
    // 30.71 free after the weights less 46.21 x (1 - 0.848) kept outside: what a server without the
    // draft would have had; 0.36 GiB of 65,536 B less is what the log's has.
    let lost = plan.split_once("the draft costs ").map(|(_, after)| after);
    let lost = lost.and_then(|after| after.split_whitespace().next());
    let lost: f64 = lost.map_or(f64::NAN, |n| n.replace(',', "").parse().unwrap_or(f64::NAN));
    assert!((lost - 0.36 * 16384.0).abs() < 400.0, "{lost}: {plan}");
    let _ = std::fs::remove_file(log);
}

#[test]
fn what_the_draft_takes_of_a_logged_pool_is_estimate_less_estimate() {
    let only_pool: Vec<&str> = SERVED_SGLANG
        .lines()
        .filter(|line| !line.contains("avail mem"))
        .collect();
    let log = written_log("sglang-pool", &only_pool.join("\n"));
    let from = format!("plan --from-log {log} --gpu rtx-6000-ada --context 32k");
    let plan = xtask(&from);
    // By its date and its lines a build that does not price the draft's pool.
    assert!(plan.contains("382,102 tokens of 65536 B"), "{plan}");
    assert!(plan.contains("(estimated: the log"), "{plan}");
    // The same server without a log: two estimates.
    let without = xtask(
        "plan --model qwen3-32b --draft eagle3 --steps 3 --gpu rtx-6000-ada --gpus 4 --engine \
         sglang@2026-02 --mem-fraction 0.848 --context 32k --max-running 48 --batched-tokens 4096",
    );
    let takes = |text: &str| -> Option<String> {
        let (_, after) = text.split_once("the draft costs ")?;
        Some(after.split_whitespace().next()?.to_string())
    };
    assert_eq!(takes(&plan), takes(&without), "{plan}\n{without}");
    let _ = std::fs::remove_file(log);
}

#[test]
fn the_pasted_fraction_lies_in_the_printed_range() {
    for (flags, name) in [
        (
            "--model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 --context 40k",
            "--gpu-memory-utilization",
        ),
        (
            "--model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 --context 64k",
            "--gpu-memory-utilization",
        ),
        (
            "--model glm-4.5-air --quant awq --gpu rtx-3090 --gpus 4 --engine sglang --context 8k \
             --mem-fraction 0.95",
            "--mem-fraction-static",
        ),
    ] {
        let text = xtask(&format!("predict {flags}"));
        let (low, high) = legal(&text).expect("a range");
        let (_, paste) = text.split_once("\npaste").expect("flags");
        let pasted = flag(paste, name).expect("a fraction");
        assert!(
            low < pasted && pasted <= high,
            "{pasted} of {low} to {high}"
        );
    }
}

#[test]
fn a_fraction_above_the_wall_is_no_clean_gain_and_no_legal_one_is_said_so() {
    let glm = "predict --model glm-4.5-air --quant awq --gpu rtx-3090 --gpus 4 --engine sglang";
    let text = xtask(&format!("{glm} --context 8k --mem-fraction 0.95"));
    assert!(text.starts_with("MEASURE FIRST"), "{text}");
    assert!(text.contains("memory is tight: 0.950"), "{text}");
    let text = xtask("predict --model qwen3.6-27b --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0");
    assert!(text.contains("no fraction is legal"), "{text}");
    assert_eq!(legal(&text), None);
}

#[test]
fn predict_and_plan_count_the_requests_of_a_hybrid_alike() {
    let hybrid = "--model qwen3.6-27b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 \
                  --context 80k --kv-dtype fp8 --mem-fraction 0.86 --steps 1";
    let plan = xtask(&format!("plan {hybrid}"));
    let (_, with) = plan.split_once("with the draft").expect("a draft");
    let (before, _) = with.split_once(" requests of 81,920").expect("requests");
    let requests: f64 = before
        .rsplit(' ')
        .next()
        .expect("a word")
        .parse()
        .expect("a number");
    let last = requests as u32;
    assert!(last > 2, "{requests}: a token count would give 1");
    let text = xtask(&format!(
        "predict {hybrid} --concurrency {last},{}",
        last + 1
    ));
    assert!(
        text.contains(&format!("beyond {last} users the KV pool is full")),
        "{text}"
    );
}

#[test]
fn too_small_an_automatic_fraction_is_answered_with_the_one_that_works() {
    let text = xtask(
        "predict --model glm-4.5-air --quant awq --gpu rtx-3090 --gpus 4 --engine sglang --context 8k",
    );
    assert!(text.starts_with("PAYS"), "{text}");
    assert!(text.contains("set --mem-fraction-static 0."), "{text}");
    let (_, paste) = text.split_once("\npaste").expect("flags");
    assert!(
        flag(paste, "--mem-fraction-static").is_some_and(|f| f > 0.75),
        "{paste}"
    );
}

#[test]
fn weights_nobody_named_a_format_for_are_said_to_be_bf16_and_the_cure_is_fewer_bits() {
    let text = xtask("predict --model qwen3.6-27b --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0");
    assert!(text.starts_with("DOES NOT FIT"), "{text}");
    assert!(text.contains("--quant fp8"), "{text}");
    assert!(
        text.contains("weights in BF16, as no other format is named"),
        "{text}"
    );
    assert!(!text.contains("raise --gpu-memory-utilization"), "{text}");
}

#[test]
fn a_pool_smaller_than_the_models_own_context_is_served_with_a_length() {
    let llama = "predict --model llama-3.3-70b --quant awq --gpu rtx-3090 --gpus 4 --engine vllm";
    let asked = xtask(&format!("{llama} --context 16k"));
    // A request that holds 16,384 in the mean grows to twice as many at most.
    assert_eq!(flag(&asked, "--max-model-len"), Some(32_768.0), "{asked}");
    let why = "--max-model-len 32768 in the paste: room for the longest requests, where 16384 tokens are held";
    assert!(asked.contains(why), "{asked}");
    let longest = flag(&xtask(llama), "--max-model-len").expect("a length");
    assert!((65_536.0..131_072.0).contains(&longest), "{longest}");
    let beyond = xtask(
        "predict --model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine vllm@0.11.0 --context 64k",
    );
    assert!(
        beyond.contains("beyond the model's own 40960 tokens"),
        "{beyond}"
    );
}

#[test]
fn shapes_that_engines_refuse_are_named_with_the_cure() {
    let text = xtask("predict --model Qwen3-235B-A22B-FP8 --gpu h200 --gpus 8 --engine sglang");
    assert!(text.contains("--tp 4 or expert parallelism"), "{text}");
    assert!(!text.starts_with("PAYS"), "{text}");
    assert!(
        text.contains("--ep-size 8") && text.contains("--ep 8"),
        "{text}"
    );
    let text = xtask("predict --model glm-4.5-air --gpu h200 --gpus 4 --tp 3");
    assert!(
        text.starts_with("error: --tp 3") && text.contains("8 KV heads"),
        "{text}"
    );
    let text =
        xtask("predict --model deepseek-v3.1 --quant nvfp4 --gpu h200 --gpus 8 --engine sglang");
    assert!(text.contains("no FP4 units"), "{text}");
}

#[test]
fn a_log_brings_the_context_that_requests_held_and_its_own_loads() {
    let log = written_log("sglang-load", SERVED_SGLANG);
    let from = format!("--from-log {log} --gpu rtx-6000-ada");
    // The command that `explain` ends with takes the log.
    let next = xtask(&format!("explain {log}"));
    assert!(next.contains(&format!("--from-log {log}")), "{next}");
    let said = xtask(&format!("explain {log} --json"));
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let context = said["facts"]["held_tokens_per_request"]["value"].as_f64();
    let context = context.expect("a context");
    assert!((11_000.0..13_000.0).contains(&context), "{next}");
    let plan = xtask(&format!("plan {from}"));
    let shown = format!(
        "{},{:03} tokens",
        context as u32 / 1000,
        context as u32 % 1000
    );
    assert!(plan.contains(&format!("requests of {shown}")), "{plan}");
    assert!(plan.starts_with("FITS"), "a limit is no load: {plan}");
    let json = xtask(&format!("predict {from} --json"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let input = |name: &str| json["scenario"][name].clone();
    assert_eq!(input("context")["value"].as_f64(), Some(context));
    let source = input("context")["source"].to_string();
    assert!(source.contains("what requests held"), "{source}");
    assert_eq!(
        input("concurrency")["value"].to_string(),
        "[1,2,4,8,16,32,48]"
    );
    let json = xtask(&format!("predict {from} --json --context 4k"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["scenario"]["context"]["value"], 4096);
    // Without a decode line: what the server takes.
    let idle: Vec<&str> = SERVED_SGLANG
        .lines()
        .filter(|l| !l.contains("Decode"))
        .collect();
    let idle = written_log("sglang-idle", &idle.join("\n"));
    let plan = xtask(&format!("plan --from-log {idle} --gpu rtx-6000-ada"));
    assert!(plan.contains("requests of 32,768 tokens"), "{plan}");
    let _ = (std::fs::remove_file(log), std::fs::remove_file(idle));
}

#[test]
fn a_full_pool_is_told_by_what_it_holds_not_by_the_last_load_shown() {
    let flags = "--model qwen3-32b --draft eagle3 --gpu rtx-6000-ada --gpus 4 --tp 2 --context 12k \
                 --mem-fraction 0.848 --engine sglang";
    let plan = xtask(&format!("plan {flags}"));
    let (_, with) = plan.split_once("with the draft").expect("a draft");
    let (before, _) = with.split_once(" requests of 12,288").expect("requests");
    let held: f64 = before
        .rsplit(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let held = held as u32;
    assert!(held > 1, "{plan}");
    let loads = format!("--concurrency 1,{}", held + 6);
    let text = xtask(&format!("predict {flags} --accept 2.6@3 {loads}"));
    assert!(
        text.contains(&format!("beyond {held} users the KV pool is full")),
        "{text}"
    );
}

#[test]
fn a_wanted_load_that_fits_is_no_order_to_change_the_fraction() {
    let flags = "plan --model qwen3-32b --gpu rtx-6000-ada --gpus 4 --engine sglang --context 4k";
    let text = xtask(&format!("{flags} --mem-fraction 0.848 --concurrency 24"));
    assert!(
        text.contains("they fit; --mem-fraction-static 0."),
        "{text}"
    );
    assert!(text.contains("would be the least"), "{text}");
    let text = xtask(&format!("{flags} --mem-fraction 0.45 --concurrency 24"));
    assert!(
        text.contains("tokens: set --mem-fraction-static 0."),
        "{text}"
    );
}

/// The bytes would fit, but 192 columns a rank are no whole number of FP8 blocks: plan said FITS.
#[test]
fn a_cut_that_the_engine_refuses_does_not_fit() {
    let server = "plan --model qwen3-235b-a22b --quant fp8 --gpu h100-sxm --gpus 8 --draft none \
                  --engine vllm";
    let text = xtask(server);
    assert!(text.starts_with("REFUSED"), "{text}");
    assert!(text.contains("vllm refuses this cut"), "{text}");
    assert!(text.contains("--tp 4 or expert parallelism"), "{text}");
    assert!(text.contains("blocks of 128 x 128"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&xtask(&format!("{server} --json"))).expect("JSON");
    assert_eq!(json["memory"]["fits"], false, "{json}");
    let four = xtask(&format!("{server} --tp 4"));
    assert!(!four.contains("refuses this cut"), "{four}");
}

/// Above the activation wall it starts and runs out; a lower fraction holds the draft as well.
#[test]
fn a_fraction_above_the_legal_range_is_pasted_as_one_that_fits() {
    let asked = "predict --model qwen3-32b --quant awq --engine sglang --box 4x-rtx-3090-nvlink \
                 --draft eagle3 --context 8k --concurrency 1,16";
    let shown = xtask(&format!("{asked} --mem-fraction 0.995"));
    assert!(shown.contains("DOES NOT FIT"), "{shown}");
    let paste = |shown: &str| {
        let line = shown.lines().find(|line| line.starts_with("  sglang: "));
        line.map(str::to_string).unwrap_or_default()
    };
    assert!(paste(&shown).contains("--speculative-algorithm"), "{shown}");
    assert!(shown.contains("the paste is what is best at 0."), "{shown}");
    assert_eq!(paste(&shown), paste(&xtask(asked)));
}

/// An RTX 3090 had 24.08 GiB (what torch sees and half a GiB), an A100 79.65: nvidia-smi prints 24,576
/// and 81,920 MiB.
#[test]
fn the_card_of_the_ledger_is_what_nvidia_smi_prints() {
    for (gpu, gib) in [
        ("rtx-3090", "24.000"),
        ("a100-80gb-sxm", "80.000"),
        ("h200-sxm", "140.401"),
    ] {
        for engine in ["sglang", "vllm", "trtllm", "llamacpp"] {
            let flags =
                format!("plan --model llama-3.1-8b --engine {engine} --gpu {gpu} --sources");
            let shown = xtask(&flags);
            let card = shown.lines().find(|line| line.starts_with("the card"));
            assert!(
                card.is_some_and(|line| line.contains(gib) && line.contains("of nvidia-smi")),
                "{shown}"
            );
        }
    }
}

#[test]
fn the_most_that_plan_names_fits_when_it_is_asked_for() {
    let flags = "plan --model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine sglang";
    let text = xtask(&format!("{flags} --context 16k --concurrency 8"));
    let at = text.find("at most, with ").expect("a nearest load");
    let words: Vec<&str> = text[at..].split_whitespace().collect();
    let number = |word: &str| word.replace(',', "");
    // at most, with FLAG F, N requests of that context, or 8 of T tokens (clear of the wall's band)
    let (fraction, requests) = (number(words[4]), number(words[5]));
    let context = number(words[13]);
    assert!(
        text.contains("(clear of the activation wall's band)"),
        "{text}"
    );
    for load in [
        format!("--context 16384 --concurrency {requests}"),
        format!("--context {context} --concurrency 8"),
    ] {
        let followed = xtask(&format!("{flags} {load} --mem-fraction {fraction}"));
        assert!(followed.starts_with("FITS"), "{load}: {followed}");
        assert!(!followed.contains("run out"), "{followed}");
    }
    let predict = xtask(&format!(
        "{} --context 16k --accept 2.6@3 --concurrency 1,8",
        flags.replacen("plan", "predict", 1)
    ));
    // The least that holds these requests: `plan` names it too where they are what is asked for.
    let alone = xtask(&format!("{flags} --context 16k --concurrency {requests}"));
    let least = alone.split("set --mem-fraction-static ").nth(1);
    let least = least.and_then(|rest| rest.split_whitespace().next());
    let same = format!(
        "({requests} with --mem-fraction-static {};",
        least.unwrap_or_else(|| panic!("{alone}"))
    );
    assert!(predict.contains(&same), "{same}: {predict}");
}

#[test]
fn five_requests_that_miss_by_a_few_tokens_are_not_printed_as_five() {
    let flags = "plan --model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine sglang";
    let text = xtask(&format!(
        "{flags} --context 16k --concurrency 5 --mem-fraction 0.935"
    ));
    assert!(
        text.starts_with("TIGHT") && text.contains("4.99 requests of 16,384"),
        "{text}"
    );
}

/// 29.4 GiB free before the weights, 13.16 after, a pool of 8.75 at a fraction of 0.85.
#[test]
fn any_three_of_an_sglang_runs_figures_give_the_fourth() {
    for (figures, says) in [
        (
            "--free-before-gib 29.4 --kv-gib 8.75 --mem-fraction 0.85",
            "after 13.16 GiB (after: from",
        ),
        (
            "--free-after-gib 13.16 --kv-gib 8.75 --mem-fraction 0.85",
            "before 29.40 GiB, after",
        ),
        (
            "--free-before-gib 29.4 --free-after-gib 13.16 --mem-fraction 0.85",
            "0.85 gives a pool of 8.75 GiB",
        ),
        (
            "--free-before-gib 29.4 --free-after-gib 13.16 --kv-gib 8.75",
            "means 0.8500 was in use",
        ),
    ] {
        let text = xtask(&format!("plan {figures}"));
        assert!(text.contains(says), "{figures}: {text}");
        assert!(!text.contains("believed"), "{figures}: {text}");
    }
}

/// A pool without free figures gives a fraction by estimates; the one typed was dropped in silence.
#[test]
fn a_fraction_typed_beside_a_pool_that_means_another_is_answered() {
    let text = xtask(
        "plan --model kimi-k2.5 --gpu rtx-pro-6000-server --gpus 8 --kv-gib 20 --mem-fraction 0.88",
    );
    assert!(text.contains("not the 0.88 given"), "{text}");
}

#[test]
fn free_memory_beyond_the_card_is_refused() {
    let text = xtask(
        "plan --model kimi-k2.5 --gpu rtx-pro-6000-server --gpus 8 --free-after-gib 30 --kv-gib 20 \
         --mem-fraction 0.999",
    );
    assert!(text.starts_with("error: --free-before-gib"), "{text}");
}
