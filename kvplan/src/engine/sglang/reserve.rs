//! What SGLang keeps outside the static area: tables, graphs, activations, and in older versions
//! the draft.

use super::auto::chunk_and_batch;
use super::{Budget, DraftEra, draft_era, draft_spread, graphs, prefill, req_to_token_gib};
use crate::GIB;
use crate::ledger::Ledger;
use crate::parts::{self, DraftParts};
use crate::proven::Beside;
use crate::setup::Setup;

/// Adds what the reserve must hold; returns what of it is needed, with its band.
pub(super) fn reserve_lines(
    ledger: &mut Ledger,
    setup: &Setup<'_>,
    b: &Budget,
    draft: &DraftParts,
    running: u64,
) -> Beside {
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
    let (graphs, guessed_graphs, draft_graphs) = graphs::lines(ledger, setup, running);
    let (chunk, _) = chunk_and_batch(setup);
    let (prefills, guessed_prefills) = prefill::line(ledger, setup, chunk);
    let activations = parts::forward_gib(setup.model, &setup.sharding, chunk as u64);
    ledger.estimate(
        "activations of one prefill chunk",
        activations,
        0.5,
        "feed-forward and residual buffers of one chunk",
    );
    // Before 0.5.18 the slot of padded batches comes on top.
    let states = b.state.slots_gib + b.state.drafted_gib;
    let mut draft_off = 0.0;
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
    let tables = draft.table_bytes / GIB;
    if era == DraftEra::Counted {
        // All pools, then this, then all graphs (scheduler.py of 0.5.14 and 0.5.17).
        outside -= tables;
    } else {
        outside += draft.weight_bytes / GIB;
        // Loaded into what graphs and passes take later.
        outside += (tables - draft_graphs - activations).max(0.0);
        draft_off = draft_spread(setup) * draft.weight_bytes / GIB;
    }
    // What of the draft's pool the budget was not sized for.
    let unpriced = draft.kv_bytes_per_token as f64 - (b.cell - b.target_cell);
    outside += b.tokens as f64 * unpriced / GIB;
    let off = graphs::SPREAD * (guessed_graphs + guessed_prefills) + 0.5 * activations + draft_off;
    Beside {
        gib: (table + buffers + graphs + prefills + activations + outside).max(table + buffers),
        off,
        parts_off: off,
    }
}
