//! The two predictions: calibrated from this machine's plain steps, and from scratch from the
//! catalogue. Neither sees a speculative run.

use kvplan::{KvLayout, Sharding};
use spec_decode::HeadKind;
use spec_decode::cycle::{DraftStep, GraphLadder, Growth, KvReading, Speculation, Sweep, cycle};

use crate::scenario::{EngineKind, Scenario};
use crate::step_time::cycle::{Chain, CycleParts};
use crate::step_time::{self, Draft, Engine, Overhead, Server, Setup};

/// Share of the data sheet's bandwidth at which attention reads further KV (the same figure and
/// source as in `score`: slope of measured decode attention on an H200, 0.87 to 1.0).
const KV_BANDWIDTH_SHARE: f64 = 0.95;

/// One speculative operating point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) concurrency: u32,
    /// Cached tokens per sequence in the middle of the run.
    pub(crate) held_tokens: f64,
    /// Draft steps.
    pub(crate) steps: u32,
    pub(crate) accept_length: f64,
}

/// What a prediction says of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Predicted {
    pub(crate) plain_ms: f64,
    pub(crate) verify_ms: f64,
    pub(crate) draft_step_ms: f64,
    pub(crate) cycle_ms: f64,
    pub(crate) speedup: f64,
    /// Tokens a second over all sequences.
    pub(crate) tok_s: f64,
}

/// Draft passes of a cycle: one for heads that draft all positions at once.
pub(crate) fn draft_passes(head: HeadKind, steps: u32) -> u32 {
    match head {
        HeadKind::NGram => 0,
        HeadKind::Parallel => steps.min(1),
        _ => steps,
    }
}

/// The cycle law on a plain sweep of this server.
#[derive(Debug, Clone)]
pub(crate) struct Calibrated {
    sweep: Sweep,
    draft: DraftStep,
    /// A draft step by concurrency where it was worked out from the architecture, ms.
    draft_ms: Option<Vec<(u32, f64)>>,
    /// Attention of a plain step by concurrency, ms, where it was probed; the sweep is then
    /// without it.
    attention_ms: Vec<(u32, f64)>,
    /// The same over several tokens a sequence: (concurrency, tokens, ms).
    attention_of_many_ms: Vec<(u32, u32, f64)>,
    head: HeadKind,
    pub(crate) assumed: Vec<String>,
}

impl Calibrated {
    /// From a sweep of (concurrency, tok/s of all) of a serving engine.
    ///
    /// # Errors
    /// The sweep has no usable points.
    pub(crate) fn of_engine(
        sweep: &[(f64, f64)],
        engine: &str,
        held_tokens: f64,
        scenario: Option<&Scenario>,
    ) -> anyhow::Result<Self> {
        let mut assumed = Vec::new();
        let growth = match scenario {
            Some(s) => growth(s),
            None => {
                assumed.push(
                    "a dense model (--model would settle it): how steps grow beyond the sweep"
                        .to_string(),
                );
                Growth::DENSE
            }
        };
        let ladder = GraphLadder::of_engine(engine);
        let mut sweep = Sweep::from_tok_s(sweep, ladder, growth)
            .map_err(|e| crate::input::error(format!("plain sweep: {e}")))?;
        if let Some(kv) = scenario.map(|s| kv_reading(s, held_tokens)) {
            sweep = sweep.with_kv(kv);
        } else {
            assumed.push("reading the KV cache is not told apart (--model and --gpu)".to_string());
        }
        Ok(Self {
            sweep,
            draft: draft_step(scenario),
            draft_ms: None,
            attention_ms: Vec::new(),
            attention_of_many_ms: Vec::new(),
            head: scenario.map_or(HeadKind::Eagle3, |s| s.acceptance.head),
            assumed,
        })
    }

