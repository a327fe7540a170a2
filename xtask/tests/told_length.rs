//! The longest request that vLLM is told to take: it starts with no pool that does not hold one of it, so
//! what `plan` and `predict` say of a server presupposes the flag that both name.

mod common;

use common::{answers, run};

const LLAMA: &str = "--model llama-3.3-70b --quant awq --gpu rtx-3090 --gpus 4 --topology \
                     docs/examples/topo-4x3090.txt --draft eagle3 --engine vllm";
const QWEN: &str = "--model qwen3-32b --quant awq --gpu rtx-3090 --gpus 4 --topology \
                    docs/examples/topo-4x3090.txt --draft eagle3 --engine vllm --mem-fraction 0.38";
/// Its workspaces follow the length that it is told.
const SPARSE: &str =
    "--model deepseek-v3.2 --gpu h200 --gpus 8 --engine vllm --mem-fraction 0.72 --draft mtp";

fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_once(word)?.1.split([' ', ',', ':', '\n']).next()
}

fn number(text: &str, word: &str) -> u64 {
    let found = after(text, word).unwrap_or_else(|| panic!("no {word:?} in {text}"));
    found.parse().unwrap_or_else(|e| panic!("{found}: {e}"))
}

/// `plan` said FITS of a server that refuses to start without a flag that `predict` alone pasted.
#[test]
fn plan_names_the_length_that_predict_pastes_and_a_server_told_it_starts() {
    for (case, own) in [(LLAMA, 131_072), (QWEN, 40_960), (SPARSE, 163_840)] {
        for context in ["", "--context 4k"] {
            let flags = format!("{case} {context}");
            let plan = run("plan", &flags);
            let told = number(&plan, "start with --max-model-len ");
            assert!(plan.starts_with("FITS") && told < own, "{flags}: {plan}");
            let predict = run("predict", &format!("{flags} --steps 3"));
            assert!(
                predict.contains(&format!("--max-model-len {told}")),
                "{flags}: {told}: {predict}"
            );
            let followed = run("plan", &format!("{flags} --max-model-len {told}"));
            assert!(followed.starts_with("FITS"), "{flags}: {followed}");
            assert!(!followed.contains("start with"), "{flags}: {followed}");
        }
    }
    // Without the flag, as the model has it.
    let refused = run("plan", &format!("{LLAMA} --max-model-len 131072"));
    assert!(refused.starts_with("REFUSED"), "{refused}");
    let plan = run("plan", LLAMA);
    assert!(
        plan.contains(
            "by itself vLLM takes the model's 131,072, which is refused, short by 1.19 GiB; without the \
             draft it starts without the flag"
        ),
        "{plan}"
    );
    let plain = LLAMA.replace("--draft eagle3", "--draft none");
    let plain = run("plan", &format!("{plain} --max-model-len 131072"));
    assert!(plain.starts_with("FITS"), "{plain}");
}

/// "0.756 would be the least" was refused by itself: it holds the load, and no request of the model's length.
#[test]
fn a_fraction_that_plan_names_starts_with_the_length_beside_it() {
    let flags = format!("{LLAMA} --context 8k --concurrency 8");
    let plan = run("plan", &flags);
    let (least, told) = (
        after(&plan, "they fit; --gpu-memory-utilization ").expect("a fraction"),
        number(
            &plan,
            &format!(
                "{} --max-model-len ",
                after(&plan, "they fit; --gpu-memory-utilization ").expect("a fraction")
            ),
        ),
    );
    let at = |more: &str| run("plan", &format!("{flags} --mem-fraction {least} {more}"));
    let followed = at(&format!("--max-model-len {told}"));
    assert!(followed.starts_with("FITS"), "{followed}");
    let alone = run(
        "plan",
        &format!("{LLAMA} --mem-fraction {least} --max-model-len 131072"),
    );
    assert!(alone.starts_with("REFUSED"), "{alone}");
    // The walls say whose request they hold.
    assert!(
        plan.contains("(pool wall: one request of 16,384 tokens, as told; "),
        "{plan}"
    );
    let own = run("plan", &QWEN.replace("--mem-fraction 0.38", ""));
    assert!(
        own.contains("(pool wall: one request of 40,960 tokens, the model's own; ")
            && !own.contains("start with"),
        "{own}"
    );
}

