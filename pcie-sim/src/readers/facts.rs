//! Figures that stand in topology texts beside the wiring.

use super::{clean, devices, lspci_verbose, matrix, xml};

/// Figures of a text; None where it does not say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Number of GPUs.
    pub gpus: Option<usize>,
    /// Memory of one GPU, MiB.
    pub memory_mib: Option<u64>,
    /// BAR1 aperture of one GPU, MiB.
    pub bar1_mib: Option<u64>,
    /// The card's name as the tool prints it.
    pub gpu_label: Option<String>,
    /// Rate of one NVLink per direction, GB/s, as `nvidia-smi nvlink -s` prints it.
    pub nvlink_gb_s: Option<f64>,
}

/// Finds the figures of a text, whatever its format. A text that only mentions cards gives none.
pub fn facts(text: &str) -> Facts {
    let text = clean::head(text, crate::box_spec::TEXT_BYTES_MAX);
    let lines = clean::lines(text);
    let mut out = Facts::default();
    let tables = matrix::find(&lines).unwrap_or_default();
    let counts: Vec<usize> = tables.iter().map(|m| m.gpus()).collect();
    if counts
        .first()
        .is_some_and(|n| counts.iter().all(|m| m == n))
    {
        out.gpus = counts.first().copied();
    }
    if out.gpus.is_none() {
        out.gpus = from_listing(text, &lines);
    }
    let mut section = "";
    for line in &lines {
        let row = line.trim();
        if row.ends_with("Memory Usage") || row.contains("_memory_usage>") {
            section = if row.to_lowercase().starts_with("bar1") || row.starts_with("<bar1") {
                "bar1"
            } else {
                "fb"
            };
            if row.starts_with("</") || row.contains("cc_protected") {
                section = "";
            }
        }
        if row.starts_with("Total") || row.starts_with("<total>") {
            let slot = if section == "bar1" {
                &mut out.bar1_mib
            } else {
                &mut out.memory_mib
            };
            if !section.is_empty() && slot.is_none() {
                *slot = mib(row);
            }
        }
        if out.memory_mib.is_none() {
            out.memory_mib = table_memory(row);
        }
        if out.nvlink_gb_s.is_none() && row.starts_with("Link ") && row.ends_with("GB/s") {
            let value = row
                .split(':')
                .nth(1)
                .and_then(|v| v.trim().strip_suffix("GB/s"));
            out.nvlink_gb_s = value
                .and_then(|v| v.trim().parse().ok())
                .filter(|r: &f64| *r > 0.0 && *r < 1000.0);
        }
        if out.gpu_label.is_none() {
            out.gpu_label = label(row);
        }
    }
    out
}

fn from_listing(text: &str, lines: &[String]) -> Option<usize> {
    for line in lines {
        let value = line
            .trim()
            .strip_prefix("Attached GPUs")
            .and_then(|r| r.trim().strip_prefix(':'));
        if let Some(n) = value.and_then(|v| v.trim().parse().ok()) {
            return Some(n);
        }
    }
    match xml::root_name(text) {
        Some("nvidia_smi_log") => {
            let doc = xml::parse(text, "nvidia_smi_log").ok()?;
            let n = doc.children(0).filter(|(_, e)| e.name == "gpu").count();
            return (n > 0).then_some(n);
        }
        Some("system") => {
            let spec = super::nccl_xml::read(text, &super::Hints::default()).ok()?;
            return Some(spec.gpu_count());
        }
        Some("topology") => {
            return super::hwloc::read(text, &super::Hints::default())
                .ok()
                .map(|s| s.gpu_count());
        }
        _ => {}
    }
    let listed = lspci_verbose::gpus(lines);
    (listed > 0).then_some(listed)
}

/// "Total : 97887 MiB", "<total>4096 MiB</total>".
fn mib(row: &str) -> Option<u64> {
    let before = row.split("MiB").next()?;
    let digits: String = before
        .chars()
        .rev()
        .skip_while(|c| *c == ' ')
        .take_while(char::is_ascii_digit)
        .collect();
    digits.chars().rev().collect::<String>().parse().ok()
}

/// Total memory in a row of the `nvidia-smi` table or of its CSV.
fn table_memory(row: &str) -> Option<u64> {
    if row.starts_with('|') && row.contains("MiB /") {
        return mib(row.split("MiB /").nth(1)?.get(..)?).filter(|m| *m > 0);
    }
    let csv = row.contains("NVIDIA") && row.contains(',') && row.contains(" MiB,");
    if csv || (row.contains("NVIDIA") && row.contains("MiB |")) {
        mib(row)
    } else {
        None
    }
}

/// The card's name in `nvidia-smi` (table, -q, -L, CSV), `nvlink -s` or lspci.
fn label(row: &str) -> Option<String> {
    let named = row
        .strip_prefix("Product Name")
        .and_then(|r| r.trim().strip_prefix(':'))
        .map(str::trim);
    let xml = row
        .strip_prefix("<product_name>")
        .and_then(|r| r.split('<').next());
    let listed = row
        .strip_prefix("GPU ")
        .and_then(|r| r.split_once(": NVIDIA "))
        .and_then(|(_, r)| r.split('(').next());
    let name = named
        .or(xml)
        .or(listed)
        .or_else(|| table_name(row))
        .or_else(|| pci_name(row))?
        .trim();
    (!name.is_empty() && name.len() < 100).then(|| name.to_string())
}

/// "|   0  NVIDIA H100 80GB HBM3          On  | …" or "0, NVIDIA RTX A4000, 8.6, …".
fn table_name(row: &str) -> Option<&str> {
    let rest = row.trim_start_matches('|').trim_start();
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let name = rest.get(digits..).filter(|_| (1..=2).contains(&digits))?;
    let csv = name.strip_prefix(", ").and_then(|n| n.split(',').next());
    let cell = row
        .starts_with('|')
        .then(|| name.trim_start().split("  ").next())
        .flatten();
    csv.or(cell)
        .filter(|n| n.starts_with("NVIDIA ") || n.starts_with("GeForce "))
}

/// A known device id in a lspci line, else the name in brackets: "GA102 [GeForce RTX 3090]".
fn pci_name(row: &str) -> Option<&str> {
    if !row.contains("NVIDIA Corporation") || !devices::is_gpu_name(row) {
        return None;
    }
    let id = devices::nvidia_id(row)
        .and_then(devices::nvidia)
        .map(|(name, _)| name);
    let after = row.split("NVIDIA Corporation").nth(1)?;
    let bracket = after.split('[').nth(1).and_then(|r| r.split(']').next());
    id.or(bracket.filter(|b| !b.contains(':')))
}
