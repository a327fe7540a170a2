//! `verify-hw`: measure this machine, predict from the measurements, run the real thing, show
//! both.

mod engine_mode;
mod engine_url;
mod facts;
mod http;
mod law;
mod links;
mod machine;
pub(crate) mod metrics;
mod ranks;
mod standin;
mod steps;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::VerifyHwArgs;
use crate::input;
use allreduce::probe::Part;
use steps::{Job, Progress};

pub(crate) use steps::child;

/// Runs the command.
pub(crate) fn run(args: &VerifyHwArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let outcome = if args.engine_url.is_empty() {
        on_this_machine(args, &progress)
    } else {
        with_engine(args, &progress)
    };
    progress.finish();
    outcome
}

/// What a child process does for a job: its answer as JSON.
fn work(job: &Job) -> anyhow::Result<String> {
    let text = match job {
        Job::Facts => serde_json::to_string(&facts::gather()?)?,
        Job::Probe { part } => serde_json::to_string(&probe(part)?)?,
        Job::Curves { ranks, sizes, nccl } => {
            serde_json::to_string(&ranks::curves(*ranks, sizes, *nccl)?)?
        }
        Job::StandIn {
            plan,
            ranks,
            algorithm,
        } => serde_json::to_string(&ranks::stand_in(plan, *ranks, algorithm)?)?,
    };
    Ok(text)
}

/// One part of the probes; GPU 0's link is read while it runs, since idle links slow down.
fn probe(part: &str) -> anyhow::Result<machine::Probed> {
    let part = Part::from_name(part).ok_or_else(|| input::error(format!("no probe {part}")))?;
    let pci = allreduce::device::Device::open(0)?
        .pci_bus_id()
        .to_ascii_lowercase();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (figures, link) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut best: Option<facts::LinkFacts> = None;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                if let Some(link) = facts::link(&pci)
                    && best.is_none_or(|b| link.gt_s > b.gt_s)
                {
                    best = Some(link);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            best
        });
        let figures = part.run();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        (figures, watcher.join().ok().flatten())
    });
    Ok(machine::Probed {
        lines: figures?.iter().map(ToString::to_string).collect(),
        link: link.filter(|_| part == Part::Host),
    })
}

fn on_this_machine(args: &VerifyHwArgs, progress: &Progress) -> anyhow::Result<ExitCode> {
    let outcome = machine::run(args, progress)?;
    progress.finish();
    let held = table::held(&outcome.rows).filter(|_| !outcome.mock);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&machine_json(&outcome, held, args.quick))?
        );
    } else {
        print!("{}", machine_text(&outcome, held));
    }
    Ok(ExitCode::SUCCESS)
}

fn machine_json(outcome: &machine::Outcome, held: Option<bool>, quick: bool) -> Value {
    let runs: Vec<Value> = outcome
        .runs
        .iter()
        .map(|r| json!({"allreduce": r.algorithm, "found": r.found}))
        .collect();
    let figures: Vec<String> = outcome.figures.iter().map(ToString::to_string).collect();
    json!({
        "schema": 1,
        "mode": "stand-in",
        "mock": outcome.mock,
        "quick": quick,
        "model": outcome.scenario.model.name,
        "gpu": outcome.scenario.gpu.name,
        "tp": outcome.scenario.tp,
        "facts": outcome.facts,
        "probes": figures,
        "all_reduce": outcome.curve,
        "runs": runs,
        "rows": outcome.rows,
        "findings": outcome.findings,
        "notes": outcome.notes,
        "held": held,
    })
}

fn machine_text(outcome: &machine::Outcome, held: Option<bool>) -> String {
    let mut out = String::new();
    if outcome.mock {
        out.push_str("MOCK: several ranks share a GPU; times say nothing of a real group\n");
    }
    out.push_str(&table::render(&outcome.rows));
    out.push('\n');
    for finding in &outcome.findings {
        out.push_str(&format!(
            "why slow: {}\n  try first: {}\n",
            finding.what, finding.fix
        ));
    }
    for note in &outcome.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    out.push_str(verdict(held));
    out
}

fn with_engine(args: &VerifyHwArgs, progress: &Progress) -> anyhow::Result<ExitCode> {
    if args.engine_url.len() > 2 {
        return Err(input::error(
            "--engine-url: give at most two, one server with and one without speculation",
        ));
    }
    let outcome = engine_mode::run(args, progress)?;
    progress.finish();
    if let Some(path) = &args.save {
        let run = outcome.plain.as_ref().or(outcome.speculative.as_ref());
        write(
            path,
            &run.map(engine_url::EngineRun::csv).unwrap_or_default(),
        )?;
    }
    let held = table::held(&outcome.rows);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&engine_json(&outcome, held))?
        );
    } else {
        print!("{}", engine_text(&outcome, held));
    }
    Ok(ExitCode::SUCCESS)
}

fn engine_json(outcome: &engine_mode::Outcome, held: Option<bool>) -> Value {
    let points = |run: &Option<engine_url::EngineRun>| run.as_ref().map(|r| json!(r));
    json!({
        "schema": 1,
        "mode": "engine",
        "plain": points(&outcome.plain),
        "speculative": points(&outcome.speculative),
        "rows": outcome.rows,
        "notes": outcome.notes,
        "held": held,
    })
}

fn engine_text(outcome: &engine_mode::Outcome, held: Option<bool>) -> String {
    let mut out = String::new();
    for run in [&outcome.plain, &outcome.speculative].into_iter().flatten() {
        out.push_str(&format!(
            "\n# {} at {}{}\n{}",
            run.model,
            run.url,
            if run.speculative() {
                ", speculative"
            } else {
                ", plain"
            },
            run.csv()
        ));
    }
    out.push_str(&table::render(&outcome.rows));
    out.push('\n');
    for note in &outcome.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    out.push_str(verdict(held));
    out
}

fn verdict(held: Option<bool>) -> &'static str {
    match held {
        Some(true) => "HELD  every prediction is within its limit\n",
        Some(false) => "NOT HELD  predictions marked ! are outside their limit\n",
        None => "nothing to compare yet\n",
    }
}

fn write(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).map_err(|e| {
        input::error(format!(
            "{}: cannot be written ({e}); check the path",
            path.display()
        ))
    })
}
