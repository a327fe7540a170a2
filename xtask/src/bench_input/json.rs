//! Bench results in JSON or JSON lines: every object that has a concurrency and a throughput is
//! a point, wherever it lies.

use serde_json::{Map, Value};

use super::BenchPoint;

/// Points of a JSON document, or of JSON lines.
pub(crate) fn points(text: &str) -> Vec<BenchPoint> {
    let trimmed = text.trim_start_matches('\u{feff}').trim();
    let mut out = Vec::new();
    if !trimmed.starts_with(['{', '[']) {
        return out;
    }
    if let Ok(value) = serde_json::from_str::<Value>(trimmed) {
        walk(&value, 1, &mut out);
        return out;
    }
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.starts_with('{') {
            continue;
        }
        if let Ok(value) = serde_json::from_str::<Value>(line) {
            walk(&value, index + 1, &mut out);
        }
    }
    out
}

fn walk(value: &Value, line: usize, out: &mut Vec<BenchPoint>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, line, out)),
        Value::Object(map) => match point(map, line) {
            Some(point) => out.push(point),
            None => map.values().for_each(|item| walk(item, line, out)),
        },
        _ => {}
    }
}

/// A number by the first of several keys; AIPerf and GenAI-Perf wrap it as `{"avg": n}`, guidellm
/// as `{"successful": {"mean": n}}`.
fn number(map: &Map<String, Value>, keys: &[&str]) -> Option<f64> {
    keys.iter()
        .find_map(|key| scalar(map.get(*key)?, 0))
        .filter(|n| n.is_finite())
}

fn scalar(value: &Value, depth: usize) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Object(map) if depth < 3 => ["avg", "mean", "successful"]
            .iter()
            .find_map(|key| scalar(map.get(*key)?, depth + 1)),
        _ => None,
    }
}

fn point(map: &Map<String, Value>, line: usize) -> Option<BenchPoint> {
    let output_tok_s = number(
        map,
        &[
            "output_throughput",
            "aggregate_tps",
            "output_token_throughput",
            "output_tok_s",
            "output_tokens_per_second",
            "output_throughput_tok_s",
            "tok_s",
        ],
    )
    .filter(|n| *n >= 0.0)?;
    let concurrency = number(
        map,
        &[
            "max_concurrency",
            "concurrency_level",
            "concurrency_limit",
            "num_concurrency",
            "concurrency",
            "max_concurrent_requests",
            "request_concurrency",
        ],
    );
    Some(BenchPoint {
        concurrency,
        real_concurrency: number(map, &["concurrency"])
            .filter(|_| map.contains_key("max_concurrency")),
        paced: false,
        output_tok_s: Some(output_tok_s),
        context: number(map, &["context_tokens", "context_length", "context"]),
        requests_per_s: number(map, &["request_throughput", "requests_per_second"]),
        accept_length: number(
            map,
            &[
                "accept_length",
                "acceptance_length",
                "mean_acceptance_length",
            ],
        )
        .filter(|n| *n > 0.0),
        mean_tpot_ms: milliseconds(map, &["mean_tpot_ms"], &["mean_tpot"]),
        median_tpot_ms: milliseconds(map, &["median_tpot_ms"], &["median_tpot"]),
        mean_ttft_ms: milliseconds(
            map,
            &[
                "mean_ttft_ms",
                "time_to_first_token",
                "time_to_first_token_ms",
            ],
            &["mean_ttft", "ttft_avg"],
        ),
        median_ttft_ms: milliseconds(map, &["median_ttft_ms"], &["median_ttft", "ttft_p50"]),
        mean_itl_ms: milliseconds(
            map,
            &[
                "mean_itl_ms",
                "inter_token_latency",
                "inter_token_latency_ms",
            ],
            &["mean_itl"],
        ),
        median_itl_ms: milliseconds(map, &["median_itl_ms"], &["median_itl"]),
        max_itl_ms: None,
        tool: "bench-json",
        line,
    })
}

/// Keys that name ms, else keys without a unit, which are seconds (InferenceX, rtx6kpro).
fn milliseconds(map: &Map<String, Value>, ms: &[&str], seconds: &[&str]) -> Option<f64> {
    number(map, ms).or_else(|| number(map, seconds).map(|s| s * 1e3))
}
