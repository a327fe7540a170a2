//! One decoder layer as the operations one rank runs.

use std::rc::Rc;

use kvplan::{Attention, Ffn, KvDtype, Layer, Model, Moe, Sharding};

use super::attention::{DELTA_VERIFY_US, Reading, gqa, index_scan, mla, recurrent};
use super::gemm::gemm;
use super::moe::{ExpertShape, TouchCurve, experts};
use super::op::{Numbers, OpTime};
use crate::gpus::Gpu;

/// Times of one layer on one rank by cause, and what the engine adds per launch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct LayerTime {
    /// Dense products.
    pub(crate) dense: OpTime,
    /// Routed experts.
    pub(crate) experts: OpTime,
    /// Reading the cache.
    pub(crate) cache: OpTime,
    /// Small elementwise kernels, a count.
    pub(crate) small_kernels: f64,
    /// All-reduces under tensor parallelism.
    pub(crate) all_reduces: f64,
    /// Bytes of queries that decode-context parallelism gathers, per query token.
    pub(crate) dcp_gather_bytes: f64,
    /// Bytes of partial outputs that it sums and scatters, per query token.
    pub(crate) dcp_scatter_bytes: f64,
    /// Bytes of the partial sums' logarithms (f32) that it gathers, per query token.
    pub(crate) dcp_lse_bytes: f64,
    /// 1 where the layer has routed experts.
    pub(crate) routed: f64,
}

/// A layer kind with what is computed once for it.
#[derive(Debug, Clone)]
pub(crate) struct LayerKind {
    pub(super) layer: Layer,
    /// How many layers of the model are of this kind.
    pub(crate) count: f64,
    /// Experts that tokens touch, of layers that route.
    pub(crate) touch: Option<Rc<TouchCurve>>,
}

impl LayerKind {
    /// Whether its cache is a latent.
    pub(crate) fn is_latent(&self) -> bool {
        matches!(self.layer.attention, Attention::Mla(_))
    }

    /// The kinds of `layers` in order of first appearance.
    pub(crate) fn of(layers: &[Layer]) -> Vec<Self> {
        let mut kinds: Vec<Self> = Vec::new();
        for layer in layers {
            if let Some(kind) = kinds.iter_mut().find(|kind| kind.layer == *layer) {
                kind.count += 1.0;
                continue;
            }
            let touch = match layer.ffn {
                Ffn::Moe(moe) => Some(TouchCurve::served(moe.experts, moe.topk)),
                _ => None,
            };
            kinds.push(Self {
                layer: *layer,
                count: 1.0,
                touch,
            });
        }
        kinds
    }

    /// Query-key plus value elements of all heads: what a pair of tokens costs in attention.
    pub(crate) fn heads_times_dims(&self) -> f64 {
        match &self.layer.attention {
            Attention::Gqa(a) => a.heads as f64 * (a.head_dim + a.v_head_dim) as f64,
            Attention::Mla(a) => {
                let row = a.qk_nope_head_dim + a.qk_rope_head_dim + a.v_head_dim;
                a.heads as f64 * row as f64
            }
            Attention::Compressed(a) => 2.0 * a.heads as f64 * a.head_dim as f64,
            Attention::Linear(_) | Attention::Mamba(_) | Attention::None => 0.0,
        }
    }

    /// Elements of the recurrent state, all heads; 0 for layers with a cache.
    pub(crate) fn state_elements(&self) -> f64 {
        match &self.layer.attention {
            Attention::Linear(a) => (a.value_heads * a.value_dim * a.key_dim) as f64,
            Attention::Mamba(a) => (a.heads * a.head_dim * a.state) as f64,
            _ => 0.0,
        }
    }

    /// Tokens a query of this layer sees at most, where that is bounded.
    pub(crate) fn window(&self) -> Option<f64> {
        match &self.layer.attention {
            Attention::Gqa(a) => a.window.map(|w| w as f64),
            Attention::Mla(a) => a.indexer.map(|i| i.topk as f64),
            Attention::Compressed(a) => Some(a.window as f64),
            _ => None,
        }
    }
}

/// What a pass runs over, whole group of ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Batch {
    /// Sequences of all ranks.
    pub(crate) sequences: f64,
    /// Query tokens per sequence.
    pub(crate) tokens: f64,
    /// Tokens that products, experts and all-reduces compute: all of them, and what pads them to the
    /// size of a graph. Attention does not see that: such rows have no cache.
    pub(crate) rows: f64,
    /// Cached tokens per sequence.
    pub(crate) context: f64,
    /// How often the cache is read.
    pub(crate) passes: f64,
    /// Share of the context that is one prefix common to all sequences.
    pub(crate) shared_prefix: f64,
}

