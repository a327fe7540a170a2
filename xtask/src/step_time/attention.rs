//! Attention over the cache: GQA, MLA, sparse index, compressed, linear and state-space layers.
//!
//! GQA is fitted on `data/op_times/decode_attention_*` (batch 1 to 128, 128 to 131,072 tokens, 1 to
//! 96 query heads): median error 0.04 to 0.08 with four constants a family. There is no public
//! table for MLA; it takes the same constants with its own shape, and a share of bandwidth and of
//! the arithmetic rate that fits the Kimi servers of `data/speculation`.

use super::op::{OpTime, memory_share};
use crate::gpus::{Family, Gpu};

/// Efficiencies of decode attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AttentionRates {
    /// Launch, the split's combine kernel, tail, us.
    pub(crate) fixed_us: f64,
    /// Share of the data-sheet bandwidth.
    pub(crate) bandwidth: f64,
    /// Share of the data-sheet bf16 rate.
    pub(crate) compute: f64,
    /// Added per doubling of the context above 128 tokens, us.
    pub(crate) doubling_us: f64,
}

/// Fitted per family; data-centre Blackwell takes Hopper's shares.
pub(crate) fn attention_rates(family: Family) -> AttentionRates {
    let (fixed_us, bandwidth, compute, doubling_us) = match family {
        Family::Hopper | Family::Cdna3 => (11.5, 0.90, 0.34, 0.49),
        Family::Ampere | Family::Volta | Family::Turing => (15.3, 0.744, 0.34, 1.6),
        Family::BlackwellRtx | Family::Ada => (11.1, 0.971, 0.8, 1.2),
        Family::Blackwell => (5.5, 0.88, 0.34, 0.49),
    };
    AttentionRates {
        fixed_us,
        bandwidth,
        compute,
        doubling_us,
    }
}

/// Time of moving so many bytes of the cache, us, at the share of bandwidth that attention reads it with.
pub(crate) fn copy_us(gpu: &Gpu, bytes: f64) -> f64 {
    let share = memory_share(gpu, attention_rates(gpu.family).bandwidth);
    bytes / (gpu.bandwidth_gb_s * 1e3 * share)
}

/// Query rows that one key-value head is multiplied with at least.
const LEAST_ROWS: f64 = 16.0;
/// A prefix need not fit whole: sequences work on the same split at about the same time. Holds at
/// 1.05 times the cache (Qwen3.5-397B, 128k, 128 MiB); twice is taken as the limit.
const CACHE_SPAN: f64 = 2.0;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;
/// MLA: share of bandwidth. Assumption of the order of the published FlashMLA figures.
const MLA_BANDWIDTH: f64 = 0.70;
/// The same on Hopper: FlashAttention 3 and FlashMLA with 16 users at 32k on an H200 (docs/HARDWARE.md).
const MLA_BANDWIDTH_HOPPER: f64 = 0.83;
/// MLA: share of the bf16 rate.
const MLA_COMPUTE: f64 = 0.50;
/// Share of the data sheet's bandwidth at which FlashAttention 3 and FlashMLA read an FP8 cache: 2.5 to 3.0 TB/s on
/// an H200 from 32k of context on, where the same kernels read bf16 at 4.0 to 4.4 (docs/HARDWARE.md).
const FP8_BANDWIDTH_HOPPER: f64 = 0.62;

/// The share of bandwidth at which attention reads the cache: `wide` for 16 bits an element.
fn cache_bandwidth(gpu: &Gpu, wide: f64, kv_bytes: f64) -> f64 {
    match gpu.family {
        Family::Hopper if kv_bytes < 1.5 => FP8_BANDWIDTH_HOPPER.min(wide),
        _ => wide,
    }
}
/// MLA: more fixed time than GQA (cache write of latent and rope, two reshapes), us.
const MLA_FIXED_US: f64 = 4.0;
/// State layers read and write their state at this share of bandwidth.
const STATE_BANDWIDTH: f64 = 0.60;
/// A recurrent step: short convolution, gates and the state update, us.
const STATE_FIXED_US: f64 = 10.0;
/// What a verify over a delta-rule layer launches beside a plain step, us: three copies, a
/// concatenation and a scatter (9 us at one user, 12 at 32), and a state kernel that starts later.
/// Profiled on one H200 with vLLM 0.24.0 and Qwen3.5-27B (docs/HARDWARE.md); other engines are
/// taken alike.
pub(crate) const DELTA_VERIFY_US: f64 = 13.0;

/// What is read of the cache and by whom, on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// Sequences.
    pub(crate) sequences: f64,
    /// Query tokens per sequence: 1 for a decode step, more for a verify.
    pub(crate) tokens: f64,
    /// Cached tokens that a query sees, on this rank.
    pub(crate) context: f64,
    /// How often the cache is read: 1 when one pass serves all query tokens.
    pub(crate) passes: f64,
    /// Share of the context that is one prefix common to all sequences, 0 to 1.
    pub(crate) shared_prefix: f64,
    /// Most parts that the cache of one sequence and head is split into, each read by one block of threads.
    pub(crate) splits: f64,
}

