//! Collectives: what each algorithm sends when, and how long that takes. One algorithm, one file.

mod all_gather;
mod copies;
mod engine;
mod host_staged;
mod island;
mod nccl_nvls;
mod nccl_ring;
mod nccl_tree;
mod one_shot;
mod reduce_scatter;
mod two_shot;

use crate::constants::Constants;
use crate::nccl::{self, NcclAlgorithm, NcclProtocol, NcclSetup};
use crate::plan::{Plan, PlanTime};
use crate::topology::{GPUS_MAX, RouteClass, Topology};
use std::fmt;
use std::str::FromStr;

pub use copies::{host_copies_gb_s, kv_offload_slowdown};

/// All-reduce algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// What NCCL would choose for the size.
    Nccl,
    /// NCCL's ring with one protocol.
    NcclRing(NcclProtocol),
    /// NCCL's tree (one box: a chain) with one protocol.
    NcclTree(NcclProtocol),
    /// The engines' custom kernel as they dispatch it: one-shot, above a size two-shot, above
    /// 8 MiB NCCL.
    Engine,
    /// SGLang's newer kernel (0.5.14): pushes, as the engine dispatches it.
    EnginePush,
    /// Every rank loads all others' data, by a lean kernel on whatever link: p2pmark, b12x. vLLM's and
    /// SGLang's 1-stage is [`Algorithm::Engine`].
    OneShot,
    /// Every rank stores its data to all others, arrival marked in the data.
    OneShotPush,
    /// Reduce-scatter by loads, barrier, all-gather by loads, by a lean kernel.
    TwoShot,
    /// Reduce-scatter inside islands, 1:1 exchange between them, all-gather inside.
    Island,
    /// A ring through pinned host memory, or for few ranks a sum by the CPU.
    HostStaged,
}

/// Names as on the command line.
const NAMES: [(&str, Algorithm); 15] = [
    ("nccl", Algorithm::Nccl),
    ("nccl-ring-ll", Algorithm::NcclRing(NcclProtocol::Ll)),
    ("nccl-ring-ll128", Algorithm::NcclRing(NcclProtocol::Ll128)),
    (
        "nccl-ring-simple",
        Algorithm::NcclRing(NcclProtocol::Simple),
    ),
    ("nccl-tree-ll", Algorithm::NcclTree(NcclProtocol::Ll)),
    ("nccl-tree-ll128", Algorithm::NcclTree(NcclProtocol::Ll128)),
    (
        "nccl-tree-simple",
        Algorithm::NcclTree(NcclProtocol::Simple),
    ),
    ("engine", Algorithm::Engine),
    ("engine-push", Algorithm::EnginePush),
    ("one-shot", Algorithm::OneShot),
    ("one-shot-push", Algorithm::OneShotPush),
    ("two-shot", Algorithm::TwoShot),
    ("island", Algorithm::Island),
    ("host-staged", Algorithm::HostStaged),
    ("one-shot-pull", Algorithm::OneShot),
];

impl Algorithm {
    /// Those that `simulate --algorithm all` shows.
    pub const SHOWN: [Algorithm; 7] = [
        Algorithm::Nccl,
        Algorithm::Engine,
        Algorithm::OneShot,
        Algorithm::OneShotPush,
        Algorithm::TwoShot,
        Algorithm::Island,
        Algorithm::HostStaged,
    ];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, a)| *a == self)
            .map_or("nccl", |(n, _)| n)
    }

    /// Whether it is NCCL rather than a custom kernel.
    pub fn is_nccl(self) -> bool {
        matches!(
            self,
            Algorithm::Nccl | Algorithm::NcclRing(_) | Algorithm::NcclTree(_)
        )
    }
}

/// Whether a plan of that name is NCCL's, chosen by itself or by an engine that leaves a size to it.
pub fn is_nccl_plan(name: &str) -> bool {
    nccl_choice(name).is_some()
}

/// What NCCL takes, such as `ring-ll`, in the name of a plan of its; `None` for a custom kernel's.
pub fn nccl_choice(name: &str) -> Option<&str> {
    name.strip_prefix("nccl-")
}

