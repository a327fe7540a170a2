//! What a log says as scenario flags, for `--from-log LOG`.

use super::facts::Facts;
use crate::scenario::parse;

/// Scenario flags as a log states them; `None` where it does not. Beside each the line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LogScenario {
    /// The file, as the user named it.
    pub(crate) file: String,
    /// Model path or name as given to the engine.
    pub(crate) model: Option<(String, usize)>,
    /// `sglang`, `vllm`, `trtllm`, `llamacpp`.
    pub(crate) engine: Option<(String, usize)>,
    /// Version as printed.
    pub(crate) engine_version: Option<(String, usize)>,
    /// Tensor-parallel size.
    pub(crate) tp: Option<(u32, usize)>,
    /// Decode context parallel size.
    pub(crate) dcp: Option<(u32, usize)>,
    /// SGLang mem_fraction_static or vLLM gpu_memory_utilization: the one that was in use where
    /// free memory and pool prove it, else the flag.
    pub(crate) mem_fraction: Option<(f64, usize)>,
    /// KV cache dtype, where not `auto`.
    pub(crate) kv_dtype: Option<(String, usize)>,
    /// Quantisation flag, where not `None`.
    pub(crate) quant: Option<(String, usize)>,
    /// Longest context the server takes, tokens.
    pub(crate) context: Option<(u32, usize)>,
    /// Tokens that a request held.
    pub(crate) held_tokens: Option<(u32, usize)>,
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
    /// GPU as the log names it.
    pub(crate) gpu: Option<(String, usize)>,
    /// Mean accept length, bonus included.
    pub(crate) accept_length: Option<(f64, usize)>,
    /// Most requests at a time.
    pub(crate) max_running_requests: Option<(u32, usize)>,
    /// Tokens of one pass at most.
    pub(crate) batched_tokens: Option<(u32, usize)>,
    /// What the graphs took, GiB.
    pub(crate) graph_gib: Option<(f64, usize)>,
    /// Line at which the draft's weights were there.
    pub(crate) draft_loaded: Option<usize>,
    /// Free before the weights of a server that came up, GiB.
    pub(crate) free_before_gib: Option<(f64, usize)>,
    /// Free after the target's weights, GiB.
    pub(crate) free_after_gib: Option<(f64, usize)>,
    /// Pool of a server that came up without an error: GiB.
    pub(crate) kv_gib: Option<(f64, usize)>,
    /// The same, tokens.
    pub(crate) kv_tokens: Option<(f64, usize)>,
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

