//! `lspci -t` and `lspci -tv`: the tree as drawn with lines.

use super::pci::{Device, DeviceKind, Tree, address_key};
use super::{Hints, ReadError, devices};
use crate::box_spec::BoxSpec;
use std::collections::HashMap;

/// Most devices read.
const DEVICES_MAX: usize = 20_000;

pub(super) fn looks_like(lines: &[String]) -> bool {
    lines.iter().any(|l| root_mark(l).is_some())
}

/// Position of a host bridge `-[0000:00]-` in a line.
fn root_mark(line: &str) -> Option<usize> {
    let open = line.find("-[")?;
    let inner = line.get(open + 2..)?.split(']').next()?;
    let (domain, bus) = inner.split_once(':')?;
    let hex = |t: &str, most: usize| {
        !t.is_empty() && t.len() <= most && t.bytes().all(|b| b.is_ascii_hexdigit())
    };
    (hex(domain, 8) && hex(bus.split('-').next()?, 2)).then_some(open)
}

/// A bus being drawn: its host bridge, its number, the bridge above it.
#[derive(Clone)]
struct Bus {
    root: String,
    domain: String,
    number: String,
    bridge: Option<usize>,
}

#[derive(Default)]
struct Drawing {
    devices: Vec<Device>,
    names: Vec<String>,
    roots: Vec<Option<String>>,
    /// Bus whose devices branch off at a column.
    branches: HashMap<usize, Bus>,
}

pub(super) fn read(lines: &[String], hints: &Hints) -> Result<BoxSpec, ReadError> {
    let mut drawing = Drawing::default();
    for (index, line) in lines.iter().enumerate() {
        if drawing.devices.len() >= DEVICES_MAX {
            return Err(ReadError::new(
                Some(index + 1),
                "more PCI devices than any server has",
                super::GIVE,
            ));
        }
        drawing.line(line);
    }
    let named = drawing.names.iter().any(|n| !n.is_empty());
    let gpus = drawing.find_gpus(named)?;
    let addresses: Vec<String> = gpus
        .iter()
        .filter_map(|i| drawing.devices.get(*i))
        .map(|d| d.bus.clone())
        .collect();
    let Drawing {
        devices: listed,
        roots,
        names,
        ..
    } = drawing;
    // Buses 7f and ff are the uncore devices of two Intel sockets.
    let uncore = roots.iter().flatten().any(|r| r.ends_with(":7f"));
    let cpu = if uncore {
        Some("intel".to_string())
    } else {
        devices::cpu_vendor(&names)
    };
    let tree = Tree {
        devices: listed,
        by_port: true,
        gpus,
        roots,
        cpu,
        what: "lspci tree",
    };
    let mut spec = tree.build(hints)?;
    if !named {
        spec.assume(
            format!("the GPUs are {}: the tree has no names, and these have the functions of graphics cards", addresses.join(", ")),
            "`lspci -tv`",
        );
    }
    Ok(spec)
}

