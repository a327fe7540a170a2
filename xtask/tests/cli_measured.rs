//! Both speeds of a server measured, with the draft and without: their ratio is the answer.

mod common;

use common::{answers, bench, with_log};

/// Decode lines of a server at loads of (users, tokens a second), three each.
fn log(steps: u32, tokens: u64, loads: &[(u32, f64)]) -> String {
    let spec = match steps {
        0 => "speculative_algorithm=None".to_string(),
        steps => format!(
            "speculative_algorithm='EAGLE3', speculative_num_steps={steps}, \
             speculative_eagle_topk=1, speculative_num_draft_tokens={}",
            steps + 1
        ),
    };
    let mut text = format!(
        "[2026-07-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=4, {spec})\n"
    );
    let accept = if steps > 0 { "accept len: 2.30, " } else { "" };
    for (users, tok_s) in loads {
        for _ in 0..3 {
            text.push_str(&format!(
                "[2026-07-11 09:15:05 TP0] Decode batch, #running-req: {users}, #token: {}, token \
                 usage: 0.01, {accept}cuda graph: True, gen throughput (token/s): {tok_s}, #queue-req: 0\n",
                tokens * u64::from(*users)
            ));
        }
    }
    text
}

const CARDS: [&str; 4] = ["--gpu", "rtx-5090", "--gpus", "4"];

fn predict(words: &[&str]) -> String {
    let all = [&["predict"], &CARDS[..], words].concat();
    answers(&all)
}

/// The row of a load in the table of the answer.
fn row(answer: &str, users: u32) -> String {
    let head = format!("{users:>5}  ");
    let found = answer.lines().find(|line| line.starts_with(&head));
    found
        .unwrap_or_else(|| panic!("{users}: {answer}"))
        .to_string()
}

const PLAIN: [(u32, f64); 3] = [(1, 60.0), (8, 400.0), (32, 1000.0)];
/// 1.40, 1.30 and 1.15 times as fast.
const DRAFTED: [(u32, f64); 3] = [(1, 84.0), (8, 520.0), (32, 1150.0)];

fn of_two_logs(words: &[&str]) -> String {
    with_log("plain", &log(0, 4096, &PLAIN), |plain| {
        with_log("spec", &log(3, 4100, &DRAFTED), |spec| {
            let given = ["--from-log", spec, "--baseline", plain];
            let context = ["--context", "4k"];
            let own = !words.contains(&"--context");
            let context = if own { &context[..] } else { &[] };
            predict(&[&given[..], context, words].concat())
        })
    })
}

#[test]
fn the_ratio_of_two_logs_is_the_answer_of_its_load() {
    let answer = of_two_logs(&["--concurrency", "1,8,32"]);
    for (users, speedup, tok_s) in [(1, "1.40", "84"), (8, "1.30", "520"), (32, "1.15", "1,150")] {
        let row = row(&answer, users);
        assert!(row.contains(speedup) && row.contains(tok_s), "{answer}");
        assert!(row.ends_with("measured"), "{answer}");
    }
    assert!(
        answer.starts_with("PAYS   1.40x for one user (1.27 to 1.55)"),
        "{answer}"
    );
    assert!(
        answer.contains("measured: the speedup with 3 steps at 1, 8, 32 users"),
        "{answer}"
    );
    assert!(answer.contains("users of about 4,100 tokens ("), "{answer}");
    assert!(!answer.contains("measure both servers"), "{answer}");
    // A row loses its mark where its requests held another length: the line said that it was measured.
    let other = of_two_logs(&["--concurrency", "1,8,32", "--context", "3k"]);
    assert!(!row(&other, 8).contains("measured"), "{other}");
    let said = "of about 4,100 tokens, at 1, 8, 32 over a quarter off the 3,072 asked: such rows";
    assert!(other.contains(said), "{other}");
}

#[test]
fn beside_steps_that_the_log_did_not_run_its_speeds_stay_and_scale_the_answer() {
    let own = of_two_logs(&["--concurrency", "8"]);
    let other = of_two_logs(&["--concurrency", "8", "--steps", "2"]);
    assert!(
        other.contains("log: speculative, 8 users, 3 steps, 4,100 tokens held"),
        "{other}"
    );
    assert!(!row(&other, 8).contains("measured"), "{other}");
    let tok_s = |answer: &str| -> f64 {
        let row = row(answer, 8);
        let words: Vec<&str> = row.split_whitespace().collect();
        words[2].replace(',', "").parse().expect("tokens a second")
    };
    // What is advised over the log's depth is what following it gives over what was observed.
    let advised = own.lines().find(|line| line.contains("%  2 draft steps"));
    let gain = tok_s(&other) / tok_s(&own) - 1.0;
    match advised {
        Some(line) => assert!(
            line.contains(&format!("+{:.0} %", gain * 100.0)),
            "{line} {gain}"
        ),
        None => assert!(gain < 0.0527, "{gain}\n{own}"),
    }
}

