//! A stand-in for the scenario's model on this GPU: real shapes, random weights, CUDA graphs.

pub(crate) mod check;
mod draws;
mod memory;
pub(crate) mod model;
mod ops;
pub(crate) mod pass;
mod room;
pub(crate) mod run;
pub(crate) mod shapes;
mod work;

use kvplan::{Ffn, Model};

use crate::gpus::{Family, Gpu};
use crate::step_time::Overhead;

/// Launch and host costs of the stand-in beside those of an engine: the same graphs, no
/// scheduler and no text.
pub(crate) fn overhead(engine: Overhead) -> Overhead {
    Overhead {
        host_ms: 0.03,
        sequence_us: 0.0,
        ..engine
    }
}

/// What an engine's sort of rows by expert costs from the second token on and ours does not, us
/// (`one_token_saves_us` in `step_time/moe.rs`): one block does it in 2 us.
const SORT_SPARED_US: f64 = 12.0;
/// Doublings of tokens after which it is made up for: our choice, activation and weighted sum take
/// longer with every row, and both meet at 64 tokens. Fitted, like the figure above, on plain steps
/// of Qwen3-30B-A3B with 2 to 64 sequences, two runs on two H200s.
const SORT_DOUBLINGS: f64 = 6.0;

/// What a pass over `tokens` tokens spares in all layers with routed experts beside an engine's
/// fused kernels, whose tables the step model stands on, ms. Seen on Hopper alone.
pub(crate) fn experts_spare_ms(model: &Model, gpu: &Gpu, tokens: f64) -> f64 {
    if gpu.family != Family::Hopper {
        return 0.0;
    }
    let routed = model.layers.iter();
    let routed = routed.filter(|l| matches!(l.ffn, Ffn::Moe(_))).count() as f64;
    // One token sorts nothing in an engine either.
    let engine = (tokens - 1.0).clamp(0.0, 1.0);
    let left = (1.0 - tokens.max(1.0).log2() / SORT_DOUBLINGS).max(0.0);
    routed * SORT_SPARED_US * engine * left / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_ins_sort_spares_time_between_one_and_64_tokens_of_a_mixture() {
        let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
        let model = |name| kvplan::catalog::find(name).expect("in the catalogue").model;
        let (mixture, dense) = (model("qwen3-30b-a3b"), model("llama-3.1-8b"));
        let spared = [1.0, 2.0, 8.0, 64.0, 384.0].map(|n| experts_spare_ms(&mixture, gpu, n));
        assert_eq!((spared[0], spared[3], spared[4]), (0.0, 0.0, 0.0));
        assert!((spared[1] - 0.48).abs() < 1e-9 && spared[2] < spared[1]);
        assert_eq!(experts_spare_ms(&dense, gpu, 2.0), 0.0);
    }
}
