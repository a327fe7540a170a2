//! The memory part of a prediction: the plan of the fraction that is asked for, or of one that is
//! legal and carries the context.

use kvplan::{EngineKind, Fit, Plan};

use super::wall::{band, clear_fraction, typed};
use super::{Report, choice, fraction_flag, limit, report, starts, text};
use crate::cli::PlanArgs;
use crate::input;
use crate::predict::answer::{LedgerLine, Memory, MostAtOnce, Roomier};
use crate::scenario::Scenario;
use crate::table::{at_most, thousands};

/// The memory part of a prediction.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn memory(scenario: &Scenario) -> anyhow::Result<Memory> {
    let own = report(scenario, None, None)?;
    if own.engine.kind == EngineKind::LlamaCpp {
        return of_slots(own, scenario);
    }
    if let Some(memory) = below_where_it_ran_out(&own, scenario)? {
        return Ok(memory);
    }
    if let Some(memory) = below_a_plain_servers(&own, scenario)? {
        return Ok(memory);
    }
    if let Some(memory) = above_where_it_was_refused(&own, scenario)? {
        return Ok(memory);
    }
    let plan = &own.cost.with;
    let given =
        scenario.mem_fraction.is_some() || scenario.observed.kv_gib.is_some() || own.ran.is_some();
    if given || plan.interval.is_empty() || good(plan, scenario.context) {
        let mut memory = for_load(&own, scenario);
        memory.fraction_given = given;
        memory.cost_by_fraction = choice::cost(&own, scenario)?;
        of_both_logs(&own, scenario, &mut memory)?;
        // What a log's server was told is no wish of this user's.
        let free = !given || scenario.by_log("mem_fraction");
        if free && !plan.interval.is_empty() {
            memory.roomier = roomier(&own, scenario)?;
        }
        fewer_at_once(&own, scenario, &mut memory)?;
        return Ok(memory);
    }
    // Nobody asked for the fraction that is refused, too small or above the wall: answer for one
    // that carries the context, which the flags to paste then set.
    for fraction in better_fractions(plan) {
        let other = report(scenario, None, Some(fraction))?;
        if good(&other.cost.with, scenario.context) {
            let mut memory = for_load(&other, scenario);
            memory.set_instead = Some(set_instead(&own, fraction, scenario.context));
            fewer_at_once(&other, scenario, &mut memory)?;
            return Ok(memory);
        }
    }
    Ok(for_load(&own, scenario))
}

/// What the draft costs by the pools of two logs, its own and the plain server's: that is what `explain`
/// says of them.
fn of_both_logs(own: &Report, scenario: &Scenario, memory: &mut Memory) -> anyhow::Result<()> {
    let as_logged = scenario.ran.as_asked() && scenario.ran.speculates && scenario.draft.is_some();
    let same = as_logged && memory.kv_tokens == scenario.ran.kv_tokens;
    let Some(plain) = scenario.ran.plain_pool.as_ref().filter(|_| same) else {
        return Ok(());
    };
    let lost = plain.tokens.saturating_sub(memory.kv_tokens.unwrap_or(0));
    let of_one = own.cost.without.kv_bytes_per_token / f64::from(1 << 30);
    memory.kv_tokens_without_speculation = Some(plain.tokens);
    memory.pool_gib_lost = Some(lost as f64 * of_one);
    memory.cost_by_fraction =
        choice::of_both_logs(own, scenario, memory.cost_by_fraction.as_ref())?;
    memory.by_both_logs = true;
    Ok(())
}

/// The fraction in the log of a plain server was set for a run without a draft: where the draft brings
/// it above the activation wall, answers for one that is legal with it.
fn below_a_plain_servers(own: &Report, scenario: &Scenario) -> anyhow::Result<Option<Memory>> {
    let plan = &own.cost.with;
    let of_plain = scenario.by_log("mem_fraction") && !scenario.ran.speculates;
    let too_high = starts(plan) && plan.fraction > plan.interval.max;
    if scenario.draft.is_none() || !of_plain || !too_high || plan.interval.is_empty() {
        return Ok(None);
    }
    let mut other = scenario.clone();
    let vllm = own.engine.kind == EngineKind::Vllm;
    other.ran = scenario.ran.clone().at_other_fraction(vllm);
    // Below the wall's band first: what stayed up there with a draft nobody has seen.
    for fraction in [plan.interval.max_low, plan.interval.max].map(typed) {
        other.mem_fraction = Some(fraction);
        let lower = report(&other, None, None)?;
        if good(&lower.cost.with, scenario.context) {
            let mut memory = for_load(&lower, &other);
            let ran = scenario.ran.stayed_up;
            if ran {
                // The pool that is given up is that of the server that ran.
                let plain = &own.cost.without;
                let left = lower.cost.with.kv_tokens as f64 / plain.kv_tokens.max(1) as f64;
                memory.kv_tokens_without_speculation = Some(plain.kv_tokens);
                memory.pool_gib_lost = Some((1.0 - left).max(0.0) * plain.pool_gib);
            }
            memory.set_instead = Some(format!(
                "set {} {fraction:.3}: the {:.3} of the log's server, which {} without a draft, is \
                 above the middle of the activation wall with one, {} ({})",
                fraction_flag(own),
                plan.fraction,
                if ran { "ran" } else { "was to run" },
                at_most(plan.interval.max, 3),
                band(&plan.interval),
            ));
            return Ok(Some(memory));
        }
    }
    Ok(None)
}

