//! `predict`: joins bytes, links, steps and chances into one answer.

pub(crate) mod answer;
mod assumed;
mod at_once;
mod cache_format;
mod carried;
mod changes;
mod checkpoint;
mod compared_names;
mod costs;
mod depth_room;
pub(crate) mod flags;
mod flips;
mod fusion;
mod graphs;
mod kernels;
pub(crate) mod launch;
pub(crate) mod links;
mod map;
mod measure;
mod measured;
pub(crate) mod nccl_setup;
mod nccl_step;
mod observed;
mod of_one_kind;
mod open;
mod other_flags;
mod other_kernel;
mod pasted;
mod placeholders;
mod points;
pub(crate) mod pool_cast;
mod replicas;
mod same_reduce;
pub(crate) mod serves;
mod short_head;
mod stopped;
pub(crate) mod text;
mod told_length;
mod verdict;
mod walk;

use std::process::ExitCode;

use answer::{AllReduceTime, Answer, Assumption, Best, Memory, Point, SCHEMA, Verdict};
use costs::{AllReduces, Costs, Pin, all_reduces};
pub(crate) use fusion::by_itself as fuses_by_itself;
pub(crate) use kernels::{made_by, told_by};
use links::{Choice, ELEMENT_BYTES, Links};
use pasted::Pasted;
pub(crate) use pasted::RULE;
pub(crate) use short_head::{drafts_beyond, falls_short, longest_drafted, longest_let_in};
pub(crate) use told_length::vllm_context;

use spec_decode::bands::Conditions;

use crate::cli::PredictArgs;
use crate::scenario::Scenario;
use crate::scenario::file::PublicKind;
use crate::simulate;

/// Runs `cargo xtask predict`.
pub(crate) fn run(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    if let Some(list) = args.scenario.list() {
        crate::input::print(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut wanted = crate::plan::asked_load(&args.scenario, args.max_model_len);
    if let Some(list) = &args.compare {
        compared_names::check(list, &wanted)?;
        changes::first_of(&mut wanted, list);
    }
    let mut scenario = Scenario::resolve(&wanted)?;
    crate::scenario::tree::check_tokens(&scenario)?;
    scenario.max_running = args.max_running;
    scenario.state_slots = args.state_slots;
    scenario.max_model_len = args.max_model_len;
    crate::plan::within_limit(&scenario)?;
    let scenario = launch::for_loads(scenario)?;
    let links = Links::new(&scenario)?;
    let mut answer = answer(&scenario, &links)?;
    launch::lower_fraction(&scenario, &links, &mut answer)?;
    if let Some(list) = &args.compare {
        changes::compare(&wanted, &scenario, list, &mut answer)?;
    }
    if args.report.is_some() || args.trace.is_some() {
        let tokens = answer.points.first().map_or(1, |p| p.draft_tokens);
        let wires = simulate::of_scenario(&scenario, payload_bytes(&scenario, 1, tokens))?;
        if let Some(path) = &args.report {
            // One GPU has no links to show.
            let tree = match scenario.tp > 1 {
                true => simulate::drawing(&wires),
                false => String::new(),
            };
            let page = crate::report::render(&answer, &tree);
            crate::input::write_text(path, &page, "--report")?;
        }
        if let Some(path) = &args.trace {
            simulate::write_trace(path, &wires)?;
        }
    }
    if args.json {
        crate::input::print(&(serde_json::to_string_pretty(&answer)? + "\n"))?;
    } else {
        crate::input::print(&text::render(&answer, args.sources))?;
    }
    Ok(match args.exit_code {
        true => ExitCode::from(exit_code(&answer)),
        false => ExitCode::SUCCESS,
    })
}

/// The scenario on a fabric that does not collapse, where the plain sweep rules the box's collapse out.
///
/// # Errors
/// As [`answer()`].
pub(crate) fn without_refuted_collapse(scenario: Scenario) -> anyhow::Result<Scenario> {
    observed::by_sweep::without_refuted_collapse(scenario)
}

/// Fixes the depth at which the speedup was measured, where no flag and no log fixes one.
pub(crate) fn at_measured_depth(scenario: &mut Scenario) {
    measured::fix_depth(scenario);
}

/// What `--exit-code` ends with. Without a draft nothing was asked that could pay: 0 where it runs.
fn exit_code(answer: &Answer) -> u8 {
    match answer.verdict {
        Verdict::DoesNotPay if answer.best.is_none() => match does_not_fit(&answer.memory) {
            true => 10,
            false => 0,
        },
        Verdict::Pays | Verdict::NoDraft => 0,
        Verdict::DoesNotPay => 10,
        Verdict::MeasureFirst => 11,
    }
}

/// The rows of the answer alone, one a load, each with the conditions that its band rests on:
/// what `score` judges is what users are told.
///
/// # Errors
/// As [`answer()`].
pub(crate) fn rows(scenario: &Scenario) -> anyhow::Result<Vec<(Point, Conditions)>> {
    let links = Links::new(scenario)?;
    let choice = Choice::parse(&scenario.allreduce)?;
    let all_reduce = all_reduces(scenario, &links, choice);
    let costs = with_what_was_seen(scenario, &all_reduce, &links)?;
    let row = |users: &u32| points::row(scenario, &costs, (*users, scenario.context), None, None);
    Ok(scenario.concurrency.iter().filter_map(row).collect())
}

/// Costs moved to a verify and scaled to the speedups that were measured.
fn with_what_was_seen<'a>(
    scenario: &'a Scenario,
    all_reduce: &'a AllReduces<'_>,
    links: &Links<'_>,
) -> anyhow::Result<Costs<'a>> {
    let mut costs = Costs::new(scenario, all_reduce, links)?;
    costs.pin = pin(scenario, links)?;
    costs.measured = measured::Measured::of(scenario, links)?;
    Ok(costs)
}

