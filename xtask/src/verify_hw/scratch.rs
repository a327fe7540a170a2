//! The prediction from scratch: architecture, catalogue and all-reduce times, nothing measured.

use kvplan::Sharding;
use spec_decode::cycle::GraphLadder;

use super::law::{Point, Predicted, draft_passes};
use super::{power, standin};
use crate::scenario::{EngineKind, Scenario};
use crate::step_time::cycle::{Chain, CycleParts};
use crate::step_time::sweep::Known;
use crate::step_time::{self, Draft, Engine, Overhead, Server, Setup, StepParts};

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
        overhead = match runs {
            Runs::Engine => scenario.host_costs(overhead),
            Runs::StandIn => standin::overhead(overhead),
        };
        let mut sharding = Sharding::tp(u64::from(scenario.tp));
        sharding.dcp = u64::from(scenario.dcp);
        sharding.ep = u64::from(scenario.ep);
        let setup = Setup {
            sharding,
            kv_dtype: scenario.kv_dtype,
            overhead,
            graphs: true,
            ladder: match runs {
                Runs::Engine => scenario.graph_ladder(),
                Runs::StandIn => GraphLadder::Exact,
            },
        };
        let server = Server::new(&scenario.model, scenario.gpu, &setup, all_reduce_us);
        let server = match runs {
            Runs::Engine => scenario.waiting(server).with_walk(scenario.walk()),
            Runs::StandIn => server,
        };
        Self {
            scenario,
            runs,
            server: crate::predict::links::wired(server, scenario),
        }
    }

    /// The server of the step model.
    pub(crate) fn server(&self) -> &Server<'a> {
        &self.server
    }

    /// What the cycle law takes from the step model where sequences hold `held_tokens`.
    pub(crate) fn known(&self, held_tokens: f64) -> Known<'_> {
        Known {
            server: &self.server,
            draft: self.draft(),
            draft_tp: u64::from(self.scenario.tp),
            context: held_tokens,
        }
    }

    fn draft(&self) -> Option<Draft<'_>> {
        self.scenario.draft.as_ref()?.passes()
    }

    fn parts(&self, point: &Point) -> CycleParts {
        let chain = Chain {
            sequences: f64::from(point.concurrency),
            verified_tokens: f64::from(point.steps) + 1.0,
            draft_steps: f64::from(draft_passes(self.scenario.acceptance.head, point.steps)),
            context: point.held_tokens,
        };
        let tp = u64::from(self.scenario.tp);
        let mut parts = step_time::cycle::cycle(&self.server, self.draft(), tp, &chain);
        if self.runs == Runs::StandIn {
            // An engine's own work between draft steps; here they are one graph.
            parts.draft.other_ms = 0.0;
            if let Some(draft) = self.draft().filter(|_| chain.draft_steps >= 1.0) {
                let (sequences, tokens) = (chain.sequences, chain.verified_tokens);
                parts.draft.compute_ms +=
                    self.server
                        .first_draft_more_ms(draft, tp, sequences, tokens, chain.context);
            }
            // It routes every token by itself, where a real model's neighbours choose alike.
            let tokens = chain.sequences * chain.verified_tokens;
            let kv_ms = parts.verify.kv_ms;
            parts.verify = self.server.plain(tokens, chain.context);
            parts.verify.kv_ms = kv_ms;
            self.as_stand_in(&mut parts.verify, tokens);
            self.as_stand_in(&mut parts.plain, chain.sequences);
        }
        parts
    }

    /// An engine's pass over `tokens` tokens as the stand-in runs it: with its own kernels around
    /// the experts, and not faster than the card's power limit allows (engines' constants were
    /// fitted with it in the rows).
    fn as_stand_in(&self, pass: &mut StepParts, tokens: f64) {
        let (model, gpu) = (&self.scenario.model, self.scenario.gpu);
        pass.launch_ms -= standin::experts_spare_ms(model, gpu, tokens);
        let ranks = f64::from(self.scenario.tp.max(1));
        let work = power::Work::of(model, gpu, pass, tokens, ranks);
        let least_ms = power::least_ms(gpu, &work);
        pass.compute_ms += (least_ms - pass.total()).max(0.0);
    }

    /// A plain step, ms.
    pub(crate) fn plain_ms(&self, concurrency: u32, held_tokens: f64) -> f64 {
        let mut step = self.server.plain(f64::from(concurrency), held_tokens);
        if self.runs == Runs::StandIn {
            self.as_stand_in(&mut step, f64::from(concurrency));
        }
        step.total()
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
