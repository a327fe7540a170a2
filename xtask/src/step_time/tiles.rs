//! FlashInfer's kernel for several query tokens of a sequence (`BatchPrefillWithPagedKVCacheWrapper`, "fa2"). It
//! splits the cache over the card, but multiplies whole tiles of query rows, most of them empty, and applies a
//! mask to each of them.
//!
//! Source: `FA2DetermineCtaTileQ` and `PrefillSplitQOKVIndptr` of FlashInfer 0.6.12; measured alone on an H200
//! (docs/HARDWARE.md "Verifying over a long context").

use super::attention::Reading;
use super::walk::{Heads, MMA_SM_TFLOPS};
use crate::gpus::{Family, Gpu};

/// How an engine calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// In a CUDA graph, for which a tile is sized as if one sequence had all tokens but one of each other.
    pub(crate) graph: bool,
    /// With a mask of the whole context, as a tree of drafts needs.
    pub(crate) masked: bool,
}

/// What a cached token of one head of 128 takes beside the multiplications, ns at [`CLOCK_GHZ`].
const TOKEN_NS: f64 = 11.5;
/// The same where an FP8 cache is made BF16 for a tile of more than 16 rows: heads of 128, and of 256, which no
/// longer fit the registers.
const FP8_TOKEN_NS: (f64, f64) = (41.0, 125.0);
/// Reading a mask, for each row of the tile, ns at [`CLOCK_GHZ`].
const MASK_ROW_NS: f64 = 0.33;
/// Clock that the card ran at, which these were measured on.
const CLOCK_GHZ: f64 = 1.98;
/// What a launch takes beside, without and with a mask, us.
const FIXED_US: (f64, f64) = (9.0, 14.0);

/// Boost clock of the cards of a family, GHz (NVIDIA's data sheets; the slowest of them is an A100).
fn clock_ghz(gpu: &Gpu) -> f64 {
    match gpu.family {
        Family::Volta | Family::Turing => 1.5,
        Family::Ampere if gpu.arch == "sm_80" => 1.41,
        Family::Ampere => 1.7,
        Family::Ada => 2.5,
        Family::Hopper | Family::Blackwell | Family::Cdna3 => CLOCK_GHZ,
        Family::BlackwellRtx => 2.4,
    }
}

impl Tiles {
    /// Query rows of one tile, and how many tiles read the cache one after the other.
    fn rows(self, read: &Reading, heads: &Heads) -> (f64, f64) {
        let group = heads.query / heads.cached;
        let own = read.tokens * group;
        let planned = match self.graph {
            true => (read.sequences * (read.tokens - 1.0) + 1.0) * group,
            false => own,
        };
        let wide = heads.row / 2.0 >= 256.0;
        let rows = match planned {
            planned if planned > 64.0 && !wide => 128.0,
            planned if planned > 16.0 => 64.0,
            _ => 16.0,
        };
        (rows, (own / rows).ceil().max(1.0))
    }

    /// Time that one multiprocessor needs for one cached token of one head, ns.
    fn token_ns(self, gpu: &Gpu, rows: f64, row: f64, kv_bytes: f64) -> f64 {
        let sm_tflops = gpu.tflops_bf16.max(1.0) / f64::from(gpu.sm_count.max(1));
        let multiply_ns = 2.0 * rows * row / (sm_tflops.min(MMA_SM_TFLOPS) * 1e3);
        let made_ns = match (kv_bytes < 1.5 && rows > 16.0, row > 256.0) {
            (true, false) => FP8_TOKEN_NS.0,
            (true, true) => FP8_TOKEN_NS.1,
            (false, _) => TOKEN_NS * row / 256.0,
        };
        let mask_ns = if self.masked { MASK_ROW_NS * rows } else { 0.0 };
        multiply_ns + (made_ns + mask_ns) * CLOCK_GHZ / clock_ghz(gpu)
    }

