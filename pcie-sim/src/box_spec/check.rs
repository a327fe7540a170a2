//! The rules a box must keep, and errors that name the line of the box file.

use super::{BoxSpec, Node, NodeKind, ReadError};
use std::collections::HashMap;

/// Longest text read, bytes. The largest real file seen is 62 KB; a full `lspci -vvv` of a large
/// server is about 1 MB.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// Most GPUs read from any source.
pub const GPUS_READ_MAX: usize = 64;
/// Most GPUs that the collectives simulate.
pub const GPUS_SIMULATED_MAX: usize = 16;
/// Most nodes of a box: far above any server, so that junk is refused.
const NODES_MAX: usize = 4096;
/// Deepest chain from a GPU to its socket. Real ones have up to 4 switches.
const DEPTH_MAX: usize = 32;
/// Fastest link believed, GB/s per direction (NVLink 5 per GPU is 900).
const GB_S_MAX: f64 = 20_000.0;

/// Refuses texts that are too long to be a topology, or binary.
pub(crate) fn size(text: &str) -> Result<(), ReadError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ReadError::new(
            None,
            format!(
                "{} MB is too long for a topology (limit 16 MB)",
                text.len() / 1_000_000
            ),
            "give the output of `nvidia-smi topo -m`, an NCCL topology XML, `lspci -vv` or a box file",
        ));
    }
    if let Some(at) = text.bytes().position(|b| b == 0) {
        return Err(ReadError::new(
            Some(line_at(text, at)),
            "a NUL byte: this is not a text file",
            "give the text that the tool printed",
        ));
    }
    Ok(())
}

/// Line number, from 1, of a byte offset.
pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    1 + text
        .as_bytes()
        .iter()
        .take(end)
        .filter(|b| **b == b'\n')
        .count()
}

/// An error of the TOML reader as one line.
pub(super) fn toml_error(text: &str, error: &toml::de::Error) -> ReadError {
    let line = error.span().map(|span| line_at(text, span.start));
    let what = error
        .message()
        .lines()
        .next()
        .unwrap_or("not a box file")
        .to_string();
    let mend = if what.starts_with("unknown field") {
        "remove or rename the key"
    } else if what.starts_with("missing field") {
        "add the key"
    } else {
        "see pcie-sim/catalog/two-switch-8.toml for the form"
    };
    ReadError::new(line, what, mend)
}

/// Line of the n-th entry of a table: its `[[table]]` header, or its `{ … }` line in
/// `table = [ … ]`; None where neither form is found.
fn header_line(text: &str, table: &str, nth: usize) -> Option<usize> {
    let header = format!("[[{table}]]");
    let starts = |line: &str| line.trim_start().starts_with(&header);
    let lines = || text.lines().enumerate();
    let inline = |line: &str| {
        let rest = line.trim_start().strip_prefix(table);
        rest.is_some_and(|r| r.trim_start().starts_with('='))
    };
    let found = lines()
        .filter(|(_, line)| starts(line))
        .nth(nth)
        .or_else(|| {
            let after = lines().skip_while(|(_, line)| !inline(line)).skip(1);
            after
                .filter(|(_, line)| line.trim_start().starts_with('{'))
                .nth(nth)
        });
    found.map(|(index, _)| index + 1)
}

impl BoxSpec {
    /// [`BoxSpec::check`] with lines taken from the text the box was read from.
    pub(super) fn check_in(&self, text: &str) -> Result<(), ReadError> {
        if self.name.is_empty() || self.name.len() > 128 || self.name.chars().any(char::is_control)
        {
            return Err(ReadError::new(
                None,
                "the box has no usable name",
                "give `name`, 1 to 128 characters",
            ));
        }
        self.check_counts()?;
        let mut index_of: HashMap<&str, usize> = HashMap::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let fail = |what: String, mend: &str| {
                Err(ReadError::new(header_line(text, "node", i), what, mend))
            };
            if node.id.is_empty() || node.id.len() > 64 || node.id.chars().any(char::is_control) {
                return fail(
                    format!("node {i} has no usable id"),
                    "give `id`, 1 to 64 characters",
                );
            }
            if index_of.insert(&node.id, i).is_some() {
                return fail(
                    format!("two nodes have the id '{}'", node.id),
                    "give each node its own id",
                );
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            self.check_node(node, &index_of)
                .map_err(|(what, mend)| ReadError::new(header_line(text, "node", i), what, mend))?;
        }
        self.check_links(text, &index_of)?;
        self.check_figures(text)
    }

    fn check_counts(&self) -> Result<(), ReadError> {
        let gpus = self
            .nodes
            .iter()
            .filter(|n| n.kind == NodeKind::Gpu)
            .count();
        if gpus == 0 {
            return Err(ReadError::new(
                None,
                "no GPU in the box",
                "add a [[node]] of kind \"gpu\"",
            ));
        }
        if gpus > GPUS_READ_MAX || self.nodes.len() > NODES_MAX {
            return Err(ReadError::new(
                None,
                format!("{gpus} GPUs and {} nodes in one box", self.nodes.len()),
                format!(
                    "one server is read, up to {GPUS_READ_MAX} GPUs ({GPUS_SIMULATED_MAX} are simulated)"
                ),
            ));
        }
        Ok(())
    }

