//! The stand-in's own kernels against f64 on the CPU, before anything is timed.

use allreduce::device::{Arg, DeviceBuffer, Launch, Stream};
use allreduce::{Error, Result};
use serde::{Deserialize, Serialize};

use super::model::Kernels;
use super::work::most_parts;

/// Relative error (norm of the difference over norm of the reference) that bf16 operands explain.
const LARGEST_ERROR: f64 = 0.02;

/// Relative errors; 0 where a kernel is not used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) attention: f64,
    pub(crate) experts: f64,
}

/// Runs the kernels on small random problems.
///
/// # Errors
/// A kernel that is wrong, or the driver's own error.
pub(crate) fn run(stream: &Stream, kernels: &Kernels, dim: usize, experts: bool) -> Result<Check> {
    let mut found = Check::default();
    for (per_sequence, splits) in [(1, 1), (3, 3), (6, 1), (7, 4)] {
        let error = attention(stream, kernels, dim, per_sequence, splits)?;
        found.attention = found.attention.max(error);
    }
    if experts {
        found.experts = grouped(stream, kernels)?;
    }
    for (what, error) in [("attention", found.attention), ("experts", found.experts)] {
        if error.is_nan() || error > LARGEST_ERROR {
            return Err(Error::Invalid(format!(
                "the stand-in's {what} kernel is off by {error:.2e} on this GPU; its times would mean \
                 nothing"
            )));
        }
    }
    Ok(found)
}

struct Numbers(u64);

impl Numbers {
    /// A value in +-1 that bf16 holds exactly.
    fn next(&mut self) -> u16 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let unit = ((self.0 >> 40) as f32) / 8_388_608.0 - 1.0;
        (unit.to_bits() >> 16) as u16
    }

    fn many(&mut self, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.next()).collect()
    }
}

fn value(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

fn off(found: &[u16], wanted: &[f64]) -> f64 {
    let pairs = found.iter().map(|f| value(*f)).zip(wanted);
    let (difference, size) = pairs.fold((0.0, 0.0), |(d, s), (f, w)| {
        (d + (f - w).powi(2), s + w * w)
    });
    if found.len() == wanted.len() {
        (difference / size).sqrt()
    } else {
        f64::NAN
    }
}

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const LENGTH: usize = 333;
const CAPACITY: usize = 400;
const SEQUENCES: usize = 3;

fn attention(
    stream: &Stream,
    kernels: &Kernels,
    dim: usize,
    per_sequence: usize,
    splits: usize,
) -> Result<f64> {
    let mut numbers = Numbers(7 + per_sequence as u64);
    let tokens = SEQUENCES * per_sequence;
    let qkv = numbers.many(tokens * (HEADS + 2 * KV_HEADS) * dim);
    let keys = numbers.many(SEQUENCES * KV_HEADS * CAPACITY * dim);
    let values = numbers.many(SEQUENCES * KV_HEADS * CAPACITY * dim);
    let lengths: Vec<u32> = (0..SEQUENCES).map(|s| (LENGTH - 40 * s) as u32).collect();
    let rows = HEADS / KV_HEADS * per_sequence;
    // One pass also takes more rows than a narrow block has.
    let (module, tile) = if rows <= 16 || splits == 1 {
        (&kernels.narrow, 16)
    } else {
        (&kernels.wide, 32)
    };
    let buffers = [
        DeviceBuffer::from_slice(stream, &qkv)?,
        DeviceBuffer::from_slice(stream, &keys)?,
        DeviceBuffer::from_slice(stream, &values)?,
        DeviceBuffer::from_slice(stream, &lengths)?,
        DeviceBuffer::zeroed(stream, tokens * HEADS * dim * 2)?,
        DeviceBuffer::zeroed(stream, tokens * HEADS * splits * dim * 4)?,
        DeviceBuffer::zeroed(stream, tokens * HEADS * splits * 8)?,
    ];
    let n = |v: usize| Arg::U32(v as u32);
    let mut args: Vec<Arg<'_>> = buffers.iter().map(Arg::Device).collect();
    let scale = std::f32::consts::LOG2_E / (dim as f32).sqrt();
    args.extend([
        n(HEADS),
        n(KV_HEADS),
        n(per_sequence),
        n(CAPACITY),
        Arg::F32(scale),
    ]);
    let shape = Launch {
        grid: (
            splits as u32,
            (SEQUENCES * KV_HEADS) as u32,
            rows.div_ceil(tile) as u32,
        ),
        block: (128, 1, 1),
        shared_bytes: 0,
    };
    module.kernel("attend")?.launch(stream, shape, &args)?;
    if splits > 1 {
        let args = [
            Arg::Device(&buffers[5]),
            Arg::Device(&buffers[6]),
            Arg::Device(&buffers[4]),
            n(splits),
        ];
        let shape = Launch::new((tokens * HEADS) as u32, dim as u32);
        module.kernel("combine")?.launch(stream, shape, &args)?;
    }
    let found: Vec<u16> = buffers[4].download(stream, 0, tokens * HEADS * dim)?;
    Ok(off(
        &found,
        &expected([&qkv, &keys, &values], &lengths, dim),
    ))
}

/// Attention of every token and head in f64.
fn expected([qkv, keys, values]: [&[u16]; 3], lengths: &[u32], dim: usize) -> Vec<f64> {
    let width = HEADS + 2 * KV_HEADS;
    let tokens = qkv.len() / (width * dim);
    let per_sequence = tokens / lengths.len();
    let mut wanted = Vec::with_capacity(tokens * HEADS * dim);
    for token in 0..tokens {
        for head in 0..HEADS {
            let query = &qkv[(token * width + head) * dim..][..dim];
            let sequence = token / per_sequence;
            let seen = lengths[sequence] as usize + token % per_sequence + 1;
            let base = (sequence * KV_HEADS + head / (HEADS / KV_HEADS)) * CAPACITY * dim;
            wanted.extend(reference(query, &keys[base..], &values[base..], seen));
        }
    }
    wanted
}

fn reference(query: &[u16], keys: &[u16], values: &[u16], seen: usize) -> Vec<f64> {
    let dim = query.len();
    let scores: Vec<f64> = keys
        .chunks_exact(dim)
        .take(seen)
        .map(|key| {
            query
                .iter()
                .zip(key)
                .map(|(a, b)| value(*a) * value(*b))
                .sum::<f64>()
                / (dim as f64).sqrt()
        })
        .collect();
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; dim];
    for (weight, row) in weights.iter().zip(values.chunks_exact(dim)) {
        for (o, v) in out.iter_mut().zip(row) {
            *o += weight / total * value(*v);
        }
    }
    out
}