/// What one block of threads reads of a cache, GB/s: one user's latent of 98,304 tokens in 32 parts takes 80 us
/// more than an empty one on an H200 (docs/HARDWARE.md).
pub(crate) const BLOCK_GB_S: f64 = 44.0;

/// The last-level cache delivers this many times the memory bandwidth: on 8x RTX PRO 6000, 128
/// sequences with one common prefix of 16k to 64k tokens are read 3.3 to 3.7 times as fast as
/// memory could (plain sweeps of Kimi-K2.6 at contexts 0 to 64k).
const CACHE_BANDWIDTH: f64 = 3.5;

impl Reading {
    /// Memory time against reading every sequence's cache from memory once. `layer_bytes` is one
    /// sequence's cache in this layer: a common prefix that the last-level cache can serve is read from
    /// memory by one sequence and from there by the others; so are repeated passes.
    fn memory_factor(&self, gpu: &Gpu, layer_bytes: f64, passes: f64) -> f64 {
        let fits = CACHE_SPAN * f64::from(gpu.l2_mib) * MIB >= layer_bytes;
        let again = if fits { 1.0 / CACHE_BANDWIDTH } else { 1.0 };
        let first = 1.0 / self.sequences.max(1.0);
        let shared = first + (1.0 - first) * again;
        let prefix = self.shared_prefix.clamp(0.0, 1.0);
        (1.0 - prefix) + prefix * shared + (passes - 1.0).max(0.0) * again
    }

    /// The least that reading one sequence's cache for one head takes, us: no more blocks than parts read it.
    fn by_blocks_us(&self, head_bytes: f64) -> f64 {
        head_bytes / (self.splits.max(1.0) * BLOCK_GB_S * 1e3)
    }

    fn doublings(&self) -> f64 {
        (self.context / 128.0).max(1.0).log2()
    }
}

/// GQA with `heads` query and `kv_heads` key-value heads on this rank; `kv_bytes` per element.
pub(crate) fn gqa(
    gpu: &Gpu,
    read: &Reading,
    heads: f64,
    kv_heads: f64,
    kv_row: f64,
    kv_bytes: f64,
) -> OpTime {
    let r = attention_rates(gpu.family);
    let elements = read.sequences * read.context * kv_heads * kv_row;
    let layer_bytes = read.context * kv_heads * kv_row * kv_bytes;
    let memory_us = elements * kv_bytes * read.memory_factor(gpu, layer_bytes, read.passes)
        / (gpu.bandwidth_gb_s
            * 1e3
            * memory_share(gpu, cache_bandwidth(gpu, r.bandwidth, kv_bytes)));
    let memory_us = memory_us.max(read.by_blocks_us(read.context * kv_row * kv_bytes));
    let rows = (heads / kv_heads * read.tokens).max(LEAST_ROWS);
    let compute_us = 2.0 * elements * rows / (gpu.tflops_bf16.max(1.0) * 1e6 * r.compute);
    let fixed_us = r.fixed_us + r.doubling_us * read.doublings();
    OpTime::overlapped(fixed_us, memory_us, compute_us, 2.0)
}

/// Query rows that one pass of the engines' MLA kernel serves: FlashMLA and the TensorRT-LLM
/// kernels take 64 and 128, Triton MLA (what engines fall back to elsewhere) blocks of 16 heads.
fn mla_rows(family: Family) -> f64 {
    match family {
        Family::Hopper | Family::Cdna3 => 64.0,
        Family::Blackwell => 128.0,
        _ => 16.0,
    }
}

/// MLA: every head reads one latent of `latent` + `rope` elements per token.
pub(crate) fn mla(
    gpu: &Gpu,
    read: &Reading,
    heads: f64,
    latent: f64,
    rope: f64,
    kv_bytes: f64,
) -> OpTime {
    let r = attention_rates(gpu.family);
    let cached = read.sequences * read.context;
    let rows = (heads * read.tokens).max(LEAST_ROWS);
    // A kernel that takes few query rows at a time reads the latent again for the others.
    let passes = (rows / mla_rows(gpu.family)).max(1.0);
    let layer_bytes = read.context * (latent + rope) * kv_bytes;
    let share = match gpu.family {
        Family::Hopper => MLA_BANDWIDTH_HOPPER,
        _ => MLA_BANDWIDTH,
    };
    let memory_us =
        cached * (latent + rope) * kv_bytes * read.memory_factor(gpu, layer_bytes, passes)
            / (gpu.bandwidth_gb_s * 1e3 * cache_bandwidth(gpu, share, kv_bytes));
    let memory_us = memory_us.max(read.by_blocks_us(layer_bytes));
    let compute_us = 2.0 * cached * rows * (2.0 * latent + rope)
        / (gpu.tflops_bf16.max(1.0) * 1e6 * MLA_COMPUTE);
    let fixed_us = r.fixed_us + MLA_FIXED_US + r.doubling_us * read.doublings();
    OpTime::overlapped(fixed_us, memory_us, compute_us, 3.0)
}

