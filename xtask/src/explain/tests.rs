//! Readings by what engines and tools print, each test named after the trap it holds.

use super::{Facts, accept_from_log, facts_from_text, findings, scenario_from_log};
use crate::bench_input::sweep_from_text;

fn number(text: &str, name: &str) -> Option<f64> {
    facts_from_text(text, "f").number(name)
}

fn found(text: &str) -> Vec<(findings::Severity, String)> {
    let files = [facts_from_text(text, "f")];
    findings::find(&files)
        .into_iter()
        .map(|finding| (finding.severity, finding.what))
        .collect()
}

const TARGET: &str = "\
[2026-01-04 07:26:52 TP0] Load weight begin. avail mem=60.79 GB
[2026-01-04 07:26:52 TP1] Load weight begin. avail mem=61.09 GB
[2026-01-04 07:28:05 TP1] Load weight end. type=A, avail mem=45.48 GB, mem usage=15.61 GB.
[2026-01-04 07:28:05 TP0] Load weight end. type=A, avail mem=45.18 GB, mem usage=15.61 GB.
[2026-01-04 07:28:05 TP0] KV Cache is allocated. #tokens: 802688, K size: 18.38 GB, V size: 18.38 GB
[2026-01-04 07:28:05 TP1] KV Cache is allocated. #tokens: 802688, K size: 18.38 GB, V size: 18.38 GB
[2026-01-04 07:28:05 TP0] Memory pool end. avail mem=8.40 GB
";

#[test]
fn the_least_free_memory_over_ranks_counts() {
    assert_eq!(number(TARGET, "free_before_gib"), Some(60.79));
    assert_eq!(number(TARGET, "free_after_gib"), Some(45.18));
    assert_eq!(number(TARGET, "kv_gib"), Some(36.76));
    assert_eq!(number(TARGET, "tp"), Some(2.0));
}

#[test]
fn a_draft_load_and_its_pool_do_not_overwrite_the_targets() {
    let text = format!(
        "{TARGET}[2026-01-04 07:28:40 TP0] Load weight begin. avail mem=6.27 GB\n\
         [2026-01-04 07:28:41 TP0] Load weight end. type=D, avail mem=5.88 GB, mem usage=0.39 GB.\n\
         [2026-01-04 07:28:41 TP0] KV Cache is allocated. #tokens: 802688, K size: 0.38 GB, V size: 0.38 GB\n\
         [2026-01-04 07:28:41 TP0] Memory pool end. avail mem=5.12 GB\n"
    );
    assert_eq!(number(&text, "weights_gib"), Some(15.61));
    assert_eq!(number(&text, "draft_weights_gib"), Some(0.39));
    assert_eq!(number(&text, "kv_gib"), Some(36.76));
    assert_eq!(number(&text, "draft_kv_gib"), Some(0.76));
    assert_eq!(number(&text, "free_before_gib"), Some(60.79));
}

#[test]
fn of_two_starts_in_one_file_the_last_is_reported_and_said() {
    let text = format!("{TARGET}{}", TARGET.replace("45.18", "44.18"));
    let facts = facts_from_text(&text, "f");
    assert_eq!(facts.number("free_after_gib"), Some(44.18));
    assert!(
        facts.notes.iter().any(|n| n.contains("2 server starts")),
        "{:?}",
        facts.notes
    );
}

#[test]
fn full_and_sliding_pools_add_up_and_the_full_one_counts_tokens() {
    let text = "Load weight end. avail mem=46.25 GB, mem usage=67.56 GB.\n\
        KV Cache is allocated. dtype: x, #tokens: 148717, K size: 10.21 GB, V size: 10.21 GB\n\
        KV Cache is allocated. dtype: x, #tokens: 185897, K size: 4.25 GB, V size: 4.25 GB\n\
        Memory pool end. avail mem=17.73 GB\n";
    assert_eq!(number(text, "kv_gib"), Some(28.92));
    assert_eq!(number(text, "kv_tokens"), Some(185_897.0));
}

