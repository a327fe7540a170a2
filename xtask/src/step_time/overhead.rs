//! What no roofline explains: launches, small kernels, the host between steps; by engine, version
//! and graph state.
//!
//! Fitted on the servers of `data/end_to_end` (TensorRT-LLM, SGLang, vLLM to 0.19) and on
//! `data/engine` (vLLM 0.24), with priors, leave-one-model-out (docs/step-time.md).

/// Inference engines told apart here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
    /// llama.cpp.
    Llamacpp,
}

impl Engine {
    /// Reads the name as users and data spell it.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        let name = name.split(['@', ' ']).next().unwrap_or_default();
        Some(match name {
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "trtllm" | "trt-llm" | "tensorrt-llm" | "tensorrt_llm" => Self::Trtllm,
            "llamacpp" | "llama.cpp" | "llama-cpp" | "ik_llama.cpp" => Self::Llamacpp,
            _ => return None,
        })
    }

    /// Its name in lower case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
            Self::Llamacpp => "llamacpp",
        }
    }
}

/// Launch and host costs of one engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Overhead {
    /// Fixed parts of kernels against those measured alone (overlapped launches save some).
    pub(crate) fixed_factor: f64,
    /// A small elementwise kernel (norm, rope, cache write, activation, quantisation) in a graph, us.
    pub(crate) small_kernel_us: f64,
    /// Per step: scheduling, sampling, output, ms.
    pub(crate) host_ms: f64,
    /// Per sequence and step: sampling, detokenising, streaming, us.
    pub(crate) sequence_us: f64,
    /// Added to every layer with experts under expert parallelism, us.
    pub(crate) expert_parallel_us: f64,
    /// Waiting for the last rank at every all-reduce, us per natural logarithm of ranks: a
    /// benchmark starts all ranks at once, layers do not.
    pub(crate) rank_skew_us: f64,
    /// Share of other requests' prefill time that delays a decoding request, over the prefill's
    /// own roofline (serving.rs).
    pub(crate) prefill_share: f64,
    /// Launching a kernel outside a CUDA graph, us.
    pub(crate) eager_launch_us: f64,
    /// Per drafted token that is verified: its logits, its acceptance, us.
    pub(crate) verify_token_us: f64,
    /// Each query token beyond the first reads the cache again to this share (see
    /// [`super::Server::verify`]).
    pub(crate) verify_pass_share: f64,
    /// Most parts that the cache of one sequence and head is split into.
    pub(crate) most_splits: f64,
}

/// Host time of vLLM whose scheduler does not overlap the step (ms a step, us a sequence and step):
/// fitted on its 0.12, which overlaps nothing by itself (`async_scheduling` is on from 0.14.0).
const VLLM_ALONE: (f64, f64) = (1.0, 20.3);

/// vLLM lets FlashAttention 3 split a cache into at most so many parts in a CUDA graph
/// (`flash_attn_max_num_splits_for_cuda_graph`).
const VLLM_SPLITS: f64 = 32.0;

/// Time of a kernel launched by Python and the driver one by one: eager llama-class steps on a
/// DGX Spark and an RTX 5090 (59 to 26 and 62 to 24 tok/s) give 6 to 8 us a kernel.
const EAGER_LAUNCH_US: f64 = 7.0;

impl Overhead {
    /// Costs of `engine`; `version` as it prints it, where known. Versions newer than the fit take
    /// the newest one fitted.
    pub(crate) fn of(engine: Engine, version: Option<&str>) -> Self {
        let base = Self {
            fixed_factor: 0.89,
            small_kernel_us: 1.0,
            host_ms: 0.195,
            sequence_us: 8.1,
            expert_parallel_us: 0.0,
            rank_skew_us: 1.0,
            prefill_share: 1.20,
            eager_launch_us: EAGER_LAUNCH_US,
            // 64 users x 4 tokens against 128 x 1 on an H200 (`data/engine`).
            verify_token_us: 3.0,
            verify_pass_share: 0.01,
            most_splits: f64::INFINITY,
        };
        match engine {
            // Scheduling overlaps the step from 0.20 on (asynchronous scheduling is the default).
            Engine::Vllm if before(version, (0, 20, 0)) => Self {
                most_splits: VLLM_SPLITS,
                fixed_factor: 0.90,
                host_ms: VLLM_ALONE.0,
                sequence_us: VLLM_ALONE.1,
                prefill_share: 1.265,
                ..base
            },
            Engine::Vllm => Self {
                most_splits: VLLM_SPLITS,
                ..base
            },
            Engine::Sglang => Self {
                fixed_factor: 0.935,
                host_ms: 0.53,
                sequence_us: 20.8,
                expert_parallel_us: 21.6,
                prefill_share: 0.711,
                ..base
            },
            Engine::Trtllm => Self {
                fixed_factor: 0.776,
                host_ms: 0.508,
                sequence_us: 22.0,
                prefill_share: 1.37,
                ..base
            },
            // No public step measurements were fitted: vLLM's newest figures, and unfused kernels.
            Engine::Llamacpp => Self {
                fixed_factor: 1.0,
                small_kernel_us: 1.5,
                ..base
            },
        }
    }

    /// The same where vLLM's scheduler waits for the step, as with some drafts.
    pub(crate) fn not_overlapped(self) -> Self {
        Self {
            host_ms: self.host_ms.max(VLLM_ALONE.0),
            sequence_us: self.sequence_us.max(VLLM_ALONE.1),
            ..self
        }
    }

    /// What that adds to a step: ms, and us a sequence; 0 where nothing overlaps anyhow.
    pub(crate) fn hidden_by_overlap(self) -> (f64, f64) {
        let alone = self.not_overlapped();
        (
            alone.host_ms - self.host_ms,
            alone.sequence_us - self.sequence_us,
        )
    }
}

/// Whether `version` is known and older than `limit`.
pub(crate) fn before(version: Option<&str>, limit: (u64, u64, u64)) -> bool {
    let Some(version) = version else {
        return false;
    };
    let mut numbers = version
        .trim_start_matches(['v', 'V'])
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u64>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor, numbers.next().flatten().unwrap_or(0)) < limit,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number_and_unknown_ones_are_new() {
        assert!(before(Some("0.12.0"), (0, 20, 0)));
        assert!(before(Some("v0.5.9"), (0, 5, 10)));
        assert!(before(Some("0.5.6.post2"), (0, 5, 10)));
        assert!(!before(Some("0.5.10.post1"), (0, 5, 10)));
        assert!(!before(Some("fork 2026-05-05"), (0, 20, 0)));
        assert!(!before(Some(""), (1, 0, 0)));
        assert!(!before(None, (1, 0, 0)));
    }

    #[test]
    fn engines_are_read_as_data_and_users_spell_them() {
        assert_eq!(Engine::parse("vllm@0.24"), Some(Engine::Vllm));
        assert_eq!(Engine::parse("SGLang"), Some(Engine::Sglang));
        assert_eq!(Engine::parse("trtllm"), Some(Engine::Trtllm));
        assert_eq!(Engine::parse("mystery"), None);
    }
}
