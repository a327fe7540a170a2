//! Laws of speeds that were measured of one shape and asked about of another.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::cli::ScenarioArgs;
use crate::explain::speeds::By;

const LOADS: [u32; 3] = [1, 2, 8];

/// A dense model on two PCIe cards under an engine that pads nothing, with a sweep of its own log's lines.
fn scenario() -> Scenario {
    // Tests run side by side: written once.
    static SWEEP: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = std::env::temp_dir().join(format!("measured-{}.csv", std::process::id()));
        std::fs::write(&path, "concurrency,tok_s\n1,55\n2,102\n8,330\n").expect("writes");
        path
    });
    let mut scenario = Scenario::resolve(&ScenarioArgs {
        model: Some("qwen3-32b".into()),
        quant: Some("fp8".into()),
        draft: Some("eagle3".into()),
        engine: Some("sglang@0.5.9".into()),
        gpu: Some("rtx-5090".into()),
        gpus: Some(2),
        context: Some("8000".into()),
        accept: Some("2.4@3".into()),
        baseline: Some(SWEEP.clone()),
        ..ScenarioArgs::default()
    })
    .expect("a scenario");
    scenario.swept = vec![line(1, 55.0), line(2, 102.0), line(8, 330.0)];
    scenario
}

fn line(users: u32, tok_s: f64) -> LoadSpeed {
    LoadSpeed {
        running: f64::from(users),
        tok_s,
        held_tokens: Some(8000.0),
        held_line: 1,
        accept_length: None,
        lines: 4,
        line: 1,
        by: By::Lines,
    }
}

/// The log of a server with this shape, so many times as fast as the sweep.
fn with_log(
    mut scenario: Scenario,
    (steps, topk, tokens): (u32, u32, u32),
    times: [f64; 3],
) -> Scenario {
    scenario.ran.speculates = true;
    scenario.ran.file = "spec.log".to_string();
    scenario.ran.drafts = (Some(steps), Some(topk));
    scenario.ran.draft_tokens = Some(u64::from(tokens));
    let plain = scenario.swept.clone();
    let speeds = plain.iter().zip(times).map(|(plain, times)| LoadSpeed {
        tok_s: times * plain.tok_s,
        ..*plain
    });
    scenario.ran.speeds = speeds.collect();
    scenario
}

/// The same server asked about with this shape.
fn asked(scenario: &Scenario, (steps, topk, tokens): (u32, u32, u32)) -> Scenario {
    let mut asked = scenario.clone();
    asked.steps = Some(steps);
    asked.topk = Some(topk);
    asked.draft_tokens = Some(tokens);
    asked
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A verify of 16 tokens was told to take less time than the chain's 4, and to break even sooner.
    #[test]
    fn a_verify_of_more_tokens_never_costs_less_nor_breaks_even_sooner_whatever_the_log_shows(
        steps in 1u32..6,
        topk in 1u32..9,
        more in 0u32..30,
        times in prop::array::uniform3(0.6..1.5f64),
        users in 1u32..20,
    ) {
        let tokens = if topk == 1 { steps + 1 } else { steps + 1 + more };
        let log = with_log(scenario(), (steps, topk, tokens), times);
        let links = Links::new(&log).expect("links");
        let (mut verify_ms, mut break_even) = (0.0, 0.0);
        for shape in [(3, 1, 4), (3, 2, 6), (3, 4, 8), (3, 4, 16), (3, 8, 32), (3, 8, 64)] {
            let asked = asked(&log, shape);
            let reduces = all_reduces(&asked, &links, Choice::parse(&asked.allreduce).expect("one"));
            let mut costs = Costs::new(&asked, &reduces, &links).expect("costs");
            costs.measured = Measured::of(&asked, &links).expect("measured");
            let cost = costs.cycle(users, 8000, shape.0, shape.2);
            prop_assert!(cost.verify_ms >= verify_ms - 1e-9, "{shape:?}: {} {verify_ms}", cost.verify_ms);
            prop_assert!(cost.break_even() >= break_even - 1e-9, "{shape:?}: {}", cost.break_even());
            (verify_ms, break_even) = (cost.verify_ms, cost.break_even());
        }
    }

    #[test]
    fn measured_over_computed_is_of_the_shape_that_ran_whatever_is_asked(
        steps in 1u32..6,
        topk in 1u32..9,
        times in prop::array::uniform3(0.6..1.5f64),
    ) {
        let tokens = if topk == 1 { steps + 1 } else { 4 * steps };
        let log = with_log(scenario(), (steps, topk, tokens), times);
        let links = Links::new(&log).expect("links");
        let factors = |shape| {
            let measured = Measured::of(&asked(&log, shape), &links).expect("measured");
            measured.map(|m| LOADS.map(|users| m.factor(f64::from(users))))
        };
        let own = factors((steps, topk, tokens));
        prop_assert!(own.is_some());
        for shape in [(3, 1, 4), (2, 4, 8), (3, 4, 16), (5, 8, 32)] {
            prop_assert_eq!(factors(shape), own, "{:?}", shape);
        }
    }
}

#[test]
fn what_was_measured_of_a_chain_is_no_measurement_of_a_tree_of_its_size() {
    let log = with_log(scenario(), (3, 1, 4), [1.7, 1.6, 1.4]);
    let links = Links::new(&log).expect("links");
    let seen = |shape| {
        let measured = Measured::of(&asked(&log, shape), &links).expect("measured");
        let depth = Depth {
            steps: shape.0,
            tokens: shape.2,
        };
        measured.and_then(|m| m.half_width((1, 8000), depth))
    };
    assert!(seen((3, 1, 4)).is_some());
    assert!(seen((3, 4, 4)).is_none());
}
