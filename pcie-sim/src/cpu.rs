//! The host's CPU: the family that NCCL's ring search depends on, from the words of many tools.

/// EPYC families by the first and the last digit of the model's number (AMD, processor naming).
const EPYC: [(char, char, &str); 5] = [
    ('9', '5', "amd-turin"),
    ('9', '4', "amd-genoa"),
    ('7', '3', "amd-milan"),
    ('7', '2', "amd-rome"),
    ('7', '1', "amd-naples"),
];
/// Code names that AMD's bridges carry in `lspci`.
const BRIDGES: [(&str, &str); 3] = [
    ("turin", "amd-turin"),
    ("genoa", "amd-genoa"),
    ("milan", "amd-milan"),
];

/// A family as the catalogue writes it (`amd-turin`, `intel-spr`) from that, a model's name
/// (`AMD EPYC 9575F 64-Core Processor`) or the name of a bridge; in lower case where none is known.
pub(crate) fn family(said: &str) -> String {
    let low = said.to_ascii_lowercase();
    let amd = low.contains("amd") || low.contains("advanced micro devices");
    let named = BRIDGES.iter().find(|(name, _)| amd && low.contains(name));
    if let Some((_, family)) = named {
        return family.to_string();
    }
    let words: Vec<&str> = low.split_whitespace().collect();
    let behind_epyc = words
        .windows(2)
        .find_map(|pair| (pair.first() == Some(&"epyc")).then(|| pair.get(1).copied())?);
    let digits = |word: &str| {
        let digits: Vec<char> = word.chars().take_while(char::is_ascii_digit).collect();
        (digits.len() == 4)
            .then(|| digits.first().copied().zip(digits.last().copied()))
            .flatten()
    };
    let number = behind_epyc.and_then(digits);
    let known = number.and_then(|(first, last)| {
        let mut all = EPYC.iter();
        all.find(|(a, b, _)| (*a, *b) == (first, last))
    });
    known.map_or(low, |(_, _, family)| family.to_string())
}

/// Names of AMD's processors that come without the maker's.
const AMD: [&str; 5] = [
    "amd",
    "advanced micro devices",
    "epyc",
    "threadripper",
    "ryzen",
];

/// Whether a CPU is AMD's.
pub(crate) fn is_amd(cpu: Option<&str>) -> bool {
    let family = cpu.map(family).unwrap_or_default();
    AMD.iter().any(|name| family.contains(name))
}

/// Whether what is known leaves the family open: nothing, or the maker alone.
pub(crate) fn may_be_any_of_amd(cpu: Option<&str>) -> bool {
    matches!(cpu.map(family).unwrap_or_default().trim(), "" | "amd")
}

/// Whether nobody says which CPU it is.
pub(crate) fn is_unsaid(cpu: Option<&str>) -> bool {
    cpu.is_none_or(|said| said.trim().is_empty())
}

/// The CPU that a text names beside the wiring: `Model name:` of `lscpu`, `model name` of
/// /proc/cpuinfo, `CPUModel` of hwloc.
pub(crate) fn in_text(lines: &[String]) -> Option<String> {
    let named = lines.iter().find_map(|line| {
        let low = line.trim().to_ascii_lowercase();
        let of_hwloc = low.split_once("name=\"cpumodel\" value=\"");
        if let Some((_, rest)) = of_hwloc {
            return Some(rest.split('"').next()?.to_string());
        }
        let (key, value) = low.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_string())
    })?;
    let family = family(&named);
    let short: String = family.chars().take(80).collect();
    (!short.is_empty()).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_told_by_its_model_or_its_bridges() {
        for (said, of) in [
            ("AMD EPYC 9575F 64-Core Processor", "amd-turin"),
            ("amd-turin", "amd-turin"),
            (
                "PCI bridge: Advanced Micro Devices, Inc. [AMD] Turin PCIe GPP Bridge",
                "amd-turin",
            ),
            ("AMD EPYC 9654 96-Core Processor", "amd-genoa"),
            ("AMD EPYC 7763 64-Core Processor", "amd-milan"),
            ("intel", "intel"),
        ] {
            assert_eq!(family(said), of);
        }
        for said in ["AMD Ryzen Threadripper PRO 7955WX", "amd-milan", "epyc"] {
            assert!(is_amd(Some(said)), "{said}");
        }
        for said in ["Intel(R) Xeon(R) Platinum 8480+", "grace"] {
            assert!(!is_amd(Some(said)) && !is_unsaid(Some(said)), "{said}");
        }
        assert!(is_unsaid(None) && is_unsaid(Some(" ")));
    }
}
