//! Reading a Hugging Face `config.json`: nested text configs, every attention and expert layout of
//! the catalogue, quantisation blocks, draft heads. What is not a decoder is refused with a reason.

mod attention;
mod diffusion;
mod draft;
mod ffn;
mod layers;
mod mistral;
mod node;
mod pattern;
mod quant;
mod vision;

use std::fmt;

use serde_json::Value;

use crate::formats::WeightFormat;
use crate::model::{Attention, Ffn, Layer, LayerFormats, Model};
use crate::product;
pub use diffusion::{DENOISES, denoises};
use layers::LayerLists;
use node::Node;
use quant::QuantScheme;

/// Why a config cannot be used: which one, which field, what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Name of the config, as given by the caller.
    pub config: String,
    /// Field, dotted where nested; empty where the whole file is meant.
    pub field: String,
    /// What is wrong and how to mend it.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}: {}", self.config, self.message)
        } else {
            write!(f, "{}: {}: {}", self.config, self.field, self.message)
        }
    }
}

impl std::error::Error for ConfigError {}

impl Model {
    /// Reads a `config.json`. `name` is used for the model and in errors.
    ///
    /// # Errors
    /// One line naming the field, when the text is not JSON, not a decoder language model, or has
    /// a value outside what any model can have.
    pub fn from_config_json(text: &str, name: &str) -> Result<Self, ConfigError> {
        Self::from_config_and_quant(text, None, name)
    }

    /// Reads a `config.json` and the `hf_quant_config.json` beside it (ModelOpt checkpoints keep
    /// the quantisation there; it wins over a block inside the config).
    ///
    /// # Errors
    /// As [`Model::from_config_json`], for either text.
    pub fn from_config_and_quant(
        text: &str,
        quant_text: Option<&str>,
        name: &str,
    ) -> Result<Self, ConfigError> {
        let root = parse(text, name)?;
        let quant_root = quant_text.map(|text| parse(text, name)).transpose()?;
        read(&root, quant_root.as_ref(), name)
    }
}

impl Model {
    /// Reads a config that is already parsed (a catalogue entry).
    pub(crate) fn from_config_value(root: &Value, name: &str) -> Result<Self, ConfigError> {
        read(root, None, name)
    }
}

fn parse(text: &str, name: &str) -> Result<Value, ConfigError> {
    let cleaned = node::without_bare_constants(node::from_first_brace(text));
    let whole = |message: String| ConfigError {
        config: name.to_string(),
        field: String::new(),
        message,
    };
    let value: Value = serde_json::from_str(&cleaned).map_err(|error| {
        whole(format!(
            "is not JSON ({error}); give the config.json itself"
        ))
    })?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(whole(
            "holds no JSON object; give the config.json itself".to_string(),
        ))
    }
}

fn read(root: &Value, quant_root: Option<&Value>, name: &str) -> Result<Model, ConfigError> {
    if let Some(config) = mistral::translated(root) {
        return read(&config, quant_root, name);
    }
    let outer = Node::new(root, name);
    refuse_other_files(&outer)?;
    let node = outer.text_model();
    refuse_other_models(&node)?;
    diffusion::refuse(&outer, &node)?;
    let scheme = QuantScheme::read(&node, quant_root)?;

    let count = layer_count(&node)?;
    let hidden = node.need(&["hidden_size", "n_embd", "d_model"], node::MAX_WIDTH)?;
    let mut model = Model {
        name: name.to_string(),
        architecture: node.architecture(),
        hidden,
        vocab: node.need(&["vocab_size", "padded_vocab_size"], node::MAX_VOCAB)?,
        tied_embeddings: tied(&node),
        learned_positions: node.model_type() == "gpt2",
        max_positions: node.whole(
            &[
                "max_position_embeddings",
                "n_positions",
                "seq_length",
                "n_ctx",
            ],
            node::MAX_TOKENS,
        )?,
        base_format: scheme.base,
        embedding_format: scheme.base,
        head_format: scheme.head(),
        layers: Vec::with_capacity(count as usize),
        mtp_layers: Vec::new(),
        mtp_modules: 0,
        vision: vision::read(&outer, hidden)?,
        draft: None,
        kv_dtype: scheme.kv_dtype,
        kv_asker: scheme.kv_asker,
        format_by_name: false,
        other_params: 0,
        checkpoint_scale: 1.0,
        assumptions: scheme.notes.clone(),
    };
    decoder_layers(&node, &scheme, count, &mut model)?;
    model.other_params = other_params(&node, hidden, &model.layers)?;
    draft::read_head(&node, &mut model)?;
    read_mtp(&node, &scheme, &mut model)?;
    if node.model_type().starts_with("qwen3_next") && node.value("linear_num_value_heads").is_none()
    {
        model.assumptions.push(
            "the config lacks the keys of the linear layers: all layers counted as full attention"
                .to_string(),
        );
    }
    if model.layers.iter().all(|l| l.attention == Attention::None) {
        return Err(node.error("", "no layer mixes tokens; this is not a language model"));
    }
    Ok(model)
}

