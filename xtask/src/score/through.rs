//! Measured rows sent through `predict` as a user would run it: same flags, same functions, same
//! bands. What is judged here is what users are told.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use anyhow::Context as _;
use clap::Parser as _;
use spec_decode::HeadKind;
use spec_decode::bands::{Conditions, Residual, ResidualModel, Situation};

use super::Area;
use super::engine::EngineRow;
use super::names::Names;
use super::speedup::rows::{SweepRow, load};
use crate::cli::{Cli, Command};
use crate::predict::answer::{Point, Verdict};
use crate::scenario::{EngineKind, Scenario};
use crate::step_time::verify_graphs::{Attends, Seen};

/// What the user of a row has measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    /// The plain sweep at the row's context.
    pub(crate) sweep: bool,
    /// The accept length at the row's load and depth.
    pub(crate) accept: bool,
}

impl Given {
    /// In the order of [`spec_decode::bands::Situation::ALL`].
    pub(crate) const ALL: [Self; 4] = [
        Self {
            sweep: true,
            accept: true,
        },
        Self {
            sweep: true,
            accept: false,
        },
        Self {
            sweep: false,
            accept: true,
        },
        Self {
            sweep: false,
            accept: false,
        },
    ];
}

/// One measured speedup beside what `predict` says of it.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    /// Report it comes from.
    pub(crate) group: String,
    /// Measured speedup.
    pub(crate) measured: f64,
    /// The row of the answer.
    pub(crate) point: Point,
    /// What its band rests on.
    pub(crate) conditions: Conditions,
}

impl Told {
    /// ln(predicted / measured).
    pub(crate) fn log_error(&self) -> f64 {
        (self.point.speedup / self.measured).ln()
    }

    fn shown(&self) -> super::ScoredRow {
        let (p, c) = (&self.point, &self.conditions);
        super::ScoredRow {
            what: format!(
                "{}, {}: {} users, {} tokens, band {:.3} to {:.3}, accept length {:.2}, {:?}",
                self.group,
                c.situation,
                p.concurrency,
                p.context,
                p.speedup_low,
                p.speedup_high,
                p.accept_length,
                p.verdict
            ),
            measured: self.measured,
            predicted: p.speedup,
        }
    }

    /// For learning the bands.
    pub(crate) fn residual(&self) -> Residual {
        Residual {
            conditions: self.conditions,
            group: self.group.clone(),
            log_error: self.log_error(),
        }
    }

    /// Whether the band holds what was measured.
    fn covered(&self) -> bool {
        (self.point.speedup_low..=self.point.speedup_high).contains(&self.measured)
    }
}

/// A server as flags.
struct Flags<'a> {
    model: &'a str,
    quant: Option<&'a str>,
    gpu: &'a str,
    /// A catalogue box in place of the GPUs alone.
    wiring: Option<&'a str>,
    tp: u32,
    dcp: u32,
    engine: &'a str,
    version: Option<&'a str>,
    head: HeadKind,
    context: f64,
    steps: u32,
    tokens: u32,
}

