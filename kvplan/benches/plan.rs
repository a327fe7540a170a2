//! A plan must cost under 20 us, so that sweeps are free.

use kvplan::{Engine, EngineKind, Model, Setup, Sharding, SpecKind, Speculation, catalog};

fn main() {
    println!("expected: every `plan` under 20 us");
    divan::main();
}

/// Models of the catalogue, the longest hybrid among them.
const MODELS: [&str; 4] = [
    "kimi-k2.5",
    "llama-3.1-8b",
    "glm-5.2",
    "nemotron-3-ultra-550b-a55b",
];

fn model(name: &str) -> Model {
    catalog::find(name)
        .unwrap_or_else(|error| panic!("{error}"))
        .model
}

fn setup(model: &Model, kind: EngineKind) -> Setup<'_> {
    let mut setup = Setup::new(model, Sharding::tp(8), Engine::newest(kind), 95.6);
    setup.fraction = Some(0.88);
    setup.context_tokens = Some(32_768);
    if !model.mtp_layers.is_empty() {
        setup.speculation = Some(Speculation {
            kind: SpecKind::Mtp,
            draft: None,
            steps: 3,
            topk: 1,
            draft_tokens: 4,
        });
    }
    setup
}

#[divan::bench(args = MODELS)]
fn plan_sglang(bencher: divan::Bencher<'_, '_>, name: &str) {
    let model = model(name);
    let setup = setup(&model, EngineKind::Sglang);
    bencher.bench_local(|| kvplan::plan(divan::black_box(&setup)));
}

#[divan::bench(args = MODELS)]
fn plan_vllm(bencher: divan::Bencher<'_, '_>, name: &str) {
    let model = model(name);
    let setup = setup(&model, EngineKind::Vllm);
    bencher.bench_local(|| kvplan::plan(divan::black_box(&setup)));
}

#[divan::bench]
fn read_a_catalogue_model() -> Model {
    model(divan::black_box("kimi-k2.5"))
}
