//! Results as `label: value` lines without a frame: trtllm-bench, sglang.bench_one_batch_server,
//! GenAI-Perf of 2024 and scripts after them.

use super::BenchPoint;
use crate::explain::text::{Doc, leading_number, number_after};

/// The points: one a throughput.
pub(super) fn points(doc: &Doc) -> Vec<BenchPoint> {
    let mut points: Vec<BenchPoint> = Vec::new();
    let fresh = || BenchPoint {
        tool: "labelled-bench",
        ..BenchPoint::default()
    };
    let mut open = fresh();
    let mut warming = false;
    for (number, line) in &doc.lines {
        if line.contains("Warmup Begin") || line.contains("Warmup End") {
            warming = line.contains("Warmup Begin");
        }
        if warming {
            continue;
        }
        let Some((label, rest)) = line.trim().rsplit_once(':') else {
            continue;
        };
        let Some((value, _)) = leading_number(rest) else {
            continue;
        };
        let label = label.trim().to_lowercase();
        let Some(slot) = slot(&label) else { continue };
        // A second load or throughput begins the next result.
        let again = match slot {
            Slot::Output => open.output_tok_s.is_some(),
            Slot::Load => open.output_tok_s.is_some() && open.concurrency.is_some(),
            _ => false,
        };
        if again {
            points.push(std::mem::replace(&mut open, fresh()));
        }
        if slot == Slot::Output {
            open.line = *number;
        }
        open.read_line(*number, |open| *place(open, slot) = Some(value));
    }
    if open.output_tok_s.is_some() {
        points.push(open);
    }
    if points.is_empty() {
        points.extend(latency(doc));
    }
    points
}

/// What a label names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Output,
    Load,
    Real,
    Requests,
    Ttft,
    Tpot,
    Accept,
    Prompt,
    Generated,
}

fn slot(label: &str) -> Option<Slot> {
    Some(match label {
        "total output throughput (tokens/sec)"
        // trtllm-bench to 0.17: output tokens over the whole time.
        | "token throughput (tokens/sec)"
        | "output token throughput (per sec)"
        | "output token throughput (tokens/sec)"
        | "overall output throughput"
        | "output throughput" => Slot::Output,
        "concurrency level" | "batch size" => Slot::Load,
        "number of concurrent requests" => Slot::Real,
        "request throughput (req/sec)" | "request throughput (per sec)" => Slot::Requests,
        "average time-to-first-token [ttft] (ms)" | "avg ttft (ms)" => Slot::Ttft,
        "average time-per-output-token [tpot] (ms)" | "avg tpot (ms)" => Slot::Tpot,
        "acc length" | "accept length" | "acc_length" => Slot::Accept,
        "average input length (tokens)" | "input_len" => Slot::Prompt,
        "average output length (tokens)" | "output_len" => Slot::Generated,
        _ => return None,
    })
}

fn place(point: &mut BenchPoint, slot: Slot) -> &mut Option<f64> {
    match slot {
        Slot::Output => &mut point.output_tok_s,
        Slot::Load => &mut point.concurrency,
        Slot::Real => &mut point.real_concurrency,
        Slot::Requests => &mut point.requests_per_s,
        Slot::Ttft => &mut point.mean_ttft_ms,
        Slot::Tpot => &mut point.mean_tpot_ms,
        Slot::Accept => &mut point.accept_length,
        Slot::Prompt => &mut point.prompt_tokens,
        Slot::Generated => &mut point.generated_tokens,
    }
}

/// `vllm bench latency`: `Avg latency: 1.25 seconds` for the batch and lengths among its arguments;
/// prefill is in it.
fn latency(doc: &Doc) -> Option<BenchPoint> {
    let at = doc.after_all("Avg latency:").last()?;
    let (seconds, rest) = leading_number(doc.window(at, 40))?;
    let from_args = |key: &str| {
        let flag = format!("--{}", key.replace('_', "-"));
        let printed = number_after(&doc.flat, &format!("{key}="));
        printed.or_else(|| number_after(&doc.flat, &format!("{flag} ")))
    };
    let (batch, output) = (from_args("batch_size")?, from_args("output_len")?);
    (rest.trim_start().starts_with("seconds") && seconds > 0.0).then(|| BenchPoint {
        concurrency: Some(batch),
        output_tok_s: Some(batch * output / seconds),
        prompt_tokens: from_args("input_len"),
        generated_tokens: Some(output),
        tool: "vllm-latency",
        line: doc.line_at(at),
        ..BenchPoint::default()
    })
}