#[test]
fn printed_defaults_of_speculation_are_not_speculation() {
    let text = "server_args=ServerArgs(model_path='m', speculative_algorithm=None, \
        speculative_num_steps=5, speculative_num_draft_tokens=64)\nLoad weight begin. avail mem=1 GB";
    let facts = facts_from_text(text, "f");
    assert_eq!(facts.number("spec_steps"), None);
    assert_eq!(facts.text("model"), Some("m"));
}

#[test]
fn a_pool_capped_by_max_total_tokens_proves_no_other_fraction() {
    let text = "server_args={'mem_fraction_static': 0.95, 'max_total_tokens': 3000000}\n\
        Load weight begin. avail mem=100.00 GB\n\
        Load weight end. avail mem=50.00 GB, mem usage=50.00 GB.\n\
        KV Cache is allocated. #tokens: 3000000, KV size: 4.00 GB\n";
    assert_eq!(found(text), Vec::new());
    let uncapped = text.replace(", 'max_total_tokens': 3000000", "");
    assert_eq!(found(&uncapped).len(), 1);
}

#[test]
fn the_error_may_come_before_the_line_that_explains_it() {
    let text = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n\
                Load weight end. avail mem=32.70 GB, mem usage=60.64 GB.\n";
    let found = found(text);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, findings::Severity::Broken);
}

#[test]
fn an_error_that_a_running_server_survived_is_no_failure() {
    let text = "ValueError: Not enough memory. Please try to increase --mem-fraction-static.\n\
        [x TP0] max_total_num_tokens=1000000, context_len=4096\nThe server is fired up and ready\n";
    assert_eq!(facts_from_text(text, "f").text("error_kind"), None);
}

#[test]
fn no_error_line_is_not_health() {
    let text = format!("{TARGET}[x TP0] Capture cuda graph begin. avail mem=8.40 GB\n");
    assert!(
        found(&text)
            .iter()
            .any(|f| f.1.contains("ends during graph capture"))
    );
}

#[test]
fn the_model_inside_speculative_config_is_the_draft() {
    let text = "INFO non-default args: {'max_model_len': 10240, 'speculative_config': {'method': \
        'eagle3', 'model': 'models/draft', 'num_speculative_tokens': 3}, 'model': 'models/target'}";
    let facts = facts_from_text(text, "f");
    assert_eq!(facts.text("model"), Some("models/target"));
    assert_eq!(facts.text("draft_model"), Some("models/draft"));
    assert_eq!(facts.number("spec_tokens"), Some(3.0));
}

#[test]
fn a_good_start_that_reports_free_memory_is_no_failure() {
    let text = "Available KV cache memory: 8.68 GiB\nGPU KV cache size: 94,784 tokens\n\
        Free memory on device (78.57/79.18 GiB) on startup. Desired GPU memory utilization is \
        (0.9, 71.26 GiB). Actual usage is 56.93 GiB for weight.\n";
    let facts = facts_from_text(text, "f");
    assert_eq!(facts.text("error_kind"), None);
    assert_eq!(facts.number("gpu_memory_utilization"), Some(0.9));
    assert_eq!(facts.number("wanted_gib"), Some(71.26));
}

#[test]
fn the_longest_context_that_starts_is_the_advice() {
    let text = "ValueError: To serve at least one request with the models's max seq len (131072), \
        (24.00 GiB KV cache is needed, which is larger than the available KV cache memory (10.91 \
        GiB). Based on the available memory, the estimated maximum model length is 59584.";
    assert_eq!(number(text, "kv_needed_gib"), Some(24.0));
    assert_eq!(number(text, "longest_context"), Some(59_584.0));
    let files = [facts_from_text(text, "f")];
    assert!(
        findings::find(&files)[0]
            .mend
            .contains("--max-model-len 59584")
    );
}

#[test]
fn vllm_v0_counts_give_the_accept_length_and_not_its_own_rate() {
    let text = "Speculative metrics: Draft acceptance rate: 0.343, System efficiency: 0.489, \
        Number of speculative tokens: 2, Number of accepted tokens: 6455, Number of draft tokens: \
        18802, Number of emitted tokens: 13783.";
    let read = accept_from_log(text, "f").map(|a| (a.accept_length * 1000.0).round());
    assert_eq!(read.ok(), Some(1466.0));
}

