//! NCCL and RCCL topology XML: `NCCL_TOPO_DUMP_FILE` dumps, and the files that clouds ship.

use super::pci::{Device, DeviceKind, Tree, address_key, gen_of_rate, lanes_of};
use super::xml::{self, Document, Element};
use super::{Hints, ReadError, devices};
use crate::box_spec::{BoxSpec, Link, LinkKind, NodeKind};

pub(super) fn read(text: &str, hints: &Hints) -> Result<BoxSpec, ReadError> {
    let doc = xml::parse(text, "system")?;
    let mut walk = Walk {
        doc: &doc,
        devices: Vec::new(),
        gpus: Vec::new(),
        unclear: 0,
        cpu: None,
    };
    for (index, cpu) in doc.children(0).filter(|(_, e)| e.name == "cpu") {
        let numa = cpu
            .get("numaid")
            .and_then(|v| v.trim().parse::<u32>().ok())
            .filter(|v| *v < 1024);
        walk.cpu = walk.cpu.or(match cpu.get("vendor") {
            Some("AuthenticAMD") => Some("amd"),
            Some("GenuineIntel") => Some("intel"),
            _ => None,
        });
        walk.descend(index, None, numa)?;
    }
    if walk.gpus.is_empty() && walk.unclear > 0 {
        return Err(ReadError::new(
            None,
            format!(
                "the XML gives no class for its {} devices, so GPUs and NICs cannot be told apart",
                walk.unclear
            ),
            "NCCL fills that in on the machine itself: give NCCL_TOPO_DUMP_FILE's output or `nvidia-smi topo -m`",
        ));
    }
    let all_numbered = walk.gpus.iter().all(|g| g.dev.is_some());
    let bus = |g: &Found| {
        walk.devices
            .get(g.device)
            .map(|d| address_key(&d.bus))
            .unwrap_or_default()
    };
    if all_numbered {
        walk.gpus.sort_by_key(|g| g.dev);
    } else {
        // CUDA numbers equal GPUs by PCI address.
        let mut keyed: Vec<(Vec<u64>, Found)> =
            walk.gpus.iter().map(|g| (bus(g), g.clone())).collect();
        keyed.sort_by(|a, b| a.0.cmp(&b.0));
        walk.gpus = keyed.into_iter().map(|(_, g)| g).collect();
    }
    let mut seen: Vec<&str> = walk.devices.iter().map(|d| d.bus.as_str()).collect();
    seen.sort_unstable();
    if let Some(twice) = seen.windows(2).find(|w| w[0] == w[1] && !w[0].is_empty()) {
        return Err(ReadError::new(
            None,
            format!("two devices have the busid {}", twice[0]),
            "keep the file of one machine",
        ));
    }
    let flat = walk.gpus.len() > 1
        && walk.gpus.iter().all(|g| {
            walk.devices
                .get(g.device)
                .is_some_and(|d| d.parent.is_none())
        });
    let gpus = std::mem::take(&mut walk.gpus);
    let roots = vec![None; walk.devices.len()];
    let cpu = walk.cpu.map(str::to_string);
    let devices = std::mem::take(&mut walk.devices);
    let tree = Tree {
        devices,
        by_port: false,
        gpus: gpus.iter().map(|g| g.device).collect(),
        roots,
        cpu,
        what: "NCCL topology XML",
    };
    let mut spec = tree.build(hints)?;
    links(&doc, &gpus, &tree, &mut spec);
    if flat {
        spec.assume(
            "each GPU on its own root port: the XML shows no bridge at all, as NCCL writes where it cannot see them (virtual machines)",
            "`lspci -tv` on the host",
        );
    }
    Ok(spec)
}

/// A GPU of the file.
#[derive(Clone)]
struct Found {
    device: usize,
    element: usize,
    dev: Option<u32>,
}

struct Walk<'d, 'a> {
    doc: &'d Document<'a>,
    devices: Vec<Device>,
    gpus: Vec<Found>,
    unclear: usize,
    cpu: Option<&'static str>,
}

impl Walk<'_, '_> {
    /// Reads the `pci` elements under an element; the scanner bounds the depth.
    fn descend(
        &mut self,
        element: usize,
        parent: Option<usize>,
        numa: Option<u32>,
    ) -> Result<(), ReadError> {
        let doc = self.doc;
        for (index, pci) in doc.children(element).filter(|(_, e)| e.name == "pci") {
            let Some(bus) = pci.get("busid").filter(|b| !b.is_empty() && b.len() < 32) else {
                return Err(ReadError::new(
                    Some(pci.line),
                    "a <pci> without a busid",
                    "copy the file whole",
                ));
            };
            let kind = self.kind(index, pci);
            let mut device = Device::new(&bus.to_lowercase(), kind, parent);
            device.pcie_gen = pci
                .get("link_speed")
                .and_then(|s| gen_of_rate(s.split(' ').next()?.parse().ok()?));
            device.lanes = pci
                .get("link_width")
                .and_then(|w| lanes_of(w.trim().parse().ok()?));
            device.numa = numa;
            device.model = match kind {
                DeviceKind::Gpu => nvidia_id(pci)
                    .and_then(devices::nvidia)
                    .map(|(name, _)| name.to_string()),
                DeviceKind::Bridge => switch_part(pci),
                _ => None,
            };
            let id = self.devices.len();
            self.devices.push(device);
            if kind == DeviceKind::Gpu {
                let gpu = doc.children(index).find(|(_, e)| e.name == "gpu");
                let dev = gpu.and_then(|(_, e)| e.get("dev")?.trim().parse().ok());
                self.gpus.push(Found {
                    device: id,
                    element: gpu.map_or(index, |(i, _)| i),
                    dev,
                });
            }
            self.descend(index, Some(id), numa)?;
        }
        Ok(())
    }

