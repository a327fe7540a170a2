//! Requests at once where something else than the pool stops more, and what would change that: each
//! way is tried before it is named.

use kvplan::{EngineKind, Plan, Setup, Wall};

use super::{Report, fraction_flag, text};
use crate::predict::launch;
use crate::predict::pool_cast::PoolCast;
use crate::scenario::Scenario;
use crate::table::thousands;

/// What would let more requests run at once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MoreBy {
    /// More state slots.
    slots: bool,
    /// A higher fraction inside the walls.
    fraction: bool,
    /// A higher limit of the engine's own.
    setting: bool,
}

/// Tries what would let more requests of a context run at once.
pub(super) fn more_by(setup: &Setup<'_>, plan: &Plan, context: u64) -> MoreBy {
    let now = plan.at_once(context);
    let tries = |change: &dyn Fn(&mut Setup<'_>)| {
        let mut other = setup.clone();
        change(&mut other);
        kvplan::plan(&other).is_ok_and(|more| more.at_once(context).requests > now.requests)
    };
    let more = |of: u64| of.saturating_add(of / 8).saturating_add(1);
    match (now.wall, plan.state_slots) {
        (Wall::StateSlots, Some(slots)) => {
            let wider = more(slots.requests()).saturating_mul(slots.per_request);
            let top = (plan.interval.max * 1000.0).floor() / 1000.0;
            MoreBy {
                slots: tries(&|other: &mut Setup<'_>| {
                    other.fraction = Some(plan.fraction);
                    other.state_slots = Some(wider);
                    other.observed.state_gib = None;
                }),
                fraction: top > plan.fraction
                    && tries(&|other: &mut Setup<'_>| other.fraction = Some(top)),
                setting: false,
            }
        }
        (Wall::Setting, _) => MoreBy {
            setting: tries(&|other: &mut Setup<'_>| other.max_running = Some(more(now.requests))),
            ..MoreBy::default()
        },
        _ => MoreBy::default(),
    }
}

/// Whole requests of a context that pool and state slots hold.
pub(super) fn held(plan: &Plan, context: u64) -> u64 {
    let slots = plan.state_slots;
    let slots = slots.map_or(u64::MAX, kvplan::StateSlots::requests);
    (plan.pool.requests(context) as u64).min(slots)
}

/// Requests at once, where the tokens of the pool are not what stops more, or fewer than were asked for.
pub(super) fn words(report: &Report, asked: Option<u32>) -> Option<String> {
    let plan = &report.cost.with;
    let at_once = plan.at_once(report.context);
    let flag = fraction_flag(report);
    let by = report.more_by;
    let fewer = asked.filter(|asked| at_once.requests < u64::from(*asked));
    let why = match (at_once.wall, plan.state_slots) {
        (Wall::StateSlots, Some(slots)) => {
            let more = match (by.slots, by.fraction) {
                (true, true) => format!("--state-slots, or a higher {flag}, gives more"),
                (true, false) => "--state-slots gives more".to_string(),
                (false, true) => format!("a higher {flag} gives more"),
                (false, false) => {
                    "neither more of them nor a higher fraction gives more".to_string()
                }
            };
            format!(
                "{} state slots, {} a request ({more})",
                slots.slots, slots.per_request
            )
        }
        (Wall::Setting, _) if by.setting => "more is a matter of --max-running".to_string(),
        (Wall::Setting, _) => {
            "that many are allowed (--max-running), and memory carries no more".to_string()
        }
        (Wall::Pool, _) => {
            fewer?;
            "the KV pool holds no more".to_string()
        }
        (Wall::StateSlots, None) => return None,
    };
    let of = fewer.map_or_else(String::new, |asked| {
        format!(", of {} asked for", thousands(f64::from(asked)))
    });
    let plural = if at_once.requests == 1 { "" } else { "s" };
    Some(format!(
        "runs {} request{plural} at once{of}: {why}",
        thousands(at_once.requests as f64)
    ))
}

/// The same for the head of a prediction: the state slots are told always, other walls where fewer run than
/// were asked for.
pub(super) fn in_head(report: &Report, scenario: &Scenario) -> Option<String> {
    let at_once = report.cost.with.at_once(report.context);
    let asked = text::asked_users(scenario);
    let fewer = at_once.requests < u64::from(asked) && asked > 1;
    let told = fewer || at_once.wall == Wall::StateSlots;
    words(report, Some(asked).filter(|_| fewer)).filter(|_| told)
}

/// That a server asked to carry more requests at once than it takes by itself must be told so, and which
/// fraction it would choose untold.
pub(super) fn to_run(scenario: &Scenario, setup: &Setup<'_>) -> Option<String> {
    let running = scenario
        .running_for_loads
        .filter(|_| scenario.max_running.is_none())?;
    let flag = launch::flag_at_once(scenario, running)?;
    let mut untold = setup.clone();
    untold.max_running = scenario.ran.told_running();
    let untold = kvplan::plan(&untold).ok()?;
    let own = untold.running_setting;
    let at_once = thousands(own as f64);
    let engine = scenario.engine.kind;
    let beside = match setup.speculation {
        Some(_) if engine == crate::scenario::EngineKind::Sglang => " beside a draft",
        _ => "",
    };
    let told = format!("{:.3}", kvplan::plan(setup).ok()?.fraction);
    let chosen = untold.automatic_fraction.map(|own| format!("{own:.3}"));
    let chosen = chosen.filter(|chosen| setup.fraction.is_none() && *chosen != told);
    let chooses = chosen.map_or_else(String::new, |fraction| format!(", and chooses {fraction}"));
    let why = match scenario.ran.told_running() {
        Some(ran) => format!("the log's server ran {ran} at once"),
        // Then it would run them, beside another ledger.
        None if own >= running => format!(
            "the ledger is of as many, by itself {} runs {at_once} at once",
            engine.title()
        ),
        None => format!(
            "by itself {} runs {at_once} at once{beside}{chooses}",
            engine.title()
        ),
    };
    Some(format!("start with {flag}: {why}"))
}

/// How many requests llama.cpp's context is for, where nobody said it.
pub(super) fn one_slot(report: &Report, scenario: &Scenario) -> Option<&'static str> {
    let one = report.engine.kind == EngineKind::LlamaCpp && report.cost.with.max_running == 1;
    (one && text::asked_users(scenario) == 1).then_some(
        "one slot, so one request at once; --concurrency N takes N (predict: the heaviest load it shows)",
    )
}

