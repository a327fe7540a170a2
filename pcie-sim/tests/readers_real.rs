//! Real topology files, read against what their sources say of them.

mod readers_common;

use pcie_sim::box_spec::{Acs, BoxSpec, GpuLinks, GpuWiring, LinkKind, P2p, PathClass};
use pcie_sim::readers::{self, Hints};
use pcie_sim::{Arch, Options, Topology, choose_best};
use readers_common::texts;

/// GPUs of each group, "01 23" for [[0, 1], [2, 3]].
fn shown(groups: &[Vec<usize>]) -> String {
    let digits = |g: &Vec<usize>| g.iter().map(|i| i.to_string()).collect::<String>();
    groups.iter().map(digits).collect::<Vec<_>>().join(" ")
}

fn sockets(spec: &BoxSpec) -> String {
    spec.gpu_sockets()
        .iter()
        .map(|s| s.unwrap_or("cpu-").replace("cpu", ""))
        .collect()
}

/// File, socket of each GPU, switch groups, PCIe class of 0-1, 0-2 and 0-last, GPU link of 0-1 in
/// GB/s (0: none), from the `.source` notes and the files, by hand.
#[rustfmt::skip]
const READ: &[(&str, &str, &str, [PathClass; 3], f64)] = {
    use PathClass::*;
    &[
    ("aws-p4de-24xl.xml", "00001111", "01 23 45 67", [SameSwitch, SameSocket, CrossSocket], 300.0),
    ("azure-ndv2.xml", "00001111", "", [SameSocket, SameSocket, CrossSocket], 0.0),
    ("azure-ndv4.xml", "00001111", "01 23 45 67", [SameSwitch, SameSocket, CrossSocket], 0.0),
    ("azure-ndv5.xml", "00001111", "0 1 2 3 4 5 6 7", [SameSocket, SameSocket, CrossSocket], 0.0),
    ("oci-topo-flattened-b4.xml", "00001111", "01 23 45 67", [SameSwitch, SameSocket, CrossSocket], 0.0),
    ("nccl-6x4090-flat-numa-minus1.partial.xml", "00000", "", [SameSocket, SameSocket, SameSocket], 0.0),
    ("rccl-topo_8p_pcie.xml", "00000000", "0123 4567", [SameSwitch, SameSwitch, SameSocket], 0.0),
    ("rccl-topo_8p_pcie_2nic.xml", "00000000", "0123 4567", [SameSwitch, SameSwitch, SameSocket], 0.0),
    ("rccl-topo_8p_rome.xml", "00001111", "", [SameSocket, SameSocket, CrossSocket], 46.0),
    ("lspci-vv-asus-bcm-2s-8x.txt", "00001111", "01 23 45 67", [SameSwitch, SameSocket, CrossSocket], 0.0),
    ("lspci-t-2x5090-am5.txt", "00", "", [SameRoot, SameRoot, SameRoot], 0.0),
    ("topo-m-2gpu-nv2.txt", "00", "", [SameSocket, SameSocket, SameSocket], 50.0),
    ("topo-m-2gpu-phb.txt", "00", "", [SameRoot, SameRoot, SameRoot], 0.0),
    ("topo-m-4gpu-node-direct.txt", "0000", "", [SameSocket, SameSocket, SameSocket], 0.0),
    ("topo-m-4x3090-nv4pairs-phb-node.txt", "0000", "", [SameRoot, SameSocket, SameSocket], 0.0),
    ("topo-m-8gpu-1s-2switch-pix-phb.txt", "00000000", "0123 4567", [SameSwitch, SameSwitch, SameRoot], 0.0),
    ("topo-m-8gpu-2s-phb-sys.txt", "00001111", "", [SameRoot, SameRoot, CrossSocket], 0.0),
    ("topo-m-8x4090-all-sys-nps4.txt", "00001111", "", [SameSocket, SameSocket, CrossSocket], 0.0),
    ("topo-m-8xA100-nv12.txt", "00001111", "", [SameSocket, SameSocket, CrossSocket], 300.0),
    ("topo-m-8xH100-nv18.txt", "00001111", "", [SameSocket, SameSocket, CrossSocket], 450.0),
    ("topo-m-asus-bcm-2s-8x.txt", "00001111", "01 23 45 67", [SameSwitch, SameSocket, CrossSocket], 0.0),
    ("topo-m-wrx90-3sw-1s-8x.txt", "00000000", "01 23 45 67", [SameSwitch, RootSwitch, SameSocket], 0.0),
    ("topo-p2p-2x5090-gns.txt", "00", "", [SameSocket, SameSocket, SameSocket], 0.0),
    ("t-00-topo-m-8xh100-12nics-6gpus-in-smi.txt", "00001111", "", [SameSocket, SameSocket, CrossSocket], 450.0),
    ("t-03-topo-p2p-8gpu-all-ok-doc-indent.rst", "00001111", "", [SameSocket, SameSocket, CrossSocket], 0.0),
    ("t-04-2x3090-nvlink-shell-session.txt", "00", "", [SameSocket, SameSocket, SameSocket], 56.248),
    ("t-06-4xa4000-threadripper-label-glued.md", "0000", "", [SameSocket, SameSocket, SameSocket], 0.0),
    ("t-07-4xl4-lonely-gpu0-edited-columns.txt", "0111", "", [CrossSocket, CrossSocket, CrossSocket], 0.0),
    ("t-09-4xa40-pxb-pairs.txt", "0011", "01 23", [SameSwitch, CrossSocket, CrossSocket], 0.0),
    ("t-10-4xa100-square-nvlink-ragged.txt", "0000", "", [SameSocket, SameSocket, SameSocket], 25.0),
    ("t-12-4gpu-sys-one-numa-mixed-tabs-blanks.md", "0000", "", [SameSocket, SameSocket, SameSocket], 0.0),
    ("t-13-rig-report-2x3090-kmd-umd-header.md", "00", "", [SameSocket, SameSocket, SameSocket], 56.248),
    ("t-18-lspci-t-x10drg-flat.txt", "0011", "", [SameRoot, CrossSocket, CrossSocket], 0.0),
    ("t-24-lspci-vvv-h100-behind-pex890.txt", "0", "0", [SameSocket, SameSocket, SameSocket], 0.0),
    ("t-25-lspci-filtered-8xh100-acs-on-nvswitch-only.txt", "00001111", "0 1 2 3 4 5 6 7", [SameSocket, SameSocket, CrossSocket], 450.0),
    ("t-27-acs-on-amd-root-port-mi100.md", "00", "01", [SameSwitch, SameSwitch, SameSwitch], 0.0),
    ("t-33-lstopo-xml-power8-nvlink-to-cpu.xml", "0011", "", [SameSocket, CrossSocket, CrossSocket], 40.0),
    ]
};

