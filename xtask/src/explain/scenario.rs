//! What a log says as scenario flags, for `--from-log LOG`.

use super::carried::{ATTENTION, PASS};
use super::facts::Facts;
use super::reduce::Off;
use super::speeds::LoadSpeed;
use crate::step_time::verify_graphs::{Seen, is_known};

/// Scenario flags as a log states them; `None` where it does not. Beside each the line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LogScenario {
    /// The file, as the user named it.
    pub(crate) file: String,
    /// What names a diffusion language model in it.
    pub(crate) denoises: Option<(String, usize)>,
    /// Model path or name as given to the engine.
    pub(crate) model: Option<(String, usize)>,
    /// Class of the model that it loaded.
    pub(crate) class: Option<(String, usize)>,
    /// `sglang`, `vllm`, `trtllm`, `llamacpp`.
    pub(crate) engine: Option<(String, usize)>,
    /// Version as printed.
    pub(crate) engine_version: Option<(String, usize)>,
    /// The version whose rules hold where none is printed, and why.
    pub(crate) version_by_lines: Option<(String, String, usize)>,
    /// Whether releases that are told other flags may have written it.
    pub(crate) version_open: bool,
    /// Tensor-parallel size.
    pub(crate) tp: Option<(u32, usize)>,
    /// Hosts that the server spans, in words, where it spans several.
    pub(crate) hosts: Option<(String, usize)>,
    /// Cards that llama.cpp found: it takes them all.
    pub(crate) gpus: Option<(u32, usize)>,
    /// Decode context parallel size.
    pub(crate) dcp: Option<(u32, usize)>,
    /// What spreads its requests over ranks (SGLang's attention, vLLM's engines), in words.
    pub(crate) data_parallel: Option<(String, usize)>,
    /// SGLang mem_fraction_static or vLLM gpu_memory_utilization: the one that was in use where
    /// free memory and pool prove another than the flag, else the flag.
    pub(crate) mem_fraction: Option<(f64, usize)>,
    /// KV cache dtype, where not `auto`.
    pub(crate) kv_dtype: Option<(String, usize)>,
    /// Quantisation flag, where not `None`.
    pub(crate) quant: Option<(String, usize)>,
    /// Whether only the names of its kernels say so.
    pub(crate) quant_by_kernels: bool,
    /// Longest context the server takes, tokens.
    pub(crate) context: Option<(u32, usize)>,
    /// Tokens that a request held.
    pub(crate) held: Option<super::held::Held>,
    /// Tokens of a hybrid's block, where the log is of one: its pool's share in use tells no context.
    pub(crate) hybrid_block: Option<(u32, usize)>,
    /// Speculative algorithm as the engine names it.
    pub(crate) spec_algorithm: Option<(String, usize)>,
    /// Draft model path or name; `mtp` where it is the target's own.
    pub(crate) draft: Option<(String, usize)>,
    /// Draft steps.
    pub(crate) steps: Option<(u32, usize)>,
    /// Tree width.
    pub(crate) topk: Option<(u32, usize)>,
    /// Tokens verified per sequence.
    pub(crate) draft_tokens: Option<(u32, usize)>,
    /// vLLM's own all-reduce forced over PCIe: the largest payload it takes where said, bytes, and
    /// the rows (tokens of a pass) up to which it takes a larger one too.
    pub(crate) pcie_all_reduce: Option<(Option<(f64, f64)>, usize)>,
    /// NCCL's version and level.
    pub(crate) nccl: super::nccl::Said,
    /// Variables and flags by which the server's all-reduce was chosen.
    pub(crate) all_reduce_switches: Option<(Vec<String>, usize)>,
    /// The engine's own all-reduce was off, by flag or by what it found.
    pub(crate) no_custom_all_reduce: bool,
    /// Where the server says that the engine's own all-reduce runs there.
    pub(crate) custom_all_reduce: Option<usize>,
    /// Why it says that it does not, where no rule of the engine for such a box does.
    pub(crate) custom_all_reduce_off: Option<(Off, usize)>,
    /// Where SGLang says that FlashInfer's all-reduce is not there.
    pub(crate) no_flashinfer: Option<usize>,
    /// GPU as the log names it.
    pub(crate) gpu: Option<(String, usize)>,
    /// Mean accept length, bonus included.
    pub(crate) accept_length: Option<(f64, usize)>,
    /// Free and total of a card, GiB, where a start was refused for it, and the line.
    pub(crate) too_little_free: Option<(f64, f64, usize)>,
    /// That of look-up's passes which found something, where no other is known.
    pub(crate) accept_of_hits: Option<(f64, usize)>,
    /// What vLLM keeps of states for prefix caching.
    pub(crate) prefix_states: Option<kvplan::PrefixStates>,
    /// The log, where it says how often each drafted position was accepted.
    pub(crate) accept_rates: Option<String>,
    /// Why that is none of the model's: the server was told it, or has random weights.
    pub(crate) accept_forced: Option<String>,
    /// Whether its weights are random.
    pub(crate) random_weights: bool,
    /// Most requests at a time.
    pub(crate) max_running_requests: Option<(u32, usize)>,
    /// Whether the server took that number by itself.
    pub(crate) max_running_taken: bool,
    /// Tokens of one pass at most.
    pub(crate) batched_tokens: Option<(u32, usize)>,
    /// Whether vLLM took that number by itself.
    pub(crate) batched_taken: bool,
    /// Tokens of context that the draft's own config reaches.
    pub(crate) draft_reach: Option<(u32, usize)>,
    /// Which throughput windows drafted.
    pub(crate) windows: Option<super::speeds::Windows>,
    /// Largest batch captured as a graph.
    pub(crate) graph_max_batch: Option<(u32, usize)>,
    /// What says whether vLLM runs a verify as one whole graph.
    pub(crate) verify_graphs: Option<Seen>,
    /// What the graphs took, those of prefills left out, GiB.
    pub(crate) graph_gib: Option<(f64, usize)>,
    /// What of that is the draft's, where its captures are named, GiB.
    pub(crate) draft_graph_gib: Option<(f64, usize)>,
    /// What the target's graphs of prefills took, 0 where only others were captured, GiB.
    pub(crate) prefill_graph_gib: Option<(f64, usize)>,
    /// Line at which the draft's weights were there.
    pub(crate) draft_loaded: Option<usize>,
    /// The draft's weights of one card, GiB, where they were loaded apart from the target's.
    pub(crate) draft_weights_gib: Option<(f64, usize)>,
    /// Weights loaded on one card, as vLLM prints them, a draft's loaded with them in, GiB.
    pub(crate) weights_gib: Option<(f64, usize)>,
    /// Line at which the server ran out of memory beside its pool, where that ended it.
    pub(crate) ran_out: Option<usize>,
    /// Free before the weights, GiB.
    pub(crate) free_before_gib: Option<(f64, usize)>,
    /// Free after the target's weights, GiB.
    pub(crate) free_after_gib: Option<(f64, usize)>,
    /// Where a server ended with an error that never took requests.
    pub(crate) died: Option<usize>,
    /// Whether the server got past its pool.
    pub(crate) came_up: bool,
    /// Whether it came to take requests.
    pub(crate) stayed_up: bool,
    /// Peak of vLLM's profile run and what grew outside torch meanwhile, as printed, GiB.
    pub(crate) profile: Option<(f64, Option<f64>)>,
    /// Pool of a server whose log shows that it stands: GiB.
    pub(crate) kv_gib: Option<(f64, usize)>,
    /// Whether that is printed, not computed from tokens.
    pub(crate) kv_gib_printed: bool,
    /// States of linear and Mamba layers on one card, drafted copies in, GiB.
    pub(crate) state_gib: Option<(f64, usize)>,
    /// The same, tokens.
    pub(crate) kv_tokens: Option<(f64, usize)>,
    /// Generation speeds by load, of one server: its own lines', else those of a bench printed between
    /// them; none where data-parallel ranks print their parts.
    pub(crate) speeds: Vec<LoadSpeed>,
    /// Share of the decode lines that ran outside a graph.
    pub(crate) outside_graph: f64,
    /// Line that says that it captures no graphs at all.
    pub(crate) eager: Option<usize>,
    /// What vLLM says of its scheduler, which may overlap the step.
    pub(crate) overlap: Option<super::overlap::Said>,
    /// What a start line of the same engine takes over.
    pub(crate) carried: super::carried::Carried,
}

