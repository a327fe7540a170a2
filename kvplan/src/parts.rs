//! Sizes that several engines share: weights with what an engine adds to them, drafts, activations,
//! graphs, communication buffers. Fitted constants carry what they were fitted on.

use crate::GIB;
use crate::engine::EngineKind;
use crate::formats::WeightFormat;
use crate::model::{Attention, DraftKind, Ffn, Layer, Model};
use crate::params::ParamGroup;
use crate::setup::{Setup, SpecKind, Speculation};
use crate::weights::{Sharding, WeightLine};

/// Memory gone before weights load (driver, CUDA context, libraries), one rank, GiB: median of
/// capacity less free memory in SGLang logs of H100 (0.84), RTX 5080 (0.76), two 24 GB cards
/// (1.24, 0.91).
const CONTEXT_GIB: f64 = 0.88;
/// The same with tensor parallelism, NCCL included: RTX PRO 6000 (1.6, 2.0), H100 tp8 (2.2), 24 GB
/// tp4 (2.4).
const CONTEXT_AND_NCCL_GIB: f64 = 2.0;
/// NCCL's own part of it.
pub(crate) const NCCL_GIB: f64 = CONTEXT_AND_NCCL_GIB - CONTEXT_GIB;
/// Kernel modules that SGLang's weight figure (a difference of free memory) holds besides the
/// segments of weights and rotary table, GiB, where other kernels have run before. What is left of
/// three logs: -0.00 (Qwen2.5-0.5B, July 2026), 0.02 (DeepSeek-R1 tp4), 0.04 (Qwen2-32B tp4).
const SGLANG_MODULES_GIB: f64 = 0.016;
/// What the first kernels of a process take beside that, GiB a multiprocessor: CUDA backs the
/// stacks of all threads that can be resident, and loads its modules, when they are launched. Fitted
/// on what is left of the five logs of one rank to 2025: 0.016 (4 GB laptop), 0.066 (RTX 5080), 0.07
/// (H100), 0.09 and 0.09 (24 and 96 GB cards). Without the RTX 5080's it is 0.00066 too.
const FIRST_KERNELS_GIB_PER_SM: f64 = 0.000_66;
/// Multiprocessors by capacity where the card is not known: RTX 5080, 5090, 4090 and T4 have 5.3 a
/// GiB, and server cards no more than an H100's 132.
const SMS_PER_GIB: f64 = 5.3;
const MOST_SMS: f64 = 132.0;
/// What the system has taken of unified memory before weights load, GiB: two SGLang logs of a GB10,
/// 115.3 and 115.4 free of the 121.6 that torch reports (and this counts as 122.1).
const HOST_BEFORE_GIB: f64 = 6.8;
/// Difference between the capacity of `nvidia-smi` and of torch, GiB: H100 79.65 and 79.18, RTX PRO
/// 6000 95.59 and 95.0, H200 140.4 and 139.8, RTX 3090 24.0 and 23.58.
pub(crate) const TORCH_CANNOT_SEE_GIB: f64 = 0.5;
/// Custom all-reduce of vLLM and SGLang: signals and scratch, an input buffer, rank data, 8 MiB
/// each (custom_all_reduce.py).
const CUSTOM_ALL_REDUCE_BYTES: f64 = 3.0 * 8_388_608.0;

/// Memory gone before weights load, of a capacity 0.5 GiB above torch's, GiB.
fn runtime_gib(setup: &Setup<'_>) -> f64 {
    let gib = match (setup.unified_memory, setup.ranks() > 1) {
        (true, false) => HOST_BEFORE_GIB,
        (true, true) => HOST_BEFORE_GIB + NCCL_GIB,
        (false, true) => CONTEXT_AND_NCCL_GIB,
        (false, false) => CONTEXT_GIB,
    };
    gib.min(setup.card_gib * 0.5)
}

/// Free before weights load, GiB: observed, or capacity less what is gone by then.
pub(crate) fn free_before_gib(setup: &Setup<'_>) -> f64 {
    let Some(free) = setup.observed.free_before_gib else {
        // Drivers hide from 0.3 to 0.9 GiB of a card from its processes, and what these find free
        // follows what they see.
        let seen = setup.observed.torch_total_gib;
        let capacity = seen.map_or(setup.card_gib, crate::setup::card_gib_from_torch);
        return capacity - runtime_gib(setup);
    };
    free
}

