//! What describes a machine: `nvidia-smi` in its forms, `topo -m` and `topo -p2p`, `lspci`, NCCL
//! and hwloc XML, `dmesg`. Only counts, sizes and switches are read here; the wiring itself is
//! `predict --topology`'s work.

use pcie_sim::readers::{self, Format};

use super::facts::Facts;
use super::matrix;
use super::text::{Doc, leading_number, number_after};

/// Reads the facts; nothing where the text describes no machine.
pub(crate) fn read(doc: &Doc, text: &str, facts: &mut Facts) {
    matrix::read(doc, facts);
    nccl_xml(text, facts);
    smi_xml(doc, facts);
    smi_query(doc, facts);
    smi_csv(doc, facts);
    smi_dmon(doc, facts);
    smi_table(doc, facts);
    smi_nvlink(doc, facts);
    hwloc_xml(doc, facts);
    lspci(doc, facts);
    lspci_tree(doc, facts);
    boot(doc, facts);
    wiring(text, facts);
}

/// What the topology readers see and the lines above do not show.
fn wiring(text: &str, facts: &mut Facts) {
    let kind = match readers::detect(text) {
        Format::Unknown => return,
        Format::TopoMatrix => "topo-matrix",
        Format::NcclXml => "nccl-topology-xml",
        Format::LspciTree => "lspci-tree",
        Format::LspciVerbose => "lspci",
        Format::HwlocXml => "hwloc-xml",
        Format::KernelLog => "dmesg",
        Format::BoxFile => "box-file",
        Format::SmiQuery if text.contains("<nvidia_smi_log") => "nvidia-smi-xml",
        Format::SmiQuery => "nvidia-smi-q",
    };
    let read = readers::read(text, &readers::Hints::default());
    facts.wired = kind != "box-file" && read.is_ok_and(|spec| spec.gpu_count() > 1);
    let seen = readers::facts(text);
    if !facts.kinds.contains(&kind) {
        facts.kinds.push(kind);
    }
    let figures = [
        ("gpus", seen.gpus.map(|n| n as f64)),
        ("memory_mib", seen.memory_mib.map(|n| n as f64)),
        ("bar1_mib", seen.bar1_mib.map(|n| n as f64)),
    ];
    for (name, figure) in figures {
        if let Some(figure) = figure {
            facts.set_if_absent(name, figure, 1);
        }
    }
    if let Some(card) = seen.gpu_label {
        let line = line_of(text, &card);
        facts.set_if_absent("gpu", card, line);
    }
}

/// NCCL's topology XML: one `<gpu` element a GPU.
fn nccl_xml(text: &str, facts: &mut Facts) {
    if !text.contains("<system ") || !text.contains("<gpu ") {
        return;
    }
    let gpus = text.matches("<gpu ").count();
    facts.kinds.push("nccl-topology-xml");
    facts.set("gpus", gpus as f64, line_of(text, "<gpu "));
}

fn line_of(text: &str, needle: &str) -> usize {
    let at = text.find(needle).unwrap_or(0);
    text.get(..at).unwrap_or("").matches('\n').count() + 1
}

