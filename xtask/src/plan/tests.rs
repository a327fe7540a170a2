//! `plan` on the cases whose ledger is known.

use super::*;
use clap::Parser;
use kvplan::Known;

fn plan_args(flags: &[&str]) -> PlanArgs {
    let line = ["xtask", "plan"].iter().chain(flags);
    match crate::cli::Cli::parse_from(line).command {
        crate::cli::Command::Plan(args) => *args,
        _ => unreachable!("`plan` was typed"),
    }
}

fn answer(flags: &[&str]) -> (Report, Scenario) {
    let args = plan_args(flags);
    let mut scenario = Scenario::resolve(&args.scenario).expect("the default scenario");
    let report = asked(&mut scenario, &args).expect("a plan");
    (report, scenario)
}

#[test]
fn the_default_plan_tells_the_story_of_the_night() {
    let (report, scenario) = answer(&[]);
    let text = text::render(&report, &scenario, false);
    expect_test::expect![[r#"
        FITS     --mem-fraction-static 0.880 (inferred from the observed pool)
                 10.42 GiB of KV, 159,215 tokens of 70272 B, 77.74 requests of 2,048 tokens
                 with the draft 9.28 GiB of KV and 0.54 of the draft's, 0.39 of it from the reserve, 141,745 tokens of 71424 B, 69.21 requests of 2,048 tokens
                 the draft costs 17,470 of 159,215 KV tokens (1.14 GiB), at 0.880 with and without it; beside the pool 2.08 GiB more stay free with it, in all 0.93 more: the draft's weights 0.72, KV pool 0.54, graphs 0.92, request-to-token table 1.95 less, the target's graphs 1.16 less (48 requests at once with it, 2,048 without)
                 a request is taken to hold 2,048 tokens, as in predict (--context); the model takes up to 262,144
                 runs 48 requests at once: more is a matter of --max-running
                 legal from 0.7797 (pool wall) to 0.950 (0.919 to 0.980, activation wall)
                 with fp8 KV 283,491 tokens
                 the automatic fraction 0.758 would be refused: it must be set
                 the configured context of 262,144 tokens is not usable: 141,745 fit

        backwards  free before 94 GiB, after 21.7 GiB: fractions up to 0.7691 are refused, 0.770 is the first that starts
                   a pool of 10.42 GiB means 0.8800 was in use
        believed   the run used 0.880, not 0.55: 0.55 is refused, short by 20.6 GiB; the first setting that starts is 0.770

        one card, GiB                                                                   (band)
        driver, CUDA context, NCCL                                       1.593
        weights: embedding table                                         0.273
        weights: output head                                             0.273
        weights: attention                                               2.941
        weights: feed-forward                                            0.092
        weights: experts                                                66.445
        weights: shared experts                                          0.615
        weights: routers                                                 0.308
        weights: norms and biases                                        0.002
        weights: vision tower                                            0.867
        weights: engine's own (rotary table, padding, copies, modules)   0.483
        draft: weights                                                   0.718  (0.54 to 0.90)
        target: KV pool                                                  9.277
        draft: KV pool                                                   0.541
        request-to-token table                                           0.047
        target: graphs                                                   0.920  (0.18 to 1.66)
        draft: graphs                                                    0.920  (0.18 to 1.66)
        target: graphs of prefills                                       1.124  (0.22 to 2.02)
        activations of one prefill chunk                                 1.297  (0.65 to 1.95)
        free                                                             6.857  (3.84 to 9.88)
        the card                                                        95.593

        weights    computed from the architecture 72.19 GiB, observed 72.30 GiB
        assumed    draft: the catalogue's EAGLE-3 head, whose config reaches 262,144 tokens (--draft would settle it)
        assumed    SGLang version not given: the rules of 0.5.23 are used
        assumed    KV dtype bf16 (the default)
        assumed    kimi-k2.5 on rtx-pro-6000-server, tp 8
    "#]].assert_eq(&text);
}

#[test]
fn json_has_the_keys_of_the_contract() {
    let flags = [
        "--free-before-gib",
        "94",
        "--free-after-gib",
        "21.7",
        "--kv-gib",
        "10.42",
    ];
    let (report, _) = answer(&flags);
    let json = to_json(&report);
    let fraction = json["inferred_fraction"].as_f64().expect("inferred");
    assert!((fraction - 0.88).abs() < 0.0005, "{fraction}");
    assert_eq!(json["observed"]["free_before_gib"], 94.0);
    let memory = &json["memory"];
    for key in [
        "fits",
        "kv_tokens",
        "kv_tokens_without_speculation",
        "fraction_min",
        "fraction_max",
    ] {
        assert!(!memory[key].is_null(), "{key}");
    }
    let lines = memory["ledger"].as_array().expect("lines");
    let sum: f64 = lines.iter().filter_map(|line| line["gib"].as_f64()).sum();
    assert!((sum - 97_887.0 / 1024.0).abs() < 0.001, "{sum}");
    assert!(
        lines
            .iter()
            .all(|line| line["source"].as_str().is_some_and(|s| !s.is_empty()))
    );
}

#[test]
fn settings_and_figures_that_cannot_be_are_refused_by_flag() {
    for flags in [
        [
            "--free-before-gib=-5",
            "--free-after-gib",
            "3",
            "",
            "--free-before-gib",
        ],
        ["--max-model-len", "0", "", "", "--max-model-len"],
        ["--state-ratio=-1", "", "", "", "--state-ratio"],
        ["--kv-gib", "1e99", "", "", "--kv-gib"],
    ] {
        let given: Vec<&str> = flags[..4]
            .iter()
            .copied()
            .filter(|f| !f.is_empty())
            .collect();
        let error = check(&plan_args(&given)).expect_err("refused").to_string();
        assert!(
            error.starts_with(flags[4]) && !error.contains('\n'),
            "{error}"
        );
    }
    let known = Known {
        free_after_gib: Some(21.7),
        pool_gib: Some(50.0),
        ..Known::default()
    };
    assert!(check_together(&known).is_err_and(|e| e.to_string().contains("--kv-gib 50")));
}

#[test]
fn a_fraction_that_cannot_start_is_said_so_without_a_pool_figure() {
    let flags = [
        "--free-before-gib",
        "94",
        "--free-after-gib",
        "21.7",
        "--mem-fraction",
        "0.55",
        "--scenario",
        "kimi-k2.5-8x-rtx-pro-6000",
    ];
    let args = plan_args(&flags);
    let mut scenario = Scenario::resolve(&args.scenario).expect("resolves");
    scenario.observed.kv_gib = None;
    scenario.draft = None;
    let report = report(&scenario, Some(&args), None).expect("a plan");
    let refusal = report.cost.with.refusal.expect("refused");
    assert!(
        (refusal.short_gib - 20.6).abs() < 0.005,
        "{}",
        refusal.short_gib
    );
}
