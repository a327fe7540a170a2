//! The cycle law run over the sweeps, with its few constants fitted on whatever rows it is given.

use spec_decode::cycle::{
    DraftStep, Growth, LevelPrior, Speculation, level_of_speed, steady_level,
};

use super::rows::SweepRow;
use crate::score::scratch::Rig;
use crate::step_time::cycle::graph_ladder;
use crate::step_time::sweep::{BySequence, Constants as LawConstants, Known, SweepLaw, steps_ms};

/// What is fitted: the draft step over PCIe and the growth of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Constants {
    /// Draft step over PCIe.
    pub(crate) pcie: DraftStep,
    /// Exponent of the growth beyond a sweep.
    pub(crate) exponent: f64,
}

impl Constants {
    /// What `predict` uses.
    pub(crate) const SHIPPED: Self = Self {
        pcie: DraftStep::PCIE,
        exponent: Growth::EXPERTS.exponent,
    };

    fn of(&self, row: &SweepRow) -> LawConstants {
        LawConstants {
            draft: self.draft(row),
            growth: self.growth(row),
        }
    }

    fn draft(&self, row: &SweepRow) -> DraftStep {
        if row.over_pcie() {
            self.pcie
        } else {
            DraftStep::LOCAL
        }
    }

    fn growth(&self, row: &SweepRow) -> Growth {
        let growth = row.growth();
        if growth == Growth::EXPERTS {
            Growth {
                exponent: self.exponent,
                ..growth
            }
        } else {
            growth
        }
    }
}

/// Where accept lengths come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accept {
    /// The sweep's own readings pooled, else the speed at its lowest usable concurrency.
    Pooled,
    /// The row's own reading alone, else the speed at the lowest usable concurrency as it is.
    RowsOwn,
    /// The head kind's prior.
    Prior,
}

impl Accept {
    /// What the accept length's own band adds to a reading's scatter: the prior's deviation, ln.
    pub(crate) fn log_sd(self, prior: LevelPrior) -> f64 {
        if self == Self::Prior {
            prior.log_sd
        } else {
            0.0
        }
    }
}

/// One predicted speedup beside the measured one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Predicted {
    /// Which sweep.
    pub(crate) sweep: usize,
    /// Users.
    pub(crate) concurrency: f64,
    /// Tokens of one verify.
    pub(crate) tokens: f64,
    /// Measured.
    pub(crate) measured: f64,
    /// Predicted.
    pub(crate) speedup: f64,
    /// Accept length used: the most that the speedup can be.
    pub(crate) accept_length: f64,
    /// c x D lies beyond the sweep's last point, as the contract counts it.
    pub(crate) outside: bool,
    /// How far outside the sweep was read, ln.
    pub(crate) beyond: f64,
    /// How much slower the plain step is than explained, ln.
    pub(crate) slower: f64,
    /// Deviation of the prior's ln(accept length); 0 where one was measured.
    pub(crate) accept_log_sd: f64,
}

impl Predicted {
    /// ln(predicted / measured).
    pub(crate) fn log_error(&self) -> f64 {
        (self.speedup / self.measured).ln()
    }
}

/// Predicts every row of a sweep; `index` is carried along. The server comes from the catalogues,
/// where they have it. A plain table of the same box at empty context may be given beside the
/// sweep.
pub(crate) fn predict(
    row: &SweepRow,
    index: usize,
    rig: Option<&Rig>,
    constants: &Constants,
    accept: Accept,
    beside: Option<&SweepRow>,
) -> anyhow::Result<Vec<Predicted>> {
    match rig {
        Some(rig) => rig.known(row.context_tokens(), |known| {
            predict_on(row, index, Some(known), constants, accept, beside)
        }),
        None => predict_on(row, index, None, constants, accept, beside),
    }
}

fn predict_on(
    row: &SweepRow,
    index: usize,
    known: Option<&Known<'_>>,
    constants: &Constants,
    accept: Accept,
    beside: Option<&SweepRow>,
) -> anyhow::Result<Vec<Predicted>> {
    let sweep = plain_sweep(row, known, constants)?;
    let table = beside
        .map(|b| plain_sweep(b, known, constants))
        .transpose()?;
    let verified = f64::from(row.draft_tokens.max(1));
    let readings: Vec<f64> = row.points.iter().filter_map(|p| p.accept_length).collect();
    let prior = row.prior();
    let pooled = steady_level(&readings, prior);
    let last = row.points.last().map_or(0.0, |p| p.concurrency);
    let mut calibrated = None;
    let mut found = Vec::with_capacity(row.points.len());
    for point in &row.points {
        let speculation = Speculation {
            concurrency: point.concurrency,
            verified_tokens: verified,
            draft_steps: f64::from(row.depth),
        };
        let mut law = sweep.cycle(known, &speculation);
        if let Some(table) = &table {
            let times = verify_multiplier(row);
            law = law.beside_short_context(table.sweep(), &speculation, times);
        }
        let implied = law.accept_length_of_tok_s(point.spec_tok_s, point.concurrency);
        let accept_length = match (accept, point.accept_length, calibrated) {
            (Accept::Prior, _, _) => prior.accept_length,
            (Accept::Pooled, Some(own), _) => pooled.unwrap_or(own),
            (Accept::RowsOwn, Some(own), _) => own,
            (_, None, Some(level)) => level,
            (_, None, None) => {
                let level = level_of_speed(implied, law.beyond, verified, prior);
                calibrated = Some(if accept == Accept::RowsOwn {
                    implied
                } else {
                    level
                });
                continue;
            }
        };
        found.push(Predicted {
            sweep: index,
            concurrency: point.concurrency,
            tokens: point.concurrency * verified,
            measured: point.speedup(),
            speedup: law.speedup(accept_length),
            accept_length,
            outside: point.concurrency * verified > last,
            beyond: law.beyond,
            slower: sweep.slower(known, point.concurrency),
            accept_log_sd: accept.log_sd(prior),
        });
    }
    Ok(found)
}

