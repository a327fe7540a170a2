//! The power limit as a second roof: a card at its limit lowers its clocks until a pass takes the
//! time in which its energy may be spent.
//!
//! On an H200 (700 W) SM clocks fall from 1,980 to about 1,500 MHz, reason "software power cap", in
//! passes over 128 tokens and more of an 8B model, and of a mixture of experts from 96 on, which
//! draws 667 W at 64. Five constants: what the card draws at full clocks whatever it does, energy of
//! an operation and of a byte in cuBLASLt's products, and of both in the stand-in's own kernels
//! (experts and attention), which pass every byte through shared memory and multiply in narrow
//! tiles. Fitted by least squares of the logarithm on the power drawn by plain steps below the limit
//! (8B: 530 W with one sequence, 628 with 64; Qwen3-30B-A3B: 667 with 64) and on the times of held
//! passes at it (8B: 256 and 384 sequences, 64 x 4 and 64 x 6 tokens; Qwen3: 256 and 384 sequences).
//! Llama-3.1-70B on two cards, left out, comes within 4 % (5 % with NCCL, whose own energy is not
//! told apart), two later runs on other machines within 5 %; docs/HARDWARE.md has the figures.

use kvplan::{Ffn, Model, WeightFormat};

use crate::gpus::{Family, Gpu};
use crate::step_time::StepParts;

/// Drawn at full clocks beside what follows, W.
const STATIC_W: f64 = 420.0;
/// Energy of a bf16 operation (a multiplication or an addition) of a dense product, pJ.
const DENSE_PJ_PER_FLOP: f64 = 0.443;
/// The same in fp8: from held steps of 256 sequences of the 8B model in fp8 (6.24 and 5.97 ms on
/// two machines).
const DENSE_PJ_PER_FP8_FLOP: f64 = 0.28;
/// Energy of a byte of weights from memory to the multipliers in such a product, pJ.
const DENSE_PJ_PER_BYTE: f64 = 35.0;
/// Energy of an operation of the experts' products, pJ.
const EXPERT_PJ_PER_FLOP: f64 = 0.94;
/// Energy of a byte of experts or cache, pJ.
const OWN_PJ_PER_BYTE: f64 = 68.0;
/// Least board power of the cards that the constants are of: the SXM cards of this chip.
const LEAST_W: f64 = 600.0;
/// Shares of the data sheet's bandwidth at which the step model reads the weights of dense
/// products, and experts and cache (`step_time`: `gemm.rs`, `moe.rs`, `attention.rs`).
const DENSE_READ_SHARE: f64 = 0.87;
const OWN_READ_SHARE: f64 = 0.90;

fn is_fp8(format: WeightFormat) -> bool {
    format == WeightFormat::Fp8
}

/// What a pass does on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    /// Operations of dense products in bf16, attention's left out.
    pub(super) dense_flops: f64,
    /// The same in fp8.
    pub(super) fp8_flops: f64,
    /// Bytes of their weights.
    pub(super) dense_bytes: f64,
    /// Operations of routed experts.
    pub(super) expert_flops: f64,
    /// Bytes of experts and cache.
    pub(super) own_bytes: f64,
}

impl Work {
    /// Of a pass over `tokens` tokens on one of `ranks` ranks; bytes are what the model's `pass`
    /// spends its time on reading.
    pub(super) fn of(model: &Model, gpu: &Gpu, pass: &StepParts, tokens: f64, ranks: f64) -> Self {
        let experts: f64 = model
            .layers
            .iter()
            .map(|layer| match layer.ffn {
                Ffn::Moe(moe) => {
                    let width = moe.latent.unwrap_or(model.hidden) as f64;
                    let matrices = if moe.gated { 3.0 } else { 2.0 };
                    matrices * width * moe.expert_inter as f64 * moe.topk as f64
                }
                _ => 0.0,
            })
            .sum();
        // The embedding table is looked up, not multiplied.
        let table = if model.tied_embeddings {
            0.0
        } else {
            model.vocab as f64 * model.hidden as f64
        };
        let dense = (model.active_params() as f64 - table - experts).max(0.0);
        // The output head stays in 16 bits.
        let fp8 = if model.layers.iter().any(|l| is_fp8(l.formats.dense)) {
            (dense - model.vocab as f64 * model.hidden as f64).max(0.0)
        } else {
            0.0
        };
        let read = |ms: f64, share: f64| ms * gpu.bandwidth_gb_s * 1e6 * share;
        Self {
            dense_flops: 2.0 * (dense - fp8) * tokens / ranks,
            fp8_flops: 2.0 * fp8 * tokens / ranks,
            dense_bytes: read(pass.weights_ms, DENSE_READ_SHARE),
            expert_flops: 2.0 * experts * tokens / ranks,
            own_bytes: read(pass.experts_ms + pass.kv_ms, OWN_READ_SHARE),
        }
    }

    /// Energy beyond what the card draws anyway, J.
    fn joules(&self) -> f64 {
        let pj = self.dense_flops * DENSE_PJ_PER_FLOP
            + self.fp8_flops * DENSE_PJ_PER_FP8_FLOP
            + self.dense_bytes * DENSE_PJ_PER_BYTE
            + self.expert_flops * EXPERT_PJ_PER_FLOP
            + self.own_bytes * OWN_PJ_PER_BYTE;
        pj * 1e-12
    }
}

