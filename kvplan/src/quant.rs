//! Quantisation by name, for models whose config does not carry it: which tensor groups change to
//! which format.

use crate::formats::{KvDtype, WeightFormat};
use crate::gguf::GgufMix;
use crate::model::{Attention, KvAsker, Model};

/// A format and the tensor groups stored in it; everything else stays in the base format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quant {
    /// The format.
    pub format: WeightFormat,
    /// Query, key, value and output projections of softmax attention.
    pub attention: bool,
    /// Output projection of softmax attention.
    pub attention_out: bool,
    /// Projections of linear attention and state-space layers.
    pub linear: bool,
    /// Dense feed-forward.
    pub dense: bool,
    /// Routed experts.
    pub experts: bool,
    /// Shared experts.
    pub shared: bool,
    /// KV format the checkpoint asks for.
    pub kv_dtype: Option<KvDtype>,
    /// A mixture of GGUF types by its own rules; it replaces all of the above.
    pub gguf: Option<GgufMix>,
}

/// Formats and group sets that [`Quant::parse`] takes, for an error line.
pub const QUANT_NAMES: &str = "bf16, f16, fp8, fp8-block, mxfp8, int8, int4 (also awq, gptq, w4a16), \
     int4-g32, nvfp4, mxfp4, each also with -experts to mean the experts alone; of GGUF q4_k_m, \
     q8_0, iq4_xs and the other names of llama-quantize";

/// Those of [`QUANT_NAMES`] whose bytes differ, GGUF's mixes left out; the usual ones first.
pub const QUANTS: [&str; 12] = [
    "bf16",
    "fp8",
    "int4",
    "nvfp4",
    "mxfp4",
    "mxfp8",
    "int4-g32",
    "fp8-experts",
    "int4-experts",
    "nvfp4-experts",
    "mxfp4-experts",
    "mxfp8-experts",
];

impl Quant {
    /// Every linear layer in `format`.
    pub fn everywhere(format: WeightFormat) -> Self {
        Self {
            format,
            attention: true,
            attention_out: true,
            linear: true,
            dense: true,
            experts: true,
            shared: true,
            kv_dtype: None,
            gguf: None,
        }
    }

    /// The routed experts in `format`.
    pub fn experts_only(format: WeightFormat) -> Self {
        Self {
            attention: false,
            attention_out: false,
            linear: false,
            dense: false,
            shared: false,
            ..Self::everywhere(format)
        }
    }

    /// Reads a name as users write it; `None` where it is none of [`QUANT_NAMES`].
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        if let Some(mix) = GgufMix::parse(&name) {
            return Some(Self {
                gguf: Some(mix),
                ..Self::everywhere(WeightFormat::F32)
            });
        }
        if let Some(format) = name.strip_suffix("-experts") {
            return format_named(format).map(Self::experts_only);
        }
        // Tools leave attention of NVFP4 mixtures alone more often than not.
        format_named(&name).map(|format| match format {
            WeightFormat::Nvfp4 => Self {
                attention: false,
                attention_out: false,
                linear: false,
                ..Self::everywhere(format)
            },
            // Every published MXFP4 checkpoint quantises the experts alone.
            WeightFormat::Mxfp4 => Self::experts_only(format),
            _ => Self::everywhere(format),
        })
    }
}

/// A weight format by name.
pub(crate) fn format_named(name: &str) -> Option<WeightFormat> {
    let int4 = |group, zero_point| WeightFormat::Int4 { group, zero_point };
    Some(match name {
        "bf16" | "bfloat16" | "none" => WeightFormat::Bf16,
        "f16" | "fp16" | "float16" => WeightFormat::F16,
        "f32" | "fp32" | "float32" => WeightFormat::F32,
        "fp8" | "fp8-tensor" | "fp8-dynamic" | "fp8-static" | "fp8-e4m3" | "w8a8-fp8" => {
            WeightFormat::Fp8
        }
        "fp8-block" => WeightFormat::Fp8Block,
        "mxfp8" => WeightFormat::Mxfp8,
        "int8" | "w8a8" | "w8a16" | "gptq-int8" | "w8a8-int8" => WeightFormat::Int8,
        "int4-g32" => int4(32, false),
        "int4" | "gptq" | "w4a16" | "int4-g128" | "gptq-int4" | "4bit" => int4(128, false),
        // bitsandbytes: a byte per 64 and a float per 64 of those, 0.516 bytes as in groups of 128.
        "nf4" | "bnb" | "bnb-4bit" | "bitsandbytes" => int4(128, false),
        "awq" | "awq-int4" | "int4-awq" | "int4-g128-zp" => int4(128, true),
        "nvfp4" | "fp4" | "modelopt-fp4" => WeightFormat::Nvfp4,
        "mxfp4" => WeightFormat::Mxfp4,
        _ => return None,
    })
}

impl Model {
    /// The same model with its weights stored as `quant` says. MTP layers follow where they
    /// would in a checkpoint: 8-bit formats cover them, 4-bit ones leave them in the base format.
    pub fn requantised(mut self, quant: &Quant) -> Self {
        if let Some(mix) = quant.gguf {
            return self.into_gguf(mix);
        }
        let four_bit = quant.format.bytes_per_param() < 1.0;
        let base = self.base_format;
        let pick = |on: bool| if on { quant.format } else { base };
        for layer in &mut self.layers {
            let linear = matches!(layer.attention, Attention::Linear(_) | Attention::Mamba(_));
            let (inward, outward) = if linear {
                (quant.linear, quant.linear)
            } else {
                (quant.attention, quant.attention || quant.attention_out)
            };
            layer.formats.attention_in = pick(inward);
            layer.formats.attention_out = pick(outward);
            layer.formats.dense = pick(quant.dense);
            layer.formats.experts = pick(quant.experts);
            layer.formats.shared = pick(quant.shared);
        }
        for layer in &mut self.mtp_layers {
            let on = |flag: bool| pick(flag && !four_bit);
            layer.formats.attention_in = on(quant.attention);
            layer.formats.attention_out = on(quant.attention || quant.attention_out);
            layer.formats.dense = on(quant.dense);
            layer.formats.experts = on(quant.experts);
            layer.formats.shared = on(quant.shared);
        }
        if quant.kv_dtype.is_some() {
            self.kv_dtype = quant.kv_dtype;
            // Those of the catalogue that ask for one are ModelOpt's.
            self.kv_asker = match quant.format {
                WeightFormat::Nvfp4 => KvAsker::ModelOptFp4,
                _ => KvAsker::ModelOptFp8,
            };
        }
        self.format_by_name = true;
        // The checkpoint that was read is not stored like this.
        self.checkpoint_scale = 1.0;
        self
    }
}
