//! A box as directed links and routes between its GPUs, made from a [`BoxSpec`].
//!
//! Every tree edge is two links, one per direction. Virtual switches of one chip meet in a chip
//! node inside the chip, so that their traffic does not touch the uplinks. Sockets meet by the
//! links that the box lists. Host memory hangs on each socket.

use crate::box_spec::{BoxSpec, FabricState, LinkKind, Measured, NodeKind, P2p};
use crate::constants::Arch;
use crate::nccl::P2pLevel;
use crate::tlp;
use std::collections::BTreeMap;
use std::fmt;

/// Most GPUs a collective is simulated for.
pub const GPUS_MAX: usize = 16;
/// Inside a switch chip nothing was ever measured to be the limit; far above any port.
const CHIP_GB_S: f64 = 2_000.0;
/// DRAM of one socket, each way, GB/s; measured fan-in is limited before it (8 GPUs: 114).
const DRAM_GB_S: f64 = 200.0;
/// Host memory reached through one root complex (an AMD quadrant), GB/s: 8 GPUs copying to the
/// host together reach 73 on one quadrant, 114 on two (RTX PRO 6000 community hardware pages).
const ROOT_FAN_IN_GB_S: f64 = 73.0;

/// Kind of a wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wire {
    /// PCIe, with generation and lanes.
    Pcie {
        /// Generation, 1 to 7.
        pcie_gen: u8,
        /// Lanes.
        lanes: u8,
    },
    /// Inside a switch chip, between its virtual switches.
    Chip,
    /// NVLink or GPU-to-GPU xGMI, a port of one GPU.
    GpuLink,
    /// Between sockets.
    Socket,
    /// Between a socket and its memory.
    Dram,
}

/// One direction of a wire.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectedLink {
    /// `from>to`, by node ids.
    pub name: String,
    /// Node index it leaves.
    pub from: usize,
    /// Node index it enters.
    pub to: usize,
    /// Kind.
    pub wire: Wire,
    /// Capacity in this direction, GB/s (1e9) of wire bytes.
    pub gb_s: f64,
    /// What NCCL's topology model counts for it, GB/s.
    pub nccl_gb_s: f64,
}

/// What lies between two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteClass {
    /// Direct GPU link.
    GpuLink,
    /// Through the NVSwitch plane.
    NvSwitch,
    /// One PCIe switch.
    SameSwitch,
    /// Two virtual switches of one chip.
    SameChip,
    /// Switches under a common switch; the CPU is not touched.
    RootSwitch,
    /// Both on root ports of one socket, no switch between.
    DirectSameSocket,
    /// Through root ports of one socket, switches between.
    SameSocket,
    /// Two sockets.
    CrossSocket,
    /// No peer access: written to host memory and read from there.
    Host,
}

impl RouteClass {
    /// Round trip of one small kernel read on an idle fabric, us. Same switch 0.71-0.80, across
    /// root switches 1.14-1.18, root ports of one socket 0.76-0.84 (direct) and 1.40-1.63 (behind
    /// switches), other socket 1.27-1.36 (RTX PRO 6000 community hardware pages, p2pmark). NVLink
    /// 0.7 is an estimate from NCCL's hop constants. Host: one write and one read of pinned memory.
    pub fn read_round_trip_us(self) -> f64 {
        match self {
            RouteClass::GpuLink => 0.65,
            RouteClass::NvSwitch => 0.75,
            RouteClass::SameSwitch | RouteClass::SameChip => 0.72,
            RouteClass::DirectSameSocket => 0.80,
            RouteClass::RootSwitch => 1.16,
            RouteClass::CrossSocket => 1.31,
            RouteClass::SameSocket => 1.42,
            RouteClass::Host => 2.0,
        }
    }

    /// One-way time of a posted flag, us: 0.33 plus half the read round trip (gives 0.69 and 1.04
    /// where 0.68 and 1.07 were measured).
    pub fn flag_us(self) -> f64 {
        0.33 + self.read_round_trip_us() / 2.0
    }

    /// Whether the route runs over NVLink or another GPU link.
    pub fn is_gpu_link(self) -> bool {
        matches!(self, RouteClass::GpuLink | RouteClass::NvSwitch)
    }
}

