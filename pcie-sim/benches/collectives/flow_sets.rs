//! Flow sets that are also given to SimGrid: the same links, routes and bytes.

use pcie_sim::maxmin::Flow;
use pcie_sim::sim::Task;

/// Links with capacities, and transfers over them that all start at once.
pub(crate) struct FlowSet {
    /// GB/s of each link.
    pub(crate) capacities_gb_s: Vec<f64>,
    /// From, to, links and bytes of each flow.
    pub(crate) flows: Vec<(usize, usize, Vec<usize>, f64)>,
}

impl FlowSet {
    /// As tasks of the simulator.
    pub(crate) fn tasks(&self) -> Vec<Task> {
        self.flows
            .iter()
            .map(|(_, _, links, bytes)| Task {
                after: Vec::new(),
                delay_ps: 0,
                bytes: *bytes,
                flow: Flow {
                    uses: links.iter().map(|l| (*l, 1.0)).collect(),
                    cap: f64::INFINITY,
                },
            })
            .collect()
    }

    /// One line a link, one a flow: what the SimGrid side reads.
    #[allow(dead_code)]
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for c in &self.capacities_gb_s {
            out.push_str(&format!("link {c}\n"));
        }
        for (from, to, links, bytes) in &self.flows {
            out.push_str(&format!("flow {from} {to} {bytes}"));
            for l in links {
                out.push_str(&format!(" {l}"));
            }
            out.push('\n');
        }
        out
    }
}

/// 8 GPUs on two switches: a port each way per GPU, an uplink each way per switch; all 56 pairs,
/// sizes that differ.
pub(crate) fn all_pairs_8() -> FlowSet {
    // Links: 0-7 out of GPU, 8-15 into GPU, 16/17 up, 18/19 down.
    let mut capacities_gb_s = vec![54.0; 16];
    capacities_gb_s.extend([53.0; 4]);
    let mut flows = Vec::new();
    for from in 0..8 {
        for to in (0..8).filter(|to| *to != from) {
            let mut links = vec![from];
            if from / 4 != to / 4 {
                links.extend([16 + from / 4, 18 + to / 4]);
            }
            links.push(8 + to);
            let bytes = 57_344.0 + 896.0 * (from * 7 + to) as f64;
            flows.push((from, to, links, bytes));
        }
    }
    FlowSet {
        capacities_gb_s,
        flows,
    }
}

/// A fat tree with 1,000 links: 400 hosts under 20 leaves, 5 cores; `n` flows between hosts drawn
/// by a small generator with a fixed seed.
pub(crate) fn fat_tree(n: usize) -> FlowSet {
    const HOSTS: usize = 400;
    const LEAVES: usize = 20;
    const CORES: usize = 5;
    // Out of hosts, into hosts, leaf to core, core to leaf.
    let mut capacities_gb_s = vec![12.5; 2 * HOSTS];
    capacities_gb_s.extend(vec![50.0; 2 * LEAVES * CORES]);
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize) % below
    };
    let mut flows = Vec::with_capacity(n);
    while flows.len() < n {
        let (from, to) = (draw(HOSTS), draw(HOSTS));
        let bytes = 1e6 * (1 + draw(16)) as f64;
        if from == to {
            continue;
        }
        let (a, b) = (from / (HOSTS / LEAVES), to / (HOSTS / LEAVES));
        let mut links = vec![from];
        if a != b {
            let core = (from + to) % CORES;
            links.push(2 * HOSTS + a * CORES + core);
            links.push(2 * HOSTS + LEAVES * CORES + b * CORES + core);
        }
        links.push(HOSTS + to);
        flows.push((from, to, links, bytes));
    }
    FlowSet {
        capacities_gb_s,
        flows,
    }
}
