//! SGLang: pool = free after weights - free before x (1 - fraction), in every version; what counts
//! as weights, what lies in the reserve and the automatic fraction change with the version.
//! Sources: model_runner.py of 0.4.2 and 0.4.6-0.4.9, model_runner_kv_cache_mixin.py (early 2026),
//! pool_configurator.py (mid 2026), server_args.py of each generation.

mod auto;
mod cell;
mod graphs;
mod prefill;
mod reserve;
mod state;
mod walls;

pub use graphs::{sglang_graph_batch, sglang_graph_flag};

use auto::{Generation, automatic_fraction, generation};
use cell::{cell_bytes, draft_cell_bytes};
use reserve::reserve_lines;
pub(crate) use state::beside_pool;
use state::{StatePool, state_pool};
pub(crate) use walls::first_legal;
use walls::{interval, refusal};

use crate::GIB;
use crate::engine::Version;
use crate::kv::KvLayout;
use crate::ledger::Ledger;
use crate::parts::{self, DraftParts};
use crate::pool::Pool;
use crate::proven::Off;
use crate::setup::{Plan, PlanError, Setup, SpecKind};

/// Where the draft's weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DraftEra {
    /// To September 2025: weights and pool out of the reserve, extra slots above the budget.
    ReserveAndExtraSlots,
    /// To 0.5.13, June 2026: weights out of the reserve, loaded after the pool.
    Reserve,
    /// From 0.5.14 (PR #28855): loaded before the pool is sized, so that its budget lacks them.
    Counted,
}

/// By release: `init_model_worker` of scheduler.py in the wheels 0.5.8 to 0.5.23, and four servers of
/// 0.5.13 on an H200 whose pools have no draft in them (docs/HARDWARE.md).
pub(crate) fn draft_era(version: Version) -> DraftEra {
    if version.since((0, 5, 14), (2026, 7)) {
        DraftEra::Counted
    } else if version.since((0, 5, 3), (2025, 10)) {
        DraftEra::Reserve
    } else {
        DraftEra::ReserveAndExtraSlots
    }
}

/// The quantities of the formula, GiB, and the bytes a token takes.
struct Budget {
    before: f64,
    after: f64,
    fraction: f64,
    rest: f64,
    state: StatePool,
    cell: f64,
    target_cell: f64,
    tokens: u64,
}

/// What does not depend on the fraction: free before and after the weights (a counted draft's in),
/// GiB; what of that is the draft's; bytes of a token, with the draft where it is priced, and without.
struct Base {
    before: f64,
    after: f64,
    counted: f64,
    cell: f64,
    target_cell: f64,
}

fn base(setup: &Setup<'_>, weights_gib: f64, draft: &DraftParts) -> Base {
    let era = draft_era(setup.engine.version);
    let before = setup
        .observed
        .free_before_gib
        .unwrap_or_else(|| parts::free_before_gib(setup));
    let draft_gib = (draft.weight_bytes + draft.table_bytes) / GIB;
    let counted = if era == DraftEra::Counted {
        draft_gib
    } else {
        0.0
    };
    // What was seen is of a run without the draft.
    let after = match setup.observed.free_after_gib {
        Some(after) => after - counted,
        None => before - weights_gib - counted,
    };
    let target_cell = cell_bytes(setup, &layout(setup));
    let cell = target_cell + draft_cell_bytes(setup, draft, target_cell);
    Base {
        before,
        after,
        counted,
        cell,
        target_cell,
    }
}

fn budget(setup: &Setup<'_>, weights_gib: f64, draft: &DraftParts) -> Budget {
    let base = base(setup, weights_gib, draft);
    let Base {
        before,
        after,
        counted,
        cell,
        target_cell,
    } = base;
    let fraction = setup
        .fraction
        .unwrap_or_else(|| match setup.observed.pool_gib {
            // The log says what was allocated, so it says the fraction.
            Some(pool) if !setup.pool_is_its_own() => {
                let plain = beside_pool(&setup.plain(), pool);
                1.0 - (after + counted - pool - plain) / before
            }
            Some(pool) => {
                let pool = pool * cell / target_cell.max(1.0);
                1.0 - (after - pool - beside_pool(setup, pool)) / before
            }
            None => automatic_fraction(setup),
        });
    budget_at(setup, &base, weights_gib, fraction)
}

