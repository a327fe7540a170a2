//! Which token mixer a layer has, and its shape.

use super::ConfigError;
use super::layers::LayerLists;
use super::node::{MAX_HEADS, MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Node};
use crate::model::{Attention, CompressedMla, Gqa, Indexer, LinearState, Mamba2, Mla};

/// Token mixer of decoder layer `index`.
pub(super) fn read(
    node: &Node<'_>,
    lists: &LayerLists<'_>,
    index: u64,
    hidden: u64,
    max_positions: Option<u64>,
) -> Result<Attention, ConfigError> {
    if lists.blocks.is_some() {
        return match lists.block(index) {
            Some(kind) => of_block(node, kind, hidden),
            None => Err(node.error(
                "hybrid_override_pattern",
                "is shorter than the number of layers",
            )),
        };
    }
    if let Some(block) = nas_block(node, index) {
        return nas_attention(node, block, hidden);
    }
    if let Some(period) = node.whole(&["attn_layer_period"], 4096)?.filter(|p| *p > 0) {
        // Jamba: one attention layer per period, Mamba else.
        let offset = node.whole(&["attn_layer_offset"], 4096)?.unwrap_or(0);
        if index % period != offset % period {
            return mamba_of_width(node, hidden).map(Attention::Mamba);
        }
    }
    if let Some(attends) = lists.attends(index) {
        // Bamba: attention in the listed layers, Mamba-2 else.
        if !attends {
            return mamba(node, hidden).map(Attention::Mamba);
        }
    }
    if lists.attends_fully(index) == Some(false) {
        // LFM2 before it had layer_types: short convolutions else.
        return Ok(Attention::None);
    }
    match node.listed_text("layer_types", index) {
        Some("mamba" | "mamba2") => return mamba(node, hidden).map(Attention::Mamba),
        // Short convolutions keep three tokens; nothing here depends on them.
        Some("conv") => return Ok(Attention::None),
        _ => {}
    }
    if node.listed_whole("attn_type_list", index) == Some(0) || lightning_group(node, index)? {
        return lightning(node, hidden).map(Attention::Linear);
    }
    if is_linear(node, lists, index) {
        return linear(node, hidden);
    }
    if node.list("compress_ratios").is_some() {
        return compressed(node, index);
    }
    if node.value("kv_lora_rank").is_some() {
        return mla(node, index);
    }
    gqa(node, index, hidden, max_positions).map(Attention::Gqa)
}

/// Token mixer of one block of a hybrid pattern.
pub(super) fn of_block(node: &Node<'_>, kind: &str, hidden: u64) -> Result<Attention, ConfigError> {
    match kind {
        "mamba" => mamba(node, hidden).map(Attention::Mamba),
        "attention" => gqa(node, 0, hidden, None).map(Attention::Gqa),
        _ => Ok(Attention::None),
    }
}

/// Whether layer `index` is linear in Ling's and Ring's hybrids: every group ends in a layer that
/// attends, and so does a rest that fills no group.
fn lightning_group(node: &Node<'_>, index: u64) -> Result<bool, ConfigError> {
    let kind = node.model_type();
    if !kind.starts_with("bailing") || !(kind.ends_with("linear") || kind.ends_with("hybrid")) {
        return Ok(false);
    }
    let group = node.whole(&["layer_group_size"], MAX_LAYERS)?.unwrap_or(1);
    let layers = node.whole(&["num_hidden_layers"], MAX_LAYERS)?.unwrap_or(0);
    let whole = layers - layers.checked_rem(group).unwrap_or(layers);
    Ok(index < whole && !index.saturating_add(1).is_multiple_of(group))
}

/// MiniMax-01's lightning attention: one square state a head.
fn lightning(node: &Node<'_>, hidden: u64) -> Result<LinearState, ConfigError> {
    let heads = node.need(&["num_attention_heads"], MAX_HEADS)?;
    let dim = node
        .whole(&["head_dim"], MAX_WIDTH)?
        .unwrap_or(hidden / heads.max(1));
    Ok(LinearState {
        key_heads: heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        conv_kernel: 0,
        channel_gates: false,
        state_element_bytes: 4,
    })
}

