//! What a plan is made for, and what comes out.

use crate::engine::Engine;
use crate::formats::KvDtype;
use crate::groups::PrefixStates;
use crate::ledger::Ledger;
use crate::loading::Loading;
use crate::model::Model;
use crate::pool::{Pool, StateBlocks};
use crate::proven::Fate;
use crate::refusal::Refusal;
use crate::weights::Sharding;

/// Everything a plan needs. Capacities come in as numbers; nothing here knows devices.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// The served model.
    pub model: &'a Model,
    /// The same as stored, where the engine makes the weight format itself while it loads.
    pub checkpoint: Option<&'a Model>,
    /// How it is spread.
    pub sharding: Sharding,
    /// Engine and version.
    pub engine: Engine,
    /// Capacity of one card as `nvidia-smi` says, GiB (MiB / 1024).
    pub card_gib: f64,
    /// Whether the engine takes its server-class defaults for this card (vLLM: 70 GiB and more, and neither
    /// an A100 nor a GB10, whose capacity NVML does not give). `None` decides by capacity.
    pub big_card: Option<bool>,
    /// Whether the card has engine kernels for MXFP4 (Hopper, server Blackwell); others go through
    /// Marlin, which pads more. `None` takes them for there.
    pub mxfp4_kernels: Option<bool>,
    /// Compute capability of the card, its first number (9: Hopper, 10: server Blackwell, 12: RTX 50); `None`
    /// where it is not known.
    pub compute_major: Option<u64>,
    /// Multiprocessors of the card; `None` takes the usual number at its capacity.
    pub sm_count: Option<u64>,
    /// Whether the card's memory is the host's (GB10, Jetson, GH200 as an integrated device).
    pub unified_memory: bool,
    /// Whether the engine's own all-reduce may run, whose buffers it then holds.
    pub custom_all_reduce: bool,
    /// Memory fraction asked for; `None` takes the engine's own.
    pub fraction: Option<f64>,
    /// KV cache format; `None` takes what the engine takes by itself ([`crate::kv_by_itself`]).
    pub kv_dtype: Option<KvDtype>,
    /// Longest context the engine is told to serve; `None` takes the model's.
    pub context_tokens: Option<u64>,
    /// Longest request that it takes, where that is more than `context_tokens`: SGLang's table of requests
    /// and its own choice of requests at once are of it, and vLLM's workspaces of sparse attention.
    pub served_context: Option<u64>,
    /// Requests the engine is told to run at once.
    pub max_running: Option<u64>,
    /// Tokens of one forward pass at most (chunked prefill size, max_num_batched_tokens).
    pub batched_tokens: Option<u64>,
    /// Largest batch that is captured as a graph; 0: none are.
    pub graph_max_batch: Option<u64>,
    /// Cap on the tokens of the pool.
    pub max_total_tokens: Option<u64>,
    /// Tokens of a KV page.
    pub page_tokens: Option<u64>,
    /// State slots pinned by the user (`--max-mamba-cache-size`).
    pub state_slots: Option<u64>,
    /// Share of the state pool in hybrids (`--mamba-full-memory-ratio`).
    pub state_ratio: Option<f64>,
    /// What vLLM keeps of states for prefix caching; `None` takes its own choice.
    pub prefix_states: Option<PrefixStates>,
    /// Speculation, where there is any.
    pub speculation: Option<Speculation<'a>>,
    /// What was observed; it wins over what is computed.
    pub observed: Observed,
}

/// Which draft, how deep.
#[derive(Debug, Clone, Copy)]
pub struct Speculation<'a> {
    /// What drafts.
    pub kind: SpecKind,
    /// The draft model; `None` for the target's own MTP layers and for drafts without weights.
    pub draft: Option<&'a Model>,
    /// Draft steps.
    pub steps: u64,
    /// Tree width.
    pub topk: u64,
    /// Tokens the target verifies per sequence.
    pub draft_tokens: u64,
}

/// Kinds of drafts, as engines tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecKind {
    /// The target's own MTP (NextN) layers.
    Mtp,
    /// EAGLE and EAGLE-3 heads.
    Eagle,
    /// A separate, complete model.
    Standalone,
    /// Block drafts (DFlash and kin).
    Block,
    /// No weights: n-gram, suffix.
    Ngram,
}

