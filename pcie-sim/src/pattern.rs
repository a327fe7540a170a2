//! Transfers that run together on a box, as flows over capacities: packet overhead, shared ports,
//! links used both ways, and the modes in which a fabric does not share as its links suggest.

use crate::box_spec::{FabricState, NodeKind};
use crate::constants::Constants;
use crate::maxmin::Flow;
use crate::sim::Task;
use crate::tlp::Access;
use crate::topology::{RouteClass, Topology, Wire};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes from one GPU's memory to another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// GPU the data leaves.
    pub from: usize,
    /// GPU the data enters.
    pub to: usize,
    /// Payload, bytes.
    pub bytes: f64,
    /// Who moves it. A read is done by `to`, a write by `from`.
    pub access: Access,
}

/// Transfers turned into flows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pattern {
    /// Capacities, GB/s: the topology's links first, then what this pattern adds.
    pub capacities_gb_s: Vec<f64>,
    /// Names of what this pattern adds, in order.
    pub added: Vec<String>,
    /// One per transfer that has a route.
    pub flows: Vec<Flow>,
    /// Signatures of non-fluid modes that this pattern triggers, for people to read.
    pub triggered: Vec<&'static str>,
}

/// What a port carries to and from host memory when both run at once, as a share.
const HOST_BOTH_WAYS: f64 = 0.72;

/// An LL line of 16 B carries 8 B of data and 8 B of flags: twice the bytes.
pub const LL_WIRE_FACTOR: f64 = 2.0;

impl Pattern {
    /// Flows and capacities of `transfers` that run at the same time.
    pub fn new(t: &Topology, transfers: &[Transfer], c: &Constants) -> Pattern {
        let mut pattern = Pattern {
            capacities_gb_s: t.links.iter().map(|l| l.gb_s).collect(),
            added: Vec::new(),
            flows: Vec::with_capacity(transfers.len()),
            triggered: Vec::new(),
        };
        pattern.derate(t, transfers, c);
        let engines = Engines::new(&mut pattern, t, transfers, c);
        for transfer in transfers {
            let uses = uses(t, transfer, &engines, c);
            let cap = if uses.is_empty() { 0.0 } else { f64::INFINITY };
            pattern.flows.push(Flow { uses, cap });
        }
        pattern.apply_state(t, transfers, c);
        pattern
    }

    /// Name of a capacity: a link of the topology, or one that this pattern added.
    pub fn name(&self, t: &Topology, capacity: usize) -> String {
        match t.links.get(capacity) {
            Some(link) => link.name.clone(),
            None => self
                .added
                .get(capacity - t.links.len())
                .cloned()
                .unwrap_or_default(),
        }
    }

    /// Tasks that all start at once, to be simulated over the pattern's capacities.
    pub fn tasks(&self, transfers: &[Transfer]) -> Vec<Task> {
        self.flows
            .iter()
            .zip(transfers)
            .map(|(flow, transfer)| Task {
                after: Vec::new(),
                delay_ps: 0,
                bytes: transfer.bytes,
                flow: flow.clone(),
            })
            .collect()
    }

    /// Lowers link capacities to what this pattern leaves of them.
    fn derate(&mut self, t: &Topology, transfers: &[Transfer], c: &Constants) {
        let mut used: BTreeSet<usize> = BTreeSet::new();
        let mut senders: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for transfer in transfers {
            if let Some(route) = t.route(transfer.from, transfer.to) {
                used.extend(route.links.iter().copied());
                senders
                    .entry(transfer.to)
                    .or_default()
                    .insert(transfer.from);
            }
        }
        let ends: BTreeMap<(usize, usize), usize> = used
            .iter()
            .map(|l| ((t.links[*l].from, t.links[*l].to), *l))
            .collect();
        for &l in &used {
            let link = &t.links[l];
            let mut share = 1.0;
            match link.wire {
                Wire::Pcie { .. } => {
                    if ends.contains_key(&(link.to, link.from)) {
                        share *= c.both_ways;
                    }
                    let at_switch = [link.from, link.to]
                        .iter()
                        .any(|n| t.nodes[*n].kind == Some(NodeKind::Switch));
                    if at_switch {
                        share *= c.through_switch;
                    }
                    if let Some(gpu) = t.gpu_nodes.iter().position(|n| *n == link.to) {
                        let peers = senders.get(&gpu).map_or(1, BTreeSet::len).max(1);
                        share *= (peers as f64).powf(-c.incast_exponent);
                    }
                }
                Wire::GpuLink => share *= c.nvlink_efficiency,
                Wire::Chip | Wire::Socket | Wire::Dram => {}
            }
            self.capacities_gb_s[l] = link.gb_s * share;
        }
    }

