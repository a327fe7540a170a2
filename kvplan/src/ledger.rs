//! The ledger: every GiB of a card has a line, a source and, where estimated, a band; the lines
//! add up to the card.

use crate::proven::Off;

/// One line of a ledger, GiB on one card.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it is.
    pub item: String,
    /// Best figure, GiB; negative for the closing line of a plan that does not fit, for what is given back
    /// and for what others have too much.
    pub gib: f64,
    /// Low end of the band, GiB; equal to `gib` where the figure is exact.
    pub low: f64,
    /// High end of the band, GiB.
    pub high: f64,
    /// Where the figure comes from.
    pub source: String,
    /// Whether it is estimated rather than computed from known quantities.
    pub estimated: bool,
    /// Whether it exists only because of speculation.
    pub speculation: bool,
}

/// What a line takes more beside a draft than without one, GiB.
#[derive(Debug, Clone, PartialEq)]
pub struct CostRow {
    /// The line's item.
    pub item: String,
    /// More, or (negative) less.
    pub gib: f64,
    /// Whether the line exists for the draft alone.
    pub of_draft: bool,
}

/// Lines that add up to `total_gib`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// The lines; the last closes the sum.
    pub lines: Vec<Line>,
    /// Capacity of the card, GiB.
    pub total_gib: f64,
    /// The draft's vocabulary tables that are let go once the target's serve it, GiB: loaded, and in no line.
    pub freed_gib: f64,
    /// Keeps no lines: for sums that are asked for many times.
    unwritten: bool,
}

/// The line that was added, if any was.
pub(crate) struct Added<'a>(Option<&'a mut Line>);

impl Added<'_> {
    /// Marks it as the cost of speculation.
    pub(crate) fn of_speculation(self) {
        if let Some(line) = self.0 {
            line.speculation = true;
        }
    }
}

/// The line of what the others have too much beside a server that ran.
const OVER: &str = "estimates above what the server took";
/// The line of weights that were loaded beyond the tensors and what an engine adds to them.
pub(crate) const WEIGHTS_OFF: &str = "weights: observed less computed";
/// The line of what the pool that was seen falls short of that of its flags.
const UNEXPLAINED: &str = "taken by what the log does not show";
/// The line of what the others have too little beside a server that ran out.
const UNDER: &str = "estimates below what the server took";
/// What the others leave of the card, and what it lacks for them.
const FREE: &str = "free";
const MISSING: &str = "missing (negative)";
/// Graphs that a log does not tell apart.
pub(crate) const GRAPHS_OF_BOTH: &str = "graphs of target and draft";
/// The target's alone.
pub(crate) const GRAPHS_OF_TARGET: &str = "target: graphs";
/// Lines that are no cost of a draft where they differ: what the cost is counted in, what is left, and by
/// what estimates are off beside a server that was seen.
const NO_COST: [&str; 7] = [
    "target: KV pool",
    "KV cache",
    FREE,
    MISSING,
    OVER,
    UNDER,
    UNEXPLAINED,
];

impl Ledger {
    /// An empty ledger of a card.
    pub(crate) fn new(total_gib: f64) -> Self {
        Self {
            lines: Vec::with_capacity(16),
            total_gib,
            freed_gib: 0.0,
            unwritten: false,
        }
    }

    /// One that keeps no lines, for those who want the sums of what they would write alone.
    pub(crate) fn unwritten() -> Self {
        Self {
            unwritten: true,
            ..Self::default()
        }
    }

