//! What was measured with the draft over what was measured without, of files given together.

use super::facts::Facts;
use super::findings::drafts;
use super::speeds::{By, LoadSpeed};

/// Both speeds of a load.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct Ratio {
    pub(crate) concurrency: f64,
    /// With the draft over without; `None` where the two were not measured alike.
    pub(crate) speedup: Option<f64>,
    /// What both were measured by, or what they differ by.
    pub(crate) by: String,
    pub(crate) with: String,
    pub(crate) without: String,
}

/// Speeds without a draft.
fn plain(facts: &Facts) -> Vec<LoadSpeed> {
    let log = facts.get("engine").is_some() && !drafts(facts) && facts.speed_printers < 2;
    let lines = facts.speeds.iter().filter(|_| log).copied();
    let swept = facts.sweep.iter().flat_map(|sweep| {
        let rows = std::iter::once(sweep).chain(&sweep.longer);
        rows.flat_map(|row| row.seen.clone())
    });
    lines.chain(swept).collect()
}

/// Speeds with one.
fn drafted(facts: &Facts) -> Vec<LoadSpeed> {
    let log = facts.get("engine").is_some() && drafts(facts) && facts.speed_printers < 2;
    let lines = facts.speeds.iter().filter(|_| log);
    lines.chain(facts.drafted_bench()).copied().collect()
}

/// Whether nothing says that two files are of two servers.
fn of_one_server(a: &Facts, b: &Facts) -> bool {
    let last = |text: &str| {
        let name = text.trim_end_matches('/').rsplit('/').next();
        name.unwrap_or(text).to_lowercase()
    };
    ["engine", "model", "tp", "gpu"].iter().all(|name| {
        let said = |facts: &Facts| facts.text(name).map(last);
        let number = |facts: &Facts| facts.number(name);
        let same = said(a).zip(said(b)).is_none_or(|(a, b)| a == b);
        same && number(a).zip(number(b)).is_none_or(|(a, b)| a == b)
    })
}

/// By rising load; of a load with several plain speeds the one measured alike.
pub(crate) fn ratios(files: &[Facts]) -> Vec<Ratio> {
    let mut found: Vec<Ratio> = Vec::new();
    for with in files {
        for speed in drafted(with) {
            let servers = files.iter().filter(|without| of_one_server(with, without));
            let plain = servers.flat_map(|without| {
                let speeds = plain(without).into_iter();
                speeds.map(move |plain| (without, plain))
            });
            let alike = |by: By| matches!(by, By::Lines) == matches!(speed.by, By::Lines);
            let of_load =
                plain.filter(|(_, plain)| plain.running == speed.running && alike(plain.by));
            let told = of_load.map(|(without, plain)| {
                let over = match super::forced::words(with) {
                    Some(why) => Err(format!("what is accepted is not the model's ({why})")),
                    None => speed.over(&plain),
                };
                Ratio {
                    concurrency: speed.running,
                    speedup: over.as_ref().ok().copied(),
                    by: over
                        .err()
                        .unwrap_or_else(|| measured_by(speed.by).to_string()),
                    with: with.file.clone(),
                    without: without.file.clone(),
                }
            });
            let first = told.reduce(|a, b| match a.speedup {
                Some(_) => a,
                None => b,
            });
            found.extend(first);
        }
    }
    // By rising load, those of one way of measuring together.
    found.sort_by(|a, b| {
        a.by.cmp(&b.by)
            .then(a.concurrency.total_cmp(&b.concurrency))
    });
    found
}

fn measured_by(by: By) -> &'static str {
    match by {
        By::Lines => "lines of the logs",
        By::Bench {
            tpot_ms: Some(_), ..
        } => "time per output token",
        _ => "output tokens a second",
    }
}

/// The same in words, one line for each way of measuring.
pub(super) fn lines(ratios: &[Ratio]) -> Vec<String> {
    let alike = |a: &Ratio, b: &Ratio| a.by == b.by && a.speedup.is_some() == b.speedup.is_some();
    let lines = ratios.chunk_by(alike).filter_map(|of_one| {
        let first = of_one.first()?;
        let same = |a: &Ratio, b: &Ratio| a.with == b.with && a.without == b.without;
        let words: Vec<String> = of_one.chunk_by(same).map(words).collect();
        let words = words.join(", ");
        Some(match first.speedup {
            Some(_) => format!("with the draft over without, by {}: {words}", first.by),
            None => format!("no ratio: {words}: {}", first.by),
        })
    });
    lines.collect()
}

/// The loads of one pair of files.
fn words(ratios: &[Ratio]) -> String {
    let load = |ratio: &Ratio| {
        let users = ratio.concurrency;
        let s = if users == 1.0 { "" } else { "s" };
        match ratio.speedup {
            Some(speedup) => format!("{speedup:.2}x at {users} user{s}"),
            None => format!("{users} user{s}"),
        }
    };
    let loads: Vec<String> = ratios.iter().map(load).collect();
    let files = ratios.first().map_or_else(String::new, |ratio| {
        format!(" ({} over {})", ratio.with, ratio.without)
    });
    loads.join(", ") + &files
}
