//! What a plain step, a draft and a verify cost at any operating point of the scenario: from the
//! architecture and the box, or from the user's own sweep.

mod host;
mod law;
mod walk;

use kvplan::Sharding;
use spec_decode::HeadKind;
use spec_decode::cycle::Speculation;
use spec_decode::economics::{OperatingPoint, StepCost};

use self::host::HostTime;
use self::law::{law, ran_at};
use self::walk::WalkTime;
use super::answer::Parts;
use super::links::{Choice, Links};
use super::measured::Measured;
use crate::scenario::{EngineKind, Scenario};
use crate::step_time::cycle::{self as scratch, Chain};
use crate::step_time::sweep::{Known, SweepLaw};
use crate::step_time::{Draft, Engine, Overhead, Server, Setup, StepParts};
use crate::verify_hw::stand_in_overhead;

/// Cost of one speculative cycle beside a plain step.
#[derive(Debug, Clone, Copy)]
pub(super) struct CycleCost {
    pub(super) plain_ms: f64,
    pub(super) draft_ms: f64,
    pub(super) verify_ms: f64,
    pub(super) parts: Option<CycleParts>,
    /// How far the verify lies beyond the user's sweep, ln; 0 inside and without one.
    pub(super) beyond: f64,
    /// How much slower the sweep's plain step is than explained, ln; 0 without one.
    pub(super) slower: f64,
    /// What an all-reduce or a KV format other than the sweep's own changes of the speedup, ln either way.
    pub(super) moved: f64,
    /// Host time of the draft's steps, ms, and by how much the host outlasts what the GPU does; 0 where
    /// they run in CUDA graphs.
    pub(super) host: HostTime,
    /// What a verify that walks the cache takes.
    pub(super) walk: WalkTime,
}

/// Where the time goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct CycleParts {
    pub(super) plain: Parts,
    pub(super) draft: Parts,
    pub(super) verify: Parts,
}

impl CycleCost {
    /// Draft and verify, ms; a verify is never under a plain step.
    pub(super) fn cycle_ms(&self) -> f64 {
        self.draft_ms + self.verify_ms
    }

    /// Speedup at an accept length; by construction at most that length.
    pub(super) fn speedup(&self, accept_length: f64) -> f64 {
        let speedup = accept_length * self.plain_ms / self.cycle_ms();
        debug_assert!(speedup <= accept_length + 1e-9);
        speedup.min(accept_length)
    }

    /// Moves a measured cycle by the difference of two modelled ones.
    fn shift(&mut self, from: &scratch::CycleParts, to: &scratch::CycleParts) {
        self.plain_ms = moved_ms(self.plain_ms, from.plain.total(), to.plain.total());
        self.draft_ms = moved_ms(self.draft_ms, from.draft.total(), to.draft.total());
        self.verify_ms = moved_ms(self.verify_ms, from.verify.total(), to.verify.total());
        self.verify_ms = self.verify_ms.max(self.plain_ms);
    }

    /// The cycle so many times as fast; it does not end before a plain step.
    fn faster(&mut self, times: f64) {
        let whole_ms = (self.cycle_ms() / times).max(self.plain_ms);
        let verify_ms = self.verify_ms * whole_ms / self.cycle_ms();
        self.verify_ms = verify_ms.max(self.plain_ms);
        self.draft_ms = whole_ms - self.verify_ms;
    }

    /// How much shorter and longer the cycle may be, ln, by what hosts need for launching the draft.
    pub(super) fn host_doubt(&self) -> (f64, f64) {
        self.host.doubt(self.cycle_ms())
    }

    /// Accept length at which speculation breaks even.
    pub(super) fn break_even(&self) -> f64 {
        self.cycle_ms() / self.plain_ms
    }
}

/// A verify time seen on the machine, to which the model's own is moved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pin {
    /// Observed minus modelled verify, ms.
    pub(super) excess_ms: f64,
    /// The modelled verify at that point, ms.
    pub(super) modelled_ms: f64,
    /// What it held of walking the cache, ms.
    pub(super) walked_ms: f64,
    /// A plain step of one user on other boxes of the class, ms, where one was published.
    pub(super) public_plain_ms: Option<f64>,
}

/// Everything needed to cost a cycle.
pub(super) struct Costs<'a> {
    scenario: &'a Scenario,
    server: Server<'a>,
    /// The server with the all-reduce and the KV format that the sweep ran with, where others are asked for.
    swept: Option<Server<'a>>,
    pub(super) draft_tp: u32,
    law: Option<SweepLaw>,
    pub(super) pin: Option<Pin>,
    /// Speedups that were measured.
    pub(super) measured: Option<Measured>,
}

