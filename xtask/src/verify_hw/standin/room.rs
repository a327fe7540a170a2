//! What a plan needs room for: loads of the sweep, tokens of a pass and of a cache.

use super::run::{Plan, WARM};

/// Share of free memory that the sweep's cache may take.
const CACHE_SHARE: f64 = 0.7;

/// Tokens of the largest pass.
pub(super) fn most_tokens(plan: &Plan, most: usize) -> usize {
    let depth = plan.depths.iter().max().copied().unwrap_or(0);
    let loads = plan.concurrency.iter().filter(|c| **c <= most);
    loads.map(|c| c * (depth + 1)).max().unwrap_or(1).max(most)
}

/// Tokens a sequence may hold: the loop's output, and a last cycle beyond it.
pub(super) fn capacity(plan: &Plan) -> usize {
    let depth = plan.depths.iter().max().copied().unwrap_or(0);
    // Lucky sequences run ahead of the mean while all run the same number of cycles.
    plan.context + (plan.output + WARM) * 2 + (depth + 1) * (WARM + 2)
}

/// Most sequences the cache may hold: all points of the sweep, if they fit.
pub(super) fn sequences(plan: &Plan, free: u64) -> usize {
    let mut per_token = plan.target.kv_bytes_per_token();
    per_token += plan
        .draft
        .as_ref()
        .map_or(0, |d| d.shapes.kv_bytes_per_token());
    let room = free as f64 * CACHE_SHARE / (per_token * capacity(plan)).max(1) as f64;
    sweep(plan)
        .into_iter()
        .filter(|n| (*n as f64) <= room)
        .max()
        .unwrap_or(1)
}

/// Numbers of sequences of plain steps: every load, and every number of tokens verified.
pub(super) fn sweep(plan: &Plan) -> Vec<usize> {
    let mut counts = plan.concurrency.clone();
    for c in &plan.concurrency {
        counts.extend(plan.depths.iter().map(|k| c * (k + 1)));
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}
