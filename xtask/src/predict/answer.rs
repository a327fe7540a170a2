//! The answer as one value; text, JSON and HTML are three views of it.
//!
//! Field names are the contract's (`predict --json`); unknown is `null`, never a made-up number.

mod memory;

pub(crate) use memory::LoadWall;

pub(crate) use super::links::AllReduceTime;
pub(crate) use super::observed::Observed;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use spec_decode::economics::depth::TIE_SHARE;

use super::replicas::Replicas;
use super::stopped::Stopped;
use crate::scenario::GraphBatch;

/// Version of the JSON form.
pub(crate) const SCHEMA: u32 = 1;

/// Everything `predict` says.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Answer {
    pub(crate) schema: u32,
    /// Resolved inputs, each with its source; an object by name in JSON.
    #[serde(serialize_with = "by_name")]
    pub(crate) scenario: Vec<Input>,
    pub(crate) verdict: Verdict,
    /// What keeps it from running, or from drafting, at all: then the verdict is no figure of speeds.
    pub(crate) stopped: Option<Stopped>,
    /// How far a head that nobody named must reach for it, where the one taken reaches less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) needs: Option<String>,
    /// One sentence.
    pub(crate) because: String,
    /// What would settle most, where a load is left open, or a faster depth.
    pub(crate) measure: Option<Measure>,
    pub(crate) best: Option<Best>,
    pub(crate) break_even_accept_length: Option<f64>,
    /// Highest load up to which the middle of the band gains and the pool holds every user.
    pub(crate) pays_up_to_concurrency: Option<u32>,
    pub(crate) points: Vec<Point>,
    pub(crate) memory: Memory,
    /// Whether the engine refuses to cut the weights so.
    #[serde(skip)]
    pub(crate) cut_refused: bool,
    /// Whether the engine drafts nothing at the context: its head reaches less.
    #[serde(skip)]
    pub(crate) undrafted: bool,
    pub(crate) allreduce: Vec<AllReduceTime>,
    /// Where the box holds more than one group of the size asked for.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) flips: Vec<Flip>,
    pub(crate) engine_flags: BTreeMap<&'static str, Vec<String>>,
    /// What the engines' releases lack for those lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lacking: Vec<super::serves::Lack>,
    /// What MODEL_PATH and DRAFT_PATH stand for in them.
    pub(crate) placeholders: Option<String>,
    pub(crate) depth_table: Vec<DepthRow>,
    /// Best depth over load and context.
    pub(crate) depth_map: Vec<DepthCell>,
    /// Under the distribution of load that `--concurrency 1:60,8:40` gives.
    pub(crate) goodput: Option<Goodput>,
    /// What to change first, by predicted gain.
    pub(crate) changes: Vec<Change>,
    /// Observed beside computed.
    pub(crate) observed: Vec<Observed>,
    pub(crate) assumptions: Vec<Assumption>,
    pub(crate) compared: Vec<Compared>,
    /// What `--compare` named and cannot run here, with the reason.
    pub(crate) compared_left_out: Vec<String>,
    pub(crate) seed: u64,
}

fn by_name<S: serde::Serializer>(inputs: &[Input], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(inputs.iter().map(|input| {
        let with_source = serde_json::json!({"value": input.value, "source": input.source});
        (input.name, with_source)
    }))
}

/// A resolved input and where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
    pub(crate) source: String,
}

/// `pays` or `does-not-pay` only where the whole band is on one side of 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Pays,
    DoesNotPay,
    MeasureFirst,
    /// Of a row without a draft: nothing that could pay.
    NoDraft,
}

/// The measurement worth most.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measure {
    pub(crate) what: String,
    pub(crate) how: String,
    /// The load that it would settle.
    pub(crate) concurrency: u32,
    /// Width of the speedup band without it, and with it.
    pub(crate) width_now: Option<f64>,
    pub(crate) width_after: Option<f64>,
}

