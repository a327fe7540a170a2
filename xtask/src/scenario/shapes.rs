//! Shapes that engines refuse although the bytes would fit, and what cures them.

use kvplan::{Ffn, Model, WeightFormat};

use super::merge::Merged;
use super::{EngineKind, Notes};
use crate::gpus::{Family, Gpu};

/// Rows and columns that share a scale in block-quantised FP8 checkpoints.
const FP8_BLOCK: u64 = 128;

/// A width that the ranks cannot cut in whole FP8 blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uncut {
    /// What is wrong and the cure, in one sentence.
    pub(crate) why: String,
    /// Whether whole experts on each rank mend it.
    pub(crate) by_expert_parallelism: bool,
}

/// SGLang and vLLM refuse block FP8 whose width on a rank is no whole number of blocks (fp8.py of
/// both: "not divisible by weight quantization block_n").
///
/// Where the checkpoint itself is named: Qwen's own FP8 ones (Qwen3-235B-A22B-FP8, …) are all in
/// such blocks, which the catalogue does not tell from other FP8.
pub(super) fn uncut(model: &Model, merged: &Merged, tp: u32, engine: EngineKind) -> Option<Uncut> {
    let named = merged.model.as_ref().map_or("", |given| &given.value);
    uncut_of(model, named, tp, engine)
}

fn uncut_of(model: &Model, named: &str, tp: u32, engine: EngineKind) -> Option<Uncut> {
    let named = named.to_ascii_lowercase();
    let own = named
        .rsplit('/')
        .next()
        .is_some_and(|name| name.starts_with("qwen3") && name.ends_with("-fp8"));
    let blocks = |format: WeightFormat| {
        format == WeightFormat::Fp8Block || (own && format == WeightFormat::Fp8)
    };
    if !matches!(engine, EngineKind::Sglang | EngineKind::Vllm) {
        return None;
    }
    let refused = |width: u64, tp: u64| {
        let own = width / tp.max(1);
        !own.is_multiple_of(FP8_BLOCK)
    };
    let tp = u64::from(tp);
    model.layers.iter().find_map(|layer| {
        let (what, width, experts) = match layer.ffn {
            Ffn::Moe(moe) if blocks(layer.formats.experts) => ("experts", moe.expert_inter, true),
            Ffn::Dense { inter, .. } if blocks(layer.formats.dense) => {
                ("feed-forward", inter, false)
            }
            _ => return None,
        };
        if tp < 2 || !refused(width, tp) || refused(width, 1) {
            return None;
        }
        let fewer = (1..tp)
            .rev()
            .find(|n| tp.is_multiple_of(*n) && !refused(width, *n))?;
        let or = if experts {
            " or expert parallelism (--enable-expert-parallel, --ep-size)"
        } else {
            ""
        };
        Some(Uncut {
            why: format!(
                "{} refuses this cut: {what} of width {width} over {tp} ranks are {} wide, not a \
                 multiple of the {FP8_BLOCK} of the FP8 blocks; --tp {fewer}{or}",
                engine.name(),
                width / tp
            ),
            by_expert_parallelism: experts,
        })
    })
}

/// Says what the engine or the model does not take as it stands.
pub(super) fn warn(model: &Model, gpu: &Gpu, engine: EngineKind, context: u64, notes: &mut Notes) {
    let nvfp4 = model
        .layers
        .iter()
        .any(|layer| [layer.formats.experts, layer.formats.dense].contains(&WeightFormat::Nvfp4));
    if nvfp4
        && engine == EngineKind::Sglang
        && !matches!(gpu.family, Family::Blackwell | Family::BlackwellRtx)
    {
        notes.assume(
            format!(
                "NVFP4 weights run on {}, which has no FP4 units: many SGLang builds refuse them \
                 there (vLLM unpacks them by Marlin)",
                gpu.name
            ),
            "--engine vllm, or --quant fp8 or awq",
        );
    }
    if let Some(limit) = model.max_positions.filter(|limit| context > *limit) {
        notes.assume(
            format!(
                "context {context} is beyond the model's own {limit} tokens: engines refuse it \
                 without rope scaling (YaRN)"
            ),
            "the model card's rope_scaling",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "Qwen/Qwen3-235B-A22B-FP8";

    fn qwen3_235b() -> Model {
        let found = kvplan::catalog::find(NAME);
        found.expect("in the catalogue").model
    }

    #[test]
    fn fp8_blocks_of_qwen3_235b_are_not_cut_in_eight() {
        let found = uncut_of(&qwen3_235b(), NAME, 8, EngineKind::Sglang).expect("192 of 128");
        assert!(found.by_expert_parallelism);
        assert!(
            found.why.contains("192 wide") && found.why.contains("--tp 4"),
            "{}",
            found.why
        );
        assert_eq!(uncut_of(&qwen3_235b(), NAME, 4, EngineKind::Vllm), None);
    }
}
