//! A measured all-reduce against the link model of such a box.

use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

use super::{Finding, Severity, show};
use crate::explain::facts::Facts;
use crate::gpus::Nvlink;
use crate::scenario::hardware::{BoxRequest, resolve};

/// Measured over modelled from which a box is called slow. The model's own 90 % band is within a
/// factor of 2 on measured boxes, so 3 is not its error.
const SLOW: f64 = 3.0;

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    // Several machines, ranks that share a card, or P2P switched off are other stories.
    let other = facts.number("nodes").is_some_and(|nodes| nodes > 1.0)
        || facts.get("distinct_gpus").is_some()
        || facts.get("p2p_disabled").is_some();
    if other || facts.text("op") != Some("all_reduce") {
        return;
    }
    let (Some(bytes), Some(time_us), Some(ranks), Some(gpu)) = (
        facts.number("decode_size_bytes"),
        facts.number("decode_size_time_us"),
        facts.number("ranks"),
        facts.text("gpu"),
    ) else {
        return;
    };
    let Some(modelled) = modelled(gpu, ranks, bytes, (Algorithm::Nccl, false)) else {
        return;
    };
    if time_us < SLOW * modelled {
        return;
    }
    found.push(Finding::new(
        Severity::Costly,
        facts,
        "decode_size_time_us",
        format!(
            "an all-reduce of {bytes} bytes takes {} us, {:.1} times the model of {ranks} x {gpu}",
            show(time_us),
            time_us / modelled
        ),
        format!(
            "NCCL on the usual wiring of such cards takes {modelled:.0} us, launch included; at \
             this size latency decides, so a path through host memory, a socket hop or a fabric \
             that collapses shows here first"
        ),
        "NCCL_DEBUG=INFO says which path each channel takes (P2P, SHM, NET); `verify-hw` measures \
         the all-pairs load that separates a collapse from a slow path; `--topology` replaces the \
         usual wiring by yours",
    ));
}

/// The engine's own all-reduce off by flag: nothing where the cards meet over PCIe, where that can be
/// right.
pub(super) fn told_off(files: &[Facts], found: &mut Vec<Finding>) {
    let told = |facts: &&Facts| facts.text("custom_all_reduce_disabled") == Some("true");
    for facts in files.iter().filter(told) {
        let ranks = facts.number("tp").unwrap_or(1.0);
        let nodes = facts.number("nodes").unwrap_or(1.0);
        let by_nvlink = by_nvlink(files, ranks);
        let spans = nodes > 1.0 || facts.get("tp_hosts").is_some();
        if ranks < 2.0 || spans || by_nvlink == Some(false) {
            continue;
        }
        let costs = facts.text("gpu").and_then(|gpu| costs(facts, gpu, ranks));
        let (severity, what, mend) = match by_nvlink {
            Some(_) => (
                Severity::Costly,
                "the engine's own all-reduce is off by flag on NVLink; NCCL does it",
                "start without --disable-custom-all-reduce",
            ),
            None => (
                Severity::Note,
                "the engine's own all-reduce is off by flag; NCCL does it",
                "on NVLink start without --disable-custom-all-reduce; `predict --compare engine,nccl` \
                 says what it is worth on the cards it ran on",
            ),
        };
        let why = "between NVLink cards its own kernel is faster at decode's sizes; over PCIe it need not be";
        found.push(Finding::new(
            severity,
            facts,
            "custom_all_reduce_disabled",
            what,
            costs.unwrap_or_else(|| why.to_string()),
            mend,
        ));
    }
}

/// Whether the cards meet over NVLink, by a topology or by the card that any of the files names.
fn by_nvlink(files: &[Facts], ranks: f64) -> Option<bool> {
    let shown = files
        .iter()
        .find(|facts| facts.get("farthest_link").is_some() || facts.get("nvlink").is_some());
    if let Some(shown) = shown {
        return Some(shown.text("nvlink") == Some("all"));
    }
    let mut cards = files.iter().filter_map(|facts| facts.text("gpu"));
    let gpu = cards.find_map(|name| crate::gpus::find(name).ok())?;
    match gpu.nvlink {
        Nvlink::Mesh | Nvlink::Switch => Some(true),
        Nvlink::Bridge if ranks <= 2.0 => None,
        Nvlink::None | Nvlink::Bridge => Some(false),
    }
}

/// What it costs a token of one user, where model and card are known.
fn costs(facts: &Facts, gpu: &str, ranks: f64) -> Option<String> {
    let model = kvplan::catalog::find(facts.text("model")?).ok()?.model;
    let bytes = model.hidden as f64 * 2.0;
    let time = |algorithm| modelled(gpu, ranks, bytes, (algorithm, true));
    let (nccl, own) = (time(Algorithm::Nccl)?, time(Algorithm::Engine)?);
    let times = 2 * model.layers.len();
    (own < nccl).then(|| {
        format!(
            "one user's all-reduce of {bytes} bytes takes {nccl:.1} us by NCCL and {own:.1} us by its own \
             kernel, by the model of {ranks} x {gpu}: {:.1} ms of a step that has {times}",
            (nccl - own) * times as f64 / 1000.0
        )
    })
}

/// Microseconds of an all-reduce on the usual wiring of such cards, in a graph or launched from the host
/// as nccl-tests does; `None` for a card that is not in the catalogue.
fn modelled(
    gpu: &str,
    ranks: f64,
    bytes: f64,
    (algorithm, graph): (Algorithm, bool),
) -> Option<f64> {
    if !(2.0..=16.0).contains(&ranks) || ranks.fract() != 0.0 {
        return None;
    }
    let count = ranks as u32;
    let hardware = resolve(&BoxRequest {
        gpu: Some(gpu.to_string()),
        gpus: Some(count),
        ..BoxRequest::default()
    })
    .ok()?;
    let arch = Arch::parse(&hardware.gpu.arch).unwrap_or(Arch::AMPERE);
    let topology = Topology::from_spec(&hardware.wiring, arch).ok()?;
    let ranks: Vec<usize> = (0..count as usize).collect();
    let options = Options {
        graph,
        ..Options::default()
    };
    let time = all_reduce(&topology, &ranks, algorithm, bytes as u64, &options).ok()?;
    (time.time_us > 0.0).then_some(time.time_us)
}