/// The pasted setting at the lowest concurrency asked for; the best one where nothing is pasted.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Best {
    pub(crate) steps: u32,
    pub(crate) topk: u32,
    pub(crate) draft_tokens: u32,
    pub(crate) draft_tp: u32,
    pub(crate) allreduce: String,
    pub(crate) speedup: f64,
    pub(crate) speedup_low: f64,
    pub(crate) speedup_high: f64,
    pub(crate) probability_pays: f64,
    /// Depths within 5 % of the best: no unique best is claimed.
    pub(crate) ties: Vec<u32>,
}

/// One operating point at the depth that the pasted line drafts there; the best where none is pasted.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Point {
    pub(crate) concurrency: u32,
    pub(crate) context: u64,
    pub(crate) steps: u32,
    pub(crate) draft_tokens: u32,
    pub(crate) accept_length: f64,
    pub(crate) baseline_tok_s: f64,
    pub(crate) spec_tok_s: f64,
    pub(crate) speedup: f64,
    pub(crate) speedup_low: f64,
    pub(crate) speedup_high: f64,
    pub(crate) probability_pays: f64,
    pub(crate) verdict: Verdict,
    pub(crate) baseline_step_ms: f64,
    pub(crate) cycle_ms: f64,
    pub(crate) draft_ms: f64,
    pub(crate) verify_ms: f64,
    pub(crate) baseline_parts_ms: Option<Parts>,
    pub(crate) draft_parts_ms: Option<Parts>,
    pub(crate) verify_parts_ms: Option<Parts>,
    pub(crate) break_even_accept_length: f64,
    pub(crate) ties: Vec<u32>,
    /// Whether the KV pool holds this many requests of this context.
    pub(crate) fits: Option<bool>,
    /// Whether the user's own plain steps were measured at this load.
    pub(crate) load_measured: bool,
    /// Whether the speedup itself was measured: this load, context and depth with the draft and without.
    pub(crate) speedup_measured: bool,
    /// Whether the pasted line drafts nothing at this load: the row has the best depth beside.
    pub(crate) off_in_paste: bool,
    /// A depth that does more than a tie better here than the one that runs, or surely pays where that may not.
    pub(crate) faster: Option<Faster>,
}

/// A load at another depth than the one that runs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Faster {
    pub(crate) steps: u32,
    pub(crate) speedup: f64,
    pub(crate) verdict: Verdict,
}

impl Faster {
    /// Whether it is beyond a tie of what runs, or surely pays where that may not.
    pub(crate) fn is_told(&self, speedup: f64, verdict: Verdict) -> bool {
        let beyond_a_tie = speedup < self.speedup * (1.0 - TIE_SHARE);
        self.speedup > 1.0 && (self.is_surer(verdict) || beyond_a_tie)
    }

    fn is_surer(&self, verdict: Verdict) -> bool {
        self.verdict == Verdict::Pays && verdict != Verdict::Pays
    }
}

impl Point {
    /// Whether the pasted line gains here.
    pub(crate) fn gains(&self) -> bool {
        !self.off_in_paste && self.speedup > 1.0
    }

    /// What a row without parts rests on.
    pub(crate) fn of_own_steps(&self) -> &'static str {
        match (self.speedup_measured, self.load_measured) {
            (true, _) => "from your own sweep and the measured speedup",
            (false, true) => "from your own sweep",
            (false, false) => "modelled from your own sweep, which does not have this load",
        }
    }

    /// Whether the faster depth beside one that surely pays may not.
    pub(crate) fn leaves_faster_open(&self) -> bool {
        let open = |faster: Faster| faster.verdict == Verdict::MeasureFirst;
        self.verdict == Verdict::Pays && self.faster.is_some_and(open)
    }

    /// That another depth would do better here, or that none runs.
    pub(crate) fn depth_remark(&self) -> Option<String> {
        if self.off_in_paste {
            return Some("off in the paste".to_string());
        }
        let faster = self.faster?;
        let (speedup, steps) = (faster.speedup, super::verdict::steps(faster.steps));
        let open = self.leaves_faster_open();
        Some(match faster.is_surer(self.verdict) {
            true => format!("pays with {steps} ({speedup:.2})"),
            false if open => format!("{speedup:.2} with {steps}, measure first"),
            false => format!("{speedup:.2} with {steps}"),
        })
    }
}

