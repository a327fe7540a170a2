//! Every model of the catalogue and of the table of published families under every engine, cut and
//! kind of draft: what must hold of any ledger, whatever the figures.

use kvplan::{Attention, Engine, Model, Plan, Setup, Sharding, SpecKind, Speculation, catalog};
use serde_json::Value;

const ENGINES: [&str; 7] = [
    "sglang@0.4.6",
    "sglang@0.5.12",
    "sglang@0.5.18",
    "vllm@0.6.5",
    "vllm@0.24",
    "trtllm",
    "llamacpp",
];
const CARDS_GIB: [f64; 2] = [24.0, 95.59];

fn models() -> Vec<Model> {
    let table: Vec<Value> =
        serde_json::from_str(include_str!("published.json")).expect("the table is JSON");
    let families = table.iter().map(|row| {
        let name = row["name"].as_str().expect("a name");
        Model::from_config_json(&row["config"].to_string(), name).unwrap_or_else(|e| panic!("{e}"))
    });
    let listed = catalog::names().into_iter().map(|name| {
        let found = catalog::find(name).unwrap_or_else(|e| panic!("{e}"));
        found.model
    });
    listed.chain(families).collect()
}

/// A head for a target of any shape: one layer, or five that draft a block.
fn head(target: &Model, architecture: &str, layers: u64) -> Model {
    let config = serde_json::json!({
        "architectures": [architecture], "model_type": "llama", "num_hidden_layers": layers,
        "hidden_size": target.hidden, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": target.hidden * 2, "vocab_size": target.vocab,
        "draft_vocab_size": 32_000, "max_position_embeddings": 4096,
    });
    Model::from_config_json(&config.to_string(), "head").unwrap_or_else(|e| panic!("{e}"))
}

/// Whether every layer keeps every token.
fn uniform(model: &Model) -> bool {
    model.layers.iter().all(|layer| match layer.attention {
        Attention::Gqa(gqa) => gqa.window.is_none(),
        Attention::Mla(_) | Attention::Compressed(_) => true,
        _ => false,
    })
}

/// What must hold of any plan.
fn faults(plan: &Plan, setup: &Setup<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            faults.push(what);
        }
    };
    let sum = plan.ledger.sum();
    must(
        (sum - setup.card_gib).abs() < 1e-6,
        format!("adds up to {sum}"),
    );
    for line in &plan.ledger.lines {
        must(line.gib.is_finite(), format!("{}: {}", line.item, line.gib));
        let closes = ["free", "missing (negative)"].contains(&line.item.as_ref());
        must(
            line.gib >= 0.0 || closes,
            format!("{}: {}", line.item, line.gib),
        );
    }
    must(
        plan.refusal.is_none() || plan.kv_tokens == 0,
        "refused with tokens".into(),
    );
    let closing = plan.ledger.lines.last().map_or(0.0, |line| line.gib);
    must(
        !plan.fits || closing >= 0.0,
        format!("fits with {closing} GiB free"),
    );
    must(
        !plan.fits || plan.kv_tokens > 0,
        "fits without a token".into(),
    );
    // llama.cpp's is what the context asks for, there or not.
    must(
        plan.refusal.is_some() || plan.pool_gib <= setup.card_gib,
        format!("a pool of {}", plan.pool_gib),
    );
    must(plan.weights_gib > 0.0, "no weights".into());
    let per_token = plan.kv_bytes_per_token;
    must(
        per_token.is_finite() && per_token >= 0.0,
        format!("{per_token} bytes a token"),
    );
    faults
}

#[test]
fn every_ledger_closes_and_no_line_is_negative() {
    let mut wrong = Vec::new();
    let mut plans = 0;
    for model in models() {
        let heads = [
            (SpecKind::Eagle, head(&model, "LlamaForCausalLMEagle3", 1)),
            (SpecKind::Eagle, head(&model, "LlamaForCausalLMEagle", 1)),
            (SpecKind::Block, head(&model, "DFlashDraftModel", 5)),
            (SpecKind::Standalone, head(&model, "LlamaForCausalLM", 4)),
        ];
        let draft = |kind, draft| Speculation {
            kind,
            draft,
            steps: 3,
            topk: 1,
            draft_tokens: 4,
        };
        let mut drafts = vec![None, Some(draft(SpecKind::Ngram, None))];
        drafts.extend(
            heads
                .iter()
                .map(|(kind, head)| Some(draft(*kind, Some(head)))),
        );
        if !model.mtp_layers.is_empty() {
            drafts.push(Some(draft(SpecKind::Mtp, None)));
        }
        for engine in ENGINES {
            let engine = Engine::parse(engine).unwrap_or_else(|e| panic!("{e}"));
            for tp in [1, 2, 4, 8] {
                let sharding = Sharding::tp(tp);
                if sharding.check(&model).is_err() {
                    continue;
                }
                for card in CARDS_GIB {
                    let mut without = None;
                    for draft in &drafts {
                        let mut setup = Setup::new(&model, sharding, engine, card);
                        setup.speculation = *draft;
                        let plan = kvplan::plan(&setup).unwrap_or_else(|e| panic!("{e}"));
                        plans += 1;
                        let mut found = faults(&plan, &setup);
                        let alone = *without.get_or_insert(plan.kv_tokens);
                        // Slots of states, and groups with padding, may leave more tokens to
                        // fewer requests.
                        if plan.kv_tokens > alone && uniform(&model) {
                            found.push(format!(
                                "{} tokens with a draft, {alone} without",
                                plan.kv_tokens
                            ));
                        }
                        for fault in found {
                            let kind = draft.map(|draft| draft.kind);
                            wrong.push(format!(
                                "{} {engine} tp {tp} {card} GiB {kind:?}: {fault}",
                                model.name
                            ));
                        }
                    }
                }
            }
        }
    }
    println!("{plans} plans");
    assert!(
        wrong.is_empty(),
        "{} faults, first:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Twice the ranks hold about half of the weights each at least, and never fewer tokens.
#[test]
fn more_ranks_never_hold_less() {
    let mut wrong = Vec::new();
    for model in models() {
        for engine in ENGINES {
            let engine = Engine::parse(engine).unwrap_or_else(|e| panic!("{e}"));
            let mut last: Option<Plan> = None;
            for tp in [1, 2, 4, 8] {
                let sharding = Sharding::tp(tp);
                if sharding.check(&model).is_err() {
                    continue;
                }
                let mut setup = Setup::new(&model, sharding, engine, 140.4);
                setup.context_tokens = Some(4096);
                let plan = kvplan::plan(&setup).unwrap_or_else(|e| panic!("{e}"));
                if let Some(last) = &last {
                    let ratio = plan.computed_weights_gib / last.computed_weights_gib;
                    // SGLang counts the first kernels of a single rank, and of no more, as weights.
                    if !(0.47..=1.0).contains(&ratio) {
                        wrong.push(format!(
                            "{} {engine} tp {tp}: weights times {ratio:.3}",
                            model.name
                        ));
                    }
                    // One rank has neither NCCL nor its buffers: tokens may fall a little where
                    // latents are copied to every rank and the weights are small.
                    if (plan.kv_tokens as f64) < 0.95 * last.kv_tokens as f64 {
                        wrong.push(format!(
                            "{} {engine} tp {tp}: {} tokens after {}",
                            model.name, plan.kv_tokens, last.kv_tokens
                        ));
                    }
                }
                last = Some(plan);
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} faults, first:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
