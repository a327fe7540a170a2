//! The format of the KV cache: what a release takes by itself, what the paste tells it, and what an FP8 cache
//! of latent attention costs where kernels cast it.

mod common;

use common::{run, with_log};

/// The pasted line of SGLang.
fn sglang(text: &str) -> &str {
    let line = text.lines().find(|line| line.contains("launch_server"));
    line.unwrap_or_default()
}

fn nvfp4(engine: &str, more: &str) -> String {
    let flags = format!(
        "--model deepseek-r1 --quant nvfp4 --gpu b200 --gpus 4 --concurrency 1 --engine {engine} {more}"
    );
    run("predict", &flags)
}

const ASSUMED: &str = "KV cache in fp8: published checkpoints of that weight format ask for it (the checkpoint's \
                       hf_quant_config.json or config.json, or --kv-dtype would settle it)";

/// Tokens of releases that read no such thing came out twice too many, with a flag that nobody asked for.
#[test]
fn a_release_that_does_not_read_what_a_checkpoint_asks_for_keeps_bf16() {
    for older in [
        "sglang@0.5.0",
        "sglang@0.5.2",
        "sglang@2025-08",
        "vllm@0.13.0",
    ] {
        let text = nvfp4(older, "");
        assert!(!text.contains("kv-cache-dtype"), "{older}: {text}");
        assert!(!text.contains(ASSUMED), "{older}: {text}");
    }
    for newer in ["sglang@0.5.3", "vllm@0.14.0"] {
        let text = nvfp4(newer, "");
        assert!(text.contains("--kv-cache-dtype fp8"), "{newer}: {text}");
        assert!(text.contains(ASSUMED), "{newer}: {text}");
    }
    let asked = nvfp4("sglang@0.5.0", "--kv-dtype fp8");
    assert!(
        sglang(&asked).contains("--kv-cache-dtype fp8_e4m3"),
        "{asked}"
    );
    assert!(!asked.contains(ASSUMED), "{asked}");
    let plan = "--model deepseek-r1 --quant nvfp4 --gpu b200 --gpus 4 --engine sglang@0.5.0";
    let plan = run("plan", plan);
    let own =
        "KV dtype bf16 (the engine's own: this release does not read what the checkpoint asks for)";
    assert!(plan.contains(own), "{plan}");
}

/// `--kv-dtype bf16` pasted nothing, and the engine took fp8.
#[test]
fn bf16_is_told_where_the_checkpoint_would_bring_fp8() {
    let told =
        |engine: &str| nvfp4(engine, "--kv-dtype bf16").contains("--kv-cache-dtype bfloat16");
    assert!(told("sglang@0.5.6") && told("vllm@0.24.0"));
    // It would take bf16 by itself; it has no word for it.
    assert!(!told("sglang@0.5.0") && !told("sglang@0.5.3"));
}

fn hopper(engine: &str, more: &str) -> String {
    let flags = format!(
        "--model deepseek-r1 --gpu h200 --gpus 8 --context 6k --concurrency 1,32 --engine {engine} {more}"
    );
    run("predict", &flags)
}

const FLASHMLA: &str = "--kv-cache-dtype fp8_e4m3 --attention-backend flashmla";

/// It was 114 tok/s without a word, and FA3's line pasted, which casts 143 GB a step.
#[test]
fn an_fp8_latent_cache_on_hopper_names_the_kernel_that_reads_it() {
    let text = hopper("sglang@0.5.9", "--kv-dtype fp8 --draft none");
    assert!(sglang(&text).ends_with(FLASHMLA), "{text}");
    let says = "fp8 KV: by itself SGLang runs fa3 here, which casts each layer's whole pool to bf16 in every pass \
                (33.1 ms for 1,354,641 tokens); --attention-backend flashmla reads fp8 as it is";
    assert!(text.contains(says), "{text}");
    let mtp = hopper("sglang@0.5.9", "--kv-dtype fp8");
    assert!(sglang(&mtp).ends_with(FLASHMLA), "{mtp}");
    // FA3 takes no e5m2: it goes to Triton. A cache in bf16 is cast by nobody, nor one of vLLM's.
    for other in ["--kv-dtype fp8_e5m2", "", "--kv-dtype bf16"] {
        let text = hopper("sglang@0.5.9", other);
        assert!(
            !text.contains("--attention-backend") && !text.contains("casts"),
            "{text}"
        );
    }
    let vllm = hopper("vllm@0.24.0", "--kv-dtype fp8");
    assert!(!vllm.contains("casts"), "{vllm}");
    // FlashMLA knows no latent of another head: that keeps its own kernel.
    let head = "--model kimi-k2.5 --gpu h200 --gpus 8 --engine sglang@0.5.10 --draft eagle3 --kv-dtype fp8";
    let head = run("predict", head);
    let own = format!("{FLASHMLA} --speculative-draft-attention-backend fa3");
    assert!(sglang(&head).ends_with(&own), "{head}");
}

