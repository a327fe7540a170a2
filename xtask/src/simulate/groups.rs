//! Several groups that reduce at the same time: how much they slow each other down.

use pcie_sim::plan::Plan;
use pcie_sim::{Algorithm, all_reduce, all_reduce_plan, concurrent};
use serde_json::{Value, json};

use super::Answer;
use crate::scenario::{list, parse};
use crate::{input, table};

/// Groups that reduce at once, against one group of all.
pub(super) struct Groups {
    groups: Vec<Group>,
    all_us: f64,
}

/// One of them.
struct Group {
    gpus: Vec<usize>,
    alone_us: f64,
    together_us: f64,
}

impl Group {
    /// Its times as they are shown.
    fn times(&self) -> (String, String) {
        (table::three(self.together_us), table::three(self.alone_us))
    }
}

/// Reads `--groups 0,2/1,3`; without it pairs in the order of the ranks, where there are two.
pub(super) fn asked(flag: Option<&str>, ranks: &[usize]) -> anyhow::Result<Vec<Vec<usize>>> {
    let Some(text) = flag else {
        let even = ranks.len() >= 4 && ranks.len().is_multiple_of(2);
        let pairs = ranks.chunks(2).map(<[usize]>::to_vec);
        return Ok(if even { pairs.collect() } else { Vec::new() });
    };
    let mut groups = Vec::new();
    let mut taken: Vec<usize> = Vec::new();
    for part in text.split('/') {
        let group = parse::gpu_list("--groups", part)?;
        if group.len() < 2 {
            return Err(input::error(format!(
                "--groups {text}: {part} is one GPU; give two or more, such as 0,2/1,3"
            )));
        }
        for gpu in &group {
            if taken.contains(gpu) {
                return Err(input::error(format!(
                    "--groups {text}: GPU {gpu} stands in two groups"
                )));
            }
            if !ranks.contains(gpu) {
                return Err(input::error(format!(
                    "--groups {text}: GPU {gpu} does not take part ({} to {} do)",
                    ranks.first().copied().unwrap_or(0),
                    ranks.last().copied().unwrap_or(0)
                )));
            }
            taken.push(*gpu);
        }
        groups.push(group);
    }
    Ok(groups)
}

fn plan(answer: &Answer, ranks: &[usize], bytes: u64) -> Option<Plan> {
    let (t, options) = (&answer.topology, &answer.options);
    all_reduce_plan(t, ranks, Algorithm::Nccl, bytes, options)
        .ok()
        .map(|(plan, _)| plan)
}

/// The groups of the answer at a size; `None` where there are none.
pub(super) fn of(answer: &Answer, bytes: u64) -> Option<Groups> {
    if answer.groups.is_empty() {
        return None;
    }
    let groups = answer.groups.iter();
    let plans: Vec<Plan> = groups
        .map(|group| plan(answer, group, bytes))
        .collect::<Option<_>>()?;
    let (t, options) = (&answer.topology, &answer.options);
    let run = concurrent(t, &plans, &options.constants);
    let all = all_reduce(t, &answer.ranks, Algorithm::Nccl, bytes, options).ok()?;
    let times = run.alone_us.iter().zip(&run.together_us);
    let groups = answer.groups.iter().zip(times).map(|(gpus, times)| Group {
        gpus: gpus.clone(),
        alone_us: *times.0,
        together_us: *times.1,
    });
    Some(Groups {
        groups: groups.collect(),
        all_us: all.time_us,
    })
}

impl Groups {
    /// One line; each group with its own times where their links differ.
    pub(super) fn line(&self, size: &str, ranks: usize) -> String {
        let first = self.groups.first().map(Group::times);
        let alike = self.groups.iter().all(|g| Some(g.times()) == first);
        let shown = self.groups.iter().map(|group| {
            let (gpus, (together, alone)) = (list(&group.gpus), group.times());
            match alike {
                true => gpus,
                false => format!("{gpus} {together} us ({alone} alone)"),
            }
        });
        let mut shown = shown.collect::<Vec<_>>().join(" / ") + " at once";
        if let Some((together, alone)) = first.filter(|_| alike) {
            shown.push_str(&format!(" {together} us each ({alone} alone)"));
        }
        format!(
            "groups      NCCL, {size}: {shown}; one group of {ranks}: {} us (--groups chooses others)\n",
            table::three(self.all_us)
        )
    }

    pub(super) fn json(&self) -> Value {
        let most = |time: fn(&Group) -> f64| self.groups.iter().map(time).fold(0.0, f64::max);
        let of = |time: fn(&Group) -> f64| self.groups.iter().map(time).collect::<Vec<_>>();
        json!({
            "groups": self.groups.len(),
            "gpus": self.groups.iter().map(|g| &g.gpus).collect::<Vec<_>>(),
            "alone_us": most(|g| g.alone_us),
            "together_us": most(|g| g.together_us),
            "alone_us_each": of(|g| g.alone_us),
            "together_us_each": of(|g| g.together_us),
            "one_group_us": self.all_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_by_number_and_slips_are_refused() {
        let ranks = [0, 1, 2, 3];
        let pairs = asked(None, &ranks).expect("pairs");
        assert_eq!(pairs, [[0, 1], [2, 3]]);
        let crossed = asked(Some("0,2/1,3"), &ranks).expect("read");
        assert_eq!(crossed, [[0, 2], [1, 3]]);
        for (flag, what) in [
            ("0,2/1", "1 is one GPU"),
            ("0,2/2,3", "GPU 2 stands in two"),
            ("0,4", "GPU 4 does not take part"),
            ("0,x", "not a GPU number"),
            ("/", "--groups"),
        ] {
            let error = asked(Some(flag), &ranks).expect_err(flag).to_string();
            assert!(error.contains(what), "{flag}: {error}");
        }
    }
}
