//! Advice about memory, followed: the second run does not refuse, does not give it again, and shows
//! what the first one promised.

mod common;

use common::run;

fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_once(word)?.1.split([' ', ',', ';', ')']).next()
}

fn json(command: &str, flags: &str) -> serde_json::Value {
    serde_json::from_str(&run(command, &format!("{flags} --json"))).expect("JSON")
}

/// `plan` said TIGHT, FITS and a null of the same run of which `predict` said DOES NOT FIT.
#[test]
fn plan_and_predict_mean_the_same_by_fits_tight_and_does_not_fit() {
    let qwen = "--model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --draft none --context 4k";
    let moe = "--model qwen3-8b --quant fp8 --gpu h100-sxm --gpus 1 --draft none --context 4k";
    for (flags, engine, word, fits) in [
        (qwen, "sglang --mem-fraction 0.85", "FITS", Some(true)),
        (qwen, "sglang --mem-fraction 0.96", "TIGHT", None),
        (
            qwen,
            "sglang --mem-fraction 0.995",
            "DOES NOT FIT",
            Some(false),
        ),
        (qwen, "sglang --mem-fraction 0.5", "REFUSED", Some(false)),
        (
            qwen,
            "sglang --mem-fraction 0.555",
            "DOES NOT FIT",
            Some(false),
        ),
        (moe, "vllm@0.9.2 --mem-fraction 0.98", "TIGHT", None),
        (moe, "vllm@0.9.2 --mem-fraction 0.9", "FITS", Some(true)),
    ] {
        let flags = format!("{flags} --engine {engine}");
        let plan = run("plan", &flags);
        assert!(plan.starts_with(word), "{flags}: {plan}");
        let (plan, predict) = (json("plan", &flags), json("predict", &flags));
        assert_eq!(plan["memory"]["fits"], serde_json::json!(fits), "{flags}");
        assert_eq!(predict["memory"]["fits"], plan["memory"]["fits"], "{flags}");
    }
}

/// 184 slots of five carry 36 requests; "at most 64 of 21,648 tokens" was still refused slots, and
/// more of them were said to help where the pool then held fewer.
#[test]
fn a_context_is_no_way_round_too_few_state_slots() {
    let flags = "--model qwen3-next-80b-a3b --quant fp8 --gpu h100-sxm --gpus 2 --engine sglang \
                 --context 2k";
    let text = run("plan", &format!("{flags} --concurrency 128"));
    let (fraction, most) = (
        after(&text, "at most, with --mem-fraction-static ").expect("a nearest load"),
        text.split_once("at most, with").expect("a nearest load").1,
    );
    assert!(
        !most.lines().next().is_some_and(|l| l.contains(" or ")),
        "{text}"
    );
    let requests = most.split_once(", ").expect("requests").1;
    let requests = requests.split(' ').next().expect("requests");
    let followed = run(
        "plan",
        &format!("{flags} --concurrency {requests} --mem-fraction {fraction}"),
    );
    assert!(followed.starts_with("FITS"), "{followed}");
}

/// A length that the engine refuses at once was "out of reach at any fraction", whatever shorter one
/// fits.
#[test]
fn a_request_that_is_too_long_is_answered_with_the_longest_that_fits() {
    for (flags, more) in [
        (
            "--model qwen3-32b --quant fp8 --gpu rtx-5080 --gpus 4 --engine sglang",
            "--context 100000",
        ),
        (
            "--model qwen3-4b --gpu rtx-5080 --gpus 1 --engine vllm@0.10",
            "--context 40k --concurrency 4",
        ),
        (
            "--model gemma-3-27b --quant fp8 --gpu rtx-4090 --gpus 8 --engine vllm",
            "--context 16k --concurrency 128",
        ),
    ] {
        let flags = format!("{flags} --draft none");
        let text = run("plan", &format!("{flags} {more}"));
        let (_, most) = text
            .split_once("at most, with ")
            .unwrap_or_else(|| panic!("{text}"));
        let words: Vec<&str> = most.lines().next().unwrap_or_default().split(' ').collect();
        let last = words.iter().position(|word| word.starts_with("tokens"));
        let tokens = words[last.expect("a length") - 1].replace(',', "");
        let users = more.rsplit_once("--concurrency ").map_or("1", |(_, n)| n);
        let followed = run(
            "plan",
            &format!(
                "{flags} --context {tokens} --concurrency {users} --mem-fraction {}",
                words[1].trim_end_matches(',')
            ),
        );
        assert!(followed.starts_with("FITS"), "{text}{followed}");
    }
}