impl Flags<'_> {
    /// The scenario that `predict` makes of the flags.
    fn scenario(&self, accept_length: Option<f64>) -> anyhow::Result<Scenario> {
        let mut line: Vec<String> = ["xtask", "predict"].map(String::from).to_vec();
        let mut flag = |name: &str, value: String| line.extend([name.to_string(), value]);
        flag("--model", self.model.to_string());
        if let Some(quant) = self.quant {
            flag("--quant", quant.to_string());
        }
        flag("--draft", self.head.name().to_string());
        if let Some(name) = self.wiring {
            flag("--box", name.to_string());
            // Their tuning guide (rtx6kpro, optimization/nccl-tuning.md) sets it, and its user says so.
            flag("--nccl-p2p-level", "SYS".to_string());
        } else {
            flag("--gpu", self.gpu.to_string());
            flag("--gpus", self.tp.to_string());
        }
        flag("--tp", self.tp.to_string());
        flag("--dcp", self.dcp.to_string());
        flag("--engine", self.engine.to_string());
        flag("--context", format!("{:.0}", self.context));
        flag("--steps", self.steps.to_string());
        flag("--draft-tokens", self.tokens.to_string());
        if let Some(length) = accept_length {
            let usable = self.steps.min(self.tokens.saturating_sub(1));
            flag("--accept", format!("{length}@{usable}"));
        }
        let Command::Predict(args) = Cli::try_parse_from(line)?.command else {
            anyhow::bail!("the flags name another command");
        };
        let mut scenario = Scenario::resolve(&args.scenario)?;
        scenario.engine.version = self.version.map(String::from);
        if scenario.engine.kind != EngineKind::Vllm {
            return Ok(scenario);
        }
        // As its log would say.
        let attends = Attends::of_row(&scenario.model, scenario.gpu.family, self.version);
        scenario.ran.verify_graphs = Some(Seen {
            whole: Some(attends.whole(None)),
            backend: Some(attends.backend().to_string()),
        });
        Ok(scenario)
    }
}

/// Sends one load through `predict`.
fn tell(scenario: &mut Scenario, users: f64, measured: f64, group: &str) -> anyhow::Result<Told> {
    scenario.concurrency = vec![users as u32];
    let (point, conditions) = crate::predict::rows(scenario)?
        .into_iter()
        .next()
        .context("no row in the answer")?;
    Ok(Told {
        group: group.to_string(),
        measured,
        point,
        conditions,
    })
}

/// Every row of the sweeps that has what is given, and how many cannot be placed.
pub(crate) fn sweeps(data: &Path, given: Given) -> anyhow::Result<(Vec<Told>, usize)> {
    let (rows, mut skipped) = load(data)?;
    let names = Names::load(data)?;
    let mut told = Vec::new();
    let levels = if given.accept {
        inferred_levels(data)?
    } else {
        HashMap::new()
    };
    for (index, row) in rows.iter().enumerate() {
        let level = levels.get(&index).copied();
        for wiring in wirings(row, &names, given) {
            match sweep(row, &names, given, wiring, level) {
                Ok(found) => told.extend(found),
                Err(_) => skipped += row.points.len(),
            }
        }
    }
    Ok((told, skipped))
}

/// Accept lengths of sweeps that print none, by index: what the cycle law reads off one speculative
/// speed beside the plain sweep. They stand for the reading that a user of that server has.
fn inferred_levels(data: &Path) -> anyhow::Result<HashMap<usize, f64>> {
    let scored = super::speedup::Runs::load(data)?.scored(super::speedup::law::Accept::Pooled)?;
    Ok(scored
        .iter()
        .map(|s| (s.predicted.sweep, s.predicted.accept_length))
        .collect())
}

/// The boxes that a row may have been measured on. The reports name the GPUs and not the wiring:
/// where step times rest on it, a user of the same server may give either.
fn wirings(row: &SweepRow, names: &Names, given: Given) -> Vec<Option<&'static str>> {
    let open = !given.sweep && row.over_pcie() && names.gpu(&row.gpu).starts_with("rtx-pro-6000");
    if open {
        vec![None, Some("8x-rtx-pro-6000-direct")]
    } else {
        vec![None]
    }
}

