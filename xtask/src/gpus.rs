//! The GPU catalogue: what a data sheet says of a card, found by catalogue name, by the name the
//! driver prints, or by a common short form.
//!
//! The data lie in `xtask/catalog/gpus.toml`; every entry carries its source.

use std::sync::OnceLock;

use serde::Deserialize;

/// The catalogue as text, compiled in.
const CATALOG: &str = include_str!("../catalog/gpus.toml");

/// Architecture generation: what decides which kernels an engine runs and how well they reach the
/// data sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Family {
    /// V100.
    Volta,
    /// T4.
    Turing,
    /// A100, RTX 30, A-series workstation cards.
    Ampere,
    /// RTX 40, L4, L40S.
    Ada,
    /// H100, H200, H20, GH200.
    Hopper,
    /// B200, B300, GB200, GB300.
    Blackwell,
    /// RTX 50, RTX PRO Blackwell, GB10.
    BlackwellRtx,
    /// MI300.
    Cdna3,
}

/// How the NVLinks (or xGMI) of a card lead to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Nvlink {
    /// PCIe only.
    None,
    /// A bridge to one to three neighbours.
    Bridge,
    /// A link to each other card of the board.
    Mesh,
    /// NVSwitch.
    Switch,
}

/// Peer access over PCIe with the stock Linux driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum P2p {
    /// Works.
    Yes,
    /// Works, but boards without PCIe switches need the ForceP2P registry key.
    Forced,
    /// The driver refuses it (GeForce).
    Refused,
    /// There is no second card to reach over PCIe.
    None,
}

/// One GPU. Rates are dense with FP32 accumulation; 0 where the chip has no such units.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gpu {
    /// Catalogue name, for example `h200-sxm`.
    pub(crate) name: String,
    /// Other names it is found by, lower case.
    pub(crate) aliases: Vec<String>,
    /// Architecture generation.
    pub(crate) family: Family,
    /// Compiler target, for example `sm_90`.
    pub(crate) arch: String,
    /// Streaming multiprocessors.
    pub(crate) sm_count: u32,
    /// Last-level cache, MiB.
    pub(crate) l2_mib: u32,
    /// Memory that the CUDA driver reports as total, GiB.
    pub(crate) memory_gib: f64,
    /// The same as `nvidia-smi` prints it, MiB: what an owner knows the card by.
    pub(crate) card_mib: f64,
    /// Memory bandwidth, GB/s (10^9).
    pub(crate) bandwidth_gb_s: f64,
    /// Dense BF16 rate, TFLOPS.
    pub(crate) tflops_bf16: f64,
    /// Dense FP8 rate, TFLOPS.
    pub(crate) tflops_fp8: f64,
    /// Dense FP4 rate, TFLOPS.
    pub(crate) tflops_fp4: f64,
    /// Dense INT8 rate, TOPS.
    pub(crate) tops_int8: f64,
    /// PCIe generation.
    pub(crate) pcie_gen: u32,
    /// PCIe lanes.
    pub(crate) pcie_lanes: u32,
    /// NVLink (or xGMI) bandwidth of one GPU in one direction, GB/s.
    pub(crate) nvlink_gb_s: f64,
    /// Where the NVLinks lead.
    pub(crate) nvlink: Nvlink,
    /// Most of them in one machine that tensor parallelism spans.
    #[serde(default = "most_in_a_chassis")]
    pub(crate) most_gpus: u32,
    /// Peer access over PCIe.
    pub(crate) p2p: P2p,
    /// Board power limit, W.
    pub(crate) power_w: f64,
    /// Where the figures come from.
    pub(crate) source: String,
}

impl Gpu {
    /// Whether `tp` of them are linked to each other where no wiring is known: a bridge joins two.
    pub(crate) fn links_by_itself(&self, tp: u64) -> bool {
        match self.nvlink {
            Nvlink::None => false,
            Nvlink::Bridge => tp <= 2,
            Nvlink::Mesh | Nvlink::Switch => true,
        }
    }

