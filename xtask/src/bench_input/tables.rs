//! Bench results as tables and lines of smaller tools.

use super::{BenchPoint, guidellm, labelled, llama};
use crate::explain::text::{Doc, leading_number, number_after};

/// Points of llm-decode-bench matrices, AIPerf and GenAI-Perf tables, stream-count scripts.
pub(crate) fn points(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = matrix(doc);
    if points.is_empty() {
        points = perf_table(doc);
    }
    if points.is_empty() && doc.flat.contains("Metric,") {
        points.extend(perf_csv(doc));
    }
    if points.is_empty() {
        points = streams(doc);
    }
    if points.is_empty() {
        points = single_stream(doc);
    }
    if points.is_empty() {
        points = llama::points(doc);
    }
    if points.is_empty() {
        points = evalscope(doc);
    }
    if points.is_empty() {
        points = guidellm::points(doc);
    }
    if points.is_empty() {
        points = one_liners(doc);
    }
    if points.is_empty() {
        points = one_batch(doc);
    }
    if points.is_empty() {
        points = labelled::points(doc);
    }
    points
}

/// EvalScope: `Key | Value` pairs, or a row for each concurrency.
fn evalscope(doc: &Doc) -> Vec<BenchPoint> {
    let mut points: Vec<BenchPoint> = Vec::new();
    let mut open: Option<BenchPoint> = None;
    let mut head: Vec<String> = Vec::new();
    for (number, line) in &doc.lines {
        let row = cells(line);
        let Some(first) = row.first() else { continue };
        if row.as_slice() == ["Key", "Value"] {
            points.extend(open.take().filter(|p| p.output_tok_s.is_some()));
            open = Some(BenchPoint {
                tool: "evalscope",
                line: *number,
                ..BenchPoint::default()
            });
        } else if first.starts_with("Conc") && row.iter().any(|cell| cell.starts_with("Gen.")) {
            head = row.iter().map(|cell| (*cell).to_string()).collect();
        } else if let (Some(point), [key, value]) = (open.as_mut(), row.as_slice()) {
            point.read_line(*number, |point| evalscope_pair(point, key, value));
        } else if row.len() == head.len() {
            let figure = |name: &str| {
                let at = head.iter().position(|cell| cell.starts_with(name))?;
                leading_number(row.get(at)?).map(|(value, _)| value)
            };
            if let (Some(concurrency), Some(tok_s)) = (figure("Conc"), figure("Gen.")) {
                points.push(BenchPoint {
                    concurrency: Some(concurrency),
                    output_tok_s: Some(tok_s),
                    requests_per_s: figure("RPS"),
                    mean_ttft_ms: figure("Avg TTFT").map(|s| s * 1e3),
                    mean_tpot_ms: figure("Avg TPOT").map(|s| s * 1e3),
                    tool: "evalscope",
                    line: *number,
                    ..BenchPoint::default()
                });
            }
        }
    }
    points.extend(open.filter(|p| p.output_tok_s.is_some()));
    points
}

fn evalscope_pair(point: &mut BenchPoint, key: &str, value: &str) {
    let Some((value, _)) = leading_number(value) else {
        return;
    };
    match key {
        "Number of concurrency" | "Concurrency" => point.concurrency = Some(value),
        "Output token throughput (tok/s)" | "Average output tokens per second" => {
            point.output_tok_s = Some(value);
        }
        "Request throughput (req/s)" => point.requests_per_s = Some(value),
        "Average input tokens per request" => point.prompt_tokens = Some(value),
        "Average output tokens per request" => point.generated_tokens = Some(value),
        "Average time to first token (s)" => point.mean_ttft_ms = Some(value * 1e3),
        "Average time per output token (s)" => point.mean_tpot_ms = Some(value * 1e3),
        "Average inter-token latency (s)" => point.mean_itl_ms = Some(value * 1e3),
        _ => {}
    }
}

