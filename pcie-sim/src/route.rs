//! Which way data goes from one GPU to another.

use crate::box_spec::{FabricState, NodeKind, P2p};
use crate::topology::{RouteClass, Topology, Wire};
use std::collections::VecDeque;

/// Nodes from one GPU's node to another's, with the class of the route.
pub(crate) fn find(t: &Topology, a: usize, b: usize) -> Option<(Vec<usize>, RouteClass)> {
    if joined(t, a, b, Wire::GpuLink) {
        return Some((vec![a, b], RouteClass::GpuLink));
    }
    let plane = t.nodes.iter().enumerate().find(|(i, n)| {
        n.kind == Some(NodeKind::Nvswitch)
            && joined(t, a, *i, Wire::GpuLink)
            && joined(t, *i, b, Wire::GpuLink)
    });
    if let Some((plane, _)) = plane {
        return Some((vec![a, plane, b], RouteClass::NvSwitch));
    }
    let (up_a, up_b) = (t.chain(a), t.chain(b));
    if t.p2p != P2p::Off
        && let Some(found) = below_socket(t, &up_a, &up_b)
    {
        return Some(found);
    }
    through_sockets(t, &up_a, &up_b)
}

fn joined(t: &Topology, a: usize, b: usize, wire: Wire) -> bool {
    t.links
        .iter()
        .any(|l| l.from == a && l.to == b && l.wire == wire)
}

/// Routes that do not reach the CPU: one switch, one chip, or a common switch higher up. ACS
/// redirect sends all of them to the root port.
fn below_socket(t: &Topology, up_a: &[usize], up_b: &[usize]) -> Option<(Vec<usize>, RouteClass)> {
    if t.state == FabricState::AcsRedirect {
        return None;
    }
    let is_switch = |n: &usize| t.nodes[*n].kind == Some(NodeKind::Switch);
    let mut best: Option<(Vec<usize>, RouteClass)> = None;
    let mut offer = |path: Vec<usize>, class: RouteClass| {
        if best
            .as_ref()
            .is_none_or(|(have, _)| path.len() < have.len())
        {
            best = Some((path, class));
        }
    };
    for (i, x) in up_a
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, n)| is_switch(n))
    {
        for (j, y) in up_b
            .iter()
            .enumerate()
            .skip(1)
            .filter(|(_, n)| is_switch(n))
        {
            let mut path: Vec<usize> = up_a[..=i].to_vec();
            let class = if x == y {
                if i == 1 && j == 1 {
                    RouteClass::SameSwitch
                } else {
                    RouteClass::RootSwitch
                }
            } else {
                let chip = t.links.iter().find(|l| {
                    l.from == *x && l.wire == Wire::Chip && joined(t, l.to, *y, Wire::Chip)
                });
                let Some(chip) = chip else { continue };
                path.push(chip.to);
                path.push(*y);
                RouteClass::SameChip
            };
            path.extend(up_b[..j].iter().rev());
            offer(path, class);
        }
    }
    best
}

/// Routes through one or more sockets; with P2P off through the memory of the first socket.
fn through_sockets(
    t: &Topology,
    up_a: &[usize],
    up_b: &[usize],
) -> Option<(Vec<usize>, RouteClass)> {
    if t.p2p == P2p::Off {
        let path = through_host(t, *up_a.first()?, *up_b.first()?)?;
        return Some((path, RouteClass::Host));
    }
    let between = sockets_between(t, *up_a.last()?, *up_b.last()?)?;
    let class = if between.len() > 1 {
        RouteClass::CrossSocket
    } else if up_a.len() == 2 && up_b.len() == 2 {
        RouteClass::DirectSameSocket
    } else {
        RouteClass::SameSocket
    };
    let mut path: Vec<usize> = up_a.to_vec();
    path.extend(between.iter().skip(1));
    path.extend(up_b.iter().rev().skip(1));
    Some((path, class))
}

/// Up to the socket of `a`, into its memory and out again, and down to `b`.
pub(crate) fn through_host(t: &Topology, a: usize, b: usize) -> Option<Vec<usize>> {
    let (mut path, up_b) = (t.chain(a), t.chain(b));
    let (top_a, top_b) = (*path.last()?, *up_b.last()?);
    let between = sockets_between(t, top_a, top_b)?;
    let memory = t
        .links
        .iter()
        .find(|l| l.from == top_a && l.wire == Wire::Dram)?
        .to;
    path.push(memory);
    path.push(top_a);
    path.extend(between.iter().skip(1));
    path.extend(up_b.iter().rev().skip(1));
    Some(path)
}

/// Shortest chain of sockets, breadth first; None where the ends are no sockets or not joined.
fn sockets_between(t: &Topology, a: usize, b: usize) -> Option<Vec<usize>> {
    if [a, b]
        .iter()
        .any(|n| t.nodes[*n].kind != Some(NodeKind::Socket))
    {
        return None;
    }
    let mut from: Vec<Option<usize>> = vec![None; t.nodes.len()];
    let mut queue = VecDeque::from([a]);
    while let Some(at) = queue.pop_front() {
        if at == b {
            let mut path = vec![b];
            let mut node = b;
            while node != a {
                node = from[node]?;
                path.push(node);
            }
            path.reverse();
            return Some(path);
        }
        for link in t.links.iter().filter(|l| l.from == at) {
            if link.wire == Wire::Socket && link.to != a && from[link.to].is_none() {
                from[link.to] = Some(at);
                queue.push_back(link.to);
            }
        }
    }
    None
}
