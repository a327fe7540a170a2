//! SGLang: pool = free after weights - free before x (1 - fraction), in every version; what counts
//! as weights, what lies in the reserve and the automatic fraction change with the version.
//! Sources: model_runner.py of 0.4.2 and 0.4.6-0.4.9, model_runner_kv_cache_mixin.py (early 2026),
//! pool_configurator.py (mid 2026), server_args.py of each generation.

mod auto;
mod cell;
mod reserve;
mod state;

use auto::{Generation, automatic_fraction, generation};
use cell::{cell_bytes, prices_draft};
use reserve::{Reserve, reserve_lines};
pub(crate) use state::beside_pool;
use state::{StatePool, state_pool};

use crate::GIB;
use crate::engine::Version;
use crate::kv::KvLayout;
use crate::ledger::Ledger;
use crate::parts::{self, DraftParts};
use crate::pool::Pool;
use crate::setup::{Interval, Plan, PlanError, Refusal, Setup, SpecKind};

/// Where the draft's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DraftEra {
    /// To September 2025: weights and pool out of the reserve, extra slots above the budget.
    ReserveAndExtraSlots,
    /// To April 2026: weights and pool out of the reserve.
    Reserve,
    /// PR #23862: the pool is priced in the cell; weights still out of the reserve.
    PricedPool,
    /// PR #28855, June 2026: weights are counted before the pool is sized, too.
    Counted,
}

pub(crate) fn draft_era(version: Version) -> DraftEra {
    if version.since((0, 5, 13), (2026, 6)) {
        DraftEra::Counted
    } else if version.since((0, 5, 11), (2026, 5)) {
        DraftEra::PricedPool
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

fn budget(setup: &Setup<'_>, weights_gib: f64, draft: &DraftParts) -> Budget {
    let era = draft_era(setup.engine.version);
    let before = setup
        .observed
        .free_before_gib
        .unwrap_or(setup.card_gib - parts::runtime_gib(setup));
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
    let layout = layout(setup);
    let target_cell = cell_bytes(setup, &layout);
    let priced = prices_draft(setup, era);
    let cell = if priced {
        target_cell + draft.kv_bytes_per_token as f64
    } else {
        target_cell
    };
    let automatic = automatic_fraction(setup);
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
            None => automatic,
        });
    let after = after + beyond_the_formula(setup, weights_gib, fraction);
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
        target_cell,
        tokens,
    }
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
    KvLayout::new(setup.kv_dtype())
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
        let by_pool = tokens as f64 / setup.context() as f64 * 512.0;
        (by_pool as u64).clamp(2048, 4096)
    })
}

/// The table from request and position to KV slot, GiB.
fn req_to_token_gib(setup: &Setup<'_>, running: u64) -> f64 {
    let draft = setup.speculation.map_or(0, |spec| spec.draft_tokens);
    let row = setup.context().saturating_add(4).saturating_add(draft);
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
    // pool is sized.
    let draft = setup.speculation.map_or_else(DraftParts::default, |spec| {
        parts::draft_parts(setup, &spec, true)
    });
    let b = budget(setup, weights_gib, &draft);
    let setting = running_setting(setup, b.tokens);
    let carried = b.state.slots.map_or(setting, |slots| slots.requests());
    let running = setting.min(carried).max(1);
    let mut ledger = Ledger::new(setup.card_gib);
    ledger.estimate(
        "driver, CUDA context, NCCL",
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
    ledger.close(if b.rest > 0.0 {
        "free"
    } else {
        "missing (negative)"
    });
    let interval = interval(&b, &reserve);
    let refusal = refusal(setup, &b, &interval);
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
        context_tokens: context,
        longest_context: tokens.min(context),
        interval,
        refusal,
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
    // A log prints them; from the model they are good to a quarter.
    let spread = if setup.observed.draft_gib.is_some() {
        0.0
    } else {
        0.25
    };
    ledger
        .estimate(
            "draft: weights",
            draft.weight_bytes / GIB,
            spread,
            where_from,
        )
        .of_speculation();
    ledger
        .exact(
            "draft: its own vocabulary tables",
            draft.table_bytes / GIB,
            where_from,
        )
        .of_speculation();
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

fn interval(b: &Budget, reserve: &Reserve) -> Interval {
    let wall = |gib: f64| (1.0 - gib / b.before).clamp(0.0, 1.0);
    Interval {
        // Above 1 where the weights alone are more than what is free before them.
        min: (1.0 - b.after / b.before).max(0.0),
        max: wall(reserve.needed),
        max_low: wall(reserve.needed + reserve.spread),
        max_high: wall((reserve.needed - reserve.spread).max(0.0)),
    }
}

/// The fraction from which this engine starts, rounded up to three digits as it prints it.
pub(crate) fn first_legal(min: f64) -> f64 {
    let rounded = (min * 1000.0).ceil() / 1000.0;
    if rounded > min {
        rounded
    } else {
        rounded + 0.001
    }
}

fn refusal(setup: &Setup<'_>, b: &Budget, interval: &Interval) -> Option<Refusal> {
    let stateless = b.state.slots.is_some_and(|slots| slots.requests() == 0);
    if b.rest > 0.0 && b.tokens > 0 && !stateless {
        return None;
    }
    let newest = setup.engine.version.since((0, 5, 13), (2026, 6));
    let engine_says = if b.after <= 0.0 {
        // It never comes to sizing a pool.
        "CUDA out of memory, while it loads the weights".to_string()
    } else if newest && b.rest <= 0.0 {
        format!(
            "Loaded weights leave no GPU memory for the KV cache; minimum viable \
             mem_fraction_static is {:.4}",
            interval.min
        )
    } else if newest && stateless {
        "Hybrid (mamba/linear-attention) state cache is too small to serve any requests".to_string()
    } else {
        "Not enough memory. Please try to increase --mem-fraction-static".to_string()
    };
    Some(Refusal {
        // Positive rest is necessary, not sufficient: state slots can eat it.
        short_gib: (-b.rest).max(b.state.reserved_gib - b.rest).max(0.0),
        engine_says,
        remedy: remedy(b, interval, stateless),
    })
}

/// What to do about a refusal, cheapest first.
fn remedy(b: &Budget, interval: &Interval, stateless: bool) -> String {
    let legal = first_legal(interval.min);
    let slots = b.state.slots.unwrap_or_default();
    if b.rest > 0.0 && slots.slots > 0 && b.state.reserved_gib >= b.rest {
        format!(
            "{} state slots take {:.2} GiB, the budget has {:.2}: pin fewer \
             (--max-mamba-cache-size), or raise --mem-fraction-static",
            slots.slots, b.state.reserved_gib, b.rest
        )
    } else if b.rest > 0.0 && stateless {
        format!(
            "{} state slots, and a request takes {}: raise --mem-fraction-static or \
             --mamba-full-memory-ratio, or lower --max-running-requests or the drafted tokens",
            slots.slots, slots.per_request
        )
    } else if b.after <= 0.0 || legal > 0.99 {
        "the weights fill the card: more GPUs, or a smaller weight format".to_string()
    } else if interval.is_empty() {
        format!(
            "no fraction works: the pool needs more than {:.3}, the rest of the engine less than \
             {:.3}; cheapest first: fewer graph sizes, a smaller prefill chunk, fp8 KV, a smaller \
             draft",
            interval.min, interval.max
        )
    } else {
        format!("raise --mem-fraction-static to at least {legal:.3}")
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
    if setup.kv_dtype.is_none() {
        lines.push(format!(
            "KV dtype {} (the default)",
            setup.kv_dtype().name()
        ));
    }
    lines
}
