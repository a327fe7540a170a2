//! Cuts that engines refuse, as users reported them (the ids are of public issues), and cuts that
//! run.

mod common;

use common::model;
use kvplan::{EngineKind, Model, Sharding};

fn uncut(model: &Model, tp: u64) -> Option<kvplan::Uncut> {
    Sharding::tp(tp).uncut(model, EngineKind::Vllm)
}

/// (model, format, tp refused, what a rank's part is, tp advised, whether whole experts mend it).
type Refused = (
    &'static str,
    Option<&'static str>,
    u64,
    &'static str,
    &'static str,
    bool,
);

#[rustfmt::skip]
const REFUSED: &[Refused] = &[
    // vllm#25292.
    ("qwen3-30b-a3b", Some("fp8"), 4, "192 wide", "--tp 2", true),
    ("qwen3-235b-a22b", Some("fp8"), 8, "192 wide", "--tp 4", true),
    ("qwen3-coder-480b-a35b", Some("fp8"), 8, "320 wide", "--tp 4", true),
    ("minimax-m2.5", Some("fp8"), 8, "192 wide", "--tp 4", true),
    // vllm#52915: the shared expert too, so expert parallelism does not mend it.
    ("qwen3.5-35b-a3b", Some("fp8"), 8, "64 wide", "--tp 4", false),
    // sglang#26107, the next release of the same shapes.
    ("step-3.7-flash", Some("fp8"), 4, "320 wide", "--tp 2", false),
    ("qwen3-4b", Some("fp8"), 8, "1216 wide", "--tp 4", false),
];

#[test]
fn reported_refusals_are_refused_with_the_cut_that_runs() {
    for (name, quant, tp, part, cure, by_experts) in REFUSED {
        let model = model(name, *quant);
        let found = uncut(&model, *tp).unwrap_or_else(|| panic!("{name} is refused at {tp}"));
        assert!(
            found.why.contains(part) && found.why.contains(cure),
            "{}",
            found.why
        );
        assert_eq!(
            found.by_expert_parallelism, *by_experts,
            "{name}: {}",
            found.why
        );
        let advised = cure.trim_start_matches("--tp ").parse().expect("a number");
        assert_eq!(uncut(&model, advised), None, "{name} at the cut advised");
    }
}

#[test]
fn servers_that_are_known_to_run_are_not_refused() {
    for (name, quant, tp) in [
        ("kimi-k2.5", None, 8),
        ("kimi-k2.5", Some("nvfp4"), 8),
        ("deepseek-v3.1", None, 8),
        ("deepseek-v3.1", None, 16),
        ("deepseek-r1", Some("nvfp4"), 4),
        ("qwen3-235b-a22b", Some("fp8"), 4),
        ("qwen3-235b-a22b", Some("awq"), 8),
        ("qwen3-235b-a22b", None, 8),
        ("qwen3-32b", Some("fp8"), 8),
        ("minimax-m2.5", Some("fp8"), 4),
        ("glm-5.1", None, 8),
        ("gpt-oss-120b", None, 8),
        ("gpt-oss-20b", None, 4),
        ("mimo-v2-flash", None, 8),
        ("deepseek-v4-pro", None, 8),
        ("llama-3.1-70b", Some("awq"), 8),
        // 2736 and 352 columns a rank: its quantisers left such layers alone, or took groups of 32.
        ("glm-4.5-air", Some("awq"), 4),
        // Published with 29,568 padded to 29,696, for exactly this.
        ("qwen2.5-72b", Some("awq"), 8),
        ("qwen3.5-397b-a17b", Some("fp8"), 8),
    ] {
        assert_eq!(uncut(&model(name, quant), tp), None, "{name} at {tp}");
    }
}

/// Llama-2-7B-AWQ: 11,008 columns over 4 ranks are 21.5 groups of 128 ("The input size is not aligned
/// with the quantized weight shape"). A name alone does not say the group.
#[test]
fn groups_are_cut_whole_where_the_config_says_how_large_they_are() {
    let config = r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
        "intermediate_size": 11008, "quantization_config": {"quant_method": "awq", "bits": 4,
        "group_size": 128, "zero_point": true}}"#;
    let awq = Model::from_config_json(config, "awq").unwrap_or_else(|e| panic!("{e}"));
    let found = uncut(&awq, 4).expect("21.5 groups");
    assert!(
        found.why.contains("2752 wide") && found.why.contains("--tp 2"),
        "{}",
        found.why
    );
    assert_eq!(uncut(&awq, 2), None);
    assert_eq!(uncut(&model("llama-2-7b", Some("awq")), 4), None);
}

