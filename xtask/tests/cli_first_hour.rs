//! What newcomers stumbled over: lists that wanted more flags, figures of two commands that seemed to
//! disagree, advice that could not be followed.

mod common;

use common::{answers, refusal, xtask};

#[test]
fn a_list_needs_no_other_flag() {
    for (arguments, name) in [
        (["predict", "--model", "list"], "qwen3-32b"),
        (["plan", "--gpu", "list"], "rtx-5090"),
        (["simulate", "--box", "list"], "two-switch-8"),
    ] {
        let list = answers(&arguments);
        assert!(list.lines().count() > 20, "{list}");
        assert!(list.lines().any(|line| line.starts_with(name)), "{list}");
    }
}

#[test]
fn a_list_has_the_other_names_that_are_taken() {
    let models = answers(&["predict", "--model", "list"]);
    let cards = answers(&["plan", "--gpu", "list"]);
    assert!(models.contains("qwen3.6-27b"), "{models}");
    assert!(cards.contains("rtx-pro-6000-workstation"), "{cards}");
}

#[test]
fn without_a_draft_the_exit_code_says_whether_it_fits() {
    let code = |model: &str| {
        let flags = [
            "predict",
            "--model",
            model,
            "--gpu",
            "rtx-4090",
            "--draft",
            "none",
            "--exit-code",
        ];
        xtask(&flags).status.code()
    };
    assert_eq!(code("qwen3-8b"), Some(0));
    assert_eq!(code("qwen3-32b"), Some(10), "66 GB of weights on 24 GiB");
}

#[test]
fn plan_and_predict_take_the_same_context_and_plan_says_so() {
    for engine in ["sglang", "vllm"] {
        let common = [
            "--model",
            "qwen3-32b",
            "--quant",
            "int4",
            "--gpu",
            "rtx-5090",
            "--gpus",
            "2",
            "--engine",
            engine,
        ];
        let of = |command: &str, more: &[&str]| {
            let arguments = [&[command], &common[..], more].concat();
            answers(&arguments)
        };
        let plan = of("plan", &[]);
        assert!(plan.contains("requests of 2,048 tokens"), "{plan}");
        assert!(
            plan.contains("a request is taken to hold 2,048 tokens, as in predict (--context); the model takes up to 40,960"),
            "{plan}"
        );
        assert!(!plan.contains("TIGHT"), "nobody asked for 64 users: {plan}");
        assert!(of("predict", &[]).contains("context 2048 tokens"));
        let asked = of("plan", &["--context", "8k"]);
        assert!(
            asked.contains("requests of 8,192 tokens") && !asked.contains("is taken to hold"),
            "{asked}"
        );
    }
}

#[test]
fn an_accept_length_at_another_depth_than_given_names_both() {
    let model = [
        "predict",
        "--model",
        "qwen3-30b-a3b",
        "--gpu",
        "h100",
        "--gpus",
        "2",
        "--concurrency",
        "1",
    ];
    let given = answers(&[&model[..], &["--accept", "2.4@3", "--steps", "2"]].concat());
    assert!(
        given.contains("at 2 steps (2.40 at 3, as measured)"),
        "{given}"
    );
    let assumed = answers(&[&model[..], &["--steps", "5"]].concat());
    assert!(assumed.contains(" at 3, as assumed)"), "{assumed}");
    let same = answers(&[&model[..], &["--accept", "2.4@3", "--steps", "3"]].concat());
    assert!(!same.contains("as measured)"), "{same}");
}

#[test]
fn groups_that_reduce_at_once_are_named_and_can_be_chosen() {
    let common = ["simulate", "--box", "4x-rtx-3090-nvlink", "--bytes", "32k"];
    let by_number = answers(&common);
    assert!(by_number.contains("0,1 / 2,3 at once"), "{by_number}");
    let bridged = answers(&[&common[..], &["--groups", "0,2/1,3"]].concat());
    assert!(bridged.contains("0,2 / 1,3 at once"), "{bridged}");
    let error = refusal(&[&common[..], &["--groups", "0,2/2,3"]].concat());
    assert!(error.contains("GPU 2 stands in two groups"), "{error}");
}

#[test]
fn every_kernel_shown_says_what_switches_it_on_or_that_nothing_does() {
    let text = answers(&["predict"]);
    let start = text.find("all-reduce, us (90 %)").expect("the table");
    let table: Vec<&str> = text[start..]
        .lines()
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(table[0].ends_with("in SGLang"), "{}", table[0]);
    let row = |name: &str| {
        let found = table
            .iter()
            .find(|line| line.trim_start().starts_with(name));
        found.copied().unwrap_or_default()
    };
    assert!(
        row("nccl").ends_with("--disable-custom-all-reduce"),
        "{text}"
    );
    for kernel in ["one-shot ", "island", "host-staged"] {
        assert!(row(kernel).ends_with(" no"), "{kernel}: {text}");
    }
    assert!(
        text.contains("all-reduce by island (in no SGLang release; vLLM 0.30 has one"),
        "{text}"
    );
    assert!(
        text.contains("a bound on what a better kernel would give"),
        "{text}"
    );
}