/// Whose kernel a time is of, by its algorithm and the name that it was given: names alone do not say
/// it, and times of kernels of different origin are compared.
pub fn kernel_of(algorithm: Algorithm, time: &CollectiveTime) -> &'static str {
    match algorithm {
        _ if algorithm.is_nccl() || is_nccl_plan(&time.algorithm_name) => "NCCL",
        Algorithm::Engine => "vLLM, SGLang",
        Algorithm::EnginePush => "SGLang 0.5.14",
        Algorithm::OneShot => "lean: p2pmark, b12x",
        Algorithm::OneShotPush => "lean: FlashInfer, ours",
        Algorithm::TwoShot => "lean, no engine's",
        _ => "ours (allreduce)",
    }
}

/// A name that is no algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownAlgorithm(String);

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = NAMES.iter().map(|(n, _)| *n).collect();
        write!(
            f,
            "'{}' is no all-reduce algorithm; use one of {}",
            self.0,
            known.join(", ")
        )
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase().replace('_', "-");
        NAMES
            .iter()
            .find(|(n, _)| *n == wanted)
            .map(|(_, a)| *a)
            .ok_or_else(|| UnknownAlgorithm(text.trim().chars().take(60).collect()))
    }
}

/// How a collective is run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Inside a CUDA graph: no launch from the host. False: not under the pace of eager launches.
    pub graph: bool,
    /// What is known of NCCL.
    pub nccl: NcclSetup,
    /// Constants of the timing model.
    pub constants: Constants,
    /// Correct by the figures measured on the box, where it has some.
    pub use_measured: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            graph: true,
            nccl: NcclSetup::default(),
            constants: Constants::default(),
            use_measured: true,
        }
    }
}

/// Whether a time rests on a figure measured on the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The model alone.
    Modelled,
    /// The model, corrected by measured figures of other sizes.
    Corrected,
    /// A figure measured at this size.
    Measured,
}

/// How long a collective takes.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveTime {
    /// Most likely time, us.
    pub time_us: f64,
    /// Lower end of the 90 % band, us.
    pub low_us: f64,
    /// Upper end of the 90 % band, us.
    pub high_us: f64,
    /// Algorithm with protocol, such as `nccl-ring-ll`.
    pub algorithm_name: String,
    /// The capacity that is busy longest; None where nothing is sent.
    pub link_busiest: Option<String>,
    /// Share of the time it is busy, 0 to 1.
    pub link_busy_fraction: f64,
    /// Measured or modelled.
    pub basis: Basis,
    /// Signatures of modes that no fair sharing produces, and NCCL's failures, where they apply.
    pub notes: Vec<String>,
}

/// Why an algorithm cannot run on these GPUs, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Outside a CUDA graph the host's launches set the pace of small messages, us: custom all-reduce
/// tables of AIConfigurator 0.12.0, eager rows: 18 to 30 on newer hosts, 41 to 49 on an A100 box.
const EAGER_FLOOR_US: f64 = 20.0;

/// What every collective file is given.
pub(crate) struct Job<'a> {
    pub(crate) t: &'a Topology,
    pub(crate) ranks: &'a [usize],
    pub(crate) bytes: f64,
    pub(crate) options: &'a Options,
}

impl Job<'_> {
    pub(crate) fn n(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn c(&self) -> &Constants {
        &self.options.constants
    }

    pub(crate) fn class(&self) -> RouteClass {
        self.t.worst_class(self.ranks)
    }
}

/// Time of an all-reduce of `bytes` (payload of one rank) among the GPUs `ranks`.
pub fn all_reduce(
    t: &Topology,
    ranks: &[usize],
    algorithm: Algorithm,
    bytes: u64,
    options: &Options,
) -> Result<CollectiveTime, Unavailable> {
    check_ranks(t, ranks)?;
    if ranks.len() == 1 || bytes == 0 {
        return Ok(nothing_to_do(algorithm.name()));
    }
    let (plan, notes) = all_reduce_plan(t, ranks, algorithm, bytes, options)?;
    Ok(finish(t, ranks, algorithm, bytes, options, &plan, notes))
}