/// The whole answer for a scenario.
///
/// # Errors
/// The input is at fault: an algorithm that cannot run here, a sweep that cannot be read.
pub(crate) fn answer(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Answer> {
    let choice = Choice::parse(&scenario.allreduce)?;
    if scenario.tp > 1 {
        links.time(choice, payload_bytes(scenario, 1, 1))?;
    }
    let all_reduce = all_reduces(scenario, links, choice);
    let costs = with_what_was_seen(scenario, &all_reduce, links)?;
    let map = map::Map::new(scenario, &costs);
    let (pasted, mut memory) = pasted(scenario, &costs, map.as_ref())?;
    let (points, summary) = told(scenario, &costs, &memory, &pasted);
    let on = drafts(scenario, (&summary, &points), &memory);
    pasted.set_limit(scenario, &mut memory, on);
    let drafting = points.first().filter(|_| scenario.draft.is_some());
    let best = drafting.map(|point| best(scenario, point, costs.draft_tp));
    let map = map.map(|map| map.pasted(&memory, pasted.for_all()));
    let by_load = map.as_ref().map(|map| (map.cells(&points), map.rows()));
    let (depth_map, depth_table) = by_load.unwrap_or_default();
    let setting = setting(scenario, on, &memory, (choice, links), &pasted);
    let engine_flags = flags::engine_flags(&setting);
    let lacking = serves::lacking(&setting);
    let one_depth = setting.one_depth();
    let undrafted = short_head::undrafted(scenario).is_some();
    let (flips, changes) = match setting.runs && !undrafted {
        true => (
            flips::flips(scenario, &costs, links, &memory, &points)?,
            changes::changes(&setting, (links, &costs), &points)?,
        ),
        false => (Vec::new(), Vec::new()),
    };
    let mut assumptions = assumed::all(&setting, links, &points, &engine_flags);
    let observed = observed::rows(scenario, links, &memory)?;
    let rows = (&points[..], &observed[..]);
    assumptions.extend(of_rows(scenario, (links, &all_reduce), &costs, rows)?);
    if scenario.refused_cut().is_some() {
        // It does not start as it is cut, whatever room there is.
        memory.fits = Some(false);
    }
    Ok(Answer {
        schema: SCHEMA,
        scenario: scenario.inputs.clone(),
        verdict: summary.verdict,
        stopped: verdict::stopped(scenario, &memory).or_else(|| short_head::undrafted(scenario)),
        needs: short_head::needs(scenario, summary.verdict).filter(|_| drafting.is_some()),
        because: summary.because.clone(),
        measure: summary.measure.clone(),
        break_even_accept_length: drafting.map(|point| point.break_even_accept_length),
        pays_up_to_concurrency: summary.pays_up_to,
        allreduce: allreduce_rows(scenario, links, choice, &points),
        replicas: replicas::of(links, choice, heaviest_bytes(scenario, &points)),
        flips,
        assumptions,
        placeholders: placeholders::told(scenario, &engine_flags),
        engine_flags,
        lacking,
        depth_table,
        goodput: map::of_the_day(scenario, &costs, &points, one_depth),
        depth_map,
        changes,
        observed,
        compared: Vec::new(),
        compared_left_out: Vec::new(),
        seed: scenario.seed,
        cut_refused: scenario.refused_cut().is_some(),
        undrafted,
        best,
        points,
        memory,
    })
}

/// What the measurements leave open.
fn seen(
    scenario: &Scenario,
    links: &Links<'_>,
    costs: &Costs<'_>,
    observed: &[observed::Observed],
) -> Vec<Assumption> {
    let told = costs.measured.as_ref().and_then(measured::Measured::told);
    let mut all: Vec<Assumption> = told.into_iter().collect();
    all.extend(measured::not_set(scenario));
    all.extend(observed::left_out(scenario));
    all.extend(observed::by_log::outside(scenario, observed));
    all.extend(observed::by_sweep::outside(scenario, links, observed));
    all
}

/// What is pasted, and the ledger of the line that the asked engine gets.
fn pasted(
    scenario: &Scenario,
    costs: &Costs<'_>,
    map: Option<&map::Map<'_>>,
) -> anyhow::Result<(Pasted, Memory)> {
    let memory = crate::plan::memory(scenario)?;
    let pasted = Pasted::new(scenario, costs, map, &memory);
    let memory = pasted.memory(scenario)?;
    Ok((pasted, memory))
}

fn best(scenario: &Scenario, point: &Point, draft_tp: u32) -> Best {
    Best {
        steps: point.steps,
        topk: scenario.topk.unwrap_or(1),
        draft_tokens: point.draft_tokens,
        draft_tp,
        allreduce: scenario.allreduce.clone(),
        speedup: point.speedup,
        speedup_low: point.speedup_low,
        speedup_high: point.speedup_high,
        probability_pays: point.probability_pays,
        ties: point.ties.clone(),
    }
}

/// Whether no line could start it: no room, with the draft or without.
fn starts_nowhere(scenario: &Scenario, memory: &Memory) -> bool {
    does_not_fit(memory)
        && scenario.refused_cut().is_none()
        && memory.holds_without_draft == Some(false)
}

/// The rows and the verdict: of the pasted line, or of the best depths where that drafts nothing.
fn told(
    scenario: &Scenario,
    costs: &Costs<'_>,
    memory: &Memory,
    pasted: &Pasted,
) -> (Vec<Point>, verdict::Summary) {
    let of = |drafting: bool| {
        let points = pasted.points(scenario, costs, memory, drafting);
        let summary = verdict::summary(scenario, costs, &points, memory);
        (points, summary)
    };
    let (points, summary) = of(true);
    match points.is_empty() || drafts(scenario, (&summary, &points), memory) {
        true => (points, summary),
        false => of(false),
    }
}

/// Whether the pasted line drafts.
fn drafts(
    scenario: &Scenario,
    (summary, points): (&verdict::Summary, &[Point]),
    memory: &Memory,
) -> bool {
    points
        .first()
        .is_some_and(|first| match scenario.refused_cut() {
            // The pasted line cuts it so that it starts.
            Some(_) if !does_not_fit(memory) => {
                matches!(first.verdict, Verdict::Pays | Verdict::MeasureFirst)
            }
            _ => summary.verdict != Verdict::DoesNotPay,
        })
}

/// What the flags to paste express.
fn setting<'a>(
    scenario: &'a Scenario,
    on: bool,
    memory: &'a Memory,
    (choice, links): (Choice, &Links<'_>),
    pasted: &'a Pasted,
) -> flags::Setting<'a> {
    let steps = if on { pasted.one } else { 0 };
    flags::Setting {
        scenario,
        runs: !starts_nowhere(scenario, memory),
        steps,
        topk: scenario.topk.unwrap_or(1),
        // A tree's tokens are not its steps and one.
        draft_tokens: points::depths(scenario)
            .iter()
            .find(|depth| depth.steps == pasted.one)
            .map_or(pasted.one.saturating_add(1), |depth| depth.tokens),
        allreduce: choice,
        group: kernels::Group::of(links),
        memory,
        pasted,
    }
}

