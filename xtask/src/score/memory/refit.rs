//! What `memory.from_flags` would be if the constants fitted on its own rows had not seen them.

use std::collections::HashMap;
use std::path::Path;

use kvplan::EngineKind;

use super::{Scenario, json_lines, mean, number, quantile};

/// The rows whose own log set a fitted constant, to score them with the constant refitted on other
/// models' rows.
pub(super) struct Refits {
    /// Peak activation by case, GiB, as logged.
    activation_gib: HashMap<String, f64>,
    rows: Vec<Refit>,
}

/// A row and the constant that its log alone would give.
struct Refit {
    model: String,
    /// Which constant.
    what: &'static str,
    /// The constant by this row: GiB a unit.
    by_itself: f64,
    /// The constant in use: GiB a unit.
    used: f64,
    /// Units that the row has of it: logits, or multiprocessors.
    units: f64,
    /// Pool or tokens, predicted and measured.
    predicted: f64,
    measured: f64,
    /// How much of the prediction a GiB less of pool is.
    per_gib: f64,
}

impl Refits {
    pub(super) fn new(data: &Path) -> anyhow::Result<Self> {
        let mut activation_gib = HashMap::new();
        for row in json_lines(&data.join("memory/cases.jsonl"))? {
            if let (Some(id), Some(gib)) =
                (row["id"].as_str(), number(&row["log"]["activation_gib"]))
            {
                activation_gib.insert(id.to_string(), gib);
            }
        }
        Ok(Self {
            activation_gib,
            rows: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, id: &str, scenario: &Scenario, plan: &kvplan::Plan) {
        let expect = &scenario.row["expect"];
        let (predicted, measured) = match (number(&expect["kv_gib"]), number(&expect["kv_tokens"]))
        {
            (Some(gib), _) => (plan.pool_gib, gib),
            (None, Some(tokens)) => (plan.printed_tokens(scenario.engine) as f64, tokens),
            (None, None) => return,
        };
        // A wrong table row (the pool is empty by its own parts) says nothing about a constant.
        if plan.pool_gib <= 0.0 {
            return;
        }
        let (what, by_itself, used, units) = match scenario.engine.kind {
            EngineKind::Vllm => {
                let Some(logged) = self.activation_gib.get(id) else {
                    return;
                };
                let logits = plan.max_running as f64 * scenario.model.vocab as f64;
                let used = plan.ledger.gib_of("activations of the profile run");
                ("sampler", logged / logits, used / logits, logits)
            }
            EngineKind::Sglang if scenario.row["tp"] == 1 => {
                let Some(weights) = number(&expect["weights_gib"]) else {
                    return;
                };
                // The constant adds to the weights, so what is left over moves it.
                let sms = kvplan::usual_sm_count(scenario.card_gib);
                let left_gib = weights - plan.computed_weights_gib;
                ("first kernels", left_gib / sms, 0.0, sms)
            }
            _ => return,
        };
        self.rows.push(Refit {
            model: scenario.model.name.clone(),
            what,
            by_itself,
            used,
            units,
            predicted,
            measured,
            per_gib: predicted / plan.pool_gib,
        });
    }

    /// Errors in use and refitted, over the rows that set a constant.
    pub(super) fn note(&self) -> Option<String> {
        let (mut used, mut refitted) = (Vec::new(), Vec::new());
        for row in &self.rows {
            let others: Vec<f64> = self
                .rows
                .iter()
                .filter(|other| other.what == row.what && other.model != row.model)
                .map(|other| other.by_itself)
                .collect();
            let Some(constant) = mean(&others) else {
                continue;
            };
            let moved_gib = (constant - row.used) * row.units;
            let without = row.predicted - moved_gib * row.per_gib;
            used.push((row.predicted / row.measured).ln().abs());
            refitted.push((without / row.measured).ln().abs());
        }
        Some(format!(
            "leave one model out, {} rows that set a constant: median {:.2} % (as scored {:.2} %), \
             worst {:.2} % (as scored {:.2} %)",
            refitted.len(),
            100.0 * quantile(&refitted, 0.5)?,
            100.0 * quantile(&used, 0.5)?,
            100.0 * quantile(&refitted, 1.0)?,
            100.0 * quantile(&used, 1.0)?,
        ))
    }
}
