//! Pieces of one layer: every matrix with its format and split.

use super::{ParamGroup, Piece, Sink, Split};
use crate::formats::WeightFormat;
use crate::model::{
    Attention, CompressedMla, Ffn, Gqa, Indexer, Layer, LinearState, Mamba2, Mla, Moe,
};
use crate::product;

/// Calls `emit` with every piece of one layer of width `hidden`.
pub(crate) fn layer_pieces(
    layer: &Layer,
    hidden: u64,
    base: WeightFormat,
    emit: &mut dyn FnMut(Piece),
) {
    let mut sink = Sink { emit, base };
    // Two RMS norms a layer; a few architectures have four, which does not show in a total.
    sink.norms(product(&[2, hidden]));
    match &layer.attention {
        Attention::Gqa(gqa) => gqa_pieces(gqa, layer, hidden, &mut sink),
        Attention::Mla(mla) => mla_pieces(mla, layer, hidden, &mut sink),
        Attention::Compressed(attention) => compressed_pieces(attention, layer, hidden, &mut sink),
        Attention::Linear(linear) => linear_pieces(linear, layer, hidden, &mut sink),
        Attention::Mamba(mamba) => mamba_pieces(mamba, layer, hidden, &mut sink),
        Attention::None => {}
    }
    match &layer.ffn {
        Ffn::Dense { inter, gated } => {
            let matrices = if *gated { 3 } else { 2 };
            let params = product(&[matrices, hidden, *inter]);
            sink.put(ParamGroup::Dense, params, layer.formats.dense, Split::Even);
        }
        Ffn::Moe(moe) => moe_pieces(moe, layer, hidden, &mut sink),
        Ffn::None => {}
    }
}

fn gqa_pieces(gqa: &Gqa, layer: &Layer, hidden: u64, sink: &mut Sink<'_>) {
    let width_in = product(&[hidden, gqa.input_hiddens.max(1)]);
    let gate = if gqa.output_gate { 2 } else { 1 };
    let q_rows = product(&[gqa.heads, gqa.head_dim, gate]);
    let v_dim = if gqa.v_is_k { 0 } else { gqa.v_head_dim };
    let kv_rows = product(&[gqa.kv_heads, gqa.head_dim.saturating_add(v_dim)]);
    let attention = ParamGroup::Attention;
    let format_in = layer.formats.attention_in;
    let q_in = match gqa.q_rank {
        Some(rank) => {
            sink.put(
                attention,
                product(&[width_in, rank]),
                format_in,
                Split::None,
            );
            rank
        }
        None => width_in,
    };
    sink.put(
        attention,
        product(&[q_in, q_rows]),
        format_in,
        Split::Heads(gqa.heads),
    );
    sink.put(
        attention,
        product(&[width_in, kv_rows]),
        format_in,
        Split::Heads(gqa.kv_heads),
    );
    sink.put(
        attention,
        product(&[gqa.heads, gqa.v_head_dim, hidden]),
        layer.formats.attention_out,
        Split::Heads(gqa.heads),
    );
    if gqa.bias {
        sink.norms(q_rows.saturating_add(kv_rows));
    }
    if let Some(indexer) = gqa.indexer {
        indexer_pieces(&indexer, hidden, hidden, layer, sink);
    }
}

fn mla_pieces(mla: &Mla, layer: &Layer, hidden: u64, sink: &mut Sink<'_>) {
    let attention = ParamGroup::Attention;
    let format_in = layer.formats.attention_in;
    let by_head = Split::Heads(mla.heads);
    let qk_dim = mla.qk_nope_head_dim.saturating_add(mla.qk_rope_head_dim);
    let q_width = match mla.q_lora_rank {
        Some(rank) => {
            sink.put(attention, product(&[hidden, rank]), format_in, Split::None);
            rank
        }
        None => hidden,
    };
    sink.put(
        attention,
        product(&[q_width, mla.heads, qk_dim]),
        format_in,
        by_head,
    );
    let latent = mla.kv_lora_rank.saturating_add(mla.qk_rope_head_dim);
    sink.put(
        attention,
        product(&[hidden, latent]),
        format_in,
        Split::None,
    );
    let up = mla.qk_nope_head_dim.saturating_add(mla.v_head_dim);
    sink.put(
        attention,
        product(&[mla.kv_lora_rank, mla.heads, up]),
        format_in,
        by_head,
    );
    let out = product(&[mla.heads, mla.v_head_dim, hidden]);
    sink.put(attention, out, layer.formats.attention_out, by_head);
    if mla.output_gate {
        sink.put(attention, out, format_in, by_head);
    }
    if let Some(indexer) = mla.indexer {
        indexer_pieces(&indexer, q_width, hidden, layer, sink);
    }
}

/// Index queries from a `q_width` input, one shared index key and the head weights from `hidden`.
/// Every rank holds all of it.
fn indexer_pieces(
    indexer: &Indexer,
    q_width: u64,
    hidden: u64,
    layer: &Layer,
    sink: &mut Sink<'_>,
) {
    if !indexer.own {
        return;
    }
    let queries = product(&[q_width, indexer.heads, indexer.head_dim]);
    let keys = product(&[hidden, indexer.head_dim.saturating_add(indexer.heads)]);
    sink.put(
        ParamGroup::Indexer,
        queries.saturating_add(keys),
        layer.formats.attention_in,
        Split::None,
    );
}

