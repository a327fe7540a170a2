//! What reached each depth, by the mean accept lengths that stand beside it.

use super::{COVERAGE, Report};

impl Report {
    /// Share of the cycles that accept the draft's token at a depth, by the mean accept lengths: each
    /// is one and the shares up to its depth. At depth 0 there is the root, always.
    pub(super) fn reached(&self, depth: u32) -> f64 {
        let length = |depth: u32| match depth {
            0 => 1.0,
            _ => self.posterior.band(depth, COVERAGE).mid,
        };
        match depth {
            0 => 1.0,
            _ => (length(depth) - length(depth - 1)).clamp(0.0, 1.0),
        }
    }

    /// The same of those cycles that accepted the token before.
    pub(super) fn alpha(&self, depth: u32) -> f64 {
        let before = self.reached(depth.saturating_sub(1));
        if before > 0.0 {
            (self.reached(depth) / before).min(1.0)
        } else {
            0.0
        }
    }
}
