//! Logs that end in a traceback: the error is the finding, and a request's is none.

mod common;

use std::path::Path;

use common::answers;

/// A drafting start of vLLM 0.11.0 up to where the head loads.
const START: &str = "(APIServer pid=1) INFO 11-21 09:14:02 [api_server.py:1839] vLLM API server version 0.11.0\n\
    (APIServer pid=1) INFO 11-21 09:14:02 [utils.py:233] non-default args: {'model': \
    'Qwen/Qwen3-32B-AWQ', 'speculative_config': {'method': 'eagle3', 'model': 'a/b', \
    'num_speculative_tokens': 3}}\n\
    (EngineCore_DP0 pid=2) INFO 11-21 09:14:13 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with \
    config: model='Qwen/Qwen3-32B-AWQ', quantization=awq_marlin, enforce_eager=False\n\
    (Worker_TP0 pid=3) INFO 11-21 09:14:31 [gpu_model_runner.py:2653] Model loading took 9.8721 GiB and \
    9.614203 seconds\n";
/// How it ended.
const END: &str = "(Worker_TP0 pid=3) ERROR 11-21 09:58:34 [multiproc_executor.py:571] WorkerProc failed to start.\n\
    (Worker_TP0 pid=3) ERROR 11-21 09:58:34 [multiproc_executor.py:571] Traceback (most recent call last):\n\
    (Worker_TP0 pid=3) ERROR 11-21 09:58:34 [multiproc_executor.py:571]   File \
    \"/v/models/llama_eagle3.py\", line 194, in load_weights\n\
    (Worker_TP0 pid=3) ERROR 11-21 09:58:34 [multiproc_executor.py:571]     param = params_dict[name]\n\
    (Worker_TP0 pid=3) ERROR 11-21 09:58:34 [multiproc_executor.py:571] KeyError: \
    'layers.0.mlp.down_proj.weight'\n\
    (EngineCore_DP0 pid=2) ERROR 11-21 09:58:35 [core.py:708] EngineCore failed to start.\n\
    (APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core \
    proc(s): {}\n";

fn explained(name: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("written");
    answers(&["explain", path.to_str().expect("a path")])
}

/// It read `the log ends …, without an error` above 8 lines of ERROR.
#[test]
fn the_error_that_ends_a_start_is_the_finding_with_its_line() {
    let text = explained("keyerror.log", &format!("{START}{END}"));
    assert!(
        text.starts_with(
            "WRONG  the server ended with an error: KeyError: 'layers.0.mlp.down_proj.weight'"
        ),
        "{text}"
    );
    assert!(text.contains("keyerror.log:9]"), "{text}");
    assert!(
        text.contains("vLLM 0.11.0 lays an EAGLE-3 head out in"),
        "{text}"
    );
    assert!(!text.contains("without an error"), "{text}");
    assert!(!text.contains("are not judged"), "{text}");
    // Of another release, or with plain weights, that is not the cause.
    for other in [
        START.replace("0.11.0", "0.11.1"),
        START.replace("awq_marlin", "None"),
    ] {
        let text = explained("keyerror-other.log", &format!("{other}{END}"));
        assert!(text.contains("KeyError: 'layers.0"), "{text}");
        assert!(!text.contains("lays an EAGLE-3 head"), "{text}");
    }
    for (error, says) in [
        (
            "ValueError: Model architectures ['X'] are not supported for now. Supported architectures: {}",
            "this vllm has no class for the model's architecture",
        ),
        (
            "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
            "this vllm takes no EAGLE-3 head for this model",
        ),
        ("AssertionError: nobody knows", "raised in llama_eagle3.py"),
    ] {
        let end = END.replace("KeyError: 'layers.0.mlp.down_proj.weight'", error);
        let text = explained("other-error.log", &format!("{START}{end}"));
        assert!(text.contains(says), "{text}");
    }
}

/// SGLang's processes print it bare.
#[test]
fn sglangs_traceback_is_read_as_vllms() {
    let start = "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, \
        mem_fraction_static=0.85)\n\
        [2026-02-01 10:00:09 TP0] Load weight begin. avail mem=78.60 GB\n";
    let end = "[2026-02-01 10:00:20 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  \
        File \"/s/srt/managers/scheduler.py\", line 2680, in run_scheduler_process\n    scheduler = X()\n\
        ValueError: nothing fits\n\n\
        [2026-02-01 10:00:20] Received sigquit from a child process. It usually means the child failed.\n";
    let text = explained("sglang-error.log", &format!("{start}{end}"));
    assert!(
        text.starts_with("WRONG  the server ended with an error: ValueError: nothing fits"),
        "{text}"
    );
    assert!(!text.contains("without an error"), "{text}");
    let silent = explained("sglang-silent.log", start);
    assert!(silent.contains("without an error"), "{silent}");
}