/// The Mamba-2 branch that Falcon-H1 has beside the attention of every layer.
pub(super) fn parallel_mamba(node: &Node<'_>) -> Result<Attention, ConfigError> {
    mamba(node, 0).map(Attention::Mamba)
}

fn mamba(node: &Node<'_>, hidden: u64) -> Result<Mamba2, ConfigError> {
    let heads = node.need(&["mamba_num_heads", "mamba_n_heads"], MAX_HEADS)?;
    // Granite and Bamba may write "auto": the expanded width over the heads.
    let head_dim = if node.text("mamba_d_head") == Some("auto") {
        let expand = node.whole(&["mamba_expand"], 64)?.unwrap_or(2);
        (hidden.saturating_mul(expand) / heads).max(1)
    } else {
        node.need(&["mamba_head_dim", "mamba_d_head"], MAX_WIDTH)?
    };
    Ok(Mamba2 {
        heads,
        head_dim,
        state: node.need(&["ssm_state_size", "mamba_d_state"], MAX_WIDTH)?,
        groups: node
            .whole(&["n_groups", "mamba_n_groups"], MAX_HEADS)?
            .unwrap_or(1),
        conv_kernel: node
            .whole(&["conv_kernel", "mamba_d_conv"], 1024)?
            .unwrap_or(4),
        state_element_bytes: state_bytes(node, "mamba_ssm_cache_dtype"),
    })
}

/// Mamba-1, given by an expansion of the width: one channel is a head of its own; in 64s here, which
/// gives the same state.
fn mamba_of_width(node: &Node<'_>, hidden: u64) -> Result<Mamba2, ConfigError> {
    let expand = node.whole(&["mamba_expand", "expand"], 64)?.unwrap_or(2);
    Ok(Mamba2 {
        heads: hidden.saturating_mul(expand).div_ceil(64),
        head_dim: 64,
        state: node.need(&["mamba_d_state", "ssm_state_size"], MAX_WIDTH)?,
        groups: 1,
        conv_kernel: node
            .whole(&["mamba_d_conv", "conv_kernel"], 1024)?
            .unwrap_or(4),
        state_element_bytes: 4,
    })
}

/// Bytes of a state element: f32 unless the config says otherwise.
fn state_bytes(node: &Node<'_>, field: &str) -> u64 {
    match node.text(field) {
        Some("bfloat16" | "float16") => 2,
        _ => 4,
    }
}

/// Entry of a neural-architecture-search config (DeciLM).
fn nas_block<'a>(node: &Node<'a>, index: u64) -> Option<&'a serde_json::Value> {
    node.list("block_configs")?
        .get(usize::try_from(index).ok()?)
}

fn nas_attention(
    node: &Node<'_>,
    block: &serde_json::Value,
    hidden: u64,
) -> Result<Attention, ConfigError> {
    let attention = block.get("attention");
    let field = |name: &str| attention.and_then(|a| a.get(name));
    let off = |name: &str| field(name).and_then(serde_json::Value::as_bool) == Some(true);
    if off("no_op") || off("replace_with_linear") {
        return Ok(Attention::None);
    }
    let mut gqa = gqa(node, 0, hidden, None)?;
    let per_group = field("n_heads_in_group").and_then(serde_json::Value::as_u64);
    gqa.kv_heads = match per_group {
        Some(group) if group > 0 => (gqa.heads / group).max(1),
        _ => gqa.kv_heads,
    };
    gqa.window = field("window_length").and_then(serde_json::Value::as_u64);
    Ok(Attention::Gqa(gqa))
}

fn is_linear(node: &Node<'_>, lists: &LayerLists<'_>, index: u64) -> bool {
    if let Some(linear) = lists.linear(index) {
        return linear;
    }
    if let Some(kind) = node.listed_text("layer_types", index) {
        return kind == "linear_attention";
    }
    match node.whole(&["full_attention_interval"], 4096) {
        Ok(Some(interval)) if interval > 0 => {
            node.value("linear_num_value_heads").is_some()
                && !(index.saturating_add(1)).is_multiple_of(interval)
        }
        _ => false,
    }
}

