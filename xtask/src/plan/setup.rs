//! A scenario as the memory model wants it.

use kvplan::{EngineKind, Known, Setup, Sharding, SpecKind, Speculation};

use spec_decode::HeadKind;

use crate::cli::PlanArgs;
use crate::input;
use crate::scenario::{self, Draft, Ran, Scenario};

/// The library's engine for a scenario; for a release after those known, the newest known.
pub(crate) fn engine(choice: &scenario::EngineChoice) -> anyhow::Result<kvplan::Engine> {
    let kind = match choice.kind {
        scenario::EngineKind::Sglang => EngineKind::Sglang,
        scenario::EngineKind::Vllm => EngineKind::Vllm,
        scenario::EngineKind::TrtLlm => EngineKind::TensorRtLlm,
        scenario::EngineKind::LlamaCpp => EngineKind::LlamaCpp,
    };
    match &choice.version {
        None => Ok(kvplan::Engine::newest(kind)),
        Some(text) => kvplan::Version::find(text)
            .map(|version| kvplan::Engine::at(kind, version).rules())
            .ok_or_else(|| {
                input::error(format!(
                    "--engine {}@{text}: no version; write {0}@0.5.12 or {0}@2026-05",
                    kind.name()
                ))
            }),
    }
}

/// Draft of a scenario as kvplan wants it.
pub(super) fn speculation<'a>(
    scenario: &'a Scenario,
    draft: Option<&'a Draft>,
) -> Option<Speculation<'a>> {
    let draft = draft?;
    let kind = match (&draft.model, draft.model.as_ref().and_then(|m| m.draft)) {
        (None, _) if draft.head == HeadKind::NGram => SpecKind::Ngram,
        (None, _) => SpecKind::Mtp,
        (Some(_), None) => SpecKind::Standalone,
        (Some(_), Some(head)) if head.kind == kvplan::DraftKind::BlockDiffusion => SpecKind::Block,
        (Some(_), Some(_)) => SpecKind::Eagle,
    };
    let steps = u64::from(scenario.steps_for_memory());
    Some(Speculation {
        kind,
        draft: draft.model.as_ref(),
        steps,
        topk: u64::from(scenario.topk.unwrap_or(1)),
        draft_tokens: scenario.draft_tokens.map_or(steps + 1, u64::from),
    })
}

/// Whether a figure observed is given by flag.
pub(super) fn observes(args: &PlanArgs) -> bool {
    [
        args.free_before_gib,
        args.free_after_gib,
        args.kv_gib,
        args.state_gib,
    ]
    .iter()
    .any(Option::is_some)
}

/// Takes over what the flags of `plan` alone say: how the server is told to run, and that what the
/// scenario observed is of another run where figures are given.
pub(super) fn by_flags(scenario: &mut Scenario, args: &PlanArgs) {
    scenario.max_running = args.knobs.max_running;
    scenario.state_slots = args.knobs.state_slots;
    scenario.max_model_len = args.knobs.max_model_len;
    if !observes(args) {
        return;
    }
    let seen = &mut scenario.observed;
    seen.free_before_gib = None;
    seen.free_after_gib = None;
    seen.kv_gib = None;
    seen.weights_gib = None;
    seen.mem_fraction = None;
}

/// Figures observed, by flag or in the scenario.
pub(super) fn known(scenario: &Scenario, args: Option<&PlanArgs>) -> Known {
    let seen = &scenario.observed;
    let figure = |figure: &Option<scenario::file::Figure>| figure.as_ref().map(|f| f.value);
    let flag = |get: fn(&PlanArgs) -> Option<f64>| args.and_then(get);
    let known = Known {
        free_before_gib: flag(|a| a.free_before_gib).or_else(|| figure(&seen.free_before_gib)),
        free_after_gib: flag(|a| a.free_after_gib).or_else(|| figure(&seen.free_after_gib)),
        pool_gib: flag(|a| a.kv_gib).or_else(|| figure(&seen.kv_gib)),
        state_gib: flag(|a| a.state_gib),
        ..Known::default()
    };
    with_fourth(known, scenario)
}

/// Free memory that the other three figures give: pool, fraction and the other free figure, all of
/// one SGLang run.
fn with_fourth(known: Known, scenario: &Scenario) -> Known {
    let one_free = known.free_before_gib.is_some() != known.free_after_gib.is_some();
    let said = fraction_by_flag(scenario);
    let sglang = engine(&scenario.engine).is_ok_and(|engine| engine.kind == EngineKind::Sglang);
    if !(one_free && said.is_some() && sglang) {
        return known;
    }
    let filled = Known {
        fraction: said,
        ..known
    };
    let filled = filled.infer().known;
    Known {
        free_before_gib: filled.free_before_gib,
        free_after_gib: filled.free_after_gib,
        ..known
    }
}

