//! What is wrong, why, and what to change: facts checked against the models, in order of weight.

mod all_reduce;
mod links;
mod load;
mod memory;
mod pool;
mod speculation;
mod warnings;

use serde::Serialize;

pub(crate) use pool::fraction_in_use;

use super::facts::Facts;

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It cannot run this way, or its figures mean something else than they seem to.
    Broken,
    /// It runs and costs speed, memory or context.
    Costly,
    /// Worth knowing.
    Note,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// How much it weighs.
    pub(crate) severity: Severity,
    /// What is the case.
    pub(crate) what: String,
    /// By which figures.
    pub(crate) why: String,
    /// What to change; what to measure where that is not known.
    #[serde(rename = "do")]
    pub(crate) mend: String,
    /// `file:line` of the fact that shows it.
    #[serde(rename = "where")]
    pub(crate) place: String,
}

impl Finding {
    /// A finding about the fact `name`.
    fn new(
        severity: Severity,
        facts: &Facts,
        name: &str,
        what: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        let place = match facts.get(name) {
            Some(fact) => format!("{}:{}", fact.file, fact.line),
            None => format!("{}:1", facts.file),
        };
        Self {
            severity,
            what: what.into(),
            why: why.into(),
            mend: mend.into(),
            place,
        }
    }
}

/// All findings over the files given, the heaviest first. Within one weight the order of the
/// checks stands: memory, speculation, links.
pub(crate) fn find(files: &[Facts]) -> Vec<Finding> {
    let mut found = Vec::new();
    // A fraction in one file (a script, a note) and the figures of a start in another.
    let flag = files
        .iter()
        .filter(|facts| facts.get("free_after_gib").is_none())
        .find_map(|facts| facts.get("mem_fraction"));
    for facts in files {
        let mut joined = facts.clone();
        if let (Some(flag), Some(_), None) =
            (flag, facts.get("free_after_gib"), facts.get("mem_fraction"))
        {
            joined.adopt(flag.clone());
        }
        memory::check(&joined, &mut found);
        speculation::check(facts, &mut found);
        load::check(facts, &mut found);
        warnings::check(facts, &mut found);
        links::check(facts, &mut found);
        all_reduce::check(facts, &mut found);
    }
    found.sort_by_key(|finding| finding.severity);
    found
}

/// Two decimals, without an empty tail.
fn show(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_string()
    } else {
        text.to_string()
    }
}

/// A count with thousands separators.
fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

/// Facts that follow from others by the models: the fraction in use, the least viable one.
pub(crate) fn derive(facts: &mut Facts) {
    if let Some((fraction, slack)) = fraction_in_use(facts) {
        let line = facts
            .get("kv_gib")
            .or_else(|| facts.get("kv_budget_gib"))
            .map_or(1, |f| f.line);
        let rounded = (fraction * 1e4).round() / 1e4;
        let how = format!("1 - (free after - KV) / free before, +- {slack:.4}");
        facts.derive("mem_fraction_in_use", rounded, line, how);
    }
}
