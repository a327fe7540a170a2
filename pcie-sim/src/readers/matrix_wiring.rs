//! From the codes of `nvidia-smi topo -m` to a wiring, and what the codes leave open.

use super::matrix::{self, Cell, Matrix};
use super::slots::{self, Slot};
use super::{Hints, ReadError, box_name, clean, devices, facts, finish, gpu_port, lspci_verbose};
use crate::box_spec::{BoxSpec, GpuLinks, Link, LinkKind, Node, NodeKind, P2p};

/// Most NVLinks of one GPU (Hopper and Blackwell).
const NVLINKS_MAX: usize = 18;

pub(super) fn read(text: &str, hints: &Hints) -> Result<BoxSpec, ReadError> {
    let lines = clean::lines(text);
    let found = matrix::find(&lines)?;
    let wiring = one(found.iter().filter(|m| !m.p2p))?;
    // `-p2p n` and `-p2p a` are about NVLink and atomics, not about PCIe peer access.
    let pcie = |m: &&Matrix| m.p2p && !matches!(m.letter, Some('n' | 'a'));
    let peers = found.iter().find(pcie);
    let Some(main) = wiring.or(peers).or(found.first()) else {
        return Err(ReadError::new(None, "no complete matrix", super::GIVE));
    };
    if let Some(p) = peers.filter(|p| p.gpus() != main.gpus()) {
        return Err(ReadError::new(
            Some(p.line),
            format!(
                "{} GPUs here, {} in the matrix at line {}",
                p.gpus(),
                main.gpus(),
                main.line
            ),
            "keep the output of one machine",
        ));
    }
    let slots = slots::of_gpus(&lines, hints, main.gpus());
    let mut spec = match wiring {
        Some(m) => build(m, hints, facts(text).nvlink_gb_s, slots.as_deref())?,
        // Peer access beside a listing of the devices.
        None if lspci_verbose::gpus(&lines) == main.gpus() => {
            let mut listed = lspci_verbose::read(&lines, hints)?;
            listed.assumptions.retain(|a| !super::is_of_peer_access(a));
            listed
        }
        None => without_wiring(main, hints, slots.as_deref())?,
    };
    let p2p = peers.and_then(|p| peer_access(&mut spec, p, wiring));
    finish(&mut spec, hints, p2p);
    Ok(spec)
}

/// The only wiring matrix; two different ones are two machines.
fn one<'a>(mut found: impl Iterator<Item = &'a Matrix>) -> Result<Option<&'a Matrix>, ReadError> {
    let Some(first) = found.next() else {
        return Ok(None);
    };
    match found.find(|m| m.cells != first.cells) {
        Some(other) => Err(ReadError::new(
            Some(other.line),
            format!(
                "a second, different matrix (the first is at line {})",
                first.line
            ),
            "keep the output of one machine",
        )),
        None => Ok(Some(first)),
    }
}