/// Reads what a log says of the scenario; an error in one line where it says nothing.
pub(crate) fn scenario_from_log(text: &str, name: &str) -> anyhow::Result<LogScenario> {
    let facts = super::facts_from_text(text, name);
    let scenario = scenario_from_facts(&facts);
    let empty = LogScenario {
        file: name.to_string(),
        ..LogScenario::default()
    };
    if scenario == empty {
        return Err(crate::input::error(format!(
            "--from-log {name}: no engine settings in it; give the server's log from its start \
             (the line with server_args or engine config)"
        )));
    }
    Ok(scenario)
}

/// Whether a log shows no error.
fn sound(facts: &Facts) -> bool {
    let failed = facts.get("error_kind").or_else(|| facts.get("error"));
    failed.is_none()
}

/// Whether the pool that a log prints stands: its tokens are counted once it holds a request, also where
/// the log ends there.
fn pool_stands(facts: &Facts) -> bool {
    came_up(facts) || (sound(facts) && facts.get("kv_tokens").is_some())
}

/// Whether a server got past its pool without an error.
fn came_up(facts: &Facts) -> bool {
    let after_the_pool = ["graph_gib", "free_when_ready_gib", "gen_tok_s", "ready"];
    sound(facts) && after_the_pool.iter().any(|name| facts.get(name).is_some())
}