/// Parts of a pass, ms.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Parts {
    pub(crate) weights: f64,
    pub(crate) experts: f64,
    pub(crate) kv: f64,
    pub(crate) compute: f64,
    pub(crate) allreduce: f64,
    pub(crate) launch: f64,
    pub(crate) other: f64,
}

/// The memory ledger of one GPU.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Memory {
    pub(crate) fits: Option<bool>,
    /// Whether it runs out of memory while it loads, at any fraction.
    #[serde(skip)]
    pub(crate) never_loads: bool,
    pub(crate) kv_tokens: Option<u64>,
    pub(crate) kv_tokens_without_speculation: Option<u64>,
    /// Tokens that the plain server of a sweep may have had.
    #[serde(skip)]
    pub(crate) swept_pool: Option<u64>,
    /// Weights of the target as computed, whatever was observed, GiB.
    #[serde(skip)]
    pub(crate) computed_weights_gib: f64,
    /// How many requests of any context the pool holds.
    #[serde(skip)]
    pub(crate) pool: Option<kvplan::Pool>,
    /// Slots for states, where the engine keeps them in a pool of their own.
    #[serde(skip)]
    pub(crate) state_slots: Option<kvplan::StateSlots>,
    /// Batches to capture as graphs, where the engine must be told.
    #[serde(skip)]
    pub(crate) graphs: Option<GraphBatch>,
    /// Requests at once, and what stops more.
    pub(crate) most_at_once: Option<MostAtOnce>,
    /// The same in words, where the head says it: the state slots stop more, or fewer run than were asked for.
    #[serde(skip)]
    pub(crate) limit: Option<String>,
    /// Whether the pool would hold one request of the context without the draft.
    #[serde(skip)]
    pub(crate) holds_without_draft: Option<bool>,
    /// That the newest release known is taken for the engine, where nobody named one.
    #[serde(skip)]
    pub(crate) version_assumed: Option<String>,
    /// Requests at once that vLLM was planned with, where nobody said how many.
    #[serde(skip)]
    pub(crate) seqs_assumed: Option<String>,
    /// What telling it to run no more than the loads asked for gives the pool, where that is much.
    #[serde(skip)]
    pub(crate) fewer_seqs: Option<String>,
    /// Requests at once that vLLM is told for the states of a model, where nobody said how many.
    #[serde(skip)]
    pub(crate) for_states: Option<crate::plan::ToldForStates>,
    /// The same, told or not, where they ask for more of the fraction than one request does.
    #[serde(skip)]
    pub(crate) bound_by_states: Option<u64>,
    /// The longest request that a vLLM server takes.
    #[serde(skip)]
    pub(crate) length: crate::plan::Length,
    /// Settings that hold more, where the engine's own leaves loads outside: the best that surely starts, and
    /// one that holds all of them.
    #[serde(skip)]
    pub(crate) roomier: Vec<Roomier>,
    /// Requests at once that a flag allows, and the engine's flag of it.
    #[serde(skip)]
    pub(crate) cap: Option<(u64, String)>,
    /// The fraction to set and why, where the engine's own does not do.
    #[serde(skip)]
    pub(crate) set_instead: Option<String>,
    /// What the draft costs, each pool at its fraction.
    #[serde(skip)]
    pub(crate) draft_cost: Option<crate::plan::DraftCost>,
    pub(crate) fraction: Option<f64>,
    pub(crate) fraction_min: Option<f64>,
    /// Length of the requests that a hybrid's tokens are counted in.
    #[serde(skip)]
    pub(crate) tokens_in_requests_of: Option<u64>,
    /// Tokens of the one request that the legal fractions hold.
    #[serde(skip)]
    pub(crate) legal_for: Option<u64>,
    /// Context that the pasted line serves, where it is another, and the least fraction for it.
    #[serde(skip)]
    pub(crate) pasted_limit: Option<(u64, f64)>,
    pub(crate) fraction_max: Option<f64>,
    /// The highest that is under the whole band of the activation wall, where it holds a request.
    #[serde(skip)]
    pub(crate) fraction_clear: Option<f64>,
    pub(crate) ledger: Vec<LedgerLine>,
    /// What the ledger assumes, and what it found (refusals, walls).
    pub(crate) notes: Vec<String>,
}

