//! A range of accept lengths.

/// Accept length at one depth: the middle and the ends of a band.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AcceptanceBand {
    /// Drafted tokens per cycle.
    pub depth: u32,
    /// Lower end, tokens per verify with the bonus token.
    pub low: f64,
    /// Middle.
    pub mid: f64,
    /// Upper end.
    pub high: f64,
}

impl AcceptanceBand {
    /// A band of no width.
    pub fn exact(depth: u32, accept_length: f64) -> Self {
        Self {
            depth,
            low: accept_length,
            mid: accept_length,
            high: accept_length,
        }
    }

    /// `high - low`, in tokens.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}
