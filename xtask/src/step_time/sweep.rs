//! A plain sweep read with what the architecture says of it: the one way in which `predict`,
//! `score` and `verify-hw` turn measured plain speeds into cycles.

use kvplan::{Ffn, Model};
use spec_decode::cycle::{
    Cycle, DraftStep, GraphLadder, Growth, KvReading, Speculation, Sweep, SweepError, cycle,
};

use super::cycle::draft_step;
use super::{Draft, Server};
use crate::gpus::Gpu;

/// Share of the data sheet's bandwidth at which attention reads further KV. Source: slope of
/// `data/op_times/decode_attention_h200_sxm_vllm0.24.0.csv` (32 heads, 8 KV heads, batch 32 and
/// 64, 4k to 8k): 0.87 to 1.0.
const KV_BANDWIDTH_SHARE: f64 = 0.95;

/// Trust in the step model's growth beyond a sweep beside the sweep's own (its fitted fixed part
/// and slope), by their logarithms, for experts. Over PCIe the model errs by 0.17 there and the sweep
/// by 0.10 (rows beyond the sweeps of `data/speculation/sweeps.jsonl`): a quarter, by inverse
/// variance. Elsewhere it is at least that, and the share of the experts that the sweep's last step
/// touches: what the sweep saw grow is experts coming in, which then ends. 266 plain steps of public
/// sweeps over NVLink, each told from the lighter loads, want that or as much (docs/step-law.md).
const MODEL_SHARE_EXPERTS: f64 = 0.25;
/// Dense models take the model's: it knows where compute takes over from reading the weights,
/// which no plain sweep shows before it is reached (256 tokens on an H200, docs/HARDWARE.md).
const MODEL_SHARE_DENSE: f64 = 1.0;

/// The server that a sweep was taken on, as the step model knows it.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    /// Model, cards, engine, links.
    pub(crate) server: &'a Server<'a>,
    /// What drafts.
    pub(crate) draft: Option<Draft<'a>>,
    /// Ranks of the draft.
    pub(crate) draft_tp: u64,
    /// Cached tokens of a sequence while the sweep ran.
    pub(crate) context: f64,
}

/// The law's constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Constants {
    /// Least cost of a draft step.
    pub(crate) draft: DraftStep,
    /// How a step grows beyond the sweep.
    pub(crate) growth: Growth,
}

impl Constants {
    /// Those of a server.
    pub(crate) fn of(server: &Server<'_>) -> Self {
        Self {
            draft: draft_step(server),
            growth: growth(server.model),
        }
    }

    /// Where nothing is known of the server: a dense model on one card.
    pub(crate) const UNKNOWN: Self = Self {
        draft: DraftStep::LOCAL,
        growth: Growth::DENSE,
    };
}

/// Attention measured alone, ms: what a sweep's steps hold of it, and what verifies cost.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Attention {
    /// Of a plain step: (sequences, ms).
    pub(crate) plain_ms: Vec<(u32, f64)>,
    /// Over several tokens a sequence: (sequences, tokens, ms).
    pub(crate) of_many_ms: Vec<(u32, u32, f64)>,
}

impl Attention {
    /// Of a plain step of `sequences`: log-linear between the loads measured, by sequence outside.
    fn plain(&self, sequences: f64) -> f64 {
        let at = |&(n, ms): &(u32, f64)| (f64::from(n), ms);
        let below = self
            .plain_ms
            .iter()
            .map(at)
            .filter(|(n, _)| *n <= sequences);
        let above = self
            .plain_ms
            .iter()
            .map(at)
            .filter(|(n, _)| *n >= sequences);
        let low = below.max_by(|a, b| a.0.total_cmp(&b.0));
        let high = above.min_by(|a, b| a.0.total_cmp(&b.0));
        match (low, high) {
            (Some(low), Some(high)) if high.0 > low.0 && low.1 > 0.0 && high.1 > 0.0 => {
                let share = (sequences / low.0).ln() / (high.0 / low.0).ln();
                low.1 * (high.1 / low.1).powf(share)
            }
            (Some((n, ms)), None) | (None, Some((n, ms))) => ms * sequences / n,
            (Some((_, ms)), Some(_)) => ms,
            (None, None) => 0.0,
        }
    }