    /// Time of one layer, us: the multiprocessors share the tokens of all heads evenly.
    pub(super) fn us(self, gpu: &Gpu, read: &Reading, heads: &Heads, kv_bytes: f64) -> f64 {
        let (rows, tiles) = self.rows(read, heads);
        let tokens = read.sequences * read.context * heads.cached * tiles;
        let each_ns = self.token_ns(gpu, rows, heads.row, kv_bytes);
        let fixed_us = if self.masked { FIXED_US.1 } else { FIXED_US.0 };
        fixed_us + tokens * each_ns * 1e-3 / f64::from(gpu.sm_count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::find;

    /// FlashInfer 0.6.12 alone on an H200, us a layer, beside its plain step where that takes longer than the tiles.
    #[test]
    fn tiles_of_flashinfer_are_met_as_measured_alone() {
        let gpu = find("h200").expect("catalogue");
        let tiles = |graph, masked| Tiles { graph, masked };
        let (vllm, sglang, chain) = (tiles(false, false), tiles(true, true), tiles(true, false));
        let heads = |query, cached, head_dim: f64| Heads {
            query,
            cached,
            row: 2.0 * head_dim,
        };
        let (of_8b, of_32b, of_397b) = (
            heads(32.0, 8.0, 128.0),
            heads(64.0, 8.0, 128.0),
            heads(16.0, 2.0, 256.0),
        );
        let (bf16, fp8) = (2.0, 1.0);
        for (way, heads, bytes, (users, context, tokens), (plain_us, measured_us)) in [
            (vllm, of_8b, bf16, (16.0, 32768.0, 4.0), (506.2, 508.0)),
            (vllm, of_32b, bf16, (16.0, 32768.0, 4.0), (508.6, 564.0)),
            (vllm, of_8b, fp8, (16.0, 32768.0, 4.0), (425.9, 433.5)),
            (vllm, of_32b, fp8, (16.0, 32768.0, 4.0), (420.8, 1662.3)),
            (vllm, of_32b, fp8, (1.0, 32768.0, 4.0), (39.2, 96.4)),
            (vllm, of_32b, fp8, (64.0, 4096.0, 4.0), (228.2, 687.1)),
            (vllm, of_397b, bf16, (16.0, 16384.0, 4.0), (142.1, 146.0)),
            (vllm, of_397b, fp8, (16.0, 16384.0, 4.0), (107.0, 556.1)),
            (sglang, of_8b, bf16, (1.0, 32768.0, 4.0), (44.1, 59.3)),
            (sglang, of_8b, bf16, (1.0, 32768.0, 8.0), (44.1, 96.9)),
            (sglang, of_8b, bf16, (16.0, 32768.0, 4.0), (506.2, 1904.5)),
            (sglang, of_8b, fp8, (16.0, 16384.0, 4.0), (225.6, 1690.8)),
            (sglang, of_32b, bf16, (64.0, 4096.0, 4.0), (264.8, 1135.3)),
            (sglang, of_397b, bf16, (16.0, 16384.0, 4.0), (142.1, 243.0)),
            (sglang, of_397b, fp8, (4.0, 16384.0, 4.0), (38.7, 181.7)),
            (chain, of_8b, bf16, (16.0, 16384.0, 4.0), (260.6, 455.7)),
        ] {
            let read = Reading {
                sequences: users,
                tokens,
                context,
                passes: 1.0,
                shared_prefix: 0.0,
                splits: 1.0,
            };
            let us = way.us(gpu, &read, &heads, bytes).max(plain_us);
            let error = (us / measured_us).ln().abs();
            assert!(
                error < 0.18,
                "{way:?} {users} x {context}, {bytes} bytes: {us:.0} for {measured_us}"
            );
        }
    }

    /// A wider tile never takes less, nor do more tokens, users or a mask.
    #[test]
    fn tiles_grow_with_what_they_hold() {
        let gpu = find("rtx-3090").expect("catalogue");
        let us = |graph, masked, users: f64, tokens: f64, context: f64| {
            let read = Reading {
                sequences: users,
                tokens,
                context,
                passes: 1.0,
                shared_prefix: 0.0,
                splits: 1.0,
            };
            let heads = Heads {
                query: 16.0,
                cached: 2.0,
                row: 256.0,
            };
            Tiles { graph, masked }.us(gpu, &read, &heads, 2.0)
        };
        for users in [1.0, 2.0, 8.0, 64.0] {
            for tokens in [2.0, 3.0, 4.0, 8.0] {
                let base = us(false, false, users, tokens, 4096.0);
                assert!(us(true, false, users, tokens, 4096.0) >= base);
                assert!(us(true, true, users, tokens, 4096.0) > base);
                assert!(us(false, false, users, tokens + 1.0, 4096.0) >= base);
                assert!(us(false, false, users, tokens, 8192.0) > base);
            }
        }
    }
}
