//! Workspaces that attention takes beside the pool.

use crate::GIB;
use crate::model::Attention;
use crate::setup::Setup;

/// Workspaces of sparse attention with an index: gathered keys for 40 of the longest requests it is
/// told to take, up-converted latents for 5, and 512 MiB of index logits (attention backends of
/// DeepSeek-V3.2 in vLLM).
pub(super) fn sparse_workspace_gib(setup: &Setup<'_>, longest: u64) -> f64 {
    let indexed = setup
        .model
        .layers
        .iter()
        .find_map(|layer| match layer.attention {
            Attention::Mla(mla) => mla.indexer.map(|indexer| (mla, indexer)),
            _ => None,
        });
    let Some((mla, indexer)) = indexed else {
        return 0.0;
    };
    let longest = longest as f64;
    let key = indexer.head_dim as f64 * (1.0 + 4.0 / 128.0);
    let latent = (mla.kv_lora_rank + mla.qk_rope_head_dim) as f64 * 2.0;
    (longest * (40.0 * key + 5.0 * latent)) / GIB + 0.5
}