#[test]
fn look_up_without_a_measured_accept_length_is_measured_first() {
    let card = [
        "predict",
        "--model",
        "qwen3-32b",
        "--quant",
        "int4",
        "--gpu",
        "rtx-5090",
        "--draft",
        "ngram",
    ];
    let open = answers(&card);
    assert!(open.starts_with("MEASURE FIRST"), "{open}");
    assert!(open.contains("vLLM PR 24344"), "{open}");
    assert!(open.contains("costs no KV tokens"), "{open}");
    let measured = answers(&[&card[..], &["--accept", "2.9@5"]].concat());
    assert!(measured.starts_with("PAYS"), "{measured}");
    let draft = measured
        .lines()
        .find(|line| line.trim_start().starts_with("sum"));
    let draft_ms = draft.and_then(|line| line.split_whitespace().nth(2));
    assert_eq!(draft_ms, Some("0.00"), "{measured}");
}

#[test]
fn steps_that_were_given_are_not_called_the_best() {
    let server = "predict --model gpt-oss-20b --gpu rtx-5090 --gpus 1 --engine sglang --context 9287 \
                  --concurrency 1,2,4,8 --accept 2.044@3";
    let server: Vec<&str> = server.split_whitespace().collect();
    let text = answers(&[&server[..], &["--steps", "3"]].concat());
    assert!(!text.contains("best at"), "{text}");
    assert!(!text.contains("steps at every load"), "{text}");
}

