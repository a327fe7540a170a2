//! Predicted beside measured: rows with errors and limits, as text and JSON.

use serde::Serialize;

use crate::table::{plain, text, three};

/// A measured figure and what was predicted of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// What kind: `speedup`, `tok/s`, `step`, `memory`, `host copies`, `all-reduce`.
    pub(crate) group: &'static str,
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) measured: f64,
    /// From the probes and plain steps of this machine.
    pub(crate) calibrated: Option<Prediction>,
    /// From the catalogue alone.
    pub(crate) from_scratch: Option<Prediction>,
}

/// A prediction, its error and the error it may have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Prediction {
    pub(crate) value: f64,
    /// predicted / measured - 1.
    pub(crate) error: f64,
    /// Largest |error| that holds; `None`: shown for information.
    pub(crate) limit: Option<f64>,
}

impl Prediction {
    /// Compares `value` with what was measured.
    pub(crate) fn new(value: f64, measured: f64, limit: Option<f64>) -> Self {
        let error = value / measured - 1.0;
        Self {
            value,
            error,
            limit,
        }
    }

    /// Whether it is within its limit; `None` without one.
    pub(crate) fn held(&self) -> Option<bool> {
        // A figure that is no number holds nothing.
        self.limit.map(|limit| self.error.abs() <= limit)
    }
}

impl Row {
    /// A row without predictions yet.
    pub(crate) fn new(
        group: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        measured: f64,
    ) -> Self {
        Self {
            group,
            what: what.into(),
            unit,
            measured,
            calibrated: None,
            from_scratch: None,
        }
    }

    /// With a calibrated prediction.
    #[must_use]
    pub(crate) fn calibrated(mut self, value: Option<f64>, limit: Option<f64>) -> Self {
        self.calibrated = value.map(|v| Prediction::new(v, self.measured, limit));
        self
    }

    /// With a prediction from scratch.
    #[must_use]
    pub(crate) fn with_scratch(mut self, value: Option<f64>, limit: Option<f64>) -> Self {
        self.from_scratch = value.map(|v| Prediction::new(v, self.measured, limit));
        self
    }

    fn predictions(&self) -> impl Iterator<Item = &Prediction> {
        self.calibrated.iter().chain(&self.from_scratch)
    }
}

/// Whether every prediction with a limit is within it; `None` where nothing was compared.
pub(crate) fn held(rows: &[Row]) -> Option<bool> {
    rows.iter()
        .flat_map(Row::predictions)
        .filter_map(Prediction::held)
        .reduce(|a, b| a && b)
}

/// The rows as text; misses are marked.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut groups: Vec<&'static str> = Vec::new();
    for row in rows {
        if !groups.contains(&row.group) {
            groups.push(row.group);
        }
    }
    for group in groups {
        out.push_str(&format!("\n{group}\n"));
        let mut table = plain(
            &[
                "",
                "measured",
                "calibrated",
                "error",
                "from scratch",
                "error",
                "",
            ],
            &[0, 6],
        );
        for row in rows.iter().filter(|r| r.group == group) {
            let value = |p: &Option<Prediction>| p.map_or_else(String::new, |p| three(p.value));
            table.add_row([
                row.what.clone(),
                format!("{} {}", three(row.measured), row.unit),
                value(&row.calibrated),
                error(&row.calibrated),
                value(&row.from_scratch),
                error(&row.from_scratch),
                String::new(),
            ]);
        }
        out.push_str(&text(&table, 2));
    }
    out
}

fn error(prediction: &Option<Prediction>) -> String {
    let Some(p) = prediction else {
        return String::new();
    };
    let mark = if p.held() == Some(false) { " !" } else { "" };
    format!("{:+.1} %{mark}", 100.0 * p.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_needs_every_limited_prediction_within_its_limit() {
        let inside = Row::new("speedup", "1 user", "x", 2.0).calibrated(Some(2.08), Some(0.05));
        let outside = Row::new("speedup", "8 users", "x", 2.0)
            .calibrated(Some(2.0), Some(0.05))
            .with_scratch(Some(1.5), Some(0.12));
        let shown = Row::new("step", "1 user", "ms", 5.0).with_scratch(Some(9.0), None);
        assert_eq!(held(&[inside.clone(), shown.clone()]), Some(true));
        assert_eq!(held(&[inside, outside.clone()]), Some(false));
        assert_eq!(held(&[shown]), None);
        assert!(render(&[outside]).contains("-25.0 % !"));
        let broken = Row::new("x", "no number", "ms", 0.0).calibrated(Some(0.0), Some(0.1));
        assert_eq!(held(&[broken]), Some(false));
    }
}
