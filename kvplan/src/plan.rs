//! Forwards: a setup to a plan, with and without speculation, and from a target to a setting.

use crate::engine::{EngineKind, llamacpp, sglang, trtllm, vllm};
use crate::loading;
use crate::parts;
use crate::pool::Pool;
use crate::refusal;
use crate::setup::{Plan, PlanError, Setup, StateSlots};

/// Plans the memory of one card.
///
/// # Errors
/// Inputs no engine could run with, in one line that names the input.
pub fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    let setup = &free_after_the_target(setup);
    let mut plan = match setup.engine.kind {
        EngineKind::Sglang => sglang::plan(setup),
        EngineKind::Vllm => vllm::plan(setup),
        EngineKind::TensorRtLlm => trtllm::plan(setup),
        EngineKind::LlamaCpp => llamacpp::plan(setup),
    }?;
    if setup.ran() {
        with_its_pool(&mut plan, setup);
        let stayed_up = setup.observed.fate.is_some_and(|fate| fate.stayed_up);
        if stayed_up && !setup.gains_graphs() {
            as_it_ran(&mut plan, setup);
        }
    }
    refusal::short_card(&mut plan);
    loading::refuse(&mut plan, setup);
    Ok(plan)
}

/// The setup with `free_after_gib` as it is before a draft is loaded.
fn free_after_the_target<'a>(setup: &Setup<'a>) -> Setup<'a> {
    let mut setup = setup.clone();
    let counted = setup.engine.kind == EngineKind::Sglang
        && sglang::draft_era(setup.engine.version) == sglang::DraftEra::Counted;
    if counted && setup.observed.free_after_with_draft {
        let draft = parts::draft_of(&setup, true);
        let held = (draft.weight_bytes + draft.table_bytes) / crate::GIB;
        if let Some(after) = &mut setup.observed.free_after_gib {
            *after += held;
        }
    }
    setup.observed.free_after_with_draft = false;
    setup
}

/// A server that got past its pool has that pool, whatever the estimates say.
fn with_its_pool(plan: &mut Plan, setup: &Setup<'_>) {
    if let Some(tokens) = setup
        .served_tokens()
        .filter(|_| setup.engine.kind != EngineKind::Vllm)
    {
        plan.kv_tokens = tokens;
        plan.pool = Pool::of_tokens(tokens);
        plan.max_concurrency = plan.pool.requests(plan.context_tokens);
        plan.longest_context = tokens.min(plan.context_tokens);
        plan.pool_gib = setup.observed.pool_gib.unwrap_or(plan.pool_gib);
        plan.refusal = None;
    }
}

/// A server that came to serve fits: its fraction inside the walls, nothing missing from the card. Only
/// a context that its pool does not hold is still refused.
fn as_it_ran(plan: &mut Plan, setup: &Setup<'_>) {
    if plan.refusal.is_some() {
        return;
    }
    plan.fits = setup.context_tokens.is_none() || plan.max_concurrency >= 1.0;
    let interval = &mut plan.interval;
    interval.min = interval.min.min(plan.fraction);
    for wall in [
        &mut interval.max,
        &mut interval.max_low,
        &mut interval.max_high,
    ] {
        *wall = wall.max(plan.fraction);
    }
    plan.ledger.not_missing();
}

/// States of linear and Mamba layers that stand beside a KV pool that was seen, GiB; 0 where the
/// engine keeps none apart.
pub fn state_beside_pool(setup: &Setup<'_>, pool_gib: f64) -> f64 {
    match setup.engine.kind {
        EngineKind::Sglang => sglang::beside_pool(setup, pool_gib),
        _ => 0.0,
    }
}

/// What speculation costs in memory.
#[derive(Debug, Clone)]
pub struct SpeculationCost {
    /// With the draft.
    pub with: Plan,
    /// Without, all else equal.
    pub without: Plan,
    /// Tokens of the pool that speculation takes.
    pub tokens_lost: u64,
    /// Tokens of the longest context that speculation takes.
    pub context_lost: u64,
    /// GiB of weights, tables, pools and graphs that exist for the draft alone.
    pub draft_gib: f64,
    /// What the tokens lost rest on.
    pub basis: CostBasis,
}