/// `nvidia-smi -q -x`.
fn smi_xml(doc: &Doc, facts: &mut Facts) {
    if !doc.flat.contains("<nvidia_smi_log>") {
        return;
    }
    facts.kinds.push("nvidia-smi-xml");
    let count = doc.flat.matches("<gpu id=").count();
    if let Some(at) = doc.after_all("<attached_gpus>").next() {
        if let Some((gpus, _)) = leading_number(doc.window(at, 20)) {
            facts.set_if_absent("gpus", gpus, doc.line_at(at));
        }
    } else if count > 0 {
        let at = doc.flat.find("<gpu id=").unwrap_or(0);
        facts.set_if_absent("gpus", count as f64, doc.line_at(at));
    }
    for (section, name) in [
        ("<fb_memory_usage>", "memory_mib"),
        ("<bar1_memory_usage>", "bar1_mib"),
    ] {
        if let Some(at) = doc.after_all(section).next()
            && let Some(total) = number_after(doc.window(at, 200), "<total>")
        {
            facts.set(name, total, doc.line_at(at));
        }
    }
    for (tag, name) in [("<product_name>", "gpu"), ("<driver_version>", "driver")] {
        if let Some(at) = doc.after_all(tag).next() {
            let word = doc.window(at, 100).split('<').next().unwrap_or("").trim();
            if !word.is_empty() {
                facts.set_if_absent(name, word, doc.line_at(at));
            }
        }
    }
    let widths = |tag: &'static str| {
        let number = |at: usize| leading_number(doc.window(at, 20)).map(|(n, _)| n);
        let found = doc.after_all(tag);
        found.filter_map(move |at| Some((number(at)?, doc.line_at(at))))
    };
    for (now, line) in widths("<current_link_width>").take(64) {
        narrowest(facts, now, line);
    }
    if let Some((max, line)) = widths("<max_link_width>").next() {
        facts.set("pcie_width_max", max, line);
    }
}

/// `nvidia-smi -q`.
fn smi_query(doc: &Doc, facts: &mut Facts) {
    if !doc.flat.contains("NVSMI LOG") && !doc.flat.contains("FB Memory Usage") {
        return;
    }
    facts.kinds.push("nvidia-smi-q");
    for (key, name) in [
        ("Attached GPUs", "gpus"),
        ("FB Memory Usage Total", "memory_mib"),
        ("BAR1 Memory Usage Total", "bar1_mib"),
    ] {
        if let Some(at) = doc.after_all(key).next()
            && let Some((value, _)) = leading_number(doc.window(at, 40))
        {
            facts.set_if_absent(name, value, doc.line_at(at));
        }
    }
    if let Some(at) = doc.after_all("Product Name : ").next() {
        let name = doc
            .window(at, 80)
            .split(" Product")
            .next()
            .unwrap_or("")
            .trim();
        facts.set_if_absent("gpu", name, doc.line_at(at));
    }
    for at in doc.after_all("Link Width").take(64) {
        let window = doc.window(at, 80);
        if let Some(max) = number_after(window, "Max") {
            facts.set_if_absent("pcie_width_max", max, doc.line_at(at));
        }
        if let Some(now) = number_after(window, "Current") {
            narrowest(facts, now, doc.line_at(at));
        }
    }
    if let Some(at) = doc.after_all("Driver Model Current : ").next() {
        let word = doc.window(at, 10).split(' ').next().unwrap_or("");
        facts.set("driver_model", word, doc.line_at(at));
    }
}

/// `nvidia-smi --query-gpu=… --format=csv` with its header.
fn smi_csv(doc: &Doc, facts: &mut Facts) {
    let mut column: Option<usize> = None;
    let mut rows = 0.0;
    for (number, line) in &doc.lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).take(64).collect();
        if let Some(at) = fields.iter().position(|f| f.starts_with("memory.total")) {
            column = Some(at);
            rows = 0.0;
            continue;
        }
        let Some(at) = column else { continue };
        let Some((mib, rest)) = fields.get(at).and_then(|f| leading_number(f)) else {
            column = None;
            continue;
        };
        if fields.len() < 2 || !(rest.trim().is_empty() || rest.trim() == "MiB") {
            column = None;
            continue;
        }
        rows += 1.0;
        facts.set_if_absent("memory_mib", mib, *number);
        if rows == 1.0 {
            facts.kinds.push("nvidia-smi-csv");
        }
    }
    if rows > 0.0 {
        let line = doc.lines.last().map_or(1, |l| l.0);
        facts.set_if_absent("gpus", rows, line);
    }
}

