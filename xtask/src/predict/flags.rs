//! Engine flags to paste, for the best setting.

use std::collections::BTreeMap;

use serde_json::json;
use spec_decode::HeadKind;

use super::answer::{Answer, Memory, Point};
use super::kernels::{self, BOUND, Group, Switch};
use super::links::Choice;
use super::pasted::{NoList, Pasted};
use super::{checkpoint, launch, other_flags, serves, verdict};
use crate::scenario::file::ObservedFile;
use crate::scenario::{EngineChoice, EngineKind, GraphBatch, Ran, Scenario, shapes};

/// A setting to express as flags.
pub(super) struct Setting<'a> {
    pub(super) scenario: &'a Scenario,
    /// Whether any line could start it.
    pub(super) runs: bool,
    /// 0: speculation off.
    pub(super) steps: u32,
    pub(super) topk: u32,
    pub(super) draft_tokens: u32,
    /// The all-reduce that was asked for and the GPUs that run it.
    pub(super) allreduce: Choice,
    pub(super) group: Group,
    /// The ledger of the engine that was asked for.
    pub(super) memory: &'a Memory,
    /// Depths by load, and the one of an engine that takes no list.
    pub(super) pasted: &'a Pasted,
}

impl Setting<'_> {
    /// The one depth of the line of the engine asked for, 0 for off; `None` where it has a list.
    pub(super) fn one_depth(&self) -> Option<u32> {
        let by_load = self.steps > 0 && self.has_list() && self.pasted.takes_list;
        (!by_load).then_some(self.steps)
    }

    /// Whether the depth varies with the load.
    pub(super) fn has_list(&self) -> bool {
        !self.pasted.list.is_empty()
    }
}

/// First vLLM release whose depth by batch size runs in whole CUDA graphs of every model. From 0.24 on the
/// key is taken (PR 32374), but the first model runner then cuts all graphs
/// (`_maybe_override_dynamic_sd_cudagraph_mode`), and the second, which captures each depth since 0.25
/// (PR 45953), takes the smallest graph of either kind before 0.29, mostly a cut one. Older ones refuse it.
const VLLM_DEPTH_BY_LOAD: ((u32, u32, u32), (u32, u32)) = ((0, 29, 0), (2026, 9));