/// Figures from a log.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observed {
    /// Free before the weights were loaded, GiB, least of all ranks.
    pub free_before_gib: Option<f64>,
    /// Free after the weights were loaded, GiB, least of all ranks.
    pub free_after_gib: Option<f64>,
    /// Size of the KV pool, GiB.
    pub pool_gib: Option<f64>,
    /// Utilisation of the run whose pool was seen (vLLM): the pool of another one is larger or smaller by that
    /// share of the card, all else as it was. `None`: the one asked for.
    pub pool_fraction: Option<f64>,
    /// States of linear and Mamba layers beside the KV pool, GiB, those of drafted tokens included.
    pub state_gib: Option<f64>,
    /// Tokens of the KV pool.
    pub tokens: Option<u64>,
    /// Longest request that the run whose tokens were counted was told to take, tokens: what vLLM counts of a
    /// hybrid follows it. `None`: the configured context.
    pub tokens_context: Option<u64>,
    /// Tokens that the run whose pool was seen verified for a sequence (vLLM); `None`: as asked for.
    pub draft_tokens: Option<u64>,
    /// Requests at once of the run that these figures are of; `None`: as many as asked for.
    pub running: Option<u64>,
    /// Tokens of one pass at most of that run; `None`: as many as asked for.
    pub batched_tokens: Option<u64>,
    /// Largest batch that the run whose graphs were seen captured; `None`: the engine's own.
    pub graph_max_batch: Option<u64>,
    /// The target's weights as the engine printed them, GiB, less a draft's that it loads with them.
    pub weights_gib: Option<f64>,
    /// The draft's weights as the engine printed them, GiB, where it loads them apart.
    pub draft_gib: Option<f64>,
    /// Capacity as torch sees it, GiB (vLLM's base for the utilisation).
    pub torch_total_gib: Option<f64>,
    /// What vLLM's profile run took.
    pub profile: Option<crate::VllmProfile>,
    /// What all graphs took, SGLang's of prefills left out, GiB.
    pub graph_gib: Option<f64>,
    /// What of `graph_gib` the draft's graphs took, where the log shows them apart; negative where more of
    /// its load was given back.
    pub draft_graph_gib: Option<f64>,
    /// What the target's graphs alone took, GiB, where the log shows them apart.
    pub target_graph_gib: Option<f64>,
    /// What SGLang's graphs of prefills took, 0 where it captured none, GiB.
    pub prefill_graph_gib: Option<f64>,
    /// Whether the run whose graphs were seen drafted: SGLang then captures other sizes.
    pub graphs_with_draft: bool,
    /// Whether `free_after_gib` was seen with the draft loaded.
    pub free_after_with_draft: bool,
    /// Whether pool, tokens and graphs are of a run with the draft; else of one without it.
    pub pool_with_draft: bool,
    /// Whether the server that the figures come from got past its pool: then the pool is its own,
    /// whatever the estimates say.
    pub served: bool,
    /// How it ended, where that is known: what it proves of the room beside the pool.
    pub fate: Option<Fate>,
}

/// The answer.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whether the engine starts and one request of the configured context fits.
    pub fits: bool,
    /// The fraction used.
    pub fraction: f64,
    /// Where the fraction comes from.
    pub fraction_source: String,
    /// The engine's own fraction for this card, where it has one.
    pub automatic_fraction: Option<f64>,
    /// KV pool of the target, GiB on one card.
    pub pool_gib: f64,
    /// Tokens in the pool, over all decode-context ranks; of vLLM's hybrids requests x the longest.
    pub kv_tokens: u64,
    /// Tokens of the requests that those of a hybrid are counted in (vLLM).
    pub tokens_in_requests_of: Option<u64>,
    /// Bytes one token takes on one card, draft included where the engine prices it there.
    pub kv_bytes_per_token: f64,
    /// KV format used.
    pub kv_dtype: KvDtype,
    /// Requests at once that the engine allows: the setting, cut by what the state slots carry.
    pub max_running: u64,
    /// Requests at once that the engine is told to run, or takes by itself.
    pub running_setting: u64,
    /// Slots of linear and Mamba layers, where the engine keeps them in a pool of their own.
    pub state_slots: Option<StateSlots>,
    /// Requests of the configured context that the pool holds.
    pub max_concurrency: f64,
    /// How many requests of any context the pool holds.
    pub pool: Pool,
    /// The same at the low end of the pool's 90 % band, where it is an estimate that the start hangs on
    /// (vLLM).
    pub pool_low: Option<Pool>,
    /// Configured context, tokens.
    pub context_tokens: u64,
    /// Longest context of one request that the pool holds.
    pub longest_context: u64,
    /// What the states of requests at once want of the pool, where the start hangs on it (vLLM).
    pub state_blocks: Option<StateBlocks>,
    /// Fractions that work.
    pub interval: Interval,
    /// Why it does not start.
    pub refusal: Option<Refusal>,
    /// What stands on the card while it loads, where that does not fit.
    pub loading: Option<Loading>,
    /// Weights of the target on one card, GiB, as computed or observed.
    pub weights_gib: f64,
    /// Weights of the target on one card, GiB, computed from the architecture.
    pub computed_weights_gib: f64,
    /// Every GiB.
    pub ledger: Ledger,
    /// Assumptions, to be printed.
    pub assumptions: Vec<String>,
}