    /// The first number of its compute capability: 9 of `sm_90`, 12 of `sm_120`.
    pub(crate) fn compute_major(&self) -> Option<u64> {
        let number: u64 = self.arch.strip_prefix("sm_")?.parse().ok()?;
        Some(number / 10)
    }

    /// Capacity as `nvidia-smi` prints it, GiB.
    pub(crate) fn card_gib(&self) -> f64 {
        self.card_mib / 1024.0
    }
}

/// PCIe cards behind switches in one chassis; more have been built, and need their wiring shown.
fn most_in_a_chassis() -> u32 {
    16
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalog {
    gpu: Vec<Gpu>,
}

/// Every GPU, in the order of the file. Empty only if the compiled-in file were broken, which a
/// test rules out.
pub(crate) fn all() -> &'static [Gpu] {
    static ALL: OnceLock<Vec<Gpu>> = OnceLock::new();
    ALL.get_or_init(|| toml::from_str::<Catalog>(CATALOG).map_or_else(|_| Vec::new(), |c| c.gpu))
}

/// Finds a GPU by catalogue name, alias or driver name; case, blanks, `-`, `_`, brackets and a
/// leading `NVIDIA` do not matter.
///
/// # Errors
/// One line that lists the near matches.
pub(crate) fn find(name: &str) -> anyhow::Result<&'static Gpu> {
    let wanted = normal(name);
    if let Some(gpu) = all()
        .iter()
        .find(|g| names(g).any(|candidate| normal(candidate) == wanted))
    {
        return Ok(gpu);
    }
    let near = near_matches(name);
    Err(crate::input::error(if near.is_empty() {
        format!(
            "--gpu {}: no such GPU in the catalogue; known are {}",
            shown(name),
            all()
                .iter()
                .map(|g| g.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        )
    } else {
        format!(
            "--gpu {}: no such GPU in the catalogue; did you mean {}?",
            shown(name),
            near.join(", ")
        )
    }))
}

/// Up to four catalogue names close to `name`, nearest first.
pub(crate) fn near_matches(name: &str) -> Vec<&'static str> {
    let wanted = normal(&shown(name));
    if wanted.is_empty() {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &'static str)> = all()
        .iter()
        .filter_map(|gpu| {
            names(gpu)
                .map(|candidate| {
                    if words(candidate) == words(&shown(name)) {
                        0
                    } else {
                        distance(&wanted, &normal(candidate))
                    }
                })
                .min()
                .map(|d| (d, gpu.name.as_str()))
        })
        .filter(|(d, _)| *d <= 1 + wanted.len() / 3)
        .collect();
    scored.sort();
    scored.into_iter().take(4).map(|(_, n)| n).collect()
}

fn names(gpu: &Gpu) -> impl Iterator<Item = &str> {
    std::iter::once(gpu.name.as_str()).chain(gpu.aliases.iter().map(String::as_str))
}

/// The names that are known beside the catalogue's own, but for those that read the same.
pub(crate) fn other_names(gpu: &Gpu) -> Vec<&str> {
    let mut read = vec![normal(&gpu.name)];
    let mut other = Vec::new();
    for name in &gpu.aliases {
        let word = normal(name);
        if !read.contains(&word) {
            read.push(word);
            other.push(name.as_str());
        }
    }
    other
}

/// Lower case letters and digits only, without the maker's name in front.
fn normal(name: &str) -> String {
    let lower = name.to_lowercase();
    let trimmed = lower.trim();
    let rest = trimmed.strip_prefix("nvidia").unwrap_or(trimmed);
    let plain: String = rest.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    if plain.is_empty() {
        trimmed
            .chars()
            .filter(|c| c.is_ascii_alphanumeric())
            .collect()
    } else {
        plain
    }
}

/// Runs of letters and runs of digits, sorted: `rtx6000pro` has the words of `rtx-pro-6000`.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = ' ';
    for c in name.to_lowercase().chars() {
        if c.is_ascii_alphanumeric() {
            match words.last_mut() {
                Some(word)
                    if previous.is_ascii_digit() == c.is_ascii_digit()
                        && previous.is_ascii_alphanumeric() =>
                {
                    word.push(c);
                }
                _ => words.push(c.to_string()),
            }
        }
        previous = c;
    }
    words.sort();
    words
}

