//! Boxes from a GPU and a count alone: the usual wiring, every guess listed as an assumption.

use super::{BoxSpec, Link, LinkKind, Node, NodeKind, P2p, ReadError};
use crate::nccl::P2pLevel;

/// How the GPUs of one model are joined beside PCIe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLinks {
    /// PCIe only.
    None,
    /// Optional bridges between pairs; not assumed to be fitted.
    Bridge,
    /// Direct links to each of the others (V100 boards, AMD's xGMI).
    Mesh,
    /// An NVSwitch plane.
    Switch,
}

/// What a GPU brings to the wiring, from the GPU catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuWiring {
    /// Catalogue name.
    pub name: String,
    /// PCIe generation.
    pub pcie_gen: u8,
    /// PCIe lanes.
    pub lanes: u8,
    /// All links of one GPU beside PCIe, per direction, GB/s; 0 where there are none.
    pub gpu_link_gb_s: f64,
    /// How they are joined.
    pub gpu_links: GpuLinks,
}

/// NV# between the GPUs of a DGX-1 with V100 (six links each), as `nvidia-smi topo -m` prints it
/// there: (a, b, links).
const DGX1_V100: [(usize, usize, u32); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];
/// GPUs that they join.
const DGX1_GPUS: usize = 8;
/// Links of one V100 (NVIDIA V100 data sheet: six of 25 GB/s).
const V100_LINKS: f64 = 6.0;
/// Peers of one GPU on an eight-GPU AMD board, one link each (AMD MI300X platform data sheet).
const AMD_PEERS: f64 = 7.0;

/// Rate between two sockets per direction where the source does not give it, GB/s, by PCIe
/// generation: measured aggregates are 39 on Rome and Milan, 64 on Genoa with two links, 95 on
/// Turin; Intel UPI is 6 to 22 as NCCL counts it for Gen3 hosts.
pub(crate) fn socket_link_gb_s(pcie_gen: u8) -> f64 {
    match pcie_gen {
        0..=3 => 20.0,
        4 => 39.0,
        _ => 64.0,
    }
}

impl BoxSpec {
    /// `gpus` GPUs in the wiring that is usual for them: SXM boards on an NVSwitch plane, others
    /// straight on root ports, one socket up to four GPUs and two above. Everything assumed is
    /// listed in `assumptions`.
    pub fn flat(gpu: &GpuWiring, gpus: usize, p2p: P2p) -> Result<BoxSpec, ReadError> {
        if gpus == 0 {
            return Err(ReadError::new(
                None,
                "0 GPUs make no box",
                "give at least 1",
            ));
        }
        if gpus > super::GPUS_READ_MAX {
            return Err(ReadError::new(
                None,
                format!("{gpus} GPUs in one box"),
                format!(
                    "one server is described, up to {} GPUs",
                    super::GPUS_READ_MAX
                ),
            ));
        }
        let sockets = if gpus > 4 { 2 } else { 1 };
        let mut spec = BoxSpec::empty(format!("{gpus}x-{}", gpu.name), Some(gpu.name.clone()), p2p);
        spec.source = Some("usual wiring of such GPUs, not this machine's".to_string());
        for socket in 0..sockets {
            spec.nodes
                .push(Node::top(format!("cpu{socket}"), NodeKind::Socket));
        }
        for i in 0..gpus {
            let socket = i * sockets / gpus;
            let mut node = Node::below(format!("gpu{i}"), NodeKind::Gpu, format!("cpu{socket}"));
            node.pcie_gen = Some(gpu.pcie_gen);
            node.lanes = Some(gpu.lanes);
            node.root = Some(format!("r{i}"));
            spec.nodes.push(node);
        }
        if sockets == 2 {
            spec.link_sockets(gpu.pcie_gen);
        }
        if gpus > 1 {
            let settle =
                "--topology with what `nvidia-smi topo -m`, `lspci -vv` or `lspci -tv` print";
            let where_from = if sockets == 2 {
                "two sockets"
            } else {
                "one socket"
            };
            spec.assume(
                format!("each GPU on its own root port, {where_from}, full lanes"),
                settle,
            );
            spec.add_gpu_links(gpu, gpus);
        }
        spec.assume_direct_nccl();
        spec.check()?;
        Ok(spec)
    }

    /// Of a wiring that nobody showed: NCCL goes directly between all GPUs where they have peer access
    /// and no other link. Measured servers of such cards fit that, by switches or by `NCCL_P2P_LEVEL`
    /// (docs/pcie-sim.md), and not what NCCL does by itself behind root ports.
    pub fn assume_direct_nccl(&mut self) {
        let over_pcie = self.p2p == P2p::On && self.gpu_count() > 2;
        let linked = |link: &Link| self.gpus().iter().any(|g| g.id == link.a || g.id == link.b);
        if over_pcie && !self.links.iter().any(linked) {
            self.nccl_p2p_level = Some(P2pLevel::Sys);
        }
    }