impl SpeculationCost {
    /// The tokens lost in GiB: that share of the pool without speculation.
    pub fn pool_lost_gib(&self) -> f64 {
        let share = self.tokens_lost as f64 / self.without.kv_tokens.max(1) as f64;
        share * self.without.pool_gib
    }

    /// What the draft takes of what the pool leaves, GiB: what stays free without it less what does with it.
    /// Negative where more stays free: a vocabulary table that is let go once the pool is sized.
    pub fn beside_pool_gib(&self) -> f64 {
        let rows = self.with.ledger.more_than(&self.without.ledger);
        rows.iter().map(|row| row.gib).sum::<f64>() - self.pool_lost_gib()
    }

    /// Takes the pool without the draft as a plain server printed it, with its fraction.
    pub fn without_as_seen(&mut self, tokens: u64, fraction: Option<f64>) {
        let plain = &mut self.without;
        let share = tokens as f64 / plain.kv_tokens.max(1) as f64;
        let pool = plain.pool.scaled(share);
        let like = plain.clone();
        at_tokens(plain, &like, tokens);
        if pool.grouped() {
            plain.max_concurrency = pool.requests(plain.context_tokens);
            plain.pool = pool;
        }
        plain.fraction = fraction.unwrap_or(plain.fraction);
        self.tokens_lost = tokens.saturating_sub(self.with.kv_tokens);
        let longest = self.without.longest_context;
        self.context_lost = longest.saturating_sub(self.with.longest_context);
        self.basis = CostBasis::SeenBoth;
    }
}

/// What the two pools of [`SpeculationCost`] rest on. A pool that was seen is never held against one
/// that was estimated from nothing of the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostBasis {
    /// Both are planned alike.
    Planned,
    /// The pool that was seen, against what its log says was free for it.
    Seen,
    /// The pool that was seen, and beside it the difference of two estimates.
    Estimates,
    /// The pool that was seen without the draft, less what the draft is estimated to take.
    SeenWithout,
    /// Both were seen.
    SeenBoth,
}

fn basis(setup: &Setup<'_>) -> CostBasis {
    let seen = setup.observed;
    let pool_known = setup.served_tokens().is_some() && setup.speculation.is_some();
    let plain = setup.seen_without_draft();
    if plain.is_some_and(|plain| plain.served_tokens().is_some()) {
        CostBasis::SeenWithout
    } else if !pool_known || matches!(setup.engine.kind, EngineKind::Vllm | EngineKind::LlamaCpp) {
        CostBasis::Planned
    } else if setup.engine.kind == EngineKind::Sglang
        && seen.free_before_gib.is_some()
        && seen.free_after_gib.is_some()
        && setup.fraction.is_some()
    {
        CostBasis::Seen
    } else {
        CostBasis::Estimates
    }
}

/// Puts the pool without the draft as far above the one that was seen as one estimate is above the
/// other.
fn beside_the_log(without: &mut Plan, with: &Plan, setup: &Setup<'_>) -> Result<(), PlanError> {
    let mut guess = setup.clone();
    guess.observed.tokens = None;
    guess.observed.served = false;
    let lost = without.kv_tokens.saturating_sub(plan(&guess)?.kv_tokens);
    at_tokens(without, with, with.kv_tokens.saturating_add(lost));
    Ok(())
}

/// Gives a plan a pool of so many tokens, each as large as those of another plan.
fn at_tokens(plan: &mut Plan, like: &Plan, tokens: u64) {
    let per_token = like.pool_gib / like.kv_tokens.max(1) as f64;
    plan.kv_tokens = tokens;
    plan.pool = Pool::of_tokens(tokens);
    plan.pool_gib = tokens as f64 * per_token;
    plan.max_concurrency = plan.pool.requests(plan.context_tokens);
    plan.longest_context = tokens.min(plan.context_tokens);
}