/// Line at which a server ended with an error that never took requests.
fn died(facts: &Facts) -> Option<usize> {
    let up = ["ready", "gen_tok_s"]
        .iter()
        .any(|name| facts.get(name).is_some());
    facts.get("error").filter(|_| !up).map(|fact| fact.line)
}

/// Line at which it ran out of memory beside its pool.
fn ran_out(facts: &Facts) -> Option<usize> {
    let error = facts.get("error_kind")?.line;
    let pool = facts.get("kv_tokens").or_else(|| facts.get("kv_gib"))?.line;
    (facts.text("error_kind") == Some("out-of-memory") && pool < error).then_some(error)
}

/// Whether it came to take requests without an error: all its graphs are captured then.
fn stayed_up(facts: &Facts) -> bool {
    let serving = ["free_when_ready_gib", "gen_tok_s", "accept_length", "ready"];
    sound(facts) && serving.iter().any(|name| facts.get(name).is_some())
}

/// The draft of a path: the target's own layers, a kind of head, or the path itself.
fn draft_of(facts: &Facts, draft: String, line: usize) -> (String, usize) {
    // The target's own path: its built-in MTP layers.
    if facts.text("model") == Some(draft.as_str()) {
        return ("mtp".to_string(), line);
    }
    // The algorithm says what a path does not.
    let algorithm = facts.text("spec_algorithm").unwrap_or("");
    let eagle3 = algorithm.to_ascii_lowercase().contains("eagle3");
    let known = std::path::Path::new(&draft).exists();
    let named = crate::scenario::model::names_head(&draft);
    match (eagle3 && !known, named) {
        (true, None) => ("eagle3".to_string(), line),
        _ => (draft, line),
    }
}

/// Free after the target's weights: newer builds size the pool once the draft is loaded too.
fn free_after_target(facts: &Facts) -> Option<(f64, usize)> {
    if let (None, Some(share)) = (
        facts.get("free_after_gib"),
        facts.number("kv_fraction_of_free"),
    ) {
        let pool = facts.get("kv_gib").filter(|_| share > 0.0)?;
        return Some((facts.number("kv_gib")? / share, pool.line));
    }
    let fact = facts.get("free_after_gib")?;
    let after = facts.number("free_after_gib")?;
    let draft = facts
        .get("draft_weights_gib")
        .filter(|draft| draft.line <= fact.line);
    let held = draft.and_then(|_| facts.number("draft_weights_gib"));
    Some((after + held.unwrap_or(0.0), fact.line))
}

fn prefill_graphs(facts: &Facts) -> f64 {
    facts.number("prefill_graph_gib").unwrap_or(0.0)
}

/// What graphs took without those of prefills, GiB, and the line; less than nothing where a draft gave back
/// more.
fn decode_graphs(facts: &Facts) -> Option<(f64, usize)> {
    let (all, line) = (facts.number("graph_gib")?, facts.get("graph_gib")?.line);
    let given_back = facts.number("draft_graph_gib").unwrap_or(0.0).min(0.0);
    Some(((all - prefill_graphs(facts)).max(given_back), line))
}

/// What vLLM prints of its profile run.
fn profile(facts: &Facts) -> Option<(f64, Option<f64>)> {
    let size = |name: &str| facts.number(name).filter(|gib| (1e-9..1e5).contains(gib));
    Some((size("activation_gib")?, size("non_torch_gib")))
}

/// A whole number, and its line.
pub(super) fn whole(facts: &Facts, name: &str) -> Option<(u32, usize)> {
    let (n, line) = (facts.number(name)?, facts.get(name)?.line);
    (n.fract() == 0.0 && (1.0..4e9).contains(&n)).then_some((n as u32, line))
}

/// Draft steps. A chain verifies one token more than it drafts; block drafts (DFlash) say 1 step and
/// verify a whole block, so their depth is the block less its first token.
fn steps(facts: &Facts) -> Option<(u32, usize)> {
    let (topk, tokens) = (whole(facts, "spec_topk"), whole(facts, "spec_draft_tokens"));
    let steps = whole(facts, "spec_steps").or_else(|| whole(facts, "spec_tokens"));
    match (steps, tokens, topk) {
        (Some((said, line)), Some((verified, _)), Some((1, _)))
            if verified > said.saturating_add(1) =>
        {
            Some((verified - 1, line))
        }
        _ => steps,
    }
}

