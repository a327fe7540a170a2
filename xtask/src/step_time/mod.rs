//! Step time of a forward pass: the roofline that joins bytes (kvplan), rates (the GPU catalogue)
//! and links (all-reduce times come in as a function). No I/O here.
//!
//! ```text
//! step = sum over layers [ dense products + routed experts + cache reading + 2 all-reduces
//!                          + small kernels ] + output head + host
//! ```
//!
//! Every operation has a fixed part, a memory part and a compute part; efficiencies are fitted by
//! GPU family and number class on measured operations, launch and host costs by engine on measured
//! servers (docs/step-time.md says how well).

mod attention;
pub(crate) mod cycle;
mod first_draft;
mod gemm;
mod host;
mod layer;
mod moe;
mod op;
mod overhead;
mod serving;
pub(crate) mod sweep;
pub(crate) mod tiles;
pub(crate) mod verify_graphs;
pub(crate) mod walk;

use std::cell::RefCell;
use std::collections::HashMap;

use kvplan::{KvDtype, Model, Sharding};
use spec_decode::cycle::GraphLadder;

use crate::gpus::{Family, Gpu};
pub(crate) use attention::copy_us;
pub(crate) use host::waited_step_ms;
use layer::{Batch, LayerKind, Rank, head_time, layer_time};
use op::OpTime;
pub(crate) use overhead::{Engine, Overhead, before};
pub(crate) use serving::loaded;
#[cfg(test)]
pub(crate) use serving::serving;

/// All-reduce time in us of `bytes` over the ranks of the group: pcie-sim, a measured table, or a
/// user's own curve.
pub(crate) type AllReduceUs<'a> = dyn Fn(f64) -> f64 + 'a;

/// Parts of a step, ms.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub(crate) struct StepParts {
    /// Reading dense weights.
    pub(crate) weights_ms: f64,
    /// Reading the routed experts that are touched.
    pub(crate) experts_ms: f64,
    /// Reading cache and recurrent state.
    pub(crate) kv_ms: f64,
    /// Arithmetic beyond what hides behind the reading.
    pub(crate) compute_ms: f64,
    /// All-reduces and what context parallelism exchanges.
    pub(crate) allreduce_ms: f64,
    /// Launch, ramp and tail of kernels.
    pub(crate) launch_ms: f64,
    /// Host: scheduling, sampling, output.
    pub(crate) other_ms: f64,
}

impl StepParts {
    /// The step, ms.
    pub(crate) fn total(&self) -> f64 {
        self.weights_ms
            + self.experts_ms
            + self.kv_ms
            + self.compute_ms
            + self.allreduce_ms
            + self.launch_ms
            + self.other_ms
    }

    /// Sum of two.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            weights_ms: self.weights_ms + other.weights_ms,
            experts_ms: self.experts_ms + other.experts_ms,
            kv_ms: self.kv_ms + other.kv_ms,
            compute_ms: self.compute_ms + other.compute_ms,
            allreduce_ms: self.allreduce_ms + other.allreduce_ms,
            launch_ms: self.launch_ms + other.launch_ms,
            other_ms: self.other_ms + other.other_ms,
        }
    }

    /// Every part times `factor`.
    pub(crate) fn times(&self, factor: f64) -> Self {
        Self {
            weights_ms: self.weights_ms * factor,
            experts_ms: self.experts_ms * factor,
            kv_ms: self.kv_ms * factor,
            compute_ms: self.compute_ms * factor,
            allreduce_ms: self.allreduce_ms * factor,
            launch_ms: self.launch_ms * factor,
            other_ms: self.other_ms * factor,
        }
    }
}

/// What proposes tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Draft<'a> {
    /// A separate head (EAGLE, EAGLE-3) or small model.
    Head(&'a Model),
    /// The checkpoint's own multi-token-prediction layers.
    Mtp,
}

/// A draft step's own work outside the draft's forward: picking tokens, building inputs, us. The
/// plain steps' host part is paid once a cycle, in the verify. Source: [`spec_decode::cycle::DraftStep::LOCAL`].
const DRAFT_STEP_US: f64 = 120.0;

/// Once a cycle, beyond a plain step: acceptance and the next draft's inputs, us (same rows).
const CYCLE_US: f64 = 100.0;

