//! Areas `speedup.from_scratch` and `engine.from_scratch`: the same rows without the sweep, from
//! model, card, ranks and engine alone.

use std::path::Path;

use anyhow::Context as _;
use kvplan::{KvDtype, Model, Sharding};
use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};
use spec_decode::HeadKind;
use spec_decode::bands::{AcceptSource, Situation, StepSource};
use spec_decode::cycle::{level_of_speed, steady_level};

use super::Area;
use super::engine::EngineRow;
use super::names::Names;
use super::speedup::law::{Accept, Predicted};
use super::speedup::rows::{SweepRow, load};
use super::speedup::{Scored, Verdicts, by_source};
use crate::gpus::Gpu;
use crate::scenario::hardware::{BoxRequest, resolve};
use crate::step_time::cycle::{Chain, CycleParts, cycle, graph_ladder};
use crate::step_time::sweep::Known;
use crate::step_time::verify_graphs::Attends;
use crate::step_time::{Draft, Engine, Overhead, Server, Setup};

/// Everything that a server is made of.
pub(crate) struct Rig {
    model: Model,
    draft: Option<kvplan::catalog::Draft>,
    gpu: &'static Gpu,
    topology: Topology,
    ranks: Vec<usize>,
    setup: Setup,
    /// Share of the context that all streams have in common.
    shared_prefix: f64,
}

/// What a row says of its server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Catalogue name of the model.
    pub(crate) model: &'a str,
    /// Precision, where known.
    pub(crate) quant: Option<&'a str>,
    /// Catalogue name of the card.
    pub(crate) gpu: &'a str,
    /// Tensor-parallel size.
    pub(crate) tp: u32,
    /// Decode-context-parallel size.
    pub(crate) dcp: u32,
    /// Engine.
    pub(crate) engine: &'a str,
    /// Its version.
    pub(crate) version: Option<&'a str>,
    /// Head kind.
    pub(crate) head: HeadKind,
}

impl Rig {
    /// Builds the server of a row from the catalogues.
    ///
    /// # Errors
    /// Something is not in a catalogue.
    pub(crate) fn new(asked: &Asked<'_>) -> anyhow::Result<Self> {
        let found = kvplan::catalog::find_in(asked.model, asked.quant)?;
        let hardware = resolve(&BoxRequest {
            gpu: Some(asked.gpu.to_string()),
            gpus: Some(asked.tp),
            ..BoxRequest::default()
        })?;
        let arch = Arch::parse(&hardware.gpu.arch).unwrap_or(Arch::AMPERE);
        let topology = Topology::from_spec(&hardware.wiring, arch)?;
        let engine = Engine::parse(asked.engine).context("unknown engine")?;
        let sharding = Sharding {
            dcp: u64::from(asked.dcp),
            ..Sharding::tp(u64::from(asked.tp))
        };
        let attends = Attends::of_row(&found.model, hardware.gpu.family, asked.version);
        let ladder = graph_ladder(asked.engine, asked.version, attends.whole(None));
        Ok(Self {
            draft: kvplan::catalog::find_draft(asked.model, asked.head.name()).ok(),
            model: found.model,
            gpu: hardware.gpu,
            topology,
            ranks: (0..asked.tp as usize).collect(),
            setup: Setup {
                sharding,
                kv_dtype: KvDtype::Bf16,
                overhead: Overhead::of(engine, asked.version),
                graphs: true,
                ladder,
            },
            shared_prefix: 0.0,
        })
    }

    /// The same server with a head that has no output head of its own.
    pub(crate) fn lend_output_head(&mut self) {
        if let Some(kvplan::catalog::Draft::Head { model, .. }) = &mut self.draft {
            crate::scenario::lend_output_head(model, &self.model);
        }
    }

    /// All-reduce as the engine would run it, us.
    fn all_reduce_us(&self, bytes: f64) -> f64 {
        let options = Options::default();
        let bytes = bytes as u64;
        all_reduce(
            &self.topology,
            &self.ranks,
            Algorithm::Engine,
            bytes,
            &options,
        )
        .map_or(0.0, |time| time.time_us)
    }

