//! FlashInfer's all-reduce, which newer engines run by themselves: vLLM for every model, SGLang fused
//! with the norm behind for some. SGLang's part was read in `server_args.py` and
//! `arg_groups/overrides.py` of the wheels 0.5.3 to 0.5.23.

use pcie_sim::{Algorithm, Arch, Topology};

use super::kernels::{Group, Switch, at_least, switch};
use crate::gpus::Gpu;
use crate::scenario::{EngineChoice, EngineKind, Scenario};

/// A release, by number and by month.
type Release = ((u32, u32, u32), (u32, u32));

/// Classes of models, and the first release that fuses theirs on Hopper and B200 by itself.
const BY_ITSELF: [(Release, &[&str]); 10] = [
    (
        ((0, 5, 7), (2026, 1)),
        &[
            "DeepseekV3ForCausalLM",
            "GptOssForCausalLM",
            "Glm4MoeForCausalLM",
            "Qwen3MoeForCausalLM",
        ],
    ),
    (((0, 5, 8), (2026, 2)), &["Glm4MoeLiteForCausalLM"]),
    (((0, 5, 9), (2026, 3)), &["KimiK25ForConditionalGeneration"]),
    (
        ((0, 5, 10), (2026, 4)),
        &[
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
        ],
    ),
    (
        ((0, 5, 11), (2026, 5)),
        &[
            "DeepseekV32ForCausalLM",
            "GlmMoeDsaForCausalLM",
            "Qwen3NextForCausalLM",
        ],
    ),
    (
        ((0, 5, 12), (2026, 5)),
        &["InternS2PreviewForConditionalGeneration"],
    ),
    (((0, 5, 13), (2026, 6)), &["MistralLarge3ForCausalLM"]),
    (
        ((0, 5, 14), (2026, 7)),
        &[
            "Qwen3VLMoeForConditionalGeneration",
            "NemotronHForCausalLM",
            "NemotronHPuzzleForCausalLM",
        ],
    ),
    (((0, 5, 18), (2026, 9)), &["DeepseekV4ForCausalLM"]),
    (
        ((0, 5, 20), (2026, 10)),
        &[
            "Qwen4ExpForConditionalGeneration",
            "NemotronH_Omni_Reasoning_V3",
        ],
    ),
];

/// On B200 alone these came first.
const ON_B200: (Release, &[&str]) = (
    ((0, 5, 4), (2025, 11)),
    &["DeepseekV3ForCausalLM", "GptOssForCausalLM"],
);

/// H20 was left out before (flashinfer #2204).
const H20_TOO: Release = ((0, 5, 13), (2026, 6));

/// Whether the engine fuses the all-reduces of a class of models on that card by itself: on one node
/// and without DP attention or another all-to-all, as everything here.
pub(crate) fn by_itself(engine: &EngineChoice, class: &str, gpu: &Gpu) -> bool {
    let since = |(number, date): Release| at_least(engine, number, date);
    let b200 = match Arch::parse(&gpu.arch) {
        Some(Arch(90)) => false,
        Some(Arch(100..110)) => true,
        _ => return false,
    };
    if engine.kind != EngineKind::Sglang || (gpu.name == "h20" && !since(H20_TOO)) {
        return false;
    }
    let first = if b200 { Some(ON_B200) } else { None };
    BY_ITSELF
        .into_iter()
        .chain(first)
        .any(|(release, classes)| classes.contains(&class) && since(release))
}

/// Whether SGLang fuses the scenario's all-reduces by itself.
pub(super) fn fuses(scenario: &Scenario) -> bool {
    !scenario.no_flashinfer
        && by_itself(&scenario.engine, &scenario.model.architecture, scenario.gpu)
}

/// FlashInfer's one-shot over NVLink: largest message in MiB for 2, 4 and 8 GPUs (vLLM
/// `fused_allreduce_norm.py`, `_FI_ALLREDUCE_ONE_SHOT_MAX_SIZES_MB`). In SGLang FlashInfer takes two
/// shots above such sizes, for which its own kernel stands here.
const PUSH_MOST_MIB: [(Arch, [f64; 3]); 3] = [
    (Arch(90), [32.0, 2.0, 0.5]),
    (Arch(100), [32.0, 4.0, 1.0]),
    (Arch(103), [32.0, 4.0, 2.0]),
];

/// Largest message that the engine asked for gives FlashInfer's push by itself, bytes; `None` where
/// the version that was named does not.
pub(super) fn pushed_bytes(scenario: &Scenario, topology: &Topology) -> Option<u64> {
    let engine = &scenario.engine;
    let group = Group::among(topology, &scenario.ranks, fuses(scenario));
    // A start line that names the engine's kernel says that it is that one.
    if scenario.by_log("allreduce") {
        return None;
    }
    let ships = switch(Algorithm::OneShotPush, group, engine).ok()?;
    let (_, most_mib) = PUSH_MOST_MIB.iter().find(|(of, _)| *of == topology.arch)?;
    let most_mib = match scenario.ranks.len() {
        2 => most_mib[0],
        4 => most_mib[1],
        8 => most_mib[2],
        _ => return None,
    };
    let by_itself = group.is_mesh() && ships == Switch::default();
    by_itself.then_some((most_mib * f64::from(1 << 20)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sglang_fuses_by_release_class_and_card() {
        let fuses = |version: &str, class: &str, card: &str| {
            let gpu = crate::gpus::find(card).expect("a card");
            let engine = EngineChoice {
                kind: EngineKind::Sglang,
                version: Some(version.to_string()),
            };
            by_itself(&engine, class, gpu)
        };
        let (moe, kimi) = ("Qwen3MoeForCausalLM", "KimiK25ForConditionalGeneration");
        assert!(fuses("0.5.9", moe, "h100-sxm") && fuses("0.5.7", moe, "b200"));
        assert!(!fuses("0.5.6", moe, "h100-sxm"));
        assert!(!fuses("0.5.8", kimi, "h200") && fuses("0.5.9", kimi, "h200"));
        let deepseek = "DeepseekV3ForCausalLM";
        assert!(fuses("0.5.5", deepseek, "b200") && !fuses("0.5.5", deepseek, "h200"));
        assert!(!fuses("0.5.12", moe, "h20") && fuses("0.5.13", moe, "h20"));
        for (class, card) in [("LlamaForCausalLM", "h100-sxm"), (moe, "a100-80gb-sxm")] {
            assert!(!fuses("0.5.18", class, card), "{class} on {card}");
        }
    }
}
