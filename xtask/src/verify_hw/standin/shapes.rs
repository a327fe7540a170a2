//! What the stand-in builds: the widths of each layer on one rank.

use kvplan::{Attention, Ffn, Layer, Model, WeightFormat};
use serde::{Deserialize, Serialize};

use crate::input;
use crate::scenario::Scenario;

/// A model on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shapes {
    pub(crate) hidden: usize,
    /// Rows of this rank's part of the output head.
    pub(crate) vocab: usize,
    /// Rows of this rank's part of the embedding table.
    pub(crate) embedding: usize,
    pub(crate) layers: Vec<LayerShape>,
    pub(crate) ranks: usize,
}

/// One layer on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerShape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    /// Hidden states side by side that the attention reads.
    pub(crate) inputs: usize,
    /// Dense products in fp8, one scale a tensor.
    pub(crate) fp8: bool,
    pub(crate) ffn: FfnShape,
}

impl LayerShape {
    /// Routed experts, where it has any.
    pub(crate) fn experts(&self) -> Option<usize> {
        match self.ffn {
            FfnShape::Moe { experts, .. } => Some(experts),
            FfnShape::Dense { .. } => None,
        }
    }
}

/// A feed-forward on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FfnShape {
    /// Gate, up and down products.
    Dense { inter: usize },
    /// Routed experts, and a shared one of `shared` width (0: none).
    Moe {
        experts: usize,
        topk: usize,
        inter: usize,
        shared: usize,
    },
}

/// The draft on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DraftShapes {
    pub(crate) shapes: Shapes,
    /// Width that is projected to the draft's hidden size once a cycle; 0: nothing is.
    pub(crate) projected: usize,
    /// An MTP module: every step projects embedding and hidden state side by side, and the output
    /// head is the target's.
    pub(crate) mtp: bool,
}

fn uncovered(what: &str) -> anyhow::Error {
    input::error(format!(
        "verify-hw: the stand-in does not build {what}; measure the real engine with --engine-url, or \
         name a model with grouped-query attention (--model llama-3.1-8b)"
    ))
}

/// Whether a layer's products are in fp8; an error for formats that are not built.
fn fp8(layer: &Layer) -> anyhow::Result<bool> {
    let f = layer.formats;
    let mut used = vec![f.attention_in, f.attention_out];
    match layer.ffn {
        Ffn::Moe(moe) => {
            used.push(f.experts);
            used.extend((moe.shared_inter > 0).then_some(f.shared));
        }
        _ => used.push(f.dense),
    }
    let half = |f: &WeightFormat| matches!(f, WeightFormat::Bf16 | WeightFormat::F16);
    if used.iter().all(half) {
        return Ok(false);
    }
    let dense = !matches!(layer.ffn, Ffn::Moe(_));
    if dense && used.iter().all(|f| *f == WeightFormat::Fp8) {
        return Ok(true);
    }
    let name = used.iter().find(|f| !half(f)).map_or("", |f| f.name());
    Err(uncovered(&format!(
        "{name} weights (bf16, and fp8 with one scale a tensor in dense layers, are built)"
    )))
}

fn layer(layer: &Layer, ranks: u64) -> anyhow::Result<LayerShape> {
    let Attention::Gqa(a) = layer.attention else {
        return Err(uncovered("latent, linear or sparse attention"));
    };
    if a.window.is_some() {
        return Err(uncovered("sliding windows"));
    }
    let fp8 = fp8(layer)?;
    if a.head_dim != a.v_head_dim || ![64, 128].contains(&a.head_dim) || a.indexer.is_some() {
        return Err(uncovered("attention heads other than 64 or 128 wide"));
    }
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let ffn = match layer.ffn {
        Ffn::Dense { inter, gated: true } => FfnShape::Dense {
            inter: size(inter / ranks),
        },
        Ffn::Moe(m) if m.gated && m.latent.is_none() && m.parallel_dense_inter == 0 => {
            FfnShape::Moe {
                experts: size(m.experts),
                topk: size(m.topk),
                inter: size(m.expert_inter / ranks),
                shared: size(m.shared_inter / ranks),
            }
        }
        _ => return Err(uncovered("this kind of feed-forward")),
    };
    let shape = LayerShape {
        heads: size(a.heads / ranks),
        kv_heads: size((a.kv_heads / ranks).max(1)),
        dim: size(a.head_dim),
        inputs: size(a.input_hiddens.max(1)),
        fp8,
        ffn,
    };
    let odd = match ffn {
        // fp8 products work in sixteens.
        FfnShape::Dense { inter } => inter % if fp8 { 16 } else { 8 } != 0,
        FfnShape::Moe {
            experts,
            topk,
            inter,
            shared,
        } => inter % 64 != 0 || shared % 8 != 0 || experts > 1024 || topk > 32,
    };
    if odd || shape.heads == 0 {
        return Err(uncovered("widths that do not divide by the ranks"));
    }
    Ok(shape)
}

