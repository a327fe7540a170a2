//! `--save`: the measured box with the plain steps of what ran on it, for `predict --box`, and the
//! plain sweep alone.

use std::path::{Path, PathBuf};

use allreduce::probe::State;
use pcie_sim::box_spec::{BoxSpec, Fabric, FabricState, Measured, P2p};

use super::machine::{Outcome, Run};
use crate::input;
use crate::scenario::served::{PlainStep, Served, VerifyAttention, join};

/// Writes `path` and, beside it, `NAME.plain.csv`; gives that second path.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn save(outcome: &Outcome, path: &Path) -> anyhow::Result<PathBuf> {
    let spec = measured_box(outcome);
    let text = spec
        .to_toml()
        .map_err(|e| input::error(format!("--save {}: {e}", path.display())))?;
    let text = join(&text, served(outcome))?;
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

/// Every run's plain steps, with the attention in them.
fn served(outcome: &Outcome) -> Vec<Served> {
    let of = |run: &Run| {
        let found = &run.found;
        let attention = |sequences: u32| {
            let same = found.attention.iter().find(|(n, _)| *n == sequences);
            same.map_or(0.0, |(_, ms)| *ms)
        };
        let step = |&(sequences, time_ms): &(u32, f64)| PlainStep {
            sequences,
            time_ms,
            attention_ms: attention(sequences),
        };
        let many = |&(sequences, tokens, time_ms): &(u32, u32, f64)| VerifyAttention {
            sequences,
            tokens,
            time_ms,
        };
        Served {
            model: outcome.scenario.model.name.clone(),
            tp: outcome.scenario.tp,
            allreduce: run.algorithm.clone(),
            held_tokens: outcome.held_tokens,
            plain_step: found.plain.iter().map(step).collect(),
            verify_attention: found.attention_of_many.iter().map(many).collect(),
        }
    };
    let runs = outcome.runs.iter();
    runs.map(of).filter(|s| !s.plain_step.is_empty()).collect()
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
    use super::super::engine_mode::catalogue_all_reduce_us;
    use super::super::law::{Calibrated, Point};
    use super::super::machine;
    use super::super::scratch::{Runs, Scratch};
    use super::super::standin::run::Found;
    use super::*;
    use crate::cli::ScenarioArgs;
    use crate::scenario::Scenario;

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

    /// Plain steps of Llama-3.1-8B on an H200 as the stand-in gives them (docs/HARDWARE.md), and
    /// their attention.
    fn llama() -> Found {
        Found {
            plain: vec![
                (1, 4.75),
                (4, 4.79),
                (8, 4.83),
                (16, 4.9),
                (32, 5.0),
                (64, 5.29),
            ],
            attention: vec![
                (1, 0.2),
                (4, 0.21),
                (8, 0.22),
                (16, 0.25),
                (32, 0.3),
                (64, 0.42),
            ],
            attention_of_many: vec![(1, 4, 0.22), (8, 4, 0.26), (64, 4, 0.6)],
            ..Found::default()
        }
    }

    #[test]
    fn a_saved_box_gives_the_calibrated_speedups_that_were_printed() {
        for (gpus, algorithm, limit) in [(1, "none", 1e-9), (2, "nccl", 0.003)] {
            let mut outcome = machine::tests::outcome();
            let flags = ScenarioArgs {
                model: Some("llama-3.1-8b".into()),
                draft: Some("eagle3".into()),
                gpu: Some("h200-sxm".into()),
                gpus: Some(gpus),
                ..ScenarioArgs::default()
            };
            outcome.scenario = Scenario::resolve(&flags).expect("a scenario");
            outcome.runs = vec![Run {
                algorithm: algorithm.into(),
                found: llama(),
            }];
            let path = std::env::temp_dir().join(format!(
                "verify-hw-saved-{gpus}-{}.toml",
                std::process::id()
            ));
            let sweep = save(&outcome, &path).expect("saved");
            let from_file = Scenario::resolve(&ScenarioArgs {
                gpu: None,
                gpus: None,
                box_name: Some(path.display().to_string()),
                concurrency: Some("1,8,64".into()),
                steps: Some(3),
                accept: Some("2.7@3".into()),
                ..flags
            });
            let _ = (std::fs::remove_file(&path), std::fs::remove_file(sweep));
            let told = crate::predict::rows(&from_file.expect("reads back")).expect("rows");
            let reduce = |bytes: f64| catalogue_all_reduce_us(&outcome.scenario, bytes);
            let scratch = Scratch::new(&outcome.scenario, Runs::StandIn, &reduce);
            let held = outcome.held_tokens;
            let law = Calibrated::of_steps(&llama(), &outcome.scenario, &scratch, held);
            let law = law.expect("a sweep");
            assert_eq!(told.len(), 3);
            for (row, _) in told {
                let printed = law.at(&Point {
                    concurrency: row.concurrency,
                    held_tokens: held,
                    steps: 3,
                    accept_length: row.accept_length,
                });
                let off = (row.speedup / printed.speedup).ln().abs();
                assert!(off < limit, "{gpus} GPUs: {row:?}, printed {printed:?}");
            }
        }
    }
}
