//! States of hybrids that are kept for prefixes.

use crate::engine::Version;
use crate::groups::PrefixStates;
use crate::model::{Attention, Layer, Model};

/// States that vLLM keeps for prefixes where nobody says: none before 0.26.0, which caches the prefixes
/// of hybrids too (`is_prefix_caching_supported`); Mamba's at each block, from 0.28.0 on as the others'
/// (`MambaModelConfig`; releases 0.24.0 to 0.33.0 read).
pub(crate) fn prefix_states(version: Version, model: &Model) -> PrefixStates {
    let mamba = |layer: &Layer| matches!(layer.attention, Attention::Mamba(_));
    let in_blocks = !version.since((0, 28, 0), (2026, 9)) && model.layers.iter().any(mamba);
    match version.since((0, 26, 0), (2026, 8)) {
        false => PrefixStates::Off,
        true if in_blocks => PrefixStates::All,
        true => PrefixStates::Align,
    }
}
