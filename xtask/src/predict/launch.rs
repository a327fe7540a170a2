//! What a start line needs besides draft and checkpoint: how many requests, how long a context; and the
//! words around the flags.

use kvplan::Attention;
use spec_decode::HeadKind;

use super::answer::{Answer, Assumption, Memory};
use super::links::Links;
use crate::scenario::{EngineKind, Scenario};
use crate::table::{at_most, thousands};

/// Stands where the draft's checkpoint belongs.
pub(super) const DRAFT: &str = "DRAFT_PATH";
/// Requests at once that SGLang runs with a draft unless it is told (server_args.py, since 2025-06).
const SGLANG_RUNNING_WITH_DRAFT: u32 = 48;
/// Least that it runs at once by itself without one, however small the pool.
const SGLANG_LEAST: u64 = 2048;
/// The same of vLLM on any card: its smallest default of max_num_seqs.
const VLLM_RUNNING: u32 = 256;

/// Whether layers keep a state beside those that keep a cache.
fn hybrid(scenario: &Scenario) -> bool {
    let layers = scenario.model.layers.iter();
    layers
        .map(|layer| layer.attention)
        .any(|a| matches!(a, Attention::Linear(_) | Attention::Mamba(_)))
}

/// What SGLang wants for a draft on a hybrid: state of every step kept. Releases from December 2025
/// refuse the draft otherwise (pull requests 14792, 19391); from June 2026 (28151) it is their own
/// choice.
pub(super) fn sglang_hybrid(scenario: &Scenario) -> Option<([&'static str; 2], &'static str)> {
    let version = scenario.engine.version.as_deref();
    let version = version
        .filter(|_| scenario.engine.kind == EngineKind::Sglang)
        .and_then(kvplan::Version::find)?;
    let refuses = version.since((0, 5, 7), (2025, 12)) && !version.since((0, 5, 14), (2026, 7));
    (refuses && hybrid(scenario)).then_some((
        ["--mamba-scheduler-strategy", "extra_buffer"],
        "SGLANG_ENABLE_SPEC_V2=1",
    ))
}

/// Requests at once to tell the engine: those of its ledger, by flag or by a log; else, where it runs
/// fewer by itself than were asked for, as many of them as its memory holds.
pub(super) fn max_running(
    scenario: &Scenario,
    engine: EngineKind,
    drafts: bool,
    memory: Option<&Memory>,
) -> Option<u64> {
    if scenario.max_running.is_some() {
        return scenario.max_running;
    }
    let for_states = memory.and_then(|memory| memory.for_states.as_ref());
    if let Some(told) = for_states.filter(|_| engine == EngineKind::Vllm) {
        return Some(told.requests);
    }
    if let Some(told) = scenario
        .running()
        .filter(|_| scenario.engine.kind == engine)
    {
        let by_itself = by_itself(engine, drafts).map(u64::from);
        let same = match engine {
            // A log shows what it came to, told or not.
            EngineKind::Sglang => by_itself.map_or(told >= SGLANG_LEAST, |own| told == own),
            EngineKind::Vllm | EngineKind::TrtLlm | EngineKind::LlamaCpp => false,
        };
        return (!same).then_some(told);
    }
    let most = most_held(scenario, memory).filter(|_| asks_loads(scenario))?;
    (most > by_itself(engine, drafts)?).then_some(u64::from(most))
}

/// Whether loads were asked for.
fn asks_loads(scenario: &Scenario) -> bool {
    let loads = scenario.input("concurrency");
    loads.is_some_and(|loads| loads.source.starts_with("--"))
}

/// The heaviest load shown, or as much of it as the memory holds.
fn most_held(scenario: &Scenario, memory: Option<&Memory>) -> Option<u32> {
    let most = scenario.concurrency.last().copied()?;
    let held = memory.and_then(|memory| memory.held(scenario.context));
    Some(held.map_or(most, |held| most.min(held)))
}

/// The scenario for the loads asked for, where a log's server ran fewer requests at once or the
/// engine does by itself: ledger and paste are for the heaviest of them, or as many of it as the pool
/// then holds.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn for_loads(scenario: Scenario) -> anyhow::Result<Scenario> {
    super::graphs::for_running(at_once_for_loads(scenario)?)
}

