//! Graphs of prefills, which SGLang captures by itself since 0.5.10, and what it reserves for them.
//! Sources: `_handle_piecewise_cuda_graph` of server_args.py (0.5.10 to 0.5.13), the rules of
//! `_disable_*_cudagraph_if_incompatible` (0.5.14 to 0.5.18), cuda_graph_hook.py and memory_hook.py
//! (0.5.19 to 0.5.23), the lists of classes in model_config.py.

use super::graphs::SPREAD;
use crate::ledger::Ledger;
use crate::model::Attention;
use crate::setup::Setup;

/// Reserved for a captured size, MiB.
const MIB_PER_SIZE: f64 = 8.0;
/// What a piece of a captured graph takes, MiB: a graph is cut at each layer's attention. Eight
/// servers of 0.5.13 on H200 with 58 sizes of up to 8,192 tokens (docs/HARDWARE.md), less the
/// activations of their warm-up: 0.17 and 0.29 (8B), 0.30 and 0.31 (32B), 0.42 and 0.52 (70B on two
/// cards), 0.29 twice (30B-A3B), the second of each beside an EAGLE-3 head.
const MIB_PER_PIECE: f64 = 0.32;
/// Reserved for all of them with latent attention, MiB.
const MLA_MIB: f64 = 1536.0;
/// Sizes in tokens: first, last, step.
const SIZES: [(u64, u64, u64); 6] = [
    (4, 32, 4),
    (48, 256, 16),
    (288, 512, 32),
    (576, 1024, 64),
    (1280, 4096, 256),
    (4608, u64::MAX, 512),
];

/// MiB of the reserve for the graphs of prefills of up to `chunk` tokens.
pub(super) fn reserve_mib(setup: &Setup<'_>, chunk: f64) -> f64 {
    if !captures(setup) {
        return 0.0;
    }
    if is_latent(setup) {
        return MLA_MIB;
    }
    sizes(setup, chunk) as f64 * MIB_PER_SIZE
}

/// Sizes captured for prefills of up to `chunk` tokens.
fn sizes(setup: &Setup<'_>, chunk: f64) -> u64 {
    let most = (chunk as u64).min(setup.max_total_tokens.unwrap_or(u64::MAX));
    let count = |(first, last, step): &(u64, u64, u64)| {
        let span = most.min(*last).checked_sub(*first);
        span.map_or(0, |span| span / step + 1)
    };
    SIZES.iter().map(count).sum()
}

/// What the graphs take beside the activations of their largest size, GiB.
fn captured_gib(setup: &Setup<'_>, chunk: f64) -> f64 {
    if !captures(setup) {
        return 0.0;
    }
    let pieces = sizes(setup, chunk) as f64 * (setup.model.layers.len() + 1) as f64;
    pieces * MIB_PER_PIECE / 1024.0
}

fn is_latent(setup: &Setup<'_>) -> bool {
    let mut layers = setup.model.layers.iter();
    layers.any(|layer| matches!(layer.attention, Attention::Mla(_)))
}

/// The graphs of prefills of up to `chunk` tokens, GiB, and of them the estimated: as a server was
/// seen, else by the pieces captured.
pub(super) fn line(ledger: &mut Ledger, setup: &Setup<'_>, chunk: f64) -> (f64, f64) {
    if off_by_draft(setup, setup.speculation.is_some()) {
        return (0.0, 0.0);
    }
    let item = "target: graphs of prefills";
    let seen = setup.observed.prefill_graph_gib;
    match seen.filter(|_| !off_by_draft(setup, setup.observed.graphs_with_draft)) {
        Some(gib) => {
            ledger.exact(item, gib, "memory usage of the captures in the log");
            (gib, 0.0)
        }
        None => {
            let gib = captured_gib(setup, chunk);
            ledger.estimate(item, gib, SPREAD, "0.32 MiB a layer and captured size");
            (gib, gib)
        }
    }
}

/// Whether none are captured because the server drafts: 0.5.10 alone (`_handle_piecewise_cuda_graph`).
fn off_by_draft(setup: &Setup<'_>, drafts: bool) -> bool {
    drafts && !setup.engine.version.since((0, 5, 11), (2026, 5))
}

