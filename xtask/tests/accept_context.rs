//! The context of a measured accept length: asked for only where nothing shows it.

mod common;

use common::{run, with_log};

/// A log of SGLang with EAGLE-3, `tokens` what its one request holds.
fn log(tokens: Option<u64>) -> String {
    let tokens = tokens.map_or_else(String::new, |tokens| format!("#token: {tokens}, "));
    let line = format!(
        "[2026-07-11 09:15:05 TP0] Decode batch, #running-req: 1, {tokens}token usage: 0.01, accept len: 2.30, \
         cuda graph: True, gen throughput (token/s): 100.00, #queue-req: 0\n"
    );
    let start = "[2026-07-11 09:14:02] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=1, \
                 speculative_algorithm='EAGLE3', speculative_num_steps=3, speculative_eagle_topk=1, \
                 speculative_num_draft_tokens=4)\n";
    format!("{start}{line}{line}{line}")
}

/// The line that doubts the context, by `--accept FILE` and by `--from-log FILE`.
fn doubts(text: &str, context: &str) -> [String; 2] {
    with_log("accept-context", text, |file| {
        ["--accept", "--from-log"].map(|flag| {
            let given = format!(
                "--model qwen3-32b --gpu h100 --gpus 1 --concurrency 1 --context {context} {flag} {file}"
            );
            let answer = run("predict", &given);
            assert!(answer.contains("2.30"), "{answer}");
            let line = answer.lines().find(|line| line.contains("(speculators#684)"));
            line.unwrap_or_default().replace(file, "FILE")
        })
    })
}

/// `--accept` was said to leave open what the log shows, and a log without it was taken without a word.
#[test]
fn the_context_of_a_logs_accept_length_is_asked_for_only_where_the_log_does_not_show_it() {
    assert_eq!(doubts(&log(Some(15_000)), "16k"), ["", ""]);
    // Shorter requests accept no less.
    assert_eq!(doubts(&log(Some(30_000)), "16k"), ["", ""]);
    for line in doubts(&log(None), "16k") {
        let words = "as measured at 16,384 tokens of context, which FILE does not say: ";
        assert!(line.contains(words), "{line}");
    }
}

/// An accept length of short requests was taken for one of long ones.
#[test]
fn an_accept_length_of_shorter_requests_is_said_to_be() {
    for line in doubts(&log(Some(5_000)), "32k") {
        let words = "measured at 5,000 tokens of context (FILE), taken at 32,768: ";
        assert!(line.contains(words), "{line}");
    }
}
