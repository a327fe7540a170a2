//! Whether what a log shows of memory can be of the card that is asked about.

use kvplan::Setup;

use crate::scenario::{EngineKind, Scenario};

/// Free before the weights, of the card: above it the card is another one, not the same with ECC off.
const MOST_FREE: f64 = 1.08;

/// Below it as well: seldom does another program hold so much beside a server.
const LEAST_FREE: f64 = 0.6;

/// What estimates have too much at most, of the card: beyond it no server ran with these lines.
const ESTIMATES_OFF: f64 = 0.1;

/// What a pool falls short of that of its own flags at most, of the card: pools are known to a few
/// hundredths, the profile run of a vision model takes a tenth more than is reckoned.
const POOL_SHORT: f64 = 0.25;

/// Cards of one name that differ by less are one: speeds of two editions.
const SAME_CARD: f64 = 0.02;

/// Flags of a pool that no card decides.
const OWN_POOL: [&str; 3] = [
    "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override",
    "--max-total-tokens",
];

/// Why the server of the scenario's log did not run on the scenario's card; `None` where it may have.
pub(crate) fn not_of_this_card(scenario: &Scenario) -> Option<String> {
    if scenario.ran.file.is_empty() {
        return None;
    }
    named_otherwise(scenario).or_else(|| of_other_memory(scenario))
}

/// The log names another card.
fn named_otherwise(scenario: &Scenario) -> Option<String> {
    let (said, at) = scenario.ran.card.as_ref()?;
    let (own, asked) = (crate::gpus::find(said).ok()?, scenario.gpu);
    let near = |a: f64, b: f64| (a - b).abs() <= SAME_CARD * b;
    let same =
        near(own.memory_gib, asked.memory_gib) && near(own.bandwidth_gb_s, asked.bandwidth_gb_s);
    (!same).then(|| format!("it ran on {said} ({at}), this answer is of {}", asked.name))
}

fn of_other_memory(scenario: &Scenario) -> Option<String> {
    let ran = &scenario.ran;
    let setup = super::setup(scenario, None).ok()?;
    let card = setup.card_gib;
    let name = &scenario.gpu.name;
    let has = format!(
        "{} has {card:.1}",
        if name.is_empty() { "this one" } else { name }
    );
    if let Some(free) = ran.free_before_gib {
        // Of unified memory the system holds its share.
        let little = free < LEAST_FREE * card && !setup.unified_memory;
        if free > MOST_FREE * card || little {
            return Some(format!("{free:.1} GiB were free before the weights, {has}"));
        }
    }
    let plan = kvplan::plan(&setup).ok()?;
    let over = plan.ledger.over_the_card_gib();
    if over > ESTIMATES_OFF * card {
        return Some(format!(
            "its pool and the weights take {over:.1} GiB more than {name} has, {card:.1}"
        ));
    }
    let (seen, reckoned) = pools(scenario, setup)?;
    (reckoned - seen > POOL_SHORT * card).then(|| {
        format!("its pool is {seen:.1} GiB, its flags give one of {reckoned:.1} on {name}")
    })
}

/// The pool that the log shows and the one that its flags give on this card, GiB, where nothing else
/// says how much of the card was free.
fn pools(scenario: &Scenario, setup: Setup<'_>) -> Option<(f64, f64)> {
    let ran = &scenario.ran;
    let engine = scenario.engine.kind;
    let by_card = matches!(engine, EngineKind::Sglang | EngineKind::Vllm) && !setup.unified_memory;
    let words = || ran.carried.flags.iter().filter_map(|flag| flag.first());
    let told = words().any(|word| OWN_POOL.contains(&word.as_str()));
    if !by_card || told || ran.free_before_gib.is_some() {
        return None;
    }
    let mut bare = setup;
    bare.observed = kvplan::Observed::default();
    Some((ran.kv_gib?, kvplan::plan(&bare).ok()?.pool_gib))
}