/// The user's word, cut so that junk stays one short line.
fn shown(name: &str) -> String {
    name.chars().take(64).filter(|c| !c.is_control()).collect()
}

/// Edit distance, 0 to 1 cheaper when one contains the other (a half-typed name).
pub(crate) fn distance(a: &str, b: &str) -> usize {
    if a.len() >= 2 && b.contains(a) {
        return 1;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut previous = i;
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        for (j, cb) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or(usize::MAX / 2);
            let left = row.get(j).copied().unwrap_or(usize::MAX / 2);
            let cost = (previous + usize::from(ca != *cb))
                .min(above + 1)
                .min(left + 1);
            previous = above;
            if let Some(cell) = row.get_mut(j + 1) {
                *cell = cost;
            }
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_name_in_another_order_are_a_near_match() {
        assert!(
            near_matches("rtx6000pro").contains(&"rtx-pro-6000"),
            "{:?}",
            near_matches("rtx6000pro")
        );
    }

    #[test]
    fn the_catalogue_parses_and_is_plausible() {
        let parsed: Catalog = toml::from_str(CATALOG).expect("gpus.toml parses");
        assert!(parsed.gpu.len() >= 25);
        for gpu in all() {
            assert!(gpu.bandwidth_gb_s > 200.0, "{}", gpu.name);
            assert!(gpu.memory_gib > 10.0, "{}", gpu.name);
            let hidden = gpu.card_gib() - gpu.memory_gib;
            assert!((-0.01..1.2).contains(&hidden), "{}: {hidden}", gpu.name);
            assert!(gpu.tflops_bf16 > 30.0, "{}", gpu.name);
            assert!(gpu.tflops_fp8 == 0.0 || gpu.tflops_fp8 > 1.5 * gpu.tflops_bf16);
            assert!(
                (gpu.nvlink == Nvlink::None) == (gpu.nvlink_gb_s == 0.0),
                "{}",
                gpu.name
            );
            assert!(!gpu.source.is_empty());
        }
    }

    #[test]
    fn no_name_means_two_gpus() {
        let mut seen = std::collections::HashMap::new();
        for gpu in all() {
            for name in names(gpu) {
                if let Some(other) = seen.insert(normal(name), gpu.name.clone()) {
                    assert_eq!(other, gpu.name, "{name} names two GPUs");
                }
            }
        }
    }

    #[test]
    fn driver_names_and_short_forms_are_found() {
        for (given, expected) in [
            ("NVIDIA H200", "h200-sxm"),
            ("h100", "h100-sxm"),
            ("NVIDIA H100 80GB HBM3", "h100-sxm"),
            ("RTX PRO 6000 Blackwell Server", "rtx-pro-6000-server"),
            (
                "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
                "rtx-pro-6000",
            ),
            ("RTX 4090", "rtx-4090"),
            ("b300_sxm", "b300-sxm"),
            ("DGX Spark GB10", "gb10"),
        ] {
            assert_eq!(find(given).expect(given).name, expected);
        }
    }

    #[test]
    fn an_unknown_gpu_names_its_neighbours_in_one_line() {
        let message = find("rtx-4900").expect_err("unknown").to_string();
        assert!(message.contains("rtx-4090"), "{message}");
        assert!(!message.contains('\n'));
        for junk in ["", "\u{0}\u{1}", "🦀🦀", &"x".repeat(100_000)] {
            let message = find(junk).expect_err("junk").to_string();
            assert!(message.len() < 2_000);
        }
    }

    #[test]
    fn every_gpu_of_the_measured_data_is_known() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let text = std::fs::read_to_string(data.join("names.tsv")).expect("names.tsv");
        for line in text.lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            if let ["gpu", in_data, catalogue, ..] = cells.as_slice()
                && *catalogue != "-"
            {
                assert_eq!(find(catalogue).expect(catalogue).name, *catalogue);
                assert_eq!(find(in_data).expect(in_data).name, *catalogue);
            }
        }
    }
}
