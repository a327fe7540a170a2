//! What an answer rests on that nobody said.

use std::collections::BTreeMap;

use super::answer::{Assumption, Memory, Point};
use super::links::Links;
use super::{flags, launch, measured};
use crate::scenario::{EngineKind, Scenario};
use crate::table::thousands;

/// What was assumed, in the order in which it was met; of the wiring only what the group uses.
pub(super) fn all(
    setting: &flags::Setting<'_>,
    links: &Links<'_>,
    points: &[Point],
    lines: &BTreeMap<&'static str, Vec<String>>,
) -> Vec<Assumption> {
    let scenario = setting.scenario;
    let mut all = scenario.assumptions.clone();
    let has_list = setting.has_list() && setting.steps > 0;
    let by_load = flags::depth_by_load(scenario, has_list);
    let one_depth = flags::one_depth(setting, points);
    // Where state slots stop more, telling the engine to run more changes nothing.
    let most = points.last().map_or(1, |point| point.concurrency);
    let carried = setting.runs && setting.memory.slots_carry(most);
    let notes = launch::missing(scenario)
        .into_iter()
        .chain(super::other_flags::split(scenario))
        .chain(by_load)
        .chain(one_depth)
        .chain(flags::no_switch(scenario, setting.allreduce, setting.group))
        .chain(setting.memory.version_assumed.clone())
        .chain(seqs_that_matter(setting))
        .chain(launch::limit_changed(scenario, setting.memory))
        .chain(launch::limit_with_room(scenario, setting.memory).filter(|_| setting.runs))
        .chain(launch::more_than_ran(scenario))
        .chain(super::graphs::told(scenario, lines))
        .chain(super::short_head::told(setting))
        .chain(super::carried::left_out(scenario).filter(|_| setting.runs))
        .chain(
            launch::loads_not_run(scenario, setting.memory).filter(|_| carried && points.len() > 1),
        );
    all.extend(notes.map(|what| Assumption {
        what,
        settled_by: String::new(),
    }));
    all.extend(super::pool_cast::told(setting));
    all.extend(whole_experts(scenario));
    all.extend(limit_of_the_pool(setting, lines));
    all.extend(for_states(setting, lines));
    all.extend(sweep_context(scenario, setting.memory));
    all.extend(loads_between(scenario, points));
    let users = points.first().map_or(1, |point| point.concurrency);
    let bytes = super::payload_bytes(scenario, users, 1);
    let cpu = links.cpu_assumed(setting.allreduce, bytes);
    let nccl = super::nccl_setup::told(setting, links, points);
    let step = super::nccl_step::told(setting, links, points);
    let of_run = cpu.iter().chain(&nccl).chain(&step);
    for (what, settled_by) in links.assumptions().iter().chain(of_run) {
        let line = format!("wiring: {what}");
        if !all.iter().any(|a| a.what == line) {
            all.push(Assumption {
                what: line,
                settled_by: settled_by.clone(),
            });
        }
    }
    super::same_reduce::told(scenario, links, &[], &mut all);
    let (reduces, mesh) = (scenario.tp > 1, setting.group.is_mesh());
    all.retain(|a| {
        // One GPU uses no link, a mesh of NVLink none of PCIe.
        let wiring = a.what.starts_with("wiring: ");
        !wiring
            || (reduces
                && (!mesh
                    || ["NVLink", "NVSwitch"]
                        .iter()
                        .any(|link| a.what.contains(link))))
    });
    all
}

/// How many requests at once vLLM makes room for by itself, where it does not fit, holds fewer than
/// were asked for, or would hold much more for the loads asked for alone. Without a draft in the paste the pool
/// is that of the plain server.
fn seqs_that_matter(setting: &flags::Setting<'_>) -> Option<String> {
    let scenario = setting.scenario;
    let mut alone = scenario.clone();
    alone.draft = None;
    let fits = setting.memory.fits != Some(false);
    let plain = (setting.steps == 0 && scenario.draft.is_some() && fits)
        .then(|| crate::plan::memory(&alone).ok());
    let plain = plain.flatten();
    let memory = plain.as_ref().unwrap_or(setting.memory);
    let most = scenario.concurrency.last().copied().map_or(1, u64::from);
    let held = memory.most_at_once.as_ref();
    let fewer = held.is_some_and(|held| held.requests < most);
    let assumed = memory.seqs_assumed.clone()?;
    match &memory.fewer_seqs {
        Some(gain) => Some(format!("{assumed}: {gain}")),
        None => (memory.fits == Some(false) || fewer).then_some(assumed),
    }
}

