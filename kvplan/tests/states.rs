//! States of linear and Mamba layers: the slots that limit how many requests run at once.

mod common;

use common::model;
use kvplan::{AtOnce, Model, PrefixStates, Setup, Speculation, Wall, plan};

/// Qwen's gated delta nets, dense and with experts; Nemotron's Mamba layers.
const HYBRIDS: [&str; 5] = [
    "qwen3-next-80b-a3b",
    "qwen3.5-27b",
    "qwen3.5-397b-a17b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-3-super-120b-a12b",
];

fn setup<'a>(model: &'a Model, tp: u64, engine: &str, card: f64) -> Setup<'a> {
    let mut setup = common::setup(model, tp, engine, card);
    setup.fraction = Some(0.85);
    setup
}

fn mtp(draft_tokens: u64) -> Option<Speculation<'static>> {
    Some(common::mtp(draft_tokens - 1))
}

/// sglang#38846 and #36889: "capped to 9 by the mamba state cache (max_mamba_cache_size=47, 5 state
/// slots per request)", whatever --max-running-requests says.
#[test]
fn sglang_runs_a_fifth_of_its_state_slots_whatever_it_is_told() {
    let qwen = model("qwen3.5-27b", None);
    for (slots, requests) in [(47, 9), (10, 2)] {
        let mut setup = setup(&qwen, 2, "sglang@0.5.18", 95.0);
        setup.state_slots = Some(slots);
        setup.max_running = Some(32);
        let plan = plan(&setup).expect("a plan");
        assert_eq!(plan.max_running, requests);
        let wall = Wall::StateSlots;
        assert_eq!(plan.at_once(16), AtOnce { requests, wall });
    }
}

#[test]
fn slots_of_a_request_go_by_version_and_draft() {
    let qwen = model("qwen3-next-80b-a3b", None);
    for (engine, drafts, slots) in [
        ("sglang@0.5.6", false, 3),
        ("sglang@0.5.8", true, 4),
        ("sglang@0.5.12", false, 3),
        ("sglang@0.5.12", true, 5),
        ("sglang@0.5.16", false, 5),
    ] {
        let mut setup = setup(&qwen, 8, engine, 95.0);
        setup.speculation = mtp(4).filter(|_| drafts);
        let found = plan(&setup).expect("a plan").state_slots.expect("slots");
        assert_eq!(found.per_request, slots, "{engine} {drafts}");
    }
}

/// A log of 0.5.17 with six drafted tokens and four requests at most shows 2.11 GiB of drafted
/// matrix states of 16 bits: (4 + 1) x 6 of them.
#[test]
fn drafted_states_are_kept_for_the_requests_that_run_and_one_more() {
    let qwen = model("qwen3.5-27b", None);
    let mut setup = setup(&qwen, 1, "sglang@0.5.17", 95.0);
    setup.speculation = mtp(6);
    setup.max_running = Some(4);
    let ledger = plan(&setup).expect("a plan").ledger;
    let slot = qwen.state_bytes_per_request(&setup.sharding);
    let ssm =
        ledger.gib_of("verify: states of drafted tokens") * slot.ssm as f64 / slot.total() as f64;
    // Here they are of 32 bits.
    assert!((ssm / 2.0 - 2.11).abs() < 0.01, "{ssm}");
}

/// Told to run more, an engine whose slots are full has no slot more.
#[test]
fn a_larger_setting_adds_no_state_slot() {
    for name in HYBRIDS {
        let model = model(name, Some("fp8"));
        let mut setup = setup(&model, 8, "sglang@0.5.18", 24.0);
        let slots = |setup: &Setup<'_>| plan(setup).expect("a plan").state_slots;
        let own = slots(&setup);
        setup.max_running = Some(4096);
        assert_eq!(slots(&setup), own, "{name}");
    }
}

#[test]
fn a_pool_seen_and_the_states_beside_it_give_the_fraction_back() {
    for name in HYBRIDS {
        let model = model(name, Some("fp8"));
        for drafts in [false, true] {
            let mut setup = setup(&model, 8, "sglang@0.5.18", 141.0);
            setup.speculation = mtp(4).filter(|_| drafts && !model.mtp_layers.is_empty());
            let seen = plan(&setup).expect("a plan");
            let cell = seen.kv_bytes_per_token * seen.kv_tokens as f64 / kvplan::GIB;
            let state = kvplan::state_beside_pool(&setup, cell);
            let slot = model.state_bytes_per_request(&setup.sharding).total() as f64 / kvplan::GIB;
            let allocated = seen.ledger.gib_of("target: state pool")
                + seen.ledger.gib_of("verify: states of drafted tokens");
            let steps = 6.0 * slot;
            assert!(
                (state - allocated).abs() < steps,
                "{name} {state} {allocated}"
            );
        }
    }
}

/// 48 requests of 2.6 GiB of states for four drafted tokens do not fit beside anything.
#[test]
fn slots_for_no_request_are_refused() {
    let qwen = model("qwen3.5-27b", None);
    let mut setup = setup(&qwen, 1, "sglang@0.5.18", 95.0);
    setup.state_slots = Some(4);
    let refusal = plan(&setup).expect("a plan").refusal.expect("refused");
    assert!(refusal.engine_says.contains("too small to serve"));
    assert!(
        refusal.remedy.contains("a request takes 5"),
        "{}",
        refusal.remedy
    );
}

