//! Tokens of context that requests hold.

use super::served::Served;
use super::{Notes, merge, parse};

/// A context below this is more likely a slip: engines count tokens, people thousands.
const SHORT_CONTEXT: u64 = 128;
/// Context where nothing says it, tokens.
const DEFAULT_CONTEXT: u64 = 2048;

/// The context at which plain steps were measured, and who says so.
pub(super) fn measured(
    baseline: Option<&crate::bench_input::Sweep>,
    served: Option<&Served>,
) -> Option<(f64, &'static str)> {
    let sweep = baseline.and_then(|sweep| sweep.held_tokens);
    sweep
        .map(|tokens| (tokens, "as the requests of the plain sweep held it"))
        .or_else(|| {
            let tokens = served?.held_tokens;
            Some((tokens, "as the box file's plain steps had it"))
        })
}

/// The context asked for, shown by a log, or measured at; else an assumed one.
pub(super) fn resolve(
    merged: &merge::Merged,
    measured: Option<(f64, &'static str)>,
    notes: &mut Notes,
) -> anyhow::Result<u64> {
    // The limit of a log's server is a guess of what requests held; a sweep shows it.
    let by_limit = |given: &&merge::Given<String>| given.source.ends_with(super::ran::UNSEEN);
    let given = merged.context.as_ref();
    match given.filter(|given| measured.is_none() || !by_limit(given)) {
        Some(given) => {
            let tokens = parse::context(&given.named("--context"), &given.value)?;
            notes.input("context", tokens, given.source.clone());
            if (1..SHORT_CONTEXT).contains(&tokens) && !given.assumed {
                notes.assume(
                    format!("context {tokens} tokens, a sentence or two; was {tokens}k meant?"),
                    format!("--context {tokens}k"),
                );
            }
            if given.assumed {
                notes.assume(
                    format!("context {tokens} tokens: {}", given.source),
                    "--context",
                );
            }
            Ok(tokens)
        }
        None if let Some((tokens, source)) = measured => {
            let tokens = tokens.round().clamp(0.0, 1e9) as u64;
            notes.input("context", tokens, source);
            Ok(tokens)
        }
        None => {
            notes.input("context", DEFAULT_CONTEXT, "assumed");
            notes.assume(format!("context {DEFAULT_CONTEXT} tokens"), "--context");
            Ok(DEFAULT_CONTEXT)
        }
    }
}