/// Peer access by the driver; None where the matrix has a single GPU.
fn peer_access(spec: &mut BoxSpec, peers: &Matrix, wiring: Option<&Matrix>) -> Option<P2p> {
    let n = peers.gpus();
    let pairs = || (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let bridged = |i: usize, j: usize| wiring.is_some_and(|w| matches!(w.cell(i, j), Cell::Nv(_)));
    let reason = pairs().find_map(|(i, j)| match peers.cell(i, j) {
        Cell::P2pNo(why) => Some(why),
        _ => None,
    });
    pairs().next()?;
    let Some(why) = reason else {
        spec.assume(
            "the driver offers peer access for all pairs; that is a capability, and ACS or an IOMMU can still slow it",
            "a pair copy and an all-pairs copy (verify-hw)",
        );
        return Some(P2p::On);
    };
    let ok_over_pcie = pairs()
        .filter(|(i, j)| peers.cell(*i, *j) == Cell::P2pOk && !bridged(*i, *j))
        .count();
    if ok_over_pcie > 0 {
        spec.assume(
            format!(
                "PCIe peer access counts as off: {ok_over_pcie} pairs have it, others not ({why})"
            ),
            "`nvidia-smi topo -p2p r` after the driver change you plan",
        );
    } else {
        spec.assume(
            format!("PCIe peer access is off by the driver ({why})"),
            "a P2P driver, if you use one",
        );
    }
    Some(P2p::Off)
}

/// A box from `topo -p2p` alone: the GPUs, and a wiring that is a plain guess.
fn without_wiring(
    peers: &Matrix,
    hints: &Hints,
    slots: Option<&[Slot]>,
) -> Result<BoxSpec, ReadError> {
    let gpu = hints.gpu.clone().unwrap_or(crate::box_spec::GpuWiring {
        name: "unknown".to_string(),
        pcie_gen: 4,
        lanes: 16,
        gpu_link_gb_s: 0.0,
        gpu_links: GpuLinks::None,
    });
    let mut spec = BoxSpec::flat(&gpu, peers.gpus(), P2p::On)?;
    spec.name = box_name(hints, peers.gpus(), "topo -p2p");
    spec.gpu = hints.gpu.as_ref().map(|g| g.name.clone());
    spec.source = Some("nvidia-smi topo -p2p: peer access only".to_string());
    match slots {
        Some(slots) => set_slots(&mut spec, slots),
        None if hints.gpu.is_none() => {
            gpu_port(&mut spec, hints);
        }
        None => {}
    }
    spec.assume(
        "the wiring: topo -p2p does not show it",
        "`nvidia-smi topo -m`",
    );
    Ok(spec)
}

/// Distance of a PCIe code; None for NVLink, which hides the PCIe path.
fn level(cell: Cell) -> Option<u8> {
    match cell {
        Cell::Pix => Some(1),
        Cell::Pxb => Some(2),
        Cell::Phb => Some(3),
        Cell::Node => Some(4),
        Cell::Sys => Some(5),
        _ => None,
    }
}

/// Group number of each GPU: joined by codes up to a level.
fn joined(m: &Matrix, up_to: u8) -> Vec<usize> {
    let mut group: Vec<usize> = (0..m.gpus()).collect();
    for i in 0..m.gpus() {
        for j in i + 1..m.gpus() {
            if level(m.cell(i, j)).is_some_and(|l| l <= up_to) {
                let (from, to) = (group[j].max(group[i]), group[j].min(group[i]));
                group
                    .iter_mut()
                    .filter(|g| **g == from)
                    .for_each(|g| *g = to);
            }
        }
    }
    group
}

/// Refuses groups that contradict themselves, such as PIX, PIX and SYS in a triangle.
fn consistent(m: &Matrix, group: &[usize], up_to: u8, name: &str) -> Result<(), ReadError> {
    for i in 0..m.gpus() {
        for j in i + 1..m.gpus() {
            let far = level(m.cell(i, j)).is_some_and(|l| l > up_to);
            if group.get(i) == group.get(j) && far {
                let what = format!(
                    "GPU{i} and GPU{j} are joined by {name} through others, but not directly"
                );
                return Err(ReadError::new(
                    Some(m.line),
                    what,
                    "paste the unedited output",
                ));
            }
        }
    }
    Ok(())
}

/// Gives each GPU the link that its slot was seen to have.
fn set_slots(spec: &mut BoxSpec, slots: &[Slot]) {
    let gpus = spec.nodes.iter_mut().filter(|n| n.kind == NodeKind::Gpu);
    for (gpu, (pcie_gen, lanes)) in gpus.zip(slots) {
        gpu.pcie_gen = Some(*pcie_gen);
        gpu.lanes = Some(*lanes);
    }
}

fn build(
    m: &Matrix,
    hints: &Hints,
    nvlink_seen: Option<f64>,
    slots: Option<&[Slot]>,
) -> Result<BoxSpec, ReadError> {
    let n = m.gpus();
    let gpu = hints.gpu.as_ref().map(|g| g.name.clone());
    let mut spec = BoxSpec::empty(box_name(hints, n, "topo -m"), gpu, P2p::On);
    spec.source = Some("nvidia-smi topo -m".to_string());
    let (pix, pxb, phb) = (joined(m, 1), joined(m, 2), joined(m, 3));
    consistent(m, &pix, 1, "PIX")?;
    consistent(m, &pxb, 2, "PIX or PXB")?;
    consistent(m, &phb, 3, "PIX, PXB or PHB")?;
    let (socket_of, sockets) = sockets(m, &mut spec);
    for s in 0..sockets {
        spec.nodes
            .push(Node::top(format!("cpu{s}"), NodeKind::Socket));
    }
    let port = match slots {
        Some(slots) => (slots.iter().map(|s| s.0).max().unwrap_or(4), 16),
        None => gpu_port(&mut spec, hints),
    };
    let mut place = Placer {
        port,
        numa: &m.numa,
        tops: Vec::new(),
        leaves: Vec::new(),
        gpus: Vec::new(),
    };
    for i in 0..n {
        place.gpu(
            i,
            &pix,
            &pxb,
            &format!("cpu{}", socket_of[i]),
            &format!("r{}", phb[i]),
        );
    }
    let Placer {
        tops, leaves, gpus, ..
    } = place;
    let uppers = tops.len();
    let switches = uppers + leaves.len();
    spec.nodes.extend(
        tops.into_iter()
            .chain(leaves)
            .map(|(_, node)| node)
            .chain(gpus),
    );
    if let Some(slots) = slots {
        set_slots(&mut spec, slots);
    }
    spec.link_sockets(port.0);
    open_questions(m, &mut spec, uppers, switches);
    nvlinks(m, &mut spec, hints, nvlink_seen);
    Ok(spec)
}

/// Hangs GPUs on switches and sockets; nodes are kept apart so that parents come first.
struct Placer<'a> {
    port: (u8, u8),
    numa: &'a [Option<u32>],
    tops: Vec<(usize, Node)>,
    leaves: Vec<(usize, Node)>,
    gpus: Vec<Node>,
}