/// A route from one GPU to another.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Links in the direction of the data, indices into [`Topology::links`].
    pub links: Vec<usize>,
    /// The same path back, for requests and acknowledgements.
    pub back: Vec<usize>,
    /// What lies between.
    pub class: RouteClass,
}

/// Why a box cannot be simulated, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyError(pub(crate) String);

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TopologyError {}

/// A node of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct TopoNode {
    /// Id as in the box, `chip:x` or `dram:x` for those made here.
    pub id: String,
    /// What it is in the box; None for chips and memory.
    pub kind: Option<NodeKind>,
    /// Node one step nearer to the socket.
    pub parent: Option<usize>,
    /// Part name, such as "pm50100", where the box says it.
    pub model: Option<String>,
}

/// A box ready to simulate.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Name of the box.
    pub name: String,
    /// GPU generation.
    pub arch: Arch,
    /// Nodes.
    pub nodes: Vec<TopoNode>,
    /// Links, one per direction.
    pub links: Vec<DirectedLink>,
    /// Node index of each GPU, in GPU order.
    pub gpu_nodes: Vec<usize>,
    /// Peer access over PCIe.
    pub p2p: P2p,
    /// `NCCL_P2P_LEVEL` of the box, where it says one.
    pub nccl_p2p_level: Option<P2pLevel>,
    /// Its NCCL, as (major, minor), where it says one.
    pub nccl_version: Option<(u16, u16)>,
    /// State of the fabric.
    pub state: FabricState,
    /// Rate per direction under all-to-all load where it was measured, GB/s.
    pub all_pairs_gb_s: Option<f64>,
    /// CPU family, where known.
    pub cpu: Option<String>,
    /// Number of sockets.
    pub sockets: usize,
    /// Figures measured on the box.
    pub measured: Vec<Measured>,
    /// What had to be assumed, with what would settle it.
    pub assumptions: Vec<(String, String)>,
    routes: Vec<Option<Route>>,
}

