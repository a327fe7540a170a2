//! `--engine-url`: a running server as the real thing. The plain sweep predicts, the speculative
//! one is compared.

use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

use super::engine_url::{EnginePoint, EngineRun, Plan, drive};
use super::law::{Calibrated, Point};
use super::scratch::{Runs, Scratch};
use super::steps::Progress;
use super::table::Row;
use crate::cli::VerifyHwArgs;
use crate::input;
use crate::predict::links::Choice;
use crate::scenario::{EngineKind, Scenario};

/// Error of a speedup that holds against a real engine, calibrated from its plain sweep.
const CALIBRATED_LIMIT: f64 = 0.06;
/// The same from scratch.
const SCRATCH_LIMIT: f64 = 0.12;
/// Prompt tokens where `--context` does not say.
const DEFAULT_CONTEXT: u32 = 128;
const DEFAULT_CONCURRENCY: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// What the engine mode found.
pub(crate) struct Outcome {
    pub(crate) plain: Option<EngineRun>,
    pub(crate) speculative: Option<EngineRun>,
    /// The plain sweep in use: measured here or given by `--baseline`.
    pub(crate) sweep: Vec<(f64, f64)>,
    pub(crate) rows: Vec<Row>,
    pub(crate) scenario: Option<Scenario>,
    pub(crate) notes: Vec<String>,
}

/// Drives the servers and compares.
///
/// # Errors
/// One line: the flag, or what the server does not do.
pub(crate) fn run(args: &VerifyHwArgs, progress: &Progress) -> anyhow::Result<Outcome> {
    let plan = plan(args)?;
    let mut outcome = Outcome {
        plain: None,
        speculative: None,
        sweep: Vec::new(),
        rows: Vec::new(),
        scenario: None,
        notes: Vec::new(),
    };
    for url in &args.engine_url {
        let run = drive(url, &plan, progress)?;
        let slot = if run.speculative() {
            &mut outcome.speculative
        } else {
            &mut outcome.plain
        };
        if slot.is_some() {
            return Err(input::error(format!(
                "--engine-url {url}: both servers run {} speculation; give one of each, or one and \
                 --baseline",
                if run.speculative() { "with" } else { "without" }
            )));
        }
        *slot = Some(run);
    }
    outcome.scenario = scenario(args, &mut outcome)?;
    outcome.sweep = sweep(args, &outcome)?;
    compare(&plan, args.scenario.steps, &mut outcome)?;
    Ok(outcome)
}

fn plan(args: &VerifyHwArgs) -> anyhow::Result<Plan> {
    let concurrency = match &args.scenario.concurrency {
        Some(text) => crate::scenario::parse::concurrency("--concurrency", text)?.0,
        None if args.quick => vec![1, 4, 16],
        None => DEFAULT_CONCURRENCY.to_vec(),
    };
    if let Some(many) = concurrency.iter().find(|c| **c > 1024) {
        return Err(input::error(format!(
            "--concurrency {many}: at most 1024 connections are opened"
        )));
    }
    let context = match &args.scenario.context {
        Some(text) => crate::scenario::parse::context("--context", text)?,
        None => u64::from(DEFAULT_CONTEXT),
    };
    let context = u32::try_from(context)
        .ok()
        .filter(|c| (1..=1_000_000).contains(c))
        .ok_or_else(|| {
            input::error(format!(
                "--context {context}: give 1 to 1,000,000 prompt tokens"
            ))
        })?;
    Ok(Plan {
        concurrency,
        context,
        temperature: args.scenario.temperature.unwrap_or(0.0),
        seed: args.scenario.seed,
        quick: args.quick,
    })
}

