//! GGUF mixtures against the sizes that llama.cpp publishes, and what llama.cpp puts on the card.

mod common;

use common::{close, model, plan, setup};
use kvplan::{GIB, GgufMix, Model, Quant, Sharding, WeightFormat};

fn in_mix(name: &str, mix: &str) -> Model {
    let quant = Quant::parse(mix).unwrap_or_else(|| panic!("{mix}"));
    model(name, None).requantised(&quant)
}

/// Bits a weight of Llama-3.1-8B in tools/quantize/README.md of llama.cpp, four decimals.
#[test]
fn mixtures_of_llama_8b_have_the_published_bits() {
    let params = model("llama-3.1-8b", None).total_params() as f64;
    for (name, bits) in [
        ("iq1_s", 2.0042),
        ("iq1_m", 2.1460),
        ("iq2_xxs", 2.3824),
        ("iq2_xs", 2.5882),
        ("iq2_s", 2.7403),
        ("iq2_m", 2.9294),
        ("iq3_xxs", 3.2548),
        ("iq3_xs", 3.4977),
        ("iq3_s", 3.6606),
        ("iq3_m", 3.7628),
        ("iq4_xs", 4.4597),
        ("iq4_nl", 4.6818),
        ("q2_k", 3.1593),
        ("q3_k_s", 3.6429),
        ("q3_k_l", 4.2979),
        ("q4_k_s", 4.6672),
        ("q4_k_m", 4.8944),
        ("q5_k_s", 5.5704),
        ("q5_k_m", 5.7036),
        ("q6_k", 6.5633),
        ("q8_0", 8.5008),
    ] {
        let bytes = in_mix("llama-3.1-8b", name).total_weight_bytes(&Sharding::tp(1));
        let got = bytes * 8.0 / params;
        assert!(
            (got - bits).abs() < 0.0001,
            "{name}: {got}, published {bits}"
        );
    }
}

/// The sizes of the same page, decimal GB; they seem scaled from the 8B.
#[test]
fn q4_k_m_of_8b_70b_and_405b_lies_near_the_published_sizes() {
    for (name, gb) in [
        ("llama-3.1-8b", 4.9),
        ("llama-3.1-70b", 43.1),
        ("llama-3.1-405b", 249.1),
    ] {
        let bytes = in_mix(name, "Q4_K_M").total_weight_bytes(&Sharding::tp(1));
        close(bytes / 1e9, gb, 0.03 * gb);
    }
}

/// gpt-oss has rows of 2880, no multiple of 256: K types fall back to blocks of 32.
#[test]
fn rows_that_no_block_divides_fall_back() {
    let oss = in_mix("gpt-oss-20b", "q4_k_s");
    let (q8_0, q5_0) = (34.0 / 32.0, 22.0 / 32.0);
    assert_eq!(oss.head_format.bytes_per_param(), q8_0);
    assert_eq!(oss.embedding_format.bytes_per_param(), q5_0);
    // Outputs have 4096 columns.
    let out = oss.layers[10].formats.attention_out.bytes_per_param();
    assert_eq!(out, 144.0 / 256.0);
}

#[test]
fn every_name_of_the_error_line_is_known_and_spellings_agree() {
    for name in ["Q4_K_M", "q4-k-m", "gguf-q4_k_m", "q4_k"] {
        assert_eq!(GgufMix::parse(name), Some(GgufMix::Q4KM), "{name}");
    }
    assert_eq!(GgufMix::parse("q4_k_xl"), None);
    assert!(Quant::parse("q8_0").is_some_and(|quant| quant.gguf.is_some()));
    assert!(Quant::parse("int4").is_some_and(|quant| quant.gguf.is_none()));
}

#[test]
fn a_file_name_says_the_mixture() {
    for name in [
        "qwen3-8b-q4_k_m",
        "Qwen/Qwen3-8B-GGUF:Q4_K_M",
        "Qwen3-8B-Q4_K_M.gguf",
    ] {
        let found = kvplan::catalog::find(name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(
            (found.name.as_str(), found.quant.as_str()),
            ("qwen3-8b", "q4-k-m")
        );
    }
}

/// Norms and routers stay in 32 bits, whatever the mixture.
#[test]
fn routers_are_not_quantised() {
    let qwen = in_mix("qwen3-30b-a3b", "iq2_xs");
    assert_eq!(qwen.base_format, WeightFormat::F32);
}

/// llama.cpp keeps the token table in host memory unless it is the output head, too: of the 4685
/// MiB of Llama-3.1-8B in Q4_K_M 282 stay there.
#[test]
fn llama_cpp_leaves_an_untied_token_table_in_host_memory() {
    let llama = in_mix("llama-3.1-8b", "q4_k_m");
    let on_card = plan(&setup(&llama, 1, "llamacpp", 24.0)).computed_weights_gib;
    let all = llama.total_weight_bytes(&Sharding::tp(1)) / GIB;
    close((all - on_card) * 1024.0, 281.8, 0.1);
    close(on_card * 1024.0, 4403.5, 2.0);
    let tied = in_mix("qwen3-0.6b", "q8_0");
    let on_card = plan(&setup(&tied, 1, "llamacpp", 24.0)).computed_weights_gib;
    close(
        on_card,
        tied.total_weight_bytes(&Sharding::tp(1)) / GIB,
        1e-9,
    );
}