/// Bytes of one all-reduce: the hidden state of every token of a pass, those that pad it included.
pub(super) fn payload_bytes(scenario: &Scenario, users: u32, tokens: u32) -> u64 {
    let (sequences, asked) = (f64::from(users), f64::from(users) * f64::from(tokens));
    let padded = scenario.graph_ladder().padded_of(sequences, asked);
    (padded.round() as u64)
        .saturating_mul(scenario.model.hidden)
        .saturating_mul(ELEMENT_BYTES)
}

/// Moves the modelled verify to the one observed, where the scenario has it and it was seen with
/// the all-reduce that is asked for, or can be carried over by the difference of the two.
fn pin(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Option<Pin>> {
    // Steps of a stand-in are of no engine.
    let engines = scenario.served.is_none();
    let Some(observed) = scenario.observed.verify_ms.as_ref().filter(|_| engines) else {
        return Ok(None);
    };
    let seen_with = Choice::parse(observed.allreduce.as_deref().unwrap_or("nccl"))?;
    let tokens = observed.tokens.unwrap_or(1);
    let all_reduce = all_reduces(scenario, links, seen_with);
    let costs = Costs::new(scenario, &all_reduce, links)?;
    let modelled_ms = costs.unpinned_verify_ms(1, tokens, scenario.observed_context);
    let public = scenario.observed.public.iter().flatten();
    let public_plain_ms = public
        .filter(|p| p.what == PublicKind::PlainTokS)
        .map(|p| 1000.0 / p.value)
        .next();
    let walked = costs.cycle(
        1,
        scenario.observed_context,
        tokens.saturating_sub(1),
        tokens,
    );
    Ok(Some(Pin {
        walked_ms: walked.walk.ms,
        excess_ms: observed.value - modelled_ms,
        modelled_ms,
        public_plain_ms,
    }))
}

/// What is assumed of the rows beside what each input assumes.
fn of_rows(
    scenario: &Scenario,
    (links, all_reduce): (&Links<'_>, &AllReduces<'_>),
    costs: &Costs<'_>,
    (points, observed): (&[Point], &[observed::Observed]),
) -> anyhow::Result<Vec<Assumption>> {
    let padding = graphs::padding(scenario, links, all_reduce, points)?;
    let told = padding
        .into_iter()
        .chain(walk::told(scenario, costs, points))
        .chain(walk::in_pieces(scenario, points));
    Ok(told.chain(seen(scenario, links, costs, observed)).collect())
}

/// Payload of the verify at the heaviest load asked for.
fn heaviest_bytes(scenario: &Scenario, points: &[Point]) -> u64 {
    let (users, tokens) = points
        .last()
        .map_or((1, 1), |p| (p.concurrency, p.draft_tokens.max(1)));
    payload_bytes(scenario, users, tokens).max(1)
}

fn allreduce_rows(
    scenario: &Scenario,
    links: &Links<'_>,
    asked: Choice,
    points: &[Point],
) -> Vec<AllReduceTime> {
    if scenario.tp < 2 {
        return Vec::new();
    }
    let per_pass = scenario.model.all_reduces_per_pass();
    let mut sizes = vec![payload_bytes(scenario, 1, 1)];
    if let Some(first) = points.first() {
        sizes.push(payload_bytes(scenario, 1, first.draft_tokens));
        sizes.push(payload_bytes(
            scenario,
            first.concurrency,
            first.draft_tokens,
        ));
    }
    if let Some(last) = points.last() {
        sizes.push(payload_bytes(scenario, last.concurrency, last.draft_tokens));
    }
    sizes.sort_unstable();
    sizes.dedup();
    let mut choices = vec![asked];
    for algorithm in pcie_sim::Algorithm::SHOWN {
        if !choices.contains(&Choice::One(algorithm)) {
            choices.push(Choice::One(algorithm));
        }
    }
    let mut rows: Vec<AllReduceTime> = Vec::new();
    for choice in choices {
        // What the engine runs by itself is in its own row.
        let pushes = choice == Choice::One(pcie_sim::Algorithm::OneShotPush);
        if pushes && choice != asked && links.engine_pushes() {
            continue;
        }
        for bytes in &sizes {
            let Some(mut row) = links.row(choice, *bytes, per_pass) else {
                continue;
            };
            row.switched_by = kernels::switched_by(scenario, links, choice, *bytes);
            // The engine's own choice is one of the algorithms listed after it.
            let listed = rows
                .iter()
                .any(|r| r.bytes == row.bytes && r.algorithm == row.algorithm);
            if !listed {
                rows.push(row);
            }
        }
    }
    rows
}

/// Memory as far as it concerns the verdict.
pub(super) fn does_not_fit(memory: &Memory) -> bool {
    memory.fits == Some(false)
}
