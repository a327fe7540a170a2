//! The largest batch that SGLang captures as a CUDA graph. A larger one runs outside graphs, and the
//! rows are reckoned inside: the planned server captures all that it runs.

use std::collections::BTreeMap;

use spec_decode::cycle::GraphLadder;
use spec_decode::economics::depth::TIE_SHARE;

use super::answer::{Assumption, Point};
use super::costs::AllReduces;
use super::kernels::in_force;
use super::launch;
use super::links::Links;
use super::points::try_depths;
use super::verdict;
use crate::explain::carried::ATTENTION;
use crate::scenario::{EngineChoice, EngineKind, GraphBatch, Scenario};
use crate::step_time::verify_graphs::Seen;

/// SGLang's flag for it before 0.5.14; 0.5.20 knows it no more.
pub(super) const FIRST: &str = "--cuda-graph-max-bs";
/// Its flag since.
const SINCE: &str = "--cuda-graph-max-bs-decode";
/// What the engines call it.
const FLAGS: [&str; 4] = [
    FIRST,
    SINCE,
    "--max-cudagraph-capture-size",
    "--cuda-graph-sizes",
];

/// What a release of SGLang calls it.
pub(super) fn flag(engine: &EngineChoice) -> &'static str {
    kvplan::sglang_graph_flag(in_force(engine))
}

/// The scenario with the largest batch that the planned server captures, where that is neither what the
/// log's server was told nor what SGLang takes by itself; where there is no room for more graphs, as many
/// requests at once as those of the log hold.
///
/// # Errors
/// Inputs no engine could run with.
pub(super) fn for_running(mut scenario: Scenario) -> anyhow::Result<Scenario> {
    scenario.graphs = None;
    if scenario.engine.kind != EngineKind::Sglang {
        return Ok(scenario);
    }
    scenario.graphs = planned(&scenario)?;
    let (Some(_), Some(told)) = (scenario.graphs, scenario.ran.graph_max_batch) else {
        return Ok(scenario);
    };
    let loads = scenario.concurrency.last().copied().unwrap_or(1);
    if u64::from(loads) > told || scenario.max_running.is_some() {
        return Ok(scenario);
    }
    let mut fewer = scenario.clone();
    (fewer.graphs, fewer.running_for_loads) = (None, Some(told));
    let fits = |scenario: &Scenario| anyhow::Ok(crate::plan::memory(scenario)?.fits);
    let no_room = fits(&scenario)? != Some(true) && fits(&fewer)? == Some(true);
    Ok(if no_room { fewer } else { scenario })
}

fn planned(scenario: &Scenario) -> anyhow::Result<Option<GraphBatch>> {
    let by_itself = kvplan::sglang_graph_batch(&crate::plan::setup(scenario, None)?);
    let told = scenario.ran.graph_max_batch.filter(|batch| *batch > 0);
    let runs = launch::running(scenario);
    let heaviest = scenario.concurrency.last().copied().map_or(1, u64::from);
    let mut rows = heaviest.min(runs.unwrap_or(u64::MAX));
    if rows > told.unwrap_or(by_itself) {
        let held = crate::plan::memory(scenario)?.held(scenario.context);
        rows = rows.min(held.map_or(u64::MAX, u64::from));
    }
    let wanted = match rows > by_itself {
        true => runs.unwrap_or(rows),
        false => runs.unwrap_or(by_itself).min(by_itself),
    };
    // SGLang prints its own choice as if it had been told; pasted it would say more than it does.
    let own = told.is_some_and(|told| told == by_itself && runs.is_some_and(|runs| runs > told));
    let enough = !own && told.unwrap_or(by_itself) >= wanted;
    Ok((!enough).then_some(GraphBatch {
        largest: wanted,
        by_itself,
    }))
}

/// Says that the line to paste captures more than the log's server did, or than the engine does by itself.
pub(super) fn told(
    scenario: &Scenario,
    flags: &BTreeMap<&'static str, Vec<String>>,
) -> Option<String> {
    let line = flags.get(scenario.engine.kind.name())?;
    let at = line
        .iter()
        .position(|word| FLAGS.contains(&word.as_str()))?;
    let (name, value) = (line.get(at)?, line.get(at + 1)?);
    let mut ran = scenario.ran.carried.flags.iter();
    let alike = |word: &String| word == name || (word == FIRST && name == SINCE);
    let ran = ran.find(|flag| flag.first().is_some_and(alike));
    let other = match (ran.and_then(|flag| flag.get(1)), scenario.graphs) {
        (Some(ran), _) if ran == value => return None,
        (Some(ran), _) if scenario.ran.file.is_empty() => format!("not the {ran} of the log"),
        (Some(ran), _) => format!("not the {ran} of {}", scenario.ran.file),
        (None, Some(graphs)) => format!("by itself SGLang captures to {}", graphs.by_itself),
        (None, None) => return None,
    };
    Some(format!(
        "the paste has {name} {value}, {other}: what is larger runs outside CUDA graphs"
    ))
}

