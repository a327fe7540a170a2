//! vLLM: pool = capacity x utilisation - weights - activation peak - non-torch memory, and (from
//! 0.21) - an estimate of the graphs. Sources: gpu_worker.py, kv_cache_utils.py of each era,
//! worker.py of V0.

mod budget;
mod graphs;
mod head;
mod measured;
mod prefixes;
mod runner;
mod seen;
mod states;
mod tokens;
mod walls;
mod workspace;

pub use graphs::{VLLM_GRAPH_FLAG, vllm_graph_flag, vllm_graph_size, vllm_graph_tokens};
pub use head::vllm_head_in_targets_format;
pub use measured::VllmProfile;
pub(crate) use prefixes::prefix_states;
pub(crate) use runner::graphs_counted;
pub use runner::{SecondRunner, vllm_second_runner};
pub(crate) use seen::as_it_drafted;
pub use states::vllm_requests_told;
pub use tokens::vllm_pool_of_tokens;

use budget::{Budget, of_length};
use walls::{interval, refusal};
use workspace::sparse_workspace_gib;

use crate::GIB;
use crate::engine::Version;
use crate::groups::Groups;
use crate::ledger::Ledger;
use crate::parts;
use crate::pool::Pool;
use crate::setup::{Plan, PlanError, Setup};

/// Utilisation that vLLM takes when none is given.
pub fn default_utilisation(version: Version) -> f64 {
    if version.since((0, 22, 0), (2026, 6)) {
        0.92
    } else {
        0.9
    }
}

/// Growth outside torch while the model is profiled, GiB: 0.13 at tp 1 and 0.55 at tp 2 on H100
/// (llm-d-planner, 0.11).
const GROWTH_GIB: f64 = 0.13;
/// The same with several ranks.
const GROWTH_RANKS_GIB: f64 = 0.55;
/// CUDA context, where the version counts all the device's memory that torch does not hold: 0.26
/// (0.6.5, 80 GB) and 0.35 (0.6.4, RTX 3090) in all, less the growth.
const CONTEXT_GIB: f64 = 0.18;

/// Growth of the host's own use while the model loads, GiB, where host and device share memory:
/// `MemorySnapshot.measure` takes the system's available memory for the device's free one there
/// (mem_utils.py; by capability, since vllm#35356 by `is_integrated`). Pools of a GB10 and of a 64 GB
/// board come out 1.8 and 2.1 too large without it.
const HOST_GROWTH_GIB: f64 = 2.0;

/// How far graphs may lie from their estimate, as a share.
const GRAPHS_SPREAD: f64 = 0.6;
/// What a pool falls short of that of its flags at least, of the card, before it is called unexplained:
/// servers that were met do by up to 0.03 (GLM-5.1 and a GB10, docs/kvplan.md).
const POOL_OFF_SHARE: f64 = 0.05;
/// How far the peak of the profile run may lie from its estimate, as a share.
const ACTIVATION_SPREAD: f64 = 0.3;
/// The same for workspaces, and for what torch does not hold.
const OUTSIDE_TORCH_SPREAD: f64 = 0.5;

/// Whether all that the device has in use counts against the utilisation, not only what is more than at
/// the start: V0 to 0.6 and the first V1 (gpu_worker.py and worker.py of each).
fn counts_all_that_is_used(version: Version) -> bool {
    !version.since((0, 7, 0), (2025, 1))
        || (version.since((0, 8, 0), (2025, 3)) && !version.since((0, 9, 0), (2025, 5)))
}

/// Whether NCCL is up before the first look at the card (since vllm#25359, September 2025): its buffers
/// count against the utilisation else.
fn nccl_first(setup: &Setup<'_>) -> bool {
    setup.ranks() > 1 && setup.engine.version.since((0, 11, 0), (2025, 10))
}

