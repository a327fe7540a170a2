//! Suffix decoding is not modelled.

mod common;

use common::{answers, refusal, with_log};

const LOG: &str = "\
INFO 11-29 14:42:30 [utils.py:325] vLLM API server version 0.24.0
INFO 11-29 14:42:34 [api_utils.py:273] non-default args: {'max_model_len': 10240, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 128, 'speculative_config': {'method': 'suffix', 'num_speculative_tokens': 24}, 'model': 'meta-llama/Llama-3.1-8B-Instruct'}
INFO 11-29 14:42:57 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=SpeculativeConfig(method='suffix', model=None, num_spec_tokens=24), tensor_parallel_size=1
INFO 11-29 14:43:02 [model_runner.py:302] Model loading took 15.0 GiB and 2.417308 seconds
INFO 11-29 14:43:12 [gpu_worker.py:508] Available KV cache memory: 108.87 GiB
INFO 11-29 14:43:12 [kv_cache_utils.py:2146] GPU KV cache size: 891,872 tokens
INFO 11-29 14:43:43 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 3.10, Accepted throughput: 60.00 tokens/s, Drafted throughput: 100.00 tokens/s, Accepted: 600 tokens, Drafted: 1000 tokens, Per-position acceptance rate: 0.800, 0.700, 0.600, Avg Draft acceptance rate: 60.0%
";

fn of(words: &str) -> String {
    with_log("suffix", LOG, |file| {
        let words = words.replace("LOG", file);
        let words: Vec<&str> = words.split_whitespace().collect();
        answers(&words).replace(file, "LOG")
    })
}

/// It was pasted as n-gram look-up with the accept length that it had reached.
#[test]
fn a_log_of_suffix_decoding_is_answered_without_a_draft_and_says_so() {
    let text = of("predict --from-log LOG --gpu h200");
    assert!(text.starts_with("NO DRAFT"), "{text}");
    assert!(text.contains("suffix decoding is not modelled, so nothing is said of what it gains"));
    assert!(text.contains("suffix decoding is not modelled: the answer is of this server without"));
    assert!(
        !text.contains("--speculative-config") && !text.contains("--draft none"),
        "{text}"
    );
    let next = of("explain LOG");
    let left = "suffix decoding: it is not modelled; the answer is without a draft";
    let joined = next.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains(left), "{next}");
    assert!(!next.contains("--draft ngram"), "{next}");
}

#[test]
fn suffix_decoding_asked_for_is_refused_and_look_up_beside_its_log_does_not_take_its_length() {
    let error = refusal(&[
        "predict", "--model", "qwen3-8b", "--gpu", "h100", "--draft", "suffix",
    ]);
    assert!(
        error.contains("--draft suffix: suffix decoding is not modelled"),
        "{error}"
    );
    let text = of("predict --from-log LOG --gpu h200 --draft ngram");
    assert!(!text.contains("24 steps"), "{text}");
}
