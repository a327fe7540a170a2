//! Quantisation blocks: which tensor groups are stored in which format, exclusions resolved per
//! layer. Covers fp8 (tensor, block), ModelOpt (FP8, NVFP4, mixed), compressed-tensors, GPTQ, AWQ,
//! mxfp4.

use std::collections::HashMap;

use serde_json::Value;

use super::node::Node;
use super::pattern::{PatternSet, bare};
use super::{ConfigError, dtype_format};
use crate::formats::{KvDtype, WeightFormat};
use crate::model::{KvAsker, LayerFormats};

/// Which module is stored in which format.
pub(super) struct QuantScheme {
    /// Everything that is not quantised.
    pub(super) base: WeightFormat,
    /// Linear layers that nothing excludes.
    linear: WeightFormat,
    /// Routed experts, where the block names a format for them alone.
    experts: Option<WeightFormat>,
    excluded: PatternSet,
    named: HashMap<String, WeightFormat>,
    /// KV format the block asks for.
    pub(super) kv_dtype: Option<KvDtype>,
    /// In whose words.
    pub(super) kv_asker: KvAsker,
    /// What was assumed.
    pub(super) notes: Vec<String>,
}

impl QuantScheme {
    /// Reads the block inside the config, or the ModelOpt file beside it, which wins.
    pub(super) fn read(node: &Node<'_>, beside: Option<&Value>) -> Result<Self, ConfigError> {
        let mut scheme = Self::plain(node);
        let inside = node.value("quantization_config").filter(|v| v.is_object());
        let file = beside.and_then(|value| value.get("quantization"));
        let Some(block) = file.or(inside) else {
            return Ok(scheme);
        };
        let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
        let method = text("quant_method").to_ascii_lowercase();
        let algorithm = text("quant_algo").to_ascii_uppercase();
        scheme.kv_dtype = kv_dtype(block);
        scheme.kv_asker = kv_asker(&method, &algorithm);
        let linear = match (method.as_str(), algorithm.as_str()) {
            (_, "MIXED_PRECISION") if method != "fp8" => Some(scheme.base),
            ("fp8" | "fbgemm_fp8", _) => Some(fp8(block)),
            ("mxfp4", _) => Some(WeightFormat::Mxfp4),
            ("gptq" | "awq" | "gptq_marlin" | "awq_marlin" | "auto-round" | "auto_round", _) => {
                Some(int_format(block, method.contains("awq")))
            }
            ("compressed-tensors", _) => compressed_tensors(block),
            ("exl3" | "exl2", _) => Some(scheme.fractional_bits(block)),
            (_, "") => None,
            (_, algorithm) => algorithm_format(algorithm),
        };
        match linear {
            Some(format) => scheme.linear = format,
            None => scheme.notes.push(format!(
                "quantisation `{method}{algorithm}` is not known; weights counted as {}",
                scheme.base.name()
            )),
        }
        scheme.read_exclusions(block, &method);
        scheme.read_named(block);
        if let Some("fp4") = node.text("expert_dtype") {
            scheme.experts = Some(WeightFormat::Mxfp4);
        }
        Ok(scheme)
    }

    fn plain(node: &Node<'_>) -> Self {
        let dtype = node.text("torch_dtype").or_else(|| node.text("dtype"));
        let mut notes = Vec::new();
        let base = dtype.and_then(dtype_format).unwrap_or_else(|| {
            if dtype.is_some() {
                notes.push("dtype not known; weights counted as bf16".to_string());
            }
            WeightFormat::Bf16
        });
        Self {
            base,
            linear: base,
            experts: None,
            excluded: PatternSet::default(),
            named: HashMap::new(),
            kv_dtype: None,
            kv_asker: KvAsker::Other,
            notes,
        }
    }

    /// EXL2 and EXL3 mix widths to a mean; the nearest plain format stands in.
    fn fractional_bits(&mut self, block: &Value) -> WeightFormat {
        let bits = block.get("bits").and_then(Value::as_f64).unwrap_or(4.5);
        let int4 = |group| WeightFormat::Int4 {
            group,
            zero_point: false,
        };
        let format = match bits {
            b if b <= 4.25 => int4(128),
            b if b <= 6.0 => int4(32),
            _ => WeightFormat::Int8,
        };
        self.notes.push(format!(
            "EXL weights of {bits} bits counted at {:.2}; neither SGLang nor vLLM loads them",
            8.0 * format.bytes_per_param()
        ));
        format
    }

