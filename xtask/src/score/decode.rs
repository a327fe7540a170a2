//! `decode.from_scratch`: step time from catalogue facts alone against measured servers, beside
//! AIConfigurator's error on the rows it answers.

pub(crate) mod links;
pub(crate) mod rows;

use std::collections::BTreeMap;
use std::path::Path;

use kvplan::{KvDtype, Sharding};

use super::{Area, mean, quantile};
use crate::gpus;
use crate::step_time::{Overhead, Server, Setup, serving};
use links::Links;
use rows::{Load, Names, Row, Rows};

/// A row with what the model says.
struct Scored {
    row: Row,
    predicted_ms: f64,
}

impl Scored {
    fn error(&self) -> f64 {
        (self.predicted_ms / self.row.measured_ms).ln().abs()
    }

    fn ape(&self) -> f64 {
        (self.predicted_ms / self.row.measured_ms - 1.0).abs()
    }

    fn aic_ape(&self) -> Option<f64> {
        self.row
            .aic_ms
            .map(|aic| (aic / self.row.measured_ms - 1.0).abs())
    }
}

/// Scores every plain step of the data.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let (scored, skipped) = predict_rows(data)?;
    Ok(areas(&scored, &skipped))
}

/// Rows with their predictions, and how many were left out by reason.
type Predicted = (Vec<Scored>, BTreeMap<String, usize>);

fn predict_rows(data: &Path) -> anyhow::Result<Predicted> {
    let names = Names::read(data)?;
    let links = Links::default();
    let served = rows::end_to_end(data, &names)?;
    let sweeps = rows::sweeps(data, &names)?;
    let engine = rows::engine(data, &names)?;
    let mut scored = Vec::new();
    let mut skipped = BTreeMap::new();
    for part in [served, sweeps, engine] {
        predict_all(part, &links, &mut scored, &mut skipped);
    }
    Ok((scored, skipped))
}

fn predict_all(
    part: Rows,
    links: &Links,
    scored: &mut Vec<Scored>,
    skipped: &mut BTreeMap<String, usize>,
) {
    for (why, n) in part.skipped {
        *skipped.entry(why).or_default() += n;
    }
    for row in part.rows {
        match predict(&row, links) {
            Ok(predicted_ms) => scored.push(Scored { row, predicted_ms }),
            Err(why) => *skipped.entry(why).or_default() += 1,
        }
    }
}

/// Step or time per output token of a row, ms.
fn predict(row: &Row, links: &Links) -> Result<f64, String> {
    let gpu = gpus::find(&row.gpu).map_err(|_| format!("GPU {} unknown", row.gpu))?;
    let model = kvplan::catalog::find_in(&row.model, Some(&row.quant))
        .map_err(|e| e.message)?
        .model;
    let version = row.version.as_deref();
    let curve = links
        .curve(gpu, row.tp, row.engine, version)
        .ok_or_else(|| format!("no usual box for {} x {}", row.tp, row.gpu))?;
    let setup = Setup {
        sharding: Sharding {
            ep: row.ep,
            dcp: row.dcp,
            ..Sharding::tp(row.tp)
        },
        kv_dtype: if row.kv_fp8 {
            KvDtype::Fp8
        } else {
            KvDtype::Bf16
        },
        overhead: Overhead::of(row.engine, version),
        graphs: true,
    };
    let all_reduce = |bytes: f64| curve.at(bytes);
    let server =
        Server::new(&model, gpu, &setup, &all_reduce).with_shared_prefix(row.shared_prefix);
    Ok(match row.load {
        Load::Decode => server.plain_ms(row.concurrency, row.context),
        Load::Serving { input, output } => serving(&server, row.concurrency, input, output).tpot_ms,
    })
}

