//! What runs another attention kernel where the verify's own walks the cache, and what that gives.

use kvplan::KvDtype;

use super::answer::Point;
use super::costs::{AllReduces, Costs, Pin};
use super::links::Links;
use super::points::{Tried, best, try_depths};
use crate::explain::carried::ATTENTION;
use crate::gpus::Family;
use crate::scenario::{EngineChoice, EngineKind, Scenario};
use crate::step_time::walk::Walk;

/// The release from which vLLM's Triton kernel splits verifies.
const TRITON_SPLITS: &str = "0.33.0";
/// The release from which it verifies by XQA on RTX Blackwell.
const XQA_OF_RTX: &str = "0.28.0";

/// A server whose verify splits the cache.
pub(super) struct OtherKernel {
    /// The input that differs, by its name in the answer, its value and that of this server.
    pub(super) input: &'static str,
    pub(super) value: String,
    pub(super) instead_of: String,
    /// What to do, as typed.
    pub(super) change: String,
    pub(super) why: String,
    pub(super) scenario: Scenario,
}

/// What of the engine's own would verify by a kernel that splits the cache.
pub(super) fn all(scenario: &Scenario) -> Vec<OtherKernel> {
    let why = "its kernel splits the verify over the cache";
    let told = |backend: &str| {
        let mut other = scenario.clone();
        other.ran.run_by(backend, &scenario.engine);
        OtherKernel {
            input: "attention_backend",
            value: backend.to_string(),
            instead_of: scenario.walk().map_or("", Walk::backend).to_string(),
            change: as_typed(&other, backend),
            why: format!("{why}{}", in_pieces(&other)),
            scenario: other,
        }
    };
    let vllm = scenario.engine.kind == EngineKind::Vllm;
    let rtx = scenario.gpu.family == Family::BlackwellRtx;
    match scenario.walk() {
        Some(Walk::FlashAttention2) => [Some(told("FLASHINFER")), with_fp8(scenario)]
            .into_iter()
            .flatten()
            .collect(),
        Some(Walk::TritonOfVllm) => vec![newer(scenario, TRITON_SPLITS, why)],
        Some(Walk::FlashInfer(_)) if vllm && rtx => {
            let why = "its XQA kernel takes a verify in about the time of a plain step's attention";
            vec![newer(scenario, XQA_OF_RTX, why)]
        }
        Some(Walk::TritonOfSglang) if scenario.takes_flashinfer() => vec![told("flashinfer")],
        Some(Walk::TritonOfSglang | Walk::FlashInfer3 | Walk::FlashInfer(_)) | None => Vec::new(),
    }
}

/// A newer release of vLLM.
fn newer(scenario: &Scenario, version: &str, why: &'static str) -> OtherKernel {
    let given = scenario
        .input("engine")
        .and_then(|input| input.value.as_str());
    let mut other = scenario.clone();
    other.engine = EngineChoice {
        kind: EngineKind::Vllm,
        version: Some(version.to_string()),
    };
    // What a log shows of its release's kernel is not this one's.
    other.ran.verify_graphs = None;
    OtherKernel {
        input: "engine",
        value: format!("vllm@{version}"),
        instead_of: given.unwrap_or_default().to_string(),
        change: format!("vLLM {version}"),
        why: why.to_string(),
        scenario: other,
    }
}

/// That the verify of such a server is no whole graph, in words.
fn in_pieces(other: &Scenario) -> &'static str {
    match other.verify_host_ms() > 0.0 {
        true => ", in CUDA graphs that are cut at attention, which a slow host feels",
        false => "",
    }
}

/// The flag, or the variable that a release without it has.
fn as_typed(told: &Scenario, backend: &str) -> String {
    let carried = &told.ran.carried;
    match carried.env.iter().find(|set| set.ends_with(backend)) {
        Some(set) => set.clone(),
        None => format!("{ATTENTION} {backend}"),
    }
}

/// An FP8 cache, which FlashAttention 2 does not read; not beside a sweep, whose steps are of the cache that it
/// ran with.
fn with_fp8(scenario: &Scenario) -> Option<OtherKernel> {
    let mut other = scenario.clone();
    other.kv_dtype = KvDtype::Fp8;
    let other_cache = scenario.kv_dtype != KvDtype::Fp8 && !scenario.has_own_steps();
    (other_cache && other.walk() != scenario.walk()).then(|| OtherKernel {
        input: "kv_dtype",
        value: "fp8".to_string(),
        instead_of: scenario.kv_dtype.name().to_string(),
        change: "--kv-cache-dtype fp8".to_string(),
        why: format!(
            "vLLM then takes FlashInfer, whose kernel splits the verify over the cache{}, and half the bytes of it \
             are read; what is accepted, and the answers, may differ with it",
            in_pieces(&other)
        ),
        scenario: other,
    })
}

/// Costs of that server; what was observed of a verify that walks less what the walk may have been of it.
pub(super) fn costs<'a>(
    other: &'a Scenario,
    (all_reduce, links): (&'a AllReduces<'_>, &Links<'_>),
    now: &Costs<'_>,
) -> anyhow::Result<Costs<'a>> {
    let mut costs = Costs::new(other, all_reduce, links)?;
    costs.pin = now.pin.map(|pin| Pin {
        excess_ms: pin.excess_ms.max(0.0),
        walked_ms: 0.0,
        ..pin
    });
    costs.measured.clone_from(&now.measured);
    Ok(costs)
}

/// What it does at a load: tokens a second of the best it can run there, and the depth, 0 for plain.
pub(super) fn best_at(other: &Scenario, costs: &Costs<'_>, point: &Point) -> (f64, u32) {
    let users = f64::from(point.concurrency);
    let tried = try_depths(other, costs, point.concurrency, point.context);
    let drafted = best(&tried).filter(|t| t.speedup > 1.0);
    let of = |t: &Tried| users * 1000.0 / t.cost.plain_ms * t.speedup;
    let plain = || {
        let cost = costs.cycle(point.concurrency, point.context, 0, 1);
        users * 1000.0 / cost.plain_ms
    };
    drafted.map_or_else(|| (plain(), 0), |t| (of(t), t.depth.steps))
}

/// The depth that it drafts with at a load, and the speedup on its own plain steps; nothing where it gains none.
pub(super) fn drafted(other: &OtherKernel, costs: &Costs<'_>, point: &Point) -> Option<(u32, f64)> {
    let (tok_s, run) = best_at(&other.scenario, costs, point);
    let plain_ms = costs.cycle(point.concurrency, point.context, 0, 1).plain_ms;
    let plain = f64::from(point.concurrency) * 1000.0 / plain_ms;
    (run > 0).then_some((run, tok_s / plain))
}