/// The paste had a clear fraction with a --max-model-len that only the pool at the one asked for holds, and "start it" meant
/// neither.
#[test]
fn a_fraction_above_the_middle_of_the_wall_is_pasted_as_one_clear_of_its_band_with_its_own_length()
{
    let flags = "--model llama-4-scout-17b-16e --quant int4 --gpu rtx-4090 --gpus 8 --engine vllm@0.9.2 \
                 --draft eagle3 --steps 3 --kv-dtype fp8";
    let text = run("predict", &format!("{flags} --mem-fraction 0.92"));
    assert!(text.contains("memory is tight"), "{text}");
    let pasted = after(&text, "--gpu-memory-utilization ").expect("a fraction");
    assert!(text.contains(&format!("the paste has {pasted}")), "{text}");
    let length = after(&text, "--max-model-len ").expect("a length");
    let plan = run(
        "plan",
        &format!("{flags} --gpu-memory-utilization {pasted} --max-model-len {length}"),
    );
    assert!(plan.starts_with("FITS"), "{plan}");
    assert!(!plan.contains("inside the band"), "{plan}");
}

/// `plan` reckoned one slot, whatever number of users was asked for.
#[test]
fn llamacpps_context_is_for_all_requests_asked_for() {
    let flags = "--model qwen3-30b-a3b --quant int4 --gpu rtx-pro-6000 --gpus 1 --engine llamacpp \
                 --draft none --context 8k --concurrency 4";
    let text = run("plan", flags);
    assert!(text.starts_with("FITS     --ctx-size 32768"), "{text}");
    let (plan, predict) = (json("plan", flags), json("predict", flags));
    assert_eq!(plan["memory"]["kv_tokens"], 32_768);
    assert_eq!(predict["memory"]["kv_tokens"], 32_768);
}

/// Remedies are told in the engine's words; those words were no flags here.
#[test]
fn the_engines_own_flags_of_a_remedy_are_taken() {
    let flags = "--model qwen3-next-80b-a3b --quant fp8 --gpu h100-sxm --gpus 2 --engine sglang";
    for more in [
        "--max-mamba-cache-size 40",
        "--mamba-full-memory-ratio 2",
        "--chunked-prefill-size 2048",
        "--cuda-graph-max-bs 8",
    ] {
        let text = run("plan", &format!("{flags} {more}"));
        assert!(text.starts_with("FITS"), "{text}");
    }
}

/// "Above the middle of the wall, 0.916 (0.916 to 1.000)" beside 1.98 GiB free: no line said what runs
/// out there.
#[test]
fn vllms_ledger_has_a_line_for_what_lies_beside_its_utilisation() {
    let line = "plan --model qwen3-8b --engine vllm@0.21.0 --gpu rtx-3090 --gpus 2 --draft none \
                --context 8k --mem-fraction 0.965";
    let text = common::answers(&line.split_whitespace().collect::<Vec<_>>());
    assert!(text.starts_with("TIGHT"), "{text}");
    assert!(
        text.contains("CUDA context and NCCL before the budget"),
        "{text}"
    );
    let free = text
        .lines()
        .find_map(|line| line.strip_prefix("missing (negative)"));
    let free: Option<f64> = free.and_then(|line| line.split_whitespace().next()?.parse().ok());
    assert!(free.is_some_and(|gib| (-0.5..0.0).contains(&gib)), "{text}");
}

/// "They fit" stood under a cut that does not start at any fraction.
#[test]
fn no_fraction_is_advised_under_a_cut_that_the_engine_refuses() {
    let text = run(
        "plan",
        "--model qwen3-235b-a22b --quant fp8 --gpu h100-sxm --gpus 8 --draft none --engine vllm \
         --context 4k --concurrency 8",
    );
    assert!(text.starts_with("REFUSED"), "{text}");
    assert!(!text.contains("wanted"), "{text}");
}