fn at_once_for_loads(mut scenario: Scenario) -> anyhow::Result<Scenario> {
    let by_itself = by_itself(scenario.engine.kind, scenario.draft.is_some()).map(u64::from);
    let limit = scenario.ran.told_running().or(by_itself);
    let limit = limit.filter(|_| scenario.max_running.is_none() && asks_loads(&scenario));
    let Some(limit) = limit else {
        return Ok(scenario);
    };
    let heaviest = scenario.concurrency.last().copied().map_or(1, u64::from);
    scenario.running_for_loads = most_run(&scenario, limit, heaviest)?;
    Ok(scenario)
}

/// The most requests at once, above a limit and up to a load, that a server told to run as many holds.
fn most_run(scenario: &Scenario, limit: u64, load: u64) -> anyhow::Result<Option<u64>> {
    let mut told = scenario.clone();
    most_told(limit, load, |requests| {
        told.running_for_loads = Some(requests);
        let memory = crate::plan::memory(&told)?;
        Ok(match memory.fits {
            Some(false) => 0,
            _ => memory.room(told.context).unwrap_or(0),
        })
    })
}

/// The most requests at once, above a limit and up to a load, that a server told to run as many has `room` for.
///
/// # Errors
/// Those of `room`.
pub(crate) fn most_told(
    limit: u64,
    load: u64,
    mut room: impl FnMut(u64) -> anyhow::Result<u64>,
) -> anyhow::Result<Option<u64>> {
    let (mut low, mut high, mut tried) = (limit, load, load);
    while high > low {
        let held = room(tried)?;
        // Fewer at once leave the pool more room: no more are held than a lighter load leaves.
        (low, high) = match held >= tried {
            true => (tried, high.min(held)),
            false => (low, tried - 1),
        };
        tried = match (low + 1..tried).contains(&held) {
            true => held.min(high),
            false => low + (high - low).div_ceil(2),
        };
    }
    Ok(Some(low).filter(|most| *most > limit))
}

/// Requests at once that the planned server runs, and by which word: told by a flag, by a log or for the loads
/// asked for, else what its engine takes by itself, where loads were asked for.
pub(crate) fn cap(scenario: &Scenario, runs: u64) -> Option<(u64, String)> {
    let engine = scenario.engine.kind;
    let told = scenario.max_running.or(scenario.running_for_loads);
    if let Some(most) = told {
        return Some((most, format!("{} {most}", engine.running_flag())));
    }
    by_itself(engine, scenario.draft.is_some()).filter(|_| asks_loads(scenario))?;
    Some(match scenario.ran.told_running() {
        Some(_) => (runs, format!("{} {runs}", engine.running_flag())),
        None => (runs, format!("{} by itself", engine.title())),
    })
}

/// Says that the paste runs another number of requests at once than the log's server.
pub(super) fn more_than_ran(scenario: &Scenario) -> Option<String> {
    let (runs, ran) = scenario
        .running_for_loads
        .zip(scenario.ran.told_running())
        .filter(|_| scenario.max_running.is_none() && !scenario.ran.file.is_empty())?;
    let asked = scenario.concurrency.last().copied().map_or(1, u64::from);
    let why = match (runs < ran, runs < asked) {
        (true, _) => "the batches that its graphs hold, with no room for larger ones",
        (false, true) => "what the pool holds of those asked for",
        (false, false) => "as asked for",
    };
    Some(format!(
        "the paste runs {runs} requests at once, {why}; the server of {} ran {ran}",
        scenario.ran.file
    ))
}

/// Requests at once of the planned server: told, by flag or by a log, or taken by the engine itself.
pub(super) fn running(scenario: &Scenario) -> Option<u64> {
    let by_itself = by_itself(scenario.engine.kind, scenario.draft.is_some()).map(u64::from);
    scenario.running().or(by_itself)
}

