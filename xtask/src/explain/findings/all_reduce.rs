//! A measured all-reduce against the link model of such a box.

use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

use super::{Finding, Severity, show};
use crate::explain::facts::Facts;
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
    let Some(modelled) = modelled(gpu, ranks, bytes) else {
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

/// Microseconds of NCCL's all-reduce on the usual wiring of such cards, launched from the host as
/// nccl-tests does; `None` for a card that is not in the catalogue.
fn modelled(gpu: &str, ranks: f64, bytes: f64) -> Option<f64> {
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
        graph: false,
        ..Options::default()
    };
    let time = all_reduce(&topology, &ranks, Algorithm::Nccl, bytes as u64, &options).ok()?;
    (time.time_us > 0.0).then_some(time.time_us)
}