/// The budget of one fraction.
fn budget_at(setup: &Setup<'_>, base: &Base, weights_gib: f64, fraction: f64) -> Budget {
    let (before, cell) = (base.before, base.cell);
    let after = base.after + beyond_the_formula(setup, weights_gib, fraction);
    let rest = after - before * (1.0 - fraction);
    let state = state_pool(setup, rest);
    let budget_bytes = ((rest - state.reserved_gib) * GIB).max(0.0);
    let mut tokens = if cell > 0.0 {
        (budget_bytes / cell) as u64
    } else {
        0
    };
    if let Some(cap) = setup.max_total_tokens {
        tokens = tokens.min(cap);
    }
    let page = setup.page_tokens.unwrap_or(1).max(1);
    tokens = tokens / page * page;
    // A server that ran: its own pool, not the one that the formula gives.
    if let Some(seen) = setup.served_tokens() {
        tokens = seen;
    }
    Budget {
        before,
        after,
        fraction,
        rest,
        state,
        cell,
        target_cell: base.target_cell,
        tokens,
    }
}

/// Requests at once: told or taken, and what the state slots carry of them.
fn running(setup: &Setup<'_>, b: &Budget) -> (u64, u64) {
    let setting = running_setting(setup, b.tokens);
    let carried = b.state.slots.map_or(setting, |slots| slots.requests());
    (setting, setting.min(carried).max(1))
}

/// How much larger the pool of a run without this draft was than the formula gives, GiB: a draft
/// takes from the pool that was seen. Nothing where no such run was seen, or state shares it.
fn beyond_the_formula(setup: &Setup<'_>, weights_gib: f64, fraction: f64) -> f64 {
    let Some(mut plain) = setup.seen_without_draft() else {
        return 0.0;
    };
    plain.fraction = Some(fraction);
    let Some(seen) = plain.served_tokens() else {
        return 0.0;
    };
    let formula = budget(&plain, weights_gib, &DraftParts::default());
    if formula.state.reserved_gib > 0.0 {
        return 0.0;
    }
    seen as f64 * formula.cell / GIB - formula.rest
}

/// The index cache exists since PR #11309 (October 2025) in the budget; before, it was allocated
/// all the same but not counted.
fn layout(setup: &Setup<'_>) -> KvLayout {
    setup.kv_layout()
}

/// Requests at once that it is told to run, or takes by itself, whatever its pools carry.
fn running_setting(setup: &Setup<'_>, tokens: u64) -> u64 {
    setup.max_running.unwrap_or_else(|| {
        let eagle = setup
            .speculation
            .is_some_and(|spec| spec.kind != SpecKind::Ngram);
        if eagle && generation(setup.engine.version) >= Generation::B {
            return 48;
        }
        let by_pool = tokens as f64 / setup.served() as f64 * 512.0;
        (by_pool as u64).clamp(2048, 4096)
    })
}

/// The table from request and position to KV slot, GiB.
fn req_to_token_gib(setup: &Setup<'_>, running: u64) -> f64 {
    let draft = setup.speculation.map_or(0, |spec| spec.draft_tokens);
    let row = setup.served().saturating_add(4).saturating_add(draft);
    running as f64 * row as f64 * 4.0 / GIB
}

