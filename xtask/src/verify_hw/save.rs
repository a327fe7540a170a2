//! `--save`: the measured box, for `predict --box`, and its plain sweep, for `--baseline`.

use std::path::{Path, PathBuf};

use allreduce::probe::State;
use pcie_sim::box_spec::{BoxSpec, Fabric, FabricState, Measured, P2p};

use super::machine::Outcome;
use crate::input;

/// Writes `path` and, beside it, `NAME.plain.csv`; gives that second path.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn save(outcome: &Outcome, path: &Path) -> anyhow::Result<PathBuf> {
    let spec = measured_box(outcome);
    let text = spec
        .to_toml()
        .map_err(|e| input::error(format!("--save {}: {e}", path.display())))?;
    super::write(path, &text)?;
    let sweep = path.with_extension("plain.csv");
    super::write(&sweep, &plain_csv(outcome))?;
    Ok(sweep)
}

/// The box as it was found, with what was measured on it.
fn measured_box(outcome: &Outcome) -> BoxSpec {
    let mut spec = outcome.scenario.wiring.clone();
    let gpus = outcome.facts.gpus.len();
    spec.name = format!("verified-{gpus}x-{}", outcome.scenario.gpu.name);
    spec.gpu = Some(outcome.scenario.gpu.name.clone());
    spec.source = Some("measured by verify-hw".to_string());
    spec.cpu = spec.cpu.or_else(|| outcome.facts.cpu.clone());
    let state = State::judge(&outcome.figures, gpus);
    if gpus > 1 {
        let all_pairs = outcome
            .figures
            .iter()
            .filter(|f| f.what == "all_load_gb_s")
            .map(|f| f.value / gpus as f64)
            .reduce(f64::min);
        let known = match state {
            State::Healthy => Some(FabricState::Healthy),
            State::Collapsed => Some(FabricState::Collapsed),
            State::Staged => Some(FabricState::Staged),
            State::Mirror | State::NoP2p | State::Hangs => None,
        };
        match known {
            Some(state) => {
                spec.fabric = Some(Fabric {
                    state,
                    all_pairs_gb_s: all_pairs,
                    source: Some("verify-hw".to_string()),
                });
            }
            None => spec.p2p = P2p::Off,
        }
    }
    spec.measured = figures(outcome);
    spec
}

fn figures(outcome: &Outcome) -> Vec<Measured> {
    let blank = |what: &str| Measured {
        what: what.to_string(),
        algorithm: None,
        ranks: None,
        bytes: None,
        time_us: None,
        gb_s: None,
        source: Some("verify-hw".to_string()),
    };
    let mut found: Vec<Measured> = outcome
        .curve
        .iter()
        .map(|p| Measured {
            algorithm: Some(p.algorithm.clone()),
            ranks: Some(outcome.scenario.tp),
            bytes: Some(p.bytes),
            time_us: Some(p.time_us),
            ..blank("all_reduce")
        })
        .collect();
    for figure in outcome.figures.iter().filter(|f| f.value > 0.0) {
        let rate = figure.what.ends_with("_gb_s");
        let name = figure
            .what
            .trim_end_matches("_gb_s")
            .trim_end_matches("_us");
        found.push(Measured {
            time_us: (!rate).then_some(figure.value),
            gb_s: rate.then_some(figure.value),
            ..blank(&format!("{name} {} {}", figure.from, figure.to))
        });
    }
    found
}

/// The first run's plain steps as `concurrency,tok_s`.
fn plain_csv(outcome: &Outcome) -> String {
    let mut text = "concurrency,tok_s\n".to_string();
    let steps = outcome.runs.first().map(|run| run.found.plain.as_slice());
    for (sequences, ms) in steps.unwrap_or_default() {
        text.push_str(&format!(
            "{sequences},{:.2}\n",
            1000.0 * f64::from(*sequences) / ms
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::machine;
    use super::*;

    #[test]
    fn a_saved_box_reads_back_and_knows_its_all_reduce() {
        let outcome = machine::tests::outcome();
        let spec = measured_box(&outcome);
        let text = spec.to_toml().expect("a box file");
        let back = BoxSpec::from_toml(&text).expect("reads back");
        assert_eq!(back, spec);
        let nccl: Vec<_> = back
            .measured
            .iter()
            .filter(|m| m.what == "all_reduce" && m.algorithm.as_deref() == Some("nccl"))
            .collect();
        assert_eq!(nccl.len(), 1);
        assert!(plain_csv(&outcome).starts_with("concurrency,tok_s\n1,200.00\n"));
    }
}