/// Memory outside torch that counts against the utilisation, GiB.
fn growth_outside_torch_gib(setup: &Setup<'_>) -> f64 {
    let ranks = setup.ranks() > 1;
    let growth = if ranks { GROWTH_RANKS_GIB } else { GROWTH_GIB };
    let context = match counts_all_that_is_used(setup.engine.version) {
        true => CONTEXT_GIB,
        false => 0.0,
    };
    let nccl = if ranks && !nccl_first(setup) {
        parts::NCCL_GIB
    } else {
        0.0
    };
    let host = if setup.unified_memory {
        HOST_GROWTH_GIB
    } else {
        0.0
    };
    growth + context + nccl + host
}

/// Bytes per logit of the sampler's dummy run, which sorts every row: logits, two copies, sorted
/// values, 64-bit indices, probabilities, their sum, masks. 38.5 reproduces all seven activation
/// figures of 0.10 to 0.16 on 80 to 141 GiB cards (Llama 4.76, Qwen3 5.56 and 5.64, gpt-oss 7.38),
/// and the 0.94 of Phi-4 over V0's 256 rows (0.6.5).
const SAMPLER_BYTES_PER_LOGIT: f64 = 38.5;

/// The same where nothing is sorted: logits in 16 and 32 bits, probabilities, noise
/// (topk_topp_sampler.py).
const UNSORTED_BYTES_PER_LOGIT: f64 = 14.0;

/// Server-class defaults: cards of 70 GiB and more get 1024 sequences and 8192 tokens a pass, since
/// 0.28.0 those of 160 GiB 16,384
/// (neither A100 nor GB10, whose capacity NVML does not give; the caller knows).
fn big_card(setup: &Setup<'_>) -> bool {
    setup.big_card.unwrap_or(setup.card_gib >= 70.0)
}

fn max_seqs(setup: &Setup<'_>) -> u64 {
    let default = if big_card(setup) && v1(setup.engine.version) {
        1024
    } else {
        256
    };
    setup.max_running.unwrap_or(default).max(1)
}

fn v1(version: Version) -> bool {
    version.since((0, 8, 0), (2025, 4))
}

/// Tokens of the profiled pass. V0 without chunked prefill (contexts to 32k) runs one whole prompt.
pub(crate) fn batched_tokens(setup: &Setup<'_>) -> u64 {
    if let Some(tokens) = setup.batched_tokens {
        return tokens.max(1);
    }
    if !v1(setup.engine.version) {
        let context = setup.context();
        return if context > 32_768 {
            2048
        } else {
            context.max(2048)
        };
    }
    let largest = setup.card_gib >= 160.0 && setup.engine.version.since((0, 28, 0), (2026, 9));
    match (largest, big_card(setup)) {
        (true, _) => 16_384,
        (false, true) => 8192,
        (false, false) => 2048,
    }
}

/// Peak of the profile run by the rules, GiB: a forward pass or the sampler, whichever is larger.
fn profile_gib(setup: &Setup<'_>) -> f64 {
    let forward = parts::forward_gib(setup.model, &setup.sharding, batched_tokens(setup));
    // From 0.18 the sampler selects without sorting whole rows.
    let sorts = !setup.engine.version.since((0, 18, 0), (2026, 4));
    let bytes_per_logit = if sorts {
        SAMPLER_BYTES_PER_LOGIT
    } else {
        UNSORTED_BYTES_PER_LOGIT
    };
    let logits = max_seqs(setup) as f64 * setup.model.vocab as f64;
    forward.max(logits * bytes_per_logit / GIB)
}