/// Whether a server got past its pool without an error.
fn came_up(facts: &Facts) -> bool {
    let after_the_pool = ["graph_gib", "free_when_ready_gib", "gen_tok_s"];
    facts.get("error_kind").is_none() && after_the_pool.iter().any(|name| facts.get(name).is_some())
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

/// The scenario among facts already read.
pub(crate) fn scenario_from_facts(facts: &Facts) -> LogScenario {
    let text = |name: &str| -> Option<(String, usize)> {
        facts
            .get(name)
            .and_then(|fact| Some((facts.text(name)?.to_string(), fact.line)))
    };
    let number = |name: &str| -> Option<(f64, usize)> {
        facts
            .get(name)
            .and_then(|fact| Some((facts.number(name)?, fact.line)))
    };
    let whole = |name: &str| -> Option<(u32, usize)> {
        number(name)
            .filter(|(n, _)| n.fract() == 0.0 && (1.0..4e9).contains(n))
            .map(|(n, line)| (n as u32, line))
    };
    let (topk, draft_tokens) = (whole("spec_topk"), whole("spec_draft_tokens"));
    let mut steps = whole("spec_steps").or_else(|| whole("spec_tokens"));
    // A chain verifies one token more than it drafts; block drafts (DFlash) say 1 step and verify
    // a whole block, so their depth is the block less its first token.
    if let (Some((said, line)), Some((verified, _)), Some((1, _))) = (steps, draft_tokens, topk)
        && verified > said.saturating_add(1)
    {
        steps = Some((verified - 1, line));
    }
    let came_up = came_up(facts);
    LogScenario {
        file: facts.file.clone(),
        model: text("model"),
        engine: text("engine"),
        engine_version: text("engine_version"),
        tp: whole("tp"),
        dcp: whole("dcp"),
        mem_fraction: number("mem_fraction_in_use")
            .or_else(|| number("mem_fraction"))
            .or_else(|| number("gpu_memory_utilization")),
        kv_dtype: text("kv_dtype"),
        quant: text("quant"),
        context: whole("context_len").or_else(|| whole("max_model_len")),
        held_tokens: number("held_tokens_per_request")
            .map(|(n, line)| (n as u32, line))
            .filter(|(n, _)| *n > 0),
        spec_algorithm: text("spec_algorithm"),
        draft: text("draft_model").map(|(draft, line)| draft_of(facts, draft, line)),
        steps,
        topk,
        draft_tokens,
        gpu: text("gpu"),
        accept_length: number("accept_length"),
        max_running_requests: whole("max_running_requests"),
        batched_tokens: whole("chunked_prefill_size").or_else(|| whole("max_num_batched_tokens")),
        graph_gib: number("graph_gib"),
        draft_loaded: facts.get("draft_weights_gib").map(|fact| fact.line),
        free_before_gib: number("free_before_gib").filter(|_| came_up),
        free_after_gib: number("free_after_gib").filter(|_| came_up),
        kv_gib: number("kv_gib").filter(|_| came_up),
        kv_tokens: number("kv_tokens").filter(|(n, _)| came_up && *n >= 1.0),
    }
}

/// The `predict` command that goes on from what the files say; `None` where they name neither a
/// model nor an engine.
pub(crate) fn command_line(files: &[Facts]) -> Option<String> {
    let Some(log) = files.iter().find(|facts| facts.text("engine").is_some()) else {
        return simulate_line(files);
    };
    let said = scenario_from_facts(log);
    let mut words = vec!["cargo xtask predict".to_string()];
    let mut push = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            let quoted = if value.contains(' ') {
                format!("'{value}'")
            } else {
                value
            };
            words.push(format!("{flag} {quoted}"));
        }
    };
    let known = said
        .model
        .as_ref()
        .map(|(path, _)| model_name(path))
        .filter(|name| kvplan::catalog::find(name).is_ok());
    let model = known.clone().unwrap_or_else(|| "MODEL".to_string());
    push("--model", Some(model));
    let engine = said.engine.as_ref().map(|(engine, _)| {
        let version = said.engine_version.as_ref().map(|(version, _)| version);
        match version.filter(|version| parse::is_version(version)) {
            Some(version) => format!("{engine}@{version}"),
            None => engine.clone(),
        }
    });
    push("--engine", engine);
    let topology = files.iter().find(wired);
    push("--topology", topology.map(|facts| facts.file.clone()));
    push("--gpu", Some(card(files)));
    if topology.is_none() {
        push("--gpus", said.tp.map(|(n, _)| n.to_string()));
    }
    push("--tp", said.tp.map(|(n, _)| n.to_string()));
    push(
        "--dcp",
        said.dcp.filter(|(n, _)| *n > 1).map(|(n, _)| n.to_string()),
    );
    push("--mem-fraction", said.mem_fraction.map(|(f, _)| short(f)));
    let kv_dtype = said.kv_dtype.as_ref().map(|(dtype, _)| dtype.clone());
    push(
        "--kv-dtype",
        kv_dtype.filter(|dtype| kvplan::KvDtype::parse(dtype).is_some()),
    );
    push("--draft", draft_word(&said, known.as_deref()));
    // Drafts by look-up are not modelled; their depth says nothing of a head's.
    let algorithm = said.spec_algorithm.as_ref();
    let look_up = algorithm.is_some_and(|(name, _)| crate::scenario::merge::is_look_up(name));
    let depth = said.steps.map(|(n, _)| n).filter(|_| !look_up);
    push("--steps", depth.map(|n| n.to_string()));
    for (flag, value) in load(&said) {
        push(flag, value);
    }
    for (flag, value) in measured(&said, depth, files) {
        push(flag, value);
    }
    (words.len() > 4 || known.is_some()).then(|| words.join(" "))
}

/// Most requests at a time in the command to paste: engines' defaults are limits, not loads.
const MOST_USERS: u32 = 256;