/// Most sequences, tokens and context that are told apart; beyond, figures only need be finite.
const LARGEST: f64 = 1e9;

/// One server: a model cut over GPUs, an engine, and links.
pub(crate) struct Server<'a> {
    model: &'a Model,
    rank: Rank<'a>,
    overhead: Overhead,
    host: host::Waits,
    graphs: bool,
    ladder: GraphLadder,
    kinds: Vec<LayerKind>,
    mtp_kinds: Vec<LayerKind>,
    shared_prefix: f64,
    /// What a pass does with the cache of a layer of latent attention beside reading it, us.
    pool_cast_us: f64,
    /// The kernel that verifies, where it does not split the cache.
    walk: Option<walk::Walk>,
    /// Whether several ranks talk to each other over PCIe, not over links between GPUs.
    over_pcie: bool,
    all_reduce: &'a AllReduceUs<'a>,
    all_reduce_seen: RefCell<HashMap<u64, f64>>,
}

/// How a server is set up, beside model, GPU and links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Setup {
    /// How the model is cut.
    pub(crate) sharding: Sharding,
    /// Format of the cache.
    pub(crate) kv_dtype: KvDtype,
    /// Launch and host costs.
    pub(crate) overhead: Overhead,
    /// Whether decode and verify run in CUDA graphs.
    pub(crate) graphs: bool,
    /// The sizes of those graphs, to which passes are padded.
    pub(crate) ladder: GraphLadder,
}

impl<'a> Server<'a> {
    /// Prepares what does not depend on the operating point.
    pub(crate) fn new(
        model: &'a Model,
        gpu: &'a Gpu,
        setup: &Setup,
        all_reduce: &'a AllReduceUs<'a>,
    ) -> Self {
        Self {
            model,
            rank: Rank {
                gpu,
                sharding: setup.sharding,
                kv_dtype: setup.kv_dtype,
                hidden: model.hidden as f64,
                splits: match gpu.family {
                    Family::Hopper => setup.overhead.most_splits,
                    _ => f64::INFINITY,
                },
            },
            overhead: setup.overhead,
            host: host::Waits::default(),
            graphs: setup.graphs,
            ladder: setup.ladder,
            kinds: LayerKind::of(&model.layers),
            mtp_kinds: LayerKind::of(&model.mtp_layers),
            shared_prefix: 0.0,
            pool_cast_us: 0.0,
            walk: None,
            over_pcie: setup.sharding.tp > 1 && !gpu.links_by_itself(setup.sharding.tp),
            all_reduce,
            all_reduce_seen: RefCell::new(HashMap::new()),
        }
    }

    /// The same server with other launch and host costs.
    pub(crate) fn with_overhead(mut self, overhead: Overhead) -> Self {
        self.overhead = overhead;
        self
    }

    /// The same server where the wiring says whether its ranks talk over links between GPUs.
    pub(crate) fn on_gpu_links(mut self, on_gpu_links: bool) -> Self {
        self.over_pcie = self.rank.sharding.tp > 1 && !on_gpu_links;
        self
    }

    /// The same server whose kernels cast the pool of each layer of latent attention in every pass.
    pub(crate) fn with_pool_cast(mut self, layer_us: f64) -> Self {
        self.pool_cast_us = layer_us;
        self
    }

    /// The same server when `share` of every context is one prefix common to all sequences, which
    /// prefix caching stores once (benchmarks that send one prompt to all streams).
    pub(crate) fn with_shared_prefix(mut self, share: f64) -> Self {
        self.shared_prefix = share.clamp(0.0, 1.0);
        self
    }

    /// A plain decode step of `sequences` sequences with `context` cached tokens each, padded as the
    /// engine pads it.
    pub(crate) fn plain(&self, sequences: f64, context: f64) -> StepParts {
        self.verify(sequences, 1.0, context)
    }

    /// The sizes that passes are padded to.
    pub(crate) fn ladder(&self) -> GraphLadder {
        self.ladder
    }

    /// The same without padding: a pass over as many tokens as a padded one computes.
    pub(crate) fn unpadded(&self, sequences: f64, context: f64) -> StepParts {
        self.pass((sequences, 1.0), context, GraphLadder::Exact)
    }

