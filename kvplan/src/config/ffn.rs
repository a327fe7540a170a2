//! Which feed-forward a layer has, and its shape.

use super::ConfigError;
use super::layers::LayerLists;
use super::node::{MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Node};
use crate::model::{Ffn, Moe};

/// Feed-forward of one block of a hybrid pattern.
pub(super) fn of_block(node: &Node<'_>, kind: &str, hidden: u64) -> Result<Ffn, ConfigError> {
    match kind {
        "moe" => moe(node).map(Ffn::Moe),
        "mlp" => dense(node, hidden),
        "mamba" | "attention" => Ok(Ffn::None),
        other => Err(node.error(
            "hybrid_override_pattern",
            &format!("has a block `{other}`; known are mamba, attention, moe, mlp"),
        )),
    }
}

/// Feed-forward of decoder layer `index`.
pub(super) fn read(
    node: &Node<'_>,
    lists: &LayerLists<'_>,
    index: u64,
    hidden: u64,
) -> Result<Ffn, ConfigError> {
    if lists.blocks.is_some() {
        let kind = lists.block(index);
        return kind.map_or(Ok(Ffn::None), |kind| of_block(node, kind, hidden));
    }
    if let Some(blocks) = node.list("block_configs") {
        let block = usize::try_from(index).ok().and_then(|i| blocks.get(i));
        return Ok(block.map_or(Ffn::None, |block| nas_ffn(block, hidden)));
    }
    if expert_count(node)? > 0 && is_sparse(node, lists, index)? {
        return moe(node).map(Ffn::Moe);
    }
    dense(node, hidden)
}

fn expert_count(node: &Node<'_>) -> Result<u64, ConfigError> {
    if node.flag("enable_moe_block") == Some(false) {
        return Ok(0);
    }
    let names = [
        "n_routed_experts",
        "num_local_experts",
        "num_experts",
        "moe_num_experts",
    ];
    Ok(node.whole(&names, MAX_EXPERTS)?.unwrap_or(0))
}

/// Whether layer `index` is a mixture of experts, in the nine ways configs say so.
fn is_sparse(node: &Node<'_>, lists: &LayerLists<'_>, index: u64) -> Result<bool, ConfigError> {
    if let Some(sparse) = lists.sparse(index) {
        return Ok(sparse);
    }
    if let Some(kind) = node.listed_text("mlp_layer_types", index) {
        return Ok(kind == "sparse");
    }
    if let Some(sparse) = node.listed_whole("moe_layer_freq", index) {
        return Ok(sparse > 0);
    }
    if lists.dense(index) {
        return Ok(false);
    }
    let first_names = [
        "first_k_dense_replace",
        "first_k_dense",
        "num_dense_layers",
        "moe_layer_start_index",
    ];
    if let Some(first) = node.whole(&first_names, MAX_LAYERS)?
        && index < first
    {
        return Ok(false);
    }
    if let Some(period) = node
        .whole(&["expert_layer_period"], MAX_LAYERS)?
        .filter(|p| *p > 0)
    {
        let offset = node
            .whole(&["expert_layer_offset"], MAX_LAYERS)?
            .unwrap_or(0);
        return Ok(index % period == offset % period);
    }
    let next = index.saturating_add(1);
    for name in ["decoder_sparse_step", "interleave_moe_layer_step"] {
        if let Some(step) = node.whole(&[name], MAX_LAYERS)? {
            return Ok(step > 0 && next.is_multiple_of(step));
        }
    }
    match node.value("moe_layer_freq") {
        Some(value) if value.is_u64() => {
            let step = node.whole(&["moe_layer_freq"], MAX_LAYERS)?.unwrap_or(1);
            Ok(step > 0 && index.is_multiple_of(step))
        }
        _ => Ok(true),
    }
}

/// Families whose feed-forward is two matrices whatever the activation is called.
const UNGATED: &[&str] = &[
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "falcon",
    "RefinedWeb",
    "RefinedWebModel",
    "phi",
    "opt",
    "bloom",
    "mpt",
    "starcoder2",
];

fn gated(node: &Node<'_>) -> bool {
    let activation = ["mlp_hidden_act", "hidden_act", "hidden_activation"]
        .iter()
        .find_map(|name| node.text(name));
    let kind = node.model_type();
    match activation {
        Some("relu2" | "relu_squared" | "xielu") => false,
        _ => !(UNGATED.contains(&kind.as_str()) || kind.starts_with("phi-msft")),
    }
}

