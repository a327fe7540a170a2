//! Every public log that names its model, card and flags: weights and pool from flags alone. The
//! misses stand in a table of their own, with the reason in docs/kvplan.md.

mod common;

use common::{model, setup};
use kvplan::{KvDtype, Plan};

/// Weights of the fullest rank, GiB: (log, model, quantisation, tp, engine, logged).
type Weights = (
    &'static str,
    &'static str,
    Option<&'static str>,
    u64,
    &'static str,
    f64,
);

const WEIGHTS: &[Weights] = &[
    ("sgl-002", "llama-3.1-8b", None, 1, "sglang@0.4.1", 15.09),
    ("sgl-029", "llama-3.1-8b", None, 1, "sglang@0.5.5", 15.11),
    ("sgl-004", "qwen3-0.6b", None, 1, "sglang@0.4.6", 1.20),
    ("sgl-005", "qwen3-0.6b", None, 1, "sglang@0.4.10", 1.25),
    ("sgl-020", "qwen2.5-0.5b", None, 1, "sglang@0.5.12", 0.975),
    ("sgl-27", "qwen2.5-7b", None, 1, "sglang@0.4.2", 14.39),
    ("sgl-001", "qwq-32b", None, 4, "sglang@0.4.3", 15.54),
    ("story", "kimi-k2.5", None, 8, "sglang@0.5.12", 72.3),
    (
        "sgl-08",
        "deepseek-r1",
        Some("nvfp4"),
        4,
        "sglang@2025-08",
        94.5,
    ),
    // Its successor of the same shapes.
    ("sgl-013", "qwen3.5-27b", None, 1, "sglang@0.5.17", 51.05),
    ("v-17", "qwen3-30b-a3b", None, 1, "vllm@0.10.2", 56.93),
    ("v-41", "qwen3-32b", None, 1, "vllm@0.20", 61.03),
    (
        "vllm-027",
        "mistral-small-3.2-24b",
        None,
        1,
        "vllm@0.11",
        44.76,
    ),
    ("v-40", "gemma-3-1b", None, 1, "vllm@0.10.1", 1.915),
    ("vllm-014", "qwen2.5-14b", None, 2, "vllm@0.10.1", 13.99),
    ("vllm-008", "phi-4", Some("gptq"), 1, "vllm@0.6.5", 8.51),
    ("v-21", "qwen2.5-14b", Some("awq"), 1, "vllm@0.14", 9.49),
    ("v-25", "glm-5.1", None, 8, "vllm@0.20.2", 55.67),
];

/// One server and the pool its log says.
struct Log {
    id: &'static str,
    model: &'static str,
    quant: Option<&'static str>,
    tp: u64,
    engine: &'static str,
    /// Capacity as torch sees it, GiB.
    torch_gib: f64,
    fraction: f64,
    context: Option<u64>,
    /// Requests at once; `None`: the engine's default for the card.
    requests: Option<u64>,
    pool_gib: f64,
}

/// (id, model, quantisation, tp, engine, torch GiB, fraction, context, requests, pool GiB).
type Row = (
    &'static str,
    &'static str,
    Option<&'static str>,
    u64,
    &'static str,
    f64,
    f64,
    u64,
    Option<u64>,
    f64,
);

