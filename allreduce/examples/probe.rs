//! Probes this machine's links, each part in a child process with a deadline.
//!
//!     probe          all parts, then what they say about the machine
//!     probe PART     one part in this process (floor, latency, pairs, all-pairs, host, ...)

use std::process::{Command, ExitCode};
use std::time::Duration;

use allreduce::device::driver_info;
use allreduce::probe::{Figure, Part, State, supervised};

fn main() -> ExitCode {
    let result = match std::env::args().nth(1) {
        Some(name) => one(&name),
        None => all(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

fn one(name: &str) -> Result<(), String> {
    let part = Part::from_name(name).ok_or_else(|| format!("no probe part '{name}'"))?;
    for figure in part.run().map_err(|e| e.to_string())? {
        println!("{figure}");
    }
    Ok(())
}

fn all() -> Result<(), String> {
    let info = driver_info().map_err(|e| e.to_string())?;
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut figures: Vec<Figure> = Vec::new();
    let mut hung = false;
    for part in Part::ALL {
        let mut command = Command::new(&program);
        command.arg(part.name());
        match supervised(command, Duration::from_secs(20)) {
            Ok(found) => figures.extend(found),
            Err(error) => {
                eprintln!("{}: {error}", part.name());
                hung = true;
            }
        }
    }
    for figure in &figures {
        println!("{figure}");
    }
    let state = if hung {
        State::Hangs
    } else {
        State::judge(&figures, info.gpus)
    };
    println!("state {}", state.name());
    Ok(())
}
