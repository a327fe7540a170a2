//! The fraction of the card that a log's server ran with.

use super::facts::Facts;

/// As the log proves or says it, else as its engine takes it; and the line.
pub(super) fn told(facts: &Facts) -> Option<(f64, usize)> {
    let number = |name: &str| Some((facts.number(name)?, facts.get(name)?.line));
    fraction(number("mem_fraction_in_use"), number("mem_fraction"))
        .or(number("gpu_memory_utilization").or(number("kv_fraction_of_free")))
        .or_else(|| default_utilisation(facts))
}

/// vLLM's share of the card where its printed arguments name neither that nor a size of the pool.
fn default_utilisation(facts: &Facts) -> Option<(f64, usize)> {
    let sized = |flag: &Vec<String>| flag.iter().any(|word| word == "--kv-cache-memory-bytes");
    let given = &facts.carried;
    let version = facts.get("engine_version")?;
    let found = kvplan::Version::find(facts.text("engine_version")?)?;
    (given.whole && !given.flags.iter().any(sized))
        .then_some((kvplan::default_utilisation(found), version.line))
}

/// The fraction to take: printed figures are rounded, so what they prove differs from the flag in
/// the fourth digit, which says nothing against it.
fn fraction(proven: Option<(f64, usize)>, flag: Option<(f64, usize)>) -> Option<(f64, usize)> {
    match (proven, flag) {
        (Some(proven), Some(flag)) if (proven.0 - flag.0).abs() < 0.001 => Some(flag),
        _ => proven.or(flag),
    }
}