#[test]
fn intervals_of_one_tiny_request_do_not_count() {
    let interval = |length: f64, drafted: u32, rates: &str| {
        format!(
            "SpecDecoding metrics: Mean acceptance length: {length}, Drafted: {drafted} tokens, \
             Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 1%\n"
        )
    };
    let text = interval(2.8, 600, "0.8, 0.6, 0.4") + &interval(4.0, 6, "1.0, 1.0, 1.0");
    let read = accept_from_log(&text, "f").map(|a| (a.accept_length, a.intervals));
    assert_eq!(read.ok(), Some((2.8, 1)));
}

#[test]
fn accept_from_a_log_without_acceptance_is_refused_in_one_line() {
    let error = accept_from_log(TARGET, "start.log").map_err(|e| e.to_string());
    assert!(error.is_err_and(|e| e.contains("--accept start.log") && !e.contains('\n')));
}

#[test]
fn the_targets_own_path_as_draft_means_mtp() {
    let text = "server_args=ServerArgs(model_path='a/M', tp_size=8, speculative_algorithm='EAGLE', \
        speculative_draft_model_path='a/M', speculative_num_steps=3)\nLoad weight begin. avail mem=9 GB";
    let draft = scenario_from_log(text, "f").map(|s| s.draft.map(|d| d.0));
    assert_eq!(draft.ok(), Some(Some("mtp".to_string())));
}

#[test]
fn an_accept_length_beyond_the_drafted_tokens_is_called_impossible() {
    let text = "sglang serve --speculative-num-steps 2 --speculative-num-draft-tokens 3\n\
        ============ Serving Benchmark Result ============\nOutput token throughput (tok/s): 86.2\n\
        Max request concurrency: 1\nAccept length: 3.26\n";
    assert!(
        found(text)
            .iter()
            .any(|f| f.1.contains("3.26 is impossible"))
    );
}

#[test]
fn a_cut_device_list_is_not_a_shared_gpu() {
    let text = "#  Rank 22 Group  0 Pid 65 on w-10 device  0 [0x8a] NVIDIA A800-SXM4-80GB\n\
        #  Rank 23 Group  0 Pid 66 on w-10 device  1 [0x8f] NVIDIA A800-SXM4-80GB\n\
        #  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n\
        536870912 134217728 float sum -1 24942 21.52 41.26 0 24966 21.50 41.22 0\n";
    assert_eq!(number(text, "ranks"), Some(24.0));
    assert_eq!(found(text), Vec::new());
}

#[test]
fn two_ranks_of_one_gpu_are_no_link() {
    let text = "#  Rank  0 Pid 1 on lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090\n\
        #  Rank  1 Pid 2 on lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090\n\
        # size time algbw busbw\n";
    assert!(
        found(text)
            .iter()
            .any(|f| f.0 == findings::Severity::Broken)
    );
}

#[test]
fn an_all_reduce_far_over_its_model_is_a_finding_and_a_usual_one_is_not() {
    let table = |time: f64| {
        let ranks: String = (0..8)
            .map(|i| {
                format!(
                    "#  Rank  {i} Group 0 Pid 1 on h device  {i} [0000:{i}1:00] NVIDIA RTX PRO \
                     6000 Blackwell Server Edition\n"
                )
            })
            .collect();
        format!(
            "{ranks}# all_reduce_perf\n# size count type redop root time algbw busbw #wrong\n\
             65536 16384 float sum -1 {time:.2} 0.19 0.33 0\n"
        )
    };
    let slow = |text: &str| found(text).iter().any(|f| f.1.contains("times the model"));
    assert!(slow(&table(504.0)));
    assert!(!slow(&table(70.0)));
}

