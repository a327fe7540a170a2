//! The lines on which the figures of a bench result stand.

use std::collections::BTreeMap;

use super::BenchPoint;

/// Figures by the name that facts give them, where they stand on another line than the result begins at.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lines(BTreeMap<&'static str, usize>);

impl BenchPoint {
    /// What a bench prints, by the name that facts give it.
    pub(crate) fn figures(&self) -> [(&'static str, Option<f64>); 12] {
        [
            ("concurrency", self.concurrency),
            ("real_concurrency", self.real_concurrency),
            ("output_tok_s", self.output_tok_s),
            ("requests_per_s", self.requests_per_s),
            ("mean_ttft_ms", self.mean_ttft_ms),
            ("median_ttft_ms", self.median_ttft_ms),
            ("mean_tpot_ms", self.mean_tpot_ms),
            ("median_tpot_ms", self.median_tpot_ms),
            ("mean_itl_ms", self.mean_itl_ms),
            ("median_itl_ms", self.median_itl_ms),
            ("max_itl_ms", self.max_itl_ms),
            ("accept_length", self.accept_length),
        ]
    }

    /// The line that a figure stands on; where the result begins if that is not known.
    pub(crate) fn line_of(&self, name: &str) -> usize {
        self.lines.0.get(name).copied().unwrap_or(self.line)
    }

    /// Reads a line by `read`: figures that it changes stand on it.
    pub(super) fn read_line(&mut self, line: usize, read: impl FnOnce(&mut Self)) {
        let before = self.figures();
        read(self);
        for ((name, now), (_, was)) in self.figures().into_iter().zip(before) {
            if now != was {
                self.lines.0.insert(name, line);
            }
        }
    }
}