/// The scenario, where model and GPU are known: named by flags, by the server, or read here.
fn scenario(args: &VerifyHwArgs, outcome: &mut Outcome) -> anyhow::Result<Option<Scenario>> {
    let run = outcome.speculative.as_ref().or(outcome.plain.as_ref());
    let mut wanted = args.scenario.clone();
    // The sweep is read here, with the server's rates beside it.
    wanted.baseline = None;
    if wanted.engine.is_none() {
        wanted.engine = run.and_then(|r| {
            let engine = r.engine.as_ref()?;
            Some(match &r.version {
                Some(version) => format!("{engine}@{version}"),
                None => engine.clone(),
            })
        });
    }
    if wanted.model.is_none() && wanted.scenario.is_none() && wanted.from_log.is_none() {
        wanted.model = run.and_then(|r| {
            [Some(&r.model), r.root.as_ref()]
                .into_iter()
                .flatten()
                .filter_map(|name| name.rsplit('/').next())
                .find(|name| kvplan::catalog::find(name).is_ok())
                .map(str::to_string)
        });
    }
    let named = wanted.model.is_some() || wanted.scenario.is_some() || wanted.from_log.is_some();
    let placed = wanted.gpu.is_some() || wanted.box_name.is_some() || wanted.scenario.is_some();
    if named && placed {
        return Scenario::resolve(&wanted).map(Some);
    }
    outcome.notes.push(
        "no prediction from scratch: name the model and the card (--model, --gpu, --gpus)"
            .to_string(),
    );
    Ok(None)
}

fn sweep(args: &VerifyHwArgs, outcome: &Outcome) -> anyhow::Result<Vec<(f64, f64)>> {
    if let Some(run) = &outcome.plain {
        return Ok(run
            .points
            .iter()
            .map(|p| (f64::from(p.concurrency), p.output_tok_s))
            .collect());
    }
    let Some(path) = &args.scenario.baseline else {
        return Ok(Vec::new());
    };
    let text = input::read_text(path)?;
    crate::bench_input::sweep_from_text(&text, &path.display().to_string())
}

fn compare(plan: &Plan, steps: Option<u32>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let reduce = |bytes: f64| {
        outcome
            .scenario
            .as_ref()
            .map_or(0.0, |s| catalogue_all_reduce_us(s, bytes))
    };
    let scratch = outcome
        .scenario
        .as_ref()
        .map(|s| Scratch::new(s, Runs::Engine, &reduce));
    let mut rows = plain_rows(outcome, scratch.as_ref());
    let mut notes = Vec::new();
    if let Some(run) = &outcome.speculative {
        let law = calibrated(plan, run, outcome, scratch.as_ref())?;
        match &law {
            Some(law) => notes.extend(law.assumed.iter().map(|a| format!("assumed: {a}"))),
            None => notes.push(
                "no plain sweep: give a second --engine-url without speculation, or --baseline"
                    .to_string(),
            ),
        }
        for measured in &run.points {
            let sweep = &outcome.sweep;
            rows.extend(rows_of(
                measured,
                steps,
                sweep,
                law.as_ref(),
                scratch.as_ref(),
            )?);
        }
    } else {
        notes.push(
            "the server runs without speculation: this is the plain sweep; run again against the \
             speculative server with --baseline"
                .to_string(),
        );
    }
    drop(scratch);
    outcome.notes.append(&mut notes);
    outcome.rows = rows;
    Ok(())
}

fn plain_rows(outcome: &Outcome, scratch: Option<&Scratch<'_>>) -> Vec<Row> {
    let points = outcome.plain.iter().flat_map(|run| &run.points);
    points
        .map(|point| {
            let held = held_tokens(point.context, point.output_tokens);
            let ms = 1000.0 * f64::from(point.concurrency) / point.output_tok_s;
            let predicted = scratch.map(|s| s.plain_ms(point.concurrency, held));
            Row::new("plain step", users(point.concurrency), "ms", ms).with_scratch(predicted, None)
        })
        .collect()
}