#[test]
fn benches_of_both_servers_are_the_answer_and_explain_prints_their_ratio_and_passes_both_on() {
    with_log("p1", &bench(1, 16.0, None), |p1| {
        with_log("p32", &bench(32, 30.0, None), |p32| {
            with_log("s1", &bench(1, 10.0, Some(2.3)), |s1| {
                with_log("s32", &bench(32, 25.0, Some(2.3)), |s32| {
                    let told = answers(&["explain", p1, p32, s1, s32]);
                    for words in ["1.60x at 1 user", "1.20x at 32", "time per output token"] {
                        let flat = told.split_whitespace().collect::<Vec<_>>().join(" ");
                        assert!(flat.contains(words), "{told}");
                    }
                    let (plain, spec) = (format!("{p1},{p32}"), format!("{s1},{s32}@3"));
                    assert!(
                        told.contains(&format!("--accept {s1},{s32}@STEPS")),
                        "{told}"
                    );
                    assert!(told.contains(&format!("--baseline {plain}")), "{told}");
                    let answer = predict(&[
                        "--model",
                        "qwen3-32b",
                        "--context",
                        "4096",
                        "--concurrency",
                        "1,32",
                        "--accept",
                        &spec,
                        "--baseline",
                        &plain,
                    ]);
                    assert!(row(&answer, 1).contains("1.60 (1.45-1.77)"), "{answer}");
                    assert!(row(&answer, 32).contains("1.20 (1.09-1.33)"), "{answer}");
                    assert!(
                        answer.contains("25 for 30 ms, prompts of others in both"),
                        "{answer}"
                    );
                });
            });
        });
    });
}

#[test]
fn speeds_that_were_not_measured_alike_say_why_they_are_no_answer() {
    with_log("sweep", "concurrency,tok_s\n8,400\n32,1000\n", |plain| {
        with_log("spec", &log(3, 4100, &[(8, 430.0), (32, 1050.0)]), |spec| {
            let answer = predict(&[
                "--from-log",
                spec,
                "--baseline",
                plain,
                "--context",
                "4k",
                "--concurrency",
                "8,32",
            ]);
            let why = "the sweep's file does not say how its speeds were taken";
            assert!(
                answer.contains(why) && !answer.contains("measured: the"),
                "{answer}"
            );
            assert!(!row(&answer, 8).contains("measured"), "{answer}");
        });
    });
    with_log("short", &log(0, 1000, &PLAIN), |plain| {
        with_log("spec", &log(3, 4100, &DRAFTED), |spec| {
            let answer = predict(&[
                "--from-log",
                spec,
                "--baseline",
                plain,
                "--context",
                "4k",
                "--concurrency",
                "8",
            ]);
            let why = "its requests held 4100 tokens, the plain ones 1000";
            assert!(answer.contains(why), "{answer}");
        });
    });
    with_log("slow", &log(0, 4096, &[(8, 150.0)]), |plain| {
        with_log("spec", &log(3, 4100, &[(8, 520.0)]), |spec| {
            let answer = predict(&[
                "--from-log",
                spec,
                "--baseline",
                plain,
                "--context",
                "4k",
                "--concurrency",
                "8",
            ]);
            assert!(
                answer.contains("so that the two did not run alike"),
                "{answer}"
            );
        });
    });
}

#[test]
fn a_depth_within_a_tie_that_turns_measure_first_to_pays_is_named() {
    let line = |answer: &str| -> Option<String> {
        let mut lines = answer.lines();
        lines
            .find(|line| line.contains(", which 4 steps may not"))
            .map(str::to_string)
    };
    let model = [
        "--model",
        "glm-4.5-air",
        "--quant",
        "fp8",
        "--gpu",
        "rtx-pro-6000",
        "--gpus",
        "2",
    ];
    let rest = [
        "--engine",
        "sglang@0.5.10",
        "--context",
        "16k",
        "--accept",
        "3.3@4",
    ];
    let given = [&["predict"], &model[..], &rest[..]].concat();
    let at = |steps: &str| {
        answers(&[&given[..], &["--concurrency", "1,2,4,8", "--steps", steps]].concat())
    };
    let (four, three) = (at("4"), at("3"));
    assert!(
        four.starts_with("MEASURE FIRST") && three.starts_with("PAYS"),
        "{four}{three}"
    );
    let line = line(&four).unwrap_or_else(|| panic!("{four}"));
    assert!(line.contains("3 draft steps (pays at 1 user"), "{line}");
}