/// Reads every decoder layer, in order.
fn decoder_layers(
    node: &Node<'_>,
    scheme: &QuantScheme,
    count: u64,
    model: &mut Model,
) -> Result<(), ConfigError> {
    let hidden = model.hidden;
    let lists = LayerLists::read(node);
    let kind = node.model_type();
    for index in 0..count {
        let node = &node.at_layer(index, count);
        let attention = attention::read(node, &lists, index, hidden, model.max_positions)?;
        let mut ffn = ffn::read(node, &lists, index, hidden)?;
        let formats = scheme.layer(index, None);
        if let (true, Ffn::Moe(moe)) = (kind == "longcat_flash", &mut ffn) {
            // Two attentions and two dense feed-forwards a layer, the experts beside them: as a
            // dense layer before one whose experts run beside its dense part. What a token is
            // routed to may be one of the experts that do nothing; they have no weights.
            let dense = ffn::dense(node, hidden)?;
            if let Ffn::Dense { inter, .. } = dense {
                moe.parallel_dense_inter = inter;
            }
            model.layers.push(Layer {
                attention,
                ffn: dense,
                formats,
            });
        }
        if kind.starts_with("falcon_h1") {
            // Both mixers run side by side in every layer: as a layer without a feed-forward
            // before the one with it, which has the same tensors, cache and state.
            model.layers.push(Layer {
                attention: attention::parallel_mamba(node)?,
                ffn: Ffn::None,
                formats,
            });
        }
        model.layers.push(Layer {
            attention,
            ffn,
            formats,
        });
    }
    Ok(())
}

/// Refuses files that lie beside a config and are given by mistake.
fn refuse_other_files(outer: &Node<'_>) -> Result<(), ConfigError> {
    if outer.value("quantization").is_some() && outer.value("hidden_size").is_none() {
        return Err(outer.error(
            "",
            "is a quantisation file (hf_quant_config.json) without the model; give the \
             config.json beside it, or the folder that holds both",
        ));
    }
    if outer.value("weight_map").is_some() {
        return Err(outer.error(
            "",
            "is a safetensors index, not a model config; give the config.json beside it",
        ));
    }
    Ok(())
}

/// Model types that are not decoders, so that they are named rather than failing on some field.
const NOT_DECODERS: &[&str] = &[
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "electra",
    "deberta",
    "deberta-v2",
    "t5",
    "mt5",
    "bart",
    "mbart",
    "pegasus",
    "marian",
    "whisper",
    "clip",
    "siglip",
    "vit",
    "wav2vec2",
    "hubert",
    "sam",
    "dinov2",
    "modernbert",
    "longt5",
    "m2m_100",
];

/// Decoders whose recurrent or shared blocks no layer kind describes: better refused than counted
/// as full attention.
const NOT_MODELLED: &[&str] = &[
    "recurrent_gemma",
    "zamba",
    "zamba2",
    "phi4flash",
    "plamo2",
    "rwkv",
    "rwkv7",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "xlstm",
];

fn refuse_other_models(node: &Node<'_>) -> Result<(), ConfigError> {
    let kind = node.model_type();
    if NOT_DECODERS.contains(&kind.as_str()) {
        return Err(node.error(
            "model_type",
            &format!("`{kind}` is not a decoder language model; nothing here applies to it"),
        ));
    }
    if NOT_MODELLED.contains(&kind.as_str()) {
        return Err(node.error(
            "model_type",
            &format!(
                "`{kind}` mixes tokens in a way that is not modelled here; give another model"
            ),
        ));
    }
    if node.flag("is_encoder_decoder") == Some(true) {
        return Err(node.error(
            "is_encoder_decoder",
            "encoder-decoder models are not served with speculation; give a decoder",
        ));
    }
    Ok(())
}

fn layer_count(node: &Node<'_>) -> Result<u64, ConfigError> {
    let named = node.whole(
        &["num_hidden_layers", "n_layer", "num_layers"],
        node::MAX_LAYERS,
    )?;
    let listed = node
        .list("layers_block_type")
        .map(|list| list.len() as u64)
        .or_else(|| {
            node.text("hybrid_override_pattern")
                .map(|pattern| pattern.chars().count() as u64)
        });
    match named.or(listed) {
        Some(0) => Err(node.error("num_hidden_layers", "is 0; a model has at least one layer")),
        Some(count) if count <= node::MAX_LAYERS => Ok(count),
        Some(count) => Err(node.error(
            "num_hidden_layers",
            &format!(
                "is {count}, more than the {} that any model has",
                node::MAX_LAYERS
            ),
        )),
        None => Err(node.error(
            "num_hidden_layers",
            "is missing (looked for n_layer, num_layers, layers_block_type too)",
        )),
    }
}