    /// Adds the links beside PCIe that the GPU's model implies, each as an assumption.
    pub(crate) fn add_gpu_links(&mut self, gpu: &GpuWiring, gpus: usize) {
        let settle = "`nvidia-smi topo -m` and `nvidia-smi nvlink -s`";
        let id = |i: usize| self.gpus().get(i).map(|n| n.id.clone()).unwrap_or_default();
        let ids: Vec<String> = (0..gpus).map(id).collect();
        let usable = gpu.gpu_link_gb_s > 0.0;
        match gpu.gpu_links {
            GpuLinks::Switch if usable => {
                self.add_nvswitch(&ids, gpu.gpu_link_gb_s);
                self.assume(
                    "all GPUs on one NVSwitch plane, as on the boards of this model",
                    settle,
                );
            }
            // DGX-2: the direct links of the smaller boards reach eight.
            GpuLinks::Mesh if usable && gpus > DGX1_GPUS && !is_amd(gpu) => {
                self.add_nvswitch(&ids, gpu.gpu_link_gb_s);
                self.assume("all GPUs on one NVSwitch plane, as in a DGX-2", settle);
            }
            GpuLinks::Mesh if usable => {
                for (a, b, kind, gb_s) in mesh(gpu, gpus) {
                    let (Some(a), Some(b)) = (ids.get(a), ids.get(b)) else {
                        continue;
                    };
                    self.links.push(Link {
                        a: a.clone(),
                        b: b.clone(),
                        kind,
                        gb_s,
                    });
                }
                self.assume(
                    "GPUs joined directly, as on the boards of this model",
                    settle,
                );
            }
            GpuLinks::Bridge => self.assume("no NVLink bridges fitted", settle),
            _ => {}
        }
    }

    /// Adds an NVSwitch plane that joins the GPUs.
    pub(crate) fn add_nvswitch(&mut self, gpu_ids: &[String], gb_s: f64) {
        self.nodes
            .push(Node::top("nvswitch".to_string(), NodeKind::Nvswitch));
        for id in gpu_ids {
            let (a, b) = (id.clone(), "nvswitch".to_string());
            self.links.push(Link {
                a,
                b,
                kind: LinkKind::Nvlink,
                gb_s,
            });
        }
    }

    /// Joins all sockets pairwise at the usual rate of their time, as an assumption.
    pub(crate) fn link_sockets(&mut self, pcie_gen: u8) {
        let sockets: Vec<String> = self
            .nodes
            .iter()
            .filter(|n| n.kind == NodeKind::Socket)
            .map(|n| n.id.clone())
            .collect();
        if sockets.len() < 2 {
            return;
        }
        let cpu = self.cpu.as_deref().map(crate::cpu::family);
        let intel = cpu.is_some_and(|cpu| cpu.contains("intel"));
        let kind = if intel { LinkKind::Upi } else { LinkKind::Xgmi };
        let gb_s = socket_link_gb_s(pcie_gen);
        for (i, a) in sockets.iter().enumerate() {
            for b in sockets.iter().skip(i + 1) {
                self.links.push(Link {
                    a: a.clone(),
                    b: b.clone(),
                    kind,
                    gb_s,
                });
            }
        }
        self.assume(
            format!("{gb_s} GB/s each way between sockets, usual for PCIe Gen{pcie_gen} hosts"),
            "several copies at once between GPUs of the two sockets (nvbandwidth, or verify-hw)",
        );
    }

    /// A box with no nodes yet.
    pub(crate) fn empty(name: String, gpu: Option<String>, p2p: P2p) -> BoxSpec {
        BoxSpec {
            name,
            gpu,
            p2p,
            nccl_p2p_level: None,
            nccl: None,
            source: None,
            cpu: None,
            acs: None,
            iommu: None,
            fabric: None,
            nodes: Vec::new(),
            links: Vec::new(),
            measured: Vec::new(),
            assumptions: Vec::new(),
        }
    }
}

impl Node {
    /// A node without a parent.
    pub(crate) fn top(id: String, kind: NodeKind) -> Node {
        Node {
            id,
            kind,
            model: None,
            chip: None,
            parent: None,
            root: None,
            numa: None,
            bus: None,
            pcie_gen: None,
            lanes: None,
        }
    }

    /// A node under a parent, its link still to be filled in.
    pub(crate) fn below(id: String, kind: NodeKind, parent: String) -> Node {
        Node {
            parent: Some(parent),
            ..Node::top(id, kind)
        }
    }
}

/// AMD's cards, whose links are xGMI.
fn is_amd(gpu: &GpuWiring) -> bool {
    gpu.name.starts_with("mi")
}

/// Direct links between GPUs of a mesh board: (a, b, kind, GB/s per direction).
fn mesh(gpu: &GpuWiring, gpus: usize) -> Vec<(usize, usize, LinkKind, f64)> {
    let amd = is_amd(gpu);
    if !amd && gpus > 4 {
        let per_link = gpu.gpu_link_gb_s / V100_LINKS;
        let present = DGX1_V100.iter().filter(|(a, b, _)| *a < gpus && *b < gpus);
        return present
            .map(|(a, b, n)| (*a, *b, LinkKind::Nvlink, per_link * f64::from(*n)))
            .collect();
    }
    let peers = if amd {
        AMD_PEERS
    } else {
        gpus.saturating_sub(1).max(1) as f64
    };
    let kind = if amd {
        LinkKind::Xgmi
    } else {
        LinkKind::Nvlink
    };
    let mut out = Vec::new();
    for a in 0..gpus {
        for b in a + 1..gpus {
            out.push((a, b, kind, gpu.gpu_link_gb_s / peers));
        }
    }
    out
}
