//! All-reduce times on the scenario's box: modelled by pcie-sim, or the user's own table.

use std::cell::RefCell;
use std::collections::HashMap;

use pcie_sim::nccl::{Cure, FINDS_RING, NcclSetup, P2pLevel};
use pcie_sim::{Algorithm, Arch, CollectiveTime, Options, Topology, all_reduce, choose_best};

use serde::Serialize;

use super::fusion;
use crate::input;
use crate::scenario::Scenario;
use crate::step_time::Server;
use crate::table;

/// Element size of what is reduced: engines sum activations in 16 bits.
pub(crate) const ELEMENT_BYTES: u64 = 2;
/// Half-width of the band of a time measured at this very size: run to run.
const MEASURED_SPREAD: f64 = 0.05;

/// The links of a scenario, ready to be asked for times.
pub(crate) struct Links<'a> {
    topology: Topology,
    ranks: &'a [usize],
    groups: &'a [Vec<usize>],
    table: Option<&'a [(u64, f64)]>,
    options: Options,
    /// Largest message that the engine gives FlashInfer's push by itself, bytes.
    pushed_bytes: Option<u64>,
    /// SGLang fuses the model's all-reduces by itself.
    fuses: bool,
    /// FlashInfer's all-reduce is not there, as the server's log says.
    no_flashinfer: bool,
    known: RefCell<HashMap<(Choice, u64), CollectiveTime>>,
}

/// What is asked for by `--allreduce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Choice {
    /// One algorithm.
    One(Algorithm),
    /// A kernel up to a size in bytes, NCCL above it.
    UpTo(Algorithm, u64),
    /// The fastest at each size.
    Fastest,
}

impl Choice {
    /// Name as typed.
    pub(crate) fn name(self) -> String {
        match self {
            Self::One(algorithm) => algorithm.name().to_string(),
            Self::UpTo(algorithm, most) => format!("{}@{most}", algorithm.name()),
            Self::Fastest => "auto".to_string(),
        }
    }

    /// Reads the flag's value.
    pub(crate) fn parse(name: &str) -> anyhow::Result<Self> {
        if name == "auto" {
            return Ok(Self::Fastest);
        }
        let (kernel, most) = match name.split_once('@') {
            Some((kernel, most)) => (kernel, most.parse::<u64>().ok()),
            None => (name, None),
        };
        let algorithm = kernel
            .parse::<Algorithm>()
            .map_err(|e| input::error(format!("--allreduce {name}: {e}")))?;
        Ok(match most {
            Some(bytes) => Self::UpTo(algorithm, bytes),
            None => Self::One(algorithm),
        })
    }

    /// The kernel that takes a size; `None` where it is the fastest.
    pub(crate) fn at(self, bytes: u64) -> Option<Algorithm> {
        match self {
            Self::One(algorithm) => Some(algorithm),
            Self::UpTo(algorithm, most) if bytes <= most => Some(algorithm),
            Self::UpTo(..) => Some(Algorithm::Nccl),
            Self::Fastest => None,
        }
    }

    /// The kernel that was named, whatever sizes it takes; `None` where it is the fastest.
    pub(super) fn kernel(self) -> Option<Algorithm> {
        self.at(0)
    }
}

impl<'a> Links<'a> {
    /// Builds the topology of a scenario.
    pub(crate) fn new(scenario: &'a Scenario) -> anyhow::Result<Self> {
        let arch = Arch::parse(&scenario.gpu.arch).unwrap_or(Arch::AMPERE);
        let topology = Topology::from_spec(&scenario.wiring, arch)
            .map_err(|e| input::error(format!("box {}: {e}", scenario.wiring.name)))?;
        Ok(Self {
            pushed_bytes: fusion::pushed_bytes(scenario, &topology),
            fuses: fusion::fuses(scenario),
            no_flashinfer: scenario.no_flashinfer,
            topology,
            ranks: &scenario.ranks,
            groups: &scenario.groups,
            table: scenario.allreduce_table.as_deref(),
            options: Options::default(),
            known: RefCell::new(HashMap::new()),
        })
    }

    /// The box.
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether the engine runs FlashInfer's push by itself.
    pub(super) fn engine_pushes(&self) -> bool {
        self.pushed_bytes.is_some()
    }

    /// Whether SGLang fuses the model's all-reduces by itself.
    pub(super) fn fuses(&self) -> bool {
        self.fuses
    }

    /// Whether the server's log says that FlashInfer's all-reduce is not there.
    pub(super) fn no_flashinfer(&self) -> bool {
        self.no_flashinfer
    }

    /// What `choice` comes to at a size in the engine asked for.
    fn in_force(&self, choice: Choice, bytes: u64) -> Choice {
        let pushed = self.pushed_bytes.is_some_and(|most| bytes <= most);
        match choice {
            Choice::One(Algorithm::Engine) if pushed => Choice::One(Algorithm::OneShotPush),
            other => other,
        }
    }

    /// GPUs of the group.
    pub(super) fn ranks(&self) -> &[usize] {
        self.ranks
    }

    /// Every group of that size that the box holds side by side, the one above first.
    pub(super) fn groups(&self) -> &[Vec<usize>] {
        self.groups
    }

