//! What a log settles and what it leaves open: the box, the context.

mod common;

use common::answers;

/// A server of two GPUs in a box of four, with requests of about 3,000 tokens.
const LOG: &str = "[2026-01-23 19:35:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=2, \
                   context_length=16384, quantization='awq', mem_fraction_static=0.85, version='0.5.5')\n\
                   [2026-01-23 19:35:35 TP0] Decode batch. #running-req: 1, #token: 3000, token usage: \
                   0.05, cuda graph: True, gen throughput (token/s): 61.20, #queue-req: 0\n\
                   [2026-01-23 19:35:37 TP0] Decode batch. #running-req: 1, #token: 3040, token usage: \
                   0.05, cuda graph: True, gen throughput (token/s): 61.10, #queue-req: 0\n";

fn of_log(name: &str, more: &[&str]) -> String {
    let path = std::env::temp_dir().join(format!("of-log-{name}-{}.log", std::process::id()));
    std::fs::write(&path, LOG).expect("a file");
    let file = path.display().to_string();
    let mut args = vec![
        "predict",
        "--from-log",
        &file,
        "--gpu",
        "rtx-3090",
        "--draft",
        "eagle3",
    ];
    args.extend(more);
    let text = answers(&args);
    std::fs::remove_file(path).ok();
    text
}

#[test]
fn a_topology_beside_a_log_says_how_many_gpus_the_box_has() {
    let topology = ["--topology", "docs/examples/topo-4x3090.txt"];
    let text = of_log("box", &topology);
    assert!(text.contains("the box holds 2 such replicas"), "{text}");
    let whole = of_log("whole", &[&topology[..], &["--tp", "4"]].concat());
    assert!(whole.contains("at TP 4"), "{whole}");
    // Without a topology a wider cut asks for a wider box.
    let wider = of_log("wider", &["--tp", "4"]);
    assert!(wider.contains("at TP 4"), "{wider}");
}

#[test]
fn the_context_that_the_requests_of_a_log_held_is_printed() {
    let text = of_log("context", &[]);
    let said = text
        .lines()
        .find(|line| line.contains("(what requests held)"));
    let said = said.unwrap_or_else(|| panic!("{text}"));
    assert!(
        said.contains("context 30") && said.contains("--context"),
        "{said}"
    );
}