    fn read_exclusions(&mut self, block: &Value, method: &str) {
        let lists = ["ignore", "exclude_modules", "modules_to_not_convert"];
        let mut names: Vec<&str> = lists
            .iter()
            .filter_map(|list| block.get(*list)?.as_array())
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        names.sort_unstable();
        names.dedup();
        // An fp8 checkpoint whose experts were requantised keeps fp8 in what the second pass
        // excluded.
        if method == "fp8" && block.get("quantized_layers").is_some() {
            names.clear();
        }
        self.excluded = PatternSet::parse(&names);
    }

    fn read_named(&mut self, block: &Value) {
        let Some(layers) = block.get("quantized_layers").and_then(Value::as_object) else {
            return;
        };
        for (name, entry) in layers {
            let algorithm = entry.get("quant_algo").and_then(Value::as_str);
            if let Some(format) = algorithm.and_then(algorithm_format) {
                self.named.insert(bare(name).to_string(), format);
            }
        }
    }

    /// The format of one module by its bare name.
    fn of(&self, module: &str) -> WeightFormat {
        let mut name = module;
        while !self.named.is_empty() {
            if let Some(format) = self.named.get(name) {
                return *format;
            }
            match name.rfind('.') {
                Some(dot) => name = &name[..dot],
                None => break,
            }
        }
        if self.excluded.matches(module) {
            return self.base;
        }
        self.linear
    }

    /// The first of the spellings that is not in the default format, else the default.
    fn first_differing(&self, modules: &[String]) -> WeightFormat {
        modules
            .iter()
            .map(|module| self.of(module))
            .find(|format| *format != self.linear)
            .unwrap_or(self.linear)
    }

    /// The output head: left alone by every tool unless it is named.
    pub(super) fn head(&self) -> WeightFormat {
        self.named.get("lm_head").copied().unwrap_or(self.base)
    }

    /// Formats of layer `index`, or of MTP module `mtp` which checkpoints name in two ways.
    pub(super) fn layer(&self, index: u64, mtp: Option<u64>) -> LayerFormats {
        if self.linear == self.base && self.named.is_empty() && self.experts.is_none() {
            return LayerFormats::uniform(self.base);
        }
        let spell = |tails: &[&str]| -> WeightFormat {
            let mut names: Vec<String> = tails
                .iter()
                .map(|tail| format!("layers.{index}.{tail}"))
                .collect();
            if let Some(module) = mtp {
                let again = tails
                    .iter()
                    .map(|tail| format!("mtp.layers.{module}.{tail}"));
                names.extend(again);
            }
            self.first_differing(&names)
        };
        let experts = spell(&[
            "mlp.experts.0.gate_proj",
            "block_sparse_moe.experts.0.w1",
            "mixer.experts.0.up_proj",
            "ffn.experts.0.w1",
            "feed_forward.experts.0.gate_proj",
            "moe.gate_proj",
        ]);
        LayerFormats {
            attention_in: spell(&[
                "self_attn.q_proj",
                "self_attn.q_b_proj",
                "linear_attn.in_proj_qkv",
                "mixer.in_proj",
                "attn.wq_b",
                "self_attention.query_key_value",
            ]),
            attention_out: spell(&[
                "self_attn.o_proj",
                "linear_attn.out_proj",
                "mixer.out_proj",
                "attn.wo_b",
            ]),
            dense: spell(&[
                "mlp.gate_proj",
                "mlp.up_proj",
                "mixer.up_proj",
                "feed_forward.gate_proj",
            ]),
            experts: self
                .experts
                .filter(|_| self.named.is_empty())
                .unwrap_or(experts),
            shared: spell(&[
                "mlp.shared_experts.gate_proj",
                "mlp.shared_expert.gate_proj",
                "block_sparse_moe.shared_experts.gate_proj",
                "mixer.shared_experts.up_proj",
                "ffn.shared_experts.w1",
                "feed_forward.shared_expert.gate_proj",
            ]),
        }
    }
}

