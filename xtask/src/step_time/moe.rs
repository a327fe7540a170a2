//! Routed experts: only the experts that some token chose are read.
//!
//! Fitted on `data/op_times/moe_*` (vLLM 0.24 and 0.14; 1 to 512 tokens, 8 to 896 experts, 1 to 8
//! ranks, balanced and skewed routing): median error 0.05 to 0.10 with three constants per family
//! and class and one exponent for the skew of the tables' routing. Rows whose touched experts fit
//! the last-level cache are left out: a benchmark loop reads them from there, a forward pass
//! cannot. What a served model routes to is another matter: [`POPULARITY_SIGMA`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::gemm::gemm_rates;
use super::op::{Class, Numbers, OpTime, is_mxfp4, memory_share, widened_per_ns};
use crate::gpus::{Family, Gpu};

/// Skew of the tables' synthetic routing: the i-th most popular expert is chosen in proportion to
/// i^-SKEW. 0.58 fits the skewed rows of every table (0.49 to 0.77).
#[cfg(test)]
const ROUTING_SKEW: f64 = 0.58;

/// Served models: an expert's popularity is the exponential of a normal variable, as router logits
/// spread normally over experts, with this deviation. Up to 8 tokens that is nearly independent
/// choice; 64 tokens touch three quarters of what independent ones would. Fitted on the plain
/// sweeps of Kimi-K2.6 and Qwen3.5-397B over PCIe, whose steps from 32 to 128 users grow too
/// little for a power law; servers over NVLink, which were not fitted, agree (0.073 to 0.069).
pub(crate) const POPULARITY_SIGMA: f64 = 1.0;

/// Rows a tile of the grouped product has at least: one matrix instruction's.
const TILE_ROWS: f64 = 16.0;

/// Efficiencies of grouped expert products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MoeRates {
    /// Routing, permuting, launch and tail of all kernels, us.
    pub(crate) fixed_us: f64,
    /// Share of the data-sheet bandwidth.
    pub(crate) bandwidth: f64,
    /// Share of the data-sheet rate per routed row; low since every expert pads its last tile.
    pub(crate) compute: f64,
}

const fn rates(fixed_us: f64, bandwidth: f64, compute: f64) -> MoeRates {
    MoeRates {
        fixed_us,
        bandwidth,
        compute,
    }
}

/// Fitted per family and class. Data-centre Blackwell has no table: bandwidth and compute shares
/// are Hopper's and the RTX PRO's, the fixed part was lowered by hand, together with that of
/// products and attention, until the served steps of Kimi-K2.5, Qwen3.5-397B and DeepSeek on such
/// cards had no common bias.
pub(crate) fn moe_rates(family: Family, class: Class, bytes: f64) -> MoeRates {
    use Class::{Byte, Fp4, Half, WeightOnly4};
    let mxfp4 = is_mxfp4(bytes);
    match (family, class) {
        (Family::Hopper | Family::Cdna3, Half) => rates(36.0, 0.90, 0.17),
        (Family::Hopper | Family::Cdna3, Byte | Fp4) => rates(42.0, 0.855, 0.24),
        (Family::Hopper | Family::Cdna3, WeightOnly4) if mxfp4 => rates(51.0, 0.65, 0.235),
        (Family::Hopper | Family::Cdna3, WeightOnly4) => rates(41.0, 0.72, 0.35),
        (Family::Ampere | Family::Volta | Family::Turing, _) => rates(45.0, 0.77, 0.12),
        (Family::Ada | Family::BlackwellRtx, Half) => rates(33.0, 0.93, 0.18),
        (Family::Ada | Family::BlackwellRtx, Byte) => rates(39.5, 0.91, 0.217),
        (Family::Ada | Family::BlackwellRtx, Fp4) => rates(66.0, 0.91, 0.334),
        (Family::Ada | Family::BlackwellRtx, WeightOnly4) if mxfp4 => rates(34.0, 0.87, 0.35),
        // From balanced rows, whose touched experts are known: median error 0.01.
        (Family::Ada | Family::BlackwellRtx, WeightOnly4) => rates(30.0, 0.95, 0.585),
        (Family::Blackwell, Half) => rates(18.0, 0.85, 0.17),
        (Family::Blackwell, Byte) => rates(18.0, 0.84, 0.235),
        (Family::Blackwell, Fp4) => rates(12.5, 0.80, 0.25),
        (Family::Blackwell, WeightOnly4) => rates(30.0, 0.72, 0.35),
    }
}

/// Distinct experts that `tokens` tokens choose, as a curve computed once per layer kind.
#[derive(Debug, Clone)]
pub(crate) struct TouchCurve {
    /// Expected experts at `tokens` = 2^(index / STEPS).
    touched: Vec<f64>,
    experts: f64,
    topk: f64,
}

