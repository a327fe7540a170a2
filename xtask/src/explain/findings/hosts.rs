//! A tensor-parallel group over several hosts.

use super::{Finding, Severity, drafts};
use crate::explain::facts::Facts;
use crate::explain::hosts;

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    let (Some(hosts), Some(ranks)) = (hosts::of_group(facts), facts.number("tp")) else {
        return;
    };
    let counted = facts.number("tp_hosts");
    // One card a host leaves nothing to cut within it.
    let within = counted.map(|hosts| (ranks / hosts).floor().max(1.0));
    let (each, stages) = match (within, counted) {
        (Some(each), Some(hosts)) => (format!("{each:.0}"), format!("{hosts:.0}")),
        _ => ("CARDS_OF_A_HOST".to_string(), "HOSTS".to_string()),
    };
    let flags = match facts.text("engine") {
        Some("sglang") => format!("--tp-size {each} --pp-size {stages}"),
        _ => format!("--tensor-parallel-size {each} --pipeline-parallel-size {stages}"),
    };
    let drafting = match drafts(facts) {
        true => ", which not every release drafts with",
        false => "",
    };
    found.push(Finding::new(
        Severity::Costly,
        facts,
        "tp_hosts",
        format!("tensor parallelism over {hosts} hosts: every all-reduce of its {ranks} ranks crosses the network"),
        format!(
            "{}; at decode's sizes each costs the network's latency, and the engines' own kernels do not run \
             between hosts: NCCL reduces",
            all_reduces(facts)
        ),
        format!(
            "tensor parallelism within a host and stages across ({flags}{drafting}), or a replica a host \
             where the model fits one; where it must span, NCCL_DEBUG=INFO says whether NCCL takes RDMA \
             (NET/IB) or sockets. `predict` answers for one box"
        ),
    ));
}

/// How many a pass has.
fn all_reduces(facts: &Facts) -> String {
    let model = facts
        .text("model")
        .map(|name| name.rsplit('/').next().unwrap_or(name));
    let found = model.and_then(|name| kvplan::catalog::find(name).ok());
    match found {
        Some(found) => format!(
            "a pass of {} has {}",
            found.model.name,
            2 * found.model.layers.len()
        ),
        None => "a pass has two a layer".to_string(),
    }
}
