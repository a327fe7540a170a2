//! Loading, where an engine makes FP8 of a BF16 checkpoint itself.

mod common;

use common::{model, plan};
use kvplan::{Fit, runs_out_loading};

/// Of a model on cards of 24 GiB: what it runs out with while loading.
fn of(engine: &str, tp: u64, loaded: bool) -> Option<kvplan::Loading> {
    let made = model("qwen3.5-27b", Some("fp8-dynamic"));
    let stored = model("qwen3.5-27b", Some("bf16"));
    let mut setup = common::setup(&made, tp, engine, 24.0);
    setup.context_tokens = Some(8192);
    setup.fraction = Some(0.95).filter(|_| engine.starts_with("sglang"));
    assert!(
        plan(&setup).loading.is_none(),
        "a checkpoint stored in FP8 is never whole in BF16"
    );
    setup.checkpoint = Some(&stored);
    if loaded {
        setup.observed.free_before_gib = Some(22.0);
        setup.observed.free_after_gib = Some(6.5);
    }
    let plan = plan(&setup);
    assert_eq!(plan.loading, runs_out_loading(&setup));
    assert_eq!(
        plan.loading.is_some(),
        plan.fit(8192) == Fit::Refused && plan.kv_tokens == 0 && !plan.fits,
        "{engine} at tp {tp}: {:?}",
        plan.refusal
    );
    plan.loading
}

/// It was called fitting: 15 GiB of FP8 on 24, which SGLang makes only once 26 GiB of BF16 are loaded.
#[test]
fn sglang_needs_room_for_the_whole_checkpoint_before_it_makes_fp8_of_it() {
    let short = of("sglang@0.5.23", 2, false).expect("does not load");
    let all = short.checkpoint_gib + short.gone_gib - 24.0;
    common::close(all, short.short_gib, 1e-9);
    assert!(short.checkpoint_gib > 24.0, "{short:?}");
    assert_eq!(of("sglang@0.5.23", 4, false), None);
    assert_eq!(of("sglang@0.5.23", 2, true), None, "it was seen loaded");
}

#[test]
fn vllm_needs_that_room_only_before_it_makes_each_weight_as_it_is_read() {
    assert!(of("vllm@0.15.0", 2, false).is_some());
    assert_eq!(of("vllm@0.16.0", 2, false), None);
}
