//! Number formats of weights and of KV caches, with the bytes that scales and zero points add.

/// How the elements of a weight matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    Bf16,
    /// 2 bytes an element.
    F16,
    /// 1 byte an element, one scale a tensor or channel.
    Fp8,
    /// 1 byte an element and an f32 scale per 128 x 128 block (DeepSeek-V3 checkpoints).
    Fp8Block,
    /// 1 byte an element and a 1-byte scale per 32 (OCP MX).
    Mxfp8,
    /// 1 byte an element, one scale a channel.
    Int8,
    /// 4 bits an element, a 2-byte scale per `group`, and a 4-bit zero point where not symmetric.
    Int4 {
        /// Elements that share a scale.
        group: u16,
        /// Whether each group also stores a zero point.
        zero_point: bool,
    },
    /// 4 bits an element and an fp8 scale per 16.
    Nvfp4,
    /// 4 bits an element and a 1-byte scale per 32 (OCP MX).
    Mxfp4,
    /// GGUF blocks of one type, or the average over the tensors of a group that a mixture stores in
    /// several.
    Gguf {
        /// Bytes of a block.
        bytes: u32,
        /// Elements of a block.
        elements: u32,
    },
}

impl WeightFormat {
    /// Bytes one element takes, scales and zero points included.
    pub fn bytes_per_param(self) -> f64 {
        match self {
            Self::F32 => 4.0,
            Self::Bf16 | Self::F16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
            Self::Fp8Block => 1.0 + 4.0 / (128.0 * 128.0),
            Self::Mxfp8 => 1.0 + 1.0 / 32.0,
            Self::Int4 { group, zero_point } => {
                let group = f64::from(group.max(1));
                0.5 + 2.0 / group + if zero_point { 0.5 / group } else { 0.0 }
            }
            Self::Nvfp4 => 0.5 + 1.0 / 16.0,
            Self::Mxfp4 => 0.5 + 1.0 / 32.0,
            Self::Gguf { bytes, elements } => f64::from(bytes) / f64::from(elements.max(1)),
        }
    }

    /// Bytes of `params` elements, rounded up; saturates.
    pub fn bytes(self, params: u64) -> u64 {
        (params as f64 * self.bytes_per_param()).ceil() as u64
    }

    /// The short name used on the command line and in the catalogue.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Fp8 => "fp8",
            Self::Fp8Block => "fp8-block",
            Self::Mxfp8 => "mxfp8",
            Self::Int8 => "int8",
            Self::Int4 { .. } => "int4",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Gguf { .. } => "gguf",
        }
    }
}

/// How the elements of the KV cache are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvDtype {
    /// 2 bytes an element (bf16 or f16).
    #[default]
    Bf16,
    /// 4 bytes an element.
    F32,
    /// 1 byte an element, no scales (SGLang, vLLM, TensorRT-LLM).
    Fp8,
    /// 4 bits an element and a 1-byte scale per 16.
    Fp4,
    /// GGUF q8_0: 34 bytes per 32 elements.
    Q8_0,
    /// GGUF q5_1: 24 bytes per 32 elements.
    Q5_1,
    /// GGUF q5_0: 22 bytes per 32 elements.
    Q5_0,
    /// GGUF q4_1: 20 bytes per 32 elements.
    Q4_1,
    /// GGUF q4_0 and iq4_nl: 18 bytes per 32 elements.
    Q4_0,
}

impl KvDtype {
    /// The names [`KvDtype::parse`] takes, for an error line.
    pub const NAMES: &str = "bf16, f16, f32, fp8, fp4, q8_0, q5_1, q5_0, q4_1, q4_0";

    /// Bytes of `elements`, scales included, rounded up.
    pub fn bytes(self, elements: u64) -> u64 {
        let per_32 = |bytes: u64| elements.div_ceil(32).saturating_mul(bytes);
        match self {
            Self::Bf16 => elements.saturating_mul(2),
            Self::F32 => elements.saturating_mul(4),
            Self::Fp8 => elements,
            Self::Fp4 => elements.div_ceil(2).saturating_add(elements / 16),
            Self::Q8_0 => per_32(34),
            Self::Q5_1 => per_32(24),
            Self::Q5_0 => per_32(22),
            Self::Q4_1 => per_32(20),
            Self::Q4_0 => per_32(18),
        }
    }

    /// Reads a name as engines and users spell it (`fp8_e4m3`, `bfloat16`, `q8_0`, …).
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace('-', "_");
        Some(match name.as_str() {
            "bf16" | "bfloat16" | "f16" | "fp16" | "float16" | "half" => Self::Bf16,
            "f32" | "fp32" | "float32" => Self::F32,
            "fp8" | "fp8_e4m3" | "fp8_e5m2" | "float8_e4m3fn" | "fp8_e4m3fn" | "int8" => Self::Fp8,
            "fp4" | "fp4_e2m1" | "nvfp4" | "mxfp4" => Self::Fp4,
            "q8_0" => Self::Q8_0,
            "q5_1" => Self::Q5_1,
            "q5_0" => Self::Q5_0,
            "q4_1" => Self::Q4_1,
            "q4_0" | "iq4_nl" => Self::Q4_0,
            _ => return None,
        })
    }

    /// The short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::Fp8 => "fp8",
            Self::Fp4 => "fp4",
            Self::Q8_0 => "q8_0",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
        }
    }
}
