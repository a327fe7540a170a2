//! Bench outputs as points of throughput over concurrency, for `--baseline` and `explain`: CSV,
//! the text blocks of SGLang's and vLLM's serving benches, their JSON, and the tables and JSON of
//! other tools.

mod columns;
mod contexts;
mod csv;
mod decode;
mod guidellm;
mod joined;
mod json;
mod labelled;
mod lines;
mod llama;
mod slim;
mod sweep;
mod tables;

use crate::explain::text::{Doc, leading_number};

pub(crate) use joined::joined;
pub(crate) use sweep::{
    PlainPool, RanOn, Sweep, no_speed, sweep_from_text, sweep_of_points, sweep_with_notes,
};

/// One measured operating point.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BenchPoint {
    /// Requests at a time: the limit given to the bench, or the number of requests where all were
    /// sent at once. `None` where the text does not say.
    pub(crate) concurrency: Option<f64>,
    /// Requests at a time as it came out on average.
    pub(crate) real_concurrency: Option<f64>,
    /// Requests arrived at a rate, not all at once.
    pub(crate) paced: bool,
    /// The bench set no limit: `concurrency` is the number of requests, all sent at once.
    pub(crate) all_at_once: bool,
    /// Output tokens of its fastest second.
    pub(crate) peak_tok_s: Option<f64>,
    /// Output tokens a second over all requests.
    pub(crate) output_tok_s: Option<f64>,
    /// The text says that `output_tok_s` is of all users together.
    pub(crate) summed: bool,
    /// Tokens of context, where the tool sweeps it.
    pub(crate) context: Option<f64>,
    /// Requests a second.
    pub(crate) requests_per_s: Option<f64>,
    /// Mean accept length, bonus included; `None` without speculation.
    pub(crate) accept_length: Option<f64>,
    /// Mean time per output token after the first, ms.
    pub(crate) mean_tpot_ms: Option<f64>,
    /// Median of the same.
    pub(crate) median_tpot_ms: Option<f64>,
    /// Mean time to first token, ms.
    pub(crate) mean_ttft_ms: Option<f64>,
    /// Median of the same.
    pub(crate) median_ttft_ms: Option<f64>,
    /// Mean inter-token latency, ms.
    pub(crate) mean_itl_ms: Option<f64>,
    /// Median of the same.
    pub(crate) median_itl_ms: Option<f64>,
    /// Longest inter-token latency, ms.
    pub(crate) max_itl_ms: Option<f64>,
    /// Tokens of a prompt, on average.
    pub(crate) prompt_tokens: Option<f64>,
    /// Tokens generated for a request, on average.
    pub(crate) generated_tokens: Option<f64>,
    /// The model, as the bench names it.
    pub(crate) model: Option<String>,
    /// Tool (`sglang-bench`, `vllm-bench`, `csv`, …).
    pub(crate) tool: &'static str,
    /// Line it begins at, from 1.
    pub(crate) line: usize,
    /// Those of its figures.
    pub(crate) lines: lines::Lines,
}

/// Every operating point in a text, in its order. Empty where it is no bench output.
#[cfg(test)]
pub(crate) fn points_from_text(text: &str) -> Vec<BenchPoint> {
    let doc = Doc::new(text);
    points_from_doc(&doc, text).points
}

/// What a text holds of bench results.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Found {
    /// Every operating point, in its order. Empty where it is no bench output.
    pub(crate) points: Vec<BenchPoint>,
    /// What of it is no JSON though it begins like some.
    pub(crate) fault: Option<String>,
}

/// Every operating point in a text, cleaned and raw.
pub(crate) fn points_from_doc(doc: &Doc, text: &str) -> Found {
    let json = json::points(text);
    if !json.points.is_empty() {
        return json;
    }
    let mut points = serving_blocks(doc);
    if points.is_empty() {
        points = tables::points(doc);
    }
    if points.is_empty() {
        points = csv::points(doc);
    }
    Found {
        fault: json.fault.filter(|_| points.is_empty()),
        points,
    }
}

