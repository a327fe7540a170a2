//! Weight bytes per rank under tensor, pipeline, expert parallelism and DP attention.

use crate::model::{Attention, Model};
use crate::params::{ParamGroup, Piece, Split, model_pieces, mtp_pieces};

/// How a model is spread over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Expert-parallel ranks among the tensor-parallel ones; 1: experts are cut inside.
    pub ep: u64,
    /// Attention replicas among the tensor-parallel ranks (DP attention); 1: none.
    pub dp_attention: u64,
    /// Decode-context-parallel ranks among the tensor-parallel ones; 1: none.
    pub dcp: u64,
}

impl Default for Sharding {
    fn default() -> Self {
        Self::tp(1)
    }
}

impl Sharding {
    /// Plain tensor parallelism over `tp` ranks.
    pub fn tp(tp: u64) -> Self {
        Self {
            tp: tp.max(1),
            pp: 1,
            ep: 1,
            dp_attention: 1,
            dcp: 1,
        }
    }

    /// Ranks that share one attention replica.
    pub fn attention_tp(&self) -> u64 {
        (self.tp.max(1) / self.dp_attention.max(1)).max(1)
    }

    /// Why the model cannot be cut like this, in one line, or `Ok`.
    ///
    /// # Errors
    /// A zero size, or query heads that the ranks do not divide.
    pub fn check(&self, model: &Model) -> Result<(), String> {
        if self.tp == 0 || self.pp == 0 || self.ep == 0 || self.dp_attention == 0 || self.dcp == 0 {
            return Err("a parallel size of 0; the smallest is 1".to_string());
        }
        if !self.tp.is_multiple_of(self.dp_attention) {
            return Err(format!(
                "DP attention {} does not divide tp {}",
                self.dp_attention, self.tp
            ));
        }
        let ranks = self.attention_tp();
        for layer in &model.layers {
            let heads = crate::kv::query_heads(&layer.attention);
            if heads > 0 && !heads.is_multiple_of(ranks) {
                return Err(format!(
                    "tp {ranks} does not divide the {heads} attention heads; choose a divisor of {heads}"
                ));
            }
            // States are cut by heads too (the projections of both engines divide by the ranks).
            let state_heads = match layer.attention {
                Attention::Linear(linear) => [linear.key_heads, linear.value_heads],
                Attention::Mamba(mamba) => [mamba.heads, mamba.heads],
                _ => [0, 0],
            };
            if let Some(heads) = state_heads
                .iter()
                .find(|heads| !heads.is_multiple_of(ranks))
            {
                return Err(format!(
                    "tp {ranks} does not divide the {heads} heads of a layer with a state; choose \
                     a divisor of {heads}"
                ));
            }
            // Engines copy a KV head to several ranks, or give a rank several; they split none.
            if let Attention::Gqa(gqa) = &layer.attention {
                let (kv, ranks) = (gqa.kv_heads.max(1), ranks.max(1));
                if !kv.is_multiple_of(ranks) && !ranks.is_multiple_of(kv) {
                    return Err(format!(
                        "tp {ranks} neither divides the {kv} KV heads nor is a multiple of them; \
                         choose a divisor of {kv}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Share of a piece that the fullest rank holds, before pipeline stages.
    pub(crate) fn share(&self, split: Split) -> f64 {
        let heads = |units: u64, ranks: u64| {
            let units = units.max(1);
            units.div_ceil(ranks.max(1)) as f64 / units as f64
        };
        match split {
            Split::None => 1.0,
            Split::Heads(units) => heads(units, self.attention_tp()),
            Split::Even => 1.0 / self.tp.max(1) as f64,
            Split::Vocab => 1.0 / self.attention_tp() as f64,
            Split::Experts(experts) => {
                let ep = self.ep.clamp(1, self.tp.max(1));
                heads(experts, ep) / (self.tp.max(1) as f64 / ep as f64)
            }
        }
    }
}

/// Weight bytes of one group on the fullest rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightLine {
    /// Which tensors.
    pub group: ParamGroup,
    /// Bytes on the fullest rank.
    pub bytes: f64,
}

impl Model {
    /// Weight bytes by group on the fullest rank of the fullest pipeline stage, MTP layers not
    /// included.
    pub fn weight_bytes(&self, sharding: &Sharding) -> Vec<WeightLine> {
        let mut lines = Vec::new();
        model_pieces(self, &mut |piece| add(&mut lines, &piece, sharding, self));
        lines.sort_by_key(|line| line.group);
        for line in &mut lines {
            line.bytes *= self.checkpoint_scale;
        }
        lines
    }

    /// The same model with its weights scaled to what the checkpoint really holds: the total of
    /// `model.safetensors.index.json`, or of a single file's header.
    ///
    /// # Errors
    /// One line, where the text is neither, or its total is further from the shapes than a factor
    /// of two: then it belongs to another model.
    pub fn with_checkpoint(mut self, index_or_header: &str) -> Result<Self, String> {
        let total = checkpoint_bytes(index_or_header)?;
        let whole = Sharding::tp(1);
        self.checkpoint_scale = 1.0;
        let computed = self.total_weight_bytes(&whole) + self.mtp_weight_bytes(&whole);
        let scale = total / computed;
        if !(0.5..=2.0).contains(&scale) {
            return Err(format!(
                "the checkpoint holds {:.1} GiB, the config describes {:.1}: they belong to \
                 different models, or the precision is not the config's",
                total / crate::GIB,
                computed / crate::GIB
            ));
        }
        self.checkpoint_scale = scale;
        Ok(self)
    }

    /// Sum of [`Model::weight_bytes`].
    pub fn total_weight_bytes(&self, sharding: &Sharding) -> f64 {
        self.weight_bytes(sharding).iter().map(|l| l.bytes).sum()
    }

    /// Bytes of the MTP modules on the fullest rank, without vocabulary tables.
    pub fn mtp_weight_bytes(&self, sharding: &Sharding) -> f64 {
        let mut lines = Vec::new();
        let whole = Sharding { pp: 1, ..*sharding };
        mtp_pieces(self, &mut |piece| add(&mut lines, &piece, &whole, self));
        lines.iter().map(|line| line.bytes).sum::<f64>() * self.checkpoint_scale
    }

    /// Bytes of one vocabulary table (embedding or head) on a rank.
    pub fn vocab_table_bytes(&self, sharding: &Sharding) -> f64 {
        let table =
            self.embedding_format.bytes_per_param() * self.vocab as f64 * self.hidden as f64;
        table * sharding.share(Split::Vocab)
    }
}

/// Bytes of all tensors, from an index (`metadata.total_size`) or a header (`data_offsets`).
fn checkpoint_bytes(text: &str) -> Result<f64, String> {
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| format!("is not JSON ({error}); give the safetensors index or header"))?;
    if let Some(total) = value
        .pointer("/metadata/total_size")
        .and_then(|v| v.as_f64())
    {
        return Ok(total);
    }
    let tensors = value.as_object().into_iter().flatten();
    let ends = tensors.filter_map(|(_, tensor)| tensor.pointer("/data_offsets/1")?.as_f64());
    match ends.fold(0.0, f64::max) {
        end if end > 0.0 => Ok(end),
        _ => Err(
            "has neither metadata.total_size nor data_offsets; give the safetensors index or \
                  header"
                .to_string(),
        ),
    }
}

fn add(lines: &mut Vec<WeightLine>, piece: &Piece, sharding: &Sharding, model: &Model) {
    let whole = piece.params as f64 * piece.format.bytes_per_param();
    let stage = match piece.group {
        // Layer tensors: the fullest stage has ceil(layers / stages) of them.
        ParamGroup::Attention
        | ParamGroup::Indexer
        | ParamGroup::Dense
        | ParamGroup::Experts
        | ParamGroup::SharedExperts
        | ParamGroup::Router
        | ParamGroup::Norms => {
            let layers = (model.layers.len() as u64).max(1);
            layers.div_ceil(sharding.pp.max(1)) as f64 / layers as f64
        }
        // With stages the tables lie on the first and the last; either can be the fullest.
        ParamGroup::Head if sharding.pp > 1 => 0.0,
        _ => 1.0,
    };
    let bytes = whole * sharding.share(piece.split) * stage;
    match lines.iter_mut().find(|line| line.group == piece.group) {
        Some(line) => line.bytes += bytes,
        None => lines.push(WeightLine {
            group: piece.group,
            bytes,
        }),
    }
}