/// Tokens that the pool would hold in the other KV formats.
pub(super) fn other_kv(
    setup: &kvplan::Setup<'_>,
    dtype: kvplan::KvDtype,
) -> Vec<(&'static str, u64)> {
    let smaller = match setup.engine.kind {
        EngineKind::LlamaCpp => kvplan::KvDtype::Q8_0,
        _ => kvplan::KvDtype::Fp8,
    };
    [kvplan::KvDtype::Bf16, smaller]
        .into_iter()
        .filter(|other| *other != dtype)
        .filter_map(|dtype| {
            let mut setup = setup.clone();
            setup.kv_dtype = Some(dtype);
            setup.observed.tokens = None;
            let plan = kvplan::plan(&setup).ok()?;
            Some((dtype.name(), plan.kv_tokens))
        })
        .collect()
}

/// Tokens in the other KV formats, and what a cache in FP8 costs where the engine's kernels cast it.
pub(super) fn kv_formats(report: &Report, scenario: &Scenario) -> Vec<String> {
    let cast = PoolCast::of(scenario, &scenario.engine);
    let cast = |dtype: &str| {
        cast.as_ref()
            .filter(|_| dtype == kvplan::KvDtype::Fp8.name())
    };
    let plan = &report.cost.with;
    let own = cast(plan.kv_dtype.name()).filter(|_| plan.kv_tokens > 0);
    let own = own.map(|cast| cast.of_own(plan.kv_tokens));
    let held = report.other_kv.iter().filter(|(_, tokens)| *tokens > 0);
    let others = held.map(|(dtype, tokens)| {
        let cost = cast(dtype).map_or_else(String::new, |cast| cast.of_other(*tokens));
        format!("with {dtype} KV {} tokens{cost}", thousands(*tokens as f64))
    });
    own.into_iter().chain(others).collect()
}