impl Drawing {
    /// Reads one line: items from left to right, each hanging on the one before or on the bus that
    /// branches at the column of its '+' or '\'.
    fn line(&mut self, line: &str) {
        let chars: Vec<char> = line.chars().collect();
        let start = chars.iter().position(|c| !matches!(c, ' ' | '|' | '\t'));
        let Some(mut at) = start.filter(|i| matches!(chars.get(*i), Some('+' | '\\' | '-'))) else {
            return;
        };
        let mut bus = self.branches.get(&at).cloned();
        let mut device: Option<usize> = None;
        if root_mark(line).is_none() && bus.is_none() {
            return;
        }
        while let Some(c) = chars.get(at) {
            match c {
                '-' => at += 1,
                '+' | '\\' => {
                    // The bus opened last branches here for the lines below.
                    if let Some(b) = &bus {
                        self.branches.insert(at, b.clone());
                    }
                    at += 1;
                }
                '[' => {
                    let inner: String = chars
                        .iter()
                        .skip(at + 1)
                        .take_while(|c| **c != ']')
                        .collect();
                    at += inner.chars().count() + 2;
                    bus = self.open(&inner, bus, device);
                }
                c if c.is_ascii_hexdigit() => {
                    let word: String = chars
                        .iter()
                        .skip(at)
                        .take_while(|c| c.is_ascii_hexdigit() || **c == '.')
                        .collect();
                    at += word.chars().count();
                    let Some(b) = &bus else { return };
                    if !word.contains('.') || word.len() > 6 {
                        return;
                    }
                    let id = self.devices.len();
                    let address = format!("{}:{}:{word}", b.domain, b.number);
                    self.devices
                        .push(Device::new(&address, DeviceKind::Other, b.bridge));
                    self.roots.push(Some(b.root.clone()));
                    let name: String = if chars.get(at) == Some(&' ') {
                        chars.iter().skip(at).collect()
                    } else {
                        String::new()
                    };
                    self.names.push(name.trim().to_string());
                    device = Some(id);
                    if chars.get(at) != Some(&'-') {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// A host bridge "0000:40", or the secondary bus "43-53" of the device before it.
    fn open(&mut self, inner: &str, bus: Option<Bus>, device: Option<usize>) -> Option<Bus> {
        let first = inner.split('-').next().unwrap_or("");
        match (first.split_once(':'), device, bus) {
            (Some((domain, number)), None, _) => {
                let (root, domain, number) =
                    (first.to_string(), domain.to_string(), number.to_string());
                Some(Bus {
                    root,
                    domain,
                    number,
                    bridge: None,
                })
            }
            (_, Some(id), Some(b)) => {
                if let Some(d) = self.devices.get_mut(id) {
                    d.kind = DeviceKind::Bridge;
                }
                let number = first.rsplit(':').next().unwrap_or("").to_string();
                Some(Bus {
                    number,
                    bridge: Some(id),
                    ..b
                })
            }
            _ => None,
        }
    }

    /// GPUs in address order, marked as such.
    fn find_gpus(&mut self, named: bool) -> Result<Vec<usize>, ReadError> {
        let mut gpus = if named {
            self.gpus_by_name()
        } else {
            self.gpus_by_functions()
        };
        gpus.sort_by_key(|i| {
            self.devices
                .get(*i)
                .map(|d| address_key(&d.bus))
                .unwrap_or_default()
        });
        if gpus.is_empty() {
            let what = if named {
                "no GPU in this lspci tree"
            } else {
                "this lspci tree has no names, so GPUs cannot be told from other devices"
            };
            return Err(ReadError::new(
                None,
                what,
                "give `lspci -tv`, `lspci -vv` (as root) or `nvidia-smi topo -m`",
            ));
        }
        for i in &gpus {
            if let Some(d) = self.devices.get_mut(*i) {
                d.kind = DeviceKind::Gpu;
            }
        }
        Ok(gpus)
    }

    fn gpus_by_name(&mut self) -> Vec<usize> {
        let mut out = Vec::new();
        for (i, name) in self.names.iter().enumerate() {
            let Some(d) = self
                .devices
                .get_mut(i)
                .filter(|d| d.kind != DeviceKind::Bridge)
            else {
                continue;
            };
            if devices::is_gpu_name(name) && d.bus.ends_with(".0") {
                d.model = devices::nvidia_id(name)
                    .and_then(devices::nvidia)
                    .map(|(n, _)| n.to_string());
                out.push(i);
            } else if devices::nvidia_id(name).is_some_and(devices::is_nvswitch) {
                d.kind = DeviceKind::Nvswitch;
            } else if ["Mellanox", "ConnectX", "Ethernet"]
                .iter()
                .any(|m| name.contains(m))
            {
                d.kind = DeviceKind::Nic;
            }
        }
        out
    }

    /// Graphics cards by their functions: four (display, audio, USB, USB-C) or, where no device
    /// has those, two (display, audio).
    fn gpus_by_functions(&self) -> Vec<usize> {
        let mut by_slot: HashMap<&str, Vec<usize>> = HashMap::new();
        for (i, d) in self.devices.iter().enumerate() {
            if d.kind != DeviceKind::Bridge && d.parent.is_some() {
                let slot = d.bus.rsplit_once('.').map_or("", |(slot, _)| slot);
                by_slot.entry(slot).or_default().push(i);
            }
        }
        let with = |wanted: &[&str]| -> Vec<usize> {
            let fits = |members: &&Vec<usize>| {
                let functions = members
                    .iter()
                    .filter_map(|i| self.devices.get(*i)?.bus.rsplit('.').next());
                functions.eq(wanted.iter().copied())
            };
            by_slot
                .values()
                .filter(fits)
                .filter_map(|m| m.first().copied())
                .collect()
        };
        let four = with(&["0", "1", "2", "3"]);
        if four.is_empty() {
            with(&["0", "1"])
        } else {
            four
        }
    }
}
