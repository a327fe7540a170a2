//! Areas `speedup.*`: the cycle law from plain sweeps. Its constants are fitted on the other
//! sources, and so are the bands that decide the verdicts.

pub(crate) mod law;
pub(crate) mod rows;

use std::collections::BTreeSet;
use std::path::Path;

use spec_decode::bands::{
    AcceptSource, Band, Conditions, NORMAL_90, Residual, ResidualModel, Situation, StepSource,
};
use spec_decode::verdict::Verdict;

use super::names::Names;
use super::scratch::{Rig, rig};
use super::{Area, ScoredRow, quantile};
#[cfg(test)]
use law::Constants;
use law::{Accept, Fitter, Predicted, predict};
use rows::SweepRow;

/// A speedup from 1 by which a row counts as paying or losing, as the contract says.
const DECIDED_BY: f64 = 0.07;

/// A prediction with what the bands need.
#[derive(Debug, Clone)]
pub(crate) struct Scored {
    /// The prediction.
    pub(crate) predicted: Predicted,
    /// For the bands.
    pub(crate) residual: Residual,
}

impl Scored {
    pub(crate) fn new(predicted: Predicted, situation: Situation, group: &str) -> Self {
        let accept = NORMAL_90 * predicted.accept_log_sd;
        Self {
            residual: Residual {
                conditions: Conditions {
                    situation,
                    tokens: predicted.tokens,
                    extra_share: 1.0 - predicted.speedup / predicted.accept_length,
                    beyond: predicted.beyond,
                    slower: predicted.slower,
                    accept_down: accept,
                    accept_up: accept,
                },
                group: group.to_string(),
                log_error: predicted.log_error(),
            },
            predicted,
        }
    }

    /// The row for `--rows`; `sweeps` are those that it was predicted from.
    pub(crate) fn shown(&self, sweeps: &[SweepRow]) -> ScoredRow {
        let p = &self.predicted;
        let row = &sweeps[p.sweep];
        ScoredRow {
            what: format!(
                "{} {} tp {} dcp {} context {}: {} users, {} steps, {} tokens, accept length {:.2}",
                row.source,
                row.model,
                row.tp.map_or_else(|| "-".to_string(), |tp| tp.to_string()),
                row.dcp.unwrap_or(1),
                row.context.as_deref().unwrap_or("-"),
                p.concurrency,
                row.depth,
                row.draft_tokens,
                p.accept_length
            ),
            measured: p.measured,
            predicted: p.speedup,
        }
    }

    /// Band by a model that has not seen this group.
    pub(crate) fn band(&self, model: &ResidualModel) -> Band {
        let p = &self.predicted;
        let most = p.accept_length * self.residual.conditions.accept_up.exp();
        model.band(p.speedup, most, &self.residual.conditions)
    }
}

/// The sweeps with everything that is fitted once.
pub(crate) struct Runs {
    rows: Vec<SweepRow>,
    /// The rows' servers; none where the catalogues lack one.
    rigs: Vec<Option<Rig>>,
    skipped: usize,
    fitter: Fitter,
}

/// Which sweeps are left out together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Source,
    Model,
}

impl Runs {
    /// Loads the sweeps and runs the law over the grid of constants.
    pub(crate) fn load(data: &Path) -> anyhow::Result<Self> {
        let (rows, skipped) = rows::load(data)?;
        let names = Names::load(data)?;
        let rigs: Vec<Option<Rig>> = rows.iter().map(|r| rig(r, &names).ok()).collect();
        let fitter = Fitter::new(&rows, &rigs)?;
        Ok(Self {
            rows,
            rigs,
            skipped,
            fitter,
        })
    }

    /// Constants fitted on all sweeps.
    #[cfg(test)]
    pub(crate) fn constants(&self) -> Constants {
        self.fitter.best(|_| true)
    }

    fn group(&self, index: usize, by: Group) -> &str {
        match by {
            Group::Source => &self.rows[index].source,
            Group::Model => family(&self.rows[index].model),
        }
    }