/// Points of the curve per doubling of tokens.
const STEPS: f64 = 4.0;
/// Doublings covered; beyond, every expert is touched.
const DOUBLINGS: usize = 24;

thread_local! {
    /// Curves made so far: a catalogue has few shapes, sweeps ask for them thousands of times.
    static CURVES: RefCell<HashMap<(u64, u64), Rc<TouchCurve>>> = RefCell::new(HashMap::new());
}

impl TouchCurve {
    /// The curve of served models, [`POPULARITY_SIGMA`], made once a thread.
    pub(crate) fn served(experts: u64, topk: u64) -> Rc<Self> {
        CURVES.with(|curves| {
            curves
                .borrow_mut()
                .entry((experts, topk))
                .or_insert_with(|| {
                    let popularity = |share: f64| (POPULARITY_SIGMA * normal_quantile(share)).exp();
                    Rc::new(Self::of(experts, topk, popularity))
                })
                .clone()
        })
    }

    /// Independent tokens that choose `topk` of `experts` with popularity i^-`skew`.
    #[cfg(test)]
    pub(crate) fn new(experts: u64, topk: u64, skew: f64) -> Self {
        let count = experts.clamp(1, 65_536) as f64;
        Self::of(experts, topk, |share| (share * count + 0.5).powf(-skew))
    }

    /// Independent tokens that choose `topk` of `experts`; `popularity` of the expert below which
    /// such a share of all experts lies.
    fn of(experts: u64, topk: u64, popularity: impl Fn(f64) -> f64) -> Self {
        let count = experts.clamp(1, 65_536);
        let weights: Vec<f64> = (1..=count)
            .map(|i| popularity((i as f64 - 0.5) / count as f64))
            .collect();
        let sum: f64 = weights.iter().sum();
        let topk = topk.clamp(1, count) as f64;
        // ln of the chance that one token leaves the expert alone.
        let misses: Vec<f64> = weights
            .iter()
            .map(|w| (-(topk * w / sum).min(1.0 - 1e-12)).ln_1p())
            .collect();
        let touched = (0..=DOUBLINGS * STEPS as usize)
            .map(|i| {
                let tokens = 2f64.powf(i as f64 / STEPS);
                misses.iter().map(|m| -(m * tokens).exp_m1()).sum()
            })
            .collect();
        Self {
            touched,
            experts: count as f64,
            topk,
        }
    }

    /// Expected distinct experts, never fewer than one token's.
    pub(crate) fn at(&self, tokens: f64) -> f64 {
        let position = tokens.max(1.0).log2() * STEPS;
        let below = position.floor().max(0.0);
        let index = if below.is_finite() {
            below as usize
        } else {
            usize::MAX
        };
        match (
            self.touched.get(index),
            self.touched.get(index.saturating_add(1)),
        ) {
            (Some(low), Some(high)) => low + (high - low) * (position - below),
            _ => self.experts,
        }
        .max(self.topk.min(self.touched.first().copied().unwrap_or(1.0)))
    }

    /// The same as a share of all experts.
    pub(crate) fn share(&self, tokens: f64) -> f64 {
        (self.at(tokens) / self.experts).min(1.0)
    }
}

/// Quantile of the standard normal distribution, 0 < `share` < 1. Tukey's lambda form, within 0.01
/// between 0.001 and 0.999.
fn normal_quantile(share: f64) -> f64 {
    (share.powf(0.135) - (1.0 - share).powf(0.135)) / 0.1975
}

/// What a single token spares of sorting rows by expert, us: it rises by as much from one token to
/// two. On RTX cards the tables' fixed part meets one user and all more take this longer: the jump
/// from one user to two that every public sweep on such cards shows beyond its bytes (9 to 49 us a
/// layer in eight sweeps of four builds, median 22; dense layers have none). On Hopper the fixed
/// part meets served loads and one user is faster: gpt-oss-20b and -120b on an H100, Qwen3-30B-A3B
/// on two (24, 16 and 12 us a layer).
fn one_token_saves_us(family: Family) -> f64 {
    match family {
        Family::BlackwellRtx => 22.0,
        Family::Hopper => 12.0,
        _ => 0.0,
    }
}

/// Fixed part for `tokens` tokens. Approached without a step, so that a little more than one token
/// costs a little more.
fn fixed_us(family: Family, fitted_us: f64, tokens: f64) -> f64 {
    let saved_us = one_token_saves_us(family);
    let beyond_one = (tokens - 1.0).clamp(0.0, 1.0);
    let one_us = match family {
        Family::BlackwellRtx => fitted_us,
        _ => fitted_us - saved_us,
    };
    one_us + saved_us * beyond_one
}

