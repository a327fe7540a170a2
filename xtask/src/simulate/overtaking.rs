//! Between which sizes an algorithm is faster than NCCL, to the byte.

use pcie_sim::{Algorithm, all_reduce, is_nccl_plan};
use serde_json::{Value, json};

use super::Answer;
use crate::table::thousands;

/// Sizes between which it is looked for, bytes.
const SMALLEST: u64 = 1 << 10;
const LARGEST: u64 = 64 << 20;
/// Sizes tried in each doubling; what changes hands and back between two of them is not seen.
const TRIED_A_DOUBLING: u32 = 4;

/// Where an algorithm is faster than NCCL.
pub(super) struct Wins {
    algorithm: Algorithm,
    /// Smallest and largest size of each stretch, bytes.
    ranges: Vec<(u64, u64)>,
}

/// Every algorithm that can run here beside NCCL.
pub(super) fn of(answer: &Answer) -> Vec<Wins> {
    let at = |algorithm, bytes| {
        let (t, ranks, options) = (&answer.topology, &answer.ranks, &answer.options);
        all_reduce(t, ranks, algorithm, bytes, options).ok()
    };
    let us = |algorithm, bytes| at(algorithm, bytes).map(|time| time.time_us);
    let doublings = (LARGEST / SMALLEST).ilog2();
    let sizes: Vec<u64> = (0..=doublings * TRIED_A_DOUBLING)
        .map(|i| 2_f64.powf(f64::from(i) / f64::from(TRIED_A_DOUBLING)) * SMALLEST as f64)
        .map(|bytes| bytes.round() as u64)
        .collect();
    let nccl: Vec<Option<f64>> = sizes.iter().map(|b| us(Algorithm::Nccl, *b)).collect();
    let mut found = Vec::new();
    for algorithm in Algorithm::SHOWN {
        let first = at(algorithm, SMALLEST);
        // An engine that leaves this wiring to NCCL has nothing to compare.
        let Some(_) = first.filter(|time| !is_nccl_plan(&time.algorithm_name)) else {
            continue;
        };
        let faster = |own: Option<f64>, nccl: Option<f64>| {
            own.zip(nccl).is_some_and(|(own, nccl)| own < nccl)
        };
        let wins = |bytes| faster(us(algorithm, bytes), us(Algorithm::Nccl, bytes));
        let tried: Vec<(u64, bool)> = sizes
            .iter()
            .zip(&nccl)
            .map(|(bytes, nccl)| (*bytes, faster(us(algorithm, *bytes), *nccl)))
            .collect();
        let ranges = stretches(&tried, wins);
        found.push(Wins { algorithm, ranges });
    }
    found
}

/// Stretches of sizes at which `wins` holds, from sizes tried in rising order.
fn stretches(tried: &[(u64, bool)], wins: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut open = tried.first().filter(|first| first.1).map(|first| first.0);
    for pair in tried.windows(2) {
        let &[(mut low, before), (mut high, after)] = pair else {
            continue;
        };
        if before == after {
            continue;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match wins(middle) == before {
                true => low = middle,
                false => high = middle,
            }
        }
        match open.take() {
            Some(from) => ranges.push((from, low)),
            None => open = Some(high),
        }
    }
    ranges.extend(open.zip(tried.last().map(|last| last.0)));
    ranges
}

/// The line, empty where nothing but NCCL runs.
pub(super) fn line(found: &[Wins]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let all: Vec<String> = found.iter().map(Wins::shown).collect();
    format!("beats NCCL  {} (of 1 KiB to 64 MiB)\n", all.join(", "))
}

impl Wins {
    fn shown(&self) -> String {
        let name = self.algorithm.name();
        let range = |&(from, to): &(u64, u64)| match (from <= SMALLEST, to >= LARGEST) {
            (true, true) => "at every size".to_string(),
            (true, false) => format!("up to {}", size(to, f64::floor)),
            (false, true) => format!("from {}", size(from, f64::ceil)),
            (false, false) => format!("from {} to {}", size(from, f64::ceil), size(to, f64::floor)),
        };
        let ranges: Vec<String> = self.ranges.iter().map(range).collect();
        match ranges.is_empty() {
            true => format!("{name} never"),
            false => format!("{name} {}", ranges.join(" and ")),
        }
    }

    /// `bytes`: up to which size from the smallest on, `null` where it does not win there.
    pub(super) fn json(&self) -> Value {
        let first = self.ranges.first().filter(|range| range.0 <= SMALLEST);
        json!({
            "algorithm": self.algorithm.name(),
            "bytes": first.map(|range| range.1),
            "ranges_bytes": self.ranges,
        })
    }
}

/// A size in three digits, rounded so that what is said of it stays true.
fn size(bytes: u64, round: fn(f64) -> f64) -> String {
    let (unit, name) = match bytes {
        0..=16_383 => return format!("{} B", thousands(bytes as f64)),
        16_384..=1_048_575 => (1024.0, "KiB"),
        _ => (1024.0 * 1024.0, "MiB"),
    };
    let value = bytes as f64 / unit;
    let digits = match value {
        v if v >= 100.0 => 1.0,
        v if v >= 10.0 => 10.0,
        _ => 100.0,
    };
    format!("{} {name}", round(value * digits) / digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_at_which_a_kernel_beats_nccl_are_true_to_the_byte() {
        for name in ["two-switch-8", "gb200-4"] {
            let answer = super::super::tests::answered(&["--box", name, "--bytes", "64k"]);
            let answer = answer.expect("answers");
            let us = |algorithm, bytes| {
                let (t, ranks) = (&answer.topology, &answer.ranks);
                let time = all_reduce(t, ranks, algorithm, bytes, &answer.options);
                time.expect("runs").time_us
            };
            let found = of(&answer);
            assert!(found.len() > 4, "{name}");
            for win in &found {
                for (from, to) in &win.ranges {
                    let ends = [
                        (*from, true),
                        (*to, true),
                        (from - 1, false),
                        (to + 1, false),
                    ];
                    for (bytes, wins) in ends {
                        let inside = (SMALLEST..=LARGEST).contains(&bytes);
                        let faster = us(win.algorithm, bytes) < us(Algorithm::Nccl, bytes);
                        assert!(
                            !inside || faster == wins,
                            "{name} {:?} {bytes}",
                            win.algorithm
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_stretch_ends_at_the_last_byte_that_wins_and_starts_at_the_first() {
        let wins = |bytes: u64| bytes <= 5_000 || (70_001..=90_000).contains(&bytes);
        let sizes = [1_024, 4_096, 8_192, 65_536, 80_000, 100_000];
        let tried: Vec<(u64, bool)> = sizes.iter().map(|b| (*b, wins(*b))).collect();
        let found = stretches(&tried, wins);
        assert_eq!(found, [(1_024, 5_000), (70_001, 90_000)]);
        let wins = Wins {
            algorithm: Algorithm::TwoShot,
            ranges: found,
        };
        assert_eq!(
            wins.shown(),
            "two-shot up to 5,000 B and from 68.4 KiB to 87.8 KiB"
        );
        assert_eq!(stretches(&[(1, true), (9, true)], |_| true), [(1, 9)]);
        assert_eq!(size(8_388_607, f64::floor), "7.99 MiB");
        assert_eq!(size(1 << 19, f64::floor), "512 KiB");
    }
}
