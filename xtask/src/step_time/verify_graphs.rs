//! Whether vLLM runs a verify as one whole CUDA graph: by its attention backend, the card and the
//! release. Source: `AttentionCGSupport` and `supports_sink` of each backend and `_get_backend_priorities`
//! of platforms/cuda.py in 0.11.1, 0.17.1, 0.20.2 and 0.24.0 to 0.33.0.

use kvplan::{Attention, KvDtype, Layer, Model, Version, WeightFormat};

use crate::gpus::Family;

/// What a log says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Whether verifies were captured whole, not in graphs cut at attention.
    pub(crate) whole: Option<bool>,
    /// The backend, by its name.
    pub(crate) backend: Option<String>,
}

impl Seen {
    /// Anything at all.
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// What vLLM chooses its attention by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attends<'a> {
    pub(crate) model: &'a Model,
    pub(crate) family: Family,
    pub(crate) cache: KvDtype,
    /// Release; the newest where that is unknown.
    pub(crate) version: Option<&'a str>,
}

/// Backends of its releases for which it is known whether a verify is one graph.
pub(crate) const VLLM_ATTENTION: [&str; 9] = [
    "FLASH_ATTN",
    "FLASH_ATTN_MLA",
    "FLASHINFER",
    "FLASHINFER_MLA",
    "FLASHMLA_SPARSE",
    "CUTLASS_MLA",
    "TRITON_ATTN",
    "TRITON_MLA",
    "ROCM_ATTN",
];

/// Whether a backend is one of the releases', not of a build of one's own.
pub(crate) fn is_known(backend: &str) -> bool {
    VLLM_ATTENTION.contains(&backend)
}

/// The release of measured rows that name none: of early 2026, as their neighbours that do.
const UNNAMED: &str = "0.17.0";

impl<'a> Attends<'a> {
    /// Of a measured row whose cache is not told: NVFP4 checkpoints ask for FP8, and vLLM takes that from
    /// 0.14.0 on.
    pub(crate) fn of_row(model: &'a Model, family: Family, version: Option<&'a str>) -> Self {
        let formats = model.layers.iter().map(|layer| layer.formats);
        let mut all = formats.flat_map(|f| [f.dense, f.experts, f.attention_out]);
        let asked = match all.any(|format| format == WeightFormat::Nvfp4) {
            true => KvDtype::Fp8,
            false => KvDtype::Bf16,
        };
        let mut row = Self {
            model,
            family,
            cache: KvDtype::Bf16,
            version: Some(version.unwrap_or(UNNAMED)),
        };
        if row.since((0, 14, 0), (2026, 1)) {
            row.cache = model.kv_dtype.unwrap_or(asked);
        }
        row
    }

    fn since(&self, number: (u32, u32, u32), date: (u32, u32)) -> bool {
        let version = self.version.and_then(Version::find);
        version.is_none_or(|version| version.since(number, date))
    }

    fn any(&self, is: impl Fn(&Layer) -> bool) -> bool {
        self.model.layers.iter().any(is)
    }

    /// FlashInfer's XQA kernels of SM 12.x, with sinks and several tokens of a sequence.
    fn xqa_of_rtx(&self) -> bool {
        self.since((0, 28, 0), (2026, 9))
    }