/// `predict` named 0.932, hard under the wall, for eight requests that `plan` held with 0.886.
#[test]
fn plan_and_predict_name_the_same_least_fraction() {
    let box_ = "--model qwen3-32b --quant fp8 --gpu rtx-pro-6000 --gpus 2 --tp 2 --context 64k";
    for engine in ["sglang", "vllm"] {
        let flags = format!("{box_} --concurrency 1,2,4,8 --engine {engine}");
        let predict = run("predict", &format!("{flags} --accept 2.3@3"));
        let flag = match engine {
            "sglang" => "(8 with --mem-fraction-static ",
            _ => "(8 with --gpu-memory-utilization ",
        };
        let plan = run("plan", &flags);
        let wanted = plan.lines().find(|line| line.starts_with("wanted"));
        let wanted = wanted.unwrap_or_else(|| panic!("{plan}"));
        let Some(named) = after(&predict, flag) else {
            assert!(wanted.contains("they fit"), "{wanted} {predict}");
            continue;
        };
        assert!(
            wanted.ends_with(&format!("set --{} {named}", flag_name(flag))),
            "{wanted} {named}"
        );
        let fraction: f64 = named.parse().expect("a fraction");
        let holds = |fraction: f64| {
            let plan = run("plan", &format!("{flags} --mem-fraction {fraction:.3}"));
            !plan.contains("the load shown needs more")
        };
        assert!(holds(fraction) && !holds(fraction - 0.001), "{fraction}");
    }
}

fn flag_name(words: &str) -> &str {
    words.trim_end().split("--").nth(1).unwrap_or_default()
}

/// "(1 with --gpu-memory-utilization 0.975)" beside "beyond 1 user the KV pool is full".
#[test]
fn a_fraction_that_holds_no_more_requests_is_not_named() {
    let flags = "--model qwen3-32b --quant fp8 --gpu rtx-pro-6000 --gpus 2 --tp 1 --context 256k \
                 --kv-dtype fp8 --concurrency 1,8 --engine vllm --accept 3@3";
    let predict = run("predict", flags);
    assert!(
        predict.contains("beyond 1 user the KV pool is full"),
        "{predict}"
    );
    assert!(
        !predict.contains("with --gpu-memory-utilization"),
        "{predict}"
    );
}

#[test]
fn the_most_that_is_in_reach_does_not_move_when_it_is_followed() {
    let flags = "--model gpt-oss-120b --gpu rtx-pro-6000 --gpus 2 --context 64k --concurrency 8 \
                 --engine sglang --tp 1";
    let most = |more: &str| {
        let plan = run("plan", &format!("{flags} {more}"));
        let line = plan.lines().find(|line| line.starts_with("wanted"));
        line.unwrap_or_else(|| panic!("{plan}")).to_string()
    };
    let first = most("");
    let fraction = after(&first, "--mem-fraction-static ").expect("a fraction");
    assert_eq!(most(&format!("--mem-fraction {fraction}")), first);
}

/// "it takes 0 tokens and 11.81 GiB": the whole pool was counted as the draft's.
#[test]
fn look_up_takes_no_memory_but_the_targets_wider_graphs_in_sglang() {
    for engine in ["vllm", "sglang"] {
        let flags = format!(
            "--model qwen3-32b --quant fp8 --gpu rtx-5090 --gpus 2 --engine {engine} --draft ngram"
        );
        let plan = run("plan", &flags);
        assert!(plan.contains("costs no KV tokens"), "{plan}");
        let beside = plan.split_once("; beside the pool ").map(|(_, rest)| rest);
        let beside = beside.and_then(|rest| rest.lines().next());
        let graphs = "0.52 GiB: the target's graphs 0.52 more";
        assert_eq!(beside, Some(graphs).filter(|_| engine == "sglang"));
    }
}

/// 13.98 GiB of room on the card were called missing because the fraction gives the pool none of it.
#[test]
fn room_on_the_card_is_called_free_where_the_fraction_is_refused() {
    for command in ["plan", "predict"] {
        let text = run(command, "--mem-fraction 0.55");
        assert!(!text.contains("missing"), "{text}");
        let free = text
            .lines()
            .find(|line| line.trim_start().starts_with("free  "));
        assert!(free.is_some_and(|line| line.contains(" 16.")), "{text}");
        assert!(text.contains("short by 21.59 GiB"), "{text}");
    }
}