#[test]
fn whole_experts_on_each_rank_mend_what_says_so() {
    let minimax = model("minimax-m2.5", Some("fp8"));
    let sharding = Sharding {
        ep: 8,
        ..Sharding::tp(8)
    };
    assert_eq!(sharding.uncut(&minimax, EngineKind::Sglang), None);
}

/// 151,936 rows are padded to a multiple of 64, which 2, 4 and 8 divide and 5 does not.
#[test]
fn a_vocabulary_is_padded_to_64_rows_and_no_further() {
    let config = r#"{"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 2,
        "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 151936,
        "intermediate_size": 20480}"#;
    let model = Model::from_config_json(config, "forty heads").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(Sharding::tp(5).check(&model), Ok(()));
    let found = uncut(&model, 5).expect("151,936 is no multiple of 5");
    assert!(found.why.contains("vocabulary"), "{}", found.why);
    assert_eq!(uncut(&model, 4), None);
    // GPT-2's odd 50,257 rows are.
    let odd = Model {
        vocab: 50_257,
        ..model
    };
    assert_eq!(uncut(&odd, 8), None);
}

/// Qwen3-Next has 16 key heads in its linear layers: 32 ranks were let through.
#[test]
fn heads_of_a_state_are_not_split() {
    let next = model("qwen3-next-80b-a3b", None);
    assert_eq!(Sharding::tp(8).check(&next), Ok(()));
    let wide = Model {
        layers: next
            .layers
            .iter()
            .copied()
            .filter(|l| matches!(l.attention, kvplan::Attention::Linear(_)))
            .collect(),
        ..next
    };
    let why = Sharding::tp(32)
        .check(&wide)
        .expect_err("16 heads over 32 ranks");
    assert!(why.contains("16 heads"), "{why}");
}

/// A user who says fp8 of a model means its published checkpoint, which Qwen's are in blocks; the
/// format is named where it differs.
#[test]
fn fp8_of_a_model_is_its_published_checkpoint() {
    let format = |name: &str, quant| model(name, quant).layers[0].formats.attention_in;
    use kvplan::WeightFormat::{Fp8, Fp8Block};
    assert_eq!(format("qwen3-32b", Some("fp8")), Fp8Block);
    assert_eq!(format("Qwen/Qwen3-235B-A22B-FP8", None), Fp8Block);
    assert_eq!(format("deepseek-v3", Some("fp8")), Fp8Block);
    assert_eq!(format("qwen3-32b", Some("fp8-dynamic")), Fp8);
    assert_eq!(format("RedHatAI/Qwen3-32B-FP8-dynamic", None), Fp8);
    assert_eq!(format("llama-3.1-70b", Some("fp8")), Fp8);
    let said = |name, quant| {
        let notes = model(name, quant).assumptions;
        notes.iter().any(|note| note.contains("blocks of 128"))
    };
    assert!(said("qwen3-32b", Some("fp8")));
    assert!(!said("llama-3.1-70b", Some("fp8")));
    assert!(!said("qwen3-32b", Some("fp8-dynamic")));
}

/// The cure was looked for on the first width that failed alone: gpt-oss-120b in blocks at 8 was sent
/// to 4, which is refused as well.
#[test]
fn a_cut_that_is_advised_is_taken() {
    for name in kvplan::catalog::names() {
        for quant in [None, Some("fp8-block"), Some("int4"), Some("nvfp4")] {
            let Ok(found) = kvplan::catalog::find_in(name, quant) else {
                continue;
            };
            for tp in [2, 4, 6, 8, 16, 32] {
                let Some(refused) = uncut(&found.model, tp) else {
                    continue;
                };
                let advised = refused.why.split("--tp ").nth(1).unwrap_or_default();
                let number: String = advised.chars().take_while(char::is_ascii_digit).collect();
                let advised = number.parse().expect("a number");
                assert_eq!(uncut(&found.model, advised), None, "{name} {quant:?} {tp}");
            }
        }
    }
}