/// The row of a cycle: plain, draft, verify, ms.
fn cache_ms(text: &str) -> Vec<f64> {
    let row = text.lines().find(|line| line.starts_with("  KV cache "));
    let words = row.unwrap_or_default().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_cast_that_no_flag_avoids_is_priced_in_every_pass() {
    let text = hopper("sglang@0.5.9", "--kv-dtype fp8 --draft ngram");
    assert!(!text.contains("--attention-backend"), "{text}");
    let says = "33.1 ms for 1,354,641 tokens, which the figures hold, and 1.45 GiB for it";
    assert!(text.contains(says), "{text}");
    assert_eq!(cache_ms(&text), [33.13, 0.0, 33.13]);
    // FlashMLA is a package of its own there.
    let older = hopper("sglang@0.5.4", "--kv-dtype fp8");
    assert!(!older.contains("--attention-backend"), "{older}");
    assert!(cache_ms(&older)[0] > 30.0, "{older}");
}

#[test]
fn blackwell_casts_until_tensorrt_llms_kernels_run_by_themselves() {
    let old = nvfp4("sglang@0.5.3", "");
    assert!(
        sglang(&old).ends_with("--attention-backend trtllm_mla"),
        "{old}"
    );
    // There that kernel took no draft, or verified by the other.
    let older = nvfp4("sglang@0.5.0", "--kv-dtype fp8");
    assert!(older.contains("SGLang's flashinfer casts"), "{older}");
    let new = nvfp4("sglang@0.5.4", "");
    assert!(
        !new.contains("casts") && !new.contains("--attention-backend"),
        "{new}"
    );
    let rtx = "--model kimi-k2.5 --gpu rtx-pro-6000 --gpus 8 --engine sglang@0.5.9 --kv-dtype fp8";
    assert!(!run("predict", rtx).contains("casts"));
}

#[test]
fn plan_offers_no_fp8_tokens_without_their_price() {
    let box_ = "--model deepseek-r1 --gpu h200 --gpus 8 --engine sglang@0.5.9";
    let text = run("plan", &format!("{box_} --draft none"));
    let says = "with fp8 KV 1,354,641 tokens; SGLang's own fa3 casts each layer's whole pool to bf16 in every \
                pass, 33.1 ms for 1,354,641 tokens: --attention-backend flashmla reads fp8 as it is";
    assert!(text.contains(says), "{text}");
    let own = run("plan", &format!("{box_} --draft none --kv-dtype fp8"));
    assert!(
        own.contains("and 1.45 GiB for it that no line below has"),
        "{own}"
    );
}

/// What ran is priced as it ran: its kernels are known.
#[test]
fn a_log_of_a_server_that_casts_keeps_its_line() {
    let log = |attention: &str| {
        format!(
            "[2026-02-27 09:14:02] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', tp_size=8, \
             context_length=32768, kv_cache_dtype='fp8_e4m3', attention_backend={attention}, \
             mem_fraction_static=0.897)\n"
        )
    };
    let of = |attention: &str| {
        with_log("cast.log", &log(attention), |path| {
            run(
                "predict",
                &format!("--from-log {path} --gpu h200 --draft none --concurrency 1"),
            )
        })
    };
    let own = of("'fa3'");
    assert!(own.contains("SGLang's fa3 casts"), "{own}");
    assert!(sglang(&own).contains("--attention-backend fa3"), "{own}");
    let other = of("'flashmla'");
    assert!(!other.contains("casts"), "{other}");
}

/// Both were said to run on vLLM's first runner, and got no list from 0.29 on.
#[test]
fn look_up_gets_a_list_by_load_on_vllms_second_runner_and_a_draft_model_does_not() {
    let of =
        |flags: &str, version: &str| run("predict", &format!("{flags} --engine vllm@{version}"));
    let list = "num_speculative_tokens_per_batch_size";
    let first = "vLLM's first runner, which runs this draft, cuts all graphs";
    let look_up = "--model llama-3.1-8b --gpu h100-sxm --gpus 1 --concurrency 1,8,32,128,256 --draft ngram \
                   --accept 3@8";
    let (old, new) = (of(look_up, "0.31.0"), of(look_up, "0.32.0"));
    assert!(old.contains(first) && !old.contains(list), "{old}");
    assert!(new.contains(list), "{new}");
    let small = "--model qwen3-32b --gpu h100-sxm --gpus 2 --draft qwen3-0.6b --accept 3@3 --concurrency 1,8,32,64";
    let (old, new) = (of(small, "0.30.0"), of(small, "0.31.0"));
    assert!(!old.contains(list) && !new.contains(list), "{old}{new}");
    let second = "vLLM's second runner lets a small model draft the deepest of it at every load";
    assert!(
        new.contains(second) && !new.contains(first) && !old.contains(second),
        "{new}"
    );
}

const SWEEP: &str = "concurrency,tok_s\n1,98\n8,700\n32,2300\n64,3700\n";

fn swept(text: &str, more: &str) -> String {
    with_log("swept.csv", text, |path| {
        let flags = format!(
            "--model llama-3.3-70b --quant fp8 --gpu h100 --gpus 4 --engine sglang@0.5.20 --draft eagle3 \
             --context 4k --accept 2.5@3 --concurrency 8,32,64 --baseline {path} {more}"
        );
        run("predict", &flags)
    })
}

/// Plain and speculative tokens a second of each row.
fn tok_s(text: &str) -> Vec<[f64; 2]> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.replace(',', "").parse::<f64>().ok();
        let band = words.get(4).is_some_and(|word| word.starts_with('('));
        (band && number(0).is_some()).then_some([number(1)?, number(2)?])
    };
    text.lines().filter_map(row).collect()
}