/// The version that a log's lines are of, what they leave open, and the line that shows it.
fn version_by_lines(facts: &Facts) -> Option<(String, String, usize)> {
    let taken = facts.get("engine_version_taken")?;
    let version = facts.text("engine_version_taken")?.to_string();
    let range = facts.text("engine_version_range").unwrap_or("");
    Some((version, range.to_string(), taken.line))
}

/// How verifies were captured, else the backend that decides it.
fn verify_graphs(facts: &Facts) -> Option<Seen> {
    let told = || facts.carried.value(ATTENTION).filter(|name| is_known(name));
    let named = facts.text("attention_backend").or_else(told);
    let seen = Seen {
        whole: facts.text("cuda_graphs").map(|how| how == "whole"),
        backend: named.map(str::to_string),
    };
    seen.some()
}

/// The scenario among facts already read.
pub(crate) fn scenario_from_facts(facts: &Facts) -> LogScenario {
    let text = |name: &str| Some((facts.text(name)?.to_string(), facts.get(name)?.line));
    let number = |name: &str| Some((facts.number(name)?, facts.get(name)?.line));
    let whole = |name: &str| whole(facts, name);
    let (stands, came_up) = (pool_stands(facts), came_up(facts));
    LogScenario {
        file: facts.file.clone(),
        engine: text("engine"),
        engine_version: text("engine_version"),
        version_by_lines: version_by_lines(facts),
        version_open: facts.version_open,
        tp: whole("tp"),
        hosts: super::hosts::of_server(facts),
        gpus: whole("gpus").filter(|_| facts.text("engine") == Some("llamacpp")),
        dcp: whole("dcp"),
        data_parallel: super::starts::of_facts(facts),
        mem_fraction: super::fraction::told(facts),
        kv_dtype: text("kv_dtype"),
        context: whole("context_len").or_else(|| whole("max_model_len")),
        held: super::held::held(facts),
        hybrid_block: whole("attention_block_tokens"),
        spec_algorithm: text("spec_algorithm"),
        draft: text("draft_model").map(|(draft, line)| draft_of(facts, draft, line)),
        steps: steps(facts),
        topk: whole("spec_topk"),
        draft_tokens: whole("spec_draft_tokens"),
        died: died(facts),
        gpu: text("gpu"),
        accept_length: number("accept_length"),
        too_little_free: too_little_free(facts),
        accept_of_hits: number("accept_length_of_hits"),
        prefix_states: prefix_states(facts),
        accept_rates: facts.get("accept_rates").map(|_| facts.file.clone()),
        accept_forced: super::forced::words(facts),
        max_running_requests: whole("max_running_requests"),
        max_running_taken: facts.get("max_running_taken").is_some(),
        batched_tokens: whole("chunked_prefill_size").or_else(|| whole("max_num_batched_tokens")),
        batched_taken: batched_taken(facts),
        draft_reach: whole("draft_max_model_len").filter(|(tokens, _)| *tokens > 0),
        windows: facts.windows,
        graph_max_batch: whole("cuda_graph_max_bs"),
        verify_graphs: verify_graphs(facts),
        graph_gib: decode_graphs(facts),
        draft_graph_gib: number("draft_graph_gib"),
        prefill_graph_gib: number("graph_gib").map(|(_, line)| (prefill_graphs(facts), line)),
        draft_loaded: facts.get("draft_weights_gib").map(|fact| fact.line),
        draft_weights_gib: number("draft_weights_gib").filter(|(gib, _)| *gib > 0.0),
        weights_gib: number("weights_gib").filter(|_| facts.text("engine") == Some("vllm")),
        free_before_gib: number("free_before_gib"),
        free_after_gib: free_after_target(facts),
        came_up,
        stayed_up: stayed_up(facts),
        ran_out: ran_out(facts),
        profile: profile(facts).filter(|_| stands),
        kv_gib: number("kv_gib").filter(|_| stands),
        kv_gib_printed: facts.get("kv_gib").is_some_and(|f| f.how.is_none()),
        state_gib: number("mamba_state_gib").filter(|_| stands),
        kv_tokens: pool_tokens(facts).filter(|(n, _)| stands && *n >= 1.0),
        speeds: speeds(facts),
        outside_graph: outside_graph(facts),
        eager: facts.eager().map(|fact| fact.line),
        overlap: super::overlap::of_facts(facts),
        carried: facts.carried.clone(),
        ..of_the_model(facts)
    }
}

