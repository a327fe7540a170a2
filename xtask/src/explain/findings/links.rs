//! NCCL on the wrong path, P2P off, links that are not what they seem.

use super::{Finding, Severity, show};
use crate::explain::facts::Facts;

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    settings(facts, found);
    paths(facts, found);
    evidence(facts, found);
    peer_access(facts, found);
    machine(facts, found);
    custom_kernel(facts, found);
}

/// Environment that decides the result.
fn settings(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(file) = facts.text("nccl_topo_file") {
        found.push(Finding::new(
            Severity::Broken,
            facts,
            "nccl_topo_file",
            format!("NCCL works from a topology file ({file}), not from the machine"),
            match facts.number("nccl_channels") {
                Some(channels) => format!("it built {channels} channels from it"),
                None => "the file decides rings, trees and channels".to_string(),
            },
            "unset NCCL_TOPO_FILE, measure again, then judge the hardware",
        ));
    }
    let disabled = ["nccl_p2p_disable", "p2p_disabled"]
        .into_iter()
        .find(|name| facts.text(name).is_some_and(|value| value != "0"));
    if let Some(name) = disabled {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            name,
            "NCCL_P2P_DISABLE is set: everything goes through host memory",
            "this is the worst case of the box, not its links",
            "unset it; if it hangs without it, clear ACS redirection and set iommu=pt first",
        ));
    }
}

/// Which transports NCCL connected.
fn paths(facts: &Facts, found: &mut Vec<Finding>) {
    let links = |name: &str| facts.number(name).unwrap_or(0.0);
    let (p2p, shm, net) = (
        links("nccl_p2p_links"),
        links("nccl_shm_links"),
        links("nccl_net_links"),
    );
    if shm > 0.0 {
        let part = if p2p > 0.0 {
            "between some GPUs"
        } else {
            "between all GPUs shown"
        };
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "nccl_shm_links",
            format!("NCCL goes through host memory (SHM) {part}, not P2P"),
            format!("{shm} channels over SHM, {p2p} over P2P, {net} over the network"),
            "the slowest hop sets the ring. If `nvidia-smi topo -p2p r` says OK for those pairs: \
             NCCL_P2P_LEVEL=SYS, and test for a hang; if it says NS or CNS: IOMMU off or \
             pass-through, ACS redirection off, full BAR1, a driver that grants P2P",
        ));
    }
    if net > 0.0 {
        found.push(Finding::new(
            if shm + p2p > 0.0 {
                Severity::Note
            } else {
                Severity::Costly
            },
            facts,
            "nccl_net_links",
            "NCCL uses the network between some ranks",
            format!("{net} channels over NET"),
            "between machines that is right (RDMA if it is there); inside one machine it means \
             that both P2P and SHM are off",
        ));
    }
}

/// Tables that do not show what they seem to.
fn evidence(facts: &Facts, found: &mut Vec<Finding>) {
    if let (Some(ranks), Some(gpus)) = (facts.number("ranks"), facts.number("distinct_gpus")) {
        found.push(Finding::new(
            Severity::Broken,
            facts,
            "distinct_gpus",
            format!("{ranks} ranks ran on {gpus} GPU: the table says nothing about a link"),
            "ranks of one GPU share its memory or meet over sockets",
            "one rank a GPU (-g N, or one device per process)",
        ));
        return;
    }
    if let (Some(average), Some(best)) = (
        facts.number("avg_busbw_gb_s"),
        facts.number("max_busbw_gb_s"),
    ) && best > 2.0 * average
        && average > 0.0
    {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "avg_busbw_gb_s",
            format!("the average of {} GB/s is over all sizes", show(average)),
            format!("{} GB/s at the size that reaches most", show(best)),
            "decode sends kilobytes: look at the time of the small rows, not at bandwidth",
        ));
    }
}

/// What lets a driver grant P2P.
const GRANTS: &str = "IOMMU off or pass-through, ACS redirection off, resizable BAR on, bare metal; \
                      consumer cards need a driver that grants it";

/// P2P granted for some pairs: those that NVLink joins, or not known which.
fn granted_to_some(facts: &Facts) -> Finding {
    let Some(groups) = facts.text("p2p_groups") else {
        return Finding::new(
            Severity::Costly,
            facts,
            "p2p",
            "P2P is granted for only some pairs",
            "between the others every exchange takes two copies through host memory, and the custom \
             all-reduce kernels cannot run in a group that holds such a pair",
            GRANTS,
        );
    };
    Finding::new(
        Severity::Costly,
        facts,
        "p2p_groups",
        format!("P2P is granted over NVLink alone: inside GPUs {groups}"),
        "a server inside one of these groups has it, and the custom all-reduce kernels can run there; \
         across them exchanges take two copies through host memory, and those kernels cannot run",
        "compare a server in each group with one over all (predict --topology with this file, --tp); across \
         them only a driver that grants P2P over PCIe helps, which consumer cards' own does not",
    )
}