/// Whole experts by rank: how unevenly requests use them is of the model and its requests.
fn whole_experts(scenario: &Scenario) -> Option<Assumption> {
    (scenario.ep > 1 && !scenario.has_own_steps()).then(|| Assumption {
        what: format!(
            "whole experts on {} ranks: each rank is taken to get as much work as the others, while steps \
             wait for the busiest",
            scenario.ep
        ),
        settled_by: "--baseline with a plain sweep".to_string(),
    })
}

/// Why the vLLM line that is shown has a limit that nobody asked for.
fn limit_of_the_pool(
    setting: &flags::Setting<'_>,
    lines: &BTreeMap<&'static str, Vec<String>>,
) -> Option<Assumption> {
    let vllm = lines.contains_key("vllm") && flags::shows(setting.scenario, EngineKind::Vllm);
    let memory = vllm.then(|| flags::memory_of(setting, EngineKind::Vllm))??;
    let changed = launch::limit_changed(setting.scenario, &memory).is_some();
    launch::limit_of_the_pool(setting.scenario, &memory).filter(|_| !changed)
}

/// Why the vLLM line that is shown says how many requests run at once.
fn for_states(
    setting: &flags::Setting<'_>,
    lines: &BTreeMap<&'static str, Vec<String>>,
) -> Option<Assumption> {
    let vllm = lines.contains_key("vllm") && flags::shows(setting.scenario, EngineKind::Vllm);
    let memory = vllm.then(|| flags::memory_of(setting, EngineKind::Vllm))??;
    launch::told_for_states(&memory)
}

/// Loads shown that the user's own steps were not measured at, and those whose verify is of more tokens
/// than any of them.
fn loads_between(scenario: &Scenario, points: &[Point]) -> Option<Assumption> {
    let measured = scenario.own_loads();
    let most = measured.iter().copied().max()?;
    let loads = |points: Vec<&Point>| -> Vec<u32> {
        points.into_iter().map(|point| point.concurrency).collect()
    };
    let others = loads(points.iter().filter(|point| !point.load_measured).collect());
    let swept = scenario.baseline.is_some() && scenario.observed.verify_ms.is_none();
    let beyond = |point: &&Point| {
        let verified = u64::from(point.concurrency) * u64::from(point.draft_tokens);
        swept && point.steps > 0 && !point.speedup_measured && verified > u64::from(most)
    };
    let beyond = loads(points.iter().filter(beyond).collect());
    let users = users_of(&measured);
    let s = if most == 1 { "" } else { "s" };
    let at = match beyond.len() == points.len() {
        true => String::new(),
        false => format!(" (at {})", users_of(&beyond)),
    };
    let verifies = format!("verifies of more than {most} token{s}{at}");
    let (modelled, settled_by) = match (others.as_slice(), beyond.as_slice()) {
        ([], []) => return None,
        ([], _) => (
            format!("{verifies} are modelled from them"),
            speculative_run(scenario, &beyond),
        ),
        (_, _) => {
            let is = if others.len() == 1 { "is" } else { "are" };
            let too = match beyond.is_empty() {
                true => String::new(),
                false => format!(", as are {verifies}"),
            };
            (
                format!("{} {is} modelled from them{too}", listed(&others)),
                "a plain sweep over those loads".to_string(),
            )
        }
    };
    Some(Assumption {
        what: format!("plain steps were measured at {users}; {modelled}"),
        settled_by,
    })
}

/// The run that shows verifies of these loads, or what sets one that is at hand against the plain sweep.
fn speculative_run(scenario: &Scenario, loads: &[u32]) -> String {
    let at_hand = |users: &u32| measured::what_sets(scenario, *users);
    let lacking = loads
        .iter()
        .copied()
        .filter(|users| at_hand(users).is_none());
    let lacking: Vec<u32> = lacking.collect();
    match lacking.len() {
        0 => loads
            .iter()
            .find_map(at_hand)
            .unwrap_or_default()
            .to_string(),
        some if some == loads.len() => "a speculative run there".to_string(),
        _ => format!("a speculative run at {}", users_of(&lacking)),
    }
}

