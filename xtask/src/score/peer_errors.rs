//! Errors of a peer that this project must not make, beside those shown in `spec-decode::cycle`
//! (a speedup above the accept length; verify attention billed once per drafted token).

use pcie_sim::{Access, Arch, Constants, Topology, Transfer, alone_gb_s, contention};

/// Slowest transfer of four replicas of two GPUs, each GPU writing to its partner: alone and all
/// together, GB/s.
fn slowest_pair(topology: &Topology, pairs: [(usize, usize); 4]) -> (f64, f64) {
    let transfers: Vec<Transfer> = pairs
        .into_iter()
        .flat_map(|(a, b)| [(a, b), (b, a)])
        .map(|(from, to)| Transfer {
            from,
            to,
            bytes: 1e9,
            access: Access::KernelStore,
        })
        .collect();
    let constants = Constants::default();
    let least = |rates: &[f64]| rates.iter().copied().fold(f64::INFINITY, f64::min);
    (
        least(&alone_gb_s(topology, &transfers, &constants)),
        least(&contention(topology, &transfers, &constants).rates_gb_s),
    )
}

#[test]
fn peer_error_replicas_that_share_an_uplink_are_not_taken_for_independent() {
    // AIConfigurator recommends four replicas of two GPUs for MiniMax-M2.5 on eight RTX PRO 6000
    // from a table taken with one group running. Pairs that cross the same switch uplinks and the socket link get
    // a part of what they get alone; pairs under one switch get all of it.
    // INVARIANT: a test; the box is in the compiled-in catalogue.
    let mut spec = pcie_sim::catalog::find("two-switch-8").expect("catalogue");
    spec.fabric = None;
    // INVARIANT: a test; catalogue boxes make topologies.
    let topology = Topology::from_spec(&spec, Arch::BLACKWELL_RTX).expect("a sound box");
    let (alone, together) = slowest_pair(&topology, [(0, 4), (1, 5), (2, 6), (3, 7)]);
    assert!(
        together < 0.6 * alone,
        "sharing uplinks: {together} of {alone}"
    );
    let (alone, together) = slowest_pair(&topology, [(0, 1), (2, 3), (4, 5), (6, 7)]);
    assert!(
        together > 0.8 * alone,
        "under one switch: {together} of {alone}"
    );
}
