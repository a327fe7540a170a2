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
    pairs(&points, facts);
    point(last, facts);
}

/// Runs with and without speculation: comparable only at one concurrency.
fn pairs(points: &[BenchPoint], facts: &mut Facts) {
    let speculative = |point: &&BenchPoint| point.accept_length.is_some();
    let plain: Vec<&BenchPoint> = points.iter().filter(|p| !speculative(p)).collect();
    let mut compared = 0;
    for with in points.iter().filter(speculative).take(64) {
        let other = plain.iter().rev().find(|without| {
            without.concurrency == with.concurrency && without.context == with.context
        });
        let Some((fast, slow)) = other.and_then(|o| with.output_tok_s.zip(o.output_tok_s)) else {
            continue;
        };
        if slow > 0.0 {
            compared += 1;
            facts.notes.push(format!(
                "with speculation {fast:.1} tok/s, without {slow:.1}, at concurrency {}: {:.2}x",
                with.concurrency.unwrap_or(1.0),
                fast / slow
            ));
        }
    }
    if compared == 0 && !plain.is_empty() && plain.len() < points.len() {
        facts.notes.push(
            "the runs with and without speculation differ in concurrency too: they do not say \
             whether it pays"
                .to_string(),
        );
    }
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