/// Slots for the state of linear and Mamba layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateSlots {
    /// Slots that requests and kept prefixes share.
    pub slots: u64,
    /// Slots that the engine counts for a running request.
    pub per_request: u64,
}

impl StateSlots {
    /// Requests at once that the slots carry.
    pub fn requests(self) -> u64 {
        self.slots / self.per_request.max(1)
    }
}

/// Fractions between the pool wall and the activation wall.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// At or below this the engine refuses: no room for the pool. Above 1 where that takes more than
    /// there is; infinite where nothing is left that it could be a share of.
    pub min: f64,
    /// Above this it starts and dies: no room for what lies outside the fraction.
    pub max: f64,
    /// Band of `max`, which rests on estimates.
    pub max_low: f64,
    /// High end of that band.
    pub max_high: f64,
}

impl Interval {
    /// Whether no fraction works.
    pub fn is_empty(&self) -> bool {
        self.min >= self.max
    }
}

/// A plan cannot be made at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// Which input.
    pub input: String,
    /// What is wrong and how to mend it.
    pub message: String,
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.input, self.message)
    }
}

impl std::error::Error for PlanError {}

/// Capacity as `nvidia-smi` prints it, from the capacity that torch and the CUDA driver report:
/// 0.5 GiB more (H100, H200, RTX PRO 6000, RTX 3090).
pub fn card_gib_from_torch(torch_total_gib: f64) -> f64 {
    torch_total_gib + crate::parts::TORCH_CANNOT_SEE_GIB
}

/// Utilisations that differ by no more are one: they are typed with three digits and pasted
/// rounded up.
pub(crate) const SAME_FRACTION: f64 = 0.0011;

impl<'a> Setup<'a> {
    /// A setup with everything left to the engine.
    pub fn new(model: &'a Model, sharding: Sharding, engine: Engine, card_gib: f64) -> Self {
        Self {
            model,
            checkpoint: None,
            sharding,
            engine,
            card_gib,
            big_card: None,
            mxfp4_kernels: None,
            compute_major: None,
            sm_count: None,
            unified_memory: false,
            custom_all_reduce: true,
            fraction: None,
            kv_dtype: None,
            context_tokens: None,
            served_context: None,
            max_running: None,
            batched_tokens: None,
            graph_max_batch: None,
            max_total_tokens: None,
            page_tokens: None,
            state_slots: None,
            state_ratio: None,
            prefix_states: None,
            speculation: None,
            observed: Observed::default(),
        }
    }

    /// Configured context, tokens; at least 1.
    pub fn context(&self) -> u64 {
        // Where neither says: what early Llama models had, so that nothing divides by zero.
        self.context_tokens
            .or(self.model.max_positions)
            .unwrap_or(4096)
            .max(1)
    }

    /// Longest request that it takes, tokens; at least the context.
    pub(crate) fn served(&self) -> u64 {
        self.served_context.unwrap_or(0).max(self.context())
    }

    /// Whether the observed pool is of a run that drafted, or not, as this setup does.
    pub(crate) fn pool_is_its_own(&self) -> bool {
        self.speculation.is_some() == self.observed.pool_with_draft
    }

    /// What the utilisation asked for adds to that of the run whose pool was seen.
    fn fraction_moved(&self) -> f64 {
        let both = self.fraction.zip(self.observed.pool_fraction);
        let moved = both.map_or(0.0, |(asked, seen)| asked - seen);
        if moved.abs() > SAME_FRACTION {
            moved
        } else {
            0.0
        }
    }

    /// The pool that was seen, at the utilisation asked for, GiB.
    pub(crate) fn pool_seen_gib(&self, total_gib: f64) -> Option<f64> {
        let pool = self.observed.pool_gib?;
        Some(pool + self.fraction_moved() * total_gib)
    }

    /// Tokens that were seen in the pool, in as much of it as is left here, GiB.
    pub(crate) fn tokens_seen(&self, pool_gib: f64) -> Option<u64> {
        let tokens = self.observed.tokens?;
        let seen = self.observed.pool_gib.filter(|gib| *gib > 0.0);
        let share = seen.map_or(1.0, |seen| pool_gib / seen);
        if (share - 1.0).abs() < 1e-9 {
            return Some(tokens);
        }
        Some((tokens as f64 * share.max(0.0)) as u64)
    }

    /// Whether what is cached for a token is what was cached in the pool that was seen: look-up
    /// caches nothing of its own.
    pub(crate) fn caches_as_seen(&self) -> bool {
        let look_up = self.speculation.is_some_and(|s| s.kind == SpecKind::Ngram);
        self.pool_is_its_own() || look_up
    }

