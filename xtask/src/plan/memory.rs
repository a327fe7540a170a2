//! The memory part of a prediction: the plan of the fraction that is asked for, or of one that is
//! legal and carries the context.

use kvplan::{EngineKind, Fit, Plan};

use super::cost::{self, DraftCost};
use super::instead::{self, good};
use super::wall::{clear_fraction, typed};
use super::wanted::Wanted;
use super::{Report, fraction_flag, limit, report, starts, states, text};
use crate::cli::PlanArgs;
use crate::input;
use crate::predict::answer::{LedgerLine, Memory, MostAtOnce, Roomier};
use crate::predict::launch::{self, flag_at_once};
use crate::scenario::Scenario;
use crate::table::thousands;

/// The memory part of a prediction.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn memory(scenario: &Scenario) -> anyhow::Result<Memory> {
    let mut memory = drafting(scenario)?;
    memory.swept_pool = swept_pool(scenario, &memory)?;
    memory.fewer_seqs = fewer_seqs(scenario, &memory)?;
    Ok(memory)
}

/// A pool that is so much larger is worth a flag.
const WORTH: f64 = 1.1;

/// What vLLM's pool gains where it is told to run no more at once than the heaviest load shown, or than the pool
/// then holds of it, and nobody said how many: graphs and sampler rows for the others give way.
fn fewer_seqs(scenario: &Scenario, memory: &Memory) -> anyhow::Result<Option<String>> {
    let told = scenario.max_running.or(scenario.ran.told_running());
    if memory.seqs_assumed.is_none() || told.is_some() || memory.fits == Some(false) {
        return Ok(None);
    }
    let (load, context) = (heaviest(scenario), scenario.context);
    let at = |requests: u64| {
        let mut other = scenario.clone();
        other.max_running = Some(requests);
        drafting(&other)
    };
    let room = |memory: &Memory| match memory.fits {
        Some(false) => 0,
        _ => memory.room(context).unwrap_or(0),
    };
    let Some(most) = launch::most_told(0, load, |requests| Ok(room(&at(requests)?)))? else {
        return Ok(None);
    };
    let other = at(most)?;
    let held = room(memory);
    let loads = scenario.concurrency.iter().map(|users| u64::from(*users));
    let lets_in = loads.into_iter().any(|users| held < users && users <= most);
    let pools = memory.kv_tokens.zip(other.kv_tokens);
    let gains = pools.filter(|(now, fewer)| lets_in || *fewer as f64 > WORTH * *now as f64);
    let fractions = memory.fraction.zip(other.fraction);
    let moved = fractions.filter(|(now, fewer)| (now - fewer).abs() > cost::SAME);
    let moved = moved.map_or_else(String::new, |(now, fewer)| {
        format!(", at {fewer:.3} for {now:.3}")
    });
    let asked = u64::from(text::asked_users(scenario));
    let as_many = match (most < load, asked == load) {
        (true, _) => format!("of {} tokens as it then holds", thousands(context as f64)),
        (false, true) => "as asked for".to_string(),
        (false, false) => "as the heaviest load shown".to_string(),
    };
    Ok(gains.map(|(now, fewer)| {
        format!(
            "--max-num-seqs {most}, as many {as_many}, would leave the pool {} tokens for {}{moved}",
            thousands(fewer as f64),
            thousands(now as f64)
        )
    }))
}

/// Tokens that the plain server of a sweep may have had: by its engine's own fraction where that holds more
/// than the one asked for, which is that of the server that drafts.
fn swept_pool(scenario: &Scenario, memory: &Memory) -> anyhow::Result<Option<u64>> {
    let plain = memory.kv_tokens_without_speculation.or(memory.kv_tokens);
    let told = scenario.mem_fraction.is_some() && !scenario.by_log("mem_fraction");
    if scenario.draft.is_none() || !told {
        return Ok(plain);
    }
    let mut alone = scenario.clone();
    (alone.draft, alone.mem_fraction) = (None, None);
    let cost = report(&alone, None, None)?.cost;
    let own = Some(cost.with.kv_tokens).filter(|_| starts(&cost.with));
    Ok(plain.max(own))
}