    /// Every prediction, its constants fitted on the other groups.
    fn predictions(&self, accept: Accept, by: Group, table: bool) -> anyhow::Result<Vec<Scored>> {
        let step = StepSource::Sweep;
        let situation = Situation::new(
            step,
            match accept {
                Accept::Prior => AcceptSource::Prior,
                Accept::Pooled | Accept::RowsOwn => AcceptSource::Measured,
            },
        );
        let groups: BTreeSet<&str> = (0..self.rows.len()).map(|i| self.group(i, by)).collect();
        let mut found = Vec::new();
        for group in groups {
            let constants = self.fitter.best(|i| self.group(i, by) != group);
            for (index, row) in self.rows.iter().enumerate() {
                if self.group(index, by) != group {
                    continue;
                }
                let beside = table.then(|| self.empty_context(row)).flatten();
                let rig = self.rigs[index].as_ref();
                let predicted = predict(row, index, rig, &constants, accept, beside)?;
                found.extend(
                    predicted
                        .into_iter()
                        .map(|p| Scored::new(p, situation, group)),
                );
            }
        }
        Ok(found)
    }

    /// Predictions whose constants come from the other sources.
    pub(crate) fn scored(&self, accept: Accept) -> anyhow::Result<Vec<Scored>> {
        self.predictions(accept, Group::Source, false)
    }

    /// The sweep of the same box, model and settings at empty context, where it is another one.
    fn empty_context(&self, row: &SweepRow) -> Option<&SweepRow> {
        let same = |other: &&SweepRow| {
            other.source == row.source
                && other.model == row.model
                && (other.tp, other.dcp) == (row.tp, row.dcp)
                && (other.depth, other.draft_tokens) == (row.depth, row.draft_tokens)
                && other.context.as_deref() == Some("0")
        };
        self.rows
            .iter()
            .find(same)
            .filter(|other| other.context != row.context)
    }
}

/// Model family: everything to the first blank, digit after a dash, or bracket differs by build.
fn family(model: &str) -> &str {
    let end = model.find(['-', ' ', '(']).unwrap_or(model.len());
    &model[..end]
}

/// Areas `speedup.from_baseline`, `speedup.from_baseline_extrapolated`, and the same rows read
/// from a table of contexts.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let runs = Runs::load(data)?;
    let pooled = runs.scored(Accept::Pooled)?;
    let own = runs.scored(Accept::RowsOwn)?;
    let by_model = runs.predictions(Accept::Pooled, Group::Model, false)?;
    let table = runs.predictions(Accept::Pooled, Group::Source, true)?;
    let names = [
        ("speedup.from_baseline", false),
        ("speedup.from_baseline_extrapolated", true),
    ];
    let mut areas = Vec::new();
    for (name, outside) in names {
        let mut area = area(name, &pooled, outside, &runs);
        area.notes.push(format!(
            "accept length the row's own reading alone: {}",
            brief(&own, outside)
        ));
        area.notes.push(format!(
            "constants from other models: {}",
            brief(&by_model, outside)
        ));
        area.notes.extend(by_source(&chosen(&pooled, outside)));
        areas.push(area);
    }
    let mut beside = area("speedup.from_baseline_table", &table, true, &runs);
    beside.notes.insert(
        0,
        "the extrapolated rows with the plain row at empty context given beside their own".into(),
    );
    areas.push(beside);
    Ok(areas)
}

fn chosen(scored: &[Scored], outside: bool) -> Vec<&Scored> {
    scored
        .iter()
        .filter(|s| s.predicted.outside == outside)
        .collect()
}

fn area(name: &str, scored: &[Scored], outside: bool, runs: &Runs) -> Area {
    let rows = chosen(scored, outside);
    let errors: Vec<f64> = rows.iter().map(|s| s.predicted.log_error().abs()).collect();
    let mut area = Area::new(name).with_errors(&errors);
    area.rows = rows.iter().map(|s| s.shown(&runs.rows)).collect();
    area.skipped = runs.skipped;
    let verdicts = Verdicts::of(&rows, scored);
    area.right = verdicts.balanced();
    area.width = super::mean(&verdicts.widths);
    area.notes.push(verdicts.note());
    area
}

/// Verdicts of a set of rows, each by bands that have not seen its group.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pays: Tally,
    loses: Tally,
    undecided_all: usize,
    all: usize,
    sign_right: (usize, usize),
    widths: Vec<f64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    right: usize,
    wrong: usize,
    undecided: usize,
    sign_right: usize,
}

impl Tally {
    fn rows(&self) -> usize {
        self.right + self.wrong + self.undecided
    }
    fn share(&self) -> Option<f64> {
        let decided = self.right + self.wrong;
        (decided > 0).then(|| self.right as f64 / decided as f64)
    }
}

