//! `lspci -vv`: devices, bridges with their secondary buses, link capabilities, ACS, NUMA nodes.

use super::pci::{Device, DeviceKind, Tree, address_key, gen_of_rate, lanes_of};
use super::{Hints, ReadError, devices};
use crate::box_spec::BoxSpec;
use std::collections::HashMap;

/// Most devices read: a full server has some 500.
const DEVICES_MAX: usize = 20_000;

pub(super) fn looks_like(lines: &[String]) -> bool {
    lines.iter().any(|l| head(l).is_some())
}

/// Number of GPUs listed.
pub(super) fn gpus(lines: &[String]) -> usize {
    let is_gpu =
        |l: &&String| head(l).is_some_and(|(_, class, name)| kind(class, name) == DeviceKind::Gpu);
    lines.iter().filter(is_gpu).count()
}

/// Address, class and name of a device's first line.
fn head(line: &str) -> Option<(&str, &str, &str)> {
    let (bus, rest) = line.split_once(' ')?;
    let (class, name) = rest.split_once(": ")?;
    (is_address(bus) && !class.is_empty() && class.len() < 60).then_some((bus, class, name))
}

/// "06:00.0" or "0000:06:00.0".
fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let hex = |p: &&str, most: usize| {
        !p.is_empty() && p.len() <= most && p.bytes().all(|b| b.is_ascii_hexdigit())
    };
    text.contains('.')
        && match parts.as_slice() {
            [bus, device, function] => hex(bus, 2) && hex(device, 2) && hex(function, 1),
            [domain, bus, device, function] => {
                hex(domain, 8) && hex(bus, 2) && hex(device, 2) && hex(function, 1)
            }
            _ => false,
        }
}

fn kind(class: &str, name: &str) -> DeviceKind {
    if class.starts_with("PCI bridge") {
        DeviceKind::Bridge
    } else if [
        "3D controller",
        "VGA",
        "Display controller",
        "Processing accel",
    ]
    .iter()
    .any(|c| class.starts_with(c))
    {
        if devices::is_gpu_name(name) {
            DeviceKind::Gpu
        } else {
            DeviceKind::Other
        }
    } else if class.starts_with("Bridge")
        && devices::nvidia_id(name).is_some_and(devices::is_nvswitch)
    {
        DeviceKind::Nvswitch
    } else if ["Ethernet", "Infiniband", "Network"]
        .iter()
        .any(|c| class.starts_with(c))
    {
        DeviceKind::Nic
    } else {
        DeviceKind::Other
    }
}

/// A device with what its lines say.
struct Entry {
    device: Device,
    domain: String,
    bus: u32,
    secondary: Option<u32>,
    /// Speed now and at most, GT/s.
    speed: (Option<f64>, Option<f64>),
}

pub(super) fn read(lines: &[String], hints: &Hints) -> Result<BoxSpec, ReadError> {
    let entries = entries(lines)?;
    let mut bridge_at: HashMap<(String, u32), usize> = HashMap::new();
    for (i, e) in entries.iter().enumerate() {
        if let Some(bus) = e.secondary {
            bridge_at.entry((e.domain.clone(), bus)).or_insert(i);
        }
    }
    let mut gpus: Vec<usize> = (0..entries.len())
        .filter(|i| {
            entries
                .get(*i)
                .is_some_and(|e| e.device.kind == DeviceKind::Gpu)
        })
        .collect();
    gpus.sort_by_key(|i| {
        entries
            .get(*i)
            .map(|e| address_key(&e.device.bus))
            .unwrap_or_default()
    });
    let hidden = gpus.len() > 1 && bridge_at.is_empty();
    if hidden {
        refuse_listing(lines, &entries, &gpus)?;
    }
    let idle = gpus.iter().any(|i| {
        entries
            .get(*i)
            .is_some_and(|e| matches!(e.speed, (Some(now), Some(most)) if now < most))
    });
    let parents: Vec<Option<usize>> = entries
        .iter()
        .enumerate()
        .map(|(i, e)| {
            bridge_at
                .get(&(e.domain.clone(), e.bus))
                .copied()
                .filter(|p| *p != i)
        })
        .collect();
    let roots = (0..entries.len())
        .map(|i| root(&entries, &parents, i))
        .collect();
    let listed: Vec<Device> = entries
        .into_iter()
        .zip(parents)
        .map(|(e, parent)| Device { parent, ..e.device })
        .collect();
    let tree = Tree {
        devices: listed,
        by_port: true,
        gpus,
        roots,
        cpu: devices::cpu_vendor(lines),
        what: "lspci listing",
    };
    let mut spec = tree.build(hints)?;
    if hidden {
        spec.assume("each GPU on its own root port: the listing shows no bridges (a virtual machine hides them)", "`lspci -vv` on the host");
    }
    if idle {
        spec.assume(
            "links that idle at a low speed run at their full one under load",
            "`lspci -vv` while a copy runs: LnkSta",
        );
    }
    Ok(spec)
}