/// The area with its splits.
fn areas(scored: &[Scored], skipped: &BTreeMap<String, usize>) -> Vec<Area> {
    let deepseek = |s: &&Scored| s.row.model.contains("deepseek");
    let main: Vec<&Scored> = scored.iter().filter(|s| !deepseek(s)).collect();
    let errors: Vec<f64> = main.iter().map(|s| s.error()).collect();
    let mut area = Area::new("decode.from_scratch").with_errors(&errors);
    area.skipped = skipped.values().sum();
    let is = |f: &dyn Fn(&Row) -> bool| -> Vec<&Scored> {
        main.iter().copied().filter(|s| f(&s.row)).collect()
    };
    area.notes = [
        ("rows the peer answers", is(&|r| r.aic_ms.is_some())),
        (
            "of these vLLM",
            is(&|r| r.aic_ms.is_some() && r.engine == crate::step_time::Engine::Vllm),
        ),
        (
            "of these SGLang",
            is(&|r| r.aic_ms.is_some() && r.engine == crate::step_time::Engine::Sglang),
        ),
        (
            "of these TensorRT-LLM",
            is(&|r| r.aic_ms.is_some() && r.engine == crate::step_time::Engine::Trtllm),
        ),
        (
            "of these concurrency 1-16",
            is(&|r| r.aic_ms.is_some() && r.concurrency <= 16.0),
        ),
        (
            "served rows it does not answer",
            is(&|r| r.aic_ms.is_none() && r.load != Load::Decode),
        ),
        ("PCIe", is(&|r| r.gpu.starts_with("rtx"))),
        (
            "PCIe, context 0",
            is(&|r| r.gpu.starts_with("rtx") && r.context < 2000.0),
        ),
        (
            "PCIe, context 0, no context parallelism",
            is(&|r| r.gpu.starts_with("rtx") && r.context < 2000.0 && r.dcp == 1),
        ),
        ("measured engine", is(&|r| r.source.starts_with("vllm_"))),
        (
            "DeepSeek (apart: some rows are too fast not to be MTP)",
            scored.iter().filter(deepseek).collect(),
        ),
    ]
    .iter()
    .map(|(what, rows)| line(what, rows))
    .collect();
    area.notes.push(tp_doublings(&main));
    area.notes
        .extend(skipped.iter().map(|(why, n)| format!("skipped {n}: {why}")));
    vec![area]
}

/// One split in words: our median and mean absolute error, the peer's beside it.
fn line(what: &str, rows: &[&Scored]) -> String {
    let ours: Vec<f64> = rows.iter().map(|s| s.ape()).collect();
    let theirs: Vec<f64> = rows.iter().filter_map(|s| s.aic_ape()).collect();
    let (Some(median), Some(mape)) = (quantile(&ours, 0.5), mean(&ours)) else {
        return format!("{what}: no rows");
    };
    let peer = match (quantile(&theirs, 0.5), mean(&theirs)) {
        (Some(m), Some(a)) => format!("; AIConfigurator {:.1} %, {:.1} %", m * 100.0, a * 100.0),
        _ => String::new(),
    };
    format!(
        "{what}: {} rows, median {:.1} %, mean {:.1} %{peer}",
        rows.len(),
        median * 100.0,
        mape * 100.0
    )
}

/// Pairs that differ only in TP, twice as much: the error of the ratio.
fn tp_doublings(rows: &[&Scored]) -> String {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for a in rows {
        for b in rows {
            let same = a.row.source == b.row.source
                && a.row.quant == b.row.quant
                && a.row.version == b.row.version
                && a.row.load == b.row.load
                && a.row.load != Load::Decode
                && a.row.concurrency == b.row.concurrency
                && (a.row.ep == b.row.ep || (a.row.ep == a.row.tp && b.row.ep == b.row.tp));
            if !same || b.row.tp != 2 * a.row.tp {
                continue;
            }
            let measured = (b.row.measured_ms / a.row.measured_ms).ln();
            if let (Some(x), Some(y)) = (a.row.aic_ms, b.row.aic_ms) {
                theirs.push(((y / x).ln() - measured).abs());
                ours.push(((b.predicted_ms / a.predicted_ms).ln() - measured).abs());
            }
        }
    }
    format!(
        "TP doublings: {} pairs, median error of the ratio {:.3}; AIConfigurator {:.3}",
        ours.len(),
        quantile(&ours, 0.5).unwrap_or(f64::NAN),
        quantile(&theirs, 0.5).unwrap_or(f64::NAN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row with its prediction, tab-separated, for a closer look:
    /// `cargo test -p xtask print_every_row -- --ignored --nocapture`.
    #[test]
    #[ignore = "prints; checks nothing"]
    fn print_every_row() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let (scored, _) = predict_rows(&data).expect("rows are read");
        for s in &scored {
            let r = &s.row;
            println!(
                "row\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:?}\t{}\t{}\t{}\t{:?}\t{:.3}\t{:.3}\t{:.3}",
                r.source,
                r.model,
                r.quant,
                r.gpu,
                r.tp,
                r.ep,
                r.dcp,
                r.engine,
                r.version.as_deref().unwrap_or_default(),
                r.concurrency,
                r.context,
                r.load,
                r.measured_ms,
                s.predicted_ms,
                r.aic_ms.unwrap_or(f64::NAN)
            );
        }
    }

    #[test]
    fn served_steps_are_nearer_than_the_peers() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let (scored, _) = predict_rows(&data).expect("rows are read");
        let answered: Vec<&Scored> = scored
            .iter()
            .filter(|s| s.row.aic_ms.is_some() && !s.row.model.contains("deepseek"))
            .collect();
        let ours: Vec<f64> = answered.iter().map(|s| s.ape()).collect();
        let theirs: Vec<f64> = answered.iter().filter_map(|s| s.aic_ape()).collect();
        assert!(ours.len() > 500);
        assert!(quantile(&ours, 0.5) < quantile(&theirs, 0.5));
        assert!(mean(&ours) < mean(&theirs));
    }
}
