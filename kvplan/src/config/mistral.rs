//! Mistral's own `params.json`, which some of its repositories hold in place of a `config.json`: the
//! same facts under other names.

use serde_json::{Map, Value, json};

/// (Mistral's name, ours).
const NAMES: [(&str, &str); 13] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("hidden_dim", "intermediate_size"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("vocab_size", "vocab_size"),
    ("tied_embeddings", "tie_word_embeddings"),
    ("q_lora_rank", "q_lora_rank"),
    ("kv_lora_rank", "kv_lora_rank"),
    ("qk_nope_head_dim", "qk_nope_head_dim"),
    ("qk_rope_head_dim", "qk_rope_head_dim"),
    ("v_head_dim", "v_head_dim"),
];

/// The same for the block of a mixture.
const MIXTURE: [(&str, &str); 5] = [
    ("num_experts", "num_local_experts"),
    ("num_experts_per_tok", "num_experts_per_tok"),
    ("expert_hidden_dim", "moe_intermediate_size"),
    ("num_shared_experts", "n_shared_experts"),
    ("first_k_dense_replace", "first_k_dense_replace"),
];

/// The config of a `params.json`; `None` where the file is none.
pub(super) fn translated(root: &Value) -> Option<Value> {
    if root.get("dim").is_none() || root.get("n_layers").is_none() {
        return None;
    }
    let mut config = Map::new();
    take(&mut config, root, &NAMES);
    if let Some(mixture) = root.get("moe").filter(|block| block.is_object()) {
        take(&mut config, mixture, &MIXTURE);
    }
    for limit in ["max_position_embeddings", "max_seq_len", "model_max_length"] {
        if let Some(tokens) = root.get(limit).filter(|value| !value.is_null()) {
            config.insert("max_position_embeddings".into(), tokens.clone());
            break;
        }
    }
    config.insert("model_type".into(), json!("mistral"));
    config.insert("architectures".into(), json!(["MistralForCausalLM"]));
    if let Some(tower) = root.get("vision_encoder").filter(|block| block.is_object()) {
        let mut tower = tower.clone();
        tower["model_type"] = json!("pixtral");
        config.insert("vision_config".into(), tower);
    }
    let quantised = root
        .get("quantization")
        .or_else(|| root.get("quantization_config"));
    if let Some(block) = quantised.filter(|block| block.is_object()) {
        let fp8 = block.get("qformat_weight").and_then(Value::as_str);
        let fp8 = fp8.is_some_and(|format| format.starts_with("fp8"));
        let block = if fp8 {
            json!({"quant_method": "fp8"})
        } else {
            block.clone()
        };
        config.insert("quantization_config".into(), block);
    }
    Some(Value::Object(config))
}

fn take(config: &mut Map<String, Value>, from: &Value, names: &[(&str, &str)]) {
    for (theirs, ours) in names {
        if let Some(value) = from.get(*theirs).filter(|value| !value.is_null()) {
            config.insert((*ours).to_string(), value.clone());
        }
    }
}