/// `============ Serving Benchmark Result ============` blocks (SGLang bench_serving, vLLM
/// benchmark_serving and bench serve, InferenceX, TensorRT-LLM's copy).
fn serving_blocks(doc: &Doc) -> Vec<BenchPoint> {
    let mut points: Vec<BenchPoint> = Vec::new();
    let mut open: Option<(BenchPoint, Requests)> = None;
    for (number, line) in &doc.lines {
        if line.contains("Serving Benchmark Result") || line.contains("Benchmark Result =") {
            if let Some(done) = open.take() {
                close(&mut points, done);
            }
            let point = BenchPoint {
                tool: "serving-bench",
                summed: true,
                line: *number,
                ..BenchPoint::default()
            };
            open = Some((point, Requests::default()));
            continue;
        }
        let Some((point, requests)) = open.as_mut() else {
            continue;
        };
        if line.trim().len() > 10 && line.trim().chars().all(|c| c == '=') {
            if let Some(done) = open.take() {
                close(&mut points, done);
            }
            continue;
        }
        if let Some((label, value)) = labelled(line) {
            // Requests that arrive at a rate are not all there at once.
            if label.starts_with("traffic request rate") || label.starts_with("request rate") {
                point.paced = true;
            }
            if label == "successful requests" {
                *requests = Requests {
                    count: Some(value),
                    line: *number,
                };
            }
            point.read_line(*number, |point| block_line(point, &label, value));
        }
    }
    if let Some(done) = open {
        close(&mut points, done);
    }
    points
}

/// Requests of a block, and the line that counts them.
#[derive(Debug, Clone, Copy, Default)]
struct Requests {
    count: Option<f64>,
    line: usize,
}

fn close(points: &mut Vec<BenchPoint>, (mut point, requests): (BenchPoint, Requests)) {
    let Requests { count, line } = requests;
    if point.concurrency.is_none() && !point.paced {
        // Without a limit every request is sent at once (rate inf).
        point.read_line(line, |point| point.concurrency = count);
        point.all_at_once = count.is_some();
    }
    let each = |sum: Option<f64>| Some(sum? / count.filter(|n| *n >= 1.0)?);
    point.prompt_tokens = each(point.prompt_tokens);
    point.generated_tokens = each(point.generated_tokens);
    if point.output_tok_s.is_some() {
        points.push(point);
    }
}

/// `Label (unit):   12.3` as (`label`, 12.3), the label in lower case.
fn labelled(line: &str) -> Option<(String, f64)> {
    let at = line.rfind(':')?;
    let (label, rest) = line.split_at(at);
    let (value, _) = leading_number(rest)?;
    Some((label.trim().to_lowercase(), value))
}

fn block_line(point: &mut BenchPoint, label: &str, value: f64) {
    let slot = match label {
        "max request concurrency" | "maximum request concurrency" => &mut point.concurrency,
        // Sums over all requests until the block closes.
        "total input tokens" => &mut point.prompt_tokens,
        "total generated tokens" => &mut point.generated_tokens,
        "concurrency" => &mut point.real_concurrency,
        "request throughput (req/s)" => &mut point.requests_per_s,
        "output token throughput (tok/s)" => &mut point.output_tok_s,
        "peak output token throughput (tok/s)" => &mut point.peak_tok_s,
        "accept length" | "acceptance length" | "mean acceptance length" => {
            &mut point.accept_length
        }
        "mean ttft (ms)" => &mut point.mean_ttft_ms,
        "median ttft (ms)" => &mut point.median_ttft_ms,
        "mean tpot (ms)" => &mut point.mean_tpot_ms,
        "median tpot (ms)" => &mut point.median_tpot_ms,
        "mean itl (ms)" => &mut point.mean_itl_ms,
        "median itl (ms)" => &mut point.median_itl_ms,
        "max itl (ms)" => &mut point.max_itl_ms,
        _ => return,
    };
    *slot = Some(value);
    // A server without speculation reports one token per pass.
    if point.accept_length.is_some_and(|a| a <= 0.0) {
        point.accept_length = None;
    }
}
