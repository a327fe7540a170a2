//! Servers whose experts are spread whole over the ranks: a cut that is refused without that starts.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{answers, refusal};

/// Eight ranks of 192 columns of an expert are no whole FP8 blocks; whole experts are.
const LOG: &str = "\
[2026-03-10 09:12:04] server_args=ServerArgs(model_path='Qwen/Qwen3-235B-A22B-Instruct-2507-FP8', context_length=32768, mem_fraction_static=0.818, chunked_prefill_size=8192, tp_size=8, attention_backend='fa3', ep_size=8, speculative_algorithm=None)
[2026-03-10 09:12:22 TP0 EP0] Load weight begin. avail mem=77.62 GB
[2026-03-10 09:13:37 TP0 EP0] Load weight end. type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=49.67 GB, mem usage=27.95 GB.
[2026-03-10 09:13:38 TP0 EP0] KV Cache is allocated. #tokens: 791147, K size: 17.73 GB, V size: 17.73 GB
[2026-03-10 09:13:38 TP0 EP0] Memory pool end. avail mem=13.92 GB
[2026-03-10 09:14:10 TP0 EP0] max_total_num_tokens=791147, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=32768, available_gpu_mem=11.70 GB
[2026-03-10 09:14:13] The server is fired up and ready to roll!
";

fn answer(command: &str, ep_size: u32, more: &str) -> String {
    let text = LOG.replace("ep_size=8", &format!("ep_size={ep_size}"));
    of(&text, command, more)
}

fn of(log: &str, command: &str, more: &str) -> String {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let name = format!("experts-{number}-{}.log", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, log).expect("a file");
    let shown = path.display().to_string();
    let mut all = vec![command, "--from-log", &shown, "--gpu", "h100-sxm"];
    all.extend(more.split_whitespace());
    let text = answers(&all);
    std::fs::remove_file(path).ok();
    text
}

/// Its own running log was told that it does not start, and another `--ep-size` was pasted.
#[test]
fn a_log_whose_experts_are_spread_is_judged_and_pasted_as_it_ran() {
    for ep_size in [2, 4, 8] {
        let text = answer("predict", ep_size, "--concurrency 1,16 --accept 2.8@3");
        assert!(!text.contains("refuses this cut"), "{text}");
        assert!(
            text.starts_with("PAYS") || text.starts_with("MEASURE"),
            "{text}"
        );
        assert!(text.contains(&format!("--ep-size {ep_size} ")), "{text}");
        let json = answer(
            "predict",
            ep_size,
            "--concurrency 1,16 --accept 2.8@3 --json",
        );
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_ne!(json["verdict"], "does-not-pay", "{json}");
        let plan = answer("plan", ep_size, "--concurrency 16");
        assert!(plan.starts_with("FITS"), "{plan}");
    }
}

/// Of a log without printed arguments the start line says it; one that serves is refused by neither
/// command.
#[test]
fn a_cut_that_a_log_shows_serving_is_refused_by_neither_command() {
    let (_, lines) = LOG.split_once('\n').expect("lines");
    let start =
        "$ python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-Instruct-2507-FP8";
    for (typed, pasted) in [("--ep-size=4", 4), ("--ep 2", 2), ("", 8)] {
        let text = format!("{start} --tp 8 {typed}\n{lines}");
        let said = of(&text, "predict", "--concurrency 1,16 --accept 2.8@3");
        assert!(!said.contains("refuses this cut"), "{said}");
        assert!(said.contains(&format!("--ep-size {pasted} ")), "{said}");
        let plan = of(&text, "plan", "--concurrency 16");
        assert!(!plan.contains("refuses this cut"), "{plan}");
    }
}

/// At four ranks `--ep-size 8` was pasted: SGLang divides by 4 // 8.
#[test]
fn ranks_of_experts_that_do_not_divide_the_cut_are_left_out_by_name() {
    let text = answer(
        "predict",
        8,
        "--gpus 8 --tp 4 --concurrency 1,16 --accept 2.8@3",
    );
    assert!(!text.contains("--ep-size"), "{text}");
    assert!(text.contains("was told: ep_size"), "{text}");
    let kept = answer(
        "predict",
        4,
        "--gpus 8 --tp 4 --concurrency 1,16 --accept 2.8@3",
    );
    assert!(kept.contains("--ep-size 4 "), "{kept}");
}

