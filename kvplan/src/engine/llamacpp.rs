//! llama.cpp: the cache is sized by the context, not by a fraction; it fits or it does not.

use crate::GIB;
use crate::formats::KvDtype;
use crate::kv::{KvLayout, layer_kv_bytes, window};
use crate::ledger::Ledger;
use crate::params::ParamGroup;
use crate::parts;
use crate::pool::Pool;
use crate::proven::Off;
use crate::refusal::Refusal;
use crate::setup::{Interval, Plan, PlanError, Setup};

/// Tokens of a micro-batch by default (`--ubatch-size`).
const UBATCH_TOKENS: u64 = 512;

/// There is no fraction, so any is legal.
const ANY_FRACTION: Interval = Interval {
    min: 0.0,
    max: 1.0,
    max_low: 1.0,
    max_high: 1.0,
};

/// Scores of one micro-batch over the context in f32, per head on this card, beside the forward
/// buffers; without flash attention this exceeds the cache (8470 MiB seen beside 1167).
fn buffers_gib(setup: &Setup<'_>, ubatch: u64) -> f64 {
    let forward = parts::forward_gib(setup.model, &setup.sharding, ubatch);
    forward + ubatch as f64 * setup.model.vocab as f64 * 4.0 / GIB
}

/// Plans llama.cpp with every layer on the cards.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    setup.check()?;
    let weights = weights_on_cards(setup);
    let computed = weights.gib();
    let weights_gib = setup.observed.weights_gib.unwrap_or(computed);
    let draft = parts::draft_of(setup, true);
    let dtype = kv_dtype(setup);
    let layout = KvLayout {
        dsa_fp8: false,
        index_cache: false,
        dtype,
    };
    let context = setup.context();
    let slots = setup.max_running.unwrap_or(1).max(1);
    let ubatch = setup.batched_tokens.unwrap_or(UBATCH_TOKENS);
    let windows = Windows::of(setup, &layout, slots, ubatch);
    let target = setup.model.kv_bytes_per_token(&setup.sharding, &layout);
    let cell = (target - windows.bytes_per_cell).saturating_add(draft.kv_bytes_per_token);
    let buffers = buffers_gib(setup, ubatch);
    let windows_gib = windows.bytes(context) / GIB;
    let states_gib = states_bytes(setup, slots) / GIB;
    let pool_gib = context as f64 * cell as f64 / GIB + windows_gib + states_gib;
    let before = parts::free_before_gib(setup);
    let draft_kv_gib = context as f64 * draft.kv_bytes_per_token as f64 / GIB;
    let draft_gib = (draft.weight_bytes + draft.table_bytes) / GIB;
    let room = before - weights_gib - draft_gib - buffers;
    let left = (room - windows_gib - states_gib).max(0.0) * GIB;
    let longest = (left as u64).checked_div(cell).unwrap_or(0);
    let refusal = (pool_gib > room).then(|| refusal(pool_gib - room, longest));
    let ledger = ledger(
        setup,
        &weights,
        [
            before,
            draft_gib,
            pool_gib - states_gib - draft_kv_gib,
            draft_kv_gib,
            states_gib,
            buffers,
        ],
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
        kv_dtype: dtype,
        max_running: slots,
        running_setting: slots,
        state_slots: None,
        max_concurrency: if fits { slots as f64 } else { 0.0 },
        pool: Pool::of_tokens(if fits { context } else { 0 }),
        tokens_in_requests_of: None,
        pool_low: None,
        state_blocks: None,
        context_tokens: context,
        longest_context: longest.min(context),
        interval: ANY_FRACTION,
        refusal,
        loading: None,
        weights_gib,
        computed_weights_gib: computed,
        ledger,
        assumptions: assumptions(setup, dtype),
    })
}

/// Tokens are looked up in host memory; a table that is the output head as well lies on a card.
fn weights_on_cards(setup: &Setup<'_>) -> parts::Weights {
    let mut weights = parts::target_weights(setup);
    if !setup.model.tied_embeddings {
        weights
            .lines
            .retain(|line| line.group != ParamGroup::Embedding);
    }
    weights
}

