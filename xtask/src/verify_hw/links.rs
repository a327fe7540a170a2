//! The links of this machine: probe figures, what they should be, and why they are not.

use allreduce::probe::{Figure, State};
use serde::Serialize;

use super::facts::{Facts, LinkFacts};
use super::ranks::CurvePoint;
use super::table::Row;
use crate::gpus::Gpu;

/// Payload share of a PCIe link's bits with 256-byte packets, read requests and acknowledgements:
/// 55 of 63 GB/s on Gen5 x16 (`data/engine/copies_2xh200.txt`), 26.0 of 31.5 on Gen4 (nvbandwidth).
const COPY_SHARE: f64 = 0.87;
/// What both directions at once reach of twice one direction: 97.5 of 110.1 GB/s on an H200.
const BOTH_WAYS: f64 = 0.886;
/// What several GPUs that copy one way at once reach of as many alone: they share the host's memory
/// and whoever else uses it. 0.88 to 1.00 of 2x H200 in nine runs on four machines
/// (docs/HARDWARE.md).
const SHARED_HOST: f64 = 0.955;
/// Most that the host's memory takes and gives when several GPUs copy both ways, GB/s: 144.6 to 175.1
/// in the same runs, 147.9 in `data/engine/copies_2xh200.txt`. Smaller hosts have less; it is then a
/// finding.
const HOST_BOTH_WAYS_GB_S: f64 = 158.0;
/// Error of a host copy that holds.
const LIMIT: f64 = 0.10;

/// A finding of the diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    /// What to try first.
    pub(crate) fix: String,
}

/// GB/s that copies over a link should reach in one direction.
fn copy_gb_s(gt_s: f64, lanes: u32) -> f64 {
    // Gen1 and 2 send 10 bits a byte, later generations 130 for 16 bytes.
    let bits = if gt_s < 6.0 {
        10.0
    } else {
        8.0 * 130.0 / 128.0
    };
    gt_s * f64::from(lanes) / bits * COPY_SHARE
}

/// The card's own link by the catalogue.
fn catalogue_gb_s(gpu: &Gpu) -> f64 {
    let gt_s = match gpu.pcie_gen {
        0 | 1 => 2.5,
        2 => 5.0,
        n => 2.0_f64.powi(n.min(7) as i32),
    };
    copy_gb_s(gt_s, gpu.pcie_lanes)
}

fn value(figures: &[Figure], what: &str, from: &str) -> Option<f64> {
    figures
        .iter()
        .find(|f| f.what == what && f.from == from)
        .map(|f| f.value)
}

/// Host copies, one direction and both, of one GPU and of all: measured, calibrated from one GPU's
/// single directions, and from the catalogue.
pub(crate) fn host_copies(figures: &[Figure], gpu: &Gpu, gpus: usize) -> Vec<Row> {
    let link = catalogue_gb_s(gpu);
    let alone = |what: &str| value(figures, what, "0");
    let mut rows = Vec::new();
    let mut add = |what: String, measured: Option<f64>, calibrated: Option<f64>, scratch: f64| {
        if let Some(measured) = measured.filter(|m| *m > 0.0) {
            rows.push(
                Row::new("host copies", what, "GB/s", measured)
                    .calibrated(calibrated, Some(LIMIT))
                    .with_scratch(Some(scratch), Some(LIMIT)),
            );
        }
    };
    let (down, up) = (alone("h2d_gb_s"), alone("d2h_gb_s"));
    add("GPU 0, host to device".into(), down, None, link);
    add("GPU 0, device to host".into(), up, None, link);
    let both = down.zip(up).map(|(d, u)| BOTH_WAYS * (d + u));
    add(
        "GPU 0, both directions".into(),
        alone("bidir_gb_s"),
        both,
        BOTH_WAYS * 2.0 * link,
    );
    if gpus > 1 {
        let n = gpus as f64;
        let all = |what: &str| value(figures, what, "all");
        add(
            format!("{gpus} GPUs, host to device"),
            all("h2d_gb_s"),
            down.map(|d| SHARED_HOST * n * d),
            SHARED_HOST * n * link,
        );
        add(
            format!("{gpus} GPUs, device to host"),
            all("d2h_gb_s"),
            up.map(|u| SHARED_HOST * n * u),
            SHARED_HOST * n * link,
        );
        let capped = |one: f64| (n * one).min(HOST_BOTH_WAYS_GB_S);
        add(
            format!("{gpus} GPUs, both directions"),
            all("bidir_gb_s"),
            both.map(capped),
            capped(BOTH_WAYS * 2.0 * link),
        );
    }
    rows
}

