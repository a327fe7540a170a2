//! A plain sweep of the user's own: at which context it ran, and what is said of it.

mod common;

use std::path::PathBuf;

/// Eight consumer cards and a sweep typed by hand, as `concurrency,tok_s`.
fn with(name: &str, more: &[&str]) -> (i32, String, String) {
    let path: PathBuf =
        std::env::temp_dir().join(format!("sweep-{name}-{}.csv", std::process::id()));
    std::fs::write(&path, "concurrency,tok_s\n1,48\n4,150\n8,250\n16,390\n").expect("a file");
    let file = path.display().to_string();
    let mut args = vec![
        "predict",
        "--model",
        "qwen3-235b-a22b",
        "--quant",
        "int4",
        "--gpu",
        "rtx-4090",
        "--gpus",
        "8",
        "--engine",
        "vllm",
        "--accept",
        "2.1@3",
        "--baseline",
        &file,
    ];
    if !more.contains(&"--concurrency") {
        args.extend(["--concurrency", "1,4,8,16"]);
    }
    args.extend(more);
    let output = common::xtask(&args);
    std::fs::remove_file(path).ok();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("a code");
    (code, text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_sweep_at_another_context_than_asked_can_be_told_by_a_flag() {
    let (_, told, _) = with("told", &["--context", "32k", "--baseline-context", "4k"]);
    let said =
        "the plain sweep is of 4096 tokens of context; its steps at 32768 are the measured ones";
    assert!(told.contains(said), "{told}");
    // Without --context the answer is about the sweep's own.
    let (_, own, _) = with("own", &["--baseline-context", "4k"]);
    assert!(
        own.contains("the plain sweep is of 4096 tokens of context, each"),
        "{own}"
    );
}

#[test]
fn a_sweep_whose_requests_would_not_fit_at_the_context_asked_for_is_doubted() {
    let (_, said, _) = with("doubt", &["--context", "32k"]);
    assert!(
        said.contains("16 requests of 32,768 tokens do not fit"),
        "{said}"
    );
    assert!(said.contains("--baseline-context TOKENS tells"), "{said}");
    let (_, fits, _) = with("fits", &["--context", "2k"]);
    assert!(!fits.contains("do not fit"), "{fits}");
}

#[test]
fn a_sweeps_context_without_a_sweep_or_against_its_file_is_refused() {
    let output = common::xtask(&[
        "predict",
        "--model",
        "qwen3-32b",
        "--gpu",
        "h100",
        "--baseline-context",
        "4k",
    ]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("give --baseline FILE beside it"), "{said}");
    let (code, _, said) = with("wrong", &["--baseline-context", "x"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--baseline-context"), "{said}");
}

#[test]
fn a_sweep_of_another_cut_stands_beside_what_is_computed_and_is_asked_about() {
    let (_, alike, _) = with("alike", &["--context", "4k"]);
    assert!(alike.contains("your sweep: plain, 1 user"), "{alike}");
    // One card's figures, given for eight.
    let output = common::xtask(&[
        "predict",
        "--model",
        "qwen3-32b",
        "--quant",
        "int4",
        "--gpu",
        "h100",
        "--gpus",
        "8",
        "--baseline",
        "docs/examples/plain-4x3090.csv",
        "--accept",
        "2.6@3",
    ]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("below the band"), "{said}");
    assert!(
        said.contains("on fewer GPUs than the 8 GPUs of this answer"),
        "{said}"
    );
}

/// The advice of the default scenario is to measure the plain step, "the verify time is known": beside a
/// sweep it was not used, and 90 tok/s gave 1.88x where 30 ms for 2.9 tokens is a loss.
#[test]
fn the_observed_verify_stands_beside_a_plain_sweep() {
    let run = |tok_s: f64| -> serde_json::Value {
        let name = format!("pinned-{tok_s:.0}-{}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("concurrency,tok_s\n1,{tok_s}\n")).expect("a file");
        let file = path.display().to_string();
        let text = common::answers(&["predict", "--baseline", &file, "--json"]);
        std::fs::remove_file(path).ok();
        serde_json::from_str(&text).expect("JSON")
    };
    let plain: serde_json::Value =
        serde_json::from_str(&common::answers(&["predict", "--json"])).expect("JSON");
    let first = |json: &serde_json::Value, key: &str| json["points"][0][key].as_f64().expect(key);
    let own = run(first(&plain, "baseline_tok_s"));
    // Its own plain speed changes the middle by what the two draft steps differ by.
    let moved = (first(&own, "speedup") / first(&plain, "speedup"))
        .ln()
        .abs();
    assert!(moved < 0.05, "{moved}");
    assert!((first(&own, "verify_ms") - 30.0).abs() < 0.01);
    let width = |json| first(json, "speedup_high") / first(json, "speedup_low");
    assert!(width(&own) < 0.8 * width(&plain));
    // 30 ms and some draft for 2.9 tokens, against 11.1 ms a token.
    assert!(first(&run(90.0), "speedup") < 1.0);
}

/// One point at 8 users stood behind rows of 1 to 16 as if all were the user's own figures.
#[test]
fn loads_that_a_sweep_does_not_have_are_said_to_be_modelled() {
    let (_, few, _) = with("few", &["--context", "4k", "--concurrency", "2,4,32"]);
    let said = "plain steps were measured at 1, 4, 8 and 16 users; 2 and 32 are modelled from them";
    assert!(few.contains(said), "{few}");
    assert!(few.contains("modelled from your own sweep"), "{few}");
    // Verifies of more tokens than any plain step had are not the user's own figures either.
    let (_, all, _) = with("all", &["--context", "4k", "--steps", "3"]);
    let beyond =
        "at 1, 4, 8 and 16 users; verifies of more than 16 tokens (at 8 and 16 users) are modelled";
    assert!(all.contains(beyond), "{all}");
    let (_, inside, _) = with(
        "in",
        &["--context", "4k", "--steps", "3", "--concurrency", "1,4"],
    );
    assert!(!inside.contains("modelled from"), "{inside}");
    assert!(
        all.contains("(from your own sweep: it has no parts)"),
        "{all}"
    );
}

/// Two cards whose pool holds 92 requests of 2,048 tokens, with a sweep up to 64 users.
fn beside_a_sweep_to_64(name: &str, more: &[&str]) -> String {
    let name = format!("to-64-{name}-{}.csv", std::process::id());
    let path = std::env::temp_dir().join(name);
    let sweep = "concurrency,tok_s\n1,98\n8,720\n32,2300\n64,3600\n";
    std::fs::write(&path, sweep).expect("a file");
    let file = path.display().to_string();
    let mut args = vec![
        "predict",
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "rtx-4090",
        "--gpus",
        "2",
    ];
    args.extend([
        "--engine",
        "vllm@0.19",
        "--draft",
        "eagle3",
        "--accept",
        "2.48@3",
    ]);
    args.extend(["--context", "2k", "--baseline", &file]);
    args.extend(more);
    let said = common::answers(&args);
    std::fs::remove_file(path).ok();
    let advice = said
        .lines()
        .find(|line| line.starts_with("       measure "));
    advice.unwrap_or_else(|| panic!("{said}")).to_string()
}

#[test]
fn a_sweep_that_the_pool_does_not_hold_is_asked_for_with_shorter_requests() {
    let said = beside_a_sweep_to_64("short", &["--concurrency", "64", "--steps", "3"]);
    let words = "reaches 256 users, the tokens of a verify; the pool holds 101 of 2,048 tokens, so run \
                 it with requests of at most 800 (--baseline-context)";
    assert!(said.contains(words), "{said}");
}

#[test]
fn the_sweep_asked_for_reaches_the_verify_of_the_depth_that_is_open() {
    // One user and 8 are decided at three steps, 64 are not.
    let said = beside_a_sweep_to_64("open", &["--concurrency", "1,8,64", "--steps", "3"]);
    let words = "reaches 256 users, the tokens of a verify";
    assert!(said.contains(words), "{said}");
}

/// A sweep to 24 users was asked for of a server that runs 16.
#[test]
fn no_sweep_is_asked_for_beyond_what_the_server_runs() {
    let of = |running: &str| {
        let flags = ["--concurrency", "64", "--steps", "3", "--max-running"];
        beside_a_sweep_to_64(running, &[&flags[..], &[running]].concat())
    };
    let said = of("64");
    assert!(said.contains("no sweep that the server holds"), "{said}");
    let said = of("80");
    assert!(
        said.contains(", to the 80 users that the server runs"),
        "{said}"
    );
}

#[test]
fn where_no_sweep_reaches_the_verify_both_speeds_are_asked_for() {
    let flags = ["--concurrency", "410", "--steps", "3", "--kv-dtype", "fp8"];
    let said = beside_a_sweep_to_64("never", &flags);
    let words = "measure plain and speculative speed at this load: run both; no sweep";
    assert!(said.contains(words), "{said}");
}

/// The sweep of a TP 4 server was taken for the plain speed of TP 8 without a word.
#[test]
fn a_sweep_of_another_cut_is_left_aside_and_said_beside_the_verdict() {
    let path = std::env::temp_dir().join(format!("cut-{}.log", std::process::id()));
    let mut log =
        "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=2, \
                   mem_fraction_static=0.85)\n"
            .to_string();
    for (running, speed) in [
        (1, 40.0),
        (1, 41.0),
        (1, 41.0),
        (4, 150.0),
        (4, 151.0),
        (4, 151.0),
    ] {
        log += &format!(
            "[2026-01-01 10:00:05 TP0] Decode batch. #running-req: {running}, #token: {}, token usage: \
             0.01, cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0\n",
            running * 500
        );
    }
    std::fs::write(&path, log).expect("a file");
    let file = path.display().to_string();
    let predict = |flags: &[&str]| {
        let common = [
            "predict", "--gpu", "rtx-4090", "--gpus", "4", "--quant", "fp8",
        ];
        let loads = ["--concurrency", "1,4", "--context", "2k"];
        let output = common::xtask(&[&common[..], &loads, flags].concat());
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let by_log = ["--from-log", &file, "--baseline", &file];
    let of_its_own = predict(&[&by_log[..], &["--tp", "2"]].concat());
    assert!(!of_its_own.contains("left aside"), "{of_its_own}");
    assert!(!of_its_own.contains("does not say)"), "{of_its_own}");
    let other = predict(&[&by_log[..], &["--tp", "4"]].concat());
    let said = format!(
        "       --baseline {file} is left aside, all speeds are computed: it is of TP 2 ({file}:1), this \
         answer of TP 4\n"
    );
    assert!(other.contains(&said), "{other}");
    assert!(!other.contains("your sweep"), "{other}");
    // The same without a log: the sweep's own file says it.
    let flags = ["--model", "qwen3-32b", "--engine", "sglang", "--tp", "4"];
    let alone = predict(&[&flags[..], &["--baseline", &file]].concat());
    assert!(alone.contains(&said), "{alone}");
    let scratch = predict(&flags);
    let row = |text: &str| {
        text.lines()
            .find(|l| l.starts_with("    4 "))
            .map(str::to_string)
    };
    assert_eq!(row(&alone), row(&scratch));
    // A bench that does not say is taken to be of the log's server.
    let bench = path.with_extension("csv");
    std::fs::write(&bench, "concurrency,tok_s\n1,41\n4,151\n").expect("a file");
    let csv = bench.display().to_string();
    let beside = predict(&["--from-log", &file, "--baseline", &csv, "--tp", "4"]);
    let why = format!("the log beside it is of TP 2 ({file}:1), this answer of TP 4");
    assert!(beside.contains(&why), "{beside}");
    // Without the log it is taken to be of the cut asked for.
    let silent = predict(&[&flags[..4], &["--tp", "2", "--baseline", &csv]].concat());
    let said = "the plain sweep ran at TP 2, as asked (it does not say)";
    assert!(silent.contains(said), "{silent}");
    std::fs::remove_file(path).ok();
    std::fs::remove_file(bench).ok();
}

/// Followed to its own next step, the sweep, the answer no longer said what to change.
#[test]
fn what_to_change_first_stays_beside_a_plain_sweep() {
    let sweep = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("change-first.csv");
    std::fs::write(&sweep, "concurrency,tok_s\n1,50\n8,300\n").expect("written");
    let sweep = sweep.to_str().expect("a path");
    let server = "predict --model qwen3-235b-a22b --quant nvfp4 --box two-switch-8 --engine vllm@0.30.0 \
                  --draft eagle3 --steps 3 --concurrency 1 --compare engine,island --json --baseline";
    let words = server.split_whitespace().chain([sweep]);
    let text = common::answers(&words.collect::<Vec<_>>());
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = answer["compared"].as_array().expect("rows");
    let tok_s = |row: usize| rows[row]["spec_tok_s"].as_f64().expect("a figure");
    let change = &answer["changes"][0];
    assert_eq!(change["change"], "all-reduce by island", "{text}");
    let gain = change["gain"].as_f64().expect("a figure");
    assert!(
        gain > 1.05 && (gain - tok_s(1) / tok_s(0)).abs() < 1e-3,
        "{gain}: {text}"
    );
}

/// Four steps were pasted for 2 % at few users, where three gain as much in the mean and surely at 64; and
/// the sweep that was asked for ran more at once than the server does.
#[test]
fn of_depths_alike_in_the_mean_the_one_that_surely_gains_at_most_loads_is_pasted() {
    let sweep = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("alike.csv");
    std::fs::write(
        &sweep,
        "concurrency,tok_s,context\n1,41.1,2304\n32,1013,2304\n",
    )
    .expect("written");
    let sweep = sweep.to_str().expect("a path");
    let server = "predict --model llama-3.3-70b --engine vllm@0.13.0 --gpu h200 --gpus 4 \
                  --draft eagle3 --accept 2.55@3 --context 4k --baseline";
    let mut server: Vec<&str> = server.split_whitespace().collect();
    server.push(sweep);
    let chosen = common::answers(&server);
    assert!(chosen.contains("EAGLE-3, 3 steps"), "{chosen}");
    assert!(
        chosen.contains("it pays at every load shown, up to 64"),
        "{chosen}"
    );
    server.extend(["--steps", "4"]);
    let deeper = common::answers(&server);
    let open = deeper.lines().find(|line| line.starts_with("   64 "));
    assert!(
        open.is_some_and(|row| row.contains("measure first")),
        "{deeper}"
    );
    let gained = |text: &str| -> f64 {
        let gain = |row: &str| match row.split_whitespace().collect::<Vec<_>>()[..] {
            [_, _, _, gain, band, ..] if band.starts_with('(') => gain.parse::<f64>().ok(),
            _ => None,
        };
        text.lines().filter_map(gain).take(7).map(f64::ln).sum()
    };
    let more = (gained(&deeper) - gained(&chosen)) / 7.0;
    assert!(more > 0.0 && more < 0.03, "not alike: {more}");
    let flag = "where it reaches 320 users, the tokens of a verify (--max-num-seqs 320)";
    assert!(deeper.contains(flag), "{deeper}");
}

/// A log that says its context and a table that does not: the flag was refused for the table's sake, and
/// without it the table was taken at the log's context without a word.
#[test]
fn the_context_told_by_a_flag_is_of_the_files_that_do_not_say() {
    let line = "[2026-07-11 09:15:05 TP0] Decode batch, #running-req: 1, #token: 4096, token usage: 0.01, \
                cuda graph: True, gen throughput (token/s): 60.0, #queue-req: 0\n";
    let log = format!(
        "[2026-07-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=1, \
         speculative_algorithm=None)\n{}",
        line.repeat(3)
    );
    let table = |name: &str, rows: &str| {
        let path = std::env::temp_dir().join(format!("of-two-{name}-{}.csv", std::process::id()));
        std::fs::write(&path, format!("concurrency,tok_s\n{rows}\n")).expect("a file");
        path.display().to_string()
    };
    common::with_log("of-two", &log, |log| {
        let run = |table: &str, more: &[&str]| {
            let files = format!("{log},{table}");
            let words =
                "predict --model qwen3-32b --gpu h100 --context 2k --accept 2.1@3 --baseline";
            let words: Vec<&str> = words.split(' ').chain([files.as_str()]).collect();
            common::answers(&[&words[..], more].concat())
        };
        let beyond = table("beyond", "8,400\n32,1300");
        let said = run(&beyond, &[]);
        assert!(
            said.contains("does not say what its requests held: taken for the 4096 tokens"),
            "{said}"
        );
        let said = run(&beyond, &["--baseline-context", "2500"]);
        assert!(said.contains("requests of 2500 to 4096 tokens"), "{said}");
        // Where the table replaces all that the log shows, its context is the sweep's.
        let whole = table("whole", "1,55\n8,400\n32,1300");
        let said = run(&whole, &["--baseline-context", "2500"]);
        assert!(
            said.contains("the plain sweep is of 2500 tokens of context"),
            "{said}"
        );
        for file in [beyond, whole] {
            std::fs::remove_file(file).ok();
        }
    });
}

/// A serving bench of so many users, whose requests hold `held` tokens in the mean.
fn bench(name: &str, users: u32, held: u32, tpot_ms: f64, accept: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{users}.txt"));
    let text = format!(
        "============ Serving Benchmark Result ============\nBackend: sglang\n\
         Max request concurrency: {users}\nSuccessful requests: 10\n\
         Total input tokens: {}\nTotal generated tokens: 5000\n\
         Output token throughput (tok/s): {:.2}\n{accept}Mean TTFT (ms): 300.00\n\
         Mean TPOT (ms): {tpot_ms:.2}\nMean ITL (ms): {tpot_ms:.2}\nMedian ITL (ms): {:.2}\n\
         ==================================================\n",
        (held - 250) * 10,
        f64::from(users) * 950.0 / tpot_ms,
        tpot_ms * 0.95
    );
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

fn of_benches(more: &[&str]) -> String {
    let own = "predict --model deepseek-v3.1 --quant int4 --gpu h100 --gpus 8 --engine sglang@0.5.9 --draft mtp \
               --context 4k";
    let own: Vec<&str> = own.split_whitespace().collect();
    common::answers(&[&own[..], more].concat())
}

/// A longer plain sweep was asked for, with a flag that benches of their own lengths are refused with, where
/// one bench of both servers at the open load says more.
#[test]
fn beside_loads_measured_both_ways_a_load_between_them_is_to_be_measured_both_ways() {
    let plain = |users: u32, ms: f64| bench("gap-plain", users, 3850, ms, "");
    let drafted = |users: u32, ms: f64| bench("gap-spec", users, 3850, ms, "Accept length: 2.43\n");
    let sweep = [(1, 8.5), (4, 12.1), (16, 19.5), (64, 36.7)].map(|(users, ms)| plain(users, ms));
    let spec = [(1, 5.3), (4, 8.2), (16, 16.3), (64, 32.0)].map(|(users, ms)| drafted(users, ms));
    let (sweep, spec) = (sweep.join(","), format!("{}@3", spec.join(",")));
    let of = |sweep: &str, spec: &str| {
        let line = format!("--concurrency 1,4,8,16,32,64 --baseline {sweep} --accept {spec}");
        of_benches(&line.split_whitespace().collect::<Vec<_>>())
    };
    let said = of(&sweep, &spec);
    let advice = "measure plain and speculative speed at this load: run both, as at the loads that were \
                  measured (for what is open at 32 users)";
    assert!(said.contains(advice), "{said}");
    assert!(!said.contains("--baseline-context"), "{said}");
    // Followed, nothing is open.
    let both = (plain(32, 25.0), drafted(32, 19.0));
    let (sweep, spec) = (format!("{sweep},{}", both.0), format!("{},{spec}", both.1));
    let said = of(&sweep, &spec);
    assert!(!said.contains("       measure "), "{said}");
    // Alone, the plain sweep is asked for with what lets the pasted server run it.
    let line = format!(
        "--concurrency 64,200 --steps 5 --accept 1.9@3 --baseline {}",
        plain(16, 19.5)
    );
    let said = of_benches(&line.split_whitespace().collect::<Vec<_>>());
    assert!(
        said.contains("(--max-running-requests 384); the pool holds"),
        "{said}"
    );
}

/// A file's 128 requests of 2,326 tokens were said not to fit by the 3,850 of the other files.
#[test]
fn each_load_of_a_sweep_of_several_files_is_held_to_its_own_length() {
    let of = |held: u32| {
        let files = [(1, 8.5), (16, 19.5), (64, 36.7)];
        let files = files.map(|(users, ms)| bench(&format!("len{held}-"), users, 3850, ms, ""));
        let most = bench(&format!("len{held}-"), 128, held, 55.0, "");
        let sweep = format!("{},{most}", files.join(","));
        of_benches(&[
            "--concurrency",
            "1,64",
            "--baseline",
            &sweep,
            "--accept",
            "2.4@3",
        ])
    };
    let shorter = of(2326);
    assert!(!shorter.contains("do not fit"), "{shorter}");
    assert!(
        shorter.contains("2326 to 3850 tokens; they are taken for one sweep of 3850, the median")
    );
    assert!(of(3850).contains("; 128 requests of 3,850 tokens do not fit "));
}
