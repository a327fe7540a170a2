//! Boxes that the catalogue lacks, from the wiring that `pcie/boxes.json` gives beside its rows.

use std::path::Path;

use pcie_sim::box_spec::{Acs, BoxSpec, Iommu, Link, LinkKind, Node, NodeKind, P2p};
use serde_json::Value;

use crate::score::names::Names;

/// What `pcie/boxes.json` says of boxes, and how it names cards.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    boxes: Vec<Value>,
    names: Names,
}

impl Wiring {
    /// Reads `pcie/boxes.json` and `names.tsv`; a folder without them has no such boxes.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub(super) fn load(data: &Path) -> anyhow::Result<Self> {
        let path = data.join("pcie/boxes.json");
        if !path.is_file() {
            return Ok(Self::default());
        }
        let boxes = serde_json::from_str(&crate::input::read_text(&path)?)
            .map_err(|e| crate::input::error(format!("{}: {e}", path.display())))?;
        let names = Names::load(data)?;
        Ok(Self { boxes, names })
    }

    /// The box by that name, where its wiring is told.
    pub(super) fn find(&self, name: &str) -> Option<BoxSpec> {
        let row = self
            .boxes
            .iter()
            .find(|b| b["box"].as_str() == Some(name))?;
        let topo = row["topo"].as_object().map(|_| &row["topo"])?;
        let gpus = row["n_gpus"].as_u64().filter(|n| (1..=64).contains(n))? as usize;
        let mut nodes = Nodes {
            pcie_gen: topo["pcie_gen"].as_u64()?.try_into().ok()?,
            lanes: topo["lanes"].as_u64().unwrap_or(16).try_into().ok()?,
            nodes: Vec::new(),
        };
        nodes.tree(topo, gpus);
        let wires = row["interconnect"].as_str().unwrap_or("");
        let spec = BoxSpec {
            name: name.to_string(),
            gpu: row["gpu"].as_str().map(|g| self.names.gpu(g).to_string()),
            p2p: match row["p2p"].as_str() {
                Some("off") => P2p::Off,
                Some("staged") => P2p::Staged,
                _ => P2p::On,
            },
            nccl_p2p_level: None,
            nccl: None,
            source: row["source"].as_str().map(String::from),
            cpu: cpu(wires),
            acs: (topo["acs"] == "off").then_some(Acs::Off),
            iommu: (topo["iommu"] == "off").then_some(Iommu::Off),
            fabric: None,
            links: socket_link(&nodes.nodes, nodes.pcie_gen),
            nodes: nodes.nodes,
            measured: Vec::new(),
            assumptions: Vec::new(),
        };
        spec.check().ok().map(|()| spec)
    }
}

/// Lists of GPU numbers under a key.
fn groups(topo: &Value, key: &str) -> Vec<Vec<usize>> {
    let lists = topo[key].as_array().map_or(&[][..], Vec::as_slice);
    lists.iter().map(super::sources::ids).collect()
}

/// The family, where the text names one whose root complex the model knows apart.
fn cpu(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let zen5 = text.split([' ', ';', ',']).any(|word| {
        let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        number.len() == 4 && number.starts_with('9') && number.ends_with('5')
    });
    (text.contains("turin") || (text.contains("epyc") && zen5)).then(|| "amd-turin".to_string())
}

/// Two sockets are joined at the rate usual for hosts of that generation, as in the catalogue.
fn socket_link(nodes: &[Node], pcie_gen: u8) -> Vec<Link> {
    let (kind, gb_s) = match pcie_gen {
        0..=3 => (LinkKind::Qpi, 20.0),
        4 => (LinkKind::Xgmi, 39.0),
        _ => (LinkKind::Xgmi, 95.0),
    };
    if !nodes.iter().any(|n| n.id == "cpu1") {
        return Vec::new();
    }
    let (a, b) = ("cpu0".to_string(), "cpu1".to_string());
    vec![Link { a, b, kind, gb_s }]
}

struct Nodes {
    pcie_gen: u8,
    lanes: u8,
    nodes: Vec<Node>,
}

impl Nodes {
    fn add(&mut self, id: String, kind: NodeKind, parent: Option<String>, root: Option<String>) {
        let linked = parent.is_some();
        self.nodes.push(Node {
            id,
            kind,
            model: None,
            chip: None,
            pcie_gen: linked.then_some(self.pcie_gen),
            lanes: linked.then_some(self.lanes),
            parent,
            root,
            numa: None,
            bus: None,
        });
    }

