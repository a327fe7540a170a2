//! Copies between GPUs and host memory, and what KV offload on the same uplink costs a collective.

use crate::constants::Constants;
use crate::maxmin::{Flow, max_min_rates};
use crate::pattern::{Pattern, Transfer};
use crate::tlp::Access;
use crate::topology::Topology;

/// Rates of host copies that run together, GB/s; `to_host` for each GPU. Unknown GPUs get 0.
pub fn host_copies_gb_s(t: &Topology, copies: &[(usize, bool)]) -> Vec<f64> {
    let (capacities, flows) = host_flows(t, copies);
    max_min_rates(&capacities, &flows)
}

/// How many times slower a pattern of transfers gets while the given host copies run: the largest
/// ratio over its transfers of the rate without to the rate with them.
pub fn kv_offload_slowdown(
    t: &Topology,
    transfers: &[Transfer],
    copies: &[(usize, bool)],
    c: &Constants,
) -> f64 {
    let pattern = Pattern::new(t, transfers, c);
    let alone = max_min_rates(&pattern.capacities_gb_s, &pattern.flows);
    let (host_capacities, mut host) = host_flows(t, copies);
    let links = t.links.len();
    let mut capacities = pattern.capacities_gb_s.clone();
    for flow in &mut host {
        for (r, _) in &mut flow.uses {
            if *r >= links {
                *r += pattern.capacities_gb_s.len() - links;
            }
        }
    }
    capacities.extend_from_slice(&host_capacities[links..]);
    let mut flows = pattern.flows.clone();
    flows.extend(host);
    let together = max_min_rates(&capacities, &flows);
    alone
        .iter()
        .zip(&together)
        .filter(|(a, b)| **a > 0.0 && **b > 0.0)
        .map(|(a, b)| a / b)
        .fold(1.0, f64::max)
}

/// Links of the topology first, then one fan-in limit per root device and direction.
fn host_flows(t: &Topology, copies: &[(usize, bool)]) -> (Vec<f64>, Vec<Flow>) {
    let mut capacities: Vec<f64> = t.links.iter().map(|l| l.gb_s).collect();
    let mut fan_in: Vec<((Option<usize>, bool), usize)> = Vec::new();
    let mut flows = Vec::with_capacity(copies.len());
    for &(gpu, to_host) in copies {
        let access = if to_host {
            Access::CopyWrite
        } else {
            Access::CopyRead
        };
        let route = t.host_route(gpu, to_host);
        if route.is_empty() {
            flows.push(Flow {
                uses: Vec::new(),
                cap: 0.0,
            });
            continue;
        }
        let mut uses: Vec<(usize, f64)> = route
            .iter()
            .map(|l| (*l, access.forward_weight()))
            .collect();
        let key = (t.root_device(gpu), to_host);
        let at = match fan_in.iter().find(|(k, _)| *k == key) {
            Some((_, at)) => *at,
            None => {
                capacities.push(t.root_fan_in_gb_s());
                fan_in.push((key, capacities.len() - 1));
                capacities.len() - 1
            }
        };
        uses.push((at, 1.0));
        flows.push(Flow {
            uses,
            cap: f64::INFINITY,
        });
    }
    (capacities, flows)
}