    /// Share of the routed experts that a pass over `tokens` tokens touches, where there are any.
    pub(crate) fn experts_touched(&self, tokens: f64) -> Option<f64> {
        let mut curves = self.kinds.iter().filter_map(|kind| kind.touch.as_ref());
        curves.next().map(|curve| curve.share(tokens))
    }

    /// Total of [`Self::plain`], ms.
    pub(crate) fn plain_ms(&self, sequences: f64, context: f64) -> f64 {
        self.plain(sequences, context).total()
    }

    /// The target's forward over `tokens` tokens per sequence. The cache is read once, plus the
    /// engine's share for each further token. A pass over 12 tokens that replays a graph captured for
    /// 16 computes 16.
    pub(crate) fn verify(&self, sequences: f64, tokens: f64, context: f64) -> StepParts {
        self.pass((sequences, tokens), context, self.ladder)
    }

    fn pass(
        &self,
        (sequences, tokens): (f64, f64),
        context: f64,
        ladder: GraphLadder,
    ) -> StepParts {
        let sequences = bounded(sequences);
        let tokens = bounded(tokens);
        let extra = tokens - 1.0;
        let rows = ladder.padded_of(sequences, sequences * tokens);
        let batch = Batch {
            sequences,
            tokens,
            rows,
            context: context_bounded(context),
            passes: 1.0 + self.overhead.verify_pass_share * extra,
            shared_prefix: self.shared_prefix,
        };
        let mut parts = self.layers(&self.rank, &self.kinds, &batch);
        let head = head_time(&self.rank, self.model, self.model.vocab, rows);
        parts = parts.plus(&self.dense_parts(head));
        parts.other_ms += self.overhead.host_ms + self.overhead.sequence_us * sequences * 1e-3;
        if extra > 0.0 {
            // Approached from 0 so that a little more than one token costs a little more.
            parts.other_ms += CYCLE_US * 1e-3 * extra.min(1.0);
            parts.other_ms += self.overhead.verify_token_us * sequences * extra * 1e-3;
        }
        parts
    }

    /// Total of [`Self::verify`], ms.
    #[cfg(test)]
    pub(crate) fn verify_ms(&self, sequences: f64, tokens: f64, context: f64) -> f64 {
        self.verify(sequences, tokens, context).total()
    }

    /// One draft step: the draft's forward over one token per sequence, its output head, and
    /// choosing the token. `draft_tp` 1 runs the whole draft on every rank; otherwise it is cut
    /// over as many ranks and pays its all-reduces.
    pub(crate) fn draft(
        &self,
        draft: Draft<'_>,
        draft_tp: u64,
        sequences: f64,
        context: f64,
    ) -> StepParts {
        let sequences = bounded(sequences);
        let batch = Batch {
            sequences,
            tokens: 1.0,
            rows: sequences,
            context: context_bounded(context),
            passes: 1.0,
            shared_prefix: 0.0,
        };
        let mut parts = match draft {
            Draft::Mtp => self.mtp_forward(&batch),
            Draft::Head(head) => {
                let rank = Rank {
                    sharding: Sharding::tp(draft_tp),
                    hidden: head.hidden as f64,
                    ..self.rank
                };
                let kinds = LayerKind::of(&head.layers);
                let vocab = head.draft.map_or(head.vocab, |d| d.draft_vocab.max(1));
                self.layers(&rank, &kinds, &batch)
                    .plus(&self.dense_parts(head_time(&rank, head, vocab, sequences)))
            }
        };
        parts.other_ms += DRAFT_STEP_US * 1e-3;
        parts
    }

    /// One MTP module: its layers, the projection of embedding and hidden state, the full head.
    fn mtp_forward(&self, batch: &Batch) -> StepParts {
        let modules = self.model.mtp_modules.max(1) as f64;
        let mut parts = self
            .layers(&self.rank, &self.mtp_kinds, batch)
            .times(1.0 / modules);
        let numbers = op::Numbers::of(self.model.base_format, self.rank.gpu);
        let join = gemm::gemm(
            self.rank.gpu,
            &numbers,
            batch.sequences,
            self.rank.hidden,
            2.0 * self.rank.hidden,
        );
        let head = head_time(&self.rank, self.model, self.model.vocab, batch.sequences);
        parts = parts.plus(&self.dense_parts(join + head));
        parts
    }

