//! Outputs read word by word as an owner would: what does not concern the box is not said, and what is
//! pasted starts.

mod common;

use common::{SGLANG_LOG, answers, refusal, with_log};

/// `predict` with these flags.
fn predict(flags: &str) -> String {
    let arguments: Vec<&str> = ["predict"].into_iter().chain(flags.split(' ')).collect();
    answers(&arguments)
}

/// The lines under `paste`; empty where there are none.
fn pasted(text: &str) -> &str {
    text.split_once("\npaste\n").map_or("", |(_, lines)| lines)
}

#[test]
fn one_gpu_is_told_nothing_of_links() {
    let text = predict("--model llama-3.1-8b --gpu rtx-4090");
    for word in ["wiring:", "all-reduce", "experts"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    let mesh = predict("--model deepseek-r1 --quant nvfp4 --gpu b200 --gpus 8");
    assert!(mesh.contains("NVSwitch"), "{mesh}");
    assert!(
        !mesh.contains("root port") && !mesh.contains("all-to-all"),
        "{mesh}"
    );
}

#[test]
fn what_cannot_start_has_nothing_to_paste() {
    let text = predict("--model deepseek-v3 --gpu h100 --gpus 8");
    assert!(text.starts_with("DOES NOT FIT"), "{text}");
    assert!(pasted(&text).is_empty(), "{text}");
    for word in [
        "would flip it",
        "must be set",
        "more than the KV pool holds",
    ] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_cut_that_is_refused_is_no_lack_of_room_and_is_pasted_with_what_cures_it() {
    let text = predict("--model Qwen/Qwen3-235B-A22B-FP8 --gpu h100 --gpus 8");
    assert!(
        text.starts_with("DOES NOT START   without expert parallelism, which the paste adds"),
        "{text}"
    );
    let lines = pasted(&text);
    for part in [
        "--ep-size 8",
        "--speculative-algorithm EAGLE3",
        "--enable-expert-parallel",
    ] {
        assert!(lines.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_full_pool_is_told_with_the_fraction_that_holds_more() {
    let text =
        predict("--model llama-3.3-70b --quant fp8 --gpu rtx-6000-ada --gpus 2 --engine sglang");
    let line = text
        .lines()
        .find(|line| line.contains("the KV pool is full"));
    let line = line.unwrap_or_default();
    assert!(line.contains(" with --mem-fraction-static 0.8"), "{text}");
    let given = predict(
        "--model llama-3.3-70b --quant fp8 --gpu rtx-6000-ada --gpus 2 --engine sglang --mem-fraction 0.85",
    );
    assert!(!given.contains(" with --mem-fraction-static"), "{given}");
}

#[test]
fn llama_cpp_is_told_as_many_slots_as_its_card_holds() {
    let text = predict(
        "--model qwen3-8b --gpu rtx-3090 --engine llamacpp --quant q4_k_m --draft qwen3-0.6b",
    );
    let lines = pasted(&text);
    assert!(lines.contains("-ngl 99 -c 65536 -np 32 "), "{text}");
    assert!(!text.contains("legal fraction"), "{text}");
    let asked = predict(
        "--model qwen3-8b --gpu rtx-3090 --engine llamacpp --quant q4_k_m --draft qwen3-0.6b --max-running 4 --context 8k",
    );
    assert!(pasted(&asked).contains("-c 32768 -np 4 "), "{asked}");
}

#[test]
fn modules_for_a_position_each_draft_no_deeper_than_there_are_of_them() {
    let flags = "--model minimax-m2.5 --gpu rtx-pro-6000 --gpus 4 --json";
    let answer: serde_json::Value = serde_json::from_str(&predict(flags)).expect("JSON");
    let points = answer["points"].as_array().expect("points");
    assert!(!points.is_empty());
    for point in points {
        assert!(
            point["steps"].as_u64().is_some_and(|steps| steps <= 3),
            "{point}"
        );
    }
}

#[test]
fn kernels_refused_for_one_reason_are_refused_in_one_line() {
    let text = answers(&[
        "simulate", "--gpu", "rtx-5090", "--gpus", "4", "--bytes", "64k",
    ]);
    let refused = text.lines().filter(|line| line.starts_with("not here"));
    assert_eq!(refused.count(), 1, "{text}");
    assert!(
        text.contains("one-shot, one-shot-push, two-shot, island: needs peer access"),
        "{text}"
    );
    assert!(
        text.contains("any half of the GPUs does as well as another"),
        "{text}"
    );
}

#[test]
fn a_report_without_a_draft_has_plain_speeds_and_no_curve() {
    let path = std::env::temp_dir().join(format!("xtask-read-{}.html", std::process::id()));
    let shown = path.to_string_lossy().into_owned();
    answers(&[
        "predict", "--model", "qwen3-8b", "--gpu", "rtx-4090", "--draft", "none", "--report",
        &shown,
    ]);
    let page = std::fs::read_to_string(&path).expect("the page");
    let _ = std::fs::remove_file(&path);
    assert!(page.contains("Speed by load") && !page.contains("Speedup by load"));
    assert!(!page.contains("your own sweep") && !page.contains("The box"));
}

/// At one load the best depth is decided and the one pasted is not.
#[test]
fn a_load_that_the_pasted_depth_leaves_open_is_marked_although_the_depths_tie() {
    // Where the deeper one stops being sure is the step model's to say.
    let heaviest = (32..128).step_by(4);
    let found = heaviest.into_iter().find_map(|users| {
        let text = predict(&format!(
            "--model qwen3-32b --quant int4 --gpu h100 --gpus 4 --engine sglang --draft eagle3 \
             --context 4k --concurrency 1,4,16,{users}"
        ));
        let row = text
            .lines()
            .find(|l| l.trim_start().starts_with(&format!("{users} ")))?;
        let open = row.contains("measure first; pays with ");
        open.then(|| (users, text.clone()))
    });
    let (users, text) = found.expect("a load that the pasted depth alone leaves open");
    assert!(
        text.contains(&format!("measure first at {users} users")),
        "{text}"
    );
}

/// SGLang's lower wall is that of an empty pool: it is not said to hold a request.
#[test]
fn sglangs_least_fraction_is_said_to_be_of_an_empty_pool() {
    let of = |engine: &str| {
        let text = answers(&[
            "predict", "--model", "qwen3-8b", "--gpu", "rtx-5090", "--gpus", "1", "--engine",
            engine,
        ]);
        let line = text.lines().find(|l| l.contains("legal fraction:"));
        line.unwrap_or_default().to_string()
    };
    assert!(
        of("sglang").contains("(from an empty pool on)"),
        "{}",
        of("sglang")
    );
    assert!(of("vllm").contains("one request of"), "{}", of("vllm"));
}

/// The paste said one token more than the steps, whatever the tree.
#[test]
fn a_tree_is_pasted_with_its_own_tokens_at_every_depth() {
    let text = predict(
        "--model qwen3-32b --gpu h200 --gpus 8 --topk 4 --draft-tokens 16 --accept 1.8@3 \
         --concurrency 1,4,16,32,64,128",
    );
    assert!(
        pasted(&text).contains("--speculative-num-draft-tokens 16"),
        "{text}"
    );
}

/// The plain step just given was asked for again.
#[test]
fn a_sweep_of_ones_own_stands_beside_the_verify_that_was_observed() {
    let sweep = std::env::temp_dir().join(format!("own-{}.csv", std::process::id()));
    std::fs::write(&sweep, "concurrency,tok_s\n1,50\n8,200\n").expect("writes");
    let text = answers(&["predict", "--baseline", &sweep.display().to_string()]);
    assert!(!text.contains("measure plain tokens a second"), "{text}");
    assert!(
        !text.contains("from scratch, without the observed verify"),
        "{text}"
    );
    let used = "the observed figure is used; what your plain steps make it stands beside";
    assert!(text.contains(used), "{text}");
}

#[test]
fn plan_and_predict_count_llama_cpps_slots_alike() {
    let flags = "--engine llamacpp --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 2 --tp 2 \
                 --max-running 16 --context 32768 --draft none";
    let plan: Vec<&str> = ["plan"]
        .into_iter()
        .chain(flags.split_whitespace())
        .collect();
    assert!(answers(&plan).starts_with("REFUSED"), "{}", answers(&plan));
    let text = predict(&flags.split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(text.contains("DOES NOT FIT"), "{text}");
}

/// A header alone was "the sweep has no points", of no file.
#[test]
fn a_baseline_without_rows_is_named() {
    let sweep = std::env::temp_dir().join(format!("header-{}.csv", std::process::id()));
    std::fs::write(&sweep, "concurrency,tok_s\n").expect("writes");
    let name = sweep.display().to_string();
    let error = common::refusal(&["predict", "--baseline", &name]);
    assert!(
        error.contains(&name) && error.contains("no rows"),
        "{error}"
    );
}

/// "Measure first" with 5 steps, where 2, which are 1 % slower, surely pay.
#[test]
fn a_tied_depth_that_surely_pays_is_the_one_named_where_the_fastest_may_not() {
    let server = "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --engine sglang \
                  --context 4k --concurrency 7 --task math --attention-backend fa3 --topology ../docs/examples/topo-4x3090.txt";
    let server = server.replace("..", concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let text = predict(&server);
    assert!(text.starts_with("PAYS"), "{text}");
    assert!(!text.contains("pays with "), "{text}");
    let deeper = predict(&format!("{server} --steps 5"));
    assert!(deeper.starts_with("MEASURE FIRST"), "{deeper}");
    let speedup = |text: &str| -> f64 {
        let (head, _) = text.split_once("x for ").expect("a speedup");
        let figure = head.rsplit(' ').next().unwrap_or_default();
        figure.parse().expect("a figure")
    };
    let (named, fastest) = (speedup(&text), speedup(&deeper));
    assert!(
        fastest > named && fastest < 1.03 * named,
        "no tie: {named} beside {fastest}"
    );
}

/// The log's five steps were taken without a word.
#[test]
fn steps_said_of_a_log_that_says_others_itself_are_refused() {
    let log = SGLANG_LOG.replace(
        "speculative_algorithm=None",
        "speculative_algorithm='EAGLE3', speculative_num_steps=5, speculative_eagle_topk=1, speculative_num_draft_tokens=6",
    ) + "[2026-07-11 09:16:00 TP0] Decode batch, #running-req: 1, #token: 4000, token usage: 0.01, accept len: 2.40, \
         cuda graph: True, gen throughput (token/s): 60.00, #queue-req: 0,\n";
    with_log("five-steps", &log, |file| {
        let predict = [
            "predict",
            "--model",
            "qwen3-32b",
            "--gpu",
            "h100",
            "--accept",
        ];
        for command in [&predict[..], &["accept", "--accept"]] {
            let of = |given: &str| [command, &[given]].concat().join(" ");
            let said = format!("{file}@3");
            let why = refusal(&[command, &[said.as_str()]].concat());
            let names = format!("--accept {said}: {file} itself is of 5 draft steps; leave @3 out");
            assert!(why.contains(&names), "{}: {why}", of(&said));
            let same = format!("{file}@5");
            let (bare, told) = (
                answers(&[command, &[file]].concat()),
                answers(&[command, &[same.as_str()]].concat()),
            );
            assert_eq!(bare, told.replace(&same, file));
        }
    });
}
