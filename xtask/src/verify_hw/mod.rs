//! `verify-hw`: measure this machine, predict from the measurements, run the real thing, show
//! both.

mod engine_mode;
mod engine_url;
mod facts;
mod http;
mod law;
mod metrics;
mod standin;
mod steps;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::VerifyHwArgs;
use crate::input;
use facts::Facts;
use steps::{Job, Progress};

pub(crate) use steps::child;

/// Time for reading facts: opening many GPUs after a boot takes tens of seconds.
const FACTS_DEADLINE: Duration = Duration::from_secs(90);

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
    };
    Ok(text)
}

fn on_this_machine(_args: &VerifyHwArgs, progress: &Progress) -> anyhow::Result<ExitCode> {
    progress.begin("GPUs");
    let facts: Facts = steps::in_child(&Job::Facts, FACTS_DEADLINE, progress)
        .map_err(|e| input::error(format!("verify-hw: {e}")))?;
    progress.done(&format!("{} GPU(s)", facts.gpus.len()));
    Err(input::error("verify-hw on a GPU is not built yet"))
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