/// Whether prefills are captured where nobody says so.
fn captures(setup: &Setup<'_>) -> bool {
    let since = |patch, date| setup.engine.version.since((0, 5, patch), date);
    let class = setup.model.architecture.as_str();
    let is = |name: &str| class.contains(name);
    let off = off_by_draft(setup, setup.speculation.is_some());
    if off || !since(10, (2026, 4)) || is("DeepseekV4") {
        return false;
    }
    let [breakable, widened, most, all] = [
        since(15, (2026, 7)),
        since(16, (2026, 8)),
        since(17, (2026, 8)),
        since(18, (2026, 9)),
    ];
    // Of models with a tower some were tried.
    let tried = widened
        && ["Qwen3_5", "KimiK25", "MiniMaxM3"]
            .iter()
            .any(|name| is(name));
    let tower = setup.model.vision.is_some() && !tried && !(all && is("KimiK3"));
    if tower || (setup.sharding.dp_attention > 1 && !most) {
        return false;
    }
    let sparse = is("DeepseekV32") || is("GlmMoeDsa");
    match (breakable, all) {
        // Cut at attention by torch.compile.
        (false, _) => {
            let early = !since(13, (2026, 6)) && sparse;
            !(early || is("Qwen3Next") || is("BailingMoeV2_5"))
        }
        // Kimi-K2.5 went on by torch.compile.
        (true, false) => {
            let latent = is_latent(setup) && !(tried || most && sparse);
            !(latent || most && is("NemotronH"))
        }
        (true, true) => {
            setup.sharding.dcp < 2 && !(since(20, (2026, 10)) && (is("KimiLinear") || is("KimiK3")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Sharding, SpecKind, Speculation, catalog};

    fn mib(model: &str, engine: &str, chunk: f64) -> f64 {
        let model = catalog::find(model).expect("in the catalogue").model;
        let engine = Engine::parse(engine).expect("an engine");
        reserve_mib(&Setup::new(&model, Sharding::tp(1), engine, 80.0), chunk)
    }

    #[test]
    fn graphs_of_prefills_are_reserved_for_by_release_and_class() {
        // 8 + 14 + 8 + 8 sizes to 1024, 12 to 4096, 8 to 8192.
        for (model, engine, chunk, expected) in [
            ("qwen3-32b", "sglang@0.5.9", 8192.0, 0.0),
            ("qwen3-32b", "sglang@0.5.10", 8192.0, 58.0 * 8.0),
            ("qwen3-32b", "sglang@0.5.18", 2048.0, 42.0 * 8.0),
            ("deepseek-v3", "sglang@0.5.12", 8192.0, 1536.0),
            ("deepseek-v3", "sglang@0.5.16", 8192.0, 0.0),
            ("deepseek-v3", "sglang@0.5.18", 8192.0, 1536.0),
            ("deepseek-v3.2", "sglang@0.5.12", 8192.0, 0.0),
            ("deepseek-v3.2", "sglang@0.5.17", 8192.0, 1536.0),
            ("kimi-k2.5", "sglang@0.5.15", 8192.0, 0.0),
            ("kimi-k2.5", "sglang@0.5.16", 8192.0, 1536.0),
            ("gemma-3-27b", "sglang@0.5.18", 8192.0, 0.0),
            ("qwen3-next-80b-a3b", "sglang@0.5.14", 8192.0, 0.0),
            ("qwen3-next-80b-a3b", "sglang@0.5.18", 8192.0, 58.0 * 8.0),
        ] {
            assert_eq!(mib(model, engine, chunk), expected, "{model} {engine}");
        }
    }

    /// Captures of eight servers, GiB, less the activations of 8,192 tokens: each within the row's band.
    #[test]
    fn captures_of_prefills_seen_on_h200_lie_in_the_band_of_their_row() {
        for (name, tp, seen) in [
            ("llama-3.1-8b", 1, [1.15, 1.38]),
            ("qwen3-32b", 1, [2.53, 2.54]),
            ("llama-3.3-70b", 2, [2.96, 3.41]),
            ("qwen3-30b-a3b", 1, [1.42, 1.42]),
        ] {
            let model = catalog::find(name).expect("in the catalogue").model;
            let engine = Engine::parse("sglang@0.5.13").expect("an engine");
            let setup = Setup::new(&model, Sharding::tp(tp), engine, 140.4);
            let row = captured_gib(&setup, 8192.0);
            let activations = crate::parts::forward_gib(&model, &Sharding::tp(tp), 8192);
            for gib in seen {
                let off = (gib - activations) / row - 1.0;
                assert!(off.abs() < SPREAD, "{name}: {row:.2}, off by {off:.2}");
            }
        }
    }

    /// 0.5.10 alone captures none where it drafts: its own fraction was 0.745 here, not 0.755.
    #[test]
    fn speculation_switches_them_off_in_0_5_10() {
        let model = catalog::find("qwen3-32b").expect("in the catalogue").model;
        for (engine, drafted, fraction) in [
            ("sglang@0.5.10", false, 0.870),
            ("sglang@0.5.10", true, 0.755),
            ("sglang@0.5.11", true, 0.745),
        ] {
            let engine = Engine::parse(engine).expect("an engine");
            let mut setup = Setup::new(&model, Sharding::tp(2), engine, 32607.0 / 1024.0);
            setup.speculation = drafted.then_some(Speculation {
                kind: SpecKind::Eagle,
                draft: None,
                steps: 3,
                topk: 1,
                draft_tokens: 4,
            });
            let own = super::super::automatic_fraction(&setup);
            assert!((own - fraction).abs() < 1e-9, "{engine:?}: {own}");
        }
    }
}
