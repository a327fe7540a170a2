//! The memory part of a prediction: the plan of the fraction that is asked for, or of one that is
//! legal and carries the context.

use kvplan::{EngineKind, Fit, Plan};

use super::cost::{self, DraftCost};
use super::instead::{self, good};
use super::wall::{clear_fraction, typed};
use super::{Report, fraction_flag, limit, report, starts, text};
use crate::cli::PlanArgs;
use crate::input;
use crate::predict::answer::{LedgerLine, Memory, MostAtOnce, Roomier};
use crate::scenario::Scenario;

/// The memory part of a prediction.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn memory(scenario: &Scenario) -> anyhow::Result<Memory> {
    let own = report(scenario, None, None)?;
    if own.engine.kind == EngineKind::LlamaCpp {
        return of_slots(own, scenario);
    }
    let other = instead::of(&own, scenario, None)?;
    let cost = cost::of(&own, scenario, None, other.as_ref())?;
    if let Some(other) = other {
        let mut memory = for_load(&other.report, &other.scenario);
        if !own.told {
            fewer_at_once(&other.report, scenario, &mut memory)?;
        }
        memory.set_instead = Some(other.why);
        return Ok(at_a_cost(memory, cost));
    }
    let plan = &own.cost.with;
    let mut memory = for_load(&own, scenario);
    // What a log's server was told is no wish of this user's.
    let free = !own.told || scenario.by_log("mem_fraction");
    let stands = own.told || good(plan, scenario.context);
    if free && stands && !plan.interval.is_empty() {
        memory.roomier = roomier(&own, scenario)?;
    }
    if stands || plan.interval.is_empty() {
        fewer_at_once(&own, scenario, &mut memory)?;
    }
    Ok(at_a_cost(memory, cost))
}

/// Puts what the draft costs beside a pool with it.
fn at_a_cost(mut memory: Memory, cost: Option<DraftCost>) -> Memory {
    if let Some(cost) = &cost {
        memory.kv_tokens_without_speculation = Some(cost.tokens()[1]);
    }
    memory.draft_cost = cost;
    memory
}

/// llama.cpp takes what its slots need: as many as the heaviest load shown that fits, where nobody
/// said how many.
fn of_slots(own: Report, scenario: &Scenario) -> anyhow::Result<Memory> {
    let (own, scenario) = match with_slots(scenario, None)? {
        Some(wider) => wider,
        None => (own, scenario.clone()),
    };
    let cost = cost::of(&own, &scenario, None, None)?;
    Ok(at_a_cost(for_load(&own, &scenario), cost))
}

