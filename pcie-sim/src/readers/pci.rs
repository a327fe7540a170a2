//! From a list of PCI devices with parents to a wiring; shared by the lspci and XML readers.

use super::{Hints, ReadError, box_name, devices, finish};
use crate::box_spec::{Acs, BoxSpec, GPUS_READ_MAX, GpuLinks, Node, NodeKind, P2p};

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceKind {
    Bridge,
    Gpu,
    Nic,
    Nvswitch,
    Other,
}

/// One PCI device.
#[derive(Debug, Clone)]
pub(super) struct Device {
    /// Address as printed, "0000:06:00.0" or "06:00.0".
    pub(super) bus: String,
    pub(super) kind: DeviceKind,
    /// Index of the bridge above.
    pub(super) parent: Option<usize>,
    /// Generation and lanes that both the device and its slot can do, as far as known.
    pub(super) pcie_gen: Option<u8>,
    pub(super) lanes: Option<u8>,
    pub(super) numa: Option<u32>,
    /// Catalogue name of a GPU, part of a switch.
    pub(super) model: Option<String>,
    /// ACS redirect of a bridge, where printed.
    pub(super) redirect: Option<bool>,
}

impl Device {
    pub(super) fn new(bus: &str, kind: DeviceKind, parent: Option<usize>) -> Device {
        Device {
            bus: bus.to_string(),
            kind,
            parent,
            pcie_gen: None,
            lanes: None,
            numa: None,
            model: None,
            redirect: None,
        }
    }
}

/// A whole listing.
pub(super) struct Tree {
    pub(super) devices: Vec<Device>,
    /// Whether bridges are listed port by port (lspci), so that a switch is an upstream port with
    /// downstream ports under it; NCCL lists one bridge a switch.
    pub(super) by_port: bool,
    /// GPU indices in CUDA order.
    pub(super) gpus: Vec<usize>,
    /// Host bridge of each device, where the format shows it.
    pub(super) roots: Vec<Option<String>>,
    /// CPU vendor, where known ("amd", "intel").
    pub(super) cpu: Option<String>,
    /// Where it comes from, for `source`.
    pub(super) what: &'static str,
}

/// Sort key of a PCI address: domain, bus, device, function.
pub(super) fn address_key(bus: &str) -> Vec<u64> {
    bus.split([':', '.'])
        .map(|p| u64::from_str_radix(p, 16).unwrap_or(u64::MAX))
        .collect()
}

/// Generation by transfer rate, GT/s.
pub(super) fn gen_of_rate(gt_s: f64) -> Option<u8> {
    Some(match gt_s {
        r if !(2.0..140.0).contains(&r) => return None,
        r if r < 4.0 => 1,
        r if r < 7.0 => 2,
        r if r < 12.0 => 3,
        r if r < 24.0 => 4,
        r if r < 48.0 => 5,
        r if r < 96.0 => 6,
        _ => 7,
    })
}

/// Widths that exist.
pub(super) fn lanes_of(width: u32) -> Option<u8> {
    u8::try_from(width)
        .ok()
        .filter(|w| matches!(w, 1 | 2 | 4 | 8 | 12 | 16 | 32))
}

/// Socket of each NUMA node number, and the number of sockets. Four or more NUMA nodes are taken
/// as two sockets split into parts (NPS2, NPS4, SNC), which is listed.
pub(super) fn sockets_of_numa(numa: &[u32], spec: &mut BoxSpec) -> (Vec<usize>, usize) {
    let most = numa.iter().copied().max().unwrap_or(0);
    let nodes = (most + 1).next_power_of_two();
    if nodes <= 2 {
        let mut used: Vec<u32> = numa.to_vec();
        used.sort_unstable();
        used.dedup();
        let place = |v: &u32| used.iter().position(|u| u == v).unwrap_or(0);
        return (numa.iter().map(place).collect(), used.len().max(1));
    }
    let half = nodes / 2;
    let out: Vec<usize> = numa.iter().map(|v| usize::from(*v >= half)).collect();
    let both = out.contains(&0) && out.contains(&1);
    spec.assume(
        format!("{nodes} NUMA nodes are two sockets of {half} (NPS or SNC setting)"),
        "`lscpu | grep Socket`",
    );
    if both {
        (out, 2)
    } else {
        (vec![0; numa.len()], 1)
    }
}