/// The fraction of a log's server that ran out of memory with it: answers for one clear of the
/// activation wall, and of that fraction.
fn below_where_it_ran_out(own: &Report, scenario: &Scenario) -> anyhow::Result<Option<Memory>> {
    let plan = &own.cost.with;
    let at = scenario.ran.ran_out.as_ref();
    let Some(at) = at.filter(|_| scenario.by_log("mem_fraction") && !plan.interval.is_empty())
    else {
        return Ok(None);
    };
    let clear = plan.interval.max_low.min(plan.fraction - STEP_DOWN);
    let fraction = typed(clear);
    let mut other = scenario.clone();
    let vllm = own.engine.kind == EngineKind::Vllm;
    other.ran = scenario.ran.clone().at_other_fraction(vllm);
    other.mem_fraction = Some(fraction);
    let lower = report(&other, None, None)?;
    if !starts(&lower.cost.with) {
        return Ok(None);
    }
    let mut memory = for_load(&lower, &other);
    memory.set_instead = Some(format!(
        "set {} {fraction:.3}: at {:.3} the log's server ran out of memory ({at})",
        fraction_flag(own),
        plan.fraction,
    ));
    Ok(Some(memory))
}

/// The fraction of a log's server that did not get past its pool: answers for one that does.
fn above_where_it_was_refused(own: &Report, scenario: &Scenario) -> anyhow::Result<Option<Memory>> {
    let plan = &own.cost.with;
    let refused = scenario.by_log("mem_fraction") && !scenario.ran.came_up && !starts(plan);
    let mut other = scenario.clone();
    let vllm = own.engine.kind == EngineKind::Vllm;
    other.ran = scenario.ran.clone().at_other_fraction(vllm);
    for fraction in better_fractions(plan).filter(|_| refused) {
        other.mem_fraction = Some(fraction);
        let higher = report(&other, None, None)?;
        if good(&higher.cost.with, scenario.context) {
            let mut memory = for_load(&higher, &other);
            memory.set_instead = Some(format!(
                "set {} {fraction:.3}: {:.3}, as in the log, is refused",
                fraction_flag(own),
                plan.fraction,
            ));
            return Ok(Some(memory));
        }
    }
    Ok(None)
}

/// What a fraction that ran out of memory is lowered by at least: about 1 GiB of a large card.
const STEP_DOWN: f64 = 0.01;

/// llama.cpp takes what its slots need: as many as the heaviest load shown that fits, where nobody
/// said how many.
fn of_slots(own: Report, scenario: &Scenario) -> anyhow::Result<Memory> {
    Ok(match with_slots(scenario, None)? {
        Some((other, _)) => for_load(&other, scenario),
        None => for_load(&own, scenario),
    })
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

/// Whether a plan starts inside the walls and holds one request of the context.
fn good(plan: &Plan, context: u64) -> bool {
    plan.fit(context) == Fit::Fits
}

/// Fractions to take instead, best first: clear of the activation wall's band, the middle of the legal
/// interval, its top. Three digits, as people type it.
fn better_fractions(plan: &Plan) -> impl Iterator<Item = f64> {
    let interval = &plan.interval;
    let (min, max) = (interval.min, interval.max);
    [interval.max_low, f64::midpoint(min, max), max]
        .into_iter()
        .map(typed)
        .filter(move |fraction| *fraction > min && *fraction <= max)
}

/// Why another fraction than the engine's own, in the words of the flag.
fn set_instead(own: &Report, fraction: f64, context: u64) -> String {
    let plan = &own.cost.with;
    let why = if starts(plan) && plan.fraction > plan.interval.max {
        let i = &plan.interval;
        format!(
            "is above the middle of the activation wall, {} ({})",
            at_most(i.max, 3),
            band(i)
        )
    } else if starts(plan) && plan.pool.requests(context) < 1.0 {
        format!(
            "leaves {} tokens, less than one request of {}",
            thousands(plan.kv_tokens as f64),
            thousands(context as f64)
        )
    } else {
        "is refused".to_string()
    };
    format!(
        "set {} {fraction:.3}: the engine's own {:.3} {why}",
        fraction_flag(own),
        plan.fraction
    )
}

/// The same with what depends on the load of a scenario.
fn for_load(report: &Report, scenario: &Scenario) -> Memory {
    let plan = &report.cost.with;
    Memory {
        holds_without_draft: Some(report.cost.without.pool.requests(scenario.context) >= 1.0),
        fraction: Some(as_said(plan.fraction, scenario)),
        graphs: scenario.graphs,
        ..to_memory(report)
    }
}

/// A log's figures are rounded, so the fraction that they give backwards differs in the fourth
/// digit from the one that its server was told: that one is to be set again.
fn as_said(inferred: f64, scenario: &Scenario) -> f64 {
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
        kv_tokens: Some(plan.kv_tokens),
        kv_tokens_without_speculation: Some(report.cost.without.kv_tokens),
        pool_gib_lost: Some(report.cost.pool_lost_gib()),
        computed_weights_gib: plan.computed_weights_gib,
        holds_without_draft: None,
        pool: Some(plan.pool.clone()),
        state_slots: plan.state_slots,
        graphs: None,
        most_at_once: Some(most_at_once(report)),
        limit: limit::words(report),
        length: report.length.clone(),
        roomier: None,
        set_instead: None,
        fraction_given: false,
        cost_by_fraction: None,
        by_both_logs: false,
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
