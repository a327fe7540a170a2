//! What to change first, ranked by predicted gain, and comparisons side by side.

mod advised;
mod depth;
mod kernel;

use super::answer::{Answer, Assumption, Change, Compared, Point, Verdict};
use super::compared_names::{self, is_box, is_own_box};
use super::costs::{Costs, all_reduces};
use super::flags::Setting;
use super::kernels::{self, Group};
use super::links::{Choice, Links};
use super::measured::Measured;
use super::of_one_kind::{self, Row};
use advised::{Advised, OverLoads, over_loads};
use pcie_sim::nccl::Cure;
use spec_decode::HeadKind;

use crate::cli::ScenarioArgs;
use crate::input;
use crate::scenario::{Known, Scenario};

/// Gains smaller than this are inside the model's own error and not worth a line.
const WORTH: f64 = 1.02;
/// The same beside a sweep, whose steps are moved by what the model says of the two.
const WORTH_BESIDE_SWEEP: f64 = 1.05;

/// Changes that are predicted to gain tokens a second, best first: in the mean of the loads, a depth
/// also at the first load that another one serves better. Gains are of what is
/// advised: without the draft where the line to paste has none.
pub(super) fn changes(
    setting: &Setting<'_>,
    (links, costs): (&Links<'_>, &Costs<'_>),
    points: &[Point],
) -> anyhow::Result<Vec<Change>> {
    let (scenario, drafts) = (setting.scenario, setting.steps > 0);
    if points.is_empty() || scenario.draft.is_none() {
        return Ok(Vec::new());
    }
    let loads = points.iter().map(|point| Advised::new(point, drafts));
    let advised: Vec<Advised<'_>> = loads.collect();
    let mut found = Vec::new();
    // The saved steps of a stand-in are of one all-reduce, and nothing moves them to another's.
    if scenario.served.is_none() {
        let worth = match costs.has_sweep() {
            true => WORTH_BESIDE_SWEEP,
            false => WORTH,
        };
        found = of_the_box(scenario, links, costs, &advised)?;
        found.extend(kernel::others(scenario, (links, costs), &advised)?);
        found.retain(|change| change.gain.is_finite() && change.gain > worth);
    }
    found.extend(depth::others(scenario, costs, setting.memory));
    found.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    Ok(found)
}