/// The rounds of an all-reduce, with notes on how they were chosen.
pub fn all_reduce_plan(
    t: &Topology,
    ranks: &[usize],
    algorithm: Algorithm,
    bytes: u64,
    options: &Options,
) -> Result<(Plan, Vec<String>), Unavailable> {
    check_ranks(t, ranks)?;
    let job = Job {
        t,
        ranks,
        bytes: bytes as f64,
        options,
    };
    let mut notes = Vec::new();
    let plan = match algorithm {
        Algorithm::Nccl => {
            let graph = nccl::search(t, ranks, &options.nccl);
            notes.extend(nccl::p2p::note(t, ranks, &options.nccl));
            if graph.failed {
                let cure = nccl::cure(t, ranks, &options.nccl).words();
                notes.push(format!(
                    "NCCL's search finds no ring here and assumes 0.1 GB/s: it takes Simple at \
                     small sizes; {cure} mends it"
                ));
            }
            let choice = nccl::choose(t.arch, &graph, ranks.len(), bytes, &options.nccl);
            match choice.algorithm {
                NcclAlgorithm::Ring => nccl_ring::plan(&job, &graph, choice.protocol),
                NcclAlgorithm::Tree => nccl_tree::plan(&job, &graph, choice.protocol),
                NcclAlgorithm::Nvls => nccl_nvls::plan(&job),
            }
        }
        Algorithm::NcclRing(protocol) => {
            nccl_ring::plan(&job, &nccl::search(t, ranks, &options.nccl), protocol)
        }
        Algorithm::NcclTree(protocol) => {
            nccl_tree::plan(&job, &nccl::search(t, ranks, &options.nccl), protocol)
        }
        Algorithm::Engine => return engine::plan(&job, bytes, engine::Kernel::Pull),
        Algorithm::EnginePush => return engine::plan(&job, bytes, engine::Kernel::Push),
        Algorithm::OneShot => one_shot::pull(&job, one_shot::Form::Lean)?,
        Algorithm::OneShotPush => one_shot::push(&job, one_shot::Form::Lean)?,
        Algorithm::TwoShot => two_shot::plan(&job, one_shot::Form::Lean, false)?,
        Algorithm::Island => island::plan(&job)?,
        Algorithm::HostStaged => host_staged::plan(&job)?,
    };
    Ok((plan, notes))
}

/// The fastest of [`Algorithm::SHOWN`] that can run here.
pub fn choose_best(
    t: &Topology,
    ranks: &[usize],
    bytes: u64,
    options: &Options,
) -> Result<(Algorithm, CollectiveTime), Unavailable> {
    let mut best: Option<(Algorithm, CollectiveTime)> = None;
    for algorithm in Algorithm::SHOWN {
        if let Ok(time) = all_reduce(t, ranks, algorithm, bytes, options)
            && best.as_ref().is_none_or(|b| time.time_us < b.1.time_us)
        {
            best = Some((algorithm, time));
        }
    }
    match best {
        Some(found) => Ok(found),
        // NCCL always runs, so this is bad ranks: say which.
        None => all_reduce(t, ranks, Algorithm::Nccl, bytes, options)
            .map(|time| (Algorithm::Nccl, time)),
    }
}

/// Time of an all-gather after which every rank holds `bytes` in all (each gave its share), by
/// NCCL.
pub fn all_gather(
    t: &Topology,
    ranks: &[usize],
    bytes: u64,
    options: &Options,
) -> Result<CollectiveTime, Unavailable> {
    half_ring(t, ranks, bytes, options, all_gather::plan)
}

/// Time of a reduce-scatter of `bytes` (each rank keeps its share of the sum), by NCCL.
pub fn reduce_scatter(
    t: &Topology,
    ranks: &[usize],
    bytes: u64,
    options: &Options,
) -> Result<CollectiveTime, Unavailable> {
    half_ring(t, ranks, bytes, options, reduce_scatter::plan)
}

