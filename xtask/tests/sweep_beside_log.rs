//! A plain sweep beside what a log says: which causes of a speed outside the band are still open, and what sets
//! speeds with a draft against it.

mod common;

use common::{answers, run, with_log};

const LOADS: [(u32, f64); 3] = [(1, 54.0), (16, 428.0), (48, 788.0)];

/// A server's own log; its lines hold each load three times.
fn log(settings: &str, lines: impl Fn(u32, f64) -> String) -> String {
    let start = format!(
        "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='zai-org/GLM-4.6-FP8', tp_size=8, \
         context_length=16384, mem_fraction_static=0.85, max_running_requests=48{settings})\n\
         [2026-01-01 10:00:01 TP0] sglang is using nccl==2.28.9\n\
         [2026-01-01 10:01:00 TP0] Using KV cache dtype: torch.bfloat16\n"
    );
    let of_load = |(users, tok_s): (u32, f64)| lines(users, tok_s).repeat(3);
    start + &LOADS.map(of_load).concat()
}

fn line(users: u32, tok_s: f64, accept: &str) -> String {
    let tokens = users * 8000;
    format!(
        "[2026-01-01 10:02:00 TP0] Decode batch. #running-req: {users}, #token: {tokens}, token usage: 0.10, \
         {accept}cuda graph: True, gen throughput (token/s): {tok_s}, #queue-req: 0\n"
    )
}

/// Of a server so many times as fast as the loads say.
fn plain_log(times: f64) -> String {
    log(", speculative_algorithm=None", |users, tok_s| {
        line(users, tok_s * times, "")
    })
}

fn drafting_log() -> String {
    let settings = ", speculative_algorithm='EAGLE', speculative_num_steps=3, speculative_eagle_topk=1, \
                    speculative_num_draft_tokens=4";
    log(settings, |users, tok_s| {
        line(users, tok_s * 1.3, "accept len: 2.59, ")
    })
}

fn csv(times: f64) -> String {
    let row = |(users, tok_s): (u32, f64)| format!("{users},{}\n", tok_s * times);
    "concurrency,tok_s\n".to_string() + &LOADS.map(row).concat()
}

const BOX: &str =
    "--gpu rtx-pro-6000-server --gpus 8 --engine sglang@0.5.13 --context 8k --concurrency 1,16,48";

/// The line of the answer that holds these words.
fn said(text: &str, words: &str) -> String {
    let found: Vec<&str> = text.lines().filter(|line| line.contains(words)).collect();
    assert_eq!(found.len(), 1, "{words}: {text}");
    found.concat()
}

fn outside(sweep: &str, flags: &str) -> String {
    let text = with_log("sweep", sweep, |path| {
        run("predict", &format!("{flags} --baseline {path} {BOX}"))
    });
    said(&text, "outside the band: was it run ")
}

/// It asked whether a sweep ran on more GPUs or in another format whose log says that it did not, and for a sweep
/// of this very server, which it was.
#[test]
fn what_the_sweeps_log_rules_out_is_not_asked_and_what_decides_is_named() {
    let told = outside(&plain_log(1.6), "--model zai-org/GLM-4.6-FP8 --tp 8");
    let open = "was it run over other links or by another all-reduce than reckoned with, or on another card?";
    assert!(told.contains(open), "{told}");
    let settles = "(all_reduce_perf of nccl-tests as --allreduce-table, --nccl VERSION, or a log with \
                   NCCL_DEBUG=INFO would settle it)";
    assert!(told.contains(settles), "{told}");
    let version = outside(
        &plain_log(1.6),
        "--model zai-org/GLM-4.6-FP8 --tp 8 --nccl 2.28.9",
    );
    assert!(!version.contains("--nccl VERSION"), "{version}");
    // A bare table says nothing of its server.
    let bare = outside(&csv(1.6), "--model glm-4.6 --quant fp8 --tp 8");
    for open in [
        "on more GPUs",
        "in another weight or KV format",
        "or on another card?",
    ] {
        assert!(bare.contains(open), "{bare}");
    }
    assert!(
        bare.contains("the log of the plain server as --baseline; if"),
        "{bare}"
    );
}

/// A speculative run was asked for that the log shows, and each row said why it is not set against the sweep.
#[test]
fn speeds_that_are_not_set_against_the_sweep_are_told_once_with_what_sets_them() {
    let of = |sweep: &str| {
        with_log("drafting", &drafting_log(), |drafting| {
            with_log("plain", sweep, |plain| {
                let flags = format!("--from-log {drafting} --baseline {plain} {BOX}");
                run("predict", &flags)
            })
        })
    };
    let text = of(&csv(1.0));
    let settles =
        "(--baseline PLAIN.log, the plain server's own log of the same requests, would settle it)";
    let unset = said(&text, "not set against your plain sweep");
    let loads = "its speeds at 1, 16 and 48 users are not set against your plain sweep: the sweep's file does not \
                 say how its speeds were taken";
    assert!(unset.contains(loads) && unset.ends_with(settles), "{unset}");
    let verifies = said(&text, "verifies of more than 48 tokens");
    assert!(verifies.ends_with(settles), "{verifies}");
    // As it asks.
    let alike = of(&plain_log(1.0));
    assert!(alike.contains("1.30x your plain sweep"), "{alike}");
    assert!(!alike.contains("not set against"), "{alike}");
}

/// The table was left out of the line, though it is what `--baseline` takes.
#[test]
fn explain_offers_a_table_beside_the_log_that_drafts_as_the_plain_sweep() {
    with_log("drafting", &drafting_log(), |drafting| {
        with_log("table", &csv(1.0), |table| {
            let text = answers(&["explain", drafting, table]);
            let next = said(&text, "cargo xtask predict --from-log");
            assert!(next.contains(&format!("--baseline {table}")), "{text}");
            assert!(text.contains("ran without speculation"), "{text}");
        });
    });
}
