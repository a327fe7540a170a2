//! What a model is: its layers, their shapes, and the format each group of tensors is stored in.

use std::collections::HashMap;

use crate::formats::{KvDtype, WeightFormat};

/// A decoder language model as its `config.json` describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Name it was read or found under.
    pub name: String,
    /// `architectures[0]`, or the model type where that is missing.
    pub architecture: String,
    /// Width of the residual stream, elements.
    pub hidden: u64,
    /// Rows of the embedding table.
    pub vocab: u64,
    /// Whether the output head shares the embedding table.
    pub tied_embeddings: bool,
    /// Whether there is a learned table of positions (GPT-2).
    pub learned_positions: bool,
    /// Longest context the config allows, tokens.
    pub max_positions: Option<u64>,
    /// Format of everything that is not quantised.
    pub base_format: WeightFormat,
    /// Format of the embedding table.
    pub embedding_format: WeightFormat,
    /// Format of the output head.
    pub head_format: WeightFormat,
    /// Decoder layers in order.
    pub layers: Vec<Layer>,
    /// Multi-token-prediction layers shipped with the checkpoint, in order.
    pub mtp_layers: Vec<Layer>,
    /// How many MTP modules the layers form (each has its own input projection and norms).
    pub mtp_modules: u64,
    /// The vision tower, where there is one.
    pub vision: Option<Vision>,
    /// Set when this is a draft head that reads another model's hidden states.
    pub draft: Option<DraftHead>,
    /// KV format the checkpoint asks for, where it says.
    pub kv_dtype: Option<KvDtype>,
    /// In whose words it asks.
    pub kv_asker: KvAsker,
    /// Whether the weight format is a name's usual meaning, not a checkpoint's own description: then
    /// the size of a group is a guess.
    pub format_by_name: bool,
    /// Parameters the shapes above do not carry (counted in `ParamGroup::Other`).
    pub other_params: u64,
    /// Bytes of the checkpoint over the bytes computed from the shapes, where its safetensors
    /// index or header was read; 1 where it was not.
    pub checkpoint_scale: f64,
    /// What was assumed while reading, to be printed.
    pub assumptions: Vec<String>,
}

/// Whose checkpoint asks for a KV format: engines learnt to read these one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvAsker {
    /// None of those below.
    #[default]
    Other,
    /// ModelOpt, weights in NVFP4.
    ModelOptFp4,
    /// ModelOpt, weights in FP8 or mixed.
    ModelOptFp8,
    /// ModelOpt, weights in MXFP8.
    ModelOptMxfp8,
    /// llm-compressor.
    CompressedTensors,
}

/// One decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layer {
    /// Token mixing.
    pub attention: Attention,
    /// Channel mixing.
    pub ffn: Ffn,
    /// Stored formats, resolved per layer.
    pub formats: LayerFormats,
}

/// The format of each tensor group of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerFormats {
    /// Query, key, value (down- and up-) projections.
    pub attention_in: WeightFormat,
    /// Output projection.
    pub attention_out: WeightFormat,
    /// Dense feed-forward.
    pub dense: WeightFormat,
    /// Routed experts.
    pub experts: WeightFormat,
    /// Shared experts.
    pub shared: WeightFormat,
}

impl LayerFormats {
    /// Every group in one format.
    pub fn uniform(format: WeightFormat) -> Self {
        Self {
            attention_in: format,
            attention_out: format,
            dense: format,
            experts: format,
            shared: format,
        }
    }
}

/// Token mixing of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attention {
    /// Multi-head, grouped-query or multi-query attention.
    Gqa(Gqa),
    /// Multi-head latent attention: one latent per token, whatever the number of heads.
    Mla(Mla),
    /// DeepSeek-V4: one shared key-value head, a short window and compressed entries beyond it.
    Compressed(CompressedMla),
    /// Gated delta rule, KDA and other linear attention with a matrix state per request.
    Linear(LinearState),
    /// Mamba-2 state space layer.
    Mamba(Mamba2),
    /// No token mixing in this layer.
    None,
}

/// Grouped-query attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gqa {
    /// Query heads.
    pub heads: u64,
    /// Key-value heads.
    pub kv_heads: u64,
    /// Elements of a query or key head.
    pub head_dim: u64,
    /// Elements of a value head.
    pub v_head_dim: u64,
    /// Tokens a sliding-window or chunked layer can see; `None` sees all.
    pub window: Option<u64>,
    /// Rank of a query projection in two steps, the first of which every rank holds (Step-3).
    pub q_rank: Option<u64>,
    /// The query projection also makes an output gate (twice the rows).
    pub output_gate: bool,
    /// No value projection: values are the keys (both are cached all the same).
    pub v_is_k: bool,
    /// Biases on the projections.
    pub bias: bool,
    /// Reads the cache of an earlier layer and keeps none (Gemma 3n, cross-layer attention).
    pub shares_cache: bool,
    /// Input width where it is not the model's hidden size (EAGLE-3 reads two hiddens).
    pub input_hiddens: u64,
    /// Sparse-attention index, where there is one.
    pub indexer: Option<Indexer>,
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mla {
    /// Query heads.
    pub heads: u64,
    /// Rank of the query down-projection; `None` projects directly.
    pub q_lora_rank: Option<u64>,
    /// Rank of the cached latent.
    pub kv_lora_rank: u64,
    /// Query and key elements without position, per head.
    pub qk_nope_head_dim: u64,
    /// Query and key elements with rotary position, per head; the key's are shared and cached.
    pub qk_rope_head_dim: u64,
    /// Value elements per head.
    pub v_head_dim: u64,
    /// An output gate of full width (Kimi-K3).
    pub output_gate: bool,
    /// Sparse-attention index, where there is one.
    pub indexer: Option<Indexer>,
}

