//! Readers of what users have: `nvidia-smi topo -m`, `topo -p2p`, NCCL and hwloc XML, lspci, our
//! box file. Pure text in, [`BoxSpec`] out; what a text does not say becomes an assumption in it.
//!
//! A text that shows no wiring is refused with one line that says why and what to give instead.

mod clean;
mod devices;
mod facts;
mod hwloc;
mod lspci_tree;
mod lspci_verbose;
mod matrix;
mod matrix_wiring;
mod nccl_xml;
mod pci;
mod slots;
mod xml;

pub use crate::box_spec::ReadError;
use crate::box_spec::{Acs, Assumption, BoxSpec, GpuWiring, NodeKind, P2p};
pub use facts::{Facts, facts};

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Our box file.
    BoxFile,
    /// A matrix of `nvidia-smi topo -m` or `topo -p2p`, perhaps inside other text.
    TopoMatrix,
    /// NCCL or RCCL topology XML.
    NcclXml,
    /// hwloc's `lstopo` XML.
    HwlocXml,
    /// `lspci -vv`.
    LspciVerbose,
    /// `lspci -t` or `lspci -tv`.
    LspciTree,
    /// `nvidia-smi -q`, as text or XML: cards, no wiring.
    SmiQuery,
    /// A kernel log.
    KernelLog,
    /// None of these.
    Unknown,
}

/// What the caller knows beside the text; the text wins where both say something.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// Name to give the box; None: made from the format and the number of GPUs.
    pub name: Option<String>,
    /// The GPU, from the catalogue: fills in link generation, lanes and NVLink rate.
    pub gpu: Option<GpuWiring>,
    /// How many GPUs to use: the first so many of the text; more than it shows is an error.
    pub gpus: Option<usize>,
    /// Whether PCIe peer access works, by the GPU's driver policy, where the text is silent.
    pub p2p: Option<P2p>,
}

/// What a text is, by its marks alone.
pub fn detect(text: &str) -> Format {
    // Enough to find any mark; the rest of a huge text is not looked at twice.
    let text = clean::head(text, crate::box_spec::TEXT_BYTES_MAX);
    let has = |mark: &str| text.contains(mark);
    if has("[[node]]") || clean::has_key(text, "node") {
        return Format::BoxFile;
    }
    match xml::root_name(text) {
        Some("system") => return Format::NcclXml,
        Some("topology") => return Format::HwlocXml,
        Some("nvidia_smi_log") => return Format::SmiQuery,
        _ => {}
    }
    let lines = clean::lines(text);
    if matrix::looks_like(&lines) {
        return Format::TopoMatrix;
    }
    let tree = lspci_tree::looks_like(&lines);
    // A mixed text is read by the part that shows GPUs.
    if lspci_verbose::looks_like(&lines) && !(tree && lspci_verbose::gpus(&lines) == 0) {
        return Format::LspciVerbose;
    }
    if tree {
        return Format::LspciTree;
    }
    if has("NVSMI LOG") || has("Attached GPUs") {
        return Format::SmiQuery;
    }
    if has("Command line: BOOT_IMAGE") || has("[    0.000000]") {
        return Format::KernelLog;
    }
    Format::Unknown
}

/// Reads a text in any of the formats.
pub fn read(text: &str, hints: &Hints) -> Result<BoxSpec, ReadError> {
    crate::box_spec::check_text(text)?;
    let refuse = |what: &str| Err(ReadError::new(None, what, GIVE));
    let mut spec = match detect(text) {
        Format::BoxFile => BoxSpec::from_toml(text)?,
        Format::TopoMatrix => matrix_wiring::read(text, hints)?,
        Format::NcclXml => nccl_xml::read(text, hints)?,
        Format::HwlocXml => hwloc::read(text, hints)?,
        Format::LspciVerbose => lspci_verbose::read(&clean::lines(text), hints)?,
        Format::LspciTree => lspci_tree::read(&clean::lines(text), hints)?,
        Format::SmiQuery => {
            return refuse("`nvidia-smi -q` shows each card but not how they are joined");
        }
        Format::KernelLog => return refuse("a kernel log does not show how GPUs are joined"),
        Format::Unknown if text.trim().is_empty() => return refuse("the text is empty"),
        Format::Unknown => return refuse("no topology found in this text"),
    };
    if crate::cpu::may_be_any_of_amd(spec.cpu.as_deref()) {
        let named = crate::cpu::in_text(&clean::lines(text));
        spec.cpu = named.or(spec.cpu);
    }
    if let Some(wanted) = hints.gpus {
        spec = first_gpus(spec, wanted)?;
    }
    spec.check()?;
    Ok(spec)
}