fn sweep(
    row: &SweepRow,
    names: &Names,
    given: Given,
    wiring: Option<&str>,
    level: Option<f64>,
) -> anyhow::Result<Vec<Told>> {
    let (model, quant) = names.model(&row.model);
    let flags = Flags {
        model,
        quant,
        gpu: names.gpu(&row.gpu),
        wiring,
        tp: row.tp.context("the row does not say its ranks")?,
        dcp: row.dcp.unwrap_or(1),
        engine: &row.engine,
        version: row.engine_version.as_deref(),
        head: HeadKind::parse(&row.method)?,
        context: row.context_tokens(),
        steps: row.depth,
        tokens: row.draft_tokens,
    };
    let plain: Vec<(f64, f64)> = row
        .points
        .iter()
        .map(|p| (p.concurrency, p.plain_tok_s))
        .collect();
    let mut told = Vec::new();
    let mut unmeasured = flags.scenario(None)?;
    let printed = row.points.iter().any(|p| p.accept_length.is_some());
    for (index, point) in row.points.iter().enumerate() {
        let mut own;
        // Where the level was read off the first speed, that point is no test of it.
        let inferred = level.filter(|_| !printed && index > 0);
        let scenario = match (given.accept, point.accept_length.or(inferred)) {
            (true, None) => continue,
            (true, length) => {
                own = flags.scenario(length)?;
                &mut own
            }
            (false, _) => &mut unmeasured,
        };
        scenario.baseline = given.sweep.then(|| plain.clone());
        told.push(tell(
            scenario,
            point.concurrency,
            point.speedup(),
            &row.source,
        )?);
    }
    Ok(told)
}

/// Every speculative row of `engine/*.jsonl` with its accept length, and how many cannot be
/// placed.
pub(crate) fn engines(data: &Path, sweep: bool) -> anyhow::Result<(Vec<Told>, usize)> {
    let names = Names::load(data)?;
    let (rows, mut skipped) = super::engine::load(data)?;
    let plain = super::engine::plain_rows(&rows);
    let mut told = Vec::new();
    for row in rows.iter().filter(|r| r.method != "none") {
        let points = plain.get(&super::engine::key(row));
        let one = || -> anyhow::Result<Told> {
            let (model, quant) = names.model(&row.model);
            let steps = row.num_speculative_tokens.context("no depth")?;
            let flags = Flags {
                model,
                quant,
                gpu: names.gpu(&row.gpu),
                wiring: None,
                tp: row.tp,
                dcp: 1,
                engine: &row.engine,
                version: row.engine_version.as_deref(),
                head: HeadKind::parse(&row.method)?,
                context: row.held_tokens(),
                steps,
                tokens: steps.saturating_add(1),
            };
            let length = row.accept_length_observed.context("no accept length")?;
            let mut scenario = flags.scenario(Some(length))?;
            scenario.baseline = sweep.then(|| points.cloned().unwrap_or_default());
            let head = scenario.draft.as_mut().and_then(|d| d.model.as_mut());
            if let Some(head) = head.filter(|_| row.lends_output_head()) {
                crate::scenario::lend_output_head(head, &scenario.model);
            }
            let measured = row.speedup_measured.context("no plain row beside it")?;
            let stretch = stretch(&mut scenario, row)?;
            tell(&mut scenario, row.concurrency, measured * stretch, "engine")
        };
        match one() {
            Ok(found) => told.push(found),
            Err(_) => skipped += 1,
        }
    }
    Ok((told, skipped))
}

/// What the row's closed batch lost against the steady load that `predict` speaks of, by the
/// cycles of `predict` itself.
fn stretch(scenario: &mut Scenario, row: &EngineRow) -> anyhow::Result<f64> {
    scenario.concurrency = (1..=row.concurrency as u32).collect();
    let rows = crate::predict::rows(scenario)?;
    let cycle_ms = |users: f64| {
        let same = |(point, _): &&(Point, Conditions)| f64::from(point.concurrency) == users;
        rows.iter().find(same).map_or(0.0, |(p, _)| p.cycle_ms)
    };
    Ok(row.stretch(cycle_ms))
}

/// Every row of every situation, and how many cannot be placed.
pub(crate) fn all(data: &Path) -> anyhow::Result<(Vec<Told>, usize)> {
    let (mut told, mut skipped) = (Vec::new(), 0);
    for given in Given::ALL {
        let (found, without) = sweeps(data, given)?;
        told.extend(found);
        skipped += without;
        if given.accept {
            let (found, without) = engines(data, given.sweep)?;
            told.extend(found);
            skipped += without;
        }
    }
    Ok((told, skipped))
}

