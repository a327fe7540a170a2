//! Server logs.

use super::Is::{N, No, T};
use super::{Form, check};

const SGLANG: &[Form] = &[
    (
        "0.2 to 0.3: the rank as [gpu=0]",
        "[gpu=0] Load weight begin. avail mem=78.58 GB\n\
         [gpu=0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.50 GB\n\
         [gpu=0] Memory pool end. avail mem=8.40 GB\n\
         [gpu=0] max_total_num_tokens=441816, max_prefill_tokens=16384, max_running_requests=4097, \
         context_len=131072\n\
         [gpu=0] Decode batch. #running-req: 1, #token: 100, token usage: 0.00, gen throughput \
         (token/s): 93.10, #queue-req: 0\n",
        &[
            ("free_before_gib", N(78.58)),
            ("free_after_gib", N(63.5)),
            ("weights_gib", N(15.08)),
            ("free_after_pool_gib", N(8.4)),
            ("kv_tokens", N(441816.0)),
            ("max_running_requests", N(4097.0)),
            ("context_len", N(131072.0)),
            ("chunked_prefill_size", No),
            ("kv_gib", No),
        ],
    ),
    (
        "2026: weight format at the load, dtype in the pool line, graphs by phase",
        "[2026-08-28 21:34:40 TP0] Load weight begin. avail mem=139.20 GB\n\
         [2026-08-28 21:34:48 TP0] Load weight end. elapsed=42.37 s, type=DeepseekV3ForCausalLM, \
         quant=fp8, fmt=e4m3, avail mem=65.77 GB, mem usage=73.43 GB.\n\
         [2026-08-28 21:34:48 TP0] Using KV cache dtype: torch.float8_e4m3fn\n\
         [2026-08-28 21:34:49 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 159552, \
         K size: 1.83 GB, V size: 1.83 GB\n\
         [2026-08-28 21:34:49 TP0] Memory pool end. avail mem=26.30 GB\n\
         [2026-08-28 21:34:50 TP0] Capture target decode CUDA graph begin. backend=full, \
         num_tokens_per_req=1, bs=[1, 2, 4], avail mem=26.27 GB\n\
         [2026-08-28 21:34:51 TP0] Capture target decode CUDA graph end. elapsed=1.61 s, mem \
         usage=0.43 GB, avail mem=25.84 GB.\n\
         [2026-08-28 21:34:53 TP0] Capture draft extend CUDA graph end. elapsed=1.61 s, mem \
         usage=0.11 GB, avail mem=25.73 GB.\n\
         [2026-08-28 21:34:54] max_total_num_tokens=159552, chunked_prefill_size=8192, \
         context_len=163840, available_gpu_mem=25.73 GB\n",
        &[
            ("quant", T("fp8")),
            ("kv_dtype", T("fp8_e4m3fn")),
            ("kv_gib", N(3.66)),
            ("kv_tokens", N(159552.0)),
            ("graph_gib", N(0.54)),
            ("free_when_ready_gib", N(25.73)),
            ("max_running_requests", No),
            ("accept_length", No),
        ],
    ),
    (
        "2026: a label between the stamp and the pool, target and draft apart",
        "[2026-09-01 10:00:00 TP0] Load weight begin. avail mem=94.00 GB\n\
         [2026-09-01 10:00:10 TP0] Load weight end. elapsed=10.00 s, type=Qwen3ForCausalLM, avail \
         mem=60.00 GB, mem usage=34.00 GB.\n\
         [2026-09-01 10:00:11 TP0] Load weight begin. avail mem=60.00 GB\n\
         [2026-09-01 10:00:12 TP0] Load weight end. elapsed=1.00 s, type=LlamaForCausalLMEagle3, \
         avail mem=58.20 GB, mem usage=1.80 GB.\n\
         [2026-09-01 10:00:13 TP0] [target] KV Cache is allocated. dtype: torch.bfloat16, #tokens: \
         200000, K size: 12.21 GB, V size: 12.21 GB\n\
         [2026-09-01 10:00:13 TP0] Memory pool end. avail mem=33.50 GB\n\
         [2026-09-01 10:00:13 TP0] [draft] KV Cache is allocated. dtype: torch.bfloat16, #tokens: \
         200000, K size: 0.19 GB, V size: 0.19 GB\n\
         [2026-09-01 10:00:13 TP0] Memory pool end. avail mem=33.10 GB\n",
        &[
            ("weights_gib", N(34.0)),
            ("draft_weights_gib", N(1.8)),
            ("free_after_gib", N(58.2)),
            ("kv_gib", N(24.42)),
            ("draft_kv_gib", N(0.38)),
            ("free_after_pool_gib", N(33.1)),
        ],
    ),
    (
        "hybrids: state with its drafted copies, then the pool",
        "[2025-11-20 10:00:00 TP0] Load weight begin. avail mem=78.00 GB\n\
         [2025-11-20 10:00:10 TP0] Load weight end. type=Qwen3NextForCausalLM, dtype=torch.bfloat16, \
         avail mem=40.00 GB, mem usage=38.00 GB.\n\
         [2025-11-20 10:00:11 TP0] Mamba Cache is allocated. max_mamba_cache_size: 32, conv_state \
         size: 0.09GB, ssm_state size: 4.62GB intermediate_ssm_state_cache size: 2.31GB \
         intermediate_conv_window_cache size: 0.05GB\n\
         [2025-11-20 10:00:11 TP0] KV Cache is allocated. #tokens: 274934, K size: 3.15 GB, V size: \
         3.15 GB\n\
         [2025-11-20 10:00:11 TP0] Decode batch, #running-req: 2, #full token: 4096, full token \
         usage: 0.01, mamba num: 4, mamba usage: 0.12, accept len: 2.50, accept rate: 0.62, cuda \
         graph: True, gen throughput (token/s): 120.00, #queue-req: 0, \n",
        &[
            ("mamba_state_gib", N(7.07)),
            ("kv_gib", N(6.3)),
            ("held_tokens_per_request", N(2048.0)),
            ("accept_length", N(2.5)),
        ],
    ),
    (
        "sliding windows: both pools in one line",
        "[2025-09-01 10:00:10 TP0] Load weight end. type=GptOssForCausalLM, dtype=torch.bfloat16, \
         avail mem=60.00 GB, mem usage=12.00 GB.\n\
         [2025-09-01 10:00:11 TP0] SWAKVPool mem usage: 45.78 GB, swa size: 800000, full size: 1000000\n\
         [2025-09-01 10:00:11 TP0] Memory pool end. avail mem=12.10 GB\n",
        &[
            ("kv_gib", N(45.78)),
            ("free_before_gib", N(72.0)),
            ("weights_gib", N(12.0)),
        ],
    ),
    (
        "DeepSeek-V4: a budget, no pool line",
        "[2026-05-15 08:39:36 TP4] Load weight begin. avail mem=93.56 GB\n\
         [2026-05-15 08:39:53 TP0] DSv4 memory calculation: bytes_per_full_token=15955.85, \
         available_bytes=45.78 GB, full_token=3080960\n\
         [2026-05-15 08:39:53 TP0] Memory pool end. avail mem=10.18 GB\n\
         [2026-05-15 08:40:32 TP0] Capture cuda graph end. Time elapsed: 54.61 s. mem usage=1.93 GB. \
         avail mem=8.16 GB.\n\
         [2026-05-15 08:40:32 TP0] max_total_num_tokens=3080960, chunked_prefill_size=8192, \
         max_prefill_tokens=16384, max_running_requests=256, context_len=1048576, \
         available_gpu_mem=8.16 GB\n",
        &[
            ("kv_budget_gib", N(45.78)),
            ("kv_tokens", N(3080960.0)),
            ("graph_gib", N(1.93)),
            ("kv_gib", No),
        ],
    ),
    (
        "sized again after capture",
        "[2026-09-10 10:00:00 TP0] Load weight begin. avail mem=94.00 GB\n\
         [2026-09-10 10:00:30 TP0] Load weight end. elapsed=30.00 s, type=Qwen3ForCausalLM, avail \
         mem=60.00 GB, mem usage=34.00 GB.\n\
         [2026-09-10 10:00:41 TP0] Post-capture KV sizing: max_total_num_tokens=310000, free memory=3.10 GB\n\
         [2026-09-10 10:00:42 TP0] max_total_num_tokens=310000, chunked_prefill_size=4096, \
         max_prefill_tokens=16384, max_running_requests=128, context_len=40960, \
         available_gpu_mem=3.10 GB\n",
        &[
            ("kv_tokens", N(310000.0)),
            ("max_running_requests", N(128.0)),
        ],
    ),
    (
        "ServerArgs alone",
        "ServerArgs(model_path='Qwen/Qwen3-32B', tokenizer_path='Qwen/Qwen3-32B', tp_size=4, dp_size=1, \
         ep_size=1, quantization='fp8', kv_cache_dtype='fp8_e5m2', max_running_requests=64, \
         speculative_algorithm=None, speculative_num_steps=5, speculative_eagle_topk=8, \
         speculative_num_draft_tokens=64, disable_cuda_graph=False)\n",
        &[
            ("engine", T("sglang")),
            ("model", T("Qwen/Qwen3-32B")),
            ("tp", N(4.0)),
            ("quant", T("fp8")),
            ("kv_dtype", T("fp8_e5m2")),
            ("max_running_requests", N(64.0)),
            ("spec_steps", No),
            ("spec_algorithm", No),
            ("mem_fraction", No),
        ],
    ),
    (
        "the dict form of 2026",
        "[2026-09-11 23:34:02] server_args={'model_path': '/models/X-Flash', 'tp_size': 2, \
         'mem_fraction_static': 0.83, 'context_length': 32768, 'speculative_algorithm': 'EAGLE3', \
         'speculative_draft_model_path': 'me/x-eagle3', 'speculative_num_steps': 3, \
         'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 4, 'max_running_requests': None}\n",
        &[
            ("mem_fraction", N(0.83)),
            ("tp", N(2.0)),
            ("context_len", N(32768.0)),
            ("spec_algorithm", T("EAGLE3")),
            ("spec_steps", N(3.0)),
            ("spec_draft_tokens", N(4.0)),
            ("max_running_requests", No),
        ],
    ),
    (
        "refusals by version",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: \
         mem_fraction_static=0.55\n",
        &[
            ("error_kind", T("no-memory-for-kv")),
            ("mem_fraction", N(0.55)),
        ],
    ),
    (
        "a decode node's lines",
        "[2025-09-11 10:26:22 DP0 TP0 EP0] Decode batch. #running-req: 4, #token: 8192, token usage: \
         0.10, accept len: 2.80, pre-allocated usage: 0.05, #retracted-req: 0, cuda graph: True, gen \
         throughput (token/s): 300.00, #queue-req: 0, \n",
        &[
            ("accept_length", N(2.8)),
            ("held_tokens_per_request", N(2048.0)),
            ("retracted_requests", No),
        ],
    ),
];