fn linear(node: &Node<'_>, hidden: u64) -> Result<Attention, ConfigError> {
    if let Some(config) = node.child("linear_attn_config") {
        let heads = config.need(&["num_heads"], MAX_HEADS)?;
        let dim = config.need(&["head_dim"], MAX_WIDTH)?;
        return Ok(Attention::Linear(LinearState {
            key_heads: heads,
            value_heads: heads,
            key_dim: dim,
            value_dim: dim,
            conv_kernel: config
                .whole(&["short_conv_kernel_size"], 1024)?
                .unwrap_or(4),
            channel_gates: true,
            state_element_bytes: 4,
        }));
    }
    if node.value("linear_num_value_heads").is_none() {
        return gqa(node, 0, hidden, None).map(Attention::Gqa);
    }
    Ok(Attention::Linear(LinearState {
        key_heads: node.need(&["linear_num_key_heads"], MAX_HEADS)?,
        value_heads: node.need(&["linear_num_value_heads"], MAX_HEADS)?,
        key_dim: node.need(&["linear_key_head_dim"], MAX_WIDTH)?,
        value_dim: node.need(&["linear_value_head_dim"], MAX_WIDTH)?,
        conv_kernel: node.whole(&["linear_conv_kernel_dim"], 1024)?.unwrap_or(4),
        channel_gates: false,
        state_element_bytes: state_bytes(node, "mamba_ssm_dtype"),
    }))
}

fn compressed(node: &Node<'_>, index: u64) -> Result<Attention, ConfigError> {
    let ratio = node.listed_whole("compress_ratios", index).unwrap_or(0);
    let index_dim = node.whole(&["index_head_dim"], MAX_WIDTH)?;
    let index_heads = node.whole(&["index_n_heads"], MAX_HEADS)?;
    let indexer = match (ratio, index_dim, index_heads) {
        // Only the finely compressed layers pick entries by an index; the others read all.
        (1..=16, Some(head_dim), Some(heads)) => Some(Indexer {
            heads,
            head_dim,
            topk: node.whole(&["index_topk"], MAX_TOKENS)?.unwrap_or(0),
            own: true,
        }),
        _ => None,
    };
    Ok(Attention::Compressed(CompressedMla {
        heads: node.need(&["num_attention_heads"], MAX_HEADS)?,
        head_dim: node.need(&["head_dim"], MAX_WIDTH)?,
        q_lora_rank: node.need(&["q_lora_rank"], MAX_WIDTH)?,
        o_lora_rank: node.need(&["o_lora_rank"], MAX_WIDTH)?,
        o_groups: node.need(&["o_groups"], MAX_HEADS)?,
        window: node.need(&["sliding_window"], MAX_TOKENS)?,
        ratio,
        indexer,
    }))
}

fn mla(node: &Node<'_>, index: u64) -> Result<Attention, ConfigError> {
    let indexer = match (
        node.whole(&["index_head_dim"], MAX_WIDTH)?,
        node.whole(&["index_n_heads"], MAX_HEADS)?,
    ) {
        (Some(head_dim), Some(heads)) => Some(Indexer {
            heads,
            head_dim,
            topk: node.whole(&["index_topk"], MAX_TOKENS)?.unwrap_or(0),
            own: node.listed_text("indexer_types", index) != Some("shared"),
        }),
        _ => None,
    };
    Ok(Attention::Mla(Mla {
        heads: node.need(&["num_attention_heads"], MAX_HEADS)?,
        q_lora_rank: node
            .whole(&["q_lora_rank"], MAX_WIDTH)?
            .filter(|rank| *rank > 0),
        kv_lora_rank: node.need(&["kv_lora_rank"], MAX_WIDTH)?,
        qk_nope_head_dim: node.need(&["qk_nope_head_dim"], MAX_WIDTH)?,
        qk_rope_head_dim: node.whole(&["qk_rope_head_dim"], MAX_WIDTH)?.unwrap_or(0),
        v_head_dim: mla_value_dim(node)?,
        output_gate: node.flag("mla_use_output_gate").unwrap_or(false),
        indexer,
    }))
}