    /// All layers of `kinds` on `rank`.
    fn layers(&self, rank: &Rank<'_>, kinds: &[LayerKind], batch: &Batch) -> StepParts {
        let mut parts = StepParts::default();
        let tokens = batch.rows;
        let ranks = rank.sharding.tp.max(1);
        let bytes = 2.0 * rank.hidden * tokens;
        let reduce_us = if ranks > 1 {
            self.all_reduce_us(bytes)
        } else {
            0.0
        };
        for kind in kinds {
            let time = layer_time(rank, kind, batch);
            let mut us = StepParts {
                weights_ms: time.dense.memory_us,
                experts_ms: time.experts.memory_us,
                kv_ms: time.cache.memory_us + self.cast_us(kind),
                compute_ms: time.dense.compute_us + time.experts.compute_us + time.cache.compute_us,
                allreduce_ms: time.all_reduces * reduce_us,
                launch_ms: 0.0,
                other_ms: 0.0,
            };
            us.allreduce_ms += time.all_reduces * self.overhead.rank_skew_us * (ranks as f64).ln();
            if rank.sharding.dcp > 1 {
                // Queries and logarithms of sums are gathered, outputs scattered (vLLM's
                // `cp_lse_ag_out_rs`): half an all-reduce each.
                us.allreduce_ms += 0.5
                    * (self.all_reduce_us(time.dcp_gather_bytes * tokens)
                        + self.all_reduce_us(time.dcp_lse_bytes * tokens)
                        + self.all_reduce_us(time.dcp_scatter_bytes * tokens));
            }
            let all = time.dense + time.experts + time.cache;
            us.launch_ms = self.launch_us(&all, time.small_kernels, us.total());
            if rank.sharding.ep > 1 {
                us.launch_ms += time.routed * self.overhead.expert_parallel_us;
            }
            parts = parts.plus(&us.times(kind.count * 1e-3));
        }
        parts
    }

    fn cast_us(&self, kind: &LayerKind) -> f64 {
        if kind.is_latent() {
            self.pool_cast_us
        } else {
            0.0
        }
    }

    /// Launch cost beside `work_us` of work: fixed parts in a graph; without one, the host's pace
    /// where it is the slower.
    fn launch_us(&self, all: &OpTime, small_kernels: f64, work_us: f64) -> f64 {
        let small_us = small_kernels * self.overhead.small_kernel_us;
        let graph_us = (all.fixed_us + small_us) * self.overhead.fixed_factor;
        if self.graphs {
            return graph_us;
        }
        let host_us = (all.kernels + small_kernels) * self.overhead.eager_launch_us;
        graph_us.max(host_us - work_us)
    }

    fn dense_parts(&self, time: OpTime) -> StepParts {
        StepParts {
            weights_ms: time.memory_us * 1e-3,
            compute_ms: time.compute_us * 1e-3,
            launch_ms: self.launch_us(&time, 0.0, time.work_us()) * 1e-3,
            ..StepParts::default()
        }
    }

    /// The given all-reduce time, asked once per size; a function that answers nonsense counts 0.
    pub(crate) fn all_reduce_us(&self, bytes: f64) -> f64 {
        let key = bytes.round().clamp(0.0, 1e18) as u64;
        if let Some(us) = self.all_reduce_seen.borrow().get(&key) {
            return *us;
        }
        let us = (self.all_reduce)(key as f64);
        let us = if us.is_finite() { us.max(0.0) } else { 0.0 };
        self.all_reduce_seen.borrow_mut().insert(key, us);
        us
    }
}

/// A count of at least 1; anything that is no number counts 1.
fn bounded(count: f64) -> f64 {
    if count.is_nan() {
        1.0
    } else {
        count.clamp(1.0, LARGEST)
    }
}

fn context_bounded(context: f64) -> f64 {
    if context.is_nan() {
        0.0
    } else {
        context.clamp(0.0, LARGEST)
    }
}

/// The folder of measured data, for tests; prints that it skips where there is none.
#[cfg(test)]
pub(crate) fn tests_data() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("SHARED_DATA").map_or_else(
        || std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")),
        std::path::PathBuf::from,
    );
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: no measured data at {}", path.display());
    None
}

#[cfg(test)]
mod tests;
