//! The memory ledger of a scenario, as the answer shows it.

use super::answer::Memory;
use crate::scenario::Scenario;

/// Plans the memory of one GPU.
pub(super) fn memory(_scenario: &Scenario) -> anyhow::Result<Memory> {
    Ok(Memory::default())
}