/// What a verify is padded to in vLLM, where that makes more steps cheaper than fewer in a row shown, or
/// no log says how the graphs are cut and the other way would move a row by more than a tie.
///
/// # Errors
/// As the answer's.
pub(super) fn padding(
    scenario: &Scenario,
    links: &Links<'_>,
    all_reduce: &AllReduces<'_>,
    points: &[Point],
) -> anyhow::Result<Option<Assumption>> {
    if scenario.engine.kind != EngineKind::Vllm || scenario.draft.is_none() {
        return Ok(None);
    }
    let drafts = |point: &&Point| point.steps > 0 && !point.off_in_paste;
    let rows: Vec<&Point> = points.iter().filter(drafts).collect();
    let uneven = rows.iter().find_map(|point| uneven(scenario, point));
    let other = cut_otherwise(scenario, links, all_reduce, &rows)?;
    if uneven.is_none() && other.is_none() {
        return Ok(None);
    }
    let attends = scenario.attends();
    let by_log = scenario.ran.verify_graphs.as_ref();
    let sizes = match scenario.graph_ladder() {
        GraphLadder::VllmRounded => "to multiples of 1 + steps tokens, in whole CUDA graphs",
        _ => "to 1, 2, 4, 8, 16 ... tokens, in graphs cut at attention",
    };
    // A build's own backend, which the log does name.
    let own = scenario.ran.carried.value(ATTENTION);
    let backend = attends.backend();
    let asked = scenario.input("attention_backend");
    let asked = asked.and_then(|input| input.value.as_str());
    let (by, settled_by) = match (by_log, own) {
        (Some(seen), _) if asked.is_some() && seen.whole.is_none() => (
            asked.unwrap_or_default().to_string(),
            "a log of a server that drafts, in which vLLM names its CUDA graphs,",
        ),
        (Some(_), _) => ("as logged".to_string(), ""),
        (None, Some(own)) => (
            format!("{own}, in no release, taken to be as {backend}"),
            "a log of a server that drafts, in which vLLM names its CUDA graphs,",
        ),
        (None, None) => (
            backend.to_string(),
            "a log that names the attention backend",
        ),
    };
    // Without a row of its own what follows is the other way to cut.
    let colon = if uneven.is_some() { ":" } else { ";" };
    let parts = [uneven, other].into_iter().flatten();
    let parts: Vec<String> = parts.collect();
    Ok(Some(Assumption {
        what: format!(
            "a verify is padded {sizes} ({by}){colon} {}",
            parts.join("; ")
        ),
        settled_by: settled_by.to_string(),
    }))
}

/// A row whose verify computes more than one of more steps, or as much as the faster depth told of it.
fn uneven(scenario: &Scenario, row: &Point) -> Option<String> {
    let users = f64::from(row.concurrency);
    let run = |steps: u32| {
        let tokens = users * f64::from(steps + 1);
        (tokens, scenario.graph_ladder().padded_of(users, tokens))
    };
    let told = row.faster.map(|faster| faster.steps).filter(|steps| {
        let (less, more) = (row.steps.min(*steps), row.steps.max(*steps));
        less < more && less > 0 && run(less).1 >= run(more).1
    });
    let next = Some(row.steps + 1).filter(|next| run(row.steps).1 > run(*next).1);
    let other = told.or(next)?;
    let [(tokens, runs), (other_tokens, other_runs)] = [run(row.steps), run(other)];
    Some(format!(
        "{tokens:.0} tokens of {} with {} run as {runs:.0}, {other_tokens:.0} with {} as {other_runs:.0}",
        verdict::users(row.concurrency),
        verdict::steps(row.steps),
        verdict::steps(other),
    ))
}

/// What graphs cut the other way would change, where no log says how they are.
fn cut_otherwise(
    scenario: &Scenario,
    links: &Links<'_>,
    all_reduce: &AllReduces<'_>,
    rows: &[&Point],
) -> anyhow::Result<Option<String>> {
    if scenario.ran.verify_graphs.is_some() {
        return Ok(None);
    }
    let whole = scenario.attends().whole(None);
    let mut other = scenario.clone();
    other.ran.verify_graphs = Some(Seen {
        whole: Some(!whole),
        backend: None,
    });
    if other.graph_ladder() == scenario.graph_ladder() {
        return Ok(None);
    }
    let costs = super::with_what_was_seen(&other, all_reduce, links)?;
    let moved = |point: &&Point| {
        let tried = try_depths(&other, &costs, point.concurrency, point.context);
        let same = tried.iter().find(|t| t.depth.steps == point.steps)?;
        Some((same.speedup / point.speedup, point.concurrency))
    };
    let by_size = |a: &(f64, u32), b: &(f64, u32)| a.0.ln().abs().total_cmp(&b.0.ln().abs());
    let most = rows.iter().filter_map(moved).max_by(by_size);
    let most = most.filter(|(ratio, _)| ratio.ln().abs() > TIE_SHARE);
    Ok(most.map(|(ratio, load)| {
        let otherwise = if whole { "cut graphs" } else { "whole graphs" };
        let percent = (ratio - 1.0) * 100.0;
        format!("{otherwise}: {percent:+.0} % at {}", verdict::users(load))
    }))
}
