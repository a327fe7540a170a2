//! The slots of a box whose wiring is a matrix: what `nvidia-smi -q` or `lspci -vv` beside it say of
//! each GPU's link.

use super::{Hints, lspci_verbose};
use crate::box_spec::NodeKind;

/// PCIe generation and lanes of one GPU's link.
pub(super) type Slot = (u8, u8);

/// The slots of so many GPUs, in the order of `nvidia-smi`, which is that of their PCI addresses;
/// `None` where the text does not show them all.
pub(super) fn of_gpus(lines: &[String], hints: &Hints, gpus: usize) -> Option<Vec<Slot>> {
    queried(lines)
        .filter(|slots| slots.len() == gpus)
        .or_else(|| listed(lines, hints).filter(|slots| slots.len() == gpus))
}

/// From `lspci -vv`, which tells links apart that idle at a low speed.
fn listed(lines: &[String], hints: &Hints) -> Option<Vec<Slot>> {
    let spec = lspci_verbose::read(lines, hints).ok()?;
    let gpus = spec.nodes.iter().filter(|node| node.kind == NodeKind::Gpu);
    gpus.map(|gpu| gpu.pcie_gen.zip(gpu.lanes)).collect()
}

/// A card's section of `nvidia-smi -q` as far as it is read.
#[derive(Default)]
struct Card {
    /// The most that the card and the slot do: an idle link runs at less.
    pcie_gen: Option<u8>,
    lanes: Option<u8>,
}

/// From the text of `nvidia-smi -q`.
fn queried(lines: &[String]) -> Option<Vec<Slot>> {
    let mut cards: Vec<Card> = Vec::new();
    let mut section = "";
    for line in lines.iter().map(|line| line.trim()) {
        if line.strip_prefix("GPU ").is_some_and(is_address) {
            cards.push(Card::default());
            section = "";
        }
        match line {
            "PCIe Generation" | "Link Width" => section = line,
            _ => {}
        }
        let (Some(card), Some((key, value))) = (cards.last_mut(), line.split_once(':')) else {
            continue;
        };
        let figure = value.trim().trim_end_matches('x').parse::<u8>().ok();
        match (section, key.trim()) {
            ("PCIe Generation", "Max" | "Device Max" | "Host Max") => {
                let known = card.pcie_gen.into_iter().chain(figure);
                card.pcie_gen = known.min();
            }
            ("Link Width", "Current") => {
                card.lanes = figure;
                section = "";
            }
            _ => {}
        }
    }
    let whole = |card: Card| {
        let lanes = card
            .lanes
            .filter(|lanes| matches!(lanes, 1 | 2 | 4 | 8 | 16))?;
        Some((card.pcie_gen.filter(|g| (1..=7).contains(g))?, lanes))
    };
    let slots: Option<Vec<Slot>> = cards.into_iter().map(whole).collect();
    slots.filter(|slots| !slots.is_empty())
}

/// "00000000:01:00.0".
fn is_address(text: &str) -> bool {
    let text = text.trim();
    text.contains(':')
        && text
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b":.".contains(&b))
}