/// What to give instead of a text that shows no wiring.
const GIVE: &str = "give the output of `nvidia-smi topo -m`, `lspci -vv` (as root), an NCCL topology XML (NCCL_TOPO_DUMP_FILE) or a box file";

/// The first so many GPUs of a box.
fn first_gpus(mut spec: BoxSpec, wanted: usize) -> Result<BoxSpec, ReadError> {
    let found = spec.gpu_count();
    if wanted == 0 || wanted > found {
        return Err(ReadError::new(
            None,
            format!(
                "the topology shows {found} GPU{}, {wanted} are asked for",
                if found == 1 { "" } else { "s" }
            ),
            match found {
                1 => "give --gpus 1".to_string(),
                _ => format!("give --gpus 1 to {found}"),
            },
        ));
    }
    if wanted < found {
        let gone: Vec<String> = spec
            .gpus()
            .iter()
            .skip(wanted)
            .map(|g| g.id.clone())
            .collect();
        spec.nodes
            .retain(|n| !(n.kind == NodeKind::Gpu && gone.contains(&n.id)));
        spec.links
            .retain(|l| !gone.contains(&l.a) && !gone.contains(&l.b));
        spec.assume(
            format!("the first {wanted} of {found} GPUs are used"),
            format!("--tp {wanted} (simulate: --ranks) in place of --gpus {wanted}, which chooses among all"),
        );
    }
    Ok(spec)
}

/// What settles whether peers reach each other.
const PEER_ACCESS: &str = "`nvidia-smi topo -p2p r` in the same file";

/// Whether an assumption is the one that the matrix of peer access settles.
fn is_of_peer_access(assumption: &Assumption) -> bool {
    assumption.settles_it == PEER_ACCESS
}

/// Completes a box read from text: peer access, and NVLink that PCIe listings cannot show.
fn finish(spec: &mut BoxSpec, hints: &Hints, p2p_seen: Option<P2p>) {
    match (p2p_seen, hints.p2p) {
        (Some(seen), _) => spec.p2p = seen,
        (None, Some(policy)) => {
            spec.p2p = policy;
            if spec.gpu_count() > 1 {
                spec.assume(
                    "PCIe peer access as the stock driver grants it for this GPU",
                    PEER_ACCESS,
                );
            }
        }
        (None, None) => {
            spec.p2p = P2p::On;
            if spec.gpu_count() > 1 {
                spec.assume("PCIe peer access works", PEER_ACCESS);
            }
        }
    }
    if spec.acs == Some(Acs::Redirect) {
        spec.assume(
            "ACS redirect is set on a switch port above a GPU: peer traffic goes up to the root and back",
            "a pair copy under one switch: half the expected rate confirms it",
        );
    }
}

/// PCIe generation and lanes for GPUs whose text does not say; the guess is listed.
fn gpu_port(spec: &mut BoxSpec, hints: &Hints) -> (u8, u8) {
    let settle = "`nvidia-smi -q` in the same file, or a box file";
    match &hints.gpu {
        Some(gpu) => {
            spec.assume(
                format!(
                    "every slot runs at the card's Gen{} x{}",
                    gpu.pcie_gen, gpu.lanes
                ),
                settle,
            );
            (gpu.pcie_gen, gpu.lanes)
        }
        None => {
            spec.assume(
                "every slot runs at Gen4 x16: neither the text nor --gpu says",
                settle,
            );
            (4, 16)
        }
    }
}

/// Name of a box read from text.
fn box_name(hints: &Hints, gpus: usize, what: &str) -> String {
    hints
        .name
        .clone()
        .unwrap_or_else(|| format!("{gpus} GPUs from {what}"))
}
