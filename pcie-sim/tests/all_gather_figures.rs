//! All-gathers against nccl-tests tables (AIConfigurator 0.12.0, other collectives, half).

use pcie_sim::nccl::{NcclSetup, P2pLevel};
use pcie_sim::{Arch, Options, Topology, all_gather};

/// Box, GPU generation, GPUs, total bytes, measured us.
const ROWS: [(&str, Arch, usize, u64, f64); 16] = [
    ("dgx-a100", Arch::AMPERE, 2, 65_536, 12.5),
    ("dgx-a100", Arch::AMPERE, 8, 65_536, 21.2),
    ("dgx-a100", Arch::AMPERE, 8, 67_108_864, 351.6),
    ("hgx-b300-8", Arch(103), 8, 65_536, 17.9),
    ("hgx-b300-8", Arch(103), 2, 67_108_864, 93.1),
    ("hgx-h200-8", Arch::HOPPER, 2, 65_536, 6.3),
    ("hgx-h200-8", Arch::HOPPER, 8, 4_096, 11.3),
    ("hgx-h200-8", Arch::HOPPER, 8, 1_048_576, 18.7),
    ("hgx-h200-8", Arch::HOPPER, 4, 67_108_864, 189.8),
    ("hgx-h200-8", Arch::HOPPER, 8, 67_108_864, 207.0),
    (
        "8x-rtx-pro-6000-direct",
        Arch::BLACKWELL_RTX,
        2,
        65_536,
        8.3,
    ),
    (
        "8x-rtx-pro-6000-direct",
        Arch::BLACKWELL_RTX,
        8,
        65_536,
        19.1,
    ),
    (
        "8x-rtx-pro-6000-direct",
        Arch::BLACKWELL_RTX,
        4,
        1_048_576,
        51.5,
    ),
    (
        "8x-rtx-pro-6000-direct",
        Arch::BLACKWELL_RTX,
        2,
        67_108_864,
        1066.6,
    ),
    (
        "8x-rtx-pro-6000-direct",
        Arch::BLACKWELL_RTX,
        4,
        67_108_864,
        2170.8,
    ),
    (
        "8x-rtx-pro-6000-direct",
        Arch::BLACKWELL_RTX,
        8,
        67_108_864,
        2589.9,
    ),
];

/// Nothing of the model was fitted on these rows.
#[test]
fn all_gathers_that_nothing_was_fitted_on_are_within_15_percent() {
    let options = Options {
        nccl: NcclSetup {
            version: Some((2, 29)),
            // The box that stands for the PCIe rows: their steps are those of peer access.
            p2p_level: Some(P2pLevel::Sys),
            ..NcclSetup::default()
        },
        ..Options::default()
    };
    let mut errors: Vec<f64> = ROWS
        .iter()
        .map(|(name, arch, gpus, bytes, measured)| {
            let spec = pcie_sim::catalog::find(name).expect("catalogue");
            let mut t = Topology::from_spec(&spec, *arch).expect("topology");
            // Nobody says the CPU of those rows, and NCCL 2.29 found a ring there.
            t.cpu = None;
            let ranks: Vec<usize> = (0..*gpus).collect();
            let time = all_gather(&t, &ranks, *bytes, &options)
                .expect("runs")
                .time_us;
            println!("{name} {gpus} {bytes}: {time:.1} measured {measured}");
            (time / measured).ln().abs()
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    assert!(errors[errors.len() / 2] < 0.15, "{errors:?}");
    assert!(errors[errors.len() - 1] < 0.45, "{errors:?}");
}