impl<'a> Costs<'a> {
    /// Prepares the costs; `all_reduces` gives the time of one all-reduce by bytes, `links` are those on
    /// which a sweep ran.
    pub(super) fn new(
        scenario: &'a Scenario,
        all_reduces: &'a AllReduces<'_>,
        links: &Links<'_>,
    ) -> anyhow::Result<Self> {
        let engine = match scenario.engine.kind {
            EngineKind::Sglang => Engine::Sglang,
            EngineKind::Vllm => Engine::Vllm,
            EngineKind::TrtLlm => Engine::Trtllm,
            EngineKind::LlamaCpp => Engine::Llamacpp,
        };
        let mut overhead = Overhead::of(engine, scenario.engine.version.as_deref());
        // The stand-in has no scheduler.
        let of_engine = scenario.served.is_none();
        overhead = match of_engine {
            true => scenario.host_costs(overhead),
            false => stand_in_overhead(overhead),
        };
        // Kernels and graphs follow the cache's format: those of a sweep are of the format that it ran with.
        let server = |us, of: &Scenario| {
            let setup = Setup {
                sharding: sharding(scenario),
                kv_dtype: of.kv_dtype,
                overhead,
                graphs: true,
                ladder: of.graph_ladder(),
            };
            let server = Server::new(&scenario.model, scenario.gpu, &setup, us);
            let server = match of_engine {
                true => {
                    let server = scenario.waiting(server).with_walk(of.walk());
                    super::pool_cast::on(server, scenario, of.kv_dtype)
                }
                false => server,
            };
            super::links::wired(server, scenario)
        };
        let asked = server(&*all_reduces.asked, scenario);
        let swept_us = all_reduces.swept.as_ref();
        let differs = swept_us.is_some() || scenario.swept_kv_dtype != scenario.kv_dtype;
        let swept = differs.then(|| {
            let us = swept_us.unwrap_or(&all_reduces.asked);
            let mut of_sweep = scenario.clone();
            of_sweep.kv_dtype = scenario.swept_kv_dtype;
            server(&**us, &of_sweep).on_gpu_links(links.all_on_gpu_links())
        });
        let law = law(scenario, swept.as_ref().unwrap_or(&asked))?;
        Ok(Self {
            scenario,
            server: asked,
            swept,
            draft_tp: scenario.tp,
            law,
            pin: None,
            measured: None,
        })
    }

    /// Whether the user's sweep is used.
    pub(super) fn has_sweep(&self) -> bool {
        self.law.is_some()
    }

    /// Draft passes of a chain: one for heads that draft all positions at once.
    fn draft_passes(&self, steps: u32) -> f64 {
        match self.scenario.draft.as_ref().map(|d| d.head) {
            None | Some(HeadKind::NGram) => 0.0,
            Some(HeadKind::Parallel) => f64::from(steps.min(1)),
            Some(_) => f64::from(steps),
        }
    }

    /// The cycle at a load and context that drafts `steps` and verifies `tokens` a sequence.
    pub(super) fn cycle(&self, users: u32, context: u64, steps: u32, tokens: u32) -> CycleCost {
        let chain = Chain {
            sequences: f64::from(users),
            verified_tokens: f64::from(tokens),
            draft_steps: self.draft_passes(steps),
            context: context as f64,
        };
        if let Some(law) = &self.law {
            return self.by_sweep(law, &chain);
        }
        let mut found = self.modelled(&chain);
        if let Some(pin) = &self.pin {
            // The excess may be negative: the machine was faster than the model.
            let least_ms = found.plain.total() - found.verify.total();
            found.verify.other_ms += pin.excess_ms.max(least_ms);
            // What was computed too much is most likely of the kernel that walks the cache.
            let lacking_ms = (-found.verify.other_ms).clamp(0.0, found.verify.kv_ms);
            found.verify.other_ms += lacking_ms;
            found.verify.kv_ms -= lacking_ms;
            found.walked_ms = (found.walked_ms - lacking_ms).max(0.0);
        }
        CycleCost {
            plain_ms: found.plain.total(),
            draft_ms: found.draft.total(),
            verify_ms: found.verify.total(),
            parts: Some(CycleParts {
                plain: parts(&found.plain),
                draft: parts(&found.draft),
                verify: parts(&found.verify),
            }),
            beyond: 0.0,
            slower: 0.0,
            moved: 0.0,
            host: HostTime {
                launched_ms: self.server.launched_ms(chain.draft_steps),
                bound_ms: found.host_bound_ms,
                hosts: self.scenario.launching_hosts(),
            },
            walk: self.walk_time(found.walked_ms),
        }
    }