fn kv_dtype(block: &Value) -> Option<KvDtype> {
    if let Some(name) = block.get("kv_cache_quant_algo").and_then(Value::as_str) {
        return KvDtype::parse(name);
    }
    match block.get("kv_cache_scheme")?.get("num_bits")?.as_u64()? {
        8 => Some(KvDtype::Fp8),
        4 => Some(KvDtype::Fp4),
        _ => None,
    }
}

/// Whose block it is. The file that ModelOpt lays beside a config names no method.
fn kv_asker(method: &str, algorithm: &str) -> KvAsker {
    match (method, algorithm) {
        ("compressed-tensors", _) => KvAsker::CompressedTensors,
        (method, _) if !method.is_empty() && !method.starts_with("modelopt") => KvAsker::Other,
        (_, "MXFP8") => KvAsker::ModelOptMxfp8,
        (_, algorithm) if algorithm.contains("FP4") => KvAsker::ModelOptFp4,
        _ => KvAsker::ModelOptFp8,
    }
}

fn fp8(block: &Value) -> WeightFormat {
    if block.get("weight_block_size").is_some_and(Value::is_array) {
        WeightFormat::Fp8Block
    } else {
        WeightFormat::Fp8
    }
}

/// GPTQ and AWQ: bits and group; AWQ keeps zero points, GPTQ unless symmetric.
fn int_format(block: &Value, awq: bool) -> WeightFormat {
    let bits = ["bits", "w_bit"]
        .iter()
        .find_map(|n| block.get(*n)?.as_u64());
    if bits == Some(8) {
        return WeightFormat::Int8;
    }
    let group = ["group_size", "q_group_size"]
        .iter()
        .find_map(|n| block.get(*n)?.as_u64());
    WeightFormat::Int4 {
        group: u16::try_from(group.unwrap_or(128)).unwrap_or(128),
        zero_point: awq || block.get("sym").and_then(Value::as_bool) == Some(false),
    }
}

fn algorithm_format(algorithm: &str) -> Option<WeightFormat> {
    Some(match algorithm.to_ascii_uppercase().as_str() {
        "NVFP4" | "W4A16_NVFP4" | "NVFP4_AWQ" | "W4A8_NVFP4_FP8" => WeightFormat::Nvfp4,
        "FP8" | "FP8_PER_CHANNEL_PER_TOKEN" => WeightFormat::Fp8,
        "FP8_PB_WO" | "FP8_BLOCK_SCALES" => WeightFormat::Fp8Block,
        "MXFP8" => WeightFormat::Mxfp8,
        "MXFP4" | "W4A8_MXFP4_FP8" | "W4A16_MXFP4" => WeightFormat::Mxfp4,
        "INT8_SQ" | "W8A8_SQ_PER_CHANNEL" | "W8A16" => WeightFormat::Int8,
        "W4A16" | "W4A8_AWQ" | "W4A16_AWQ" | "INT4_AWQ" => WeightFormat::Int4 {
            group: 128,
            zero_point: false,
        },
        _ => return None,
    })
}

/// The weight format of the first group of a compressed-tensors block.
fn compressed_tensors(block: &Value) -> Option<WeightFormat> {
    let groups = block.get("config_groups")?.as_object()?;
    let weights = groups.values().next()?.get("weights")?;
    let bits = weights.get("num_bits").and_then(Value::as_u64)?;
    let float = weights.get("type").and_then(Value::as_str) == Some("float");
    let group = weights.get("group_size").and_then(Value::as_u64);
    let symmetric = weights.get("symmetric").and_then(Value::as_bool) != Some(false);
    Some(match (bits, float, group) {
        (4, true, Some(32)) => WeightFormat::Mxfp4,
        (4, true, _) => WeightFormat::Nvfp4,
        (4, false, group) => WeightFormat::Int4 {
            group: u16::try_from(group.unwrap_or(128)).unwrap_or(128),
            zero_point: !symmetric,
        },
        (8, true, Some(32)) => WeightFormat::Mxfp8,
        (8, true, _) if weights.get("strategy").and_then(Value::as_str) == Some("block") => {
            WeightFormat::Fp8Block
        }
        (8, true, _) => WeightFormat::Fp8,
        (8, false, _) => WeightFormat::Int8,
        _ => return None,
    })
}