    /// From plain steps, ms by sequences, as the stand-in measures them; with the attention of
    /// such steps as probed alone, and draft steps by concurrency.
    ///
    /// A verify's attention is the kernel's over several tokens a sequence, probed alone (or that
    /// of a plain step of as many sequences); the rest costs what a plain step of as many tokens
    /// costs.
    ///
    /// # Errors
    /// The sweep has no usable points.
    pub(crate) fn of_steps(
        steps_ms: &[(u32, f64)],
        attention_ms: &[(u32, f64)],
        attention_of_many_ms: &[(u32, u32, f64)],
        draft_ms: Vec<(u32, f64)>,
        scenario: &Scenario,
    ) -> anyhow::Result<Self> {
        let core: Vec<(f64, f64)> = steps_ms
            .iter()
            .map(|(n, ms)| {
                (
                    f64::from(*n),
                    ms - looked_up(attention_ms, *n).unwrap_or(0.0),
                )
            })
            .collect();
        let sweep = Sweep::from_step_ms(&core, GraphLadder::of_engine(""), growth(scenario))
            .map_err(|e| crate::input::error(format!("plain steps: {e}")))?;
        Ok(Self {
            sweep,
            draft: draft_step(Some(scenario)),
            draft_ms: Some(draft_ms),
            attention_ms: attention_ms.to_vec(),
            attention_of_many_ms: attention_of_many_ms.to_vec(),
            head: scenario.acceptance.head,
            assumed: Vec::new(),
        })
    }

    /// The cycle at a point.
    pub(crate) fn at(&self, point: &Point) -> Predicted {
        let passes = f64::from(draft_passes(self.head, point.steps));
        let mut law = cycle(
            &self.sweep,
            self.draft,
            &Speculation {
                concurrency: f64::from(point.concurrency),
                verified_tokens: f64::from(point.steps) + 1.0,
                draft_steps: passes,
            },
        );
        let attention = looked_up(&self.attention_ms, point.concurrency).unwrap_or(0.0);
        law.plain_ms += attention;
        let many = self.attention_of_many_ms.iter();
        law.verify_ms += many
            .filter(|(c, tokens, _)| *c == point.concurrency && *tokens == point.steps + 1)
            .map(|row| row.2)
            .next()
            .unwrap_or(attention);
        let table = self.draft_ms.as_deref().unwrap_or_default();
        if let Some(ms) = looked_up(table, point.concurrency) {
            law.draft_ms = passes * ms;
        }
        let cycle_ms = law.total_ms();
        Predicted {
            plain_ms: law.plain_ms,
            verify_ms: law.verify_ms,
            draft_step_ms: law.draft_ms / passes.max(1.0),
            cycle_ms,
            speedup: law.speedup(point.accept_length),
            tok_s: 1000.0 * f64::from(point.concurrency) * point.accept_length / cycle_ms,
        }
    }
}

fn looked_up(table: &[(u32, f64)], concurrency: u32) -> Option<f64> {
    let same = table.iter().find(|(c, _)| *c == concurrency)?;
    Some(same.1)
}

fn growth(scenario: &Scenario) -> Growth {
    let layers = &scenario.model.layers;
    if layers.iter().any(|l| matches!(l.ffn, kvplan::Ffn::Moe(_))) {
        Growth::EXPERTS
    } else {
        Growth::DENSE
    }
}

fn draft_step(scenario: Option<&Scenario>) -> DraftStep {
    match scenario {
        Some(s) if s.tp > 1 && s.gpu.nvlink_gb_s <= 0.0 => DraftStep::PCIE,
        _ => DraftStep::LOCAL,
    }
}

/// Reading one sequence's cache once, from the architecture and the card's bandwidth.
fn kv_reading(scenario: &Scenario, held_tokens: f64) -> KvReading {
    let bytes = scenario.model.kv_bytes_per_token(
        &Sharding::tp(u64::from(scenario.tp)),
        &KvLayout::new(scenario.kv_dtype),
    );
    let bytes_per_ms = scenario.gpu.bandwidth_gb_s * 1e6 * KV_BANDWIDTH_SHARE;
    KvReading {
        ms_per_sequence: held_tokens * bytes as f64 / bytes_per_ms,
        verify_multiplier: 1.0,
    }
}

/// Launch and host costs of what runs the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// The scenario's serving engine.
    Engine,
    /// The stand-in model: graphs, a small host loop.
    StandIn,
}