/// The plan of llama.cpp with as many slots as the heaviest load that fits, above one, and the
/// scenario with them; `None` where somebody said how many.
pub(super) fn with_slots(
    scenario: &Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Option<(Report, Scenario)>> {
    let by_flag = args.is_some_and(|args| args.knobs.max_running.is_some());
    if by_flag || scenario.max_running.is_some() || scenario.ran.told_running().is_some() {
        return Ok(None);
    }
    let mut wider = scenario.clone();
    let loads = scenario.concurrency.iter().rev();
    for users in loads.filter(|users| **users > 1) {
        wider.max_running = Some(u64::from(*users));
        let other = report(&wider, args, None)?;
        if starts(&other.cost.with) {
            return Ok(Some((other, wider)));
        }
    }
    Ok(None)
}

/// The least fraction that holds what the low end of the activation wall does of the loads shown,
/// where these do not fit the pool and that is more of them.
fn roomier(own: &Report, scenario: &Scenario) -> anyhow::Result<Option<Roomier>> {
    let plan = &own.cost.with;
    let context = scenario.context;
    let most = f64::from(scenario.concurrency.last().copied().unwrap_or(1));
    let top = typed(plan.interval.max_low);
    let now = requests(plan, context).floor();
    if now >= most || top <= plan.fraction || top > 1.0 {
        return Ok(None);
    }
    let mut other = scenario.clone();
    if !scenario.ran.file.is_empty() {
        let vllm = own.engine.kind == EngineKind::Vllm;
        other.ran = scenario.ran.clone().at_other_fraction(vllm);
    }
    let at = |fraction: f64| report(&other, None, Some(fraction));
    let roomiest = at(top)?;
    let more = requests(&roomiest.cost.with, context).min(most).floor();
    if !good(&roomiest.cost.with, context) || more <= now {
        return Ok(None);
    }
    let setup = super::setup(&other, None)?;
    let fail = |error: kvplan::PlanError| input::error(error.to_string());
    let least = kvplan::for_target(&setup, context, more as u64).map_err(fail)?;
    let held = at(least.fraction)?;
    let holds = good(&held.cost.with, context) && requests(&held.cost.with, context) >= more;
    let fraction = if least.reached && holds {
        least.fraction
    } else {
        top
    };
    Ok(Some(Roomier {
        setting: format!("{} {fraction:.3}", fraction_flag(own)),
        requests: more as u32,
    }))
}

/// Requests of a context that pool and state slots carry.
fn requests(plan: &Plan, context: u64) -> f64 {
    let slots = plan.state_slots;
    let slots = slots.map_or(u64::MAX, kvplan::StateSlots::requests);
    plan.pool.requests(context).min(slots as f64)
}

/// As few requests at once as the heaviest load shown, where vLLM is told or takes more and the pool
/// holds less than that load: graphs and sampler rows for the others give way to the pool.
fn fewer_at_once(own: &Report, scenario: &Scenario, memory: &mut Memory) -> anyhow::Result<()> {
    let plan = &own.cost.with;
    let most = u64::from(scenario.concurrency.last().copied().unwrap_or(1));
    let now = requests(plan, scenario.context);
    let vllm = own.engine.kind == EngineKind::Vllm;
    if !vllm || now >= most as f64 || plan.running_setting <= most || !starts(plan) {
        return Ok(());
    }
    let mut other = scenario.clone();
    other.max_running = Some(most);
    let other = report(&other, None, Some(plan.fraction))?;
    let holds = requests(&other.cost.with, scenario.context);
    let more = holds.min(most as f64).floor();
    let known = memory
        .roomier
        .as_ref()
        .map_or(now, |r| f64::from(r.requests));
    let worth = starts(&other.cost.with) && more > now.floor();
    if worth && more > known {
        memory.roomier = Some(Roomier {
            setting: format!("--max-num-seqs {most}"),
            requests: more as u32,
        });
    }
    Ok(())
}

/// The same with what depends on the load of a scenario.
fn for_load(report: &Report, scenario: &Scenario) -> Memory {
    let plan = &report.cost.with;
    Memory {
        holds_without_draft: Some(report.cost.without.pool.requests(scenario.context) >= 1.0),
        fraction: Some(as_said(plan.fraction, scenario)),
        graphs: scenario.graphs,
        limit: limit::in_head(report, scenario),
        ..to_memory(report)
    }
}

/// A log's figures are rounded, so the fraction that they give backwards differs in the fourth
/// digit from the one that its server was told: that one is to be set again.
pub(super) fn as_said(inferred: f64, scenario: &Scenario) -> f64 {
    let said = scenario.mem_fraction.unwrap_or(inferred);
    if (said - inferred).abs() < 0.001 {
        said
    } else {
        inferred
    }
}

/// The contract's `memory`.
pub(super) fn to_memory(report: &Report) -> Memory {
    let plan = &report.cost.with;
    Memory {
        fits: fits(plan, report.context),
        never_loads: plan.loading.is_some(),
        kv_tokens: Some(plan.kv_tokens),
        kv_tokens_without_speculation: Some(report.cost.without.kv_tokens),
        computed_weights_gib: plan.computed_weights_gib,
        holds_without_draft: None,
        pool: Some(plan.pool.clone()),
        state_slots: plan.state_slots,
        graphs: None,
        most_at_once: Some(most_at_once(report)),
        limit: None,
        seqs_assumed: seqs_assumed(plan),
        length: report.length.clone(),
        roomier: None,
        set_instead: None,
        draft_cost: None,
        fraction: Some(plan.fraction),
        fraction_min: Some(plan.interval.min),
        tokens_in_requests_of: plan.tokens_in_requests_of,
        legal_for: match report.engine.kind {
            // The lower wall is that of an empty pool.
            EngineKind::Sglang => None,
            EngineKind::Vllm => Some(plan.context_tokens),
            EngineKind::TensorRtLlm | EngineKind::LlamaCpp => Some(report.context),
        },
        pasted_limit: None,
        fraction_max: Some(plan.interval.max),
        fraction_clear: clear_fraction(plan, report.context),
        ledger: plan.ledger.lines.iter().map(ledger_line).collect(),
        notes: text::notes(report),
    }
}

/// The plan's word of the requests at once that nobody said.
fn seqs_assumed(plan: &Plan) -> Option<String> {
    let mut all = plan.assumptions.iter();
    all.find(|line| line.starts_with("max_num_seqs ")).cloned()
}

/// Requests of the scenario's context at once, and what stops more.
fn most_at_once(report: &Report) -> MostAtOnce {
    let at_once = report.cost.with.at_once(report.context);
    MostAtOnce {
        requests: at_once.requests,
        context: report.context,
        wall: match at_once.wall {
            kvplan::Wall::Pool => "KV pool",
            kvplan::Wall::StateSlots => "state slots",
            kvplan::Wall::Setting => "max running",
        },
    }
}

/// Whether a plan fits; `None` where it starts and only the band of what lies outside the fraction
/// decides whether it runs out later.
fn fits(plan: &Plan, context: u64) -> Option<bool> {
    match plan.fit(context) {
        Fit::Fits => Some(true),
        Fit::Open => None,
        Fit::TooShort | Fit::RunsOut | Fit::Refused => Some(false),
    }
}

fn ledger_line(line: &kvplan::Line) -> LedgerLine {
    LedgerLine {
        item: line.item.clone(),
        gib: line.gib,
        low_gib: line.low,
        high_gib: line.high,
        source: line.source.clone(),
    }
}
