//! The tool: `predict`, `plan`, `simulate`, `accept`, `explain`, `verify-hw`, `score`, `tidy`.
//!
//! This is the only crate that reads files, prints or parses arguments. Exit codes: 0 answered,
//! 2 the input is at fault (one line says how to mend it), 1 a fault of ours.

mod accept;
mod bench_input;
mod cli;
mod explain;
#[cfg(test)]
mod fuzz;
mod gpus;
mod input;
mod plan;
mod predict;
mod report;
mod scenario;
mod score;
mod simulate;
mod step_time;
mod table;
mod tidy;
mod verify_hw;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match run(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.chain().any(|cause| cause.is::<input::InputError>()) {
                ExitCode::from(2)
            } else {
                ExitCode::from(1)
            }
        }
    }
}

fn run(command: &cli::Command) -> anyhow::Result<ExitCode> {
    match command {
        cli::Command::Accept(args) => accept::run(args),
        cli::Command::Score(args) => score::run(args),
        cli::Command::Explain(args) => explain::run(args),
        cli::Command::Plan(args) => plan::run(args),
        cli::Command::Predict(args) => predict::run(args),
        cli::Command::Simulate(args) => simulate::run(args),
        cli::Command::Tidy(_) => tidy::run(),
        cli::Command::VerifyHw(args) => verify_hw::run(args),
        cli::Command::VerifyHwJob => verify_hw::child(),
        cli::Command::Completions { shell } => {
            let mut command = <cli::Cli as clap::CommandFactory>::command();
            clap_complete::generate(*shell, &mut command, "xtask", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}