impl Tree {
    /// Bridges above a device, nearest first.
    fn bridges(&self, device: usize) -> Vec<usize> {
        let mut out = Vec::new();
        let mut next = self.devices.get(device).and_then(|d| d.parent);
        while let Some(i) = next {
            // Deeper than any machine: a circle in damaged input.
            if out.len() > 64 {
                break;
            }
            out.push(i);
            next = self.devices.get(i).and_then(|d| d.parent);
        }
        out
    }

    /// Of the bridges above a device, nearest first, those that stand for a switch.
    fn switches(&self, chain: &[usize]) -> Vec<usize> {
        if !self.by_port {
            return chain.to_vec();
        }
        let known = |i: usize| self.devices.get(i).is_some_and(|d| d.model.is_some());
        let from_top: Vec<usize> = chain.iter().rev().copied().collect();
        // Root port, then upstream and downstream ports in turn; a listing cut above the switch
        // starts with the upstream port.
        let skip = if from_top.first().is_some_and(|i| known(*i)) {
            0
        } else {
            1
        };
        from_top
            .into_iter()
            .skip(skip)
            .step_by(2)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect()
    }

    /// The wiring of the listing.
    pub(super) fn build(&self, hints: &Hints) -> Result<BoxSpec, ReadError> {
        self.check_count()?;
        let n = self.gpus.len();
        let model = self.gpu_model();
        let gpu = hints.gpu.as_ref().map(|g| g.name.clone()).or(model.clone());
        let mut spec = BoxSpec::empty(box_name(hints, n, self.what), gpu, P2p::On);
        spec.source = Some(self.what.to_string());
        spec.cpu = self.cpu.clone();
        if let (Some(seen), Some(said)) = (&model, hints.gpu.as_ref().map(|g| &g.name))
            && seen != said
        {
            spec.assume(
                format!(
                    "the listing shows {seen}; the GPU asked for is {said}, on the same wiring"
                ),
                "leave --gpu out",
            );
        }
        let (socket_of, sockets) = self.sockets(&mut spec);
        for s in 0..sockets {
            spec.nodes
                .push(Node::top(format!("cpu{s}"), NodeKind::Socket));
        }
        let (nodes, guessed) = self.place(&socket_of, hints);
        let (gpus, others): (Vec<Node>, Vec<Node>) =
            nodes.into_iter().partition(|x| x.kind == NodeKind::Gpu);
        let pcie_gen = gpus.iter().filter_map(|g| g.pcie_gen).max().unwrap_or(4);
        spec.nodes.extend(others.into_iter().chain(gpus));
        if guessed {
            self.guess_ports(&mut spec, hints);
        }
        spec.link_sockets(pcie_gen);
        spec.acs = self.acs();
        self.nvswitch(&mut spec, hints, model.as_deref());
        finish(&mut spec, hints, None);
        Ok(spec)
    }

    fn check_count(&self) -> Result<(), ReadError> {
        let n = self.gpus.len();
        if n == 0 {
            return Err(ReadError::new(
                None,
                format!("no GPU in this {}", self.what),
                super::GIVE,
            ));
        }
        if n > GPUS_READ_MAX {
            return Err(ReadError::new(
                None,
                format!("{n} GPUs in this {}", self.what),
                format!("one server is read, up to {GPUS_READ_MAX} GPUs"),
            ));
        }
        Ok(())
    }

    /// GPUs and the switches above them, each with its parent; and whether a port was guessed.
    fn place(&self, socket_of: &[usize], hints: &Hints) -> (Vec<Node>, bool) {
        let kept = self.kept_switches();
        let default = super::gpu_port(&mut BoxSpec::empty(String::new(), None, P2p::On), hints);
        let mut guessed = false;
        let mut nodes = Vec::new();
        for (i, device) in self.gpus.iter().enumerate() {
            let socket = format!("cpu{}", socket_of.get(i).copied().unwrap_or(0));
            let mut below = (*device, format!("gpu{i}"), NodeKind::Gpu);
            let chain = self.bridges(*device);
            let mut stations: Vec<usize> = self
                .switches(&chain)
                .into_iter()
                .filter(|s| kept.contains(s))
                .collect();
            stations.push(usize::MAX);
            for station in stations {
                let top = station == usize::MAX;
                let parent = if top {
                    socket.clone()
                } else {
                    switch_id(&kept, station)
                };
                if !nodes.iter().any(|x: &Node| x.id == below.1) {
                    let mut node = Node::below(below.1.clone(), below.2, parent);
                    let (g, w) = self.link(below.0, station);
                    guessed |= g.is_none() || w.is_none();
                    node.pcie_gen = g.or(Some(default.0));
                    node.lanes = w.or(Some(default.1));
                    self.describe(&mut node, below.0);
                    node.root = top
                        .then(|| self.roots.get(*device).cloned().flatten())
                        .flatten();
                    nodes.push(node);
                }
                if !top {
                    below = (station, switch_id(&kept, station), NodeKind::Switch);
                }
            }
        }
        (nodes, guessed)
    }

