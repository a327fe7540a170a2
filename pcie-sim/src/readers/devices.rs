//! PCI device ids of GPUs and switch parts, as far as the wiring needs them.

use crate::box_spec::{GpuLinks, GpuWiring};

/// NVIDIA device id, catalogue name, NVLink rate per direction to an NVSwitch plane in GB/s (data
/// sheets); 0 where the boards of the model have none.
/// Ids: the public PCI id database.
const NVIDIA: &[(u32, &str, f64)] = &[
    (0x15f9, "p100-sxm", 0.0),
    (0x1db1, "v100-16gb-sxm", 0.0),
    (0x1db5, "v100-32gb-sxm", 0.0),
    (0x20b0, "a100-40gb-sxm", 300.0),
    (0x20b2, "a100-80gb-sxm", 300.0),
    (0x20b5, "a100-80gb-pcie", 0.0),
    (0x20f1, "a100-40gb-pcie", 0.0),
    (0x2237, "a10g", 0.0),
    (0x2236, "a10", 0.0),
    (0x2235, "a40", 0.0),
    (0x2230, "rtx-a6000", 0.0),
    (0x2204, "rtx-3090", 0.0),
    (0x2684, "rtx-4090", 0.0),
    (0x26b1, "rtx-6000-ada", 0.0),
    (0x26b5, "l40", 0.0),
    (0x26b9, "l40s", 0.0),
    (0x27b8, "l4", 0.0),
    (0x2b85, "rtx-5090", 0.0),
    (0x2bb1, "rtx-pro-6000", 0.0),
    (0x2bb4, "rtx-pro-6000-max-q", 0.0),
    (0x2bb5, "rtx-pro-6000-server", 0.0),
    (0x2329, "h20", 450.0),
    (0x2330, "h100-sxm", 450.0),
    (0x2331, "h100-pcie", 0.0),
    (0x2321, "h100-nvl", 0.0),
    (0x2335, "h200-sxm", 450.0),
    (0x233b, "h200-nvl", 0.0),
    (0x2901, "b200-sxm", 900.0),
    (0x3182, "b300-sxm", 900.0),
];

/// NVSwitch device ids (V100, A100, H100 and later boards).
const NVSWITCH: &[u32] = &[0x1ac2, 0x1af1, 0x22a3];

/// Catalogue name and NVLink rate of an NVIDIA device id.
pub(super) fn nvidia(device: u32) -> Option<(&'static str, f64)> {
    NVIDIA
        .iter()
        .find(|(id, _, _)| *id == device)
        .map(|(_, name, rate)| (*name, *rate))
}

/// Whether an NVIDIA device id is an NVSwitch.
pub(super) fn is_nvswitch(device: u32) -> bool {
    NVSWITCH.contains(&device)
}

/// NVLink rate of a GPU on an NVSwitch board: by device name, else by the caller's GPU.
pub(super) fn nvswitch_gb_s(name: Option<&str>, gpu: Option<&GpuWiring>) -> Option<f64> {
    let by_id = name
        .and_then(|n| NVIDIA.iter().find(|(_, have, _)| *have == n))
        .map(|(_, _, r)| *r);
    let by_hint = gpu
        .filter(|g| g.gpu_links == GpuLinks::Switch)
        .map(|g| g.gpu_link_gb_s);
    by_id.or(by_hint).filter(|rate| *rate > 0.0)
}

/// Rate of one NVLink per direction, GB/s, by catalogue name: 14.06 on GA102 bridges, 50 for
/// NVLink 5, 20 for Pascal, 25 between (data sheets).
pub(super) fn nvlink_gb_s(name: &str) -> f64 {
    let has = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
    if has(&["3090", "a6000", "a5500", "a5000", "a4500", "a40"]) && !name.contains("a4000") {
        14.0625
    } else if has(&["b200", "b300"]) {
        50.0
    } else if has(&["p100"]) {
        20.0
    } else {
        25.0
    }
}

/// Short name of a switch part from a lspci name or NCCL's vendor and device ids.
pub(super) fn switch_model(text: &str) -> Option<&'static str> {
    const PARTS: &[(&str, &str)] = &[
        ("PEX890", "pex890xx"),
        ("PEX880", "pex880xx"),
        ("PEX 87", "pex87xx"),
        ("PEX 97", "pex97xx"),
        ("PLX", "plx"),
        ("Switchtec", "switchtec"),
        ("PM5", "pm5xxxx"),
        ("PM4", "pm4xxxx"),
        ("PMC-Sierra", "pmc-sierra"),
        ("Microsemi", "microsemi"),
        ("ASMedia", "asmedia"),
    ];
    PARTS
        .iter()
        .find(|(mark, _)| text.contains(mark))
        .map(|(_, model)| *model)
}

/// Whether a PCI device name (lspci) with its class text, if any, is a GPU that computes.
pub(super) fn is_gpu_name(name: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
    if has(&[
        "Audio",
        "USB",
        "UCSI",
        "NVSwitch",
        "Bridge",
        "Upstream Port",
        "Downstream Port",
        "Root Complex",
        "IOMMU",
    ]) {
        return false;
    }
    if name.contains("NVIDIA") {
        return !NVSWITCH
            .iter()
            .any(|id| name.contains(&format!("{id:04x}")));
    }
    if name.contains("[AMD/ATI]") {
        return !has(&[
            "Raphael",
            "Granite Ridge",
            "Phoenix",
            "Cezanne",
            "Renoir",
            "Picasso",
            "Raven",
            "Strix",
            "Rembrandt",
        ]);
    }
    name.contains("Intel") && has(&["DG2", "Arc ", "Battlemage", "Data Center GPU"])
}

/// Device id in a lspci name: "Device 2330" or `[10de:2330]`.
pub(super) fn nvidia_id(name: &str) -> Option<u32> {
    if !name.contains("NVIDIA") {
        return None;
    }
    let hex = |mark: &str| {
        let rest = name.get(name.find(mark)? + mark.len()..)?;
        u32::from_str_radix(rest.get(..4)?, 16).ok()
    };
    hex("[10de:").or_else(|| hex("Device "))
}

/// CPU vendor, and family where it is named, by the names of host bridges and root ports.
pub(super) fn cpu_vendor(lines: &[String]) -> Option<String> {
    let host = |l: &&String| {
        [
            "Root Complex",
            "Root Port",
            "Host bridge",
            "PCI bridge",
            "DMI2",
            "GPP Bridge",
        ]
        .iter()
        .any(|m| l.contains(m))
    };
    let amd = |l: &str| l.contains("Advanced Micro Devices") && !l.contains("[AMD/ATI]");
    let vendor = lines.iter().filter(host).find_map(|l| {
        if amd(l) {
            Some("amd".to_string())
        } else {
            l.contains("Intel Corporation").then(|| "intel".to_string())
        }
    });
    if vendor.as_deref() != Some("amd") {
        return vendor;
    }
    // Not every bridge carries the family's name.
    let bridges = lines.iter().filter(host).filter(|l| amd(l));
    let mut families = bridges.map(|l| crate::cpu::family(l));
    families.find(|name| name.starts_with("amd-")).or(vendor)
}
