//! Model configurations: `config.json`, also as transformers prints them (`Qwen3Config { … }`)
//! and inside prose.

use std::ops::Range;

use kvplan::{KvDtype, KvLayout, Model, Sharding};
use serde_json::{Map, Value};

use super::args::argument_number;
use super::facts::Facts;
use super::text::number_prefix;

/// The names of one figure in the formats of transformers, GPT-2, Falcon, Mistral and others.
const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: &[&str] = &[
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
];
const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "dim"];
const HEAD_DIM: &[&str] = &["head_dim", "kv_channels", "attention_head_dim", "head_size"];
const CONTEXT: &[&str] = &[
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
];

/// A figure of a GGUF header and its name in a configuration.
const GGUF: &[(&str, &str)] = &[
    (".block_count", "num_hidden_layers"),
    (".attention.head_count_kv", "num_key_value_heads"),
    (".attention.head_count", "num_attention_heads"),
    (".embedding_length", "hidden_size"),
    (".context_length", "max_position_embeddings"),
    (".attention.key_length", "head_dim"),
    (".attention.sliding_window", "sliding_window"),
];

/// Reads the facts of a model configuration; nothing where the text is none.
pub(crate) fn read(text: &str, facts: &mut Facts) {
    // Python's json writes what is no JSON; same length, so that lines stay.
    let plain = text
        .replace("-Infinity", "null     ")
        .replace("Infinity", "null    ")
        .replace(": NaN", ": 0  ");
    read_json(&plain, facts);
}

fn read_json(text: &str, facts: &mut Facts) {
    let Some((span, root)) = first_object(text) else {
        loose(text, facts);
        return;
    };
    let Some(model) = model_part(&root, 0) else {
        return;
    };
    if number(model, LAYERS).is_none() && number(model, HEADS).is_none() {
        if root.contains_key("model_type") || root.contains_key("architectures") {
            facts.kinds.push("model-config");
            facts.notes.push(
                "a model configuration without num_hidden_layers or num_attention_heads: \
                 nothing can be computed from it"
                    .to_string(),
            );
        }
        return;
    }
    facts.kinds.push("model-config");
    let at = Places {
        text,
        start: span.start,
    };
    shape(model, &at, facts);
    kv_bytes(model, text.get(span.clone()).unwrap_or(""), &at, facts);
    if let Some(vocab) =
        number(model, &["draft_vocab_size"]).or_else(|| number(&root, &["draft_vocab_size"]))
    {
        facts.set("draft_vocab", vocab, at.line("\"draft_vocab_size\""));
    }
    if let Some(kind) = root.get("model_type").and_then(Value::as_str) {
        facts.set("model_type", kind, at.line("\"model_type\""));
    }
    quantisation(&root, &at, facts);
    class(&root, &at, facts);
}

/// The class of a model that gives no next token, which its shapes do not show.
fn class(root: &Map<String, Value>, at: &Places, facts: &mut Facts) {
    let first = root.get("architectures").and_then(|list| list.get(0));
    let named = first.or_else(|| root.get("model_type"));
    let named = named.and_then(Value::as_str);
    if let Some(name) = named.filter(|name| kvplan::denoises(name)) {
        facts.set("model_class", name, at.line(&format!("\"{name}\"")));
    }
}

/// A configuration that is no JSON: a Python dict, YAML, arguments, or the header of a GGUF file
/// (`llama.block_count u32 = 32`). Only single figures are taken from it.
fn loose(text: &str, facts: &mut Facts) {
    let mut model = Map::new();
    for key in [
        LAYERS,
        HEADS,
        KV_HEADS,
        HIDDEN,
        HEAD_DIM,
        CONTEXT,
        &["sliding_window"],
    ]
    .into_iter()
    .flatten()
    {
        if let Some(value) = argument_number(text, key) {
            model.insert((*key).to_string(), Value::from(value));
        }
    }
    for (key, name) in GGUF {
        if let Some(value) = gguf(text, key) {
            model.insert((*name).to_string(), Value::from(value));
        }
    }
    if number(&model, LAYERS).is_none() || number(&model, HEADS).is_none() {
        return;
    }
    facts.kinds.push("model-config");
    let at = Places { text, start: 0 };
    shape(&model, &at, facts);
}