impl Topology {
    /// Builds the links and all routes. `arch` is the GPU generation: the box file names the GPU,
    /// the caller's catalogue knows its architecture. Errors: a box that breaks the rules of
    /// [`BoxSpec::check`], or two GPUs with no route between them.
    pub fn from_spec(spec: &BoxSpec, arch: Arch) -> Result<Topology, TopologyError> {
        spec.check().map_err(|e| TopologyError(e.to_string()))?;
        let mut topology = Topology {
            name: spec.name.clone(),
            arch,
            nodes: Vec::new(),
            links: Vec::new(),
            gpu_nodes: Vec::new(),
            p2p: spec.p2p,
            nccl_p2p_level: spec.nccl_p2p_level,
            nccl_version: spec.nccl.as_deref().and_then(crate::nccl::release),
            state: FabricState::Healthy,
            all_pairs_gb_s: None,
            cpu: spec.cpu.clone(),
            sockets: spec.socket_count(),
            measured: spec.measured.clone(),
            assumptions: spec
                .assumptions
                .iter()
                .map(|a| (a.what.clone(), a.settles_it.clone()))
                .collect(),
            routes: Vec::new(),
        };
        if spec.p2p == P2p::Staged {
            topology.state = FabricState::Staged;
        }
        if spec.acs == Some(crate::box_spec::Acs::Redirect) {
            topology.state = FabricState::AcsRedirect;
        }
        if let Some(fabric) = &spec.fabric {
            topology.state = fabric.state;
            topology.all_pairs_gb_s = fabric.all_pairs_gb_s;
        } else {
            topology.assumptions.push((
                "the fabric shares as its links suggest under all-to-all load".to_string(),
                "all GPUs reading all others at 8-64 KB for 0.2 s (`verify-hw --save`)".to_string(),
            ));
        }
        topology.add_nodes(spec);
        topology.add_links(spec);
        topology.add_routes()?;
        Ok(topology)
    }

    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gpu_nodes.len()
    }

    /// The route between two GPUs; None for the same GPU or an index beyond the box.
    pub fn route(&self, from: usize, to: usize) -> Option<&Route> {
        if from >= self.gpu_count() || to >= self.gpu_count() {
            return None;
        }
        self.routes.get(from * self.gpu_count() + to)?.as_ref()
    }

    /// Node index of the switch that is the GPU's direct parent, where it hangs on one.
    pub fn leaf_switch(&self, gpu: usize) -> Option<usize> {
        let parent = self.nodes.get(*self.gpu_nodes.get(gpu)?)?.parent?;
        (self.nodes.get(parent)?.kind == Some(NodeKind::Switch)).then_some(parent)
    }

    /// Node index of the GPU's socket, where it hangs on one.
    pub fn socket_of(&self, gpu: usize) -> Option<usize> {
        let chain = self.chain(*self.gpu_nodes.get(gpu)?);
        let last = *chain.last()?;
        (self.nodes.get(last)?.kind == Some(NodeKind::Socket)).then_some(last)
    }

    /// Node index of the last node below the socket on a GPU's path: its root port's device.
    pub fn root_device(&self, gpu: usize) -> Option<usize> {
        let chain = self.chain(*self.gpu_nodes.get(gpu)?);
        chain.iter().rev().nth(1).copied()
    }

    /// The worst route class and the largest hop among `ranks`, all pairs.
    pub fn worst_class(&self, ranks: &[usize]) -> RouteClass {
        let mut worst = RouteClass::GpuLink;
        for &a in ranks {
            for &b in ranks {
                if let Some(route) = self.route(a, b)
                    && route.class.read_round_trip_us() > worst.read_round_trip_us()
                {
                    worst = route.class;
                }
            }
        }
        worst
    }

    /// Whether all pairs of `ranks` are joined by NVLink or another GPU link.
    pub fn full_gpu_link(&self, ranks: &[usize]) -> bool {
        ranks.iter().all(|&a| {
            ranks
                .iter()
                .all(|&b| a == b || self.route(a, b).is_some_and(|r| r.class.is_gpu_link()))
        })
    }

    /// Links of the route from a GPU to its socket's memory, or back with `to_host` false; empty
    /// where the GPU hangs on no socket.
    pub fn host_route(&self, gpu: usize, to_host: bool) -> Vec<usize> {
        let Some(&node) = self.gpu_nodes.get(gpu) else {
            return Vec::new();
        };
        let mut path = self.chain(node);
        let Some(dram) = path.last().and_then(|s| self.dram_of(*s)) else {
            return Vec::new();
        };
        path.push(dram);
        if !to_host {
            path.reverse();
        }
        self.links_along(&path)
    }

    /// Links of a route from one GPU to another through the first one's host memory; empty where
    /// one of them hangs on no socket.
    pub fn through_host(&self, from: usize, to: usize) -> Vec<usize> {
        let (Some(&a), Some(&b)) = (self.gpu_nodes.get(from), self.gpu_nodes.get(to)) else {
            return Vec::new();
        };
        crate::route::through_host(self, a, b).map_or_else(Vec::new, |path| self.links_along(&path))
    }

    /// Nodes from one up to the top of its tree.
    pub(crate) fn chain(&self, node: usize) -> Vec<usize> {
        let mut out = vec![node];
        let mut at = node;
        while let Some(parent) = self.nodes.get(at).and_then(|n| n.parent) {
            if out.len() > self.nodes.len() {
                break;
            }
            out.push(parent);
            at = parent;
        }
        out
    }

    fn dram_of(&self, socket: usize) -> Option<usize> {
        self.links
            .iter()
            .find(|l| l.from == socket && l.wire == Wire::Dram)
            .map(|l| l.to)
    }

    fn add_nodes(&mut self, spec: &BoxSpec) {
        let index: BTreeMap<&str, usize> = spec
            .nodes
            .iter()
            .enumerate()
            .map(|(i, n)| (n.id.as_str(), i))
            .collect();
        for (i, node) in spec.nodes.iter().enumerate() {
            let parent = node.parent.as_deref().and_then(|p| index.get(p)).copied();
            self.nodes.push(TopoNode {
                id: node.id.clone(),
                kind: Some(node.kind),
                parent,
                model: node.model.clone(),
            });
            if node.kind == NodeKind::Gpu {
                self.gpu_nodes.push(i);
            }
        }
    }

    fn add_links(&mut self, spec: &BoxSpec) {
        let mut chips: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, node) in spec.nodes.iter().enumerate() {
            if let (Some(parent), Some(pcie_gen), Some(lanes)) =
                (self.nodes[i].parent, node.pcie_gen, node.lanes)
            {
                let wire = Wire::Pcie { pcie_gen, lanes };
                let rate = tlp::wire_gb_s(pcie_gen, lanes);
                self.join(i, parent, wire, rate, tlp::nccl_gb_s(pcie_gen, lanes));
            }
            if node.kind == NodeKind::Switch
                && let Some(chip) = node.chip.as_deref()
            {
                chips.entry(chip).or_default().push(i);
            }
            if node.kind == NodeKind::Socket {
                let dram = self.add_node(format!("dram:{}", node.id));
                self.join(i, dram, Wire::Dram, DRAM_GB_S, 5_000.0);
            }
        }
        for (chip, members) in chips.iter().filter(|(_, m)| m.len() > 1) {
            let inside = self.add_node(format!("chip:{chip}"));
            for &member in members {
                self.join(member, inside, Wire::Chip, CHIP_GB_S, 5_000.0);
            }
        }
        for link in &spec.links {
            let ends = (self.find(&link.a), self.find(&link.b));
            let (Some(a), Some(b)) = ends else { continue };
            let sockets = [a, b].iter().all(|n| self.is_kind(*n, NodeKind::Socket));
            let wire = match link.kind {
                LinkKind::Upi | LinkKind::Qpi => Wire::Socket,
                LinkKind::Xgmi if sockets => Wire::Socket,
                LinkKind::Xgmi | LinkKind::Nvlink => Wire::GpuLink,
            };
            let counted = match wire {
                Wire::Socket => crate::nccl::socket_gb_s(spec.cpu.as_deref(), link.kind),
                _ => crate::nccl::nvlink_gb_s(link.gb_s),
            };
            self.join(a, b, wire, link.gb_s, counted);
        }
    }

    fn add_node(&mut self, id: String) -> usize {
        self.nodes.push(TopoNode {
            id,
            kind: None,
            parent: None,
            model: None,
        });
        self.nodes.len() - 1
    }

    fn is_kind(&self, node: usize, kind: NodeKind) -> bool {
        self.nodes.get(node).is_some_and(|n| n.kind == Some(kind))
    }

    fn find(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.id == id)
    }

    /// Adds both directions, or widens them where the two are joined by such a wire already.
    fn join(&mut self, a: usize, b: usize, wire: Wire, gb_s: f64, nccl_gb_s: f64) {
        for (from, to) in [(a, b), (b, a)] {
            let same = |l: &&mut DirectedLink| l.from == from && l.to == to && l.wire == wire;
            if let Some(have) = self.links.iter_mut().find(same) {
                have.gb_s += gb_s;
                have.nccl_gb_s += nccl_gb_s;
                continue;
            }
            let name = format!("{}>{}", self.nodes[from].id, self.nodes[to].id);
            self.links.push(DirectedLink {
                name,
                from,
                to,
                wire,
                gb_s,
                nccl_gb_s,
            });
        }
    }

    /// Link indices along a path of nodes; the widest where two nodes are joined twice.
    fn links_along(&self, path: &[usize]) -> Vec<usize> {
        path.windows(2)
            .filter_map(|pair| {
                self.links
                    .iter()
                    .enumerate()
                    .filter(|(_, l)| l.from == pair[0] && l.to == pair[1])
                    .max_by(|x, y| x.1.gb_s.total_cmp(&y.1.gb_s))
                    .map(|(i, _)| i)
            })
            .collect()
    }

    fn add_routes(&mut self) -> Result<(), TopologyError> {
        let gpus = self.gpu_count();
        let mut routes = Vec::with_capacity(gpus * gpus);
        for a in 0..gpus {
            for b in 0..gpus {
                if a == b {
                    routes.push(None);
                    continue;
                }
                let found = crate::route::find(self, self.gpu_nodes[a], self.gpu_nodes[b]);
                let Some((path, class)) = found else {
                    return Err(TopologyError(format!(
                        "no route from GPU {a} to GPU {b} in box '{}'; join their sockets by a [[link]]",
                        self.name
                    )));
                };
                let links = self.links_along(&path);
                let back_path: Vec<usize> = path.iter().rev().copied().collect();
                let back = self.links_along(&back_path);
                routes.push(Some(Route { links, back, class }));
            }
        }
        self.routes = routes;
        Ok(())
    }

    /// What host memory can take through one root complex, GB/s.
    pub fn root_fan_in_gb_s(&self) -> f64 {
        ROOT_FAN_IN_GB_S
    }
}
