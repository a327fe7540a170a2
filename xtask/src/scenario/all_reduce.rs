//! Which all-reduce a scenario runs: the one asked for, else the one that the log's server was told
//! to run, else the engine's own choice.

use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

use super::engine::{EngineChoice, EngineKind};
use super::hardware::Hardware;
use super::{Notes, merge, parse};
use crate::cli::ScenarioArgs;
use crate::explain::{LogScenario, NO_CUSTOM, Off};
use crate::input;

/// Source of the all-reduce where nothing names one.
const OWN_CHOICE: &str = "the engine's own choice by size and wiring";
/// Size at which is tried whether a kernel runs at all, bytes.
const TRIED_BYTES: u64 = 8192;

/// What a log says of the all-reduce of its server.
#[derive(Debug, Clone)]
pub(super) struct Told {
    /// Variables and flags of its start line.
    pub(super) switches: Vec<String>,
    /// vLLM's own kernel forced over PCIe: the largest payload that it takes where said, bytes, and the
    /// rows (tokens of a pass) up to which it takes any.
    pub(super) over_pcie: Option<Option<(u64, u64)>>,
    /// Why the server says that the engine's own kernel is off, where that is nothing it was told and
    /// nothing that the rules of the engine say of this box.
    pub(super) off: Option<Off>,
    /// File and line where SGLang says that FlashInfer's is not there.
    pub(super) no_flashinfer: Option<String>,
    /// File and line.
    pub(super) at: String,
}

impl Told {
    /// The same beside flags: what kept the kernel off there says nothing of other ranks, and the lack of
    /// peer access alone is no matter of a release.
    pub(super) fn beside(log: &LogScenario, args: &ScenarioArgs, shown: &str) -> Option<Self> {
        let ranks = args.tp.is_some() && args.tp != log.tp.map(|(tp, _)| tp);
        let release = super::other_engine::other_engine(args, log);
        let mut own = log.clone();
        own.custom_all_reduce_off
            .take_if(|(why, _)| ranks || release && *why == Off::Unsaid);
        Self::of_log(&own, shown)
    }

    /// What a log says of the all-reduce of its server.
    fn of_log(log: &LogScenario, shown: &str) -> Option<Self> {
        let (over_pcie, switches) = (log.pcie_all_reduce, log.all_reduce_switches.as_ref());
        let line = over_pcie.map(|found| found.1);
        let off = log.custom_all_reduce_off;
        let line = line
            .or_else(|| switches.map(|found| found.1))
            .or_else(|| off.map(|found| found.1))
            .or(log.no_flashinfer)?;
        Some(Self {
            no_flashinfer: log.no_flashinfer.map(|line| format!("{shown}:{line}")),
            off: off.map(|(why, _)| why),
            switches: switches.map_or_else(Vec::new, |found| found.0.clone()),
            over_pcie: over_pcie
                .map(|(most, _)| most.map(|(bytes, rows)| (bytes.max(1.0) as u64, rows as u64))),
            at: format!("{shown}:{line}"),
        })
    }
}

/// The all-reduces that can be asked for: every kernel that answers name, and the fastest.
pub(crate) fn allreduce_names() -> impl Iterator<Item = &'static str> {
    let shown = Algorithm::SHOWN.into_iter();
    shown.map(Algorithm::name).chain(std::iter::once("auto"))
}

/// Whether a word names an all-reduce, perhaps with the size up to which it runs (`one-shot@57344`).
pub(crate) fn names_allreduce(word: &str) -> bool {
    let kernel = word.split('@').next().unwrap_or(word);
    allreduce_names().any(|known| known == kernel)
}

/// The all-reduce of a scenario as `--allreduce` takes it, and that of the server behind a plain
/// sweep.
pub(super) fn resolve(
    merged: &merge::Merged,
    hardware: &Hardware,
    (model, engine): (&kvplan::Model, &EngineChoice),
    tp: u32,
    notes: &mut Notes,
) -> anyhow::Result<(String, String)> {
    let given = merged.allreduce.as_ref();
    let found = told(merged, hardware, (model, engine), tp);
    // Another engine than the one that wrote the log chooses for itself.
    let own = found.as_ref().filter(|_| merged.lent_by.is_none());
    let chosen = match engine.kind {
        // It has no kernel of its own.
        EngineKind::LlamaCpp => "nccl",
        _ => "engine",
    };
    let (name, source) = match (given, own) {
        (Some(given), _) => (asked(&given.value)?, given.source.clone()),
        (None, Some(told)) => (told.name.clone(), told.at.clone()),
        (None, None) => (chosen.to_string(), OWN_CHOICE.to_string()),
    };
    if given.is_none()
        && let Some((what, settled_by)) = own.and_then(|told| told.note.clone())
    {
        notes.assume(what, settled_by);
    }
    if let Some(at) = no_flashinfer(merged).filter(|_| tp > 1) {
        notes.assume(
            format!(
                "{at}: that server has no flashinfer.comm, so none of FlashInfer's all-reduces"
            ),
            "",
        );
    }
    if tp < 2 && given.is_some() {
        notes.assume(
            format!("--allreduce {name}: changes nothing, one GPU has nobody to reduce with"),
            "",
        );
    }
    notes.input("allreduce", name.clone(), source);
    let swept = found.as_ref().map_or(chosen, |told| told.name.as_str());
    if swept != name && tp > 1 && merged.baseline.is_some() && merged.allreduce_table.is_none() {
        let at = found.as_ref().map_or("", |told| told.at.as_str());
        note_moved((swept, at), &name, notes);
    }
    Ok((name, swept.to_string()))
}

