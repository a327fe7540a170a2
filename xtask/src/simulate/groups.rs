//! Several groups that reduce at the same time: how much they slow each other down.

use pcie_sim::plan::Plan;
use pcie_sim::{Algorithm, all_reduce, all_reduce_plan, concurrent};
use serde_json::{Value, json};

use super::Answer;
use crate::scenario::{list, parse};
use crate::{input, table};

/// Groups that reduce at once, against one group of all.
pub(super) struct Groups {
    groups: Vec<Vec<usize>>,
    alone_us: f64,
    together_us: f64,
    all_us: f64,
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
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let all = all_reduce(t, &answer.ranks, Algorithm::Nccl, bytes, options).ok()?;
    Some(Groups {
        groups: answer.groups.clone(),
        alone_us: most(&run.alone_us),
        together_us: most(&run.together_us),
        all_us: all.time_us,
    })
}

impl Groups {
    /// One line.
    pub(super) fn line(&self, size: &str, ranks: usize) -> String {
        let shown: Vec<String> = self.groups.iter().map(|group| list(group)).collect();
        format!(
            "groups      NCCL, {size}: {} at once {} us each ({} alone); one group of {ranks}: {} us (--groups \
             chooses others)\n",
            shown.join(" / "),
            table::three(self.together_us),
            table::three(self.alone_us),
            table::three(self.all_us)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "groups": self.groups.len(),
            "gpus": self.groups,
            "alone_us": self.alone_us,
            "together_us": self.together_us,
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
