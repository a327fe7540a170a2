//! `plan`: the memory ledger of one card, legal fractions, the cost of speculation, and what a
//! log's figures say backwards.

mod basis;
mod card;
mod choice;
mod cost;
mod ignored;
mod instead;
mod json;
mod knobs;
mod kv_format;
mod length;
mod limit;
mod loading;
mod memory;
mod pool;
mod releases;
mod room;
mod setup;
mod states;
#[cfg(test)]
mod tests;
mod text;
mod wall;
mod wanted;

pub(crate) use card::{
    Otherwise, WEIGHTS_OFF, not_of_this_server, usual_of_the_nearest, weights_as_loaded,
};
pub(crate) use cost::DraftCost;
use json::to_json;
pub(crate) use knobs::{Knobs, asked_load, within_limit};
use knobs::{check, check_together, fits_the_card, of_engine};
pub(crate) use kv_format::{kv_format_of_the_pool, pool_of_its_tokens};
pub(crate) use length::Length;
pub(crate) use loading::in_bf16 as loads_in_bf16;
pub(crate) use memory::memory;
pub(crate) use releases::SameRules;
use setup::known;
pub(crate) use setup::{engine, setup};
pub(crate) use states::{ToldForStates, wall as wall_of_states};

use std::process::ExitCode;

use kvplan::{BeliefCheck, EngineKind, Inferred, Plan, SpeculationCost};

use crate::cli::PlanArgs;
use crate::input;
use crate::predict::answer::Assumption;
use crate::scenario::Scenario;