/// Scoring every cached token by a small index key and picking the best.
pub(crate) fn index_scan(gpu: &Gpu, read: &Reading, heads: f64, head_dim: f64) -> OpTime {
    let r = attention_rates(gpu.family);
    let cached = read.sequences * read.context;
    // One byte an element and a 4-byte scale per key, as the engines cache it.
    let layer_bytes = read.context * (head_dim + 4.0);
    let memory_us = cached * (head_dim + 4.0) * read.memory_factor(gpu, layer_bytes, read.passes)
        / (gpu.bandwidth_gb_s * 1e3 * MLA_BANDWIDTH);
    let rate = gpu.tflops_fp8.max(gpu.tflops_bf16).max(1.0) * 1e6 * MLA_COMPUTE;
    let compute_us = 2.0 * cached * read.tokens * heads * head_dim / rate;
    // Scores, top-k and the gather are three kernels.
    OpTime::overlapped(2.0 * r.fixed_us, memory_us, compute_us, 3.0)
}

/// A recurrent layer that reads and writes `state_bytes` per sequence for each query token;
/// `verify_us` is what more a pass over several tokens of a sequence launches.
pub(crate) fn recurrent(gpu: &Gpu, read: &Reading, state_bytes: f64, verify_us: f64) -> OpTime {
    // A verify keeps the state of every draft token, so it writes each.
    let moved = read.sequences * state_bytes * (1.0 + read.tokens);
    let memory_us = moved / (gpu.bandwidth_gb_s * 1e3 * STATE_BANDWIDTH);
    let more_us = if read.tokens > 1.0 { verify_us } else { 0.0 };
    OpTime::overlapped(STATE_FIXED_US + more_us, memory_us, 0.0, 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::find;

    fn read(sequences: f64, context: f64) -> Reading {
        Reading {
            sequences,
            tokens: 1.0,
            context,
            passes: 1.0,
            shared_prefix: 0.0,
            splits: f64::INFINITY,
        }
    }

    #[test]
    fn measured_decode_attention_is_met_within_a_fifth() {
        // `data/op_times/decode_attention_h200_sxm_vllm0.24.0.csv`: 32 query, 8 kv heads of 128.
        let gpu = find("h200").expect("catalogue");
        for (batch, context, measured_us) in [
            (1.0, 128.0, 11.74f64),
            (1.0, 65536.0, 84.33),
            (8.0, 8192.0, 83.35),
            (64.0, 512.0, 51.61),
            (64.0, 8192.0, 490.76),
            (128.0, 4096.0, 492.62),
        ] {
            let us = gqa(gpu, &read(batch, context), 32.0, 8.0, 256.0, 2.0).total_us();
            let error = (us / measured_us).ln().abs();
            assert!(
                error < 0.2,
                "{batch} x {context}: {us:.1} for {measured_us}"
            );
        }
    }

    /// Measured, a layer: state kernel 5.5 to 11.5 us at one user and 50.8 to 156.2 at 32, the
    /// convolution 2.4 to 3.5 and 3.4 to 6.1, and five kernels that a plain step has not.
    #[test]
    fn a_verify_of_a_delta_rule_layer_costs_more_than_a_plain_step_as_profiled() {
        let gpu = find("h200").expect("catalogue");
        let state_bytes = 48.0 * 128.0 * 128.0 * 4.0;
        for (users, measured_us) in [(1.0, 16.0f64), (32.0, 120.4)] {
            let plain = recurrent(gpu, &read(users, 2200.0), state_bytes, DELTA_VERIFY_US);
            let verify = Reading {
                tokens: 4.0,
                ..read(users, 2200.0)
            };
            let verify = recurrent(gpu, &verify, state_bytes, DELTA_VERIFY_US);
            let us = verify.total_us() - plain.total_us();
            let error = (us / measured_us).ln().abs();
            assert!(error < 0.1, "{users} users: {us:.1} more for {measured_us}");
        }
    }

    #[test]
    fn a_verify_reads_the_cache_once() {
        let gpu = find("h200").expect("catalogue");
        let plain = gqa(gpu, &read(8.0, 65536.0), 32.0, 8.0, 256.0, 2.0);
        let verify = Reading {
            tokens: 4.0,
            ..read(8.0, 65536.0)
        };
        let verify = gqa(gpu, &verify, 32.0, 8.0, 256.0, 2.0);
        assert!(verify.total_us() < 1.1 * plain.total_us());
    }
}