/// The number that follows a GGUF key on its line, behind its type and sign.
fn gguf(text: &str, key: &str) -> Option<f64> {
    for (at, _) in text.match_indices(key) {
        let rest = text.get(at + key.len()..)?.lines().next().unwrap_or("");
        // `.head_count` is the beginning of `.head_count_kv` too.
        if rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.') {
            continue;
        }
        let number = rest
            .split([' ', '\t', '=', ':', '|'])
            .filter(|word| !word.is_empty())
            .find_map(|word| {
                let (value, length) = number_prefix(word)?;
                (length == word.len()).then_some(value)
            });
        if number.is_some() {
            return number;
        }
    }
    None
}

/// The first JSON object in the text and where it stands. What stands before and after it
/// (`RWConfig `, a fence, prose) is passed over.
fn first_object(text: &str) -> Option<(Range<usize>, Map<String, Value>)> {
    let mut from = 0;
    for _ in 0..8 {
        let start = from + text.get(from..)?.find('{')?;
        let mut stream =
            serde_json::Deserializer::from_str(text.get(start..)?).into_iter::<Value>();
        if let Some(Ok(Value::Object(map))) = stream.next()
            && map.len() > 1
        {
            return Some((start..start + stream.byte_offset(), map));
        }
        from = start + 1;
    }
    None
}

/// Line numbers of keys.
struct Places<'a> {
    text: &'a str,
    start: usize,
}

impl Places<'_> {
    fn line(&self, key: &str) -> usize {
        let tail = self.text.get(self.start..).unwrap_or("");
        let at = self.start + tail.find(key).unwrap_or(0);
        self.text.get(..at).unwrap_or("").matches('\n').count() + 1
    }
}

/// Where the numbers are: at the top, or in the wrapped text model.
fn model_part(map: &Map<String, Value>, depth: usize) -> Option<&Map<String, Value>> {
    const INNER: [&str; 8] = [
        "text_config",
        "llm_config",
        "language_config",
        "thinker_config",
        "transformer_layer_config",
        "language_model",
        // MLC, TensorRT-LLM
        "model_config",
        "pretrained_config",
    ];
    if depth < 4 {
        for key in INNER {
            if let Some(inner) = map.get(key).and_then(Value::as_object) {
                return model_part(inner, depth + 1);
            }
        }
    }
    Some(map)
}

fn number(map: &Map<String, Value>, keys: &[&str]) -> Option<f64> {
    keys.iter().find_map(|key| map.get(*key)?.as_f64())
}

fn shape(model: &Map<String, Value>, at: &Places, facts: &mut Facts) {
    let layers = number(model, LAYERS);
    let heads = number(model, HEADS);
    let hidden = number(model, HIDDEN);
    let kv_heads = number(model, KV_HEADS).or_else(|| {
        let multi = model.get("multi_query").and_then(Value::as_bool) == Some(true);
        if multi { Some(1.0) } else { heads }
    });
    let head_dim = number(model, HEAD_DIM);
    let derived = match (hidden, heads) {
        (Some(hidden), Some(heads)) if heads > 0.0 => Some(hidden / heads),
        _ => None,
    };
    if let Some(layers) = layers {
        facts.set("layers", layers, at.line("\"num_hidden_layers\""));
    }
    // MLA caches one latent a layer; its num_key_value_heads counts something else.
    let latent = number(model, &["kv_lora_rank"]).is_some();
    if let Some(kv_heads) = kv_heads.filter(|_| !latent) {
        facts.set("kv_heads", kv_heads, at.line("\"num_key_value_heads\""));
    }
    match (head_dim, derived) {
        (Some(dim), _) => facts.set("head_dim", dim, at.line("\"head_dim\"")),
        (None, Some(dim)) if !latent => facts.derive(
            "head_dim",
            dim,
            at.line("\"hidden_size\""),
            "hidden size over heads",
        ),
        (None, _) => {}
    }
    if let Some(context) = number(model, CONTEXT) {
        facts.set(
            "context_len",
            context,
            at.line("\"max_position_embeddings\""),
        );
    }
    let window = number(model, &["sliding_window"])
        .filter(|_| model.get("use_sliding_window").and_then(Value::as_bool) != Some(false));
    if let Some(window) = window {
        facts.set("sliding_window", window, at.line("\"sliding_window\""));
    }
}