    /// Of a verify of `tokens` a sequence: as measured at this load, else as that of a plain step
    /// grew with the tokens where it was measured at the nearest load and depth.
    fn of_many(&self, sequences: f64, tokens: f64) -> f64 {
        let off = |&(n, t, _): &(u32, u32, f64)| {
            let load = (f64::from(n) / sequences).ln().abs();
            load + (f64::from(t) / tokens).ln().abs()
        };
        let plain = self.plain(sequences);
        let nearest = self
            .of_many_ms
            .iter()
            .min_by(|a, b| off(a).total_cmp(&off(b)));
        let grown = nearest.map_or(1.0, |&(n, _, ms)| ms / self.plain(f64::from(n)));
        if grown.is_finite() {
            plain * grown
        } else {
            plain
        }
    }
}

/// The cycle law on a plain sweep.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SweepLaw {
    sweep: Sweep,
    draft: DraftStep,
    experts: bool,
    /// The sweep without the reading of caches, which is then told apart.
    cache_apart: bool,
    /// Draft steps are one graph: the first pays what it does beyond the others.
    graph_draft: bool,
    attention: Attention,
}

impl SweepLaw {
    /// Of an engine: `points` are (sequences, ms of a step). What each sequence costs and a verify
    /// pays once (`by_sequence`) is taken from what grows by token.
    ///
    /// # Errors
    /// There are no points, or one is not positive.
    pub(crate) fn of_engine(
        points: &[(f64, f64)],
        ladder: GraphLadder,
        constants: Constants,
        by_sequence: Option<BySequence>,
    ) -> Result<Self, SweepError> {
        let sweep = Sweep::from_step_ms(points, ladder, constants.growth)?;
        Ok(Self {
            sweep: match by_sequence {
                Some(apart) => sweep.with_kv(apart.reading),
                None => sweep,
            },
            draft: constants.draft,
            experts: has_experts(constants.growth),
            cache_apart: by_sequence.is_some_and(|apart| apart.holds_cache),
            graph_draft: false,
            attention: Attention::default(),
        })
    }

    /// Of the stand-in: attention is measured apart, passes run as they are, and draft steps are
    /// in one graph, so that nothing but the draft's own forward is paid.
    ///
    /// # Errors
    /// There are no points, or one is not positive.
    pub(crate) fn of_stand_in(
        points: &[(u32, f64)],
        attention: Attention,
        growth: Growth,
    ) -> Result<Self, SweepError> {
        let core: Vec<(f64, f64)> = points
            .iter()
            .map(|(n, ms)| {
                let sequences = f64::from(*n);
                (sequences, ms - attention.plain(sequences))
            })
            .collect();
        Ok(Self {
            sweep: Sweep::from_step_ms(&core, GraphLadder::Exact, growth)?,
            draft: DraftStep {
                fixed_ms: 0.0,
                share_of_plain: 0.0,
            },
            experts: has_experts(growth),
            cache_apart: true,
            graph_draft: true,
            attention,
        })
    }

    /// The sweep that it reads.
    pub(crate) fn sweep(&self) -> &Sweep {
        &self.sweep
    }

    /// The cycle at a point. `known` serves what the sweep does not show: steps beyond its end,
    /// and the draft's forward.
    pub(crate) fn cycle(&self, known: Option<&Known<'_>>, at: &Speculation) -> Cycle {
        let mut law = self.on_gpu(known, at);
        law.draft_ms += known.map_or(0.0, |k| k.host_bound_ms(at, &law));
        law
    }

