//! The accept length that the next command takes.

use super::{LogScenario, Words, short, word};
use crate::explain::facts::Facts;

/// The accept length of the log, or of a speculative bench.
pub(super) fn accept(
    line: &mut Words,
    said: &LogScenario,
    own: Option<&LogScenario>,
    depth: Option<u32>,
    files: &[Facts],
) {
    let kept = own.is_some_and(|own| {
        let same = own.accept_length.is_some() && own.accept_length == said.accept_length;
        same && own.steps.is_some_and(|(steps, _)| Some(steps) == depth)
    });
    let benches = benches(files).map(|names| names.join(","));
    if kept && benches.is_none() {
        return;
    }
    if let (Some((length, _)), Some(why)) = (said.accept_length, &said.accept_forced) {
        let left_out = format!("the accept length {}: {why}, not measured", short(length));
        line.left_out.push(left_out);
        return;
    }
    if let Some(benches) = benches {
        let said = depth.or(own.and_then(|own| own.steps.map(|(steps, _)| steps)));
        match said {
            Some(_) => line.push("--accept", Some(benches)),
            None => line.gap(
                "--accept",
                &word(&format!("{benches}@STEPS")),
                "the draft steps of that run for STEPS".to_string(),
            ),
        }
        return;
    }
    let by_log = said.accept_length.map(|(length, _)| length);
    let by_bench = files.iter().find_map(|f| f.number("bench_accept_length"));
    let Some(length) = by_log.or(by_bench).filter(|length| *length >= 1.0) else {
        return;
    };
    // A log that says more than the mean is given whole.
    let whole = said.accept_rates.clone().filter(|_| by_log.is_some());
    let whole = whole.filter(|file| file != crate::explain::STANDARD_INPUT);
    match depth {
        Some(depth) if length <= f64::from(depth) + 1.0 && whole.is_some() => {
            line.push("--accept", whole);
        }
        Some(depth) if length <= f64::from(depth) + 1.0 => {
            line.push("--accept", Some(format!("{}@{depth}", short(length))));
        }
        Some(depth) => line.left_out.push(format!(
            "the accept length {}: {depth} steps cannot give it",
            short(length)
        )),
        None => line.gap(
            "--accept",
            &format!("{}@STEPS", short(length)),
            "the draft steps of that run for STEPS".to_string(),
        ),
    }
}

/// Benches that drafted, at loads that they say, where `--accept` takes them whole: they say how fast that
/// was too, which is of use beside plain ones, and several are pooled where no log says the length.
pub(super) fn benches(files: &[Facts]) -> Option<Vec<&str>> {
    let log = |facts: &&Facts| facts.get("engine").is_some();
    let benches = files
        .iter()
        .filter(|facts| !log(facts) && !facts.drafted_bench().is_empty());
    let names: Vec<&str> = benches.map(|facts| facts.file.as_str()).collect();
    let swept = files.iter().any(|facts| facts.sweep.is_some());
    let mut logs = files.iter().filter(log);
    let of_log = logs.any(|facts| facts.get("accept_length").is_some());
    let whole = !names.is_empty() && (swept || (names.len() > 1 && !of_log));
    let plain = |name: &&str| !name.contains([',', '@']) && *name != crate::explain::STANDARD_INPUT;
    (whole && names.iter().all(plain)).then_some(names)
}
