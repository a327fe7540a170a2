//! `--compare`: what was measured belongs to what it was measured with.

mod common;

use common::{answers, bench, run, with_log};

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

/// 201,184 tokens without a draft stood under "costs 12,736 of 188,464 KV tokens": they were of a higher
/// share of the memory than those with it.
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
    assert!(row("eagle3").trim_end().ends_with("0.835"), "{both}");
    assert!(row("none").trim_end().ends_with("0.900"), "{both}");
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

/// Two cards of a kind on root ports; `p2p` and `name` as given.
fn pair(file: &std::path::Path, name: &str, card: &str, p2p: &str) -> String {
    let gpu = |n: u8| {
        format!(
            "{{ id = \"gpu{n}\", kind = \"gpu\", parent = \"cpu0\", root = \"r{n}\", gen = 4, lanes = 8 }},"
        )
    };
    let text = format!(
        "name = \"{name}\"\ngpu = \"{card}\"\np2p = \"{p2p}\"\nnode = [\n\
         {{ id = \"cpu0\", kind = \"socket\" }},\n{}\n{}\n]\n",
        gpu(0),
        gpu(1)
    );
    std::fs::write(file, text).expect("a file");
    file.display().to_string()
}

/// First row of a name.
fn first_row<'a>(json: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let rows = json["compared"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("no row {name}: {rows:?}"))
}

