//! `verify-hw`: measure this machine, predict from the measurements, run the real thing, show
//! both.

mod compare;
mod engine_mode;
mod engine_url;
mod facts;
mod http;
mod law;
mod links;
mod machine;
pub(crate) mod metrics;
mod output;
mod power;
mod ranks;
mod report;
mod save;
mod scratch;
mod standin;
mod steps;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use crate::cli::VerifyHwArgs;
use crate::input;
use allreduce::probe::Part;
use steps::{Job, Progress};

pub(crate) use standin::overhead as stand_in_overhead;
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
    if let Some(path) = &args.report {
        write(path, &report::render(&outcome, held))?;
    }
    if let Some(path) = &args.save {
        let sweep = save::save(&outcome, path)?;
        eprintln!(
            "saved: predict --box {} gives the calibrated answer anywhere; the plain steps alone \
             are in {}",
            path.display(),
            sweep.display()
        );
    }
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&output::machine_json(&outcome, held, args.quick))?
        );
    } else {
        print!("{}", output::machine_text(&outcome, held));
    }
    Ok(ExitCode::SUCCESS)
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
            serde_json::to_string_pretty(&output::engine_json(&outcome, held))?
        );
    } else {
        print!("{}", output::engine_text(&outcome, held));
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).map_err(|e| {
        input::error(format!(
            "{}: cannot be written ({e}); check the path",
            path.display()
        ))
    })
}
