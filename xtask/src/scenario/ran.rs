//! What a log shows of the memory of the server that wrote it.

use spec_decode::HeadKind;

use super::merge::{Given, Merged};
use super::model::Draft;
use super::other::Other;
use super::other_engine::{engine_beside, other_engine};
use super::other_model::other_model;
use crate::cli::ScenarioArgs;
use crate::explain::LogScenario;
use crate::explain::speeds::{LoadSpeed, Windows};

/// Settings and figures of a server's log; they win over estimates.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ran {
    /// The log.
    pub(crate) file: String,
    /// Engine and model, as it names them.
    pub(crate) of: Option<(String, String)>,
    /// The card that it names, and where.
    pub(crate) card: Option<(String, String)>,
    /// What spreads its requests over ranks, and where it says so.
    pub(crate) data_parallel: Option<(String, String)>,
    /// Draft steps and tree width, where told.
    pub(crate) drafts: (Option<u32>, Option<u32>),
    /// Tokens that it verified for a sequence.
    pub(crate) draft_tokens: Option<u64>,
    /// What it kept of states for prefix caching.
    pub(crate) prefix_states: Option<kvplan::PrefixStates>,
    /// Most requests at a time.
    pub(crate) max_running: Option<u64>,
    /// Whether that is what it took by itself, as another server of its engine need not.
    pub(crate) running_taken: bool,
    /// Longest request that it was told to take, tokens.
    pub(crate) context_limit: Option<u64>,
    /// Tokens of one pass at most.
    pub(crate) batched_tokens: Option<u64>,
    /// Whether that is what it took by itself, as another server of its engine need not.
    pub(crate) batched_taken: bool,
    /// Tokens of context that the config of its draft reaches.
    pub(crate) draft_reach: Option<u64>,
    /// Whether its weights are random, so that no checkpoint brought a head's own tables.
    pub(crate) random_weights: bool,
    /// Which of its throughput windows drafted.
    pub(crate) windows: Option<Windows>,
    /// Largest batch that it captured as a graph, where told.
    pub(crate) graph_max_batch: Option<u64>,
    /// What says whether a verify was, or would be, one whole graph.
    pub(crate) verify_graphs: Option<crate::step_time::verify_graphs::Seen>,
    /// What the graphs took, those of prefills left out, GiB.
    pub(crate) graph_gib: Option<f64>,
    /// What of that is the draft's, where the log says, GiB.
    pub(crate) draft_graph_gib: Option<f64>,
    /// What those of prefills took, 0 where a log of graphs has none, GiB.
    pub(crate) prefill_graph_gib: Option<f64>,
    /// Whether these were captured before the draft was loaded: the target's alone.
    pub(crate) target_graphs: bool,
    /// Free before the weights, GiB.
    pub(crate) free_before_gib: Option<f64>,
    /// Free after the target's weights, GiB.
    pub(crate) free_after_gib: Option<f64>,
    /// Weights loaded on one card, GiB, a draft's loaded with them in (vLLM).
    pub(crate) weights_gib: Option<f64>,
    /// The draft's weights on one card, GiB, where they were loaded apart.
    pub(crate) draft_gib: Option<f64>,
    /// Peak of the profile run and what grew outside torch meanwhile, as vLLM prints them, GiB.
    pub(crate) profile: Option<(f64, Option<f64>)>,
    /// KV pool of one card, GiB.
    pub(crate) kv_gib: Option<f64>,
    /// The pool of a log that counts its tokens and prints no GiB, and these tokens.
    pub(crate) pool_of_tokens: Option<(f64, u64)>,
    /// States of linear and Mamba layers of one card beside that pool, drafted copies in, GiB.
    pub(crate) state_gib: Option<f64>,
    /// Tokens in it.
    pub(crate) kv_tokens: Option<u64>,
    /// Where it prints these, file and line, if the GiB are printed too: not those of a format taken.
    pub(crate) pool_printed: Option<String>,
    /// Whether the server got past its pool.
    pub(crate) came_up: bool,
    /// Whether it came to take requests.
    pub(crate) stayed_up: bool,
    /// Whether what it says of the room beside its pool is that of this cut and these weights.
    pub(crate) proves_room: bool,
    /// Whether another draft than its own, or none, is asked for.
    pub(crate) of_another_draft: bool,
    /// Where it ran out of memory, file and line, if that ended it.
    pub(crate) ran_out: Option<String>,
    /// The fraction of the card that it ran with.
    pub(crate) fraction: Option<f64>,
    /// Whether another one is asked for.
    pub(crate) other_fraction: bool,
    /// Generation speeds by load.
    pub(crate) speeds: Vec<LoadSpeed>,
    /// Free and total of a card, GiB, where its start was refused for it, and the line.
    pub(crate) too_little_free: Option<(f64, f64, usize)>,
    /// Accept length of passes that found something to copy, where no other is known, and its line.
    pub(crate) accept_of_hits: Option<(f64, usize)>,
    /// Whether it speculated.
    pub(crate) speculates: bool,
    /// What it drafted with, as `--draft` takes it.
    pub(crate) draft: Option<String>,
    /// All that the log shows, where another draft or none is asked for and the engine's pool is what
    /// is left beside the draft (vLLM).
    pub(crate) with_draft: Option<Box<Self>>,
    /// Share of the decode lines that ran outside a graph.
    pub(crate) outside_graph: f64,
    /// Where it says that it captured no graphs at all.
    pub(crate) eager: Option<String>,
    /// The engine's own all-reduce was off.
    pub(crate) no_custom_all_reduce: bool,
    /// The pool of the plain server whose sweep is beside it, where that is of the same engine and model.
    pub(crate) plain_pool: Option<crate::bench_input::PlainPool>,
    /// What the file of the plain sweep beside it says of that server.
    pub(crate) swept_on: crate::bench_input::RanOn,
    /// What vLLM says of its scheduler, which may overlap the step; and what it drafts by.
    pub(crate) overlap: Option<crate::explain::overlap::Said>,
    pub(crate) method: Option<String>,
    /// What else it was told, for a start line of the same engine.
    pub(crate) carried: crate::explain::carried::Carried,
}