/// A request that fails leaves the server up.
#[test]
fn a_traceback_of_a_request_does_not_end_a_server() {
    let up = "(APIServer pid=1) INFO:     Application startup complete.\n";
    let request = "ERROR 11-21 10:00:00 [serving_chat.py:251] Traceback (most recent call last):\n\
        ERROR 11-21 10:00:00 [serving_chat.py:251] ValueError: bad template\n";
    let text = explained("request.log", &format!("{START}{up}{request}"));
    assert!(!text.contains("ended with an error"), "{text}");
    let crash = "(EngineCore_DP0 pid=2) ERROR 11-21 10:00:00 [core.py:710] EngineCore encountered a fatal error.\n\
        (EngineCore_DP0 pid=2) ERROR 11-21 10:00:00 [core.py:710] Traceback (most recent call last):\n\
        (EngineCore_DP0 pid=2) ERROR 11-21 10:00:00 [core.py:710] RuntimeError: lost a rank\n";
    let text = explained("crash.log", &format!("{START}{up}{crash}"));
    assert!(
        text.contains("ended with an error: RuntimeError: lost a rank"),
        "{text}"
    );
}

/// The message was cut before its cure, and a start without the draft was advised.
#[test]
fn a_head_that_reaches_less_than_sglang_serves_is_told_with_what_lets_it_start() {
    let refused = |reason: &str| {
        format!(
            "[2026-01-01 09:00:00] server_args=ServerArgs(model_path='a/b', tp_size=1, \
             speculative_algorithm='EAGLE3', speculative_draft_model_path='c/d')\n\
             [2026-01-01 09:01:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n\
             ValueError: Warning: {reason} context_length (131072) is greater than the derived \
             context_length (2048). This may lead to incorrect model outputs or CUDA errors. Note that the \
             derived context_length may differ from max_position_embeddings in the model's config. To allow \
             overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1\n"
        )
    };
    let text = explained("short-head.log", &refused("Target model's"));
    for part in [
        "why  the draft's config reaches 2048 tokens, the server takes 131072\n",
        "do   SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 before the command",
        "--context-length 2048",
        "max_position_embedd…",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let text = explained("long-context.log", &refused("User-specified"));
    assert!(
        text.contains("do   --context-length 2048; SGLANG_ALLOW"),
        "{text}"
    );
}

/// A device-side assert of a kernel was told as an error without a cause.
#[test]
fn an_index_beyond_the_heads_positions_is_told_with_the_bound_that_the_kernel_prints() {
    let end = "(APIServer pid=1) INFO 11-21 09:20:00 Application startup complete.\n\
        /c/x.py:37: unknown: block: [9,0,0], thread: [81,0,0] Assertion `index out of bounds: 0 <= \
        tl.broadcast_to(tmp10, [XBLOCK]) < 2048` failed.\n\
        (EngineCore_DP0 pid=2) ERROR 11-21 09:58:34 [core.py:708] EngineCore encountered a fatal error.\n\
        (EngineCore_DP0 pid=2) ERROR 11-21 09:58:34 [core.py:708] torch.AcceleratorError: CUDA error: \
        device-side assert triggered\n";
    let text = explained("assert.log", &format!("{START}{end}"));
    for part in [
        "why  an index went beyond 2048",
        "--max-model-len",
        "vllm#48894",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// `read the lines above it`, where the cause and both cures are in the error.
#[test]
fn weights_cut_through_fp8_blocks_are_told_with_the_ranks_that_keep_them_whole() {
    let end = "$ python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --tp 8\n\
        [2026-03-10 09:02:22 TP0] Load weight begin. avail mem=77.62 GB\n\
        [2026-03-10 09:02:23 TP3] Scheduler hit an exception: Traceback (most recent call last):\n  \
        File \"/sglang/srt/layers/quantization/fp8.py\", line 743, in create_weights\n    raise ValueError(\n\
        ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight \
        quantization block_n = 128.\n";
    let text = explained("blocks.log", end);
    for part in [
        "why  experts of width 1536 over 8 ranks are 192 wide",
        "do   --tp 4, or --ep-size 8, which leaves experts whole",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// A vLLM start that captures its draft's graphs.
fn capturing(end: &str) -> String {
    format!(
        "(APIServer pid=1) INFO 11-30 10:34:02 [utils.py:233] non-default args: {{'model': \
         'Qwen/Qwen3-32B', 'max_num_seqs': 64, 'speculative_config': {{'method': 'eagle3', 'model': 'a/b', \
         'num_speculative_tokens': 3}}}}\n\
         (EngineCore pid=2) INFO 11-30 10:34:13 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with \
         config: model='Qwen/Qwen3-32B', tensor_parallel_size=2\n\
         (EngineCore pid=2) INFO 11-30 10:35:27 [kv_cache_utils.py:2146] GPU KV cache size: 257,632 tokens\n\
         (EngineCore pid=2) Capturing CUDA graphs (FULL):   0%|          | 0/33\n\
         (EngineCore pid=2) INFO 11-30 10:35:34 [speculator.py:100] Capturing model for speculator...\n\
         (EngineCore pid=2) Capturing prefill CUDA graphs (FULL):  82%|████████▏ | 27/33\n{end}"
    )
}

/// One rank printed the fault of the card, the others that they were cancelled.
#[test]
fn a_start_that_died_as_it_captured_the_drafts_graphs_is_told_with_the_known_fault() {
    let alone = "(EngineCore pid=2) ERROR 11-30 10:35:35 [core.py:1231] EngineCore failed to start.\n\
        (EngineCore pid=2) ERROR 11-30 10:35:35 [core.py:1231] torch.AcceleratorError: CUDA error: an \
        illegal memory access was encountered\n";
    let by_rank = "[rank1]:[E1130 10:32:47.561 ProcessGroupNCCL.cpp:2119] [PG ID 2 Rank 1] Process group \
        watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n\
        (EngineCore pid=2) ERROR 11-30 10:32:48 [multiproc_executor.py:284] Worker proc VllmWorker-1 died \
        unexpectedly, shutting down executor.\n\
        (EngineCore pid=2) ERROR 11-30 10:32:48 [core.py:1231] RuntimeError: cancelled\n";
    for end in [alone, by_rank] {
        let text = explained("capturing.log", &capturing(end));
        assert!(
            text.starts_with(
                "WRONG  the server ended with an error as it captured the draft's CUDA graphs: "
            ),
            "{text}"
        );
        for part in ["an illegal memory access", "vllm#47561", "--enforce-eager"] {
            assert!(text.contains(part), "{text}");
        }
    }
    // What is made of such a log says that its flags were seen to die.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capturing.log");
    let log = path.to_str().expect("a path");
    let text = answers(&["predict", "--from-log", log, "--gpu", "h200"]);
    assert!(
        text.contains("that server ended with an error before it took requests"),
        "{text}"
    );
}

/// A server that was told to end was called one that ended with an error.
#[test]
fn what_a_server_prints_as_it_is_told_to_end_is_no_error() {
    let end = "(APIServer pid=1) ERROR 11-30 10:45:03 [async_llm.py:704] \
        vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) \
        for the root cause.\n";
    let up = "(APIServer pid=1) INFO:     Application startup complete.\n";
    let told = "(APIServer pid=1) INFO 11-30 10:45:03 [launcher.py:100] [shutdown] API server: shutdown \
        triggered\n";
    let text = explained("ended.log", &capturing(&format!("{up}{told}{end}")));
    assert!(!text.contains("ended with an error"), "{text}");
    let text = explained("died.log", &capturing(&format!("{up}{end}{told}")));
    assert!(text.contains("ended with an error"), "{text}");
}

/// It was told to leave out a flag although nothing here says what graphs gain for such a model.
#[test]
fn graphs_that_are_off_cost_nothing_known_where_blocks_are_denoised() {
    let start = |model: &str| {
        format!(
            "(APIServer pid=1) INFO 06-19 05:50:41 [api_utils.py:273] non-default args: {{'model': \
             '{model}', 'enforce_eager': True}}\n\
             (EngineCore pid=2) INFO 06-19 05:51:39 [kv_cache_utils.py:1744] GPU KV cache size: 406,513 \
             tokens\n"
        )
    };
    let text = explained("denoises.log", &start("google/diffusiongemma-26b-a4b-it"));
    assert!(text.contains("note   CUDA graphs are off"), "{text}");
    assert!(!text.contains("remove --enforce-eager"), "{text}");
    let text = explained("decodes.log", &start("Qwen/Qwen3-32B"));
    assert!(text.contains("COSTS  CUDA graphs are off"), "{text}");
}

/// A start of SGLang up to its pool.
const POOLED: &str = "[2026-11-30 09:00:01] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', mem_fraction_static=0.9, tp_size=1)\n\
    [2026-11-30 09:00:10 TP0] Load weight begin. avail mem=78.68 GB\n\
    [2026-11-30 09:00:40 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=17.41 GB, mem \
    usage=61.27 GB.\n\
    [2026-11-30 09:00:41 TP0] KV Cache is allocated. #tokens: 39000, K size: 4.77 GB, V size: 4.77 GB\n\
    [2026-11-30 09:00:41 TP0] Memory pool end. avail mem=7.80 GB\n\
    [2026-11-30 09:00:42 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=7.80 GB\n";

fn scheduler_hit(error: &str) -> String {
    format!(
        "{POOLED}[2026-11-30 09:00:50 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File \
         \"/s/scheduler.py\", line 3013, in run_scheduler_process\n    scheduler = Scheduler(\n  File \
         \"/s/cuda_graph_runner.py\", line 5, in capture\n    raise Exception(\n{error}\n\n\
         [2026-11-30 09:00:50] Received sigquit from a child process. It usually means the child failed.\n"
    )
}

/// Only torch's own words were known: the rest was an error like any other, and `predict` planned on.
#[test]
fn a_scheduler_without_memory_is_out_of_memory_in_whatever_words_it_says_so() {
    for error in [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be reported at some other call",
        "RuntimeError: cudaMalloc failed: out of memory",
        "Exception: Capture cuda graph failed: CUDA error: out of memory\nPossible solutions:\n1. set --mem-fraction-static",
        "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.27.3\n\
         ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: Failed to allocate memory for batch_prefill_tmp_v with size 559939584",
        "ValueError: Not enough memory for the draft worker",
    ] {
        let text = explained("no-memory.log", &scheduler_hit(error));
        assert!(
            text.starts_with("WRONG  out of memory beside the KV pool"),
            "{error}: {text}"
        );
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-memory.log");
        let log = path.to_str().expect("a path");
        let answer = answers(&[
            "predict",
            "--from-log",
            log,
            "--gpu",
            "h100",
            "--engine",
            "sglang@0.5.9",
        ]);
        assert!(
            answer.contains("the log's server ran out of memory"),
            "{error}: {answer}"
        );
    }
}

#[test]
fn a_scheduler_that_dies_of_something_else_is_dead_of_what_it_says() {
    for error in [
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory: you tried 9 bytes",
        "AssertionError",
    ] {
        let text = explained("dead.log", &scheduler_hit(error));
        let says = format!("WRONG  the server ended with an error: {error}");
        assert!(text.starts_with(&says), "{text}");
    }
}

/// Of an FP8 checkpoint that fills the card another --quantization was advised, which SGLang refuses.
#[test]
fn a_card_that_the_weights_fill_asks_for_another_checkpoint_and_not_for_a_flag() {
    let log = "[2026-03-02 10:10:01] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3.1', tp_size=8, \
        quantization=None, mem_fraction_static=0.793)\n\
        [2026-03-02 10:10:35 TP0] Load weight begin. avail mem=77.52 GB\n\
        [2026-03-02 10:10:35 TP0] Detected fp8 checkpoint.\n\
        torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity \
        of 79.11 GiB of which 411.94 MiB is free.\n";
    let text = common::with_log("full", log, |file| common::answers(&["explain", file]));
    assert!(text.contains("the weights fill the card"), "{text}");
    assert!(
        text.contains("a checkpoint in a smaller weight format"),
        "{text}"
    );
    assert!(!text.contains("--quantization"), "{text}");
}

/// A log that begins behind the start, or whose start printed no address, ended "with an error" where a
/// request was refused.
#[test]
fn a_request_that_is_refused_or_answered_does_not_end_a_server() {
    let refused = "ERROR 11-21 10:00:00 [serving_chat.py:251] Traceback (most recent call last):\n\
        ERROR 11-21 10:00:00 [serving_chat.py:251]   File \"/v/serving_engine.py\", line 675, in _validate\n\
        ERROR 11-21 10:00:00 [serving_chat.py:251] ValueError: This model's maximum context length is 6144 \
        tokens. However, your request has 9000 input tokens.\n";
    let text = explained("refused.log", &format!("{START}{refused}"));
    assert!(!text.contains("ended with an error"), "{text}");
    assert!(text.contains("1 request was refused as too long"), "{text}");
    let failed = "ERROR 11-21 10:00:00 [serving_chat.py:251] ValueError: bad template\n\
        (APIServer pid=1) INFO:     127.0.0.1:52856 - \"POST /v1/chat/completions HTTP/1.1\" 400 Bad Request\n";
    let text = explained("answered.log", &format!("{START}{failed}"));
    assert!(!text.contains("ended with an error"), "{text}");
    let text = explained("refused-died.log", &format!("{START}{refused}{END}"));
    assert!(text.contains("ended with an error: KeyError"), "{text}");
}