    /// The backend that it takes by itself.
    pub(crate) fn backend(&self) -> &'static str {
        let latent = |layer: &Layer| matches!(layer.attention, Attention::Mla(_));
        let sparse =
            |layer: &Layer| matches!(layer.attention, Attention::Mla(mla) if mla.indexer.is_some());
        if self.any(sparse) {
            return "FLASHMLA_SPARSE";
        }
        if has_sinks(self.model)
            && let Some(backend) = self.backend_with_sinks()
        {
            return backend;
        }
        match (self.any(latent), self.family) {
            (true, Family::Hopper) => "FLASH_ATTN_MLA",
            (true, Family::Blackwell) if self.since((0, 17, 0), (2026, 3)) => "FLASHINFER_MLA",
            (true, Family::Blackwell) => "CUTLASS_MLA",
            (true, _) => "TRITON_MLA",
            (false, Family::Blackwell | Family::Turing) => "FLASHINFER",
            (false, Family::Volta) => "TRITON_ATTN",
            (false, Family::Cdna3) => "ROCM_ATTN",
            // FlashAttention 2 reads no FP8.
            (false, Family::Ampere | Family::Ada | Family::BlackwellRtx)
                if self.cache == KvDtype::Fp8 =>
            {
                "FLASHINFER"
            }
            (false, _) => "FLASH_ATTN",
        }
    }

    /// The same for attention sinks, where that leaves out what it takes else: FlashAttention has them from
    /// version 3, on SM 9.0, and FlashInfer in its kernels by TRT-LLM (SM 10.x) and XQA (SM 12.x).
    fn backend_with_sinks(&self) -> Option<&'static str> {
        match self.family {
            Family::Ampere | Family::Ada | Family::Turing => Some("TRITON_ATTN"),
            Family::BlackwellRtx if self.xqa_of_rtx() => Some("FLASHINFER"),
            Family::BlackwellRtx => Some("TRITON_ATTN"),
            _ => None,
        }
    }

    /// Whether that backend (and Mamba's states, and a sparse index) takes several tokens of a sequence
    /// in a whole graph.
    pub(crate) fn whole_by(&self, backend: &str) -> bool {
        let apart = |layer: &Layer| match layer.attention {
            Attention::Mamba(_) => true,
            Attention::Mla(mla) => mla.indexer.is_some(),
            _ => false,
        };
        if self.any(apart) && !self.since((0, 17, 0), (2026, 3)) {
            return false;
        }
        match backend {
            // By TRT-LLM's kernels; by XQA; by FlashAttention 2 itself.
            "FLASHINFER" => match self.family {
                Family::Blackwell => true,
                Family::BlackwellRtx => self.xqa_of_rtx(),
                Family::Hopper => self.since((0, 30, 0), (2026, 10)),
                _ => self.since((0, 33, 0), (2026, 11)),
            },
            "TRITON_MLA" => self.since((0, 24, 0), (2026, 7)),
            "CUTLASS_MLA" => false,
            _ => true,
        }
    }

    /// Whether a verify is one whole graph: as seen, else by the backend.
    pub(crate) fn whole(&self, seen: Option<&Seen>) -> bool {
        let whole = seen.and_then(|seen| seen.whole);
        whole.unwrap_or_else(|| self.whole_by(self.backend_or(seen)))
    }

    /// Why it refuses a backend that it is told to take. Source: `validate_configuration` of its backends and
    /// their `supports_*` in 0.11.1 to 0.33.0.
    pub(crate) fn refuses(&self, backend: &str) -> Option<String> {
        let latent = self.any(|layer| matches!(layer.attention, Attention::Mla(_)));
        let of_latent = backend.contains("MLA");
        if latent != of_latent {
            let (is, of) = match latent {
                true => ("latent", "others"),
                false => ("not latent", "latent attention"),
            };
            return Some(format!(
                "is for {of}, and the attention of {} is {is}",
                self.model.name
            ));
        }
        let before_hopper = matches!(self.family, Family::Ampere | Family::Ada);
        let rtx = self.family == Family::BlackwellRtx;
        let old = matches!(self.family, Family::Volta | Family::Turing);
        let fp8 = self.cache == KvDtype::Fp8;
        let sinks = has_sinks(self.model);
        let why = match backend {
            "FLASH_ATTN" if old => "needs Ampere or newer",
            "FLASH_ATTN" if fp8 && (before_hopper || rtx) => "reads no fp8 cache on this card",
            "FLASH_ATTN" if sinks && (before_hopper || rtx) => {
                "has no attention sinks on this card"
            }
            "FLASHINFER" if self.family == Family::Volta => "needs Turing or newer",
            "FLASHINFER"
                if sinks && !(self.family == Family::Blackwell || rtx && self.xqa_of_rtx()) =>
            {
                "has no attention sinks on this card in this release"
            }
            "TRITON_ATTN" if fp8 && (old || self.family == Family::Ampere) => {
                "reads no fp8 cache on this card"
            }
            "FLASH_ATTN_MLA" if self.family != Family::Hopper => "needs Hopper",
            "FLASHINFER_MLA" | "CUTLASS_MLA" if self.family != Family::Blackwell => {
                "needs data-centre Blackwell"
            }
            "ROCM_ATTN" if self.family != Family::Cdna3 => "is for AMD's cards",
            _ => return None,
        };
        Some(why.to_string())
    }

    /// The backend as seen, else the one that it takes by itself.
    pub(crate) fn backend_or<'b>(&self, seen: Option<&'b Seen>) -> &'b str {
        let seen = seen.and_then(|seen| seen.backend.as_deref());
        seen.unwrap_or_else(|| self.backend())
    }
}