    /// How collectives are run.
    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// What the model assumes of the wiring.
    pub(crate) fn assumptions(&self) -> &[(String, String)] {
        &self.topology.assumptions
    }

    /// Whether the ranks talk over NVLink or another GPU link rather than PCIe.
    pub(crate) fn all_on_gpu_links(&self) -> bool {
        self.topology.worst_class(self.ranks).is_gpu_link()
    }

    /// Time of one all-reduce of `bytes`; the user's table wins over the model.
    ///
    /// # Errors
    /// The algorithm cannot run on these GPUs.
    pub(crate) fn time(&self, choice: Choice, bytes: u64) -> anyhow::Result<CollectiveTime> {
        if let Some(known) = self.known.borrow().get(&(choice, bytes)) {
            return Ok(known.clone());
        }
        let unavailable =
            |e: pcie_sim::Unavailable| input::error(format!("--allreduce {}: {e}", choice.name()));
        let mut time = match self.in_force(choice, bytes).at(bytes) {
            Some(algorithm) => {
                all_reduce(&self.topology, self.ranks, algorithm, bytes, &self.options)
                    .map_err(unavailable)?
            }
            None => {
                choose_best(&self.topology, self.ranks, bytes, &self.options)
                    .map_err(unavailable)?
                    .1
            }
        };
        if let Some(us) = self.table.and_then(|table| interpolate(table, bytes)) {
            time.time_us = us;
            time.low_us = us * (1.0 - MEASURED_SPREAD);
            time.high_us = us * (1.0 + MEASURED_SPREAD);
            time.basis = pcie_sim::Basis::Measured;
            time.algorithm_name = "your table".to_string();
        }
        self.known
            .borrow_mut()
            .insert((choice, bytes), time.clone());
        Ok(time)
    }

    /// Why `choice` cannot run on these GPUs; `None` where it can, or nothing is reduced.
    pub(crate) fn refusal(&self, choice: Choice) -> Option<String> {
        let algorithm = choice.kernel()?;
        if self.ranks.len() < 2 {
            return None;
        }
        all_reduce(&self.topology, self.ranks, algorithm, 8192, &self.options)
            .err()
            .map(|e| e.to_string())
    }

    /// What the model would run at a size, the user's table aside.
    pub(super) fn modelled(&self, choice: Choice, bytes: u64) -> Option<String> {
        let (t, ranks, options) = (&self.topology, self.ranks, &self.options);
        let time = match self.in_force(choice, bytes).at(bytes) {
            Some(algorithm) => all_reduce(t, ranks, algorithm, bytes, options).ok(),
            None => choose_best(t, ranks, bytes, options).ok().map(|b| b.1),
        };
        time.map(|time| time.algorithm_name)
    }

    /// Time in µs for the step model; an algorithm that cannot run costs nothing here because it
    /// was refused when the scenario was taken.
    pub(crate) fn time_us(&self, choice: Choice, bytes: u64) -> f64 {
        if self.ranks.len() < 2 || bytes == 0 {
            return 0.0;
        }
        self.time(choice, bytes).map_or(0.0, |t| t.time_us)
    }

    /// What mends NCCL's search, where it fails.
    pub(super) fn nccl_cure(&self) -> Cure {
        pcie_sim::nccl::cure(&self.topology, self.ranks, &self.options.nccl)
    }

    /// The same links with an NCCL that has its ring, by what mends its search most simply, where that
    /// fails on this wiring; `None` where it does not.
    pub(super) fn with_a_ring(&self) -> Option<Self> {
        let search = pcie_sim::nccl::search(&self.topology, self.ranks, &self.options.nccl);
        if self.ranks.len() < 2 || !search.failed {
            return None;
        }
        let mut options = self.options.clone();
        match self.nccl_cure() {
            Cure::Newer => options.nccl.version = Some(FINDS_RING),
            Cure::GraphFile => options.nccl.graph_file = true,
        }
        Some(self.with(self.topology.clone(), options))
    }

    fn with(&self, topology: Topology, options: Options) -> Self {
        Self {
            pushed_bytes: self.pushed_bytes,
            fuses: self.fuses,
            no_flashinfer: self.no_flashinfer,
            topology,
            ranks: self.ranks,
            groups: self.groups,
            table: self.table,
            options,
            known: RefCell::new(HashMap::new()),
        }
    }

    /// What the CPU, which nobody named, is taken to be, where another makes the all-reduce another.
    pub(super) fn cpu_assumed(&self, choice: Choice, bytes: u64) -> Option<(String, String)> {
        let nccl = &self.options.nccl;
        let other = pcie_sim::nccl::on_amd(&self.topology, self.ranks, nccl)?;
        let other = self.with(other, self.options.clone());
        let us = (
            self.time(choice, bytes).ok()?,
            other.time(choice, bytes).ok()?,
        );
        cpu_assumed(bytes, us.0.time_us, us.1.time_us)
    }

    /// The same links by an NCCL that finds a ring which the one assumed does not.
    pub(super) fn by_a_newer_nccl(&self) -> Option<Self> {
        let nccl = pcie_sim::nccl::by_a_newer(&self.topology, self.ranks, &self.options.nccl)?;
        Some(self.with_nccl(nccl))
    }

