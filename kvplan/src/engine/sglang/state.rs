//! State of linear and Mamba layers: how much of the budget SGLang gives it, and how many requests
//! its slots carry. Sources: `handle_max_mamba_cache`, `_calculate_mamba_ratio` and
//! `_resolve_max_num_reqs` of model_runner_kv_cache_mixin.py (0.5.8 to mid 2026) and
//! kv_cache_configurator.py (since); pull requests 28151 (who gets two slots more) and 32184 (the
//! padding slot).

use crate::GIB;
use crate::setup::{Setup, StateSlots};

/// Default share of the state pool (`--mamba-full-memory-ratio`).
const STATE_RATIO: f64 = 0.9;
/// Slots of a running request with the prefix cache on: its own, the prefix it started from, and
/// one that it hands over.
const SLOTS: u64 = 3;
/// Requests that a draft is planned for unless the engine is told (server_args.py).
const RUNNING_WITH_DRAFT: u64 = 48;

/// The state pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StatePool {
    /// What the KV pool loses, GiB.
    pub(super) reserved_gib: f64,
    /// Slots as allocated, GiB.
    pub(super) slots_gib: f64,
    /// States of drafted tokens that a verify may take back, as allocated, GiB.
    pub(super) drafted_gib: f64,
    /// Slots, and how many a request takes; `None` without such layers.
    pub(super) slots: Option<StateSlots>,
}

/// Slots that a running request takes. Two more where the state is tracked beside the running one
/// (`extra_buffer`): the engine's own choice since June 2026, needed by a draft since December 2025
/// (then one more, until a draft could overlap with the scheduler).
fn slots_per_request(setup: &Setup<'_>) -> u64 {
    let version = setup.engine.version;
    let drafts = setup.speculation.is_some();
    if version.since((0, 5, 14), (2026, 7)) || drafts && version.since((0, 5, 11), (2026, 5)) {
        SLOTS + 2
    } else if drafts && version.since((0, 5, 7), (2025, 12)) {
        SLOTS + 1
    } else {
        SLOTS
    }
}

/// The state pool that a budget of `rest` GiB gets, before the KV pool does.
pub(super) fn state_pool(setup: &Setup<'_>, rest: f64) -> StatePool {
    let slot = setup.model.state_bytes_per_request(&setup.sharding).total() as f64 / GIB;
    if slot <= 0.0 || rest <= 0.0 {
        return StatePool::default();
    }
    let version = setup.engine.version;
    let per_request = slots_per_request(setup);
    let drafted = setup.speculation.map_or(0, |spec| spec.draft_tokens) as f64;
    let told = setup.max_running.unwrap_or(RUNNING_WITH_DRAFT);
    // Before spring 2026 drafted tokens had their states for every request that could be running,
    // off the top; since then for those that the slots carry, out of the same share.
    let joint = version.since((0, 5, 11), (2026, 5));
    let off_the_top = if joint {
        0.0
    } else {
        told as f64 * drafted * slot
    };
    // The slot that padded batches write to is reserved since July 2026; before, it came out of what
    // was left.
    let padding_counts = version.since((0, 5, 18), (2026, 8));
    let padding = if padding_counts { 1.0 } else { 0.0 };
    let in_share = if joint { drafted } else { 0.0 };
    let slots = match (setup.observed.state_gib, setup.state_slots) {
        // A log prints slots and drafted states in one line, padding in, with two decimals.
        (Some(gib), _) => {
            ((gib / slot - 1.0 - in_share) / (1.0 + in_share / per_request as f64)).round()
        }
        (None, Some(slots)) => slots as f64,
        (None, None) => {
            let ratio = setup.state_ratio.unwrap_or(STATE_RATIO).max(0.0);
            let share = (rest - off_the_top) * ratio / (1.0 + ratio);
            let left = share - padding * (1.0 + in_share) * slot;
            left / slot / (1.0 + in_share / per_request as f64)
        }
    };
    let slots = slots.max(0.0).floor() as u64;
    let carried = (slots / per_request).min(told);
    let running = if joint { carried } else { told };
    let states = |requests: f64| requests * drafted * slot;
    StatePool {
        reserved_gib: setup
            .observed
            .state_gib
            .unwrap_or_else(|| (slots as f64 + padding) * slot + states(running as f64 + padding)),
        slots_gib: (slots as f64 + 1.0) * slot,
        drafted_gib: states(carried as f64 + 1.0),
        slots: Some(StateSlots { slots, per_request }),
    }
}

/// The states that stand beside a KV pool of `pool_gib` GiB, GiB: the budget is searched that leaves
/// such a pool. 0 without such layers.
pub(crate) fn beside_pool(setup: &Setup<'_>, pool_gib: f64) -> f64 {
    let left = |rest: f64| rest - state_pool(setup, rest).reserved_gib;
    let (mut low, mut high) = (pool_gib.max(0.0), pool_gib.max(1.0));
    while left(high) < pool_gib && high < 1e6 {
        high *= 2.0;
    }
    // Slots are whole, so the pool falls by one as it grows: the first budget that leaves enough.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if left(middle) >= pool_gib {
            high = middle;
        } else {
            low = middle;
        }
    }
    high - pool_gib
}
