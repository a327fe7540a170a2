//! A pool that a log shows, as the setup asked for would have it.

use super::{activation_gib, graphs, max_seqs};
use crate::setup::Setup;

/// The pool that was seen, GiB, less what this setup takes of the utilisation beyond the server it
/// was seen on: a draft, and what profile run and graphs grow by with more requests at once.
/// `draft_weights_gib`: those inside the utilisation; `graphs_gib`: this setup's, where they are.
pub(super) fn pool_gib(
    setup: &Setup<'_>,
    total_gib: f64,
    draft_weights_gib: f64,
    graphs_gib: Option<f64>,
) -> Option<f64> {
    let pool = setup.pool_seen_gib(total_gib)?;
    let own = setup.pool_is_its_own();
    let mut ran = match as_it_drafted(setup) {
        Some(ran) => ran,
        None if own => setup.clone(),
        None => setup.plain(),
    };
    ran.max_running = setup.observed.running.or(ran.max_running);
    let passes = setup.observed.profile.and_then(|seen| seen.batched_tokens);
    ran.batched_tokens = passes.or(ran.batched_tokens);
    ran.graph_max_batch = setup.observed.graph_max_batch;
    let graphs_grow = graphs_gib.map_or(0.0, |now| {
        let (target, draft) = graphs::gib(&ran, max_seqs(&ran));
        now - target - draft
    });
    let draft = if own { 0.0 } else { draft_weights_gib };
    Some(pool - draft - graphs_grow - (activation_gib(setup) - activation_gib(&ran)))
}

/// The setup with the drafted tokens of the run whose pool was seen, where it drafts others.
pub(crate) fn as_it_drafted<'a>(setup: &Setup<'a>) -> Option<Setup<'a>> {
    let tokens = setup.observed.draft_tokens?;
    let mut ran = setup.clone();
    let spec = ran.speculation.as_mut()?;
    let moved = setup.observed.pool_with_draft && spec.draft_tokens != tokens;
    spec.draft_tokens = tokens;
    moved.then_some(ran)
}
