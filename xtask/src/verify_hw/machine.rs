//! The verification on this machine: steps in order, then the comparison.

use std::time::Duration;

use allreduce::probe::{Figure, Part};
use kvplan::Sharding;

use super::engine_mode::{catalogue_all_reduce_us, users};
use super::facts::{Facts, LinkFacts};
use super::law::{Calibrated, Point, Runs, Scratch};
use super::links::{self, Finding};
use super::ranks::CurvePoint;
use super::standin::run::{Found, Measured, Plan};
use super::standin::shapes;
use super::steps::{Job, Progress, in_child};
use super::table::Row;
use crate::cli::VerifyHwArgs;
use crate::input;
use crate::scenario::Scenario;

/// Opening many GPUs after a boot takes tens of seconds.
const FACTS_DEADLINE: Duration = Duration::from_secs(90);
const PROBE_DEADLINE: Duration = Duration::from_secs(30);
const CURVE_DEADLINE: Duration = Duration::from_secs(60);
/// A stand-in of 140 GB takes most of a minute to fill and measure.
const STAND_IN_DEADLINE: Duration = Duration::from_secs(400);

/// Error of a speedup that holds: calibrated, from scratch.
const SPEEDUP_LIMITS: (f64, f64) = (0.05, 0.12);
const MEMORY_LIMIT: f64 = 0.02;
const GIB: f64 = (1_u64 << 30) as f64;
/// Sizes of every curve, beside the model's own.
const CURVE_BYTES: [u64; 7] = [
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    16 << 20,
];

/// Everything found.
pub(crate) struct Outcome {
    pub(crate) scenario: Scenario,
    pub(crate) facts: Facts,
    pub(crate) figures: Vec<Figure>,
    pub(crate) curve: Vec<CurvePoint>,
    pub(crate) runs: Vec<Run>,
    pub(crate) rows: Vec<Row>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) notes: Vec<String>,
    pub(crate) mock: bool,
}

/// The stand-in with one all-reduce.
pub(crate) struct Run {
    pub(crate) algorithm: String,
    pub(crate) found: Found,
}

/// Runs all steps.
///
/// # Errors
/// One line: no GPU, a full GPU, a missing library, or a flag.
pub(crate) fn run(args: &VerifyHwArgs, progress: &Progress) -> anyhow::Result<Outcome> {
    if !(1..=8).contains(&args.ranks_per_gpu) {
        return Err(input::error(format!(
            "--ranks-per-gpu {}: give 1 to 8",
            args.ranks_per_gpu
        )));
    }
    progress.begin("GPUs");
    let facts: Facts = in_child(&Job::Facts, FACTS_DEADLINE, progress)
        .map_err(|e| input::error(format!("verify-hw: {e}")))?;
    progress.done(&describe(&facts));
    if facts.compiler.is_none() {
        return Err(input::error(
            "verify-hw: libnvrtc.so not found: install CUDA's NVRTC (the Python package \
             nvidia-cuda-nvrtc carries it) and put its folder on LD_LIBRARY_PATH",
        ));
    }
    let mut notes = Vec::new();
    let scenario = scenario(args, &facts, &mut notes)?;
    let target = shapes::target(&scenario)?;
    let draft = shapes::draft(&scenario)?;
    let mock = args.ranks_per_gpu > 1;
    let (figures, loaded) = probe(args, &facts, progress, &mut notes);
    let tp = scenario.tp as usize;
    let curve = if tp > 1 {
        curve(&scenario, progress, &mut notes)
    } else {
        Vec::new()
    };
    let plan = Plan {
        target,
        draft,
        concurrency: concurrency(args, &scenario),
        depths: depths(args, &scenario),
        context: usize::try_from(context(args, &scenario))
            .unwrap_or(usize::MAX)
            .min(1 << 20),
        output: if args.quick { 48 } else { 96 },
        alphas: alphas(&scenario),
        seed: scenario.seed,
        pool_bytes: pool_bytes(&scenario, &mut notes),
    };
    let mut outcome = Outcome {
        facts,
        figures,
        curve,
        runs: Vec::new(),
        rows: Vec::new(),
        findings: Vec::new(),
        notes,
        mock,
        scenario,
    };
    let algorithms = algorithms(args, tp);
    for algorithm in algorithms {
        progress.begin(&format!("stand-in of {}", outcome.scenario.model.name));
        let job = Job::StandIn {
            plan: plan.clone(),
            ranks: tp,
            algorithm: algorithm.clone(),
        };
        match in_child::<Found>(&job, STAND_IN_DEADLINE, progress) {
            Ok(found) => outcome.runs.push(Run { algorithm, found }),
            Err(e) if outcome.runs.is_empty() && tp == 1 => {
                return Err(input::error(format!(
                    "verify-hw: {} on GPU 0: {e}; {:.1} of {:.1} GiB were free",
                    outcome.scenario.model.name,
                    outcome
                        .facts
                        .gpus
                        .first()
                        .map_or(0.0, |g| g.free_bytes as f64 / GIB),
                    outcome
                        .facts
                        .gpus
                        .first()
                        .map_or(0.0, |g| g.total_bytes as f64 / GIB),
                )));
            }
            Err(e) => outcome
                .notes
                .push(format!("stand-in with {algorithm}: {e}")),
        }
    }
    if outcome.runs.is_empty() {
        return Err(input::error(format!(
            "verify-hw: the stand-in did not run: {}",
            outcome.notes.last().map_or("", String::as_str)
        )));
    }
    outcome.findings = links::diagnose(
        &outcome.facts,
        &outcome.figures,
        &outcome.curve,
        outcome.scenario.gpu,
        loaded,
    );
    outcome.rows = compare(&outcome, &plan);
    Ok(outcome)
}

