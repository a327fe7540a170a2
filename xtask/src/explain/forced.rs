//! Acceptance that a server was told to have, and weights that are of no model.

use super::facts::Facts;
use super::text::Doc;

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
}

/// Why an accept length of a server is none of its model's, in words.
pub(super) fn words(facts: &Facts) -> Option<String> {
    let found = ["accept_forced", "random_weights"].map(|name| facts.text(name));
    let found: Vec<&str> = found.into_iter().flatten().collect();
    (!found.is_empty()).then(|| found.join(", "))
}