#[test]
fn a_measured_ratio_near_one_is_told_as_such_and_not_to_be_measured_as_if_it_had_not_been() {
    let answer = with_log("plain", &log(0, 4096, &[(8, 400.0)]), |plain| {
        with_log("near", &log(3, 4100, &[(8, 412.0)]), |spec| {
            predict(&[
                "--from-log",
                spec,
                "--baseline",
                plain,
                "--context",
                "4k",
                "--concurrency",
                "8",
            ])
        })
    });
    assert!(
        row(&answer, 8).ends_with("measured; too near to 1"),
        "{answer}"
    );
    assert!(
        answer.contains("measure both servers for longer: measured as 1.03x"),
        "{answer}"
    );
}

#[test]
fn beside_the_logs_of_both_servers_explain_goes_on_with_the_two_logs_and_not_with_a_bench() {
    with_log("plain", &log(0, 4096, &PLAIN), |plain| {
        with_log("spec", &log(3, 4100, &DRAFTED), |spec| {
            with_log("bench", &bench(8, 20.0, None), |bench| {
                let told = answers(&["explain", plain, bench, spec]);
                let next = told.lines().find(|line| line.starts_with("next"));
                let next = next.unwrap_or_else(|| panic!("{told}"));
                assert!(next.contains(&format!("--from-log {spec}")), "{told}");
                assert!(next.contains(&format!("--baseline {plain}")), "{told}");
                assert!(
                    told.contains(&format!("left out: --baseline {bench}")),
                    "{told}"
                );
                assert!(told.contains("1.30x at 8 users"), "{told}");
            });
        });
    });
}

/// One user's share of a large pool is a tenth of a percent: what it held is not known by that.
#[test]
fn a_load_too_light_to_say_what_it_held_is_measured_as_well_as_the_others() {
    let log = |spec: bool, loads: &[(u32, f64)]| {
        let config = match spec {
            true => ", 'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3}",
            false => "",
        };
        let mut text = format!(
            "INFO 11-29 14:42:34 [api_server.py:1977] vLLM API server version 0.24.0\n\
             INFO 11-29 14:42:34 [api_utils.py:273] non-default args: {{'tensor_parallel_size': 2, \
             'model': 'Qwen/Qwen3-32B-FP8'{config}}}\n\
             INFO 11-29 14:43:12 [kv_cache_utils.py:2146] GPU KV cache size: 1,391,872 tokens\n"
        );
        let accepted = "INFO 11-29 14:44:10 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: \
            2.45, Accepted: 1245 tokens, Drafted: 2539 tokens, Per-position acceptance rate: 0.683, 0.474, 0.293\n";
        for (users, tok_s) in loads {
            for _ in 0..3 {
                let share = if *users == 1 { 0.1 } else { 9.2 };
                text.push_str(&format!(
                    "INFO 11-29 14:44:10 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
                     generation throughput: {tok_s:.1} tokens/s, Running: {users} reqs, Waiting: 0 reqs, GPU KV \
                     cache usage: {share:.1}%\n"
                ));
                text.push_str(if spec { accepted } else { "" });
            }
        }
        text
    };
    let answer = with_log("plain", &log(false, &[(1, 62.0), (64, 2000.0)]), |plain| {
        with_log("spec", &log(true, &[(1, 93.0), (64, 2600.0)]), |spec| {
            let given = ["--from-log", spec, "--baseline", plain, "--context", "2k"];
            let card = [
                "predict",
                "--gpu",
                "h100",
                "--gpus",
                "2",
                "--concurrency",
                "1,64",
            ];
            answers(&[&card[..], &given[..]].concat())
        })
    });
    assert!(
        row(&answer, 1).contains("1.50") && row(&answer, 1).ends_with("measured"),
        "{answer}"
    );
    assert!(row(&answer, 64).contains("1.30"), "{answer}");
}

/// 236 tok/s of a bench's time per output token, prompts of others in it, were "below the band" of 390
/// that hold none; the same run's log showed 360.
#[test]
fn a_benchs_figure_that_holds_prompts_of_others_is_not_judged_by_decoding_alone() {
    let files = [
        ("unlike-1", bench(1, 12.0, Some(2.3))),
        ("unlike-16", bench(16, 90.0, Some(2.3))),
    ];
    let [one, many] = files.map(|(name, text)| {
        let path = std::env::temp_dir().join(format!("{name}-{}.txt", std::process::id()));
        std::fs::write(&path, text).expect("a bench");
        path.display().to_string()
    });
    let given = format!("{one},{many}@3");
    let answer = predict(&[
        "--model",
        "qwen3-32b",
        "--context",
        "4k",
        "--concurrency",
        "1,16",
        "--accept",
        &given,
    ]);
    let row = |users: &str| {
        let head = format!("--accept: speculative, {users}");
        let found = answer.lines().find(|line| line.contains(&head));
        found.unwrap_or_else(|| panic!("{answer}"))
    };
    assert!(row("1 user,").contains("the band ("), "{answer}");
    let several = row("16 users");
    assert!(
        several.contains("not judged: prompts of others in the observed alone"),
        "{answer}"
    );
    assert!(!several.contains("the band"), "{answer}");
    for file in [one, many] {
        std::fs::remove_file(file).ok();
    }
}

