//! Which GPUs of the box a group smaller than the box runs on: those that cross the fewest links of
//! those that reduce about as fast as any.

use std::collections::HashMap;

use pcie_sim::{Algorithm, Arch, Options, Topology, all_reduce, all_reduce_plan, choose_best};
use serde_json::json;

use super::merge::Merged;
use super::{Notes, hardware::Hardware};
use crate::predict::links::Choice;
use crate::table::{bytes as size, three};

/// Largest box of which all ways to cut it into groups are tried: 105 for pairs of 8.
const MOST_GPUS: usize = 8;
/// Tokens of the all-reduce by which placements are compared: one user's verify.
const TOKENS: u64 = 4;
/// Times of placements within this factor cannot be told apart (the 90 % band of NCCL over PCIe):
/// then the fewer links decide, and of as many the engines' own order.
const ALIKE: f64 = 1.5;

/// Whether figures are given of a server that ran: on the GPUs that an engine takes by itself, as
/// far as is known.
pub(super) fn measured(merged: &Merged, tp: u32) -> bool {
    let of_it = merged.log_tp.as_ref().is_none_or(|(ran, _)| *ran == tp);
    let of_log = !merged.ran.file.is_empty() && of_it;
    let observed = merged.observed.verify_ms.is_some() || of_log;
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
    let mut best = search.best(&gpus, usual.len());
    let numbered = best.first().cloned();
    best.sort_by(|a, b| search.time_us(a).total_cmp(&search.time_us(b)));
    if let (Some(numbered), Some(fastest)) = (numbered, best.first())
        && search.time_us(&numbered) <= ALIKE * search.time_us(fastest)
    {
        // No unlike groups: by their numbers, as engines start.
        best.sort();
    }
    let (Some(first), Some(own)) = (best.first(), usual.first()) else {
        return usual;
    };
    let moved = first != own;
    let figures = format!(
        "{} in {} us, GPUs {}, which engines take by themselves, in {} us",
        size(bytes),
        three(search.time_us(first)),
        list(own),
        three(search.time_us(own))
    );
    if measured {
        if moved {
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
    if moved {
        notes.input(
            "placement",
            json!(first),
            "the group that crosses the fewest links of those that reduce about as fast as any",
        );
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
    crossed: HashMap<Vec<usize>, usize>,
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
            crossed: HashMap::new(),
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

    /// Links that the all-reduce of a group crosses.
    fn links_crossed(&mut self, group: &[usize]) -> usize {
        if let Some(links) = self.crossed.get(group) {
            return *links;
        }
        let (t, options) = (&self.topology, &self.options);
        let plan = |algorithm| all_reduce_plan(t, group, algorithm, self.bytes, options).ok();
        let found = plan(self.algorithm.unwrap_or(Algorithm::Nccl));
        let found = found.or_else(|| plan(Algorithm::Nccl));
        let links = found.map_or(t.links.len(), |(plan, _)| {
            let run = plan.run(t, &options.constants);
            let used = run.link_load.iter().filter(|load| load.wire_bytes > 0.0);
            used.count()
        });
        self.crossed.insert(group.to_vec(), links);
        links
    }

    /// `count` disjoint groups of the free GPUs: of the cuts whose time in all is about the least the
    /// one that crosses the fewest links, of equals the first.
    fn best(&mut self, free: &[usize], count: usize) -> Vec<Vec<usize>> {
        let cuts = self.cuts(free, count);
        let timed: Vec<(f64, Vec<Vec<usize>>)> = cuts
            .into_iter()
            .map(|cut| (cut.iter().map(|group| self.time_us(group)).sum(), cut))
            .collect();
        let least = timed.iter().map(|cut| cut.0).fold(f64::INFINITY, f64::min);
        let alike = timed.into_iter().filter(|cut| cut.0 <= ALIKE * least);
        // A link that two groups cross counts twice.
        let found = alike.min_by_key(|(_, cut)| -> usize {
            cut.iter().map(|group| self.links_crossed(group)).sum()
        });
        found.map_or_else(Vec::new, |cut| cut.1)
    }

    /// Every way to take `count` disjoint groups of the free GPUs, the engines' own order first.
    fn cuts(&self, free: &[usize], count: usize) -> Vec<Vec<Vec<usize>>> {
        if count == 0 {
            return vec![Vec::new()];
        }
        let mut found = Vec::new();
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
            for mut others in self.cuts(&rest, count - 1) {
                others.insert(0, group.clone());
                found.push(others);
            }
        }
        found
    }
}
