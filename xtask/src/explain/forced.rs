//! Acceptance that a server was told to have, and weights that are of no model.

use super::facts::Facts;
use super::text::{Doc, leading_number};

/// Lines of one accept length to two decimals from which it is none of real prompts: of the hundreds of
/// passes behind a line it scatters in the second.
const SAME_LINES: usize = 10;

/// A setting, the value that counts, the fact it makes and in which words.
const SIGNS: [(&str, &str, &str, &str); 4] = [
    (
        "rejection_sample_method",
        "synthetic",
        "accept_forced",
        "synthetic acceptance",
    ),
    // SGLang's SGLANG_SIMULATE_ACC_LEN.
    (
        "SIMULATE_ACC_LEN=",
        "",
        "accept_forced",
        "a simulated accept length",
    ),
    (
        "load_format",
        "dummy",
        "random_weights",
        "random weights (load_format dummy)",
    ),
    (
        "load-format",
        "dummy",
        "random_weights",
        "random weights (load_format dummy)",
    ),
];

/// Reads them from the start that the facts are of.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    if facts.text("engine").is_none() {
        return;
    }
    for (setting, value, fact, words) in SIGNS {
        let mut places = doc.after_all(setting).map(|at| (at, doc.line_at(at)));
        let told = places.find(|(at, line)| {
            let given = doc.window(*at, 40);
            // -1: off.
            let off = given.starts_with('-');
            let given = given.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
            // A list of all arguments names those that nobody gave too.
            !off && *line >= facts.run_line
                && given.starts_with(value)
                && !given.starts_with("None")
        });
        if let Some((_, line)) = told {
            facts.set_if_absent(fact, words, line);
        }
    }
    if let Some((words, line)) = constant(doc, facts) {
        facts.set_if_absent("accept_forced", words, line);
    }
}

/// An accept length that no load moves was set: in words, and its last line. Not one at either end, where
/// nothing or all is accepted.
fn constant(doc: &Doc, facts: &Facts) -> Option<(String, usize)> {
    let loads = facts.speeds.len();
    let said = ["accept len:", "Mean acceptance length:"]
        .into_iter()
        .map(|key| lengths(doc, key, facts.run_line))
        .find(|lines| lines.len() >= SAME_LINES)?;
    let (length, line) = *said.last()?;
    let drafted = ["spec_steps", "spec_tokens"]
        .into_iter()
        .find_map(|name| facts.number(name));
    let all = drafted.map_or(f64::MAX, |drafted| drafted + 1.0);
    let same = said.iter().all(|(other, _)| *other == length);
    (loads > 1 && same && length > 1.0 && length < all).then(|| {
        let lines = said.len();
        (
            format!("the same in all {lines} lines over {loads} loads"),
            line,
        )
    })
}

/// What stands behind a key, with its line, from a line on.
fn lengths(doc: &Doc, key: &str, from: usize) -> Vec<(f64, usize)> {
    let places = doc.after_all(key).map(|at| (at, doc.line_at(at)));
    let own = places.filter(|(_, line)| *line >= from);
    own.filter_map(|(at, line)| {
        let (length, _) = leading_number(doc.window(at, 20))?;
        Some((length, line))
    })
    .collect()
}

/// Why an accept length of a server is none of its model's, in words.
pub(super) fn words(facts: &Facts) -> Option<String> {
    let found = ["accept_forced", "random_weights"].map(|name| facts.text(name));
    let found: Vec<&str> = found.into_iter().flatten().collect();
    (!found.is_empty()).then(|| found.join(", "))
}