    /// Hands the server to `then`, as it is while sequences hold `context` cached tokens.
    pub(crate) fn known<T>(&self, context: f64, then: impl FnOnce(&Known<'_>) -> T) -> T {
        let reduce = |bytes: f64| self.all_reduce_us(bytes);
        let server = Server::new(&self.model, self.gpu, &self.setup, &reduce)
            .with_shared_prefix(self.shared_prefix)
            .on_gpu_links(self.topology.worst_class(&self.ranks).is_gpu_link());
        then(&Known {
            server: &server,
            draft: self.draft.as_ref().map(|d| match d {
                kvplan::catalog::Draft::Mtp => Draft::Mtp,
                kvplan::catalog::Draft::Head { model, .. } => Draft::Head(model),
            }),
            draft_tp: self.setup.sharding.tp,
            context,
        })
    }

    /// Cycles of several chains.
    pub(crate) fn cycles(&self, chains: &[Chain]) -> Vec<CycleParts> {
        self.known(0.0, |known| {
            let of = |chain: &Chain| cycle(known.server, known.draft, known.draft_tp, chain);
            chains.iter().map(of).collect()
        })
    }
}

/// A rig for a sweep's row.
pub(crate) fn rig(row: &SweepRow, names: &Names) -> anyhow::Result<Rig> {
    let (model, quant) = names.model(&row.model);
    let mut rig = Rig::new(&Asked {
        model,
        quant,
        gpu: names.gpu(&row.gpu),
        tp: row
            .tp
            .context("the row does not say its tensor parallelism")?,
        dcp: row.dcp.unwrap_or(1),
        engine: &row.engine,
        version: row.engine_version.as_deref(),
        head: HeadKind::parse(&row.method)?,
    })?;
    // This benchmark fills every stream's context with one prompt, which is cached once.
    rig.shared_prefix = f64::from(u8::from(row.source.starts_with("rtx6kpro/")));
    Ok(rig)
}

/// Predicts the rows of one sweep; accept lengths as for the areas that read the sweep.
fn predict(rig: &Rig, row: &SweepRow, index: usize, accept: Accept) -> Vec<Predicted> {
    let chains: Vec<Chain> = row
        .points
        .iter()
        .map(|p| Chain {
            sequences: p.concurrency,
            verified_tokens: f64::from(row.draft_tokens.max(1)),
            draft_steps: f64::from(row.depth),
            context: row.context_tokens(),
        })
        .collect();
    let readings: Vec<f64> = row.points.iter().filter_map(|p| p.accept_length).collect();
    let prior = row.prior();
    let pooled = steady_level(&readings, prior);
    let last = row.points.last().map_or(0.0, |p| p.concurrency);
    let mut calibrated = None;
    let mut found = Vec::new();
    for (point, cycle) in row.points.iter().zip(rig.cycles(&chains)) {
        let ratio = cycle.speedup(1.0);
        let accept_length = match (accept, pooled, calibrated) {
            (Accept::Prior, _, _) => prior.accept_length,
            (_, Some(level), _) | (_, None, Some(level)) => level,
            (_, None, None) => {
                let verified = f64::from(row.draft_tokens.max(1));
                let implied = point.speedup() / ratio;
                calibrated = Some(level_of_speed(implied, SCRATCH_BEYOND, verified, prior));
                continue;
            }
        };
        found.push(Predicted {
            sweep: index,
            concurrency: point.concurrency,
            tokens: point.concurrency * f64::from(row.draft_tokens.max(1)),
            measured: point.speedup(),
            speedup: accept_length * ratio,
            accept_length,
            outside: point.concurrency * f64::from(row.draft_tokens) > last,
            beyond: 0.0,
            slower: 0.0,
            accept_log_sd: accept.log_sd(prior),
        });
    }
    found
}

/// Trust in an accept length that is inferred through a scratch cycle: as if the sweep were left
/// by this much (ln), whose error is about as large.
const SCRATCH_BEYOND: f64 = 0.7;

/// Every row of every sweep that can be placed, and how many cannot.
pub(crate) fn scored(data: &Path, accept: Accept) -> anyhow::Result<(Vec<Scored>, usize)> {
    let (rows, mut skipped) = super::speedup::rows::load(data)?;
    let names = Names::load(data)?;
    let source = match accept {
        Accept::Prior => AcceptSource::Prior,
        Accept::Pooled | Accept::RowsOwn => AcceptSource::Measured,
    };
    let situation = Situation::new(StepSource::Scratch, source);
    let mut found = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        match rig(row, &names) {
            Ok(rig) => found.extend(
                predict(&rig, row, index, accept)
                    .into_iter()
                    .map(|p| Scored::new(p, situation, &row.source)),
            ),
            Err(_) => skipped += row.points.len(),
        }
    }
    Ok((found, skipped))
}

