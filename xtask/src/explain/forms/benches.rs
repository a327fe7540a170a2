//! Bench outputs.

use super::Is::{N, No, T};
use super::{Form, check};
use crate::bench_input::sweep_from_text;

const FORMS: &[Form] = &[
    (
        "vllm bench serve with its speculation part",
        "============ Serving Benchmark Result ============\n\
         Successful requests:                     80\n\
         Failed requests:                         0\n\
         Maximum request concurrency:             8\n\
         Benchmark duration (s):                  30.00\n\
         Total input tokens:                      81920\n\
         Total generated tokens:                  10240\n\
         Request throughput (req/s):              2.67\n\
         Output token throughput (tok/s):         341.33\n\
         Peak output token throughput (tok/s):    420.00\n\
         Peak concurrent requests:                16.00\n\
         Total token throughput (tok/s):          3072.00\n\
         ---------------Time to First Token----------------\n\
         Mean TTFT (ms):                          210.50\n\
         -----Time per Output Token (excl. 1st token)------\n\
         Mean TPOT (ms):                          21.30\n\
         ---------------Speculative Decoding---------------\n\
         Acceptance rate (%):                     47.65\n\
         Acceptance length:                       2.43\n\
         Drafts:                                  5000\n\
         Per-position acceptance (%):\n  Position 0:                            72.10\n\
         ==================================================\n",
        &[
            ("concurrency", N(8.0)),
            ("output_tok_s", N(341.33)),
            ("requests_per_s", N(2.67)),
            ("mean_tpot_ms", N(21.3)),
            ("mean_ttft_ms", N(210.5)),
            ("accept_length", N(2.43)),
            ("bench_held_tokens", N(1088.0)),
        ],
    ),
    (
        "SGLang's offline bench",
        "====== Offline Throughput Benchmark Result =======\n\
         Backend:                                 engine\n\
         Successful requests:                     10\n\
         Total input tokens:                      1972\n\
         Total generated tokens:                  2784\n\
         Last generation throughput (tok/s):      33.66\n\
         Request throughput (req/s):              3.16\n\
         Input token throughput (tok/s):          623.90\n\
         Output token throughput (tok/s):         880.80\n\
         Total token throughput (tok/s):          1504.70\n\
         ==================================================\n",
        &[("output_tok_s", N(880.8)), ("concurrency", N(10.0))],
    ),
    (
        "sglang.bench_one_batch",
        "Benchmark ...\nPrefill. latency: 0.13116 s, throughput:   7807.74 token/s\n\
         Decode.  latency: 0.00920 s, throughput:    869.57 token/s\n\
         Decode.  median latency: 0.00891 s, median throughput:    897.87 token/s\n\
         Total. latency:  1.243 s, throughput:    903.12 token/s\n",
        &[("output_tok_s", N(897.87)), ("concurrency", N(8.0))],
    ),
    (
        "sglang.bench_one_batch_server, two batches",
        "batch size: 16\ninput_len: 1024\nlatency: 6.25 s\noutput throughput: 700.00 tok/s\nacc length: 2.50\n\
         batch size: 32\nlatency: 7.25 s\noutput throughput: 1100.00 tok/s\nacc length: 2.40\n",
        &[
            ("concurrency", N(32.0)),
            ("output_tok_s", N(1100.0)),
            ("accept_length", N(2.4)),
            ("bench_points", N(2.0)),
        ],
    ),
    (
        "trtllm-bench of 2025",
        "Model:                  meta-llama/Llama-3.1-8B-Instruct\nTensorRT-LLM Version:   0.21.0rc0\n\
         = REQUEST DETAILS\nNumber of requests:             100\n\
         Number of concurrent requests:  94.6050\n\
         Average Input Length (tokens):  128.0000\nAverage Output Length (tokens): 128.0000\n\
         TP Size:                2\nPP Size:                1\nMax Runtime Batch Size: 3840\n\
         Request Throughput (req/sec):                     86.5373\n\
         Total Output Throughput (tokens/sec):             11076.7700\n\
         Total Token Throughput (tokens/sec):              22153.5399\n\
         Average time-to-first-token [TTFT] (ms):   162.6706\n\
         Average time-per-output-token [TPOT] (ms): 7.3272\n",
        &[
            ("output_tok_s", N(11076.77)),
            ("real_concurrency", N(94.605)),
            ("requests_per_s", N(86.5373)),
            ("mean_tpot_ms", N(7.3272)),
            ("tp", N(2.0)),
            ("model", T("meta-llama/Llama-3.1-8B-Instruct")),
            ("engine_version", T("0.21.0rc0")),
            ("bench_held_tokens", N(192.0)),
        ],
    ),
    (
        "trtllm-bench of 2024",
        "TensorRT-LLM Version:   0.12.0\nTP Size:                1\n\
         Token Throughput (tokens/sec):  23405.927228471104\n\
         Request Throughput (req/sec):   182.8588064724305\n",
        &[("output_tok_s", N(23405.927228471104)), ("concurrency", No)],
    ),
    (
        "vllm bench throughput",
        "Throughput: 7.21 requests/s, 2970.21 total tokens/s, 1483.57 output tokens/s\n\
         Total num prompt tokens:  206157\nTotal num output tokens:  205770\n",
        &[
            ("output_tok_s", N(1483.57)),
            ("requests_per_s", N(7.21)),
            ("concurrency", No),
        ],
    ),
    (
        "its first form counts both: no output",
        "Throughput: 7.21 requests/s, 2970.21 tokens/s\n",
        &[("output_tok_s", No)],
    ),
    (
        "vllm bench latency",
        "Namespace(input_len=32, output_len=128, batch_size=8, n=1, num_iters=30)\n\
         Avg latency: 1.2800 seconds\n10% percentile latency: 1.27 seconds\n",
        &[("output_tok_s", N(800.0)), ("concurrency", N(8.0))],
    ),
    (
        "GuideLLM 0.4 and later",
        "\u{2139} Request Latency Statistics (Completed Requests)\n\
         |===========|=========|========|======|======|=====|=====|=====|=====|\n\
         | Benchmark | Request Latency || TTFT       || ITL      || TPOT     ||\n\
         | Strategy  | Sec             || ms         || ms       || ms       ||\n\
         |           | Mdn     | p95    | Mdn  | p95  | Mdn | p95 | Mdn | p95 |\n\
         | concurrent | 0.4     | 0.5    | 23.2 | 30.9 | 7.8 | 8.0 | 8.1 | 8.4 |\n\
         \u{2139} Server Throughput Statistics\n\
         | Benchmark | Requests               |||| Input Tokens || Output Tokens || Total Tokens ||\n\
         | Strategy  | Per Sec   || Concurrency || Per Sec      || Per Sec       || Per Sec      ||\n\
         |           | Mdn | Mean | Mdn   | Mean | Mdn   | Mean  | Mdn   | Mean   | Mdn   | Mean  |\n\
         | concurrent | 9.0 | 9.2  | 4.0   | 3.9  | 450.9 | 452.4 | 503.4 | 489.7  | 997.6 | 941.1 |\n",
        &[
            ("output_tok_s", N(489.7)),
            ("concurrency", N(4.0)),
            ("requests_per_s", N(9.2)),
            ("median_ttft_ms", N(23.2)),
            ("median_itl_ms", N(7.8)),
            ("median_tpot_ms", N(8.1)),
        ],
    ),
    (
        "GuideLLM at a rate: no load is told",
        "Server Throughput Statistics\n\
         | constant  | 5.0 | 5.0  | 1.0   | 0.6  | 250.1 | 271.8 | 457.4  | 270.7 | 463.2 | 541.4 |\n",
        &[("output_tok_s", N(270.7)), ("concurrency", No)],
    ),
    (
        "the warm-up of sglang.bench_one_batch_server is no result",
        "======== Warmup Begin ========\nbatch size: 16\ninput_len: 1024\noutput_len: 16\noutput throughput: \
         1477.75 tok/s\n======== Warmup End   ========\n\
         batch size: 16\ninput_len: 1024\noutput_len: 1024\nlatency: 12.55 s\ninput throughput: 50307.77 tok/s\n\
         output throughput: 1340.45 tok/s\nlast_ttft: 0.33 s\nlast generation throughput: 1337.14 tok/s\n",
        &[
            ("bench_points", N(1.0)),
            ("output_tok_s", N(1340.45)),
            ("bench_held_tokens", N(1536.0)),
        ],
    ),
    (
        "trtllm-bench's report",
        "{\"engine\": {\"model\": \"meta-llama/Llama-3.1-8B\", \"backend\": \"Pytorch\"}, \"world_info\": \
         {\"tp_size\": 1}, \"request_info\": {\"num_requests\": 100, \"avg_num_concurrent_requests\": 31.8, \
         \"avg_input_length\": 1024.0, \"avg_output_length\": 256.0}, \"performance\": {\"total_latency_ms\": \
         9000.0, \"request_throughput_req_s\": 11.1, \"system_output_throughput_tok_s\": 2844.0, \
         \"system_total_throughput_tok_s\": 14220.0}, \"streaming_metrics\": {\"avg_ttft_ms\": 210.0, \
         \"avg_tpot_ms\": 10.4}, \"decoding_stats\": {\"acceptance_length_percentiles\": {\"average\": 2.41}}}",
        &[
            ("output_tok_s", N(2844.0)),
            ("real_concurrency", N(31.8)),
            ("mean_tpot_ms", N(10.4)),
            ("accept_length", N(2.41)),
            ("model", T("meta-llama/Llama-3.1-8B")),
        ],
    ),
    (
        "AIPerf's CSV",
        "Metric,avg,min,max,p99,p90,p75,std\nTime to First Token (ms),18.26,11.22,106.32,68.82,27.76,16.62,12.07\n\
         Inter Token Latency (ms),11.23,8.80,13.17,12.48,11.73,11.37,0.45\n\
         Output Token Throughput Per User (tokens/sec/user),89.23,75.93,113.60,102.28,90.91,90.29,3.70\n\n\
         Metric,Value\nOutput Token Throughput (tokens/sec),\"10,944.03\"\nRequest Throughput (requests/sec),255.54\n",
        &[
            ("output_tok_s", N(10944.03)),
            ("mean_ttft_ms", N(18.26)),
            ("requests_per_s", N(255.54)),
        ],
    ),
    (
        "llama-benchy",
        "| model | test | t/s (total) | t/s (req) | peak t/s | ttfr (ms) |\n\
         |:------|-----:|------------:|----------:|---------:|----------:|\n\
         | q-8b  | pp2048 (c4) | 3524.53 \u{b1} 7.13 | 1485.85 \u{b1} 858.68 |  | 300.1 |\n\
         | q-8b  | tg128 (c4) | 210.10 \u{b1} 0.80 | 52.50 \u{b1} 0.20 | 220.0 |  |\n",
        &[("output_tok_s", N(210.1)), ("concurrency", N(4.0))],
    ),
];

#[test]
fn benches_print_throughput_load_and_latency_in_these_forms() {
    check(FORMS);
}

#[test]
fn an_average_load_of_requests_sent_at_once_is_a_load_and_a_rate_is_none() {
    let at_once = "Number of concurrent requests:  94.6050\n\
        Total Output Throughput (tokens/sec): 11076.77\n";
    assert_eq!(
        sweep_from_text(at_once, "b").ok(),
        Some(vec![(95.0, 11076.77)])
    );
    let paced = "============ Serving Benchmark Result ============\nTraffic request rate: 4.0\n\
        Successful requests: 30\nConcurrency: 5.31\nOutput token throughput (tok/s): 900.0\n";
    assert!(sweep_from_text(paced, "b").is_err_and(|e| e.to_string().contains("b@USERS")));
}