    /// What is assumed of ports that the listing does not show; a desktop's slot pair has half the
    /// lanes each.
    fn guess_ports(&self, spec: &mut BoxSpec, hints: &Hints) {
        if !self.split_slot() {
            super::gpu_port(spec, hints);
            return;
        }
        let mut gens = Vec::new();
        for gpu in spec.nodes.iter_mut().filter(|x| x.kind == NodeKind::Gpu) {
            gpu.lanes = gpu.lanes.map(|w| w.min(8));
            gens.extend(gpu.pcie_gen);
        }
        gens.dedup();
        let gens: Vec<String> = gens.iter().map(|g| format!("Gen{g}")).collect();
        spec.assume(
            format!(
                "{} x8 each: two root ports of one device on a board with one host bridge (desktop) \
                 split 16 lanes",
                gens.join(" and ")
            ),
            "`lspci -vv`: LnkCap and LnkSta of both cards",
        );
    }

    fn describe(&self, node: &mut Node, device: usize) {
        let Some(d) = self.devices.get(device) else {
            return;
        };
        node.bus = Some(d.bus.clone());
        node.numa = d.numa;
        node.model = d.model.clone().filter(|_| node.kind == NodeKind::Switch);
    }

    /// Slowest generation and narrowest width from a device up to a station (excluded) or the top.
    fn link(&self, device: usize, station: usize) -> (Option<u8>, Option<u8>) {
        let mut on_path = vec![device];
        on_path.extend(
            self.bridges(device)
                .into_iter()
                .take_while(|b| *b != station),
        );
        let of = |f: fn(&Device) -> Option<u8>| {
            on_path
                .iter()
                .filter_map(|i| self.devices.get(*i))
                .filter_map(f)
                .min()
        };
        (of(|d| d.pcie_gen), of(|d| d.lanes))
    }

    /// Switches that join something: two or more GPUs or NICs below, or a known switch part. A
    /// bridge over a single GPU is the card's own.
    fn kept_switches(&self) -> Vec<usize> {
        let mut count = vec![0_usize; self.devices.len()];
        let mut order = Vec::new();
        for (i, d) in self.devices.iter().enumerate() {
            if matches!(
                d.kind,
                DeviceKind::Gpu | DeviceKind::Nic | DeviceKind::Nvswitch
            ) {
                for b in self.bridges(i) {
                    if let Some(c) = count.get_mut(b) {
                        *c += 1;
                    }
                }
            }
        }
        for gpu in &self.gpus {
            let chain = self.bridges(*gpu);
            for s in self.switches(&chain) {
                let known = self.devices.get(s).is_some_and(|d| d.model.is_some());
                let joins = count.get(s).is_some_and(|c| *c >= 2);
                if (known || joins) && !order.contains(&s) {
                    order.push(s);
                }
            }
        }
        order
    }

    /// The GPUs' catalogue name where all agree.
    fn gpu_model(&self) -> Option<String> {
        let mut models = self
            .gpus
            .iter()
            .map(|i| self.devices.get(*i).and_then(|d| d.model.clone()));
        let first = models.next()??;
        models
            .all(|m| m.as_deref() == Some(&first))
            .then_some(first)
    }

    fn host_bus(&self, device: usize) -> Option<u64> {
        let root = self.roots.get(device).cloned().flatten()?;
        u64::from_str_radix(root.rsplit(':').next()?, 16).ok()
    }