fn compressed_pieces(a: &CompressedMla, layer: &Layer, hidden: u64, sink: &mut Sink<'_>) {
    let attention = ParamGroup::Attention;
    let format_in = layer.formats.attention_in;
    let by_head = Split::Heads(a.heads);
    let head_width = product(&[a.heads, a.head_dim]);
    sink.put(
        attention,
        product(&[hidden, a.q_lora_rank]),
        format_in,
        Split::None,
    );
    sink.put(
        attention,
        product(&[a.q_lora_rank, head_width]),
        format_in,
        by_head,
    );
    sink.put(
        attention,
        product(&[hidden, a.head_dim]),
        format_in,
        Split::None,
    );
    // Grouped low-rank output: each group maps its heads to o_lora_rank, then all to hidden.
    let down = product(&[head_width, a.o_lora_rank]);
    let up = product(&[a.o_groups, a.o_lora_rank, hidden]);
    sink.put(
        attention,
        down.saturating_add(up),
        layer.formats.attention_out,
        by_head,
    );
    if a.ratio > 0 {
        // The compressor projects to key-value and gate, both of head_dim, doubled where entries
        // overlap (ratio 4).
        let width = product(&[if a.ratio == 4 { 4 } else { 2 }, a.head_dim]);
        sink.put(
            attention,
            product(&[hidden, width]),
            layer.formats.attention_out,
            Split::None,
        );
    }
    if let Some(indexer) = a.indexer {
        indexer_pieces(&indexer, a.q_lora_rank, hidden, layer, sink);
    }
}

fn linear_pieces(linear: &LinearState, layer: &Layer, hidden: u64, sink: &mut Sink<'_>) {
    let keys = product(&[linear.key_heads, linear.key_dim]);
    let values = product(&[linear.value_heads, linear.value_dim]);
    let qkv = keys.saturating_mul(2).saturating_add(values);
    let by_head = Split::Heads(linear.value_heads);
    let attention = ParamGroup::Attention;
    let format_in = layer.formats.attention_in;
    // Query, key, value and the output gate of value width.
    let rows = qkv.saturating_add(values);
    sink.put(attention, product(&[hidden, rows]), format_in, by_head);
    // Decay and write gates: per head, or per channel through a low rank of one head (KDA).
    let gates = if linear.channel_gates {
        let low_rank = product(&[linear.value_dim, hidden.saturating_add(keys.max(values))]);
        low_rank.saturating_add(product(&[hidden, linear.value_heads]))
    } else {
        product(&[2, hidden, linear.value_heads])
    };
    sink.put(attention, gates, sink.base, by_head);
    sink.norms(product(&[qkv, linear.conv_kernel]));
    sink.put(
        attention,
        product(&[values, hidden]),
        layer.formats.attention_out,
        by_head,
    );
}

fn mamba_pieces(mamba: &Mamba2, layer: &Layer, hidden: u64, sink: &mut Sink<'_>) {
    let inner = product(&[mamba.heads, mamba.head_dim]);
    let bc = product(&[2, mamba.groups, mamba.state]);
    let by_head = Split::Heads(mamba.heads);
    let rows = inner
        .saturating_mul(2)
        .saturating_add(bc)
        .saturating_add(mamba.heads);
    sink.put(
        ParamGroup::Attention,
        product(&[hidden, rows]),
        layer.formats.attention_in,
        by_head,
    );
    sink.norms(product(&[
        inner.saturating_add(bc),
        mamba.conv_kernel.saturating_add(1),
    ]));
    sink.put(
        ParamGroup::Attention,
        product(&[inner, hidden]),
        layer.formats.attention_out,
        by_head,
    );
}

fn moe_pieces(moe: &Moe, layer: &Layer, hidden: u64, sink: &mut Sink<'_>) {
    let matrices = if moe.gated { 3 } else { 2 };
    let width = moe.latent.unwrap_or(hidden);
    let mut experts = product(&[moe.experts, matrices, width, moe.expert_inter]);
    if moe.bias {
        let rows = product(&[matrices - 1, moe.expert_inter]).saturating_add(width);
        experts = experts.saturating_add(product(&[moe.experts, rows]));
    }
    if experts > 0 {
        let share = moe.topk as f64 / moe.experts.max(1) as f64;
        (sink.emit)(Piece {
            group: ParamGroup::Experts,
            params: experts,
            format: layer.formats.experts,
            split: Split::Experts(moe.experts),
            active: share.min(1.0),
        });
    }
    let shared = product(&[matrices, hidden, moe.shared_inter]);
    sink.put(
        ParamGroup::SharedExperts,
        shared,
        layer.formats.shared,
        Split::Even,
    );
    if let Some(latent) = moe.latent {
        sink.put(
            ParamGroup::SharedExperts,
            product(&[2, hidden, latent]),
            layer.formats.shared,
            Split::None,
        );
    }
    if moe.parallel_dense_inter > 0 {
        sink.put(
            ParamGroup::Dense,
            product(&[3, hidden, moe.parallel_dense_inter]),
            layer.formats.dense,
            Split::Even,
        );
    }
    let gate_rows = moe.experts.saturating_add(u64::from(moe.shared_gate));
    sink.put(
        ParamGroup::Router,
        product(&[hidden, gate_rows]),
        sink.base,
        Split::None,
    );
}
