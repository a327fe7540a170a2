//! Facts of bench outputs.

use super::facts::Facts;
use super::text::Doc;
use crate::bench_input::{BenchPoint, points_from_doc};

/// Reads bench facts; of several points the last, with a note.
pub(crate) fn read(doc: &Doc, text: &str, facts: &mut Facts) {
    single_stream(doc, facts);
    let points = points_from_doc(doc, text);
    // Two bare columns of figures are a bench only where `--baseline` says so.
    let Some(last) = points.last().filter(|point| point.tool != "csv") else {
        return;
    };
    facts.kinds.push(match last.tool {
        "serving-bench" => "serving-bench",
        "bench-json" => "bench-json",
        "aiperf" => "aiperf",
        other => other,
    });
    facts.set("bench_points", points.len() as f64, last.line);
    if points.len() > 1 {
        facts.notes.push(format!(
            "{} bench results in one file; the facts are those of the last, from line {}",
            points.len(),
            last.line
        ));
    }
    point(last, facts);
}

fn point(point: &BenchPoint, facts: &mut Facts) {
    let mut put = |name: &'static str, value: Option<f64>| {
        if let Some(value) = value {
            facts.set(name, value, point.line);
        }
    };
    put("concurrency", point.concurrency);
    put("real_concurrency", point.real_concurrency);
    put("output_tok_s", point.output_tok_s);
    put("requests_per_s", point.requests_per_s);
    put("mean_ttft_ms", point.mean_ttft_ms);
    put("median_ttft_ms", point.median_ttft_ms);
    put("mean_tpot_ms", point.mean_tpot_ms);
    put("median_tpot_ms", point.median_tpot_ms);
    put("mean_itl_ms", point.mean_itl_ms);
    put("median_itl_ms", point.median_itl_ms);
    put("max_itl_ms", point.max_itl_ms);
    if point.accept_length.is_some() {
        put("accept_length", point.accept_length);
        facts.set("accept_length_source", "bench accept length", point.line);
    }
}

/// A bench that runs one request after another (`run-1 wall= … decode_TPS= …`).
fn single_stream(doc: &Doc, facts: &mut Facts) {
    let Some(at) = doc.after_all("decode_TPS=").last() else {
        return;
    };
    facts.kinds.push("single-stream-bench");
    let line = doc.line_at(at);
    facts.derive("concurrency", 1.0, line, "one request after another");
}
