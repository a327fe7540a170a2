//! NCCL and RCCL topology XML: `NCCL_TOPO_DUMP_FILE` dumps, and the files that clouds ship.

use super::pci::{Device, DeviceKind, Tree, address_key, gen_of_rate, lanes_of};
use super::xml::{self, Document, Element};
use super::{Hints, ReadError, devices};
use crate::box_spec::{BoxSpec, Link, LinkKind, Node, NodeKind};

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
            // CPUID's families as NCCL adds them up: 17h, 19h (Zen 3 and 4), 1Ah (Zen 5).
            Some("AuthenticAMD") => Some(match cpu.get("familyid").map(str::trim) {
                Some("143") => "amd-family-17h",
                Some("175") => "amd-family-19h",
                Some("191") => "amd-turin",
                _ => "amd",
            }),
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
    walk.number_gpus();
    walk.check_addresses()?;
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
    /// Puts GPUs in CUDA order: by `dev`, else by PCI address, as CUDA numbers equal GPUs.
    fn number_gpus(&mut self) {
        if self.gpus.iter().all(|g| g.dev.is_some()) {
            self.gpus.sort_by_key(|g| g.dev);
            return;
        }
        let devices = &self.devices;
        self.gpus.sort_by_key(|g| {
            devices
                .get(g.device)
                .map(|d| address_key(&d.bus))
                .unwrap_or_default()
        });
    }

    fn check_addresses(&self) -> Result<(), ReadError> {
        let mut seen: Vec<&str> = self.devices.iter().map(|d| d.bus.as_str()).collect();
        seen.sort_unstable();
        match seen.windows(2).find(|w| w[0] == w[1]) {
            Some(twice) => Err(ReadError::new(
                None,
                format!("two devices have the busid {}", twice[0]),
                "keep the file of one machine",
            )),
            None => Ok(()),
        }
    }

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

/// Most link elements kept: 64 GPUs with 18 links each list fewer.
const SHOWN_MAX: usize = 2048;

/// One `<nvlink>` or `<xgmi>` element of GPU `from`.
struct Shown {
    from: usize,
    /// The other GPU; None: an NVSwitch.
    to: Option<usize>,
    kind: LinkKind,
    gb_s: f64,
}

/// All link elements between GPUs and to NVSwitches.
fn shown(doc: &Document, gpus: &[Found], tree: &Tree) -> Vec<Shown> {
    let bus_of = |g: &Found| tree.devices.get(g.device).map(|d| d.bus.as_str());
    let mut out = Vec::new();
    for (from, gpu) in gpus.iter().enumerate() {
        let owner = doc.elements.get(gpu.element);
        let sm = owner.and_then(|e| e.get("sm")?.parse().ok()).unwrap_or(0);
        let gcn = owner.and_then(|e| e.get("gcn")).unwrap_or("");
        for (_, e) in doc.children(gpu.element) {
            let (kind, rate) = match e.name {
                "nvlink" => (LinkKind::Nvlink, nvlink_rate(sm)),
                "xgmi" => (LinkKind::Xgmi, xgmi_rate(gcn)),
                _ => continue,
            };
            let count = e
                .get("count")
                .and_then(|c| c.parse::<u32>().ok())
                .unwrap_or(1);
            let target = e.get("target").unwrap_or("").to_lowercase();
            let to = gpus.iter().position(|g| bus_of(g) == Some(target.as_str()));
            let switch = e.get("tclass").is_some_and(|c| c.starts_with("0x0680"));
            // 64 links is far above any GPU; links to a CPU carry no GPU traffic.
            if out.len() < SHOWN_MAX
                && (1..=64).contains(&count)
                && to != Some(from)
                && (to.is_some() || switch)
            {
                out.push(Shown {
                    from,
                    to,
                    kind,
                    gb_s: rate * f64::from(count),
                });
            }
        }
    }
    out
}

/// Adds the link elements, each pair once.
fn links(doc: &Document, gpus: &[Found], tree: &Tree, spec: &mut BoxSpec) {
    let found = shown(doc, gpus, tree);
    if found.is_empty() {
        return;
    }
    // What the file shows replaces what was assumed for the GPU model.
    let gpu_end = |l: &Link| l.a.starts_with("gpu") || l.b.starts_with("gpu");
    spec.links.retain(|l| !gpu_end(l));
    spec.nodes.retain(|n| n.kind != NodeKind::Nvswitch);
    spec.assumptions
        .retain(|a| !a.what.contains("NV") && !a.what.contains("joined directly"));
    for link in &found {
        let Some(to) = link.to else { continue };
        // Both ends list a pair as a rule; then the lower index adds it.
        let both = found
            .iter()
            .any(|o| o.from == to && o.to == Some(link.from));
        if link.from < to || !both {
            let (a, b) = (format!("gpu{}", link.from), format!("gpu{to}"));
            spec.links.push(Link {
                a,
                b,
                kind: link.kind,
                gb_s: link.gb_s,
            });
        }
    }
    for i in 0..gpus.len() {
        let to_switch = found.iter().filter(|l| l.from == i && l.to.is_none());
        let gb_s: f64 = to_switch.map(|l| l.gb_s).sum();
        if gb_s > 0.0 {
            let (a, b) = (format!("gpu{i}"), "nvswitch".to_string());
            spec.links.push(Link {
                a,
                b,
                kind: LinkKind::Nvlink,
                gb_s,
            });
        }
    }
    if spec.links.iter().any(|l| l.b == "nvswitch") {
        spec.nodes
            .push(Node::top("nvswitch".to_string(), NodeKind::Nvswitch));
    }
}