/// `1, 2 and 4 users`.
pub(super) fn users_of(loads: &[u32]) -> String {
    let s = if loads == [1] { "" } else { "s" };
    format!("{} user{s}", listed(loads))
}

/// `1, 2 and 4`.
fn listed(loads: &[u32]) -> String {
    let words: Vec<String> = loads.iter().map(u32::to_string).collect();
    match words.as_slice() {
        [most @ .., before, last] => {
            let most: String = most.iter().map(|word| format!("{word}, ")).collect();
            format!("{most}{before} and {last}")
        }
        words => words.concat(),
    }
}

/// A sweep beside what does not fit.
fn of_another_server() -> Assumption {
    Assumption {
        what: "the plain sweep ran, and nothing runs with these flags: its server had another weight format, card or \
               number of cards, or was another model"
            .to_string(),
        settled_by: "--quant, --gpu, --gpus and --tp of that server".into(),
    }
}

/// How far a sweep misleads on linear layers, whose verify writes a state for every token: measured, and not
/// in the law that carries a sweep on.
fn delta_rule(scenario: &Scenario) -> &'static str {
    let linear = |layer: &kvplan::Layer| matches!(layer.attention, kvplan::Attention::Linear(_));
    let drafts = scenario.draft.is_some() && scenario.model.layers.iter().any(linear);
    match drafts {
        true => {
            "; with linear layers the speedup from a sweep came out 4 to 13 % too high inside it, 20 to 37 % beyond \
             (one model on an H200, docs/HARDWARE.md)"
        }
        false => "",
    }
}

/// At which context the user's sweep is taken to have run, and what was done where another is asked
/// for.
fn sweep_context(scenario: &Scenario, memory: &Memory) -> Option<Assumption> {
    let sweep = scenario.baseline.as_ref()?;
    let asked = scenario.context;
    if memory.fits == Some(false) {
        return Some(of_another_server());
    }
    let pool = memory.swept_pool;
    // Requests that the pool does not hold at once, each load's of the length that was told of it.
    let beyond = |tokens: f64| {
        let pool = pool? as f64;
        let length = |users: f64| {
            let own = scenario.swept.iter().filter(|at| at.running == users);
            let told = own.filter_map(|at| at.held_tokens).min_by(f64::total_cmp);
            told.unwrap_or(tokens)
        };
        let loads = sweep.iter().map(|(users, _)| (*users, length(*users)));
        let (most, length) = loads.max_by(|a, b| (a.0 * a.1).total_cmp(&(b.0 * b.1)))?;
        (most * length > pool).then(|| {
            format!(
                "; {most:.0} requests of {} tokens do not fit {} KV tokens",
                thousands(length),
                thousands(pool)
            )
        })
    };
    // Where the file says its context, whoever ran it had the room.
    let roomier = scenario
        .sweep_context
        .and_then(beyond)
        .map(|words| format!("{words}: its pool was larger, or not all ran at once"));
    let ran = match scenario.sweep_context {
        None if asked == 0 => return None,
        None => {
            let doubt = match beyond(asked as f64) {
                Some(words) => {
                    format!("{words}, so it probably held less: --baseline-context TOKENS tells")
                }
                None => ", nor --baseline-context".to_string(),
            };
            format!(
                "is taken to have run at {asked} tokens of context (its file does not say{doubt})"
            )
        }
        Some(tokens) if (tokens - asked as f64).abs() < 1.0 => {
            format!("is of {asked} tokens of context")
        }
        Some(tokens) => format!(
            "is of {tokens:.0} tokens of context; its steps at {asked} are the measured ones and what \
             the step model adds or takes between the two"
        ),
    };
    Some(Assumption {
        what: format!(
            "the plain sweep {ran}, each request with a prompt of its own; a verify reads a cache once \
             where the step model says so (measured on an H200 only){}{}",
            roomier.unwrap_or_default(),
            delta_rule(scenario)
        ),
        settled_by: match scenario.sweep_context {
            Some(tokens) if (tokens - asked as f64).abs() < 1.0 => {
                "one speculative run at that context".into()
            }
            _ => "a plain sweep at --context; one speculative run at that context".into(),
        },
    })
}