    fn add_capacity(&mut self, name: String, gb_s: f64) -> usize {
        self.capacities_gb_s.push(gb_s);
        self.added.push(name);
        self.capacities_gb_s.len() - 1
    }

    fn apply_state(&mut self, t: &Topology, transfers: &[Transfer], c: &Constants) {
        match t.state {
            FabricState::Collapsed => self.collapse(t, transfers, c),
            FabricState::Staged => self.stage(t, transfers, c),
            FabricState::Healthy | FabricState::AcsRedirect => {}
        }
        self.switchtec_reads(t, transfers, c);
    }

    /// Collapse: two or more GPUs of one virtual switch send to two or more root ports through
    /// the CPU. Writes fall at once, reads only at full fan-out (8 flows or more of one uplink);
    /// 2 to 4 reads were seen to keep their rate (RTX PRO 6000 pages, PEX890xx with two Turin).
    fn collapse(&mut self, t: &Topology, transfers: &[Transfer], c: &Constants) {
        const READS_FALL_AT: usize = 8;
        let mut by_uplink: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, transfer) in transfers.iter().enumerate() {
            let peer = transfer.access != Access::ThroughHost;
            let through_cpu = peer
                && t.route(transfer.from, transfer.to).is_some_and(|r| {
                    matches!(r.class, RouteClass::SameSocket | RouteClass::CrossSocket)
                });
            if let (true, Some(root)) = (through_cpu, t.root_device(transfer.from)) {
                by_uplink.entry(root).or_default().push(i);
            }
        }
        let mut kernel_domain: BTreeMap<(Option<usize>, bool), usize> = BTreeMap::new();
        for (root, members) in by_uplink {
            let sources: BTreeSet<usize> = members.iter().map(|i| transfers[*i].from).collect();
            let targets: BTreeSet<Option<usize>> = members
                .iter()
                .map(|i| t.root_device(transfers[*i].to))
                .collect();
            let reads = members.iter().all(|i| transfers[*i].access.is_read());
            if sources.len() < 2 || targets.len() < 2 || (reads && members.len() < READS_FALL_AT) {
                continue;
            }
            self.note("collapse: two GPUs of one uplink sent to two root ports at once");
            let copy = members
                .iter()
                .any(|i| matches!(transfers[*i].access, Access::CopyRead | Access::CopyWrite));
            let resource = if copy {
                let name = format!("collapsed uplink {}", t.nodes[root].id);
                self.add_capacity(name, c.collapsed_copy_gb_s)
            } else {
                // Kernel accesses: one floor per direction between the halves of the box.
                let half = members
                    .first()
                    .and_then(|i| t.socket_of(transfers[*i].from));
                let floor = t.all_pairs_gb_s.unwrap_or(c.collapsed_kernel_gb_s);
                match kernel_domain.get(&(half, false)) {
                    Some(resource) => *resource,
                    None => {
                        let resource = self.add_capacity("collapsed fabric".to_string(), floor);
                        kernel_domain.insert((half, false), resource);
                        resource
                    }
                }
            };
            for i in members {
                self.flows[i].uses.push((resource, 1.0));
            }
        }
    }

    /// Staged peer access: kernel loads and stores go through a mailbox or host memory; copies
    /// do not show it.
    fn stage(&mut self, t: &Topology, transfers: &[Transfer], c: &Constants) {
        let mut into: BTreeMap<usize, usize> = BTreeMap::new();
        for (i, transfer) in transfers.iter().enumerate() {
            let kernel = matches!(transfer.access, Access::KernelLoad | Access::KernelStore);
            let pcie = t
                .route(transfer.from, transfer.to)
                .is_some_and(|r| !r.class.is_gpu_link());
            if !kernel || !pcie {
                continue;
            }
            let rate = t.all_pairs_gb_s.unwrap_or(c.staged_gb_s);
            let resource = match into.get(&transfer.to) {
                Some(resource) => *resource,
                None => {
                    let resource =
                        self.add_capacity(format!("staging into gpu {}", transfer.to), rate);
                    into.insert(transfer.to, resource);
                    resource
                }
            };
            self.note("staged: kernel accesses go through a mailbox, copies look normal");
            self.flows[i].uses.push((resource, 1.0));
        }
    }

    /// Switchtec switches serve all-to-all reads far below writes: 67 against 163 GB/s with four
    /// GPUs on one switch.
    fn switchtec_reads(&mut self, t: &Topology, transfers: &[Transfer], c: &Constants) {
        let switchtec = |gpu: usize| {
            t.leaf_switch(gpu)
                .and_then(|s| t.nodes[s].model.as_deref())
                .is_some_and(|m| {
                    let m = m.to_ascii_lowercase();
                    m.contains("pm50") || m.contains("switchtec")
                })
        };
        let mut by_reader: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, transfer) in transfers.iter().enumerate() {
            if transfer.access.is_read() && switchtec(transfer.to) {
                by_reader.entry(transfer.to).or_default().push(i);
            }
        }
        for (gpu, members) in by_reader {
            if members.len() < 3 {
                continue;
            }
            self.note("all-to-all reads through a Switchtec switch: far below writes");
            let resource = self.add_capacity(
                format!("all-to-all reads of gpu {gpu}"),
                c.switchtec_read_gb_s,
            );
            for i in members {
                self.flows[i].uses.push((resource, 1.0));
            }
        }
    }

    fn note(&mut self, what: &'static str) {
        if !self.triggered.contains(&what) {
            self.triggered.push(what);
        }
    }
}

