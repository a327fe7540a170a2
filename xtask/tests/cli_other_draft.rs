//! What was measured with one draft is not lent to another.

mod common;

use common::answers;

/// A vLLM server of Qwen3-14B in AWQ that drafts by `config` and prints acceptance.
fn log(name: &str, config: &str, lines: &str) -> String {
    let file = std::env::temp_dir().join(format!("other-draft-{}-{name}.log", std::process::id()));
    let text = format!(
        "INFO 11-30 09:40:02 [utils.py:302]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.17.0\n\
         INFO 11-30 09:40:02 [utils.py:238] non-default args: {{'model': 'Qwen/Qwen3-14B-AWQ', \
         'max_model_len': 16384, 'max_num_seqs': 8, 'speculative_config': {config}}}\n{lines}"
    );
    std::fs::write(&file, text).expect("a file");
    file.display().to_string()
}

const HEAD: &str =
    "{'method': 'eagle3', 'model': 'AngelSlim/Qwen3-14B_eagle3', 'num_speculative_tokens': 4}";

const OF_THE_HEAD: &str = "INFO 11-30 09:43:17 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 \
    tokens/s, Avg generation throughput: 181.8 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache \
    usage: 7.6%, Prefix cache hit rate: 50.0%\n\
    INFO 11-30 09:43:17 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.56, Accepted \
    throughput: 110.80 tokens/s, Drafted throughput: 283.60 tokens/s, Accepted: 1108 tokens, Drafted: \
    2836 tokens, Per-position acceptance rate: 0.689, 0.465, 0.248, 0.161, Avg Draft acceptance rate: 39.1%\n";

fn asked(log: &str, more: &[&str]) -> String {
    let args = ["predict", "--from-log", log, "--gpu", "rtx-5090"];
    answers(&[&args[..], &["--concurrency", "1,8"], more].concat())
}

/// The row of one user.
fn row(text: &str, start: &str) -> String {
    let one = |line: &&str| line.starts_with(start) && line.contains(" 1  ");
    text.lines().find(one).unwrap_or(text).to_string()
}

/// 2.56 of an EAGLE-3 head made n-gram look-up pay 2.50 times, where `--compare` said to measure first.
#[test]
fn an_accept_length_of_a_log_is_not_lent_to_another_draft() {
    let file = log("head", HEAD, OF_THE_HEAD);
    let compared = asked(&file, &["--compare", "eagle3,ngram,qwen3-0.6b"]);
    for draft in ["ngram", "qwen3-0.6b"] {
        let text = asked(&file, &["--draft", draft]);
        let said =
            "its accept length was measured with AngelSlim/Qwen3-14B_eagle3, and is left aside for";
        assert!(text.contains(said), "{text}");
        assert!(text.contains("(not measured)"), "{text}");
        let speedup = |row: String| {
            row.split_whitespace()
                .find(|w| w.starts_with('('))
                .map(str::to_string)
        };
        let of_compare = speedup(row(&compared, draft));
        assert_eq!(
            speedup(row(&text, "    1 ")),
            of_compare,
            "{text}\n{compared}"
        );
    }
    // The same head, its kind or none named is that one's own.
    for own in [
        &[][..],
        &["--draft", "eagle3"],
        &["--draft", "AngelSlim/Qwen3-14B_eagle3"],
    ] {
        let text = asked(&file, own);
        assert!(!text.contains("left aside for"), "{text}");
        assert!(text.contains("accept length 2.56"), "{text}");
    }
    let another = "RedHatAI/Qwen3-14B-speculator.eagle3";
    let text = asked(&file, &["--draft", another]);
    assert!(
        text.contains(&format!("left aside for {another}")),
        "{text}"
    );
    // What the user types is of what he asks about.
    let text = asked(&file, &["--draft", "ngram", "--accept", "1.6@4"]);
    assert!(
        text.contains("accept length 1.60") && !text.contains("left aside for"),
        "{text}"
    );
}

#[test]
fn a_log_given_as_the_accept_length_is_of_its_own_draft() {
    let file = log("accept", HEAD, OF_THE_HEAD);
    let words = "predict --model qwen3-14b --quant awq --engine vllm --gpu rtx-5090 --concurrency 1 --draft";
    let with = |draft: &str| {
        let args: Vec<&str> = words
            .split(' ')
            .chain([draft, "--accept", file.as_str()])
            .collect();
        answers(&args)
    };
    let text = with("ngram");
    assert!(text.contains("left aside for n-gram look-up"), "{text}");
    let text = with("eagle3");
    assert!(!text.contains("left aside for"), "{text}");
}