/// vLLM's offline bench: `Throughput: 7.21 requests/s, 2970.21 total tokens/s, 1483.57 output
/// tokens/s`.
fn one_liners(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    for (number, line) in &doc.lines {
        let Some(at) = line
            .find("Throughput:")
            .filter(|_| line.contains("requests/s"))
        else {
            continue;
        };
        let mut point = BenchPoint {
            tool: "vllm-throughput",
            line: *number,
            ..BenchPoint::default()
        };
        for part in line.get(at + 11..).unwrap_or("").split(", ") {
            let Some((value, unit)) = leading_number(part) else {
                continue;
            };
            match unit.trim() {
                "requests/s" => point.requests_per_s = Some(value),
                "output tokens/s" => point.output_tok_s = Some(value),
                _ => {}
            }
        }
        if point.output_tok_s.is_some() {
            points.push(point);
        }
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
    let mut summed = false;
    for (number, line) in &doc.lines {
        let row = cells(line);
        let Some((head, rest)) = row.split_first() else {
            if line.chars().any(char::is_alphabetic) {
                // What stands above a table is its heading.
                summed = line.to_ascii_lowercase().contains("aggregate");
            }
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
                summed,
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
        point.read_line(*number, |point| {
            if let Some(slot) = perf_slot(point, &head) {
                *slot = Some(value);
            }
        });
    }
    points.extend(open.filter(|p| p.output_tok_s.is_some()));
    points
}

/// The figure that a row of AIPerf or GenAI-Perf is of, by its label in lower case.
fn perf_slot<'a>(point: &'a mut BenchPoint, label: &str) -> Option<&'a mut Option<f64>> {
    Some(if label.starts_with("time to first token") {
        &mut point.mean_ttft_ms
    } else if label.starts_with("inter token latency") {
        &mut point.mean_itl_ms
    } else if label.starts_with("output token throughput") && !label.contains("per user") {
        &mut point.output_tok_s
    } else if label.starts_with("request throughput") {
        &mut point.requests_per_s
    } else if label.starts_with("input sequence length") {
        &mut point.prompt_tokens
    } else if label.starts_with("output sequence length") {
        &mut point.generated_tokens
    } else {
        return None;
    })
}

/// The same as CSV: a block `Metric,avg,min,…`, then one `Metric,Value`; commas within a figure are in
/// quotes.
fn perf_csv(doc: &Doc) -> Option<BenchPoint> {
    let mut point: Option<BenchPoint> = None;
    let mut average = 1;
    for (number, line) in &doc.lines {
        let row = llama::fields(line);
        let head = row.first()?.to_ascii_lowercase();
        if head == "metric" && row.len() > 1 {
            let mean = row.iter().position(|cell| cell.eq_ignore_ascii_case("avg"));
            average = mean.unwrap_or(1);
            point.get_or_insert_with(|| BenchPoint {
                tool: "aiperf",
                line: *number,
                ..BenchPoint::default()
            });
            continue;
        }
        let value = row.get(average).and_then(|cell| leading_number(cell));
        if let (Some(point), Some((value, _))) = (point.as_mut(), value) {
            point.read_line(*number, |point| {
                if let Some(slot) = perf_slot(point, &head) {
                    *slot = Some(value);
                }
            });
        }
    }
    point.filter(|point| point.output_tok_s.is_some())
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

/// Scripts that send one request after another: `decode_TPS mean= 77.88` below `=== summary
/// [narrative] (n=5) ===`, one block a workload; without summaries the mean of the `run-1 …` lines.
fn single_stream(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let (mut sum, mut runs, mut last) = (0.0, 0.0, 0);
    let point = |tok_s: f64, line: usize| BenchPoint {
        concurrency: Some(1.0),
        output_tok_s: Some(tok_s),
        tool: "single-stream-bench",
        line,
        ..BenchPoint::default()
    };
    for (number, line) in &doc.lines {
        let line = line.trim_start();
        let mean = line.strip_prefix("decode_TPS");
        if let Some(tok_s) = mean.and_then(|tail| number_after(tail, "mean=")) {
            points.push(point(tok_s, *number));
        }
        if let Some(tok_s) = number_after(line, "decode_TPS=").filter(|_| line.starts_with("run")) {
            sum += tok_s;
            runs += 1.0;
            last = *number;
        }
    }
    if points.is_empty() && runs > 0.0 {
        points.push(point(sum / runs, last));
    }
    points
}

/// sglang.bench_one_batch: `Decode.  median latency: 0.00891 s, median throughput:    112.26
/// token/s`, in newer builds with `Batch size: 8,` before it; else the batch is the throughput times
/// the latency.
fn one_batch(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    for (number, line) in &doc.lines {
        let (Some(latency_s), Some(tok_s)) = (
            number_after(line, "median latency:"),
            number_after(line, "median throughput:"),
        ) else {
            continue;
        };
        if !(line.trim_start().starts_with("Decode") && latency_s > 0.0 && tok_s > 0.0) {
            continue;
        }
        let said = number_after(line, "Batch size:");
        let batch = said.unwrap_or((latency_s * tok_s).round());
        points.push(BenchPoint {
            concurrency: Some(batch).filter(|batch| *batch >= 1.0),
            output_tok_s: Some(tok_s),
            tool: "sglang-one-batch",
            line: *number,
            ..BenchPoint::default()
        });
    }
    points
}
