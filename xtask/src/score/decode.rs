//! `decode.from_scratch`: step time from catalogue facts alone against measured servers, beside
//! AIConfigurator's error on the rows it answers.

mod fit;
pub(crate) mod links;
pub(crate) mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use kvplan::{KvDtype, Model, Sharding};

use super::{Area, mean, quantile};
use crate::gpus::{self, Gpu};
use crate::step_time::cycle::graph_ladder;
use crate::step_time::{Engine, Overhead, Server, Setup};
use fit::Reduced;
use links::{Curve, Links};
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

    fn shown(&self) -> super::ScoredRow {
        let r = &self.row;
        let peer = r
            .aic_ms
            .map_or_else(String::new, |ms| format!(", AIConfigurator {ms:.3}"));
        super::ScoredRow {
            what: format!(
                "ms: {} {} {} {} tp {} ep {} dcp {} {:?} {} {:?}, {} users, {:.0} tokens{peer}",
                r.source,
                r.model,
                r.quant,
                r.gpu,
                r.tp,
                r.ep,
                r.dcp,
                r.engine,
                r.version.as_deref().unwrap_or("-"),
                r.load,
                r.concurrency,
                r.context
            ),
            measured: r.measured_ms,
            predicted: self.predicted_ms,
        }
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

/// Rows that launch and host costs are fitted on (served and measured engines), each predicted
/// with the costs of a fit that has not seen its model; PCIe sweeps with the costs compiled in,
/// which have not seen them.
fn predict_rows(data: &Path) -> anyhow::Result<Predicted> {
    let names = Names::read(data)?;
    let links = Links::default();
    let mut scored = Vec::new();
    let mut skipped = BTreeMap::new();
    let mut fitted: Vec<(Row, Reduced)> = Vec::new();
    for part in [rows::end_to_end(data, &names)?, rows::engine(data, &names)?] {
        for_each_server(part, &links, &mut skipped, |row, server| {
            let reduced = fit::reduce(&row, server);
            fitted.push((row, reduced));
        });
    }
    for_each_server(
        rows::sweeps(data, &names)?,
        &links,
        &mut skipped,
        |row, server| {
            let predicted_ms = server.plain_ms(row.concurrency, row.context);
            scored.push(Scored { row, predicted_ms });
        },
    );
    let models: BTreeSet<String> = fitted.iter().map(|(row, _)| row.model.clone()).collect();
    for held in &models {
        let costs = costs_without(&fitted, held);
        for (row, reduced) in fitted.iter().filter(|(row, _)| row.model == *held) {
            scored.push(Scored {
                row: row.clone(),
                predicted_ms: reduced.predict(&costs),
            });
        }
    }
    Ok((scored, skipped))
}

/// Costs fitted without the rows of `held` (and without DeepSeek, whose rows may be speculative).
fn costs_without(fitted: &[(Row, Reduced)], held: &str) -> [f64; fit::COSTS] {
    let rows: Vec<&Reduced> = fitted
        .iter()
        .filter(|(row, _)| row.model != held && !row.model.contains("deepseek"))
        .map(|(_, reduced)| reduced)
        .collect();
    fit::fit(&rows)
}

/// Calls `then` with every row and its server; rows that cannot be placed are counted by reason.
fn for_each_server(
    part: Rows,
    links: &Links,
    skipped: &mut BTreeMap<String, usize>,
    mut then: impl FnMut(Row, Server<'_>),
) {
    for (why, n) in part.skipped {
        *skipped.entry(why).or_default() += n;
    }
    for row in part.rows {
        let placed = place(&row, links);
        match placed {
            Ok((model, gpu, curve)) => {
                let all_reduce = |bytes: f64| curve.at(bytes);
                let setup = setup(&row);
                let server = Server::new(&model, gpu, &setup, &all_reduce)
                    .with_shared_prefix(row.shared_prefix);
                then(row, server);
            }
            Err(why) => *skipped.entry(why).or_default() += 1,
        }
    }
}

/// Model, card and links of a row.
fn place(row: &Row, links: &Links) -> Result<(Model, &'static Gpu, Rc<Curve>), String> {
    let gpu = gpus::find(&row.gpu).map_err(|_| format!("GPU {} unknown", row.gpu))?;
    let model = kvplan::catalog::find_in(&row.model, Some(&row.quant))
        .map_err(|e| e.message)?
        .model;
    let curve = links
        .curve(gpu, row.tp, row.engine, row.version.as_deref())
        .ok_or_else(|| format!("no usual box for {} x {}", row.tp, row.gpu))?;
    Ok((model, gpu, curve))
}

fn setup(row: &Row) -> Setup {
    Setup {
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
        overhead: Overhead::of(row.engine, row.version.as_deref()),
        graphs: true,
        // Plain steps are padded alike however verifies are.
        ladder: graph_ladder(row.engine.name(), row.version.as_deref(), false),
    }
}

/// The area with its splits, and the splits that have targets of their own as areas beside it.
fn areas(scored: &[Scored], skipped: &BTreeMap<String, usize>) -> Vec<Area> {
    let deepseek = |s: &&Scored| s.row.model.contains("deepseek");
    let main: Vec<&Scored> = scored.iter().filter(|s| !deepseek(s)).collect();
    let split = |keep: &dyn Fn(&Row) -> bool| -> Vec<&Scored> {
        main.iter().copied().filter(|s| keep(&s.row)).collect()
    };
    let answered = |r: &Row| r.aic_ms.is_some();
    let pcie = |r: &Row| r.gpu.starts_with("rtx");
    let of = |engine: Engine| split(&move |r| answered(r) && r.engine == engine);
    let served = split(&answered);
    let on_pcie = split(&pcie);

    let mut whole = area("decode.from_scratch", &main);
    whole.skipped = skipped.values().sum();
    whole.notes = vec![METHOD.to_string()];
    whole
        .notes
        .extend(skipped.iter().map(|(why, n)| format!("skipped {n}: {why}")));

    let mut peer = area("decode.from_scratch_served", &served);
    let low = split(&|r| answered(r) && r.concurrency <= 16.0);
    let unanswered = split(&|r| !answered(r) && r.load != Load::Decode);
    peer.notes = vec![
        line("all that the peer answers", &served),
        line("vLLM", &of(Engine::Vllm)),
        line("SGLang", &of(Engine::Sglang)),
        line("TensorRT-LLM", &of(Engine::Trtllm)),
        line("concurrency 1-16", &low),
        line("not answered by the peer", &unanswered),
        line(
            "DeepSeek, apart (some rows are too fast not to be speculative)",
            &scored.iter().filter(deepseek).collect::<Vec<_>>(),
        ),
    ];

    let mut boxes = area("decode.from_scratch_pcie", &on_pcie);
    let short = split(&|r| pcie(r) && r.context < SHORT);
    boxes.notes = vec![
        line("all, which the peer never publishes", &on_pcie),
        line("short contexts", &short),
    ];

    let mut engine = area(
        "decode.from_scratch_engine",
        &split(&|r| r.source.starts_with("vllm_")),
    );
    engine.notes = vec!["vLLM 0.24 on one H200, measured for this project".to_string()];
    vec![whole, peer, boxes, engine, tp_doublings(&main)]
}

/// How the figures come about, for the reader of the table.
const METHOD: &str = "launch and host costs are fitted leaving out the model that is predicted; \
     efficiencies of operations come from op_times alone; PCIe sweeps chose two constants (spread \
     of experts' popularity, what one token spares) and are in no other fit";
/// Contexts under this many tokens are short.
const SHORT: f64 = 2000.0;

fn area(name: &str, rows: &[&Scored]) -> Area {
    let errors: Vec<f64> = rows.iter().map(|s| s.error()).collect();
    let mut area = Area::new(name).with_errors(&errors);
    area.rows = rows.iter().map(|s| s.shown()).collect();
    area
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

/// Served pairs that differ only in TP, twice as much: the error of the ratio.
fn tp_doublings(rows: &[&Scored]) -> Area {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let (mut measured_gain, mut our_gain, mut their_gain) = (Vec::new(), Vec::new(), Vec::new());
    for (a, b) in rows.iter().flat_map(|a| rows.iter().map(move |b| (a, b))) {
        let (Some(from), Some(to)) = (a.row.aic_ms, b.row.aic_ms) else {
            continue;
        };
        if !doubles(&a.row, &b.row) {
            continue;
        }
        let measured = (a.row.measured_ms / b.row.measured_ms).ln();
        let predicted = (a.predicted_ms / b.predicted_ms).ln();
        ours.push((predicted - measured).abs());
        theirs.push(((from / to).ln() - measured).abs());
        if a.row.tp == 4 {
            measured_gain.push(measured.exp());
            our_gain.push(predicted.exp());
            their_gain.push(from / to);
        }
    }
    let shown = |values: &[f64]| quantile(values, 0.5).unwrap_or(f64::NAN);
    let mut area = Area::new("decode.tp_doublings").with_errors(&ours);
    area.notes = vec![
        format!(
            "AIConfigurator's median {:.3} on the same pairs",
            shown(&theirs)
        ),
        format!(
            "gain from 4 to 8 GPUs, median: measured {:.2}, ours {:.2}, AIConfigurator {:.2}",
            shown(&measured_gain),
            shown(&our_gain),
            shown(&their_gain)
        ),
    ];
    area
}

/// Whether `b` is `a` with twice the ranks and nothing else.
fn doubles(a: &Row, b: &Row) -> bool {
    let experts_alike = a.ep == b.ep || (a.ep == a.tp && b.ep == b.tp);
    b.tp == 2 * a.tp
        && a.source == b.source
        && a.quant == b.quant
        && a.version == b.version
        && a.load == b.load
        && a.load != Load::Decode
        && a.concurrency == b.concurrency
        && experts_alike
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_costs_compiled_in_are_those_the_fit_gives() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let names = Names::read(&data).expect("names");
        let links = Links::default();
        let mut fitted: Vec<(Row, Reduced)> = Vec::new();
        let mut skipped = BTreeMap::new();
        let parts = [rows::end_to_end(&data, &names), rows::engine(&data, &names)];
        for part in parts {
            for_each_server(part.expect("rows"), &links, &mut skipped, |row, server| {
                let reduced = fit::reduce(&row, server);
                fitted.push((row, reduced));
            });
        }
        let costs = costs_without(&fitted, "no model of this name");
        println!("fitted: {costs:.3?}");
        for (engine, version) in [
            (Engine::Vllm, Some("0.12.0")),
            (Engine::Vllm, None),
            (Engine::Sglang, None),
            (Engine::Trtllm, None),
        ] {
            let compiled = Overhead::of(engine, version);
            let found = fit::overhead(engine, version, &costs);
            for (what, a, b) in [
                ("fixed factor", compiled.fixed_factor, found.fixed_factor),
                (
                    "small kernel",
                    compiled.small_kernel_us,
                    found.small_kernel_us,
                ),
                ("host", compiled.host_ms, found.host_ms),
                ("sequence", compiled.sequence_us, found.sequence_us),
                ("prefill share", compiled.prefill_share, found.prefill_share),
                (
                    "expert parallel",
                    compiled.expert_parallel_us,
                    found.expert_parallel_us,
                ),
            ] {
                assert!(
                    (a - b).abs() <= 0.05 * b.abs() + 0.01,
                    "{engine:?} {version:?} {what}: {a} compiled in, {b:.3} fitted"
                );
            }
        }
    }
}