/// Requests at once that an engine runs by itself, where that is a fixed figure.
fn by_itself(engine: EngineKind, drafts: bool) -> Option<u32> {
    match engine {
        EngineKind::Sglang => drafts.then_some(SGLANG_RUNNING_WITH_DRAFT),
        EngineKind::Vllm => Some(VLLM_RUNNING),
        EngineKind::TrtLlm | EngineKind::LlamaCpp => None,
    }
}

/// The flag that so many requests at once presuppose, where nobody told the engine as many and by itself
/// it runs fewer.
pub(crate) fn flag_at_once(scenario: &Scenario, requests: u64) -> Option<String> {
    let engine = scenario.engine.kind;
    let told = scenario.max_running.or_else(|| scenario.ran.told_running());
    let runs = told.or(by_itself(engine, scenario.draft.is_some()).map(u64::from))?;
    (runs < requests).then(|| format!("{} {requests}", engine.running_flag()))
}

/// The flag that a plain server needs to run so many at once, where it is told nothing of it and runs
/// fewer by itself or as pasted.
pub(super) fn flag_of_sweep(scenario: &Scenario, users: u64) -> Option<String> {
    let engine = scenario.engine.kind;
    let told = scenario.max_running.or_else(|| scenario.ran.told_running());
    let (flag, runs) = match engine {
        EngineKind::Vllm => ("--max-num-seqs", u64::from(VLLM_RUNNING)),
        EngineKind::Sglang => {
            let pasted = max_running(scenario, engine, true, None)?;
            ("--max-running-requests", pasted)
        }
        EngineKind::TrtLlm | EngineKind::LlamaCpp => return None,
    };
    (told.is_none() && runs < users).then(|| format!("{flag} {users}"))
}

/// The longest request that the log's server was told to take, below the model's own limit, where
/// the pool still holds one and nobody asks for a longer one.
pub(super) fn told_limit(scenario: &Scenario, memory: Option<&Memory>) -> Option<u64> {
    let limit = own_limit(scenario)?;
    let holds = memory.is_none_or(|memory| holds(memory, limit));
    let asked = scenario
        .asked_context()
        .is_some_and(|asked| asked > limit && !scenario.by_log("context"));
    (holds && !asked).then_some(limit)
}

/// The limit in the log of a server, where it is not the model's.
fn own_limit(scenario: &Scenario) -> Option<u64> {
    let limit = scenario.ran.context_limit?;
    let model = scenario.model.max_positions;
    model
        .is_none_or(|model| limit < model)
        .then_some(limit)
        .filter(|_| scenario.max_model_len.is_none())
}

/// The limit that the log shows, the model's own too, where the pool holds it and nobody asks for a
/// longer context.
pub(super) fn log_limit(scenario: &Scenario, memory: Option<&Memory>) -> Option<u64> {
    let limit = scenario.ran.context_limit?;
    let serves = scenario.context <= limit && memory.is_none_or(|memory| holds(memory, limit));
    serves.then_some(limit)
}

/// Whether the pool holds one request of a length.
fn holds(memory: &Memory, tokens: u64) -> bool {
    let pool = memory.pool.as_ref();
    pool.is_none_or(|pool| pool.requests(tokens) >= 1.0)
}

/// Why the pasted limit is another than the log's.
pub(super) fn limit_changed(scenario: &Scenario, memory: &Memory) -> Option<String> {
    // vLLM is told the model's own limit too, where a log shows it.
    let vllm = scenario.engine.kind == EngineKind::Vllm;
    let told = super::vllm_context(scenario, Some(memory)).filter(|_| vllm);
    let limit = match told {
        Some(told) => scenario.ran.context_limit.filter(|limit| told < *limit)?,
        None => own_limit(scenario)?,
    };
    let kept = scenario.max_model_len.is_some() || told_limit(scenario, Some(memory)).is_some();
    if kept || scenario.ran.file.is_empty() {
        return None;
    }
    let why = if holds(memory, limit) {
        format!("{} were asked for", scenario.context)
    } else {
        "the pool holds no request as long".to_string()
    };
    Some(format!(
        "the paste does not keep the limit of {limit} tokens that {} shows: {why}",
        scenario.ran.file
    ))
}

