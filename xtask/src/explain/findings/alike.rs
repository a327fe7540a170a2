//! Logs of servers with the same settings, whose pools must be alike.

use super::speculation::{others, same};
use super::{Finding, Severity, show};
use crate::explain::facts::{EAGER, Facts};

/// Pools of one setting lie closer than this, as a share: pages, fragments, rounding.
const ALIKE: f64 = 0.05;

/// A pool well below that of another log with the same settings: cards that are alike give pools that are.
pub(super) fn check(files: &[Facts], found: &mut Vec<Finding>) {
    let pool = |facts: &Facts| facts.number("kv_gib").filter(|gib| *gib > 0.0);
    let vllm = |facts: &&Facts| facts.text("engine") == Some("vllm") && pool(facts).is_some();
    let logs: Vec<&Facts> = files.iter().filter(vllm).collect();
    for small in &logs {
        let largest = logs
            .iter()
            .filter(|other| one_setting(small, other))
            .filter_map(|other| Some((pool(other)?, other)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((most, other)) = largest else {
            continue;
        };
        let gib = pool(small).unwrap_or(most);
        if gib >= (1.0 - ALIKE) * most {
            continue;
        }
        found.push(Finding::new(
            Severity::Costly,
            small,
            "kv_gib",
            format!("the pool is {} GiB smaller than that of {}", show(most - gib), other.file),
            format!(
                "{} and {} GiB with the same settings and weights",
                show(gib),
                show(most)
            ),
            "see `nvidia-smi` before a start: something else took memory while it came up, or a flag that the \
             log does not show, unless the cards differ",
        ));
    }
}

/// Whether two logs show the same of all that weighs on a pool.
fn one_setting(small: &Facts, other: &Facts) -> bool {
    let names = [
        "model",
        "quant",
        "tp",
        "pp",
        "weights_gib",
        "max_model_len",
        "attention_backend",
        "cuda_graphs",
        EAGER,
        "total_gib",
        "spec_algorithm",
        "draft_model",
        "spec_tokens",
    ];
    names.iter().all(|name| same(small, other, name)) && others(small, other).is_empty()
}