/// The fraction given by flag.
pub(super) fn fraction_by_flag(scenario: &Scenario) -> Option<f64> {
    let input = scenario.input("mem_fraction")?;
    scenario
        .mem_fraction
        .filter(|_| input.source == "--mem-fraction")
}

/// Cells of all slots of llama.cpp together; those of a log's server may be shared.
fn cells(scenario: &Scenario, slots: Option<u64>) -> Option<u64> {
    let told = slots
        .or(scenario.max_running)
        .or(scenario.running_for_loads);
    let as_ran = told.is_none() && scenario.by_log("context");
    let ran = scenario.ran.kv_tokens.filter(|_| as_ran);
    let slots = told.or(scenario.running());
    ran.or(Some(scenario.context.saturating_mul(slots?)))
}

/// Whether the engine's own all-reduce may run: not where NCCL is asked for, or a log says it was off.
fn custom_all_reduce(scenario: &Scenario) -> bool {
    let off = scenario.ran.no_custom_all_reduce && scenario.reduces_by_own_choice();
    !off && scenario.allreduce != "nccl"
}

/// The setup of a scenario, observed figures in.
pub(crate) fn setup<'a>(
    scenario: &'a Scenario,
    args: Option<&PlanArgs>,
) -> anyhow::Result<Setup<'a>> {
    at(scenario, args, None)
}

/// The same at a fraction, where one is given.
pub(super) fn at<'a>(
    scenario: &'a Scenario,
    args: Option<&PlanArgs>,
    fraction: Option<f64>,
) -> anyhow::Result<Setup<'a>> {
    let mut setup = as_told(scenario, args)?;
    setup.fraction = fraction.or(setup.fraction);
    super::states::tell(&mut setup, scenario);
    Ok(setup)
}

/// The setup as flags and log tell it.
fn as_told<'a>(scenario: &'a Scenario, args: Option<&PlanArgs>) -> anyhow::Result<Setup<'a>> {
    let torch_total = scenario.gpu.memory_gib;
    let mut sharding = Sharding::tp(u64::from(scenario.tp));
    sharding.dcp = u64::from(scenario.dcp);
    sharding.ep = u64::from(scenario.ep);
    let card = scenario.gpu.card_gib();
    let mut setup = Setup::new(&scenario.model, sharding, engine(&scenario.engine)?, card);
    setup.checkpoint = scenario.checkpoint.as_ref();
    // vLLM's server defaults leave the A100 out, and the GB10, whose capacity NVML does not give.
    let name = &scenario.gpu.name;
    let small = name.contains("a100") || name.contains("gb10");
    setup.big_card = Some(torch_total >= 70.0 && !small);
    setup.custom_all_reduce = custom_all_reduce(scenario);
    setup.unified_memory = scenario.gpu.name.contains("gb10");
    setup.compute_major = scenario.gpu.compute_major();
    setup.sm_count = Some(u64::from(scenario.gpu.sm_count)).filter(|count| *count > 0);
    setup.mxfp4_kernels = Some(matches!(
        scenario.gpu.family,
        crate::gpus::Family::Hopper | crate::gpus::Family::Blackwell
    ));
    // Left out where nobody asked for one, so that the plan does not say it was asked for.
    setup.kv_dtype = Some(scenario.kv_dtype).filter(|_| scenario.asks_kv_dtype());
    setup.fraction = scenario.mem_fraction;
    setup.speculation = speculation(scenario, scenario.draft.as_ref());
    let asked = scenario.asked_context().is_some();
    // vLLM refuses a length that does not fit, so a length nobody asked for must not count.
    if asked || setup.engine.kind != EngineKind::Sglang {
        setup.context_tokens = Some(scenario.context);
    }
    setup.context_tokens = scenario.max_model_len.or(setup.context_tokens);
    let knobs = args.map(|args| &args.knobs);
    // llama.cpp is told the cells of all slots together.
    let slots = knobs.and_then(|knobs| knobs.max_running);
    if setup.engine.kind == EngineKind::LlamaCpp {
        setup.context_tokens = cells(scenario, slots).or(setup.context_tokens);
    }
    setup.state_slots = scenario.state_slots;
    if let Some(knobs) = knobs {
        setup.max_running = knobs.max_running;
        setup.batched_tokens = knobs.batched_tokens;
        setup.graph_max_batch = knobs.graph_max_batch;
        setup.max_total_tokens = knobs.max_total_tokens;
        setup.state_slots = knobs.state_slots;
        setup.state_ratio = knobs.state_ratio;
        let drafts = setup.speculation.is_some() && knobs.observed_with_draft;
        setup.observed.free_after_with_draft = drafts;
        setup.observed.pool_with_draft = drafts;
    }
    of_the_log(&mut setup, scenario, &scenario.ran);
    setup.served_context = served_context(scenario);
    without_the_logs_draft(&mut setup, scenario);
    let known = known(scenario, args);
    setup.observed.free_before_gib = known.free_before_gib;
    setup.observed.free_after_gib = known.free_after_gib;
    // A run without the draft has no drafted states to show.
    let same = scenario.ran.speculates == setup.speculation.is_some();
    let logged = scenario.ran.state_gib.filter(|_| same);
    let logged = logged.filter(|_| setup.engine.kind == EngineKind::Sglang);
    setup.observed.state_gib = known.state_gib.or(logged);
    free_of_the_log(&mut setup, scenario);
    setup.observed.fate = fate(&setup, &scenario.ran);
    setup.observed.torch_total_gib = Some(torch_total);
    setup.observed.weights_gib = weights_seen(&setup, scenario);
    Ok(setup)
}

