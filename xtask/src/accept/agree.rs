//! Whether the readings given can be of one pair of draft and target.

use spec_decode::acceptance::warnings::{Severity, Warning};
use spec_decode::{AcceptanceBand, Posterior};

use super::figures::Figure;

/// Readings further than this from what they give together, as a share of the drafts accepted,
/// are of different loads: task, context and a thousand cycles move a reading by less.
const APART: f64 = 0.2;

/// Readings that contradict each other.
pub(super) struct Dispute {
    pub(super) warning: Warning,
    /// Drafts accepted in the lowest and highest reading, as shares of what all give together.
    low: f64,
    high: f64,
}

impl Dispute {
    /// A band that holds every reading.
    pub(super) fn widen(&self, band: &AcceptanceBand) -> AcceptanceBand {
        let most = f64::from(band.depth) + 1.0;
        AcceptanceBand {
            depth: band.depth,
            low: band.low.min(1.0 + (band.mid - 1.0) * self.low),
            mid: band.mid,
            high: band
                .high
                .max((1.0 + (band.mid - 1.0) * self.high).min(most)),
        }
    }
}

/// Compares each reading with what all of them give at its depth.
pub(super) fn dispute(figures: &[Figure], posterior: &Posterior) -> Option<Dispute> {
    let mut shares = Vec::new();
    for figure in figures {
        let (length, depth) = (figure.observed.accept_length?, figure.observed.depth?);
        let together = posterior.band(depth, 0.9).mid;
        shares.push((length - 1.0) / (together - 1.0).max(1e-6));
    }
    let low = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let high = shares.iter().copied().fold(0.0, f64::max);
    if figures.len() < 2 || (low >= 1.0 - APART && high <= 1.0 + APART) {
        return None;
    }
    let shown: Vec<&str> = figures.iter().map(|f| f.shown.as_str()).collect();
    Some(Dispute {
        warning: Warning {
            severity: Severity::Warning,
            kind: "readings-disagree",
            what: format!("{} contradict each other", shown.join(" and ")),
            why: "one pair of draft and target does not give both; the bands are widened to hold them",
            mend: "measure again with one task, temperature and context, or give them apart",
        },
        low,
        high,
    })
}