/// Tensors that no layer kind carries: the short convolutions of LFM2 (three projections in, one
/// out, the taps) and the embeddings that Gemma 3n has for every layer.
fn other_params(node: &Node<'_>, hidden: u64, layers: &[Layer]) -> Result<u64, ConfigError> {
    let mut params = 0;
    if node.model_type().starts_with("lfm2") {
        let convolutions = layers.iter().filter(|l| l.attention == Attention::None);
        let taps = node.whole(&["conv_L_cache"], 1024)?.unwrap_or(3);
        let each = product(&[4, hidden, hidden]).saturating_add(product(&[taps, hidden]));
        params = product(&[convolutions.count() as u64, each]);
    }
    let width = node.whole(&["hidden_size_per_layer_input"], node::MAX_WIDTH)?;
    let rows = node.whole(&["vocab_size_per_layer_input"], node::MAX_VOCAB)?;
    if let (Some(width), Some(rows)) = (width, rows) {
        // The table, its projection from the hidden state, and a gate in and out of each layer.
        let per_layer = rows.saturating_add(product(&[3, hidden]));
        let all = product(&[layers.len() as u64, width, per_layer]);
        params = params.saturating_add(all);
    }
    Ok(params)
}

/// Families whose configuration class ties the tables unless the file says otherwise.
const TIED_BY_DEFAULT: &[&str] = &[
    "gemma",
    "lfm2",
    "gpt2",
    "gpt_bigcode",
    "cohere",
    "ernie4_5",
    "starcoder2",
    "opt",
    "bloom",
    "mpt",
    "minicpm",
];

/// Whether the head is the embedding table.
fn tied(node: &Node<'_>) -> bool {
    let kind = node.model_type();
    let by_default = TIED_BY_DEFAULT
        .iter()
        .any(|family| kind.starts_with(family));
    let written = node
        .flag("tie_word_embeddings")
        .or_else(|| node.flag("tie_embedding"));
    written.unwrap_or(by_default)
}

/// MTP layers: the shape of the last layer that attends fully, or the pattern the config gives.
fn read_mtp(node: &Node<'_>, scheme: &QuantScheme, model: &mut Model) -> Result<(), ConfigError> {
    let modules = node.whole(
        &[
            "num_nextn_predict_layers",
            "mtp_num_hidden_layers",
            "num_mtp_modules",
        ],
        node::MAX_LAYERS,
    )?;
    let modules = modules.unwrap_or(0);
    if modules == 0 || model.draft.is_some() {
        return Ok(());
    }
    let count = model.layers.len() as u64;
    let per_module =
        layers::block_kinds(node, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
    for module in 0..modules {
        let formats = scheme.layer(count.saturating_add(module), Some(module));
        match &per_module {
            Some(kinds) => {
                for kind in kinds.iter().copied() {
                    let attention = attention::of_block(node, kind, model.hidden)?;
                    let ffn = ffn::of_block(node, kind, model.hidden)?;
                    model.mtp_layers.push(Layer {
                        attention,
                        ffn,
                        formats,
                    });
                }
            }
            None => model.mtp_layers.push(mtp_layer(node, model, formats)?),
        }
    }
    model.mtp_modules = modules;
    Ok(())
}

/// Families whose MTP layers have a dense feed-forward though the decoder's last ones have experts.
const DENSE_MTP: &[&str] = &["step3p", "longcat_flash", "exaone_moe"];

fn mtp_layer(node: &Node<'_>, model: &Model, formats: LayerFormats) -> Result<Layer, ConfigError> {
    let last_ffn = model.layers.iter().rev().map(|layer| layer.ffn);
    let mut ffn = last_ffn.into_iter().find(|ffn| *ffn != Ffn::None);
    let kind = node.model_type();
    if DENSE_MTP.iter().any(|family| kind.starts_with(family)) {
        ffn = Some(ffn::dense(node, model.hidden)?);
    }
    let full = model.layers.iter().rev().map(|layer| layer.attention);
    let attention = full.into_iter().find(|attention| match attention {
        Attention::Gqa(gqa) => gqa.window.is_none(),
        Attention::Mla(_) | Attention::Compressed(_) => true,
        _ => false,
    });
    let mut attention = attention.unwrap_or(Attention::None);
    match &mut attention {
        // An MTP layer runs the index itself even where the last decoder layer shares one.
        Attention::Mla(mla) => {
            if let Some(indexer) = &mut mla.indexer {
                indexer.own = true;
            }
        }
        Attention::Gqa(gqa) => gqa.shares_cache = false,
        Attention::Compressed(compressed) => {
            compressed.ratio = 0;
            compressed.indexer = None;
        }
        _ => {}
    }
    Ok(Layer {
        attention,
        ffn: ffn.unwrap_or(Ffn::None),
        formats,
    })
}

/// The format a dtype name stands for.
pub(crate) fn dtype_format(name: &str) -> Option<WeightFormat> {
    Some(match name.trim_start_matches("torch.") {
        "bfloat16" => WeightFormat::Bf16,
        "float16" | "half" => WeightFormat::F16,
        "float32" | "float" => WeightFormat::F32,
        _ => return None,
    })
}
