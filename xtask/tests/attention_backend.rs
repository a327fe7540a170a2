//! The attention kernels that the engine is told to run: by flag, and as advice where the verify's own walks the
//! cache.

mod common;

use common::{answers, refusal};
use serde_json::Value;

const LONG: &str = "--model qwen3-32b --quant awq --box 2x-rtx-5090-am5 --engine vllm@0.30.0 --concurrency 1,2,4 \
                    --draft eagle3 --accept 2.4@3";

fn predict(line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().collect();
    let asked = [&["predict", "--json"], words.as_slice()].concat();
    serde_json::from_str(&answers(&asked)).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn lines(answer: &Value, list: &str, key: &str) -> Vec<String> {
    let all = answer[list].as_array().into_iter().flatten();
    let texts = all.filter_map(|one| one[key].as_str());
    texts.map(str::to_string).collect()
}

fn speedup(answer: &Value) -> f64 {
    answer["points"][0]["speedup"].as_f64().expect("a speedup")
}

/// It stood at the end of a line under "assumed" alone, and the head said to leave the draft off.
#[test]
fn what_runs_another_kernel_is_named_with_its_gain_and_gives_it_when_followed() {
    let own = predict(&format!("{LONG} --context 16k"));
    assert_eq!(own["verdict"], "does-not-pay");
    for (flag, said) in [
        (
            "--attention-backend FLASHINFER",
            "--attention-backend FLASHINFER",
        ),
        ("--kv-dtype fp8", "--kv-cache-dtype fp8"),
    ] {
        let followed = predict(&format!("{LONG} --context 16k {flag}"));
        assert_eq!(followed["verdict"], "pays", "{flag}");
        let gained = format!("{said}: {:.2}x", speedup(&followed));
        let flips = lines(&own, "flips", "note");
        assert!(
            flips.iter().any(|note| note.starts_with(&gained)),
            "{gained}: {flips:?}"
        );
        let tok_s = |answer: &Value, key: &str| -> Vec<f64> {
            let points = answer["points"].as_array().expect("points");
            points
                .iter()
                .filter_map(|point| point[key].as_f64())
                .collect()
        };
        let (after, before) = (
            tok_s(&followed, "spec_tok_s"),
            tok_s(&own, "baseline_tok_s"),
        );
        let logs = after
            .iter()
            .zip(&before)
            .map(|(after, before)| (after / before).ln());
        let mean = (logs.sum::<f64>() / after.len() as f64).exp();
        let changes = own["changes"].as_array().expect("changes");
        let change = changes.iter().find(|change| change["change"] == said);
        let gain = change
            .and_then(|change| change["gain"].as_f64())
            .expect("the change");
        assert!(
            (gain / mean - 1.0).abs() < 0.02,
            "{said}: {gain} said, {mean} had"
        );
    }
}

#[test]
fn the_pasted_line_tells_the_engine_what_the_flag_asks_for() {
    let paste = |engine: &str, name: &str| {
        let asked = format!(
            "--model qwen3-32b --quant awq --box 2x-rtx-5090-am5 --engine {engine} --context 2k --attention-backend {name}"
        );
        let answer = predict(&asked);
        let flags = |key: &str| answer["engine_flags"][key].to_string();
        (flags("vllm"), flags("vllm_env"), flags("sglang"))
    };
    let (line, _, _) = paste("vllm@0.30.0", "flashinfer");
    assert!(
        line.contains(r#""--attention-backend","FLASHINFER""#),
        "{line}"
    );
    // Before 0.13.0 a variable alone says it.
    let (line, env, _) = paste("vllm@0.12.0", "FLASHINFER");
    assert!(!line.contains("--attention-backend"), "{line}");
    assert!(env.contains("VLLM_ATTENTION_BACKEND=FLASHINFER"), "{env}");
    let (_, _, line) = paste("sglang@0.5.23", "triton");
    assert!(line.contains(r#""--attention-backend","triton""#), "{line}");
}

#[test]
fn a_kernel_that_does_not_run_there_is_refused_with_what_does() {
    for (asked, why) in [
        (
            "--model qwen3-32b --gpu rtx-5090 --gpus 4 --engine vllm --attention-backend FOO",
            "known here: FLASH_ATTN",
        ),
        (
            "--model qwen3-32b --gpu rtx-5090 --gpus 4 --engine vllm --attention-backend triton_mla",
            "latent attention",
        ),
        (
            "--model deepseek-v3 --gpu h200 --gpus 8 --engine vllm --attention-backend FLASHINFER",
            "attention of deepseek-v3 is latent",
        ),
        (
            "--model qwen3-32b --gpu rtx-5090 --gpus 4 --engine vllm --kv-dtype fp8 --attention-backend FLASH_ATTN",
            "no fp8 cache on this card; by itself vLLM takes FLASHINFER",
        ),
        (
            "--model gpt-oss-120b --gpu rtx-4090 --gpus 4 --engine vllm --attention-backend FLASHINFER",
            "no attention sinks",
        ),
        (
            "--model gpt-oss-120b --gpu rtx-4090 --gpus 4 --engine sglang --attention-backend flashinfer",
            "triton",
        ),
        (
            "--model qwen3-32b --gpu rtx-5090 --gpus 4 --engine sglang --attention-backend fa3",
            "FlashAttention 3",
        ),
        (
            "--model qwen3-32b --gpu rtx-5090 --gpus 4 --engine trtllm --attention-backend TRTLLM",
            "sglang and vllm alone",
        ),
    ] {
        let words: Vec<&str> = asked.split_whitespace().collect();
        let line = refusal(&[&["predict"], words.as_slice()].concat());
        assert!(
            line.contains("--attention-backend") && line.contains(why),
            "{asked}: {line}"
        );
    }
}

/// The first listed context that loses was named, four times what it took to turn.
#[test]
fn the_context_flip_is_where_the_middle_crosses_one_from_both_sides() {
    let flip = |context: u64| {
        let answer = predict(&format!("{LONG} --steps 3 --context {context}"));
        let flips = answer["flips"].as_array().expect("flips").iter();
        let mut flips = flips.filter(|flip| flip["input"] == "context");
        let at = flips.next().and_then(|flip| flip["to"].as_u64());
        (at, speedup(&answer))
    };
    let (over, gains) = flip(2048);
    let (under, loses) = flip(8192);
    let at = over.expect("a context over which it loses");
    assert_eq!(over, under, "{gains} at 2k, {loses} at 8k");
    assert!(gains > 1.0 && loses < 1.0);
    let (_, before) = flip(at * 95 / 100);
    let (_, behind) = flip(at * 105 / 100);
    assert!(
        before > 1.0 && behind < 1.0,
        "{before} before {at}, {behind} behind"
    );
}

/// Depths that gain under 2 % stood in the rows, and one so left a load open.
#[test]
fn an_answer_that_does_not_pay_has_one_depth_for_all_rows() {
    let answer = predict(&format!("{LONG} --context 16k"));
    assert_eq!(answer["verdict"], "does-not-pay");
    let points = answer["points"].as_array().expect("points").iter();
    let mut steps: Vec<u64> = points.filter_map(|point| point["steps"].as_u64()).collect();
    steps.dedup();
    assert_eq!(steps.len(), 1, "{steps:?}");
}

/// FlashInfer's verify was taken to split the cache at no cost on every card.
#[test]
fn tiles_of_flashinfer_are_told_with_what_does_it_faster() {
    let of = |server: &str| {
        let line = format!("predict {server}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    const TILES: &str =
        "FlashInfer's kernel for several tokens multiplies whole tiles of query rows";
    let rtx = "--model qwen3-32b --quant fp8 --kv-dtype fp8 --gpu rtx-5090 --gpus 2 --context 16k --concurrency 8 \
               --steps 3 --engine";
    let tiles = of(&format!("{rtx} vllm@0.24.0"));
    assert!(
        tiles.contains(TILES) && tiles.contains("vLLM 0.28.0 does it faster"),
        "{tiles}"
    );
    assert!(!tiles.contains("and masks each"), "{tiles}");
    // Followed, the newer release is what was said of it, and says that its kernel was not run on such a card.
    let (_, gain) = tiles.split_once("%  vLLM 0.28.0 (").expect("a change");
    let (_, told) = gain.split_once("attention: ").expect("its speedup");
    let (told, _) = told.split_once("x with ").expect("a figure");
    let newer = of(&format!("{rtx} vllm@0.28.0").replace(" --steps 3", ""));
    assert!(
        newer.contains("by XQA: taken to read the cache once"),
        "{newer}"
    );
    assert!(!newer.contains(TILES), "{newer}");
    let fixed = of(&format!("{rtx} vllm@0.28.0"));
    let figure = |text: &str| -> f64 {
        let (head, _) = text.split_once("x for ").expect("a speedup");
        head.rsplit(' ')
            .next()
            .unwrap_or_default()
            .parse()
            .expect("a figure")
    };
    assert!(
        (figure(&fixed) - told.parse::<f64>().expect("a figure")).abs() < 0.02,
        "{told}: {fixed}"
    );
    assert!(figure(&fixed) > figure(&tiles));
    // SGLang masks them, and at one user they hide behind the reading of the cache.
    let sglang = "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --context 8k --engine sglang@0.5.12";
    let many = of(&format!("{sglang} --concurrency 16"));
    assert!(
        many.contains(TILES) && many.contains("and masks each"),
        "{many}"
    );
    let one = of(&format!("{sglang} --concurrency 1"));
    assert!(
        one.contains("it then hides behind the reading of the cache"),
        "{one}"
    );
    assert!(!one.contains(TILES), "{one}");
}

/// Advised for its kernel, FlashInfer on Ada cuts the graphs of a verify, and nothing said so or held it in the band.
#[test]
fn a_verify_in_pieces_is_said_and_its_host_is_in_the_band() {
    const CUT: &str = "vLLM cuts the CUDA graph of a verify at attention here (FLASHINFER)";
    let of = |more: &str| {
        let line = format!(
            "predict --model qwen3-8b --quant fp8 --gpu rtx-4090 --draft eagle3 --context 4k --concurrency 1 --steps 3 \
             --attention-backend FLASHINFER --engine {more}"
        );
        answers(&line.split_whitespace().collect::<Vec<_>>())
    };
    let low = |text: &str| -> f64 {
        let (_, band) = text.split_once("for one user (").expect("a band");
        let (low, _) = band.split_once(' ').expect("its low end");
        low.parse().expect("a figure")
    };
    let (cut, whole) = (of("vllm@0.24.0"), of("vllm@0.33.0"));
    assert!(cut.contains(CUT), "{cut}");
    assert!(!whole.contains(CUT), "{whole}");
    assert!(low(&cut) < low(&whole), "{cut}{whole}");
    // Whoever is sent there is told.
    let line = "predict --model qwen3-8b --quant fp8 --gpu rtx-4090 --draft eagle3 --context 4k --engine vllm@0.24.0";
    let sent = answers(&line.split_whitespace().collect::<Vec<_>>());
    let change = sent
        .lines()
        .find(|line| line.contains("%  --attention-backend FLASHINFER"));
    assert!(
        change.is_some_and(|line| line.contains("cut at attention")),
        "{sent}"
    );
    let log = "INFO 11-30 20:01:11 [utils.py:253] non-default args: {'model': 'Qwen/Qwen3-8B', \
               'speculative_config': {'method': 'eagle3', 'model': 'a/head', 'num_speculative_tokens': 3}}\n\
               WARNING 11-30 20:01:12 [compilation.py:1380] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with \
               spec-decode for attention backend FlashInferBackend (support: \
               AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE\n";
    common::with_log("cut", log, |path| {
        let read = answers(&["explain", path]);
        assert!(
            read.contains("a verify runs in CUDA graphs cut at attention"),
            "{read}"
        );
    });
}
