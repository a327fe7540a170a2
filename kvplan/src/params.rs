//! Parameters by tensor group, each piece with its stored format and the way tensor parallelism
//! splits it. Everything about weight sizes is a sum over these pieces.

mod layer;

use crate::formats::WeightFormat;
use crate::model::{DraftKind, Model};
use crate::product;
pub(crate) use layer::layer_pieces;

/// Groups of tensors, as the ledger names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParamGroup {
    /// Input embedding table.
    Embedding,
    /// Output head.
    Head,
    /// Attention, linear attention and state-space projections.
    Attention,
    /// Sparse-attention index projections.
    Indexer,
    /// Dense feed-forward.
    Dense,
    /// Routed experts.
    Experts,
    /// Shared experts and latent projections.
    SharedExperts,
    /// Routers.
    Router,
    /// Norms, biases, convolutions: small and never split here.
    Norms,
    /// Draft projection of hidden states.
    DraftProjection,
    /// Vision tower.
    Vision,
    /// What the shapes do not carry.
    Other,
}

impl ParamGroup {
    /// Name as printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding table",
            Self::Head => "output head",
            Self::Attention => "attention",
            Self::Indexer => "attention index",
            Self::Dense => "feed-forward",
            Self::Experts => "experts",
            Self::SharedExperts => "shared experts",
            Self::Router => "routers",
            Self::Norms => "norms and biases",
            Self::DraftProjection => "draft projection",
            Self::Vision => "vision tower",
            Self::Other => "other",
        }
    }
}

/// Parameters of one group, whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamLine {
    /// Which tensors.
    pub group: ParamGroup,
    /// How many parameters.
    pub params: u64,
}

/// How tensor parallelism cuts a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// A whole copy on every rank.
    None,
    /// By heads under attention parallelism: a rank holds ceil(units / ranks) of `units`.
    Heads(u64),
    /// Evenly over the tensor-parallel ranks.
    Even,
    /// Over the vocabulary: like `Even`, but over attention ranks.
    Vocab,
    /// Whole experts over expert ranks, the rest of the ranks within an expert.
    Experts(u64),
}

/// One piece: tensors of one group, format and split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Piece {
    pub(crate) group: ParamGroup,
    pub(crate) params: u64,
    pub(crate) format: WeightFormat,
    pub(crate) split: Split,
    /// Fraction of the parameters that one token touches (experts: topk / experts).
    pub(crate) active: f64,
}

/// Collects pieces of a layer.
struct Sink<'a> {
    emit: &'a mut dyn FnMut(Piece),
    base: WeightFormat,
}

impl Sink<'_> {
    fn put(&mut self, group: ParamGroup, params: u64, format: WeightFormat, split: Split) {
        if params > 0 {
            (self.emit)(Piece {
                group,
                params,
                format,
                split,
                active: 1.0,
            });
        }
    }

    fn norms(&mut self, params: u64) {
        self.put(ParamGroup::Norms, params, self.base, Split::None);
    }
}

/// Calls `emit` with every piece of the decoder itself (no MTP layers).
pub(crate) fn model_pieces(model: &Model, emit: &mut dyn FnMut(Piece)) {
    for (layer, count) in model.layer_kinds() {
        layer_pieces(&layer, model.hidden, model.base_format, &mut |piece| {
            emit(Piece {
                params: piece.params.saturating_mul(count),
                ..piece
            });
        });
    }
    outer_pieces(model, emit);
}

/// Format of matrices that no group of a layer holds: that of the table, which GGUF quantises while
/// its base format (norms, routers) is 32 bits.
fn matrix_format(model: &Model) -> WeightFormat {
    match model.base_format {
        WeightFormat::F32 => model.embedding_format,
        base => base,
    }
}

/// Tables, head, final norm, draft projection, vision tower.
fn outer_pieces(model: &Model, emit: &mut dyn FnMut(Piece)) {
    let mut sink = Sink {
        emit,
        base: model.base_format,
    };
    let table = product(&[model.vocab, model.hidden]);
    sink.put(
        ParamGroup::Embedding,
        table,
        model.embedding_format,
        Split::Vocab,
    );
    let head_rows = model.draft.map_or(model.vocab, |draft| draft.draft_vocab);
    if !model.tied_embeddings {
        let head = product(&[head_rows, model.hidden]);
        sink.put(ParamGroup::Head, head, model.head_format, Split::Vocab);
    }
    sink.norms(model.hidden);
    if model.learned_positions {
        let positions = product(&[model.max_positions.unwrap_or(0), model.hidden]);
        sink.norms(positions);
    }
    if let Some(draft) = model.draft {
        let inputs = match draft.kind {
            DraftKind::Eagle => {
                product(&[draft.target_hiddens, draft.target_hidden]).saturating_add(model.hidden)
            }
            _ => product(&[draft.target_hiddens, draft.target_hidden]),
        };
        let params = product(&[inputs, model.hidden]);
        sink.put(
            ParamGroup::DraftProjection,
            params,
            matrix_format(model),
            Split::None,
        );
    }
    if let Some(vision) = model.vision {
        sink.put(
            ParamGroup::Vision,
            vision.params,
            match model.base_format {
                // GGUF keeps the tower in a file of its own.
                WeightFormat::F32 => WeightFormat::F16,
                base => base,
            },
            Split::None,
        );
    }
    sink.put(
        ParamGroup::Other,
        model.other_params,
        matrix_format(model),
        Split::None,
    );
}

/// Calls `emit` with every piece of the MTP modules: their layers, input projections and norms,
/// and (unless shared in the checkpoint) their own embedding table and head.
pub(crate) fn mtp_pieces(model: &Model, emit: &mut dyn FnMut(Piece)) {
    for layer in &model.mtp_layers {
        layer_pieces(layer, model.hidden, model.base_format, emit);
    }
    let modules = model.mtp_modules;
    let mut sink = Sink {
        emit,
        base: model.base_format,
    };
    let projection = product(&[modules, 2, model.hidden, model.hidden]);
    sink.put(
        ParamGroup::DraftProjection,
        projection,
        matrix_format(model),
        Split::None,
    );
    sink.norms(product(&[modules, 3, model.hidden]));
}

impl Model {
    /// Parameters by group, MTP layers not included.
    pub fn params(&self) -> Vec<ParamLine> {
        let mut lines: Vec<ParamLine> = Vec::new();
        model_pieces(self, &mut |piece| add(&mut lines, &piece));
        lines.sort_by_key(|line| line.group);
        lines
    }

    /// All parameters, MTP layers not included.
    pub fn total_params(&self) -> u64 {
        let mut total = 0u64;
        model_pieces(self, &mut |piece| {
            total = total.saturating_add(piece.params)
        });
        total
    }

    /// Parameters of the MTP modules without vocabulary tables.
    pub fn mtp_params(&self) -> u64 {
        let mut total = 0u64;
        mtp_pieces(self, &mut |piece| {
            total = total.saturating_add(piece.params)
        });
        total
    }

    /// Parameters one token touches: all but the experts it is not routed to. The embedding
    /// table counts whole, as in published figures.
    pub fn active_params(&self) -> u64 {
        let mut total = 0.0;
        model_pieces(self, &mut |piece| {
            total += piece.params as f64 * piece.active;
        });
        total as u64
    }
}

fn add(lines: &mut Vec<ParamLine>, piece: &Piece) {
    match lines.iter_mut().find(|line| line.group == piece.group) {
        Some(line) => line.params = line.params.saturating_add(piece.params),
        None => lines.push(ParamLine {
            group: piece.group,
            params: piece.params,
        }),
    }
}
