//! A group of fewer GPUs than the box holds: its tok/s are of one replica, and replicas beside it
//! may share its links.

use pcie_sim::plan::Plan;
use pcie_sim::{Algorithm, all_reduce_plan, concurrent};
use serde::Serialize;

use super::answer::Input;
use super::links::{Choice, Links};
use crate::scenario::list;

/// How many groups of the same size the box holds, and what they share.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Replicas {
    pub(crate) count: usize,
    pub(crate) gpus_each: usize,
    /// Their GPUs, by number in the box; the tok/s are of the first.
    pub(crate) gpus: Vec<Vec<usize>>,
    /// Links that all-reduces of two or more replicas use.
    pub(crate) shared_links: Vec<String>,
    /// How much longer an all-reduce takes while all replicas run theirs.
    pub(crate) all_reduce_slowdown: f64,
    /// An all-reduce of each replica with the others idle.
    pub(crate) all_reduce_alone_us: Vec<f64>,
}

/// Times further apart than this are of unlike links.
const UNLIKE: f64 = 1.05;

/// None where the box holds no second group. `bytes`: payload of the heaviest all-reduce asked for.
pub(super) fn of(links: &Links<'_>, choice: Choice, bytes: u64) -> Option<Replicas> {
    let (t, options, groups) = (links.topology(), links.options(), links.groups());
    let gpus_each = links.ranks().len().max(1);
    let count = groups.len();
    if count < 2 {
        return None;
    }
    let algorithm = choice.at(bytes).unwrap_or(Algorithm::Nccl);
    let plans: Vec<Plan> = groups
        .iter()
        .filter(|group| group.len() > 1)
        .filter_map(|group| {
            all_reduce_plan(t, group, algorithm, bytes, options)
                .or_else(|_| all_reduce_plan(t, group, Algorithm::Nccl, bytes, options))
                .ok()
        })
        .map(|(plan, _)| plan)
        .collect();
    let mut users = vec![0_usize; t.links.len()];
    for plan in &plans {
        for (link, load) in plan.run(t, &options.constants).link_load.iter().enumerate() {
            users[link] += usize::from(load.wire_bytes > 0.0);
        }
    }
    let shared_links = t.links.iter().zip(&users).filter(|(_, n)| **n > 1);
    let run = concurrent(t, &plans, &options.constants);
    Some(Replicas {
        count,
        gpus_each,
        gpus: groups.to_vec(),
        shared_links: shared_links.map(|(l, _)| l.name.clone()).collect(),
        all_reduce_slowdown: run.slowdown(),
        all_reduce_alone_us: match run.alone_us.len() == count {
            true => run.alone_us,
            false => Vec::new(),
        },
    })
}

/// The GPUs of the group, where they are not the first ones.
pub(super) fn placed(inputs: &[Input]) -> String {
    let placed = inputs.iter().find(|input| input.name == "placement");
    let gpus = placed.and_then(|input| input.value.as_array());
    gpus.map_or_else(String::new, |gpus| {
        let numbers: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        format!(" (GPUs {})", numbers.join(","))
    })
}

impl Replicas {
    /// One line.
    pub(crate) fn line(&self) -> String {
        let (each, plural) = (self.gpus_each, if self.gpus_each == 1 { "" } else { "s" });
        let groups = self.gpus.iter().map(|group| list(group));
        let head = format!(
            "tok/s are of one replica of {each} GPU{plural}; the box holds {} such replicas (GPUs {})",
            self.count,
            groups.collect::<Vec<_>>().join(" / ")
        );
        if each == 1 {
            return head;
        }
        let shared = match self.shared_links.as_slice() {
            [] => format!("{head}, whose all-reduces share no link"),
            [first, rest @ ..] => {
                let more = match rest.len() {
                    0 => String::new(),
                    n => format!(" and {n} more"),
                };
                format!(
                    "{head}, whose all-reduces share {first}{more}: {:.2}x as long while all run",
                    self.all_reduce_slowdown
                )
            }
        };
        shared + &self.unlike().unwrap_or_default()
    }

    /// A replica that reduces more slowly than the first, whose tok/s are shown.
    fn unlike(&self) -> Option<String> {
        let first = *self.all_reduce_alone_us.first()?;
        let times = self.gpus.iter().zip(&self.all_reduce_alone_us);
        let (gpus, slowest) = times.max_by(|a, b| a.1.total_cmp(b.1))?;
        (*slowest > UNLIKE * first).then(|| {
            format!(
                "; the first is shown, an all-reduce of GPUs {} takes {} us where that takes {}",
                list(gpus),
                crate::table::three(*slowest),
                crate::table::three(first)
            )
        })
    }
}
