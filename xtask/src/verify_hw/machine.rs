//! The verification on this machine: steps in order, then the comparison.

use std::time::Duration;

use allreduce::probe::{Figure, Part};

use super::compare::compare;
use super::facts::{Facts, LinkFacts};
use super::links::{self, Finding};
use super::ranks::CurvePoint;
use super::standin::run::{Found, Plan};
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
    /// Cached tokens of a sequence in the middle of a run.
    pub(crate) held_tokens: f64,
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
    let facts = facts(progress)?;
    let mut notes = Vec::new();
    let scenario = scenario(args, &facts, &mut notes)?;
    let plan = plan(args, &scenario, &mut notes)?;
    let (figures, loaded) = probe(args, &facts, progress, &mut notes);
    let curve = if scenario.tp > 1 {
        let beside: &[bool] = match args.ranks_per_gpu {
            1 => &[true, false],
            // NCCL refuses two ranks on one GPU.
            _ => &[false],
        };
        curve(&scenario, beside, progress, &mut notes)
    } else {
        Vec::new()
    };
    let mut outcome = Outcome {
        findings: links::diagnose(&facts, &figures, &curve, scenario.gpu, loaded),
        facts,
        figures,
        curve,
        runs: Vec::new(),
        rows: Vec::new(),
        notes,
        held_tokens: held_tokens(&plan),
        mock: args.ranks_per_gpu > 1,
        scenario,
    };
    stand_ins(args, &plan, progress, &mut outcome)?;
    outcome.rows = compare(&outcome);
    Ok(outcome)
}

/// Cached tokens of a sequence in the middle of a run.
fn held_tokens(plan: &Plan) -> f64 {
    plan.context as f64 + plan.output as f64 / 2.0
}

fn facts(progress: &Progress) -> anyhow::Result<Facts> {
    progress.begin("GPUs");
    let facts: Facts = in_child(&Job::Facts, FACTS_DEADLINE, progress).map_err(|e| {
        let why = e.to_string();
        if why.contains("OUT_OF_MEMORY") {
            return input::error(
                "verify-hw: a GPU has no memory left even to be opened: another process holds all of \
                 it (nvidia-smi shows which): end it, or pick another GPU with CUDA_VISIBLE_DEVICES",
            );
        }
        input::error(format!("verify-hw: {why}"))
    })?;
    progress.done(&describe(&facts));
    if facts.compiler.is_none() {
        return Err(input::error(
            "verify-hw: libnvrtc.so not found: install CUDA's NVRTC (the Python package \
             nvidia-cuda-nvrtc carries it) and put its folder on LD_LIBRARY_PATH",
        ));
    }
    Ok(facts)
}

fn plan(args: &VerifyHwArgs, scenario: &Scenario, notes: &mut Vec<String>) -> anyhow::Result<Plan> {
    Ok(Plan {
        target: shapes::target(scenario)?,
        draft: shapes::draft(scenario)?,
        concurrency: concurrency(args, scenario),
        depths: depths(args, scenario),
        context: usize::try_from(context(args, scenario))
            .unwrap_or(usize::MAX)
            .min(1 << 20),
        output: if args.quick { 48 } else { 96 },
        alphas: alphas(scenario),
        seed: scenario.seed,
        hold_ms: if args.quick { 60 } else { 250 },
        pool_bytes: pool_bytes(scenario, notes),
    })
}

/// The stand-in with every all-reduce asked for; one that fails is a note where others ran.
fn stand_ins(
    args: &VerifyHwArgs,
    plan: &Plan,
    progress: &Progress,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let name = outcome.scenario.model.name.clone();
    let ranks = outcome.scenario.tp as usize;
    for algorithm in algorithms(args, ranks) {
        progress.begin(&format!("stand-in of {name}"));
        let job = Job::StandIn {
            plan: Box::new(plan.clone()),
            ranks,
            algorithm: algorithm.clone(),
        };
        match in_child::<Found>(&job, STAND_IN_DEADLINE, progress) {
            Ok(found) => outcome.runs.push(Run { algorithm, found }),
            Err(e) if ranks == 1 => {
                return Err(input::error(format!("verify-hw: stand-in of {name}: {e}")));
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
    Ok(())
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

fn curve(
    scenario: &Scenario,
    nccl_beside: &[bool],
    progress: &Progress,
    notes: &mut Vec<String>,
) -> Vec<CurvePoint> {
    let mut sizes = CURVE_BYTES.to_vec();
    sizes.extend([1, 4, 16, 64, 256].map(|tokens| 2 * tokens * scenario.model.hidden));
    sizes.sort_unstable();
    sizes.dedup();
    for &nccl in nccl_beside {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::super::standin::run::Measured;
    use super::super::table::Row;
    use super::*;
    use crate::cli::ScenarioArgs;

    /// A small outcome with a miss in it.
    pub(crate) fn outcome() -> Outcome {
        let scenario = Scenario::resolve(&ScenarioArgs {
            model: Some("llama-3.1-8b".into()),
            gpu: Some("h200-sxm".into()),
            gpus: Some(2),
            ..ScenarioArgs::default()
        });
        let gpu = super::super::facts::GpuFacts {
            name: "NVIDIA H200".into(),
            ..Default::default()
        };
        let points = [(1, 2.0), (8, 2.2), (64, 1.5)].map(|(concurrency, speedup)| Measured {
            concurrency,
            steps: 3,
            plain_tok_s: 200.0,
            spec_tok_s: 200.0 * speedup,
            ..Measured::default()
        });
        let rows = points.map(|p| {
            let what = format!(
                "{}, 3 steps, all-reduce nccl",
                super::super::engine_mode::users(p.concurrency)
            );
            Row::new("speedup", what, "x", p.spec_tok_s / p.plain_tok_s)
                .calibrated(Some(1.7), Some(0.2))
        });
        Outcome {
            scenario: scenario.expect("a scenario"),
            facts: Facts {
                gpus: vec![gpu.clone(), gpu],
                ..Facts::default()
            },
            figures: vec![Figure {
                what: "h2d_gb_s".into(),
                from: "0".into(),
                to: "host".into(),
                value: 55.0,
                wrong: 0,
            }],
            curve: vec![CurvePoint {
                algorithm: "nccl".into(),
                bytes: 8192,
                time_us: 6.7,
            }],
            runs: vec![Run {
                algorithm: "nccl".into(),
                found: Found {
                    plain: vec![(1, 5.0)],
                    points: points.to_vec(),
                    ..Found::default()
                },
            }],
            rows: rows.to_vec(),
            findings: Vec::new(),
            notes: vec!["a note".into()],
            held_tokens: 176.0,
            mock: false,
        }
    }
}
