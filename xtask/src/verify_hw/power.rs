//! The power limit as a second roof: a card at its limit lowers its clocks until a pass takes the
//! time in which its energy may be spent.
//!
//! On an H200 (700 W) SM clocks fall from 1,980 to about 1,500 MHz, reason "software power cap", in
//! passes over 256 tokens and more of an 8B model. Energy by arithmetic and by bytes read, and what
//! the card takes while it does nothing else, are fitted on plain steps of 256 and 384 sequences
//! and a verify of 64 x 6 tokens at the limit (9.42, 12.70, 11.40 ms), and on 530 W drawn in
//! steps of one sequence below it; 64 sequences then draw 639 W where 625 to 630 were read
//! (docs/HARDWARE.md).

use crate::gpus::{Family, Gpu};

/// Drawn at full clocks beside what follows, W.
const STATIC_W: f64 = 287.0;
/// Energy of a bf16 operation (a multiplication or an addition), pJ.
const PJ_PER_FLOP: f64 = 0.60;
/// Energy of a byte from memory to the multipliers, pJ.
const PJ_PER_BYTE: f64 = 75.0;
/// Least board power of the cards that the constants are of: the SXM cards of this chip.
const LEAST_W: f64 = 600.0;

/// Least time of a pass of `flops` operations that reads `bytes`, ms; 0 where it is not known.
pub(super) fn least_ms(gpu: &Gpu, flops: f64, bytes: f64) -> f64 {
    if gpu.family != Family::Hopper || gpu.power_w < LEAST_W {
        return 0.0;
    }
    let joules = (flops * PJ_PER_FLOP + bytes * PJ_PER_BYTE) * 1e-12;
    1000.0 * joules / (gpu.power_w - STATIC_W)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_an_h200_at_its_power_limit_take_the_time_of_their_energy() {
        let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
        // Llama-3.1-8B: 7.5e9 weights that are multiplied, 131,072 bytes a cached token, 177
        // tokens a sequence: sequences, tokens of each, ms.
        let measured = [
            (256.0, 1.0, 9.42),
            (384.0, 1.0, 12.70),
            (64.0, 6.0, 11.40),
            (128.0, 1.0, 6.12),
        ];
        for (sequences, tokens, ms) in measured {
            let flops = 15.0e9 * sequences * tokens;
            let bytes = 15.0e9 + sequences * 177.0 * 131_072.0;
            let error = least_ms(gpu, flops, bytes) / ms - 1.0;
            assert!(error.abs() < 0.03, "{sequences} x {tokens}: {error:+.3}");
        }
        // One sequence waits for memory, far below the limit.
        assert!(least_ms(gpu, 15.0e9, 15.0e9) < 3.0);
        let other = crate::gpus::find("rtx-3090").expect("in the catalogue");
        assert!(least_ms(other, 1e15, 1e12) == 0.0);
    }
}