/// Puts the pool with the draft as far below the one that was seen without as one estimate is below
/// the other.
fn below_the_log(with: &mut Plan, without: &Plan, setup: &Setup<'_>) -> Result<(), PlanError> {
    let mut guess = setup.plain();
    guess.observed.tokens = None;
    guess.observed.served = false;
    let lost = plan(&guess)?.kv_tokens.saturating_sub(with.kv_tokens);
    let like = with.clone();
    at_tokens(with, &like, without.kv_tokens.saturating_sub(lost));
    Ok(())
}

/// Whether a pool without the draft is smaller than the one seen with it, or larger by no more than the
/// two figures of what was free, printed with two decimals, leave open.
fn within_print(without: &Plan, with: &Plan) -> bool {
    const PRINTED_GIB: f64 = 0.01;
    let more = without.kv_tokens.saturating_sub(with.kv_tokens) as f64;
    let gib_per_token = with.pool_gib / with.kv_tokens.max(1) as f64;
    more * gib_per_token <= PRINTED_GIB
}

/// Plans a setup with its speculation and without.
///
/// # Errors
/// As [`plan`].
pub fn speculation_cost(setup: &Setup<'_>) -> Result<SpeculationCost, PlanError> {
    let setup = &free_after_the_target(setup);
    let mut with = plan(setup)?;
    let mut plain = setup.plain();
    // Figures of a log that ran with the draft say nothing of a run without it, save what was
    // free before any weights, and the fraction.
    if setup.speculation.is_some() {
        plain.fraction = Some(with.fraction).filter(|_| setup.engine.kind != EngineKind::LlamaCpp);
        if setup.fraction.is_none() && setup.observed.pool_gib.is_none() {
            plain.fraction = None;
        }
    }
    without_the_draft(&mut plain, &at_its_depth(setup, &with)?);
    let mut without = plan(&plain)?;
    let basis = basis(setup);
    match basis {
        CostBasis::Estimates => beside_the_log(&mut without, &with, setup)?,
        // What was free is printed with two decimals, so it may explain less than the pool that was
        // seen; the pool without the draft is no smaller than that.
        CostBasis::Seen if within_print(&without, &with) => {
            at_tokens(&mut without, &with, with.kv_tokens);
        }
        // SGLang and vLLM plan from that pool by their own formulas.
        CostBasis::SeenWithout if setup.engine.kind == EngineKind::TensorRtLlm => {
            below_the_log(&mut with, &without, setup)?;
        }
        _ => {}
    }
    Ok(SpeculationCost {
        basis,
        tokens_lost: without.kv_tokens.saturating_sub(with.kv_tokens),
        context_lost: without.longest_context.saturating_sub(with.longest_context),
        draft_gib: with.ledger.speculation_gib(),
        with,
        without,
    })
}

/// The plan with as many drafted tokens as the run whose pool was seen had (vLLM).
fn at_its_depth(setup: &Setup<'_>, with: &Plan) -> Result<Plan, PlanError> {
    match vllm::as_it_drafted(setup) {
        Some(ran) if setup.engine.kind == EngineKind::Vllm => plan(&ran),
        _ => Ok(with.clone()),
    }
}