/// Why vLLM's pasted limit is more than the context asked for.
pub(super) fn limit_with_room(scenario: &Scenario, memory: &Memory) -> Option<String> {
    let by_flag = scenario.max_model_len.or(log_limit(scenario, Some(memory)));
    let asked = scenario.asked_context()?;
    let told = super::vllm_context(scenario, Some(memory))?;
    let vllm = scenario.engine.kind == EngineKind::Vllm;
    let for_head = [memory.length.let_in, memory.length.drafted].contains(&Some(told));
    let room =
        vllm && !for_head && by_flag.is_none() && !scenario.by_log("context") && told > asked;
    room.then(|| {
        format!(
            "--max-model-len {told} in the paste: room for the longest requests, where {asked} tokens are held \
             in the mean"
        )
    })
}

/// Why vLLM is told a limit that nobody asked for: what its pool surely holds.
pub(super) fn limit_of_the_pool(scenario: &Scenario, memory: &Memory) -> Option<Assumption> {
    let asked = scenario.asked_context().is_some() && !scenario.by_log("context");
    let why = memory.length.why.as_ref().filter(|_| !asked)?;
    let told = super::vllm_context(scenario, Some(memory))?;
    Some(Assumption {
        what: format!(
            "--max-model-len {told} in the paste, {}: {why}",
            memory.length.rests_on()
        ),
        settled_by: "the log of its start".to_string(),
    })
}

/// Why vLLM is told a number of requests that nobody asked for: the states of each want a block.
pub(super) fn told_for_states(memory: &Memory) -> Option<Assumption> {
    let told = memory.for_states.as_ref()?;
    Some(Assumption {
        what: format!(
            "--max-num-seqs {} in the paste: {}",
            told.requests, told.why
        ),
        settled_by: "--max-running N".to_string(),
    })
}

/// Loads of the table that the memory holds and the pasted line does not run, where nobody asked for
/// them.
pub(super) fn loads_not_run(scenario: &Scenario, memory: &Memory) -> Option<String> {
    let (engine, drafts) = (scenario.engine.kind, scenario.draft.is_some());
    let most = most_held(scenario, Some(memory))?;
    let told = scenario.running();
    let limit = told.or_else(|| by_itself(engine, drafts).map(u64::from));
    let limit = limit.filter(|limit| u64::from(most) > *limit)?;
    let pasted = told.is_none() && max_running(scenario, engine, drafts, Some(memory)).is_some();
    if scenario.max_running.is_some() || pasted {
        return None;
    }
    let runs = match told {
        Some(_) => format!("the server runs {limit} at once"),
        None => format!("{} runs {limit} at once by itself", engine.title()),
    };
    let more = match most_run(scenario, limit, u64::from(most)).ok()? {
        Some(more) => format!(
            "adding --max-running {more} to this command makes memory and pasted line those of {more}"
        ),
        None => "told more, it holds no more".to_string(),
    };
    Some(format!("{most} users: {runs}, as pasted; {more}"))
}