/// The index of sparse attention (DSA and kin): a small key per token that picks what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Indexer {
    /// Index heads.
    pub heads: u64,
    /// Elements of an index key.
    pub head_dim: u64,
    /// Tokens (or blocks) kept per query.
    pub topk: u64,
    /// Whether the layer has its own index (weights and cache); shared ones are counted once.
    pub own: bool,
}

/// DeepSeek-V4 attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompressedMla {
    /// Query heads.
    pub heads: u64,
    /// Elements of a head; the single key-value head is stored once for key and value.
    pub head_dim: u64,
    /// Rank of the query down-projection.
    pub q_lora_rank: u64,
    /// Rank of the grouped output projection.
    pub o_lora_rank: u64,
    /// Groups of the output projection.
    pub o_groups: u64,
    /// Tokens kept as they are.
    pub window: u64,
    /// Tokens one compressed entry stands for; 0: window only.
    pub ratio: u64,
    /// Index over the compressed entries, where there is one.
    pub indexer: Option<Indexer>,
}

/// Linear attention with a matrix state per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearState {
    /// Key (and query) heads.
    pub key_heads: u64,
    /// Value heads; the state has one matrix for each.
    pub value_heads: u64,
    /// Elements of a key head.
    pub key_dim: u64,
    /// Elements of a value head.
    pub value_dim: u64,
    /// Taps of the short convolution; its state keeps one less.
    pub conv_kernel: u64,
    /// Kimi Delta Attention: per-channel decay gates instead of per-head ones.
    pub channel_gates: bool,
    /// Bytes of a state element (4 for f32).
    pub state_element_bytes: u64,
}

/// A Mamba-2 layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mamba2 {
    /// Heads.
    pub heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// State elements per channel.
    pub state: u64,
    /// Groups that share B and C.
    pub groups: u64,
    /// Taps of the short convolution.
    pub conv_kernel: u64,
    /// Bytes of a state element (4 for f32).
    pub state_element_bytes: u64,
}

/// Channel mixing of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ffn {
    /// One feed-forward for all tokens.
    Dense {
        /// Inner width.
        inter: u64,
        /// Gate and up projections (3 matrices) rather than one (2 matrices).
        gated: bool,
    },
    /// A mixture of experts.
    Moe(Moe),
    /// None in this layer.
    None,
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moe {
    /// Routed experts.
    pub experts: u64,
    /// Experts a token goes through.
    pub topk: u64,
    /// Inner width of a routed expert.
    pub expert_inter: u64,
    /// Width experts work in where it is not the model's hidden size (latent MoE); down- and
    /// up-projections to it are counted with the shared part.
    pub latent: Option<u64>,
    /// Inner width of all shared experts together; 0: none.
    pub shared_inter: u64,
    /// A scalar gate on the shared expert (Qwen).
    pub shared_gate: bool,
    /// Inner width of a dense feed-forward that runs beside the experts (Gemma 4); 0: none.
    pub parallel_dense_inter: u64,
    /// Gate and up projections (3 matrices) rather than one (2 matrices).
    pub gated: bool,
    /// Biases on the experts (gpt-oss).
    pub bias: bool,
}

/// A vision tower: only its size matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vision {
    /// Layers.
    pub layers: u64,
    /// Width.
    pub hidden: u64,
    /// Inner width of its feed-forward.
    pub inter: u64,
    /// Parameters of tower and projector, estimated from the shapes.
    pub params: u64,
}

/// What makes a model a draft head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftHead {
    /// Which kind.
    pub kind: DraftKind,
    /// Rows of the draft's own output head (EAGLE-3 uses a reduced vocabulary).
    pub draft_vocab: u64,
    /// Hidden states of the target that are concatenated and projected.
    pub target_hiddens: u64,
    /// Width of those hidden states.
    pub target_hidden: u64,
    /// Tokens a block draft proposes at once; 0: one at a time.
    pub block: u64,
}

/// Kinds of draft heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DraftKind {
    /// EAGLE: one layer, the target's last hidden state.
    Eagle,
    /// EAGLE-3: one layer, three hidden states of the target, reduced vocabulary.
    Eagle3,
    /// Block drafts of the DFlash family (DFlash, DSpark, Domino).
    BlockDiffusion,
}

/// Kinds of layers that are looked for one by one.
const FEW_KINDS: usize = 16;

impl Model {
    /// The distinct layers with how often each occurs, in order of first appearance.
    pub fn layer_kinds(&self) -> Vec<(Layer, u64)> {
        let mut kinds: Vec<(Layer, u64)> = Vec::new();
        // A model has a handful of kinds; only a searched one (DeciLM) has many.
        let mut rest: HashMap<Layer, usize> = HashMap::new();
        for layer in &self.layers {
            let few = kinds.iter().take(FEW_KINDS);
            let at = few.enumerate().find(|(_, (kind, _))| kind == layer);
            let at = at.map(|(at, _)| at).or_else(|| rest.get(layer).copied());
            if let Some((_, count)) = at.and_then(|at| kinds.get_mut(at)) {
                *count += 1;
                continue;
            }
            if kinds.len() >= FEW_KINDS {
                rest.insert(*layer, kinds.len());
            }
            kinds.push((*layer, 1));
        }
        kinds
    }

    /// Layers with a token mixer whose output is summed over ranks, plus layers with a
    /// feed-forward: the all-reduces of one pass under tensor parallelism.
    pub fn all_reduces_per_pass(&self) -> u64 {
        self.layers
            .iter()
            .map(|layer| {
                u64::from(layer.attention != Attention::None) + u64::from(layer.ffn != Ffn::None)
            })
            .sum()
    }
}
