//! hwloc's XML (`lstopo --of xml`): packages, bridges with link speeds, NVLink as distances.

use super::pci::{Device, DeviceKind, Tree, address_key};
use super::xml::{self, Document};
use super::{Hints, ReadError, devices};
use crate::box_spec::{BoxSpec, Link, LinkKind};

/// Rate of one lane, GB/s, Gen1 to Gen6 (2.5, 5 GT/s with 8b/10b; 8 to 32 with 128b/130b; 64).
const LANE_GB_S: [f64; 6] = [0.25, 0.5, 0.984_615, 1.969_231, 3.938_462, 7.563];

pub(super) fn read(text: &str, hints: &Hints) -> Result<BoxSpec, ReadError> {
    let doc = xml::parse(text, "topology")?;
    let mut walk = Walk {
        doc: &doc,
        devices: Vec::new(),
        roots: Vec::new(),
        owners: Vec::new(),
        packages: Vec::new(),
    };
    walk.descend(0, None, None, None);
    let mut gpus: Vec<usize> = (0..walk.devices.len())
        .filter(|i| {
            walk.devices
                .get(*i)
                .is_some_and(|d| d.kind == DeviceKind::Gpu)
        })
        .collect();
    gpus.sort_by_key(|i| {
        walk.devices
            .get(*i)
            .map(|d| address_key(&d.bus))
            .unwrap_or_default()
    });
    if gpus.is_empty() {
        return Err(ReadError::new(
            None,
            "no GPU in this lstopo XML (an integrated GPU is not listed)",
            "give --gpu and --gpus, or `nvidia-smi topo -m`",
        ));
    }
    let Walk {
        devices,
        roots,
        owners,
        packages,
        ..
    } = walk;
    let tree = Tree {
        devices,
        by_port: true,
        gpus,
        roots,
        cpu: None,
        what: "lstopo XML",
    };
    let mut spec = tree.build(hints)?;
    distances(&doc, &tree, &owners, &packages, &mut spec);
    Ok(spec)
}

struct Walk<'d, 'a> {
    doc: &'d Document<'a>,
    devices: Vec<Device>,
    roots: Vec<Option<String>>,
    /// gp_index of an OS or PCI device, and the PCI device that carries it.
    owners: Vec<(String, usize)>,
    /// gp_index of each package, in order.
    packages: Vec<String>,
}

impl Walk<'_, '_> {
    fn descend(
        &mut self,
        element: usize,
        parent: Option<usize>,
        package: Option<u32>,
        root: Option<&str>,
    ) {
        let doc = self.doc;
        for (index, e) in doc.children(element).filter(|(_, e)| e.name == "object") {
            let gp = e.get("gp_index").unwrap_or("").to_string();
            match e.get("type") {
                Some("Package") => {
                    let number = u32::try_from(self.packages.len()).ok();
                    self.packages.push(gp);
                    self.descend(index, parent, number, root);
                }
                Some("Bridge") if e.get("bridge_type").is_some_and(|t| t.starts_with("0-")) => {
                    let name = e
                        .get("bridge_pci")
                        .and_then(|b| Some(b.split('-').next()?.replace('[', "")));
                    self.descend(index, None, package, name.as_deref());
                }
                Some(kind @ ("Bridge" | "PCIDev")) => {
                    let class = e.get("pci_type").unwrap_or("");
                    let what = if kind == "Bridge" {
                        DeviceKind::Bridge
                    } else {
                        kind_of(class)
                    };
                    let mut device = Device::new(e.get("pci_busid").unwrap_or(""), what, parent);
                    let speed = e
                        .get("pci_link_speed")
                        .and_then(|s| s.parse().ok())
                        .and_then(port);
                    device.pcie_gen = speed.map(|(g, _)| g);
                    device.lanes = speed.map(|(_, w)| w);
                    device.numa = package;
                    device.model = (what == DeviceKind::Gpu).then(|| model(class)).flatten();
                    let id = self.devices.len();
                    self.devices.push(device);
                    self.roots.push(root.map(str::to_string));
                    self.owners.push((gp, id));
                    self.descend(index, Some(id), package, root);
                }
                Some("OSDev") => {
                    if let Some(id) = parent {
                        self.owners.push((gp, id));
                    }
                }
                _ => self.descend(index, parent, package, root),
            }
        }
    }
}

