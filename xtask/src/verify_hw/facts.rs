//! What this machine is: GPUs, memory, driver, links, NUMA, IOMMU, peers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use allreduce::device::{Device, compiler_info, driver_info};
use serde::{Deserialize, Serialize};

use crate::input;

/// Everything known of the machine before anything is timed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) gpus: Vec<GpuFacts>,
    /// CUDA version that the driver supports.
    pub(crate) cuda: String,
    /// NVRTC's version; `None`: missing.
    pub(crate) compiler: Option<String>,
    /// Driver version, where it can be read.
    pub(crate) driver: Option<String>,
    /// `peers[a][b]`: the driver says GPU a can reach b's memory.
    pub(crate) peers: Vec<Vec<bool>>,
    /// Active NVLinks of each GPU, where they can be read.
    pub(crate) nvlinks: Option<Vec<u32>>,
    /// IOMMU settings of the kernel's command line.
    pub(crate) iommu: Option<String>,
    /// Bridges whose access control sends peer traffic up, of those that can be read.
    pub(crate) acs_redirects: Option<u32>,
    pub(crate) cpu: Option<String>,
    pub(crate) numa_nodes: u32,
    pub(crate) virtual_machine: bool,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GpuFacts {
    pub(crate) name: String,
    pub(crate) pci: String,
    pub(crate) arch: String,
    pub(crate) multiprocessors: u32,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) numa: Option<i32>,
    pub(crate) link: Option<LinkFacts>,
}

/// A PCIe link as the system shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkFacts {
    /// GT/s now; idle links run slower.
    pub(crate) gt_s: f64,
    pub(crate) lanes: u32,
    /// The most both ends could do.
    pub(crate) max_gt_s: Option<f64>,
    pub(crate) max_lanes: Option<u32>,
}

/// Reads everything; runs in a child, since the driver may hang.
///
/// # Errors
/// No driver or no GPU: the message says what to install.
pub(crate) fn gather() -> anyhow::Result<Facts> {
    let driver = driver_info().map_err(|e| input::error(e.to_string()))?;
    let devices = Device::all().map_err(|e| input::error(e.to_string()))?;
    let smi = smi();
    let mut facts = Facts {
        cuda: format!("{}.{}", driver.cuda_version.0, driver.cuda_version.1),
        compiler: compiler_info().ok().map(|(a, b)| format!("{a}.{b}")),
        driver: driver_version(),
        nvlinks: nvlinks(devices.len()),
        iommu: iommu(),
        acs_redirects: acs_redirects(),
        cpu: cpu(),
        numa_nodes: numa_nodes(),
        virtual_machine: std::fs::read_to_string("/proc/cpuinfo")
            .is_ok_and(|text| text.contains(" hypervisor")),
        ..Facts::default()
    };
    for device in &devices {
        let (free, total) = device.memory_bytes()?;
        let pci = device.pci_bus_id().to_ascii_lowercase();
        let link = link(&pci).or_else(|| smi.get(&pci).copied());
        facts.gpus.push(GpuFacts {
            name: device.name().to_string(),
            arch: device.arch(),
            multiprocessors: device.multiprocessors(),
            total_bytes: total as u64,
            free_bytes: free as u64,
            numa: sysfs(&pci, "numa_node").and_then(|t| t.parse().ok()),
            link,
            pci,
        });
    }
    for a in &devices {
        let row: allreduce::Result<Vec<bool>> = devices
            .iter()
            .map(|b| Ok(a.same_as(b) || a.can_access(b)?))
            .collect();
        facts.peers.push(row?);
    }
    Ok(facts)
}

fn sysfs(pci: &str, name: &str) -> Option<String> {
    let path = Path::new("/sys/bus/pci/devices").join(pci).join(name);
    Some(std::fs::read_to_string(path).ok()?.trim().to_string())
}