/// Least time of a pass, ms; 0 where it is not known. All of the pass counts, all-reduces too: the
/// limit holds over tenths of a second.
pub(super) fn least_ms(gpu: &Gpu, work: &Work) -> f64 {
    if gpu.family != Family::Hopper || gpu.power_w < LEAST_W {
        return 0.0;
    }
    1000.0 * work.joules() / (gpu.power_w - STATIC_W)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Work = Work {
        dense_flops: 0.0,
        fp8_flops: 0.0,
        dense_bytes: 0.0,
        expert_flops: 0.0,
        own_bytes: 0.0,
    };

    /// Cached tokens a sequence in these runs: of plain steps, and of verifies.
    fn held(tokens: f64) -> f64 {
        if tokens > 1.0 { 176.0 } else { 140.0 }
    }

    /// Llama-3.1-8B: 7.5e9 weights that are multiplied, 131,072 bytes a cached token; plain steps
    /// were taken with 140 tokens a sequence, verifies with 176.
    fn dense_8b(sequences: f64, tokens: f64) -> Work {
        Work {
            dense_flops: 15.0e9 * sequences * tokens,
            dense_bytes: 15.0e9,
            own_bytes: sequences * held(tokens) * 131_072.0,
            ..NOTHING
        }
    }

    /// The same in fp8 but for its output head of 0.525e9 weights.
    fn fp8_8b(sequences: f64, tokens: f64) -> Work {
        Work {
            dense_flops: 1.05e9 * sequences * tokens,
            fp8_flops: 13.95e9 * sequences * tokens,
            dense_bytes: 8.03e9,
            ..dense_8b(sequences, tokens)
        }
    }

    /// Qwen3-30B-A3B: 1.2e9 dense weights, 48 layers of 128 experts of 4.72e6 weights, 8 a token;
    /// 98,304 bytes a cached token. `touched` experts a layer.
    fn mixture(sequences: f64, touched: f64) -> Work {
        Work {
            dense_flops: 2.0 * 1.22e9 * sequences,
            dense_bytes: 2.0 * 1.22e9,
            fp8_flops: 0.0,
            expert_flops: 2.0 * 48.0 * 8.0 * 4.72e6 * sequences,
            own_bytes: 2.0 * 48.0 * touched * 4.72e6 + sequences * held(1.0) * 98_304.0,
        }
    }

    /// 70B on two cards: 69.5e9 weights, 327,680 bytes a cached token; a rank's half.
    fn dense_70b(sequences: f64, tokens: f64) -> Work {
        Work {
            dense_flops: 69.5e9 * sequences * tokens,
            dense_bytes: 69.5e9,
            own_bytes: sequences * held(tokens) * 163_840.0,
            ..NOTHING
        }
    }

    #[test]
    fn passes_of_an_h200_at_its_power_limit_take_the_time_of_their_energy() {
        let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
        // Measured on three machines, ms.
        let measured = [
            (dense_8b(256.0, 1.0), vec![9.40, 9.14, 8.84]),
            (dense_8b(384.0, 1.0), vec![12.70, 12.56, 12.36]),
            (dense_8b(64.0, 4.0), vec![7.92, 8.25, 7.90]),
            (dense_8b(64.0, 6.0), vec![11.42, 11.67, 11.46]),
            (mixture(256.0, 125.4), vec![18.95, 19.20, 18.74]),
            (mixture(384.0, 126.9), vec![22.0, 21.78, 21.21]),
            (fp8_8b(256.0, 1.0), vec![6.24, 5.97]),
            (fp8_8b(64.0, 4.0), vec![5.35]),
            // Another model, not in the fit.
            (dense_70b(256.0, 1.0), vec![36.93, 38.38]),
            (dense_70b(64.0, 4.0), vec![36.08]),
        ];
        for (work, runs) in measured {
            for ms in runs {
                let error = least_ms(gpu, &work) / ms - 1.0;
                println!("{ms} ms: {error:+.3}");
                assert!(error.abs() < 0.055, "{work:?} {ms} ms: {error:+.3}");
            }
        }
    }

    #[test]
    fn an_h200_below_its_power_limit_draws_what_the_work_costs() {
        // Measured W and ms at full clocks.
        let measured = [
            (dense_8b(1.0, 1.0), 530.0, 4.66),
            (dense_8b(64.0, 1.0), 628.0, 5.16),
            (mixture(64.0, 107.2), 667.0, 15.16),
        ];
        for (work, watts, ms) in measured {
            let drawn = STATIC_W + 1000.0 * work.joules() / ms;
            println!("{watts} W: {drawn:.0}");
            assert!((drawn / watts - 1.0).abs() < 0.03, "{watts} W: {drawn:.0}");
        }
        // Far below the limit one sequence waits for memory.
        let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
        assert!(least_ms(gpu, &dense_8b(1.0, 1.0)) < 3.0);
        let other = crate::gpus::find("rtx-3090").expect("in the catalogue");
        assert!(least_ms(other, &dense_8b(1e6, 1.0)) == 0.0);
    }
}