    /// Adds an exact line; nothing where it is zero.
    pub(crate) fn exact(&mut self, item: &str, gib: f64, source: &str) -> Added<'_> {
        self.put(item, gib, 0.0, source, false)
    }

    /// Adds an estimated line with a band of `1 ± spread`.
    pub(crate) fn estimate(
        &mut self,
        item: &str,
        gib: f64,
        spread: f64,
        source: &str,
    ) -> Added<'_> {
        self.put(item, gib, spread, source, true)
    }

    fn put(
        &mut self,
        item: &str,
        gib: f64,
        spread: f64,
        source: &str,
        estimated: bool,
    ) -> Added<'_> {
        let adds = gib != 0.0 && gib.is_finite() && !self.unwritten;
        if adds {
            self.lines.push(Line {
                item: item.to_string(),
                gib,
                low: gib * (1.0 - spread),
                high: gib * (1.0 + spread),
                source: source.to_string(),
                estimated,
                speculation: false,
            });
        }
        Added(self.lines.last_mut().filter(|_| adds))
    }

    /// How far all lines may lie from their best figures together, GiB.
    pub(crate) fn spread(&self) -> f64 {
        self.lines.iter().map(|line| line.high - line.gib).sum()
    }

    /// Adds the closing line, so that the lines add up to the card: what stays free, or (negative)
    /// what is missing, as far as the others may be off. Where a fraction sizes the pool, the pool makes
    /// up for what lies inside that share, so only what lies outside moves what stays free: the band of
    /// the wall.
    pub(crate) fn close(&mut self, off: Off) {
        let (item, ran) = match off.middle > 0.0 {
            true => (
                UNDER,
                "a server that was seen ran out, so the lines above are too low by about this much",
            ),
            false => (
                OVER,
                "a server that was seen stayed up, so the lines above are too high by about this much",
            ),
        };
        self.exact(item, off.middle, ran);
        let gib = self.total_gib - self.sum();
        // Sums that come out at nothing are not to be printed as -0.00.
        let end = |gib: f64| if gib.abs() < 1e-6 { 0.0 } else { gib };
        // A pool that gets nothing of its share may leave the card half empty: the sign says which.
        let item = if gib < 0.0 { MISSING } else { FREE };
        self.lines.push(Line {
            item: item.to_string(),
            gib,
            low: end(gib - (off.high - off.middle)),
            high: end(gib + (off.middle - off.low)),
            source: "what the other lines leave of the card".to_string(),
            estimated: off.high > off.low,
            speculation: false,
        });
    }

    /// What is missing of the card of a server that ran is what the estimates have too much.
    pub(crate) fn not_missing(&mut self) {
        let Some(last) = self.lines.last_mut().filter(|line| line.gib < 0.0) else {
            return;
        };
        let gib = std::mem::take(&mut last.gib);
        (last.low, last.item) = (0.0, FREE.to_string());
        let at = self.lines.len().saturating_sub(1);
        self.lines.insert(
            at,
            Line {
                item: OVER.to_string(),
                gib,
                low: gib,
                high: gib,
                source: "it ran, so the lines above are too high by this much".to_string(),
                estimated: false,
                speculation: false,
            },
        );
    }

    /// Adds what the estimates have too much (negative) beside a pool that was seen, GiB.
    pub(crate) fn over(&mut self, gib: f64) {
        self.exact(OVER, gib, "the pool that was seen is larger by this much");
    }

    /// Adds what a pool that was seen is smaller than its flags give, GiB, where that is more than all
    /// estimates may be off together.
    pub(crate) fn unexplained(&mut self, gib: f64, off: f64) {
        let spread = off / gib.max(f64::MIN_POSITIVE);
        self.estimate(
            UNEXPLAINED,
            gib,
            spread,
            "the pool that was seen is smaller by this much",
        );
    }

    /// That line, where there is one.
    pub fn unexplained_line(&self) -> Option<&Line> {
        self.lines.iter().find(|line| line.item == UNEXPLAINED)
    }

    /// The line of weights that neither the tensors nor what an engine adds explain.
    pub fn weights_off_line(&self) -> Option<&Line> {
        self.lines.iter().find(|line| line.item == WEIGHTS_OFF)
    }

    /// What is loaded for the draft, its own vocabulary tables included, GiB.
    pub fn draft_loaded_gib(&self) -> f64 {
        let held = ["draft: weights", "draft: its own vocabulary tables"];
        held.map(|item| self.gib_of(item)).iter().sum::<f64>() + self.freed_gib
    }

    /// What the lines of a server that ran take more than the card has, GiB; 0 where they fit.
    pub fn over_the_card_gib(&self) -> f64 {
        -self.gib_of(OVER)
    }

    /// Sum of all lines, GiB.
    pub fn sum(&self) -> f64 {
        self.lines.iter().map(|line| line.gib).sum()
    }

    /// GiB of the lines that exist only because of speculation.
    pub fn speculation_gib(&self) -> f64 {
        let lines = self.lines.iter().filter(|line| line.speculation);
        lines.map(|line| line.gib).fold(0.0, |sum, gib| sum + gib)
    }

    /// What the lines take more than those of the same server without its draft, the pool left out: with what the
    /// pool loses that is what a draft costs of the card. Graphs that a log counts with the target's are in
    /// none.
    pub fn more_than(&self, plain: &Self) -> Vec<CostRow> {
        let together = self.lines.iter().any(|line| line.item == GRAPHS_OF_BOTH);
        let counts = |line: &&Line| {
            let item = line.item.as_str();
            let graphs = [GRAPHS_OF_BOTH, GRAPHS_OF_TARGET].contains(&item);
            let left_out = NO_COST.contains(&item) || together && graphs;
            !left_out
        };
        let own = self.lines.iter().filter(counts);
        let mut rows: Vec<CostRow> = own
            .map(|line| CostRow {
                item: line.item.clone(),
                gib: line.gib,
                of_draft: line.speculation,
            })
            .collect();
        for line in plain.lines.iter().filter(counts) {
            match rows.iter_mut().find(|row| row.item == line.item) {
                Some(row) => row.gib -= line.gib,
                None => rows.push(CostRow {
                    item: line.item.clone(),
                    gib: -line.gib,
                    of_draft: false,
                }),
            }
        }
        rows
    }

    /// GiB of the lines whose item begins with `prefix`.
    pub fn gib_of(&self, prefix: &str) -> f64 {
        let lines = self
            .lines
            .iter()
            .filter(|line| line.item.starts_with(prefix));
        lines.map(|line| line.gib).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Look-up drafts have no graphs and no pool: the line before them became their cost.
    #[test]
    fn a_line_that_is_not_there_leaves_its_neighbour_alone() {
        let mut ledger = Ledger::new(80.0);
        ledger.exact("target: KV pool", 10.0, "");
        ledger.exact("draft: KV pool", 0.0, "").of_speculation();
        assert_eq!(ledger.speculation_gib(), 0.0);
        ledger.exact("draft: KV pool", 0.5, "").of_speculation();
        assert_eq!(ledger.speculation_gib(), 0.5);
    }
}