/// File and the one line that refuses it.
const REFUSED: &[(&str, &str)] = &[
    (
        "aws-g5.48xl.xml",
        "the XML gives no class for its 9 devices, so GPUs and NICs cannot be told apart",
    ),
    (
        "t-01-topo-m-8gpu-all-sys-then-8xh100.md",
        "line 29: a second, different matrix (the first is at line 7)",
    ),
    (
        "t-15-lspci-nn-8xa100-vm-domains.txt",
        "each of the 8 GPUs sits in a PCI domain of its own",
    ),
    (
        "t-16-smi-q-8xrtx6000-idle-gen1.txt",
        "`nvidia-smi -q` shows each card but not how they are joined",
    ),
    (
        "t-19-smi-q-4090-wddm-x8.txt",
        "`nvidia-smi -q` shows each card",
    ),
    (
        "t-21-smi-xml-1070ti-dtd10-minimal.xml",
        "`nvidia-smi -q` shows each card",
    ),
    (
        "t-22-smi-xml-3090-passthrough-redacted.xml",
        "`nvidia-smi -q` shows each card",
    ),
    (
        "t-28-acs-quoted-mail-manually-edited.txt",
        "no GPU in this lspci listing",
    ),
    (
        "t-30-dmesg-iommu-off-but-translated-line.txt",
        "a kernel log does not show",
    ),
    (
        "t-31-dmesg-amdvi-on-groups-no-gpu.txt",
        "a kernel log does not show",
    ),
    (
        "t-34-lstopo-xml-gb10-no-pci.xml",
        "no GPU in this lstopo XML",
    ),
];

