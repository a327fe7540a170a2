//! Texts that could be misread.

use super::Is::{N, No, T};
use super::{Form, check};
use crate::explain::facts_from_text;

const SHAPES: &[Form] = &[
    (
        "Windows line ends, colours, a quoted mail without blanks",
        ">\u{1b}[36m[2025-09-11 10:25:33 TP0]\u{1b}[0m Load weight begin. avail mem=94.00 GB\r\n\
         >[2025-09-11 10:25:43 TP0] Load weight end. type=X, avail mem=21.70 GB, mem usage=72.30 GB.\r\n\
         >[2025-09-11 10:25:43 TP0] KV Cache is allocated. #tokens: 159218, KV size: 10.42 GB\r\n",
        &[
            ("free_before_gib", N(94.0)),
            ("free_after_gib", N(21.7)),
            ("kv_gib", N(10.42)),
            ("mem_fraction_in_use", N(0.88)),
        ],
    ),
    (
        "copied out of a page's source",
        "<details><summary>log</summary><pre><code>\n\
         INFO 10-14 19:02:01 non-default args: {&#39;model&#39;: &#39;Qwen/Qwen3-32B&#39;, \
         &quot;gpu_memory_utilization&quot;: 0.85, &#x27;max_model_len&#x27;: 40960}\n\
         INFO 10-14 19:02:31 Available KV cache memory: 10.62 GiB\n\
         </code></pre></details>\n",
        &[
            ("model", T("Qwen/Qwen3-32B")),
            ("gpu_memory_utilization", N(0.85)),
            ("max_model_len", N(40960.0)),
            ("kv_gib", N(10.62)),
        ],
    ),
    (
        "Docker's compose in colour, few lines",
        "\u{1b}[32msglang-1  | \u{1b}[0m[2025-09-11 10:25:33 TP0] Load weight begin. avail mem=94.00 GB\n\
         \u{1b}[32msglang-1  | \u{1b}[0m[2025-09-11 10:25:43 TP0] Load weight end. type=X, avail \
         mem=21.70 GB, mem usage=72.30 GB.\n",
        &[("free_before_gib", N(94.0)), ("weights_gib", N(72.3))],
    ),
    (
        "kubectl's stamps",
        "2025-09-11T10:25:33.123456789Z stdout F [2025-09-11 10:25:33 TP0] Load weight begin. avail \
         mem=94.00 GB\n\
         2025-09-11T10:25:43.123456789Z stdout F [2025-09-11 10:25:43 TP0] Load weight end. type=X, \
         avail mem=21.70 GB, mem usage=72.30 GB.\n",
        &[("free_before_gib", N(94.0)), ("weights_gib", N(72.3))],
    ),
    (
        "a decimal comma is no thousands separator, nor a decimal point one",
        "Available KV cache memory: 10,62 GiB\nGPU KV cache size: 85.648 tokens\n\
         [x TP0] Load weight begin. avail mem=94,00 GB\n",
        &[("kv_gib", No), ("kv_tokens", No), ("free_before_gib", No)],
    ),
    (
        "thousands by the American comma",
        "GPU KV cache size: 1,085,648 tokens\nMaximum concurrency for 131,072 tokens per request: 8.28x\n",
        &[
            ("kv_tokens", N(1_085_648.0)),
            ("max_model_len", N(131_072.0)),
        ],
    ),
    (
        "two runs with other settings: the last one's acceptance and speed",
        "[2026-02-11 09:14:02] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.8, tp_size=1, \
         speculative_algorithm='EAGLE3', speculative_num_steps=3, speculative_eagle_topk=1, \
         speculative_num_draft_tokens=4)\n\
         [2026-02-11 09:14:17] Load weight begin. avail mem=46.00 GB\n\
         [2026-02-11 09:14:38] Load weight end. type=X, avail mem=30.00 GB, mem usage=16.00 GB.\n\
         [2026-02-11 09:15:05] max_total_num_tokens=1000, chunked_prefill_size=4096, \
         max_running_requests=48, context_len=32768\n\
         [2026-02-11 09:20:12] Decode batch, #running-req: 1, #token: 100, token usage: 0.1, accept len: \
         2.30, cuda graph: True, gen throughput (token/s): 90.0, #queue-req: 0\n\
         [2026-02-11 10:14:02] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.9, tp_size=1, \
         speculative_algorithm=None)\n\
         [2026-02-11 10:14:17] Load weight begin. avail mem=46.00 GB\n\
         [2026-02-11 10:14:38] Load weight end. type=X, avail mem=30.00 GB, mem usage=16.00 GB.\n\
         [2026-02-11 10:15:05] max_total_num_tokens=2000, chunked_prefill_size=4096, \
         max_running_requests=48, context_len=32768\n\
         [2026-02-11 10:20:12] Decode batch, #running-req: 1, #token: 100, token usage: 0.1, cuda graph: \
         True, gen throughput (token/s): 60.0, #queue-req: 0\n\
         [2026-02-11 10:20:14] Decode batch, #running-req: 1, #token: 140, token usage: 0.1, cuda graph: \
         True, gen throughput (token/s): 62.0, #queue-req: 0\n",
        &[
            ("mem_fraction", N(0.9)),
            ("kv_tokens", N(2000.0)),
            ("accept_length", No),
            ("spec_algorithm", No),
            ("spec_steps", No),
            ("gen_tok_s", N(61.0)),
        ],
    ),
    (
        "the same for vLLM, with the first one's command",
        "$ vllm serve a/b --gpu-memory-utilization 0.7 --speculative-config '{\"num_speculative_tokens\": 2}'\n\
         INFO 10-14 19:02:01 non-default args: {'model': 'a/b', 'speculative_config': {'method': 'mtp', \
         'num_speculative_tokens': 2}}\n\
         INFO 10-14 19:02:31 Available KV cache memory: 10.00 GiB\n\
         INFO 10-14 19:02:31 GPU KV cache size: 80,000 tokens\n\
         INFO 10-14 19:02:31 Maximum concurrency for 8,192 tokens per request: 9.77x\n\
         INFO 10-14 19:05:31 SpecDecoding metrics: Mean acceptance length: 2.10, Accepted: 655 tokens, \
         Drafted: 1500 tokens, Per-position acceptance rate: 0.680, 0.420\n\
         INFO 10-14 20:02:01 non-default args: {'model': 'a/b'}\n\
         INFO 10-14 20:02:31 Available KV cache memory: 12.00 GiB\n\
         INFO 10-14 20:02:31 GPU KV cache size: 96,000 tokens\n",
        &[
            ("kv_gib", N(12.0)),
            ("kv_tokens", N(96000.0)),
            ("accept_length", No),
            ("spec_tokens", No),
            ("gpu_memory_utilization", No),
        ],
    ),
];

