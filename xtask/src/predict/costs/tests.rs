//! Laws of the costs that a user's own sweep gives when another all-reduce is asked for.

use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::cli::ScenarioArgs;

/// A mixture of experts on four PCIe cards, with a sweep that ends at 16 users.
fn scenario() -> Scenario {
    // Tests run side by side: written once.
    static SWEEP: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = std::env::temp_dir().join(format!("costs-sweep-{}.csv", std::process::id()));
        let sweep = "concurrency,tok_s\n1,60\n2,100\n4,170\n8,260\n16,400\n";
        std::fs::write(&path, sweep).expect("writes");
        path
    });
    Scenario::resolve(&ScenarioArgs {
        model: Some("qwen3-30b-a3b".into()),
        draft: Some("eagle3".into()),
        engine: Some("vllm@0.24".into()),
        gpu: Some("rtx-pro-6000-server".into()),
        gpus: Some(4),
        context: Some("2000".into()),
        baseline: Some(SWEEP.clone()),
        ..ScenarioArgs::default()
    })
    .expect("a scenario")
}

/// Times of one all-reduce by the power of two of its bytes, us: any shape, cliffs included.
fn times(us: Vec<f64>) -> TimeUs<'static> {
    Box::new(move |bytes| {
        let size = bytes.max(1.0).log2().clamp(0.0, 31.0) as usize;
        us[size.min(us.len() - 1)]
    })
}

/// What the sweep is taken to have run with.
const ENGINE: Choice = Choice::One(pcie_sim::Algorithm::Engine);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_kernel_faster_at_every_size_never_makes_a_step_slower(
        swept in prop::collection::vec(5.0..400.0f64, 32),
        slow in prop::collection::vec(5.0..400.0f64, 32),
        shares in prop::collection::vec(0.1..1.0f64, 32),
        users in 1u32..200,
        steps in 1u32..8,
        context in 0u64..20_000,
    ) {
        let scenario = scenario();
        let links = Links::new(&scenario).expect("links");
        let fast: Vec<f64> = slow.iter().zip(&shares).map(|(us, share)| us * share).collect();
        let reduces = |asked: Vec<f64>| AllReduces {
            asked: times(asked),
            swept: Some(times(swept.clone())),
        };
        let (slow, fast) = (reduces(slow), reduces(fast));
        let cycle = |reduces| -> CycleCost {
            let costs = Costs::new(&scenario, reduces, &links).expect("costs");
            costs.cycle(users, context, steps, steps + 1)
        };
        let (slow, fast) = (cycle(&slow), cycle(&fast));
        prop_assert!(fast.plain_ms <= slow.plain_ms + 1e-9, "plain");
        prop_assert!(fast.draft_ms <= slow.draft_ms + 1e-9, "draft");
        prop_assert!(fast.verify_ms <= slow.verify_ms + 1e-9, "verify");
        prop_assert!(fast.verify_ms > 0.0 && fast.plain_ms > 0.0);
    }

    #[test]
    fn a_sweep_asked_for_with_its_own_kernel_is_the_sweep(
        users in 1u32..100, steps in 1u32..8
    ) {
        let scenario = scenario();
        let links = Links::new(&scenario).expect("links");
        let of = |choice| {
            let reduces = all_reduces(&scenario, &links, choice);
            let costs = Costs::new(&scenario, &reduces, &links).expect("costs");
            costs.cycle(users, 2000, steps, steps + 1)
        };
        // Over PCIe beyond two GPUs the engine leaves every size to NCCL.
        let (own, nccl) = (of(ENGINE), of(Choice::One(pcie_sim::Algorithm::Nccl)));
        prop_assert!((own.plain_ms - nccl.plain_ms).abs() < 1e-9);
        prop_assert!((own.verify_ms - nccl.verify_ms).abs() < 1e-9);
        prop_assert!(own.moved < 1e-12 && nccl.moved < 1e-9);
    }
}

#[test]
fn the_plain_step_is_moved_by_the_difference_of_the_two_all_reduces() {
    let scenario = scenario();
    let links = Links::new(&scenario).expect("links");
    let of = |choice| {
        let reduces = all_reduces(&scenario, &links, choice);
        let costs = Costs::new(&scenario, &reduces, &links).expect("costs");
        costs.cycle(1, 2000, 3, 4)
    };
    let two_shot = Choice::One(pcie_sim::Algorithm::TwoShot);
    let bytes = crate::predict::payload_bytes(&scenario, 1, 1);
    let us = |choice| links.time_us(choice, bytes);
    let passes = scenario.model.all_reduces_per_pass() as f64;
    let apart_ms = (us(ENGINE) - us(two_shot)) * passes / 1000.0;
    let (own, other) = (of(ENGINE), of(two_shot));
    assert!(apart_ms > 0.1, "{apart_ms}");
    assert!(
        (own.plain_ms - other.plain_ms - apart_ms).abs() < 1e-6,
        "{} {} {apart_ms}",
        own.plain_ms,
        other.plain_ms
    );
    assert!((own.plain_ms - 1000.0 / 60.0).abs() < 1e-6);
    assert!(own.moved < 1e-12 && other.moved > 0.0);
}