/// The link of a PCI device as sysfs shows it; a virtual machine may hide it (width 0 or 63).
pub(crate) fn link(pci: &str) -> Option<LinkFacts> {
    let rate = |name: &str| -> Option<f64> {
        let text = sysfs(pci, name)?;
        text.split_whitespace().next()?.parse().ok()
    };
    let width = |name: &str| -> Option<u32> {
        let lanes: u32 = sysfs(pci, name)?.parse().ok()?;
        (1..=32).contains(&lanes).then_some(lanes)
    };
    Some(LinkFacts {
        gt_s: rate("current_link_speed")?,
        lanes: width("current_link_width")?,
        max_gt_s: rate("max_link_speed"),
        max_lanes: width("max_link_width"),
    })
}

/// `nvidia-smi` by PCI address, for machines whose sysfs hides the link.
fn smi() -> BTreeMap<String, LinkFacts> {
    let fields = "pci.bus_id,pcie.link.gen.gpucurrent,pcie.link.width.current,\
                  pcie.link.gen.max,pcie.link.width.max";
    let text = output(
        "nvidia-smi",
        &[&format!("--query-gpu={fields}"), "--format=csv,noheader"],
    );
    text.as_deref().map(parse_smi).unwrap_or_default()
}

fn parse_smi(text: &str) -> BTreeMap<String, LinkFacts> {
    let rate = |generation: &str| -> Option<f64> {
        [2.5, 5.0, 8.0, 16.0, 32.0, 64.0]
            .get(generation.parse::<usize>().ok()?.checked_sub(1)?)
            .copied()
    };
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let [pci, generation, lanes, max_generation, max_lanes] = cells.as_slice() else {
            continue;
        };
        let (Some(gt_s), Ok(lanes)) = (rate(generation), lanes.parse()) else {
            continue;
        };
        // The tool writes an eight-digit domain, CUDA a four-digit one.
        let pci = pci.to_ascii_lowercase();
        let pci = pci
            .strip_prefix("0000")
            .filter(|r| r.len() == 12)
            .unwrap_or(&pci);
        let link = LinkFacts {
            gt_s,
            lanes,
            max_gt_s: rate(max_generation),
            max_lanes: max_lanes.parse().ok(),
        };
        found.insert(pci.to_string(), link);
    }
    found
}

/// Runs a small tool if it is installed.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn driver_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let words = text.lines().next()?.split_whitespace();
    words
        .filter(|w| w.split('.').count() >= 2 && w.split('.').all(|p| p.parse::<u32>().is_ok()))
        .map(str::to_string)
        .next()
}

fn nvlinks(gpus: usize) -> Option<Vec<u32>> {
    let text = output("nvidia-smi", &["nvlink", "--status"])?;
    let mut counts = Vec::new();
    for line in text.lines() {
        if line.starts_with("GPU ") {
            counts.push(0);
        } else if line.contains("GB/s")
            && let Some(last) = counts.last_mut()
        {
            *last += 1;
        }
    }
    (counts.len() == gpus).then_some(counts)
}

fn iommu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cmdline").ok()?;
    let words: Vec<&str> = text
        .split_whitespace()
        .filter(|w| w.contains("iommu"))
        .collect();
    Some(if words.is_empty() {
        "no setting".to_string()
    } else {
        words.join(" ")
    })
}

/// Counts bridges with ReqRedir set in ACSCtl; needs root and lspci.
fn acs_redirects() -> Option<u32> {
    let text = output("lspci", &["-vvv"])?;
    let lines: Vec<&str> = text.lines().filter(|l| l.contains("ACSCtl:")).collect();
    if lines.is_empty() {
        return None;
    }
    let set = lines.iter().filter(|l| l.contains("ReqRedir+")).count();
    u32::try_from(set).ok()
}

fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn numa_nodes() -> u32 {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/node") else {
        return 1;
    };
    let nodes = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|n| {
            n.strip_prefix("node")
                .is_some_and(|r| r.parse::<u32>().is_ok())
        })
        .count();
    u32::try_from(nodes).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_csv_is_read_by_the_drivers_address() {
        let text = "00000000:06:00.0, 1, 16, 5, 16\n00000000:07:00.0, [N/A], 8, 5, 16\nnoise\n";
        let found = parse_smi(text);
        assert_eq!(found.len(), 1);
        let link = found.get("0000:06:00.0").expect("the first");
        assert_eq!(
            (link.gt_s, link.lanes, link.max_gt_s),
            (2.5, 16, Some(32.0))
        );
    }
}