#[test]
fn a_baseline_is_the_plain_runs_of_the_shortest_context() {
    let json = r#"{"results": [
        {"concurrency": 1, "context_tokens": 0, "aggregate_tps": 104.4},
        {"concurrency": 4, "context_tokens": 0, "aggregate_tps": 298.1},
        {"concurrency": 4, "context_tokens": 16384, "aggregate_tps": 250.0}]}"#;
    let sweep = sweep_from_text(json, "f");
    assert_eq!(sweep.ok(), Some(vec![(1.0, 104.4), (4.0, 298.1)]));
    let csv = "concurrency,tok_s\n1,59.0\n2,92.4\n2,92.5\n";
    assert_eq!(
        sweep_from_text(csv, "f").ok(),
        Some(vec![(1.0, 59.0), (2.0, 92.5)])
    );
    let speculative = "Serving Benchmark Result\nMax request concurrency: 1\n\
        Output token throughput (tok/s): 95.62\nAccept length: 2.46\n";
    let refused = sweep_from_text(speculative, "f").map_err(|e| e.to_string());
    assert!(refused.is_err_and(|e| e.contains("speculation on")));
}

#[test]
fn the_load_that_tells_what_it_held_says_it_though_another_was_seen_more_often() {
    let window = |running: u32, tok_s: f64, usage: f64| {
        format!(
            "INFO 05-14 10:10:00 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
             generation throughput: {tok_s} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV \
             cache usage: {usage}%, Prefix cache hit rate: 0.0%\n"
        )
    };
    let size = "INFO 05-14 10:00:50 [kv_cache_utils.py:1087] GPU KV cache size: 880,960 tokens\n";
    let windows = [
        (1, 45.2, 0.3),
        (1, 45.3, 0.3),
        (1, 45.4, 0.3),
        (16, 410.0, 5.4),
        (16, 411.0, 5.4),
    ];
    let windows = windows.map(|(running, tok_s, usage)| window(running, tok_s, usage));
    let text = format!("{size}{}", windows.concat());
    assert_eq!(number(&text, "held_tokens_per_request"), Some(2973.0));
    let sweep = crate::bench_input::sweep_with_notes(&text, "f", None).expect("a sweep");
    assert_eq!(sweep.held_tokens, Some(2973.0));
}

#[test]
fn a_pool_of_blocks_is_as_large_as_its_kv_format_makes_it() {
    let log = |dtype: &str| {
        format!(
            "INFO 12-20 10:00:00 [core.py:77] Initializing an LLM engine (v0.6.5) with config: \
             model='Qwen/Qwen3-30B-A3B', dtype=torch.bfloat16, tensor_parallel_size=2, \
             kv_cache_dtype={dtype}\n\
             INFO 12-20 10:00:05 gpu_executor.py:76] # GPU blocks: 274467, # CPU blocks: 2048\n"
        )
    };
    assert_eq!(number(&log("auto"), "kv_gib"), Some(201.03));
    assert_eq!(number(&log("fp8_e4m3"), "kv_gib"), Some(100.51));
}

#[test]
fn latencies_without_a_unit_are_seconds_in_json() {
    let json = r#"{"max_concurrency": 16, "output_throughput": 403.58, "median_tpot": 0.0336}"#;
    let facts: Facts = facts_from_text(json, "f");
    assert_eq!(facts.number("concurrency"), Some(16.0));
    let tpot = facts.number("median_tpot_ms").unwrap_or(0.0);
    assert!((tpot - 33.6).abs() < 1e-9);
}

#[test]
fn a_channel_over_an_unknown_path_has_its_line() {
    let text = "\nn:1:1 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via XYZ/1\n";
    let facts = facts_from_text(text, "f");
    assert_eq!(facts.get("nccl_channels").map(|fact| fact.line), Some(2));
}

#[test]
fn gguf_headers_and_mistrals_params_are_configurations() {
    let gguf = "llama_model_loader: - kv   4:  llama.block_count u32 = 32\n\
        llama_model_loader: - kv   5:  llama.context_length u32 = 131072\n\
        llama_model_loader: - kv   6:  llama.embedding_length u32 = 4096\n\
        llama_model_loader: - kv   8:  llama.attention.head_count u32 = 32\n\
        llama_model_loader: - kv   9:  llama.attention.head_count_kv u32 = 8\n";
    assert_eq!(number(gguf, "layers"), Some(32.0));
    assert_eq!(number(gguf, "kv_heads"), Some(8.0));
    assert_eq!(number(gguf, "head_dim"), Some(128.0));
    let params =
        r#"{"dim": 5120, "n_layers": 40, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8}"#;
    assert_eq!(number(params, "kv_bytes_per_token"), Some(163_840.0));
}

