//! Measured rows with the box, GPUs and settings they were measured on.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use pcie_sim::nccl::NcclSetup;
use pcie_sim::{Access, Algorithm, Arch, Constants, Options, Topology, Transfer};

use super::wiring::Wiring;

/// Which area a row counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    NcclPcie,
    NvlinkSmall,
    NvlinkLarge,
    Custom,
    Contention,
    /// Used for decisions only.
    Other,
}

impl Kind {
    /// Those that are areas, in the order of the contract.
    pub(super) const ALL: [Kind; 5] = [
        Kind::NcclPcie,
        Kind::NvlinkSmall,
        Kind::NvlinkLarge,
        Kind::Custom,
        Kind::Contention,
    ];

    /// Name of the area.
    pub(super) fn area(self) -> &'static str {
        match self {
            Kind::NcclPcie => "collective.nccl_pcie",
            Kind::NvlinkSmall => "collective.nccl_nvlink_small",
            Kind::NvlinkLarge => "collective.nccl_nvlink_large",
            Kind::Custom => "collective.custom",
            Kind::Contention => "contention",
            Kind::Other => "other",
        }
    }
}

/// What was run.
#[derive(Debug, Clone)]
pub(super) enum What {
    AllReduce {
        algorithm: Algorithm,
        nccl: NcclSetup,
    },
    Copies {
        flows: Vec<(usize, usize)>,
        access: Access,
        /// The figure is the sum of the flows' rates, not bytes over the time of the last.
        sum_of_rates: bool,
    },
}

/// One measured figure: a time in us, or for copies a rate in GB/s.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) group: String,
    pub(super) kind: Kind,
    pub(super) topology: Arc<Topology>,
    pub(super) ranks: Vec<usize>,
    pub(super) bytes: u64,
    pub(super) measured: f64,
    pub(super) what: What,
}

impl Row {
    /// The model's figure.
    pub(super) fn predict(&self, constants: &Constants) -> Option<f64> {
        match &self.what {
            What::AllReduce { algorithm, nccl } => {
                let options = Options {
                    graph: true,
                    nccl: *nccl,
                    constants: constants.clone(),
                    use_measured: false,
                };
                pcie_sim::all_reduce(
                    &self.topology,
                    &self.ranks,
                    *algorithm,
                    self.bytes,
                    &options,
                )
                .ok()
                .map(|t| t.time_us)
            }
            What::Copies {
                flows,
                access,
                sum_of_rates,
            } => {
                let transfers: Vec<Transfer> = flows
                    .iter()
                    .map(|&(from, to)| Transfer {
                        from,
                        to,
                        bytes: 1e9,
                        access: *access,
                    })
                    .collect();
                let c = pcie_sim::contention(&self.topology, &transfers, constants);
                Some(if *sum_of_rates {
                    c.total_gb_s
                } else {
                    c.until_last_gb_s
                })
            }
        }
    }

    /// Name of what ran, as the model sees it.
    pub(super) fn label(&self, constants: &Constants) -> String {
        match &self.what {
            What::AllReduce { algorithm, nccl } => {
                let options = Options {
                    nccl: *nccl,
                    constants: constants.clone(),
                    ..Options::default()
                };
                pcie_sim::all_reduce(
                    &self.topology,
                    &self.ranks,
                    *algorithm,
                    self.bytes,
                    &options,
                )
                .map_or_else(
                    |e| e.to_string(),
                    |t| format!("{} {nccl:?}", t.algorithm_name),
                )
            }
            What::Copies { flows, access, .. } => format!(
                "{access:?} {} flows {:?}",
                flows.len(),
                flows.get(..flows.len().min(8))
            ),
        }
    }

    /// NCCL as it comes, no graph file or pinned setting.
    pub(super) fn is_plain_nccl(&self) -> bool {
        matches!(&self.what, What::AllReduce { algorithm: Algorithm::Nccl, nccl }
            if !nccl.graph_file && nccl.min_channels.is_none())
    }

    /// A kernel that is not NCCL, also inside.
    pub(super) fn is_custom_kernel(&self) -> bool {
        match &self.what {
            What::AllReduce { algorithm, .. } => {
                !algorithm.is_nccl() && (*algorithm != Algorithm::Engine || self.bytes < (8 << 20))
            }
            What::Copies { .. } => false,
        }
    }
}

/// All rows, and why others were left out.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    skipped: BTreeMap<(Kind, String), usize>,
    boxes: HashMap<String, Option<Arc<Topology>>>,
    wiring: Wiring,
}

impl Rows {
    /// Boxes, sorted.
    pub(super) fn groups(&self) -> Vec<String> {
        let mut names: Vec<String> = self.rows.iter().map(|r| r.group.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    pub(super) fn skipped_of(&self, kind: Kind) -> usize {
        self.skipped
            .iter()
            .filter(|((k, _), _)| *k == kind)
            .map(|(_, n)| n)
            .sum()
    }

    pub(super) fn reasons_of(&self, kind: Kind) -> Vec<String> {
        self.skipped
            .iter()
            .filter(|((k, _), _)| *k == kind)
            .map(|((_, why), n)| format!("skipped {n}: {why}"))
            .collect()
    }

    pub(super) fn skip(&mut self, kind: Kind, why: impl Into<String>) {
        *self.skipped.entry((kind, why.into())).or_default() += 1;
    }

    /// No rows yet; `data` tells of boxes that the catalogue lacks.
    pub(super) fn of(data: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            wiring: Wiring::load(data)?,
            ..Self::default()
        })
    }

    /// A box with its own measured figures taken away.
    pub(super) fn topology(&mut self, name: &str) -> Option<Arc<Topology>> {
        if let Some(have) = self.boxes.get(name) {
            return have.clone();
        }
        let built = (|| {
            let known = pcie_sim::catalog::find(name).ok();
            let mut spec = known.or_else(|| self.wiring.find(name))?;
            spec.measured.clear();
            if let Some(fabric) = &mut spec.fabric {
                fabric.all_pairs_gb_s = None;
            }
            let arch = spec
                .gpu
                .as_deref()
                .and_then(|g| crate::gpus::find(g).ok())
                .and_then(|g| Arch::parse(&g.arch))
                .unwrap_or(Arch::AMPERE);
            Topology::from_spec(&spec, arch).ok().map(Arc::new)
        })();
        self.boxes.insert(name.to_string(), built.clone());
        built
    }
}
