//! All-reduce times for scored servers: pcie-sim on the usual box of each GPU.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use pcie_sim::box_spec::BoxSpec;
use pcie_sim::{Algorithm, Arch, Options, Topology};

use crate::gpus::{Gpu, Nvlink};
use crate::scenario::hardware::{p2p_of, wiring_of};
use crate::step_time::{Engine, before};

/// Points of a curve per doubling of bytes.
const STEPS: f64 = 2.0;
/// Smallest size simulated, bytes.
const SMALLEST: f64 = 512.0;
/// Doublings simulated; beyond, time grows with size.
const DOUBLINGS: usize = 20;

/// All-reduce time against size, interpolated between simulated points.
#[derive(Debug)]
pub(crate) struct Curve {
    time_us: Vec<f64>,
}

impl Curve {
    /// Time of `bytes`, us.
    pub(crate) fn at(&self, bytes: f64) -> f64 {
        let position = (bytes.max(SMALLEST) / SMALLEST).log2() * STEPS;
        let index = position.floor();
        match (
            self.time_us.get(index as usize),
            self.time_us.get(index as usize + 1),
        ) {
            (Some(low), Some(high)) => low * (high / low).powf(position - index),
            _ => {
                let last = self.time_us.last().copied().unwrap_or(0.0);
                let largest = SMALLEST * 2f64.powi(DOUBLINGS as i32);
                last * (bytes / largest).max(1.0)
            }
        }
    }
}

/// GPU, ranks and algorithm.
type Group = (String, u64, Algorithm);

/// Curves by group, simulated once.
#[derive(Default)]
pub(crate) struct Links {
    curves: RefCell<HashMap<Group, Option<Rc<Curve>>>>,
}

/// The catalogue box that stands for an NVLink server of `ranks` such GPUs.
fn usual_box(gpu: &str, ranks: u64) -> Option<&'static str> {
    Some(match (gpu, ranks) {
        ("h100-sxm", _) => "dgx-h100",
        ("h200-sxm", _) => "hgx-h200-8",
        ("h20", _) => "hgx-h20-8",
        ("b200-sxm", _) => "hgx-b200-8",
        ("b300-sxm", _) => "hgx-b300-8",
        ("gb200" | "gb300", 0..=4) => "gb200-4",
        // Beyond one tray the same switches lead on.
        ("gb200", _) => "hgx-b200-8",
        ("gb300", _) => "hgx-b300-8",
        ("a100-80gb-sxm" | "a100-40gb-sxm", _) => "dgx-a100",
        ("mi300x", _) => "mi300x-8",
        _ => return None,
    })
}

/// What the engine runs on such a box: its own kernel over NVLink, NCCL over PCIe beyond two GPUs.
/// SGLang before 0.5.10 ran NCCL on eight GPUs: its servers take 11 us more per all-reduce than
/// TensorRT-LLM's, fitted leave-one-model-out, which is NCCL's time less the custom kernel's.
fn usual_algorithm(gpu: &Gpu, ranks: u64, engine: Engine, version: Option<&str>) -> Algorithm {
    let switched = matches!(gpu.nvlink, Nvlink::Switch | Nvlink::Mesh);
    let old_sglang = engine == Engine::Sglang && ranks >= 8 && old_sglang(version);
    if (switched && !old_sglang) || ranks == 2 {
        Algorithm::Engine
    } else {
        Algorithm::Nccl
    }
}

/// Versions before 0.5.10, and nightly builds from before its release.
fn old_sglang(version: Option<&str>) -> bool {
    before(version, (0, 5, 10)) || version.is_some_and(|v| v.starts_with("nightly"))
}

impl Links {
    /// The curve for `ranks` GPUs of the usual box; `None` where no box is known or it cannot run.
    pub(crate) fn curve(
        &self,
        gpu: &Gpu,
        ranks: u64,
        engine: Engine,
        version: Option<&str>,
    ) -> Option<Rc<Curve>> {
        let algorithm = usual_algorithm(gpu, ranks, engine, version);
        let key = (gpu.name.clone(), ranks, algorithm);
        if let Some(curve) = self.curves.borrow().get(&key) {
            return curve.clone();
        }
        let curve = simulate(gpu, ranks, algorithm).map(Rc::new);
        self.curves.borrow_mut().insert(key, curve.clone());
        curve
    }
}

/// The box that is taken where a report names the GPUs and not the wiring: over PCIe what `--gpu`
/// and `--gpus` alone give (one or two sockets, every card on its own root port, NCCL's search
/// finding its ring), else the catalogue's.
fn wiring(gpu: &Gpu, ranks: u64) -> Option<BoxSpec> {
    if gpu.nvlink != Nvlink::None {
        return pcie_sim::catalog::find(usual_box(&gpu.name, ranks)?).ok();
    }
    let gpus = usize::try_from(ranks).ok()?;
    BoxSpec::flat(&wiring_of(gpu), gpus, p2p_of(gpu)).ok()
}

fn simulate(gpu: &Gpu, ranks: u64, algorithm: Algorithm) -> Option<Curve> {
    if ranks <= 1 {
        return Some(Curve {
            time_us: vec![0.0; 2],
        });
    }
    let spec = wiring(gpu, ranks)?;
    let topology = Topology::from_spec(&spec, Arch::parse(&gpu.arch)?).ok()?;
    let group: Vec<usize> = (0..usize::try_from(ranks).ok()?).collect();
    let options = Options::default();
    let time_us = (0..=DOUBLINGS * STEPS as usize)
        .map(|i| {
            let bytes = SMALLEST * 2f64.powf(i as f64 / STEPS);
            pcie_sim::all_reduce(&topology, &group, algorithm, bytes as u64, &options)
                .ok()
                .map(|t| t.time_us)
        })
        .collect::<Option<Vec<f64>>>()?;
    Some(Curve { time_us })
}
