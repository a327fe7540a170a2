//! Commands beside a log, and the logs of other engines.

use super::Is::{N, No, T};
use super::{Form, check};

const COMMANDS: &[Form] = &[
    (
        "vllm serve, with its speculation as JSON",
        "$ vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 32768 \\\n  --max-num-seqs 64 \
         --speculative-config '{\"method\": \"eagle3\", \"model\": \"me/q-eagle3\", \"num_speculative_tokens\": \
         3}' --kv-cache-dtype fp8\n\
         INFO 10-14 19:02:31 Available KV cache memory: 10.62 GiB\n",
        &[
            ("model", T("Qwen/Qwen3-32B")),
            ("tp", N(2.0)),
            ("max_model_len", N(32768.0)),
            ("max_running_requests", N(64.0)),
            ("spec_tokens", N(3.0)),
            ("spec_algorithm", T("eagle3")),
            ("draft_model", T("me/q-eagle3")),
            ("kv_dtype", T("fp8")),
        ],
    ),
    (
        "EngineArgs of a script",
        "EngineArgs(model='Qwen/Qwen3-8B', tensor_parallel_size=1, gpu_memory_utilization=0.8, \
         max_model_len=8192, speculative_config=None)\n\
         INFO 10-14 19:02:31 Available KV cache memory: 10.62 GiB\n",
        &[
            ("model", T("Qwen/Qwen3-8B")),
            ("gpu_memory_utilization", N(0.8)),
            ("spec_tokens", No),
        ],
    ),
    (
        "sglang.launch_server",
        "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4 --mem-fraction-static 0.85 \
         --max-running-requests 64 --chunked-prefill-size 4096 --context-length 32768 \
         --speculative-algorithm EAGLE3 --speculative-draft-model-path me/q-eagle3 \
         --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n",
        &[
            ("model", T("Qwen/Qwen3-32B")),
            ("tp", N(4.0)),
            ("mem_fraction", N(0.85)),
            ("max_running_requests", N(64.0)),
            ("chunked_prefill_size", N(4096.0)),
            ("context_len", N(32768.0)),
            ("spec_steps", N(3.0)),
            ("draft_model", T("me/q-eagle3")),
            ("kv_tokens", No),
        ],
    ),
];

#[test]
fn commands_say_what_a_log_cut_short_does_not() {
    check(COMMANDS);
}