/// A server measured with bf16 came out 5 to 8 % slower with fp8 asked for: its sweep was read as one of fp8.
#[test]
fn a_sweep_that_does_not_say_its_kv_format_is_of_the_engines_own() {
    let says = "the plain sweep is taken to be of a KV cache in bf16, the engine's own (it does not say); its \
                steps in fp8 are the measured ones and what the step model adds or takes between the two (a plain \
                sweep with a KV cache in fp8; if this is one, `# sglang.launch_server --kv-cache-dtype fp8` above \
                its speeds would settle it)";
    let (own, fp8) = (swept(SWEEP, ""), swept(SWEEP, "--kv-dtype fp8"));
    assert!(fp8.contains(says) && !own.contains(says), "{fp8}");
    let rows: Vec<_> = tok_s(&own).into_iter().zip(tok_s(&fp8)).collect();
    assert_eq!(rows.len(), 3, "{own}{fp8}");
    let faster = |of: usize| rows.iter().all(|(bf16, fp8)| fp8[of] > bf16[of]);
    assert!(faster(0) && faster(1), "{rows:?}");
    // Where its server's start line says it, the measured steps stand, and bf16 is the one that is moved.
    let told = format!("# sglang.launch_server --kv-cache-dtype fp8_e4m3\n{SWEEP}");
    let (moved, measured) = (swept(&told, ""), swept(&told, "--kv-dtype fp8"));
    assert_eq!(tok_s(&measured)[0][0], 700.0, "{measured}");
    assert!(!measured.contains("of a KV cache"), "{measured}");
    assert!(
        moved.contains("the plain sweep is of a KV cache in fp8 ("),
        "{moved}"
    );
    assert!(tok_s(&moved)[2][0] < 3700.0, "{moved}");
}

/// A scenario describes the server that was measured.
#[test]
fn a_sweep_beside_a_scenario_is_of_the_scenarios_kv_format() {
    let scenario = "model = \"llama-3.3-70b\"\nquant = \"fp8\"\ngpu = \"h100\"\ngpus = 4\nengine = \"sglang@0.5.20\"\n\
                    draft = \"eagle3\"\naccept = \"2.5@3\"\ncontext = \"4k\"\nconcurrency = \"8\"\nkv_dtype = \"fp8\"\n";
    with_log("server.toml", scenario, |toml| {
        with_log("beside.csv", SWEEP, |csv| {
            let flags = format!("--scenario {toml} --baseline {csv}");
            let own = run("predict", &flags);
            assert_eq!(tok_s(&own)[0][0], 700.0, "{own}");
            assert!(!own.contains("of a KV cache"), "{own}");
            let bf16 = run("predict", &format!("{flags} --kv-dtype bf16"));
            let says = "the plain sweep is of a KV cache in fp8 (scenario ";
            assert!(bf16.contains(says), "{bf16}");
        });
    });
}