fn shapes(model: &Model, vocab: u64, ranks: u64) -> anyhow::Result<Shapes> {
    let layers: anyhow::Result<Vec<_>> = model.layers.iter().map(|l| layer(l, ranks)).collect();
    if !model.hidden.is_multiple_of(64) {
        return Err(uncovered("a hidden size that is no multiple of 64"));
    }
    Ok(Shapes {
        hidden: model.hidden as usize,
        vocab: (vocab.div_ceil(ranks) as usize).next_multiple_of(8),
        embedding: model.vocab.div_ceil(ranks) as usize,
        layers: layers?,
        ranks: ranks as usize,
    })
}

/// The target on one rank of the scenario's group.
///
/// # Errors
/// One line for what the stand-in does not cover.
pub(crate) fn target(scenario: &Scenario) -> anyhow::Result<Shapes> {
    let model = &scenario.model;
    if model.head_format.bytes_per_param() != 2.0 {
        return Err(uncovered("a quantised output head"));
    }
    shapes(model, model.vocab, u64::from(scenario.tp))
}

/// The draft, where it is a head of its own.
///
/// # Errors
/// As [`target`].
pub(crate) fn draft(scenario: &Scenario) -> anyhow::Result<Option<DraftShapes>> {
    let Some(draft) = &scenario.draft else {
        return Ok(None);
    };
    if draft.passes().is_none() {
        // Look-up drafts nothing on the GPU.
        return Ok(None);
    }
    let Some(model) = &draft.model else {
        return mtp(scenario).map(Some);
    };
    let head = model.draft;
    let vocab = head.map_or(model.vocab, |d| d.draft_vocab.max(8));
    let mut shapes = shapes(model, vocab, u64::from(scenario.tp))?;
    shapes.embedding = scenario.model.vocab.div_ceil(u64::from(scenario.tp)) as usize;
    let projected = head.map_or(0, |d| d.target_hiddens * d.target_hidden);
    Ok(Some(DraftShapes {
        shapes,
        projected: projected as usize,
        mtp: false,
    }))
}

/// One MTP module of the target; engines run the first over and over.
fn mtp(scenario: &Scenario) -> anyhow::Result<DraftShapes> {
    let model = &scenario.model;
    let modules = usize::try_from(model.mtp_modules.max(1)).unwrap_or(usize::MAX);
    let each = model.mtp_layers.len().div_ceil(modules);
    if each == 0 {
        return Err(uncovered("an MTP draft of a model without MTP layers"));
    }
    let ranks = u64::from(scenario.tp);
    let mut one = shapes(model, model.vocab, ranks)?;
    let layers = model.mtp_layers.iter().take(each);
    one.layers = layers
        .map(|l| layer(l, ranks))
        .collect::<anyhow::Result<_>>()?;
    Ok(DraftShapes {
        projected: 2 * one.hidden,
        shapes: one,
        mtp: true,
    })
}

impl Shapes {
    /// Largest width of a layer's feed-forward output before the activation, per token.
    pub(crate) fn widest_ffn(&self) -> usize {
        self.layers
            .iter()
            .map(|l| match l.ffn {
                FfnShape::Dense { inter } => 2 * inter,
                FfnShape::Moe {
                    topk,
                    inter,
                    shared,
                    ..
                } => 2 * (topk * inter).max(shared),
            })
            .max()
            .unwrap_or(8)
    }

    /// Largest width of queries, keys and values, per token.
    pub(crate) fn widest_qkv(&self) -> usize {
        self.layers
            .iter()
            .map(|l| (l.heads + 2 * l.kv_heads) * l.dim)
            .max()
            .unwrap_or(8)
    }

    /// Bytes of all weights; the embedding may be another model's.
    pub(crate) fn weight_bytes(&self, embedding: bool) -> u64 {
        let layers: usize = self
            .layers
            .iter()
            .map(|l| {
                let bytes = if l.fp8 { 1 } else { 2 };
                let heads = l.heads * l.dim;
                let attention = (heads + 2 * l.kv_heads * l.dim) * l.inputs + heads;
                let ffn = match l.ffn {
                    FfnShape::Dense { inter } => 3 * inter,
                    FfnShape::Moe {
                        experts,
                        inter,
                        shared,
                        ..
                    } => experts * (3 * inter + 1) + 3 * shared,
                };
                bytes * (attention + ffn)
            })
            .sum();
        let rows = self.vocab + if embedding { self.embedding } else { 0 };
        ((layers + 2 * rows) * self.hidden) as u64
    }