/// Other all-reduces, and the draft whole on every GPU.
fn of_the_box(
    scenario: &Scenario,
    links: &Links<'_>,
    costs: &Costs<'_>,
    points: &[Advised<'_>],
) -> anyhow::Result<Vec<Change>> {
    let mut found = of_the_links(scenario, links, costs, points)?;
    if costs.draft_tp > 1 {
        let all_reduce = all_reduces(scenario, links, Choice::parse(&scenario.allreduce)?);
        let mut other = Costs::new(scenario, &all_reduce, links)?;
        other.pin = costs.pin;
        other.measured.clone_from(&costs.measured);
        other.draft_tp = 1;
        let why = "whole head on every GPU, no all-reduce in the draft (vLLM: \
                   draft_tensor_parallel_size 1)";
        let gain = over_loads(scenario, &other, points);
        found.push(gain.change("draft at TP 1", why.to_string()));
    }
    Ok(found)
}

/// Other all-reduces, and NCCL with a ring that its search does not find.
fn of_the_links(
    scenario: &Scenario,
    links: &Links<'_>,
    costs: &Costs<'_>,
    points: &[Advised<'_>],
) -> anyhow::Result<Vec<Change>> {
    let mut found = Vec::new();
    let Some(first) = points.first().filter(|_| scenario.tp > 1) else {
        return Ok(found);
    };
    let now = links;
    let gain = |links: &Links<'_>, choice: Choice| -> anyhow::Result<OverLoads> {
        let mut all_reduce = all_reduces(scenario, links, choice);
        if scenario.baseline.is_some() {
            // The sweep ran on the links as they are.
            all_reduce.swept_on(now, Choice::parse(&scenario.swept_allreduce)?);
        }
        let mut other = Costs::new(scenario, &all_reduce, now)?;
        other.pin = costs.pin;
        other.measured.clone_from(&costs.measured);
        Ok(over_loads(scenario, &other, points))
    };
    let bytes = super::payload_bytes(scenario, first.point.concurrency, 1);
    let group = Group::of(links);
    let mut bounds = Vec::new();
    for algorithm in pcie_sim::Algorithm::SHOWN {
        let choice = Choice::One(algorithm);
        if links.time(choice, bytes).is_err() {
            continue;
        }
        let gain = gain(links, choice)?;
        let change = format!("all-reduce by {}", algorithm.name());
        match kernels::switch(algorithm, group, &scenario.engine) {
            Ok(switch) => {
                let typed = kernels::beside_the_log(scenario, (algorithm, group), switch.shown());
                found.push(gain.change(&change, typed));
            }
            Err(why) => {
                let why = format!("{why}; {}", kernels::BOUND);
                bounds.push(gain.change(&change, why));
            }
        }
    }
    // Of the kernels that cannot be had the fastest says it all, where it gains more than one that can.
    let had = found.iter().map(|change| change.gain).fold(1.0, f64::max);
    bounds.retain(|bound: &Change| bound.gain > WORTH.max(had + 0.01));
    if bounds.iter().any(|bound| kernels::elsewhere(&bound.why)) {
        bounds.retain(|bound| kernels::elsewhere(&bound.why));
    }
    found.extend(bounds.into_iter().max_by(|a, b| a.gain.total_cmp(&b.gain)));
    if let Some(mended) = links.with_a_ring() {
        let (change, why) = ring_for_nccl(links.nccl_cure());
        let gain = gain(&mended, Choice::parse(&scenario.allreduce)?)?;
        found.push(gain.change(change, why));
    }
    if let Some((direct, level)) = links.going_directly() {
        let gain = gain(&direct, Choice::parse(&scenario.allreduce)?)?;
        let why = "in the engine's environment: NCCL goes directly between all GPUs, where by itself it \
                   goes through host memory; test for a hang (ACS, IOMMU)";
        found.push(gain.change(&format!("NCCL_P2P_LEVEL={level}"), why.to_string()));
    }
    Ok(found)
}

/// How NCCL comes to a ring that its own search does not find.
fn ring_for_nccl(cure: Cure) -> (&'static str, String) {
    let file =
        "dump what it found (NCCL_GRAPH_DUMP_FILE), write the ring of all GPUs into it, load that";
    match cure {
        Cure::Newer => (
            "run NCCL 2.30 or newer, or give the older one a graph file (NCCL_GRAPH_FILE)",
            format!(
                "the search of an older one finds no ring on two AMD sockets and takes Simple at small sizes, \
                 2.30 finds it by itself; for the file {file}"
            ),
        ),
        Cure::GraphFile => (
            "give NCCL a graph file (NCCL_GRAPH_FILE)",
            format!(
                "its own search finds no ring on this wiring and takes Simple at small sizes: {file}"
            ),
        ),
    }
}

/// Loads of which each gets a row for every name; of more only the first and the last.
const MOST_LOADS: usize = 6;

/// `--compare A,B,…`: all-reduce algorithms, boxes or drafts, told apart by name. The answer
/// gets the rows, what they rest on, and what of the list cannot run here and why.
pub(super) fn compare(
    args: &ScenarioArgs,
    scenario: &Scenario,
    list: &str,
    answer: &mut Answer,
) -> anyhow::Result<()> {
    let mut left_out = Vec::new();
    let own_links = Links::new(scenario)?;
    let mut others = Vec::new();
    for name in compared_names::of(list) {
        let given = (args, list, name);
        others.extend(of_a_name(given, scenario, &mut left_out)?);
    }
    left_out.extend(of_one_kind::level(&mut others, &scenario.wiring.name));
    let mut rows = Vec::new();
    for row in others {
        let (name, other) = (row.name, super::launch::for_loads(row.other)?);
        let links = Links::new(&other)?;
        let choice = Choice::parse(&other.allreduce)?;
        if let Some(why) = links.refusal(choice) {
            left_out.push(format!("{name}: {why}"));
            continue;
        }
        let moved = (row.other_box && other.baseline.is_some()).then_some((scenario, &own_links));
        rows.extend(compared(name, &other, (&links, choice), moved)?);
        let own = of_its_own(name, &other, scenario);
        let reduces = moved.filter(|_| other.tp > 1);
        let from = reduces.map(|_| moved_to(name, &scenario.wiring.name));
        answer.assumptions.extend(own.chain(from));
    }
    if rows.is_empty() {
        return Err(no_row(list, &left_out, &scenario.model.name));
    }
    let names: Vec<&str> = compared_names::of(list).collect();
    super::same_reduce::told(scenario, &own_links, &names, &mut answer.assumptions);
    (answer.compared, answer.compared_left_out) = (rows, left_out);
    Ok(())
}

/// The scenario of one name, with what was measured of it; nothing where it cannot stand beside the others.
fn of_a_name<'a>(
    (args, list, name): (&ScenarioArgs, &str, &'a str),
    scenario: &Scenario,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Option<Row<'a>>> {
    let mut changed = args.clone();
    // One release for all: of another one a difference would not be the draft's.
    let answered = scenario.answered_for.as_ref();
    changed.at_release = answered.map(|answered| answered.release.clone());
    let reduces = crate::scenario::names_allreduce(name);
    let own_box = is_own_box(name, args, &scenario.wiring.name);
    let other_box = !reduces && !own_box && is_box(name);
    if reduces {
        if let Some(why) = measured_with_another(scenario, name)? {
            left_out.push(format!("{name}: {why}"));
            return Ok(None);
        }
        changed.allreduce = Some(name.to_string());
    } else if other_box {
        changed.box_name = Some(name.to_string());
        changed.baseline_is_of_another_box = true;
        changed.gpu = None;
        changed.gpus = None;
        changed.topology = None;
    } else if !own_box {
        changed.draft = Some(name.to_string());
    }
    let Some(mut other) = resolved_of(list, &changed, name, left_out)? else {
        return Ok(None);
    };
    let alike = other.gpu.name == scenario.gpu.name && other.tp == scenario.tp;
    let mut not_its = None;
    // Between two wirings of the same cards a sweep is moved, but not by what one of them measured.
    if other_box && (!alike || changed.allreduce_table.is_some()) {
        not_its = of_this_box(&mut changed, name, &scenario.wiring.name);
        // A sweep's own context is the answer's.
        let context = || Some(scenario.context.to_string());
        changed.context = changed.context.or_else(context);
        other = resolved(&changed, name)?;
    }
    if let Some(note) = accepts_unmeasured(&other, scenario, name) {
        changed.accept_is_of_another = true;
        other = resolved(&changed, name)?;
        left_out.push(note);
    }
    other.max_running = scenario.max_running;
    other.state_slots = scenario.state_slots;
    other.max_model_len = scenario.max_model_len;
    if other_box && !alike {
        // What the log shows of its own cards says nothing of these.
        other.ran = crate::scenario::Ran::default();
    }
    Ok(Some(Row {
        name,
        other,
        other_box,
        not_its,
    }))
}

fn no_row(list: &str, left_out: &[String], model: &str) -> anyhow::Error {
    let why = match left_out.is_empty() {
        true => "nothing to compare".to_string(),
        false => left_out.join("; "),
    };
    input::error(format!(
        "--compare {list}: {why}; name all-reduces, boxes or drafts for {model}"
    ))
}

/// The scenario of one name of a list; nothing for a kind of draft that this model has none of, which
/// is no slip of the keyboard.
fn resolved_of(
    list: &str,
    changed: &ScenarioArgs,
    name: &str,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Option<Scenario>> {
    match resolved(changed, name) {
        Err(why) if list.contains(',') && HeadKind::parse(name).is_ok() => {
            left_out.push(format!("{why:#}").replace("--compare ", ""));
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// The scenario of one name. The model stays the scenario's: naming it would drop what the scenario
/// observed.
fn resolved(changed: &ScenarioArgs, name: &str) -> anyhow::Result<Scenario> {
    Scenario::resolve(changed).map_err(|e| {
        input::error(format!(
            "--compare {name}: neither an all-reduce, a box, nor a draft that works here: {e:#}"
        ))
    })
}

/// What is said where a draft has no accept length of its own: the one given is of the draft that
/// the scenario asks for.
fn accepts_unmeasured(other: &Scenario, scenario: &Scenario, name: &str) -> Option<String> {
    let (draft, own) = (other.draft.as_ref()?, scenario.draft.as_ref()?);
    let measured = !matches!(scenario.acceptance.known, Known::Prior(_));
    let said = |key: &str| Some(scenario.input(key)?.value.as_str()?.to_string());
    let unlike = !draft.is_like(own) || matches!(other.acceptance.known, Known::Prior(_));
    (measured && unlike).then(|| {
        let with = match said("method") {
            Some(method) if method != "draft model" && draft.head != own.head => method,
            _ => said("draft").unwrap_or_default(),
        };
        format!("the accept length for {name}, which has the prior's: it was measured with {with}")
    })
}

/// What a row is taken to rest on that the answer's own scenario does not; of the wiring the box's
/// own prediction tells.
fn of_its_own<'a>(
    name: &'a str,
    other: &'a Scenario,
    scenario: &'a Scenario,
) -> impl Iterator<Item = Assumption> + 'a {
    let own = |a: &&Assumption| !scenario.assumptions.iter().any(|b| b.what == a.what);
    let assumed = other.assumptions.iter().filter(own);
    let assumed = assumed.filter(|a| !a.what.starts_with("wiring: "));
    assumed.map(move |a| Assumption {
        what: format!("{name}: {}", a.what),
        settled_by: a.settled_by.clone(),
    })
}

/// What the row of another wiring of the same cards rests on.
fn moved_to(name: &str, own: &str) -> Assumption {
    Assumption {
        what: format!(
            "{name}: the steps of the plain sweep on {own}, moved by the difference of the two boxes' \
             modelled all-reduces"
        ),
        settled_by: "a plain sweep on it".to_string(),
    }
}

/// Why an all-reduce cannot stand beside what was measured: a table of times is of the one that ran.
/// A sweep is moved by what the two differ.
fn measured_with_another(scenario: &Scenario, name: &str) -> anyhow::Result<Option<String>> {
    if scenario.allreduce_table.is_none() {
        return Ok(None);
    }
    let flag = "--allreduce-table";
    let links = Links::new(scenario)?;
    let bytes = super::payload_bytes(scenario, 1, 1);
    let plan = |name: &str| -> anyhow::Result<Option<String>> {
        Ok(links.modelled(Choice::parse(name)?, bytes))
    };
    let (own, other) = (plan(&scenario.allreduce)?, plan(name)?);
    // What cannot run at all is told apart from it.
    let differs = other.is_some() && own != other && scenario.allreduce != name;
    Ok(differs.then(|| {
        format!(
            "what {flag} measured was reduced by {}; without {flag} both are computed",
            scenario.allreduce
        )
    }))
}

/// Drops what was measured on the scenario's box from another's, and says so.
fn of_this_box(changed: &mut ScenarioArgs, name: &str, own: &str) -> Option<String> {
    let dropped: Vec<&str> = [
        ("--baseline", changed.baseline.take().is_some()),
        (
            "--allreduce-table",
            changed.allreduce_table.take().is_some(),
        ),
    ]
    .into_iter()
    .filter_map(|(flag, given)| given.then_some(flag))
    .collect();
    changed.baseline_context = None;
    let flags = dropped.join(" and ");
    (!dropped.is_empty())
        .then(|| format!("{flags} for {name}, which is computed: it was measured on {own}"))
}

/// The first box of `--compare` is the one predicted where a model is named and no box, and the
/// first draft where no draft is.
pub(super) fn first_of(args: &mut ScenarioArgs, list: &str) {
    let named = args.box_name.is_some() || args.gpu.is_some() || args.topology.is_some();
    let own = args.scenario.is_some() || args.from_log.is_some() || args.model.is_none();
    if !named && !own {
        let first = compared_names::of(list).find(|name| is_box(name));
        args.box_name = first.map(str::to_string);
    }
    if args.draft.is_none() && !own {
        args.draft = compared_names::first_draft(list, args).map(str::to_string);
    }
}

/// The rows of one name; `swept` is the scenario on whose links the sweep ran, where that is another's.
fn compared(
    name: &str,
    scenario: &Scenario,
    (links, choice): (&Links<'_>, Choice),
    swept: Option<(&Scenario, &Links<'_>)>,
) -> anyhow::Result<Vec<Compared>> {
    let mut all_reduce = all_reduces(scenario, links, choice);
    if let Some((own, on)) = swept {
        all_reduce.swept_on(on, Choice::parse(&own.swept_allreduce)?);
    }
    let swept_links = swept.map_or(links, |(_, on)| on);
    let mut costs = Costs::new(scenario, &all_reduce, swept_links)?;
    costs.pin = super::pin(scenario, links)?;
    costs.measured = Measured::of(scenario, swept_links)?;
    let map = super::map::Map::new(scenario, &costs);
    let (pasted, memory) = super::pasted(scenario, &costs, map.as_ref())?;
    let not_served = super::verdict::stopped(scenario, &memory);
    let holds = |fits| not_served.as_ref().map_or(fits, |_| Some(false));
    let (points, _) = super::told(scenario, &costs, &memory, &pasted);
    let undrafted = || super::short_head::undrafted(scenario);
    let stopped = not_served.clone().or_else(undrafted);
    let runs = |verdict| stopped.as_ref().map_or(verdict, |_| Verdict::DoesNotPay);
    let last = points.len().saturating_sub(1);
    let (tp, gpus) = (scenario.tp, scenario.wiring.gpu_count() as u32);
    let reduces = crate::scenario::names_allreduce(name) && tp > 1;
    let switched = || {
        let by = kernels::switched_by(
            scenario,
            links,
            choice,
            super::payload_bytes(scenario, 1, 1),
        );
        by.unwrap_or_else(|| "no".to_string())
    };
    let in_engine = reduces.then(switched);
    Ok(points
        .into_iter()
        .enumerate()
        .filter(|(at, _)| last < MOST_LOADS || *at == 0 || *at == last)
        .map(|(_, point)| Compared {
            name: name.to_string(),
            tp,
            gpus,
            concurrency: point.concurrency,
            steps: point.steps,
            baseline_tok_s: point.baseline_tok_s,
            spec_tok_s: point.spec_tok_s,
            speedup: point.speedup,
            speedup_low: point.speedup_low,
            speedup_high: point.speedup_high,
            verdict: runs(point.verdict),
            fits: holds(point.fits),
            kv_tokens: memory.kv_tokens,
            fraction: memory.fraction,
            stopped: stopped.clone(),
            in_engine: in_engine.clone(),
        })
        .collect())
}