/// Whether the start line of the log keeps the engine, which is asked for too, from its own kernel.
pub(super) fn told_no_custom(merged: &merge::Merged) -> bool {
    let told = merged.told_all_reduce.as_ref();
    let told = told.filter(|_| merged.lent_by.is_none());
    told.is_some_and(|told| told.switches.iter().any(|word| word == NO_CUSTOM))
}

/// Where the log of the engine asked for says that FlashInfer's all-reduce is not there.
pub(super) fn no_flashinfer(merged: &merge::Merged) -> Option<&str> {
    let told = merged.told_all_reduce.as_ref();
    let told = told.filter(|_| merged.lent_by.is_none());
    told.and_then(|told| told.no_flashinfer.as_deref())
}

/// How the line begins that says so.
pub(crate) const MOVED: &str = "the plain sweep is taken to have run with ";

/// Says that the steps of a sweep are moved to another all-reduce.
fn note_moved((swept, at): (&str, &str), name: &str, notes: &mut Notes) {
    let shown = |name: &str| match name {
        "engine" => "the engine's own choice (engine)".to_string(),
        name => name.to_string(),
    };
    let ran = match at {
        "" => shown(swept),
        at => format!("{} ({at})", shown(swept)),
    };
    notes.assume(
        format!(
            "{MOVED}{ran}; with {} its steps are the measured ones \
             moved by the difference of the two modelled all-reduces, and the bands are wider by all that \
             this changes",
            shown(name)
        ),
        "a plain sweep of the server that runs it, given without --allreduce,",
    );
}

/// Whether nothing named the all-reduce.
pub(super) fn is_own_choice(source: &str) -> bool {
    source == OWN_CHOICE
}

/// Reads the flag's value: a name, for a kernel perhaps with the largest size that it takes.
fn asked(text: &str) -> anyhow::Result<String> {
    let text = text.trim().to_ascii_lowercase();
    let (name, most) = match text.split_once('@') {
        Some((name, most)) => (name, Some(most)),
        None => (text.as_str(), None),
    };
    if !names_allreduce(name) {
        let known: Vec<&str> = allreduce_names().collect();
        return Err(input::error(format!(
            "--allreduce {text}: give one of {}",
            known.join(", ")
        )));
    }
    let Some(most) = most else {
        return Ok(text);
    };
    if matches!(name, "auto" | "nccl") {
        return Err(input::error(format!(
            "--allreduce {text}: {name} has no largest size; give it to a kernel, such as one-shot@64k"
        )));
    }
    let [bytes] = parse::byte_sizes(&format!("--allreduce {name} @"), most)?[..] else {
        return Err(input::error(format!(
            "--allreduce {text}: give one largest size, such as {name}@64k"
        )));
    };
    Ok(format!("{name}@{bytes}"))
}

/// What the log's server runs, where that stands, and what is to be said of it.
struct Found {
    name: String,
    at: String,
    note: Option<(String, &'static str)>,
}

/// What the log's server runs on these GPUs.
fn told(
    merged: &merge::Merged,
    hardware: &Hardware,
    (model, engine): (&kvplan::Model, &EngineChoice),
    tp: u32,
) -> Option<Found> {
    let told = merged.told_all_reduce.as_ref()?;
    if tp < 2 {
        return None;
    }
    let arch = Arch::parse(&hardware.gpu.arch).unwrap_or(Arch::AMPERE);
    let topology = Topology::from_spec(&hardware.wiring, arch).ok()?;
    let ranks: Vec<usize> = (0..tp as usize).collect();
    let options = Options::default();
    let runs = |algorithm| all_reduce(&topology, &ranks, algorithm, TRIED_BYTES, &options).is_ok();
    let at = &told.at;
    if let Some(most) = told.over_pcie.filter(|_| runs(Algorithm::OneShot)) {
        let (sizes, name) = match most {
            Some((bytes, rows)) => {
                let of_rows = rows.saturating_mul(model.hidden).saturating_mul(2);
                let by_rows = if of_rows > bytes {
                    format!(" ({rows} tokens)")
                } else {
                    String::new()
                };
                let most = bytes.max(of_rows);
                let shown = crate::table::thousands(most as f64);
                (
                    format!(" up to {shown} bytes{by_rows}, NCCL above"),
                    format!("one-shot@{most}"),
                )
            }
            None => (String::new(), "one-shot".to_string()),
        };
        let note = format!(
            "{at}: that server reduced by vLLM's own kernel over PCIe{sizes}: reckoned as the lean \
             one-shot, since its own cost over PCIe is not known"
        );
        let settled_by = "--allreduce NAME, or NAME@BYTES for the sizes up to which it runs";
        return Some(Found {
            name,
            at: at.clone(),
            note: Some((note, settled_by)),
        });
    }
    let fuses = told.no_flashinfer.is_none()
        && crate::predict::fuses_by_itself(engine, &model.architecture, hardware.gpu);
    let on = (&topology, &ranks[..]);
    // Where its own choice is NCCL anyway that is what it is called.
    let by_kernel = || {
        let own = all_reduce(&topology, &ranks, Algorithm::Engine, TRIED_BYTES, &options);
        own.is_ok_and(|time| !pcie_sim::is_nccl_plan(&time.algorithm_name))
    };
    let mut switches = told.switches.clone();
    if told.off.is_some() && by_kernel() {
        switches.push(NO_CUSTOM.to_string());
    }
    let algorithm = crate::predict::told_by(&switches, on, engine, fuses)?;
    runs(algorithm).then(|| Found {
        name: algorithm.name().to_string(),
        at: at.clone(),
        note: None,
    })
}
