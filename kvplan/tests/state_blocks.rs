//! vLLM starts a model with linear layers only where each request at once has a block of the pool.

mod common;

use common::{H200, PRO_6000, close, model, mtp};
use kvplan::{Model, Setup, StateBlocks};

fn hybrid() -> Model {
    model("qwen3.6-27b", Some("fp8"))
}

/// 27 B in FP8 with three drafted tokens on one card of 96 GB.
fn server<'a>(model: &'a Model, engine: &str) -> Setup<'a> {
    let mut setup = common::setup(model, 1, engine, PRO_6000);
    setup.context_tokens = Some(16_384);
    setup.speculation = Some(mtp(3));
    setup
}

fn blocks(setup: &Setup<'_>) -> StateBlocks {
    common::plan(setup).state_blocks.expect("blocks")
}

/// Pools of Qwen3.5-27B in vLLM 0.24.0 on one H200 (docs/HARDWARE.md). Its tokens are requests of 8,192,
/// each 11 blocks with a cache and one a group of 16 linear layers for each state: 3 in all, 12 beside 3
/// drafted tokens.
#[test]
fn blocks_are_those_of_the_pools_that_servers_printed() {
    let qwen = model("qwen3.5-27b", None);
    for (pool_gib, tokens, steps, of_request) in
        [(76.33, 933_302.0, 0, 14.0), (73.57, 505_054.0, 3, 23.0)]
    {
        let mut setup = common::setup(&qwen, 1, "vllm@0.24.0", H200);
        setup.speculation = (steps > 0).then(|| mtp(steps));
        setup.fraction = Some(0.92);
        setup.observed.pool_gib = Some(pool_gib);
        setup.observed.pool_fraction = Some(0.92);
        setup.observed.pool_with_draft = steps > 0;
        let found = blocks(&setup);
        close(found.blocks as f64, tokens / 8192.0 * of_request, 1.0);
        assert_eq!(
            found.surely, found.blocks,
            "a pool that was seen has no band"
        );
    }
}

/// `resolve_cudagraph_mode_and_sizes` of 0.20.0 to 0.33.0 raises; 0.19.1 captures smaller graphs.
#[test]
fn more_requests_at_once_than_blocks_are_refused_since_0_20_0_unless_nothing_is_captured() {
    let qwen = hybrid();
    let mut setup = server(&qwen, "vllm@0.20.0");
    setup.fraction = Some(0.56);
    setup.max_running = Some(1024);
    let refusal = common::plan(&setup).refusal.expect("a refusal");
    let held = blocks(&setup).blocks;
    let says = format!("max_num_seqs (1024) exceeds available Mamba cache blocks ({held})");
    assert!(refusal.engine_says.starts_with(&says), "{refusal:?}");
    let mut eager = setup.clone();
    eager.graph_max_batch = Some(0);
    let mut older = setup.clone();
    older.engine = kvplan::Engine::parse("vllm@0.19.1").expect("an engine");
    let dense = model("qwen3-32b", Some("fp8"));
    let mut without_states = setup.clone();
    (without_states.model, without_states.speculation) = (&dense, None);
    for other in [eager, older, without_states] {
        let plan = common::plan(&other);
        assert!(plan.refusal.is_none() && plan.state_blocks.is_none());
    }
    setup.max_running = Some(held);
    assert!(
        common::plan(&setup).refusal.is_none(),
        "fewer leave the pool more"
    );
}

/// A server that served without graphs was taken for proof of one that captures them.
#[test]
fn a_server_seen_without_graphs_proves_nothing_of_one_that_captures_them() {
    let qwen = hybrid();
    let mut setup = server(&qwen, "vllm@0.28.0");
    setup.fraction = Some(0.56);
    setup.max_running = Some(1024);
    let seen = &mut setup.observed;
    (seen.pool_gib, seen.pool_fraction) = (Some(18.2), Some(0.56));
    (seen.tokens, seen.running) = (Some(221_000), Some(1024));
    (seen.served, seen.pool_with_draft) = (true, true);
    assert!(common::plan(&setup).refusal.is_none(), "it ran so");
    setup.observed.graph_max_batch = Some(0);
    let plan = common::plan(&setup);
    assert!(plan.refusal.is_some(), "{:?}", plan.state_blocks);
    assert!(plan.pool_gib < 18.0, "graphs come out of it");
    setup.graph_max_batch = Some(0);
    let plan = common::plan(&setup);
    assert!(plan.refusal.is_none() && plan.pool_gib == 18.2);
}

#[test]
fn the_least_fraction_is_the_larger_of_the_walls_of_states_and_of_one_request() {
    let qwen = hybrid();
    let mut setup = server(&qwen, "vllm@0.28.0");
    setup.max_running = Some(1024);
    let least = common::plan(&setup).interval.min;
    assert_eq!(least, blocks(&setup).fraction_min);
    for (fraction, starts) in [(least - 0.001, false), (least + 0.001, true)] {
        setup.fraction = Some(fraction);
        assert_eq!(common::plan(&setup).refusal.is_none(), starts, "{fraction}");
    }
    setup.fraction = None;
    setup.max_running = Some(12);
    let plan = common::plan(&setup);
    let of_states = plan.state_blocks.expect("blocks").fraction_min;
    assert!(plan.interval.min > of_states && plan.interval.min < least);
}

#[test]
fn a_default_that_is_not_sure_of_its_blocks_is_replaced_by_256_or_by_more_where_more_are_asked_for()
{
    let qwen = hybrid();
    let setup = server(&qwen, "vllm@0.28.0");
    let own = blocks(&setup);
    assert!(
        own.blocks > own.requests && own.surely < own.requests,
        "{own:?}"
    );
    let told = |setup: &Setup<'_>, load| kvplan::vllm_requests_told(setup, load);
    assert_eq!(told(&setup, 12), Some(256));
    assert_eq!(told(&setup, 300), Some(300));
    // A pool of fewer than 256 blocks takes a half of that, and a load that it has no blocks for waits.
    let mut small = setup.clone();
    small.fraction = Some(0.45);
    let fewer = told(&small, 12).expect("a number");
    small.max_running = Some(fewer);
    assert!(fewer < 256 && blocks(&small).surely >= fewer, "{fewer}");
    small.max_running = None;
    assert_eq!(told(&small, 1000), Some(fewer));
    // Who says a number is not told another, and a default that is sure stands.
    let mut said = setup.clone();
    said.max_running = Some(1024);
    assert_eq!(told(&said, 12), None);
    let mut roomy = common::setup(&qwen, 1, "vllm@0.28.0", H200);
    roomy.context_tokens = Some(16_384);
    assert!(blocks(&roomy).surely >= 1024);
    assert_eq!(told(&roomy, 12), None);
}
