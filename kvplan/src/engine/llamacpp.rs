//! llama.cpp: the cache is sized by the context, not by a fraction; it fits or it does not.

use crate::GIB;
use crate::kv::KvLayout;
use crate::ledger::Ledger;
use crate::parts;
use crate::setup::{Interval, Plan, PlanError, Refusal, Setup};

/// Tokens of a micro-batch by default (`--ubatch-size`).
const UBATCH_TOKENS: u64 = 512;

/// There is no fraction, so any is legal.
const ANY_FRACTION: Interval = Interval {
    min: 0.0,
    max: 1.0,
    max_low: 1.0,
    max_high: 1.0,
};

/// Plans llama.cpp with every layer on the cards.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    setup.check()?;
    let weights = parts::target_weights(setup);
    let computed = weights.gib();
    let weights_gib = setup.observed.weights_gib.unwrap_or(computed);
    let draft = parts::draft_of(setup, true);
    let layout = KvLayout {
        dsa_fp8: false,
        index_cache: false,
        dtype: setup.kv_dtype(),
    };
    let target = setup.model.kv_bytes_per_token(&setup.sharding, &layout);
    let cell = target.saturating_add(draft.kv_bytes_per_token);
    let context = setup.context();
    let slots = setup.max_running.unwrap_or(1).max(1);
    let ubatch = setup.batched_tokens.unwrap_or(UBATCH_TOKENS);
    // Scores of one micro-batch over the context in f32, per head on this card, beside the forward
    // buffers; without flash attention this exceeds the cache (8470 MiB seen beside 1167).
    let buffers = parts::forward_gib(setup.model, &setup.sharding, ubatch)
        + ubatch as f64 * setup.model.vocab as f64 * 4.0 / GIB;
    let pool_gib = context as f64 * cell as f64 / GIB;
    let before = parts::free_before_gib(setup);
    let draft_gib = (draft.weight_bytes + draft.table_bytes) / GIB;
    let room = before - weights_gib - draft_gib - buffers;
    let longest = if cell > 0 {
        (room.max(0.0) * GIB / cell as f64) as u64
    } else {
        0
    };
    let refusal = (pool_gib > room).then(|| Refusal {
        short_gib: pool_gib - room,
        engine_says: "failed to allocate the KV cache".to_string(),
        remedy: format!(
            "--ctx-size {longest}, or --cache-type-k/-v q8_0, or fewer layers offloaded"
        ),
    });
    let ledger = ledger(
        setup,
        &weights,
        [before, draft_gib, pool_gib, buffers],
        refusal.is_none(),
    );
    let fits = refusal.is_none();
    Ok(Plan {
        fits,
        fraction: 1.0,
        fraction_source: "llama.cpp takes what the context needs".to_string(),
        automatic_fraction: None,
        pool_gib,
        kv_tokens: if fits { context } else { 0 },
        kv_bytes_per_token: cell as f64,
        kv_dtype: setup.kv_dtype(),
        max_running: slots,
        max_concurrency: if fits { slots as f64 } else { 0.0 },
        context_tokens: context,
        longest_context: longest.min(context),
        interval: ANY_FRACTION,
        refusal,
        weights_gib,
        computed_weights_gib: computed,
        ledger,
        assumptions: vec![format!(
            "KV type {}; every layer on the cards",
            setup.kv_dtype().name()
        )],
    })
}

/// Lines of the card from [free before, draft, cache, buffers], GiB.
fn ledger(setup: &Setup<'_>, weights: &parts::Weights, gib: [f64; 4], fits: bool) -> Ledger {
    let [before, draft_gib, pool_gib, buffers] = gib;
    let mut ledger = Ledger::new(setup.card_gib);
    let outside = setup.card_gib - before;
    ledger.estimate("driver and CUDA context", outside, 0.3, "before weights");
    parts::weight_lines(&mut ledger, weights, setup.observed.weights_gib);
    ledger
        .exact("draft: weights", draft_gib, "a second model")
        .of_speculation();
    ledger.exact("KV cache", pool_gib, "context x bytes a token");
    let source = "one micro-batch; larger without flash attention";
    ledger.estimate("compute buffers", buffers, 0.8, source);
    ledger.close(if fits { "free" } else { "missing (negative)" });
    ledger
}
