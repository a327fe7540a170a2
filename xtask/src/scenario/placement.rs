//! Which GPUs of the box a group smaller than the box runs on: those that reduce fastest.

use std::collections::HashMap;

use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce, choose_best};
use serde_json::json;

use super::merge::Merged;
use super::{Notes, hardware::Hardware};
use crate::predict::links::Choice;
use crate::table::{bytes as size, three};

/// Largest box of which all ways to cut it into groups are tried: 105 for pairs of 8.
const MOST_GPUS: usize = 8;
/// Tokens of the all-reduce by which placements are compared: one user's verify.
const TOKENS: u64 = 4;
/// Placements whose times differ by less are alike, and the engines' own order stands.
const ALIKE: f64 = 0.98;

/// Whether figures are given of a server that ran: on the GPUs that an engine takes by itself, as
/// far as is known.
pub(super) fn measured(merged: &Merged) -> bool {
    let observed = merged.observed.verify_ms.is_some() || !merged.ran.file.is_empty();
    observed || merged.allreduce_table.is_some() || merged.baseline.is_some()
}

/// Groups of `tp` GPUs side by side, the first the one that is predicted: in the order of the
/// engines, or where another one reduces faster, the cut of the box with the least time in all.
pub(super) fn groups(
    hardware: &Hardware,
    tp: u32,
    (algorithm, hidden): (&str, u64),
    measured: bool,
    notes: &mut Notes,
) -> Vec<Vec<usize>> {
    let gpus: Vec<usize> = (0..hardware.wiring.gpu_count()).collect();
    let each = (tp as usize).max(1);
    let usual: Vec<Vec<usize>> = gpus.chunks_exact(each).map(<[usize]>::to_vec).collect();
    let arch = Arch::parse(&hardware.gpu.arch).unwrap_or(Arch::AMPERE);
    let Ok(topology) = Topology::from_spec(&hardware.wiring, arch) else {
        return usual;
    };
    if each < 2 || each >= gpus.len() || gpus.len() > MOST_GPUS {
        return usual;
    }
    let bytes = hidden.saturating_mul(TOKENS).saturating_mul(2).max(1);
    let mut search = Search::new(topology, algorithm, bytes, each);
    let (total, mut best) = search.cut(&gpus, usual.len());
    best.sort_by(|a, b| search.time_us(a).total_cmp(&search.time_us(b)));
    let usual_total: f64 = usual.iter().map(|group| search.time_us(group)).sum();
    let (Some(first), Some(own)) = (best.first(), usual.first()) else {
        return usual;
    };
    let (first_us, own_us) = (search.time_us(first), search.time_us(own));
    let faster = first_us < ALIKE * own_us;
    if !faster && total >= ALIKE * usual_total {
        return usual;
    }
    let figures = format!(
        "{} in {} us, GPUs {}, which engines take by themselves, in {} us",
        size(bytes),
        three(first_us),
        list(own),
        three(own_us)
    );
    if measured {
        if faster {
            notes.assume(
                format!(
                    "the server measured ran on GPUs {}; CUDA_VISIBLE_DEVICES={} would reduce {figures}",
                    list(own),
                    list(first)
                ),
                "CUDA_VISIBLE_DEVICES of that server",
            );
        }
        return usual;
    }
    if faster {
        notes.input("placement", json!(first), "the group that reduces fastest");
        notes.assume(
            format!(
                "the group runs on GPUs {} (CUDA_VISIBLE_DEVICES): they reduce {figures}",
                list(first)
            ),
            "",
        );
    }
    best
}

/// GPUs as CUDA_VISIBLE_DEVICES takes them.
pub(crate) fn list(gpus: &[usize]) -> String {
    let numbers: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    numbers.join(",")
}

/// All-reduce times of groups of one box.
struct Search {
    topology: Topology,
    /// None: the fastest.
    algorithm: Option<Algorithm>,
    bytes: u64,
    each: usize,
    options: Options,
    known: HashMap<Vec<usize>, f64>,
}

impl Search {
    fn new(topology: Topology, algorithm: &str, bytes: u64, each: usize) -> Self {
        Self {
            topology,
            // Beyond the size up to which a kernel runs the group is placed for what takes its place.
            algorithm: Choice::parse(algorithm)
                .ok()
                .and_then(|choice| choice.at(bytes)),
            bytes,
            each,
            options: Options {
                use_measured: false,
                ..Options::default()
            },
            known: HashMap::new(),
        }
    }

    fn time_us(&mut self, group: &[usize]) -> f64 {
        if let Some(us) = self.known.get(group) {
            return *us;
        }
        let (t, options) = (&self.topology, &self.options);
        let run = |algorithm| all_reduce(t, group, algorithm, self.bytes, options).ok();
        let time = match self.algorithm {
            Some(algorithm) => run(algorithm).or_else(|| run(Algorithm::Nccl)),
            None => choose_best(t, group, self.bytes, options)
                .ok()
                .map(|(_, time)| time),
        };
        let us = time.map_or(f64::INFINITY, |time| time.time_us);
        self.known.insert(group.to_vec(), us);
        us
    }

    /// `count` disjoint groups of the free GPUs with the least time in all; of equals the first.
    fn cut(&mut self, free: &[usize], count: usize) -> (f64, Vec<Vec<usize>>) {
        if count == 0 {
            return (0.0, Vec::new());
        }
        let mut best = (f64::INFINITY, Vec::new());
        for picked in 0_u32..(1 << free.len()) {
            // Each cut once: the lowest GPU of a group is lower than those of the groups after it.
            if picked.count_ones() as usize != self.each {
                continue;
            }
            let lowest = picked.trailing_zeros() as usize;
            let is_in = |i: usize| picked & (1 << i) != 0;
            let pick = |wanted: bool| -> Vec<usize> {
                let kept = (lowest..free.len()).filter(|i| is_in(*i) == wanted);
                kept.map(|i| free[i]).collect()
            };
            let (group, rest) = (pick(true), pick(false));
            if rest.len() < (count - 1) * self.each {
                continue;
            }
            let own = self.time_us(&group);
            let (others, mut groups) = self.cut(&rest, count - 1);
            if own + others < best.0 {
                groups.insert(0, group);
                best = (own + others, groups);
            }
        }
        best
    }
}
