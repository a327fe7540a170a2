//! GGUF weight formats: block layouts of ggml (ggml-common.h) and the mixtures that llama-quantize
//! makes of them (llama-quant.cpp): which tensor of which layer gets which type.

use crate::formats::WeightFormat;
use crate::model::{Attention, Ffn, Gqa, Layer, LayerFormats, Model};

/// A block type of ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Block {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    F16,
}

impl Block {
    /// Bytes of a block and its elements.
    fn layout(self) -> (u64, u64) {
        match self {
            Self::Q4_0 | Self::Iq4Nl => (18, 32),
            Self::Q4_1 => (20, 32),
            Self::Q5_0 => (22, 32),
            Self::Q5_1 => (24, 32),
            Self::Q8_0 => (34, 32),
            Self::Q2K => (84, 256),
            Self::Q3K | Self::Iq3S => (110, 256),
            Self::Q4K => (144, 256),
            Self::Q5K => (176, 256),
            Self::Q6K => (210, 256),
            Self::Iq1S => (50, 256),
            Self::Iq1M => (56, 256),
            Self::Iq2Xxs => (66, 256),
            Self::Iq2Xs => (74, 256),
            Self::Iq2S => (82, 256),
            Self::Iq3Xxs => (98, 256),
            Self::Iq4Xs => (136, 256),
            Self::Mxfp4 => (17, 32),
            Self::F16 => (2, 1),
        }
    }

    /// What stands in where the rows of a tensor are no multiple of the block.
    fn for_columns(self, columns: u64) -> Self {
        if columns.is_multiple_of(self.layout().1) {
            return self;
        }
        let other = match self {
            Self::Q2K | Self::Q3K => Self::Q4_0,
            Self::Q4K => Self::Q5_0,
            Self::Q5K => Self::Q5_1,
            Self::Q6K => Self::Q8_0,
            _ => Self::Iq4Nl,
        };
        if columns.is_multiple_of(other.layout().1) {
            other
        } else {
            Self::F16
        }
    }
}

/// A mixture by the name users and files give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgufMix {
    /// 4.5 bits, blocks of 32.
    Q4_0,
    /// 5 bits, blocks of 32.
    Q4_1,
    /// 5.5 bits, blocks of 32.
    Q5_0,
    /// 6 bits, blocks of 32.
    Q5_1,
    /// 8.5 bits, blocks of 32.
    Q8_0,
    /// 2.625 bits; values, outputs and down-projections more.
    Q2K,
    /// 3.44 bits throughout.
    Q3KS,
    /// 3.44 bits; values, outputs and down-projections 4.5.
    Q3KM,
    /// 3.44 bits; values, outputs and down-projections 5.5.
    Q3KL,
    /// 4.5 bits; values and down-projections of the first layers 5.5.
    Q4KS,
    /// 4.5 bits; values and down-projections of half the layers 6.56.
    Q4KM,
    /// 5.5 bits throughout.
    Q5KS,
    /// 5.5 bits; values and down-projections of half the layers 6.56.
    Q5KM,
    /// 6.56 bits throughout.
    Q6K,
    /// 1.56 bits.
    Iq1S,
    /// 1.75 bits.
    Iq1M,
    /// 2.06 bits.
    Iq2Xxs,
    /// 2.31 bits.
    Iq2Xs,
    /// 2.31 bits; outputs more.
    Iq2S,
    /// 2.56 bits; outputs more.
    Iq2M,
    /// 3.06 bits.
    Iq3Xxs,
    /// 3.06 to 3.44 bits.
    Iq3Xs,
    /// 3.44 bits.
    Iq3S,
    /// 3.44 bits; values, outputs and first down-projections 4.5.
    Iq3M,
    /// 4.25 bits; values 5.5.
    Iq4Xs,
    /// 4.5 bits, blocks of 32; values 5.5.
    Iq4Nl,
    /// Experts in MXFP4, all else in Q8_0.
    Mxfp4Moe,
}