/// The law on the plain sweep, where there is one.
fn calibrated<'a>(
    plan: &Plan,
    run: &EngineRun,
    outcome: &Outcome,
    scratch: Option<&'a Scratch<'a>>,
) -> anyhow::Result<Option<Calibrated<'a>>> {
    if outcome.sweep.is_empty() {
        return Ok(None);
    }
    let engine = run
        .engine
        .clone()
        .or_else(|| outcome.scenario.as_ref().map(|s| kind_name(s.engine.kind)))
        .unwrap_or_default();
    // Few users run for longer; what caches hold tells where many do.
    let output = run.points.iter().map(|p| p.output_tokens).min();
    let held = held_tokens(plan.context, output.unwrap_or(0));
    let known = outcome.scenario.as_ref().zip(scratch);
    Calibrated::of_engine(&outcome.sweep, &engine, held, known).map(Some)
}

/// Rate and speedup of one measured point.
fn rows_of(
    measured: &EnginePoint,
    steps: Option<u32>,
    sweep: &[(f64, f64)],
    law: Option<&Calibrated<'_>>,
    scratch: Option<&Scratch<'_>>,
) -> anyhow::Result<Vec<Row>> {
    let Some(accept_length) = measured.accept_length else {
        return Ok(Vec::new());
    };
    let point = Point {
        concurrency: measured.concurrency,
        held_tokens: held_tokens(measured.context, measured.output_tokens),
        steps: measured.steps.or(steps).ok_or_else(|| {
            input::error(
                "--steps: the server does not say how many tokens it drafts; give --steps N",
            )
        })?,
        accept_length,
    };
    let law = law.map(|c| c.at(&point));
    let model = scratch.map(|s| s.at(&point));
    let what = format!("{}, {}", users(point.concurrency), depth(point.steps));
    let tok_s = measured.output_tok_s;
    let mut rows = vec![
        Row::new("speculative rate", what.clone(), "tok/s", tok_s)
            .calibrated(law.map(|p| p.tok_s), None)
            .with_scratch(model.map(|p| p.tok_s), None),
    ];
    let same = |(c, _): &&(f64, f64)| *c == f64::from(point.concurrency);
    if let Some((_, plain_tok_s)) = sweep.iter().find(same) {
        rows.push(
            Row::new("speedup", what, "x", tok_s / plain_tok_s)
                .calibrated(law.map(|p| p.speedup), Some(CALIBRATED_LIMIT))
                .with_scratch(model.map(|p| p.speedup), Some(SCRATCH_LIMIT)),
        );
    }
    Ok(rows)
}

fn kind_name(kind: EngineKind) -> String {
    kind.name().to_string()
}

fn held_tokens(context: u32, output_tokens: u32) -> f64 {
    f64::from(context) + f64::from(output_tokens) / 2.0
}

pub(crate) fn users(concurrency: u32) -> String {
    format!(
        "{concurrency} user{}",
        if concurrency == 1 { "" } else { "s" }
    )
}

pub(crate) fn depth(steps: u32) -> String {
    format!("{steps} step{}", if steps == 1 { "" } else { "s" })
}

/// One all-reduce as the engine would run it on the scenario's wiring, us.
pub(crate) fn catalogue_all_reduce_us(scenario: &Scenario, bytes: f64) -> f64 {
    if scenario.ranks.len() < 2 {
        return 0.0;
    }
    let arch = Arch::parse(&scenario.gpu.arch).unwrap_or(Arch::AMPERE);
    let Ok(topology) = Topology::from_spec(&scenario.wiring, arch) else {
        return 0.0;
    };
    let bytes = bytes.clamp(0.0, 1e15) as u64;
    let choice = Choice::parse(&scenario.allreduce).ok();
    let algorithm = choice.and_then(|choice| choice.at(bytes));
    let algorithm = algorithm.unwrap_or(Algorithm::Engine);
    all_reduce(
        &topology,
        &scenario.ranks,
        algorithm,
        bytes,
        &Options::default(),
    )
    .map_or(0.0, |time| time.time_us)
}
