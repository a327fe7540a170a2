//! Speculative benches: the speed that their rows show, and which of them are passed on.

mod common;

use common::{answers, bench, with_log};

const CARDS: [&str; 4] = ["--gpu", "rtx-5090", "--gpus", "4"];

fn predict(words: &[&str]) -> String {
    let all = [&["predict"], &CARDS[..], words].concat();
    answers(&all)
}

/// 101 tok/s of output throughput stood as "1.65x" of 69.9 that hold no prefill: the fastest second counts
/// arrivals, of several tokens each.
#[test]
fn a_speculative_benchs_row_is_users_over_its_time_per_output_token() {
    let arrivals = |users: u32, tpot_ms: f64, peak: u32| {
        let text = bench(users, tpot_ms, Some(2.3));
        let (tpot, between) = (format!("Mean ITL (ms): {tpot_ms:.2}"), tpot_ms * 2.2);
        let peak =
            format!("Peak output token throughput (tok/s): {peak}\nMean ITL (ms): {between}");
        text.replace(&tpot, &peak)
    };
    let one = arrivals(1, 8.0, 60);
    let bare: Vec<&str> = one.lines().filter(|line| !line.contains("TPOT")).collect();
    let bare = bare.join("\n");
    let row = |files: &str, users: &str| {
        let given = ["--model", "qwen3-32b", "--context", "4k", "--accept", files];
        let answer = predict(&given);
        let head = format!("--accept: speculative, {users}");
        let found = answer.lines().find(|line| line.contains(&head));
        let row = found.unwrap_or_else(|| panic!("{answer}"));
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    with_log("arrive-1", &one, |one| {
        with_log("arrive-4", &arrivals(4, 16.0, 130), |four| {
            let files = format!("{one},{four}@3");
            // 1000 / 8 and 4 * 1000 / 16, not 118.75 and 237.5.
            let alone = row(&files, "1 user,");
            assert!(alone.contains(" held 125 "), "{alone}");
            assert!(!alone.contains("prefill"), "{alone}");
            let loaded = row(&files, "4 users");
            assert!(loaded.contains(" held 250 "), "{loaded}");
        });
    });
    with_log("arrive-bare", &bare, |bare| {
        let row = row(&format!("{bare}@3"), "1 user,");
        assert!(row.contains(" held 119 "), "{row}");
        assert!(row.contains("prefill in it"), "{row}");
    });
}

/// "left out: what spec16.txt says of drafting" stood under a line that passed it, and of speculative
/// benches alone one's length was passed for all.
#[test]
fn explain_passes_on_all_benches_that_predict_pools_and_says_of_none_that_it_is_left_out() {
    with_log("pool-p1", &bench(1, 16.0, None), |plain| {
        with_log("pool-s1", &bench(1, 10.0, Some(2.3)), |s1| {
            with_log("pool-s32", &bench(32, 25.0, Some(2.2)), |s32| {
                for files in [&["explain", plain, s1, s32][..], &["explain", s1, s32]] {
                    let told = answers(files);
                    let passed = format!("--accept {s1},{s32}@STEPS");
                    assert!(told.contains(&passed), "{told}");
                    assert!(!told.contains("left out"), "{told}");
                }
                let given = format!("{s1},{s32}@3");
                let answer = predict(&["--model", "qwen3-32b", "--accept", &given]);
                assert!(answer.contains("(2.25 at 3, as measured)"), "{answer}");
            });
        });
    });
}

/// The speeds of a server that drafted, whose bench prints no accept length, were confirmed as plain.
#[test]
fn a_bench_that_may_be_of_a_server_that_drafts_is_assumed_plain_aloud() {
    let run =
        "predict --model qwen3-32b --quant int4 --gpu rtx-3090 --gpus 2 --concurrency 1 --baseline";
    let of = |text: &str| {
        with_log("may-draft", text, |file| {
            let words: Vec<&str> = run.split_whitespace().chain([file]).collect();
            answers(&words)
        })
    };
    let said = "and without speculation (it does not say)";
    let found = of(&bench(1, 20.0, None));
    assert!(found.contains(said), "{found}");
    let listed = of("concurrency,tok_s\n1,50\n");
    assert!(!listed.contains(said), "{listed}");
}

/// MODEL and ENGINE stood for the reader to fill in below a line of the file that names both.
#[test]
fn what_a_bench_prints_of_its_own_arguments_names_model_and_engine() {
    let next = |arguments: &str| {
        let text = format!(
            "{arguments}\n{}",
            bench(8, 20.0, None).replace("Backend: sglang\n", "")
        );
        with_log("named", &text, |file| answers(&["explain", file]))
    };
    let own = next(
        "Namespace(backend='sglang', base_url=None, model='/models/Qwen3-32B-FP8', max_concurrency=8)",
    );
    assert!(
        own.contains(" --model Qwen3-32B-FP8 --engine sglang "),
        "{own}"
    );
    let vllm = next(
        "Namespace(subparser='bench', backend='vllm', model='meta-llama/Llama-3.1-8B-Instruct', tokenizer=None)",
    );
    assert!(
        vllm.contains(" --model Llama-3.1-8B-Instruct --engine vllm "),
        "{vllm}"
    );
    assert!(
        vllm.contains("--engine is right if the server was vllm, which"),
        "{vllm}"
    );
    // Any server answers the OpenAI interface; a model of nobody's catalogue is named to the reader.
    let open = next("Namespace(backend='openai', model='/data/my-finetune', max_concurrency=8)");
    assert!(open.contains(" --model MODEL --engine ENGINE "), "{open}");
    assert!(open.contains("config.json of /data/my-finetune"), "{open}");
}
