//! What SGLang keeps outside the static area: tables, graphs, activations, and in older versions
//! the draft.

use super::auto::chunk_and_batch;
use super::{Budget, DraftEra, draft_era, req_to_token_gib};
use crate::GIB;
use crate::ledger::Ledger;
use crate::parts::{self, DraftParts};
use crate::setup::{Setup, SpecKind};

/// Graph memory per captured batch size, GiB: 8 sizes 0.11 (0.6B) and 1.66 (GLM DSA tp8), 3 sizes
/// 0.07; the geometric mean, so the band is wide.
const GRAPH_GIB_PER_SIZE: f64 = 0.04;

fn graph_gib(setup: &Setup<'_>) -> f64 {
    let (_, batch) = chunk_and_batch(setup);
    if batch <= 0.0 {
        return 0.0;
    }
    // 1, 2, 4, then every 8.
    (3.0 + batch / 8.0).min(68.0) * GRAPH_GIB_PER_SIZE
}

/// Adds what the reserve must hold; returns what of it is needed, with its band.
pub(super) fn reserve_lines(
    ledger: &mut Ledger,
    setup: &Setup<'_>,
    b: &Budget,
    draft: &DraftParts,
    running: u64,
) -> Reserve {
    let era = draft_era(setup.engine.version);
    let table = req_to_token_gib(setup, running);
    ledger.exact(
        "request-to-token table",
        table,
        "requests x (context + 4 + draft tokens) x 4 B; in the reserve, not the fraction",
    );
    let buffers = parts::custom_all_reduce_gib(setup);
    ledger.exact(
        "custom all-reduce IPC buffers",
        buffers,
        "3 x 8 MiB; whoever holds them, the pool moves by no more than this",
    );
    let (graphs, guessed_graphs) = graph_lines(ledger, setup);
    let (chunk, _) = chunk_and_batch(setup);
    let activations = parts::forward_gib(setup.model, &setup.sharding, chunk as u64);
    ledger.estimate(
        "activations of one prefill chunk",
        activations,
        0.5,
        "feed-forward and residual buffers of one chunk",
    );
    // Before 0.5.18 the slot of padded batches comes on top.
    let states = b.state.slots_gib + b.state.drafted_gib;
    let mut outside = (states - b.state.reserved_gib).max(0.0);
    if era == DraftEra::ReserveAndExtraSlots
        && let Some(spec) = setup.speculation
    {
        let slots = running as f64 * (spec.steps * spec.topk + spec.draft_tokens) as f64 + 100.0;
        let extra = slots * b.target_cell / GIB;
        ledger
            .exact(
                "verify: slots above the budget",
                extra,
                "requests x (steps x top-k + drafts)",
            )
            .of_speculation();
        outside += extra;
    }
    if era != DraftEra::Counted {
        outside += (draft.weight_bytes + draft.table_bytes) / GIB;
    }
    if !super::prices_draft(setup, era) {
        outside += b.tokens as f64 * draft.kv_bytes_per_token as f64 / GIB;
    }
    Reserve {
        needed: table + buffers + graphs + activations + outside,
        spread: 0.8 * guessed_graphs + 0.5 * activations,
    }
}

/// The graphs, as a log has them where there is one; GiB in all, and of them the estimated.
fn graph_lines(ledger: &mut Ledger, setup: &Setup<'_>) -> (f64, f64) {
    let drafts = setup
        .speculation
        .is_some_and(|spec| spec.kind != SpecKind::Ngram);
    let seen = setup.observed;
    if let Some(all) = seen.graph_gib.filter(|_| setup.pool_is_its_own()) {
        if let Some(draft) = seen.draft_graph_gib.filter(|_| drafts) {
            ledger.exact("target: graphs", all - draft, LOGGED_GRAPHS);
            ledger
                .exact("draft: graphs", draft, LOGGED_GRAPHS)
                .of_speculation();
            return (all, 0.0);
        }
        let item = if drafts {
            "graphs of target and draft"
        } else {
            "target: graphs"
        };
        ledger.exact(item, all, LOGGED_GRAPHS);
        return (all, 0.0);
    }
    // Graphs of a run without the draft are the target's.
    let alone = seen.graph_gib.filter(|_| !seen.pool_with_draft);
    let target_seen = seen.target_graph_gib.or(alone);
    let graphs = match target_seen {
        Some(gib) => {
            ledger.exact("target: graphs", gib, LOGGED_GRAPHS);
            gib
        }
        None => {
            let gib = graph_gib(setup);
            ledger.estimate("target: graphs", gib, 0.8, "0.04 GiB a captured size");
            gib
        }
    };
    let draft = if drafts { graphs } else { 0.0 };
    ledger
        .estimate("draft: graphs", draft, 0.8, "as many sizes as the target")
        .of_speculation();
    let target = target_seen.map_or(graphs, |_| 0.0);
    (graphs + draft, target + draft)
}

/// Source of graphs that were seen.
const LOGGED_GRAPHS: &str = "memory usage of the captures in the log";

/// What of the reserve is needed, GiB.
pub(super) struct Reserve {
    pub(super) needed: f64,
    pub(super) spread: f64,
}