    fn walk_time(&self, ms: f64) -> WalkTime {
        WalkTime {
            ms,
            band: self.scenario.walk_band(),
        }
    }

    /// The cycle from measured plain steps, moved from the context at which they ran to the chain's
    /// by what the step model says that the difference costs.
    fn by_sweep(&self, law: &SweepLaw, chain: &Chain) -> CycleCost {
        let known = self.known();
        let at = Speculation {
            concurrency: chain.sequences,
            verified_tokens: chain.verified_tokens,
            draft_steps: chain.draft_steps,
        };
        let found = law.on_gpu(Some(&known), &at);
        let host = HostTime {
            launched_ms: known.server.launched_ms(chain.draft_steps),
            bound_ms: known.host_bound_ms(&at, &found),
            hosts: self.scenario.launching_hosts(),
        };
        let mut cost = CycleCost {
            plain_ms: found.plain_ms,
            draft_ms: found.draft_ms + host.bound_ms,
            verify_ms: found.verify_ms,
            parts: None,
            beyond: found.beyond,
            slower: law.slower(Some(&known), at.concurrency),
            moved: 0.0,
            host,
            walk: self.walk_time(self.modelled(chain).walked_ms),
        };
        // Whole tokens are asked for; a sweep's own context has a half where outputs are odd.
        if (chain.context - known.context).abs() >= 1.0 {
            let ran = Chain {
                context: known.context,
                ..*chain
            };
            let from = self.modelled_by(known.server, &ran);
            cost.shift(&from, &self.modelled_by(known.server, chain));
        }
        if let Some(swept) = &self.swept {
            // The growth beyond the sweep stays that of the server that ran it: told by another
            // kernel's, a faster one made the verify longer.
            let (from, to) = (self.modelled_by(swept, chain), self.modelled(chain));
            // What another kernel's verify takes over the cache is computed in both, and measured in neither.
            let mut as_swept = cost;
            as_swept.verify_ms += to.walked_ms - from.walked_ms;
            cost.shift(&from, &to);
            cost.moved = (cost.break_even() / as_swept.break_even()).ln().abs();
        }
        if let Some(pin) = &self.pin {
            cost.verify_ms = (cost.verify_ms + pin.excess_ms).max(cost.plain_ms);
            // The verify was seen: only plain steps may lie beyond the sweep.
            let last = self.scenario.baseline.iter().flatten().last();
            let beyond = last.map_or(0.0, |(users, _)| (chain.sequences / users).ln().max(0.0));
            cost.beyond = cost.beyond.min(beyond);
        }
        if let Some(measured) = &self.measured {
            cost.faster(measured.factor(chain.sequences));
        }
        cost
    }

    fn modelled(&self, chain: &Chain) -> scratch::CycleParts {
        self.modelled_by(&self.server, chain)
    }

    /// The cycle from the architecture: the same function that `score` judges.
    fn modelled_by(&self, server: &Server<'_>, chain: &Chain) -> scratch::CycleParts {
        let draft = self.draft();
        let draft_tp = u64::from(self.draft_tp);
        scratch::cycle(server, draft, draft_tp, chain)
    }

    fn draft(&self) -> Option<Draft<'_>> {
        self.scenario.draft.as_ref()?.passes()
    }

    /// The server behind the user's sweep, at the context at which that ran.
    fn known(&self) -> Known<'_> {
        Known {
            server: self.swept.as_ref().unwrap_or(&self.server),
            draft: self.draft(),
            draft_tp: u64::from(self.draft_tp),
            context: ran_at(self.scenario),
        }
    }

    /// A verify where none was observed, ms: by the user's sweep, else from the architecture.
    pub(super) fn unpinned_verify_ms(&self, users: u32, tokens: u32, context: u64) -> f64 {
        debug_assert!(self.pin.is_none());
        self.cycle(users, context, tokens.saturating_sub(1), tokens)
            .verify_ms
    }

    /// How much longer a cycle would be, ln, if the observed verify's excess grew with the verify
    /// instead of staying what it was; 0 at the point where it was seen, and without one.
    pub(super) fn pin_doubt(&self, cost: &CycleCost) -> f64 {
        let Some(pin) = self.pin.as_ref().filter(|pin| pin.modelled_ms > 0.0) else {
            return 0.0;
        };
        let unpinned_ms = (cost.verify_ms - pin.excess_ms).max(0.0);
        let grown_ms = unpinned_ms * (1.0 + pin.excess_ms / pin.modelled_ms);
        let cycle_ms = (cost.draft_ms + grown_ms).max(cost.plain_ms);
        (cycle_ms / cost.cycle_ms()).ln()
    }
}