/// Everything `plan` says.
pub(crate) struct Report {
    /// With and without speculation.
    pub(crate) cost: SpeculationCost,
    /// What the draft costs, each pool at its fraction.
    pub(crate) draft_cost: Option<DraftCost>,
    /// Whether there is speculation at all.
    pub(crate) speculates: bool,
    /// What the observed figures give backwards.
    pub(crate) inferred: Inferred,
    /// Which free figure nobody gave and the other three do.
    pub(crate) fourth: Option<&'static str>,
    /// The fraction given by flag.
    pub(crate) said: Option<f64>,
    /// The fraction someone believes in, against them.
    pub(crate) belief: Option<BeliefCheck>,
    /// The setting that carries the wanted load.
    pub(crate) target: Option<wanted::Wanted>,
    /// The least fraction that holds one request of the context, where the plan's own does not.
    pub(crate) least_for_one: Option<f64>,
    /// What a log shows beyond the bands of what its own flags give.
    pub(crate) beyond_flags: Vec<String>,
    /// Tokens in the other KV formats.
    pub(crate) other_kv: Vec<(&'static str, u64)>,
    /// Why it must be told how many requests to run at once.
    pub(crate) to_run: Option<String>,
    /// How many it is told for its states, where nobody said it.
    pub(crate) for_states: Option<ToldForStates>,
    /// What would let more requests run at once, where the pool is not what stops them.
    pub(crate) more_by: limit::MoreBy,
    /// Engine with version.
    pub(crate) engine: kvplan::Engine,
    /// Flags given that change nothing in this ledger.
    pub(crate) ignored: Vec<&'static str>,
    /// Whether a flag, a log or an observed pool says the fraction.
    pub(crate) told: bool,
    /// Whether this server came to take requests, where a log shows it past its pool.
    pub(crate) ran: Option<bool>,
    /// The fraction that the server of a log ran with, where another is asked for, and whether its
    /// pool is moved there.
    pub(crate) ran_at: Option<(f64, bool)>,
    /// Requests at once of a log's server, those asked for, and whether its pool is kept but for these.
    pub(crate) ran_with: Option<(u64, u64, bool)>,
    /// Drafted tokens of a log's server and those asked for instead.
    pub(crate) other_depth: Option<(u64, u64)>,
    /// Whether the pool is that of a log's server, with what its draft took given back.
    pub(crate) given_back: bool,
    /// The pool that a log counts in tokens alone, GiB, and these tokens.
    pub(crate) of_tokens: Option<(f64, u64)>,
    /// Tokens that a request holds.
    pub(crate) context: u64,
    /// The longest request that a vLLM server takes.
    pub(crate) length: Length,
    /// The model and cards that observed figures are taken to be of, where nobody named any.
    pub(crate) assumed: Option<String>,
    /// What is taken for the shapes of model and draft.
    pub(crate) taken: Vec<Assumption>,
    /// What the draft's head lacks at this context, where it reaches less or may.
    pub(crate) falls_short: Option<String>,
    /// What is left aside of a log whose server had another card or other weights.
    pub(crate) left_aside: Vec<String>,
    /// What is kept of a log whose server captured no graphs.
    pub(crate) gained_graphs: Option<String>,
    /// Whether the figures cannot be of these.
    pub(crate) foreign: bool,
    /// Why the engine refuses the weights cut like this, whatever room there is.
    pub(crate) uncut: Option<String>,
}

/// Runs `cargo xtask plan`.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    if let Some(list) = args.scenario.list() {
        crate::input::print(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    check(args)?;
    let wanted = asked_load(&args.scenario, args.knobs.max_model_len);
    let mut scenario = Scenario::resolve(&wanted)?;
    let mut report = asked(&mut scenario, args)?;
    report.ignored = ignored::flags(args, &report);
    if args.json {
        crate::input::print(&(serde_json::to_string_pretty(&to_json(&report))? + "\n"))?;
    } else {
        crate::input::print(&text::render(&report, &scenario, args.sources))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The plan that the flags ask for: of the server that `predict` plans for the same loads.
fn asked(scenario: &mut Scenario, args: &PlanArgs) -> anyhow::Result<Report> {
    of_engine(args, scenario.engine.kind)?;
    setup::by_flags(scenario, args);
    within_limit(scenario)?;
    *scenario = crate::predict::launch::for_loads(scenario.clone())?;
    let mut own = report(scenario, Some(args), None)?;
    let slots = own.engine.kind == EngineKind::LlamaCpp && args.scenario.concurrency.is_some();
    if slots && let Some((wider, with)) = memory::with_slots(scenario, Some(args))? {
        *scenario = with;
        own = wider;
    }
    let other = instead::of(&own, scenario, Some(args))?;
    own.draft_cost = cost::of(&own, scenario, Some(args), other.as_ref())?;
    Ok(own)
}

/// Plans, forwards and backwards.
fn report(
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    fraction: Option<f64>,
) -> anyhow::Result<Report> {
    let mut setup = setup::at(scenario, args, fraction)?;
    let fail = |error: kvplan::PlanError| input::error(error.to_string());
    let mut known = known(scenario, args);
    let pool_seen = known.pool_gib.is_some();
    check_together(&known)?;
    let plain = kvplan::plan(&setup.plain()).map_err(fail)?;
    let assumed = args.and_then(|args| assumed_model(scenario, args));
    let foreign = foreign(assumed.is_some(), &known, &plain, setup.card_gib)?;
    known.bytes_per_token = Some(plain.kv_bytes_per_token).filter(|_| !foreign);
    if !foreign {
        known.state_gib = states(&known, &setup);
    }
    let mut inferred = sglang_backwards(&known, setup.engine.kind);
    let seen = known.pool_gib.is_some() && pool_wins(scenario, args);
    if seen {
        by_the_pool(&mut setup, &known, inferred.known.fraction);
    }
    let mut cost = cost_on_this_card(scenario, &setup)?;
    if seen && setup.observed.pool_with_draft && inferred.known.fraction.is_some() {
        // The draft's pool came out of the same fraction.
        inferred.known.fraction = Some(cost.with.fraction);
    }
    both_logs(scenario, &mut cost);
    room::name(scenario, args, &mut cost.with);
    let fourth = fourth(scenario, args, &inferred);
    of_the_pool(&mut cost, seen && inferred.known.fraction.is_some());
    let target = wanted::target(scenario, &setup, &cost.with).map_err(fail)?;
    let length = Length::of(scenario, &setup, &cost);
    let ran = setup::ran(scenario, &setup).filter(|_| fraction.is_none());
    Ok(Report {
        told: scenario.mem_fraction.is_some() || pool_seen || ran.is_some(),
        draft_cost: None,
        speculates: setup.speculation.is_some(),
        engine: setup.engine,
        other_kv: limit::other_kv(&setup, cost.with.kv_dtype),
        to_run: limit::to_run(scenario, &setup),
        for_states: states::told(scenario, &setup),
        more_by: limit::more_by(&setup, &cost.with, scenario.context),
        least_for_one: wanted::least_for_one(&setup, &cost.with, scenario.context),
        other_depth: setup::other_depth(&setup),
        beyond_flags: card::beyond_its_flags(scenario, &cost),
        cost,
        fourth,
        said: setup::fraction_by_flag(scenario),
        belief: belief(scenario, fourth, &inferred),
        inferred,
        target,
        ignored: Vec::new(),
        uncut: scenario.refused_cut().map(|uncut| uncut.why.clone()),
        length,
        assumed,
        taken: basis::shapes_taken(scenario).cloned().collect(),
        falls_short: crate::predict::falls_short(scenario),
        left_aside: scenario.left_aside.clone(),
        gained_graphs: setup::gained_graphs(scenario, &setup),
        foreign,
        ran,
        ran_with: setup::ran_with(&setup),
        ran_at: scenario.ran.at_another_fraction(),
        given_back: scenario.given_back.is_some(),
        of_tokens: scenario.ran.pool_of_tokens,
        context: scenario.context,
    })
}

/// Takes the pool without the draft from the log of a plain server, where both servers are the one asked
/// about: what two servers printed is no matter of estimates.
fn both_logs(scenario: &Scenario, cost: &mut SpeculationCost) {
    let ran = &scenario.ran;
    let as_logged = ran.as_asked() && ran.speculates && scenario.draft.is_some();
    let same = as_logged && Some(cost.with.kv_tokens) == ran.kv_tokens;
    if let Some(plain) = ran.plain_pool.as_ref().filter(|_| same) {
        cost.without_as_seen(plain.tokens, plain.fraction);
    }
}

/// What SGLang's figures give backwards; other engines' give nothing.
fn sglang_backwards(known: &kvplan::Known, engine: EngineKind) -> Inferred {
    let inferred = (engine == EngineKind::Sglang).then(|| known.infer());
    inferred.unwrap_or_default()
}

/// Takes the fraction that a pool gives which was seen: what allocated it is known better than what was
/// believed.
fn by_the_pool(setup: &mut kvplan::Setup<'_>, known: &kvplan::Known, inferred: Option<f64>) {
    let sglang = setup.engine.kind == EngineKind::Sglang;
    match inferred.filter(|_| !setup.observed.pool_with_draft) {
        Some(fraction) => setup.fraction = Some(fraction),
        None => {
            setup.observed.pool_gib = known.pool_gib;
            setup.fraction = setup.fraction.filter(|_| !sglang);
        }
    }
}

/// Plans with the draft and without, where what was seen goes onto the card and the slots run one request.
fn cost_on_this_card(
    scenario: &Scenario,
    setup: &kvplan::Setup<'_>,
) -> anyhow::Result<SpeculationCost> {
    on_this_card(scenario, setup)?;
    let cost = kvplan::speculation_cost(setup).map_err(|e| input::error(e.to_string()))?;
    slots_for_one(setup, &cost.with)?;
    Ok(cost)
}

/// Refuses a pool that was seen and does not go with the model's weights onto the card: it was another card's.
fn on_this_card(scenario: &Scenario, setup: &kvplan::Setup<'_>) -> anyhow::Result<()> {
    let Some(pool_gib) = setup.observed.pool_gib else {
        return Ok(());
    };
    let plan = kvplan::plan(setup).map_err(|error| input::error(error.to_string()))?;
    let (fraction, card_gib) = (plan.fraction, setup.card_gib);
    if fraction <= 1.0 {
        return Ok(());
    }
    let from = match scenario.ran.file.is_empty() {
        true => "--kv-gib",
        false => scenario.ran.file.as_str(),
    };
    Err(input::error(format!(
        "{from}: a pool of {pool_gib:.2} GiB beside the weights of {} would take {fraction:.2} times the \
         {card_gib:.1} GiB of {}: --gpu is the card that it was seen on",
        scenario.model.name, scenario.gpu.name
    )))
}

/// Says that the fraction follows from the pool that was seen, where it does.
fn of_the_pool(cost: &mut SpeculationCost, follows: bool) {
    for plan in [&mut cost.with, &mut cost.without]
        .into_iter()
        .filter(|_| follows)
    {
        plan.fraction_source = "inferred from the observed pool".to_string();
    }
}

/// States beside a pool that was seen: as seen, else what the engine gives them beside such a pool.
fn states(known: &kvplan::Known, setup: &kvplan::Setup<'_>) -> Option<f64> {
    let computed = |pool| kvplan::state_beside_pool(&setup.plain(), pool);
    let beside = known.state_gib.or_else(|| known.pool_gib.map(computed));
    beside.filter(|gib| *gib > 0.0)
}

/// The fraction believed in, checked against the figures; one that gave a figure cannot be.
fn belief(scenario: &Scenario, fourth: Option<&str>, inferred: &Inferred) -> Option<BeliefCheck> {
    let believed = believed(scenario).filter(|_| fourth.is_none())?;
    kvplan::check_belief(inferred, believed)
}

/// The fraction asked for, else the one that those who saw the run believed in.
fn believed(scenario: &Scenario) -> Option<f64> {
    let seen = scenario.observed.mem_fraction.as_ref();
    scenario.mem_fraction.or(seen.map(|figure| figure.value))
}

/// What observed figures are taken to be of, where neither model nor box is named.
fn assumed_model(scenario: &Scenario, args: &PlanArgs) -> Option<String> {
    let flags = &args.scenario;
    let named = flags.model.is_some()
        || flags.gpu.is_some()
        || flags.box_name.is_some()
        || flags.scenario.is_some()
        || flags.from_log.is_some();
    (setup::observes(args) && !named).then(|| {
        format!(
            "{} on {}, tp {}",
            scenario.model.name, scenario.gpu.name, scenario.tp
        )
    })
}

/// The free figure that follows from the other three.
fn fourth(
    scenario: &Scenario,
    args: Option<&PlanArgs>,
    inferred: &Inferred,
) -> Option<&'static str> {
    let (seen, args, known) = (&scenario.observed, args?, &inferred.known);
    if !setup::observes(args) {
        return None;
    }
    let before = args.free_before_gib.is_some() || seen.free_before_gib.is_some();
    let after = args.free_after_gib.is_some() || seen.free_after_gib.is_some();
    match (before, after) {
        (true, false) if known.free_after_gib.is_some() => Some("after"),
        (false, true) if known.free_before_gib.is_some() => Some("before"),
        _ => None,
    }
}

/// Whether figures cannot be of a model and card: the weights are others, or the card is too small.
/// Of a model that was named they must be: then a card too small is an error.
fn foreign(
    assumed: bool,
    known: &kvplan::Known,
    plan: &Plan,
    card_gib: f64,
) -> anyhow::Result<bool> {
    if !assumed {
        return fits_the_card(known, card_gib).map(|()| false);
    }
    let loaded = known.free_before_gib.zip(known.free_after_gib);
    let off = loaded.map(|(before, after)| {
        (before - after - plan.computed_weights_gib).abs() / plan.computed_weights_gib
    });
    let too_large = known.free_before_gib.is_some_and(|gib| gib > card_gib);
    Ok(too_large || off.is_some_and(|off| off > 0.1))
}

/// Whether the pool that was seen says the fraction: a fraction asked for is planned with instead,
/// unless a pool is given beside it to check it against.
fn pool_wins(scenario: &Scenario, args: Option<&PlanArgs>) -> bool {
    let by_flag = scenario
        .input("mem_fraction")
        .is_some_and(|input| input.source == "--mem-fraction");
    !by_flag || args.is_some_and(|args| args.kv_gib.is_some())
}

/// The flag that sets the fraction of a plan.
fn fraction_flag(report: &Report) -> &'static str {
    report.engine.kind.fraction_flag()
}

/// Whether a plan starts.
fn starts(plan: &Plan) -> bool {
    plan.refusal.is_none()
}

/// Refuses state slots that no request could run with, or that nothing has.
fn slots_for_one(setup: &kvplan::Setup<'_>, plan: &Plan) -> anyhow::Result<()> {
    let Some(asked) = setup.state_slots else {
        return Ok(());
    };
    let why = match plan.state_slots {
        Some(slots) if asked < slots.per_request => format!(
            "a request takes {} here (with what the drafted tokens need); give at least that",
            slots.per_request
        ),
        // Where the weights fill the card no slot is counted.
        Some(_) => return Ok(()),
        None if setup.engine.kind == EngineKind::Sglang
            && setup.model.state_bytes_per_request(&setup.sharding).total() > 0 =>
        {
            return Ok(());
        }
        None => format!(
            "{} on {} has none to set; leave the flag out",
            setup.model.name, setup.engine
        ),
    };
    Err(input::error(format!("--state-slots {asked}: {why}")))
}