/// `accept` refused the `FILE,FILE@3` that `predict` takes.
#[test]
fn accept_takes_the_benches_and_the_depth_that_predict_takes() {
    let files = [(1, 12.0, 2.3), (16, 90.0, 2.5)].map(|(users, tpot_ms, length)| {
        let name = format!("both-{users}-{}.txt", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bench(users, tpot_ms, Some(length))).expect("a bench");
        path.display().to_string()
    });
    let json = |line: &[&str], given: &str| -> serde_json::Value {
        let given = [line, &["--accept", given, "--json"]].concat();
        serde_json::from_str(&answers(&given)).expect("JSON")
    };
    for (given, length) in [
        (format!("{}@3", files[0]), 2.3),
        (format!("{},{}@3", files[0], files[1]), 2.4),
    ] {
        let accept = json(&["accept", "--depths", "3"], &given);
        let predict = json(
            &["predict", "--model", "qwen3-32b", "--box", "2x-rtx-5090"],
            &given,
        );
        let same = [
            &accept["depths"][0]["accept_length"],
            &predict["scenario"]["accept_length"]["value"],
        ];
        for figure in same {
            let figure = figure.as_f64().expect("a figure");
            assert!((figure - length).abs() < 0.02, "{given}: {figure} {length}");
        }
    }
    for file in files {
        std::fs::remove_file(file).ok();
    }
}

/// A plain sweep by times per output token, prompts of others in them, was "below the band" of a
/// computation that holds none.
#[test]
fn a_sweep_that_holds_prompts_of_others_is_not_judged_as_too_slow() {
    let files = [(1, 16.0), (16, 40.0), (16, 90.0)].map(|(users, tpot_ms)| {
        let name = format!("prompts-{users}-{tpot_ms}-{}.txt", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = bench(users, tpot_ms, None);
        let median = text.find("Median ITL").expect("a line");
        std::fs::write(&path, &text[..median]).expect("a bench");
        path.display().to_string()
    });
    let [one, several, far] = &files;
    let given = |files: [&String; 2]| {
        let baseline = files.map(String::as_str).join(",");
        predict(&["--model", "qwen3-32b", "--baseline", &baseline])
    };
    let row = |answer: &str, users: &str| {
        let head = format!("your sweep: plain, {users}");
        let found = answer.lines().find(|line| line.contains(&head));
        found.unwrap_or_else(|| panic!("{answer}")).to_string()
    };
    let answer = given([one, several]);
    assert!(row(&answer, "1 user ").contains("the band ("), "{answer}");
    let held = "not judged: prompts of others";
    assert!(row(&answer, "16 users").contains(held), "{answer}");
    assert!(!answer.contains("the plain sweep is up to"), "{answer}");
    // More than prompts were ever seen to take.
    let answer = given([one, far]);
    assert!(
        row(&answer, "16 users").contains("below the band"),
        "{answer}"
    );
    assert!(answer.contains("the plain sweep is up to"), "{answer}");
    for file in files {
        std::fs::remove_file(file).ok();
    }
}

/// 2.4 from a load of 4k made 16k "pays" without a word on where it was measured.
#[test]
fn a_typed_accept_length_is_said_to_be_taken_for_one_of_a_long_context() {
    let said = |context: &str, draft: &str| {
        let flags =
            "--model qwen3-32b --quant awq --gpu rtx-4090 --gpus 2 --engine sglang --concurrency 1";
        common::run(
            "predict",
            &format!("{flags} --context {context} --draft {draft} --accept 2.4@3"),
        )
    };
    let words =
        "accept length 2.40 as measured at 16,384 tokens of context, which --accept does not say";
    assert!(said("16k", "eagle3").contains(words));
    assert!(!said("4k", "eagle3").contains("as measured at"));
    assert!(!said("16k", "qwen3-0.6b").contains("as measured at"));
}

/// The marks were lost and the bands wider by an all-reduce that is the same.
#[test]
fn nccl_by_name_is_as_measured_where_the_engine_runs_it_by_itself() {
    let answer = of_two_logs(&["--allreduce", "nccl"]);
    for users in [1, 8, 32] {
        assert!(row(&answer, users).contains("measured"), "{answer}");
    }
}
