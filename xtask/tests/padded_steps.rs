//! Plain steps between the sizes of CUDA graphs, beside those measured (docs/HARDWARE.md).

mod common;

use common::answers;

/// Users and the step of Qwen3-30B-A3B in vLLM 0.24.0 on one H200, ms.
const MEASURED: [(u64, f64); 10] = [
    (4, 6.33),
    (5, 9.11),
    (6, 9.28),
    (7, 9.21),
    (8, 9.31),
    (9, 12.50),
    (12, 12.64),
    (15, 12.60),
    (16, 12.57),
    (17, 14.53),
];

/// A step of 5 users was computed as 5 rows of experts, not as the 8 that its graph runs.
#[test]
fn a_plain_step_takes_the_time_of_the_graph_that_it_runs() {
    let run = "predict --model qwen3-30b-a3b --gpu h200 --engine vllm@0.24.0 --draft none --context 460 --json \
               --concurrency 4,5,6,7,8,9,12,15,16,17";
    let text = answers(&run.split_whitespace().collect::<Vec<_>>());
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let steps: Vec<f64> = found["points"]
        .as_array()
        .expect("points")
        .iter()
        .filter_map(|point| point["baseline_step_ms"].as_f64())
        .collect();
    assert_eq!(steps.len(), MEASURED.len());
    for (step, (users, measured)) in steps.iter().zip(MEASURED) {
        let off = (step / measured).ln().abs();
        assert!(off < 0.2, "{users} users: {step} for {measured}");
    }
    // Measured and computed: one time for all that run one graph, more for the next.
    let measured: Vec<f64> = MEASURED.iter().map(|row| row.1).collect();
    for of in [&steps, &measured] {
        let (eight, sixteen) = (&of[1..5], &of[5..9]);
        let flat = |of: &[f64]| of.iter().all(|step| (step / of[0] - 1.0).abs() < 0.025);
        assert!(flat(eight) && flat(sixteen), "{of:?}");
        assert!(eight[0] > 1.2 * of[0] && sixteen[0] > 1.2 * eight[3] && of[9] > 1.1 * sixteen[3]);
    }
}