    /// The same as far as the GPU needs, whose host may need longer ([`Known::host_bound_ms`]).
    pub(crate) fn on_gpu(&self, known: Option<&Known<'_>>, at: &Speculation) -> Cycle {
        let mut law = cycle(&self.sweep, self.draft, at);
        let tokens = at.concurrency * at.verified_tokens.max(1.0);
        law.plain_ms += self.beyond_ms(known, at.concurrency, at.concurrency);
        law.verify_ms += self.beyond_ms(known, at.concurrency, tokens);
        law.plain_ms += self.attention.plain(at.concurrency);
        law.verify_ms += self.attention.of_many(at.concurrency, at.verified_tokens);
        let share_ms = self.draft.share_of_plain * law.plain_ms;
        let forward_ms = known
            .and_then(|k| k.draft_forward_ms(at.concurrency, law.plain_ms))
            .unwrap_or(0.0);
        law.draft_ms = at.draft_steps.max(0.0) * (self.draft.fixed_ms + share_ms.max(forward_ms));
        let more = known.filter(|_| self.graph_draft && at.draft_steps >= 1.0);
        law.draft_ms += more.and_then(|k| k.first_draft_more_ms(at)).unwrap_or(0.0);
        // A verify is a pass over the plain step's tokens and more, however the sweep scatters.
        law.verify_ms = law.verify_ms.max(law.plain_ms);
        // The sweep is of the server without the draft, whose host time may overlap the step.
        law.verify_ms += known.map_or(0.0, |k| k.server.waited_ms(at.concurrency));
        let walked = known.map_or((0.0, 0.0), |k| k.walked_ms(at));
        law.verify_ms += walked.0;
        law.draft_ms += walked.1;
        law
    }

    /// How much slower a plain step came out than the step model explains, ln; 0 where it was faster
    /// or nothing is known of the server.
    pub(crate) fn slower(&self, known: Option<&Known<'_>>, concurrency: f64) -> f64 {
        let Some(known) = known else { return 0.0 };
        let measured_ms = self.sweep.plain_ms(concurrency) + self.attention.plain(concurrency);
        let more = measured_ms / known.server.plain_ms(concurrency, known.context);
        if more.is_finite() && more > 1.0 {
            more.ln()
        } else {
            0.0
        }
    }

    /// What the step model's growth adds to the sweep's own beyond its last point (or takes from
    /// it), ms.
    fn beyond_ms(&self, known: Option<&Known<'_>>, sequences: f64, tokens: f64) -> f64 {
        let padded = self.sweep.padded_of(sequences, tokens);
        let last = self.sweep.last_tokens();
        let Some(known) = known.filter(|_| padded > last && last > 0.0) else {
            return 0.0;
        };
        let model_ms = |tokens: f64| {
            let step = known.server.unpadded(tokens, known.context);
            step.total() - if self.cache_apart { step.kv_ms } else { 0.0 }
        };
        let own_ms = self.sweep.core_ms(padded);
        let model_ms = self.sweep.core_ms(last) * (model_ms(padded) / model_ms(last)).max(1.0);
        let more_ms = own_ms * ((model_ms / own_ms).powf(self.model_share(known)) - 1.0);
        if more_ms.is_finite() { more_ms } else { 0.0 }
    }

    fn model_share(&self, known: &Known<'_>) -> f64 {
        if !self.experts {
            return MODEL_SHARE_DENSE;
        }
        let touched = known.server.experts_touched(self.sweep.last_tokens());
        let touched = touched.filter(|_| !known.server.over_pcie);
        MODEL_SHARE_EXPERTS.max(touched.unwrap_or(0.0))
    }
}

fn has_experts(growth: Growth) -> bool {
    // A fitted exponent differs from the shipped one; dense models have none to fit.
    growth != Growth::DENSE
}