/// Plans vLLM.
///
/// # Errors
/// Inputs no engine could run with.
pub(crate) fn plan(setup: &Setup<'_>) -> Result<Plan, PlanError> {
    setup.check()?;
    let weights = parts::target_weights(setup);
    let computed = weights.gib();
    let observed = setup
        .observed
        .weights_gib
        .or_else(|| Some(setup.observed.free_before_gib? - setup.observed.free_after_gib?));
    let weights_gib = observed.unwrap_or(computed);
    let groups = Groups::of(setup);
    let (context, batched) = (setup.context(), batched_tokens(setup));
    let (b, blocks) = of_length(setup, weights_gib, &groups);
    let concurrency = groups.concurrency(blocks, context, batched);
    let dcp = setup.sharding.dcp.max(1);
    let tokens = tokens::held(setup, &groups, b.rest);
    let tokens = tokens.min(setup.max_total_tokens.unwrap_or(u64::MAX));
    let refusal = refusal(setup, weights_gib, &b, &groups, blocks);
    let mut ledger = Ledger::new(setup.card_gib);
    ledger_lines(&mut ledger, setup, &b, &weights, (observed, &groups));
    let started = refusal.is_none();
    let need = groups.request_bytes(context, batched) / GIB;
    // The wall is that of a server told the context alone.
    let shorter = b.workspace - sparse_workspace_gib(setup, context);
    Ok(Plan {
        fits: started && ledger.lines.last().is_none_or(|line| line.gib >= 0.0),
        fraction: b.utilisation,
        fraction_source: fraction_source(setup),
        automatic_fraction: Some(default_utilisation(setup.engine.version)),
        pool_gib: b.rest.max(0.0),
        kv_tokens: if started { tokens } else { 0 },
        tokens_in_requests_of: tokens::length(setup, &groups),
        kv_bytes_per_token: groups.bytes_per_token() / dcp as f64,
        kv_dtype: setup.kv_dtype(),
        max_running: max_seqs(setup),
        running_setting: max_seqs(setup),
        state_slots: None,
        max_concurrency: if started { concurrency } else { 0.0 },
        pool: if started {
            Pool::of_blocks(groups.clone(), blocks, batched, dcp)
        } else {
            Pool::of_tokens(0)
        },
        pool_low: (started && b.rest_off > 0.0).then(|| {
            let blocks = groups.blocks((b.low_gib() * GIB).max(0.0));
            Pool::of_blocks(groups.clone(), blocks, batched, dcp)
        }),
        context_tokens: context,
        longest_context: groups
            .longest(blocks, batched)
            .saturating_mul(dcp)
            .min(context),
        interval: interval(setup, &b, &groups, need - shorter),
        state_blocks: states::blocks(setup, &b, &groups),
        refusal,
        loading: None,
        weights_gib,
        computed_weights_gib: computed,
        ledger,
        assumptions: assumptions(setup, &b),
    })
}

fn ledger_lines(
    ledger: &mut Ledger,
    setup: &Setup<'_>,
    b: &Budget,
    weights: &parts::Weights,
    (observed, groups): (Option<f64>, &Groups),
) {
    ledger.estimate(
        "driver and context outside torch's total",
        setup.card_gib - b.total,
        0.3,
        "capacity less what torch sees",
    );
    parts::weight_lines(ledger, weights, observed);
    draft_lines(ledger, b);
    pool_lines(ledger, setup, groups, b.rest.max(0.0));
    measured::activation_line(ledger, setup, b.activation);
    ledger.over(b.over);
    ledger.unexplained(b.unexplained, b.off());
    ledger.estimate(
        "sparse-attention workspaces",
        b.workspace,
        OUTSIDE_TORCH_SPREAD,
        "40 and 5 of the longest requests that it takes",
    );
    beside_torch(ledger, setup, b);
    ledger.close(walls::off(setup, b));
}