/// Every speculative row of `engine/*.jsonl`, and how many cannot be placed.
pub(crate) fn engine_scored(data: &Path) -> anyhow::Result<(Vec<Scored>, usize)> {
    let names = Names::load(data)?;
    let situation = Situation::new(StepSource::Scratch, AcceptSource::Measured);
    let (rows, mut skipped) = super::engine::load(data)?;
    let mut found = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        if row.method == "none" {
            continue;
        }
        match predict_engine(row, index, &names) {
            Some(predicted) => found.push(Scored::new(predicted, situation, "engine")),
            None => skipped += 1,
        }
    }
    Ok((found, skipped))
}

fn predict_engine(row: &EngineRow, index: usize, names: &Names) -> Option<Predicted> {
    let rig = row.rig(names)?;
    let depth = f64::from(row.num_speculative_tokens?);
    let accept_length = row.accept_length_observed?;
    let chain = |sequences: f64| Chain {
        sequences,
        verified_tokens: depth + 1.0,
        draft_steps: depth,
        context: row.held_tokens(),
    };
    let one = |users: f64| rig.cycles(&[chain(users)]).into_iter().next();
    let cycle = one(row.concurrency)?;
    let stretch = row.stretch(|users| one(users).map_or(0.0, |c| c.total_ms()));
    Some(Predicted {
        sweep: index,
        concurrency: row.concurrency,
        tokens: row.concurrency * (depth + 1.0),
        measured: row.speedup_measured?,
        speedup: cycle.speedup(accept_length) / stretch,
        accept_length,
        outside: false,
        beyond: 0.0,
        slower: 0.0,
        accept_log_sd: 0.0,
    })
}

/// Areas `speedup.from_scratch` and `engine.from_scratch`.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let (scored, skipped) = scored(data, Accept::Pooled)?;
    let (sweeps, _) = load(data)?;
    let rows: Vec<&Scored> = scored.iter().collect();
    let mut area = Area::new("speedup.from_scratch").with_errors(&sizes(&scored));
    area.rows = scored.iter().map(|s| s.shown(&sweeps)).collect();
    area.skipped = skipped;
    let verdicts = Verdicts::of(&rows, &scored);
    area.right = verdicts.balanced();
    area.notes.push(verdicts.note());
    area.notes.extend(by_source(&rows));
    let (engine, skipped) = engine_scored(data)?;
    let mut engine_area = Area::new("engine.from_scratch").with_errors(&sizes(&engine));
    engine_area.skipped = skipped;
    engine_area.notes = by_source(&engine.iter().collect::<Vec<_>>());
    Ok(vec![area, engine_area])
}

fn sizes(scored: &[Scored]) -> Vec<f64> {
    scored
        .iter()
        .map(|s| s.predicted.log_error().abs())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speedups_from_scratch_hold_their_figures() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let areas = score(&data).unwrap_or_else(|e| panic!("{e:#}"));
        assert!(
            areas[0].median_error.is_some_and(|e| e <= 0.12),
            "{areas:?}"
        );
        assert!(
            areas[1].median_error.is_some_and(|e| e <= 0.10),
            "{areas:?}"
        );
    }
}
