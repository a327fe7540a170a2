//! Tokens of context that requests hold.

use super::served::Served;
use super::{Notes, merge, parse};
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;

/// A context below this is more likely a slip: engines count tokens, people thousands.
const SHORT_CONTEXT: u64 = 128;
/// Context where nothing says it, tokens.
const DEFAULT_CONTEXT: u64 = 2048;

/// Ends where a context comes from that is only the most that a server takes.
const UNSEEN: &str = "; no request shows what it held)";

/// The load of a log: what requests held, else all that it takes; as many users as it runs at once.
pub(super) fn load(
    merged: &mut merge::Merged,
    log: &LogScenario,
    args: &ScenarioArgs,
    shown: &str,
) {
    let other = super::other_model::other_model(args, log);
    let limit = log.context.filter(|_| !other);
    if let Some(held) = &log.held {
        merged.context = Some(merge::Given {
            value: held.tokens.to_string(),
            source: format!("{shown}:{} (what requests held, {})", held.line, held.by),
            assumed: true,
        });
    } else if let (Some((_, line)), Some((limit, _))) = (log.hybrid_block, limit) {
        merged.context = Some(merge::Given {
            value: u64::from(limit).min(DEFAULT_CONTEXT).to_string(),
            source: format!(
                "{shown}:{line} (a hybrid's share of its pool counts states and whole blocks{UNSEEN}"
            ),
            assumed: true,
        });
    } else if let Some((limit, line)) = limit {
        let pool = merged.ran.kv_tokens.zip(log.kv_tokens);
        let pool = pool.filter(|(pool, _)| *pool < u64::from(limit));
        let (most, line, what) = match pool {
            Some((pool, (_, line))) => (pool, line, "all that the server's pool holds"),
            None => (u64::from(limit), line, "the server's limit"),
        };
        merged.context = Some(merge::Given {
            value: most.to_string(),
            source: format!("{shown}:{line} ({what}{UNSEEN}"),
            assumed: true,
        });
    }
    if let Some((loads, line)) = log.loads().filter(|_| !other) {
        merged.concurrency = Some(merge::Given {
            value: loads,
            source: format!("{shown}:{line} (up to its most at once)"),
            assumed: false,
        });
    }
}

/// The context at which plain steps were measured, and who says so.
fn measured(
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

/// The context asked for, shown by a log, or measured at; else an assumed one. Beside it whether one was
/// measured at.
pub(super) fn resolve(
    merged: &merge::Merged,
    (sweep, served): (&Option<crate::bench_input::Sweep>, &Option<Served>),
    notes: &mut Notes,
) -> anyhow::Result<(u64, bool)> {
    let measured = measured(sweep.as_ref(), served.as_ref());
    let tokens = noted(merged, measured, notes)?;
    Ok((tokens, measured.is_some()))
}

fn noted(
    merged: &merge::Merged,
    measured: Option<(f64, &'static str)>,
    notes: &mut Notes,
) -> anyhow::Result<u64> {
    // The limit of a log's server is a guess of what requests held; a sweep shows it.
    let by_limit = |given: &&merge::Given<String>| given.source.ends_with(UNSEEN);
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