impl GgufMix {
    /// Reads a mixture's name (`Q4_K_M`, `iq4-xs`); `None` where it is none.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace('-', "_");
        let name = name.strip_prefix("gguf_").unwrap_or(&name);
        Some(match name {
            "q4_0" => Self::Q4_0,
            "q4_1" => Self::Q4_1,
            "q5_0" => Self::Q5_0,
            "q5_1" => Self::Q5_1,
            "q8_0" => Self::Q8_0,
            "q2_k" => Self::Q2K,
            "q3_k_s" => Self::Q3KS,
            "q3_k_m" | "q3_k" => Self::Q3KM,
            "q3_k_l" => Self::Q3KL,
            "q4_k_s" => Self::Q4KS,
            "q4_k_m" | "q4_k" => Self::Q4KM,
            "q5_k_s" => Self::Q5KS,
            "q5_k_m" | "q5_k" => Self::Q5KM,
            "q6_k" => Self::Q6K,
            "iq1_s" => Self::Iq1S,
            "iq1_m" => Self::Iq1M,
            "iq2_xxs" => Self::Iq2Xxs,
            "iq2_xs" => Self::Iq2Xs,
            "iq2_s" => Self::Iq2S,
            "iq2_m" => Self::Iq2M,
            "iq3_xxs" => Self::Iq3Xxs,
            "iq3_xs" => Self::Iq3Xs,
            "iq3_s" => Self::Iq3S,
            "iq3_m" => Self::Iq3M,
            "iq4_xs" => Self::Iq4Xs,
            "iq4_nl" => Self::Iq4Nl,
            "mxfp4_moe" => Self::Mxfp4Moe,
            _ => return None,
        })
    }

    /// The type of every tensor that no rule names.
    fn base(self) -> Block {
        match self {
            Self::Q4_0 => Block::Q4_0,
            Self::Q4_1 => Block::Q4_1,
            Self::Q5_0 => Block::Q5_0,
            Self::Q5_1 => Block::Q5_1,
            Self::Q8_0 | Self::Mxfp4Moe => Block::Q8_0,
            Self::Q2K => Block::Q2K,
            Self::Q3KS | Self::Q3KM | Self::Q3KL => Block::Q3K,
            Self::Q4KS | Self::Q4KM => Block::Q4K,
            Self::Q5KS | Self::Q5KM => Block::Q5K,
            Self::Q6K => Block::Q6K,
            Self::Iq1S => Block::Iq1S,
            Self::Iq1M => Block::Iq1M,
            Self::Iq2Xxs => Block::Iq2Xxs,
            Self::Iq2Xs | Self::Iq2S => Block::Iq2Xs,
            Self::Iq2M => Block::Iq2S,
            Self::Iq3Xxs => Block::Iq3Xxs,
            Self::Iq3Xs | Self::Iq3S | Self::Iq3M => Block::Iq3S,
            Self::Iq4Xs => Block::Iq4Xs,
            Self::Iq4Nl => Block::Iq4Nl,
        }
    }

    /// One and two bits with an importance matrix: a rule of their own.
    fn tiny(self) -> bool {
        self.one_bit() || self.two_bit_with_3() || matches!(self, Self::Iq2Xxs | Self::Iq2Xs)
    }

    fn one_bit(self) -> bool {
        matches!(self, Self::Iq1S | Self::Iq1M)
    }

    /// Two-bit mixtures that raise tensors to IQ3_S.
    fn two_bit_with_3(self) -> bool {
        matches!(self, Self::Iq2S | Self::Iq2M)
    }

    fn head(self, columns: u64) -> Block {
        let base = self.base();
        if base == Block::Q8_0 || !columns.is_multiple_of(base.layout().1) {
            Block::Q8_0
        } else if self.tiny() || self == Self::Iq3Xxs {
            Block::Q5K.for_columns(columns)
        } else {
            Block::Q6K.for_columns(columns)
        }
    }

    fn embedding(self, columns: u64) -> Block {
        let block = match self {
            _ if self.two_bit_with_3() || self == Self::Iq3Xxs => Block::Iq3S,
            _ if self.tiny() => Block::Q2K,
            _ => self.base(),
        };
        block.for_columns(columns)
    }

    fn values(self, place: &Place) -> Block {
        let shared = place.queries_per_value >= 4;
        let block = match self {
            _ if self.tiny() => {
                return if shared || place.experts >= 4 {
                    Block::Q4K
                } else if self.two_bit_with_3() {
                    Block::Iq3S
                } else {
                    Block::Q2K
                };
            }
            Self::Q2K if !shared => Block::Q3K,
            Self::Q2K | Self::Iq3Xxs | Self::Iq3Xs | Self::Iq3S if shared => Block::Q4K,
            Self::Iq3M => Block::Q4K,
            Self::Q3KM if place.layer < 2 => Block::Q5K,
            Self::Q3KM => Block::Q4K,
            Self::Q3KL => Block::Q5K,
            Self::Iq4Nl | Self::Iq4Xs if shared => Block::Q5K,
            Self::Q4KM | Self::Q5KM if place.more_bits() => Block::Q6K,
            Self::Q4KS if place.layer < 4 => Block::Q5K,
            _ => self.base(),
        };
        if place.experts == 8 {
            return Block::Q8_0;
        }
        // 80 layers of shared values are "70B": there values are few.
        let seventy = place.layers == 80 && place.queries_per_value > 1;
        if seventy && matches!(block, Block::Q3K | Block::Q4K) {
            return Block::Q5K;
        }
        block
    }

    fn queries(self) -> Block {
        match self {
            Self::Iq3Xs => Block::Iq3Xxs,
            Self::Iq3Xxs => Block::Iq2S,
            _ => self.base(),
        }
    }

    fn keys(self, place: &Place) -> Block {
        match self {
            _ if place.experts == 8 && self.tiny() => Block::Q4K,
            _ if place.experts == 8 => Block::Q8_0,
            _ => self.queries(),
        }
    }

    fn output(self, place: &Place) -> Block {
        if place.experts == 8 {
            let kept = [Block::Q8_0, Block::Q5K, Block::Q6K, Block::Q4_0];
            return if kept.contains(&self.base()) {
                self.base()
            } else {
                Block::Q5K
            };
        }
        match self {
            _ if self.one_bit() => Block::Iq2Xxs,
            _ if self.two_bit_with_3() => Block::Iq3S,
            Self::Q2K => Block::Q3K,
            Self::Iq3Xxs => Block::Iq3S,
            Self::Q3KM | Self::Iq3M => Block::Q4K,
            Self::Q3KL => Block::Q5K,
            _ => self.base(),
        }
    }

    fn down(self, place: &Place) -> Block {
        let first = place.layer < place.layers / 8;
        match self {
            _ if self.two_bit_with_3() && first => Block::Iq3S,
            _ if self.tiny() && first => Block::Q2K,
            Self::Q2K => Block::Q3K,
            Self::Q3KM if place.layer < place.layers / 16 => Block::Q5K,
            Self::Q3KM => Block::Q4K,
            Self::Q3KL => Block::Q5K,
            Self::Iq3M if first || (place.experts == 8 && place.more_bits()) => Block::Q4K,
            Self::Q4KM | Self::Q5KM if place.more_bits() => Block::Q6K,
            // Made without a matrix, as the published sizes are; with one 0.04 bits less.
            Self::Q4KS | Self::Iq4Xs | Self::Iq4Nl if first => Block::Q5K,
            _ => self.base(),
        }
    }

    fn up(self, place: &Place) -> Block {
        let middle = place.layer >= place.layers / 8 && place.layer < 7 * place.layers / 8;
        match self {
            Self::Iq3Xs if middle => Block::Iq3Xxs,
            _ => self.base(),
        }
    }
}