/// What stays the same over the layers of a pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rank<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) sharding: Sharding,
    pub(crate) kv_dtype: KvDtype,
    /// Width of the residual stream.
    pub(crate) hidden: f64,
    /// Most parts that the cache of one sequence and head is split into.
    pub(crate) splits: f64,
}

impl Rank<'_> {
    fn attention_ranks(&self) -> f64 {
        self.sharding.attention_tp().max(1) as f64
    }

    fn ranks(&self) -> f64 {
        self.sharding.tp.max(1) as f64
    }

    /// Heads whose queries and outputs meet in a group of decode-context parallelism: its ranks'
    /// own, and at most all.
    fn gathered_heads(&self, heads: u64) -> f64 {
        let share = self.sharding.dcp.max(1) as f64 / self.attention_ranks();
        heads as f64 * share.min(1.0)
    }

    /// This rank's share of `heads`, at least one.
    pub(super) fn heads(&self, heads: u64) -> f64 {
        (heads as f64 / self.attention_ranks()).max(1.0)
    }

    /// Bytes of a cached element.
    pub(super) fn kv_bytes(&self) -> f64 {
        self.kv_dtype.bytes(4096) as f64 / 4096.0
    }

    /// The cache as this rank reads it; `window` bounds what a query sees.
    pub(super) fn reading(&self, batch: &Batch, window: Option<u64>) -> Reading {
        let seen = window.map_or(batch.context, |w| batch.context.min(w as f64));
        Reading {
            sequences: batch.sequences / self.sharding.dp_attention.max(1) as f64,
            tokens: batch.tokens,
            context: (seen / self.sharding.dcp.max(1) as f64).max(1.0),
            passes: batch.passes,
            shared_prefix: batch.shared_prefix,
            splits: self.splits,
        }
    }
}

/// Times of one layer of `kind` for `batch`.
pub(crate) fn layer_time(rank: &Rank<'_>, kind: &LayerKind, batch: &Batch) -> LayerTime {
    let mut time = LayerTime::default();
    token_mixing(rank, &kind.layer, batch, &mut time);
    let tokens = batch.rows;
    let formats = &kind.layer.formats;
    match kind.layer.ffn {
        Ffn::Dense { inter, gated } => {
            let numbers = Numbers::of(formats.dense, rank.gpu);
            time.dense += feed_forward(rank, &numbers, tokens, inter as f64, gated);
            time.small_kernels += 3.0;
            time.all_reduces += 1.0;
        }
        Ffn::Moe(moe) => {
            routed(rank, &moe, kind, batch, &mut time);
            time.all_reduces += 1.0;
        }
        Ffn::None => {}
    }
    time
}

/// Up (and gate) and down projections of an inner width cut over the ranks.
fn feed_forward(
    rank: &Rank<'_>,
    numbers: &Numbers,
    tokens: f64,
    inter: f64,
    gated: bool,
) -> OpTime {
    let local = inter / rank.ranks();
    let up = if gated { 2.0 * local } else { local };
    gemm(rank.gpu, numbers, tokens, up, rank.hidden)
        + gemm(rank.gpu, numbers, tokens, rank.hidden, local)
}

fn routed(rank: &Rank<'_>, moe: &Moe, kind: &LayerKind, batch: &Batch, time: &mut LayerTime) {
    let formats = &kind.layer.formats;
    let tokens = batch.rows;
    let expert_ranks = rank.sharding.ep.clamp(1, rank.sharding.tp.max(1)) as f64;
    let width = moe.latent.map_or(rank.hidden, |latent| latent as f64);
    let shape = ExpertShape {
        hidden: width,
        inter: moe.expert_inter as f64 / (rank.ranks() / expert_ranks).max(1.0),
        matrices: if moe.gated { 3.0 } else { 2.0 },
        topk: moe.topk as f64,
        ranks: expert_ranks,
    };
    let touched = kind
        .touch
        .as_ref()
        .map_or(moe.experts as f64, |curve| curve.at(tokens));
    let numbers = Numbers::of(formats.experts, rank.gpu);
    time.experts += experts(rank.gpu, &numbers, &shape, tokens, touched);
    time.routed += 1.0;
    // The router works in 16 bits.
    let half = Numbers::of(kvplan::WeightFormat::Bf16, rank.gpu);
    time.dense += gemm(rank.gpu, &half, tokens, moe.experts as f64, rank.hidden);
    time.small_kernels += 2.0;
    if moe.latent.is_some() {
        let shared = Numbers::of(formats.shared, rank.gpu);
        time.dense += gemm(rank.gpu, &shared, tokens, width, rank.hidden)
            + gemm(rank.gpu, &shared, tokens, rank.hidden, width);
    }
    for (inter, format) in [
        (moe.shared_inter, formats.shared),
        (moe.parallel_dense_inter, formats.dense),
    ] {
        if inter > 0 {
            let numbers = Numbers::of(format, rank.gpu);
            time.dense += feed_forward(rank, &numbers, tokens, inter as f64, moe.gated);
            time.small_kernels += 2.0;
        }
    }
}