    /// Bytes of weights that a pass over `tokens` tokens reads at most, and that each token multiplies:
    /// of the routed experts only those that are chosen.
    pub(crate) fn pass_bytes(&self, tokens: usize) -> (f64, f64) {
        let all = self.weight_bytes(true) as f64;
        let (mut unread, mut idle) = (0.0, 0.0);
        for layer in &self.layers {
            if let FfnShape::Moe {
                experts,
                topk,
                inter,
                ..
            } = layer.ffn
            {
                let each = (6 * inter * self.hidden) as f64;
                unread += each * experts.saturating_sub(tokens.saturating_mul(topk)) as f64;
                idle += each * experts.saturating_sub(topk) as f64;
            }
        }
        (all - unread, all - idle)
    }

    /// Bytes of one cached token, all layers, keys and values.
    pub(crate) fn kv_bytes_per_token(&self) -> usize {
        self.layers.iter().map(|l| 4 * l.kv_heads * l.dim).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ScenarioArgs;

    fn scenario(model: &str, quant: Option<&str>, draft: &str) -> Scenario {
        Scenario::resolve(&ScenarioArgs {
            model: Some(model.into()),
            quant: quant.map(str::to_string),
            draft: Some(draft.into()),
            gpu: Some("h200-sxm".into()),
            gpus: Some(1),
            ..ScenarioArgs::default()
        })
        .expect("a scenario")
    }

    /// MiMo-7B: 36 layers of grouped-query attention and one MTP module.
    const WITH_MTP: &str = r#"{"architectures":["MiMoForCausalLM"],"model_type":"mimo",
        "hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":36,
        "num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":151680,
        "num_nextn_predict_layers":1,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
        "max_position_embeddings":32768,"rms_norm_eps":1e-5,"rope_theta":640000}"#;

    #[test]
    fn an_mtp_module_is_one_layer_that_joins_two_hidden_states() {
        let path = std::env::temp_dir().join(format!("verify-hw-mtp-{}.json", std::process::id()));
        std::fs::write(&path, WITH_MTP).expect("written");
        let scenario = scenario(&path.display().to_string(), None, "mtp");
        let _ = std::fs::remove_file(&path);
        let target = target(&scenario).expect("covered");
        let draft = draft(&scenario).expect("covered").expect("a draft");
        assert_eq!((target.layers.len(), draft.shapes.layers.len()), (36, 1));
        assert!(draft.mtp);
        assert_eq!(draft.projected, 2 * 4096);
        assert_eq!(draft.shapes.vocab, target.vocab, "the target's head");
        assert_eq!(draft.shapes.layers[0], target.layers[0]);
    }

    #[test]
    fn fp8_of_dense_layers_is_built_and_counts_a_byte_a_weight() {
        let half = target(&scenario("llama-3.1-8b", None, "none")).expect("covered");
        let fp8 = target(&scenario("llama-3.1-8b", Some("fp8"), "none")).expect("covered");
        assert!(fp8.layers.iter().all(|l| l.fp8) && !half.layers[0].fp8);
        let tables = 2 * 2 * 128_256 * 4096;
        let (whole, less) = (half.weight_bytes(true), fp8.weight_bytes(true));
        assert_eq!(whole - tables, 2 * (less - tables));
    }

    #[test]
    fn a_pass_reads_the_experts_its_tokens_can_choose() {
        let dense = target(&scenario("llama-3.1-8b", None, "none")).expect("covered");
        let all = dense.weight_bytes(true) as f64;
        assert_eq!(dense.pass_bytes(7), (all, all));
        let mixture = target(&scenario("qwen3-30b-a3b", None, "none")).expect("covered");
        let all = mixture.weight_bytes(true) as f64;
        let (one, active) = mixture.pass_bytes(1);
        assert_eq!(one, active);
        // 3.3 of 30.5 billion weights a token.
        assert!((active / all - 0.11).abs() < 0.01, "{}", active / all);
        assert_eq!(mixture.pass_bytes(16).0, all);
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        for (model, quant, names) in [
            ("deepseek-v3", None, "latent"),
            ("gpt-oss-20b", None, "sliding windows"),
            ("llama-3.1-8b", Some("int4"), "int4"),
            ("qwen3-30b-a3b", Some("fp8"), "fp8"),
        ] {
            let error = target(&scenario(model, quant, "none")).expect_err(model);
            let error = format!("{error:#}");
            assert!(
                error.contains(names) && error.contains("--engine-url"),
                "{error}"
            );
        }
    }
}
