//! What torch's caching allocator takes beyond the tensors. An engine that weighs a load by the
//! device's free memory (SGLang) sees segments, not tensors.
//!
//! Rules of c10/cuda/CUDACachingAllocator: blocks to 1 MiB share 2 MiB segments, blocks under
//! 10 MiB share segments of 20 MiB by best fit, larger ones get a segment of their own in steps of
//! 2 MiB. One matrix of 12.5 MiB a layer costs 1.5 MiB a layer: 0.22 of the 15.54 GiB that
//! Qwen2-32B takes on each of four ranks, 0.06 of the 1.2 of Qwen3-0.6B.

use crate::formats::WeightFormat;
use crate::model::{Attention, Ffn, Layer, Mla, Model};
use crate::params::{ParamGroup, Piece, layer_pieces};
use crate::weights::Sharding;

const MIB: u64 = 1 << 20;
/// Blocks up to this share small segments, whose rounding does not show.
const SMALL: u64 = MIB;
/// Requests from this on get a segment of their own.
const OWN_SEGMENT: u64 = 10 * MIB;
/// Segment that smaller requests share.
const SHARED_SEGMENT: u64 = 20 * MIB;
/// Step of a segment of its own.
const STEP: u64 = 2 * MIB;
/// Layers of a kind that are laid out one by one; more repeat the pattern.
const LAID_OUT: u64 = 8;

/// Segments of one device.
#[derive(Default)]
struct Segments {
    /// Free rests of segments, bytes.
    rests: Vec<u64>,
    /// Bytes taken from the device.
    taken: u64,
    /// Bytes asked for.
    asked: u64,
}

impl Segments {
    fn put(&mut self, bytes: u64) {
        if bytes <= SMALL {
            return;
        }
        self.asked = self.asked.saturating_add(bytes);
        let fits = self.rests.iter().enumerate().filter(|(_, r)| **r >= bytes);
        let best = fits.min_by_key(|(_, rest)| **rest).map(|(at, _)| at);
        let rest = match best {
            Some(at) => self.rests.swap_remove(at) - bytes,
            None => {
                let segment = if bytes < OWN_SEGMENT {
                    SHARED_SEGMENT
                } else {
                    bytes.div_ceil(STEP).saturating_mul(STEP)
                };
                self.taken = self.taken.saturating_add(segment);
                segment.saturating_sub(bytes)
            }
        };
        // A rest of 1 MiB or less stays with its block.
        if rest > SMALL {
            self.rests.push(rest);
        }
    }

    /// Bytes lost for good, and rests that a tensor of `least` bytes can still use.
    fn waste(&self, least: u64) -> (f64, f64) {
        let open = self.rests.iter().filter(|rest| **rest >= least);
        let open = open.fold(0u64, |sum, rest| sum.saturating_add(*rest));
        let all = self.taken.saturating_sub(self.asked);
        (all.saturating_sub(open) as f64, open as f64)
    }
}

/// Bytes that segments take beyond the weights of the fullest rank.
pub(crate) fn waste_bytes(model: &Model, sharding: &Sharding) -> f64 {
    let mut waste = 0.0;
    let mut tensors: Vec<u64> = Vec::with_capacity(16);
    for (layer, count) in model.layer_kinds() {
        tensors.clear();
        layer_tensors(&layer, model, sharding, &mut tensors);
        let rounds = count.min(LAID_OUT);
        let mut segments = Segments::default();
        for _ in 0..rounds {
            tensors.iter().for_each(|bytes| segments.put(*bytes));
        }
        let shared = tensors.iter().filter(|bytes| **bytes > SMALL).min();
        let (lost, open) = segments.waste(shared.copied().unwrap_or(SMALL));
        // What is open at the end is open once, not once every few layers.
        waste += lost * count as f64 / rounds.max(1) as f64 + open;
    }
    waste / sharding.pp.max(1) as f64
}

/// Bytes of the tensors of one layer on a rank, matrices fused as engines fuse them.
fn layer_tensors(layer: &Layer, model: &Model, sharding: &Sharding, tensors: &mut Vec<u64>) {
    // Projections of the residual stream that are one tensor: query with key and value (GQA), the
    // two down-projections (MLA). The pieces come in that order.
    let fused: &[usize] = match layer.attention {
        Attention::Gqa(_) => &[0, 1],
        Attention::Mla(Mla {
            q_lora_rank: Some(_),
            ..
        }) => &[0, 2],
        _ => &[],
    };
    let mut attention = 0;
    let mut together = 0.0;
    layer_pieces(layer, model.hidden, model.base_format, &mut |piece| {
        let share = sharding.share(piece.split);
        let elements = piece.params as f64 * share;
        let in_attention = piece.group == ParamGroup::Attention;
        if in_attention && fused.contains(&attention) {
            together += elements * piece.format.bytes_per_param();
            if fused.last() == Some(&attention) {
                tensors.push(together as u64);
            }
        } else {
            parts(&piece, layer, &mut |part| {
                put_matrix(elements * part, piece.format, tensors);
            });
        }
        attention += usize::from(in_attention);
    });
    if let Attention::Mla(mla) = layer.attention {
        // Copies of the key and value up-projections for absorbed attention.
        let heads = mla.heads.div_ceil(sharding.attention_tp()) as f64;
        for dim in [mla.qk_nope_head_dim, mla.v_head_dim] {
            tensors.push((2.0 * heads * mla.kv_lora_rank as f64 * dim as f64) as u64);
        }
    }
}

/// Shares of a piece that are tensors of their own: gate and up together, down.
fn parts(piece: &Piece, layer: &Layer, emit: &mut dyn FnMut(f64)) {
    let gated = match layer.ffn {
        Ffn::Dense { gated, .. } => gated,
        Ffn::Moe(moe) => moe.gated,
        Ffn::None => true,
    };
    match piece.group {
        ParamGroup::Dense | ParamGroup::Experts | ParamGroup::SharedExperts => {
            let up = if gated { 2.0 / 3.0 } else { 0.5 };
            emit(up);
            emit(1.0 - up);
        }
        _ => emit(1.0),
    }
}

/// A matrix and, where its format has them, its scales.
fn put_matrix(elements: f64, format: WeightFormat, tensors: &mut Vec<u64>) {
    let all = format.bytes_per_param();
    let packed = match all {
        bytes if bytes < 1.0 => 0.5,
        bytes => bytes.floor(),
    };
    tensors.push((elements * packed) as u64);
    tensors.push((elements * (all - packed)) as u64);
}