/// Links between GPUs, for information.
pub(crate) fn pairs(figures: &[Figure], gpu: &Gpu) -> Vec<Row> {
    let expected = if gpu.nvlink_gb_s > 0.0 {
        gpu.nvlink_gb_s
    } else {
        catalogue_gb_s(gpu)
    };
    let units = |what: &str| if what.ends_with("_us") { "us" } else { "GB/s" };
    let shown = [
        "empty_kernel_us",
        "flag_us",
        "host_flag_us",
        "load_us",
        "store_gb_s",
        "load_gb_s",
        "copy_gb_s",
        "all_store_gb_s",
        "all_load_gb_s",
        "all_copy_gb_s",
    ];
    let mut rows = Vec::new();
    for what in shown {
        let Some(first) = figures.iter().find(|f| f.what == what) else {
            continue;
        };
        let predicted = (what == "copy_gb_s").then_some(expected);
        let name = what
            .trim_end_matches("_gb_s")
            .trim_end_matches("_us")
            .replace('_', " ");
        rows.push(
            Row::new(
                "links",
                format!("{name}, {} to {}", first.from, first.to),
                units(what),
                first.value,
            )
            .with_scratch(predicted, None),
        );
    }
    rows
}

/// The four numbers that separate the causes, against what the box should do; one sentence per
/// signature, with the fix to try first. Order: what is most often the cause first.
pub(crate) fn diagnose(
    facts: &Facts,
    figures: &[Figure],
    curve: &[CurvePoint],
    gpu: &Gpu,
    loaded: Option<LinkFacts>,
) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(fabric(facts, figures));
    findings.extend(slot(facts, loaded));
    let expected = catalogue_gb_s(gpu);
    if let Some(measured) = value(figures, "h2d_gb_s", "0").filter(|m| *m < 0.75 * expected) {
        findings.push(finding(
            format!("host to device copies reach {measured:.1} of {expected:.1} GB/s"),
            "check the slot's generation and width under load, NUMA binding and the IOMMU",
        ));
    }
    let redirects = facts.acs_redirects.is_some_and(|n| n > 0);
    if redirects && gpu.nvlink_gb_s <= 0.0 && facts.gpus.len() > 1 {
        findings.push(finding(
            "ACS sends peer traffic up to the root on some bridges",
            "clear ReqRedir (setpci ECAP_ACS+6.w=0) on root and switch ports, or turn ACS off in the BIOS",
        ));
    }
    findings.extend(slow_nccl(curve, gpu));
    findings
}

fn finding(what: impl Into<String>, fix: &str) -> Finding {
    Finding {
        what: what.into(),
        fix: fix.to_string(),
    }
}

/// What the pair and all-pairs rates say together.
fn fabric(facts: &Facts, figures: &[Figure]) -> Option<Finding> {
    let (what, fix) = match State::judge(figures, facts.gpus.len()) {
        State::Healthy => return None,
        State::Collapsed => (
            "the fabric collapses when all GPUs talk at once, though pairs look perfect",
            "do not force one-shot all-reduce on all GPUs: use NCCL, or islands of one switch each",
        ),
        State::Staged => (
            "kernel loads from a peer are far slower than copies: the driver stages them",
            "use a driver that grants real peer access, or keep NCCL",
        ),
        State::Mirror => (
            "peer access looks fast but the data does not arrive",
            "set NCCL_P2P_DISABLE=1 now; then clear ACS redirection, iommu=pt, and test again",
        ),
        State::NoP2p if facts.peers.iter().flatten().all(|p| *p) && figures.is_empty() => {
            return None;
        }
        State::NoP2p => (
            "no peer access between the GPUs: everything goes through host memory",
            "check iommu=pt, ACS and resizable BAR; GeForce cards need a driver that grants it",
        ),
        State::Hangs => (
            "a probe of the links did not end",
            "set NCCL_P2P_DISABLE=1; then check IOMMU and ACS on all bridges",
        ),
    };
    Some(finding(what, fix))
}