/// The prediction from architecture, catalogue and all-reduce times.
pub(crate) struct Scratch<'a> {
    scenario: &'a Scenario,
    runs: Runs,
    server: Server<'a>,
    ladder: GraphLadder,
}

impl<'a> Scratch<'a> {
    /// Prepares it; `all_reduce_us` gives the time of one all-reduce by bytes.
    pub(crate) fn new(
        scenario: &'a Scenario,
        runs: Runs,
        all_reduce_us: &'a dyn Fn(f64) -> f64,
    ) -> Self {
        let engine = match scenario.engine.kind {
            EngineKind::Sglang => Engine::Sglang,
            EngineKind::Vllm => Engine::Vllm,
            EngineKind::TrtLlm => Engine::Trtllm,
            EngineKind::LlamaCpp => Engine::Llamacpp,
        };
        let mut overhead = Overhead::of(engine, scenario.engine.version.as_deref());
        if runs == Runs::StandIn {
            overhead = super::standin::overhead(overhead);
        }
        let mut sharding = Sharding::tp(u64::from(scenario.tp));
        sharding.dcp = u64::from(scenario.dcp);
        let setup = Setup {
            sharding,
            kv_dtype: scenario.kv_dtype,
            overhead,
            graphs: true,
        };
        let ladder = match runs {
            Runs::Engine => GraphLadder::of_engine(scenario.engine.kind.name()),
            Runs::StandIn => GraphLadder::of_engine(""),
        };
        Self {
            scenario,
            runs,
            server: Server::new(&scenario.model, scenario.gpu, &setup, all_reduce_us),
            ladder,
        }
    }

    fn draft(&self) -> Option<Draft<'_>> {
        let draft = self.scenario.draft.as_ref()?;
        Some(draft.model.as_ref().map_or(Draft::Mtp, Draft::Head))
    }

    fn parts(&self, point: &Point) -> CycleParts {
        let chain = Chain {
            sequences: f64::from(point.concurrency),
            verified_tokens: f64::from(point.steps) + 1.0,
            draft_steps: f64::from(draft_passes(self.scenario.acceptance.head, point.steps)),
            context: point.held_tokens,
        };
        let tp = u64::from(self.scenario.tp);
        let mut parts = step_time::cycle::cycle(&self.server, self.draft(), tp, &chain, |n| {
            self.ladder.padded(n)
        });
        if self.runs == Runs::StandIn {
            // An engine's own work between draft steps; here they are one graph.
            parts.draft.other_ms = 0.0;
            // It routes every token by itself, where a real model's neighbours choose alike.
            let tokens = chain.sequences * chain.verified_tokens;
            let kv_ms = parts.verify.kv_ms;
            parts.verify = self.server.plain(tokens, chain.context);
            parts.verify.kv_ms = kv_ms;
        }
        parts
    }

    /// A plain step, ms.
    pub(crate) fn plain_ms(&self, concurrency: u32, held_tokens: f64) -> f64 {
        self.server.plain_ms(f64::from(concurrency), held_tokens)
    }

    /// One draft step, ms.
    pub(crate) fn draft_step_ms(&self, concurrency: u32, held_tokens: f64) -> Option<f64> {
        let tp = u64::from(self.scenario.tp);
        let draft = self.draft()?;
        let step = self
            .server
            .draft(draft, tp, f64::from(concurrency), held_tokens);
        Some(match self.runs {
            Runs::Engine => step.total(),
            Runs::StandIn => step.total() - step.other_ms,
        })
    }

    /// The cycle at a point.
    pub(crate) fn at(&self, point: &Point) -> Predicted {
        let parts = self.parts(point);
        let passes = draft_passes(self.scenario.acceptance.head, point.steps);
        let cycle_ms = parts.total_ms();
        Predicted {
            plain_ms: parts.plain.total(),
            verify_ms: parts.verify.total(),
            draft_step_ms: parts.draft.total() / f64::from(passes.max(1)),
            cycle_ms,
            speedup: parts.speedup(point.accept_length),
            tok_s: 1000.0 * f64::from(point.concurrency) * point.accept_length / cycle_ms,
        }
    }
}