fn assumptions(setup: &Setup<'_>, dtype: KvDtype) -> Vec<String> {
    let table = if setup.model.tied_embeddings {
        ""
    } else {
        ", the token table in host memory"
    };
    let mut lines = setup.model.assumptions.clone();
    // What others call bf16 is f16 here: two bytes either way.
    let name = match dtype {
        KvDtype::Bf16 => "f16",
        other => other.name(),
    };
    lines.push(format!("KV type {name}; every layer on the cards{table}"));
    lines
}

fn refusal(short_gib: f64, longest: u64) -> Refusal {
    Refusal {
        short_gib,
        card_short_gib: 0.0,
        engine_says: "failed to allocate the KV cache".to_string(),
        remedy: if longest > 0 {
            format!("--ctx-size {longest}, or --cache-type-k/-v q8_0, or fewer layers offloaded")
        } else {
            "the weights fill the card: more cards, fewer bits, or fewer layers offloaded \
             (--n-gpu-layers)"
                .to_string()
        },
    }
}

/// The cache type asked for, else f16; the fp8 and fp4 of other engines do not exist here.
fn kv_dtype(setup: &Setup<'_>) -> KvDtype {
    match setup.kv_dtype {
        None | Some(KvDtype::Fp8 | KvDtype::Fp4) => KvDtype::Bf16,
        Some(asked) => asked,
    }
}

/// Cells of sliding layers: a cache of their own that holds the window of every slot and one
/// micro-batch, in 256s (llama-kv-cache-iswa.cpp, since May 2025; `--swa-full` undoes it).
struct Windows {
    /// Bytes of one cell over all sliding layers.
    bytes_per_cell: u64,
    /// Most cells.
    cells: u64,
}

impl Windows {
    fn of(setup: &Setup<'_>, layout: &KvLayout, slots: u64, ubatch: u64) -> Self {
        if !setup.engine.version.since((u32::MAX, 0, 0), (2025, 5)) {
            return Self {
                bytes_per_cell: 0,
                cells: 0,
            };
        }
        let sliding = || setup.model.layers.iter().filter(|l| window(l).is_some());
        let bytes = sliding().map(|layer| layer_kv_bytes(layer, &setup.sharding, layout));
        let widest = sliding().filter_map(window).max().unwrap_or(0);
        let cells = widest.saturating_mul(slots).saturating_add(ubatch);
        Self {
            bytes_per_cell: bytes.fold(0, u64::saturating_add),
            cells: cells.div_ceil(256).saturating_mul(256),
        }
    }

    fn bytes(&self, context: u64) -> f64 {
        self.cells.min(context) as f64 * self.bytes_per_cell as f64
    }
}

/// States of recurrent layers, bytes: one a slot, all of it in 32 bits (llama-memory-recurrent.cpp;
/// 72 MiB of S and 3.37 of R for one slot of Qwen3-Next).
fn states_bytes(setup: &Setup<'_>, slots: u64) -> f64 {
    let one = setup.model.state_bytes_per_request(&setup.sharding);
    // The tail of the convolution is counted in 16 bits elsewhere.
    (one.ssm as f64 + 2.0 * one.conv as f64) * slots as f64
}

/// Lines of the card from [free before, draft, cache, draft's cache, states, buffers], GiB.
fn ledger(setup: &Setup<'_>, weights: &parts::Weights, gib: [f64; 6]) -> Ledger {
    let [
        before,
        draft_gib,
        pool_gib,
        draft_kv_gib,
        states_gib,
        buffers,
    ] = gib;
    let mut ledger = Ledger::new(setup.card_gib);
    let outside = setup.card_gib - before;
    ledger.estimate("driver and CUDA context", outside, 0.3, "before weights");
    parts::weight_lines(&mut ledger, weights, setup.observed.weights_gib);
    ledger
        .exact("draft: weights", draft_gib, "a second model")
        .of_speculation();
    ledger.exact(
        "KV cache",
        pool_gib,
        "context x bytes a token; windows of sliding layers",
    );
    ledger
        .exact(
            "draft: KV cache",
            draft_kv_gib,
            "a cell for each of the target's",
        )
        .of_speculation();
    ledger.exact("recurrent states", states_gib, "one a slot, in 32 bits");
    let source = "one micro-batch; larger without flash attention";
    ledger.estimate("compute buffers", buffers, 0.8, source);
    ledger.close(Off::even(ledger.spread()));
    ledger
}
