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
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
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

/// What the parser refuses, in one line; help and version print as usual.
fn refused(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return match input::print(&error.render().to_string()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(1),
            };
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!(
                "error: no command given; `cargo xtask predict` answers the built-in case, --help lists the rest"
            );
            return ExitCode::from(2);
        }
        _ => {}
    }
    eprintln!("error: {}", one_line(&error.render().to_string()));
    ExitCode::from(2)
}

/// The parser's message without its usage block, its hints folded in.
fn one_line(rendered: &str) -> String {
    let mut line = String::new();
    for part in rendered.lines().map(str::trim) {
        if part.starts_with("Usage:") || part.starts_with("For more information") {
            break;
        }
        let part = part.strip_prefix("error: ").unwrap_or(part);
        if part.is_empty() {
            continue;
        }
        if !line.is_empty() {
            line.push_str(if line.ends_with(':') { " " } else { "; " });
        }
        line.push_str(part);
    }
    // The card and the count are easily swapped.
    if line.contains("for '--gpus <N>'") {
        line.push_str("; --gpus is how many cards, --gpu which");
    }
    if line.contains("unexpected argument") && !line.contains("tip:") {
        line.push_str("; --help behind the command lists what it takes");
    }
    line.replace(
        "invalid digit found in string",
        "not a whole number of 0 or more",
    )
    .replace(
        "is not in 0..=4294967295",
        "is not a whole number of 0 or more",
    )
    .replace("invalid float literal", "not a number")
    .replace("number too large to fit in target type", "too large")
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