impl Verdicts {
    /// Judges `rows`; the bands of a group are learned from the other groups in `all`.
    pub(crate) fn of(rows: &[&Scored], all: &[Scored]) -> Self {
        let mut verdicts = Self::default();
        let groups: BTreeSet<&str> = rows.iter().map(|s| s.residual.group.as_str()).collect();
        for group in groups {
            let others: Vec<Residual> = all
                .iter()
                .filter(|s| s.residual.group != group)
                .map(|s| s.residual.clone())
                .collect();
            let model = ResidualModel::fit(&others);
            for row in rows.iter().filter(|s| s.residual.group == group) {
                verdicts.add(&row.predicted, &row.band(&model));
            }
        }
        verdicts
    }

    fn add(&mut self, predicted: &Predicted, band: &Band) {
        self.all += 1;
        self.widths.push((band.high / band.low).ln());
        let verdict = Verdict::of(band);
        self.undecided_all += usize::from(verdict == Verdict::MeasureFirst);
        let (tally, right) = if predicted.measured > 1.0 + DECIDED_BY {
            (&mut self.pays, Verdict::Pays)
        } else if predicted.measured < 1.0 - DECIDED_BY {
            (&mut self.loses, Verdict::DoesNotPay)
        } else {
            return;
        };
        match verdict {
            Verdict::MeasureFirst => tally.undecided += 1,
            v if v == right => tally.right += 1,
            _ => tally.wrong += 1,
        }
        let sign_right = (predicted.speedup > 1.0) == (right == Verdict::Pays);
        tally.sign_right += usize::from(sign_right);
        self.sign_right.0 += usize::from(sign_right);
        self.sign_right.1 += 1;
    }

    /// Mean of the fractions right among decided rows that pay and that lose.
    pub(crate) fn balanced(&self) -> Option<f64> {
        match (self.pays.share(), self.loses.share()) {
            (Some(p), Some(l)) => Some((p + l) / 2.0),
            (one, other) => one.or(other),
        }
    }

    /// One line: tallies, the share of `measure-first`, and the point prediction's side alone.
    pub(crate) fn note(&self) -> String {
        let side = |t: &Tally| t.sign_right as f64 / t.rows().max(1) as f64;
        let undecided = self.pays.undecided + self.loses.undecided;
        format!(
            "pays {} right {} wrong, loses {} right {} wrong; measure-first {:.1} % of rows that \
             pay or lose ({undecided} of {}), {:.1} % of all; side of 1 alone {} of {} and {} of \
             {}, balanced {:.3}",
            self.pays.right,
            self.pays.wrong,
            self.loses.right,
            self.loses.wrong,
            100.0 * undecided as f64 / self.sign_right.1.max(1) as f64,
            self.sign_right.1,
            100.0 * self.undecided_all as f64 / self.all.max(1) as f64,
            self.pays.sign_right,
            self.pays.rows(),
            self.loses.sign_right,
            self.loses.rows(),
            (side(&self.pays) + side(&self.loses)) / 2.0,
        )
    }
}

fn brief(scored: &[Scored], outside: bool) -> String {
    let rows = chosen(scored, outside);
    let errors: Vec<f64> = rows.iter().map(|s| s.predicted.log_error().abs()).collect();
    let figure = |q| quantile(&errors, q).unwrap_or(f64::NAN);
    format!(
        "median {:.3}, p90 {:.3}; {}",
        figure(0.5),
        figure(0.9),
        Verdicts::of(&rows, scored).note()
    )
}

/// Error and bias of each source, one line each.
pub(crate) fn by_source(rows: &[&Scored]) -> Vec<String> {
    let sources: BTreeSet<&str> = rows.iter().map(|s| s.residual.group.as_str()).collect();
    let mut notes = Vec::new();
    for source in sources {
        let errors: Vec<f64> = rows
            .iter()
            .filter(|s| s.residual.group == source)
            .map(|s| s.predicted.log_error())
            .collect();
        let sizes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        notes.push(format!(
            "{source}: n {}, median {:.3}, p90 {:.3}, bias {:+.3}",
            errors.len(),
            quantile(&sizes, 0.5).unwrap_or(f64::NAN),
            quantile(&sizes, 0.9).unwrap_or(f64::NAN),
            quantile(&errors, 0.5).unwrap_or(f64::NAN),
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
