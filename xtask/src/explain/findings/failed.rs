//! Logs that end badly: errors that no other check has named, and ends without a word.

use super::{Finding, Severity};
use crate::explain::facts::Facts;

/// What `found` of this file from `before` on does not say yet.
pub(super) fn check(facts: &Facts, before: usize, found: &mut Vec<Finding>) {
    unnamed(facts, before, found);
    silent_end(facts, found);
}

/// An error that no check has named: no log that ends in one is without a fault.
fn unnamed(facts: &Facts, before: usize, found: &mut Vec<Finding>) {
    let kind = facts.text("error_kind").unwrap_or("ends-before-kv-sizing");
    let mut own = found.iter().skip(before);
    if kind == "ends-before-kv-sizing" || own.any(|f| f.severity == Severity::Broken) {
        return;
    }
    let pool = facts.get("kv_gib").or_else(|| facts.get("kv_tokens"));
    let loaded = ["free_after_gib", "weights_gib"];
    let loaded = loaded.iter().any(|name| facts.get(name).is_some());
    let llamacpp = facts.text("engine") == Some("llamacpp");
    let (what, why, mend) = match (kind, pool) {
        ("out-of-memory", _) if llamacpp => (
            "out of memory: the card is full",
            "weights, cache and buffers exceed what is free",
            "fewer layers on the card (-ngl), a shorter context (-c), a smaller weight format, or more \
             cards",
        ),
        ("out-of-memory", None) if loaded => (
            "out of memory between the weights and the KV pool",
            "the draft, or the pass that is timed to size the pool, takes more than the weights leave",
            "smaller prefill chunks, a smaller weight format, more GPUs, or no draft",
        ),
        ("out-of-memory", None) => (
            "out of memory before there was a KV pool: the weights fill the card",
            "no memory fraction helps: it shares what the weights leave",
            super::memory::LESS_OF_A_CARD,
        ),
        ("out-of-memory", Some(_)) => (
            "out of memory beside the KV pool",
            "graphs, activations and the draft take what the pool leaves of the card",
            "a lower memory fraction, fewer graph sizes, or smaller prefill chunks",
        ),
        ("context-does-not-fit", _) => (
            "the context does not fit",
            "the pool holds less than one request of full length",
            "a shorter context length, fp8 KV, or more GPUs",
        ),
        ("too-little-free-at-start", _) => (
            "too little memory is free at the start: something else holds it",
            "the engine checks this before it loads anything",
            "end or shrink the other process (nvidia-smi shows it), or lower the fraction",
        ),
        _ => (
            "no memory for the KV pool",
            "the weights leave less than the fraction keeps free",
            "a higher memory fraction, more GPUs, or a smaller weight format",
        ),
    };
    found.push(Finding::new(
        Severity::Broken,
        facts,
        "error_kind",
        what,
        why,
        mend,
    ));
}

/// Where a log ends that shows its weights and no more.
pub(in crate::explain) const BEFORE_POOL: &str =
    "once the weights are loaded, before the KV pool was sized";

/// No error is not success.
fn silent_end(facts: &Facts, found: &mut Vec<Finding>) {
    let (name, stage) = match (facts.text("ends_in"), facts.text("error_kind")) {
        (Some(stage), _) => ("ends_in", stage),
        (None, Some("ends-before-kv-sizing")) => ("error_kind", BEFORE_POOL),
        _ => return,
    };
    found.push(Finding::new(
        Severity::Note,
        facts,
        name,
        format!("the log ends {stage}, without an error and without `ready`"),
        format!(
            "not in it, so that predict estimates it: {}; an engine that fails prints why, one that is killed from \
             outside does not",
            lacking(facts).join(", ")
        ),
        "if the process is gone: dmesg for the OOM killer (unified memory, container limit), then \
         a lower fraction or fewer graph sizes; if it is alive, wait and read the log on, to where it takes requests",
    ));
}

/// What a log does not show that ends before its server took requests.
fn lacking(facts: &Facts) -> Vec<&'static str> {
    let shown = |names: &[&str]| names.iter().any(|name| facts.get(name).is_some());
    let found = [
        (
            "the weights on a card",
            shown(&["weights_gib", "free_after_gib"]),
        ),
        ("the KV pool", shown(&["kv_gib", "kv_tokens"])),
        ("what graphs take", shown(&["graph_gib"])),
        ("whether its fraction holds", false),
    ];
    let found = found.into_iter().filter(|(_, shown)| !shown);
    found.map(|(what, _)| what).collect()
}