/// Whether flags ask for another fraction than a log has.
fn other_fraction(args: &ScenarioArgs, log: &LogScenario) -> bool {
    args.mem_fraction.is_some_and(|asked| {
        let said = log.mem_fraction.map(|(said, _)| said);
        said.is_none_or(|said| (said - asked).abs() > SAME_FRACTION)
    })
}

/// Whether flags ask for another draft than a log has. Beside a log that shows accepted tokens and
/// says nothing of what drafted them, the flag says it.
fn other_draft(args: &ScenarioArgs, log: &LogScenario) -> bool {
    args.draft.as_ref().is_some_and(|asked| {
        let unsaid = log.spec_algorithm.is_none() && !asked.eq_ignore_ascii_case("none");
        match super::merge::draft_of_log(log) {
            Some((said, _)) => !one_draft(asked, &said),
            None => !(unsaid || of_its_algorithm(asked, log)),
        }
    })
}

/// Words for a model's own MTP layers.
const OWN_LAYERS: [&str; 2] = ["mtp", "nextn"];

fn is_own_layers(word: &str) -> bool {
    OWN_LAYERS.iter().any(|own| word.eq_ignore_ascii_case(own))
}

/// Whether a draft is what an algorithm without a draft's path ran with: a head of that kind; and with
/// EAGLE SGLang drafts by the model's own MTP layers, as by NEXTN, which is its other name there.
fn of_its_algorithm(asked: &str, log: &LogScenario) -> bool {
    let named = log.spec_algorithm.as_ref();
    let kind = named.and_then(|(name, _)| super::model::names_head(name));
    kind.is_some_and(|kind| {
        asked.eq_ignore_ascii_case(kind) || kind == "eagle" && is_own_layers(asked)
    })
}

/// Flags of a pool that no card decides.
pub(crate) const OWN_POOL: [&str; 3] = [
    "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override",
    "--max-total-tokens",
];

