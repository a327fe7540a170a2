//! A pool that a log shows, as the setup asked for would have it.

use super::measured::activation_gib;
use super::{ACTIVATION_SPREAD, GRAPHS_SPREAD, graphs, max_seqs};
use crate::setup::Setup;

/// A pool that was seen on another server, moved to a setup.
pub(super) struct Moved {
    pub(super) gib: f64,
    /// How far it may be off, GiB: what the two servers differ by is an estimate, the rest was seen.
    pub(super) off_gib: f64,
}

/// The pool that was seen, less what this setup takes of the utilisation beyond the server it
/// was seen on: a draft, and what profile run and graphs grow by with more requests at once.
/// `draft_weights_gib`: those inside the utilisation; `graphs_gib`: this setup's, where they are.
pub(super) fn pool(
    setup: &Setup<'_>,
    total_gib: f64,
    draft_weights_gib: f64,
    graphs_gib: Option<f64>,
) -> Option<Moved> {
    let pool = setup.pool_seen_gib(total_gib)?;
    let own = setup.pool_is_its_own();
    let mut ran = match as_it_drafted(setup) {
        Some(ran) => ran,
        None if own => setup.clone(),
        None => setup.plain(),
    };
    ran.max_running = setup.observed.running.or(ran.max_running);
    ran.batched_tokens = setup.observed.batched_tokens.or(ran.batched_tokens);
    ran.graph_max_batch = setup.observed.graph_max_batch;
    let graphs_grow = graphs_gib.map_or(0.0, |now| {
        let (target, draft) = graphs::gib(&ran, max_seqs(&ran));
        now - target - draft
    });
    let draft = if own { 0.0 } else { draft_weights_gib };
    let activation_grows = activation_gib(setup) - activation_gib(&ran);
    Some(Moved {
        gib: pool - draft - graphs_grow - activation_grows,
        off_gib: (GRAPHS_SPREAD * graphs_grow).hypot(ACTIVATION_SPREAD * activation_grows),
    })
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
