//! Several logs together, and acceptance that a server was told.

mod common;

use std::path::PathBuf;

use common::{answers, with_log};

fn file(name: &str, text: &str) -> PathBuf {
    let name = format!("several-{name}-{}.log", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

/// A vLLM server, with a head at so many steps or without.
fn server(steps: u32, tokens: &str, told: &str, accepted: &str) -> String {
    let config = match steps {
        0 => String::new(),
        steps => format!(
            ", 'speculative_config': {{'method': 'eagle3', 'model': 'a/llama8b-e3', \
             'num_speculative_tokens': {steps}{told}}}"
        ),
    };
    format!(
        "INFO 11-29 14:42:34 [api_server.py:1977] vLLM API server version 0.24.0\n\
         INFO 11-29 14:42:34 [api_utils.py:273] non-default args: {{'max_model_len': 10240, \
         'gpu_memory_utilization': 0.9, 'max_num_seqs': 128, 'model': \
         'meta-llama/Llama-3.1-8B'{config}}}\n\
         INFO 11-29 14:43:12 [gpu_worker.py:508] Available KV cache memory: 107.79 GiB\n\
         INFO 11-29 14:43:12 [kv_cache_utils.py:2146] GPU KV cache size: {tokens} tokens\n\
         INFO 11-29 14:43:17 [model_runner.py:726] Graph capturing finished in 5 secs, took 1.14 GiB\n\
         {accepted}"
    )
}

/// At three steps 2.83; a decay fitted to the mean at five alone gives 2.89.
const ACCEPTED: &str = "\
INFO 11-29 14:43:33 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 3.45, Accepted throughput: 1230.02 tokens/s, Drafted throughput: 2508.54 tokens/s, Accepted: 12452 tokens, Drafted: 25395 tokens, Per-position acceptance rate: 0.783, 0.594, 0.456, 0.347, 0.272, Avg Draft acceptance rate: 49.0%
";

const SYNTHETIC: &str = ", 'rejection_sample_method': 'synthetic', 'synthetic_acceptance_rates': [0.78, 0.6, 0.46, 0.35, 0.27]";

/// Plain, at three steps without accepted tokens, at five with them.
fn three(name: &str) -> [PathBuf; 3] {
    let base = server(0, "891,872", "", "");
    let three = server(3, "855,488", "", "");
    let five = server(5, "856,288", "", ACCEPTED);
    [
        file(&format!("{name}-base"), &base),
        file(&format!("{name}-e3k3"), &three),
        file(&format!("{name}-e3k5"), &five),
    ]
}

#[test]
fn the_next_step_of_several_logs_is_the_same_in_any_order_and_goes_by_the_accepted_tokens() {
    let logs = three("order");
    let shown: Vec<String> = logs.iter().map(|path| path.display().to_string()).collect();
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in orders {
        let mut words = vec!["explain"];
        words.extend(order.iter().map(|at| shown[*at].as_str()));
        let text = answers(&words);
        let next = text.lines().find(|line| line.starts_with("next"));
        let own = format!("--from-log {} ", shown[2]);
        assert!(next.is_some_and(|next| next.contains(&own)), "{text}");
        for fewer in ["holds 36,384 tokens fewer", "holds 35,584 tokens fewer"] {
            assert!(text.contains(fewer), "{text}");
        }
    }
    let pair = answers(&["explain", &shown[0], &shown[1]]);
    assert!(
        pair.contains(&format!("--from-log {} ", shown[1])),
        "{pair}"
    );
    for path in logs {
        std::fs::remove_file(path).ok();
    }
}

#[test]
fn an_accept_length_that_the_server_was_told_is_no_measured_one() {
    let log = file("told", &server(5, "856,288", SYNTHETIC, ACCEPTED));
    let plain = file("told-plain", &server(0, "891,872", "", ""));
    let (log, plain) = (log.display().to_string(), plain.display().to_string());
    let text = answers(&["explain", &log]);
    let note = "the accept length 3.45 is not measured: synthetic acceptance";
    assert!(text.contains(note), "{text}");
    let next = text.lines().find(|line| line.starts_with("next"));
    assert!(
        next.is_some_and(|next| !next.contains("--accept")),
        "{text}"
    );
    let common = ["--gpu", "h200", "--concurrency", "1"];
    let predict = |more: &[&str]| {
        let words = [&["predict", "--from-log", &log][..], &common, more].concat();
        answers(&words)
    };
    // It says nothing of the head: the prior's band, whether the server printed it or not.
    let silent = file("told-silent", &server(5, "856,288", SYNTHETIC, ""));
    let silent = silent.display().to_string();
    let by_prior = answers(&[&["predict", "--from-log", &silent][..], &common].concat());
    let (own, given) = (predict(&[]), predict(&["--accept", &log]));
    for text in [&own, &given] {
        assert_eq!(text.lines().next(), by_prior.lines().next(), "{text}");
        let aside = "(not measured: the 3.45 at 5 of ";
        assert!(text.contains(aside), "{text}");
        assert!(
            text.contains("was forced there, synthetic acceptance)"),
            "{text}"
        );
    }
    // Typed by hand it is the reader's own.
    let typed = predict(&["--accept", "3.45@5"]);
    assert!(!typed.contains("forced"), "{typed}");
    for path in [log, plain, silent] {
        std::fs::remove_file(path).ok();
    }
}

#[test]
fn a_log_with_rates_by_position_has_one_accept_length_however_it_is_given() {
    let log = file("rates", &server(5, "856,288", "", ACCEPTED));
    let log = log.display().to_string();
    let line = |more: &[&str]| {
        let common = [
            "predict",
            "--from-log",
            &log,
            "--gpu",
            "h200",
            "--steps",
            "3",
        ];
        let text = answers(&[&common[..], more].concat());
        let found = text.lines().find(|line| line.contains("accept length"));
        found
            .map(str::to_string)
            .unwrap_or_else(|| panic!("{text}"))
    };
    let by_log = line(&[]);
    assert!(by_log.contains("2.84 at 3 steps"), "{by_log}");
    assert_eq!(by_log, line(&["--accept", &log]));
    std::fs::remove_file(log).ok();
}

/// Two starts of one server, 11 GiB of pool apart, were "no fault found".
#[test]
fn a_pool_far_below_that_of_a_log_with_the_same_settings_is_said() {
    let started = |pool: &str, version: &str| {
        server(0, "904,480", "", "")
            .replace("107.79", pool)
            .replace("0.24.0", version)
    };
    let explain = |pool: &str, version: &str| {
        let whole = file("whole", &started("107.79", "0.24.0"));
        let short = file(&format!("short-{pool}-{version}"), &started(pool, version));
        let paths = [&whole, &short].map(|path| path.to_str().expect("a path"));
        let text = answers(&["explain", paths[0], paths[1]]);
        let _ = std::fs::remove_file(&short);
        text
    };
    let text = explain("96.64", "0.24.0");
    assert!(text.starts_with("COSTS"), "{text}");
    assert!(
        text.contains("the pool is 11.15 GiB smaller than that of"),
        "{text}"
    );
    // A few hundredths, or another release, are no fault.
    for (pool, version) in [("107.01", "0.24.0"), ("96.64", "0.23.0")] {
        let text = explain(pool, version);
        assert!(!text.contains("smaller than that of"), "{text}");
    }
}

#[test]
fn an_accept_length_at_its_own_depth_is_one_figure_in_one_output() {
    let log = file("one", &server(5, "856,288", "", ACCEPTED));
    let log = log.display().to_string();
    let text = answers(&["predict", "--from-log", &log, "--gpu", "h200"]);
    assert!(text.contains("accept length 3.45 at 5 steps"), "{text}");
    assert!(text.contains("(3.45 now, 5 steps, 1 user)"), "{text}");
    std::fs::remove_file(log).ok();
}

#[test]
fn a_card_in_a_table_of_nvidia_smi_is_told_with_its_own_line() {
    let table = "| NVIDIA-SMI 580.126.20             Driver Version: 580.126.20     CUDA Version: 13.0     |\n\
                 |   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |\n\
                 | N/A   31C    P0             70W /  700W |       0MiB /  81559MiB |      0%      Default |\n\
                 |   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |                    0 |\n\
                 | N/A   31C    P0             71W /  700W |       0MiB /  81559MiB |      0%      Default |\n\
                 \tGPU0\tGPU1\n\
                 GPU0\t X \tNV18\n\
                 GPU1\tNV18\t X \n";
    let text = with_log("smi-table", table, |file| answers(&["explain", file]));
    let card = text
        .lines()
        .find(|line| line.trim_start().starts_with("gpu "));
    assert!(
        card.is_some_and(|line| line.trim_end().ends_with("line 2")),
        "{text}"
    );
}
