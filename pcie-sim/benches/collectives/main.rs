//! How long simulating takes. Expected on one core of a server of 2023: an 8-GPU all-reduce well
//! under 200 us; 56 flows under 50 us; 10,000 flows on 1,000 links in a few seconds.

use divan::{Bencher, black_box};
use pcie_sim::sim::simulate;
use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce};

mod flow_sets;

fn main() {
    divan::main();
}

fn eight() -> (Topology, Vec<usize>) {
    let spec = pcie_sim::catalog::find("two-switch-8").expect("catalogue box");
    let t = Topology::from_spec(&spec, Arch::BLACKWELL_RTX).expect("topology");
    (t, (0..8).collect())
}

/// Target: under 200 us each.
#[divan::bench(args = ["nccl", "one-shot", "two-shot", "island", "host-staged"])]
fn all_reduce_8_gpus(bencher: Bencher<'_, '_>, name: &str) {
    let (t, ranks) = eight();
    let algorithm: Algorithm = name.parse().expect("known");
    let options = Options::default();
    bencher.bench(|| all_reduce(&t, black_box(&ranks), algorithm, 57_344, &options));
}

/// 56 flows among 8 GPUs.
#[divan::bench]
fn flows_56(bencher: Bencher<'_, '_>) {
    let set = flow_sets::all_pairs_8();
    let tasks = set.tasks();
    bencher.bench(|| simulate(&set.capacities_gb_s, black_box(&tasks)));
}

/// 10,000 flows on a fat tree of 1,000 links.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn flows_10000(bencher: Bencher<'_, '_>) {
    let set = flow_sets::fat_tree(10_000);
    let tasks = set.tasks();
    bencher.bench(|| simulate(&set.capacities_gb_s, black_box(&tasks)));
}
