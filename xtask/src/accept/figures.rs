//! The forms of `--accept`: figures as engines print them, and logs.

use std::path::Path;

use spec_decode::acceptance::chain::MAX_DEPTH;
use spec_decode::acceptance::metrics::{Metric, cumulative};
use spec_decode::acceptance::warnings::Observed;
use spec_decode::{AcceptanceError, Evidence};

use crate::cli::AcceptCommandArgs;
use crate::explain::{AcceptReading, accept_from_log, scenario_from_log};
use crate::input;
use crate::scenario::parse::{self, AcceptFlag};
use crate::scenario::{LoggedHead, named_files as named};
use crate::table::thousands;

/// One measurement as evidence, and for the checks.
pub(super) struct Figure {
    pub(super) evidence: Evidence,
    pub(super) observed: Observed,
    /// In one phrase.
    pub(super) shown: String,
    /// What was assumed of it.
    pub(super) assumed: Vec<String>,
    /// What drafted, where a log says.
    pub(super) logged: Option<LoggedHead>,
}

/// Reads every `--accept`.
pub(super) fn read(args: &AcceptCommandArgs) -> anyhow::Result<Vec<Figure>> {
    if let Some(cycles) = args.cycles
        && !(cycles.is_finite() && cycles >= 1.0)
    {
        return Err(input::error(format!(
            "--cycles {cycles}: give the number of verify passes, at least 1"
        )));
    }
    if args.cycles.is_some() && args.accept.is_empty() {
        return Err(input::error(
            "--cycles: verify passes behind what? add --accept FIGURE",
        ));
    }
    args.accept
        .iter()
        .map(|text| one(text, args.cycles))
        .collect()
}

fn one(text: &str, cycles: Option<f64>) -> anyhow::Result<Figure> {
    let refuse = |e: AcceptanceError| input::error(format!("--accept {text}: {e}"));
    if let Some((form, rest)) = text.split_once(':')
        && let Some(evidence) = engine_form(text, form, rest, cycles)?
    {
        evidence.check().map_err(refuse)?;
        return Ok(figure(evidence, text.to_string()));
    }
    let evidence = match parse::accept("--accept", text)? {
        AcceptFlag::Length {
            accept_length,
            depth,
        } => Evidence::AcceptLength {
            depth,
            accept_length,
            cycles,
        },
        AcceptFlag::Rates(cumulative) => Evidence::PositionRates { cumulative, cycles },
        AcceptFlag::Counts { cycles, accepted } => Evidence::PositionCounts { cycles, accepted },
        AcceptFlag::File(path) => return from_files(&path, cycles),
    };
    evidence.check().map_err(refuse)?;
    Ok(figure(evidence, format!("--accept {text}")))
}

/// The forms `name:figures`; `None` for a name that is none of them (a path may hold a colon).
fn engine_form(
    text: &str,
    form: &str,
    rest: &str,
    cycles: Option<f64>,
) -> anyhow::Result<Option<Evidence>> {
    let refuse = |e: AcceptanceError| input::error(format!("--accept {text}: {e}"));
    let metric = match form {
        // One reader with `predict --accept`.
        "counts" => return Ok(None),
        "alphas" => {
            let alphas = numbers(text, rest)?;
            let cumulative = cumulative(&alphas).map_err(refuse)?;
            return Ok(Some(Evidence::PositionRates { cumulative, cycles }));
        }
        "no-bonus" => {
            let (value, depth) = at(text, rest)?;
            (Metric::WithoutBonus(value), depth)
        }
        "vllm-rate" => {
            let (rate, depth) = at(text, rest)?;
            let metric = Metric::VllmDraftAcceptanceRate {
                rate,
                num_speculative_tokens: depth,
            };
            (metric, depth)
        }
        "sglang-rate-old" | "sglang-rate-new" => {
            let (rate, draft_tokens) = at(text, rest)?;
            if draft_tokens < 2 {
                return Err(input::error(format!(
                    "--accept {text}: draft tokens count the root, so there are at least 2"
                )));
            }
            let metric = if form == "sglang-rate-old" {
                Metric::SglangAcceptRateOld { rate, draft_tokens }
            } else {
                Metric::SglangAcceptRateNew { rate, draft_tokens }
            };
            (metric, draft_tokens - 1)
        }
        "llamacpp" => llamacpp(text, rest)?,
        _ => return Ok(None),
    };
    let accept_length = metric.0.accept_length().map_err(refuse)?;
    let counted = match metric.0 {
        Metric::LlamaCpp { cycles, .. } => Some(cycles as f64),
        _ => cycles,
    };
    Ok(Some(Evidence::AcceptLength {
        depth: metric.1,
        accept_length,
        cycles: counted,
    }))
}