fn describe(facts: &Facts) -> String {
    let first = facts.gpus.first();
    let link = first.and_then(|g| g.link).map_or_else(
        || "link unknown".to_string(),
        |l| format!("PCIe {} GT/s x{}", l.gt_s, l.lanes),
    );
    format!(
        "{} x {}, CUDA {}, driver {}, {link}{}{}",
        facts.gpus.len(),
        first.map_or("?", |g| g.name.as_str()),
        facts.cuda,
        facts.driver.as_deref().unwrap_or("?"),
        facts
            .nvlinks
            .as_ref()
            .and_then(|n| n.first())
            .map_or_else(String::new, |n| format!(", {n} NVLinks")),
        if facts.virtual_machine {
            ", virtual machine"
        } else {
            ""
        }
    )
}

/// The scenario on this machine: card and count as they are found here unless flags say otherwise.
fn scenario(
    args: &VerifyHwArgs,
    facts: &Facts,
    notes: &mut Vec<String>,
) -> anyhow::Result<Scenario> {
    let mut wanted = args.scenario.clone();
    let unnamed = wanted.model.is_none() && wanted.scenario.is_none() && wanted.from_log.is_none();
    if unnamed {
        wanted.model = Some("llama-3.1-8b".to_string());
        notes.push("model: llama-3.1-8b, since --model names none".to_string());
    }
    if wanted.gpu.is_none() && wanted.box_name.is_none() {
        let name = facts.gpus.first().map_or("", |g| g.name.as_str());
        crate::gpus::find(name).map_err(|e| {
            input::error(format!(
                "verify-hw: {e:#}; name the nearest catalogue card with --gpu"
            ))
        })?;
        wanted.gpu = Some(name.to_string());
        let ranks = facts.gpus.len() as u32 * args.ranks_per_gpu;
        wanted.gpus.get_or_insert(ranks);
    }
    let scenario = Scenario::resolve(&wanted)?;
    let room = facts.gpus.len() as u32 * args.ranks_per_gpu;
    if scenario.tp > room {
        return Err(input::error(format!(
            "--tp {}: this machine has {} GPU(s); --ranks-per-gpu N mocks more ranks",
            scenario.tp,
            facts.gpus.len()
        )));
    }
    Ok(scenario)
}

fn concurrency(args: &VerifyHwArgs, scenario: &Scenario) -> Vec<usize> {
    if args.quick && args.scenario.concurrency.is_none() {
        return vec![1, 8, 64];
    }
    scenario
        .concurrency
        .iter()
        .map(|c| *c as usize)
        .filter(|c| *c <= 256)
        .collect()
}