/// A fraction asked for or in a log above the legal range, with one below that fits: the lines to paste are of
/// the engine's own fraction, or of one that is clear of the wall's band, where those start.
pub(super) fn lower_fraction(
    scenario: &Scenario,
    links: &Links<'_>,
    answer: &mut Answer,
) -> anyhow::Result<()> {
    let asked = scenario.input("mem_fraction");
    let above = scenario
        .mem_fraction
        .zip(answer.memory.fraction_max)
        .is_some_and(|(fraction, most)| fraction > most);
    let (Some(fraction), true) = (scenario.mem_fraction.and(asked), above) else {
        return Ok(());
    };
    if answer.memory.fits == Some(true) || answer.cut_refused {
        return Ok(());
    }
    let tight = answer.memory.fits.is_none();
    let by_log = scenario.by_log("mem_fraction");
    let mut other = scenario.clone();
    // Inside the band, and beside a log whose pool is of its own fraction, one clear of that band.
    let clear = answer.memory.typed_fraction();
    let near = tight || !scenario.ran.file.is_empty();
    other.mem_fraction = clear.filter(|_| near).and_then(|f| f.parse().ok());
    if by_log {
        let vllm = scenario.engine.kind == EngineKind::Vllm;
        other.ran = scenario.ran.clone().at_other_fraction(vllm);
    }
    let lower = super::answer(&other, links)?;
    let Some(typed) = lower.memory.typed_fraction() else {
        return Ok(());
    };
    if lower.memory.fits == Some(false) {
        return Ok(());
    }
    answer.assumptions.push(Assumption {
        what: format!(
            "the paste is what is best at {typed} of the card, not at {} as {}: above {} it {}{}",
            fraction.value,
            if by_log { "in the log" } else { "asked for" },
            at_most(answer.memory.fraction_max.unwrap_or(1.0), 3),
            if tight {
                "may start and then run out"
            } else {
                "runs out"
            },
            smaller_pool(scenario, answer, &lower.memory)
        ),
        settled_by: format!("--mem-fraction {typed} for its figures"),
    });
    // The length that the paste serves is of its own pool.
    answer.memory.pasted_limit = lower.memory.pasted_limit;
    // What its lines rest on beyond that.
    let known: Vec<String> = answer.assumptions.iter().map(|a| a.what.clone()).collect();
    let more = lower.assumptions.into_iter();
    answer
        .assumptions
        .extend(more.filter(|a| !known.contains(&a.what)));
    answer.engine_flags = lower.engine_flags;
    answer.lacking = lower.lacking;
    answer.placeholders = lower.placeholders;
    Ok(())
}

/// What the pool of a pasted fraction holds less than the one that the answer's rows are of.
fn smaller_pool(scenario: &Scenario, answer: &Answer, pasted: &Memory) -> String {
    let (Some(tokens), Some(own)) = (pasted.kv_tokens, answer.memory.kv_tokens) else {
        return String::new();
    };
    let out = |users: &u32| {
        let fits = |memory: &Memory| memory.holds(*users, scenario.context);
        fits(&answer.memory) == Some(true) && fits(pasted) == Some(false)
    };
    let out: Vec<String> = scenario
        .concurrency
        .iter()
        .filter(|users| out(users))
        .map(u32::to_string)
        .collect();
    let loads = match out.as_slice() {
        [] => String::new(),
        loads => format!(", too few for {} users", loads.join(", ")),
    };
    format!(
        "; its pool is of {} tokens{loads}, that of the figures above of {}",
        thousands(tokens as f64),
        thousands(own as f64)
    )
}

/// The start lines to show, each as typed in a shell, with the engine's name.
pub(crate) fn lines(answer: &Answer) -> Vec<(&'static str, String)> {
    let env = |engine: &str| {
        let key = format!("{engine}_env");
        let found = answer.engine_flags.iter().find(|(name, _)| **name == key);
        found.map_or_else(String::new, |(_, env)| format!("{} ", env.join(" ")))
    };
    super::flags::shown(answer)
        .into_iter()
        .filter(|(engine, _)| !engine.ends_with("_env"))
        .map(|(engine, flags)| {
            let program = match engine {
                "sglang" => "python -m sglang.launch_server ",
                "vllm" => "vllm serve ",
                "trtllm" => "trtllm-serve ",
                "llamacpp" => "llama-server ",
                _ => "",
            };
            if engine == "trtllm_extra_yml" {
                return ("extra.yml", flags.join("\n"));
            }
            let words = super::text::shell_words(flags);
            (engine, format!("{}{program}{words}", env(engine)))
        })
        .collect()
}

/// What no flags are given for, and why.
pub(super) fn missing(scenario: &Scenario) -> Option<String> {
    let head = scenario.draft.as_ref()?.head;
    match scenario.engine.kind {
        EngineKind::LlamaCpp if !matches!(head, HeadKind::DraftModel | HeadKind::NGram) => {
            Some(format!(
                "no llama.cpp flags for {} heads: builds differ in whether and how they load them \
                 (docs/speculative.md of yours says)",
                head.name()
            ))
        }
        EngineKind::TrtLlm if head == HeadKind::Parallel => Some(format!(
            "no TensorRT-LLM option for {} heads is known here",
            head.name()
        )),
        _ => None,
    }
}
