//! Which of vLLM's two model runners serves, and whether it takes CUDA graphs out of the pool.

use crate::engine::Version;
use crate::formats::WeightFormat;
use crate::model::{Attention, Ffn, Model};
use crate::setup::{Setup, SpecKind};

/// Mixtures of experts that runner V2 serves by default from 0.24 to 0.28. Source: vLLM `config/vllm.py`,
/// `DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES`.
const EXPERTS_BY_V2: [&str; 3] = [
    "DeepseekV2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "GraniteMoeForCausalLM",
];

/// Whether graphs are inside the utilisation, estimated before the pool is sized: since 0.21, but
/// not where runner V2 serves, whose estimate is none before 0.29 (`profile_cudagraph_memory`). Measured
/// with 0.24 on H200: 2.10 GiB of graphs instead of 0.67 left the pool of Qwen3-32B as it was.
pub(crate) fn graphs_counted(setup: &Setup<'_>) -> bool {
    let version = setup.engine.version;
    let estimates = version.since((0, 21, 0), (2026, 6));
    estimates && (vllm_second_runner(version) == SecondRunner::All || !serves_v2(setup))
}

/// Which models vLLM's second runner serves where nobody says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecondRunner {
    /// None.
    None,
    /// Some dense ones, by class.
    SomeDense,
    /// All dense ones.
    Dense,
    /// All.
    All,
}

/// The same by release. Source: `VllmConfig.use_v2_model_runner` of 0.21 to 0.33.
pub fn vllm_second_runner(version: Version) -> SecondRunner {
    [
        ((0, 29, 0), (2026, 9), SecondRunner::All),
        ((0, 25, 0), (2026, 7), SecondRunner::Dense),
        ((0, 22, 0), (2026, 6), SecondRunner::SomeDense),
    ]
    .into_iter()
    .find(|(number, date, _)| version.since(*number, *date))
    .map_or(SecondRunner::None, |(.., serves)| serves)
}

/// Whether runner V2 serves this setup by default, before it served all.
fn serves_v2(setup: &Setup<'_>) -> bool {
    let version = setup.engine.version;
    let model = setup.model;
    let drafts = setup.speculation.map(|spec| spec.kind);
    if matches!(drafts, Some(SpecKind::Ngram | SpecKind::Standalone)) {
        return false;
    }
    let experts = model.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_)));
    let named = |names: &[&str]| names.contains(&model.architecture.as_str());
    let (some_experts, llama) = (
        version.since((0, 24, 0), (2026, 7)),
        version.since((0, 23, 0), (2026, 6)),
    );
    if some_experts && named(&EXPERTS_BY_V2) {
        return true;
    }
    match vllm_second_runner(version) {
        SecondRunner::None => false,
        SecondRunner::SomeDense => {
            let dense = match llama {
                true => named(&["Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"]),
                false => named(&["Qwen3ForCausalLM"]),
            };
            dense && (some_experts || !is_quantised(model))
        }
        SecondRunner::Dense | SecondRunner::All => {
            !experts && model.layers.iter().all(|l| keeps_no_state(&l.attention))
        }
    }
}

fn is_quantised(model: &Model) -> bool {
    let plain = |format: WeightFormat| format == model.base_format;
    !model.layers.iter().all(|l| plain(l.formats.attention_in))
}

fn keeps_no_state(attention: &Attention) -> bool {
    matches!(attention, Attention::Gqa(_) | Attention::Mla(_))
}