fn entries(lines: &[String]) -> Result<Vec<Entry>, ReadError> {
    let mut out: Vec<Entry> = Vec::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, line) in lines.iter().enumerate() {
        if let Some((address, class, name)) = head(line) {
            if out.len() >= DEVICES_MAX {
                return Err(ReadError::new(
                    Some(index + 1),
                    "more PCI devices than any server has",
                    super::GIVE,
                ));
            }
            if let Some(first) = seen.insert(address.to_string(), index + 1) {
                let what = format!("device {address} a second time (first at line {first})");
                return Err(ReadError::new(
                    Some(index + 1),
                    what,
                    "keep the listing of one machine",
                ));
            }
            out.push(entry(address, class, name));
        } else if let Some(e) = out.last_mut() {
            property(e, line.trim());
        }
    }
    Ok(out)
}

fn entry(address: &str, class: &str, name: &str) -> Entry {
    let mut parts: Vec<&str> = address.split([':', '.']).collect();
    let domain = if parts.len() == 4 {
        parts.remove(0)
    } else {
        "0000"
    };
    let bus = parts
        .first()
        .and_then(|b| u32::from_str_radix(b, 16).ok())
        .unwrap_or(0);
    let what = kind(class, name);
    let mut device = Device::new(address, what, None);
    device.model = match what {
        DeviceKind::Gpu => devices::nvidia_id(name)
            .and_then(devices::nvidia)
            .map(|(n, _)| n.to_string()),
        DeviceKind::Bridge => devices::switch_model(name).map(str::to_string),
        _ => None,
    };
    Entry {
        device,
        domain: domain.to_string(),
        bus,
        secondary: None,
        speed: (None, None),
    }
}

/// "Speed 32GT/s (ok), Width x16 (ok)" as GT/s and lanes.
fn speed_width(text: &str) -> (Option<f64>, Option<u8>) {
    let after = |mark: &str| text.split(mark).nth(1);
    let speed = after("Speed ").and_then(|s| s.split("GT/s").next()?.trim().parse().ok());
    let digits = after("Width x").map(|w| {
        w.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    });
    (
        speed,
        digits.and_then(|d| d.parse().ok()).and_then(lanes_of),
    )
}

fn property(e: &mut Entry, line: &str) {
    let narrower = |have: Option<u8>, new: Option<u8>| match (have, new) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    if let Some(rest) = line.strip_prefix("NUMA node:") {
        e.device.numa = rest.trim().parse().ok().filter(|n| *n < 1024);
    } else if line.starts_with("Bus: primary=") {
        let text = line
            .split("secondary=")
            .nth(1)
            .and_then(|s| s.split(',').next());
        e.secondary = text
            .and_then(|s| u32::from_str_radix(s.trim(), 16).ok())
            .filter(|b| *b > 0 && *b < 256);
    } else if line.starts_with("LnkCap:") {
        let (speed, width) = speed_width(line);
        e.speed.1 = speed;
        e.device.pcie_gen = speed.and_then(gen_of_rate);
        e.device.lanes = narrower(e.device.lanes, width);
    } else if line.starts_with("LnkSta:") {
        // The speed drops when a link idles, the width does not.
        let (speed, width) = speed_width(line);
        e.speed.0 = speed;
        e.device.lanes = narrower(e.device.lanes, width);
    } else if line.starts_with("ACSCtl:") {
        e.device.redirect = Some(line.contains("ReqRedir+") || line.contains("CmpltRedir+"));
    }
}

/// Bus of the topmost bridge above a device: its host bridge.
fn root(entries: &[Entry], parents: &[Option<usize>], start: usize) -> Option<String> {
    let mut at = start;
    for _ in 0..64 {
        match parents.get(at).copied().flatten() {
            Some(up) => at = up,
            None => break,
        }
    }
    entries
        .get(at)
        .map(|e| format!("{}:{:02x}", e.domain, e.bus))
}

/// A listing of several GPUs without any bridge: refused unless it is a verbose one of a virtual
/// machine that puts them on the root bus.
fn refuse_listing(lines: &[String], entries: &[Entry], gpus: &[usize]) -> Result<(), ReadError> {
    let mut domains: Vec<&str> = gpus
        .iter()
        .filter_map(|i| entries.get(*i))
        .map(|e| e.domain.as_str())
        .collect();
    domains.sort_unstable();
    domains.dedup();
    if domains.len() == gpus.len() {
        return Err(ReadError::new(
            None,
            format!(
                "each of the {} GPUs sits in a PCI domain of its own, as virtual machines show it: the wiring cannot be derived",
                gpus.len()
            ),
            "give `nvidia-smi topo -m`",
        ));
    }
    if !lines.iter().any(|l| l.trim_start().starts_with("LnkCap:")) {
        return Err(ReadError::new(
            None,
            "lspci without -vv lists GPUs but not what they hang on",
            "give `lspci -vv` (as root), `lspci -tv` or `nvidia-smi topo -m`",
        ));
    }
    Ok(())
}
