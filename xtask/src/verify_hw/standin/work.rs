//! Working memory that the passes of a stream share.

use allreduce::Result;
use allreduce::device::{DeviceBuffer, MatMul, Stream};

use super::shapes::{FfnShape, Shapes};

/// Working memory of passes up to a number of tokens; shared by all passes of a stream.
pub(crate) struct Work {
    pub(crate) hidden: DeviceBuffer,
    pub(super) residual: DeviceBuffer,
    pub(super) normed: DeviceBuffer,
    pub(super) qkv: DeviceBuffer,
    pub(super) attended: DeviceBuffer,
    pub(super) up: DeviceBuffer,
    pub(super) act: DeviceBuffer,
    pub(super) logits: DeviceBuffer,
    /// Tokens in and out.
    pub(crate) ids: DeviceBuffer,
    pub(super) partial: DeviceBuffer,
    pub(super) stats: DeviceBuffer,
    pub(super) routed: Routed,
    pub(super) workspace: DeviceBuffer,
}

pub(super) struct Routed {
    pub(super) logits: DeviceBuffer,
    pub(super) chosen: DeviceBuffer,
    pub(super) weights: DeviceBuffer,
    pub(super) order: DeviceBuffer,
    pub(super) starts: DeviceBuffer,
    /// How many parts there are, and each (see `moe.cu`).
    pub(super) parts: DeviceBuffer,
    pub(super) rows: DeviceBuffer,
}

/// Most splits of one attention.
pub(super) const MAX_SPLITS: usize = 64;

/// Pairs of one expert that a block of the grouped product takes (`PART` in `moe.cu`).
const PART: usize = 32;

/// Most parts that `pairs` pairs over `experts` experts are cut into.
pub(super) fn most_parts(experts: usize, pairs: usize) -> usize {
    experts.min(pairs) + pairs / PART
}

impl Work {
    /// Memory for `tokens` tokens of any of the models.
    ///
    /// # Errors
    /// Out of memory, or the driver's own error.
    pub(crate) fn new(
        stream: &Stream,
        models: &[&Shapes],
        tokens: usize,
        sequences: usize,
    ) -> Result<Self> {
        let most = |f: &dyn Fn(&Shapes) -> usize| models.iter().map(|s| f(s)).max().unwrap_or(8);
        let row = |width: usize| DeviceBuffer::zeroed(stream, width * tokens * 2 + 256);
        let hidden = most(&|s| s.hidden);
        let attention = most(&|s| s.layers.iter().map(|l| l.heads * l.dim).max().unwrap_or(8));
        let heads = most(&|s| s.layers.iter().map(|l| l.heads).max().unwrap_or(1));
        let (experts, topk) = models
            .iter()
            .flat_map(|s| &s.layers)
            .filter_map(|l| match l.ffn {
                FfnShape::Moe { experts, topk, .. } => Some((experts, topk)),
                FfnShape::Dense { .. } => None,
            })
            .max()
            .unwrap_or((32, 1));
        // Splits are taken for few sequences only: many fill the GPU unsplit.
        let split_rows = tokens * heads * MAX_SPLITS.min(8 + 1024 / sequences.max(1));
        Ok(Self {
            hidden: row(3 * hidden)?,
            residual: row(hidden)?,
            normed: row(2 * hidden)?,
            qkv: row(most(&Shapes::widest_qkv))?,
            attended: row(attention)?,
            up: row(most(&Shapes::widest_ffn))?,
            act: row(most(&Shapes::widest_ffn))?,
            logits: row(most(&|s| s.vocab))?,
            ids: DeviceBuffer::zeroed(stream, tokens * 4)?,
            partial: DeviceBuffer::new(stream.device(), (split_rows * 128 * 4).min(2 << 30))?,
            stats: DeviceBuffer::new(stream.device(), (split_rows * 8).min(64 << 20))?,
            routed: Routed {
                logits: row(experts)?,
                chosen: row(topk * 2)?,
                weights: row(topk * 2)?,
                order: row(topk * 2)?,
                starts: DeviceBuffer::zeroed(stream, (experts + 1) * 4)?,
                parts: DeviceBuffer::zeroed(stream, (most_parts(experts, tokens * topk) + 1) * 4)?,
                rows: row(topk * hidden)?,
            },
            workspace: DeviceBuffer::new(stream.device(), MatMul::WORKSPACE_BYTES)?,
        })
    }
}
