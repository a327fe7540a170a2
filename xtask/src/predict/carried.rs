//! Flags of a log's server that the paste keeps.

use pcie_sim::Algorithm;

use super::graphs;
use super::kernels::Switch;
use crate::explain::carried::PASS;
use crate::scenario::{EngineKind, Scenario};

/// Adds what the log's server was told besides, where the line is of its engine and has no word of its
/// own on it.
pub(super) fn add(scenario: &Scenario, engine: &str, line: &mut Vec<String>) {
    if scenario.engine.kind.name() != engine {
        return;
    }
    let weights = scenario.quant_given.is_some();
    for flag in &scenario.ran.carried.flags {
        let Some(name) = flag.first() else {
            continue;
        };
        let graphs = name.starts_with(graphs::FIRST);
        let other = scenario.graphs.is_some() && graphs || weights && name == "--quantization";
        if other || line.contains(name) {
            continue;
        }
        let own = match graphs {
            true => graphs::flag(&scenario.engine).to_string(),
            false => name.clone(),
        };
        line.push(own);
        line.extend(flag.iter().skip(1).cloned());
    }
    passes(scenario, line);
}

/// The flag of vLLM's longest pass, of a log whose memory these figures are of: what it came to by itself
/// depends on the card, the release and how it was started, and its memory on that.
fn passes(scenario: &Scenario, line: &mut Vec<String>) {
    let vllm = scenario.engine.kind == EngineKind::Vllm;
    let ran = scenario.ran.batched_tokens.filter(|_| vllm);
    if let Some(tokens) = ran.filter(|_| !line.iter().any(|word| word == PASS)) {
        line.extend([PASS.to_string(), tokens.to_string()]);
    }
}

/// Variables that the pool of the log's server depends on.
pub(super) fn environment(scenario: &Scenario, engine: &str) -> Vec<String> {
    let own = scenario.engine.kind.name() == engine;
    let kept = scenario.ran.carried.env.iter().filter(|_| own);
    kept.cloned().collect()
}

/// What vLLM's builds with a kernel of their own over PCIe switch it on by.
const PCIE_OF_A_BUILD: &str = "VLLM_ENABLE_PCIE_ALLREDUCE=1";

/// What made the log's server run a kernel that no release of its engine has, where that is the one
/// asked for.
pub(super) fn all_reduce(scenario: &Scenario, algorithm: Algorithm) -> Option<Switch> {
    let ran = algorithm == Algorithm::OneShot && scenario.by_log("allreduce");
    let own = ran && scenario.engine.kind == EngineKind::Vllm;
    own.then(|| Switch {
        env: vec![PCIE_OF_A_BUILD],
        flags: Vec::new(),
    })
}

/// Says what the paste leaves out.
pub(super) fn left_out(scenario: &Scenario) -> Option<String> {
    let left = &scenario.ran.carried.left;
    (!left.is_empty()).then(|| {
        format!(
            "the paste leaves out, of what {} was told: {}",
            scenario.ran.file,
            left.join(", ")
        )
    })
}