/// Without a log nobody could ask for it: the refusal named a cure that no flag gave.
#[test]
fn expert_parallelism_is_asked_for_by_flag_as_a_log_has_it() {
    let fp8 = |command, more: &str| {
        let model = ["--model", "Qwen3-235B-A22B-FP8", "--gpu", "h100"];
        let cut = ["--gpus", "8", "--concurrency", "16"];
        let mut all = [&[command], &model[..], &cut].concat();
        all.extend(more.split_whitespace());
        answers(&all)
    };
    let refused = fp8("predict", "");
    assert!(refused.contains("--ep 8"), "{refused}");
    for more in ["--ep 8", "--ep-size 2", "--ep 8 --engine vllm"] {
        let text = fp8("predict", more);
        assert!(!text.contains("DOES NOT START"), "{more}: {text}");
        assert!(!text.contains("refuses this cut"), "{more}: {text}");
        assert!(text.contains("--enable-expert-parallel"), "{more}: {text}");
        assert!(fp8("plan", more).starts_with("FITS"), "{more}");
    }
    assert!(fp8("predict", "--ep 2").contains("--ep-size 2 "));
    // Over the flag's figures of a log's: none where one rank is asked for.
    let cut = answer("predict", 8, "--concurrency 16 --ep 1");
    assert!(cut.starts_with("DOES NOT START"), "{cut}");
    let spread = answer("predict", 4, "--concurrency 16 --ep 8");
    assert!(spread.contains("--ep-size 8 ") && !spread.contains("--ep-size 4"));
}

#[test]
fn expert_parallelism_that_cannot_be_is_refused_in_one_line() {
    let of = |model, more: &str| {
        let mut all = vec!["predict", "--model", model, "--gpu", "h100", "--gpus", "8"];
        all.extend(more.split_whitespace());
        refusal(&all)
    };
    let moe = "qwen3-30b-a3b";
    for (model, more, why) in [
        ("llama-3.3-70b", "--quant fp8 --ep 8", "has no experts"),
        (moe, "--ep 3", "must divide the tensor-parallel size"),
        (moe, "--ep 0", "at least 1"),
        (moe, "--ep 2 --engine vllm", "over all ranks of the group"),
        (moe, "--ep 2 --engine llamacpp", "sglang and vllm alone"),
    ] {
        let said = of(model, more);
        assert!(
            said.contains("--ep") && said.contains(why),
            "{more}: {said}"
        );
    }
}

/// Their makers' FP8 is in blocks that do not fit every cut; what an engine makes while loading is not.
#[test]
fn fp8_made_while_loading_is_not_in_blocks() {
    let of = |model: &str, quant: &str| {
        let run = format!(
            "predict --model {model} --quant {quant} --gpu h100 --gpus 8 --engine sglang --draft eagle3 \
             --concurrency 16"
        );
        answers(&run.split_whitespace().collect::<Vec<_>>())
    };
    let online = "or its BF16 one with --quantization fp8";
    let blocks = of("qwen3-235b-a22b", "fp8");
    assert!(
        blocks.contains("DOES NOT START") && !blocks.contains(online),
        "{blocks}"
    );
    assert!(
        blocks.contains("--quantization fp8: --quant fp8-dynamic"),
        "{blocks}"
    );
    let scaled = of("qwen3-235b-a22b", "fp8-dynamic");
    assert!(
        !scaled.contains("DOES NOT START") && scaled.contains(online),
        "{scaled}"
    );
    let named = of("Qwen/Qwen3-235B-A22B", "fp8");
    assert!(
        !named.contains("DOES NOT START") && named.contains("--quantization fp8"),
        "{named}"
    );
    let published = of("Qwen/Qwen3-235B-A22B-FP8", "fp8");
    assert!(published.contains("DOES NOT START"), "{published}");
}