fn drafting(scenario: &Scenario) -> anyhow::Result<Memory> {
    let own = report(scenario, None, None)?;
    if own.engine.kind == EngineKind::LlamaCpp {
        return of_slots(own, scenario);
    }
    let other = instead::of(&own, scenario, None)?;
    let cost = cost::of(&own, scenario, None, other.as_ref())?;
    if let Some(other) = other {
        let mut memory = for_load(&other.report, &other.scenario);
        let fewer = match own.told {
            true => None,
            false => fewer_at_once(&other.report, scenario, None)?,
        };
        // With fewer at once the engine's own fraction may do, which holds less.
        let fraction = format!(
            "{} {:.3}",
            fraction_flag(&own),
            other.report.cost.with.fraction
        );
        let fewer = fewer.map(|fewer| Roomier {
            setting: format!("{fraction} {}", fewer.setting),
            ..fewer
        });
        with_roomier(&mut memory, fewer.into_iter().collect());
        memory.set_instead = Some(other.why);
        return Ok(at_a_cost(memory, cost));
    }
    let plan = &own.cost.with;
    let mut memory = for_load(&own, scenario);
    // What a log's server was told is no wish of this user's.
    let free = !own.told || scenario.by_log("mem_fraction");
    let stands = own.told || good(plan, scenario.context);
    let roomier = match free && stands && !plan.interval.is_empty() {
        true => roomier(&own, scenario)?,
        false => Room::default(),
    };
    let fewer = match stands || plan.interval.is_empty() {
        true => fewer_at_once(&own, scenario, roomier.clear.as_ref())?,
        false => None,
    };
    let ways = Room {
        clear: fewer.or(roomier.clear),
        ..roomier
    };
    let ways = ways.told();
    with_roomier(&mut memory, ways);
    Ok(at_a_cost(memory, cost))
}

