//! Between which GPUs NCCL goes directly, against its own rule (`ncclTopoCheckP2p`), and what host memory
//! costs it, against our own measurements.

use pcie_sim::nccl::{self, NcclSetup, P2pLevel, p2p};
use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

fn catalogue(name: &str, arch: Arch) -> Topology {
    let spec = pcie_sim::catalog::find(name).expect("in the catalogue");
    Topology::from_spec(&spec, arch).expect("simulated")
}

fn at(level: P2pLevel) -> NcclSetup {
    NcclSetup {
        p2p_level: Some(level),
        ..NcclSetup::default()
    }
}

fn us(t: &Topology, ranks: &[usize], bytes: u64, nccl: NcclSetup) -> f64 {
    let options = Options {
        nccl,
        ..Options::default()
    };
    let time = all_reduce(t, ranks, Algorithm::Nccl, bytes, &options);
    time.expect("runs").time_us
}

#[test]
fn nccl_goes_directly_behind_a_common_switch_and_between_two_gpus_of_an_amd_host_alone() {
    let mut t = catalogue("4x-rtx-pro-6000", Arch::BLACKWELL_RTX);
    let own = NcclSetup::default();
    let staged = |t: &Topology, ranks: &[usize]| p2p::any_staged(t, ranks, &own);
    assert!(staged(&t, &[0, 1, 2, 3]) && staged(&t, &[0, 1, 2]));
    for (cpu, two) in [("amd-genoa", false), ("intel-spr", true), ("grace", true)] {
        t.cpu = Some(cpu.to_string());
        assert_eq!(staged(&t, &[0, 1]), two, "{cpu}");
        assert!(staged(&t, &[0, 1, 2, 3]), "{cpu}");
    }
    assert!(!p2p::any_staged(&t, &[0, 1, 2, 3], &at(P2pLevel::Phb)));
    assert_eq!(p2p::needed(&t, &[0, 1, 2, 3]), P2pLevel::Phb);
    // Two switches under a third: the CPU is not touched.
    let root = catalogue("wrx90-3sw-1s-8x", Arch::BLACKWELL_RTX);
    assert!(!staged(&root, &[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(p2p::path(&root, 0, 7), P2pLevel::Pxb);
    // NVLink is nearer than any of them, and only LOC shuts it.
    let dgx = catalogue("dgx-h100", Arch::HOPPER);
    assert!(!p2p::any_staged(&dgx, &[0, 1, 2, 3], &at(P2pLevel::Nvl)));
    assert!(p2p::any_staged(&dgx, &[0, 1, 2, 3], &at(P2pLevel::Loc)));
}

/// "SHM for NODE pairs" by default, says the page of that box, whose GPUs of one socket hang on two virtual
/// switches of one chip.
#[test]
fn two_virtual_switches_of_one_chip_are_two_root_ports_to_nccl() {
    let mut t = catalogue("asus-bcm-2s-8x", Arch::BLACKWELL_RTX);
    t.nccl_p2p_level = None;
    assert_eq!(p2p::path(&t, 0, 1), P2pLevel::Pix);
    assert_eq!(p2p::path(&t, 0, 2), P2pLevel::Phb);
    assert_eq!(p2p::path(&t, 0, 4), P2pLevel::Sys);
    let own = NcclSetup::default();
    assert!(p2p::any_staged(&t, &[0, 1, 2, 3], &own) && !p2p::any_staged(&t, &[0, 1], &own));
    // Two of the four hops go through memory, so it is between all direct and none.
    let four = [0, 1, 2, 3];
    let level = |level| us(&t, &four, 8192, at(level));
    let (direct, mixed, none) = (
        level(P2pLevel::Sys),
        us(&t, &four, 8192, own),
        level(P2pLevel::Loc),
    );
    assert!(direct < mixed && mixed < none, "{direct} {mixed} {none}");
    assert!((direct / 13.9).ln().abs() < 0.2, "{direct}");
}

/// Two H200 with NCCL_P2P_DISABLE=1 (docs/HARDWARE.md): 9.70, 12.64, 14.94, 21.58 and 35.23 us. A fit on one
/// old box of eight cards had 11.8 at the smallest.
#[test]
fn a_flag_through_host_memory_costs_nccl_what_ours_was_measured_to_take() {
    let t = catalogue("2x-h200", Arch::HOPPER);
    for (bytes, measured) in [
        (1_024, 9.70),
        (4_096, 9.76),
        (14_336, 12.64),
        (57_344, 14.94),
        (131_072, 21.58),
        (262_144, 35.23),
    ] {
        let modelled = us(&t, &[0, 1], bytes, at(P2pLevel::Loc));
        let off: f64 = modelled / measured;
        assert!(off.ln().abs() < 0.25, "{bytes}: {modelled} {measured}");
    }
}

/// Before 2.30 NCCL counts 16 GB/s between any two AMD sockets, and tries no speed under 18 for Blackwell.
#[test]
fn before_2_30_no_ring_is_found_for_blackwell_on_two_amd_sockets_of_any_kind() {
    let mut t = catalogue("8x-rtx-pro-6000-direct", Arch::BLACKWELL_RTX);
    let ranks: Vec<usize> = (0..8).collect();
    let by = |version| NcclSetup {
        version: Some(version),
        ..NcclSetup::default()
    };
    for cpu in ["amd-turin", "amd-genoa", "AMD EPYC 7763 64-Core Processor"] {
        t.cpu = Some(cpu.to_string());
        let failed = |version| nccl::search(&t, &ranks, &by(version)).failed;
        assert!(failed((2, 28)) && failed((2, 29)), "{cpu}");
        assert!(!failed((2, 30)), "{cpu}");
        assert!(
            !nccl::search(&t, &[0, 1, 2, 3], &by((2, 28))).failed,
            "{cpu}"
        );
    }
    // Hopper's list goes down to 15, and Intel's newer links count 22.
    t.arch = Arch::HOPPER;
    assert!(!nccl::search(&t, &ranks, &by((2, 28))).failed);
    t.arch = Arch::BLACKWELL_RTX;
    t.cpu = Some("intel-spr".to_string());
    assert!(!nccl::search(&t, &ranks, &by((2, 28))).failed);
    assert_eq!(nccl::release("2.28.9+cuda13.0"), Some((2, 28)));
    assert_eq!(nccl::release("new"), None);
}
