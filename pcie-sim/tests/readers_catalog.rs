//! The box catalogue: every file is listed, valid and sourced; the data's boxes have their wiring.

use pcie_sim::box_spec::{BoxSpec, FabricState, GpuLinks, GpuWiring, NodeKind, P2p, PathClass};
use pcie_sim::catalog;

#[test]
fn every_catalogue_file_is_listed_valid_sourced_and_named_as_its_file() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/catalog");
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|f| {
            f.unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .replace(".toml", "")
        })
        .collect();
    files.sort();
    assert_eq!(files, catalog::names().collect::<Vec<_>>());
    for name in &files {
        let spec = catalog::find(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(&spec.name, name);
        assert!(spec.source.is_some(), "{name}");
        assert_eq!(
            BoxSpec::from_toml(&spec.to_toml().unwrap()).unwrap(),
            spec,
            "{name}"
        );
        for i in 0..spec.gpu_count() {
            assert_eq!(spec.gpus()[i].id, format!("gpu{i}"), "{name}: GPU order");
            for j in 0..i {
                let (a, b) = (&spec.gpus()[i].id, &spec.gpus()[j].id);
                assert!(spec.path_class(a, b).is_some(), "{name}: no route {a} {b}");
            }
        }
        if spec.socket_count() > 1 {
            let sockets: Vec<_> = spec
                .nodes
                .iter()
                .filter(|n| n.kind == NodeKind::Socket)
                .collect();
            assert!(
                spec.links
                    .iter()
                    .any(|l| l.a == sockets[0].id && l.b == sockets[1].id),
                "{name}"
            );
        }
    }
}

/// (box, sockets, switch groups, chip groups) from boxes.json, read by hand.
#[test]
fn boxes_of_the_data_have_the_wiring_that_their_pages_describe() {
    let pairs = vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]];
    let halves = vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
    let crossed = vec![vec![0, 1, 4, 5], vec![2, 3, 6, 7]];
    let fours: Vec<Vec<usize>> = (0..4).map(|k| (4 * k..4 * k + 4).collect()).collect();
    let table = [
        ("asus-bcm-2s-8x", 2, pairs.clone(), halves.clone()),
        ("two-switch-8", 2, pairs.clone(), halves.clone()),
        ("wrx90-2vs-1s-8x", 1, pairs.clone(), crossed),
        ("wrx90-3sw-1s-8x", 1, pairs.clone(), halves.clone()),
        ("turin-1s-4sw-16x", 1, fours.clone(), fours),
        ("nccl1439-8x3090", 2, pairs.clone(), pairs),
        ("vllm50941-8xA800", 2, halves.clone(), halves),
        ("builderB-turin-2s-direct-8x", 2, vec![], vec![]),
        ("builderD-turin-2s-6x", 2, vec![], vec![]),
        ("ikllama258-3x3090", 1, vec![], vec![]),
    ];
    for (name, sockets, switches, chips) in table {
        let spec = catalog::find(name).unwrap();
        assert_eq!(spec.socket_count(), sockets, "{name}");
        assert_eq!(spec.switch_groups(), switches, "{name}");
        assert_eq!(spec.chip_groups(), chips, "{name}");
    }
    let root = catalog::find("wrx90-3sw-1s-8x").unwrap();
    assert_eq!(root.path_class("gpu0", "gpu4"), Some(PathClass::RootSwitch));
    let two = catalog::find("two-switch-8").unwrap();
    assert_eq!(two.fabric.as_ref().unwrap().state, FabricState::Collapsed);
    assert_eq!(two.path_class("gpu0", "gpu2"), Some(PathClass::SameChip));
    assert_eq!(two.path_class("gpu0", "gpu4"), Some(PathClass::CrossSocket));
}

#[test]
fn an_unknown_box_lists_near_matches() {
    let message = catalog::find("two-swich-8").unwrap_err().to_string();
    assert_eq!(
        message,
        "no box is called 'two-swich-8'; near matches: two-switch-8"
    );
    assert!(catalog::find("DGX-H100").is_ok());
    assert!(catalog::find("").unwrap_err().to_string().contains("--gpu"));
    assert!(catalog::near("h200").contains(&"hgx-h200-8"));
}

fn wiring(name: &str, gpu_link_gb_s: f64, gpu_links: GpuLinks) -> GpuWiring {
    GpuWiring {
        name: name.into(),
        pcie_gen: 5,
        lanes: 16,
        gpu_link_gb_s,
        gpu_links,
    }
}

#[test]
fn a_box_from_gpu_and_count_lists_what_it_assumed() {
    let pcie = BoxSpec::flat(&wiring("rtx-5090", 0.0, GpuLinks::None), 8, P2p::Off).unwrap();
    assert_eq!(pcie.socket_count(), 2);
    assert_eq!(
        pcie.path_class("gpu0", "gpu7"),
        Some(PathClass::CrossSocket)
    );
    assert_eq!(pcie.assumptions.len(), 2, "{:?}", pcie.assumptions);
    let sxm = BoxSpec::flat(&wiring("h100-sxm", 450.0, GpuLinks::Switch), 8, P2p::On).unwrap();
    assert_eq!(sxm.gpu_link_gb_s("gpu0", "gpu7"), Some(450.0));
    let one = BoxSpec::flat(&wiring("l4", 0.0, GpuLinks::None), 1, P2p::On).unwrap();
    assert!(one.assumptions.is_empty() && one.gpu_count() == 1);
    let v100 = BoxSpec::flat(&wiring("v100-32gb-sxm", 150.0, GpuLinks::Mesh), 8, P2p::On).unwrap();
    for gpu in v100.gpus() {
        let total: f64 = v100
            .links
            .iter()
            .filter(|l| l.a == gpu.id || l.b == gpu.id)
            .map(|l| l.gb_s)
            .sum();
        assert_eq!(total, 150.0, "all six links of {} are used", gpu.id);
    }
    assert!(BoxSpec::flat(&wiring("x", 0.0, GpuLinks::None), 0, P2p::On).is_err());
    assert!(BoxSpec::flat(&wiring("x", 0.0, GpuLinks::None), 1000, P2p::On).is_err());
    let bad = GpuWiring {
        pcie_gen: 0,
        ..wiring("x", 0.0, GpuLinks::None)
    };
    assert!(BoxSpec::flat(&bad, 2, P2p::On).is_err());
}