/// Fractions are typed with three digits, and pasted rounded up.
const SAME_FRACTION: f64 = 0.0011;

/// Whether two words name one draft: the same, the kind of head that a path names, or the config of
/// such a head where that of the log's is not at hand.
fn one_draft(asked: &str, said: &str) -> bool {
    let Some(kind) = super::model::names_head(said) else {
        return asked.eq_ignore_ascii_case(said) || is_own_layers(asked) && is_own_layers(said);
    };
    let of_kind = || super::model::kind_of_config(asked) == Some(kind);
    [said, kind]
        .iter()
        .any(|word| asked.eq_ignore_ascii_case(word))
        || !std::path::Path::new(said).exists() && of_kind()
}

/// The model, whose positions are stretched where the log's server takes more.
pub(super) fn stretched(mut model: kvplan::Model, merged: &Merged) -> kvplan::Model {
    let told = merged.ran.context_limit.into_iter();
    model.max_positions = model.max_positions.map(|own| told.fold(own, u64::max));
    model
}

/// What a log says, and where.
fn beside_line(
    said: &Option<(String, usize)>,
    at: impl Fn(usize) -> String,
) -> Option<(String, String)> {
    let said = said.as_ref();
    said.map(|(what, line)| (what.clone(), at(*line)))
}

impl Ran {
    /// Of a log.
    pub(super) fn of(log: &LogScenario, shown: &str) -> Self {
        let whole = |value: Option<(u32, usize)>| value.map(|(n, _)| u64::from(n));
        let at = |line: usize| format!("{shown}:{line}");
        let size = |value: Option<(f64, usize)>| {
            let gib = value.map(|(gib, _)| gib);
            gib.filter(|gib| gib.is_finite() && gib.abs() < 1e5)
        };
        let tokens = log.kv_tokens.filter(|(tokens, _)| *tokens < 1e15);
        let printed = tokens.filter(|_| log.kv_gib_printed);
        Self {
            file: shown.to_string(),
            of: log
                .engine
                .clone()
                .zip(log.model.clone())
                .map(|(engine, model)| (engine.0, model.0)),
            card: beside_line(&log.gpu, at),
            data_parallel: beside_line(&log.data_parallel, at),
            drafts: (log.steps.map(|(n, _)| n), log.topk.map(|(n, _)| n)),
            draft_tokens: whole(log.draft_tokens)
                .or_else(|| whole(log.steps).map(|steps| steps.saturating_add(1))),
            prefix_states: log.prefix_states,
            max_running: whole(log.max_running_requests),
            running_taken: log.max_running_taken,
            context_limit: whole(log.context),
            batched_tokens: whole(log.batched_tokens),
            batched_taken: log.batched_taken,
            draft_reach: whole(log.draft_reach),
            random_weights: log.random_weights,
            windows: log.windows,
            graph_max_batch: whole(log.graph_max_batch),
            verify_graphs: log.verify_graphs.clone(),
            graph_gib: size(log.graph_gib),
            draft_graph_gib: size(log.draft_graph_gib),
            prefill_graph_gib: size(log.prefill_graph_gib),
            target_graphs: log
                .graph_gib
                .zip(log.draft_loaded)
                .is_some_and(|((_, graphs), draft)| graphs < draft),
            free_before_gib: size(log.free_before_gib).filter(|gib| *gib > 0.01),
            free_after_gib: size(log.free_after_gib).filter(|gib| *gib > 0.0),
            weights_gib: size(log.weights_gib).filter(|gib| *gib > 0.0),
            draft_gib: size(log.draft_weights_gib).filter(|gib| *gib > 0.0),
            profile: log.profile,
            kv_gib: size(log.kv_gib).filter(|gib| *gib > 0.0),
            state_gib: size(log.state_gib).filter(|gib| *gib > 0.0),
            kv_tokens: tokens.map(|(tokens, _)| tokens as u64),
            pool_printed: printed.map(|(_, line)| at(line)),
            came_up: log.came_up && log.kv_tokens.is_some(),
            stayed_up: log.stayed_up,
            proves_room: true,
            ran_out: log.ran_out.map(at),
            fraction: log.mem_fraction.map(|(fraction, _)| fraction),
            speeds: log.speeds.clone(),
            too_little_free: log.too_little_free,
            accept_of_hits: log.accept_of_hits,
            speculates: log.spec_algorithm.is_some()
                || log.draft.is_some()
                || log.draft_weights_gib.is_some()
                || log.accept_length.is_some(),
            draft: super::merge::draft_of_log(log).map(|(name, _)| name),
            outside_graph: log.outside_graph,
            eager: log.eager.map(at),
            no_custom_all_reduce: log.no_custom_all_reduce,
            overlap: log.overlap,
            method: log.spec_algorithm.as_ref().map(|(name, _)| name.clone()),
            carried: log.carried.clone(),
            ..Self::default()
        }
    }