/// Plans SGLang.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    setup.check()?;
    let weights = parts::target_weights(setup);
    let computed = weights.gib();
    let observed = observed_weights(setup);
    let weights_gib = observed.unwrap_or(computed);
    // Still so in September 2026 (#36452 and others): the draft's own tables are there while the
    // pool is sized. `set_embed` and `set_embed_and_head` let them go before its graphs are captured.
    let draft = setup.speculation.map_or_else(DraftParts::default, |spec| {
        parts::draft_parts(setup, &spec, true)
    });
    let b = budget(setup, weights_gib, &draft);
    let (setting, running) = running(setup, &b);
    let mut ledger = Ledger::new(setup.card_gib);
    ledger.estimate(
        parts::gone_before(setup, setup.card_gib - b.before),
        setup.card_gib - b.before,
        if setup.observed.free_before_gib.is_some() {
            0.0
        } else {
            0.3
        },
        "capacity less free before weights",
    );
    parts::weight_lines(&mut ledger, &weights, observed);
    pool_lines(&mut ledger, setup, &b, &draft);
    let reserve = reserve_lines(&mut ledger, setup, &b, &draft, running);
    ledger.close(Off::of(
        reserve,
        walls::seen_beside(setup, weights_gib, &draft),
    ));
    let interval = interval(setup, weights_gib, &draft, &b);
    let refusal = refusal(setup, weights_gib, &draft, &b, &interval);
    let context = setup.context();
    let ran = setup.served_tokens().is_some();
    let tokens = if refusal.is_none() || ran {
        b.tokens
    } else {
        0
    };
    let reaches = setup.context_tokens.is_none_or(|context| tokens >= context);
    let closing = ledger.lines.last().map_or(0.0, |line| line.gib);
    Ok(Plan {
        fits: refusal.is_none() && reaches && closing >= 0.0,
        fraction: b.fraction,
        fraction_source: fraction_source(setup),
        automatic_fraction: Some(automatic_fraction(setup)),
        pool_gib: tokens as f64 * b.target_cell / GIB,
        kv_tokens: tokens,
        kv_bytes_per_token: b.cell,
        kv_dtype: setup.kv_dtype(),
        max_running: running,
        running_setting: setting,
        state_slots: b.state.slots,
        max_concurrency: tokens as f64 / context as f64,
        pool: Pool::of_tokens(tokens),
        tokens_in_requests_of: None,
        pool_low: None,
        state_blocks: None,
        context_tokens: context,
        longest_context: tokens.min(context),
        interval,
        refusal,
        loading: None,
        weights_gib,
        computed_weights_gib: computed,
        ledger,
        assumptions: assumptions(setup),
    })
}

/// Weights as the log has them: printed, or the difference of the free figures.
fn observed_weights(setup: &Setup<'_>) -> Option<f64> {
    let o = setup.observed;
    match (o.weights_gib, o.free_before_gib, o.free_after_gib) {
        (Some(weights), _, _) => Some(weights),
        (None, Some(before), Some(after)) => Some(before - after),
        _ => None,
    }
}

fn pool_lines(ledger: &mut Ledger, setup: &Setup<'_>, b: &Budget, draft: &DraftParts) {
    let era = draft_era(setup.engine.version);
    let tokens = b.tokens as f64;
    let counted = era == DraftEra::Counted;
    let where_from = if counted {
        "loaded before the pool is sized"
    } else {
        "out of the reserve: loaded after the pool"
    };
    ledger
        .estimate(
            "draft: weights",
            draft.weight_bytes / GIB,
            draft_spread(setup),
            where_from,
        )
        .of_speculation();
    ledger.freed_gib = draft.table_bytes / GIB;
    ledger.exact(
        "target: state pool",
        b.state.slots_gib,
        "slots x state of a request",
    );
    ledger
        .exact(
            "verify: states of drafted tokens",
            b.state.drafted_gib,
            "running requests x drafted tokens x state of a request",
        )
        .of_speculation();
    ledger.exact(
        "target: KV pool",
        tokens * b.target_cell / GIB,
        "tokens x bytes a token",
    );
    let draft_pool = tokens * draft.kv_bytes_per_token as f64 / GIB;
    ledger
        .exact(
            "draft: KV pool",
            draft_pool,
            "same tokens, the draft's layers",
        )
        .of_speculation();
}

/// How far the draft's weights may lie from their figure, as a share: a log prints them; from the model
/// they are good to a quarter.
fn draft_spread(setup: &Setup<'_>) -> f64 {
    match setup.observed.draft_gib {
        Some(_) => 0.0,
        None => 0.25,
    }
}

fn fraction_source(setup: &Setup<'_>) -> String {
    match (setup.fraction, setup.observed.pool_gib) {
        (Some(_), _) => "--mem-fraction-static".to_string(),
        (None, Some(_)) => "inferred from the observed pool".to_string(),
        (None, None) => format!("automatic in SGLang {}", setup.engine.version),
    }
}

fn assumptions(setup: &Setup<'_>) -> Vec<String> {
    let mut lines = setup.model.assumptions.clone();
    if setup.engine.assumed_version {
        lines.push(format!(
            "SGLang version not given: the rules of {} are used",
            setup.engine.version
        ));
    }
    if setup.observed.free_before_gib.is_none() {
        lines
            .push("free memory before weights not observed: capacity less context and NCCL".into());
    }
    lines.extend(setup.graphs_by_size());
    lines.extend(super::kv_default::kv_dtype_taken(setup));
    lines
}
