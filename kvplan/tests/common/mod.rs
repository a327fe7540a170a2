//! What the tests of real servers share.

#![allow(dead_code, unreachable_pub)]

use kvplan::{Engine, Model, Plan, Setup, Sharding, SpecKind, Speculation, catalog};

pub fn model(name: &str, quant: Option<&str>) -> Model {
    catalog::find_in(name, quant)
        .unwrap_or_else(|e| panic!("{e}"))
        .model
}

pub fn setup<'a>(model: &'a Model, tp: u64, engine: &str, card_gib: f64) -> Setup<'a> {
    let engine = Engine::parse(engine).unwrap_or_else(|e| panic!("{e}"));
    Setup::new(model, Sharding::tp(tp), engine, card_gib)
}

pub fn plan(setup: &Setup<'_>) -> Plan {
    let plan = kvplan::plan(setup).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        (plan.ledger.sum() - setup.card_gib).abs() < 1e-6,
        "the ledger adds up to the card"
    );
    plan
}

#[track_caller]
pub fn close(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "{got}, expected {expected} +- {tolerance}"
    );
}

/// RTX PRO 6000, `nvidia-smi`.
pub const PRO_6000: f64 = 97_887.0 / 1024.0;
pub const H100: f64 = 81_559.0 / 1024.0;
pub const H200: f64 = 143_771.0 / 1024.0;

/// MTP of the target, top-k 1.
pub fn mtp(steps: u64) -> Speculation<'static> {
    Speculation {
        kind: SpecKind::Mtp,
        draft: None,
        steps,
        topk: 1,
        draft_tokens: steps + 1,
    }
}

/// The EAGLE-3 head of a catalogue model.
pub fn head_of(name: &str) -> Model {
    match catalog::find_draft(name, "eagle3").expect("draft") {
        catalog::Draft::Head { model, .. } => *model,
        catalog::Draft::Mtp => panic!("{name}: a head was asked for"),
    }
}