    /// What is left of it beside flags that ask for another server: nothing with another model or
    /// engine; with another cut or format, what does not depend on it; with another draft or none,
    /// what was the target's alone; with another fraction alone all but the pool, which
    /// moves with it where the log says both.
    /// A flag that says what the log says asks for no other server, and a plain server's pool is that
    /// of any draft that one thinks of adding.
    pub(super) fn beside(self, args: &ScenarioArgs, log: &LogScenario) -> Self {
        if other_model(args, log) || engine_beside(args, log).is_some() {
            return Self::default();
        }
        if other_engine(args, log) {
            return self.flags_alone();
        }
        let vllm = log.engine.as_ref().is_some_and(|(name, _)| name == "vllm");
        let other = Other::of(args, log);
        let mut left = self.without(other, vllm);
        if left.speculates && other_draft(args, log) {
            // The pool that the draft left holds only where nothing else is asked for.
            let alone = !(other.ranks || other.weights || other.decode_ranks || other.kv_format);
            left = left.without_its_draft(vllm && alone);
        } else if other_fraction(args, log) {
            left = left.at_other_fraction(vllm);
        }
        left
    }

    /// What it was told, of a server of another version.
    pub(crate) fn flags_alone(self) -> Self {
        let mut carried = self.carried;
        carried.flags.retain(|flag| {
            let name = flag.first();
            name.is_some_and(|name| name != "--kv-cache-memory-bytes")
        });
        Self {
            max_running: self.max_running.filter(|_| !self.running_taken),
            context_limit: self.context_limit,
            batched_tokens: self.batched_tokens.filter(|_| !self.batched_taken),
            graph_max_batch: self.graph_max_batch,
            draft_reach: self.draft_reach,
            windows: self.windows,
            prefix_states: self.prefix_states,
            carried: crate::explain::carried::Carried {
                flags: carried.flags,
                ..Default::default()
            },
            ..Self::default()
        }
    }

    /// The same memory in a server of another release, whose rules give the same pool: less its speeds, and
    /// its graphs where these come out otherwise.
    pub(super) fn of_other_release(mut self, same_graphs: bool) -> Self {
        if !same_graphs {
            (self.graph_gib, self.draft_graph_gib, self.prefill_graph_gib) = (None, None, None);
        }
        Self {
            verify_graphs: None,
            outside_graph: 0.0,
            speeds: Vec::new(),
            ..self
        }
    }

    /// Less what depends on the weights' format.
    pub(super) fn of_other_weights(self, vllm: bool) -> Self {
        let weights = Other {
            weights: true,
            ..Other::default()
        };
        self.without(weights, vllm)
    }

