//! What a log does not say of the pool that it prints: the KV format by GiB and tokens, the GiB by tokens.

use kvplan::{EngineKind, KvDtype, Observed, Setup};

use super::setup::speculation;
use crate::scenario::{Ran, Scenario};

/// A pool's tokens, computed over printed, are within this where the format is the server's: counts in
/// whole blocks are known to a hundredth or two.
const SAME_POOL: f64 = 0.05;

/// And the format taken by default is given up only where its own are off by more than this: formats
/// lie a factor of 1.8 apart.
const OTHER_POOL: f64 = 0.25;

/// The format of the pool that the log prints in GiB and in tokens, with its source: where nobody says
/// it, the one taken by default does not meet these figures, and exactly one other does.
pub(crate) fn kv_format_of_the_pool(scenario: &Scenario) -> Option<(KvDtype, String)> {
    // What a config at hand says of the cache is what the server read.
    let config = std::path::Path::new(&scenario.model_given).exists();
    if scenario.asks_kv_dtype() || config {
        return None;
    }
    let whole = scenario.ran.with_draft.as_deref();
    let ran = whole.unwrap_or(&scenario.ran);
    let (at, tokens) = (ran.pool_printed.as_ref()?, ran.kv_tokens? as f64);
    let off = |dtype| {
        let computed = tokens_in_the_pool(scenario, ran, dtype)?;
        Some((computed / tokens - 1.0).abs())
    };
    if off(scenario.kv_dtype)? <= OTHER_POOL {
        return None;
    }
    let formats = [KvDtype::Bf16, KvDtype::Fp8].into_iter();
    let mut met = formats.filter(|dtype| off(*dtype).is_some_and(|off| off <= SAME_POOL));
    let (dtype, None) = (met.next()?, met.next()) else {
        return None;
    };
    let name = dtype.name();
    let source = format!("{at}: the pool printed there is of a cache in {name}");
    Some((dtype, source))
}

/// Tokens that the printed GiB hold in a format, on the server that printed them.
fn tokens_in_the_pool(scenario: &Scenario, ran: &Ran, dtype: KvDtype) -> Option<f64> {
    let pool_gib = ran.kv_gib?;
    let mut setup = super::setup(scenario, None).ok()?;
    match setup.engine.kind {
        EngineKind::Vllm => {}
        EngineKind::Sglang => {
            setup.kv_dtype = Some(dtype);
            let bytes = scenario
                .model
                .kv_bytes_per_token(&setup.sharding, &setup.kv_layout());
            return (bytes > 0).then(|| pool_gib * (1_u64 << 30) as f64 / bytes as f64);
        }
        EngineKind::TensorRtLlm | EngineKind::LlamaCpp => return None,
    }
    let mut setup = as_it_ran(scenario, ran)?;
    setup.kv_dtype = Some(dtype);
    setup.observed.pool_gib = Some(pool_gib);
    Some(kvplan::plan(&setup).ok()?.kv_tokens as f64)
}

/// The setup as a vLLM log's server ran, whatever draft, depth or fraction is asked for here; nothing of its
/// pool in it.
fn as_it_ran<'a>(scenario: &'a Scenario, ran: &Ran) -> Option<Setup<'a>> {
    let mut setup = super::setup(scenario, None).ok()?;
    let draft = scenario.given_back.as_ref().or(scenario.draft.as_ref());
    let mut drafts = speculation(scenario, draft.filter(|_| ran.speculates));
    if let Some((drafts, tokens)) = drafts.as_mut().zip(ran.draft_tokens) {
        (drafts.draft_tokens, drafts.steps) = (tokens, tokens.saturating_sub(1));
    }
    setup.speculation = drafts;
    setup.fraction = ran.fraction.or(setup.fraction);
    setup.max_running = ran.max_running;
    setup.context_tokens = ran.context_limit.or(setup.context_tokens);
    setup.prefix_states = ran.prefix_states;
    setup.observed = Observed {
        pool_with_draft: drafts.is_some(),
        ..Observed::default()
    };
    Some(setup)
}

/// Gives a vLLM log that counts the tokens of its pool and prints no GiB, as excerpts do, the pool that these
/// tokens take.
pub(crate) fn pool_of_its_tokens(scenario: &mut Scenario) {
    let ran = scenario.ran.with_draft.as_deref();
    let ran = ran.unwrap_or(&scenario.ran);
    let vllm = scenario.engine.kind.rules() == EngineKind::Vllm;
    let Some(tokens) = ran.kv_tokens.filter(|_| vllm && ran.kv_gib.is_none()) else {
        return;
    };
    let pool = as_it_ran(scenario, ran).and_then(|setup| {
        let gib = kvplan::vllm_pool_of_tokens(&setup, tokens)?;
        Some((gib, tokens))
    });
    let ran = match scenario.ran.with_draft.as_deref_mut() {
        Some(ran) => ran,
        None => &mut scenario.ran,
    };
    ran.kv_gib = pool.map(|(gib, _)| gib);
    scenario.ran.pool_of_tokens = pool;
}
