//! The KV format that an engine takes where nobody asks for one, and how it lays that out.
//!
//! Sources, read in the wheels: SGLang's server_args.py of 0.5.3, 0.5.5, 0.5.6, 0.5.9 to 0.5.13 and
//! arg_groups/overrides.py of 0.5.23; vLLM's models/config.py of 0.11.0, 0.11.1, 0.12.0 and 0.33.0. Of what
//! a checkpoint asks for: see [`reads`].

use super::{Engine, EngineKind};
use crate::formats::KvDtype;
use crate::kv::KvLayout;
use crate::model::{Attention, KvAsker, Layer, Model};
use crate::setup::Setup;

/// Why a KV format is taken that nobody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvReason {
    /// The checkpoint says it.
    Checkpoint,
    /// Checkpoints that are published in that weight format say it; this one was not read.
    UsualCheckpoint,
    /// The checkpoint says another, which this release does not read.
    NotRead,
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
    pub const ALL: [Self; 7] = [
        Self::Checkpoint,
        Self::UsualCheckpoint,
        Self::NotRead,
        Self::Default,
        Self::SglangSparseFp8,
        Self::SglangSparseBf16,
        Self::VllmSparse,
    ];

    /// In words.
    pub fn said(self) -> &'static str {
        match self {
            Self::Checkpoint => "the checkpoint's config asks for it",
            Self::UsualCheckpoint => "published checkpoints of that weight format ask for it",
            Self::NotRead => {
                "the engine's own: this release does not read what the checkpoint asks for"
            }
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

/// Whether a release takes the KV format that a checkpoint asks for.
///
/// SGLang: `kv_cache_quant_algo` of a quantisation config in `init_memory_pool`, from 0.5.3 on
/// (`configure_kv_cache_dtype`; 0.4.9 to 0.5.2 and 0.5.3rc0 take the model's type). NVFP4's config had that
/// field; ModelOpt's FP8 got it with 0.5.4, its MXFP8 with 0.5.18, compressed-tensors with 0.5.19.
/// vLLM: `resolve_kv_cache_dtype_string` for ModelOpt from 0.14.0 on; `kv_cache_scheme` of compressed-tensors
/// from 0.15.0 on, in `Attention` alone (0.33.0's `MLAAttention` does not look). Read in the wheels 0.10.0 to
/// 0.17.1, 0.24.0 and 0.33.0.
fn reads(engine: Engine, model: &Model) -> bool {
    let since = |number, date| engine.version.since(number, date);
    match (engine.kind, model.kv_asker) {
        (EngineKind::Sglang, KvAsker::ModelOptFp4) => since((0, 5, 3), (2025, 10)),
        (EngineKind::Sglang, KvAsker::ModelOptFp8) => since((0, 5, 4), (2025, 10)),
        (EngineKind::Sglang, KvAsker::ModelOptMxfp8) => since((0, 5, 18), (2026, 8)),
        (EngineKind::Sglang, KvAsker::CompressedTensors) => since((0, 5, 19), (2026, 9)),
        (EngineKind::Vllm, KvAsker::CompressedTensors) => {
            let latent = |layer: &Layer| matches!(layer.attention, Attention::Mla(_));
            !model.layers.iter().any(latent) && since((0, 15, 0), (2026, 2))
        }
        (EngineKind::Vllm, asker) => asker == KvAsker::Other || since((0, 14, 0), (2026, 1)),
        _ => true,
    }
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
        Some(_) if !reads(engine, model) => (KvDtype::default(), KvReason::NotRead),
        Some(dtype) if model.format_by_name => (dtype, KvReason::UsualCheckpoint),
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

    fn by_itself(config: &str, kind: EngineKind, version: (u32, u32, u32)) -> KvDtype {
        let model = Model::from_config_json(config, "a model").expect("a config");
        let engine = Engine::at(kind, Version::Number(version.0, version.1, version.2));
        kv_by_itself(&model, engine, Some(9)).0
    }

    /// The first release of each engine that reads an FP8 cache out of a config with this block.
    fn first(
        block: &str,
        latent: bool,
        kind: EngineKind,
        before: (u32, u32, u32),
        from: (u32, u32, u32),
    ) {
        let latent = match latent {
            true => {
                r#""architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3","kv_lora_rank":512,
                "q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"#
            }
            false => r#""architectures":["LlamaForCausalLM"],"model_type":"llama","#,
        };
        let config = format!(
            r#"{{{latent}"hidden_size":1024,"num_hidden_layers":2,"num_attention_heads":8,
            "num_key_value_heads":8,"intermediate_size":2048,"vocab_size":32000,
            "quantization_config":{{{block}}}}}"#
        );
        assert_eq!(
            by_itself(&config, kind, before),
            KvDtype::Bf16,
            "{block} {before:?}"
        );
        assert_eq!(
            by_itself(&config, kind, from),
            KvDtype::Fp8,
            "{block} {from:?}"
        );
    }

    #[test]
    fn a_release_takes_what_a_checkpoint_asks_for_from_the_first_that_reads_it() {
        let (sglang, vllm) = (EngineKind::Sglang, EngineKind::Vllm);
        let scheme = r#""kv_cache_scheme":{"num_bits":8,"type":"float","dynamic":false}"#;
        let modelopt = |algorithm: &str| {
            format!(r#""quant_method":"modelopt","quant_algo":"{algorithm}",{scheme}"#)
        };
        first(&modelopt("NVFP4"), false, sglang, (0, 5, 2), (0, 5, 3));
        first(&modelopt("FP8"), false, sglang, (0, 5, 3), (0, 5, 4));
        first(&modelopt("MXFP8"), false, sglang, (0, 5, 17), (0, 5, 18));
        first(&modelopt("NVFP4"), true, vllm, (0, 13, 0), (0, 14, 0));
        let compressed = format!(
            r#""quant_method":"compressed-tensors","format":"float-quantized","config_groups":{{"group_0":
            {{"weights":{{"num_bits":8,"type":"float","strategy":"channel"}},"targets":["Linear"]}}}},{scheme}"#
        );
        first(&compressed, false, sglang, (0, 5, 18), (0, 5, 19));
        first(&compressed, false, vllm, (0, 14, 0), (0, 15, 0));
    }

    #[test]
    fn a_name_is_no_checkpoint() {
        let model = crate::catalog::find("deepseek-r1-nvfp4")
            .expect("listed")
            .model;
        let of = |minor| {
            let engine = Engine::at(EngineKind::Sglang, Version::Number(0, 5, minor));
            kv_by_itself(&model, engine, Some(10))
        };
        assert_eq!(of(6), (KvDtype::Fp8, KvReason::UsualCheckpoint));
        assert_eq!(of(2), (KvDtype::Bf16, KvReason::NotRead));
    }
}