fn half_ring(
    t: &Topology,
    ranks: &[usize],
    bytes: u64,
    options: &Options,
    plan: fn(&Job<'_>) -> Plan,
) -> Result<CollectiveTime, Unavailable> {
    check_ranks(t, ranks)?;
    if ranks.len() == 1 || bytes == 0 {
        return Ok(nothing_to_do("nccl-ring"));
    }
    let job = Job {
        t,
        ranks,
        bytes: bytes as f64,
        options,
    };
    let plan = plan(&job);
    let time = plan.run(t, &options.constants);
    Ok(collective_time(
        t,
        ranks,
        &plan,
        &time,
        options,
        Algorithm::Nccl,
        Vec::new(),
    ))
}

fn check_ranks(t: &Topology, ranks: &[usize]) -> Result<(), Unavailable> {
    if ranks.is_empty() || ranks.len() > GPUS_MAX {
        return Err(Unavailable(format!(
            "{} ranks: 1 to {GPUS_MAX} are simulated",
            ranks.len()
        )));
    }
    for (i, rank) in ranks.iter().enumerate() {
        if *rank >= t.gpu_count() {
            return Err(Unavailable(format!(
                "GPU {rank} is not in box '{}', which has {}",
                t.name,
                t.gpu_count()
            )));
        }
        if ranks[..i].contains(rank) {
            return Err(Unavailable(format!("GPU {rank} is named twice")));
        }
    }
    Ok(())
}

fn nothing_to_do(name: &str) -> CollectiveTime {
    CollectiveTime {
        time_us: 0.0,
        low_us: 0.0,
        high_us: 0.0,
        algorithm_name: name.to_string(),
        link_busiest: None,
        link_busy_fraction: 0.0,
        basis: Basis::Modelled,
        notes: Vec::new(),
    }
}

fn finish(
    t: &Topology,
    ranks: &[usize],
    algorithm: Algorithm,
    bytes: u64,
    options: &Options,
    plan: &Plan,
    notes: Vec<String>,
) -> CollectiveTime {
    let time = plan.run(t, &options.constants);
    let mut out = collective_time(t, ranks, plan, &time, options, algorithm, notes);
    if options.use_measured {
        crate::measured::correct(&mut out, t, ranks, algorithm, bytes, options);
    }
    out
}

/// 90 % band as a factor each way: the 90th percentile of |ln(predicted / measured)| over boxes
/// left out of the fit (docs/pcie-sim.md), for NCCL over NVLink and PCIe, custom kernels over
/// NVLink and PCIe.
const BAND_NCCL: (f64, f64) = (1.2, 1.5);
const BAND_CUSTOM: (f64, f64) = (1.28, 1.35);

fn collective_time(
    t: &Topology,
    ranks: &[usize],
    plan: &Plan,
    time: &PlanTime,
    options: &Options,
    algorithm: Algorithm,
    mut notes: Vec<String>,
) -> CollectiveTime {
    let time_us = if options.graph {
        time.time_us
    } else {
        time.time_us.max(EAGER_FLOOR_US)
    };
    // An engine that takes NCCL has NCCL's error.
    let bands = if algorithm.is_nccl() || is_nccl_plan(&plan.name) {
        BAND_NCCL
    } else {
        BAND_CUSTOM
    };
    let band = if t.full_gpu_link(ranks) {
        bands.0
    } else {
        bands.1
    };
    notes.extend(time.triggered.iter().map(|s| (*s).to_string()));
    let (link_busiest, link_busy_fraction) = match time.busiest(t) {
        Some((name, share)) => (Some(name), share),
        None => (None, 0.0),
    };
    CollectiveTime {
        time_us,
        low_us: time_us / band,
        high_us: time_us * band,
        algorithm_name: plan.name.clone(),
        link_busiest,
        link_busy_fraction,
        basis: Basis::Modelled,
        notes,
    }
}