/// Puts what holds more beside what runs: in the line of the head that says how many do, where there is one.
fn with_roomier(memory: &mut Memory, ways: Vec<Roomier>) {
    memory.roomier = ways;
    let more = memory.roomier_words();
    if let Some(limit) = &mut memory.limit {
        limit.push_str(&more);
    }
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

/// Requests of the heaviest load shown, as many of them as the server may run where a flag says so.
fn heaviest(scenario: &Scenario) -> u64 {
    let most = scenario.concurrency.last().copied().map_or(1, u64::from);
    most.min(scenario.max_running.unwrap_or(u64::MAX))
}

/// Settings that hold more.
#[derive(Default)]
struct Room {
    /// What surely starts and holds more.
    clear: Option<Roomier>,
    /// What holds all that is asked for.
    all: Option<Roomier>,
}

impl Room {
    /// Both, where the first does not hold as many as the second.
    fn told(self) -> Vec<Roomier> {
        let held = self.clear.as_ref().map_or(0, |way| way.requests);
        let all = self.all.filter(|way| way.requests > held);
        self.clear.into_iter().chain(all).collect()
    }
}

/// What holds more of the loads shown, where these do not fit the pool: the least fraction that holds
/// what the low end of the activation wall does of them, and what carries them all, where that is more.
fn roomier(own: &Report, scenario: &Scenario) -> anyhow::Result<Room> {
    let (context, most) = (scenario.context, heaviest(scenario));
    if limit::held(&own.cost.with, context) >= most {
        return Ok(Room::default());
    }
    let mut other = scenario.clone();
    if !scenario.ran.file.is_empty() {
        let vllm = own.engine.kind == EngineKind::Vllm;
        other.ran = scenario.ran.clone().at_other_fraction(vllm);
    }
    let setup = super::setup(&other, None)?;
    let fail = |error: kvplan::PlanError| input::error(error.to_string());
    let load = (&setup, &own.cost.with);
    let all = Wanted::of(&other, load, (context, most)).map_err(fail)?;
    let all = all.carried_by(own).map(|setting| Roomier {
        setting,
        requests: most as u32,
    });
    Ok(Room {
        clear: clear_of_the_wall(own, &other, most)?,
        all,
    })
}

/// The least fraction that holds as many of the heaviest load as the one clear of the activation wall's band,
/// where that is more than are held now; with the flag for as many at once.
fn clear_of_the_wall(own: &Report, other: &Scenario, most: u64) -> anyhow::Result<Option<Roomier>> {
    let (plan, context) = (&own.cost.with, other.context);
    let mut told = other.clone();
    let more_at_once = plan.running_setting < most;
    if more_at_once {
        told.running_for_loads = Some(most);
    }
    let at = |fraction: f64| report(&told, None, Some(fraction));
    // Tables and graphs of more requests at once move the wall.
    let low = match more_at_once {
        true => at(plan.fraction)?.cost.with.interval.max_low,
        false => plan.interval.max_low,
    };
    let top = typed(low);
    if top <= plan.fraction || top > 1.0 {
        return Ok(None);
    }
    let roomiest = at(top)?;
    let more = limit::held(&roomiest.cost.with, context).min(most);
    if !good(&roomiest.cost.with, context) || more <= limit::held(plan, context) {
        return Ok(None);
    }
    let setup = super::setup(&told, None)?;
    let fail = |error: kvplan::PlanError| input::error(error.to_string());
    let least = kvplan::for_target(&setup, context, more).map_err(fail)?;
    let held = at(least.fraction)?.cost.with;
    let holds = good(&held, context) && limit::held(&held, context) >= more;
    let fraction = match least.reached && holds {
        true => least.fraction,
        false => top,
    };
    let running = flag_at_once(other, more).map_or_else(String::new, |flag| format!(" {flag}"));
    Ok(Some(Roomier {
        setting: format!("{} {fraction:.3}{running}", fraction_flag(own)),
        requests: more as u32,
    }))
}

/// No more requests at once than the heaviest load shown, or than the pool then holds of it, where vLLM is told
/// or takes more and the pool holds less than that load: graphs and sampler rows for the others give way to
/// the pool. `known` is what a fraction holds.
fn fewer_at_once(
    own: &Report,
    scenario: &Scenario,
    known: Option<&Roomier>,
) -> anyhow::Result<Option<Roomier>> {
    let plan = &own.cost.with;
    let most = scenario.concurrency.last().copied().map_or(1, u64::from);
    let now = limit::held(plan, scenario.context);
    let vllm = own.engine.kind == EngineKind::Vllm;
    if !vllm || now >= most || plan.running_setting <= most || !starts(plan) {
        return Ok(None);
    }
    let known = known.map_or(now, |way| u64::from(way.requests));
    let mut other = scenario.clone();
    let told = launch::most_told(known, most, |requests| {
        other.max_running = Some(requests);
        let told = report(&other, None, Some(plan.fraction))?.cost.with;
        Ok(match starts(&told) {
            true => limit::held(&told, scenario.context),
            false => 0,
        })
    })?;
    Ok(told.map(|requests| Roomier {
        setting: format!("--max-num-seqs {requests}"),
        requests: requests as u32,
    }))
}

/// The same with what depends on the load of a scenario.
fn for_load(report: &Report, scenario: &Scenario) -> Memory {
    let plan = &report.cost.with;
    Memory {
        holds_without_draft: Some(report.cost.without.pool.requests(scenario.context) >= 1.0),
        fraction: Some(as_said(plan.fraction, scenario)),
        graphs: scenario.graphs,
        limit: limit::in_head(report, scenario),
        cap: launch::cap(scenario, plan.running_setting),
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
        swept_pool: None,
        computed_weights_gib: plan.computed_weights_gib,
        holds_without_draft: None,
        pool: Some(plan.pool.clone()),
        state_slots: plan.state_slots,
        graphs: None,
        most_at_once: Some(most_at_once(report)),
        limit: None,
        fewer_seqs: None,
        seqs_assumed: assumed(plan, |line| line.starts_with("max_num_seqs ")),
        version_assumed: assumed(plan, |line| line.contains(" version not given")),
        for_states: report.for_states.clone(),
        bound_by_states: states::bind(plan),
        length: report.length.clone(),
        roomier: Vec::new(),
        cap: None,
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

/// The plan's word of something that nobody said.
fn assumed(plan: &Plan, of: impl Fn(&str) -> bool) -> Option<String> {
    let mut all = plan.assumptions.iter();
    all.find(|line| of(line)).cloned()
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