/// `36/7@16`
fn llamacpp(text: &str, rest: &str) -> anyhow::Result<(Metric, u32)> {
    let wrong = || {
        input::error(format!(
            "--accept {text}: give llamacpp:ACCEPTED/CYCLES@DRAFTS, as llamacpp:36/7@16, with 1 to \
             {MAX_DEPTH} drafts a cycle"
        ))
    };
    let (ratio, depth) = rest.rsplit_once('@').ok_or_else(wrong)?;
    let (accepted, cycles) = ratio.split_once('/').ok_or_else(wrong)?;
    let depth: u32 = depth.trim().parse().map_err(|_| wrong())?;
    if !(1..=MAX_DEPTH).contains(&depth) {
        return Err(wrong());
    }
    let metric = Metric::LlamaCpp {
        accepted: accepted.trim().parse().map_err(|_| wrong())?,
        cycles: cycles.trim().parse().map_err(|_| wrong())?,
    };
    Ok((metric, depth))
}

fn numbers(text: &str, list: &str) -> anyhow::Result<Vec<f64>> {
    let values: Option<Vec<f64>> = list.split(',').map(|p| p.trim().parse().ok()).collect();
    values
        .filter(|v| v.len() <= 256)
        .ok_or_else(|| input::error(format!("--accept {text}: give numbers separated by commas")))
}

/// `.43@3`
fn at(text: &str, rest: &str) -> anyhow::Result<(f64, u32)> {
    let wrong = || {
        input::error(format!(
            "--accept {text}: give FIGURE@N, N from 1 to 64 drafted tokens"
        ))
    };
    let (value, count) = rest.split_once('@').ok_or_else(wrong)?;
    let value: f64 = value.trim().parse().map_err(|_| wrong())?;
    let count: u32 = count.trim().parse().map_err(|_| wrong())?;
    if !(1..=64).contains(&count) || !value.is_finite() {
        return Err(wrong());
    }
    Ok((value, count))
}

fn figure(evidence: Evidence, shown: String) -> Figure {
    let mut observed = Observed::default();
    let mut assumed = Vec::new();
    match &evidence {
        Evidence::AcceptLength {
            depth,
            accept_length,
            cycles,
        } => {
            observed.accept_length = Some(*accept_length);
            observed.cycles = *cycles;
            observed.depth = Some(*depth);
            if cycles.is_none() {
                assumed.push(assumed_cycles(&shown));
            }
        }
        Evidence::PositionRates { cumulative, cycles } => {
            observed.accept_length = Some(1.0 + cumulative.iter().sum::<f64>());
            observed.depth = u32::try_from(cumulative.len()).ok();
            observed.position_rates.clone_from(cumulative);
            observed.cycles = *cycles;
            if cycles.is_none() {
                assumed.push(assumed_cycles(&shown));
            }
        }
        Evidence::PositionCounts { cycles, accepted } => {
            let rates: Vec<f64> = accepted
                .iter()
                .map(|a| *a as f64 / (*cycles).max(1) as f64)
                .collect();
            observed.accept_length = Some(1.0 + rates.iter().sum::<f64>());
            observed.depth = u32::try_from(rates.len()).ok();
            observed.position_rates = rates;
            observed.cycles = Some(*cycles as f64);
        }
    }
    Figure {
        evidence,
        observed,
        shown,
        assumed,
        logged: None,
    }
}