fn read(name: &str) -> Option<BoxSpec> {
    let (_, text) = texts().into_iter().find(|(have, _)| have == name)?;
    Some(readers::read(&text, &Hints::default()).unwrap_or_else(|e| panic!("{name}: {e}")))
}

#[test]
fn every_real_file_is_read_as_its_source_says_or_refused_with_the_reason() {
    for (name, text) in texts() {
        let result = readers::read(&text, &Hints::default());
        if let Some((_, why)) = REFUSED.iter().find(|(have, _)| *have == name) {
            let message = result.expect_err(&name).to_string();
            assert!(
                message.starts_with(why) && message.lines().count() == 1,
                "{name}: {message}"
            );
            continue;
        }
        let Some((_, on, groups, classes, gb_s)) = READ.iter().find(|r| r.0 == name) else {
            panic!("{name} is in neither table");
        };
        let spec = result.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(sockets(&spec), *on, "{name}: sockets");
        assert_eq!(
            shown(&spec.switch_groups()),
            *groups,
            "{name}: switch groups"
        );
        let last = spec.gpu_count() - 1;
        for (peer, class) in [1, 2, last].iter().zip(classes) {
            let peer = format!("gpu{}", peer.min(&last));
            if peer != "gpu0" {
                assert_eq!(
                    spec.pcie_class("gpu0", &peer),
                    Some(*class),
                    "{name}: gpu0 to {peer}"
                );
            }
        }
        assert_eq!(
            spec.gpu_link_gb_s("gpu0", "gpu1").unwrap_or(0.0),
            *gb_s,
            "{name}: GPU link"
        );
        assert_eq!(
            BoxSpec::from_toml(&spec.to_toml().unwrap()).unwrap(),
            spec,
            "{name}: round trip"
        );
    }
}

#[test]
fn every_real_file_and_every_catalogue_box_simulates() {
    let named = pcie_sim::catalog::names().map(|n| (n.to_string(), pcie_sim::catalog::find(n)));
    let read = texts()
        .into_iter()
        .map(|(name, text)| (name, readers::read(&text, &Hints::default())))
        .filter(|(_, r)| r.is_ok());
    for (name, spec) in named.chain(read) {
        let topology = Topology::from_spec(&spec.unwrap(), Arch::BLACKWELL)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let ranks: Vec<usize> = (0..topology.gpu_count()).collect();
        let best = choose_best(&topology, &ranks, 57_344, &Options::default());
        let time = best.unwrap_or_else(|e| panic!("{name}: {e}")).1.time_us;
        let sane = if ranks.len() == 1 {
            time == 0.0
        } else {
            time > 1.0 && time < 10_000.0
        };
        assert!(sane, "{name}: {time} us");
    }
}

#[test]
fn peer_access_and_acs_are_read_where_they_are_shown() {
    let Some(refused) = read("topo-p2p-2x5090-gns.txt") else {
        return;
    };
    assert_eq!(refused.p2p, P2p::Off);
    assert!(
        refused
            .assumptions
            .iter()
            .any(|a| a.what.contains("GNS: GPU not supported"))
    );
    assert_eq!(
        read("t-13-rig-report-2x3090-kmd-umd-header.md")
            .unwrap()
            .p2p,
        P2p::On
    );
    // ACS is on above the NVSwitches only; capabilities (ACSCap) do not count.
    let hgx = read("t-25-lspci-filtered-8xh100-acs-on-nvswitch-only.txt").unwrap();
    assert_eq!(hgx.acs, Some(Acs::Off));
    assert_eq!(
        read("t-24-lspci-vvv-h100-behind-pex890.txt").unwrap().acs,
        Some(Acs::Off)
    );
    // Only the root port is shown: undecided.
    assert_eq!(
        read("t-27-acs-on-amd-root-port-mi100.md").unwrap().acs,
        None
    );
}