/// What a log of a run with the draft says of one without it: the pool grows by the draft's weights,
/// the graphs shrink to the target's.
fn without_the_draft(plain: &mut Setup<'_>, with: &Plan) {
    if !plain.observed.pool_with_draft {
        return;
    }
    plain.observed.pool_with_draft = false;
    if with.ledger.speculation_gib() <= 0.0 {
        return;
    }
    let weights = with.ledger.draft_loaded_gib();
    let inside = plain.engine.kind == EngineKind::Vllm && vllm::graphs_counted(plain);
    let graphs = with.ledger.gib_of("draft: graphs");
    let weights = weights + if inside { graphs } else { 0.0 };
    if let Some(pool) = &mut plain.observed.pool_gib {
        *pool += weights;
    }
    if let (EngineKind::TensorRtLlm, Some(free)) =
        (plain.engine.kind, &mut plain.observed.free_after_gib)
    {
        *free += weights;
    }
    plain.observed.tokens = None;
    plain.observed.state_gib = None;
    if plain.engine.kind != EngineKind::Vllm {
        let apart = plain.observed.graph_gib.zip(plain.observed.draft_graph_gib);
        let target = apart.map(|(all, draft)| (all - draft).max(0.0));
        plain.observed.target_graph_gib = plain.observed.target_graph_gib.or(target);
        plain.observed.graph_gib = None;
    } else if plain.observed.graph_gib.is_some() {
        plain.observed.graph_gib = Some(with.ledger.gib_of("target: graphs"));
    }
}

/// A setup whose observed figures are of a run with its draft, as that run would have been seen without
/// one: what the draft is estimated to take is given back to the pool.
///
/// # Errors
/// As [`plan`].
pub fn given_back<'a>(setup: &Setup<'a>) -> Result<Setup<'a>, PlanError> {
    let mut plain = setup.plain();
    let with = plan(setup)?;
    without_the_draft(&mut plain, &at_its_depth(setup, &with)?);
    Ok(plain)
}

/// The longest context below a limit that fits, 0 where none does: what is named must fit when it is
/// asked for, and tables by context and windows move the pool.
fn longest(limit: u64, fits: impl Fn(u64) -> Result<bool, PlanError>) -> Result<u64, PlanError> {
    let (mut low, mut high) = (0, limit.saturating_sub(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle)? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}

/// The longest length below a limit that a server can surely be told to take: it starts also where its
/// pool comes out at the low end of its band. As it is typed; 0 where there is none.
///
/// # Errors
/// As [`plan`].
pub fn longest_sure(setup: &Setup<'_>, limit: u64) -> Result<u64, PlanError> {
    let told = |tokens: u64| plan(&setup.told_length(tokens));
    let own = plan(setup)?;
    let pool = own.pool_low.as_ref().unwrap_or(&own.pool);
    // Few pools move with the length: then this one's says it.
    let held = longest(limit, |tokens| Ok(pool.requests(tokens) >= 1.0))?;
    let most = match held > 0 && told(held)?.surely_starts() {
        true => held,
        false => longest(limit, |tokens| Ok(told(tokens)?.surely_starts()))?,
    };
    if most == 0 {
        return Ok(0);
    }
    let typed = match told(most)?.pool_low {
        Some(_) => typed_length(most),
        None => most - most % LENGTH_STEP,
    };
    // Passes of another length may have another pool: what is named was tried.
    let starts = typed > 0 && told(typed)?.surely_starts();
    Ok(if starts { typed } else { most })
}

/// Tokens of the shortest request that a remedy is named with: fewer hold no prompt and its answer.
const LEAST_REMEDY_TOKENS: u64 = 256;

/// A length that a remedy may be named with; 0 where it is too short to serve with.
pub(crate) fn usable(tokens: u64) -> u64 {
    match tokens < LEAST_REMEDY_TOKENS {
        true => 0,
        false => tokens,
    }
}

/// Tokens of a block: lengths are typed in whole ones.
const LENGTH_STEP: u64 = 16;

/// A length that rests on an estimate as it is typed: no longer, by less than 2 %, in whole blocks.
pub(crate) fn typed_length(tokens: u64) -> u64 {
    let step = (tokens / 64).max(LENGTH_STEP);
    // The largest power of two in it.
    let step = 1 << step.ilog2();
    tokens - tokens % step
}

/// A fraction as it is typed and printed, no higher: a fourth digit would not be set.
pub(crate) fn typed_fraction(fraction: f64) -> f64 {
    // A wall at a fraction that was itself typed is not lowered by the last digit of a sum.
    (((fraction + 1e-8) * 1000.0).floor() / 1000.0).clamp(0.001, 0.999)
}

/// A wanted load and the setting that carries it.
#[derive(Debug, Clone)]
pub struct TargetAnswer {
    /// Whether the load can be carried at all.
    pub reached: bool,
    /// The fraction to set.
    pub fraction: f64,
    /// Requests of the wanted context that this fraction carries.
    pub requests: u64,
    /// Longest context that the wanted number of requests can have; 0 where none helps.
    pub context_tokens: u64,
    /// The plan at that fraction.
    pub plan: Plan,
}

/// A setup that is told to run so many requests at once, where by itself or as told it runs fewer: with
/// them its tables, graphs and walls move.
///
/// # Errors
/// As [`plan`].
pub fn told_to_run<'a>(setup: &Setup<'a>, requests: u64) -> Result<Setup<'a>, PlanError> {
    let mut told = setup.clone();
    if plan(setup)?.running_setting < requests {
        told.max_running = Some(requests);
    }
    Ok(told)
}

