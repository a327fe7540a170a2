//! Forwards: a setup to a plan, with and without speculation, and from a target to a setting.

use crate::engine::{EngineKind, llamacpp, sglang, trtllm, vllm};
use crate::setup::{Plan, PlanError, Setup};

/// Plans the memory of one card.
///
/// # Errors
/// Inputs no engine could run with, in one line that names the input.
pub fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    match setup.engine.kind {
        EngineKind::Sglang => sglang::plan(setup),
        EngineKind::Vllm => vllm::plan(setup),
        EngineKind::TensorRtLlm => trtllm::plan(setup),
        EngineKind::LlamaCpp => llamacpp::plan(setup),
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
}

/// Plans a setup with its speculation and without.
///
/// # Errors
/// As [`plan`].
pub fn speculation_cost(setup: &Setup<'_>) -> Result<SpeculationCost, PlanError> {
    let with = plan(setup)?;
    let mut plain = setup.plain();
    // Figures of a log that ran with the draft say nothing of a run without it, save what was
    // free before any weights, and the fraction.
    if setup.speculation.is_some() {
        plain.fraction = Some(with.fraction).filter(|_| setup.engine.kind != EngineKind::LlamaCpp);
        if setup.fraction.is_none() && setup.observed.pool_gib.is_none() {
            plain.fraction = None;
        }
    }
    let without = plan(&plain)?;
    Ok(SpeculationCost {
        tokens_lost: without.kv_tokens.saturating_sub(with.kv_tokens),
        context_lost: without.longest_context.saturating_sub(with.longest_context),
        draft_gib: with.ledger.speculation_gib(),
        with,
        without,
    })
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
    /// Longest context that the wanted number of requests can have.
    pub context_tokens: u64,
    /// The plan at that fraction.
    pub plan: Plan,
}

/// The least fraction that carries `requests` of `context_tokens`, or the nearest load there is.
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
    let at = |fraction: f64| {
        let mut trial = setup.clone();
        trial.fraction = Some(fraction);
        trial.context_tokens = Some(context_tokens);
        trial.observed.pool_gib = None;
        plan(&trial)
    };
    let start = plan(setup)?;
    let ceiling = start.interval.max.clamp(0.001, 0.999);
    let most = at(ceiling)?;
    let carries = |plan: &Plan| plan.max_concurrency >= requests as f64 && plan.refusal.is_none();
    if !carries(&most) {
        let held = most.max_concurrency;
        return Ok(TargetAnswer {
            reached: false,
            fraction: ceiling,
            requests: held as u64,
            context_tokens: (held * context_tokens as f64 / requests as f64) as u64,
            plan: most,
        });
    }
    // Capacity grows with the fraction: halve the interval down to what an engine's flag resolves.
    let (mut low, mut high) = (0.0f64, ceiling);
    while high - low > 0.0005 {
        let middle = 0.5 * (low + high);
        if carries(&at(middle)?) {
            high = middle;
        } else {
            low = middle;
        }
    }
    let fraction = ((high * 1000.0).ceil() / 1000.0).min(ceiling);
    let plan = at(fraction)?;
    Ok(TargetAnswer {
        reached: true,
        fraction,
        requests: plan.max_concurrency as u64,
        context_tokens,
        plan,
    })
}
