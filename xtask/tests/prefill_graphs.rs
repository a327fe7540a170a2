//! Graphs of prefills, which SGLang captures by itself since 0.5.10: of the target, of prefills' sizes.

mod common;

use common::answers;

/// A plain server on two RTX 5090; `captures`: its line of prefill graphs, 0.62 GB of them.
fn log(name: &str, captures: &str) -> String {
    let free = if captures.is_empty() { "3.28" } else { "2.66" };
    let text = format!(
        "[2026-05-10 20:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-32B-FP8', \
         context_length=None, mem_fraction_static=0.87, max_running_requests=None, \
         chunked_prefill_size=2048, tp_size=2, speculative_algorithm=None, cuda_graph_max_bs=24)\n\
         [2026-05-10 20:00:13 TP0] Load weight begin. avail mem=29.86 GB\n\
         [2026-05-10 20:00:41 TP0] Load weight end. elapsed=27.90 s, type=Qwen3ForCausalLM, \
         quant=fp8, dtype=torch.bfloat16, avail mem=13.62 GB, mem usage=16.24 GB.\n\
         [2026-05-10 20:00:42 TP0] KV Cache is allocated. #tokens: 79784, K size: 4.87 GB, V size: 4.87 GB\n\
         [2026-05-10 20:00:42 TP0] Memory pool end. avail mem=3.57 GB\n\
         [2026-05-10 20:00:43 TP0] Capture cuda graph begin. avail mem=3.55 GB\n\
         [2026-05-10 20:00:50 TP0] Capture cuda graph end. Time elapsed: 7.02 s. mem usage=0.27 GB. \
         avail mem=3.28 GB.\n\
         {captures}\
         [2026-05-10 20:00:51 TP0] max_total_num_tokens=79784, chunked_prefill_size=2048, \
         max_running_requests=2048, context_len=40960, available_gpu_mem={free} GB\n\
         [2026-05-10 20:00:54] The server is fired up and ready to roll!\n"
    );
    let path = std::env::temp_dir().join(format!("prefills-{name}-{}.log", std::process::id()));
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

const PIECEWISE: &str = "[2026-05-10 20:00:51 TP0] Capture piecewise CUDA graph end. Time elapsed: 14.10 s. \
                         mem usage=0.62 GB. avail mem=2.66 GB.\n";
const PREFILL: &str = "[2026-05-10 20:00:51 TP0] Capture target prefill CUDA graph end. elapsed=14.10 s, \
                       mem usage=0.62 GB, avail mem=2.66 GB.\n";

/// The rows of the ledger whose item begins so, their columns one space apart.
fn rows(text: &str, item: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split_whitespace());
    let lines = lines.map(|words| words.collect::<Vec<_>>().join(" "));
    lines.filter(|line| line.starts_with(item)).collect()
}

fn of_log(file: &str, engine: &str) -> String {
    let words = format!(
        "predict --from-log {file} --gpu rtx-5090 --context 8k --concurrency 1,4,8 --draft eagle3 --engine \
         sglang@{engine}"
    );
    answers(&words.split(' ').collect::<Vec<_>>())
}

/// 0.62 GB of prefill graphs were scaled by the sizes of decode graphs and charged to the draft as well:
/// the pool of half the users.
#[test]
fn prefill_graphs_of_a_plain_log_are_neither_scaled_nor_the_drafts() {
    let [plain, piecewise, prefill] =
        [("none", ""), ("piecewise", PIECEWISE), ("prefill", PREFILL)]
            .map(|(name, line)| log(name, line));
    let known = of_log(&plain, "0.5.10");
    for file in [&piecewise, &prefill] {
        // Speculation switches them off in 0.5.10.
        let text = of_log(file, "0.5.10");
        for item in ["target: graphs", "draft: graphs", "legal fraction"] {
            assert_eq!(rows(&text, item), rows(&known, item), "{text}");
        }
        // And no more from 0.5.11 on: the target keeps those that it had.
        let text = of_log(file, "0.5.12");
        let kept = rows(&text, "target: graphs of prefills");
        assert!(kept.len() == 1 && kept[0].contains("0.62"), "{text}");
        assert_eq!(rows(&text, "draft: graphs"), rows(&known, "draft: graphs"));
    }
    for file in [plain, piecewise, prefill] {
        let _ = std::fs::remove_file(file);
    }
}

/// `--cuda-graph-max-bs` is no flag of 0.5.20.
#[test]
fn explain_names_the_graph_flag_that_the_logs_release_knows() {
    for (version, flag) in [
        ("sglang==0.5.9", "raise --cuda-graph-max-bs above"),
        ("sglang==0.5.20", "raise --cuda-graph-max-bs-decode above"),
    ] {
        let decode = "[2026-05-10 20:02:03 TP0] Decode batch, #running-req: 1, #token: 6040, token usage: \
                      0.08, cuda graph: False, gen throughput (token/s): 59.80, #queue-req: 0, \n";
        let text = format!("{version}\n{}", decode.repeat(4));
        let path = std::env::temp_dir().join(format!("{flag}-{}.log", std::process::id()));
        std::fs::write(&path, text).expect("writes");
        let text = answers(&["explain", &path.display().to_string()]);
        let _ = std::fs::remove_file(&path);
        assert!(text.contains(flag), "{text}");
    }
}

/// Graphs of 2.54 GiB stood beside 65 prefills of which none ran in one, and nothing was said.
#[test]
fn prefill_graphs_that_a_head_keeps_out_of_use_are_named_with_the_flag_that_leaves_them_out() {
    let prefill = |ran: &str| {
        format!(
            "[2026-05-10 20:00:56 TP0] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 0, \
             token usage: 0.01, #running-req: 0, #queue-req: 0, cuda graph: {ran}, input throughput \
             (token/s): 7878.23\n"
        )
    };
    let told = |name: &str, draft: &str, ran: [&str; 2]| {
        let file = log(name, PIECEWISE);
        let text = std::fs::read_to_string(&file).expect("reads");
        let text = text.replace("speculative_algorithm=None", draft);
        std::fs::write(&file, text + &ran.map(prefill).concat()).expect("writes");
        let text = answers(&["explain", &file]);
        std::fs::remove_file(&file).ok();
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        text.contains("0.62 GiB of prefill graphs, and no prefill ran in one")
            && text.contains("--disable-piecewise-cuda-graph leaves them out")
    };
    let eagle = "speculative_algorithm='EAGLE3', speculative_num_steps=3, speculative_eagle_topk=1, \
                 speculative_num_draft_tokens=4";
    assert!(told("kept-out", eagle, ["False", "False"]));
    assert!(!told("used", eagle, ["False", "True"]));
    assert!(!told(
        "no-head",
        "speculative_algorithm=None",
        ["False", "False"]
    ));
}
