//! A log whose loaded weights are of another format than the one asked about.

mod common;

use common::{answers, run, with_log};

/// A log that ends where the weights are loaded, each of four cards with so many GiB.
fn log(gib: f64) -> String {
    let left = 175.34 - gib;
    format!(
        "[2025-08-13 14:47:38 TP0] Load weight begin. avail mem=175.34 GB\n\
         [2025-08-13 14:48:10 TP3] Applied flashinfer weight processing for both w13 and w2\n\
         [2025-08-13 14:48:15 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail \
         mem={left:.2} GB, mem usage={gib:.2} GB.\n"
    )
}

const R1: &str = "--model deepseek-r1 --gpu b200";

/// "a log of this server would settle it" sent for another log of the very server.
#[test]
fn weights_that_a_log_contradicts_name_the_format_that_fits_above_the_fraction_advised() {
    with_log("weights-contradicted", &log(94.51), |file| {
        let of = |command: &str, more: &str| {
            run(command, &format!("{R1} --from-log {file} {more}")).replace(file, "FILE")
        };
        let head = "by weights that FILE contradicts: it loaded 94.5 GiB on a card, deepseek-r1 as asked for takes \
                    158.4; --quant nvfp4 gives 94.5";
        for command in ["predict", "plan"] {
            let text = of(command, "");
            let above = text
                .split("--mem-fraction-static 0.9")
                .next()
                .unwrap_or_default();
            assert!(above.contains(head), "{text}");
            assert!(!of(command, "--quant nvfp4").contains("contradicts"));
        }
        let settles = "(--quant nvfp4, which gives 94.5 GiB, would settle it)";
        assert!(of("predict", "").contains(settles), "{}", of("predict", ""));
        let asked = of("predict", "--quant bf16");
        let settles =
            "(--quant nvfp4, which gives 94.5 GiB, or a log of this server would settle it)";
        assert!(asked.contains(settles), "{asked}");
    });
}

#[test]
fn weights_that_no_format_gives_ask_for_the_format_or_the_config() {
    with_log("weights-of-none", &log(31.0), |file| {
        let text = run("predict", &format!("{R1} --from-log {file}"));
        let settles = "(--quant or the checkpoint's config.json would settle it)";
        assert!(text.contains(settles), "{text}");
    });
}

/// The command given was answered for the published FP8.
#[test]
fn a_log_that_names_a_class_alone_asks_for_the_format_where_the_usual_one_cannot_be() {
    let next = |gib: f64| {
        with_log("weights-of-a-class", &log(gib), |file| {
            let text = answers(&["explain", file]);
            let next = text.split("\nnext ").nth(1).unwrap_or_default().to_string();
            next.split_whitespace().collect::<Vec<_>>().join(" ")
        })
    };
    let open = next(94.51);
    assert!(open.contains("--model MODEL --quant QUANT"), "{open}");
    assert!(open.contains("nvfp4 of deepseek-r1"), "{open}");
    let usual = next(158.4);
    assert!(!usual.contains("--quant"), "{usual}");
}

/// Nothing was said of a log that ends there: "no fault found" stood above a server that was not seen to start.
#[test]
fn a_log_that_ends_once_the_weights_are_loaded_says_what_it_does_not_show() {
    let explained = |name: &str, text: &str| {
        with_log(name, text, |file| {
            let text = answers(&["explain", file]);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        })
    };
    let vllm = "INFO 11-29 14:42:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='Qwen/Qwen3-8B'\n\
                INFO 11-29 14:43:02 [model_runner.py:302] Model loading took 15.27 GiB and 2.4 seconds\n";
    let ends =
        "the log ends once the weights are loaded, before the KV pool was sized, without an error";
    let lacks = "not in it, so that predict estimates it: the KV pool, what graphs take, whether its fraction holds;";
    for log in [log(158.4), vllm.to_string()] {
        let text = explained("ends-at-weights", &log);
        assert!(text.contains(ends) && text.contains(lacks), "{text}");
        assert!(
            text.contains("read the log on, to where it takes requests"),
            "{text}"
        );
    }
    let begun = log(158.4);
    let begun = begun.lines().next().unwrap_or_default();
    let text = explained("ends-in-loading", begun);
    assert!(text.contains("the log ends while weights load"), "{text}");
    assert!(
        text.contains("estimates it: the weights on a card, the KV pool,"),
        "{text}"
    );
    // A server that went on is not said to have ended.
    let served = explained("goes-on", common::SGLANG_LOG);
    assert!(!served.contains("the log ends"), "{served}");
}
