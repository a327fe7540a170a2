//! The vision tower beside a decoder: only its size matters.

use super::ConfigError;
use super::node::{MAX_LAYERS, MAX_WIDTH, Node};
use crate::model::Vision;
use crate::product;

/// Size of the vision tower from its own config block.
pub(super) fn read(outer: &Node<'_>, text_hidden: u64) -> Result<Option<Vision>, ConfigError> {
    let nested = || outer.child("thinker_config")?.child("vision_config");
    let Some(node) = outer.child("vision_config").or_else(nested) else {
        return Ok(None);
    };
    let layers = node.whole(
        &["num_hidden_layers", "depth", "vt_num_hidden_layers"],
        MAX_LAYERS,
    )?;
    let hidden = node.whole(&["hidden_size", "vt_hidden_size", "embed_dim"], MAX_WIDTH)?;
    let (Some(layers), Some(hidden)) = (layers, hidden) else {
        return Ok(None);
    };
    let inter = node
        .whole(&["intermediate_size", "vt_intermediate_size"], MAX_WIDTH)?
        .unwrap_or_else(|| hidden.saturating_mul(4));
    if node.model_type().starts_with("glm4v") || outer.model_type().starts_with("glm4v") {
        return Ok(Some(glm(layers, hidden, inter, text_hidden)));
    }
    // Pixtral's and Qwen2.5-VL's towers gate their feed-forward.
    let gated = node.model_type() == "pixtral" || node.text("hidden_act") == Some("silu");
    let matrices = if gated { 3 } else { 2 };
    let block = product(&[4, hidden, hidden]).saturating_add(product(&[matrices, hidden, inter]));
    // The projector merges 2 x 2 patches and has two matrices.
    let merged = hidden.saturating_mul(4);
    let projector = product(&[merged, merged.saturating_add(text_hidden)]);
    Ok(Some(Vision {
        layers,
        hidden,
        inter,
        params: product(&[layers, block]).saturating_add(projector),
    }))
}

/// GLM-4.5V and 4.6V: blocks work in the width of the text, which `intermediate_size` is not; that is
/// the width of the gated merger behind a 2 x 2 downsampling.
fn glm(layers: u64, hidden: u64, inter: u64, text_hidden: u64) -> Vision {
    let block = product(&[4, hidden, hidden]).saturating_add(product(&[3, hidden, text_hidden]));
    let down = product(&[4, hidden, text_hidden]);
    let merger = product(&[text_hidden, text_hidden])
        .saturating_add(product(&[3, text_hidden, inter]))
        .saturating_add(down);
    Vision {
        layers,
        hidden,
        inter: text_hidden,
        params: product(&[layers, block]).saturating_add(merger),
    }
}