/// A setting that holds more requests.
#[derive(Debug, Clone)]
pub(crate) struct Roomier {
    /// Flag and value.
    pub(crate) setting: String,
    /// Whole requests of the scenario's context.
    pub(crate) requests: u32,
}

/// Requests at once, and what stops more.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MostAtOnce {
    pub(crate) requests: u64,
    /// Tokens that each holds.
    pub(crate) context: u64,
    /// `KV pool`, `state slots` or `max running`.
    pub(crate) wall: &'static str,
}

/// A line of the ledger.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LedgerLine {
    pub(crate) item: String,
    pub(crate) gib: f64,
    pub(crate) low_gib: f64,
    pub(crate) high_gib: f64,
    pub(crate) source: String,
}

/// An input that would flip the verdict, and where.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Flip {
    pub(crate) input: String,
    pub(crate) from: Value,
    pub(crate) to: Value,
    pub(crate) note: String,
}

/// Which depth to run where.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DepthRow {
    pub(crate) concurrency_from: u32,
    pub(crate) concurrency_to: u32,
    pub(crate) context_to: u64,
    /// 0: leave speculation off.
    pub(crate) steps: u32,
}

/// Best depth at one load and context.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DepthCell {
    pub(crate) concurrency: u32,
    pub(crate) context: u64,
    /// 0: leave speculation off.
    pub(crate) steps: u32,
    pub(crate) speedup: f64,
    /// Whether the KV pool holds that many requests of that context.
    pub(crate) fits: Option<bool>,
}

/// Tokens a second averaged over a distribution of load.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Goodput {
    pub(crate) plain_tok_s: f64,
    /// As pasted.
    pub(crate) fixed_tok_s: f64,
    /// The one depth of the paste; 0: off, null where it has a list by load.
    pub(crate) fixed_steps: Option<u32>,
    /// With the best depth, or off, at every load.
    pub(crate) scheduled_tok_s: f64,
}

/// A change and what it is predicted to gain.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Change {
    pub(crate) change: String,
    /// Tokens a second after, over before, at the lowest concurrency asked for.
    pub(crate) gain: f64,
    pub(crate) why: String,
}

/// What was assumed and what would settle it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Assumption {
    pub(crate) what: String,
    pub(crate) settled_by: String,
}

impl Assumption {
    pub(crate) fn words(&self) -> String {
        match self.settled_by.as_str() {
            "" => self.what.clone(),
            by => format!("{} ({by} would settle it)", self.what),
        }
    }
}

/// One row of `--compare`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Compared {
    pub(crate) name: String,
    /// GPUs that one server takes, and that the box has.
    pub(crate) tp: u32,
    pub(crate) gpus: u32,
    pub(crate) concurrency: u32,
    /// Draft steps of the row's speeds; 0: nothing drafts.
    pub(crate) steps: u32,
    pub(crate) baseline_tok_s: f64,
    pub(crate) spec_tok_s: f64,
    pub(crate) speedup: f64,
    pub(crate) speedup_low: f64,
    pub(crate) speedup_high: f64,
    pub(crate) verdict: Verdict,
    /// Whether the pool holds that many requests of the scenario's context.
    pub(crate) fits: Option<bool>,
    pub(crate) kv_tokens: Option<u64>,
    /// Share of the card's memory that the pool is of; `None` where the engine has none.
    pub(crate) fraction: Option<f64>,
    /// Of an all-reduce what switches it on in the engine, `no` where nothing does.
    pub(crate) in_engine: Option<String>,
    /// Why the engine would not serve it at all; the speeds are what it would reach if it did.
    pub(crate) stopped: Option<Stopped>,
}
