//! Shared by the examples: groups of ranks on threads, and reference arithmetic.
#![allow(dead_code, reason = "each example uses a part")]

use std::time::Duration;

use allreduce::device::{Device, DeviceBuffer, Stream};
use allreduce::rendezvous::Threads;
use allreduce::{Communicator, DType, Error, Options, Result};

/// Runs `work` on one thread a rank, rank r on GPU r modulo the number of `devices`; gives the
/// results in rank order.
pub(crate) fn on_ranks<T: Send>(
    devices: &[Device],
    ranks: usize,
    options: &Options,
    work: impl Fn(Communicator) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let ends = Threads::group(ranks, Duration::from_secs(30));
    let options = Options {
        ranks_per_gpu: ranks.div_ceil(devices.len()),
        ..options.clone()
    };
    let (options, work) = (&options, &work);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .enumerate()
            .map(|(rank, end)| {
                let device = &devices[rank % devices.len()];
                scope
                    .spawn(move || work(Communicator::new(device, Box::new(end), options.clone())?))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err(Error::Invalid("a rank panicked".into())))
            })
            .collect()
    })
}

/// A well-mixed 64-bit number.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Element `index` of rank `rank`'s input: values of mixed size and sign, minus zeros among them.
pub(crate) fn element(rank: usize, index: usize, seed: u64) -> f32 {
    let r = mix(seed ^ (rank as u64) << 56 ^ (index as u64).wrapping_mul(0x1000_0001));
    match r % 61 {
        0 => -0.0,
        1 => 0.0,
        _ => {
            let unit = ((r >> 40) as f32) / ((1u64 << 23) as f32) - 1.0;
            unit * [0.001, 1.0, 1.0, 37.5][(r >> 20) as usize % 4]
        }
    }
}

/// The bits of `value` in `dtype`, rounded to nearest even.
pub(crate) fn encode(value: f32, dtype: DType) -> u32 {
    match dtype {
        DType::F32 => value.to_bits(),
        DType::Bf16 => {
            let bits = value.to_bits();
            if value.is_nan() {
                return 0x7fff;
            }
            (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16
        }
        DType::F16 => encode_f16(value),
    }
}

fn encode_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = f64::from(value.abs());
    if value.is_nan() {
        return 0x7fff;
    }
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // The step between neighbours: 2^-24 below 2^-14, else 2^(exponent - 10).
    let exponent = if magnitude < 6.103_515_625e-5 {
        -14
    } else {
        magnitude.log2().floor() as i32
    };
    let step = 2f64.powi(exponent - 10);
    let units = (magnitude / step).round_ties_even() as u32;
    // 1024 units in a binade; a carry into the next one adds up by itself.
    let base = ((exponent + 15) as u32).saturating_sub(1) * 1024;
    sign | if exponent == -14 { units } else { base + units }
}

/// The value of `bits` in `dtype`.
pub(crate) fn decode(bits: u32, dtype: DType) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(bits),
        DType::Bf16 => f32::from_bits(bits << 16),
        DType::F16 => {
            let (sign, exponent, fraction) = (bits >> 15 & 1, bits >> 10 & 31, bits & 1023);
            let value = match exponent {
                0 => fraction as f32 * 2f32.powi(-24),
                31 if fraction == 0 => f32::INFINITY,
                31 => f32::NAN,
                _ => (1024 + fraction) as f32 * 2f32.powi(exponent as i32 - 25),
            };
            if sign == 1 { -value } else { value }
        }
    }
}

/// Rank `rank`'s input as bytes.
pub(crate) fn input_bytes(rank: usize, elements: usize, dtype: DType, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements * dtype.bytes());
    for index in 0..elements {
        let bits = encode(element(rank, index, seed), dtype);
        bytes.extend(&bits.to_le_bytes()[..dtype.bytes()]);
    }
    bytes
}

/// The sum all ranks must have, bit for bit: f32 in rank order, rounded once; and the largest
/// error against f64 in units of the result's own rounding.
pub(crate) fn expected_bytes(
    ranks: usize,
    elements: usize,
    dtype: DType,
    seed: u64,
) -> (Vec<u8>, f64) {
    let mut bytes = Vec::with_capacity(elements * dtype.bytes());
    let mut worst: f64 = 0.0;
    let unit = match dtype {
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
    };
    for index in 0..elements {
        let (mut sum, mut exact, mut size) = (0.0f32, 0.0f64, 0.0f64);
        for rank in 0..ranks {
            let value = decode(encode(element(rank, index, seed), dtype), dtype);
            sum = if rank == 0 { value } else { sum + value };
            exact += f64::from(value);
            size += f64::from(value.abs());
        }
        let bits = encode(sum, dtype);
        let error = (f64::from(decode(bits, dtype)) - exact).abs();
        worst = worst.max(error / (size * unit).max(1e-7));
        bytes.extend(&bits.to_le_bytes()[..dtype.bytes()]);
    }
    (bytes, worst)
}

/// Where two byte strings differ first.
pub(crate) fn first_difference(got: &[u8], want: &[u8]) -> Option<usize> {
    if got.len() != want.len() {
        return Some(got.len().min(want.len()));
    }
    got.iter().zip(want).position(|(a, b)| a != b)
}

/// A device buffer with `bytes` at `offset`, poisoned before and 64 bytes behind.
pub(crate) fn guarded(stream: &Stream, bytes: &[u8], offset: usize) -> Result<DeviceBuffer> {
    let mut all = vec![0xa5u8; offset + bytes.len() + 64];
    all[offset..offset + bytes.len()].copy_from_slice(bytes);
    DeviceBuffer::from_slice(stream, &all)
}

/// Median of unsorted values; NaN for none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
