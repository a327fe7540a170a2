//! Capacity of a card by the name that a row of the data gives it.

/// Capacity by the card's name, MiB as `nvidia-smi` prints; a name may carry it in brackets.
const CARDS_MIB: [(&str, f64); 12] = [
    ("rtx pro 6000", 97_887.0),
    ("rtx 5090", 32_607.0),
    ("rtx 5080", 16_303.0),
    ("rtx 4090", 24_564.0),
    ("rtx 3090", 24_576.0),
    ("l40s", 46_068.0),
    ("a100 80", 81_920.0),
    ("h100", 81_559.0),
    ("h200", 143_771.0),
    ("h20", 97_871.0),
    ("b200", 183_359.0),
    ("b300", 275_040.0),
];

/// Capacity as `nvidia-smi` prints it, GiB: from the name's own MiB, the table, the catalogue of
/// GPUs, or the size of its class.
pub(super) fn card_gib(name: &str) -> Option<f64> {
    let name = name.to_ascii_lowercase();
    if let Some((before, _)) = name.split_once(" mib") {
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
        if let Ok(mib) = digits.parse::<f64>() {
            return Some(mib / 1024.0);
        }
    }
    let known = CARDS_MIB.iter().find(|(card, _)| name.contains(card));
    known
        .map(|(_, mib)| mib / 1024.0)
        .or_else(|| in_catalogue(&name))
        .or_else(|| of_class(&name))
}

/// The longest name of the catalogue that stands in `name` as whole words.
fn in_catalogue(name: &str) -> Option<f64> {
    let words = |text: &str| format!(" {} ", text.replace(['-', '_', '(', ')', ','], " "));
    let padded = words(name);
    let of = |gpu: &'static crate::gpus::Gpu| {
        let names = std::iter::once(&gpu.name).chain(&gpu.aliases);
        let found = names.filter(|known| padded.contains(&words(known)));
        Some((found.map(String::len).max()?, gpu))
    };
    let (_, gpu) = crate::gpus::all()
        .iter()
        .filter_map(of)
        .max_by_key(|(length, _)| *length)?;
    Some(kvplan::card_gib_from_torch(gpu.memory_gib))
}

/// `24 GB class` and the like; server cards by what the common ones of the class print.
fn of_class(name: &str) -> Option<f64> {
    let (before, _) = name.split_once(" gb")?;
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    match digits.parse::<f64>().ok()? {
        80.0 => Some(81_559.0 / 1024.0),
        96.0 => Some(97_887.0 / 1024.0),
        141.0 => Some(143_771.0 / 1024.0),
        gib if gib > 0.0 => Some(gib),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_table_catalogue_and_class() {
        let near = |name: &str, gib: f64| {
            let got = card_gib(name).unwrap_or_default();
            assert!((got - gib).abs() < 0.6, "{name}: {got}, expected {gib}");
        };
        near("RTX 5080 (16303 MiB)", 15.92);
        near("RTX PRO 6000 96 GB", 95.59);
        near("1x A100 40GB", 40.0);
        near("MI300X", 192.0);
        near("NVIDIA L4", 22.5);
        // Held 4 GiB: "4 gb class" stands in it.
        near("24 GB class", 24.0);
        near("4 GB class", 4.0);
        near("80 GB class", 79.65);
        assert!(card_gib("a card").is_none());
    }
}