/// P2P denied, or granted and slow.
fn peer_access(facts: &Facts, found: &mut Vec<Finding>) {
    match facts.text("p2p") {
        Some("some") => found.push(granted_to_some(facts)),
        Some("off") => found.push(Finding::new(
            Severity::Costly,
            facts,
            "p2p",
            "P2P is granted for no pair",
            "without it every exchange takes two copies through host memory, and the custom \
             all-reduce kernels cannot run",
            GRANTS,
        )),
        _ => {
            let (Some(with), Some(without)) = (
                facts.number("unidirectional_gb_s"),
                facts.number("unidirectional_without_p2p_gb_s"),
            ) else {
                return;
            };
            if with < 0.8 * without {
                found.push(Finding::new(
                    Severity::Costly,
                    facts,
                    "unidirectional_gb_s",
                    format!(
                        "P2P is slower than host memory: {} against {} GB/s",
                        show(with),
                        show(without)
                    ),
                    "peer traffic is redirected (ACS) or takes the long way between sockets",
                    "clear ACS redirection; else keep P2P off for NCCL (NCCL_P2P_DISABLE=1)",
                ));
            }
        }
    }
    if let (Some(slow), Some(usual)) = (
        facts.number("slowest_pair_gb_s"),
        facts.number("unidirectional_gb_s"),
    ) && slow < 0.7 * usual
    {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "slowest_pair_gb_s",
            format!(
                "one pair reaches {} GB/s where {} is usual",
                show(slow),
                show(usual)
            ),
            "a ring is as fast as its slowest hop",
            "check that card's slot (width and speed under load) and its socket",
        ));
    }
}

fn machine(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some(bridge) = facts.text("acs_redirect_at") {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "acs_redirect_at",
            format!("ACS redirects requests at {bridge}"),
            "where that bridge lies between two GPUs, P2P goes up to the root and back",
            "only the bridges between GPUs matter (switch ports, not NVSwitch or NVMe ports); clear \
             ReqRedir there with setpci or turn ACS off in the BIOS",
        ));
    }
    if facts.text("iommu") == Some("on") {
        found.push(Finding::new(
            Severity::Note,
            facts,
            "iommu",
            "the IOMMU translates",
            "no iommu= on the kernel command line means on",
            "iommu=pt or off before PCIe P2P is used",
        ));
    }
    if facts.number("bar1_mib").is_some_and(|mib| mib <= 256.0) {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "bar1_mib",
            "BAR1 is 256 MiB: peers cannot map this card's memory",
            "P2P over PCIe needs a BAR1 as large as the memory",
            "resizable BAR and above-4G decoding in the BIOS; some cards need a VBIOS for it",
        ));
    }
    if facts.text("driver_model") == Some("WDDM") {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "driver_model",
            "the driver runs as WDDM: no P2P",
            "Windows grants peer access only under TCC",
            "Linux, or TCC where the card allows it",
        ));
    }
    if let (Some(now), Some(most)) = (facts.number("pcie_width"), facts.number("pcie_width_max")) {
        // Power saving lowers the speed of an idle link, never its width.
        if now < most {
            found.push(Finding::new(
                Severity::Costly,
                facts,
                "pcie_width",
                format!("the slot gives x{now} of x{most}"),
                "an idle card lowers the speed of its link, not the width",
                "another slot, or reseat card and riser",
            ));
        }
    }
}

/// The engine's own all-reduce is off, and why.
fn custom_kernel(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(why) = facts.text("custom_all_reduce_disabled") else {
        return;
    };
    if !why.contains("PCIe") && !why.contains("P2P") {
        return;
    }
    // Its kernels read from peers: without access there is nothing to compare.
    let mend = if why.contains("P2P") {
        "it needs peer access, which `nvidia-smi topo -p2p r` shows (give that to predict with topo -m, \
         both in one file for --topology); where the driver grants none NCCL is right, consumer cards \
         need one that does"
    } else {
        "that can be right: `predict --compare nccl,one-shot,island` says which is faster on this box, \
         where the driver grants peer access"
    };
    found.push(Finding::new(
        Severity::Note,
        facts,
        "custom_all_reduce_disabled",
        "the engine's own all-reduce is off; NCCL does it",
        why.to_string(),
        mend,
    ));
}

#[cfg(test)]
mod tests {
    use crate::explain::facts_from_text;
    use crate::explain::findings::find;

    /// Two matrices of four GPUs, `topo -m` and `topo -p2p r`: the pairs given are joined by NVLink and
    /// reach each other.
    fn said(bridged: &[(usize, usize)], granted: &[(usize, usize)]) -> String {
        let matrix = |pairs: &[(usize, usize)], inside: &str, across: &str| {
            let row = |from: usize| {
                let cell = |to: usize| match (from == to, from.min(to), from.max(to)) {
                    (true, ..) => "X",
                    (false, low, high) if pairs.contains(&(low, high)) => inside,
                    _ => across,
                };
                let cells: Vec<&str> = (0..4).map(cell).collect();
                format!("GPU{from} {}\n", cells.join(" "))
            };
            let rows: String = (0..4).map(row).collect();
            format!("GPU0 GPU1 GPU2 GPU3\n{rows}")
        };
        let links = matrix(bridged, "NV4", "NODE");
        let facts = facts_from_text(&(links + &matrix(granted, "OK", "CNS")), "f");
        let mut found = find(&[facts]).into_iter();
        let found = found.find(|finding| finding.what.starts_with("P2P"));
        found.map_or_else(String::new, |f| {
            format!("{}: {}; {}", f.what, f.why, f.mend)
        })
    }

    /// It said that every exchange takes two copies, and to look at IOMMU and ACS.
    #[test]
    fn p2p_inside_bridged_pairs_is_no_fault_of_them() {
        let pairs = [(0, 1), (2, 3)];
        let text = said(&pairs, &pairs);
        assert!(text.contains("inside GPUs 0,1 / 2,3"), "{text}");
        assert!(!text.contains("IOMMU"), "{text}");
        let unlike = said(&pairs, &[(0, 1)]);
        assert!(unlike.contains("only some pairs"), "{unlike}");
        // A chain of bridges is no group in which all have it.
        let chain = [(0, 1), (1, 2), (2, 3)];
        assert!(said(&chain, &chain).contains("only some pairs"));
        assert!(said(&pairs, &[]).contains("no pair"));
    }
}
