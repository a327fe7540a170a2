//! Flags that were given and change nothing: found by leaving each out.

use super::json::to_json;
use super::knobs::asked_load;
use super::{Report, asked};
use crate::cli::PlanArgs;
use crate::scenario::Scenario;

/// A flag, whether it was given, and how to take it back.
type Flag = (&'static str, fn(&PlanArgs) -> bool, fn(&mut PlanArgs));

/// Flags that memory may not depend on.
const FLAGS: [Flag; 15] = [
    (
        "--context",
        |a| a.scenario.context.is_some(),
        |a| a.scenario.context = None,
    ),
    (
        "--concurrency",
        |a| a.scenario.concurrency.is_some(),
        |a| a.scenario.concurrency = None,
    ),
    (
        "--dcp",
        |a| a.scenario.dcp.is_some(),
        |a| a.scenario.dcp = None,
    ),
    (
        "--steps",
        |a| a.scenario.steps.is_some(),
        |a| a.scenario.steps = None,
    ),
    (
        "--topk",
        |a| a.scenario.topk.is_some(),
        |a| a.scenario.topk = None,
    ),
    (
        "--draft-tokens",
        |a| a.scenario.draft_tokens.is_some(),
        |a| a.scenario.draft_tokens = None,
    ),
    (
        "--accept",
        |a| a.scenario.accept.is_some(),
        |a| a.scenario.accept = None,
    ),
    (
        "--task",
        |a| a.scenario.task.is_some(),
        |a| a.scenario.task = None,
    ),
    (
        "--temperature",
        |a| a.scenario.temperature.is_some(),
        |a| a.scenario.temperature = None,
    ),
    (
        "--baseline",
        |a| a.scenario.baseline.is_some(),
        |a| a.scenario.baseline = None,
    ),
    (
        "--allreduce",
        |a| a.scenario.allreduce.is_some(),
        |a| a.scenario.allreduce = None,
    ),
    (
        "--allreduce-table",
        |a| a.scenario.allreduce_table.is_some(),
        |a| a.scenario.allreduce_table = None,
    ),
    ("--seed", |a| a.scenario.seed != 1, |a| a.scenario.seed = 1),
    (
        "--state-slots",
        |a| a.knobs.state_slots.is_some(),
        |a| a.knobs.state_slots = None,
    ),
    (
        "--state-ratio",
        |a| a.knobs.state_ratio.is_some(),
        |a| a.knobs.state_ratio = None,
    ),
];

/// The flags without which the answer is the same.
pub(super) fn flags(args: &PlanArgs, answer: &Report) -> Vec<&'static str> {
    let with = to_json(answer);
    let same = |flag: &&Flag| {
        let (_, given, take_back) = **flag;
        if !given(args) {
            return false;
        }
        let mut without = args.clone();
        take_back(&mut without);
        let Ok(mut scenario) =
            Scenario::resolve(&asked_load(&without.scenario, without.knobs.max_model_len))
        else {
            return false;
        };
        asked(&mut scenario, &without).is_ok_and(|answer| to_json(&answer) == with)
    };
    FLAGS.iter().filter(same).map(|flag| flag.0).collect()
}
