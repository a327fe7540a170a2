//! Questions about a box: which GPUs share what.

use super::{BoxSpec, LinkKind, Node, NodeKind};

/// The best route between two GPUs, from near to far. PCIe classes are by the wiring, not by what
/// `nvidia-smi` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathClass {
    /// A direct NVLink or GPU-to-GPU xGMI link, or the NVSwitch plane.
    GpuLink,
    /// One PCIe switch (or virtual switch) joins them.
    SameSwitch,
    /// Two virtual switches of one chip.
    SameChip,
    /// Different switches under a common one; the CPU is not touched.
    RootSwitch,
    /// One host bridge (root complex) of one socket.
    SameRoot,
    /// One socket, other or unknown host bridges.
    SameSocket,
    /// Two sockets.
    CrossSocket,
}

impl BoxSpec {
    /// GPUs in index order.
    pub fn gpus(&self) -> Vec<&Node> {
        self.nodes
            .iter()
            .filter(|n| n.kind == NodeKind::Gpu)
            .collect()
    }

    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.nodes
            .iter()
            .filter(|n| n.kind == NodeKind::Gpu)
            .count()
    }

    /// Number of sockets.
    pub fn socket_count(&self) -> usize {
        self.nodes
            .iter()
            .filter(|n| n.kind == NodeKind::Socket)
            .count()
    }

    /// The node with an id.
    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// A node and all above it, up to the socket.
    pub fn chain<'a>(&'a self, id: &str) -> Vec<&'a Node> {
        let mut out = Vec::new();
        let mut next = self.node(id);
        while let Some(node) = next {
            out.push(node);
            // A checked box has no circles; an unchecked one must not hang.
            if out.len() > self.nodes.len() {
                break;
            }
            next = node.parent.as_deref().and_then(|p| self.node(p));
        }
        out
    }

    /// Id of the socket each GPU hangs on, in GPU order; None where it hangs on none.
    pub fn gpu_sockets(&self) -> Vec<Option<&str>> {
        self.gpus()
            .iter()
            .map(|g| {
                self.chain(&g.id)
                    .last()
                    .filter(|n| n.kind == NodeKind::Socket)
                    .map(|n| n.id.as_str())
            })
            .collect()
    }

    /// GPU indices by the switch that is their direct parent, in order of the switches' first GPU;
    /// GPUs on no switch are left out.
    pub fn switch_groups(&self) -> Vec<Vec<usize>> {
        self.groups(|node| {
            let parent = node.parent.as_deref().and_then(|p| self.node(p))?;
            (parent.kind == NodeKind::Switch).then(|| parent.id.clone())
        })
    }

    /// GPU indices by physical switch chip: virtual switches of one chip count as one.
    pub fn chip_groups(&self) -> Vec<Vec<usize>> {
        self.groups(|node| {
            let parent = node.parent.as_deref().and_then(|p| self.node(p))?;
            let chip = parent.chip.as_ref().map(|c| format!("chip {c}"));
            (parent.kind == NodeKind::Switch).then(|| chip.unwrap_or_else(|| parent.id.clone()))
        })
    }

    fn groups(&self, key: impl Fn(&Node) -> Option<String>) -> Vec<Vec<usize>> {
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for (i, gpu) in self.gpus().into_iter().enumerate() {
            let Some(k) = key(gpu) else { continue };
            match groups.iter_mut().find(|(have, _)| *have == k) {
                Some((_, members)) => members.push(i),
                None => groups.push((k, vec![i])),
            }
        }
        groups.into_iter().map(|(_, members)| members).collect()
    }

    /// Rate per direction of the GPU link between two GPUs, GB/s: the direct links summed, or the
    /// slower hop through an NVSwitch; None where there is none.
    pub fn gpu_link_gb_s(&self, a: &str, b: &str) -> Option<f64> {
        let gpu_kind = |k: LinkKind| matches!(k, LinkKind::Nvlink | LinkKind::Xgmi);
        let between = |x: &str, y: &str| -> f64 {
            let joins = |l: &&super::Link| {
                gpu_kind(l.kind) && ((l.a == x && l.b == y) || (l.a == y && l.b == x))
            };
            self.links.iter().filter(joins).map(|l| l.gb_s).sum()
        };
        let direct = between(a, b);
        if direct > 0.0 {
            return Some(direct);
        }
        self.nodes
            .iter()
            .filter(|n| n.kind == NodeKind::Nvswitch)
            .map(|n| between(a, &n.id).min(between(b, &n.id)))
            .filter(|rate| *rate > 0.0)
            .reduce(f64::max)
    }

    /// The best route between two GPUs by id; None where no route exists or an id is unknown.
    pub fn path_class(&self, a: &str, b: &str) -> Option<PathClass> {
        if self.gpu_link_gb_s(a, b).is_some() {
            return Some(PathClass::GpuLink);
        }
        self.pcie_class(a, b)
    }

    /// The PCIe route between two GPUs by id, NVLink left aside.
    pub fn pcie_class(&self, a: &str, b: &str) -> Option<PathClass> {
        let (up_a, up_b) = (self.chain(a), self.chain(b));
        let meet = up_a
            .iter()
            .skip(1)
            .find(|n| up_b.iter().skip(1).any(|m| m.id == n.id));
        let (pa, pb) = (up_a.get(1)?, up_b.get(1)?);
        let same_chip = pa.chip.is_some() && pa.chip == pb.chip;
        match meet {
            Some(n) if n.kind == NodeKind::Switch && n.id == pa.id && n.id == pb.id => {
                Some(PathClass::SameSwitch)
            }
            _ if same_chip => Some(PathClass::SameChip),
            Some(n) if n.kind == NodeKind::Switch => Some(PathClass::RootSwitch),
            Some(_) => {
                let root = |chain: &[&Node]| chain.iter().rev().nth(1).and_then(|n| n.root.clone());
                let (ra, rb) = (root(&up_a), root(&up_b));
                Some(if ra.is_some() && ra == rb {
                    PathClass::SameRoot
                } else {
                    PathClass::SameSocket
                })
            }
            None => {
                let socketed =
                    |chain: &[&Node]| chain.last().is_some_and(|n| n.kind == NodeKind::Socket);
                (socketed(&up_a) && socketed(&up_b)).then_some(PathClass::CrossSocket)
            }
        }
    }
}
