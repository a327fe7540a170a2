//! `explain`: what a log or bench output says, what is wrong, what to change.

use std::process::ExitCode;

/// Runs `cargo xtask explain`.
pub(crate) fn run(_args: &crate::cli::ExplainArgs) -> anyhow::Result<ExitCode> {
    Err(crate::input::error("`explain` is not built yet"))
}