#[test]
fn node_between_switches_lists_the_wirings_it_may_stand_for() {
    let Some(spec) = read("topo-m-asus-bcm-2s-8x.txt") else {
        return;
    };
    let node = spec
        .assumptions
        .iter()
        .find(|a| a.what.starts_with("NODE"))
        .unwrap();
    assert!(
        node.what.contains("virtual switches of one chip"),
        "{}",
        node.what
    );
    assert!(
        node.settles_it.contains("two copies at once"),
        "{}",
        node.settles_it
    );
    // lspci shows the same box with its uplinks: no such question.
    let lspci = read("lspci-vv-asus-bcm-2s-8x.txt").unwrap();
    assert!(
        lspci
            .nodes
            .iter()
            .any(|n| n.model.as_deref() == Some("pex890xx") && n.pcie_gen == Some(5))
    );
    assert_eq!(lspci.switch_groups(), spec.switch_groups());
    assert_eq!(lspci.gpu.as_deref(), Some("rtx-pro-6000-server"));
}

#[test]
fn idle_gen1_links_are_read_by_capability() {
    let Some(spec) = read("lspci-vv-asus-bcm-2s-8x.txt") else {
        return;
    };
    assert!(
        spec.gpus()
            .iter()
            .all(|g| g.pcie_gen == Some(5) && g.lanes == Some(16))
    );
    assert!(spec.assumptions.iter().any(|a| a.what.contains("idle")));
}

#[test]
fn power8_has_nvlink_to_the_cpu_and_the_slower_end_of_its_slots() {
    let Some(spec) = read("t-33-lstopo-xml-power8-nvlink-to-cpu.xml") else {
        return;
    };
    let to_cpu = spec
        .links
        .iter()
        .filter(|l| l.kind == LinkKind::Nvlink && l.b.starts_with("cpu"));
    assert_eq!(to_cpu.map(|l| l.gb_s).collect::<Vec<_>>(), [40.0; 4]);
    assert_eq!(spec.gpu_link_gb_s("gpu0", "gpu2"), None);
    assert!(
        spec.gpus()
            .iter()
            .all(|g| (g.pcie_gen, g.lanes) == (Some(3), Some(8)))
    );
}

#[test]
fn desktop_slot_pair_is_taken_as_x8() {
    let Some(spec) = read("lspci-t-2x5090-am5.txt") else {
        return;
    };
    assert!(spec.gpus().iter().all(|g| g.lanes == Some(8)));
    let buses: Vec<_> = spec.gpus().iter().map(|g| g.bus.clone().unwrap()).collect();
    assert_eq!(buses, ["0000:01:00.0", "0000:03:00.0"]);
}

/// "every slot runs at the card's Gen5 x16" stood beside "x8 each".
#[test]
fn one_box_is_not_assumed_to_have_two_widths() {
    let listing = "-[0000:00]-+-00.0  AMD Root Complex\n           \
                   +-01.1-[01]----00.0  NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell]\n           \
                   \\-01.3-[02]----00.0  NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell]\n";
    let spec = pcie_sim::readers::read(listing, &Hints::default()).expect("a box");
    let widths: Vec<_> = spec
        .assumptions
        .iter()
        .filter(|a| a.what.contains(" x8") || a.what.contains(" x16"))
        .collect();
    assert_eq!(widths.len(), 1, "{widths:?}");
    assert!(spec.gpus().iter().all(|gpu| gpu.lanes == Some(8)));
}