const TOKENS: usize = 70;
const EXPERTS: usize = 8;
const TOPK: usize = 2;
const INPUTS: usize = 1216;
const OUTPUTS: usize = 64;

/// Every pair's row through its expert in f64.
fn products(x: &[u16], w: &[u16], chosen: &[u32]) -> Vec<f64> {
    let mut wanted = Vec::with_capacity(chosen.len() * OUTPUTS);
    for (pair, expert) in chosen.iter().enumerate() {
        let row = &x[pair / TOPK * INPUTS..][..INPUTS];
        for output in 0..OUTPUTS {
            let weights = &w[(*expert as usize * OUTPUTS + output) * INPUTS..][..INPUTS];
            let terms = row.iter().zip(weights);
            wanted.push(terms.map(|(a, b)| value(*a) * value(*b)).sum());
        }
    }
    wanted
}

/// 70 tokens over 8 experts, 2 each: some experts get more than one tile, one more than one part.
fn grouped(stream: &Stream, kernels: &Kernels) -> Result<f64> {
    let Some(module) = &kernels.experts else {
        return Ok(0.0);
    };
    let mut numbers = Numbers(99);
    let x = numbers.many(TOKENS * INPUTS);
    let w = numbers.many(EXPERTS * OUTPUTS * INPUTS);
    let chosen: Vec<u32> = (0..TOKENS)
        .flat_map(|t| [u32::from(t % 7 == 0) * (t % 5) as u32, 5 + (t % 3) as u32])
        .collect();
    let pairs = TOKENS * TOPK;
    let n = |v: usize| Arg::U32(v as u32);
    let [bx, bw] = [
        DeviceBuffer::from_slice(stream, &x)?,
        DeviceBuffer::from_slice(stream, &w)?,
    ];
    let chosen_buffer = DeviceBuffer::from_slice(stream, &chosen)?;
    let parts_count = most_parts(EXPERTS, pairs);
    let [order, starts, parts] = [
        DeviceBuffer::zeroed(stream, pairs * 4)?,
        DeviceBuffer::zeroed(stream, (EXPERTS + 1) * 4)?,
        DeviceBuffer::zeroed(stream, (parts_count + 1) * 4)?,
    ];
    let out = DeviceBuffer::zeroed(stream, pairs * OUTPUTS * 2)?;
    let sort = [
        Arg::Device(&chosen_buffer),
        Arg::Device(&order),
        Arg::Device(&starts),
        Arg::Device(&parts),
        n(pairs),
        n(EXPERTS),
    ];
    module
        .kernel("sort")?
        .launch(stream, Launch::new(1, 512), &sort)?;
    let args = [
        Arg::Device(&bx),
        Arg::Device(&bw),
        Arg::Device(&out),
        Arg::Device(&order),
        Arg::Device(&starts),
        Arg::Device(&parts),
        n(INPUTS),
        n(OUTPUTS),
        n(TOPK),
    ];
    let wanted = products(&x, &w, &chosen);
    let mut worst: f64 = 0.0;
    for (name, rows) in [("grouped_few", 16), ("grouped_many", 64)] {
        let shape = Launch {
            grid: ((OUTPUTS / rows) as u32, parts_count as u32, 1),
            block: (128, 1, 1),
            shared_bytes: 0,
        };
        out.fill(stream, 0xff)?;
        module.kernel(name)?.launch(stream, shape, &args)?;
        let found: Vec<u16> = out.download(stream, 0, pairs * OUTPUTS)?;
        let error = off(&found, &wanted);
        // `max` would drop a result that is no number.
        if error.is_nan() {
            return Ok(error);
        }
        worst = worst.max(error);
    }
    Ok(worst)
}