/// Area `predict.bands`: coverage of the 90 % band as users are told it.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let (told, skipped) = all(data)?;
    let errors: Vec<f64> = told.iter().map(|t| t.log_error().abs()).collect();
    let mut area = Area::new("predict.bands").with_errors(&errors);
    area.rows = told.iter().map(Told::shown).collect();
    area.skipped = skipped;
    let every: Vec<&Told> = told.iter().collect();
    area.right = covered(&every);
    let unseen = unseen_coverage(&told);
    area.notes.push(format!(
        "bands learned without the row's own source: coverage {:.3}",
        unseen.unwrap_or(f64::NAN)
    ));
    for situation in Situation::ALL {
        let rows: Vec<&Told> = told
            .iter()
            .filter(|t| t.conditions.situation == situation)
            .collect();
        area.notes.push(note(&situation.to_string(), &rows));
    }
    Ok(vec![area])
}

/// Coverage where each source's bands are learned from the other sources alone.
fn unseen_coverage(told: &[Told]) -> Option<f64> {
    let groups: BTreeSet<&str> = told.iter().map(|t| t.group.as_str()).collect();
    let mut held = Vec::with_capacity(told.len());
    for group in groups {
        let (own, others): (Vec<&Told>, Vec<&Told>) = told.iter().partition(|t| t.group == group);
        let residuals: Vec<Residual> = others.iter().map(|t| t.residual()).collect();
        let model = ResidualModel::fit(&residuals);
        held.extend(own.iter().map(|t| {
            let band = model.band(t.point.speedup, f64::MAX, &t.conditions);
            f64::from(u8::from((band.low..=band.high).contains(&t.measured)))
        }));
    }
    super::mean(&held)
}

fn covered(rows: &[&Told]) -> Option<f64> {
    let held = rows.iter().filter(|t| t.covered()).count();
    (!rows.is_empty()).then(|| held as f64 / rows.len() as f64)
}

/// Coverage of each source, and their mean: a source of many rows is one server and one head.
fn covered_by_source(rows: &[&Told]) -> Option<f64> {
    let groups: BTreeSet<&str> = rows.iter().map(|t| t.group.as_str()).collect();
    let of = |group: &str| {
        let own: Vec<&Told> = rows.iter().filter(|t| t.group == group).copied().collect();
        covered(&own)
    };
    super::mean(&groups.into_iter().filter_map(of).collect::<Vec<_>>())
}

/// One line for a situation: coverage, width, bias and the verdicts on rows that lose.
fn note(name: &str, rows: &[&Told]) -> String {
    let widths: Vec<f64> = rows
        .iter()
        .map(|t| (t.point.speedup_high / t.point.speedup_low).ln())
        .collect();
    let errors: Vec<f64> = rows.iter().map(|t| t.log_error()).collect();
    let verdicts = |keep: &dyn Fn(f64) -> bool| {
        let mut counts = [0; 3];
        for row in rows.iter().filter(|t| keep(t.measured)) {
            counts[match row.point.verdict {
                Verdict::Pays => 0,
                Verdict::MeasureFirst => 1,
                Verdict::DoesNotPay | Verdict::NoDraft => 2,
            }] += 1;
        }
        counts
    };
    let [wrong, open, right] = verdicts(&|m| m < 1.0);
    let [pays, pays_open, pays_wrong] = verdicts(&|m| m >= 1.0);
    format!(
        "{name}: n {}, coverage {:.3} (each source counted once {:.3}), mean width {:.3}, bias {:+.3}; losing rows: {wrong} pays, \
         {open} measure first, {right} does not pay; paying rows: {pays} pays, {pays_open} measure \
         first, {pays_wrong} does not pay",
        rows.len(),
        covered(rows).unwrap_or(f64::NAN),
        covered_by_source(rows).unwrap_or(f64::NAN),
        super::mean(&widths).unwrap_or(f64::NAN),
        super::quantile(&errors, 0.5).unwrap_or(f64::NAN),
    )
}

#[cfg(test)]
mod tests;