/// What a log says of its model and the weights of it.
fn of_the_model(facts: &Facts) -> LogScenario {
    let text = |name: &str| Some((facts.text(name)?.to_string(), facts.get(name)?.line));
    LogScenario {
        denoises: facts.denoises().map(|(f, name)| (name.to_string(), f.line)),
        model: text("model"),
        class: text("model_class"),
        quant: text("quant"),
        quant_by_kernels: facts.get("quant").is_some_and(|f| f.how.is_some()),
        random_weights: facts.get("random_weights").is_some(),
        ..super::reduce::said(facts)
    }
}

/// Whether vLLM's longest pass is what it came to by itself: its arguments do not name it.
fn batched_taken(facts: &Facts) -> bool {
    let told = || facts.carried.value(PASS);
    facts.text("engine") == Some("vllm") && told().is_none()
}

/// Free and total of a card whose start was refused for it, and the line.
fn too_little_free(facts: &Facts) -> Option<(f64, f64, usize)> {
    let refused = facts.text("error_kind") == Some("too-little-free-at-start");
    let error = facts.get("error_kind").filter(|_| refused)?;
    let (free, total) = (facts.number("free_before_gib")?, facts.number("total_gib")?);
    Some((free, total, error.line))
}

/// Tokens of the pool, and the line.
fn pool_tokens(facts: &Facts) -> Option<(f64, usize)> {
    let tokens = super::vllm::pool_tokens(facts)?;
    Some((tokens, facts.get("kv_tokens")?.line))
}

/// Generation speeds by load: of the server's own lines, else of a bench printed between them. A bench
/// alone is a sweep, not a log.
fn speeds(facts: &Facts) -> Vec<LoadSpeed> {
    match facts.speed_printers {
        0 if facts.get("engine").is_some() => facts.bench_speeds.clone(),
        1 if facts.speeds.is_empty() => facts.bench_speeds.clone(),
        1 => facts.speeds.clone(),
        _ => Vec::new(),
    }
}

/// The same of a text that shows drafts, or of a bench whose runs say that they drafted; none of a server
/// that seldom did.
pub(super) fn speeds_of_drafts(facts: &Facts) -> Vec<LoadSpeed> {
    match facts.get("engine") {
        _ if facts.windows.is_some_and(|w| w.mostly_plain()) => Vec::new(),
        Some(_) => speeds(facts),
        None => facts.drafted_bench().to_vec(),
    }
}

/// The states that the lines or the arguments of vLLM say it keeps for prefixes; without a mode those
/// of Qwen's layers (`MambaModelConfig`, 0.16 and later).
fn prefix_states(facts: &Facts) -> Option<kvplan::PrefixStates> {
    let given = |name: &str| {
        facts
            .carried
            .flags
            .iter()
            .find(|flag| flag.first().is_some_and(|word| word == name))
    };
    let on = given("--enable-prefix-caching").is_some();
    let told = given("--mamba-cache-mode").and_then(|flag| flag.get(1));
    let told = told.map(String::as_str).filter(|_| on);
    match facts.text("mamba_cache_mode").or(told) {
        Some("all") => Some(kvplan::PrefixStates::All),
        Some("none") => Some(kvplan::PrefixStates::Off),
        Some(_) => Some(kvplan::PrefixStates::Align),
        None if on => Some(kvplan::PrefixStates::Align),
        None if given("--no-enable-prefix-caching").is_some() => Some(kvplan::PrefixStates::Off),
        None => None,
    }
}

/// Share of the decode lines that ran outside a graph.
fn outside_graph(facts: &Facts) -> f64 {
    let lines = |name: &str| facts.number(name);
    lines("decode_lines_outside_graph").unwrap_or(0.0)
        / lines("decode_lines").unwrap_or(1.0).max(1.0)
}

/// Most requests at a time in the command to paste: engines' defaults are limits, not loads.
const MOST_USERS: u32 = 256;

impl LogScenario {
    /// Loads up to the most requests it runs at once, as `--concurrency` takes them, and the line.
    pub(crate) fn loads(&self) -> Option<(String, usize)> {
        let (most, line) = self.max_running_requests?;
        let most = most.min(MOST_USERS);
        let doubled = (0..32).map(|shift| 1_u32 << shift);
        let mut loads: Vec<u32> = doubled.take_while(|users| *users < most).collect();
        loads.push(most);
        let words: Vec<String> = loads.iter().map(u32::to_string).collect();
        Some((words.join(","), line))
    }
}
