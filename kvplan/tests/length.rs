//! The length that a vLLM server can surely be told: by the band of its pool, none where a log shows it.

mod common;

use common::{model, mtp};
use kvplan::{Model, Setup};

/// Weights of 17 GiB on a card of 24, with a pool of some GiB that holds no request of the model's length.
fn server<'a>(model: &'a Model) -> Setup<'a> {
    let mut setup = common::setup(model, 2, "vllm@0.29.0", 24.0);
    setup.observed.torch_total_gib = Some(23.5);
    setup.context_tokens = Some(2048);
    // As few as have a block for their states.
    setup.max_running = Some(8);
    setup.speculation = Some(mtp(3));
    setup
}

const LIMIT: u64 = 262_144;

fn longest(setup: &Setup<'_>) -> u64 {
    kvplan::longest_sure(setup, LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_length_that_is_surely_taken_leaves_the_band_of_an_estimated_pool() {
    let model = model("qwen3.6-27b", Some("fp8"));
    let setup = server(&model);
    let told = longest(&setup);
    let at = |tokens| common::plan(&setup.told_length(tokens));
    assert!(told > 2048 && told.is_multiple_of(16), "{told}");
    assert!(at(told).surely_starts());
    // No shorter than it must be, but for how it is typed.
    assert!(!at(told + told / 32).surely_starts(), "{told}");
    let edge = at(told + told / 32);
    assert!(edge.refusal.is_none(), "the middle of the band holds it");
}

#[test]
fn a_pool_that_a_log_shows_has_no_band_and_one_with_a_draft_beside_it_that_of_the_draft() {
    let model = model("qwen3.6-27b", Some("fp8"));
    let estimated = common::plan(&server(&model));
    let mut seen = server(&model);
    seen.fraction = Some(0.92);
    seen.observed.pool_gib = Some(estimated.pool_gib);
    seen.observed.pool_fraction = Some(0.92);
    seen.observed.pool_with_draft = true;
    let exact = common::plan(&seen);
    assert!(exact.pool_low.is_none() && estimated.pool_low.is_some());
    let told = longest(&seen);
    let past = common::plan(&seen.told_length(told + told / 32));
    assert!(past.refusal.is_some(), "{told} is the edge of that pool");
    // The log of a plain server: what the draft takes of its pool is an estimate.
    seen.observed.pool_with_draft = false;
    let beside = common::plan(&seen);
    let requests = |pool: &kvplan::Pool| pool.requests(2048);
    let low = |plan: &kvplan::Plan| {
        let pool = plan.pool_low.as_ref().expect("a band");
        requests(pool) / requests(&plan.pool)
    };
    assert!(low(&beside) < 1.0);
    assert!(low(&estimated) < low(&beside), "all of it is one");
}
