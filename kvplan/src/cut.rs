//! Cuts of the weights that an engine refuses although the bytes would fit: widths that the ranks
//! do not divide, or divide into pieces that the stored format cannot hold.
//!
//! Sources, the same lines in SGLang and vLLM: `divide` of the linear layers and the assertion of
//! `FusedMoE` (any format), `validate_fp8_block_shape` and the experts' `create_weights` in fp8.py
//! ("is not divisible by weight quantization block_n"), gptq.py and awq.py ("The input size is not
//! aligned with the quantized weight shape. This can be caused by too large tensor parallel size"),
//! moe_wna16.py (halves the group of experts down to 32), modelopt.py ("in features size is not
//! multiple of 16"), vocab_parallel_embedding.py (tables padded to 64 rows, then divided). MXFP4
//! experts are padded instead, and one scale a tensor or channel needs nothing (`parts.rs`).

use crate::engine::EngineKind;
use crate::formats::WeightFormat;
use crate::model::{Attention, Ffn, Layer, Model};
use crate::product;
use crate::weights::Sharding;

/// A cut that the engine refuses when it loads the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncut {
    /// What is wrong and the cure, in one sentence that begins with the engine's name.
    pub why: String,
    /// Whether whole experts on each rank mend it.
    pub by_expert_parallelism: bool,
}

/// Rows that vocabulary tables are padded to a multiple of.
const VOCAB_ROWS: u64 = 64;
/// Rows and columns that share a scale in block-quantised FP8.
const FP8_BLOCK: u64 = 128;
/// Smallest group that the engines halve the group of INT4 experts to.
const LEAST_EXPERT_GROUP: u64 = 32;

/// A width that is cut over ranks.
struct Width {
    what: &'static str,
    width: u64,
    ranks: u64,
    format: WeightFormat,
    experts: bool,
    /// Whether the format is a name's, its group a guess.
    by_name: bool,
}

impl Width {
    /// What a rank's part must be a multiple of, and why.
    fn step(&self) -> (u64, &'static str) {
        match self.format {
            WeightFormat::Fp8Block => (FP8_BLOCK, " of the FP8 blocks"),
            WeightFormat::Int4 { group, .. } => {
                let group = u64::from(group.max(1));
                let own = match (self.by_name, self.experts) {
                    // Quantisers leave alone, or take a smaller group for, what would not be cut.
                    (true, _) => 1,
                    (false, true) => group.min(LEAST_EXPERT_GROUP),
                    (false, false) => group,
                };
                (own, " that share a scale")
            }
            WeightFormat::Mxfp8 => (32, " that share a scale"),
            WeightFormat::Nvfp4 => (16, " that share a scale"),
            _ => (1, ""),
        }
    }

    /// Whether the engine pads what does not divide.
    fn padded(&self) -> bool {
        self.experts && self.format == WeightFormat::Mxfp4
    }

    /// Why it is refused.
    fn fault(&self) -> String {
        let Self {
            what, width, ranks, ..
        } = self;
        let (step, of) = self.step();
        if width.is_multiple_of(*ranks) {
            let own = width / ranks;
            format!(
                "{what} of width {width} over {ranks} ranks are {own} wide, not a multiple of the {step}{of}"
            )
        } else {
            format!("{what} of width {width} are not divided by {ranks} ranks")
        }
    }

    fn refused(&self) -> bool {
        let ranks = self.ranks.max(1);
        ranks > 1
            && !self.padded()
            && (!self.width.is_multiple_of(ranks)
                || !(self.width / ranks).is_multiple_of(self.step().0))
    }
}