    /// Less what depends on what is asked for otherwise.
    fn without(mut self, other: Other, vllm: bool) -> Self {
        let depth = self.speculates && other.depth;
        let states = depth && self.state_gib.is_some();
        let cut = other.ranks || other.weights;
        let cache = cut || other.decode_ranks;
        if other.ranks {
            self.free_before_gib = None;
            // A kernel told off stays off as the all-reduce asked for.
            self.no_custom_all_reduce = false;
        }
        if cut {
            self.free_after_gib = None;
            self.weights_gib = None;
            self.draft_gib = None;
        }
        if cache {
            self.profile = None;
            (self.graph_gib, self.draft_graph_gib, self.prefill_graph_gib) = (None, None, None);
            self.proves_room = false;
            self.batched_tokens.take_if(|_| self.batched_taken);
        }
        if cut || states {
            self.state_gib = None;
        }
        if cache || states || other.kv_format && !vllm {
            self.kv_gib = None;
        }
        if cache || states || other.kv_format {
            self.kv_tokens = None;
        }
        if cache || other.kv_format {
            self.speeds = Vec::new();
        }
        self
    }

    /// The same server with another draft or none: what it says of its target alone. Its pool was
    /// what the draft left.
    fn without_its_draft(self, vllm: bool) -> Self {
        let whole = vllm.then(|| Box::new(self.clone()));
        let apart = self.graph_gib.zip(self.draft_graph_gib);
        let target = apart.map(|(all, draft)| (all - draft).max(0.0));
        let alone = self.graph_gib.filter(|_| self.target_graphs);
        let graph_gib = target.or(alone);
        Self {
            target_graphs: graph_gib.is_some(),
            graph_gib,
            draft_graph_gib: None,
            draft_gib: None,
            profile: None,
            kv_gib: None,
            state_gib: None,
            kv_tokens: None,
            speeds: Vec::new(),
            windows: None,
            with_draft: whole,
            of_another_draft: true,
            ..self
        }
    }

    /// Whether the log's server drafted with this kind of head, as far as it says.
    pub(crate) fn drafted_with(&self, head: HeadKind) -> bool {
        let said = self.draft.as_deref();
        let kind = said.and_then(|name| match name {
            "mtp" | "ngram" | "suffix" => Some(name),
            _ => super::model::names_head(name),
        });
        let same = match head {
            HeadKind::Mtp | HeadKind::MtpModules => "mtp",
            HeadKind::NGram => "ngram",
            HeadKind::Parallel => "dflash",
            HeadKind::Eagle3 => "eagle3",
            HeadKind::Eagle | HeadKind::DraftModel => "",
        };
        self.speculates && kind.is_none_or(|kind| kind == same)
    }

    /// The draft of a log whose pool is to be seen without it.
    pub(super) fn draft_given_back(merged: &Merged, target: &kvplan::Model) -> Option<Draft> {
        let name = merged.ran.with_draft.as_ref()?.draft.clone()?;
        let given = Given::new(name, &merged.ran.file);
        let model_name = super::model::model_name_of(merged, target);
        let unsaid = &mut super::Notes::default();
        let named = super::model::named_draft(&given, model_name, target, unsaid, None);
        named.ok().flatten()
    }

    /// Most requests at a time, where it was told so.
    pub(crate) fn told_running(&self) -> Option<u64> {
        self.max_running.filter(|_| !self.running_taken)
    }

    /// The same server with another fraction: all but the pool, which moves with it where vLLM's log
    /// says both.
    pub(crate) fn at_other_fraction(mut self, vllm: bool) -> Self {
        self.other_fraction = true;
        let moves = vllm && self.fraction.is_some() && self.kv_gib.is_some();
        if !moves {
            self.kv_gib = None;
            self.state_gib = None;
            self.kv_tokens = None;
        }
        self
    }

    /// The fraction that it ran with, where another one is asked for, and whether its pool moves
    /// there.
    pub(crate) fn at_another_fraction(&self) -> Option<(f64, bool)> {
        let said = self.fraction.filter(|_| self.other_fraction)?;
        Some((said, self.kv_gib.is_some()))
    }

    /// Whether the server got past the pool that is asked for.
    pub(crate) fn served(&self) -> bool {
        self.came_up && self.kv_tokens.is_some()
    }

    /// Whether the server got there as asked for.
    pub(crate) fn as_asked(&self) -> bool {
        self.served() && !self.other_fraction
    }
}