/// A link narrower, or under load slower, than both ends allow.
fn slot(facts: &Facts, loaded: Option<LinkFacts>) -> Option<Finding> {
    let link = loaded.or_else(|| facts.gpus.first().and_then(|g| g.link))?;
    let short = link.max_lanes.is_some_and(|most| link.lanes < most);
    let slow = loaded.is_some() && link.max_gt_s.is_some_and(|most| link.gt_s < most - 0.3);
    (short || slow).then(|| {
        let what = format!(
            "GPU 0's link runs at {} GT/s x{} where {} x{} is possible",
            link.gt_s,
            link.lanes,
            link.max_gt_s.unwrap_or(link.gt_s),
            link.max_lanes.unwrap_or(link.lanes)
        );
        finding(
            what,
            "reseat the card, check riser, slot and BIOS bifurcation",
        )
    })
}

/// NCCL at 16 KiB. Healthy boxes: 7 to 12 us on NVLink, 13 to 28 on PCIe at up to 8 GPUs.
fn slow_nccl(curve: &[CurvePoint], gpu: &Gpu) -> Option<Finding> {
    let nccl = curve
        .iter()
        .filter(|p| p.algorithm == "nccl")
        .min_by_key(|p| p.bytes.abs_diff(16 << 10))?;
    let most = if gpu.nvlink_gb_s > 0.0 { 18.0 } else { 40.0 };
    (nccl.time_us > most).then(|| {
        let what = format!(
            "NCCL takes {:.0} us for {} bytes; boxes like this one take under {most:.0}",
            nccl.time_us, nccl.bytes
        );
        finding(
            what,
            "look at NCCL_DEBUG=INFO: transport SHM means no P2P; try NCCL_P2P_LEVEL=SYS, NCCL_PROTO=LL",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(what: &str, from: &str, value: f64) -> Figure {
        Figure {
            what: what.into(),
            from: from.into(),
            to: "host".into(),
            value,
            wrong: 0,
        }
    }

    #[test]
    fn host_copies_of_two_h200_are_predicted_within_ten_per_cent() {
        // data/engine/copies_2xh200.txt.
        let figures = [
            figure("h2d_gb_s", "0", 55.3),
            figure("d2h_gb_s", "0", 54.8),
            figure("bidir_gb_s", "0", 97.5),
            figure("h2d_gb_s", "all", 109.1),
            figure("d2h_gb_s", "all", 110.1),
            figure("bidir_gb_s", "all", 147.9),
        ];
        let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
        let rows = host_copies(&figures, gpu, 2);
        assert_eq!(rows.len(), 6);
        assert_eq!(super::super::table::held(&rows), Some(true), "{rows:#?}");
    }

    #[test]
    fn two_gpus_on_a_busier_host_stay_within_ten_per_cent_too() {
        // Least and most of nine runs on four machines (docs/HARDWARE.md).
        for (h2d, d2h, both) in [(99.6, 96.3, 144.6), (109.7, 110.1, 175.1)] {
            let figures = [
                figure("h2d_gb_s", "0", 55.0),
                figure("d2h_gb_s", "0", 55.1),
                figure("bidir_gb_s", "0", 98.0),
                figure("h2d_gb_s", "all", h2d),
                figure("d2h_gb_s", "all", d2h),
                figure("bidir_gb_s", "all", both),
            ];
            let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
            let rows = host_copies(&figures, gpu, 2);
            assert_eq!(super::super::table::held(&rows), Some(true), "{rows:#?}");
        }
    }

    #[test]
    fn a_slow_slot_and_a_slow_nccl_are_named_with_a_fix() {
        let gpu = crate::gpus::find("h200-sxm").expect("in the catalogue");
        let facts = Facts {
            gpus: vec![super::super::facts::GpuFacts::default()],
            peers: vec![vec![true]],
            ..Facts::default()
        };
        let narrow = LinkFacts {
            gt_s: 32.0,
            lanes: 4,
            max_gt_s: Some(32.0),
            max_lanes: Some(16),
        };
        let curve = [CurvePoint {
            algorithm: "nccl".into(),
            bytes: 16 << 10,
            time_us: 344.0,
        }];
        let slow = [figure("h2d_gb_s", "0", 13.5)];
        let found = diagnose(&facts, &slow, &curve, gpu, Some(narrow));
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].what.contains("x4"), "{found:#?}");
        let fine = [figure("h2d_gb_s", "0", 55.0)];
        assert_eq!(diagnose(&facts, &fine, &[], gpu, None), []);
    }
}
