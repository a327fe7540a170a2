//! The KV format that an engine takes where nobody asks for one, and how it lays that out.
//!
//! Sources, read in the wheels: SGLang's server_args.py of 0.5.3, 0.5.5, 0.5.6, 0.5.9 to 0.5.13 and
//! arg_groups/overrides.py of 0.5.23; vLLM's models/config.py of 0.11.0, 0.11.1, 0.12.0 and 0.33.0.

use super::{Engine, EngineKind};
use crate::formats::KvDtype;
use crate::kv::KvLayout;
use crate::model::{Attention, Model};
use crate::setup::Setup;

/// Why a KV format is taken that nobody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvReason {
    /// The checkpoint says it.
    Checkpoint,
    /// The engines' default.
    Default,
    /// SGLang, sparse attention over a latent, compute capability 10 and above.
    SglangSparseFp8,
    /// The same below it.
    SglangSparseBf16,
    /// The first vLLM that served it.
    VllmSparse,
}

impl KvReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Checkpoint,
        Self::Default,
        Self::SglangSparseFp8,
        Self::SglangSparseBf16,
        Self::VllmSparse,
    ];

    /// In words.
    pub fn said(self) -> &'static str {
        match self {
            Self::Checkpoint => "the checkpoint's config asks for it",
            Self::Default => "the engines' default",
            Self::SglangSparseFp8 => {
                "SGLang's own for DeepSeek's sparse attention from compute capability 10 on"
            }
            Self::SglangSparseBf16 => {
                "SGLang's own for DeepSeek's sparse attention below compute capability 10"
            }
            Self::VllmSparse => "vLLM 0.11.0's own for DeepSeek's sparse attention",
        }
    }
}

/// Whether an index picks what is read of a latent cache (DeepSeek-V3.2, GLM-5).
fn sparse_latent(model: &Model) -> bool {
    let indexed =
        |attention: &Attention| matches!(attention, Attention::Mla(mla) if mla.indexer.is_some());
    model.layers.iter().any(|layer| indexed(&layer.attention))
}

/// The KV format that an engine takes by itself, and why. SGLang sets it for sparse attention before it
/// looks at the checkpoint; a card that is not known counts for nothing.
pub fn kv_by_itself(
    model: &Model,
    engine: Engine,
    compute_major: Option<u64>,
) -> (KvDtype, KvReason) {
    if sparse_latent(model) {
        match (engine.kind, compute_major) {
            (EngineKind::Sglang, Some(10..)) => return (KvDtype::Fp8, KvReason::SglangSparseFp8),
            (EngineKind::Sglang, Some(_)) => return (KvDtype::Bf16, KvReason::SglangSparseBf16),
            (EngineKind::Vllm, _) if !engine.version.since((0, 11, 1), (2025, 11)) => {
                return (KvDtype::Fp8, KvReason::VllmSparse);
            }
            _ => {}
        }
    }
    match model.kv_dtype {
        Some(dtype) => (dtype, KvReason::Checkpoint),
        None => (KvDtype::default(), KvReason::Default),
    }
}

impl Setup<'_> {
    /// KV format in effect.
    pub fn kv_dtype(&self) -> KvDtype {
        let own = || kv_by_itself(self.model, self.engine, self.compute_major).0;
        self.kv_dtype.unwrap_or_else(own)
    }

    /// How the cache is laid out. From 0.5.10 on SGLang runs FP8 sparse attention on server Blackwell
    /// (compute capability 10) by TensorRT-LLM's kernels, which take a byte an element without scales:
    /// 576 B for 512 + 64, `calculate_mla_kv_cache_dim`. Those kernels are not made for 12, where servers
    /// were seen with the 656 B of the others.
    pub fn kv_layout(&self) -> KvLayout {
        let by_trtllm = self.engine.kind == EngineKind::Sglang
            && self.engine.version.since((0, 5, 10), (2026, 4))
            && self.compute_major == Some(10);
        let layout = KvLayout::new(self.kv_dtype());
        KvLayout {
            dsa_fp8: layout.dsa_fp8 && !by_trtllm,
            ..layout
        }
    }
}

/// Says which KV format is taken where nobody asks for one, and why.
pub(super) fn kv_dtype_taken(setup: &Setup<'_>) -> Option<String> {
    let (dtype, why) = kv_by_itself(setup.model, setup.engine, setup.compute_major);
    let why = match why {
        KvReason::Default => "the default",
        why => why.said(),
    };
    let taken = || format!("KV dtype {} ({why})", dtype.name());
    setup.kv_dtype.is_none().then(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sharding;
    use crate::engine::Version;

    fn taken(
        model: &str,
        kind: EngineKind,
        version: (u32, u32, u32),
        major: u64,
    ) -> (KvDtype, u64) {
        let model = crate::catalog::find(model).expect("listed").model;
        let engine = Engine::at(kind, Version::Number(version.0, version.1, version.2));
        let sharding = Sharding::tp(8);
        let mut setup = Setup::new(&model, sharding, engine, 179.0);
        setup.compute_major = Some(major);
        let index = model.index_bytes_per_token();
        let bytes = model.kv_bytes_per_token(&sharding, &setup.kv_layout());
        (setup.kv_dtype(), bytes + index)
    }

    #[test]
    fn sglang_keeps_the_cache_of_deepseeks_sparse_attention_in_fp8_from_blackwell_on() {
        let v32 = |version, major| taken("deepseek-v3.2", EngineKind::Sglang, version, major);
        let bf16 = (KvDtype::Bf16, 61 * (1152 + 132));
        for version in [(0, 5, 3), (0, 5, 6), (0, 5, 23)] {
            assert_eq!(v32(version, 9), bf16, "{version:?}");
            assert_eq!(v32(version, 12), (KvDtype::Fp8, 61 * (656 + 132)));
        }
        assert_eq!(v32((0, 5, 6), 10), (KvDtype::Fp8, 61 * (656 + 132)));
        assert_eq!(v32((0, 5, 10), 10), (KvDtype::Fp8, 61 * (576 + 132)));
        // Without an index the default stays.
        let v3 = taken("deepseek-v3", EngineKind::Sglang, (0, 5, 6), 10);
        assert_eq!(v3.0, KvDtype::Bf16);
    }

    #[test]
    fn vllm_kept_that_cache_in_fp8_by_itself_in_its_first_release_alone() {
        let v32 = |version, major| taken("deepseek-v3.2", EngineKind::Vllm, version, major).0;
        assert_eq!(v32((0, 11, 0), 9), KvDtype::Fp8);
        assert_eq!(v32((0, 11, 1), 10), KvDtype::Bf16);
        assert_eq!(v32((0, 33, 0), 10), KvDtype::Bf16);
    }
}
