//! What two releases of an engine make of the same server.

use super::setup;
use crate::scenario::Scenario;

/// What of a plain server's memory the rules of two releases give alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SameRules {
    /// The pool.
    pub(crate) pool: bool,
    /// What its graphs take.
    pub(crate) graphs: bool,
}

impl SameRules {
    /// By the rules alone: of the release that is asked for and another one, with nothing that was seen.
    pub(crate) fn of(scenario: &Scenario, release: &str) -> Self {
        let mut plain = scenario.clone();
        plain.draft = None;
        plain.ran = std::mem::take(&mut plain.ran).flags_alone();
        let before = by_rules(&plain);
        plain.engine.version = Some(release.to_string());
        let pair = before.zip(by_rules(&plain));
        pair.map_or_else(Self::default, |(before, after)| Self {
            pool: before.0 == after.0,
            graphs: before.1 == after.1,
        })
    }
}

/// Tokens of the pool and GiB of the graphs.
fn by_rules(scenario: &Scenario) -> Option<(u64, f64)> {
    let setup = setup(scenario, None).ok()?;
    let plan = kvplan::plan(&setup.plain()).ok()?;
    let graphs = plan.ledger.lines.iter();
    let graphs = graphs.filter(|line| line.item.contains("graphs"));
    Some((plan.kv_tokens, graphs.map(|line| line.gib).sum()))
}