impl Placer<'_> {
    fn node(&self, id: String, kind: NodeKind, parent: &str) -> Node {
        let mut node = Node::below(id, kind, parent.to_string());
        node.pcie_gen = Some(self.port.0);
        node.lanes = Some(self.port.1);
        node
    }

    fn gpu(&mut self, i: usize, pix: &[usize], pxb: &[usize], socket: &str, root: &str) {
        let size = |of: &[usize], g: usize| of.iter().filter(|x| **x == g).count();
        let (p, q) = (pix[i], pxb[i]);
        // A PXB group: an upper switch over the PIX pairs in it, or one switch where there are none.
        let has_leaves = pxb
            .iter()
            .zip(pix)
            .any(|(b, a)| *b == q && size(pix, *a) > 1);
        let whole_group_is_one_leaf = size(pxb, q) == size(pix, p);
        let top = size(pxb, q) > 1 && !whole_group_is_one_leaf;
        let mut parent = socket.to_string();
        if top {
            parent = match self.tops.iter().find(|(g, _)| *g == q) {
                Some((_, node)) => node.id.clone(),
                None => {
                    let id = if has_leaves {
                        format!("top{}", self.tops.len())
                    } else {
                        format!("pxb{}", self.tops.len())
                    };
                    let mut node = self.node(id.clone(), NodeKind::Switch, socket);
                    node.root = Some(root.to_string());
                    self.tops.push((q, node));
                    id
                }
            };
        }
        if size(pix, p) > 1 {
            parent = match self.leaves.iter().find(|(g, _)| *g == p) {
                Some((_, node)) => node.id.clone(),
                None => {
                    let id = format!("sw{}", self.leaves.len());
                    let mut node = self.node(id.clone(), NodeKind::Switch, &parent);
                    node.root = (!top).then(|| root.to_string());
                    self.leaves.push((p, node));
                    id
                }
            };
        }
        let mut gpu = self.node(format!("gpu{i}"), NodeKind::Gpu, &parent);
        gpu.root = (parent == socket).then(|| root.to_string());
        gpu.numa = self.numa.get(i).copied().flatten();
        self.gpus.push(gpu);
    }
}

/// Socket of each GPU and their number, by NUMA node, else CPU affinity, else the codes.
fn sockets(m: &Matrix, spec: &mut BoxSpec) -> (Vec<usize>, usize) {
    let n = m.gpus();
    if m.numa.iter().all(Option::is_some) {
        let numa: Vec<u32> = m.numa.iter().flatten().copied().collect();
        let out = super::pci::sockets_of_numa(&numa, spec);
        let inside = |i: usize, j: usize| m.cell(i, j) == Cell::Sys && numa.get(i) == numa.get(j);
        if (0..n).any(|i| (i + 1..n).any(|j| inside(i, j))) {
            spec.assume(
                "SYS inside one NUMA node: each GPU on its own root complex of one socket (a virtual machine prints the same)",
                "`lspci -tv` on the host, or a pair copy",
            );
        }
        return out;
    }
    let key: Vec<usize> = if m.affinity.iter().all(Option::is_some) {
        m.affinity
            .iter()
            .map(|a| m.affinity.iter().position(|b| a == b).unwrap_or(0))
            .collect()
    } else {
        joined(m, 4)
    };
    let mut groups: Vec<usize> = Vec::new();
    for k in &key {
        if !groups.contains(k) {
            groups.push(*k);
        }
    }
    let hidden = (0..n).any(|i| (i + 1..n).any(|j| level(m.cell(i, j)).is_none()));
    let count = groups.len().min(2);
    if groups.len() > 2 || (hidden && groups.len() > 1 && m.affinity.iter().any(Option::is_none)) {
        spec.assume(
            format!("{count} sockets: the matrix has no NUMA column"),
            "`lscpu | grep Socket`",
        );
    }
    let of =
        |k: &usize| groups.iter().position(|g| g == k).unwrap_or(0) * count / groups.len().max(1);
    (key.iter().map(of).collect(), count)
}