#[test]
fn without_such_layers_the_pool_or_the_setting_is_the_wall() {
    let llama = model("llama-3.1-8b", None);
    let mut setup = setup(&llama, 1, "sglang@0.5.18", 95.0);
    let plan_of = |setup: &Setup<'_>| plan(setup).expect("a plan");
    assert_eq!(plan_of(&setup).at_once(8192).wall, Wall::Pool);
    setup.max_running = Some(4);
    let at_once = plan_of(&setup).at_once(8192);
    assert_eq!((at_once.requests, at_once.wall), (4, Wall::Setting));
}

/// `MambaSpec.max_memory_usage_bytes`: 1, 2 or one a block, and one a drafted token. Of Qwen3.5-27B at
/// 32,768 that is beside 42 blocks of 784 tokens of attention, or 41 of 800 with three drafted.
#[test]
fn vllm_keeps_one_state_more_for_prefixes_or_one_a_block() {
    let qwen = model("qwen3.5-27b", None);
    let requests = |states: PrefixStates, drafts: bool| {
        let mut setup = setup(&qwen, 2, "vllm@0.20.1", 95.0);
        setup.context_tokens = Some(32_768);
        setup.observed.pool_gib = Some(50.0);
        setup.prefix_states = Some(states);
        setup.speculation = mtp(4).filter(|_| drafts);
        setup.observed.pool_with_draft = drafts;
        plan(&setup).expect("a plan").max_concurrency
    };
    for drafts in [false, true] {
        let [off, align, all] = [PrefixStates::Off, PrefixStates::Align, PrefixStates::All]
            .map(|states| requests(states, drafts));
        assert!(all < align && align < off, "{off} {align} {all}");
        // Three groups of states beside one of attention.
        let (blocks, own) = if drafts { (41.0, 4.0) } else { (42.0, 1.0) };
        let more = off / align;
        let by_hand = (blocks + 3.0 * (own + 1.0)) / (blocks + 3.0 * own);
        assert!((more / by_hand - 1.0).abs() < 1e-6, "{more} {by_hand}");
    }
    assert!(requests(PrefixStates::All, false) < 0.35 * requests(PrefixStates::Off, false));
}

/// 0.26.0 caches prefixes of hybrids unasked, Mamba's at every block until 0.28.0.
#[test]
fn vllm_keeps_states_for_prefixes_by_itself_since_0_26() {
    let requests = |name: &str, engine: &str, told: Option<PrefixStates>| {
        let model = model(name, None);
        let mut setup = setup(&model, 2, engine, 95.0);
        setup.context_tokens = Some(32_768);
        setup.observed.pool_gib = Some(50.0);
        setup.prefix_states = told;
        plan(&setup).expect("a plan").max_concurrency
    };
    let (qwen, nemotron) = ("qwen3.5-27b", "nemotron-3-nano-30b-a3b");
    for (name, engine, own) in [
        (qwen, "vllm@0.25.0", PrefixStates::Off),
        (qwen, "vllm@0.26.0", PrefixStates::Align),
        (qwen, "vllm@0.33.0", PrefixStates::Align),
        (nemotron, "vllm@0.26.0", PrefixStates::All),
        (nemotron, "vllm@0.28.0", PrefixStates::Align),
    ] {
        let by_itself = requests(name, engine, None);
        assert_eq!(by_itself, requests(name, engine, Some(own)), "{engine}");
    }
}

/// B200 and the like: 16,384 tokens a pass since 0.28.0.
#[test]
fn vllm_profiles_a_larger_pass_on_cards_of_160_gib_since_0_28() {
    let llama = model("llama-3.1-8b", None);
    let activations = |engine: &str, card_gib: f64| {
        let mut setup = setup(&llama, 1, engine, card_gib);
        setup.max_running = Some(64);
        let plan = plan(&setup).expect("a plan");
        let lines = plan.ledger.lines.iter();
        let found = lines.filter(|line| line.item.contains("activation"));
        found.map(|line| line.gib).sum::<f64>()
    };
    let (old, new) = (
        activations("vllm@0.27.0", 178.0),
        activations("vllm@0.28.0", 178.0),
    );
    assert!((new / old - 2.0).abs() < 1e-6, "{old} {new}");
    assert_eq!(
        activations("vllm@0.27.0", 140.0),
        activations("vllm@0.28.0", 140.0)
    );
}

/// vllm#40691, Qwen3.5 on 0.19.0 with a length of 32,768: 290,864 tokens beside 33.04 requests. Those are
/// 1487 blocks of 784 tokens: over four groups, and over 42 blocks and three states a request.
#[test]
fn vllm_to_0_20_0_prints_a_hybrids_blocks_and_since_then_its_requests() {
    let qwen = model("qwen3.5-27b", None);
    let of = |engine: &str| {
        let mut setup = setup(&qwen, 1, engine, 95.0);
        setup.context_tokens = Some(32_768);
        let block: u64 = 784 * 4096 * 16;
        setup.observed.pool_gib = Some((1487 * block + 1000) as f64 / kvplan::GIB);
        let plan = plan(&setup).expect("a plan");
        assert!((plan.max_concurrency - 33.04).abs() < 0.005, "{engine}");
        assert_eq!(plan.kv_tokens, 1_082_800, "{engine}");
        plan.printed_tokens(setup.engine)
    };
    for engine in ["vllm@0.14.0", "vllm@0.19.0", "vllm@0.20.0"] {
        assert_eq!(of(engine), 290_864, "{engine}");
    }
    for engine in ["vllm@0.20.1", "vllm@0.24.0"] {
        assert_eq!(of(engine), 1_082_800, "{engine}");
    }
}