/// The load: tokens that a request held, else the context the server takes; users up to the most
/// it runs at once.
fn load(said: &LogScenario) -> [(&'static str, Option<String>); 2] {
    let context = said.held_tokens.or(said.context).map(|(n, _)| n);
    [
        ("--context", context.map(|n| n.to_string())),
        ("--concurrency", said.loads().map(|(loads, _)| loads)),
    ]
}

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

/// What was measured: the accept length, all-reduce times, a plain sweep.
fn measured(
    said: &LogScenario,
    depth: Option<u32>,
    files: &[Facts],
) -> [(&'static str, Option<String>); 3] {
    let possible = |((length, _), depth): &((f64, usize), u32)| {
        (1.0..=f64::from(*depth) + 1.0).contains(length)
    };
    let accept = said.accept_length.zip(depth).filter(possible);
    let alone = said.tp.is_some_and(|(tp, _)| tp < 2);
    let table = files.iter().find(|facts| !alone && all_reduce_table(facts));
    let baseline = files.iter().find(|facts| {
        facts.number("bench_points").is_some_and(|n| n > 1.0)
            && facts.get("accept_length").is_none()
    });
    [
        (
            "--accept",
            accept.map(|((length, _), depth)| format!("{}@{depth}", short(length))),
        ),
        ("--allreduce-table", table.map(|facts| facts.file.clone())),
        ("--baseline", baseline.map(|facts| facts.file.clone())),
    ]
}

/// The draft as `predict` takes it; `None` where it must find one by itself.
fn draft_word(said: &LogScenario, model: Option<&str>) -> Option<String> {
    let path = said.draft.as_ref().map(|(path, _)| model_name(path));
    let algorithm = said.spec_algorithm.as_ref();
    let algorithm = algorithm.map_or(String::new(), |(name, _)| name.to_ascii_lowercase());
    let found = model.and_then(|model| kvplan::catalog::find(model).ok());
    let own_layers = found.is_none_or(|found| !found.model.mtp_layers.is_empty());
    let lower = path.as_deref().unwrap_or("").to_ascii_lowercase();
    let whole = said.draft.as_ref().map(|(path, _)| path.clone());
    if algorithm.contains("eagle3") || lower.contains("eagle3") {
        // A repository's name passes as it is, where it says the kind.
        let named = |path: &String| {
            path.contains('/') && crate::scenario::model::names_head(path) == Some("eagle3")
        };
        let whole = whole.filter(named);
        return Some(whole.unwrap_or_else(|| "eagle3".to_string()));
    }
    let nextn = ["mtp", "nextn"].iter().any(|word| algorithm.contains(word));
    if lower == "mtp" || nextn || (path.is_none() && algorithm.contains("eagle")) {
        return own_layers.then(|| "mtp".to_string());
    }
    // A small model of the catalogue drafts under its own name.
    whole.map(|path| match kvplan::catalog::find(&path) {
        Ok(_) => path,
        Err(_) => "DRAFT".to_string(),
    })
}

/// A topology alone: what its links are worth.
fn simulate_line(files: &[Facts]) -> Option<String> {
    let boxed = files.iter().find(|facts| facts.kinds.contains(&"box-file"));
    if let Some(facts) = boxed {
        return Some(format!("cargo xtask simulate --box {}", facts.file));
    }
    let facts = files.iter().find(wired)?;
    Some(format!(
        "cargo xtask simulate --topology {} --gpu {}",
        facts.file,
        card(files)
    ))
}

/// A text that shows how the GPUs are wired; a tree without names does not.
fn wired(facts: &&Facts) -> bool {
    const WIRING: [&str; 3] = ["topo-matrix", "nccl-topology-xml", "lspci-tree"];
    facts.number("gpus").is_some_and(|gpus| gpus > 1.0)
        && facts.kinds.iter().any(|kind| WIRING.contains(kind))
}

/// An nccl-tests table of all-reduces.
fn all_reduce_table(facts: &Facts) -> bool {
    facts.kinds.contains(&"nccl-tests")
        && facts.text("op").is_none_or(|op| op == "all_reduce")
        && facts.get("smallest_time_us").is_some()
}

/// The card by its catalogue name, or a word to be replaced.
fn card(files: &[Facts]) -> String {
    files
        .iter()
        .filter_map(|facts| crate::gpus::find(facts.text("gpu")?).ok())
        .map(|gpu| gpu.name.clone())
        .next()
        .unwrap_or_else(|| "GPU".to_string())
}

/// The last part of a path or repository name.
fn model_name(path: &str) -> String {
    path.trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(path)
        .to_string()
}

/// Three decimals, without an empty tail.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