#[rustfmt::skip]
const VLLM: &[Row] = &[
    ("vllm-011", "llama-3.1-8b", None, 1, "vllm@0.6.4", 23.58, 0.9, 29_000, None, 2.89),
    ("vllm-008", "phi-4", Some("gptq"), 1, "vllm@0.6.5", 79.25, 0.15, 2048, None, 2.18),
    ("vllm-006", "qwen2.5-0.5b", Some("int4"), 1, "vllm@0.7.9", 47.5, 0.78, 32_768, None, 34.81),
    ("vllm-029", "qwen3-4b", None, 1, "vllm@0.10", 15.42, 0.9, 40_960, None, 4.89),
    ("vllm-014", "qwen2.5-14b", None, 2, "vllm@0.10", 191.69, 0.9, 4096, None, 151.25),
    ("v-17", "qwen3-30b-a3b", None, 1, "vllm@0.10.2", 79.18, 0.9, 6144, None, 8.68),
    ("vllm-015", "gemma-3-27b", None, 1, "vllm@0.10.2", 191.69, 0.9, 4096, None, 109.86),
    ("v-13", "gpt-oss-120b", None, 4, "vllm@0.10.1", 79.15, 0.8, 16_384, Some(256), 45.32),
    ("vllm-023", "llama-3.1-8b", None, 1, "vllm@0.11", 79.18, 0.9, 16_000, None, 51.38),
    ("vllm-026", "qwen3-32b", None, 2, "vllm@0.11", 79.18, 0.9, 16_000, None, 34.49),
    ("v-20", "gpt-oss-20b", None, 1, "vllm@0.13", 121.63, 0.25, 8192, Some(256), 12.94),
    ("v-16", "llama-3.1-8b", None, 1, "vllm@0.11.2", 139.8, 0.9, 1024, None, 105.97),
    ("vllm-002", "minimax-m2.5", None, 4, "vllm@2026-02", 95.0, 0.9, 196_608, None, 23.62),
    ("vllm-039", "qwen3-next-80b-a3b", Some("w4a16"), 1, "vllm@2026-05", 63.4, 0.92, 65_536, Some(4), 16.63),
    ("vllm-012", "qwen2.5-7b", None, 1, "vllm@2026-03", 31.36, 0.9, 32_768, None, 13.1),
    ("vllm-032", "qwen2.5-7b", Some("awq"), 1, "vllm@0.21", 22.03, 0.6, 32_768, None, 6.6),
    ("vllm-032", "qwen2.5-7b", Some("awq"), 1, "vllm@0.21", 22.03, 0.45, 32_768, None, 3.3),
    ("h200-base", "llama-3.1-8b", None, 1, "vllm@0.24.0", 139.8, 0.9, 10_240, Some(128), 108.87),
];

/// What is off by more than 6 %, with the figure predicted today.
#[rustfmt::skip]
const VLLM_MISSES: &[(Row, f64)] = &[
    (("vllm-003", "qwen3-235b-a22b", Some("fp8"), 4, "vllm@0.10", 79.18, 0.9, 40_960, None, 8.11), 8.88),
    (("vllm-027", "mistral-small-3.2-24b", None, 1, "vllm@0.11", 79.18, 0.95, 16_000, None, 28.2), 25.52),
    (("v-25", "glm-5.1", None, 8, "vllm@0.20.2", 95.0, 0.865, 202_752, Some(64), 19.55), 22.27),
];

/// (id, model, quantisation, tp, engine, card GiB, free before, fraction, tokens).
type Tokens = (
    &'static str,
    &'static str,
    Option<&'static str>,
    u64,
    &'static str,
    f64,
    Option<f64>,
    Option<f64>,
    f64,
);

#[rustfmt::skip]
const SGLANG: &[Tokens] = &[
    ("sgl-001", "qwq-32b", None, 4, "sglang@0.4.3", 24.0, Some(21.63), None, 46_611.0),
    ("sgl-002", "llama-3.1-8b", None, 1, "sglang@0.4.1", 79.65, None, None, 444_500.0),
    ("sgl-005", "qwen3-0.6b", None, 1, "sglang@0.4.10", 15.92, None, None, 104_273.0),
    ("sgl-007", "qwen3-235b-a22b", Some("fp8"), 4, "sglang@2025-07", 79.65, None, Some(0.93), 367_404.0),
    ("sgl-019", "kimi-k2.6", None, 8, "sglang@0.5.12", 95.58, None, Some(0.92), 209_413.0),
    ("sgl-020", "qwen2.5-0.5b", None, 1, "sglang@2026-07", 40.0, Some(36.54), Some(0.859), 2_658_165.0),
    ("sgl-27", "qwen2.5-7b", None, 1, "sglang@0.4.2", 24.0, Some(22.76), None, 105_531.0),
    ("sgl-30", "kimi-k2.5", None, 8, "sglang@0.5.8", 288.0, Some(283.56), None, 2_454_421.0),
];

