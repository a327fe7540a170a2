//! Draft heads: EAGLE, EAGLE-3 and the block drafts of the DFlash family.

use super::ConfigError;
use super::node::{MAX_LAYERS, MAX_TOKENS, MAX_VOCAB, MAX_WIDTH, Node};
use crate::model::{Attention, DraftHead, DraftKind, Model};

/// Marks `model` as a draft head where its architecture is one.
pub(super) fn read_head(node: &Node<'_>, model: &mut Model) -> Result<(), ConfigError> {
    let name = model.architecture.to_ascii_lowercase();
    let kind = if name.contains("eagle3") {
        DraftKind::Eagle3
    } else if name.contains("eagle") {
        DraftKind::Eagle
    } else if ["dflash", "dspark", "domino"]
        .iter()
        .any(|k| name.contains(k))
    {
        DraftKind::BlockDiffusion
    } else if node.value("draft_vocab_size").is_some() {
        // The first EAGLE-3 heads call themselves Llama; only this field gives them away.
        DraftKind::Eagle3
    } else {
        return Ok(());
    };
    if kind == DraftKind::Eagle3 && model.layers.len() > 4 {
        model.assumptions.push(format!(
            "an EAGLE-3 head with {} layers: check num_hidden_layers, heads have one",
            model.layers.len()
        ));
    }
    let target_hidden = node.whole(&["target_hidden_size"], MAX_WIDTH)?;
    let draft_vocab = node.whole(&["draft_vocab_size"], MAX_VOCAB)?;
    let listed = node
        .child("eagle_config")
        .and_then(|c| c.list("eagle_aux_hidden_state_layer_ids").map(Vec::len))
        .or_else(|| {
            let config = node.child("dflash_config")?;
            config.list("target_layer_ids").map(Vec::len)
        })
        .or_else(|| node.list("aux_hidden_state_layer_ids").map(Vec::len))
        .map(|count| (count as u64).min(MAX_LAYERS));
    let usual = match kind {
        DraftKind::Eagle => 1,
        DraftKind::Eagle3 => 3,
        DraftKind::BlockDiffusion => 5,
    };
    model.draft = Some(DraftHead {
        kind,
        draft_vocab: draft_vocab.unwrap_or(model.vocab),
        target_hiddens: listed.unwrap_or(usual),
        target_hidden: target_hidden.unwrap_or(model.hidden),
        block: node.whole(&["block_size"], MAX_TOKENS)?.unwrap_or(0),
    });
    if kind == DraftKind::Eagle3
        && let Some(first) = model.layers.first_mut()
        && let Attention::Gqa(gqa) = &mut first.attention
    {
        // The first layer attends over the token's embedding and the projected hidden state.
        gqa.input_hiddens = 2;
    }
    Ok(())
}