/// The projections around a token mixer and the mixer itself, on one rank.
struct Mixer<'a, 'b> {
    rank: &'a Rank<'b>,
    batch: &'a Batch,
    /// Query tokens on this rank.
    tokens: f64,
    /// Ranks that share one attention replica.
    ranks: f64,
    numbers_in: Numbers,
    numbers_out: Numbers,
}

impl Mixer<'_, '_> {
    /// `n` x `k` of the input projections.
    fn project(&self, n: f64, k: f64) -> OpTime {
        gemm(self.rank.gpu, &self.numbers_in, self.tokens, n, k)
    }

    /// `k` columns of the output projection back to the residual stream.
    fn output(&self, k: f64) -> OpTime {
        gemm(
            self.rank.gpu,
            &self.numbers_out,
            self.tokens,
            self.rank.hidden,
            k,
        )
    }

    /// This rank's share of `heads`, at least one.
    fn heads(&self, heads: u64) -> f64 {
        self.rank.heads(heads)
    }
}

fn token_mixing(rank: &Rank<'_>, layer: &Layer, batch: &Batch, time: &mut LayerTime) {
    if layer.attention == Attention::None {
        return;
    }
    time.small_kernels += 2.0;
    time.all_reduces += 1.0;
    let mixer = Mixer {
        rank,
        batch,
        tokens: batch.rows / rank.sharding.dp_attention.max(1) as f64,
        ranks: rank.attention_ranks(),
        numbers_in: Numbers::of(layer.formats.attention_in, rank.gpu),
        numbers_out: Numbers::of(layer.formats.attention_out, rank.gpu),
    };
    match &layer.attention {
        Attention::Gqa(a) => grouped(&mixer, a, time),
        Attention::Mla(a) => latent(&mixer, a, time),
        Attention::Compressed(a) => compressed(&mixer, a, time),
        Attention::Linear(a) => {
            let heads = mixer.heads(a.value_heads);
            let keys = 2.0 * mixer.heads(a.key_heads) * a.key_dim as f64;
            let values = heads * a.value_dim as f64;
            let rows = keys + 2.0 * values + 2.0 * heads;
            time.dense += mixer.project(rows, rank.hidden) + mixer.output(values);
            let state = values * a.key_dim as f64 * a.state_element_bytes as f64;
            time.cache += recurrent(rank.gpu, &rank.reading(batch, None), state, DELTA_VERIFY_US);
            time.small_kernels += 4.0;
        }
        Attention::Mamba(a) => {
            let heads = mixer.heads(a.heads);
            let inner = heads * a.head_dim as f64;
            let rows = 2.0 * inner + 2.0 * (a.groups * a.state) as f64 + heads;
            time.dense += mixer.project(rows, rank.hidden) + mixer.output(inner);
            let state = inner * a.state as f64 * a.state_element_bytes as f64;
            time.cache += recurrent(rank.gpu, &rank.reading(batch, None), state, 0.0);
            time.small_kernels += 4.0;
        }
        Attention::None => {}
    }
}

fn grouped(mixer: &Mixer<'_, '_>, a: &kvplan::Gqa, time: &mut LayerTime) {
    let rank = mixer.rank;
    let (head_dim, v_dim) = (a.head_dim as f64, a.v_head_dim as f64);
    let heads = mixer.heads(a.heads);
    let kv_heads = mixer.heads(a.kv_heads);
    let gate = if a.output_gate { 2.0 } else { 1.0 };
    let v_rows = if a.v_is_k { 0.0 } else { v_dim };
    let rows = heads * head_dim * gate + kv_heads * (head_dim + v_rows);
    let width = rank.hidden * a.input_hiddens.max(1) as f64;
    time.dense += mixer.project(rows, width) + mixer.output(heads * v_dim);
    let mut read = rank.reading(mixer.batch, a.window);
    if let Some(index) = a.indexer {
        time.cache += index_scan(rank.gpu, &read, index.heads as f64, index.head_dim as f64);
        read.context = read.context.min(index.topk.max(1) as f64);
    }
    let kv_row = head_dim + v_dim;
    time.cache += gqa(rank.gpu, &read, heads, kv_heads, kv_row, rank.kv_bytes());
    let gathered = rank.gathered_heads(a.heads);
    time.dcp_gather_bytes += 2.0 * gathered * head_dim;
    time.dcp_lse_bytes += 4.0 * gathered;
    time.dcp_scatter_bytes += 2.0 * gathered * v_dim;
    time.small_kernels += 3.0;
}

