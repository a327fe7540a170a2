//! `simulate --json`.

use serde_json::{Value, json};

use super::{Answer, questions};
use crate::predict::made_by;

/// Stable keys: `box`, `results` with `algorithm`, `ranks`, `bytes`, `time_us`, `link_busiest`,
/// `link_busy_fraction`; more beside.
pub(super) fn of(answer: &Answer) -> Value {
    let mut results = Vec::new();
    for (row, algorithm) in answer.times.iter().zip(&answer.algorithms) {
        for (time, bytes) in row.iter().zip(&answer.sizes) {
            let Some(time) = time else { continue };
            results.push(json!({
                "algorithm": time.algorithm_name,
                "kernel": made_by(*algorithm, time, &answer.topology, &answer.ranks),
                "ranks": answer.ranks.len(),
                "bytes": bytes,
                "time_us": time.time_us,
                "time_us_low": time.low_us,
                "time_us_high": time.high_us,
                "link_busiest": time.link_busiest,
                "link_busy_fraction": time.link_busy_fraction,
                "measured": time.basis == pcie_sim::Basis::Measured,
                "notes": time.notes,
            }));
        }
    }
    let assumptions: Vec<Value> = answer
        .assumptions
        .iter()
        .map(|(what, settles)| json!({"what": what, "settles_it": settles}))
        .collect();
    let refused: Vec<Value> = answer
        .refused
        .iter()
        .map(|(a, why)| json!({"algorithm": a.name(), "why": why}))
        .collect();
    json!({
        "schema": 1,
        "box": answer.topology.name,
        "gpus": answer.ranks,
        "results": results,
        "refused": refused,
        "contention": questions::json(answer),
        "assumptions": assumptions,
    })
}