/// Value elements a head; MiniCPM3 leaves them to the hidden size over the heads.
fn mla_value_dim(node: &Node<'_>) -> Result<u64, ConfigError> {
    if node.value("v_head_dim").is_none() && node.model_type() == "minicpm3" {
        let hidden = node.need(&["hidden_size"], MAX_WIDTH)?;
        return Ok(hidden / node.need(&["num_attention_heads"], MAX_HEADS)?);
    }
    node.need(&["v_head_dim"], MAX_WIDTH)
}

/// How a layer sees: fully, or through a window of that many tokens.
fn layer_window(
    node: &Node<'_>,
    index: u64,
    max_positions: Option<u64>,
) -> Result<Option<u64>, ConfigError> {
    if node.flag("use_sliding_window") == Some(false) {
        return Ok(None);
    }
    let kind = node.model_type();
    let chunk = node.whole(&["attention_chunk_size"], MAX_TOKENS)?;
    if kind.starts_with("llama4") {
        // Three chunked layers, then one that sees all.
        let full = (index.saturating_add(1)).is_multiple_of(4);
        return Ok(if full { None } else { chunk });
    }
    let names = ["sliding_window", "sliding_window_size"];
    // Grok-2 states -1 for none.
    let none = |name: &&str| node.value(name).and_then(serde_json::Value::as_i64) == Some(-1);
    if names.iter().any(none) {
        return Ok(None);
    }
    let window = node.whole(&names, MAX_TOKENS)?;
    let Some(window) = window.filter(|w| *w > 0 && max_positions.is_none_or(|max| *w < max)) else {
        return Ok(None);
    };
    let slides = if let Some(kind) = node.listed_text("layer_types", index) {
        kind.contains("sliding") || kind.contains("chunked")
    } else if let Some(slides) = node.listed_whole("hybrid_layer_pattern", index) {
        slides == 1
    } else if let Some(letters) = node.text("sliding_window_pattern") {
        // Exaone: L for a local layer, G for a global one, over and over.
        let at = index.checked_rem(letters.len() as u64).unwrap_or(0);
        letters.as_bytes().get(at as usize) == Some(&b'L')
    } else if let Some(period) = node.whole(&["sliding_window_pattern"], 4096)? {
        period > 0 && !(index.saturating_add(1)).is_multiple_of(period)
    } else if kind.starts_with("gemma3") {
        !(index.saturating_add(1)).is_multiple_of(6)
    } else if kind == "gemma2" {
        index.is_multiple_of(2)
    } else {
        true
    };
    Ok(slides.then_some(window))
}

/// Grouped-query attention of layer `index`.
pub(super) fn gqa(
    node: &Node<'_>,
    index: u64,
    hidden: u64,
    max_positions: Option<u64>,
) -> Result<Gqa, ConfigError> {
    let window = layer_window(node, index, max_positions)?;
    let (heads, kv_heads, head_dim, v_head_dim, v_is_k) = head_shapes(node, hidden, window)?;
    if kv_heads == 0 || head_dim == 0 {
        return Err(node.error(
            "num_key_value_heads",
            "or the head size is 0; at least 1 is needed",
        ));
    }
    Ok(Gqa {
        heads,
        kv_heads,
        head_dim,
        v_head_dim,
        window,
        q_rank: node.whole(&["share_q_dim"], MAX_WIDTH)?,
        output_gate: node
            .flag("attn_output_gate")
            .unwrap_or(gated_by_family(node)),
        v_is_k,
        bias: node.flag("attention_bias").unwrap_or(false),
        shares_cache: shares_cache(node, index)?,
        input_hiddens: 1,
        indexer: gqa_indexer(node, index)?,
    })
}

/// Whether a layer reads an earlier layer's cache: the last `num_kv_shared_layers` (Gemma 3n and
/// 4), or all but the first of every `cla_share_factor` (Hunyuan).
fn shares_cache(node: &Node<'_>, index: u64) -> Result<bool, ConfigError> {
    let shared = node
        .whole(&["num_kv_shared_layers"], MAX_LAYERS)?
        .unwrap_or(0);
    let layers = node.whole(&["num_hidden_layers"], MAX_LAYERS)?.unwrap_or(0);
    if shared > 0 && shared < layers && index >= layers - shared {
        return Ok(true);
    }
    let factor = node.whole(&["cla_share_factor"], MAX_LAYERS)?.unwrap_or(1);
    Ok(node.flag("use_cla") == Some(true) && factor > 1 && !index.is_multiple_of(factor))
}

