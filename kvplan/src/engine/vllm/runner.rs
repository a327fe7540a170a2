//! Which of vLLM's two model runners serves, and whether it takes CUDA graphs out of the pool.

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
    estimates && (version.since((0, 29, 0), (2026, 10)) || !serves_v2(setup))
}

/// Whether runner V2 serves by default, 0.22 to 0.28 (`VllmConfig.use_v2_model_runner`).
fn serves_v2(setup: &Setup<'_>) -> bool {
    let since = |minor, month| setup.engine.version.since((0, minor, 0), (2026, month));
    let model = setup.model;
    let drafts = setup.speculation.map(|spec| spec.kind);
    if matches!(drafts, Some(SpecKind::Ngram | SpecKind::Standalone)) {
        return false;
    }
    let experts = model.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_)));
    let named = |names: &[&str]| names.contains(&model.architecture.as_str());
    if since(25, 8) {
        let dense = !experts && model.layers.iter().all(|l| keeps_no_state(&l.attention));
        return dense || named(&EXPERTS_BY_V2);
    }
    let dense = if since(23, 6) {
        named(&["Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"])
    } else {
        since(22, 6) && named(&["Qwen3ForCausalLM"])
    };
    if since(24, 7) {
        return dense || named(&EXPERTS_BY_V2);
    }
    dense && !is_quantised(model)
}

fn is_quantised(model: &Model) -> bool {
    let plain = |format: WeightFormat| format == model.base_format;
    !model.layers.iter().all(|l| plain(l.formats.attention_in))
}

fn keeps_no_state(attention: &Attention) -> bool {
    matches!(attention, Attention::Gqa(_) | Attention::Mla(_))
}