#[test]
fn what_travels_around_a_log_changes_nothing_in_it() {
    check(SHAPES);
}

const SGLANG: [&str; 4] = [
    "[2025-09-11 10:25:33 TP0] Load weight begin. avail mem=94.00 GB",
    "[2025-09-11 10:25:43 TP0] Load weight end. type=X, avail mem=21.70 GB, mem usage=72.30 GB.",
    "[2025-09-11 10:25:43 TP0] KV Cache is allocated. #tokens: 159218, KV size: 10.42 GB",
    "[2025-09-11 10:25:43 TP0] Memory pool end. avail mem=10.90 GB",
];
const VLLM: [&str; 4] = [
    "INFO 10-14 19:02:20 [gpu_model_runner.py:2653] Model loading took 18.4 GiB and 30.1 seconds",
    "INFO 10-14 19:02:31 [gpu_worker.py:298] Available KV cache memory: 10.62 GiB",
    "INFO 10-14 19:02:31 [kv_cache_utils.py:1087] GPU KV cache size: 85,648 tokens",
    "INFO 10-14 19:02:31 Maximum concurrency for 40,960 tokens per request: 2.09x",
];

#[test]
fn figures_of_two_engines_in_one_file_are_not_mixed() {
    let text = format!("{}\n{}\n", SGLANG.join("\n"), VLLM[..2].join("\n"));
    let facts = facts_from_text(&text, "f");
    assert_eq!(facts.text("engine"), Some("sglang"));
    assert_eq!(facts.number("weights_gib"), Some(72.3));
    assert!(
        facts
            .notes
            .iter()
            .any(|note| note.contains("a vllm log too, from line 5"))
    );
}

#[test]
fn servers_side_by_side_in_a_compose_log_are_told_apart() {
    let mut text = String::new();
    for (left, right) in SGLANG.iter().zip(VLLM) {
        text.push_str(&format!("big-1    | {left}\nsmall-1  | {right}\n"));
    }
    let facts = facts_from_text(&text, "f");
    assert_eq!(facts.text("engine"), Some("sglang"));
    assert_eq!(facts.number("kv_tokens"), Some(159_218.0));
    // The line is that of the whole file.
    assert_eq!(facts.get("kv_gib").map(|fact| fact.line), Some(5));
    let note = "the facts are those of big-1, not of small-1";
    assert!(
        facts.notes.iter().any(|n| n.contains(note)),
        "{:?}",
        facts.notes
    );
    // One server beside a proxy is one server.
    let mut proxied = String::new();
    for line in SGLANG {
        proxied.push_str(&format!(
            "big-1    | {line}\nproxy-1  | GET /v1/models 200\n"
        ));
    }
    let facts = facts_from_text(&proxied, "f");
    assert!(facts.notes.iter().all(|n| !n.contains("several servers")));
    assert_eq!(facts.number("kv_gib"), Some(10.42));
}
