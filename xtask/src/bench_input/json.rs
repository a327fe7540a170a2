//! Bench results in JSON or JSON lines: every object that has a concurrency and a throughput is
//! a point, wherever it lies.

use serde_json::{Map, Value};

use super::slim::Slim;
use super::{BenchPoint, Found};

type Object = Map<String, Value>;

/// Output tokens a second, by tool.
const OUTPUT: [&str; 11] = [
    "output_throughput",
    "aggregate_tps",
    "output_token_throughput",
    "output_tok_s",
    "output_tokens_per_second",
    "output_throughput_tok_s",
    // EvalScope
    "Output token throughput (tok/s)",
    // LLMPerf
    "results_mean_output_throughput_token_per_s",
    // sglang.bench_one_batch
    "median_decode_throughput",
    "decode_throughput",
    "tok_s",
];

/// Requests at a time, by tool.
const CONCURRENCY: [&str; 11] = [
    "max_concurrency",
    "concurrency_level",
    "concurrency_limit",
    "num_concurrency",
    "num_concurrent_requests",
    "Number of concurrency",
    "Concurrency",
    "concurrency",
    "max_concurrent_requests",
    "request_concurrency",
    "batch_size",
];

/// Points of a JSON document, or of JSON lines, and what is wrong with the first piece that is no
/// JSON: lines that cannot be read are passed over.
pub(super) fn points(text: &str) -> Found {
    let trimmed = text.trim_start_matches('\u{feff}').trim();
    let mut out = Vec::new();
    if !trimmed.starts_with(['{', '[']) {
        return among_lines(text);
    }
    let whole = match parsed(trimmed) {
        Ok(value) => {
            walk(&value, 1, &mut out);
            return Found {
                points: out,
                fault: None,
            };
        }
        Err(why) => why,
    };
    let mut fault = None;
    let (mut read, mut passed_over) = (0, 0);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.starts_with('{') {
            continue;
        }
        match parsed(line) {
            Ok(value) => {
                read += 1;
                walk(&value, index + 1, &mut out);
            }
            Err(why) => {
                passed_over += 1;
                fault.get_or_insert_with(|| format!("line {}: {}", index + 1, reason(&why)));
            }
        }
    }
    if read == 0 {
        // A line of a log may begin with a bracket too.
        let inner = trimmed.trim_start_matches(['[', ' ', '\n', '\r', '\t']);
        let like_json = inner.starts_with('{');
        let at = format!("line {}: {}", whole.line(), reason(&whole));
        return Found {
            points: out,
            fault: like_json.then(|| format!("it begins like JSON and is none ({at})")),
        };
    }
    let fault = fault.map(|fault| {
        let lines = match passed_over {
            1 => "a line that is no JSON is".to_string(),
            n => format!("{n} lines that are no JSON are"),
        };
        format!("{lines} passed over ({fault})")
    });
    Found { points: out, fault }
}

/// JSON lines among others: a log with a bench's results behind it.
fn among_lines(text: &str) -> Found {
    let mut points = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let result = line.starts_with("{\"") && OUTPUT.iter().any(|key| line.contains(key));
        if let Some(value) = result.then(|| parsed(line).ok()).flatten() {
            walk(&value, index + 1, &mut points);
        }
    }
    Found {
        points,
        fault: None,
    }
}

/// What serde says, without its place.
fn reason(error: &serde_json::Error) -> String {
    let said = error.to_string();
    said.split(" at line ").next().unwrap_or("").to_string()
}

/// JSON, also as Python writes it: a request rate of `Infinity`, a mean of `NaN`.
fn parsed(text: &str) -> Result<Value, serde_json::Error> {
    let strict = serde_json::from_str(text).map(|Slim(value)| value);
    match strict.is_err().then(|| without_bare_words(text)).flatten() {
        Some(mended) => serde_json::from_str(&mended).map(|Slim(value)| value),
        None => strict,
    }
}

/// The text with `null` for Python's bare words, pretty or compact; `None` where it has none. Words
/// within strings stand.
fn without_bare_words(text: &str) -> Option<String> {
    const BARE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut mended = String::new();
    let (mut copied, mut at) = (0, 0);
    let bytes = text.as_bytes();
    let mut quoted = false;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b'-' | b'I' | b'N' if !quoted => {
                let rest = text.get(at..).unwrap_or("");
                if let Some(word) = BARE.iter().find(|word| rest.starts_with(**word)) {
                    mended.push_str(text.get(copied..at).unwrap_or(""));
                    mended.push_str("null");
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return None;
    }
    mended.push_str(text.get(copied..).unwrap_or(""));
    Some(mended)
}

fn walk(value: &Value, line: usize, out: &mut Vec<BenchPoint>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, line, out)),
        Value::Object(map) => match trtllm_bench(map, line)
            .or_else(|| point(map, line))
            .or_else(|| llama_bench(map, line))
        {
            Some(point) => out.push(point),
            None if map.contains_key("n_gen") => {}
            None => map.values().for_each(|item| walk(item, line, out)),
        },
        _ => {}
    }
}