const VLLM: &[Form] = &[
    (
        "0.6.4 to 0.6.6: the budget in one line",
        "INFO 12-20 10:00:00 model_runner.py:1097] Loading model weights took 14.9888 GB\n\
         INFO 12-20 10:00:05 worker.py:241] Memory profiling takes 1.20 seconds\n\
         INFO 12-20 10:00:05 worker.py:241] the current vLLM instance can use total_gpu_memory \
         (79.10GiB) x gpu_memory_utilization (0.90) = 71.19GiB\n\
         INFO 12-20 10:00:05 worker.py:241] model weights take 14.99GiB; non_torch_memory takes \
         0.09GiB; PyTorch activation peak memory takes 1.21GiB; the rest of the memory reserved for \
         KV Cache is 54.90GiB.\n\
         INFO 12-20 10:00:05 gpu_executor.py:76] # GPU blocks: 28108, # CPU blocks: 2048\n\
         INFO 12-20 10:00:05 gpu_executor.py:80] Maximum concurrency for 131072 tokens per request: 3.43x\n\
         INFO 12-20 10:00:20 model_runner.py:1518] Graph capturing finished in 15 secs, took 0.85 GiB\n",
        &[
            ("weights_gib", N(14.9888)),
            ("kv_gib", N(54.9)),
            ("gpu_memory_utilization", N(0.9)),
            ("gpu_blocks", N(28108.0)),
            ("kv_tokens", N(449728.0)),
            ("max_concurrency", N(3.43)),
            ("max_model_len", N(131072.0)),
            ("graph_gib", N(0.85)),
        ],
    ),
    (
        "V1: workers that print their own pools",
        "(Worker_TP0 pid=10) INFO 10-01 10:00:00 [gpu_model_runner.py:2653] Model loading took 18.4 GiB \
         and 30.1 seconds\n\
         (Worker_TP1 pid=11) INFO 10-01 10:00:00 [gpu_model_runner.py:2653] Model loading took 18.4 GiB \
         and 30.2 seconds\n\
         (Worker_TP0 pid=10) INFO 10-01 10:00:09 [gpu_worker.py:298] Available KV cache memory: 20.11 GiB\n\
         (Worker_TP1 pid=11) INFO 10-01 10:00:09 [gpu_worker.py:298] Available KV cache memory: 20.35 GiB\n\
         (EngineCore_DP0 pid=9) INFO 10-01 10:00:09 [kv_cache_utils.py:1087] GPU KV cache size: 164,720 \
         tokens\n\
         (EngineCore_DP0 pid=9) INFO 10-01 10:00:09 [kv_cache_utils.py:1091] Maximum concurrency for \
         40,960 tokens per request: 4.02x\n\
         (EngineCore_DP0 pid=9) INFO 10-01 10:00:09 [kv_cache_utils.py:1087] GPU KV cache size: 166,688 \
         tokens\n\
         (EngineCore_DP0 pid=9) INFO 10-01 10:00:09 [kv_cache_utils.py:1091] Maximum concurrency for \
         40,960 tokens per request: 4.07x\n",
        &[
            ("kv_gib", N(20.11)),
            ("kv_tokens", N(164720.0)),
            ("max_concurrency", N(4.02)),
            ("max_model_len", N(40960.0)),
            ("weights_gib", N(18.4)),
        ],
    ),
    (
        "2026: capacity in one line, graphs as a pool, what is consumed is not the weights",
        "(EngineCore pid=5) INFO 09-04 10:59:40 [gpu_model_runner.py:6133] Model loading took 14.99 GiB \
         memory and 3.20 seconds\n\
         (EngineCore pid=5) INFO 09-04 10:59:50 [gpu_worker.py:470] Available KV cache memory: 107.69 GiB\n\
         (EngineCore pid=5) INFO 09-04 10:59:50 [kv_cache_utils.py:1700] GPU KV cache size: 855,488 \
         tokens, Maximum concurrency for 10,240 tokens per request: 83.54x\n\
         (EngineCore pid=5) INFO 09-04 11:00:17 [gpu_worker.py:792] CUDA graph pool memory: 0.25 GiB \
         (actual), 0.38 GiB (estimated), difference: 0.12 GiB (50.0%).\n\
         (EngineCore pid=5) INFO 09-04 11:00:17 [gpu_worker.py:800] Free memory on device \
         (138.30/139.80 GiB) on startup. Desired GPU memory utilization is (0.9, 125.82 GiB). Actual \
         usage is 16.10 GiB for consumed memory (weights + non-torch), 1.90 GiB for peak activation, \
         and 0.25 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with \
         `--kv-cache-memory=115316786176` (107.4 GiB) to fit into requested memory. Current kv cache \
         memory in use is 107.69 GiB.\n",
        &[
            ("weights_gib", N(14.99)),
            ("kv_gib", N(107.69)),
            ("kv_tokens", N(855488.0)),
            ("max_concurrency", N(83.54)),
            ("max_model_len", N(10240.0)),
            ("graph_gib", N(0.25)),
            ("free_before_gib", N(138.3)),
            ("gpu_memory_utilization", N(0.9)),
        ],
    ),
    (
        "the consumed memory alone is no weight",
        "INFO 09-04 11:00:17 [gpu_worker.py:800] Free memory on device (138.30/139.80 GiB) on startup. \
         Desired GPU memory utilization is (0.9, 125.82 GiB). Actual usage is 16.10 GiB for consumed \
         memory (weights + non-torch), 1.90 GiB for peak activation, and 0.25 GiB for CUDAGraph memory. \
         Current kv cache memory in use is 107.69 GiB.\n",
        &[
            ("weights_gib", No),
            ("kv_gib", N(107.69)),
            ("graph_gib", N(0.25)),
        ],
    ),
    (
        "a pool given in bytes",
        "(EngineCore_DP0 pid=7) INFO 03-10 10:00:00 [gpu_worker.py:311] Initial free memory 44.16 GiB, \
         reserved 5.50 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped \
         memory profiling. This does not respect the gpu_memory_utilization config.\n\
         (EngineCore_DP0 pid=7) INFO 03-10 10:00:00 [kv_cache_utils.py:1305] GPU KV cache size: 48,064 \
         tokens\n",
        &[
            ("kv_gib", N(5.5)),
            ("free_before_gib", N(44.16)),
            ("kv_tokens", N(48064.0)),
            ("gpu_memory_utilization", No),
        ],
    ),
    (
        "debug level",
        "DEBUG 08-06 10:17:28 [gpu_worker.py:265] Initial free memory: 43.82 GiB; Requested memory: 0.90 \
         (util), 39.88 GiB\n\
         DEBUG 08-06 10:17:28 [gpu_worker.py:278] Memory profiling takes 7.26 seconds. Total non KV cache \
         memory: 2.78GiB; torch peak memory increase: 0.45GiB; non-torch forward increase memory: \
         0.02GiB; weights memory: 2.32GiB.\n\
         INFO 08-06 10:17:28 [gpu_worker.py:279] Available KV cache memory: 37.10 GiB\n",
        &[
            ("free_before_gib", N(43.82)),
            ("gpu_memory_utilization", N(0.9)),
            ("weights_gib", N(2.32)),
            ("kv_gib", N(37.1)),
        ],
    ),
    (
        "0.8: acceptance as counts, the depth among the arguments",
        "INFO 04-10 10:00:00 [api_server.py:1042] vLLM API server version 0.8.5\n\
         INFO 04-10 10:00:00 [api_server.py:1043] args: Namespace(model='meta-llama/Llama-3.1-8B-Instruct', \
         tensor_parallel_size=1, speculative_config={'method': 'eagle', 'model': 'yuhuili/EAGLE-LLaMA3.1', \
         'num_speculative_tokens': 4}, max_num_seqs=256)\n\
         INFO 04-10 10:05:00 [metrics.py:88] SpecDecoding metrics: Draft acceptance rate: 45.0%, \
         Accepted: 900 tokens, Drafted: 2000 tokens\n",
        &[
            ("accept_length", N(2.8)),
            ("spec_tokens", N(4.0)),
            ("draft_model", T("yuhuili/EAGLE-LLaMA3.1")),
            ("model", T("meta-llama/Llama-3.1-8B-Instruct")),
            ("engine_version", T("0.8.5")),
        ],
    ),
    (
        "counts without a depth say no length",
        "INFO 04-10 10:05:00 [metrics.py:88] SpecDecoding metrics: Draft acceptance rate: 45.0%, \
         Accepted: 900 tokens, Drafted: 2000 tokens\n",
        &[("accept_length", No)],
    ),
    (
        "throughput among the acceptance",
        "(APIServer pid=1) INFO 12-10 10:05:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance \
         length: 2.31, Accepted throughput: 65.50 tokens/s, Drafted throughput: 150.00 tokens/s, \
         Accepted: 655 tokens, Drafted: 1500 tokens, Per-position acceptance rate: 0.680, 0.400, 0.230, \
         Avg Draft acceptance rate: 43.7%\n",
        &[("accept_length", N(2.31)), ("spec_tokens", N(3.0))],
    ),
    (
        "other devices",
        "INFO 03-10 10:00:00 [kv_cache_utils.py:1305] XPU KV cache size: 148,064 tokens\n\
         INFO 03-10 10:00:00 [kv_cache_utils.py:1310] Maximum concurrency for 8,192 tokens per request: \
         18.07x\n",
        &[("kv_tokens", N(148064.0)), ("max_concurrency", N(18.07))],
    ),
    (
        "parallelism and graphs among the arguments",
        "(APIServer pid=1) INFO 10-14 19:02:01 [utils.py:233] non-default args: {'model_tag': \
         'Qwen/Qwen3-32B', 'model': 'Qwen/Qwen3-32B', 'tensor_parallel_size': 2, \
         'pipeline_parallel_size': 2, 'enable_expert_parallel': True, 'gpu_memory_utilization': 0.85, \
         'max_model_len': 40960, 'enforce_eager': True, 'kv_cache_dtype': 'fp8', \
         'disable_custom_all_reduce': True, 'speculative_config': {'method': 'eagle3', 'model': \
         'RedHatAI/Qwen3-32B-speculator.eagle3', 'num_speculative_tokens': 3}}\n\
         WARNING 10-14 19:02:40 [compilation.py:1380] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with \
         spec-decode for attention backend FlashInferBackend (support: \
         AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE\n",
        &[
            ("cuda_graphs", T("piecewise")),
            ("tp", N(2.0)),
            ("pp", N(2.0)),
            ("ep", T("true")),
            ("gpu_memory_utilization", N(0.85)),
            ("kv_dtype", T("fp8")),
            ("cuda_graph_disabled", T("true")),
            ("spec_algorithm", T("eagle3")),
            ("spec_tokens", N(3.0)),
            ("custom_all_reduce_disabled", T("true")),
        ],
    ),
];

#[test]
fn sglang_prints_its_memory_settings_and_speed_in_these_forms() {
    check(SGLANG);
}

#[test]
fn vllm_prints_its_memory_settings_and_acceptance_in_these_forms() {
    check(VLLM);
}
