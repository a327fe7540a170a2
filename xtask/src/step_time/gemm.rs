//! Dense matrix products: weights stream once from memory, tiles fill the SMs in waves.
//!
//! Fitted on 12 sizes of m, 19 of n and k (`data/op_times/gemm_*`, vLLM 0.24 and 0.14) by least
//! absolute log error per GPU family and number class, m up to 512. The fit knows that small
//! weights repeat out of the last-level cache in a benchmark loop; a forward pass never finds its
//! weights there, so the prediction leaves that term out.

use super::op::{Class, Numbers, OpTime, memory_share, widened_per_ns};
use crate::gpus::{Family, Gpu};

/// Efficiencies of matrix products on a GPU family in one number class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GemmRates {
    /// Launch, ramp and tail, us.
    pub(crate) fixed_us: f64,
    /// Share of the data-sheet bandwidth.
    pub(crate) bandwidth: f64,
    /// Time a tile needs for one step along k however few rows it has, ns.
    pub(crate) k_step_ns: f64,
    /// Share of the data-sheet rate that full tiles reach.
    pub(crate) compute: f64,
    /// How much idle SMs help a grid of few tiles by splitting k: 0 not at all, 1 fully.
    pub(crate) split_k: f64,
}

const fn rates(
    fixed_us: f64,
    bandwidth: f64,
    k_step_ns: f64,
    compute: f64,
    split_k: f64,
) -> GemmRates {
    GemmRates {
        fixed_us,
        bandwidth,
        k_step_ns,
        compute,
        split_k,
    }
}

/// Fitted on a100_sxm, h100_sxm, h200_sxm and rtx_pro_6000_server (gemm tables). Families without
/// a table take the nearest: Ada and older from Ampere with GDDR bandwidth as on the RTX PRO
/// 6000, data-centre Blackwell from Hopper (its fp4 from both), MI300 from Hopper.
pub(crate) fn gemm_rates(family: Family, class: Class) -> GemmRates {
    use Class::{Byte, Fp4, Half, WeightOnly4};
    match (family, class) {
        (Family::Hopper | Family::Cdna3, Half | WeightOnly4) => rates(3.4, 0.87, 3.2, 0.94, 0.68),
        (Family::Hopper | Family::Cdna3, Byte | Fp4) => rates(5.3, 0.80, 1.6, 0.62, 0.30),
        (Family::Ampere | Family::Volta | Family::Turing, _) => rates(5.2, 0.75, 6.5, 0.80, 0.87),
        (Family::Ada, Half | WeightOnly4) => rates(4.0, 0.90, 5.0, 0.79, 0.90),
        (Family::Ada, Byte | Fp4) => rates(5.0, 0.90, 5.1, 0.68, 0.53),
        (Family::BlackwellRtx, Half | WeightOnly4) => rates(3.2, 0.936, 3.4, 0.786, 0.95),
        (Family::BlackwellRtx, Byte) => rates(4.9, 0.947, 5.1, 0.68, 0.53),
        (Family::BlackwellRtx, Fp4) => rates(6.2, 0.67, 3.5, 0.87, 0.02),
        (Family::Blackwell, Half | WeightOnly4) => rates(2.5, 0.85, 3.2, 0.85, 0.70),
        (Family::Blackwell, Byte) => rates(3.6, 0.80, 1.6, 0.62, 0.30),
        (Family::Blackwell, Fp4) => rates(2.9, 0.75, 1.6, 0.60, 0.30),
    }
}

/// Rows of one matrix instruction, `mma.m16n8k16`.
const MMA_ROWS: f64 = 16.0;
/// Most rows of an output tile.
const TILE_M_MAX: f64 = 128.0;
/// Columns of an output tile.
const TILE_N: f64 = 128.0;
/// Fewest share of the SMs that splitting k is taken to fill.
const LEAST_FILL: f64 = 1.0 / 16.0;
/// Activations are read and written near the processor: at this multiple of memory bandwidth.
const ACTIVATION_BANDWIDTH: f64 = 3.0;

/// Time of `m` rows times an `n` x `k` weight matrix.
pub(crate) fn gemm(gpu: &Gpu, numbers: &Numbers, m: f64, n: f64, k: f64) -> OpTime {
    if n < 1.0 || k < 1.0 || m <= 0.0 {
        return OpTime::default();
    }
    let r = gemm_rates(gpu.family, numbers.class);
    let bytes_per_us = gpu.bandwidth_gb_s * 1e3;
    let memory_us = n * k * numbers.bytes / (bytes_per_us * memory_share(gpu, r.bandwidth))
        + 2.0 * m * (k + n) / (bytes_per_us * ACTIVATION_BANDWIDTH);
    let sms = f64::from(gpu.sm_count.max(1));
    let rows = billed_rows(numbers.class, m);
    let tile_m = rows.min(TILE_M_MAX);
    let fill = rows / tile_m * (n / TILE_N).ceil() / sms;
    let flops_per_us_sm = numbers.tflops * 1e6 / sms * r.compute;
    // A weight-only kernel has no table: fewer bytes to wait for, but every weight is widened.
    let k_step_ns = match numbers.class {
        Class::WeightOnly4 => TILE_N / widened_per_ns(gpu.family, false),
        _ => r.k_step_ns,
    };
    let tile_us = (k * k_step_ns * 1e-3).max(2.0 * tile_m * TILE_N * k / flops_per_us_sm);
    // Below one wave idle SMs split k; above, the last wave is half empty in the mean of all shapes.
    // Which shape fills it nobody can say, so it is not billed wave by wave.
    let waves = if fill < 1.0 {
        fill.max(LEAST_FILL).powf(r.split_k)
    } else {
        fill + 0.5 * (1.0 - 1.0 / fill)
    };
    OpTime::overlapped(r.fixed_us, memory_us, tile_us * waves, 1.0)
}