/// The least fraction that starts was advised: followed, it held 415 tokens.
#[test]
fn a_pool_too_small_for_one_request_names_the_fraction_that_holds_one() {
    for (fraction, command) in [
        ("0.55", "plan"),
        ("0.78", "plan"),
        ("0.55", "predict"),
        ("0.78", "predict"),
    ] {
        let text = run(command, &format!("--mem-fraction {fraction}"));
        let first = after(&text, "--mem-fraction-static 0.").map(|_| {
            let (before, _) = text
                .split_once(" is the first that holds one request of 2,048")
                .expect("told");
            before.rsplit(' ').next().unwrap_or_default().to_string()
        });
        let first = first.unwrap_or_else(|| panic!("{text}"));
        let followed = run("plan", &format!("--mem-fraction {first}"));
        assert!(followed.starts_with("FITS"), "{first}: {followed}");
        let less = first.parse::<f64>().expect("a fraction") - 0.001;
        let less = run("plan", &format!("--mem-fraction {less:.3}"));
        assert!(less.starts_with("DOES NOT FIT"), "{less}");
    }
}

/// "memory rules of vllm 0.30.0" stood above "those of 0.24.0 are used", and `plan` said nothing.
#[test]
fn a_release_after_those_known_has_the_rules_named_that_are_used() {
    for (engine, rules) in [
        ("vllm@0.40", "vllm 0.33.0"),
        ("sglang@0.6.0", "sglang 0.5.23"),
    ] {
        let number = rules.split(' ').nth(1).expect("a number");
        let said = format!("newer than the rules known here, those of {number} are used");
        let predict = run("predict", &format!("--engine {engine}"));
        assert!(
            predict.contains(&format!("memory rules of {rules}")),
            "{predict}"
        );
        assert!(predict.contains(&said), "{predict}");
        let plan = run("plan", &format!("--engine {engine}"));
        assert!(plan.contains(&said), "{plan}");
        assert!(
            plan.lines()
                .next()
                .is_some_and(|line| line.contains(number)),
            "{plan}"
        );
    }
}

/// "--quant fp8 … would fit" was planned without the flags it was said beside, and at a fraction that it
/// did not name.
#[test]
fn what_would_fit_instead_starts_with_the_same_flags_when_it_is_followed() {
    let mut followed = 0;
    for line in [
        "--model llama-3.1-70b --gpu rtx-4090 --gpus 4 --engine vllm --max-model-len 131072",
        "--model llama-3.1-70b --gpu rtx-4090 --gpus 4 --engine vllm --batched-tokens 65536",
        "--model llama-3.1-70b --gpu rtx-4090 --gpus 4 --engine sglang",
        "--model gpt-oss-120b --gpu rtx-5090 --engine sglang",
        "--model qwen3-next-80b-a3b --gpu h100-sxm --gpus 2 --engine sglang --state-slots 4000",
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = common::answers(&[&["plan"], &words[..]].concat());
        let Some(ways) = text
            .lines()
            .find_map(|l| l.split_once(" would fit").map(|(ways, _)| ways))
        else {
            continue;
        };
        let ways = &ways[ways.find("--").expect(ways)..];
        for way in ways.replace(" or ", ", ").split(", ") {
            let change: Vec<&str> = way.split_whitespace().collect();
            // A flag given again takes the place of the first.
            let first = change[0];
            let mut args: Vec<&str> = Vec::new();
            let mut skip = false;
            for word in &words {
                if skip || *word == first {
                    skip = !skip;
                    continue;
                }
                args.push(word);
            }
            let followed_text = common::answers(&[&["plan"], &args[..], &change[..]].concat());
            assert!(
                !followed_text.starts_with("REFUSED"),
                "{line}: {way}\n{followed_text}"
            );
            followed += 1;
        }
    }
    assert!(followed >= 4, "{followed}");
}

/// `plan --max-model-len 4096` counted requests of 2,048 tokens "as in predict", which counts 4,096.
#[test]
fn the_longest_context_told_is_what_a_request_holds_in_plan_as_in_predict() {
    let card = "--model llama-3.1-8b --gpu rtx-4090 --gpus 1 --engine vllm@0.19";
    let plan = |more: &str| run("plan", &format!("{card} {more}"));
    let told = plan("--max-model-len 4096");
    assert!(told.contains("requests of 4,096 tokens"), "{told}");
    assert!(!told.contains("requests of 2,048"), "{told}");
    // A context of its own goes before it.
    let own = plan("--max-model-len 4096 --context 1k");
    assert!(own.contains("requests of 1,024 tokens"), "{own}");
}

