//! Flags of a log's server that the paste keeps.

use super::graphs;
use crate::scenario::Scenario;

/// Adds what the log's server was told besides, where the line is of its engine and has no word of its
/// own on it.
pub(super) fn add(scenario: &Scenario, engine: &str, line: &mut Vec<String>) {
    if scenario.engine.kind.name() != engine {
        return;
    }
    let weights = scenario.quant_given.is_some();
    for flag in &scenario.ran.carried.flags {
        let Some(name) = flag.first() else {
            continue;
        };
        let graphs = name.starts_with(graphs::FIRST);
        let other = scenario.graphs.is_some() && graphs || weights && name == "--quantization";
        if other || line.contains(name) {
            continue;
        }
        let own = match graphs {
            true => graphs::flag(&scenario.engine).to_string(),
            false => name.clone(),
        };
        line.push(own);
        line.extend(flag.iter().skip(1).cloned());
    }
}

/// Variables that the pool of the log's server depends on.
pub(super) fn environment(scenario: &Scenario, engine: &str) -> Vec<String> {
    let own = scenario.engine.kind.name() == engine;
    let kept = scenario.ran.carried.env.iter().filter(|_| own);
    kept.cloned().collect()
}

/// Names of them in one line before the rest is counted.
const NAMED: usize = 8;

/// Says what the paste leaves out.
pub(super) fn left_out(scenario: &Scenario) -> Option<String> {
    let left = &scenario.ran.carried.left;
    let named = left.get(..NAMED.min(left.len())).unwrap_or(left);
    let more = match left.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!left.is_empty()).then(|| {
        format!(
            "the paste leaves out, of what {} was told: {}{more}",
            scenario.ran.file,
            named.join(", ")
        )
    })
}
