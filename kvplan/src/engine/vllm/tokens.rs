//! Tokens that a pool holds.

use super::batched_tokens;
use super::seen::as_it_drafted;
use crate::GIB;
use crate::groups::Groups;
use crate::setup::Setup;

/// Tokens that a pool holds, those that were seen where there are any: of a hybrid requests x the
/// longest, whose states and windows another number of drafted tokens makes more or fewer.
pub(super) fn held(setup: &Setup<'_>, groups: &Groups, pool_gib: f64) -> u64 {
    let computed = computed(setup, groups, pool_gib);
    let own = groups.hybrid() == counted(setup, groups).is_some() && setup.caches_as_seen();
    let Some(seen) = setup.tokens_seen(pool_gib).filter(|_| own) else {
        return computed;
    };
    let Some(ran) = as_it_drafted(setup) else {
        return seen;
    };
    let then = self::computed(&ran, &Groups::of(&ran), pool_gib);
    (seen as f64 * computed as f64 / then.max(1) as f64) as u64
}

/// The limit of the run whose log counted a hybrid's tokens.
fn counted(setup: &Setup<'_>, groups: &Groups) -> Option<u64> {
    let longest = setup.observed.tokens_context;
    longest.filter(|_| groups.hybrid())
}

/// Length of the requests that a hybrid's tokens are counted in.
pub(super) fn length(setup: &Setup<'_>, groups: &Groups) -> Option<u64> {
    let told = || counted(setup, groups).unwrap_or(setup.context());
    groups.hybrid().then(|| told().max(1))
}

/// A size at which whole blocks do not show, GiB.
const LARGE_GIB: f64 = 4096.0;

/// The pool in which a server counts so many tokens, GiB; `None` of a hybrid where the release counts blocks,
/// which say nothing of its states.
pub fn vllm_pool_of_tokens(setup: &Setup<'_>, tokens: u64) -> Option<f64> {
    let groups = Groups::of(setup);
    let by_requests = setup.engine.version.since((0, 20, 1), (2026, 5));
    let held = computed(setup, &groups, LARGE_GIB);
    let known = held > 0 && (by_requests || !groups.hybrid());
    known.then(|| tokens as f64 / held as f64 * LARGE_GIB)
}

fn computed(setup: &Setup<'_>, groups: &Groups, pool_gib: f64) -> u64 {
    let blocks = groups.blocks((pool_gib * GIB).max(0.0));
    let Some(longest) = length(setup, groups) else {
        let dcp = setup.sharding.dcp.max(1);
        return groups.tokens(blocks).saturating_mul(dcp);
    };
    let requests = groups.concurrency(blocks, longest, batched_tokens(setup));
    (requests * longest as f64) as u64
}