/// From this many times the usual on, the line of what was gone before the weights names what else may
/// have held the card: the most of those above is 1.4 times.
const HELD_BY_OTHERS: f64 = 2.0;

/// The line of what was gone before the weights, GiB.
pub(crate) fn gone_before(setup: &Setup<'_>, gib: f64) -> &'static str {
    match gib > HELD_BY_OTHERS * runtime_gib(setup) && setup.observed.free_before_gib.is_some() {
        true => "driver, CUDA context, NCCL, and what else held the card",
        false => "driver, CUDA context, NCCL",
    }
}

/// Draft of a setup, nothing where there is none.
pub(crate) fn draft_of(setup: &Setup<'_>, own_tables: bool) -> DraftParts {
    setup.speculation.map_or_else(DraftParts::default, |spec| {
        draft_parts(setup, &spec, own_tables)
    })
}

/// Capacity as torch sees it, GiB.
pub(crate) fn torch_total_gib(setup: &Setup<'_>) -> f64 {
    setup
        .observed
        .torch_total_gib
        .unwrap_or((setup.card_gib - TORCH_CANNOT_SEE_GIB).max(setup.card_gib * 0.5))
}

/// Custom all-reduce buffers, GiB; the kernels support 2, 4, 6 and 8 ranks.
pub(crate) fn custom_all_reduce_gib(setup: &Setup<'_>) -> f64 {
    match setup.sharding.tp {
        2 | 4 | 6 | 8 if setup.custom_all_reduce => CUSTOM_ALL_REDUCE_BYTES / GIB,
        _ => 0.0,
    }
}

/// Target weights on the fullest rank as an engine holds them.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    /// By group, bytes.
    pub(crate) lines: Vec<WeightLine>,
    /// Padding, rotary table, copies for absorbed MLA, modules; bytes.
    pub(crate) engine_bytes: f64,
}

impl Weights {
    pub(crate) fn gib(&self) -> f64 {
        let bytes: f64 = self.lines.iter().map(|line| line.bytes).sum();
        (bytes + self.engine_bytes) / GIB
    }
}

/// Target weights under an engine.
pub(crate) fn target_weights(setup: &Setup<'_>) -> Weights {
    let engine = setup.engine.kind;
    Weights {
        lines: setup.model.weight_bytes(&setup.sharding),
        engine_bytes: engine_bytes(setup, engine),
    }
}

/// What an engine adds to the checkpoint's tensors, bytes.
fn engine_bytes(setup: &Setup<'_>, engine: EngineKind) -> f64 {
    let (model, sharding) = (setup.model, &setup.sharding);
    match engine {
        EngineKind::Sglang => {
            rotary_bytes(model, 4.0)
                + absorbed_bytes(model, sharding)
                + expert_padding_bytes(setup)
                + crate::segments::waste_bytes(model, sharding)
                + first_kernels_gib(setup).max(SGLANG_MODULES_GIB) * GIB
        }
        EngineKind::Vllm => {
            rotary_bytes(model, 2.0) + absorbed_bytes(model, sharding) + expert_padding_bytes(setup)
        }
        EngineKind::TensorRtLlm => rotary_bytes(model, 4.0) + expert_padding_bytes(setup),
        EngineKind::LlamaCpp => 0.0,
    }
}

/// Multiprocessors that cards of a capacity usually have.
pub fn usual_sm_count(card_gib: f64) -> f64 {
    (card_gib * SMS_PER_GIB).min(MOST_SMS)
}

/// What SGLang counts of the first kernels as weights: several ranks run NCCL's before, and so does
/// one rank since its start-up takes memory of its own (0.00 GiB in logs of 2025, 0.09 from May
/// 2026).
fn first_kernels_gib(setup: &Setup<'_>) -> f64 {
    if setup.ranks() > 1 || setup.engine.version.since((0, 5, 12), (2026, 5)) {
        return 0.0;
    }
    let known = setup.sm_count.map(|count| count as f64);
    FIRST_KERNELS_GIB_PER_SM * known.unwrap_or_else(|| usual_sm_count(setup.card_gib))
}

