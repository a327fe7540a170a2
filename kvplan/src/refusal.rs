//! Why an engine does not start, and how much is missing.

use crate::setup::Plan;

/// Why an engine does not start.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// GiB that the fraction it has leaves too little.
    pub short_gib: f64,
    /// GiB that the card, given as a whole, has less than is needed before any KV token; 0 where it has
    /// them.
    pub card_short_gib: f64,
    /// What the engine of this version prints.
    pub engine_says: String,
    /// What to do, cheapest first.
    pub remedy: String,
}

/// What helps where the weights fill a card, in general; callers that know cards and formats put those
/// that fit in its place.
pub const MORE_ROOM: &str = "more GPUs, or a smaller weight format";

/// Least that counts as missing, GiB: figures are printed with two digits.
const MISSING_GIB: f64 = 0.005;

/// Says of a card too small for what it must hold beside any pool what it lacks: the figure that the
/// ledger ends with. What the fraction lacks is another, and stays.
pub(crate) fn short_card(plan: &mut Plan) {
    let missing = plan.ledger.lines.last().map_or(0.0, |line| -line.gib);
    if let Some(refusal) = &mut plan.refusal
        && plan.pool_gib <= 0.0
        && missing > MISSING_GIB
    {
        refusal.card_short_gib = missing;
    }
}