/// A model that fills much of a board of eight, as users of such boards ask for it.
fn deepseek(command: &str, gpu: &str, more: &str) -> String {
    let line = format!(
        "{command} --model deepseek-v3 --gpus 8 --gpu {gpu} --engine sglang --draft mtp --context 8k {more}"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    answers(&words)
}

#[test]
fn of_loads_asked_for_beyond_the_pool_those_that_fit_are_pasted() {
    let fp8 = "--quant fp8 --accept 2.4@3 --concurrency 1,64,128";
    let text = deepseek("predict", "h200", fp8);
    let beyond = text.split_once("beyond ").map(|(_, rest)| rest);
    let held = beyond.and_then(|rest| rest.split(' ').next()).unwrap_or("");
    assert!(
        held.parse::<u32>().is_ok_and(|n| (64..128).contains(&n)),
        "{text}"
    );
    assert!(
        text.contains(&format!("--max-running-requests {held}")),
        "{text}"
    );
}

#[test]
fn more_requests_at_once_are_offered_only_where_the_pool_holds_them() {
    let small = deepseek("predict", "h100", "--quant int4 --accept 2.4@3");
    assert!(small.contains("more than the KV pool holds"), "{small}");
    assert!(!small.contains("adding --max-running"), "{small}");
    let large = deepseek("predict", "h200", "--quant fp8 --accept 2.4@3");
    assert!(
        large.contains("adding --max-running 64 to this command"),
        "{large}"
    );
    assert!(!large.contains("given here"), "{large}");
}

#[test]
fn a_pool_wall_beyond_the_card_shows_by_how_much() {
    let fp8 = "--quant fp8 --concurrency 1,32";
    let predict = deepseek("predict", "h100", &format!("{fp8} --accept 2.4@3"));
    for text in [predict, deepseek("plan", "h100", fp8)] {
        assert!(text.contains("the pool needs 1.05"), "{text}");
        assert!(!text.contains("1.0000"), "{text}");
    }
}

#[test]
fn a_report_without_flags_to_paste_says_why() {
    let file = std::env::temp_dir().join(format!("xtask-no-flags-{}.html", std::process::id()));
    let report = format!("--quant fp8 --report {}", file.display());
    deepseek("predict", "h100", &report);
    let page = std::fs::read_to_string(&file).expect("the report");
    let _ = std::fs::remove_file(&file);
    assert!(
        page.contains("None: it does not fit, so no line would start it."),
        "{page}"
    );
    assert!(!page.contains("Flags to paste</h3></section>"), "{page}");
}

#[test]
fn more_cards_than_a_board_carries_are_refused_unless_their_wiring_is_shown() {
    let of = |gpu: &str, gpus: &str| ["simulate", "--gpu", gpu, "--gpus", gpus].map(String::from);
    for (gpu, gpus, holds) in [
        ("h100", "16", "boards of h100-sxm carry up to 8"),
        ("mi300x", "12", "carry up to 8"),
        ("rtx-5090", "24", "a chassis is taken to hold up to 16"),
        ("gb10", "2", "a machine of gb10 has 1"),
    ] {
        let words = of(gpu, gpus);
        let error = refusal(&words.each_ref().map(String::as_str));
        assert!(error.contains(holds), "{error}");
        assert!(
            error.contains("several machines are not modelled"),
            "{error}"
        );
    }
    for (gpu, gpus) in [("h100", "8"), ("gb200", "16"), ("rtx-5090", "16")] {
        let words = of(gpu, gpus);
        answers(&words.each_ref().map(String::as_str));
    }
    let log = std::env::temp_dir().join(format!("xtask-two-nodes-{}.log", std::process::id()));
    let line = "[2026-02-11 09:14:02] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=16)\n";
    std::fs::write(&log, line).expect("writes");
    let file = log.display().to_string();
    let error = refusal(&["predict", "--from-log", &file, "--gpu", "h100"]);
    assert!(error.contains(":1: ran on 16 GPUs: boards of"), "{error}");
    // Sixteen V100 hang on switches, not on the links of the boards of eight.
    let words = of("v100", "16");
    let text = answers(&words.each_ref().map(String::as_str));
    assert!(text.contains("as in a DGX-2"), "{text}");
}

#[test]
fn where_the_weights_fill_the_card_what_is_advised_fits_and_can_be_had() {
    let fp8 = "--quant fp8 --concurrency 1";
    for command in ["plan", "predict"] {
        let text = deepseek(command, "h100", fp8);
        assert!(
            text.contains("the weights fill the card: --quant int4"),
            "{text}"
        );
        assert!(text.contains("--gpu h200-sxm would fit"), "{text}");
        // The board has no more.
        assert!(!text.contains("more GPUs"), "{text}");
        assert!(!text.contains("or --gpus"), "{text}");
    }
    for (gpu, quant) in [("h100", "int4"), ("h200-sxm", "fp8")] {
        let text = deepseek("plan", gpu, &format!("--quant {quant}"));
        assert!(text.starts_with("FITS"), "{text}");
    }
    // Two of four slots: more of the same is one way.
    let small =
        "plan --model qwen3-32b --quant bf16 --gpu rtx-5090 --gpus 2 --engine vllm --context 8k";
    let words: Vec<&str> = small.split(' ').collect();
    let text = answers(&words);
    assert!(text.contains("--gpus 4"), "{text}");
}

/// One depth ran at loads up to 64, and nothing said which one a single user would take.
#[test]
fn what_one_depth_for_all_loads_costs_one_user_is_told_and_is_what_he_gets_alone() {
    let server = "predict --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --topology \
                  ../docs/examples/topo-4x3090.txt --accept 2.8@3 --attention-backend fa3";
    let server = server.replace("..", concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let server: Vec<&str> = server.split_whitespace().collect();
    let all = answers(&server);
    let said = "2 steps at every load: SGLang takes no fixed depth by load, so it is, of depths with the best \
                verdict at the lightest load (a sure gain counts up to 25 % under the fastest depth), those within \
                3 % of the best of them in the mean over the loads, doubling from there to the heaviest, at which any gains; of these the one that surely pays at most \
                of these loads, then the shallowest; for 1 user alone it would be 3 steps (--concurrency 1)";
    assert!(all.contains(said), "{all}");
    let row = all.lines().find(|line| line.starts_with("    1 "));
    let better = row.and_then(|row| row.trim_end().strip_suffix(" with 3 steps"));
    let better = better.and_then(|row| row.split_whitespace().last());
    let alone = answers(&[&server[..], &["--concurrency", "1"]].concat());
    let head = format!("PAYS   {}x for one user", better.expect("a better depth"));
    assert!(
        alone.starts_with(&head) && alone.contains("EAGLE-3, 3 steps"),
        "{alone}"
    );
    let day = answers(&[&server[..], &["--concurrency", "1:60,8:30,64:10"]].concat());
    assert!(day.contains("always 2 steps "), "{day}");
    assert!(
        day.contains("and over your loads no other depth gains 3 % more"),
        "{day}"
    );
    // The line under the table is of the rows above it.
    let json = answers(&[&server[..], &["--concurrency", "1:60,8:30,64:10", "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let speed = |row: usize| json["points"][row]["spec_tok_s"].as_f64().expect("a speed");
    let mean = 0.6 * speed(0) + 0.3 * speed(1) + 0.1 * speed(2);
    let told = json["goodput"]["fixed_tok_s"].as_f64().expect("a speed");
    assert!((told / mean - 1.0).abs() < 1e-9, "{told} {mean}");
}