/// A number by the first of several keys; AIPerf and GenAI-Perf wrap it as `{"avg": n}`, guidellm
/// as `{"successful": {"mean": n}}`.
fn number(map: &Object, keys: &[&str]) -> Option<f64> {
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

fn point(map: &Object, line: usize) -> Option<BenchPoint> {
    let output_tok_s = number(map, &OUTPUT).filter(|n| *n >= 0.0)?;
    let (concurrency, paced) = concurrency(map);
    Some(with_latencies(
        map,
        BenchPoint {
            all_at_once: concurrency.is_some() && unlimited(map),
            concurrency,
            real_concurrency: number(map, &["concurrency"])
                .filter(|_| map.contains_key("max_concurrency")),
            paced,
            peak_tok_s: number(map, &["max_output_tokens_per_s"]),
            output_tok_s: Some(output_tok_s),
            summed: map.keys().any(|key| key.starts_with("aggregate_")),
            context: number(map, &["context_tokens", "context_length", "context"]),
            requests_per_s: number(
                map,
                &[
                    "request_throughput",
                    "requests_per_second",
                    "Request throughput (req/s)",
                ],
            ),
            accept_length: number(
                map,
                &[
                    "accept_length",
                    "acceptance_length",
                    "mean_acceptance_length",
                    "spec_decode_acceptance_length",
                    "acc_length",
                ],
            )
            .filter(|n| *n > 0.0),
            prompt_tokens: each_request(
                map,
                "total_input_tokens",
                &["input_sequence_length", "Average input tokens per request"],
            ),
            generated_tokens: each_request(
                map,
                "total_output_tokens",
                &[
                    "output_sequence_length",
                    "Average output tokens per request",
                ],
            ),
            model: ["model_id", "model", "model_name", "Model"]
                .iter()
                .find_map(|key| map.get(*key)?.as_str())
                .map(str::to_string),
            tool: "bench-json",
            line,
            ..BenchPoint::default()
        },
    ))
}

/// Tokens of a request: a sum over the completed ones, or a mean.
fn each_request(map: &Object, sum: &str, means: &[&str]) -> Option<f64> {
    let completed = number(map, &["completed"]).filter(|n| *n >= 1.0);
    let mean = number(map, &[sum]).zip(completed);
    mean.map(|(sum, n)| sum / n).or_else(|| number(map, means))
}

/// The latencies of a result, ms.
fn with_latencies(map: &Object, point: BenchPoint) -> BenchPoint {
    BenchPoint {
        mean_tpot_ms: milliseconds(
            map,
            &["mean_tpot_ms", "time_per_output_token_ms"],
            &["mean_tpot", "Average time per output token (s)"],
        ),
        median_tpot_ms: milliseconds(map, &["median_tpot_ms"], &["median_tpot"]),
        mean_ttft_ms: milliseconds(
            map,
            &[
                "mean_ttft_ms",
                "time_to_first_token",
                "time_to_first_token_ms",
            ],
            &[
                "mean_ttft",
                "ttft_avg",
                "results_ttft_s_mean",
                "Average time to first token (s)",
            ],
        ),
        median_ttft_ms: milliseconds(map, &["median_ttft_ms"], &["median_ttft", "ttft_p50"]),
        mean_itl_ms: milliseconds(
            map,
            &[
                "mean_itl_ms",
                "inter_token_latency",
                "inter_token_latency_ms",
            ],
            &[
                "mean_itl",
                "results_inter_token_latency_s_mean",
                "Average inter-token latency (s)",
            ],
        ),
        median_itl_ms: milliseconds(map, &["median_itl_ms"], &["median_itl"]),
        ..point
    }
}

/// The bench set no limit to the requests at a time.
fn unlimited(map: &Object) -> bool {
    map.get("max_concurrency").is_some_and(Value::is_null)
}

/// Requests at a time, and whether they arrived at a rate. Without a limit every request is sent
/// at once, or the load is not said.
fn concurrency(map: &Object) -> (Option<f64>, bool) {
    if unlimited(map) {
        let at_once = match map.get("request_rate") {
            Some(Value::String(rate)) => rate.eq_ignore_ascii_case("inf"),
            // Python writes its infinity as a bare word, which is no JSON, or as nothing.
            Some(Value::Null) => true,
            _ => false,
        };
        let all = number(map, &["completed", "num_prompts"]);
        return (all.filter(|_| at_once), !at_once);
    }
    let named = number(map, &CONCURRENCY);
    let config = map.get("input_config");
    let found = named.or_else(|| config.and_then(|config| nested(config, "concurrency", 0)));
    (found, false)
}

/// A number of that name anywhere inside, as AIPerf and GenAI-Perf keep their settings.
fn nested(value: &Value, key: &str, depth: usize) -> Option<f64> {
    let map = value.as_object().filter(|_| depth < 6)?;
    let own = map.get(key).and_then(Value::as_f64);
    own.or_else(|| map.values().find_map(|inner| nested(inner, key, depth + 1)))
}

/// trtllm-bench --report_json: figures by their kind in objects of their own.
fn trtllm_bench(map: &Object, line: usize) -> Option<BenchPoint> {
    let part = |name: &str| map.get(name).and_then(Value::as_object);
    let figure = |name: &str, key: &str| number(part(name)?, &[key]);
    let accept = part("decoding_stats").and_then(|stats| {
        let lengths = stats.get("acceptance_length_percentiles")?.as_object()?;
        number(lengths, &["average"])
    });
    let engine = part("engine");
    Some(BenchPoint {
        output_tok_s: Some(figure("performance", "system_output_throughput_tok_s")?),
        requests_per_s: figure("performance", "request_throughput_req_s"),
        real_concurrency: figure("request_info", "avg_num_concurrent_requests"),
        prompt_tokens: figure("request_info", "avg_input_length"),
        generated_tokens: figure("request_info", "avg_output_length"),
        mean_ttft_ms: figure("streaming_metrics", "avg_ttft_ms"),
        mean_tpot_ms: figure("streaming_metrics", "avg_tpot_ms"),
        accept_length: accept.filter(|length| *length > 1.0),
        model: engine
            .and_then(|engine| engine.get("model")?.as_str())
            .map(str::to_string),
        tool: "trtllm-bench",
        line,
        ..BenchPoint::default()
    })
}

/// llama-bench -o json: a test that generates only.
fn llama_bench(map: &Object, line: usize) -> Option<BenchPoint> {
    let tok_s = number(map, &["avg_ts"])?;
    let generated = number(map, &["n_gen"])?;
    let prompt = number(map, &["n_prompt"])?;
    (generated > 0.0 && prompt == 0.0).then(|| BenchPoint {
        concurrency: Some(1.0),
        output_tok_s: Some(tok_s),
        context: number(map, &["n_depth"]).filter(|depth| *depth > 0.0),
        tool: "llama-bench",
        line,
        ..BenchPoint::default()
    })
}

/// Keys that name ms (or an object that names its unit), else keys in seconds (InferenceX,
/// rtx6kpro, LLMPerf, EvalScope).
fn milliseconds(map: &Object, ms: &[&str], seconds: &[&str]) -> Option<f64> {
    let in_ms = ms.iter().find_map(|key| {
        let unit = map.get(*key)?.get("unit").and_then(Value::as_str);
        let factor = match unit {
            Some("ns" | "nanoseconds") => 1e-6,
            Some("us" | "microseconds") => 1e-3,
            Some("s" | "sec" | "seconds") => 1e3,
            _ => 1.0,
        };
        number(map, &[key]).map(|value| value * factor)
    });
    in_ms.or_else(|| number(map, seconds).map(|s| s * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_bare_words_are_read_compact_and_pretty_and_within_text_they_stand() {
        for sets in [":", ": "] {
            let text = format!(
                "{{\"request_rate\"{sets}Infinity,\"std\"{sets}NaN,\"low\"{sets}-Infinity,\"lists\"{sets}[NaN,1],\
                 \"model_id\"{sets}\"a: NaN, \\\" Infinity\",\"max_concurrency\"{sets}8,\
                 \"output_throughput\"{sets}500.5}}"
            );
            let found = points(&text);
            assert_eq!(found.fault, None);
            let point = found.points.first().expect("a result");
            assert_eq!(
                (point.concurrency, point.output_tok_s),
                (Some(8.0), Some(500.5))
            );
            assert_eq!(point.model.as_deref(), Some("a: NaN, \" Infinity"));
        }
    }

    #[test]
    fn lines_that_are_passed_over_are_told_with_serdes_own_words() {
        let row =
            |users: u32| format!("{{\"max_concurrency\": {users}, \"output_throughput\": 90}}\n");
        let found = points(&format!("{}{{\"max_concurrency\": 4, \"outp\n", row(1)));
        assert_eq!(found.points.len(), 1);
        let fault = found.fault.expect("a fault");
        assert!(
            fault.contains("line 2: EOF while parsing a string"),
            "{fault}"
        );
        let whole = row(1).replace("90}", "90,}");
        let found = points(&whole);
        assert!(found.points.is_empty());
        let fault = found.fault.expect("a fault");
        assert!(fault.contains("line 1: trailing comma"), "{fault}");
        assert_eq!(points("[2026-01-01 10:00:00] Decode batch\n").fault, None);
    }

    #[test]
    fn results_behind_a_log_are_found() {
        let text = "INFO 05-14 10:00:00 [core.py:77] started\n\
            {\"max_concurrency\":8,\"request_rate\":Infinity,\"output_throughput\":90}\n";
        let found = points(text).points;
        assert_eq!(
            found.iter().map(|point| point.line).collect::<Vec<_>>(),
            [2]
        );
    }
}
