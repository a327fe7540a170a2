//! A server's wiring as data: sockets, switches, GPUs, the links beside the tree, and what was
//! measured on it. Written and read as the TOML box file; every reader produces the same type.
//!
//! The tree is by `parent`; a node's `gen` and `lanes` describe its own link **up to its parent**,
//! full duplex. Links that are not tree edges (NVLink, xGMI, UPI) are listed apart. A switch chip
//! that is split into virtual switches appears as several switch nodes with the same `chip`.

mod check;
mod flat;
mod query;

use serde::{Deserialize, Serialize};
use std::fmt;

pub(crate) use check::size as check_text;
pub use check::{GPUS_READ_MAX, GPUS_SIMULATED_MAX, TEXT_BYTES_MAX};
pub use flat::{GpuLinks, GpuWiring};
pub use query::PathClass;

/// A box: one server's wiring. Guaranteed by [`BoxSpec::check`] (every constructor runs it):
/// unique ids, a tree without cycles, 1 to 64 GPUs, `gen` and `lanes` on every node with a parent,
/// finite positive rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoxSpec {
    /// Name of the box, as in the catalogue or the file.
    pub name: String,
    /// Catalogue name of the GPU, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Whether PCIe peer access works. NVLink and xGMI links between GPUs work whatever it says.
    pub p2p: P2p,
    /// `NCCL_P2P_LEVEL` in the environment of what is served there, where it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl_p2p_level: Option<crate::nccl::P2pLevel>,
    /// NCCL's version there ("2.29.7"), where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// Where the wiring was published or how it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// CPU family, where known ("amd-turin", "amd-genoa", "intel-spr", …): the root complex is
    /// part of every path between switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Access control services on the GPU paths, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs: Option<Acs>,
    /// The IOMMU, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu: Option<Iommu>,
    /// Measured or reported state of the fabric under all-to-all load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Sockets, switches, GPUs, NICs. GPU index = order of appearance among the GPUs.
    #[serde(default, rename = "node")]
    pub nodes: Vec<Node>,
    /// What is not a tree edge.
    #[serde(default, rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Figures measured on this box.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Measured>,
    /// What the source did not say and was assumed.
    #[serde(default, rename = "assumption", skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<Assumption>,
}

/// Whether PCIe peer access between GPUs works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum P2p {
    /// GPUs read and write each other's memory over PCIe.
    On,
    /// The driver refuses; traffic goes through host memory.
    Off,
    /// The driver grants it but kernel accesses are staged through a mailbox or host memory.
    Staged,
}

/// State of access control services on the bridges of GPU paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acs {
    /// No redirect bit is set on a GPU path.
    Off,
    /// A bridge on a GPU path sends peer requests up to the root.
    Redirect,
}

/// State of the IOMMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Iommu {
    /// Off.
    Off,
    /// Pass-through (`iommu=pt`): no cost.
    Pt,
    /// Translating device addresses.
    Translating,
}

/// Measured behaviour under all-to-all load, which pair tests do not show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Which mode the fabric is in.
    pub state: FabricState,
    /// Rate per direction through the shared path when all GPUs access all others, GB/s (1e9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_pairs_gb_s: Option<f64>,
    /// Where the state was measured or reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Modes of a PCIe fabric that no fluid model produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// Shares as its links suggest.
    Healthy,
    /// Rate falls about 20x under all-to-all load while pair tests look perfect.
    Collapsed,
    /// Kernel accesses go through a mailbox or host memory.
    Staged,
    /// ACS sends peer traffic of one switch up to the root and back.
    AcsRedirect,
}