/// Whether the heads of a model have a learned weight that no token holds (GPT-OSS).
pub(crate) fn has_sinks(model: &Model) -> bool {
    model.architecture.starts_with("GptOss")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verify_is_whole_by_backend_card_and_release() {
        let model = |name: &str| kvplan::catalog::find(name).expect("a model").model;
        let (dense, kimi) = (model("qwen3-32b"), model("kimi-k2.5"));
        let of = |model, family, cache, version| {
            let attends = Attends {
                model,
                family,
                cache,
                version: Some(version),
            };
            (attends.backend(), attends.whole(None))
        };
        let rtx = Family::BlackwellRtx;
        let (bf16, fp8) = (KvDtype::Bf16, KvDtype::Fp8);
        assert_eq!(of(&dense, rtx, bf16, "0.24.0"), ("FLASH_ATTN", true));
        assert_eq!(of(&dense, rtx, fp8, "0.27.0"), ("FLASHINFER", false));
        assert_eq!(of(&dense, rtx, fp8, "0.28.0"), ("FLASHINFER", true));
        assert_eq!(of(&dense, rtx, fp8, "0.30.0"), ("FLASHINFER", true));
        let ada = Family::Ada;
        assert_eq!(of(&dense, ada, fp8, "0.32.0"), ("FLASHINFER", false));
        assert_eq!(of(&dense, ada, bf16, "0.17.0"), ("FLASH_ATTN", true));
        let hopper = Family::Hopper;
        assert_eq!(of(&dense, hopper, fp8, "0.24.0"), ("FLASH_ATTN", true));
        assert_eq!(of(&kimi, rtx, bf16, "0.20.2"), ("TRITON_MLA", false));
        assert_eq!(of(&kimi, rtx, bf16, "0.24.0"), ("TRITON_MLA", true));
        let datacentre = Family::Blackwell;
        assert_eq!(of(&dense, datacentre, fp8, "0.17.0"), ("FLASHINFER", true));
    }
    /// FLASH_ATTN was named for them everywhere but on SM 10.x.
    #[test]
    fn sinks_take_no_flash_attention_2() {
        let model = kvplan::catalog::find("gpt-oss-120b")
            .expect("a model")
            .model;
        let of = |family, cache, version| {
            let attends = Attends {
                model: &model,
                family,
                cache,
                version: Some(version),
            };
            (attends.backend(), attends.whole(None))
        };
        let (bf16, fp8) = (KvDtype::Bf16, KvDtype::Fp8);
        for cache in [bf16, fp8] {
            for older in ["0.11.1", "0.17.0", "0.24.0", "0.27.0"] {
                let rtx = of(Family::BlackwellRtx, cache, older);
                assert_eq!(rtx, ("TRITON_ATTN", true));
            }
            let newer = of(Family::BlackwellRtx, cache, "0.33.0");
            assert_eq!(newer, ("FLASHINFER", true));
            for older_card in [Family::Ampere, Family::Ada] {
                let by = of(older_card, cache, "0.33.0");
                assert_eq!(by, ("TRITON_ATTN", true));
            }
            assert_eq!(of(Family::Hopper, cache, "0.17.0").0, "FLASH_ATTN");
            assert_eq!(of(Family::Blackwell, cache, "0.17.0").0, "FLASHINFER");
        }
    }
}
