//! TensorRT-LLM: KV pool = fraction x what is FREE after weights, activations and runtime buffers
//! ("of free", not "of total"). Exact on trt-001, -002, -004.

use crate::GIB;
use crate::kv::KvLayout;
use crate::ledger::Ledger;
use crate::parts;
use crate::pool::Pool;
use crate::proven::Off;
use crate::refusal::{MORE_ROOM, Refusal};
use crate::setup::{Interval, Plan, PlanError, Setup};

/// `free_gpu_memory_fraction` by default.
const DEFAULT_FRACTION: f64 = 0.9;
/// Tokens of a block by default.
const BLOCK_TOKENS: u64 = 32;
/// Tokens of a pass by default (`max_num_tokens`).
const BATCHED_TOKENS: u64 = 8192;

/// Plans TensorRT-LLM.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    setup.check()?;
    let weights = parts::target_weights(setup);
    let weights_gib = setup.observed.weights_gib.unwrap_or(weights.gib());
    let draft = parts::draft_of(setup, false);
    let batched = setup.batched_tokens.unwrap_or(BATCHED_TOKENS);
    let activations = parts::forward_gib(setup.model, &setup.sharding, batched);
    let before = parts::free_before_gib(setup);
    let draft_gib = (draft.weight_bytes + draft.table_bytes) / GIB;
    // A log's free figure is taken after all that its server loaded.
    let own = setup.pool_is_its_own();
    let seen = setup.observed.free_after_gib;
    let seen = seen.map(|free| if own { free } else { free - draft_gib });
    let free = seen.unwrap_or(before - weights_gib - draft_gib - activations);
    let fraction = fraction(setup, free);
    let pool_gib = (free * fraction).max(0.0);
    let layout = KvLayout::new(setup.kv_dtype());
    let target = setup.model.kv_bytes_per_token(&setup.sharding, &layout);
    let cell = target
        .saturating_add(setup.model.index_bytes_per_token())
        .saturating_add(draft.kv_bytes_per_token)
        .max(1);
    let page = setup.page_tokens.unwrap_or(BLOCK_TOKENS).max(1);
    let tokens = (pool_gib * GIB / cell as f64) as u64 / page * page;
    let tokens = setup.max_total_tokens.map_or(tokens, |cap| tokens.min(cap));
    let context = setup.context();
    let refusal = refusal(tokens, cell as f64 * page as f64 / GIB, free);
    let used = Used {
        before,
        weights_gib: weights_gib + draft_gib,
        draft_gib,
        free,
        pool_gib,
        draft_share: draft.kv_bytes_per_token as f64 / cell as f64,
    };
    let ledger = ledger(setup, &weights, &used);
    let need = context as f64 * cell as f64 / GIB;
    let min = if free > 0.0 {
        need / free
    } else {
        f64::INFINITY
    };
    Ok(Plan {
        fits: refusal.is_none() && setup.context_tokens.is_none_or(|c| tokens >= c),
        fraction,
        fraction_source: source(setup),
        automatic_fraction: Some(DEFAULT_FRACTION),
        pool_gib,
        kv_tokens: tokens,
        kv_bytes_per_token: cell as f64,
        kv_dtype: setup.kv_dtype(),
        max_running: setup.max_running.unwrap_or(2048),
        running_setting: setup.max_running.unwrap_or(2048),
        state_slots: None,
        max_concurrency: tokens as f64 / context as f64,
        pool: Pool::of_tokens(tokens),
        tokens_in_requests_of: None,
        pool_low: None,
        state_blocks: None,
        context_tokens: context,
        longest_context: tokens.min(context),
        interval: interval(min),
        refusal,
        loading: None,
        weights_gib,
        computed_weights_gib: weights.gib(),
        ledger,
        assumptions: assumptions(setup),
    })
}

fn interval(min: f64) -> Interval {
    Interval {
        min,
        max: 0.95,
        max_low: 0.9,
        max_high: 0.99,
    }
}

/// The share of free memory: asked for, implied by an observed pool, or the default.
fn fraction(setup: &Setup<'_>, free: f64) -> f64 {
    setup
        .fraction
        .unwrap_or_else(|| match setup.observed.pool_gib {
            Some(pool) if free > 0.0 => (pool / free).clamp(0.0, 1.0),
            _ => DEFAULT_FRACTION,
        })
}

/// What lies on the card, GiB.
struct Used {
    before: f64,
    weights_gib: f64,
    draft_gib: f64,
    free: f64,
    pool_gib: f64,
    draft_share: f64,
}

fn ledger(setup: &Setup<'_>, weights: &parts::Weights, used: &Used) -> Ledger {
    let mut ledger = Ledger::new(setup.card_gib);
    let outside = setup.card_gib - used.before;
    ledger.estimate("driver, CUDA context, NCCL", outside, 0.3, "before weights");
    parts::weight_lines(&mut ledger, weights, setup.observed.weights_gib);
    ledger
        .exact(
            "draft: weights",
            used.draft_gib,
            "loaded before the pool is sized",
        )
        .of_speculation();
    let activations = used.before - used.weights_gib - used.free;
    ledger.estimate("activations of one pass", activations, 0.5, "peak");
    let target = used.pool_gib * (1.0 - used.draft_share);
    ledger.exact("target: KV pool", target, "fraction x free");
    let draft = used.pool_gib * used.draft_share;
    ledger
        .exact("draft: KV pool", draft, "counted per token since #3497")
        .of_speculation();
    // The pool is a share of what is free, so it makes up for that share of what the lines are off.
    let left = 1.0 - used.pool_gib / used.free.max(used.pool_gib).max(f64::MIN_POSITIVE);
    ledger.close(Off::even(left * ledger.spread()));
    ledger
}

fn assumptions(setup: &Setup<'_>) -> Vec<String> {
    let mut lines = setup.model.assumptions.clone();
    lines.push("the fraction is of free memory after weights, not of the card".to_string());
    if setup.model.state_bytes_per_request(&setup.sharding).total() > 0 {
        lines.push(
            "the states of linear and Mamba layers are not counted: TensorRT-LLM keeps one for each \
             of max_batch_size requests"
                .to_string(),
        );
    }
    lines.extend(super::kv_default::kv_dtype_taken(setup));
    lines
}

fn refusal(tokens: u64, page_gib: f64, free: f64) -> Option<Refusal> {
    (tokens == 0).then(|| Refusal {
        short_gib: (page_gib - free).max(0.0),
        card_short_gib: 0.0,
        engine_says: "Insufficient memory to allocate the KV cache".to_string(),
        remedy: format!("the weights fill the card: {MORE_ROOM}"),
    })
}

fn source(setup: &Setup<'_>) -> String {
    match (setup.fraction, setup.observed.pool_gib) {
        (Some(_), _) => "free_gpu_memory_fraction",
        (None, Some(_)) => "inferred from the observed pool",
        (None, None) => "default of TensorRT-LLM",
    }
    .to_string()
}