fn context(args: &VerifyHwArgs, scenario: &Scenario) -> u64 {
    // The default of `predict` would fill the memory of small cards with cache.
    if args.scenario.context.is_none() && args.scenario.scenario.is_none() {
        128
    } else {
        scenario.context
    }
}

fn depths(args: &VerifyHwArgs, scenario: &Scenario) -> Vec<usize> {
    match (scenario.steps, args.quick) {
        (Some(steps), _) => vec![steps.min(16) as usize],
        (None, true) => vec![3],
        (None, false) => vec![1, 3, 5],
    }
}

/// Chances by position from the scenario's accept lengths by depth.
fn alphas(scenario: &Scenario) -> Vec<f64> {
    let length = |depth: u32| {
        if depth == 0 {
            1.0
        } else {
            scenario.acceptance.band(depth).1
        }
    };
    let mut before = 1.0;
    (1..=16)
        .map(|depth| {
            let reached = (length(depth) - length(depth - 1)).max(0.0);
            let alpha: f64 = if before > 0.0 { reached / before } else { 0.0 };
            before = reached;
            alpha.clamp(0.0, 1.0)
        })
        .collect()
}

fn pool_bytes(scenario: &Scenario, notes: &mut Vec<String>) -> u64 {
    let plan = crate::plan::setup(scenario, None)
        .and_then(|setup| kvplan::plan(&setup).map_err(|e| input::error(e.to_string())));
    match plan {
        Ok(plan) if plan.fits && plan.pool_gib > 0.0 => (plan.pool_gib * GIB) as u64,
        Ok(_) => {
            notes.push("the memory plan leaves no KV pool on this card".to_string());
            0
        }
        Err(e) => {
            notes.push(format!("no memory plan: {e:#}"));
            0
        }
    }
}

/// Probes of all parts; a part that fails is a note, not the end.
fn probe(
    args: &VerifyHwArgs,
    facts: &Facts,
    progress: &Progress,
    notes: &mut Vec<String>,
) -> (Vec<Figure>, Option<LinkFacts>) {
    let mut figures = Vec::new();
    let mut loaded = None;
    for part in Part::ALL {
        let alone = facts.gpus.len() < 2 && !matches!(part, Part::Floor | Part::Host);
        if alone || (args.quick && part == Part::AllPairs) {
            continue;
        }
        progress.begin(&format!("probe: {}", part.name()));
        let job = Job::Probe {
            part: part.name().to_string(),
        };
        match in_child::<Probed>(&job, PROBE_DEADLINE, progress) {
            Ok(probed) => {
                figures.extend(probed.lines.iter().filter_map(|l| Figure::parse(l)));
                loaded = probed.link.or(loaded);
                progress.done(&format!("probe: {}", part.name()));
            }
            Err(e) => notes.push(format!("probe {}: {e}", part.name())),
        }
    }
    (figures, loaded)
}

/// What a probe's child answers.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Probed {
    pub(crate) lines: Vec<String>,
    /// GPU 0's link while copies ran.
    pub(crate) link: Option<LinkFacts>,
}

fn curve(scenario: &Scenario, progress: &Progress, notes: &mut Vec<String>) -> Vec<CurvePoint> {
    let mut sizes = CURVE_BYTES.to_vec();
    sizes.extend([1, 4, 16, 64, 256].map(|tokens| 2 * tokens * scenario.model.hidden));
    sizes.sort_unstable();
    sizes.dedup();
    for nccl in [true, false] {
        progress.begin("all-reduce");
        let job = Job::Curves {
            ranks: scenario.tp as usize,
            sizes: sizes.clone(),
            nccl,
        };
        match in_child::<Vec<CurvePoint>>(&job, CURVE_DEADLINE, progress) {
            Ok(curve) => {
                progress.done(&format!("all-reduce curves: {} points", curve.len()));
                return curve;
            }
            Err(e) => notes.push(format!(
                "all-reduce{}: {e}",
                if nccl { " with NCCL beside" } else { "" }
            )),
        }
    }
    Vec::new()
}

