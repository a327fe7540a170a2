//! `explain`: what a log or bench output says, what is wrong, what to change.

// The readers are used by `predict` too, through the four functions below.
#![allow(dead_code, unused_imports)]

mod accept;
mod facts;
mod scenario;
pub(crate) mod text;

use std::process::ExitCode;

pub(crate) use accept::{AcceptReading, LogAcceptance, accept_from_log};
pub(crate) use facts::{Fact, Facts, Value};
pub(crate) use scenario::{LogScenario, scenario_from_log};

/// Reads the facts in a text; `name` is what the user called it. Never fails: a text that says
/// nothing gives no facts.
pub(crate) fn facts_from_text(text: &str, name: &str) -> Facts {
    let doc = text::Doc::new(text);
    facts_from_doc(&doc, text, name)
}

fn facts_from_doc(_doc: &text::Doc, _text: &str, name: &str) -> Facts {
    Facts::new(name)
}

/// Runs `cargo xtask explain`.
pub(crate) fn run(_args: &crate::cli::ExplainArgs) -> anyhow::Result<ExitCode> {
    Err(crate::input::error("`explain` is not built yet"))
}
