//! GuideLLM's tables, of both generations.

use super::BenchPoint;
use super::tables::cells;
use crate::explain::text::{Doc, leading_number};

/// Points of whichever form is there.
pub(super) fn points(doc: &Doc) -> Vec<BenchPoint> {
    let points = statistics(doc);
    if points.is_empty() {
        guidellm(doc)
    } else {
        points
    }
}

/// 0.4 and later: a row a benchmark in each of several tables. `Server Throughput Statistics` has
/// median and mean of requests a second, concurrency, input, output and all tokens a second; `Request
/// Latency Statistics` median and p95 of latency, TTFT, ITL and TPOT, in the same order.
fn statistics(doc: &Doc) -> Vec<BenchPoint> {
    #[derive(PartialEq)]
    enum Table {
        None,
        Latency,
        Throughput,
    }
    let mut table = Table::None;
    let (mut latencies, mut points): (Vec<[Option<f64>; 3]>, Vec<BenchPoint>) = Default::default();
    for (number, line) in &doc.lines {
        if line.contains("Statistics") {
            table = if line.contains("Request Latency Statistics") {
                Table::Latency
            } else if line.contains("Server Throughput Statistics") {
                Table::Throughput
            } else {
                Table::None
            };
            continue;
        }
        let row = cells(line);
        let figures: Vec<Option<f64>> = row
            .iter()
            .skip(1)
            .map(|cell| leading_number(cell).map(|(value, _)| value))
            .collect();
        let all = figures.iter().all(Option::is_some);
        match (&table, figures.as_slice()) {
            (Table::Latency, [_, _, ttft, _, itl, _, tpot, _]) if all => {
                latencies.push([*ttft, *itl, *tpot]);
            }
            (Table::Throughput, [_, requests, _, load, _, _, _, output, ..]) if all => {
                // A rate is no load; its mean is what came out.
                let paced = !matches!(row[0], "concurrent" | "synchronous");
                points.push(BenchPoint {
                    concurrency: load.map(f64::round).filter(|n| !paced && *n >= 1.0),
                    real_concurrency: *load,
                    paced,
                    output_tok_s: *output,
                    requests_per_s: *requests,
                    tool: "guidellm",
                    line: *number,
                    ..BenchPoint::default()
                });
            }
            _ => {}
        }
    }
    for (point, [ttft, itl, tpot]) in points.iter_mut().zip(latencies) {
        point.median_ttft_ms = ttft;
        point.median_itl_ms = itl;
        point.median_tpot_ms = tpot;
    }
    points
}

/// GuideLLM's `Benchmarks Stats`: `Benchmark| Per Second| Concurrency| Out Tok/sec …`, rows
/// without a border.
fn guidellm(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let mut open = false;
    for (number, line) in &doc.lines {
        let row: Vec<&str> = line.split('|').map(str::trim).collect();
        if row.first().is_some_and(|head| *head == "Benchmark") {
            open = row
                .get(1)
                .is_some_and(|cell| cell.starts_with("Per Second"));
            continue;
        }
        if !open || row.len() < 5 {
            continue;
        }
        let figure = |at: usize| {
            let cell = row.get(at)?;
            leading_number(cell).map(|(value, _)| value)
        };
        // mean, median and p99 of latency, then of TTFT, ITL and TPOT.
        let (Some(concurrency), Some(tok_s)) = (figure(2), figure(3)) else {
            continue;
        };
        points.push(BenchPoint {
            concurrency: Some(concurrency),
            output_tok_s: Some(tok_s),
            requests_per_s: figure(1),
            mean_ttft_ms: figure(8),
            median_ttft_ms: figure(9),
            mean_itl_ms: figure(11),
            median_itl_ms: figure(12),
            mean_tpot_ms: figure(14),
            median_tpot_ms: figure(15),
            tool: "guidellm",
            line: *number,
            ..BenchPoint::default()
        });
    }
    points
}