    /// Sockets, switches (one a group, under one root switch where there is one) and GPUs.
    fn tree(&mut self, topo: &Value, gpus: usize) {
        let mut switches = groups(topo, "switch_groups");
        let islands = groups(topo, "islands");
        if switches.is_empty() {
            switches.clone_from(&islands);
        }
        let told = super::sources::ids(&topo["gpu_socket"]);
        let sockets = match topo["sockets"].as_u64() {
            Some(n) => (n as usize).clamp(1, 2),
            None if islands.len() > 1 => 2,
            None => 1,
        };
        let socket = |gpu: usize| {
            let guess = gpu * sockets / gpus;
            told.get(gpu).copied().unwrap_or(guess).min(sockets - 1)
        };
        for s in 0..sockets {
            self.add(format!("cpu{s}"), NodeKind::Socket, None, None);
        }
        let chips = groups(topo, "same_chip");
        let above = topo["root_switch"].as_bool() == Some(true);
        if above {
            let (id, cpu) = ("root".to_string(), Some("cpu0".to_string()));
            self.add(id, NodeKind::Switch, cpu, Some("r".to_string()));
        }
        let roots = topo["root_complex"].as_array();
        for (i, group) in switches.iter().enumerate() {
            let first = group.first().copied().unwrap_or(0);
            let parent = match above {
                true => "root".to_string(),
                false => format!("cpu{}", socket(first)),
            };
            let named = roots.and_then(|r| r.get(i)?.as_str());
            let root = named.map_or_else(|| format!("r{i}"), String::from);
            self.add(
                format!("sw{i}"),
                NodeKind::Switch,
                Some(parent),
                (!above).then_some(root),
            );
            let chip = chips.iter().position(|c| c.contains(&first));
            if let Some(node) = self.nodes.last_mut() {
                node.chip = chip.map(|c| format!("chip{c}"));
                node.model = topo["switch"].as_str().and_then(part);
            }
        }
        for gpu in 0..gpus {
            let (parent, root) = match switches.iter().position(|s| s.contains(&gpu)) {
                Some(switch) => (format!("sw{switch}"), None),
                None => (format!("cpu{}", socket(gpu)), Some(format!("g{gpu}"))),
            };
            self.add(format!("gpu{gpu}"), NodeKind::Gpu, Some(parent), root);
        }
    }
}

/// "Broadcom PEX890xx" is the part "pex890xx".
fn part(text: &str) -> Option<String> {
    text.split_whitespace().last().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcie_sim::{Arch, Topology};

    /// Boxes of the catalogue that the data tell of too come out with the same routes.
    #[test]
    fn wiring_told_by_the_data_gives_the_catalogues_routes() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let wiring = Wiring::load(&data).expect("reads");
        let mut compared = 0;
        for row in &wiring.boxes {
            let name = row["box"].as_str().unwrap_or("");
            let (Some(told), Ok(known)) = (wiring.find(name), pcie_sim::catalog::find(name)) else {
                continue;
            };
            // Which leaves of a tree of switches share a chip is an assumption of the catalogue.
            if row["topo"]["root_switch"] == true {
                continue;
            }
            let told = Topology::from_spec(&told, Arch::AMPERE).expect(name);
            let known = Topology::from_spec(&known, Arch::AMPERE).expect(name);
            assert_eq!(told.gpu_count(), known.gpu_count(), "{name}");
            for from in 0..told.gpu_count() {
                for to in 0..told.gpu_count() {
                    let class = |t: &Topology| t.route(from, to).map(|r| r.class);
                    assert_eq!(class(&told), class(&known), "{name} {from} to {to}");
                }
            }
            compared += 1;
        }
        assert!(compared >= 8, "only {compared} boxes are in both");
    }

    #[test]
    fn a_box_without_wiring_or_with_nonsense_is_not_placed() {
        let of = |text: &str| Wiring {
            boxes: vec![serde_json::from_str(text).unwrap()],
            names: Names::default(),
        };
        for text in [
            r#"{"box":"b","n_gpus":4}"#,
            r#"{"box":"b","n_gpus":0,"topo":{"pcie_gen":4}}"#,
            r#"{"box":"b","n_gpus":4,"topo":{"pcie_gen":900}}"#,
            r#"{"box":"b","n_gpus":4,"topo":{"lanes":16}}"#,
        ] {
            assert!(of(text).find("b").is_none(), "{text}");
        }
        let good = r#"{"box":"b","n_gpus":4,"topo":{"pcie_gen":4,"switch_groups":[[0,99]]}}"#;
        assert_eq!(of(good).find("b").map(|b| b.nodes.len()), Some(6));
    }
}