impl StepCost for Costs<'_> {
    fn plain_ms(&self, at: OperatingPoint) -> f64 {
        self.at(at, 1).plain_ms
    }
    fn verify_ms(&self, at: OperatingPoint, verify_tokens: u32) -> f64 {
        self.at(at, verify_tokens.saturating_sub(1)).verify_ms
    }
    fn draft_ms(&self, at: OperatingPoint, depth: u32) -> f64 {
        self.at(at, depth).draft_ms
    }
}

impl Costs<'_> {
    fn at(&self, at: OperatingPoint, depth: u32) -> CycleCost {
        let users = at.concurrency.clamp(1.0, f64::from(u32::MAX)) as u32;
        let context = at.context.clamp(0.0, 1e12) as u64;
        self.cycle(users, context, depth, depth.saturating_add(1))
    }
}

/// A measured time with the difference of two modelled ones. A shorter context takes at most the
/// share away that it takes of the modelled time: a measured step stays above 0.
fn moved_ms(measured_ms: f64, from_ms: f64, to_ms: f64) -> f64 {
    let moved_ms = measured_ms + to_ms - from_ms;
    let found_ms = if to_ms < from_ms {
        moved_ms.max(measured_ms * to_ms / from_ms)
    } else {
        moved_ms
    };
    if found_ms.is_finite() {
        found_ms
    } else {
        measured_ms
    }
}

fn sharding(scenario: &Scenario) -> Sharding {
    Sharding {
        dcp: u64::from(scenario.dcp),
        ep: u64::from(scenario.ep),
        ..Sharding::tp(u64::from(scenario.tp))
    }
}

fn parts(step: &StepParts) -> Parts {
    Parts {
        weights: step.weights_ms,
        experts: step.experts_ms,
        kv: step.kv_ms,
        compute: step.compute_ms,
        allreduce: step.allreduce_ms,
        launch: step.launch_ms,
        other: step.other_ms,
    }
}

type TimeUs<'a> = Box<dyn Fn(f64) -> f64 + 'a>;

/// Times by bytes of one all-reduce, for the step model.
pub(super) struct AllReduces<'a> {
    /// Of the algorithm asked for, us.
    asked: TimeUs<'a>,
    /// Of the one that the plain sweep ran with, where that is another, us.
    swept: Option<TimeUs<'a>>,
}

impl<'a> AllReduces<'a> {
    /// The same with other times for payloads of some sizes.
    pub(super) fn with_sizes(
        self,
        sizes: std::ops::RangeInclusive<u64>,
        other_us: impl Fn(u64) -> f64 + 'a,
    ) -> Self {
        let own = self.asked;
        let asked = move |bytes: f64| match bytes.clamp(0.0, 1e15) as u64 {
            size if sizes.contains(&size) => other_us(size),
            _ => own(bytes),
        };
        Self {
            asked: Box::new(asked),
            ..self
        }
    }

    /// The same where the plain sweep ran on other links.
    pub(super) fn swept_on(&mut self, links: &'a Links<'a>, choice: Choice) {
        self.swept = Some(time_on(links, choice));
    }
}

fn time_on<'a>(links: &'a Links<'a>, choice: Choice) -> TimeUs<'a> {
    Box::new(move |bytes| links.time_us(choice, bytes.clamp(0.0, 1e15) as u64))
}

/// Time by bytes of the chosen algorithm, and of the one behind the user's sweep.
pub(super) fn all_reduces<'a>(
    scenario: &Scenario,
    links: &'a Links<'a>,
    choice: Choice,
) -> AllReduces<'a> {
    let time = |choice: Choice| time_on(links, choice);
    let swept = scenario.baseline.as_ref();
    let swept = swept.and_then(|_| Choice::parse(&scenario.swept_allreduce).ok());
    let another = |swept: &Choice| *swept != choice && !alike(links, *swept, choice);
    AllReduces {
        asked: time(choice),
        swept: swept.filter(another).map(time),
    }
}

/// Whether two choices come to the same kernel at every size: an engine whose own choice is NCCL, and NCCL by name.
pub(super) fn alike(links: &Links<'_>, one: Choice, other: Choice) -> bool {
    (8..=28_u32).all(|power| {
        let us = |choice| links.time_us(choice, 1 << power);
        us(one) == us(other)
    })
}

#[cfg(test)]
mod tests;
