//! `explain`: what a log or bench output says, what is wrong, what to change.

// The readers are used by `predict` too, through the four functions below.
#![allow(dead_code, unused_imports)]

mod accept;
mod args;
mod bench_facts;
mod config;
mod facts;
mod machine;
mod nccl;
mod other_engines;
mod p2p;
mod scenario;
mod sglang;
pub(crate) mod text;
mod vllm;

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

fn facts_from_doc(doc: &text::Doc, text: &str, name: &str) -> Facts {
    let mut facts = Facts::new(name);
    sglang::read(doc, &mut facts);
    vllm::read(doc, &mut facts);
    other_engines::read(doc, &mut facts);
    bench_facts::read(doc, text, &mut facts);
    machine::read(doc, text, &mut facts);
    nccl::read(doc, &mut facts);
    p2p::read(doc, text, &mut facts);
    if facts.is_empty() {
        config::read(text, &mut facts);
    }
    facts
}

/// Runs `cargo xtask explain`.
pub(crate) fn run(_args: &crate::cli::ExplainArgs) -> anyhow::Result<ExitCode> {
    Err(crate::input::error("`explain` is not built yet"))
}