const OTHERS: &[Form] = &[
    (
        "TensorRT-LLM, engine runtime",
        "[TensorRT-LLM] TensorRT-LLM version: 0.17.0\n\
         [TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 93.10 GiB, \
         available: 85.57 GiB\n\
         [TensorRT-LLM][INFO] Number of tokens per block: 64.\n\
         [TensorRT-LLM][INFO] [MemUsageChange] Allocated 77.02 GiB for max tokens in paged KV cache (315488).\n",
        &[
            ("engine", T("trtllm")),
            ("engine_version", T("0.17.0")),
            ("kv_gib", N(77.02)),
            ("kv_tokens", N(315488.0)),
            ("total_gib", N(93.1)),
            ("free_after_gib", N(85.57)),
            ("block_size", N(64.0)),
        ],
    ),
    (
        "TensorRT-LLM, PyTorch backend",
        "TensorRT-LLM engine args: {'tensor_parallel_size': 8, 'pipeline_parallel_size': 1, \
         'max_batch_size': 256, 'max_num_tokens': 16384, 'max_seq_len': 131072}\n\
         [01/16/2026-06:20:15] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): \
         91.46 GiB, available KV cache memory when calculating max tokens: 41.11 GiB, fraction is set 0.85, \
         kv size is 35136. device total memory 139.81 GiB\n\
         [01/16/2026-06:20:17] [TRT-LLM] [RANK 0] [I] iter = 1, host_step_time = 62.5ms, \
         num_scheduled_requests: 4, states = {'num_ctx_requests': 4, 'num_ctx_tokens': 4096, \
         'num_generation_tokens': 0}\n\
         [01/16/2026-06:20:17] [TRT-LLM] [RANK 0] [I] iter = 2, host_step_time = 10.0ms, \
         num_scheduled_requests: 4, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, \
         'num_generation_tokens': 4}\n\
         [01/16/2026-06:20:17] [TRT-LLM] [RANK 0] [I] iter = 3, host_step_time = 10.0ms, \
         num_scheduled_requests: 4, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, \
         'num_generation_tokens': 4}\n",
        &[
            ("tp", N(8.0)),
            ("context_len", N(131072.0)),
            ("max_running_requests", N(256.0)),
            ("kv_budget_gib", N(41.11)),
            ("kv_fraction_of_free", N(0.85)),
            ("total_gib", N(139.81)),
            ("kv_gib", No),
            ("gen_tok_s", N(400.0)),
            ("mem_fraction", No),
        ],
    ),
    (
        "llama.cpp: a server on two cards",
        "ggml_cuda_init: found 2 CUDA devices:\n  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, \
         VMM: yes\n  Device 1: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes\n\
         print_info: general.name     = Qwen3 32B\n\
         print_info: file type   = Q4_K - Medium\n\
         load_tensors: offloaded 65/65 layers to GPU\n\
         load_tensors:        CUDA0 model buffer size =  9500.00 MiB\n\
         load_tensors:        CUDA1 model buffer size =  9100.00 MiB\n\
         llama_context: n_ctx         = 32768\n\
         llama_kv_cache:      CUDA0 KV buffer size =  4096.00 MiB\n\
         llama_kv_cache:      CUDA1 KV buffer size =  4096.00 MiB\n\
         llama_kv_cache: size = 8192.00 MiB ( 32768 cells,  64 layers,  1/1 seqs), K (f16): 4096.00 MiB, V \
         (f16): 4096.00 MiB\n\
         srv          init: initializing slots, n_slots = 1\n\
         slot print_timing: id  0 | task 0 |\n\
         prompt eval time =    6365.00 ms /  8734 tokens (    0.73 ms per token,  1372.19 tokens per second)\n\
         \x20      eval time =     921.57 ms /    38 tokens (   24.25 ms per token,    41.23 tokens per second)\n\
         \x20     total time =    7286.58 ms /  8772 tokens\n\
         draft acceptance rate = 0.78788 (   26 accepted /    33 generated)\n\
         statistics draft-mtp: #calls(b,g,a) = 1 12 12, #gen drafts = 12, #acc drafts = 11, #gen tokens = 33, \
         #acc tokens = 26, dur(b,g,a) = 0.009, 95.186, 0.056 ms\n",
        &[
            ("engine", T("llamacpp")),
            ("gpu", T("NVIDIA GeForce RTX 3090")),
            ("gpus", N(2.0)),
            ("model", T("Qwen3 32B")),
            ("quant", T("q4_k")),
            ("weights_gib", N(18600.0 / 1024.0)),
            ("kv_gib", N(8.0)),
            ("kv_tokens", N(32768.0)),
            ("context_len", N(32768.0)),
            ("max_running_requests", N(1.0)),
            ("gen_tok_s", N(41.23)),
            ("accept_length", N(1.0 + 26.0 / 12.0)),
        ],
    ),
    (
        "llama.cpp of 2026 prints the length itself",
        "119.50.749.183 I slot print_timing: id  0 | task 32843 | draft acceptance = 0.83432 (  282 accepted / \
         338 generated), mean acceptance length =  2.67, acceptance rate per position = (0.893, 0.775)\n\
         119.50.749.183 I slot print_timing: id  0 | task 32843 | statistics draft-mtp: #calls(b,g,a) = 229 \
         22393 22393, #gen drafts = 22393, #acc drafts = 19662, #gen tokens = 44781, #acc tokens = 37046, \
         #mean acc len = 2.65, #acc rate/pos = (0.878, 0.776)\n",
        &[
            ("accept_length", N(2.65)),
            ("spec_tokens", N(2.0)),
            ("gen_tok_s", No),
        ],
    ),
    (
        "llama.cpp's command line",
        "llama_perf_context_print: prompt eval time =     120.00 ms /    12 tokens (   10.00 ms per token,   \
         100.00 tokens per second)\n\
         llama_perf_context_print:        eval time =    1234.56 ms /   127 runs   (    9.72 ms per token,   \
         102.87 tokens per second)\n",
        &[("engine", T("llamacpp")), ("gen_tok_s", N(102.87))],
    ),
];

#[test]
fn tensorrt_llm_and_llama_cpp_print_theirs_in_these_forms() {
    check(OTHERS);
}
