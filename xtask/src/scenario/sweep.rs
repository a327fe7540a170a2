//! Tables that the user measured: a plain sweep, all-reduce times.

use std::path::{Path, PathBuf};

use super::merge::Merged;
use super::parse;
use super::served::Served;
use super::{EngineKind, Notes, cache};
use crate::bench_input;
use crate::input;

/// The plain sweep of `--baseline FILE`, or `FILE@USERS` for results that do not say their load, or
/// several of them joined by commas, with the context of `--baseline-context` where they do not say that either.
pub(super) fn baseline(
    merged: &Merged,
    notes: &mut Notes,
) -> anyhow::Result<Option<bench_input::Sweep>> {
    let Some(path) = merged.baseline.as_deref() else {
        return match &merged.baseline_context {
            Some(given) => Err(input::error(format!(
                "{} {}: there is no plain sweep that it is of; give --baseline FILE beside it",
                given.named("--baseline-context"),
                given.value
            ))),
            None => Ok(None),
        };
    };
    let mut parts = Vec::new();
    for path in parse::files(path) {
        let (path, users) = with_users(&path)?;
        let name = path.display().to_string();
        let part = bench_input::sweep_with_notes(&input::read_text(&path)?, &name, users)?;
        parts.push((name, part));
    }
    let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
    let shown = names.join(",");
    notes.input(
        "baseline",
        shown.clone(),
        "--baseline: your own measurement",
    );
    if let Some(given) = &merged.baseline_context {
        let flag = given.named("--baseline-context");
        let tokens = parse::context(&flag, &given.value)?;
        told(&mut parts, tokens as f64).map_err(|own| {
            input::error(format!(
                "{flag} {}: {shown} says itself that its requests held {own:.0} tokens; leave the \
                 flag out",
                given.value
            ))
        })?;
        notes.input("baseline_context", tokens, given.source.clone());
    }
    Ok(Some(bench_input::joined(parts)))
}

/// Gives the files that do not say what their requests held this many tokens; where all of them say, the
/// first that says otherwise is the error.
fn told(parts: &mut [(String, bench_input::Sweep)], tokens: f64) -> Result<(), f64> {
    let said = |part: &bench_input::Sweep| part.held_tokens.or(part.context);
    let by_context = parts.iter().any(|(_, part)| part.context.is_some());
    let mut silent = parts.iter_mut().filter(|(_, part)| said(part).is_none());
    if let Some((_, first)) = silent.next() {
        for part in std::iter::once(first).chain(silent.map(|(_, part)| part)) {
            part.held_tokens = Some(tokens);
            part.context = by_context.then_some(tokens);
        }
        return Ok(());
    }
    let other = parts.iter().filter_map(|(_, part)| said(part));
    let mut other = other.filter(|own| (own - tokens).abs() >= 1.0);
    other.next().map_or(Ok(()), Err)
}

/// The sweep at the context of the scenario, with what it says of itself.
pub(super) fn at_context(
    sweep: Option<bench_input::Sweep>,
    context: u64,
    notes: &mut Notes,
) -> Option<bench_input::Sweep> {
    let sweep = sweep?.at(context as f64);
    let file = notes.given("baseline");
    for what in &sweep.notes {
        notes.assume(format!("--baseline {file}: {what}"), "");
    }
    Some(sweep)
}

/// Its points with what each was measured by.
pub(super) fn seen(sweep: Option<&bench_input::Sweep>) -> Vec<crate::explain::speeds::LoadSpeed> {
    sweep.map_or_else(Vec::new, |sweep| sweep.seen.clone())
}

/// The pool of the plain server behind the sweep, where the log beside it is of the same engine and
/// model.
pub(super) fn plain_pool(
    sweep: Option<&bench_input::Sweep>,
    ran: &super::Ran,
) -> Option<bench_input::PlainPool> {
    let pool = sweep?.ran_on.pool.as_ref();
    pool.filter(|pool| ran.of.as_ref() == Some(&pool.of))
        .cloned()
}

/// The KV format that the sweep ran with: as its file says, else as the log or scenario beside it. Where
/// none says, `--kv-dtype` asks for another server than the one that was measured, as `--allreduce` does,
/// and the sweep is of what the engine takes by itself. Says so where the answer has another.
pub(super) fn kv_dtype(
    sweep: Option<&bench_input::Sweep>,
    merged: &Merged,
    serving: cache::Serving<'_>,
    notes: &mut Notes,
) -> anyhow::Result<kvplan::KvDtype> {
    let asked = kvplan::KvDtype::parse(&notes.given("kv_dtype")).unwrap_or_default();
    let Some(sweep) = sweep else {
        return Ok(asked);
    };
    let file = notes.given("baseline");
    let own = sweep.ran_on.kv_dtype.as_ref();
    let own = own.map(|(said, line)| (said.clone(), format!("{file}:{line}")));
    let told = own.or_else(|| merged.described_kv_dtype.clone());
    let told = told.and_then(|(said, at)| Some((kvplan::KvDtype::parse(&said)?, at)));
    let by_flag = merged.kv_dtype.as_ref();
    let by_flag = by_flag.is_some_and(|given| given.source == "--kv-dtype");
    let silent = told.is_none();
    let (ran, known_by) = match told {
        Some((ran, at)) => (ran, format!("of a KV cache in {} ({at})", ran.name())),
        None if by_flag => {
            let (ran, _) = cache::kv_by_itself(serving)?;
            let taken = format!(
                "taken to be of a KV cache in {}, the engine's own (it does not say)",
                ran.name()
            );
            (ran, taken)
        }
        None => return Ok(asked),
    };
    if ran == asked {
        return Ok(asked);
    }
    let name = asked.name();
    let start = match serving.1.kind {
        EngineKind::Sglang => Some("sglang.launch_server"),
        EngineKind::Vllm => Some("vllm serve"),
        EngineKind::TrtLlm | EngineKind::LlamaCpp => None,
    };
    let says = match (silent, start) {
        (false, _) => String::new(),
        (true, Some(start)) => {
            format!("; if this is one, `# {start} --kv-cache-dtype {name}` above its speeds")
        }
        (true, None) => "; if this is one, its server's log as --from-log".to_string(),
    };
    notes.assume(
        format!(
            "the plain sweep is {known_by}; its steps in {name} are the measured ones and what the step \
             model adds or takes between the two"
        ),
        format!("a plain sweep with a KV cache in {name}{says}"),
    );
    Ok(ran)
}