pub(super) fn moe(node: &Node<'_>) -> Result<Moe, ConfigError> {
    let experts = expert_count(node)?;
    let expert_names = [
        "moe_intermediate_size",
        "expert_intermediate_size",
        "expert_ffn_hidden_size",
        "intermediate_size",
    ];
    let (expert_inter, shared_each) = match text_and_vision_widths(node) {
        Some((text, vision)) => (text.saturating_add(vision), text),
        None => {
            let width = node.need(&expert_names, MAX_WIDTH)?;
            (width, width)
        }
    };
    let topk_names = [
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_topk",
        "moe_k",
    ];
    let topk = node.need(&topk_names, MAX_EXPERTS)?;
    if topk > experts {
        return Err(node.error(
            topk_names[0],
            &format!("is {topk}, more than the {experts} experts there are"),
        ));
    }
    let gate = node.value("shared_expert_intermediate_size").is_some();
    let kind = node.model_type();
    Ok(Moe {
        experts,
        topk,
        expert_inter,
        latent: node.whole(&["moe_latent_size", "routed_expert_hidden_size"], MAX_WIDTH)?,
        shared_inter: shared_inter(node, shared_each)?,
        shared_gate: gate && kind.starts_with("qwen"),
        parallel_dense_inter: parallel_dense_inter(node)?,
        gated: gated(node),
        bias: kind == "gpt_oss",
    })
}

/// ERNIE-VL has as many experts for pictures as for text, and lists both widths: together they are
/// experts of the sum. The shared ones are of the first.
fn text_and_vision_widths(node: &Node<'_>) -> Option<(u64, u64)> {
    let [text, vision] = node.list("moe_intermediate_size")?.as_slice() else {
        return None;
    };
    let (text, vision) = (text.as_u64()?, vision.as_u64()?);
    let sane = text > 0 && text.max(vision) <= MAX_WIDTH;
    (sane && node.model_type().starts_with("ernie4_5")).then_some((text, vision))
}

/// Inner width of a feed-forward that every token takes beside the experts: Gemma 4, Grok-2, and
/// Arctic's, which is as wide as the residual stream.
fn parallel_dense_inter(node: &Node<'_>) -> Result<u64, ConfigError> {
    let kind = node.model_type();
    let name = if kind.starts_with("gemma4") || node.flag("residual_moe") == Some(true) {
        "intermediate_size"
    } else if kind == "arctic" && node.flag("parallel_attn_mlp_res") == Some(true) {
        "hidden_size"
    } else {
        return Ok(0);
    };
    Ok(node.whole(&[name], MAX_WIDTH)?.unwrap_or(0))
}

/// Inner width of all shared experts together.
fn shared_inter(node: &Node<'_>, expert_inter: u64) -> Result<u64, ConfigError> {
    let total_names = [
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "share_expert_dim",
        "shared_intermediate_size",
    ];
    if let Some(total) = node.whole(&total_names, MAX_WIDTH)? {
        return Ok(total);
    }
    if node.model_type().starts_with("llama4") {
        return Ok(expert_inter);
    }
    let count_names = [
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
    ];
    let count = node.whole(&count_names, MAX_EXPERTS)?;
    Ok(count.unwrap_or(0).saturating_mul(expert_inter))
}

pub(super) fn dense(node: &Node<'_>, hidden: u64) -> Result<Ffn, ConfigError> {
    let names = [
        "dense_intermediate_size",
        "intermediate_size_mlp",
        "intermediate_size",
        "ffn_hidden_size",
        "ffn_dim",
        "n_inner",
    ];
    let kind = node.model_type();
    let inter = if kind == "granitemoehybrid" {
        // Without experts the shared one is the feed-forward.
        node.whole(
            &["shared_intermediate_size", "intermediate_size"],
            MAX_WIDTH,
        )?
    } else if kind.starts_with("lfm2") && node.value("block_ff_dim").is_some() {
        Some(lfm2_inter(node)?)
    } else {
        node.whole(&names, MAX_WIDTH)?
    };
    Ok(Ffn::Dense {
        inter: inter.unwrap_or_else(|| hidden.saturating_mul(4)),
        gated: gated(node),
    })
}

/// LFM2: two thirds of the width written, rounded up, where the block adjusts itself.
fn lfm2_inter(node: &Node<'_>) -> Result<u64, ConfigError> {
    let written = node.need(&["block_ff_dim"], MAX_WIDTH)?;
    if node.flag("block_auto_adjust_ff_dim") == Some(false) {
        return Ok(written);
    }
    let factor = node.value("block_ffn_dim_multiplier");
    let factor = factor.and_then(serde_json::Value::as_f64).unwrap_or(1.0);
    let round = node
        .whole(&["block_multiple_of"], MAX_WIDTH)?
        .unwrap_or(256);
    let width = (factor * (written.saturating_mul(2) / 3) as f64) as u64;
    let round = round.max(1);
    Ok(width
        .clamp(1, MAX_WIDTH)
        .div_ceil(round)
        .saturating_mul(round))
}

/// DeciLM: the width is a multiple of two thirds of the hidden size, rounded up to 256.
fn nas_ffn(block: &serde_json::Value, hidden: u64) -> Ffn {
    let ffn = block.get("ffn");
    let field = |name: &str| ffn.and_then(|f| f.get(name));
    if field("no_op").and_then(serde_json::Value::as_bool) == Some(true) {
        return Ffn::None;
    }
    let multiple = field("ffn_mult").and_then(serde_json::Value::as_f64);
    let width = (2.0 * multiple.unwrap_or(4.0) * hidden as f64 / 3.0) as u64;
    Ffn::Dense {
        inter: width.min(MAX_WIDTH).div_ceil(256).saturating_mul(256),
        gated: true,
    }
}