fn assumed_cycles(shown: &str) -> String {
    format!(
        "{shown}: taken as the mean over {} verify passes (--cycles N says how many)",
        spec_decode::acceptance::posterior::ASSUMED_CYCLES
    )
}

/// Files, as `predict --accept` takes them: several are one measurement, their mean.
fn from_files(given: &Path, cycles: Option<f64>) -> anyhow::Result<Figure> {
    let (paths, said) = named(given);
    let read = paths.iter().map(|path| from_log(path, said, cycles));
    let mut figures = read.collect::<anyhow::Result<Vec<Figure>>>()?;
    let depth = figures.first().and_then(|first| first.observed.depth);
    let shown = given.display();
    if figures.iter().any(|figure| figure.observed.depth != depth) {
        return Err(input::error(format!(
            "--accept {shown}: the files are of different draft steps; give those of one"
        )));
    }
    let lengths = figures
        .iter()
        .filter_map(|figure| figure.observed.accept_length);
    let accept_length = lengths.sum::<f64>() / figures.len().max(1) as f64;
    let first = match figures.len() {
        0 | 1 => figures.pop(),
        _ => None,
    };
    if let Some(first) = first {
        return Ok(first);
    }
    let evidence = Evidence::AcceptLength {
        depth: depth.unwrap_or(1),
        accept_length,
        cycles,
    };
    let mean = format!("accept length {accept_length:.2} from {shown}, the mean of the files");
    Ok(Figure {
        logged: figures.into_iter().find_map(|figure| figure.logged),
        ..figure(evidence, mean)
    })
}

/// `said` is the depth of what does not say its own.
fn from_log(path: &Path, said: Option<u32>, cycles: Option<f64>) -> anyhow::Result<Figure> {
    let shown = path.display().to_string();
    if !path.exists() {
        return Err(input::error(format!(
            "--accept {shown}: neither a figure (2.3@3, rates:.65,.40, …) nor a file that exists"
        )));
    }
    let text = input::read_text(path)?;
    let log = accept_from_log(&text, &shown)?;
    let depth = log.depth_or(said, &shown)?;
    let needs_depth = || {
        input::error(format!(
            "--accept {shown}: accept length {:.2}, but the log does not say at which depth; give \
             --accept {shown}@N with the draft steps of that run for N",
            log.accept_length
        ))
    };
    let counted = cycles.is_none().then_some(log.passes).flatten();
    let cycles = cycles.or(log.passes);
    let evidence = match &log.reading {
        AcceptReading::Rates(cumulative) => Evidence::PositionRates {
            cumulative: cumulative.clone(),
            cycles,
        },
        AcceptReading::Length { accept_length, .. } => Evidence::AcceptLength {
            depth: depth.ok_or_else(needs_depth)?,
            accept_length: *accept_length,
            cycles,
        },
        AcceptReading::Counts { .. } => Evidence::AcceptLength {
            depth: depth.ok_or_else(needs_depth)?,
            accept_length: log.accept_length,
            cycles,
        },
    };
    evidence
        .check()
        .map_err(|e| input::error(format!("--accept {shown}: {e}")))?;
    let mut figure = figure(
        evidence,
        format!(
            "accept length {:.2}{} from {}",
            log.accept_length,
            counted.map_or_else(String::new, over),
            log.source
        ),
    );
    if let (Some(depth), Some(tokens)) = (log.depth, log.draft_tokens) {
        figure.observed.tree_flags = Some((depth, log.topk.unwrap_or(1), tokens));
    }
    figure.assumed.extend(log.notes.iter().cloned());
    let settings = scenario_from_log(&text, &shown).ok();
    figure.logged = settings.as_ref().and_then(LoggedHead::of);
    Ok(figure)
}

/// Verify passes that a log itself counts, in words.
fn over(passes: f64) -> String {
    let plural = if passes.round() == 1.0 { "" } else { "es" };
    format!(" over {} verify pass{plural}", thousands(passes))
}
