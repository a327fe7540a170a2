//! Every reader on damaged real inputs: no panic, no endless loop, no memory that grows without
//! bound, and what comes out is within its own bounds.
//!
//! A normal test run gives each reader a second. A long one:
//!
//! ```text
//! FUZZ_SECONDS=600 cargo test --release -p xtask fuzz -- --nocapture
//! FUZZ_READER=config FUZZ_SEED=7 FUZZ_SECONDS=60 cargo test --release -p xtask fuzz -- --nocapture
//! ```
//!
//! An input that fails is cut down and written to the temporary folder; it then becomes a test
//! named after what it shows.

mod mutate;
mod readers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mutate::Random;
use readers::{Corpus, READERS, Reader};

/// Longest text given to a reader, bytes: that of the largest corpus files, doubled.
const MAX_BYTES: usize = 128 << 10;

/// Processor time that one case may take. Readers are linear and take under 50 ms on 128 KiB;
/// an unoptimised build is twenty times slower.
const CASE_SECONDS: f64 = if cfg!(debug_assertions) { 40.0 } else { 2.0 };

/// From here on the slowest case is written out, to be looked at.
const SLOW_SECONDS: f64 = CASE_SECONDS / 10.0;

/// What the process may grow by in one case, MiB: other tests of the process run beside this one.
const CASE_MIB: f64 = 1024.0;

/// What the process may have grown by after all cases of a reader, MiB.
const KEPT_MIB: f64 = 512.0;

/// What one reader went through.
#[derive(Debug, Default)]
struct Tally {
    cases: u64,
    wall_s: f64,
    accepted: u64,
    processor_s: f64,
    slowest_s: f64,
    /// The slowest case, where it was slow.
    slow_text: Option<String>,
    most_mib: f64,
    failures: Vec<String>,
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[test]
fn every_reader_answers_damaged_inputs_in_bounded_time_and_memory() -> anyhow::Result<()> {
    let seconds = setting("FUZZ_SECONDS").and_then(|s| s.parse().ok());
    let seed: u64 = setting("FUZZ_SEED")
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let only = setting("FUZZ_READER");
    let limit = Duration::from_secs_f64(seconds.unwrap_or(1.0));
    let mut failures = Vec::new();
    for reader in READERS {
        if only.as_deref().is_some_and(|only| only != reader.name) {
            continue;
        }
        let corpus = (reader.corpus)()?;
        let tally = run(reader, &corpus, seed, limit);
        println!(
            "{:9} {:9} cases in {:5.1} s ({:.1} s of a processor) from {} texts, {:.1} % read, \
             slowest {:.1} ms, most {:.0} MiB",
            reader.name,
            tally.cases,
            tally.wall_s,
            tally.processor_s,
            corpus.texts.len(),
            100.0 * tally.accepted as f64 / tally.cases.max(1) as f64,
            tally.slowest_s * 1e3,
            tally.most_mib,
        );
        if let Some(text) = &tally.slow_text {
            println!("{:9} slowest: {}", "", kept(reader.name, "slow", text));
        }
        failures.extend(tally.failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Damaged texts until the time is over or five failures were found.
fn run(reader: &Reader, corpus: &Corpus, seed: u64, limit: Duration) -> Tally {
    let mut random = Random::new(seed ^ reader.name.len() as u64);
    let mut tally = Tally::default();
    let kept_before = resident_mib();
    let start = Instant::now();
    // Undamaged first: a corpus that is not read shows a reader that is not called.
    for text in &corpus.texts {
        one(reader, text, &mut tally);
    }
    while start.elapsed() < limit && tally.failures.len() < 5 {
        let Some(text) = mutate::damaged(&corpus.texts, &mut random, MAX_BYTES) else {
            break;
        };
        one(reader, &text, &mut tally);
    }
    tally.wall_s = start.elapsed().as_secs_f64();
    let kept = resident_mib() - kept_before;
    if kept > KEPT_MIB {
        let name = reader.name;
        tally
            .failures
            .push(format!("{name}: the process kept {kept:.0} MiB"));
    }
    tally
}

/// One case, with its time and memory.
fn one(reader: &Reader, text: &str, tally: &mut Tally) {
    let (peak, start) = (peak_mib(), processor_seconds());
    let outcome = attempt(reader, text);
    let took_s = processor_seconds() - start;
    let grew_mib = peak_mib() - peak;
    tally.cases += 1;
    tally.processor_s += took_s;
    if took_s > tally.slowest_s {
        tally.slowest_s = took_s;
        tally.slow_text = (took_s > SLOW_SECONDS).then(|| text.to_string());
    }
    tally.most_mib = tally.most_mib.max(grew_mib);
    let what = match outcome {
        Err(what) => what,
        Ok(accepted) => {
            tally.accepted += u64::from(accepted);
            if took_s > CASE_SECONDS {
                format!("took {took_s:.1} s")
            } else if grew_mib > CASE_MIB {
                format!("took {grew_mib:.0} MiB")
            } else {
                return;
            }
        }
    };
    let least = if what.starts_with("took") {
        text.to_string()
    } else {
        least_text(text, |part| attempt(reader, part).is_err())
    };
    let written = kept(reader.name, &tally.cases.to_string(), &least);
    let shown: String = least.chars().take(400).collect();
    tally.failures.push(format!(
        "{}: {what}; {} bytes, {written}\n    {shown:?}",
        reader.name,
        least.len()
    ));
}

/// Writes a text into the temporary folder and says where.
fn kept(reader: &str, which: &str, text: &str) -> String {
    let place = std::env::temp_dir().join(format!("fuzz-{reader}-{which}.txt"));
    match std::fs::write(&place, text) {
        Ok(()) => place.display().to_string(),
        Err(error) => format!("not written: {error}"),
    }
}

/// Whether the text was read; a panic or a broken bound as text.
fn attempt(reader: &Reader, text: &str) -> Result<bool, String> {
    match catch_unwind(AssertUnwindSafe(|| (reader.read)(text))) {
        Ok(outcome) => outcome,
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap_or_else(|| "panicked".to_string())),
    }
}

/// The text with every part left out that the failure does not need.
fn least_text(text: &str, fails: impl Fn(&str) -> bool) -> String {
    let mut least: Vec<char> = text.chars().collect();
    let mut part = least.len() / 2;
    let (start, mut tries) = (Instant::now(), 0);
    while part > 0 && tries < 4000 && start.elapsed() < Duration::from_secs(60) {
        let mut at = 0;
        while at < least.len() {
            let end = (at + part).min(least.len());
            let without: String = least[..at].iter().chain(&least[end..]).collect();
            tries += 1;
            if fails(&without) {
                least = without.chars().collect();
            } else {
                at = end;
            }
        }
        part /= 2;
    }
    least.into_iter().collect()
}

/// Processor time of this thread, so that a busy machine makes no failure.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: Option<f64> = text.split(' ').next().and_then(|ns| ns.parse().ok());
    ns.unwrap_or(0.0) / 1e9
}

/// A field of `/proc/self/status` in MiB; 0 where there is no such file.
fn status_mib(field: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib: Option<f64> = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0.0) / 1024.0
}

fn peak_mib() -> f64 {
    status_mib("VmHWM:")
}

fn resident_mib() -> f64 {
    status_mib("VmRSS:")
}