#[test]
fn every_budget_line_of_v0_is_read() {
    let later = "the current vLLM instance can use total_gpu_memory (39.56GiB) x \
        gpu_memory_utilization (0.90) = 35.60GiB\nmodel weights take 7.17GiB; non_torch_memory takes \
        0.01GiB; PyTorch activation peak memory takes 1.83GiB; the rest of the memory reserved for \
        KV Cache is 26.60GiB.\n# cuda blocks: 13618, # CPU blocks: 2048\n";
    let earlier = "Memory profiling results: total_gpu_memory=39.56GiB peak_torch_memory=9.00GiB \
        kv_cache_size=26.60GiB gpu_memory_utilization=0.90\n";
    for text in [later, earlier] {
        assert_eq!(number(text, "kv_gib"), Some(26.6));
        assert_eq!(number(text, "gpu_memory_utilization"), Some(0.9));
    }
    assert_eq!(number(later, "kv_tokens"), Some(13_618.0 * 16.0));
    assert_eq!(number(later, "weights_gib"), Some(7.17));
}

#[test]
fn requests_that_arrive_at_a_rate_have_no_concurrency() {
    let block = |rate: &str| {
        format!(
            "============ Serving Benchmark Result ============\nTraffic request rate: {rate}\n\
             Successful requests: 300\nOutput token throughput (tok/s): 900.0\n"
        )
    };
    assert_eq!(number(&block("4.0"), "concurrency"), None);
    assert_eq!(number(&block("inf"), "concurrency"), Some(300.0));
}

#[test]
fn benches_of_other_tools_are_points() {
    let trt = "Request Throughput (req/sec):  0.2678\nTotal Output Throughput (tokens/sec): \t 274.18\n\
        Average time-per-output-token [TPOT] (ms): 3.23\n";
    assert_eq!(number(trt, "output_tok_s"), Some(274.18));
    assert_eq!(number(trt, "mean_tpot_ms"), Some(3.23));
    let batched = "|    PP |     TG |    B | S_TG t/s |\n|-------|--------|------|----------|\n\
        |  2048 |    128 |    8 |   147.90 |\n";
    assert_eq!(number(batched, "concurrency"), Some(8.0));
    assert_eq!(number(batched, "output_tok_s"), Some(147.9));
    let offline = "Throughput: 7.21 requests/s, 2970.21 total tokens/s, 1483.57 output tokens/s\n";
    assert_eq!(number(offline, "output_tok_s"), Some(1483.57));
    let guide = "  Benchmark| Per Second| Concurrency| mean| mean| mean| median| p99\n\
        -----------|-----------|------------|-----|-----|\nsynchronous|  1.55|  1.00|  198.2| 596.1| 0.64\n";
    assert_eq!(number(guide, "output_tok_s"), Some(198.2));
}

#[test]
fn a_reduce_scatter_is_no_all_reduce() {
    let text = "# size count type redop root time algbw busbw #wrong\n\
        1048576 131072 float sum -1 66.49 15.77 7.89 0\n";
    assert_eq!(facts_from_text(text, "f").text("op"), None);
}

#[test]
fn slices_of_a_card_are_not_cards() {
    let text =
        "|   0MiB / 40536MiB |\n| MIG devices: |\n|  12MiB / 19968MiB |\n|  12MiB / 19968MiB |\n";
    assert_eq!(number(text, "gpus"), Some(1.0));
}

const BASELINE: &str = "Load weight begin. avail mem=94.00 GB\n\
    Load weight end. avail mem=21.70 GB, mem usage=72.30 GB.\n\
    KV Cache is allocated. #tokens: 159218, KV size: 10.42 GB\nMemory pool end. avail mem=10.9 GB\n";

#[test]
fn the_flag_in_another_file_is_held_against_the_pool() {
    let files = [
        facts_from_text(BASELINE, "baseline.log"),
        facts_from_text(
            "launch_server --mem-fraction-static 0.55 --tp 8",
            "attempt.sh",
        ),
    ];
    let found = findings::find(&files);
    assert!(
        found[0].what.contains("0.88 was in use, not 0.55"),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .any(|f| f.place == "attempt.sh:1" && f.what.contains("0.55"))
    );
}