/// KV bytes of a token at 16 bits, all ranks together: as kvplan reads the configuration; where it
/// is no decoder that kvplan knows (a draft, a fragment), layers x heads x dimension.
fn kv_bytes(model: &Map<String, Value>, json: &str, at: &Places, facts: &mut Facts) {
    let Some(layers) = facts.number("layers") else {
        return;
    };
    let caching = attention_layers(model, layers);
    let line = at.line("\"num_hidden_layers\"");
    let known = Model::from_config_json(json, &facts.file)
        .ok()
        .filter(|known| caching.is_some() || has_state(known));
    if let Some(known) = known {
        let bytes = known.kv_bytes_per_token(&Sharding::tp(1), &KvLayout::new(KvDtype::Bf16));
        if bytes > 0 {
            let how = "16 bits, all layers, all ranks together";
            facts.derive("kv_bytes_per_token", bytes as f64, line, how);
            return;
        }
    }
    let Some(caching) = caching else {
        return;
    };
    let dims = number(model, &["kv_lora_rank"])
        .zip(number(model, &["qk_rope_head_dim"]))
        .map(|(rank, rope)| rank + rope)
        .or_else(|| Some(2.0 * facts.number("kv_heads")? * facts.number("head_dim")?));
    if let Some(dims) = dims {
        let how =
            format!("{caching} attention layers x {dims} values x 2 bytes, all ranks together");
        facts.derive("kv_bytes_per_token", dims * caching * 2.0, line, how);
    }
}

/// Whether layers with a state were found: then the layers that cache were told apart from them.
fn has_state(model: &Model) -> bool {
    let state = |layer: &kvplan::Layer| {
        matches!(
            layer.attention,
            kvplan::Attention::Linear(_) | kvplan::Attention::Mamba(_)
        )
    };
    model.layers.iter().any(state)
}

/// Layers that keep a KV cache; `None` where the pattern of a hybrid is not in the file.
fn attention_layers(model: &Map<String, Value>, layers: f64) -> Option<f64> {
    if let Some(kinds) = model
        .get("layer_types")
        .or_else(|| model.get("layers_block_type"))
        .and_then(Value::as_array)
    {
        let attention = kinds
            .iter()
            .filter_map(Value::as_str)
            .filter(|kind| kind.contains("attention") && !kind.contains("linear"));
        return Some(attention.count() as f64);
    }
    if let Some(full) = model
        .get("linear_attn_config")
        .and_then(|linear| linear.get("full_attn_layers"))
        .and_then(Value::as_array)
    {
        return Some(full.len() as f64);
    }
    if let Some(pattern) = model.get("hybrid_override_pattern").and_then(Value::as_str) {
        return Some(pattern.matches('*').count() as f64);
    }
    if let Some(every) = number(model, &["full_attention_interval"]).filter(|n| *n >= 1.0) {
        return Some((layers / every).floor());
    }
    if let Some(period) = number(model, &["attn_layer_period"]).filter(|n| *n >= 1.0) {
        let offset = number(model, &["attn_layer_offset"]).unwrap_or(0.0);
        let count = ((layers - offset) / period).ceil();
        return (count >= 0.0).then_some(count);
    }
    const HYBRIDS: [&str; 11] = [
        "recurrent_gemma",
        "qwen3_next",
        "qwen3_5",
        "jamba",
        "nemotron_h",
        "mamba",
        "falcon_h1",
        "kimi_linear",
        "granitemoehybrid",
        "bamba",
        "zamba",
    ];
    let kind = model
        .get("model_type")
        .and_then(Value::as_str)
        .unwrap_or("");
    let state_space = model
        .keys()
        .any(|key| key.starts_with("mamba_") || key.starts_with("linear_"));
    (!state_space && !HYBRIDS.iter().any(|hybrid| kind.starts_with(hybrid))).then_some(layers)
}

fn quantisation(root: &Map<String, Value>, at: &Places, facts: &mut Facts) {
    let Some(config) = root.get("quantization_config").and_then(Value::as_object) else {
        return;
    };
    if let Some(method) = config.get("quant_method").and_then(Value::as_str) {
        facts.set("quant", method, at.line("\"quant_method\""));
    }
    if let Some(bits) = number(config, &["bits"]) {
        facts.set("quant_bits", bits, at.line("\"bits\""));
    }
}
