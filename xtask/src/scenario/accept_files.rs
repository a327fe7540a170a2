//! Files that `--accept` names: what was accepted in them, and how fast their server was meanwhile.

use std::path::{Path, PathBuf};

use spec_decode::{Evidence, HeadKind};

use super::Notes;
use super::drafted::Drafted;
use crate::explain::{AcceptReading, LogAcceptance, OVER_ALL, accept_from_log};
use crate::input;

/// What the files say.
pub(super) struct Found {
    pub(super) evidence: Evidence,
    /// Where it stands.
    pub(super) source: String,
    /// Why it is none of the model's, where it is not.
    pub(super) forced: Option<String>,
    /// Tokens that requests held, where every file says.
    pub(super) held_tokens: Option<f64>,
    /// Speeds by load of the same runs.
    pub(super) drafted: Vec<Drafted>,
}

/// `FILE`, several joined by commas, or the same with `@STEPS` where they do not say their depth.
pub(crate) fn named(given: &Path) -> (Vec<PathBuf>, Option<u32>) {
    let text = given.to_string_lossy();
    let split = text.rsplit_once('@').filter(|_| !given.exists());
    let split = split.and_then(|(files, steps)| Some((files, steps.parse::<u32>().ok()?)));
    let split = split.filter(|(_, steps)| (1..=64).contains(steps));
    match split {
        Some((files, steps)) => (super::parse::files(Path::new(files)), Some(steps)),
        None => (super::parse::files(given), None),
    }
}

/// Reads them; `steps` is the depth of a server that they are taken to be of, where they do not say one.
pub(super) fn read(
    given: &Path,
    steps: Option<u32>,
    head: HeadKind,
    notes: &mut Notes,
) -> anyhow::Result<Found> {
    let (paths, said) = named(given);
    let mut all = Vec::new();
    for path in &paths {
        all.push(one(path, (said, steps), head, notes)?);
    }
    let drafted = all.iter().map(|(log, depth, file)| Drafted {
        file: file.clone(),
        in_log: false,
        tp: log.tp,
        steps: Some(*depth),
        tokens: log.draft_tokens,
        topk: log.topk,
        speeds: log.speeds.clone(),
    });
    let drafted = drafted.collect();
    let shown = given.display().to_string();
    let depth = all.first().map_or(1, |(_, depth, _)| *depth);
    if all.iter().any(|(_, other, _)| *other != depth) {
        return Err(input::error(format!(
            "--accept {shown}: the files are of different draft steps; give those of one"
        )));
    }
    let mean = all.iter().map(|(log, ..)| log.accept_length).sum::<f64>() / all.len() as f64;
    let held: Option<f64> = all.iter().map(|(log, ..)| log.held_tokens).sum();
    let (evidence, source) = match all.as_slice() {
        [(log, ..)] => (of_one(log, depth), log.source.clone()),
        _ => (
            Evidence::AcceptLength {
                depth,
                accept_length: mean,
                cycles: None,
            },
            format!("{shown}: the mean of the files"),
        ),
    };
    evidence
        .check()
        .map_err(|e| input::error(format!("--accept {shown}: {e}")))?;
    Ok(Found {
        evidence,
        source,
        held_tokens: held.map(|tokens| tokens / all.len() as f64),
        forced: all.into_iter().find_map(|(log, ..)| log.forced),
        drafted,
    })
}

/// One of them, with its depth and name; depths are the one said of it, and its server's.
fn one(
    path: &Path,
    (said, steps): (Option<u32>, Option<u32>),
    head: HeadKind,
    notes: &mut Notes,
) -> anyhow::Result<(LogAcceptance, u32, String)> {
    let shown = path.display().to_string();
    if !path.exists() {
        return Err(input::error(format!(
            "--accept {shown}: neither LENGTH@DEPTH (2.3@3), rates:.65,.40, counts:1000:650,400, alphas:.65,.6, nor a file that exists (`accept` reads the engines' other forms)"
        )));
    }
    let mut log = accept_from_log(&input::read_text(path)?, &shown)?;
    if head == HeadKind::NGram {
        log = log.of_look_up();
        let over = log.notes.iter().filter(|note| note.starts_with(OVER_ALL));
        over.for_each(|note| {
            notes.assume(format!("{}: the accept length is {note}", log.source), "")
        });
    }
    let depth = log.depth_or(said, &shown)?.or(steps).ok_or_else(|| {
        input::error(format!(
            "--accept {shown}: it gives accept length {:.2} but not the depth it was measured at; \
             give --accept {shown}@N with the draft steps of that run for N",
            log.accept_length
        ))
    })?;
    Ok((log, depth, shown))
}

fn of_one(log: &LogAcceptance, depth: u32) -> Evidence {
    match &log.reading {
        AcceptReading::Rates(cumulative) => Evidence::PositionRates {
            cumulative: cumulative.clone(),
            cycles: log.passes,
        },
        AcceptReading::Length { accept_length, .. } => Evidence::AcceptLength {
            depth,
            accept_length: *accept_length,
            cycles: log.passes,
        },
        AcceptReading::Counts { .. } => Evidence::AcceptLength {
            depth,
            accept_length: log.accept_length,
            cycles: log.passes,
        },
    }
}