    /// Bus numbers of all host bridges, rising.
    fn host_buses(&self) -> Vec<u64> {
        let mut hosts: Vec<u64> = (0..self.devices.len())
            .filter_map(|i| self.host_bus(i))
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Whether two GPUs hang on functions of one root device of a board with a single host
    /// bridge: a desktop slot pair that splits sixteen lanes.
    fn split_slot(&self) -> bool {
        let top = |gpu: &usize| {
            self.bridges(*gpu)
                .last()
                .copied()
                .and_then(|t| self.devices.get(t))
        };
        let tops: Vec<&Device> = self.gpus.iter().filter_map(top).collect();
        let [a, b] = tops.as_slice() else {
            return false;
        };
        let slot = |d: &Device| d.bus.rsplit_once('.').map(|(device, _)| device.to_string());
        a.bus != b.bus && slot(a) == slot(b) && self.host_buses() == [0]
    }

    /// Socket of each GPU by NUMA node of it or of a bridge above, else by its host bridge.
    fn sockets(&self, spec: &mut BoxSpec) -> (Vec<usize>, usize) {
        let numa_of = |gpu: &usize| {
            let mut path = vec![*gpu];
            path.extend(self.bridges(*gpu));
            path.iter()
                .find_map(|i| self.devices.get(*i).and_then(|d| d.numa))
        };
        let numa: Vec<u32> = self.gpus.iter().filter_map(numa_of).collect();
        if numa.len() == self.gpus.len() {
            return sockets_of_numa(&numa, spec);
        }
        let bus = |gpu: &usize| self.host_bus(*gpu);
        let hosts = self.host_buses();
        // Uncore buses 7f and ff are two Intel sockets; eight or more host bridges two AMD ones.
        let two = (hosts.contains(&0x7f) && hosts.contains(&0xff)) || hosts.len() >= 8;
        let upper = |gpu: &usize| bus(gpu).is_some_and(|b| b >= 0x80);
        if self.gpus.len() > 1 {
            let count = if two {
                "two sockets, buses from 80 up on the second"
            } else {
                "one socket"
            };
            spec.assume(
                format!("{count}: the listing has no NUMA nodes"),
                "`lspci -vv` (NUMA node lines), `lscpu`",
            );
        }
        let both = two && self.gpus.iter().any(upper) && !self.gpus.iter().all(upper);
        let of = |gpu: &usize| usize::from(both && upper(gpu));
        (self.gpus.iter().map(of).collect(), if both { 2 } else { 1 })
    }

    /// ACS on the downstream ports that GPUs of one switch share; None where not printed.
    fn acs(&self) -> Option<Acs> {
        let mut seen = Vec::new();
        for gpu in &self.gpus {
            let chain = self.bridges(*gpu);
            let switches = self.switches(&chain);
            let ports = chain
                .iter()
                .take(chain.len().saturating_sub(1))
                .filter(|b| !switches.contains(b));
            seen.extend(ports.filter_map(|b| self.devices.get(*b).and_then(|d| d.redirect)));
        }
        if seen.contains(&true) {
            Some(Acs::Redirect)
        } else {
            (!seen.is_empty()).then_some(Acs::Off)
        }
    }

    /// NVLink behind an NVSwitch plane, which PCI listings only hint at.
    fn nvswitch(&self, spec: &mut BoxSpec, hints: &Hints, model: Option<&str>) {
        let n = self.gpus.len();
        if n < 2 || spec.links.iter().any(|l| l.a.starts_with("gpu")) {
            return;
        }
        let chips = self
            .devices
            .iter()
            .filter(|d| d.kind == DeviceKind::Nvswitch)
            .count();
        let meshed = hints.gpu.as_ref().filter(|g| g.gpu_links == GpuLinks::Mesh);
        let settle = "`nvidia-smi topo -m`";
        match devices::nvswitch_gb_s(model, hints.gpu.as_ref()) {
            Some(rate) => {
                let ids: Vec<String> = (0..n).map(|i| format!("gpu{i}")).collect();
                spec.add_nvswitch(&ids, rate);
                let why = if chips > 0 {
                    format!("{chips} NVSwitch chips are listed")
                } else {
                    "usual for this GPU".to_string()
                };
                spec.assume(format!("all GPUs on one NVSwitch plane ({why})"), settle);
            }
            None if chips > 0 => spec.assume(
                format!(
                    "{chips} NVSwitch chips are listed, but the GPU is not known: NVLink left out"
                ),
                "--gpu, or `nvidia-smi topo -m`",
            ),
            None => {
                if let Some(gpu) = meshed {
                    spec.add_gpu_links(gpu, n);
                } else if hints
                    .gpu
                    .as_ref()
                    .is_some_and(|g| g.gpu_links == GpuLinks::Bridge)
                {
                    spec.assume("no NVLink bridges: PCI listings cannot show them", settle);
                }
            }
        }
    }
}

fn switch_id(kept: &[usize], station: usize) -> String {
    format!("sw{}", kept.iter().position(|s| *s == station).unwrap_or(0))
}