    fn kind(&mut self, index: usize, pci: &Element) -> DeviceKind {
        let has = |name: &str| self.doc.children(index).any(|(_, e)| e.name == name);
        let class = pci
            .get("class")
            .unwrap_or("")
            .trim_start_matches("0x")
            .to_lowercase();
        if has("gpu") {
            return DeviceKind::Gpu;
        }
        if has("nic") {
            return DeviceKind::Nic;
        }
        if class.is_empty() && !has("pci") {
            self.unclear += 1;
            return DeviceKind::Other;
        }
        match class.get(..4) {
            Some("0604") => DeviceKind::Bridge,
            Some("0300" | "0302" | "0380" | "1200") => DeviceKind::Gpu,
            Some("0200" | "0207" | "0280") => DeviceKind::Nic,
            Some("0680") if nvidia_id(pci).is_some() => DeviceKind::Nvswitch,
            _ if has("pci") => DeviceKind::Bridge,
            _ => DeviceKind::Other,
        }
    }
}

fn hex(value: &str) -> Option<u32> {
    u32::from_str_radix(value.trim_start_matches("0x"), 16).ok()
}

fn nvidia_id(pci: &Element) -> Option<u32> {
    (hex(pci.get("vendor")?)? == 0x10de).then(|| hex(pci.get("device")?))?
}

/// Switch part by vendor id: Broadcom 1000, PLX 10b5, Microchip and Microsemi 11f8.
fn switch_part(pci: &Element) -> Option<String> {
    let (vendor, device) = (
        hex(pci.get("vendor")?)?,
        hex(pci.get("device").unwrap_or("0")).unwrap_or(0),
    );
    let part = match (vendor, device) {
        (0x1000, 0xc030) => "pex890xx",
        (0x1000, 0xc010) => "pex880xx",
        (0x1000, _) => "broadcom",
        (0x10b5, _) => "plx",
        (0x11f8, _) => "switchtec",
        _ => return None,
    };
    Some(part.to_string())
}

/// NVLink rate of one link per direction, GB/s, by compute capability times ten (data sheets).
fn nvlink_rate(sm: u32) -> f64 {
    match sm {
        60 => 20.0,
        86 => 14.0625,
        100.. => 50.0,
        _ => 25.0,
    }
}

/// xGMI rate of one link per direction, GB/s, by AMD's architecture number (data sheets: MI50 to
/// MI100 46, MI200 50, MI300 64).
fn xgmi_rate(gcn: &str) -> f64 {
    match gcn.trim_start_matches("gfx") {
        "906" | "908" => 46.0,
        "910" | "90a" => 50.0,
        _ => 64.0,
    }
}

/// Adds `<nvlink>` and `<xgmi>` elements, each pair once.
fn links(doc: &Document, gpus: &[Found], tree: &Tree, spec: &mut BoxSpec) {
    let bus_of = |g: &Found| {
        tree.devices
            .get(g.device)
            .map(|d| d.bus.clone())
            .unwrap_or_default()
    };
    let any = gpus.iter().any(|g| {
        doc.children(g.element)
            .any(|(_, e)| matches!(e.name, "nvlink" | "xgmi"))
    });
    if !any {
        return;
    }
    // What the file shows replaces what was assumed for the GPU model.
    let gpu_end = |l: &Link| l.a.starts_with("gpu") || l.b.starts_with("gpu");
    spec.links.retain(|l| !gpu_end(l));
    spec.nodes.retain(|n| n.kind != NodeKind::Nvswitch);
    spec.assumptions
        .retain(|a| !a.what.contains("NVSwitch") && !a.what.contains("joined directly"));
    let mut switched: Vec<(usize, f64)> = Vec::new();
    for (i, gpu) in gpus.iter().enumerate() {
        let owner = doc.elements.get(gpu.element);
        let sm = owner.and_then(|e| e.get("sm")?.parse().ok()).unwrap_or(0);
        let gcn = owner.and_then(|e| e.get("gcn")).unwrap_or("");
        for (_, e) in doc.children(gpu.element) {
            let count: f64 = e
                .get("count")
                .and_then(|c| c.parse::<u32>().ok())
                .filter(|c| *c <= 64)
                .unwrap_or(1)
                .into();
            let (kind, rate) = match e.name {
                "nvlink" => (LinkKind::Nvlink, nvlink_rate(sm)),
                "xgmi" => (LinkKind::Xgmi, xgmi_rate(gcn)),
                _ => continue,
            };
            let target = e.get("target").unwrap_or("").to_lowercase();
            match gpus.iter().position(|g| bus_of(g) == target) {
                // Both ends list the link; the lower index adds it.
                Some(j) if j > i && count > 0.0 => {
                    let (a, b) = (format!("gpu{i}"), format!("gpu{j}"));
                    spec.links.push(Link {
                        a,
                        b,
                        kind,
                        gb_s: rate * count,
                    });
                }
                Some(_) => {}
                None if e.get("tclass").is_some_and(|c| c.starts_with("0x0680")) && count > 0.0 => {
                    match switched.iter_mut().find(|(have, _)| *have == i) {
                        Some((_, sum)) => *sum += rate * count,
                        None => switched.push((i, rate * count)),
                    }
                }
                None => {}
            }
        }
    }
    if !switched.is_empty() {
        spec.nodes.push(crate::box_spec::Node::top(
            "nvswitch".to_string(),
            NodeKind::Nvswitch,
        ));
        for (i, gb_s) in switched {
            let (a, b) = (format!("gpu{i}"), "nvswitch".to_string());
            spec.links.push(Link {
                a,
                b,
                kind: LinkKind::Nvlink,
                gb_s,
            });
        }
    }
}
