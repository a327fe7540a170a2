//! A tensor-parallel group that spans hosts: by the arguments, or by what vLLM says of its workers.

use std::collections::BTreeSet;

use super::facts::Facts;
use super::text::{Doc, leading_number};

/// vLLM on a host that has fewer cards than the group has ranks: `tensor_parallel_size=4 is bigger than a
/// reserved number of GPUs (1 GPUs) in a node …` (`ray_utils.py`).
pub(super) const FEWER: &str = "is bigger than a reserved number of GPUs (";
/// Both engines of the group itself (`custom_all_reduce.py`).
const SPANS: &str = "this process group spans across nodes";
/// Ray's tag of a worker on another host than the one that prints: `(RayWorkerWrapper pid=345, ip=10.0.0.2)`.
const ELSEWHERE: &str = ", ip=";

/// Hosts that one group spans, where it spans several.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    let tp = facts.number("tp").unwrap_or(1.0);
    if facts.get("engine").is_none() || tp < 2.0 {
        return;
    }
    let part = |name: &str| facts.number(name).unwrap_or(1.0).max(1.0);
    let stages = part("pp");
    if let Some((nodes, fact)) = facts.number("nodes").zip(facts.get("nodes")) {
        let (hosts, line) = (nodes / (stages * part("dp")), fact.line);
        if hosts > 1.0 {
            facts.derive(
                "tp_hosts",
                hosts.min(tp),
                line,
                "nodes over stages and replicas",
            );
        }
        return;
    }
    let own = |at: &usize| doc.line_at(*at) >= facts.run_line;
    // A host with one card is found before one with two: the most that any has tells the fewest hosts.
    let cards = |at: usize| leading_number(doc.window(at, 20)).map(|(n, _)| (n, doc.line_at(at)));
    let most = doc.after_all(FEWER).filter(own).filter_map(cards);
    let most = most.min_by(|a, b| b.0.total_cmp(&a.0));
    let most = most.filter(|(cards, _)| (1.0..tp).contains(cards));
    let Some(line) = most
        .map(|(_, line)| line)
        .or_else(|| doc.after_all(SPANS).find(own).map(|at| doc.line_at(at)))
    else {
        return;
    };
    let address = |at: usize| doc.window(at, 40).split([')', ' ', ',']).next();
    let elsewhere: BTreeSet<&str> = doc
        .after_all(ELSEWHERE)
        .filter(own)
        .filter_map(address)
        .collect();
    let by_address = match elsewhere.len() {
        0 => 0.0,
        more => ((more as f64 + 1.0) / stages).floor(),
    };
    let by_cards = most.map_or(0.0, |(cards, _)| (tp / cards).ceil());
    match by_cards.max(by_address).min(tp) {
        hosts if hosts > 1.0 => facts.derive(
            "tp_hosts",
            hosts,
            line,
            "by the cards of a host and the addresses of its workers",
        ),
        _ => facts.set("tp_hosts", "several", line),
    }
}

/// The hosts of a server that has several, in words, and the line: those of its tensor-parallel group, else
/// of all its stages and replicas.
pub(crate) fn of_server(facts: &Facts) -> Option<(String, usize)> {
    facts.get("engine")?;
    let nodes = facts.number("nodes").filter(|nodes| *nodes > 1.0);
    if let Some((nodes, fact)) = nodes.zip(facts.get("nodes")) {
        return Some((format!("{nodes:.0}"), fact.line));
    }
    let line = facts.get("tp_hosts")?.line;
    Some((of_group(facts)?, line))
}

/// Those of the group, in words.
pub(super) fn of_group(facts: &Facts) -> Option<String> {
    let counted = facts.number("tp_hosts").map(|hosts| format!("{hosts:.0}"));
    counted.or_else(|| facts.text("tp_hosts").map(str::to_string))
}

#[cfg(test)]
mod tests {
    use crate::explain::facts_from_text;

    fn hosts(log: &str) -> Option<String> {
        super::of_group(&facts_from_text(log, "f"))
    }

    fn vllm(arguments: &str, lines: &str) -> String {
        format!(
            "INFO 09-10 23:26:12 [utils.py:326] non-default args: {{'model': 'a/b', {arguments}}}\n{lines}\
             INFO 09-10 23:48:39 [kv_cache_utils.py:1013] GPU KV cache size: 90,000 tokens\n"
        )
    }

    #[test]
    fn the_hosts_of_a_group_are_counted_by_cards_addresses_or_arguments() {
        let fewer = |cards: u32| {
            format!(
                "WARNING 09-10 23:26:52 [ray_utils.py:200] tensor_parallel_size=8 is bigger than a reserved \
                 number of GPUs ({cards} GPUs) in a node 2e184c98. Tensor parallel workers can be spread\n"
            )
        };
        let eight = "'tensor_parallel_size': 8";
        let log = vllm(eight, &(fewer(2) + &fewer(4)));
        assert_eq!(hosts(&log).as_deref(), Some("2"));
        let spans = "WARNING 09-10 23:27:29 [custom_all_reduce.py:85] Custom allreduce is disabled because \
                     this process group spans across nodes.\n";
        assert_eq!(hosts(&vllm(eight, spans)).as_deref(), Some("several"));
        let from = |last: u32| {
            format!("(RayWorkerWrapper pid=345, ip=10.0.0.{last}) INFO 09-10 23:27:29 [a.py:1] b\n")
        };
        let lines = format!("{spans}{}{}{}", from(1), from(2), from(1));
        assert_eq!(hosts(&vllm(eight, &lines)).as_deref(), Some("3"));
        // Stages across hosts, each group within one.
        let stages = "'tensor_parallel_size': 8, 'pipeline_parallel_size': 2, 'nnodes': 2";
        assert_eq!(hosts(&vllm(stages, "")), None);
        assert_eq!(hosts(&vllm(eight, &from(1))), None);
        let sglang = |more: &str| {
            format!(
                "[2026-02-11 09:14:02] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.85, \
                 tp_size=16{more})\n"
            )
        };
        assert_eq!(hosts(&sglang(", nnodes=2")).as_deref(), Some("2"));
        assert_eq!(hosts(&sglang(", dp_size=16, nnodes=2")), None);
        assert_eq!(hosts(&sglang("")), None);
    }
}
