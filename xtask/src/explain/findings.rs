//! What is wrong, why, and what to change: facts checked against the models, in order of weight.

mod alike;
mod all_reduce;
mod errors;
mod failed;
mod hosts;
mod links;
mod load;
mod memory;
mod pool;
mod speculation;
mod warnings;

use serde::Serialize;

pub(super) use failed::BEFORE_POOL;
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
/// checks stands: memory, hosts, speculation, links.
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
        errors::check(facts, &mut found);
        memory::check(&joined, &mut found);
        hosts::check(facts, &mut found);
        speculation::check(facts, &mut found);
        load::check(facts, &mut found);
        warnings::check(facts, &mut found);
        links::check(facts, &mut found);
        all_reduce::check(facts, &mut found);
    }
    speculation::pools(files, &mut found);
    all_reduce::told_off(files, &mut found);
    alike::check(files, &mut found);
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

/// `a, b or c`, of what there is.
fn any_of(choices: &[Option<String>]) -> String {
    let choices: Vec<&str> = choices.iter().flatten().map(String::as_str).collect();
    match choices.split_last() {
        Some((last, [])) => (*last).to_string(),
        Some((last, rest)) => format!("{}, or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// A smaller KV format, where the cache has not one already.
fn fp8_cache(facts: &Facts) -> Option<String> {
    let small = facts.text("kv_dtype").is_some_and(|dtype| {
        let dtype = dtype.to_ascii_lowercase();
        !["auto", "bf16", "bfloat16", "f16", "float16", "half"]
            .iter()
            .any(|sixteen_bits| dtype.ends_with(sixteen_bits))
    });
    (!small).then(|| "fp8 KV".to_string())
}

/// Whether the server drafted.
pub(crate) fn drafts(facts: &Facts) -> bool {
    let signs = ["spec_algorithm", "draft_model", "accept_length"];
    signs.iter().any(|sign| facts.get(sign).is_some())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::facts_from_text;

    #[test]
    fn advice_names_nothing_that_the_server_already_has_or_never_had() {
        let log = |settings: &str| {
            format!(
                "INFO 05-14 10:00:00 [utils.py:233] non-default args: {{'model': 'a/b', \
                 'max_model_len': 40960, 'gpu_memory_utilization': 0.9{settings}}}\n\
                 INFO 05-14 10:00:50 [gpu_worker.py:298] Available KV cache memory: 8.00 GiB\n\
                 INFO 05-14 10:00:50 [kv_cache_utils.py:1087] GPU KV cache size: 90,000 tokens\n\
                 INFO 05-14 10:00:50 [kv_cache_utils.py:1091] Maximum concurrency for 40,960 tokens \
                 per request: 2.20x\n"
            )
        };
        let advice = |settings: &str| {
            let found = find(&[facts_from_text(&log(settings), "f")]);
            let few = found
                .iter()
                .find(|f| f.what.contains("requests of full length"));
            few.map(|f| f.mend.clone()).unwrap_or_default()
        };
        assert_eq!(
            advice(""),
            "for more at a time: fp8 KV, or a shorter context"
        );
        assert_eq!(
            advice(", 'kv_cache_dtype': 'fp8_e4m3'"),
            "for more at a time: a shorter context"
        );
        let drafts = ", 'tensor_parallel_size': 2, 'speculative_config': {'method': 'mtp', \
            'num_speculative_tokens': 2}";
        assert_eq!(
            advice(drafts),
            "for more at a time: fp8 KV, a shorter context, or no draft"
        );
    }
}
