//! A box file in, times of collectives out.

use pcie_sim::box_spec::BoxSpec;
use pcie_sim::nccl::NcclSetup;
use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

/// Two sockets, two switch chips of two virtual switches each, two GPUs a virtual switch.
fn two_chips(state: &str) -> Topology {
    let mut text = String::from(
        "name = \"two-chips\"\np2p = \"on\"\nnccl_p2p_level = \"SYS\"\ncpu = \"amd-turin\"\n",
    );
    text.push_str(&format!("[fabric]\nstate = \"{state}\"\n"));
    for s in 0..2 {
        text.push_str(&format!("[[node]]\nid = \"cpu{s}\"\nkind = \"socket\"\n"));
        for v in 0..2 {
            text.push_str(&format!(
                "[[node]]\nid = \"sw{s}{v}\"\nkind = \"switch\"\nmodel = \"pex890xx\"\nchip = \"c{s}\"\nparent = \"cpu{s}\"\ngen = 5\nlanes = 16\n"
            ));
            for g in 0..2 {
                text.push_str(&format!(
                    "[[node]]\nid = \"gpu{s}{v}{g}\"\nkind = \"gpu\"\nparent = \"sw{s}{v}\"\ngen = 5\nlanes = 16\n"
                ));
            }
        }
    }
    text.push_str("[[link]]\na = \"cpu0\"\nb = \"cpu1\"\nkind = \"xgmi\"\ngb_s = 95.0\n");
    let spec = BoxSpec::from_toml(&text).expect("box");
    Topology::from_spec(&spec, Arch::BLACKWELL_RTX).expect("topology")
}

/// The origin: NCCL with NCCL_P2P_LEVEL=SYS takes about 58 to 67 us for the verify of four tokens, the forced one-shot
/// kernel about 340 to 440 us, because the fabric collapses under all-to-all load.
#[test]
fn verify_of_four_tokens_on_a_collapsing_box() {
    let t = two_chips("collapsed");
    let ranks: Vec<usize> = (0..8).collect();
    let at = |a: Algorithm| all_reduce(&t, &ranks, a, 57_344, &Options::default()).expect("runs");
    let nccl = at(Algorithm::Nccl);
    let forced = at(Algorithm::OneShot);
    assert!((55.0..75.0).contains(&nccl.time_us), "{nccl:?}");
    assert!((340.0..470.0).contains(&forced.time_us), "{forced:?}");
    let island = at(Algorithm::Island);
    assert!(island.time_us < nccl.time_us, "{island:?}");
    assert!(
        forced.notes.iter().any(|n| n.contains("collapse")),
        "{forced:?}"
    );
}

#[test]
fn the_same_wiring_healthy_has_no_collapse() {
    let t = two_chips("healthy");
    let ranks: Vec<usize> = (0..8).collect();
    let time = all_reduce(&t, &ranks, Algorithm::OneShot, 57_344, &Options::default());
    assert!(time.is_ok_and(|x| x.time_us < 40.0));
}

fn from_catalogue(name: &str, arch: Arch) -> Topology {
    let spec = pcie_sim::catalog::find(name).expect("catalogue");
    Topology::from_spec(&spec, arch).expect("topology")
}

#[test]
fn a_full_mesh_of_links_carries_a_ring_on_each_of_them() {
    let mesh = from_catalogue("mi300x-8", Arch::AMPERE);
    let ranks: Vec<usize> = (0..8).collect();
    let us = |bytes: u64| {
        let time = all_reduce(&mesh, &ranks, Algorithm::Nccl, bytes, &Options::default());
        time.expect("runs").time_us
    };
    // Seven links of 64 GB/s each way; one ring over one link each would stay under 64.
    let bytes = 256_u64 << 20;
    let bus_gb_s = bytes as f64 * 1.75 / (us(bytes) * 1e3);
    assert!((224.0..448.0).contains(&bus_gb_s), "{bus_gb_s}");
    // Where the engines hand over to it, at 8 MiB, no cliff of several times their own kernel's.
    let own = all_reduce(
        &mesh,
        &ranks,
        Algorithm::Engine,
        (8 << 20) - 16,
        &Options::default(),
    );
    assert!(
        us(8 << 20) < 2.0 * own.expect("runs").time_us,
        "{}",
        us(8 << 20)
    );
}

#[test]
fn a_hybrid_cube_mesh_has_a_ring_that_never_leaves_its_links() {
    let dgx = from_catalogue("dgx-1-v100", Arch::VOLTA);
    let ranks: Vec<usize> = (0..8).collect();
    let graph = pcie_sim::nccl::search(&dgx, &ranks, &NcclSetup::default());
    assert!(graph.nvlink, "{graph:?}");
    let mut order = graph.order.clone();
    order.sort_unstable();
    assert_eq!(order, ranks);
    // Two cliques that only PCIe joins have none.
    let cliques = from_catalogue("1cat170-8xV100", Arch::VOLTA);
    assert!(!pcie_sim::nccl::search(&cliques, &ranks, &NcclSetup::default()).nvlink);
}