/// Where a tensor lies, as far as the rules ask.
struct Place {
    layer: usize,
    layers: usize,
    queries_per_value: u64,
    experts: u64,
}

impl Place {
    /// The first and last eighth of the layers and every third between.
    fn more_bits(&self) -> bool {
        let eighth = self.layers / 8;
        self.layer < eighth || self.layer >= 7 * self.layers / 8 || (self.layer - eighth) % 3 == 2
    }
}

/// Tensors of one group as one format: bytes over elements.
#[derive(Default)]
struct Average {
    bytes: u64,
    elements: u64,
}

impl Average {
    fn add(mut self, block: Block, elements: u64) -> Self {
        let (bytes, of) = block.layout();
        // Every block divides 256.
        let scaled = elements.saturating_mul(bytes).saturating_mul(256 / of);
        self.bytes = self.bytes.saturating_add(scaled);
        self.elements = self.elements.saturating_add(elements.saturating_mul(256));
        self
    }

    fn format(self) -> WeightFormat {
        let (mut bytes, mut elements) = (self.bytes, self.elements);
        let divisor = gcd(bytes, elements).max(1);
        (bytes, elements) = (bytes / divisor, elements / divisor);
        while bytes > u64::from(u32::MAX) || elements > u64::from(u32::MAX) {
            (bytes, elements) = (bytes / 2, elements / 2);
        }
        WeightFormat::Gguf {
            bytes: bytes as u32,
            elements: (elements as u32).max(1),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One block type as a format.
fn only(block: Block) -> WeightFormat {
    Average::default().add(block, 1).format()
}

impl Model {
    /// The same model as a GGUF file of this mixture, made with an importance matrix where the
    /// mixture asks for one. Norms and routers are in 32 bits, the vision tower in 16.
    pub(crate) fn into_gguf(mut self, mix: GgufMix) -> Self {
        let hidden = self.hidden;
        let layers = self.layers.len();
        let last = layers.saturating_sub(1);
        let mtp = self.mtp_layers.iter_mut().map(|layer| (last, layer));
        for (at, layer) in self.layers.iter_mut().enumerate().chain(mtp) {
            layer.formats = layer_formats(layer, mix, hidden, at, layers);
        }
        self.base_format = WeightFormat::F32;
        self.head_format = only(mix.head(hidden));
        self.embedding_format = if self.tied_embeddings {
            self.head_format
        } else {
            only(mix.embedding(hidden))
        };
        self.checkpoint_scale = 1.0;
        self
    }
}

fn layer_formats(
    layer: &Layer,
    mix: GgufMix,
    hidden: u64,
    at: usize,
    layers: usize,
) -> LayerFormats {
    let (queries_per_value, out_columns) = match layer.attention {
        Attention::Gqa(gqa) => (
            gqa.heads / gqa.kv_heads.max(1),
            gqa.heads.saturating_mul(gqa.v_head_dim),
        ),
        Attention::Mla(mla) => (1, mla.heads.saturating_mul(mla.v_head_dim)),
        _ => (1, hidden),
    };
    let (experts, gated, inter, expert_inter, shared_inter) = match layer.ffn {
        Ffn::Dense { inter, gated } => (0, gated, inter, 256, 256),
        Ffn::Moe(moe) => {
            let dense = moe.parallel_dense_inter;
            (
                moe.experts,
                moe.gated,
                dense,
                moe.expert_inter,
                moe.shared_inter,
            )
        }
        Ffn::None => (0, true, 256, 256, 256),
    };
    let place = Place {
        layer: at,
        layers,
        queries_per_value,
        experts,
    };
    let ups = if gated { 2 } else { 1 };
    let ffn = |columns: u64, up: Block, down: Block| {
        Average::default()
            .add(up.for_columns(hidden), ups)
            .add(down.for_columns(columns), 1)
            .format()
    };
    let (up, down) = (mix.up(&place), mix.down(&place));
    let expert = if mix == GgufMix::Mxfp4Moe {
        (Block::Mxfp4, Block::Mxfp4)
    } else {
        (up, down)
    };
    LayerFormats {
        attention_in: match layer.attention {
            Attention::Gqa(gqa) => query_key_value(&gqa, mix, hidden, &place),
            _ => only(mix.base().for_columns(hidden)),
        },
        attention_out: only(mix.output(&place).for_columns(out_columns)),
        dense: ffn(inter, up, down),
        experts: ffn(expert_inter, expert.0, expert.1),
        shared: ffn(shared_inter, up, down),
    }
}

/// Query, key and value projections by their rows.
fn query_key_value(gqa: &Gqa, mix: GgufMix, hidden: u64, place: &Place) -> WeightFormat {
    let gate = if gqa.output_gate { 2 } else { 1 };
    let rows = |heads: u64, dim: u64| heads.saturating_mul(dim).min(1 << 32);
    let average = Average::default()
        .add(
            mix.queries().for_columns(hidden),
            rows(gqa.heads.saturating_mul(gate), gqa.head_dim),
        )
        .add(
            mix.keys(place).for_columns(hidden),
            rows(gqa.kv_heads, gqa.head_dim),
        );
    let values = if gqa.v_is_k { 0 } else { gqa.v_head_dim };
    average
        .add(
            mix.values(place).for_columns(hidden),
            rows(gqa.kv_heads, values),
        )
        .format()
}