impl Known<'_> {
    /// Whether a release of vLLM runs a verify as one whole graph there.
    pub(crate) fn whole_graphs(&self, version: Option<&str>) -> bool {
        let (model, family) = (self.server.model, self.server.rank.gpu.family);
        super::verify_graphs::Attends::of_row(model, family, version).whole(None)
    }

    /// By how much the host outlasts a cycle, ms.
    pub(crate) fn host_bound_ms(&self, at: &Speculation, law: &Cycle) -> f64 {
        let cycle_ms = law.draft_ms + law.verify_ms;
        self.server
            .host_bound_ms(at.draft_steps, at.concurrency, cycle_ms)
    }

    /// What verify and draft last longer because the kernel does not split the cache, ms: a plain sweep,
    /// whose kernel does, does not show it.
    fn walked_ms(&self, at: &Speculation) -> (f64, f64) {
        let draft = self.draft.filter(|_| at.draft_steps >= 1.0);
        let draft = draft.map(|draft| (draft, self.draft_tp));
        let tokens = at.verified_tokens.max(1.0);
        self.server
            .walk_more_ms(draft, (at.concurrency, tokens), self.context)
    }

    /// What the first draft step of a cycle costs beyond the others, ms.
    fn first_draft_more_ms(&self, at: &Speculation) -> Option<f64> {
        let tokens = at.verified_tokens.max(1.0);
        let (server, sequences) = (self.server, at.concurrency);
        Some(server.first_draft_more_ms(
            self.draft?,
            self.draft_tp,
            sequences,
            tokens,
            self.context,
        ))
    }

    /// The draft's forward over one token per sequence, ms, moved by how the plain step of the
    /// same load came out: it has the target's kinds of work on the same cards. Not where its weights
    /// are of another width, whose products are other kernels.
    fn draft_forward_ms(&self, concurrency: f64, plain_ms: f64) -> Option<f64> {
        // A prompt that all sequences share is read once: next to nothing for each.
        let own = self.context * (1.0 - self.server.shared_prefix);
        let step = self
            .server
            .draft(self.draft?, self.draft_tp, concurrency, own);
        let forward_ms = step.total() - step.other_ms;
        let moved = if self.server.widths_alike(self.draft?) {
            plain_ms / self.server.plain_ms(concurrency, self.context)
        } else {
            1.0
        };
        Some(forward_ms * moved).filter(|ms| ms.is_finite())
    }
}

/// What a step pays for each sequence, whatever the tokens that are verified of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BySequence {
    reading: KvReading,
    holds_cache: bool,
}

impl BySequence {
    /// Reading one sequence's cache once where the kernels do so (`own_tokens`: cached tokens of a
    /// sequence that no other shares, 0 where a bench gives all one prompt, which is then read
    /// once), the state of linear-attention layers once each way, and the host's sampling and
    /// output.
    pub(crate) fn of(server: &Server<'_>, own_tokens: f64) -> Self {
        let (gpu, sharding) = (server.rank.gpu, &server.rank.sharding);
        let layout = kvplan::KvLayout::new(server.rank.kv_dtype);
        let kv_bytes = server.model.kv_bytes_per_token(sharding, &layout) as f64;
        let state_bytes = server.model.state_bytes_per_request(sharding).total() as f64;
        let bytes_per_ms = gpu.bandwidth_gb_s * 1e6;
        let once = server.walks() || reads_cache_once(gpu, server.model);
        let holds_cache = own_tokens > 0.0 && once;
        let tokens = if holds_cache {
            own_tokens.max(0.0)
        } else {
            0.0
        };
        // Windows and sparse indexes read less than all that is cached.
        let cache_ms = (tokens * kv_bytes / (bytes_per_ms * KV_BANDWIDTH_SHARE))
            .min(server.plain(1.0, tokens).kv_ms);
        let ms = cache_ms + 2.0 * state_bytes / bytes_per_ms + server.overhead.sequence_us * 1e-3;
        Self {
            reading: KvReading {
                ms_per_sequence: if ms.is_finite() { ms } else { 0.0 },
                verify_multiplier: 1.0,
            },
            holds_cache,
        }
    }
}

/// Whether a verify reads a sequence's cache once for all its tokens. Kernels for grouped queries
/// pack the drafted tokens into one tile (`engine/vllm_h200.jsonl`, context 8000: as if read once),
/// and those for a latent do so on Hopper and the data-centre Blackwell. Elsewhere a latent is left
/// with what grows by token: on RTX PRO 6000 the cycles of Kimi's sweeps at 16k to 128k cost what
/// plain steps over c x D sequences cost.
fn reads_cache_once(gpu: &Gpu, model: &Model) -> bool {
    let latent = model
        .layers
        .iter()
        .any(|l| matches!(l.attention, kvplan::Attention::Mla(_)));
    !latent || matches!(gpu.arch.as_str(), "sm_90" | "sm_100" | "sm_103")
}

/// How a model's step grows beyond a sweep.
pub(crate) fn growth(model: &Model) -> Growth {
    if model.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_))) {
        Growth::EXPERTS
    } else {
        Growth::DENSE
    }
}

/// (users, tokens a second over all users) as (sequences, ms of a step).
pub(crate) fn steps_ms(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = |&(users, tok_s): &(f64, f64)| (users, 1000.0 * users / tok_s);
    points.iter().map(step).collect()
}

#[cfg(test)]
mod tests;