impl Log {
    fn of(row: &Row) -> Self {
        let (id, model, quant, tp, engine, torch_gib, fraction, context, requests, pool_gib) = *row;
        Self {
            id,
            model,
            quant,
            tp,
            engine,
            torch_gib,
            fraction,
            context: Some(context),
            requests,
            pool_gib,
        }
    }

    fn plan(&self) -> Plan {
        let model = model(self.model, self.quant);
        let mut setup = setup(&model, self.tp, self.engine, self.torch_gib + 0.5);
        setup.observed.torch_total_gib = Some(self.torch_gib);
        setup.fraction = Some(self.fraction);
        setup.context_tokens = self.context;
        setup.max_running = self.requests;
        // Cards whose server defaults do not hold (A100, GB10) run 2048 tokens a pass, and MXFP4
        // through Marlin.
        // Boards whose memory is the host's.
        setup.unified_memory = ["v-20", "vllm-039"].contains(&self.id);
        if self.requests == Some(256) {
            setup.batched_tokens = Some(2048);
            setup.mxfp4_kernels = Some(false);
        }
        // The offline entry point runs 16,384 tokens a pass.
        if self.id == "h200-base" {
            setup.batched_tokens = Some(16_384);
        }
        let fp8 = self.model.starts_with("glm");
        setup.kv_dtype = Some(if fp8 { KvDtype::Fp8 } else { KvDtype::Bf16 });
        common::plan(&setup)
    }
}

fn off(got: f64, logged: f64) -> f64 {
    (got / logged - 1.0).abs()
}

#[test]
fn weights_of_18_logs_within_2_percent() {
    for (id, name, quant, tp, engine, logged) in WEIGHTS {
        let model = model(name, *quant);
        let mut setup = setup(&model, *tp, engine, 400.0);
        // What the first kernels take goes by multiprocessors: 84 of an RTX 5080, 20 of a laptop.
        setup.sm_count = match *id {
            "sgl-004" => Some(20),
            "sgl-005" => Some(84),
            _ => None,
        };
        let got = common::plan(&setup).computed_weights_gib;
        println!("{id:9} {got:8.3} {logged:8.3}");
        assert!(off(got, *logged) <= 0.02, "{id}: {got}, logged {logged}");
    }
}

#[test]
fn vllm_pools_of_18_logs_within_6_percent() {
    for log in VLLM.iter().map(Log::of) {
        let got = log.plan().pool_gib;
        println!("{:9} {got:8.2} {:8.2}", log.id, log.pool_gib);
        assert!(
            off(got, log.pool_gib) <= 0.06,
            "{}: {got}, logged {}",
            log.id,
            log.pool_gib
        );
    }
}

#[test]
fn vllm_pools_that_miss_are_as_far_off_as_the_notes_say() {
    for (row, known) in VLLM_MISSES {
        let log = Log::of(row);
        let got = log.plan().pool_gib;
        assert!(
            (got - known).abs() < 0.05,
            "{}: {got}, notes {known}",
            log.id
        );
        assert!(off(got, log.pool_gib) > 0.06, "{} is met now", log.id);
    }
}

#[test]
fn sglang_tokens_of_8_logs_within_2_percent() {
    for (id, name, quant, tp, engine, card, before, fraction, logged) in SGLANG {
        let model = model(name, *quant);
        let mut setup = setup(&model, *tp, engine, *card);
        setup.observed.free_before_gib = *before;
        setup.fraction = *fraction;
        setup.kv_dtype = Some(KvDtype::Bf16);
        let got = common::plan(&setup).kv_tokens as f64;
        println!("{id:9} {got:10} {logged:10}");
        assert!(off(got, *logged) <= 0.02, "{id}: {got}, logged {logged}");
    }
}
