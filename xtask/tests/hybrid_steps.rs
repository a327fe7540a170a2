//! Steps of a model with linear layers, plain and with its MTP layer, beside those measured
//! (docs/HARDWARE.md).

mod common;

use common::answers;

/// Users of Qwen3.5-27B in vLLM 0.24.0 on one H200; ms of a plain step, of a cycle with one draft
/// step, and of one with three.
const MEASURED: [(u64, f64, f64, f64); 7] = [
    (1, 15.35, 17.18, 19.46),
    (2, 15.49, 17.51, 19.87),
    (4, 15.83, 18.01, 20.48),
    (8, 16.55, 18.86, 21.72),
    (16, 17.48, 20.41, 24.59),
    (32, 19.26, 23.88, 30.88),
    (64, 23.60, 31.48, 47.35),
];

/// What `predict` says of those loads with `more` flags.
fn points(more: &str) -> Vec<serde_json::Value> {
    let run = "predict --model qwen3.5-27b --gpu h200 --engine vllm@0.24.0 --max-running 64 --max-model-len 8192 \
               --context 2200 --concurrency 1,2,4,8,16,32,64 --json";
    let flags = run.split_whitespace().chain(more.split_whitespace());
    let text = answers(&flags.collect::<Vec<_>>());
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    found["points"].as_array().expect("points").clone()
}

#[test]
fn plain_steps_of_a_hybrid_are_met_within_four_percent() {
    for (point, row) in points("--draft none").iter().zip(MEASURED) {
        let step = point["baseline_step_ms"].as_f64().expect("a step");
        let off = (step / row.1).ln().abs();
        assert!(off < 0.04, "{} users: {step} for {}", row.0, row.1);
    }
}

/// Before a verify of linear layers was billed its own kernels, cycles came out 5 to 7 % too fast.
#[test]
fn cycles_of_a_hybrid_with_its_mtp_layer_are_met_and_their_speedups_lie_in_the_band() {
    let one = points("--draft mtp --steps 1 --accept rates:.8");
    let three = points("--draft mtp --steps 3 --accept rates:.8,.6,.45");
    let mut sum = 0.0;
    for ((one, three), row) in one.iter().zip(&three).zip(MEASURED) {
        for (point, measured, length) in [(one, row.2, 1.8), (three, row.3, 2.85)] {
            let field = |name: &str| point[name].as_f64().expect("a number");
            let off = (field("cycle_ms") / measured).ln();
            assert!(off.abs() < 0.07, "{} users: {off}", row.0);
            sum += off / 14.0;
            let speedup = length * row.1 / measured;
            let band = field("speedup_low")..field("speedup_high");
            assert!(
                band.contains(&speedup),
                "{} users: {speedup} in {band:?}",
                row.0
            );
        }
    }
    assert!(sum.abs() < 0.045, "mean {sum}");
}

/// The speedup from their own plain sweep came out too high, and nothing said so.
#[test]
fn how_far_a_sweep_misleads_on_linear_layers_is_said_beside_it() {
    common::with_log("hybrid-sweep", "1,65\n8,483\n64,2712\n", |sweep| {
        let of = |model: &str, draft: &str| {
            common::run(
                "predict",
                &format!(
                    "--model {model} --quant bf16 --gpu h200 --engine vllm --draft {draft} --baseline {sweep} --concurrency 1,8"
                ),
            )
        };
        let said = "with linear layers the speedup from a sweep came out";
        assert!(of("qwen3.5-27b", "mtp").contains(said));
        assert!(!of("qwen3.5-27b", "none").contains(said));
        assert!(!of("qwen3-32b", "eagle3").contains(said));
    });
}