/// The shared table of rotary cosines and sines: positions x rotary elements.
fn rotary_bytes(model: &Model, element_bytes: f64) -> f64 {
    let rotary = model.layers.iter().find_map(|layer| match layer.attention {
        Attention::Gqa(gqa) => Some(gqa.head_dim),
        Attention::Mla(mla) => Some(mla.qk_rope_head_dim),
        Attention::Compressed(_) => Some(64),
        _ => None,
    });
    let positions = model.max_positions.unwrap_or(0).min(1 << 22);
    positions as f64 * rotary.unwrap_or(0) as f64 * element_bytes
}

/// Absorbed MLA keeps bf16 copies of the key and value up-projections beside the projection.
fn absorbed_bytes(model: &Model, sharding: &Sharding) -> f64 {
    let of = |layer: &Layer| match layer.attention {
        Attention::Mla(mla) => {
            let heads = mla.heads.div_ceil(sharding.attention_tp()) as f64;
            let up = (mla.qk_nope_head_dim as f64) + (mla.v_head_dim as f64);
            2.0 * heads * mla.kv_lora_rank as f64 * up
        }
        _ => 0.0,
    };
    model.layers.iter().map(of).sum::<f64>() / sharding.pp.max(1) as f64
}

/// MXFP4 expert kernels pad the residual width to a multiple of 256 (13.47 and 64.38 GiB of
/// gpt-oss-20b and -120b on one H100: 2880 to 3072); without native support (Marlin) the inner
/// width of a rank to 128 as well (17.22 GiB of -120b over four A100, 13.72 of -20b on a GB10).
fn expert_padding_bytes(setup: &Setup<'_>) -> f64 {
    let (model, sharding) = (setup.model, &setup.sharding);
    let native = setup.mxfp4_kernels.unwrap_or(true);
    let round_up = |value: u64, to: u64| value.div_ceil(to).saturating_mul(to);
    let of = |layer: &Layer| match layer.ffn {
        Ffn::Moe(moe) if layer.formats.experts == WeightFormat::Mxfp4 => {
            let ranks = (sharding.tp / sharding.ep.max(1)).max(1);
            let width = moe.latent.unwrap_or(model.hidden);
            let own = moe.expert_inter.div_ceil(ranks);
            let width_padded = round_up(width, 256);
            let own_padded = if native { own } else { round_up(own, 128) };
            let experts = moe.experts.div_ceil(sharding.ep.max(1)) as f64;
            let extra = own_padded as f64 * width_padded as f64 - own as f64 * width as f64;
            experts * 3.0 * extra * WeightFormat::Mxfp4.bytes_per_param()
        }
        _ => 0.0,
    };
    model.layers.iter().map(of).sum::<f64>() / sharding.pp.max(1) as f64
}

/// Draft weights and the KV bytes a token takes in the draft, one rank.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DraftParts {
    /// Layers, projections, own head: bytes.
    pub(crate) weight_bytes: f64,
    /// Copies of vocabulary tables the target has too: bytes.
    pub(crate) table_bytes: f64,
    /// Bytes a token takes in the draft's pool.
    pub(crate) kv_bytes_per_token: u64,
}

/// What the draft of a setup takes; `own_tables`: the engine lets it hold its own vocabulary
/// tables while memory is measured.
pub(crate) fn draft_parts(
    setup: &Setup<'_>,
    spec: &Speculation<'_>,
    own_tables: bool,
) -> DraftParts {
    let computed = computed_draft(setup, spec, own_tables);
    match setup.observed.draft_gib {
        // A log shows all that was loaded for it, tables included.
        Some(gib) if spec.kind != SpecKind::Ngram => {
            let table_bytes = computed.table_bytes.min(gib * GIB);
            DraftParts {
                weight_bytes: gib * GIB - table_bytes,
                table_bytes,
                ..computed
            }
        }
        _ => computed,
    }
}

