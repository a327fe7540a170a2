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