/// A file and the load behind its `@`; a file whose own name has one is taken as it is.
fn with_users(path: &Path) -> anyhow::Result<(PathBuf, Option<f64>)> {
    let text = path.to_string_lossy();
    let Some((file, users)) = text.rsplit_once('@').filter(|_| !path.exists()) else {
        return Ok((path.to_path_buf(), None));
    };
    let count = users.parse::<u32>().ok().filter(|n| *n >= 1);
    let count = count.ok_or_else(|| {
        input::error(format!(
            "--baseline {text}: `{users}` is no number of users; write {file}@8"
        ))
    })?;
    Ok((PathBuf::from(file), Some(f64::from(count))))
}

/// The plain steps of the box file that are of this server (model, ranks, all-reduce); a sweep of
/// the user's own goes before them. Without `--allreduce` the first all-reduce saved is taken.
pub(super) fn served(
    merged: &Merged,
    saved: &[Served],
    (model, tp, allreduce): (&kvplan::Model, u32, &str),
    notes: &mut Notes,
) -> Option<Served> {
    if merged.baseline.is_some() {
        return None;
    }
    let any = merged.allreduce.is_none() || tp < 2;
    let found = saved
        .iter()
        .filter(|s| s.is_of(&model.name, tp))
        .find(|s| any || s.allreduce == allreduce);
    match (found, saved.first()) {
        (Some(found), _) => {
            let beside = match found.allreduce.as_str() {
                "none" => String::new(),
                name => format!(", all-reduce {name}"),
            };
            notes.input(
                "baseline",
                format!("{} plain steps{beside}", found.plain_step.len()),
                "measured by verify-hw with a stand-in, in the box file",
            );
        }
        (None, Some(first)) => notes.assume(
            format!(
                "the box file's plain steps are not used: they are of {} at TP {}, all-reduce {}",
                first.model, first.tp, first.allreduce
            ),
            "",
        ),
        (None, None) => {}
    }
    found.cloned()
}

/// The table of `--allreduce-table`: lines of `bytes,time_us`, or what nccl-tests prints.
pub(super) fn allreduce_table(
    path: Option<&Path>,
    notes: &mut Notes,
) -> anyhow::Result<Option<Vec<(u64, f64)>>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let shown = path.display().to_string();
    let text = input::read_text(path)?;
    let (table, source) = match from_nccl_tests(&text, &shown)? {
        Some(table) => (
            table,
            "--allreduce-table: your own measurement, the out-of-place times of nccl-tests",
        ),
        None => (
            parse_allreduce_table(&text, &shown)?,
            "--allreduce-table: your own measurement",
        ),
    };
    notes.input("allreduce_table", shown, source);
    Ok(Some(table))
}

/// The table that nccl-tests prints; `None` where it is something else.
fn from_nccl_tests(text: &str, shown: &str) -> anyhow::Result<Option<Vec<(u64, f64)>>> {
    let Some((table, operation)) = crate::explain::nccl_times_us(text) else {
        return Ok(None);
    };
    match operation.as_deref() {
        None | Some("all_reduce") => Ok(Some(table)),
        Some(other) => Err(input::error(format!(
            "--allreduce-table {shown}: times of {other}, not of an all-reduce; run all_reduce_perf"
        ))),
    }
}

fn parse_allreduce_table(text: &str, shown: &str) -> anyhow::Result<Vec<(u64, f64)>> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut cells = line.split([',', ';', '\t']).map(str::trim);
        let bytes = cells.next().and_then(|c| c.parse::<u64>().ok());
        let time_us = cells.next().and_then(|c| c.parse::<f64>().ok());
        match (bytes, time_us) {
            (Some(bytes), Some(time_us)) if bytes > 0 && time_us.is_finite() && time_us > 0.0 => {
                rows.push((bytes, time_us));
            }
            // A header may stand first.
            _ if rows.is_empty() && index == 0 => {}
            _ => {
                return Err(input::error(format!(
                    "{shown}:{}: give bytes,time_us, such as 57344,24.5",
                    index + 1
                )));
            }
        }
    }
    if rows.is_empty() {
        return Err(input::error(format!(
            "{shown}: no line of bytes,time_us in it"
        )));
    }
    rows.sort_by_key(|row| row.0);
    rows.dedup_by_key(|row| row.0);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_may_have_a_header_and_must_have_positive_times() {
        let rows = parse_allreduce_table("bytes,time_us\n57344,24.5\n14336,19.8\n", "t.csv");
        assert_eq!(rows.expect("a table"), vec![(14336, 19.8), (57344, 24.5)]);
        let error = parse_allreduce_table("14336,19.8\nx,y\n", "t.csv").expect_err("no figures");
        assert!(error.to_string().starts_with("t.csv:2:"), "{error}");
        assert!(parse_allreduce_table("", "t.csv").is_err());
        assert!(parse_allreduce_table("1,-5\n2,nan\n", "t.csv").is_err());
    }
}