/// Rows that are computed for `m` rows of input: at least those of one matrix instruction (8 in the
/// weight-only kernels, Marlin), and no whole tiles beyond. One to 16 rows take one time in all tables, which
/// have powers of two only. Kernels are chosen by size, with tiles of 64 to 256 rows: which one runs
/// at 72 or 160 rows nobody can say, and a bill in whole tiles of one size lets the tokens a second
/// of a whole server fall by up to a third where one more user comes. On cards with few tensor flops
/// for their bandwidth (RTX 3090, H20) 64 rows at least would make a single token compute-bound,
/// which no figure for such a card shows.
fn billed_rows(class: Class, m: f64) -> f64 {
    m.max(if class == Class::WeightOnly4 {
        MMA_ROWS / 2.0
    } else {
        MMA_ROWS
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::find;
    use kvplan::WeightFormat;

    /// `data/op_times/gemm_*`: GPU, format, m, n, k, us. Weights too large for the cache.
    const ROWS: &[(&str, WeightFormat, f64, f64, f64, f64)] = &[
        (
            "h200-sxm",
            WeightFormat::Bf16,
            1.0,
            16384.0,
            16384.0,
            125.01,
        ),
        ("h200-sxm", WeightFormat::Bf16, 64.0, 8192.0, 8192.0, 36.98),
        ("h200-sxm", WeightFormat::Bf16, 512.0, 8192.0, 8192.0, 90.29),
        ("h200-sxm", WeightFormat::Fp8, 8.0, 16384.0, 16384.0, 71.6),
        ("h200-sxm", WeightFormat::Fp8, 128.0, 8192.0, 8192.0, 26.72),
        (
            "rtx-pro-6000-server",
            WeightFormat::Bf16,
            4.0,
            16384.0,
            16384.0,
            351.83,
        ),
        (
            "rtx-pro-6000-server",
            WeightFormat::Fp8,
            16.0,
            16384.0,
            16384.0,
            187.17,
        ),
        (
            "rtx-pro-6000-server",
            WeightFormat::Nvfp4,
            64.0,
            16384.0,
            16384.0,
            113.1,
        ),
        (
            "rtx-pro-6000-server",
            WeightFormat::Nvfp4,
            8.0,
            2048.0,
            8192.0,
            33.83,
        ),
    ];

    /// Cards with the least tensor flops for their bandwidth: 71 TFLOPS at 936 GB/s, 148 at 4000.
    #[test]
    fn few_rows_wait_for_memory_on_cards_with_few_flops() {
        let int4 = WeightFormat::Int4 {
            group: 128,
            zero_point: false,
        };
        for name in ["rtx-3090", "h20"] {
            let gpu = find(name).expect("catalogue");
            for format in [WeightFormat::Bf16, WeightFormat::Fp8, int4] {
                // An H20 has few lanes to widen weights with, beside much bandwidth.
                let most = if format == int4 { 0.4 } else { 0.12 };
                for m in [1.0, 4.0, 8.0] {
                    let time = gemm(gpu, &Numbers::of(format, gpu), m, 8192.0, 8192.0);
                    let share = time.compute_us / time.memory_us;
                    assert!(share < most, "{name} {format:?} m {m}: {time:?}");
                }
            }
        }
    }

    #[test]
    fn more_rows_never_cost_less_and_hardly_more_by_the_row() {
        let int4 = WeightFormat::Int4 {
            group: 128,
            zero_point: false,
        };
        let cards = ["rtx-3090", "h20", "h200", "rtx-pro-6000", "mi300x", "b200"];
        for (name, (n, k)) in cards.into_iter().flat_map(|name| {
            [(1024.0, 8192.0), (8192.0, 8192.0), (57_344.0, 8192.0)].map(|w| (name, w))
        }) {
            let gpu = find(name).expect("catalogue");
            for format in [WeightFormat::Bf16, WeightFormat::Fp8, int4] {
                let numbers = Numbers::of(format, gpu);
                let at = |m: f64| gemm(gpu, &numbers, m, n, k).total_us();
                for m in (1..600).map(f64::from) {
                    let (now, next) = (at(m), at(m + 1.0));
                    let case =
                        || format!("{name} {format:?} {n}x{k}: {now} of {m} rows, then {next}");
                    assert!(next >= now, "{}", case());
                    assert!(next / (m + 1.0) <= now / m * 1.005, "{}", case());
                }
            }
        }
    }

    #[test]
    fn measured_products_are_met_within_thirty_percent() {
        for (name, format, m, n, k, measured_us) in ROWS {
            let gpu = find(name).expect("catalogue");
            let us = gemm(gpu, &Numbers::of(*format, gpu), *m, *n, *k).total_us();
            let error = (us / measured_us).ln().abs();
            assert!(
                error < 0.30,
                "{name} {format:?} {m}x{n}x{k}: {us:.1} for {measured_us}"
            );
        }
    }

    #[test]
    fn no_rows_take_no_time() {
        let gpu = find("h200").expect("catalogue");
        let numbers = Numbers::of(WeightFormat::Bf16, gpu);
        assert_eq!(gemm(gpu, &numbers, 1.0, 0.0, 4096.0), OpTime::default());
    }
}
