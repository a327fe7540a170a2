//! `--compare`: what was measured belongs to what it was measured with.

mod common;

use common::answers;

const RUN: [&str; 13] = [
    "predict",
    "--model",
    "qwen3-235b-a22b",
    "--quant",
    "int4",
    "--box",
    "8x-rtx-4090",
    "--engine",
    "vllm",
    "--concurrency",
    "1",
    "--context",
    "8k",
];

/// (low, high) of a row of the comparison.
fn band(json: &serde_json::Value, name: &str) -> (f64, f64) {
    let rows = json["compared"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row["name"] == name)
        .expect("the row");
    let figure = |key: &str| row[key].as_f64().expect("a figure");
    (figure("speedup_low"), figure("speedup_high"))
}

fn compared(more: &[&str]) -> serde_json::Value {
    let args = [&RUN[..], more, &["--json"]].concat();
    serde_json::from_str(&answers(&args)).expect("JSON")
}

#[test]
fn an_accept_length_of_one_draft_is_not_lent_to_another() {
    let both = ["--compare", "eagle3,ngram", "--accept", "2.1@3"];
    let measured = compared(&both);
    let alone = compared(&["--compare", "eagle3,ngram"]);
    assert_eq!(band(&measured, "ngram"), band(&alone, "ngram"));
    let width = |(low, high): (f64, f64)| high / low;
    assert!(width(band(&measured, "eagle3")) < width(band(&alone, "eagle3")));
    let text = answers(&[&RUN[..], &both].concat());
    let said = "left out  the accept length for ngram, which has the prior's: it was measured with EAGLE-3";
    assert!(text.contains(said), "{text}");
}

#[test]
fn the_first_draft_compared_is_the_one_that_was_measured() {
    // Its own MTP layer would be the draft where none is named.
    let args = [
        "predict",
        "--model",
        "qwen3.5-27b",
        "--gpu",
        "h100",
        "--accept",
        "2.1@3",
        "--compare",
        "ngram,mtp",
        "--concurrency",
        "1",
    ];
    let text = answers(&args);
    assert!(
        text.contains("the accept length for mtp, which has"),
        "{text}"
    );
    assert!(!text.contains("the accept length for ngram"), "{text}");
}

#[test]
fn a_compared_load_beyond_the_pool_is_marked() {
    let args = [
        "predict",
        "--model",
        "qwen3-32b",
        "--quant",
        "fp8",
        "--engine",
        "vllm",
        "--gpu",
        "rtx-5090",
        "--gpus",
        "2",
        "--context",
        "32k",
        "--concurrency",
        "1,32",
        "--compare",
        "eagle3,none",
    ];
    let text = answers(&args);
    let rows: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("eagle3") || l.starts_with("none"))
        .collect();
    assert_eq!(rows.len(), 4, "{text}");
    for row in rows {
        let beyond = row.contains(" 32 ");
        assert_eq!(row.contains("too few for this load"), beyond, "{row}");
    }
}

/// KV tokens of two rows differed, and nothing said that their depths did.
#[test]
fn rows_of_a_comparison_say_their_draft_steps() {
    let args = [
        "predict",
        "--steps",
        "2",
        "--compare",
        "nccl,none",
        "--json",
    ];
    let answer: serde_json::Value = serde_json::from_str(&answers(&args)).expect("JSON");
    let rows = answer["compared"].as_array().expect("rows");
    let steps: Vec<(&str, u64)> = rows
        .iter()
        .filter_map(|row| Some((row["name"].as_str()?, row["steps"].as_u64()?)))
        .collect();
    assert_eq!(steps, [("nccl", 2), ("nccl", 2), ("none", 0), ("none", 0)]);
    let text = answers(&args[..5]);
    let header = text.lines().find(|line| line.starts_with("compared"));
    assert!(
        header.is_some_and(|line| line.contains("  steps  ")),
        "{text}"
    );
}

/// 201,184 tokens without a draft stood under "costs 12,736 of 188,464 KV tokens": they are of 0.883 of
/// the memory, those with it of 0.850.
#[test]
fn pools_of_other_fractions_are_shown_with_them() {
    let words = "predict --model llama-3.1-8b --gpu rtx-4090 --gpus 2 --engine vllm@0.19 --draft eagle3 \
                 --context 4k --concurrency 1 --compare";
    let with = |list: &'static str| {
        let args: Vec<&str> = words.split_whitespace().chain([list]).collect();
        answers(&args)
    };
    let both = with("eagle3,none");
    let row = |name: &str| {
        both.lines()
            .find(|line| line.starts_with(name))
            .expect("a row")
    };
    assert!(row("compared").ends_with("at fraction"), "{both}");
    assert!(row("eagle3").trim_end().ends_with("0.850"), "{both}");
    assert!(row("none").trim_end().ends_with("0.883"), "{both}");
    assert!(!with("eagle3").contains("at fraction"));
}