/// The default scenario assumes a length for its own head: n-gram look-up stood at 1.64, beside 1.02 of
/// `--compare`.
#[test]
fn what_a_scenario_assumes_of_its_head_is_not_lent_to_another_draft() {
    let text = answers(&["predict", "--draft", "ngram", "--concurrency", "1"]);
    assert!(text.contains("left aside for n-gram look-up"), "{text}");
    assert!(!answers(&["predict", "--draft", "eagle3"]).contains("left aside for"));
}

const LOOK_UP: &str = "{'method': 'ngram', 'num_speculative_tokens': 5, 'prompt_lookup_max': 4}";

/// Four windows of ten seconds: 2,000 tokens in each, 900 of them accepted in 400 drafts of 5.
fn windows(throughput: &str) -> String {
    let window = format!(
        "INFO 11-30 09:43:17 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
         throughput: 200.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 7.6%, Prefix cache \
         hit rate: 50.0%\nINFO 11-30 09:43:17 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: \
         3.25, {throughput}Accepted: 900 tokens, Drafted: 2000 tokens, Per-position acceptance rate: 0.600, \
         0.500, 0.450, 0.400, 0.300, Avg Draft acceptance rate: 45.0%\n"
    );
    window.repeat(4)
}

/// 3.25 of the passes that found something stood for all, under "of all passes": 3.16 times where the log
/// itself shows 1.54.
#[test]
fn an_n_gram_log_of_vllm_is_taken_over_all_passes_by_its_totals() {
    let lines =
        windows("Accepted throughput: 90.00 tokens/s, Drafted throughput: 200.00 tokens/s, ");
    let file = log("totals", LOOK_UP, &lines);
    // 2000 / (2000 - 900).
    let explained = answers(&["explain", &file]);
    assert!(explained.contains("1.81818"), "{explained}");
    for text in [asked(&file, &[]), asked(&file, &["--accept", &file])] {
        assert!(text.contains("accept length 1.82 at 5 steps"), "{text}");
        let said = "the accept length is over all passes: tokens generated over those less the accepted (3.25 \
                    where something to copy was found)";
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn an_n_gram_log_without_totals_gives_an_upper_bound_that_is_not_used() {
    let file = log("hits", LOOK_UP, &windows(""));
    for text in [asked(&file, &[]), asked(&file, &["--accept", &file])] {
        assert!(
            text.contains("accept length 3.25 is of passes that found something"),
            "{text}"
        );
        assert!(text.contains("(not measured)"), "{text}");
        assert!(!text.contains("accept length is over all passes"), "{text}");
    }
}

#[test]
fn counters_of_vllm_are_read_over_all_passes_for_look_up_alone() {
    let file = log("page", LOOK_UP, "").replace(".log", ".txt");
    let page = "vllm:generation_tokens_total{engine=\"0\",model_name=\"Qwen/Qwen3-14B-AWQ\"} 90000.0\n\
                vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"Qwen/Qwen3-14B-AWQ\"} 17400.0\n\
                vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"Qwen/Qwen3-14B-AWQ\"} 87000.0\n\
                vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"Qwen/Qwen3-14B-AWQ\"} 38900.0\n";
    std::fs::write(&file, page).expect("a file");
    let with = |draft: &str| {
        asked(
            &file,
            &["--quant", "awq", "--engine", "vllm", "--draft", draft],
        )
    };
    assert!(
        with("ngram").contains(" 1.76 at 5 steps"),
        "{}",
        with("ngram")
    );
    assert!(
        with("eagle3").contains(" 3.24 at 5 steps"),
        "{}",
        with("eagle3")
    );
}

/// The paste repeated the fraction that the log shows refused.
#[test]
fn a_start_refused_for_what_else_holds_the_card_says_that_the_answer_is_of_a_free_one() {
    let file = log(
        "desk",
        HEAD,
        "ERROR 11-30 09:41:00 [core.py:946] ValueError: Free memory on device cuda:0 (27.02/31.36 GiB) on \
         startup is less than desired GPU memory utilization (0.9, 28.22 GiB). Decrease GPU memory utilization \
         or reduce GPU memory used by other processes.\n",
    );
    let text = asked(&file, &[]);
    let said = "27.02 of 31.36 GiB were free, where fractions above 0.86 are refused";
    assert!(text.contains(said), "{text}");
}

/// `--draft` with the config of the head that the log's server ran dropped the log's speeds without a word, as
/// "--draft with its config.json" was advised; and a head that had drafted there "needs to reach" it.
#[test]
fn the_config_of_the_logs_own_head_keeps_what_was_measured_and_what_drafted_there_reaches_it() {
    let name = format!("own-head-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = r#"{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 5120,
        "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 1, "vocab_size": 151936, "draft_vocab_size": 32000, "torch_dtype": "bfloat16",
        "max_position_embeddings": 16384}"#;
    std::fs::write(folder.join("config.json"), config).expect("a file");
    let size = "INFO 11-30 09:40:40 [kv_cache_utils.py:864] GPU KV cache size: 108,000 tokens\n";
    let lines = format!("{size}{}", OF_THE_HEAD.repeat(6));
    let file = log(
        "own",
        &HEAD.replace("AngelSlim/Qwen3-14B_eagle3", "/models/Qwen3-14B-eagle3"),
        &lines,
    );
    let own = asked(&file, &[]);
    let given = asked(&file, &["--draft", folder.to_str().expect("a path")]);
    std::fs::remove_dir_all(&folder).ok();
    for text in [own, given] {
        assert!(text.contains("log: speculative, 1 user"), "{text}");
        assert!(text.contains("expected 2.56 at 4 steps"), "{text}");
        assert!(!text.contains("needs a head"), "{text}");
    }
}

/// Notes of an SGLang server with DeepSeek's own MTP layers, and of a plain one in another layout.
const NOTES: &str = "\
sglang version: 0.5.6

sglang serve \\
  --model-path deepseek-ai/DeepSeek-V3.2-Exp \\
  --tp 8 \\
  --speculative-algorithm EAGLE \\
  --speculative-num-steps 3 \\
  --speculative-eagle-topk 1 \\
  --speculative-num-draft-tokens 4

============ Serving Benchmark Result ============
Backend:                                 sglang
Max request concurrency:                 1
Successful requests:                     10
Benchmark duration (s):                  29.11
Total input tokens:                      1972
Total generated tokens:                  2784
Output token throughput (tok/s):         95.62
Accept length:                           2.46
Mean TTFT (ms):                          317.58
Mean TPOT (ms):                          9.09
Median TPOT (ms):                        9.25
==================================================
";

const PLAIN_NOTES: &str = "
sglang serve \\
  --model-path deepseek-ai/DeepSeek-V3.2-Exp \\
  --tp 8 \\
  --ep 8 \\
  --dp 8 \\
  --enable-dp-attention

============ Serving Benchmark Result ============
Backend:                                 sglang
Max request concurrency:                 100
Successful requests:                     1000
Benchmark duration (s):                  219.09
Total input tokens:                      301701
Total generated tokens:                  188375
Output token throughput (tok/s):         859.80
Mean TTFT (ms):                          530.36
Mean TPOT (ms):                          106.16
Median TPOT (ms):                        106.69
Mean ITL (ms):                           100.46
Median ITL (ms):                         41.73
==================================================
";

fn on_b200(flags: &[&str]) -> String {
    let fixed = ["predict", "--gpu", "b200", "--gpus", "8"];
    answers(&[&fixed[..], flags].concat())
}

/// EAGLE without a draft's path and NEXTN are one in SGLang: the flag that names the MTP layers hid what the
/// notes measured with them.
#[test]
fn the_models_own_layers_named_by_flag_are_what_a_log_drafts_with_by_eagle() {
    common::with_log("eagle-is-mtp", NOTES, |file| {
        let log = ["--from-log", file, "--concurrency", "1,4"];
        let seen = |text: &str| {
            let line = text
                .lines()
                .find(|line| line.contains("log: speculative, 1 user"));
            line.map(str::to_string)
        };
        let without = on_b200(&log);
        assert!(seen(&without).is_some(), "{without}");
        for draft in ["mtp", "nextn"] {
            let text = on_b200(&[&log[..], &["--draft", draft]].concat());
            assert_eq!(seen(&text), seen(&without), "{text}");
            assert!(text.contains("times slower than computed"), "{text}");
        }
        let other = on_b200(&[&log[..], &["--draft", "ngram"]].concat());
        assert_eq!(seen(&other), None, "{other}");
    });
}

#[test]
fn flags_of_a_plain_server_are_not_lent_to_the_one_that_drafts_in_the_same_text() {
    let both = format!("{NOTES}{PLAIN_NOTES}");
    common::with_log("two-servers", &both, |file| {
        let text = on_b200(&["--from-log", file, "--concurrency", "1"]);
        assert!(text.contains("--speculative-algorithm NEXTN"), "{text}");
        assert!(!text.contains("--ep-size"), "{text}");
        let explained = answers(&["explain", file]);
        let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        let differ = "two servers in the file: that which drafts (line 3) and a plain one (line 25) differ in expert \
                      ranks (none, 8), data parallelism (none, data-parallel attention over 8 ranks) too";
        assert!(explained.contains(differ), "{explained}");
    });
    common::with_log("one-server", PLAIN_NOTES, |file| {
        let text = on_b200(&["--from-log", file, "--concurrency", "1"]);
        assert!(text.contains("--ep-size 8"), "{text}");
    });
}

#[test]
fn data_parallel_attention_in_a_start_line_is_said_to_be_another_layout() {
    let both = format!("{NOTES}{PLAIN_NOTES}");
    common::with_log("dp-sweep", &both, |file| {
        let flags = "--draft mtp --concurrency 100 --accept 2.46@3";
        let flags: Vec<&str> = flags.split(' ').collect();
        let text = on_b200(&[&["--from-log", file, "--baseline", file], &flags[..]].concat());
        let said = format!(
            "{file}:25: the plain sweep is of a server with data-parallel attention over 8 ranks, which is not \
             modelled: its steps are of another layout than this answer's, one group of all TP ranks"
        );
        assert!(text.contains(&said), "{text}");
        assert!(!text.contains("(it does not say)"), "{text}");
    });
    common::with_log("dp-log", PLAIN_NOTES, |file| {
        let said = "data-parallel attention over 8 ranks of the log's server: not modelled";
        for command in ["predict", "plan"] {
            let text = answers(&[command, "--from-log", file, "--gpu", "b200", "--gpus", "8"]);
            assert!(text.contains(said), "{text}");
        }
        let text = answers(&["explain", file]);
        assert!(
            text.contains("8 data-parallel ranks: they are not modelled"),
            "{text}"
        );
    });
}

/// The facts are of the last bench result, here a plain one.
#[test]
fn an_accept_length_is_taken_of_the_run_in_a_text_that_prints_one() {
    let both = format!("{NOTES}{PLAIN_NOTES}");
    common::with_log("accept-of-two", &both, |file| {
        let taken = |accept: &str| {
            let model = [
                "--model",
                "deepseek-v3.2-exp",
                "--draft",
                "mtp",
                "--concurrency",
                "1",
            ];
            on_b200(&[&model[..], &["--accept", accept]].concat())
        };
        for accept in [file.to_string(), format!("{file}@3")] {
            let text = taken(&accept);
            assert!(text.contains("(2.46 at 3, as measured)"), "{text}");
            assert!(text.contains("speculative, 1 user, 3 steps"), "{text}");
        }
    });
}

#[test]
fn the_kv_format_of_sparse_attention_is_the_one_that_sglang_takes_on_the_card() {
    let plan = |gpu: &str, engine: &str| {
        let fixed = [
            "plan",
            "--model",
            "deepseek-v3.2",
            "--gpus",
            "8",
            "--gpu",
            gpu,
        ];
        answers(&[&fixed[..], &["--engine", engine]].concat())
    };
    let own = "SGLang's own for DeepSeek's sparse attention";
    for engine in ["sglang@0.5.6", "sglang@0.5.23"] {
        let text = plan("b200", engine);
        assert!(
            text.contains(&format!("KV dtype fp8 ({own} from")),
            "{text}"
        );
        let text = plan("h200", engine);
        assert!(
            text.contains(&format!("KV dtype bf16 ({own} below")),
            "{text}"
        );
    }
    let text = plan("b200", "vllm@0.33.0");
    assert!(text.contains("KV dtype bf16 (the default)"), "{text}");
}

/// vLLM draws its name beside its version.
#[test]
fn the_version_beside_vllms_drawn_name_is_its_own() {
    let text = asked(&log("banner", HEAD, OF_THE_HEAD), &[]);
    assert!(text.contains("vllm@0.17.0"), "{text}");
}
