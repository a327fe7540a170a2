//! What a verify whose kernel does not split the cache adds to a cycle.

use super::{CycleCost, Pin};

/// Its time in a cycle, ms, and how far it may lie off, as shares of it.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::predict) struct WalkTime {
    pub(in crate::predict) ms: f64,
    pub(super) band: (f64, f64),
}

impl WalkTime {
    /// How much shorter and longer a cycle may be by it, ln. What an observed verify held of it is known.
    pub(super) fn doubt(self, cycle_ms: f64, seen_ms: f64) -> (f64, f64) {
        let open_ms = (self.ms - seen_ms).max(0.0);
        if open_ms <= 0.0 || cycle_ms <= 0.0 {
            return (0.0, 0.0);
        }
        let (low, high) = self.band;
        let shorter_ms = (cycle_ms - (1.0 - low) * open_ms).max(cycle_ms * low);
        let longer_ms = cycle_ms + (high - 1.0) * open_ms;
        ((cycle_ms / shorter_ms).ln(), (longer_ms / cycle_ms).ln())
    }
}

impl CycleCost {
    /// How much shorter and longer the cycle may be, ln, by what the walk takes.
    pub(in crate::predict) fn walk_doubt(&self, pin: Option<&Pin>) -> (f64, f64) {
        let seen_ms = pin.map_or(0.0, |pin| pin.walked_ms);
        self.walk.doubt(self.cycle_ms(), seen_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_in_doubt_both_ways_but_for_what_was_observed_of_it() {
        let walk = WalkTime {
            ms: 10.0,
            band: (0.6, 1.6),
        };
        let (shorter, longer) = walk.doubt(30.0, 0.0);
        assert!((shorter - (30.0_f64 / 26.0).ln()).abs() < 1e-9);
        assert!((longer - (36.0_f64 / 30.0).ln()).abs() < 1e-9);
        assert_eq!(walk.doubt(30.0, 10.0), (0.0, 0.0));
        assert_eq!(WalkTime::default().doubt(30.0, 0.0), (0.0, 0.0));
    }
}
