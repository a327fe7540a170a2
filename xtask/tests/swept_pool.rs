//! The pool that a plain sweep is judged by is the plain server's.

mod common;

use common::answers;

const BOX: &str = "predict --model llama-3.3-70b --quant awq --gpu rtx-3090 --gpus 4 --engine sglang@0.5.13 --context 4k \
                   --max-model-len 8192 --concurrency 1,4,8,16 --accept 2.4@3 --attention-backend fa3";
const DOUBT: &str = "so it probably held less";

fn with_sweep(sweep: &str, more: &str) -> String {
    common::with_log("plain", sweep, |path| {
        let line = format!("{BOX} --baseline {path} {more}");
        answers(&line.split_whitespace().collect::<Vec<_>>())
    })
}

/// A fraction for the server that drafts was taken for the plain one's: 24 requests of 4,096 tokens were said not to
/// fit its pool, and further ones asked for at 2,736.
#[test]
fn a_fraction_for_the_drafting_server_does_not_shrink_the_plain_sweeps() {
    let sweep = "concurrency,tok_s\n1,44\n2,82\n4,150\n8,255\n16,385\n24,470\n";
    for more in ["", "--mem-fraction 0.653", "--mem-fraction 0.813"] {
        let text = with_sweep(sweep, more);
        assert!(!text.contains(DOUBT), "{more}: {text}");
    }
    let short = "concurrency,tok_s\n1,44\n2,82\n4,150\n8,255\n16,385\n";
    let text = with_sweep(short, "--mem-fraction 0.654");
    // Of 111,962 tokens, not of the drafting server's 65,657.
    assert!(text.contains("the pool holds 27 of 4,096 tokens"), "{text}");
    // More than any plain server of the box holds.
    let long = format!("{sweep}64,700\n");
    assert!(with_sweep(&long, "--mem-fraction 0.653").contains(DOUBT));
}