/// The least fraction that carries `requests` of `context_tokens` on a server that is told to run as many, or
/// the nearest load there is. It stays under the band of the activation wall; inside it only where that
/// alone carries the load.
///
/// # Errors
/// As [`plan`].
pub fn for_target(
    setup: &Setup<'_>,
    context_tokens: u64,
    requests: u64,
) -> Result<TargetAnswer, PlanError> {
    let context_tokens = context_tokens.max(1);
    let requests = requests.max(1);
    let setup = &told_to_run(setup, requests)?;
    let at = |fraction: f64, context: u64| {
        let mut trial = setup.clone();
        trial.fraction = Some(fraction);
        trial.context_tokens = Some(context);
        if trial.observed.pool_fraction.is_none() {
            trial.observed.pool_gib = None;
            trial.observed.tokens = None;
        }
        trial.observed.served = false;
        plan(&trial)
    };
    let interval = plan(setup)?.interval;
    let ceiling = typed_fraction(interval.max);
    let safe =
        Some(typed_fraction(interval.max_low)).filter(|low| *low > interval.min && *low < ceiling);
    let safe = safe.unwrap_or(ceiling);
    let carries = |plan: &Plan| plan.carries(context_tokens, requests) && plan.refusal.is_none();
    let slots = |plan: &Plan| plan.state_slots.map_or(u64::MAX, StateSlots::requests);
    let most = at(safe, context_tokens)?;
    let (low, high) = if carries(&most) {
        (0.0, safe)
    } else if safe < ceiling && carries(&at(ceiling, context_tokens)?) {
        (safe, ceiling)
    } else {
        // Contexts help against the pool, not against too few state slots.
        let fewer = slots(&most) >= requests;
        let longest = longest(context_tokens, |tokens| {
            let plan = at(safe, tokens)?;
            Ok(fewer && plan.refusal.is_none() && plan.carries(tokens, requests))
        })?;
        return Ok(TargetAnswer {
            reached: false,
            fraction: safe,
            requests: (most.max_concurrency as u64).min(slots(&most)),
            context_tokens: usable(longest),
            plan: most,
        });
    };
    // Capacity grows with the fraction: halve the interval among those that can be typed.
    let thousandths = |fraction: f64| (fraction * 1000.0).round() as u32;
    let as_fraction = |thousandths: u32| f64::from(thousandths) / 1000.0;
    let (mut low, mut high) = (thousandths(low), thousandths(high));
    while high > low + 1 {
        let middle = u32::midpoint(low, high);
        if carries(&at(as_fraction(middle), context_tokens)?) {
            high = middle;
        } else {
            low = middle;
        }
    }
    let fraction = as_fraction(high);
    let plan = at(fraction, context_tokens)?;
    Ok(TargetAnswer {
        reached: true,
        fraction,
        requests: (plan.max_concurrency as u64).min(slots(&plan)),
        context_tokens,
        plan,
    })
}