/// `nvidia-smi dmon`: a header `# gpu pwr …` and a row a card and second.
fn smi_dmon(doc: &Doc, facts: &mut Facts) {
    if !doc.flat.contains("# gpu ") {
        return;
    }
    let mut open = false;
    let mut highest: Option<(u32, usize)> = None;
    for (number, line) in &doc.lines {
        let words: Vec<&str> = line.split_whitespace().take(8).collect();
        match words.as_slice() {
            ["#", "gpu", second, ..] if *second != "pid" => open = true,
            ["#", ..] => {}
            [index, _, _, ..] if open => match index.parse::<u32>() {
                Ok(index) if index < 1024 => {
                    if highest.is_none_or(|(known, _)| index > known) {
                        highest = Some((index, *number));
                    }
                }
                _ => open = false,
            },
            _ => open = false,
        }
    }
    if let Some((index, line)) = highest {
        facts.kinds.push("nvidia-smi-dmon");
        facts.set_if_absent("gpus", f64::from(index) + 1.0, line);
    }
}

/// The plain `nvidia-smi` table: `|   0  NVIDIA H100 80GB HBM3  On | …` and `0MiB / 81559MiB`.
fn smi_table(doc: &Doc, facts: &mut Facts) {
    let mut cards = 0.0;
    let mut last = 0;
    for (number, line) in &doc.lines {
        let body = line.trim_start();
        // Slices of a card, listed after the cards.
        if body.contains("MIG devices") {
            break;
        }
        if !body.starts_with('|') {
            continue;
        }
        if let Some(at) = body.find("MiB / ")
            && let Some((mib, rest)) = leading_number(body.get(at + 6..).unwrap_or(""))
            && rest.trim_start().starts_with("MiB")
        {
            cards += 1.0;
            last = *number;
            facts.set_if_absent("memory_mib", mib, *number);
        }
    }
    if cards > 0.0 {
        facts.kinds.push("nvidia-smi");
        facts.set_if_absent("gpus", cards, last);
    }
    if let Some(at) = doc.after_all("Driver Version:").next() {
        let word = doc.window(at, 30).split_whitespace().next().unwrap_or("");
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            facts.set_if_absent("driver", word, doc.line_at(at));
        }
    }
}

/// `nvidia-smi nvlink -s` and `nvidia-smi -L`: `GPU 1: NVIDIA … (UUID: …)`.
fn smi_nvlink(doc: &Doc, facts: &mut Facts) {
    let mut highest = -1.0;
    let mut last = 0;
    for (number, line) in &doc.lines {
        let body = line.trim_start();
        if let Some((index, rest)) = body
            .strip_prefix("GPU ")
            .and_then(|rest| number_at(rest).filter(|_| rest.contains("UUID")))
            && rest.starts_with(':')
        {
            highest = f64::max(highest, index);
            last = *number;
        }
    }
    if highest >= 0.0 {
        facts.kinds.push("nvidia-smi-list");
        facts.set_if_absent("gpus", highest + 1.0, last);
    }
}

fn number_at(text: &str) -> Option<(f64, &str)> {
    let (value, length) = super::text::number_prefix(text)?;
    Some((value, text.get(length..)?))
}

/// hwloc: a GPU is a display or 3D controller of NVIDIA (class 0302 or 0300, vendor 10de), however
/// many OS devices it has. An export without PCI objects says nothing of GPUs.
fn hwloc_xml(doc: &Doc, facts: &mut Facts) {
    if !doc.flat.contains("<topology") || !doc.flat.contains("<object type=") {
        return;
    }
    facts.kinds.push("hwloc-xml");
    let mut gpus = 0.0;
    let mut last = 0;
    for (number, line) in &doc.lines {
        if !line.contains("type=\"PCIDev\"") {
            continue;
        }
        if let Some(at) = line.find("pci_type=\"") {
            let kind = super::text::cut(line.get(at + 10..).unwrap_or(""), 40).to_lowercase();
            if (kind.starts_with("0302") || kind.starts_with("0300")) && kind.contains("[10de:") {
                gpus += 1.0;
                last = *number;
            }
        }
    }
    if gpus > 0.0 {
        facts.set_if_absent("gpus", gpus, last);
    }
}