/// A mixture of experts as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertShape {
    /// Width the experts work in.
    pub(crate) hidden: f64,
    /// Inner width of an expert on this rank.
    pub(crate) inter: f64,
    /// Matrices: 3 gated, 2 plain.
    pub(crate) matrices: f64,
    /// Experts a token goes through.
    pub(crate) topk: f64,
    /// Expert-parallel ranks.
    pub(crate) ranks: f64,
}

/// Time of the routed experts for `tokens` tokens (all ranks together) that touch `touched`
/// distinct experts. Expert-parallel ranks are taken as equally full: allowing for the fullest one
/// (1.15 of the mean) made served steps with expert parallelism worse on all three engines.
pub(crate) fn experts(
    gpu: &Gpu,
    numbers: &Numbers,
    shape: &ExpertShape,
    tokens: f64,
    touched: f64,
) -> OpTime {
    let r = moe_rates(gpu.family, numbers.class, numbers.bytes);
    let local = (touched / shape.ranks).max(1.0);
    let weights = shape.matrices * shape.hidden * shape.inter;
    let share = memory_share(gpu, r.bandwidth);
    let memory_us = local * weights * numbers.bytes / (gpu.bandwidth_gb_s * 1e3 * share);
    // However few rows an expert has, one tile of it is multiplied at a dense tile's rate. Weights
    // that must be widened first go through the ordinary lanes, whose number follows the SMs.
    let tile_us = if numbers.class == Class::WeightOnly4 {
        let per_us_sm = widened_per_ns(gpu.family, is_mxfp4(numbers.bytes)) * 1e3;
        weights / (per_us_sm * f64::from(gpu.sm_count.max(1)))
    } else {
        let dense = gemm_rates(gpu.family, numbers.class).compute;
        TILE_ROWS * 2.0 * weights / (numbers.tflops * 1e6 * dense)
    };
    let rows = tokens * shape.topk / shape.ranks;
    let rows_us = rows * 2.0 * weights / (numbers.tflops * 1e6 * r.compute);
    let compute_us = (tile_us * local).max(rows_us);
    let fixed_us = fixed_us(gpu.family, r.fixed_us, tokens);
    OpTime::overlapped(fixed_us, memory_us, compute_us, 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::find;
    use kvplan::WeightFormat;

    #[test]
    fn touched_experts_grow_from_topk_to_all() {
        let curve = TouchCurve::new(384, 8, ROUTING_SKEW);
        let one = curve.at(1.0);
        assert!((7.0..=8.001).contains(&one), "{one}");
        let mut last = 0.0;
        for tokens in [1.0, 1.5, 2.0, 7.0, 64.0, 1e3, 1e6, 1e12, f64::INFINITY] {
            let now = curve.at(tokens);
            assert!(now >= last && now <= 384.0, "{tokens}: {now}");
            last = now;
        }
        let even = TouchCurve::new(384, 8, 0.0).at(32.0);
        let formula = 384.0 * (1.0 - (1.0 - 8.0 / 384.0f64).powi(32));
        assert!((even / formula - 1.0).abs() < 1e-9, "{even} {formula}");
    }

    /// `data/op_times/moe_*`, power_law_1.01: GPU, format, hidden, inter on a rank, topk, experts,
    /// tokens, us.
    const ROWS: &str = "
        h200-sxm            fp8-block 7168 2048 8 256 16  890.73
        h200-sxm            fp8-block 7168 2048 8 256  1  114.7
        h200-sxm            bf16      3072 1024 8 256 64  840.79
        rtx-pro-6000-server int4      7168 2048 8 384 32 2658.48
        rtx-pro-6000-server int4      7168 2048 8 384  4  551.96
        rtx-pro-6000-server nvfp4     7168  512 8 384  8  352.24";

    #[test]
    fn measured_experts_are_met_within_a_third() {
        for row in ROWS.lines().filter(|l| !l.trim().is_empty()) {
            let cells: Vec<&str> = row.split_whitespace().collect();
            let number = |i: usize| cells[i].parse::<f64>().expect("a number");
            let gpu = find(cells[0]).expect("catalogue");
            let format = match cells[1] {
                "fp8-block" => WeightFormat::Fp8Block,
                "bf16" => WeightFormat::Bf16,
                "nvfp4" => WeightFormat::Nvfp4,
                _ => WeightFormat::Int4 {
                    group: 32,
                    zero_point: false,
                },
            };
            let shape = ExpertShape {
                hidden: number(2),
                inter: number(3),
                matrices: 3.0,
                topk: number(4),
                ranks: 1.0,
            };
            let curve = TouchCurve::new(number(5) as u64, number(4) as u64, ROUTING_SKEW);
            let (tokens, measured_us) = (number(6), number(7));
            let numbers = Numbers::of(format, gpu);
            let us = experts(gpu, &numbers, &shape, tokens, curve.at(tokens)).total_us();
            let error = (us / measured_us).ln().abs();
            assert!(error < 0.33, "{row}: {us:.0}");
        }
    }
}
