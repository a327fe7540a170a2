//! What the stand-in builds: the widths of each layer on one rank.

use kvplan::{Attention, Ffn, Layer, Model};
use serde::{Deserialize, Serialize};

use crate::input;
use crate::scenario::Scenario;

/// A model on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shapes {
    pub(crate) hidden: usize,
    /// Rows of this rank's part of the output head.
    pub(crate) vocab: usize,
    /// Rows of this rank's part of the embedding table.
    pub(crate) embedding: usize,
    pub(crate) layers: Vec<LayerShape>,
    pub(crate) ranks: usize,
}

/// One layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerShape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    /// Hidden states side by side that the attention reads.
    pub(crate) inputs: usize,
    pub(crate) ffn: FfnShape,
}

impl LayerShape {
    /// Routed experts, where it has any.
    pub(crate) fn experts(&self) -> Option<usize> {
        match self.ffn {
            FfnShape::Moe { experts, .. } => Some(experts),
            FfnShape::Dense { .. } => None,
        }
    }
}

/// A feed-forward on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FfnShape {
    /// Gate, up and down products.
    Dense { inter: usize },
    /// Routed experts, and a shared one of `shared` width (0: none).
    Moe {
        experts: usize,
        topk: usize,
        inter: usize,
        shared: usize,
    },
}

/// The draft on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DraftShapes {
    pub(crate) shapes: Shapes,
    /// Width that is projected to the draft's hidden size once a cycle; 0: nothing is.
    pub(crate) projected: usize,
}

fn uncovered(what: &str) -> anyhow::Error {
    input::error(format!(
        "verify-hw: the stand-in does not build {what}; measure the real engine with --engine-url, or \
         name a model with grouped-query attention (--model llama-3.1-8b)"
    ))
}

fn layer(layer: &Layer, ranks: u64) -> anyhow::Result<LayerShape> {
    let Attention::Gqa(a) = layer.attention else {
        return Err(uncovered("latent, linear or sparse attention"));
    };
    if a.head_dim != a.v_head_dim || ![64, 128].contains(&a.head_dim) || a.indexer.is_some() {
        return Err(uncovered("attention heads other than 64 or 128 wide"));
    }
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let ffn = match layer.ffn {
        Ffn::Dense { inter, gated: true } => FfnShape::Dense {
            inter: size(inter / ranks),
        },
        Ffn::Moe(m) if m.gated && m.latent.is_none() && m.parallel_dense_inter == 0 => {
            FfnShape::Moe {
                experts: size(m.experts),
                topk: size(m.topk),
                inter: size(m.expert_inter / ranks),
                shared: size(m.shared_inter / ranks),
            }
        }
        _ => return Err(uncovered("this kind of feed-forward")),
    };
    let shape = LayerShape {
        heads: size(a.heads / ranks),
        kv_heads: size((a.kv_heads / ranks).max(1)),
        dim: size(a.head_dim),
        inputs: size(a.input_hiddens.max(1)),
        ffn,
    };
    let odd = match ffn {
        FfnShape::Dense { inter } => inter % 8 != 0,
        FfnShape::Moe {
            experts,
            topk,
            inter,
            shared,
        } => inter % 64 != 0 || shared % 8 != 0 || experts > 1024 || topk > 32,
    };
    if odd || shape.heads == 0 {
        return Err(uncovered("widths that do not divide by the ranks"));
    }
    Ok(shape)
}

fn shapes(model: &Model, vocab: u64, ranks: u64) -> anyhow::Result<Shapes> {
    let layers: anyhow::Result<Vec<_>> = model.layers.iter().map(|l| layer(l, ranks)).collect();
    if !model.hidden.is_multiple_of(64) {
        return Err(uncovered("a hidden size that is no multiple of 64"));
    }
    Ok(Shapes {
        hidden: model.hidden as usize,
        vocab: (vocab.div_ceil(ranks) as usize).next_multiple_of(8),
        embedding: model.vocab.div_ceil(ranks) as usize,
        layers: layers?,
        ranks: ranks as usize,
    })
}

/// The target on one rank of the scenario's group.
///
/// # Errors
/// One line for what the stand-in does not cover.
pub(crate) fn target(scenario: &Scenario) -> anyhow::Result<Shapes> {
    let model = &scenario.model;
    let formats = [model.base_format, model.head_format];
    if formats.iter().any(|f| f.bytes_per_param() != 2.0) {
        return Err(uncovered("quantised weights"));
    }
    shapes(model, model.vocab, u64::from(scenario.tp))
}

/// The draft, where it is a head of its own.
///
/// # Errors
/// As [`target`].
pub(crate) fn draft(scenario: &Scenario) -> anyhow::Result<Option<DraftShapes>> {
    let Some(draft) = &scenario.draft else {
        return Ok(None);
    };
    let Some(model) = &draft.model else {
        return Err(uncovered("MTP layers"));
    };
    let head = model.draft;
    let vocab = head.map_or(model.vocab, |d| d.draft_vocab.max(8));
    let mut shapes = shapes(model, vocab, u64::from(scenario.tp))?;
    shapes.embedding = scenario.model.vocab.div_ceil(u64::from(scenario.tp)) as usize;
    let projected = head.map_or(0, |d| d.target_hiddens * d.target_hidden);
    Ok(Some(DraftShapes {
        shapes,
        projected: projected as usize,
    }))
}

impl Shapes {
    /// Largest width of a layer's feed-forward output before the activation, per token.
    pub(crate) fn widest_ffn(&self) -> usize {
        self.layers
            .iter()
            .map(|l| match l.ffn {
                FfnShape::Dense { inter } => 2 * inter,
                FfnShape::Moe {
                    topk,
                    inter,
                    shared,
                    ..
                } => 2 * (topk * inter).max(shared),
            })
            .max()
            .unwrap_or(8)
    }

    /// Largest width of queries, keys and values, per token.
    pub(crate) fn widest_qkv(&self) -> usize {
        self.layers
            .iter()
            .map(|l| (l.heads + 2 * l.kv_heads) * l.dim)
            .max()
            .unwrap_or(8)
    }

    /// Bytes of all weights; the embedding may be another model's.
    pub(crate) fn weight_bytes(&self, embedding: bool) -> u64 {
        let layers: usize = self
            .layers
            .iter()
            .map(|l| {
                let heads = l.heads * l.dim;
                let attention = (heads + 2 * l.kv_heads * l.dim) * l.inputs + heads;
                let ffn = match l.ffn {
                    FfnShape::Dense { inter } => 3 * inter,
                    FfnShape::Moe {
                        experts,
                        inter,
                        shared,
                        ..
                    } => experts * (3 * inter + 1) + 3 * shared,
                };
                attention + ffn
            })
            .sum();
        let rows = layers + self.vocab + if embedding { self.embedding } else { 0 };
        2 * (rows * self.hidden) as u64
    }

    /// Bytes of one cached token, all layers, keys and values.
    pub(crate) fn kv_bytes_per_token(&self) -> usize {
        self.layers.iter().map(|l| 4 * l.kv_heads * l.dim).sum()
    }
}