/// The pasted length stood on the edge of a pool that its own ledger knows to a tenth, and no line said
/// why it was there.
#[test]
fn a_length_that_the_pool_chooses_leaves_the_pools_own_band() {
    let predict = run("predict", LLAMA);
    let told = number(&predict, "--gpu-memory-utilization 0.920 --max-model-len ");
    // 115,696 tokens in 8.94 GiB. Activations, what lies outside torch, all graphs: each off by itself.
    let off = (0.3f64 * 0.428)
        .hypot(0.5 * (0.527 + 0.023))
        .hypot(0.6 * 1.55);
    let low = 115_696.0 * (1.0 - off / 8.94);
    assert!(
        (0.98..=1.0).contains(&(told as f64 / low)),
        "{told} of {low}"
    );
    let why = format!(
        "--max-model-len {told} in the paste, what the pool holds at the low end of its band: by itself \
         vLLM takes the model's 131,072"
    );
    assert_eq!(predict.matches(&why).count(), 1, "{predict}");
    // Who asks for a context gets room for it, and the line that says so.
    let asked = run("predict", &format!("{LLAMA} --context 2k"));
    assert!(!asked.contains("the low end of its band"), "{asked}");
    assert!(
        asked.contains("--max-model-len 4096 in the paste: room"),
        "{asked}"
    );
}

/// At 32k the paste let in twice as much as the head reaches, and a request of 45k ended drafting for all.
#[test]
fn a_length_of_the_tools_own_choice_lets_in_nothing_that_ends_drafting() {
    let config = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("reaches-40k.json");
    let head = r#"{"architectures":["LlamaForCausalLMEagle3"],"hidden_size":2048,"intermediate_size":12288,
        "max_position_embeddings":40960,"model_type":"llama","num_attention_heads":32,"num_key_value_heads":4,
        "num_hidden_layers":1,"head_dim":128,"vocab_size":151936,"draft_vocab_size":32000}"#;
    std::fs::write(&config, head).expect("written");
    let config = config.display().to_string();
    let flags = "--model qwen3-coder-30b-a3b --gpu rtx-5090 --quant int4 --context 32k --kv-dtype fp8 --concurrency 1,2,3 --accept 1.9@3";
    let said = |engine: &str| {
        let words = flags
            .split(' ')
            .chain(["--engine", engine, "--draft", &config]);
        let words: Vec<&str> = std::iter::once("predict").chain(words).collect();
        answers(&words)
    };
    let walled = said("vllm@0.20.0");
    let paste = |text: &str| {
        text.lines()
            .filter(|line| line.contains("vllm serve"))
            .map(str::to_string)
            .collect::<String>()
    };
    assert!(paste(&walled).contains("--max-model-len 40960"), "{walled}");
    assert!(
        walled.contains("--max-model-len 40960 in the paste keeps such requests out"),
        "{walled}"
    );
    assert!(paste(&said("vllm@0.33.0")).contains("--max-model-len 65536"));
}

/// The head refused the length told, and the row beside it, planned at the context alone, paid.
#[test]
fn a_compared_row_serves_the_length_that_the_head_does() {
    let cards = "--model llama-3.3-70b --quant fp8 --box 4x-rtx-4090 --engine vllm --concurrency 1";
    let pool = "--model gpt-oss-20b --box 2x-h100 --engine vllm@0.22.0 --concurrency 1,8";
    for (flags, context) in [(cards, "2k"), (pool, "4k")] {
        let flags = format!("{flags} --context {context} --max-model-len 128k --compare engine");
        let found = answers(
            &format!("predict {flags} --json")
                .split(' ')
                .collect::<Vec<_>>(),
        );
        let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
        let (head, point) = (&found["memory"], &found["points"][0]);
        let row = &found["compared"][0];
        assert_eq!(row["name"], "engine", "{flags}");
        assert_eq!(row["kv_tokens"], head["kv_tokens"], "{flags}");
        assert_eq!(row["steps"], point["steps"], "{flags}");
        assert_eq!(row["stopped"], found["stopped"], "{flags}");
    }
}