/// Figures of readings.jsonl for these files: gpus, memory and BAR1 in MiB.
#[test]
#[rustfmt::skip]
fn facts_beside_the_wiring_are_found() {
    type Row = (&'static str, Option<usize>, Option<u64>, Option<u64>);
    let table: &[Row] = &[
        ("t-03-topo-p2p-8gpu-all-ok-doc-indent.rst", Some(8), None, None),
        ("t-04-2x3090-nvlink-shell-session.txt", Some(2), None, None),
        ("t-06-4xa4000-threadripper-label-glued.md", Some(4), Some(16376), None),
        ("t-07-4xl4-lonely-gpu0-edited-columns.txt", Some(4), None, None),
        ("t-09-4xa40-pxb-pairs.txt", Some(4), None, None),
        ("t-10-4xa100-square-nvlink-ragged.txt", Some(4), None, None),
        ("t-12-4gpu-sys-one-numa-mixed-tabs-blanks.md", Some(4), None, None),
        ("t-13-rig-report-2x3090-kmd-umd-header.md", Some(2), Some(24576), None),
        ("t-15-lspci-nn-8xa100-vm-domains.txt", Some(8), None, None),
        ("t-16-smi-q-8xrtx6000-idle-gen1.txt", Some(8), Some(97887), Some(131072)),
        ("t-19-smi-q-4090-wddm-x8.txt", Some(1), Some(24564), Some(32768)),
        ("t-21-smi-xml-1070ti-dtd10-minimal.xml", Some(1), Some(4096), None),
        ("t-22-smi-xml-3090-passthrough-redacted.xml", Some(1), Some(24576), Some(32768)),
        ("t-28-acs-quoted-mail-manually-edited.txt", None, None, None),
        ("t-31-dmesg-amdvi-on-groups-no-gpu.txt", None, None, None),
        ("t-33-lstopo-xml-power8-nvlink-to-cpu.xml", Some(4), None, None),
        ("t-34-lstopo-xml-gb10-no-pci.xml", None, None, None),
    ];
    for (name, text) in texts() {
        let facts = readers::facts(&text);
        if name.starts_with("t-00") {
            assert_eq!(facts.memory_mib, Some(81559), "{name}");
        }
        if name.starts_with("t-01") {
            assert_eq!(facts.gpus, Some(8), "{name}: both machines have eight");
        }
        let Some((_, gpus, memory, bar1)) = table.iter().find(|r| r.0 == name) else { continue };
        assert_eq!((facts.gpus, facts.memory_mib, facts.bar1_mib), (*gpus, *memory, *bar1), "{name}");
    }
}

#[test]
fn the_card_s_name_is_found_where_the_text_has_it() {
    let table = [
        ("t-00", "NVIDIA H100 80GB HBM3"),
        ("t-04", "GeForce RTX 3090"),
        ("t-06", "NVIDIA RTX A4000"),
        ("t-13", "GeForce RTX 3090"),
        ("t-16", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("t-25", "h100-sxm"),
    ];
    for (name, text) in texts() {
        let label = readers::facts(&text).gpu_label;
        if let Some((_, expected)) = table.iter().find(|(start, _)| name.starts_with(start)) {
            assert_eq!(label.as_deref(), Some(*expected), "{name}");
        }
    }
    let named =
        "01:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)";
    assert_eq!(
        readers::facts(named).gpu_label.as_deref(),
        Some("GeForce RTX 3090")
    );
    let audio = "01:00.1 Audio device: NVIDIA Corporation GA102 High Definition Audio [x] (rev a1)";
    assert_eq!(readers::facts(audio).gpu_label, None);
}

#[test]
fn any_gpu_on_any_topology_is_answered_or_refused_in_one_line() {
    let gpus = [
        ("rtx-4090", 4, 0.0, GpuLinks::None),
        ("rtx-3090", 4, 56.25, GpuLinks::Bridge),
        ("h100-sxm", 5, 450.0, GpuLinks::Switch),
        ("v100-32gb-sxm", 3, 150.0, GpuLinks::Mesh),
        ("mi300x", 5, 448.0, GpuLinks::Mesh),
        ("rtx-pro-6000", 5, 0.0, GpuLinks::None),
    ];
    let (mut answered, mut refused) = (0, 0);
    for (name, text) in texts() {
        for (gpu, pcie_gen, gpu_link_gb_s, gpu_links) in gpus {
            for count in [None, Some(1), Some(2), Some(4), Some(8), Some(64)] {
                let gpu = GpuWiring {
                    name: gpu.into(),
                    pcie_gen,
                    lanes: 16,
                    gpu_link_gb_s,
                    gpu_links,
                };
                let hints = Hints {
                    name: None,
                    gpu: Some(gpu),
                    gpus: count,
                    p2p: Some(P2p::Off),
                };
                match readers::read(&text, &hints) {
                    Ok(spec) => {
                        answered += 1;
                        assert!(count.is_none_or(|n| n == spec.gpu_count()), "{name}");
                        assert_eq!(
                            spec.gpu,
                            hints.gpu.map(|g| g.name),
                            "{name}: the flag names the GPU"
                        );
                        spec.check().unwrap();
                    }
                    Err(e) => {
                        refused += 1;
                        let line = e.to_string();
                        assert!(
                            line.lines().count() == 1 && line.len() < 700,
                            "{name}: {line}"
                        );
                    }
                }
            }
        }
    }
    println!("{answered} answered, {refused} refused");
}