/// `0302 [10de:15f9] …` as a kind: GPUs of NVIDIA and AMD, network cards.
fn kind_of(class: &str) -> DeviceKind {
    match class.get(..4) {
        Some("0300" | "0302" | "0380" | "1200")
            if class.contains("[10de:") || class.contains("[1002:") =>
        {
            DeviceKind::Gpu
        }
        Some("0200" | "0207") => DeviceKind::Nic,
        Some("0680") if class.contains("[10de:") => DeviceKind::Nvswitch,
        _ => DeviceKind::Other,
    }
}

fn model(class: &str) -> Option<String> {
    let id = class.split("[10de:").nth(1)?.get(..4)?;
    devices::nvidia(u32::from_str_radix(id, 16).ok()?).map(|(name, _)| name.to_string())
}

/// Generation and lanes of a link speed in GB/s: the nearest, the wider on a tie.
fn port(gb_s: f64) -> Option<(u8, u8)> {
    let mut best: Option<(f64, u8, u8)> = None;
    for lanes in [16_u8, 8, 4, 2, 1] {
        for (pcie_gen, lane) in (1_u8..).zip(LANE_GB_S) {
            let off = (gb_s / (lane * f64::from(lanes))).ln().abs();
            if off < 0.05 && best.is_none_or(|(least, _, _)| off < least - 1e-3) {
                best = Some((off, pcie_gen, lanes));
            }
        }
    }
    best.map(|(_, pcie_gen, lanes)| (pcie_gen, lanes))
}

/// Most ends of a distance table: far above the GPUs and packages of one server.
const ENDS_MAX: usize = 512;

/// NVLink bandwidths in MB/s between OS devices and packages.
fn distances(
    doc: &Document,
    tree: &Tree,
    owners: &[(String, usize)],
    packages: &[String],
    spec: &mut BoxSpec,
) {
    let Some((table, _)) = doc
        .children(0)
        .find(|(_, e)| e.get("name") == Some("NVLinkBandwidth"))
    else {
        return;
    };
    let joined = |name: &str| -> Vec<&str> {
        doc.children(table)
            .filter(|(_, e)| e.name == name)
            .flat_map(|(_, e)| e.text.split_whitespace())
            .collect()
    };
    let node_of = |index: &&str| -> Option<String> {
        let (kind, gp) = index.split_once(':').unwrap_or(("OSDev", index));
        if kind == "Package" {
            let number = packages.iter().position(|p| p == gp)?;
            return Some(format!("cpu{number}"));
        }
        let (_, device) = owners.iter().find(|(have, _)| have == gp)?;
        Some(format!(
            "gpu{}",
            tree.gpus.iter().position(|g| g == device)?
        ))
    };
    let indexes = joined("indexes");
    if indexes.len() > ENDS_MAX {
        return;
    }
    let ends: Vec<Option<String>> = indexes.iter().map(node_of).collect();
    let values = joined("u64values");
    for (i, a) in ends.iter().enumerate() {
        for (j, b) in ends.iter().enumerate().skip(i + 1) {
            let (Some(a), Some(b)) = (a, b) else { continue };
            let mb_s = values
                .get(i * ends.len() + j)
                .and_then(|v| v.parse::<u32>().ok())
                .unwrap_or(0);
            let known = |id: &str| spec.nodes.iter().any(|n| n.id == id);
            if mb_s > 0
                && a != b
                && known(a)
                && known(b)
                && (a.starts_with("gpu") || b.starts_with("gpu"))
            {
                let (a, b) = (a.clone(), b.clone());
                spec.links.push(Link {
                    a,
                    b,
                    kind: LinkKind::Nvlink,
                    gb_s: f64::from(mb_s) / 1000.0,
                });
            }
        }
    }
}