/// How often a verify reads the KV, by attention kind and engine: vLLM's latent attention treats
/// the drafted tokens as sequences (Triton MLA on RTX PRO 6000, Kimi-K2.6: cycles at 64k follow
/// the plain step over c x D sequences), other attention reads it once.
fn verify_multiplier(row: &SweepRow) -> f64 {
    if row.shape.latent && row.engine == "vllm" {
        f64::from(row.draft_tokens)
    } else {
        1.0
    }
}

/// The law on a row's plain sweep. KV is not told apart: benches of long contexts share their
/// prompts, so the card reads far less than the sum.
fn plain_sweep(
    row: &SweepRow,
    known: Option<&Known<'_>>,
    constants: &Constants,
) -> anyhow::Result<SweepLaw> {
    let points: Vec<(f64, f64)> = row
        .points
        .iter()
        .map(|p| (p.concurrency, p.plain_tok_s))
        .collect();
    SweepLaw::of_engine(
        &steps_ms(&points),
        graph_ladder(
            &row.engine,
            row.engine_version.as_deref(),
            known.is_some_and(|known| known.whole_graphs(row.engine_version.as_deref())),
        ),
        constants.of(row),
        known.map(|k| BySequence::of(k.server, 0.0)),
    )
    .map_err(|e| crate::input::error(format!("{} {}: {e}", row.source, row.model)))
}

/// Every combination that is tried when fitting. The share of the plain step is not among them:
/// only sweeps with their own accept lengths would show it, and public reports do (its doc).
fn grid() -> impl Iterator<Item = Constants> {
    let fixed = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
    let exponents = [0.6, 0.65, 0.7, 0.75, 0.8];
    fixed.into_iter().flat_map(move |fixed_ms| {
        exponents.into_iter().map(move |exponent| Constants {
            pcie: DraftStep {
                fixed_ms,
                ..DraftStep::PCIE
            },
            exponent,
        })
    })
}

/// Sum and number of absolute errors.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(f64, usize);

impl Sum {
    fn add(&mut self, other: Self) {
        self.0 += other.0;
        self.1 += other.1;
    }

    fn mean(self) -> f64 {
        if self.1 == 0 {
            return f64::INFINITY;
        }
        self.0 / self.1 as f64
    }
}

/// For every point of the grid, each sweep's errors inside and beyond it.
pub(crate) struct Fitter {
    tried: Vec<(Constants, Vec<[Sum; 2]>)>,
}

impl Fitter {
    /// Runs the law with every combination of constants over all sweeps.
    pub(crate) fn new(rows: &[SweepRow], rigs: &[Option<Rig>]) -> anyhow::Result<Self> {
        let mut tried = Vec::new();
        for constants in grid() {
            let mut errors = Vec::with_capacity(rows.len());
            for (index, (row, rig)) in rows.iter().zip(rigs).enumerate() {
                let rig = rig.as_ref();
                let mut sums = [Sum::default(); 2];
                for p in predict(row, index, rig, &constants, Accept::Pooled, None)? {
                    sums[usize::from(p.outside)].add(Sum(p.log_error().abs(), 1));
                }
                errors.push(sums);
            }
            tried.push((constants, errors));
        }
        Ok(Self { tried })
    }

    /// The constants of least mean absolute error over the sweeps that `keep` allows: the draft
    /// step by the rows inside the sweeps, where nothing is extrapolated, then the growth by the
    /// others.
    pub(crate) fn best(&self, keep: impl Fn(usize) -> bool) -> Constants {
        let mean = |errors: &[[Sum; 2]], outside: usize| {
            let mut sum = Sum::default();
            let kept = errors.iter().enumerate().filter(|(i, _)| keep(*i));
            kept.for_each(|(_, sums)| sum.add(sums[outside]));
            sum.mean()
        };
        let least = |fixed_ms: Option<f64>, outside: usize| {
            self.tried
                .iter()
                .filter(|(c, _)| fixed_ms.is_none_or(|ms| c.pcie.fixed_ms == ms))
                .min_by(|a, b| mean(&a.1, outside).total_cmp(&mean(&b.1, outside)))
                .map_or(Constants::SHIPPED, |(constants, _)| *constants)
        };
        least(Some(least(None, 0).pcie.fixed_ms), 1)
    }
}