#[test]
fn an_earlier_start_that_worked_is_the_advice_for_the_one_that_does_not() {
    let text = format!(
        "{BASELINE}server_args=ServerArgs(mem_fraction_static=0.55)\n\
         Load weight begin. avail mem=94.00 GB\n\
         Load weight end. avail mem=21.70 GB, mem usage=72.30 GB.\n\
         RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    );
    let files = [facts_from_text(&text, "f")];
    let found = findings::find(&files);
    assert!(found[0].what.contains("0.55 can never start"), "{found:?}");
    assert!(
        found[0]
            .mend
            .contains("0.88 is proven here (10.42 GiB of KV)"),
        "{found:?}"
    );
}

#[test]
fn a_block_draft_of_one_step_is_as_deep_as_its_block() -> anyhow::Result<()> {
    // DFlash: one step drafts the block; `--accept 2.41@1` was no accept length of one step.
    let text = "server_args=ServerArgs(model_path='a/b', tp_size=1, speculative_algorithm='DFLASH', \
                speculative_draft_model_path='a/d', speculative_num_steps=1, \
                speculative_eagle_topk=1, speculative_num_draft_tokens=16)\n\
                [2026-09-01 10:00:00] Load weight begin. avail mem=94.00 GB\n\
                [2026-09-01 10:00:09] Load weight end. type=X, avail mem=21.70 GB, mem usage=72.30 GB.\n";
    let scenario = scenario_from_log(text, "f")?;
    assert_eq!(scenario.steps.map(|(n, _)| n), Some(15));
    let chain = text.replace("num_draft_tokens=16", "num_draft_tokens=2");
    let scenario = scenario_from_log(&chain, "f")?;
    assert_eq!(scenario.steps.map(|(n, _)| n), Some(1));
    Ok(())
}

#[test]
fn hybrid_configs_give_the_bytes_of_the_layers_that_cache() {
    let jamba = r#"{"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
        "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2,
        "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
        "expert_layer_offset": 1, "mamba_d_state": 16, "mamba_expand": 2}"#;
    assert_eq!(number(jamba, "kv_bytes_per_token"), Some(16_384.0));
    let falcon = r#"{"model_type": "falcon_h1", "hidden_size": 3072, "num_hidden_layers": 44,
        "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
        "vocab_size": 130048, "intermediate_size": 12288, "mamba_d_head": 128,
        "mamba_d_state": 256, "mamba_n_heads": 24}"#;
    assert_eq!(number(falcon, "kv_bytes_per_token"), Some(45_056.0));
    // What no layer kind describes is not counted as full attention.
    let griffin = r#"{"model_type": "recurrent_gemma", "hidden_size": 2560,
        "num_hidden_layers": 26, "num_attention_heads": 10, "num_key_value_heads": 1,
        "vocab_size": 256000, "intermediate_size": 15360}"#;
    assert_eq!(number(griffin, "kv_bytes_per_token"), None);
}

#[test]
fn the_first_builds_print_blocks_alone_and_the_pool_follows_from_a_known_model() {
    let log = "INFO 08-22 15:27:08 llm_engine.py:70] Initializing an LLM engine with config: \
        model='meta-llama/Llama-2-7b-chat-hf', tokenizer_mode=auto, dtype=torch.float16, \
        tensor_parallel_size=2, seed=0)\n\
        INFO 08-22 15:27:25 llm_engine.py:196] # GPU blocks: 1000, # CPU blocks: 327\n";
    // 32 layers x 32 heads x 128 x 2 x 2 bytes over two cards.
    assert_eq!(number(log, "kv_gib"), Some(3.91));
    assert_eq!(
        number(&log.replace("Llama-2-7b-chat-hf", "mine"), "kv_gib"),
        None
    );
    let later = log.replace(
        "# GPU blocks: 1000, # CPU blocks: 327",
        "GPU KV cache size: 16,000 tokens",
    );
    assert_eq!(number(&later, "kv_gib"), None);
}