/// What the codes do not tell apart.
fn open_questions(m: &Matrix, spec: &mut BoxSpec, uppers: usize, switches: usize) {
    let any = |c: Cell| m.cells.iter().flatten().any(|x| *x == c);
    if any(Cell::Node) && switches > 0 {
        spec.assume(
            "NODE between switches goes through the CPU's root complexes; virtual switches of one chip and a switch above both print the same",
            "two copies at once between the groups, GPU0 to the second group's first GPU and GPU1 to its second: over the rate of one uplink in total means one chip; `lspci -vv` shows a switch above",
        );
    } else if any(Cell::Node) {
        spec.assume(
            "NODE between GPUs on root ports: different root complexes of one socket",
            "`lspci -vv` in place of the matrix",
        );
    }
    if any(Cell::Phb) && switches == 0 && m.gpus() > 1 {
        spec.assume(
            "PHB: each GPU on its own root port; a chipset slot prints the same",
            "link width and speed under load: `lspci -vv`",
        );
    }
    if uppers > 0 {
        spec.assume(
            "PXB: a switch above the GPUs' switches; virtual switches of one chip can print the same",
            "two copies at once across the PXB pairs: over the rate of one uplink in total means one chip",
        );
    }
    if switches > 0 {
        spec.assume(
            "one x16 uplink a switch, at the GPUs' generation",
            "`lspci -vv`: LnkCap of the switch's upstream port",
        );
    }
}

/// Adds the NVLinks of the matrix.
fn nvlinks(m: &Matrix, spec: &mut BoxSpec, hints: &Hints, seen: Option<f64>) {
    let n = m.gpus();
    let mut counts = Vec::new();
    for i in 0..n {
        for j in i + 1..n {
            if let Cell::Nv(count) = m.cell(i, j) {
                counts.push((i, j, count));
            }
        }
    }
    let Some((_, _, first)) = counts.first().copied() else {
        return;
    };
    // Four links to a single peer is the bridge of GA102 cards; A100 boards have more.
    let peers = |g: usize| counts.iter().filter(|(i, j, _)| *i == g || *j == g).count();
    let bridge = counts.iter().all(|(_, _, c)| *c == 4) && (0..n).all(|g| peers(g) <= 1);
    let per_link = seen.unwrap_or_else(|| {
        let known = hints.gpu.as_ref().filter(|g| g.gpu_link_gb_s > 0.0);
        let usual = devices::nvlink_gb_s(if bridge { "rtx-3090" } else { "" });
        let rate = known.map_or(usual, |g| devices::nvlink_gb_s(&g.name));
        spec.assume(
            format!("{rate} GB/s each way a link"),
            "`nvidia-smi nvlink -s`",
        );
        rate
    });
    let all_pairs = counts.len() == n * (n - 1) / 2 && counts.iter().all(|(_, _, c)| *c == first);
    let too_many_for_direct = first as usize * (n - 1) > NVLINKS_MAX;
    if all_pairs && (too_many_for_direct || first as usize == NVLINKS_MAX) {
        let ids: Vec<String> = (0..n).map(|i| format!("gpu{i}")).collect();
        spec.add_nvswitch(&ids, per_link * f64::from(first));
        return;
    }
    for (i, j, count) in counts {
        let (a, b) = (format!("gpu{i}"), format!("gpu{j}"));
        spec.links.push(Link {
            a,
            b,
            kind: LinkKind::Nvlink,
            gb_s: per_link * f64::from(count),
        });
    }
}