/// What a transfer takes of the capacities; nothing where it has no route.
fn uses(t: &Topology, transfer: &Transfer, engines: &Engines, c: &Constants) -> Vec<(usize, f64)> {
    let (forward, reverse) = (
        transfer.access.forward_weight(),
        transfer.access.reverse_weight(),
    );
    // Host memory serves writes and reads at once: 18.6 of 26.0 GB/s on Gen4 (nvbandwidth).
    let weight = |l: usize, share: f64| match t.links[l].wire {
        Wire::Pcie { .. } => forward / share,
        _ => forward,
    };
    if transfer.access == Access::ThroughHost {
        let links = t.through_host(transfer.from, transfer.to);
        let mut uses: Vec<(usize, f64)> = links
            .iter()
            .map(|l| (*l, weight(*l, HOST_BOTH_WAYS)))
            .collect();
        if !uses.is_empty() {
            engines.add(&mut uses, transfer, RouteClass::Host);
        }
        return uses;
    }
    let Some(route) = t.route(transfer.from, transfer.to) else {
        return Vec::new();
    };
    if route.class.is_gpu_link() {
        return route.links.iter().map(|l| (*l, 1.0)).collect();
    }
    let share = match route.class {
        RouteClass::CrossSocket => c.cross_socket,
        RouteClass::Host => HOST_BOTH_WAYS,
        _ => 1.0,
    };
    let mut uses: Vec<(usize, f64)> = route
        .links
        .iter()
        .map(|l| (*l, weight(*l, share)))
        .collect();
    if reverse > 0.0 {
        uses.extend(route.back.iter().map(|l| (*l, reverse)));
    }
    engines.add(&mut uses, transfer, route.class);
    uses
}

/// What a GPU's kernels can issue: stores of the sender, loads of the receiver.
struct Engines {
    by_gpu: BTreeMap<(usize, bool), usize>,
}

impl Engines {
    fn new(p: &mut Pattern, t: &Topology, transfers: &[Transfer], c: &Constants) -> Engines {
        let mut by_gpu = BTreeMap::new();
        for transfer in transfers {
            let Some((gpu, read)) = Self::actor(transfer) else {
                continue;
            };
            if by_gpu.contains_key(&(gpu, read)) {
                continue;
            }
            let port = t.gpu_nodes.get(gpu).and_then(|node| {
                t.links
                    .iter()
                    .find(|l| l.from == *node && matches!(l.wire, Wire::Pcie { .. }))
            });
            let Some(port) = port else { continue };
            let share = if read { c.load_issue } else { c.store_issue };
            let rate = port.gb_s / transfer.access.forward_weight() * share;
            let what = if read { "loads" } else { "stores" };
            let resource = p.add_capacity(format!("{what} of gpu {gpu}"), rate);
            by_gpu.insert((gpu, read), resource);
        }
        Engines { by_gpu }
    }

    fn actor(transfer: &Transfer) -> Option<(usize, bool)> {
        match transfer.access {
            Access::KernelStore | Access::ThroughHost => Some((transfer.from, false)),
            Access::KernelLoad => Some((transfer.to, true)),
            Access::CopyRead | Access::CopyWrite => None,
        }
    }

    fn add(&self, uses: &mut Vec<(usize, f64)>, transfer: &Transfer, class: RouteClass) {
        if class.is_gpu_link() {
            return;
        }
        if let Some(actor) = Self::actor(transfer)
            && let Some(resource) = self.by_gpu.get(&actor)
        {
            uses.push((*resource, 1.0));
        }
    }
}