/// `lspci` and `lspci -nn`, `-vvv`: NVIDIA display controllers, and ACS redirection by ACSCtl.
fn lspci(doc: &Doc, facts: &mut Facts) {
    let (mut gpus, mut last, mut bridges) = (0.0, 0, 0);
    let mut device = String::new();
    let mut seen: Vec<String> = Vec::new();
    let mut of_gpu = false;
    for (number, line) in &doc.lines {
        let body = line.trim_start_matches(['>', ' ']).trim_end();
        if of_gpu {
            link_width(body.trim_start(), *number, facts);
        }
        if let Some(address) = pci_address(body) {
            device = address.to_string();
            bridges += usize::from(body.contains("PCI bridge"));
            let display = body.contains("3D controller") || body.contains("VGA compatible");
            of_gpu = display && body.contains("NVIDIA");
            if display && body.contains("NVIDIA") && seen.len() < 4096 && !seen.contains(&device) {
                seen.push(device.clone());
                gpus += 1.0;
                last = *number;
            }
        }
        // ACSCap lists what a bridge could do; only ACSCtl is in force, and only redirection
        // sends peer traffic up to the root.
        if body.trim_start().starts_with("ACSCtl:") && body.contains("ReqRedir+") {
            facts.set_if_absent("acs_redirect_at", device.as_str(), *number);
        }
    }
    if gpus > 0.0 {
        facts.kinds.push("lspci");
        facts.set_if_absent("gpus", gpus, last);
    } else if bridges > 0 {
        facts.kinds.push("lspci");
    }
}

/// The lanes of a GPU's link, those it could have and those it has.
fn link_width(line: &str, number: usize, facts: &mut Facts) {
    let of = |mark: &str| number_after(line.strip_prefix(mark)?, "Width x");
    if let Some(most) = of("LnkCap:") {
        facts.set_if_absent("pcie_width_max", most, number);
    }
    if let Some(now) = of("LnkSta:") {
        narrowest(facts, now, number);
    }
}

/// The lanes of the narrowest slot: one GPU on a riser holds all of its group back.
fn narrowest(facts: &mut Facts, lanes: f64, line: usize) {
    let known = facts.number("pcie_width");
    if known.is_none_or(|known| lanes < known) {
        facts.set("pcie_width", lanes, line);
    }
}

/// `lspci -t` without `-v`: a tree without names.
fn lspci_tree(doc: &Doc, facts: &mut Facts) {
    let root = |line: &str| line.contains("-[0000:") || line.trim_start().starts_with("-[");
    let Some((number, _)) = doc.lines.iter().find(|(_, line)| root(line)) else {
        return;
    };
    facts.kinds.push("lspci-tree");
    let named = doc.flat.contains("NVIDIA") || doc.flat.contains("Device");
    if !named {
        facts.notes.push(
            "the tree has no device names (lspci -t): `lspci -tv` would say which are GPUs"
                .to_string(),
        );
    }
    facts.set("pci_tree", "true", *number);
}

/// `0000:15:01.0` or `15:01.0` at the beginning of a line.
fn pci_address(line: &str) -> Option<&str> {
    let word = line.split(' ').next()?;
    let shape = word.rsplit(':').next()?;
    let good = (7..=12).contains(&word.len())
        && word.contains(':')
        && shape.len() == 4
        && shape.as_bytes().get(2) == Some(&b'.')
        && word
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.');
    good.then_some(word)
}

/// Kernel log: is the IOMMU on?
fn boot(doc: &Doc, facts: &mut Facts) {
    let line = doc.after_all("ommand line: BOOT_IMAGE").next();
    let Some(at) = line else { return };
    facts.kinds.push("dmesg");
    let command = doc.window(at, 1500);
    let command = command.split(" [").next().unwrap_or("");
    let has = |word: &str| command.split(' ').any(|w| w == word);
    let state = if has("iommu=off") || has("amd_iommu=off") || has("intel_iommu=off") {
        Some("off")
    } else if has("iommu=pt") {
        Some("pass-through")
    } else if doc.flat.contains("AMD-Vi:") || doc.flat.contains("DMAR: IOMMU enabled") {
        Some("on")
    } else {
        None
    };
    if let Some(state) = state {
        facts.set("iommu", state, doc.line_at(at));
    }
}