/// The box's own file lost the sweep and the log, and stood beside the box itself at other figures; its
/// name was refused.
#[test]
fn the_box_of_the_answer_keeps_sweep_and_log_and_another_wiring_the_logs_memory() {
    let folder = std::env::temp_dir().join(format!("compare-own-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let own = pair(&folder.join("own.toml"), "my-pair", "rtx-3090", "off");
    let patched = pair(&folder.join("p2p.toml"), "patched", "rtx-3090", "on");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let log = write("s.log", LOG);
    let sweep = write("plain.csv", "users,tok_s\n1,45\n4,150\n");
    let names = format!("{own},my-pair,{patched}");
    for flag in ["--box", "--topology"] {
        let json = answers(&[
            "predict",
            "--from-log",
            &log,
            "--baseline",
            &sweep,
            "--draft",
            "eagle3",
            "--context",
            "4k",
            "--concurrency",
            "1",
            flag,
            &own,
            "--compare",
            &names,
            "--json",
        ]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let tokens = &json["memory"]["kv_tokens"];
        for name in [own.as_str(), "my-pair"] {
            let row = first_row(&json, name);
            assert_eq!(row["spec_tok_s"], json["points"][0]["spec_tok_s"], "{name}");
            assert_eq!(
                row["speedup_low"], json["points"][0]["speedup_low"],
                "{name}"
            );
            assert_eq!(&row["kv_tokens"], tokens, "{name}");
        }
        // The same cards with the same engine hold as much, however they are wired.
        assert_eq!(&first_row(&json, &patched)["kv_tokens"], tokens);
        // Their plain steps are the measured ones without the hops through the host.
        let plain = |name: &str| {
            first_row(&json, name)["baseline_tok_s"]
                .as_f64()
                .unwrap_or(0.0)
        };
        let gain = plain(&patched) / plain(&own);
        assert!(gain > 1.0 && gain < 1.3, "{gain}");
        let assumed = json["assumptions"].to_string();
        assert!(
            assumed.contains("p2p.toml: the steps of the plain sweep on my-pair, moved"),
            "{assumed}"
        );
        assert_eq!(json["compared_left_out"], serde_json::json!([]));
    }
    std::fs::remove_dir_all(&folder).ok();
}

/// A server of two cards with its memory.
const LOG: &str = "\
[2026-01-23 19:35:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B-AWQ', tp_size=2, context_length=8192, \
quantization='awq', mem_fraction_static=0.85, version='0.5.5')
[2026-01-23 19:35:10 TP0] Load weight begin. avail mem=22.80 GB
[2026-01-23 19:35:30 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.float16, avail mem=13.60 GB, \
mem usage=9.20 GB.
[2026-01-23 19:35:31 TP0] KV Cache is allocated. #tokens: 83200, K size: 5.08 GB, V size: 5.08 GB
[2026-01-23 19:35:33 TP0] Memory pool end. avail mem=3.10 GB
";

/// A swept row beside a computed one: the second card seemed to gain 1.28 times, like for like it is 1.64.
#[test]
fn a_table_with_a_box_that_nothing_was_measured_on_is_computed_throughout() {
    let sweep = std::env::temp_dir().join(format!("compare-kinds-{}.csv", std::process::id()));
    std::fs::write(&sweep, "users,tok_s\n1,90\n4,300\n").expect("a file");
    let of = |more: &[&str]| {
        let common = ["predict", "--model", "qwen3-32b", "--quant", "int4"];
        let boxes = ["--compare", "2x-rtx-pro-6000,4x-rtx-pro-6000"];
        let load = ["--context", "4k", "--concurrency", "1,4", "--json"];
        let args = [&common[..], &boxes, &load, more].concat();
        let json: serde_json::Value = serde_json::from_str(&answers(&args)).expect("JSON");
        json
    };
    let swept = of(&["--baseline", &sweep.display().to_string()]);
    std::fs::remove_file(&sweep).ok();
    let computed = of(&[]);
    assert_eq!(swept["compared"], computed["compared"]);
    let kept = swept["points"][0]["baseline_tok_s"].as_f64();
    assert!(kept.is_some_and(|kept| (kept - 90.0).abs() < 1e-6));
    let left_out = serde_json::json!([
        "the plain sweep: of 2x-rtx-pro-6000, not of 4x-rtx-pro-6000; so that rows compare, all are computed \
         (the answer above keeps it)"
    ]);
    assert_eq!(swept["compared_left_out"], left_out);
}

/// Of `--concurrency 1,2,4,8,16` the table had 1 and 16 alone.
#[test]
fn every_load_that_was_asked_for_is_compared_where_they_are_few() {
    let loads = |asked: &str| -> Vec<u64> {
        let words = ["predict", "--model", "llama-3.1-8b", "--json", "--compare"];
        let boxes = ["4x-rtx-3090,4x-rtx-3090-nvlink", "--concurrency", asked];
        let text = answers(&[&words[..], &boxes].concat());
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let rows = json["compared"].as_array().expect("rows").iter();
        let first = rows.filter(|row| row["name"] == "4x-rtx-3090");
        first
            .filter_map(|row| row["concurrency"].as_u64())
            .collect()
    };
    assert_eq!(loads("1,2,4,8,16"), [1, 2, 4, 8, 16]);
    assert_eq!(loads("1,2,4,8,16,32,64"), [1, 64]);
}

/// A sweep of a healthy box was taken to rule out the collapse of the box it is compared with.
#[test]
fn a_sweep_of_one_box_does_not_heal_the_fabric_of_another() {
    let sweep = bench(1, 18.0, None);
    with_log("healthy-box", &sweep, |file| {
        let run = "predict --model qwen3-235b-a22b --quant int4 --engine vllm --allreduce one-shot \
                   --concurrency 1 --box 8x-rtx-pro-6000-direct --json --compare \
                   8x-rtx-pro-6000-direct,two-switch-8 --baseline";
        let words: Vec<&str> = run.split_whitespace().chain([file]).collect();
        let found: serde_json::Value = serde_json::from_str(&answers(&words)).expect("JSON");
        let rows = found["compared"].as_array().expect("rows");
        let plain = |name: &str| {
            let row = rows
                .iter()
                .find(|row| row["name"] == name)
                .expect("the row");
            row["baseline_tok_s"].as_f64().expect("a speed")
        };
        let (own, switched) = (plain("8x-rtx-pro-6000-direct"), plain("two-switch-8"));
        assert!(switched < 0.7 * own, "{own} {switched}");
    });
}

/// `2x-rtx-3090` heads an answer, and no flag took it.
#[test]
fn so_many_cards_on_their_usual_wiring_are_a_box_by_the_name_that_answers_give_them() {
    let flags = "--model qwen3-30b-a3b --quant int4 --engine vllm --concurrency 1";
    let by_cards = run("predict", &format!("{flags} --gpu rtx-3090 --gpus 2"));
    assert_eq!(
        run("predict", &format!("{flags} --box 2x-rtx-3090")),
        by_cards
    );
    let both = run(
        "predict",
        &format!("{flags} --box 2x-rtx-3090-nvlink --compare 2x-rtx-3090-nvlink,2x-rtx-3090"),
    );
    let row = both
        .lines()
        .find(|line| line.trim_start().starts_with("2x-rtx-3090 "));
    assert!(row.is_some(), "{both}");
    let file = "model = \"qwen3-32b\"\nquant = \"int4\"\nbox = \"2x-rtx-3090\"\ngpus = 4\n";
    let why = with_log("four-of-two", file, |file| {
        common::refusal(&["predict", "--scenario", file])
    });
    let said = "--gpus 4: the box 2x-rtx-3090 has 2 GPUs";
    assert!(why.contains(said), "{why}");
}

/// Its rows were blank in the terminal, `Does not pay` on the page and `does-not-pay` in JSON.
#[test]
fn a_compared_row_without_a_draft_has_no_verdict_but_no_draft() {
    let flags = "--model qwen3-32b --quant fp8 --gpu h100 --concurrency 1 --compare eagle3,none";
    let text = run("predict", flags);
    let row = text.lines().find(|line| line.starts_with("none "));
    assert!(row.is_some_and(|row| row.contains("no draft")), "{text}");
    let found: serde_json::Value =
        serde_json::from_str(&run("predict", &format!("{flags} --json"))).expect("JSON");
    let rows = found["compared"].as_array().expect("rows");
    let none = rows.iter().find(|row| row["name"] == "none");
    assert_eq!(none.expect("a row")["verdict"], "no-draft");
    let page = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("plain-row.html");
    let page = page.to_str().expect("a path");
    run("predict", &format!("{flags} --report {page}"));
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html.contains("<td class=\"left\">No draft</td>"), "{html}");
}