/// 16 ranks of an expert of 1,536 columns are 96 wide: "--gpus 16 would fit" was refused when followed,
/// and so was "--gpus 8" where the command said `--tp 2`.
#[test]
fn more_cards_are_advised_where_the_engine_takes_the_cut() {
    let flags = "--model minimax-m2.5 --gpu l4 --gpus 4 --engine vllm@0.11.0";
    let plan = run("plan", flags);
    assert!(
        plan.contains("do: ") && !plan.contains("--gpus 16"),
        "{plan}"
    );
    let flags = "--model llama-3.1-70b --gpu rtx-4090 --engine sglang";
    let plan = run("plan", &format!("{flags} --gpus 4 --tp 4"));
    let way = after(&plan, "--gpus 8 --tp 8 --mem-fraction ");
    let fraction = way.map_or_else(String::new, |f| format!("--mem-fraction {f}"));
    assert!(plan.contains("--gpus 8 --tp 8"), "{plan}");
    let followed = run("plan", &format!("{flags} --gpus 8 --tp 8 {fraction}"));
    assert!(followed.starts_with("FITS"), "{followed}");
}

/// "It takes 16,184 tokens and 1.91 GiB": the GiB held graphs beside the pool, the tokens did not, and
/// `predict` named tokens alone.
#[test]
fn tokens_and_gib_of_a_draft_are_of_one_thing_in_plan_and_predict() {
    let flags = "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4";
    let plan = run("plan", flags);
    let takes = plan.split_once("the draft costs ").map(|(_, rest)| rest);
    let cost = takes
        .and_then(|rest| rest.split(' ').next())
        .expect("a cost");
    let tokens: f64 = cost.replace(',', "").parse().expect("tokens");
    let gib = format!("{:.2} GiB)", tokens * 65_536.0 / 1024.0_f64.powi(3));
    assert!(
        plan.contains(&format!("costs {cost} of 168,669 KV tokens ({gib}"))
            && plan.contains("; beside the pool 0.20 GiB more, in all 1.19: the draft's weights "),
        "{plan}"
    );
    let predict = run("predict", flags);
    let line = predict.lines().find(|line| line.contains("costs "));
    let line = line.expect("a cost");
    assert!(
        line.contains(&format!("costs {cost} of ")) && line.contains(&format!("({gib}")),
        "{line}"
    );
}

/// A fraction was moved from the engine's own without a word where nothing drafts.
#[test]
fn a_fraction_set_instead_is_said_without_a_draft_too() {
    let flags = "--model qwen3-8b --gpu rtx-5080 --gpus 2 --engine vllm@0.24.0 --context 8k";
    let predict = run("predict", &format!("{flags} --draft none --concurrency 64"));
    // Clear of the wall's band, as every fraction that is chosen here.
    let said = "set --gpu-memory-utilization 0.829: the engine's own 0.920";
    assert!(!predict.contains("inside the band"), "{predict}");
    assert!(predict.contains(said), "{predict}");
}

/// `--context 4k` was taken and `--max-model-len 4k` refused; what FP8 experts do on Ampere under
/// SGLang was said by `predict` alone.
#[test]
fn plan_takes_and_warns_as_predict_does() {
    let flags = "--model qwen3-30b-a3b --quant fp8 --gpu rtx-3090 --gpus 2 --engine sglang";
    for command in ["plan", "predict"] {
        let text = run(command, &format!("{flags} --max-model-len 4k"));
        assert!(text.contains("fp8e4nv"), "{text}");
    }
    let plan = run(
        "plan",
        &format!("{flags} --batched-tokens 2k --max-total-tokens 8k"),
    );
    assert!(plan.contains("8,192 tokens"), "{plan}");
}

/// The doubt that so many requests of a sweep fit went away when its context was given, where these
/// do not fit either.
#[test]
fn a_sweep_beyond_the_pool_is_doubted_with_its_context_given_too() {
    let path = std::env::temp_dir().join(format!("xtask-advice-{}.csv", std::process::id()));
    std::fs::write(&path, "concurrency,tok_s\n1,60\n64,1500\n").expect("a temporary file");
    let shown = path.to_string_lossy().into_owned();
    let flags = format!(
        "--model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 4 --context 16k --baseline {shown}"
    );
    let doubt = "64 requests of ";
    for context in ["", "--baseline-context 16k"] {
        let text = run("predict", &format!("{flags} {context}"));
        assert!(text.contains(doubt), "{context}: {text}");
    }
    let fits = run("predict", &format!("{flags} --baseline-context 1k"));
    assert!(!fits.contains(doubt), "{fits}");
    let _ = std::fs::remove_file(path);
}