    /// The same links with NCCL going directly where by itself it takes host memory, and by which level.
    pub(super) fn going_directly(&self) -> Option<(Self, P2pLevel)> {
        let own = self.options.nccl;
        let level = super::nccl_setup::open_level(&self.topology, self.ranks, &own)?;
        let other = self.with_nccl(NcclSetup {
            p2p_level: Some(level),
            ..own
        });
        Some((other, level))
    }

    /// The same links with NCCL going through host memory wherever the CPU lies between, where it does not.
    pub(super) fn through_host_memory(&self) -> Option<Self> {
        let own = self.options.nccl;
        let other = NcclSetup {
            p2p_level: Some(P2pLevel::Pxb),
            ..own
        };
        let staged = |setup| pcie_sim::nccl::p2p::any_staged(&self.topology, self.ranks, setup);
        (staged(&other) && !staged(&own)).then(|| self.with_nccl(other))
    }

    fn with_nccl(&self, nccl: NcclSetup) -> Self {
        let options = Options {
            nccl,
            ..self.options.clone()
        };
        self.with(self.topology.clone(), options)
    }

    /// A row of the answer.
    pub(crate) fn row(&self, choice: Choice, bytes: u64, per_pass: u64) -> Option<AllReduceTime> {
        let time = self.time(choice, bytes).ok()?;
        Some(AllReduceTime {
            choice: choice.name(),
            algorithm: time.algorithm_name,
            bytes,
            time_us: time.time_us,
            time_us_low: time.low_us,
            time_us_high: time.high_us,
            measured: time.basis == pcie_sim::Basis::Measured,
            per_pass_ms: time.time_us * per_pass as f64 / 1000.0,
            switched_by: None,
        })
    }
}

/// What is assumed of a CPU that nobody named, given the times of an all-reduce as assumed and on two of
/// AMD's, with what settles it; nothing where they are one.
pub(crate) fn cpu_assumed(bytes: u64, us: f64, amd_us: f64) -> Option<(String, String)> {
    let what = format!(
        "a CPU for which NCCL finds a ring: on two AMD sockets NCCL before 2.30 finds none, and \
         {} take {} us, not {}",
        table::bytes(bytes),
        table::three(amd_us),
        table::three(us)
    );
    let settles =
        "`lscpu` behind `nvidia-smi topo -m` in the file of --topology, or `cpu` in a box file";
    let differs = (amd_us / us).ln().abs() > 0.01;
    differs.then(|| (what, settles.to_string()))
}

/// Time of one all-reduce by one algorithm.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AllReduceTime {
    /// Name of the choice, where `algorithm` is what that comes to at this size.
    #[serde(skip)]
    pub(crate) choice: String,
    pub(crate) algorithm: String,
    pub(crate) bytes: u64,
    pub(crate) time_us: f64,
    pub(crate) time_us_low: f64,
    pub(crate) time_us_high: f64,
    pub(crate) measured: bool,
    /// All-reduces of one pass at this size, ms.
    pub(crate) per_pass_ms: f64,
    /// What switches it on in the engine asked for (`by itself`: nothing has to); `null` where the
    /// engine does not have it.
    pub(crate) switched_by: Option<String>,
}

impl AllReduceTime {
    /// Whether NCCL reduces, chosen by itself or by an engine that leaves the size to it.
    pub(crate) fn is_nccl(&self) -> bool {
        pcie_sim::is_nccl_plan(&self.algorithm)
    }
}

/// Log-linear between the table's points, flat below the first, by bandwidth beyond the last.
fn interpolate(table: &[(u64, f64)], bytes: u64) -> Option<f64> {
    let first = table.first()?;
    let last = table.last()?;
    if bytes <= first.0 {
        return Some(first.1);
    }
    if bytes >= last.0 {
        return Some(last.1 * (bytes as f64 / last.0 as f64).max(1.0));
    }
    let above = table.iter().position(|row| row.0 >= bytes)?;
    let (low, high) = (table.get(above.checked_sub(1)?)?, table.get(above)?);
    let share =
        ((bytes as f64).ln() - (low.0 as f64).ln()) / ((high.0 as f64).ln() - (low.0 as f64).ln());
    Some((low.1.ln() + share * (high.1.ln() - low.1.ln())).exp())
}

/// The server on the scenario's own wiring: what a draft's small transfers cross.
pub(crate) fn wired<'a>(server: Server<'a>, scenario: &Scenario) -> Server<'a> {
    match Links::new(scenario) {
        Ok(links) => server.on_gpu_links(links.all_on_gpu_links()),
        Err(_) => server,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_between_and_beyond_its_points() {
        let table = [(1024, 10.0), (4096, 40.0)];
        assert_eq!(interpolate(&table, 8), Some(10.0));
        let middle = interpolate(&table, 2048).expect("inside");
        assert!((middle - 20.0).abs() < 1e-9, "{middle}");
        assert_eq!(interpolate(&table, 8192), Some(80.0));
        assert_eq!(interpolate(&[], 1), None);
    }
}