/// The pool, by what a request of the context takes of it: all that one takes only beside a draft is the
/// draft's, so that its lines add up to what it costs.
fn pool_lines(ledger: &mut Ledger, setup: &Setup<'_>, groups: &Groups, pool: f64) {
    let (context, batched) = (setup.context(), batched_tokens(setup));
    let beyond = groups.share_beyond(&Groups::of(&setup.plain()), context, batched);
    // States and windows do not grow with a request, so a layer's share follows the context.
    let layers = groups.draft_share(context, batched);
    // Without groups to pad the two are one but for rounding.
    let layers = match pool * (beyond - layers) < 5e-4 {
        true => beyond,
        false => layers,
    };
    let rest = match groups.keeps_drafted_states() {
        true => "draft: states of drafted tokens, padding",
        false => "draft: padding of the groups of layers",
    };
    let target = pool * (1.0 - beyond);
    ledger.exact("target: KV pool", target, "what the utilisation leaves");
    let layers_of = "the draft's layers of the same blocks";
    ledger
        .exact("draft: KV pool", pool * layers, layers_of)
        .of_speculation();
    let more = "what a request of this length takes more of the blocks than without the draft";
    ledger
        .exact(rest, pool * (beyond - layers), more)
        .of_speculation();
}

/// What torch does not hold: inside the utilisation, and beside it.
fn beside_torch(ledger: &mut Ledger, setup: &Setup<'_>, b: &Budget) {
    let buffers = parts::custom_all_reduce_gib(setup);
    ledger.exact(
        "custom all-reduce IPC buffers",
        buffers,
        "3 x 8 MiB; part of the non-torch figure, the pool moves by no more than this",
    );
    measured::non_torch_line(ledger, setup, b.non_torch - buffers);
    let where_graphs = if b.graphs_counted {
        "estimated before the pool is sized (since 0.21)"
    } else {
        "captured after the pool, outside the utilisation"
    };
    let graphs = (b.graphs, b.draft_graphs);
    measured::graph_lines(ledger, setup, graphs, where_graphs);
    let beside = walls::beside(setup, b);
    ledger.estimate(
        "CUDA context and NCCL before the budget",
        beside.before,
        beside.before_spread,
        "taken before the engine measures, outside the utilisation",
    );
    ledger.estimate(
        "workspaces on demand (NCCL, experts)",
        beside.on_demand,
        1.0,
        "1 % of the card: at 0.97 servers ran out of memory or not, by their flags",
    );
}

/// The draft's weights, by where they come from.
fn draft_lines(ledger: &mut Ledger, b: &Budget) {
    let source = if b.draft_counted {
        "loaded with the target, inside the utilisation"
    } else {
        "V0: not profiled, comes on top"
    };
    let lines = [
        ("draft: weights", b.draft.weight_bytes),
        ("draft: its own vocabulary tables", b.draft.table_bytes),
    ];
    for (item, bytes) in lines {
        ledger.exact(item, bytes / GIB, source).of_speculation();
    }
}

fn fraction_source(setup: &Setup<'_>) -> String {
    match (setup.fraction, setup.observed.pool_gib) {
        (Some(_), _) => "--gpu-memory-utilization".to_string(),
        (None, Some(_)) => "inferred from the observed pool".to_string(),
        (None, None) => format!("default of vLLM {}", setup.engine.version),
    }
}

fn assumptions(setup: &Setup<'_>, b: &Budget) -> Vec<String> {
    let mut lines = setup.model.assumptions.clone();
    if b.graphs_counted && b.graphs > 0.0 {
        lines.push(format!(
            "graphs are inside the utilisation since 0.21: {:.3} acts as {:.3} did before",
            b.utilisation,
            b.utilisation - (b.graphs + b.draft_graphs) / b.total
        ));
    }
    if setup.engine.assumed_version {
        lines.push(format!(
            "vLLM version not given: the rules of {} are used",
            setup.engine.version
        ));
    }
    if setup.max_running.is_none() {
        lines.push(format!(
            "max_num_seqs {} (vLLM's default for this card, arg_utils.py)",
            max_seqs(setup)
        ));
    }
    if setup.batched_tokens.is_none() {
        lines.push(format!("max_num_batched_tokens {}", batched_tokens(setup)));
    }
    lines.extend(setup.graphs_by_size());
    lines.extend(super::kv_default::kv_dtype_taken(setup));
    lines
}
