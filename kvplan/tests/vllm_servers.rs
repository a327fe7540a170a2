//! Utilisations that vLLM servers were seen with, beside the activation wall that flags alone give.

mod common;

use common::{model, mtp};
use kvplan::{Interval, KvDtype};

/// (model, quantisation, tp, engine, torch's GiB, fraction, requests, largest graph, with MTP).
type Server = (
    &'static str,
    Option<&'static str>,
    u64,
    &'static str,
    f64,
    f64,
    Option<u64>,
    Option<u64>,
    bool,
);

/// Those that came to serve: logs and rows of `../shared/data`, and our own on H200 (docs/HARDWARE.md).
#[rustfmt::skip]
const SERVED: &[Server] = &[
    ("gemma-4-26b-a4b", Some("fp8"), 2, "vllm@0.22.0", 23.56, 0.82, Some(1), Some(0), false),
    ("qwen3-30b-a3b", None, 1, "vllm@0.10.2", 79.18, 0.9, None, None, false),
    ("qwen3-32b", None, 2, "vllm@0.11.0", 79.18, 0.9, None, None, false),
    ("mistral-small-3.2-24b", None, 1, "vllm@0.11.0", 79.18, 0.95, None, None, false),
    ("gpt-oss-120b", None, 1, "vllm@0.11.0", 79.18, 0.95, None, None, false),
    ("llama-3.1-8b", None, 1, "vllm@0.24.0", 139.8, 0.9, Some(128), None, false),
    ("llama-3.3-70b", None, 2, "vllm@0.24.0", 139.8, 0.92, Some(64), None, false),
    ("qwen3-32b", None, 1, "vllm@0.24.0", 139.8, 0.92, Some(128), None, false),
    ("minimax-m2.5", None, 4, "vllm@2026-02", 95.0, 0.9, None, None, false),
    ("glm-5.1", None, 8, "vllm@0.20.2", 95.0, 0.89, None, None, true),
    ("kimi-k2.5", None, 8, "vllm@2026-02", 95.0, 0.93, None, None, false),
];

/// One that ran out of memory after the start, at the edge: 0.97 served with other flags.
#[rustfmt::skip]
const RAN_OUT: &[Server] = &[
    ("kimi-k2.5", None, 8, "vllm@2026-02", 95.0, 0.97, None, None, false),
];

fn wall((name, quant, tp, engine, torch, fraction, requests, graphs, drafts): &Server) -> Interval {
    let model = model(name, *quant);
    let mut setup = common::setup(&model, *tp, engine, torch + 0.5);
    setup.observed.torch_total_gib = Some(*torch);
    setup.context_tokens = Some(8192);
    setup.fraction = Some(*fraction);
    setup.max_running = *requests;
    setup.graph_max_batch = *graphs;
    setup.kv_dtype = Some(KvDtype::Bf16);
    setup.speculation = Some(mtp(3)).filter(|_| *drafts);
    common::plan(&setup).interval
}

/// vLLM's own 0.92 stood above the middle of the wall of every pair of 24 GB cards, 0.916 with its graphs
/// inside the utilisation and 0.883 with them outside: what SGLang's ranks take was taken for vLLM's.
#[test]
fn no_vllm_server_that_served_stands_above_its_wall_and_none_that_ran_out_is_clear_of_it() {
    for server in SERVED {
        let wall = wall(server);
        println!("{} tp {} at {}: {wall:?}", server.0, server.2, server.5);
        assert!(server.5 <= wall.max, "{server:?}: {wall:?}");
    }
    for server in RAN_OUT {
        let wall = wall(server);
        println!("{} tp {} out at {}: {wall:?}", server.0, server.2, server.5);
        assert!(server.5 > wall.max_low, "{server:?}: {wall:?}");
    }
}

/// What two cards of 24 GB leave, whatever lies in the pool: graphs outside the utilisation, and inside.
#[test]
fn vllms_default_starts_on_24_gb_cards_and_is_clear_of_the_wall_where_graphs_are_counted() {
    let at = |engine, fraction| {
        let server: Server = (
            "qwen3-32b",
            Some("awq"),
            2,
            engine,
            23.52,
            fraction,
            None,
            None,
            false,
        );
        wall(&server)
    };
    let (outside, inside) = (at("vllm@0.19.0", 0.9), at("vllm@0.29.0", 0.92));
    assert!(0.9 < outside.max && 0.93 > outside.max, "{outside:?}");
    assert!(
        0.92 < inside.max_low && 0.98 > inside.max_high,
        "{inside:?}"
    );
}
