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

/// Whether a CPU is of AMD's Turin (EPYC 9005, Zen 5).
pub(crate) fn is_turin(cpu: Option<&str>) -> bool {
    let family = cpu.map(family).unwrap_or_default();
    family.contains("turin") || family.contains("zen5")
}

/// Whether what is known leaves open that it is one.
pub(crate) fn may_be_turin(cpu: Option<&str>) -> bool {
    let family = cpu.map(family).unwrap_or_default();
    matches!(family.trim(), "" | "amd")
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
        let turin = [
            "AMD EPYC 9575F 64-Core Processor",
            "amd-turin",
            "PCI bridge: Advanced Micro Devices, Inc. [AMD] Turin PCIe GPP Bridge",
        ];
        for said in turin {
            assert!(is_turin(Some(said)), "{said}");
        }
        for said in [
            "AMD EPYC 9654 96-Core Processor",
            "AMD EPYC 7763 64-Core Processor",
            "Intel(R) Xeon(R) Platinum 8480+",
            "intel",
        ] {
            assert!(!is_turin(Some(said)) && !may_be_turin(Some(said)), "{said}");
        }
        assert!(may_be_turin(None) && may_be_turin(Some("amd")));
    }
}