/// The target's weights, as the scenario observed them or vLLM's log prints them: that counts a draft's
/// with them, so the log of another draft does not say.
fn weights_seen(setup: &Setup<'_>, scenario: &Scenario) -> Option<f64> {
    if let Some(figure) = &scenario.observed.weights_gib {
        return Some(figure.value);
    }
    let ran = &scenario.ran;
    let vllm = setup.engine.kind == EngineKind::Vllm;
    let loaded = ran.weights_gib.filter(|_| vllm && !ran.of_another_draft)?;
    if !ran.speculates {
        return Some(loaded);
    }
    setup.speculation?;
    let draft = kvplan::plan(setup).ok()?.ledger.draft_loaded_gib();
    Some(loaded - draft).filter(|gib| *gib > 0.0)
}

/// Longest request that the pasted line serves: the limit by flag, of the log's server, or the model's.
fn served_context(scenario: &Scenario) -> Option<u64> {
    let log = scenario.ran.context_limit;
    let log = log.filter(|limit| *limit >= scenario.context);
    scenario
        .max_model_len
        .or(log)
        .or(scenario.model.max_positions)
}

/// Tokens of vLLM's graphs that the pasted line tells it to capture.
fn graphs_told(setup: &Setup<'_>) -> Option<u64> {
    let vllm = setup.engine.kind == EngineKind::Vllm;
    let (running, spec) = setup.max_running.zip(setup.speculation).filter(|_| vllm)?;
    let told = kvplan::vllm_graph_flag(setup.engine.version, running, spec.draft_tokens)?;
    Some(told.1)
}

/// What a log shows of the server that wrote it; figures of a run with the draft it had.
fn of_the_log(setup: &mut Setup<'_>, scenario: &Scenario, ran: &Ran) {
    setup.max_running = setup.max_running.or(scenario.running());
    setup.batched_tokens = setup.batched_tokens.or(ran.batched_tokens);
    let planned = scenario.graphs.map(|graphs| graphs.largest);
    let batch = setup.graph_max_batch.or(planned);
    setup.graph_max_batch = batch.or(ran.graph_max_batch);
    setup.graph_max_batch = setup.graph_max_batch.or(graphs_told(setup));
    let seen = &mut setup.observed;
    seen.running = ran.max_running;
    seen.batched_tokens = ran.batched_tokens;
    seen.graph_max_batch = match ran.eager {
        Some(_) => Some(0),
        None => ran.graph_max_batch,
    };
    seen.graphs_with_draft = ran.speculates;
    seen.prefill_graph_gib = ran.prefill_graph_gib;
    let target_alone = ran.target_graphs && setup.engine.kind == EngineKind::Sglang;
    if target_alone {
        seen.target_graph_gib = ran.graph_gib;
    } else {
        seen.graph_gib = ran.graph_gib;
        seen.draft_graph_gib = ran.draft_graph_gib;
    }
    if setup.engine.kind == EngineKind::Sglang {
        seen.draft_gib = ran.draft_gib;
    }
    if !ran.file.is_empty() {
        // What was free after the weights is given without the draft's; the flag wins over the log.
        seen.pool_with_draft |= ran.speculates && setup.speculation.is_some();
    }
    seen.draft_tokens = ran.draft_tokens.filter(|_| seen.pool_with_draft);
    seen.tokens = ran.kv_tokens;
    // What the log counted stands as long as nobody asks for more than its limit.
    let longest = setup.context_tokens.unwrap_or(scenario.context);
    let limit = ran.context_limit.filter(|limit| longest <= *limit);
    seen.tokens_context = limit.filter(|_| ran.kv_tokens.is_some());
    seen.served = ran.served();
    if setup.engine.kind == EngineKind::Vllm {
        setup.prefix_states = ran.prefix_states;
        seen.pool_gib = ran.kv_gib;
        seen.pool_fraction = ran.fraction;
        let profile = ran.profile;
        seen.profile = profile.map(|(activation_gib, non_torch_gib)| kvplan::VllmProfile {
            activation_gib,
            non_torch_gib,
        });
    }
}