fn algorithms(args: &VerifyHwArgs, tp: usize) -> Vec<String> {
    if tp < 2 {
        return vec!["none".to_string()];
    }
    match args.scenario.allreduce.as_deref() {
        Some("engine") | None if args.quick || args.ranks_per_gpu > 1 => vec!["auto".to_string()],
        Some("engine") | None => ["nccl", "auto", "host-staged"].map(String::from).to_vec(),
        Some(name) => vec![name.to_string()],
    }
}

/// Log-linear between the points of one algorithm, or of the fastest of ours for `auto`.
fn curve_us(curve: &[CurvePoint], algorithm: &str, bytes: f64) -> Option<f64> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for p in curve {
        let ours = algorithm == "auto" && p.algorithm != "nccl";
        if p.algorithm != algorithm && !ours {
            continue;
        }
        match points.iter_mut().find(|q| q.0 == p.bytes as f64) {
            Some(known) => known.1 = known.1.min(p.time_us),
            None => points.push((p.bytes as f64, p.time_us)),
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let above = points.iter().position(|p| p.0 >= bytes);
    match (above, points.first(), points.last()) {
        (Some(0), Some(first), _) => Some(first.1),
        (Some(i), _, _) => {
            let (low, high) = (points.get(i - 1)?, points.get(i)?);
            let share = (bytes / low.0).ln() / (high.0 / low.0).ln();
            Some((low.1.ln() + share * (high.1 / low.1).ln()).exp())
        }
        (None, _, Some(last)) => Some(last.1 * bytes / last.0),
        _ => None,
    }
}

fn compare(outcome: &Outcome, plan: &Plan) -> Vec<Row> {
    let mut rows = Vec::new();
    let scenario = &outcome.scenario;
    let speed = |limit: f64| (!outcome.mock).then_some(limit);
    for run in &outcome.runs {
        let suffix = if run.algorithm == "none" {
            String::new()
        } else {
            format!(", all-reduce {}", run.algorithm)
        };
        // From scratch: the catalogue's links; with a measured curve the calibrated side sees it
        // through the plain steps already.
        let reduce = |bytes: f64| catalogue_all_reduce_us(&named(scenario, &run.algorithm), bytes);
        let scratch = Scratch::new(scenario, Runs::StandIn, &reduce);
        let held_tokens = plan.context as f64 + plan.output as f64 / 2.0;
        let draft_ms = calibrated_drafts(&scratch, &run.found, held_tokens);
        let law = Calibrated::of_steps(
            &run.found.plain,
            &run.found.attention,
            &run.found.attention_of_many,
            draft_ms,
            scenario,
        );
        for (tokens, ms) in &run.found.plain {
            let predicted = scratch.plain_ms(*tokens, held_tokens);
            rows.push(
                Row::new(
                    "plain step",
                    format!("{}{suffix}", users(*tokens)),
                    "ms",
                    *ms,
                )
                .from_scratch(Some(predicted), None),
            );
        }
        for m in &run.found.points {
            let point = point(m, held_tokens);
            let calibrated = law.as_ref().ok().map(|l| l.at(&point));
            let catalogue = scratch.at(&point);
            let what = format!("{}, {} steps{suffix}", users(m.concurrency), m.steps);
            let row = |group, unit, measured| Row::new(group, what.clone(), unit, measured);
            rows.push(
                row("verify", "ms", m.verify_ms)
                    .calibrated(calibrated.map(|p| p.verify_ms), None)
                    .from_scratch(Some(catalogue.verify_ms), None),
            );
            rows.push(
                row("draft step", "ms", m.draft_step_ms)
                    .calibrated(calibrated.map(|p| p.draft_step_ms), None)
                    .from_scratch(Some(catalogue.draft_step_ms), None),
            );
            rows.push(
                row("speculative rate", "tok/s", m.spec_tok_s)
                    .calibrated(calibrated.map(|p| p.tok_s), None)
                    .from_scratch(Some(catalogue.tok_s), None),
            );
            rows.push(
                row("speedup", "x", m.spec_tok_s / m.plain_tok_s)
                    .calibrated(calibrated.map(|p| p.speedup), speed(SPEEDUP_LIMITS.0))
                    .from_scratch(Some(catalogue.speedup), speed(SPEEDUP_LIMITS.1)),
            );
        }
    }
    rows.extend(all_reduce_rows(outcome));
    rows.extend(memory_rows(outcome));
    rows.extend(links::host_copies(
        &outcome.figures,
        scenario.gpu,
        outcome.facts.gpus.len(),
    ));
    rows.extend(links::pairs(&outcome.figures, scenario.gpu));
    rows
}

/// The scenario with another all-reduce.
fn named(scenario: &Scenario, algorithm: &str) -> Scenario {
    let mut other = scenario.clone();
    if algorithm != "auto" && algorithm != "none" {
        other.allreduce = algorithm.to_string();
    }
    other
}

fn point(m: &Measured, held_tokens: f64) -> Point {
    Point {
        concurrency: m.concurrency,
        held_tokens,
        steps: m.steps,
        accept_length: m.accept_length,
    }
}

/// Draft steps from the architecture, moved by how the plain step of the same load came out: the
/// draft has the target's kinds of work, on the same GPU.
fn calibrated_drafts(scratch: &Scratch<'_>, found: &Found, held_tokens: f64) -> Vec<(u32, f64)> {
    found
        .plain
        .iter()
        .filter_map(|(n, ms)| {
            let ratio = ms / scratch.plain_ms(*n, held_tokens);
            Some((*n, ratio * scratch.draft_step_ms(*n, held_tokens)?))
        })
        .collect()
}

fn all_reduce_rows(outcome: &Outcome) -> Vec<Row> {
    let hidden = outcome.scenario.model.hidden;
    let mut rows = Vec::new();
    for tokens in [1, 4, 16, 64, 256] {
        let bytes = 2 * tokens * hidden;
        for algorithm in ["nccl", "auto", "host-staged"] {
            let Some(us) = curve_us(&outcome.curve, algorithm, bytes as f64) else {
                continue;
            };
            let model = (algorithm != "auto")
                .then(|| {
                    catalogue_all_reduce_us(&named(&outcome.scenario, algorithm), bytes as f64)
                })
                .filter(|us| *us > 0.0);
            let name = if algorithm == "auto" {
                "ours, fastest"
            } else {
                algorithm
            };
            rows.push(
                Row::new("all-reduce", format!("{name}, {bytes} bytes"), "us", us)
                    .from_scratch(model, None),
            );
        }
    }
    rows
}

fn memory_rows(outcome: &Outcome) -> Vec<Row> {
    let Some(run) = outcome.runs.first() else {
        return Vec::new();
    };
    let m = &run.found.memory;
    let scenario = &outcome.scenario;
    let sharding = Sharding::tp(u64::from(scenario.tp));
    let per_gpu = if outcome.mock { f64::NAN } else { 1.0 };
    let mut planned = scenario.model.total_weight_bytes(&sharding);
    let mut rows = Vec::new();
    if let Some(draft) = scenario.draft.as_ref().and_then(|d| d.model.as_ref()) {
        // The stand-in, like the engines, shares the target's embedding with the draft.
        let own = draft.total_weight_bytes(&sharding) - draft.vocab_table_bytes(&sharding);
        planned += own;
        rows.push(gib_row("draft weights", m.draft_weights as f64, own, None));
    }
    let weights = m.free_before.saturating_sub(m.free_after_weights) as f64 * per_gpu;
    rows.push(gib_row(
        "weights taken",
        weights,
        planned,
        Some(MEMORY_LIMIT),
    ));
    if let Some(free) = m.free_after_pool {
        let expected = m.free_before as f64 - planned - m.pool as f64;
        let used = m.total as f64 - free as f64;
        let planned_used = m.total as f64 - expected;
        rows.push(gib_row(
            "weights and planned KV pool in use",
            used,
            planned_used,
            Some(MEMORY_LIMIT),
        ));
        rows.push(gib_row("free beside them", free as f64, expected, None));
    }
    let catalogue = scenario.gpu.memory_gib * GIB;
    rows.push(gib_row(
        "memory of the card",
        m.total as f64,
        catalogue,
        Some(MEMORY_LIMIT),
    ));
    rows.retain(|r| r.measured.is_finite() && r.measured > 0.0);
    rows
}

fn gib_row(what: &str, measured: f64, planned: f64, limit: Option<f64>) -> Row {
    Row::new("memory", what, "GiB", measured / GIB).from_scratch(Some(planned / GIB), limit)
}