    /// Whether a server is known to have run with this setup.
    pub(crate) fn ran(&self) -> bool {
        let passes = self.batched_tokens.zip(self.observed.batched_tokens);
        let passes = passes.is_some_and(|(asked, ran)| asked != ran);
        // What graphs take comes out of vLLM's pool, and how many run at once is checked beside them.
        let graphs = self.engine.kind == crate::EngineKind::Vllm && self.gains_graphs();
        let moved = self.fraction_moved() != 0.0 || self.running_moved() || passes || graphs;
        self.observed.served && self.pool_is_its_own() && !moved
    }

    /// Whether graphs are to be captured where the server that was seen had none.
    pub fn gains_graphs(&self) -> bool {
        self.observed.graph_max_batch == Some(0) && self.graph_max_batch != Some(0)
    }

    /// Whether another number of requests at once is asked for than ran.
    fn running_moved(&self) -> bool {
        let both = self.max_running.zip(self.observed.running);
        both.is_some_and(|(asked, ran)| asked != ran)
    }

    /// Whether other batches are to be captured as graphs than on the server that was seen.
    pub(crate) fn batches_moved(&self) -> bool {
        self.running_moved() || self.graph_max_batch != self.observed.graph_max_batch
    }

    /// What graphs that were seen rest on where they are scaled to another largest batch.
    pub(crate) fn graphs_by_size(&self) -> Option<String> {
        self.observed.graph_gib.or(self.observed.target_graph_gib)?;
        let asked = self.graph_max_batch.filter(|batch| *batch > 0)?;
        let seen = self.observed.graph_max_batch;
        let then = match seen {
            Some(batch) => format!("up to {batch}"),
            None => "up to the engine's own largest".to_string(),
        };
        (Some(asked) != seen).then(|| {
            format!("graphs: the log's, by the number of sizes captured: up to {asked}, in the log {then}")
        })
    }

    /// Tokens of the pool of a server that is known to have run with this setup.
    pub(crate) fn served_tokens(&self) -> Option<u64> {
        let tokens = self.observed.tokens.filter(|tokens| *tokens > 0);
        tokens.filter(|_| self.ran())
    }

    /// The setup of the run without a draft whose pool was seen, where this one drafts.
    pub(crate) fn seen_without_draft(&self) -> Option<Self> {
        let other = self.speculation.is_some() && !self.observed.pool_with_draft;
        other.then(|| self.plain())
    }

    /// Ranks in all.
    pub(crate) fn ranks(&self) -> u64 {
        self.sharding
            .tp
            .max(1)
            .saturating_mul(self.sharding.pp.max(1))
    }

    /// Checks what no engine could run with.
    ///
    /// # Errors
    /// One line that names the input.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let error = |input: &str, message: String| PlanError {
            input: input.to_string(),
            message,
        };
        if !(self.card_gib.is_finite() && self.card_gib > 0.0 && self.card_gib < 1e6) {
            return Err(error(
                "card capacity",
                format!("{} GiB is no card", self.card_gib),
            ));
        }
        if let Some(fraction) = self.fraction
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            return Err(error(
                "memory fraction",
                format!("{fraction} is not above 0 and at most 1; engines take for example 0.88"),
            ));
        }
        let observed = self.observed;
        let figures = [
            ("free before", observed.free_before_gib),
            ("free after", observed.free_after_gib),
            ("KV pool", observed.pool_gib),
            ("state pool", observed.state_gib),
            ("weights", observed.weights_gib),
            ("capacity", observed.torch_total_gib),
        ];
        for (name, value) in figures {
            // Fractions are of what was free and of the capacity: neither can be nothing.
            let least = match name {
                "free before" | "capacity" => 1.0 / 1024.0,
                _ => 0.0,
            };
            if let Some(value) = value
                && !(value.is_finite() && (least..1e6).contains(&value))
            {
                return Err(error(
                    name,
                    format!("{value} GiB is not a size a card can have"),
                ));
            }
        }
        if let (Some(before), Some(after)) = (observed.free_before_gib, observed.free_after_gib)
            && after > before
        {
            return Err(error(
                "free after",
                format!("{after} GiB is more than the {before} GiB before the weights were loaded"),
            ));
        }
        let mtp = self
            .speculation
            .is_some_and(|spec| spec.kind == SpecKind::Mtp);
        if mtp && self.model.mtp_layers.is_empty() {
            return Err(error(
                "draft",
                format!("{} has no MTP layers; name a draft head", self.model.name),
            ));
        }
        self.sharding
            .check(self.model)
            .map_err(|message| error("tensor parallel size", message))
    }
}