/// Query heads, KV heads, key and value elements a head, and whether values are keys.
fn head_shapes(
    node: &Node<'_>,
    hidden: u64,
    window: Option<u64>,
) -> Result<(u64, u64, u64, u64, bool), ConfigError> {
    let own = |plain: &'static str, sliding: &'static str| {
        if window.is_some() && node.value(sliding).is_some() {
            [sliding, plain]
        } else {
            [plain, plain]
        }
    };
    let heads_names = own("num_attention_heads", "swa_num_attention_heads");
    let mut heads = node.need(&[heads_names[0], heads_names[1], "n_head"], MAX_HEADS)?;
    let kv_names = own("num_key_value_heads", "swa_num_key_value_heads");
    let kv_heads = node.whole(
        &[
            kv_names[0],
            kv_names[1],
            "multi_query_group_num",
            "n_head_kv",
            "num_kv_heads",
            "num_attention_groups",
        ],
        MAX_HEADS,
    )?;
    let mut kv_heads = kv_heads.unwrap_or(heads);
    let dim_names = own("head_dim", "swa_head_dim");
    let head_dim = node.whole(
        &[
            dim_names[0],
            dim_names[1],
            "attention_head_dim",
            "kv_channels",
        ],
        MAX_WIDTH,
    )?;
    let mut head_dim = head_dim.unwrap_or(hidden / heads.max(1));
    let v_names = own("v_head_dim", "swa_v_head_dim");
    let mut v_head_dim = node.whole(&v_names, MAX_WIDTH)?.unwrap_or(head_dim);
    let mut v_is_k = false;
    if window.is_some()
        && let Some(sliding) = node.child("attention_other_setting")
    {
        // Step 3.5: layers with a window have more query heads.
        let more = sliding.whole(&["num_attention_heads"], MAX_HEADS)?;
        heads = more.filter(|more| *more > 0).unwrap_or(heads);
        let groups = sliding.whole(&["num_attention_groups"], MAX_HEADS)?;
        kv_heads = groups.unwrap_or(kv_heads);
    }
    if window.is_none() {
        // Gemma 4: layers that see all have fewer, wider heads, and values equal keys.
        if let Some(global) = node.whole(&["global_head_dim"], MAX_WIDTH)? {
            head_dim = global;
            v_head_dim = global;
            let heads = node.whole(&["num_global_key_value_heads"], MAX_HEADS)?;
            kv_heads = heads.unwrap_or(kv_heads);
            v_is_k = node.flag("attention_k_eq_v").unwrap_or(false);
        }
    }
    Ok((heads, kv_heads, head_dim, v_head_dim, v_is_k))
}

/// Qwen3-Next and Trinity gate their attention output without a flag for it.
fn gated_by_family(node: &Node<'_>) -> bool {
    let kind = node.model_type();
    kind.starts_with("qwen3_next") || kind.starts_with("qwen3_5") || kind == "afmoe"
}

/// MiniMax-M3's index over blocks of keys.
fn gqa_indexer(node: &Node<'_>, index: u64) -> Result<Option<Indexer>, ConfigError> {
    let Some(config) = node.child("sparse_attention_config") else {
        return Ok(None);
    };
    if config.flag("use_sparse_attention") == Some(false)
        || config.listed_whole("sparse_attention_freq", index) == Some(0)
    {
        return Ok(None);
    }
    Ok(Some(Indexer {
        heads: config.need(&["sparse_num_index_heads"], MAX_HEADS)?,
        head_dim: config.need(&["sparse_index_dim"], MAX_WIDTH)?,
        topk: config
            .whole(&["sparse_topk_blocks"], MAX_TOKENS)?
            .unwrap_or(0),
        own: true,
    }))
}