#[test]
fn a_draft_that_the_model_does_not_have_is_left_out_beside_others() {
    let words = "predict --model llama-3.1-8b --gpu rtx-4090 --concurrency 1 --compare eagle3,mtp";
    let args: Vec<&str> = words.split(' ').collect();
    let said = answers(&args);
    assert!(said.contains("left out  mtp: "), "{said}");
    assert!(said.contains("\neagle3 "), "{said}");
}

/// Experts of width 768 in blocks of 128 are not cut over four ranks; two cards of 16 GB do not hold the
/// weights.
#[test]
fn a_compared_box_that_does_not_start_or_fit_says_so_and_why() {
    let args = [
        "predict",
        "--model",
        "qwen3-coder-30b-a3b",
        "--quant",
        "fp8",
        "--engine",
        "vllm",
        "--context",
        "32k",
        "--concurrency",
        "1,32",
        "--compare",
        "2x-rtx-pro-6000,4x-a100-sxm,joorklee-2x5060ti",
    ];
    let text = answers(&args);
    let said = |start: &str| text.lines().filter(|l| l.starts_with(start)).count();
    assert_eq!(said("2x-rtx-pro-6000: "), 0, "{text}");
    for (name, word, why) in [
        ("4x-a100-sxm", "does not start", "vllm refuses this cut"),
        ("joorklee-2x5060ti", "does not fit", "it does not fit: "),
    ] {
        let (row, reason) = (format!("{name} "), format!("{name}: {why}"));
        assert_eq!(said(&reason), 1, "{reason}\n{text}");
        let rows = text.lines().filter(|l| l.starts_with(&row));
        let marked = rows.filter(|l| l.contains(word));
        assert_eq!(marked.count(), 2, "{text}");
        let json = answers(&[&args[..], &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for row in json["compared"].as_array().expect("rows") {
            if row["name"] == name {
                assert_eq!(row["fits"], false, "{row}");
                assert_eq!(row["stopped"]["word"], word, "{row}");
            }
        }
    }
}

#[test]
fn without_a_draft_a_refused_cut_still_says_why_and_what_cures_it() {
    let text = answers(&[
        "predict",
        "--model",
        "qwen3-coder-30b-a3b",
        "--quant",
        "fp8",
        "--engine",
        "vllm",
        "--box",
        "4x-a100-sxm",
        "--draft",
        "none",
    ]);
    let head: Vec<&str> = text.lines().take(3).collect();
    assert!(head[0].starts_with("DOES NOT START"), "{text}");
    assert!(head[2].contains("vllm refuses this cut"), "{text}");
    assert!(head[2].contains("--tp 2 or expert parallelism"), "{text}");
}

#[test]
fn a_misspelt_name_to_compare_is_answered_with_its_neighbours_of_every_kind() {
    for (name, near) in [
        ("4x-a100-smx", "4x-a100-sxm (box)"),
        ("two-shto", "two-shot (all-reduce)"),
        ("eagel3", "eagle3 (draft)"),
        ("qwen3-0.6", "qwen3-0.6b (draft)"),
        ("zzzzzzzzzz", "one of `--box list`"),
    ] {
        let said = common::refusal(&[
            "predict",
            "--model",
            "qwen3-32b",
            "--compare",
            &format!("2x-rtx-pro-6000,{name}"),
        ]);
        let start = format!("error: --compare {name}: no all-reduce, box or draft");
        assert!(said.starts_with(&start), "{said}");
        assert!(said.contains(near), "{said}");
    }
}

/// One-shot's +17 % was taken for something to switch on.
#[test]
fn compared_all_reduces_say_what_switches_them_on_or_that_nothing_does() {
    let words = ["predict", "--compare", "nccl,one-shot"];
    let text = answers(&words);
    let head = text.lines().find(|line| line.starts_with("compared"));
    assert!(
        head.is_some_and(|head| head.contains("in SGLang")),
        "{text}"
    );
    for (name, by) in [
        ("nccl ", "--disable-custom-all-reduce"),
        ("one-shot ", "no"),
    ] {
        let mut rows = text.lines().filter(|line| line.starts_with(name));
        assert!(rows.all(|row| row.trim_end().ends_with(by)), "{text}");
    }
    // Of boxes and drafts nothing is switched.
    let drafts = answers(&["predict", "--compare", "eagle3,ngram"]);
    let head = drafts.lines().find(|line| line.starts_with("compared"));
    assert!(
        head.is_some_and(|head| !head.contains("in SGLang")),
        "{drafts}"
    );
}