    fn check_links(&self, text: &str, index_of: &HashMap<&str, usize>) -> Result<(), ReadError> {
        for (i, link) in self.links.iter().enumerate() {
            let fail = |what: String, mend: &str| {
                Err(ReadError::new(header_line(text, "link", i), what, mend))
            };
            for end in [&link.a, &link.b] {
                if !index_of.contains_key(end.as_str()) {
                    return fail(
                        format!("link end '{end}' is not a node"),
                        "use the id of a [[node]]",
                    );
                }
            }
            if link.a == link.b {
                return fail(
                    format!("link from '{}' to itself", link.a),
                    "name two different nodes",
                );
            }
            if !usable_rate(link.gb_s) {
                return fail(
                    format!("link rate {} GB/s", link.gb_s),
                    "give GB/s per direction, above 0",
                );
            }
        }
        Ok(())
    }

    fn check_node(
        &self,
        node: &Node,
        index_of: &HashMap<&str, usize>,
    ) -> Result<(), (String, String)> {
        let id = &node.id;
        let fail = |what: String, mend: &str| Err((what, mend.to_string()));
        let top = matches!(node.kind, NodeKind::Socket | NodeKind::Nvswitch);
        let Some(parent) = &node.parent else {
            let linked = self.links.iter().any(|l| l.a == *id || l.b == *id);
            if !top && !linked {
                return fail(
                    format!("node '{id}' has neither a parent nor a link"),
                    "add `parent`",
                );
            }
            return Ok(());
        };
        if top {
            return fail(
                format!("'{id}' is a socket or NVSwitch and has a parent"),
                "use [[link]] instead",
            );
        }
        let Some(up) = index_of
            .get(parent.as_str())
            .and_then(|i| self.nodes.get(*i))
        else {
            return fail(
                format!("parent '{parent}' of '{id}' is not a node"),
                "use the id of a [[node]]",
            );
        };
        if !matches!(up.kind, NodeKind::Socket | NodeKind::Switch) {
            return fail(
                format!("parent '{parent}' of '{id}' is no socket or switch"),
                "hang it on one",
            );
        }
        check_port(node)?;
        let mut at = node;
        for _ in 0..DEPTH_MAX {
            let Some(next) = &at.parent else {
                return Ok(());
            };
            let Some(up) = index_of.get(next.as_str()).and_then(|i| self.nodes.get(*i)) else {
                return Ok(());
            };
            at = up;
        }
        fail(
            format!("'{id}' never reaches a socket"),
            "its parents form a circle or a chain over 32 long",
        )
    }

    fn check_figures(&self, text: &str) -> Result<(), ReadError> {
        if let Some(rate) = self.fabric.as_ref().and_then(|f| f.all_pairs_gb_s)
            && !usable_rate(rate)
        {
            return Err(ReadError::new(
                None,
                format!("[fabric] all_pairs_gb_s = {rate}"),
                "give GB/s per direction, above 0",
            ));
        }
        if let Some(said) = &self.nccl
            && crate::nccl::release(said).is_none()
        {
            return Err(ReadError::new(
                None,
                format!("nccl = \"{said}\" is no version of NCCL"),
                "give it as NCCL prints it, such as nccl = \"2.29.7\"",
            ));
        }
        for (i, row) in self.measured.iter().enumerate() {
            let line = header_line(text, "measured", i);
            if row.time_us.is_some_and(|t| !(t.is_finite() && t > 0.0))
                || row.gb_s.is_some_and(|r| !usable_rate(r))
            {
                return Err(ReadError::new(
                    line,
                    "a measured figure is not above 0",
                    "give time_us or gb_s above 0",
                ));
            }
            if row.time_us.is_none() && row.gb_s.is_none() {
                return Err(ReadError::new(
                    line,
                    "[[measured]] without a figure",
                    "give time_us or gb_s",
                ));
            }
        }
        Ok(())
    }
}

/// Generation and lanes of a node that has a parent.
fn check_port(node: &Node) -> Result<(), (String, String)> {
    let id = &node.id;
    let fail = |what: String, mend: &str| Err((what, mend.to_string()));
    match node.pcie_gen {
        Some(1..=7) => {}
        Some(other) => return fail(format!("'{id}' has PCIe gen {other}"), "gen is 1 to 7"),
        None => {
            return fail(
                format!("'{id}' has a parent but no `gen`"),
                "add gen and lanes",
            );
        }
    }
    match node.lanes {
        Some(1 | 2 | 4 | 8 | 12 | 16 | 32) => {}
        Some(other) => {
            return fail(
                format!("'{id}' has {other} lanes"),
                "lanes are 1, 2, 4, 8, 12, 16 or 32",
            );
        }
        None => {
            return fail(
                format!("'{id}' has a parent but no `lanes`"),
                "add gen and lanes",
            );
        }
    }
    Ok(())
}

/// Whether a rate in GB/s can be believed.
fn usable_rate(gb_s: f64) -> bool {
    gb_s.is_finite() && gb_s > 0.0 && gb_s <= GB_S_MAX
}
