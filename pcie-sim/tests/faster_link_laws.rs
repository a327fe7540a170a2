//! A faster link between the same two GPUs never makes the same kernel slower.

use pcie_sim::box_spec::BoxSpec;
use pcie_sim::nccl::NcclProtocol::{Ll, Simple};
use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce, choose_best};
use proptest::prelude::*;

/// NCCL's Simple stands apart: with all its channels at work it starts later over NVLink.
const KERNELS: [Algorithm; 6] = [
    Algorithm::OneShot,
    Algorithm::OneShotPush,
    Algorithm::TwoShot,
    Algorithm::Engine,
    Algorithm::EnginePush,
    Algorithm::NcclRing(Ll),
];

const GENERATIONS: [Arch; 6] = [
    Arch::VOLTA,
    Arch::AMPERE,
    Arch::ADA,
    Arch::HOPPER,
    Arch::BLACKWELL,
    Arch::BLACKWELL_RTX,
];

/// Four GPUs on one socket, NVLink between 0 and 2 and between 1 and 3; behind two switches or on
/// root ports.
fn bridged(arch: Arch, pcie_gen: u8, nvlink_gb_s: f64, switches: bool) -> Topology {
    let mut text = String::from(
        "name = \"bridged\"\np2p = \"on\"\n[[node]]\nid = \"cpu0\"\nkind = \"socket\"\n",
    );
    let up = format!("gen = {pcie_gen}\nlanes = 16\n");
    for g in 0..4 {
        let parent = if switches {
            text.push_str(&format!(
                "[[node]]\nid = \"sw{g}\"\nkind = \"switch\"\nparent = \"cpu0\"\n{up}"
            ));
            format!("sw{g}")
        } else {
            "cpu0".to_string()
        };
        text.push_str(&format!(
            "[[node]]\nid = \"gpu{g}\"\nkind = \"gpu\"\nparent = \"{parent}\"\n{up}"
        ));
    }
    for (a, b) in [(0, 2), (1, 3)] {
        text.push_str(&format!(
            "[[link]]\na = \"gpu{a}\"\nb = \"gpu{b}\"\nkind = \"nvlink\"\ngb_s = {nvlink_gb_s:.2}\n"
        ));
    }
    let spec = BoxSpec::from_toml(&text).expect("box");
    Topology::from_spec(&spec, arch).expect("topology")
}

fn time(t: &Topology, ranks: &[usize], a: Algorithm, bytes: u64) -> f64 {
    all_reduce(t, ranks, a, bytes, &Options::default())
        .expect("runs")
        .time_us
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// NVLink that carries more than PCIe, every kernel, every generation.
    #[test]
    fn a_faster_link_never_makes_the_same_algorithm_slower(
        arch in prop::sample::select(GENERATIONS.to_vec()), pcie_gen in 3u8..6,
        wider in 1.5f64..8.0, switches: bool, bytes in 1u64..(8 << 20) - 1,
    ) {
        let pcie_gb_s = 16.0 * f64::from(1u32 << (pcie_gen - 3));
        let t = bridged(arch, pcie_gen, pcie_gb_s * wider, switches);
        for algorithm in KERNELS {
            let (nvlink, pcie) = (time(&t, &[0, 2], algorithm, bytes), time(&t, &[0, 1], algorithm, bytes));
            prop_assert!(nvlink <= pcie * (1.0 + 1e-9), "{algorithm:?} {arch:?}: NVLink {nvlink}, PCIe {pcie}");
        }
    }

    /// NCCL's Simple, forced at sizes that fill few of its channels.
    #[test]
    fn simple_at_small_sizes_is_no_slower_over_nvlink(
        arch in prop::sample::select(GENERATIONS.to_vec()), pcie_gen in 3u8..6,
        wider in 1.5f64..8.0, bytes in 1u64..(128 << 10),
    ) {
        let pcie_gb_s = 16.0 * f64::from(1u32 << (pcie_gen - 3));
        let t = bridged(arch, pcie_gen, pcie_gb_s * wider, false);
        let simple = Algorithm::NcclRing(Simple);
        let (nvlink, pcie) = (time(&t, &[0, 2], simple, bytes), time(&t, &[0, 1], simple, bytes));
        prop_assert!(nvlink <= pcie, "{arch:?} {bytes} B: NVLink {nvlink}, PCIe {pcie}");
    }

    /// A push over a bridge against two trips through host memory.
    #[test]
    fn a_bridge_is_never_slower_than_host_memory(
        arch in prop::sample::select(GENERATIONS.to_vec()), pcie_gen in 3u8..6,
        wider in 1.5f64..8.0, bytes in 1u64..(64 << 20),
    ) {
        let pcie_gb_s = 16.0 * f64::from(1u32 << (pcie_gen - 3));
        let t = bridged(arch, pcie_gen, pcie_gb_s * wider, false);
        let push = time(&t, &[0, 2], Algorithm::OneShotPush, bytes);
        let host = time(&t, &[0, 2], Algorithm::HostStaged, bytes);
        prop_assert!(push <= host, "{arch:?}: push over NVLink {push}, host {host}");
    }
}

/// Four RTX 3090, bridged 0-2 and 1-3: pairs belong on the bridges, with peer access over PCIe or
/// without.
#[test]
fn pairs_of_bridged_rtx_3090_belong_on_the_bridges() {
    let mut spec = pcie_sim::catalog::find("4x-rtx-3090-nvlink").expect("in the catalogue");
    for p2p in [pcie_sim::box_spec::P2p::On, pcie_sim::box_spec::P2p::Off] {
        spec.p2p = p2p;
        let t = Topology::from_spec(&spec, Arch(86)).expect("topology");
        for bytes in [1 << 10, 8 << 10, 32 << 10, 1 << 20] {
            let best = |ranks: &[usize]| {
                choose_best(&t, ranks, bytes, &Options::default())
                    .expect("runs")
                    .1
            };
            let (on, off) = (best(&[0, 2]), best(&[0, 1]));
            assert!(on.time_us < off.time_us, "{bytes} B: {on:?} {off:?}");
            assert!(!on.algorithm_name.contains("host"), "{bytes} B: {on:?}");
        }
    }
}

/// Pairs on bridges, PCIe between them: two islands, only half of the data crosses.
#[test]
fn two_bridged_pairs_are_two_islands() {
    let t = bridged(Arch(86), 4, 56.25, false);
    let ranks = [0, 1, 2, 3];
    let plan = |bytes| {
        pcie_sim::all_reduce_plan(&t, &ranks, Algorithm::Island, bytes, &Options::default())
    };
    let (plan, _) = plan(1 << 20).expect("runs");
    let over = |round: usize, bridge: bool| {
        let on_bridge = |x: &&pcie_sim::Transfer| t.full_gpu_link(&[x.from, x.to]) == bridge;
        plan.rounds[round]
            .transfers
            .iter()
            .filter(on_bridge)
            .count()
    };
    assert_eq!((over(0, true), over(0, false)), (4, 0));
    assert_eq!((over(1, true), over(1, false)), (0, 4));
    let island = time(&t, &ranks, Algorithm::Island, 1 << 20);
    assert!(island < time(&t, &ranks, Algorithm::OneShot, 1 << 20));
}