impl Sharding {
    /// Why `engine` refuses weights cut like this, or `None` where it takes them. Heads are
    /// [`Sharding::check`]'s.
    pub fn uncut(&self, model: &Model, engine: EngineKind) -> Option<Uncut> {
        if !matches!(engine, EngineKind::Sglang | EngineKind::Vllm) {
            return None;
        }
        let (fault, by_expert_parallelism) = self.fault(model)?;
        let or = match by_expert_parallelism {
            true => format!(" or expert parallelism (--ep {})", self.tp),
            false => String::new(),
        };
        let (engine, cure) = (engine.name(), self.cure(model));
        Some(Uncut {
            why: format!("{engine} refuses this cut: {fault}; --tp {cure}{or}"),
            by_expert_parallelism,
        })
    }

    /// The most ranks below these that divide them and are taken; one always is.
    fn cure(&self, model: &Model) -> u64 {
        let below = (1..self.tp.min(1 << 16)).rev();
        let taken = |tp: &u64| {
            let less = Sharding {
                tp: *tp,
                ep: self.ep.min(*tp),
                ..*self
            };
            self.tp.is_multiple_of(*tp) && less.check(model).is_ok() && less.fault(model).is_none()
        };
        let mut found = below.filter(taken);
        found.next().unwrap_or(1)
    }

    /// What does not divide, and whether expert parallelism mends it.
    fn fault(&self, model: &Model) -> Option<(String, bool)> {
        if self.tp < 2 {
            return None;
        }
        let rows = model.vocab.div_ceil(VOCAB_ROWS).saturating_mul(VOCAB_ROWS);
        let ranks = self.attention_tp();
        if !rows.is_multiple_of(ranks) {
            let vocab = model.vocab;
            let fault = format!(
                "the vocabulary of {vocab} is padded to {rows} rows, which {ranks} ranks do not divide"
            );
            return Some((fault, false));
        }
        let (mut experts, mut other) = (None, None);
        for (layer, _) in model.layer_kinds() {
            self.widths(&layer, model, &mut |width| {
                let slot = if width.experts {
                    &mut experts
                } else {
                    &mut other
                };
                if slot.is_none() && width.refused() {
                    *slot = Some(width);
                }
            });
        }
        let by_expert_parallelism = other.is_none();
        Some((other.or(experts)?.fault(), by_expert_parallelism))
    }

    /// Every width of a layer that is cut.
    fn widths(&self, layer: &Layer, model: &Model, emit: &mut dyn FnMut(Width)) {
        // Both engines let MiMo-V2's attention projections share blocks.
        let lenient = model.architecture.contains("MiMoV2");
        let by_name = model.format_by_name;
        let formats = layer.formats;
        let mut put = |what, width, ranks, format, experts| {
            if width > 0 {
                emit(Width {
                    what,
                    width,
                    ranks,
                    format,
                    experts,
                    by_name,
                });
            }
        };
        let tp = self.tp.max(1);
        match layer.ffn {
            Ffn::Dense { inter, .. } => put("feed-forward", inter, tp, formats.dense, false),
            Ffn::Moe(moe) => {
                let inside = (tp / self.ep.clamp(1, tp)).max(1);
                put("experts", moe.expert_inter, inside, formats.experts, true);
                put(
                    "shared experts",
                    moe.shared_inter,
                    tp,
                    formats.shared,
                    false,
                );
                put(
                    "feed-forward",
                    moe.parallel_dense_inter,
                    tp,
                    formats.dense,
                    false,
                );
            }
            Ffn::None => {}
        }
        let ranks = self.attention_tp();
        let out = match layer.attention {
            _ if lenient => 0,
            Attention::Gqa(gqa) => {
                // A rank holds whole KV heads, copied where there are fewer than ranks.
                let rows = product(&[gqa.kv_heads.max(ranks), gqa.head_dim]);
                if formats.attention_in == WeightFormat::Fp8Block {
                    put("keys", rows, ranks, formats.attention_in, false);
                }
                product(&[gqa.heads, gqa.v_head_dim])
            }
            Attention::Mla(mla) => product(&[mla.heads, mla.v_head_dim]),
            _ => 0,
        };
        put(
            "attention outputs",
            out,
            ranks,
            formats.attention_out,
            false,
        );
    }
}