/// Flags by engine; only engines that can run the setting are listed. SGLang and vLLM stand beside
/// each other, so that the answer carries over; TensorRT-LLM and llama.cpp where they are asked for.
pub(super) fn engine_flags(setting: &Setting<'_>) -> BTreeMap<&'static str, Vec<String>> {
    let mut flags = BTreeMap::new();
    if !setting.runs {
        return flags;
    }
    let asked = setting.scenario.engine.kind;
    let devices = setting.scenario.visible_devices();
    let level = super::nccl_setup::pasted(setting.scenario);
    let mut with_env = |engine, env_key, (mut env, mut line): (Vec<String>, Vec<String>)| {
        super::carried::add(setting.scenario, engine, &mut line);
        env.extend(super::carried::environment(setting.scenario, engine));
        flags.insert(engine, line);
        env.splice(0..0, devices.iter().chain(&level).cloned());
        if !env.is_empty() {
            flags.insert(env_key, env);
        }
    };
    if asked == EngineKind::LlamaCpp {
        let line = other_flags::llamacpp(setting);
        with_env("llamacpp", "llamacpp_env", (Vec::new(), line));
        return flags;
    }
    if serves::pastes(setting, EngineKind::Sglang) {
        with_env("sglang", "sglang_env", sglang(setting));
    }
    // SGLang alone drafts trees.
    let tree = setting.topk > 1 && setting.steps > 0;
    if !tree && serves::pastes(setting, EngineKind::Vllm) {
        with_env("vllm", "vllm_env", vllm(setting));
    }
    if asked == EngineKind::TrtLlm && !tree {
        let line = other_flags::trtllm(setting);
        with_env("trtllm", "trtllm_env", (Vec::new(), line));
        let extra = other_flags::trtllm_extra(setting);
        flags.extend(extra.map(|lines| ("trtllm_extra_yml", lines)));
    }
    flags
}

/// Whether the user named the engine: by the flag, or by a log of it.
fn asked_for(scenario: &Scenario) -> bool {
    scenario
        .input("engine")
        .is_some_and(|engine| named_by_user(&engine.source))
}

/// Whether an engine's line is shown where it has one: the one asked for, or any.
pub(super) fn shows(scenario: &Scenario, engine: EngineKind) -> bool {
    scenario.engine.kind == engine || !asked_for(scenario)
}

fn named_by_user(source: &str) -> bool {
    source != "assumed" && !source.starts_with("scenario ")
}

/// The engine of an answer, without its version.
pub(super) fn engine_name(answer: &Answer) -> String {
    let engine = answer.scenario.iter().find(|input| input.name == "engine");
    let text = engine.and_then(|input| input.value.as_str());
    crate::scenario::parse::engine(text.unwrap_or_default()).0
}

/// The lines to show: of the engine that the user named alone, where it can run the setting.
pub(crate) fn shown(answer: &Answer) -> Vec<(&'static str, &Vec<String>)> {
    let all = || {
        answer
            .engine_flags
            .iter()
            .map(|(name, flags)| (*name, flags))
    };
    let engine = answer.scenario.iter().find(|input| input.name == "engine");
    let named = engine.filter(|engine| named_by_user(&engine.source));
    let name = named.and_then(|_| EngineKind::parse(&engine_name(answer)).map(EngineKind::name));
    match name.filter(|name| answer.engine_flags.contains_key(name)) {
        Some(name) => all()
            .filter(|(engine, _)| engine.starts_with(name))
            .collect(),
        None => all().collect(),
    }
}

/// Whether the paste's vLLM takes a depth by load; one without a version is the newest.
fn vllm_takes_depth_by_load(scenario: &Scenario) -> bool {
    let (number, date) = VLLM_DEPTH_BY_LOAD;
    let asked = scenario.engine.kind == EngineKind::Vllm;
    let version = scenario.engine.version.as_deref().filter(|_| asked);
    version
        .and_then(kvplan::Version::find)
        .is_none_or(|version| version.since(number, date))
}

/// Whether the engine that was asked for takes a depth by load.
pub(super) fn takes_depth_by_load(scenario: &Scenario) -> bool {
    scenario.engine.kind == EngineKind::Vllm && vllm_takes_depth_by_load(scenario)
}

/// Why one depth runs at every load where another would be faster at some.
pub(super) fn one_depth(setting: &Setting<'_>, points: &[Point]) -> Option<String> {
    let scenario = setting.scenario;
    let runs = points.iter().filter(|point| point.fits != Some(false));
    let faster = runs.filter_map(|point| point.faster).next();
    let no_list = setting.pasted.no_list;
    let alone = !takes_depth_by_load(scenario) || !setting.has_list();
    faster.filter(|_| setting.steps > 0 && alone)?;
    let engine = scenario.engine.kind;
    let takes_none = match (engine, &scenario.engine.version) {
        (EngineKind::Vllm, _) if takes_depth_by_load(scenario) => no_list.map_or_else(
            || {
                "what gains more at a load surely pays neither there nor at the lightest"
                    .to_string()
            },
            NoList::why,
        ),
        (EngineKind::Vllm, Some(version)) => {
            format!("vLLM {version} has no depth by load in whole graphs (0.29 has)")
        }
        (EngineKind::Sglang, _) => "SGLang takes no fixed depth by load".to_string(),
        _ => format!("{} takes no list by load", engine.title()),
    };
    let beside = setting.has_list() && serves::pastes(setting, EngineKind::Vllm);
    let vllm = match beside && !asked_for(scenario) {
        true => "; the vllm line has one by load",
        false => "",
    };
    let over = match scenario.load_shares {
        Some(_) => "and over your loads no other depth gains 3 % more".to_string(),
        None => format!("so it is, {}", super::pasted::RULE),
    };
    let lightest = points.first();
    // A faster one that may not pay would not be taken alone either.
    let better = |point: &Point| {
        let other = point.faster?;
        (other.speedup > point.speedup && other.verdict == point.verdict).then_some(other)
    };
    let deeper = lightest.and_then(|point| Some((point.concurrency, better(point)?)));
    let alone = deeper.map_or_else(String::new, |(users, faster)| {
        let (load, steps) = (verdict::users(users), verdict::steps(faster.steps));
        format!("; for {load} alone it would be {steps} (--concurrency {users})")
    });
    let steps = verdict::steps(setting.steps);
    Some(match points {
        // Another depth at another load is no question.
        [_] => format!("{steps}: it is, {}", super::pasted::RULE),
        _ => format!("{steps} at every load: {takes_none}, {over}{alone}{vllm}"),
    })
}

/// What the depth by load of the paste needs.
pub(super) fn depth_by_load(scenario: &Scenario, has_list: bool) -> Option<String> {
    let asked = scenario.engine.kind == EngineKind::Vllm && asked_for(scenario);
    if !has_list || !asked {
        return None;
    }
    scenario.engine.version.is_none().then(|| {
        "num_speculative_tokens_per_batch_size needs vLLM 0.29 or newer; --engine vllm@VERSION \
         leaves it out for older ones"
            .to_string()
    })
}

/// The fraction for an engine's flag: of its own ledger, and only one that starts with room for
/// tokens. Observed figures are of the engine that was asked for.
pub(super) fn fraction(memory: &Memory) -> Option<String> {
    let holds = memory.kv_tokens.is_some_and(|tokens| tokens > 0);
    memory
        .typed_fraction()
        .filter(|_| holds && memory.fits != Some(false))
}

/// The ledger of an engine; an engine whose rules refuse the setting has none.
pub(super) fn memory_of(setting: &Setting<'_>, engine: EngineKind) -> Option<Memory> {
    if setting.scenario.engine.kind == engine {
        return Some(setting.memory.clone());
    }
    // The newest vLLM takes a depth by load.
    let takes_list = engine == EngineKind::Vllm;
    let mut other = setting.pasted.as_planned(setting.scenario, takes_list);
    other.engine = EngineChoice {
        kind: engine,
        version: None,
    };
    other.mem_fraction = None;
    other.observed = ObservedFile::default();
    other.ran = Ran::default();
    other.running_for_loads = None;
    if !crate::plan::loads_in_bf16(setting.scenario, engine) {
        // Its line names a checkpoint that stores the format.
        other.checkpoint = None;
    }
    crate::plan::memory(&launch::for_loads(other).ok()?).ok()
}

/// Where the draft lies: the repository or folder that was named, that of the small model of the catalogue
/// which was, else a word to be replaced.
pub(super) fn draft_path(setting: &Setting<'_>) -> Option<String> {
    let draft = setting.scenario.draft.as_ref()?;
    draft.model.as_ref()?;
    let given = setting.scenario.input("draft");
    let named = given.and_then(|input| input.value.as_str());
    let path = named.filter(|name| name.contains('/') && !name.ends_with(".json"));
    let small =
        || kvplan::catalog::repository(named.filter(|_| draft.head == HeadKind::DraftModel)?);
    Some(path.or_else(small).unwrap_or(launch::DRAFT).to_string())
}

/// The head, where speculation is on.
pub(super) fn head(setting: &Setting<'_>) -> Option<HeadKind> {
    let draft = setting.scenario.draft.as_ref()?;
    (setting.steps > 0).then_some(draft.head)
}

/// The ranks that whole experts are spread over: as in the log, else all where only that lets the
/// engine cut the weights.
fn expert_ranks(setting: &Setting<'_>) -> Option<u32> {
    let scenario = setting.scenario;
    let uncut = scenario.uncut.as_ref();
    let needed = uncut.is_some_and(|uncut| uncut.by_expert_parallelism);
    let ranks = if needed { scenario.tp } else { scenario.ep };
    Some(ranks).filter(|ranks| *ranks > 1)
}

pub(super) fn push(flags: &mut Vec<String>, name: &str, value: impl ToString) {
    flags.push(name.to_string());
    flags.push(value.to_string());
}

/// What switches the all-reduce on that was asked for; nothing where the engine has none.
fn switched(setting: &Setting<'_>, engine: EngineKind) -> Switch {
    let Some(algorithm) = setting.allreduce.kernel() else {
        return Switch::default();
    };
    if setting.scenario.tp < 2 {
        return Switch::default();
    }
    let kind = engine;
    let engine = engine_of(setting, kind);
    let of_build = || {
        let own = setting.scenario.engine.kind == kind;
        own.then(|| super::carried::all_reduce(setting.scenario, algorithm))?
    };
    kernels::switch(algorithm, setting.group, &engine)
        .ok()
        .or_else(of_build)
        .or_else(|| kernels::nearest(algorithm, setting.group, &engine))
        .unwrap_or_default()
}

/// The engine with the version asked for; another one than asked for is the newest.
fn engine_of(setting: &Setting<'_>, kind: EngineKind) -> EngineChoice {
    let asked = &setting.scenario.engine;
    let version = asked.version.clone().filter(|_| asked.kind == kind);
    EngineChoice { kind, version }
}

/// Environment and flags of SGLang.
fn sglang(setting: &Setting<'_>) -> (Vec<String>, Vec<String>) {
    let scenario = setting.scenario;
    let mut flags = Vec::new();
    let switch = switched(setting, EngineKind::Sglang);
    let mut env: Vec<String> = switch.env.iter().map(ToString::to_string).collect();
    push(
        &mut flags,
        "--model-path",
        checkpoint::path(scenario, EngineKind::Sglang),
    );
    checkpoint::flags(scenario, EngineKind::Sglang, &mut flags);
    push(&mut flags, "--tp", scenario.tp);
    if let Some(ranks) = expert_ranks(setting) {
        push(&mut flags, shapes::SGLANG_EXPERTS, ranks);
    }
    if let Some(head) = head(setting) {
        sglang_draft(setting, head, &mut flags);
        if let Some((strategy, variable)) = launch::sglang_hybrid(scenario) {
            flags.extend(strategy.map(str::to_string));
            env.push(variable.to_string());
        }
    }
    flags.extend(switch.flags.iter().map(ToString::to_string));
    let memory = memory_of(setting, EngineKind::Sglang);
    if let Some(fraction) = memory.as_ref().and_then(fraction) {
        push(&mut flags, "--mem-fraction-static", fraction);
    }
    let limit = launch::told_limit(scenario, memory.as_ref());
    let limit = scenario.max_model_len.or(limit);
    if let Some(tokens) = limit {
        push(&mut flags, "--context-length", tokens);
    }
    if super::short_head::in_sglang(setting, limit) {
        env.push(super::short_head::SGLANG.to_string());
    }
    flags.extend(at_once(scenario, head(setting).is_some(), memory.as_ref()));
    let engine = engine_of(setting, EngineKind::Sglang);
    let graphs = memory.as_ref().and_then(|memory| memory.graphs);
    if let Some(largest) = graphs.and_then(GraphBatch::typed) {
        push(&mut flags, super::graphs::flag(&engine), largest);
    }
    let drafts = head(setting).is_some();
    flags.extend(super::cache_format::flag(scenario, &engine));
    flags.extend(super::pool_cast::flags(scenario, &engine, drafts));
    (env, flags)
}

/// SGLang's flags of a draft.
fn sglang_draft(setting: &Setting<'_>, head: HeadKind, flags: &mut Vec<String>) {
    let algorithm = match head {
        HeadKind::Eagle3 => "EAGLE3",
        HeadKind::Eagle => "EAGLE",
        HeadKind::Mtp | HeadKind::MtpModules => "NEXTN",
        HeadKind::Parallel => "DFLASH",
        HeadKind::DraftModel => "STANDALONE",
        HeadKind::NGram => "NGRAM",
    };
    push(flags, "--speculative-algorithm", algorithm);
    if let Some(path) = draft_path(setting) {
        push(flags, "--speculative-draft-model-path", path);
    }
    if head == HeadKind::NGram {
        // By itself it drafts a tree of ten branches.
        push(flags, "--speculative-ngram-max-bfs-breadth", 1);
    }
    // Look-ups and block drafts have no steps of their own.
    if !matches!(head, HeadKind::NGram | HeadKind::Parallel) {
        push(flags, "--speculative-num-steps", setting.steps);
        push(flags, "--speculative-eagle-topk", setting.topk);
    }
    push(
        flags,
        "--speculative-num-draft-tokens",
        setting.draft_tokens,
    );
}

/// SGLang's flags for requests at once and pinned state slots.
fn at_once(scenario: &Scenario, drafts: bool, memory: Option<&Memory>) -> Vec<String> {
    let running = launch::max_running(scenario, EngineKind::Sglang, drafts, memory);
    let flag = |name: &str, value: Option<u64>| value.map(|n| [name.to_string(), n.to_string()]);
    let running = flag("--max-running-requests", running);
    let slots = flag("--max-mamba-cache-size", scenario.state_slots);
    [running, slots].into_iter().flatten().flatten().collect()
}

/// Environment and flags of vLLM.
fn vllm(setting: &Setting<'_>) -> (Vec<String>, Vec<String>) {
    let scenario = setting.scenario;
    let switch = switched(setting, EngineKind::Vllm);
    let env = switch.env.iter().map(ToString::to_string).collect();
    let mut flags = vec![checkpoint::path(scenario, EngineKind::Vllm)];
    checkpoint::flags(scenario, EngineKind::Vllm, &mut flags);
    push(&mut flags, "--tensor-parallel-size", scenario.tp);
    if expert_ranks(setting).is_some() {
        flags.push(shapes::VLLM_EXPERTS.to_string());
    }
    if let Some(head) = head(setting) {
        push(
            &mut flags,
            "--speculative-config",
            vllm_config(setting, head),
        );
    }
    flags.extend(switch.flags.iter().map(ToString::to_string));
    let memory = memory_of(setting, EngineKind::Vllm);
    if let Some(fraction) = memory.as_ref().and_then(fraction) {
        push(&mut flags, "--gpu-memory-utilization", fraction);
    }
    if let Some(tokens) = super::vllm_context(scenario, memory.as_ref()) {
        push(&mut flags, "--max-model-len", tokens);
    }
    flags.extend(super::at_once::vllm(setting, memory.as_ref()));
    flags.extend(super::cache_format::flag(
        scenario,
        &engine_of(setting, EngineKind::Vllm),
    ));
    if scenario.dcp > 1 {
        push(&mut flags, "--decode-context-parallel-size", scenario.dcp);
    }
    (env, flags)
}

fn vllm_config(setting: &Setting<'_>, head: HeadKind) -> serde_json::Value {
    let mut config = json!({"num_speculative_tokens": setting.steps});
    let method = super::serves::vllm_method(setting.scenario, head);
    if let (Some(method), Some(map)) = (method, config.as_object_mut()) {
        map.insert("method".to_string(), json!(method));
    }
    if let (Some(path), Some(map)) = (draft_path(setting), config.as_object_mut()) {
        map.insert("model".to_string(), json!(path));
    }
    if let (HeadKind::NGram, Some(map)) = (head, config.as_object_mut()) {
        // As in vLLM's own example; left out it takes 5 words alone.
        map.insert("prompt_lookup_max".to_string(), json!(4));
        map.insert("prompt_lookup_min".to_string(), json!(2));
    }
    let list = &setting.pasted.list;
    let takes_list = setting.has_list() && vllm_takes_depth_by_load(setting.scenario);
    if let (true, Some(map)) = (takes_list, config.as_object_mut()) {
        let rows = list
            .iter()
            .map(|r| [r.concurrency_from, r.concurrency_to, r.steps]);
        let table: Vec<[u32; 3]> = rows.collect();
        // The engine wants the largest depth of the schedule beside it.
        let largest = setting.pasted.deepest(true);
        map.insert("num_speculative_tokens".to_string(), json!(largest));
        map.insert(
            "num_speculative_tokens_per_batch_size".to_string(),
            json!(table),
        );
    }
    config
}

/// Why no flag gives the all-reduce that was asked for, where none does.
pub(super) fn no_switch(scenario: &Scenario, choice: Choice, group: Group) -> Option<String> {
    if scenario.tp < 2 {
        return None;
    }
    let Some(algorithm) = choice.kernel() else {
        return Some(format!(
            "--allreduce auto is the fastest kernel at each size, which no engine picks: {BOUND}"
        ));
    };
    let why = kernels::switch(algorithm, group, &scenario.engine).err()?;
    if let Some(switch) = super::carried::all_reduce(scenario, algorithm) {
        return Some(format!(
            "the paste switches on the kernel that the log's server ran over PCIe ({}): builds of vLLM \
             like that server's have it, its releases do not",
            switch.shown()
        ));
    }
    let instead = match kernels::nearest(algorithm, group, &scenario.engine) {
        Some(_) => "the engine's own kernel (engine, all-reduce table) is what it can run",
        None => "so no flag gives it",
    };
    Some(format!(
        "--allreduce {}: {why}; {instead}; {BOUND}",
        algorithm.name()
    ))
}