/// A socket, switch, GPU or NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique name within the box.
    pub id: String,
    /// What it is.
    pub kind: NodeKind,
    /// Part, such as "pex890xx" or "pm50100".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Physical chip of a virtual switch: equal names are one chip, which joins them inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip: Option<String>,
    /// Node one step nearer to the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Host bridge (root complex) of a node that hangs on a socket; equal names share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// NUMA node, where the source says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// PCI address, where the source says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// PCIe generation of the link to the parent, 1 to 7; None for sockets and NVSwitches.
    #[serde(default, rename = "gen", skip_serializing_if = "Option::is_none")]
    pub pcie_gen: Option<u8>,
    /// Lanes of the link to the parent, 1 to 32; None for sockets and NVSwitches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u8>,
}

/// Kinds of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A CPU package with its root complexes and memory. Has no parent.
    Socket,
    /// A PCIe switch, or one virtual switch of a chip.
    Switch,
    /// A GPU.
    Gpu,
    /// A network card: not simulated, kept because it shows which switch is which.
    Nic,
    /// The NVSwitch plane as one non-blocking node; GPUs reach it by `[[link]]`. Has no parent.
    Nvswitch,
}

/// A link that is not a tree edge, full duplex.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// One end.
    pub a: String,
    /// The other end.
    pub b: String,
    /// What it is.
    pub kind: LinkKind,
    /// Rate per direction, GB/s (1e9), as the parts' data sheet counts it.
    pub gb_s: f64,
}

/// Kinds of link beside the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// NVLink between two GPUs, or from a GPU to the NVSwitch plane, or to an NVLink CPU.
    Nvlink,
    /// AMD's link, between sockets or between GPUs.
    Xgmi,
    /// Intel's socket link.
    Upi,
    /// Intel's older socket link.
    Qpi,
}

/// A figure measured on the box.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// What was measured: "all_reduce", "pair_copy", …
    pub what: String,
    /// Algorithm, for a collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// GPUs that took part; None: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Payload per GPU, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Time, us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_us: Option<f64>,
    /// Rate, GB/s (1e9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_s: Option<f64>,
    /// Where it was measured or reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Something the source did not say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumption {
    /// What was assumed, and why it is the likely case.
    pub what: String,
    /// The command or measurement that would settle it.
    pub settles_it: String,
}

/// Why a text could not be read as a box; one line when displayed. The caller adds the file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    /// Line of the input, from 1, where one line is to blame.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// How to mend it.
    pub mend: String,
}

impl ReadError {
    /// An error with line breaks and control characters of its parts made harmless.
    pub fn new(line: Option<usize>, what: impl AsRef<str>, mend: impl AsRef<str>) -> Self {
        ReadError {
            line,
            what: one_line(what.as_ref()),
            mend: one_line(mend.as_ref()),
        }
    }
}

/// Text for one output line: control characters become blanks, and it ends after 300 characters.
fn one_line(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(300)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(300).is_some() {
        out.push('…');
    }
    out
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        write!(f, "{}; {}", self.what, self.mend)
    }
}

impl std::error::Error for ReadError {}

impl BoxSpec {
    /// Reads a box file. Errors name the line and how to mend it.
    pub fn from_toml(text: &str) -> Result<BoxSpec, ReadError> {
        check::size(text)?;
        let spec: BoxSpec = toml::from_str(text).map_err(|e| check::toml_error(text, &e))?;
        spec.check_in(text)?;
        Ok(spec)
    }

    /// The box as a box file; [`BoxSpec::from_toml`] reads it back equal.
    pub fn to_toml(&self) -> Result<String, ReadError> {
        toml::to_string(self).map_err(|e| {
            ReadError::new(
                None,
                format!("the box cannot be written as TOML: {e}"),
                "report this",
            )
        })
    }

    /// Checks every rule a box must keep; errors name the node or link.
    pub fn check(&self) -> Result<(), ReadError> {
        self.check_in("")
    }

    /// Adds an assumption with what would settle it, once.
    pub fn assume(&mut self, what: impl Into<String>, settles_it: impl Into<String>) {
        let new = Assumption {
            what: what.into(),
            settles_it: settles_it.into(),
        };
        if !self.assumptions.contains(&new) {
            self.assumptions.push(new);
        }
    }
}
