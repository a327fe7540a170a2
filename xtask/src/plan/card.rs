//! Whether what a log shows of memory can be of the card that is asked about.

use crate::scenario::Scenario;

/// Free before the weights, of the card: above it the card is another one, not the same with ECC off.
const MOST_FREE: f64 = 1.08;

/// Below it as well: seldom does another program hold so much beside a server.
const LEAST_FREE: f64 = 0.6;

/// What estimates have too much at most, of the card: beyond it no server ran with these lines.
const ESTIMATES_OFF: f64 = 0.1;

/// Why the server of the scenario's log did not run on the scenario's card; `None` where it may have.
pub(crate) fn not_of_this_card(scenario: &Scenario) -> Option<String> {
    let ran = &scenario.ran;
    if ran.file.is_empty() {
        return None;
    }
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
    (over > ESTIMATES_OFF * card).then(|| {
        format!("its pool and the weights take {over:.1} GiB more than {name} has, {card:.1}")
    })
}
