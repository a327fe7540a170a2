//! Best depth over load and context, and the table that engines take.

use super::answer::{DepthCell, DepthRow};
use super::costs::Costs;
use super::points::{best, try_depths};
use crate::scenario::Scenario;

/// Contexts of the map, tokens, beside the scenario's own.
const CONTEXTS: [u64; 6] = [0, 4096, 16384, 32768, 65536, 131_072];

/// The best depth at every load and context; 0 steps where speculation loses.
pub(super) fn depth_map(
    scenario: &Scenario,
    costs: &Costs<'_>,
    kv_tokens: Option<u64>,
) -> Vec<DepthCell> {
    if scenario.draft.is_none() {
        return Vec::new();
    }
    let mut contexts: Vec<u64> = if costs.has_sweep() {
        // A sweep speaks of its own context only.
        vec![scenario.context]
    } else {
        let longest = scenario.model.max_positions.unwrap_or(u64::MAX);
        CONTEXTS
            .iter()
            .copied()
            .filter(|c| *c <= longest)
            .chain([scenario.context])
            .collect()
    };
    contexts.sort_unstable();
    contexts.dedup();
    let mut cells = Vec::new();
    for context in contexts {
        for users in &scenario.concurrency {
            let tried = try_depths(scenario, costs, *users, context);
            let Some(best) = best(&tried) else {
                continue;
            };
            cells.push(DepthCell {
                concurrency: *users,
                context,
                steps: if best.speedup > 1.0 {
                    best.depth.steps
                } else {
                    0
                },
                speedup: best.speedup,
                fits: kv_tokens.map(|tokens| u64::from(*users).saturating_mul(context) <= tokens),
            });
        }
    }
    cells
}

/// Joins neighbouring loads of one depth into rows, context by context; contexts with equal rows
/// are one.
pub(super) fn depth_table(cells: &[DepthCell]) -> Vec<DepthRow> {
    let mut rows: Vec<DepthRow> = Vec::new();
    // A load that the pool cannot hold is never decoded at once.
    for cell in cells.iter().filter(|c| c.fits != Some(false)) {
        match rows.last_mut() {
            Some(row) if row.context_to == cell.context && row.steps == cell.steps => {
                row.concurrency_to = cell.concurrency;
            }
            Some(row) if row.context_to == cell.context => {
                let from = row.concurrency_to.saturating_add(1);
                rows.push(DepthRow {
                    concurrency_from: from,
                    concurrency_to: cell.concurrency,
                    context_to: cell.context,
                    steps: cell.steps,
                });
            }
            _ => rows.push(DepthRow {
                concurrency_from: cell.concurrency,
                concurrency_to: cell.concurrency,
                context_to: cell.context,
                steps: cell.steps,
            }),
        }
    }
    merge_contexts(rows)
}

/// Drops a context's rows where the next longer context has the same ones.
fn merge_contexts(rows: Vec<DepthRow>) -> Vec<DepthRow> {
    let mut contexts: Vec<u64> = rows.iter().map(|r| r.context_to).collect();
    contexts.dedup();
    let of = |context: u64| -> Vec<(u32, u32, u32)> {
        rows.iter()
            .filter(|r| r.context_to == context)
            .map(|r| (r.concurrency_from, r.concurrency_to, r.steps))
            .collect()
    };
    let kept: Vec<u64> = contexts
        .iter()
        .enumerate()
        .filter(|(i, context)| {
            contexts
                .get(i + 1)
                .is_none_or(|next| of(**context) != of(*next))
        })
        .map(|(_, context)| *context)
        .collect();
    rows.into_iter()
        .filter(|r| kept.contains(&r.context_to))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(concurrency: u32, context: u64, steps: u32) -> DepthCell {
        DepthCell {
            concurrency,
            context,
            steps,
            speedup: 1.0,
            fits: Some(true),
        }
    }

    #[test]
    fn neighbouring_loads_and_equal_contexts_become_one_row() {
        let cells = [
            cell(1, 0, 3),
            cell(2, 0, 3),
            cell(4, 0, 1),
            cell(1, 4096, 3),
            cell(2, 4096, 3),
            cell(4, 4096, 1),
            cell(1, 32768, 2),
            cell(2, 32768, 2),
            cell(4, 32768, 0),
        ];
        let rows: Vec<_> = depth_table(&cells)
            .iter()
            .map(|r| (r.concurrency_from, r.concurrency_to, r.context_to, r.steps))
            .collect();
        assert_eq!(
            rows,
            [
                (1, 2, 4096, 3),
                (3, 4, 4096, 1),
                (1, 2, 32768, 2),
                (3, 4, 32768, 0)
            ]
        );
    }
}
