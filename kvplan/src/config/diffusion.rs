//! Diffusion language models: they fill blocks of tokens by denoising them, several passes a block.

use super::ConfigError;
use super::node::Node;

/// What is said of such a model, behind its name.
pub const DENOISES: &str = "is a diffusion language model: it decodes blocks of tokens by itself, so \
                            speculation does not apply, and nothing here predicts it";

/// Whether a class, a model type or a repository's name is that of a diffusion language model
/// (DiffusionGemma, LLaDA, SDAR, Dream, DiffuCoder, Fast-dLLM, as vLLM, SGLang and their makers call
/// them).
pub fn denoises(name: &str) -> bool {
    const ANYWHERE: [&str; 4] = ["diffusion", "diffucoder", "diffcoder", "llada"];
    const FIRST: [&str; 7] = [
        "sdar",
        "fastdllm",
        "dreamv0",
        "dreamcoder",
        "dreamon",
        "dreammodel",
        "dreamforcausal",
    ];
    let last = name.trim_end_matches('/').rsplit('/').next();
    let plain = last
        .unwrap_or(name)
        .to_ascii_lowercase()
        .replace(['-', '_', '.'], "");
    plain == "dream"
        || ANYWHERE.iter().any(|word| plain.contains(word))
        || FIRST.iter().any(|word| plain.starts_with(word))
}

/// Refuses the config of one: its shapes are those of a model that gives one token a pass.
pub(super) fn refuse(outer: &Node<'_>, inner: &Node<'_>) -> Result<(), ConfigError> {
    let named = [
        ("model_type", outer.model_type()),
        ("model_type", inner.model_type()),
        ("architectures", inner.architecture()),
    ];
    let found = named.iter().find(|(_, name)| denoises(name));
    found.map_or(Ok(()), |(field, name)| {
        Err(outer.error(field, &format!("`{name}` {DENOISES}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diffusion_language_models_are_known_by_class_type_and_name_and_others_are_not() {
        for name in [
            "DiffusionGemmaForBlockDiffusion",
            "diffusion_gemma",
            "LLaDA2MoeModelLM",
            "SDARForCausalLM",
            "Dream",
            "DreamModel",
            "Fast_dLLM_QwenForCausalLM",
            "inclusionAI/LLaDA2.0-mini",
            "Dream-org/Dream-v0-Instruct-7B",
            "apple/DiffuCoder-7B-cpGRPO",
            "~/models/diffusiongemma-26b-a4b-it-fp8-dynamic/",
        ] {
            assert!(denoises(name), "{name}");
        }
        for name in [
            "DFlashDraftModel",
            "Gemma4ForConditionalGeneration",
            "DreamGen/WizardLM-2-7B",
            "dreamgen-lucid-12b",
            "MedLLM-7B",
            "",
        ] {
            assert!(!denoises(name), "{name}");
        }
        let drafts = ["DFlashDraftModel", "DSparkForCausalLM", "DominoForCausalLM"];
        assert!(!drafts.into_iter().any(denoises));
    }
}