/// What the end of a log's server proves: nothing where passes or requests are longer here than there.
fn fate(setup: &Setup<'_>, ran: &Ran) -> Option<kvplan::Fate> {
    let longer = |asked: Option<u64>, ran: Option<u64>| asked.zip(ran).is_some_and(|(a, r)| a > r);
    let more = longer(setup.batched_tokens, ran.batched_tokens)
        || longer(setup.served_context, ran.context_limit);
    ran.fate().filter(|_| !more)
}

/// The pool of a log's server that drafted, as it would be without that draft: the same as `plan`
/// says beside it.
fn without_the_logs_draft<'a>(setup: &mut Setup<'a>, scenario: &'a Scenario) {
    let Some(ran) = &scenario.ran.with_draft else {
        return;
    };
    let mut drafted = setup.clone();
    drafted.speculation = speculation(scenario, scenario.given_back.as_ref());
    of_the_log(&mut drafted, scenario, ran);
    if drafted.speculation.is_some()
        && let Ok(plain) = kvplan::given_back(&drafted)
    {
        setup.observed = plain.observed;
    }
}

/// What a log says was free before and after the weights, of a server that came up or both of one
/// load, and only where nobody gave a figure of his own.
fn free_of_the_log(setup: &mut Setup<'_>, scenario: &Scenario) {
    let (ran, seen) = (&scenario.ran, &mut setup.observed);
    if setup.engine.kind == EngineKind::TensorRtLlm {
        // Of what is free once all is loaded.
        seen.free_after_gib = seen.free_after_gib.or(ran.free_after_gib);
        return;
    }
    let given = seen.free_before_gib.is_some() || seen.free_after_gib.is_some();
    let loaded = ran.free_before_gib.is_some() && ran.free_after_gib.is_some();
    let usable = loaded || ran.came_up;
    let engine = setup.engine.kind;
    if given || !matches!(engine, EngineKind::Sglang | EngineKind::Vllm) || !usable {
        return;
    }
    let Some(before) = ran.free_before_gib.filter(|gib| *gib <= setup.card_gib) else {
        return;
    };
    seen.free_before_gib = Some(before);
    seen.free_after_gib = ran.free_after_gib.filter(|after| *after < before);
}

/// Drafted tokens of the log's server and of this one, where they differ and states follow them.
pub(super) fn other_depth(setup: &Setup<'_>) -> Option<(u64, u64)> {
    let seen = &setup.observed;
    let ran = seen.draft_tokens.filter(|_| seen.pool_gib.is_some())?;
    let asked = setup.speculation?.draft_tokens;
    let states = setup.model.state_bytes_per_request(&setup.sharding).total() > 0;
    let states = states && setup.engine.kind == EngineKind::Vllm;
    (states && ran != asked).then(|| (ran.saturating_sub(1), asked.saturating_sub(1)))
}

/// Whether the server asked about came to take requests, where a log shows it past its pool.
pub(super) fn ran(scenario: &Scenario, setup: &Setup<'_>) -> Option<bool> {
    let moved = setup.engine.kind == EngineKind::Vllm && setup.gains_graphs();
    let own = scenario.ran.as_asked() && ran_with(setup).is_none() && !moved;
    own.then_some(scenario.ran.stayed_up)
}

/// What is kept of a log whose server captured no graphs, beside a server that does.
pub(super) fn gained_graphs(scenario: &Scenario, setup: &Setup<'_>) -> Option<String> {
    let at = scenario.ran.eager.as_ref();
    let at = at.filter(|_| setup.gains_graphs())?;
    let pool = match setup.engine.kind {
        EngineKind::Vllm if setup.observed.pool_gib.is_some() => {
            "its pool is kept, less what they take where the release counts them in it"
        }
        EngineKind::Sglang if scenario.ran.as_asked() => "its pool is kept",
        _ => "its pool is planned",
    };
    Some(format!(
        "{at}: the log's server captured no CUDA graphs, this one does (plan --graph-max-batch 0 is of one that does \
         not): {pool}"
    ))
}

/// Requests at once of a log's server that came up, where others are asked for.
pub(super) fn ran_with(setup: &Setup<'_>) -> Option<(u64, u64, bool)> {
    let (ran, asked) = setup.observed.running.zip(setup.max_running)?;
    let kept = setup.observed.pool_gib.is_some() && setup.engine.kind == EngineKind::Vllm;
    (setup.observed.served && ran != asked).then_some((ran, asked, kept))
}
