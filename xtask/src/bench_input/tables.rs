//! Bench results as tables and lines of smaller tools.

use super::BenchPoint;
use crate::explain::text::{Doc, leading_number, number_after};

/// Points of llm-decode-bench matrices, AIPerf and GenAI-Perf tables, stream-count scripts.
pub(crate) fn points(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = matrix(doc);
    if points.is_empty() {
        points = perf_table(doc);
    }
    if points.is_empty() {
        points = streams(doc);
    }
    points
}

/// Cells of a line drawn with `│`, `┃` or `|`; none where the line is not a table row.
pub(crate) fn cells(line: &str) -> Vec<&str> {
    let trimmed = line.trim();
    if !trimmed.starts_with(['│', '┃', '|', '║']) {
        return Vec::new();
    }
    trimmed
        .trim_matches(['│', '┃', '|', '║'])
        .split(['│', '┃', '|', '║'])
        .map(str::trim)
        .collect()
}

/// `16k` → 16384, `0` → 0.
fn size(text: &str) -> Option<f64> {
    let (value, rest) = leading_number(text)?;
    match rest.trim() {
        "" => Some(value),
        "k" | "K" => Some(value * 1024.0),
        "m" | "M" => Some(value * 1024.0 * 1024.0),
        _ => None,
    }
}

/// llm-decode-bench: `ctx \ conc` over aggregate tokens a second. The first such matrix counts;
/// later ones repeat it or divide it per request.
fn matrix(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let mut columns: Vec<f64> = Vec::new();
    for (number, line) in &doc.lines {
        let row = cells(line);
        let Some((head, rest)) = row.split_first() else {
            if !points.is_empty() && !line.trim_start().starts_with(['├', '╞', '┡', '╰']) {
                break;
            }
            continue;
        };
        if head.starts_with("ctx") && head.contains("conc") {
            if !points.is_empty() {
                break;
            }
            columns = rest.iter().map_while(|cell| size(cell)).collect();
            continue;
        }
        let Some(context) = size(head).filter(|_| !columns.is_empty()) else {
            continue;
        };
        for (concurrency, cell) in columns.iter().zip(rest) {
            // `148.5 (2/2)` is a figure with its count; `2k/17` is a time.
            let Some((tok_s, tail)) = leading_number(cell) else {
                continue;
            };
            if tail.starts_with(['k', '/']) {
                continue;
            }
            points.push(BenchPoint {
                concurrency: Some(*concurrency),
                output_tok_s: Some(tok_s),
                context: Some(context),
                tool: "llm-decode-bench",
                line: *number,
                ..BenchPoint::default()
            });
        }
    }
    points
}

/// AIPerf, GenAI-Perf: `Metric │ avg │ min │ …`. A label may wrap into the next row.
fn perf_table(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let mut open: Option<BenchPoint> = None;
    let mut average = 1;
    for (number, line) in &doc.lines {
        let row = cells(line);
        let Some(head) = row.first() else { continue };
        let head = head.to_lowercase();
        if head == "metric" || head == "statistic" {
            points.extend(open.take().filter(|p| p.output_tok_s.is_some()));
            average = row
                .iter()
                .position(|cell| {
                    cell.eq_ignore_ascii_case("avg") || cell.eq_ignore_ascii_case("mean")
                })
                .unwrap_or(1);
            open = Some(BenchPoint {
                tool: "aiperf",
                line: *number,
                ..BenchPoint::default()
            });
            continue;
        }
        let Some(point) = open.as_mut() else { continue };
        let Some((value, _)) = row.get(average).and_then(|cell| leading_number(cell)) else {
            continue;
        };
        let slot = if head.starts_with("time to first token") {
            &mut point.mean_ttft_ms
        } else if head.starts_with("inter token latency") {
            &mut point.mean_itl_ms
        } else if head.starts_with("output token throughput") && !head.contains("per user") {
            &mut point.output_tok_s
        } else if head.starts_with("request throughput") {
            &mut point.requests_per_s
        } else {
            continue;
        };
        *slot = Some(value);
    }
    points.extend(open.filter(|p| p.output_tok_s.is_some()));
    points
}

/// `=== 4 concurrent streams, 2 run(s) each ===` with `aggregate_TPS=269.03` below.
fn streams(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let mut concurrency = None;
    for (number, line) in &doc.lines {
        if line.contains("concurrent streams") {
            concurrency = leading_number(line.trim_start_matches(['=', ' '])).map(|(n, _)| n);
        }
        if let Some(tok_s) = number_after(line, "aggregate_TPS=") {
            points.push(BenchPoint {
                concurrency,
                output_tok_s: Some(tok_s),
                tool: "concurrent-streams",
                line: *number,
                ..BenchPoint::default()
            });
        }
    }
    points
}
