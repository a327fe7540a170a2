//! Rows of `--compare` are of one kind, all with steps measured or all with computed ones: from one of
//! the other kind each is as far off as the model is.

use crate::scenario::Scenario;

/// What a row is reckoned from.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) other: Scenario,
    /// Whether the name is of another box than the answer's.
    pub(super) other_box: bool,
    /// What was measured on the answer's box and is not this one's.
    pub(super) not_its: Option<String>,
}

/// Where some rows have measured steps and some have none, takes them from all; what is left out.
pub(super) fn level(rows: &mut [Row<'_>], own: &str) -> Vec<String> {
    let timed = rows.iter().map(|row| measured(&row.other));
    let timed = timed.max_by_key(Vec::len).unwrap_or_default();
    let bare = rows.iter().find(|row| measured(&row.other).is_empty());
    let Some(bare) = bare.map(|row| row.name).filter(|_| !timed.is_empty()) else {
        return rows.iter().filter_map(|row| row.not_its.clone()).collect();
    };
    for row in rows.iter_mut() {
        compute(&mut row.other);
    }
    vec![format!(
        "{}: of {own}, not of {bare}; so that rows compare, all are computed (the answer above keeps it)",
        timed.join(" and ")
    )]
}

/// What steps were measured as.
fn measured(scenario: &Scenario) -> Vec<&'static str> {
    let found = [
        (scenario.baseline.is_some(), "the plain sweep"),
        (scenario.allreduce_table.is_some(), "the all-reduce table"),
        (scenario.served.is_some(), "the steps saved with the box"),
        (scenario.observed.verify_ms.is_some(), "the observed verify"),
    ];
    let found = found.into_iter();
    found
        .filter_map(|(has, what)| has.then_some(what))
        .collect()
}

/// Leaves the memory that was observed.
fn compute(scenario: &mut Scenario) {
    scenario.baseline = None;
    scenario.swept = Vec::new();
    scenario.sweep_context = None;
    scenario.allreduce_table = None;
    scenario.served = None;
    scenario.observed.verify_ms = None;
    scenario.observed.plain_tok_s = None;
    scenario.observed.spec_tok_s = None;
    scenario.observed.public = None;
}