fn computed_draft(setup: &Setup<'_>, spec: &Speculation<'_>, own_tables: bool) -> DraftParts {
    let layout = setup.kv_layout();
    let sharding = &setup.sharding;
    let table = setup.model.vocab_table_bytes(sharding);
    match (spec.kind, spec.draft) {
        (SpecKind::Ngram, _) => DraftParts::default(),
        (SpecKind::Mtp, _) => DraftParts {
            weight_bytes: setup.model.mtp_weight_bytes(sharding),
            table_bytes: if own_tables { 2.0 * table } else { 0.0 },
            kv_bytes_per_token: setup.model.mtp_kv_bytes_per_token(sharding, &layout),
        },
        (_, None) => DraftParts::default(),
        (_, Some(draft)) => {
            let lines = draft.weight_bytes(sharding);
            // A table of another width serves nobody else (vllm#17740).
            let shares_tables = draft.draft.is_some() && draft.hidden == setup.model.hidden;
            let (mut weights, mut tables) = (0.0, 0.0);
            for line in lines {
                let shared_head = line.group == ParamGroup::Head
                    && draft
                        .draft
                        .is_some_and(|d| d.kind == DraftKind::BlockDiffusion);
                if shares_tables && (line.group == ParamGroup::Embedding || shared_head) {
                    tables += line.bytes;
                } else {
                    weights += line.bytes;
                }
            }
            DraftParts {
                weight_bytes: weights,
                table_bytes: if own_tables { tables } else { 0.0 },
                kv_bytes_per_token: draft.kv_bytes_per_token(sharding, &layout),
            }
        }
    }
}

/// Peak of activations in one forward pass, GiB: per token, gate and up and product of the widest
/// feed-forward, three residual-sized buffers; for experts per routed copy. Fitted on the two vLLM
/// V0 logs where nothing else enters (29,000 tokens of Llama-8B: 3.02 GiB, here 2.99).
pub(crate) fn forward_gib(model: &Model, sharding: &Sharding, tokens: u64) -> f64 {
    let tp = sharding.tp.max(1) as f64;
    let hidden = model.hidden as f64;
    let elements = model.layers.iter().map(|layer| match layer.ffn {
        Ffn::Dense { inter, .. } => 3.0 * inter as f64 / tp + 3.0 * hidden,
        Ffn::Moe(moe) => {
            let copy =
                3.0 * moe.expert_inter as f64 / tp + moe.latent.unwrap_or(model.hidden) as f64;
            moe.topk as f64 * copy + 3.0 * hidden
        }
        Ffn::None => 3.0 * hidden,
    });
    2.0 * elements.fold(0.0, f64::max) * tokens as f64 / GIB
}

/// How far what an engine adds to the tensors may be off, as a share.
const ENGINES_OWN_SPREAD: f64 = 0.5;

/// Adds weight lines by group and what the engine adds, which weights that were observed tell; where
/// they are beyond that, the difference.
pub(crate) fn weight_lines(
    ledger: &mut crate::ledger::Ledger,
    weights: &Weights,
    observed_gib: Option<f64>,
) {
    const SHAPES: &str = "from the architecture: shapes, stored formats, sharding";
    for line in &weights.lines {
        let item = match line.group {
            ParamGroup::Embedding => "weights: embedding table",
            ParamGroup::Head => "weights: output head",
            ParamGroup::Attention => "weights: attention",
            ParamGroup::Indexer => "weights: attention index",
            ParamGroup::Dense => "weights: feed-forward",
            ParamGroup::Experts => "weights: experts",
            ParamGroup::SharedExperts => "weights: shared experts",
            ParamGroup::Router => "weights: routers",
            ParamGroup::Norms => "weights: norms and biases",
            ParamGroup::DraftProjection => "weights: draft projection",
            ParamGroup::Vision => "weights: vision tower",
            ParamGroup::Other => "weights: other",
        };
        ledger.exact(item, line.bytes / GIB, SHAPES);
    }
    let own = "weights: engine's own (rotary table, padding, copies, modules)";
    let own_gib = weights.engine_bytes / GIB;
    let Some(observed) = observed_gib else {
        ledger.estimate(own, own_gib, ENGINES_OWN_SPREAD, "per engine: parts.rs");
        return;
    };
    // The tensors are known, so what was loaded tells the rest, unless it is no such rest.
    let off = observed - weights.gib();
    if (-own_gib..=ENGINES_OWN_SPREAD * own_gib).contains(&off) {
        ledger.exact(own, own_gib + off, "what was loaded less the tensors");
    } else {
        ledger.exact(own, own_gib, "per engine: parts.rs");
        ledger.exact(
            crate::ledger::WEIGHTS_OFF,
            off,
            "what was loaded, as observed",
        );
    }
}
