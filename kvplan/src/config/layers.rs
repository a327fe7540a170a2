//! What a config lists about its layers, read once: the lists are as long as the model is deep, and
//! every layer asks.

use std::collections::HashSet;

use serde_json::Value;

use super::node::Node;

/// The lists of one config.
pub(super) struct LayerLists<'a> {
    /// One mixer or feed-forward a layer (Nemotron-H, Zamba's kin).
    pub(super) blocks: Option<Vec<&'a str>>,
    /// Bamba: layers that attend.
    attends: Option<HashSet<u64>>,
    /// LFM2 before it had layer types: layers that attend.
    attends_fully: Option<HashSet<u64>>,
    /// Kimi Linear: layers with linear attention, counted from 1.
    linear_from_1: Option<HashSet<u64>>,
    /// Qwen: layers that are dense whatever the step says.
    dense: Option<HashSet<u64>>,
    /// Step: layers with experts, as a list or as text.
    sparse: Option<HashSet<u64>>,
}

impl<'a> LayerLists<'a> {
    pub(super) fn read(node: &Node<'a>) -> Self {
        let set = |name: &str| node.list(name).map(|list| numbers(list));
        let linear = node.child("linear_attn_config");
        let text = node.text("moe_layers_enum").map(|text| {
            let numbers = text.split(',').filter_map(|part| part.trim().parse().ok());
            numbers.collect()
        });
        Self {
            blocks: block_kinds(node, "layers_block_type", "hybrid_override_pattern"),
            attends: set("attn_layer_indices"),
            attends_fully: set("full_attn_idxs"),
            linear_from_1: linear.map(|config| {
                let list = config.list("kda_layers");
                list.map_or_else(HashSet::new, |list| numbers(list))
            }),
            dense: set("mlp_only_layers"),
            sparse: text.or_else(|| set("moe_layers_enum")),
        }
    }

    /// The block kind of layer `index`, where layers are blocks.
    pub(super) fn block(&self, index: u64) -> Option<&'a str> {
        let blocks = self.blocks.as_ref()?;
        blocks.get(usize::try_from(index).ok()?).copied()
    }

    /// Whether layer `index` attends, where the other layers are Mamba (Bamba).
    pub(super) fn attends(&self, index: u64) -> Option<bool> {
        self.attends.as_ref().map(|set| set.contains(&index))
    }

    /// Whether layer `index` attends, where the other layers are convolutions (LFM2).
    pub(super) fn attends_fully(&self, index: u64) -> Option<bool> {
        self.attends_fully.as_ref().map(|set| set.contains(&index))
    }

    /// Whether layer `index` is linear, where the config lists those that are (Kimi).
    pub(super) fn linear(&self, index: u64) -> Option<bool> {
        let set = self.linear_from_1.as_ref()?;
        Some(index.checked_add(1).is_some_and(|at| set.contains(&at)))
    }

    /// Whether layer `index` is on the list of dense layers.
    pub(super) fn dense(&self, index: u64) -> bool {
        self.dense.as_ref().is_some_and(|set| set.contains(&index))
    }

    /// Whether layer `index` has experts, where the config lists those that have (Step).
    pub(super) fn sparse(&self, index: u64) -> Option<bool> {
        self.sparse.as_ref().map(|set| set.contains(&index))
    }
}

fn numbers(list: &[Value]) -> HashSet<u64> {
    list.iter().filter_map(Value::as_u64).collect()
}

/// The block kinds of a hybrid: one mixer or feed-forward a layer, from a list of names or from a
/// string of `M * E -`.
pub(super) fn block_kinds<'a>(node: &Node<'a>, list: &str, pattern: &str) -> Option<Vec<&'a str>> {
    if let Some(kinds) = node.list(list) {
        let name = |kind: &'a Value| kind.as_str().unwrap_or("unknown");
        return Some(kinds.iter().map(name).collect());
    }
    let letters = node.text(pattern)?;
    let kinds = letters.chars().map(|letter| match letter {
        'M' => "mamba",
        '*' => "attention",
        'E' => "moe",
        '-' => "mlp",
        _ => "unknown",
    });
    Some(kinds.collect())
}