/// DeepSeek-V4: a window as it is, compressed entries beyond, of which an index picks some.
fn compressed(mixer: &Mixer<'_, '_>, a: &kvplan::CompressedMla, time: &mut LayerTime) {
    let rank = mixer.rank;
    let heads = mixer.heads(a.heads);
    let (q_rank, dim, o_rank) = (
        a.q_lora_rank as f64,
        a.head_dim as f64,
        a.o_lora_rank as f64,
    );
    let out_rows = (a.o_groups as f64 * o_rank / mixer.ranks).max(1.0);
    time.dense += mixer.project(q_rank + 3.0 * dim, rank.hidden)
        + mixer.project(heads * dim, q_rank)
        + gemm(
            rank.gpu,
            &mixer.numbers_out,
            mixer.tokens,
            o_rank,
            heads * dim,
        )
        + mixer.output(out_rows);
    let context = mixer.batch.context;
    let far = if a.ratio > 0 {
        context / a.ratio as f64
    } else {
        0.0
    };
    let mut read = rank.reading(mixer.batch, None);
    let mut seen = far;
    if let Some(index) = a.indexer {
        read.context = far.max(1.0);
        time.cache += index_scan(rank.gpu, &read, index.heads as f64, index.head_dim as f64);
        seen = far.min(index.topk as f64);
    }
    read.context = (context.min(a.window as f64) + seen).max(1.0);
    // One head of `dim` elements serves as key and value.
    time.cache += mla(
        rank.gpu,
        &read,
        heads,
        dim / 2.0,
        dim / 2.0,
        rank.kv_bytes(),
    );
    time.small_kernels += 8.0;
}

/// MLA in its absorbed form: queries go through the latent, so two small products stand in for the
/// key and value up-projections.
fn latent(mixer: &Mixer<'_, '_>, a: &kvplan::Mla, time: &mut LayerTime) {
    let rank = mixer.rank;
    let (gpu, hidden) = (rank.gpu, rank.hidden);
    let heads = mixer.heads(a.heads);
    let (kv_rank, rope) = (a.kv_lora_rank as f64, a.qk_rope_head_dim as f64);
    let (nope, value) = (a.qk_nope_head_dim as f64, a.v_head_dim as f64);
    let q_width = a.q_lora_rank.map_or(hidden, |q_rank| q_rank as f64);
    // Down-projections of query and latent are one product where the query has one.
    let down = kv_rank + rope + a.q_lora_rank.map_or(0.0, |q_rank| q_rank as f64);
    let half = Numbers::of(kvplan::WeightFormat::Bf16, gpu);
    time.dense += mixer.project(down, hidden)
        + mixer.project(heads * (nope + rope), q_width)
        + gemm(gpu, &half, mixer.tokens, heads * nope, kv_rank)
        + gemm(gpu, &half, mixer.tokens, heads * value, kv_rank)
        + mixer.output(heads * value);
    if a.output_gate {
        time.dense += mixer.project(heads * value, hidden);
    }
    let mut read = rank.reading(mixer.batch, None);
    if let Some(index) = a.indexer {
        if index.own {
            time.cache += index_scan(gpu, &read, index.heads as f64, index.head_dim as f64);
            time.dense += mixer.project((index.heads * index.head_dim) as f64, q_width);
        }
        read.context = read.context.min((index.topk as f64).max(1.0));
    }
    // Under decode-context parallelism every rank serves all heads of its share of the context.
    let served = heads * rank.sharding.dcp.max(1) as f64;
    time.cache += mla(gpu, &read, served, kv_rank, rope, rank.kv_bytes());
    let gathered = rank.gathered_heads(a.heads);
    time.dcp_gather_bytes += 2.0 * gathered * (kv_rank + rope);
    time.dcp_lse_bytes += 4.0 * gathered;
    time.dcp_scatter_bytes += 2.0 * gathered * kv_rank;
    time.small_kernels += 5.0;
}

/// The output head: `vocab` rows over the ranks.
pub(crate) fn head_time(rank: &Rank<'_>, model: &Model, vocab: u64, tokens: f64) -> OpTime {
    let numbers = Numbers::of(model.head_format, rank.gpu);
    gemm(
        rank.gpu,
        &numbers,
        tokens,
        vocab as f64 / rank.attention_ranks(),
        rank.hidden,
    )
}
