//! Which of vLLM's two model runners serves, and whether it takes CUDA graphs out of the pool.

use crate::engine::Version;
use crate::formats::WeightFormat;
use crate::model::{Attention, Ffn, Model};
use crate::setup::{Setup, SpecKind};

/// A release by its number, and by the month of its date where only that is known.
type Release = ((u32, u32, u32), (u32, u32));

/// Mixtures of experts that runner V2 serves by default before it serves all, and since when. Source:
/// vLLM `config/vllm.py`, `DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES` of 0.24.0 to 0.28.0.
const EXPERTS_BY_V2: [(Release, &[&str]); 4] = [
    (
        ((0, 24, 0), (2026, 7)),
        &[
            "DeepseekV2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "GraniteMoeForCausalLM",
        ],
    ),
    (
        ((0, 26, 0), (2026, 8)),
        &[
            "InklingForCausalLM",
            "InklingForConditionalGeneration",
            "LongcatFlashNgramForCausalLM",
        ],
    ),
    (((0, 27, 0), (2026, 8)), &["KimiK3ForConditionalGeneration"]),
    (((0, 28, 0), (2026, 9)), &["DeepseekV4ForCausalLM"]),
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
    let of_experts = |((number, date), names): &(Release, &[&str])| {
        version.since(*number, *date) && named(names)
    };
    if EXPERTS_BY_V2.iter().any(of_experts) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::weights::Sharding;

    #[test]
    fn mixtures_of_experts_come_to_the_second_runner_one_by_one() {
        let serves = |name: &str, text: &str| {
            let found = crate::catalog::find(name).expect("a model");
            let engine = Engine::parse(&format!("vllm@{text}")).expect("an engine");
            serves_v2(&Setup::new(&found.model, Sharding::tp(8), engine, 139.8))
        };
        // A hybrid, which the list names all the same.
        assert!(!serves("kimi-k3", "0.26.0") && serves("kimi-k3", "0.27.0"));
        assert!(!serves("deepseek-v4-flash", "0.27.1") && serves("deepseek-v4-flash", "0.28.0"));
        assert!(!serves("qwen3-next-80b-a3b", "0.28.0"));
    }
}
