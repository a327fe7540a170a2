//! The whole optimisation: 8 depths x 32 concurrencies x 8 contexts; expected under 1 ms.

use spec_decode::economics::{CostFns, DepthTable, OperatingPoint, choose_depth};
use spec_decode::{Chain, HeadKind};

fn main() {
    divan::main();
}

#[divan::bench]
fn depths_8_concurrencies_32_contexts_8(bencher: divan::Bencher) {
    let cost = CostFns {
        forward: |c: f64, tokens: u32, context: f64| {
            10.0 + (c * f64::from(tokens)).sqrt() + c * context * 1e-5
        },
        draft: |_: f64, depth: u32, _: f64| 0.9 * f64::from(depth),
    };
    let chain =
        Chain::from_accept_length(2.3, 3, HeadKind::Eagle3).unwrap_or(Chain::new(1.05, -0.47));
    bencher.bench(|| {
        let lengths: Vec<f64> = (1..=8).map(|d| chain.accept_length(d)).collect();
        let mut sum = 0u32;
        for c in 1..=32 {
            for context in 0..8 {
                let at = OperatingPoint {
                    concurrency: f64::from(c),
                    context: f64::from(context) * 16_384.0,
                };
                sum += choose_depth(&cost, at, &lengths).best.depth;
            }
        }
        sum
    });
}

#[divan::bench]
fn depth_table_with_ranges(bencher: divan::Bencher) {
    let cost = CostFns {
        forward: |c: f64, tokens: u32, context: f64| {
            10.0 + (c * f64::from(tokens)).sqrt() + c * context * 1e-5
        },
        draft: |_: f64, depth: u32, _: f64| 0.9 * f64::from(depth),
    };
    let chain = Chain::new(1.05, -0.47);
    let lengths: Vec<f64> = (1..=8).map(|d| chain.accept_length(d)).collect();
    let concurrencies: Vec<u32> = (1..=32).collect();
    let contexts: Vec<u32> = (0..8).map(|i| i * 16_384).collect();
    bencher.bench(|| DepthTable::new(&cost, &lengths, &concurrencies, &contexts).ranges());
}
