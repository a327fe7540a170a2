//! Drives a running server through its OpenAI interface: decode rates at several concurrencies,
//! accept length and KV use from `/metrics`.
//!
//! A decode rate excludes the prompt: each concurrency runs a short and a long output, and the
//! rate is the tokens between them over the difference of the mean completion times. Means, not
//! the last request: with speculation requests finish unevenly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::http::{self, Url};
use super::metrics::{self, Metrics};
use super::steps::Progress;
use crate::input;

/// Tokens of the short output: past the first few steps, which a server may treat apart.
const SHORT_TOKENS: u32 = 32;
/// Fewest tokens by which the long output is longer.
const MORE_TOKENS: u32 = 192;
/// Sequence tokens that a measurement should hold, so that chance in acceptance averages out: at
/// 2.7 tokens a cycle 1536 are 570 cycles, an error of the mean accept length near 2 %.
const SEQUENCE_TOKENS: u32 = 1536;
const MOST_TOKENS: u32 = 1024;
const CALL: Duration = Duration::from_secs(10);
const COMPLETION: Duration = Duration::from_secs(300);
/// Lowest token number in prompts: those below are special in common vocabularies.
const FIRST_TOKEN: u64 = 1000;
const TOKEN_RANGE: u64 = 20_000;

/// What is asked of the server.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) concurrency: Vec<u32>,
    pub(crate) context: u32,
    pub(crate) temperature: f64,
    pub(crate) seed: u64,
    pub(crate) quick: bool,
}

/// A server and what it did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EngineRun {
    pub(crate) url: String,
    /// `vllm` or `sglang`, where it says so.
    pub(crate) engine: Option<String>,
    pub(crate) version: Option<String>,
    /// The name it serves the model under.
    pub(crate) model: String,
    /// The path or repository it loaded.
    pub(crate) root: Option<String>,
    pub(crate) max_model_len: Option<u32>,
    /// One streamed request alone, where the server streams.
    pub(crate) streamed: Option<Streamed>,
    pub(crate) points: Vec<EnginePoint>,
}

/// How one request feels: speculation makes tokens come in bursts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Streamed {
    pub(crate) first_token_ms: f64,
    /// Median time between events.
    pub(crate) event_gap_ms: f64,
    /// Tokens of an event on average.
    pub(crate) tokens_per_event: f64,
}

/// One operating point. The field names are read by `--baseline`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct EnginePoint {
    pub(crate) concurrency: u32,
    /// Prompt tokens.
    pub(crate) context: u32,
    /// Tokens made per request in the long run.
    pub(crate) output_tokens: u32,
    /// Tokens a second over all requests while decoding.
    pub(crate) output_tok_s: f64,
    /// Bonus token included; `None` without speculation.
    pub(crate) accept_length: Option<f64>,
    /// Draft tokens of a cycle.
    pub(crate) steps: Option<u32>,
    /// Largest share of the KV pool seen in use.
    pub(crate) kv_use: Option<f64>,
}

impl EngineRun {
    /// Whether any point ran with speculation.
    pub(crate) fn speculative(&self) -> bool {
        self.points.iter().any(|p| p.accept_length.is_some())
    }

    /// `concurrency,tok_s` lines for `--baseline`.
    pub(crate) fn csv(&self) -> String {
        let mut text = "concurrency,tok_s\n".to_string();
        for point in &self.points {
            text.push_str(&format!(
                "{},{:.2}\n",
                point.concurrency, point.output_tok_s
            ));
        }
        text
    }
}

/// Drives the server at `url` through the plan.
///
/// # Errors
/// One line: no server, another protocol, or a server that does not do what is asked.
pub(crate) fn drive(url_text: &str, plan: &Plan, progress: &Progress) -> anyhow::Result<EngineRun> {
    let url = Url::parse(url_text)?;
    let mut run = identify(&url, url_text)?;
    progress.done(&format!(
        "server: {} {}, model {}",
        run.engine.as_deref().unwrap_or("unknown engine"),
        run.version.as_deref().unwrap_or("of unknown version"),
        run.model
    ));
    for &concurrency in &plan.concurrency {
        let more = if plan.quick {
            MORE_TOKENS / 2
        } else {
            (SEQUENCE_TOKENS / concurrency.max(1)).clamp(MORE_TOKENS, MOST_TOKENS)
        };
        let long = SHORT_TOKENS + more;
        if let Some(most) = run.max_model_len
            && plan.context.saturating_add(long) > most
        {
            return Err(input::error(format!(
                "--context {}: with {long} output tokens it exceeds the server's limit of {most}; \
                 give a shorter --context",
                plan.context
            )));
        }
        progress.begin(&format!("{concurrency} at a time, {long} tokens"));
        let point = measure(&url, &run.model, plan, concurrency, long)?;
        progress.done(&format!(
            "{concurrency} at a time: {:.1} tok/s{}",
            point.output_tok_s,
            point
                .accept_length
                .map_or_else(String::new, |a| format!(", accept length {a:.2}"))
        ));
        run.points.push(point);
    }
    run.streamed = stream(&url, &run.model, plan);
    Ok(run)
}

/// One streamed request; `None` where the server does not stream.
fn stream(url: &Url, model: &str, plan: &Plan) -> Option<Streamed> {
    let mut body = request(model, plan, 0, SHORT_TOKENS * 3);
    body["stream"] = json!(true);
    let began = Instant::now();
    let mut events: Vec<f64> = Vec::new();
    let answer = http::post(url, "/v1/completions", &body, COMPLETION, |line| {
        let data = line.strip_prefix("data:").map(str::trim);
        if data.is_some_and(|d| d.starts_with('{') && d.contains("\"choices\"")) {
            events.push(began.elapsed().as_secs_f64() * 1000.0);
        }
    })
    .ok()?;
    let first_token_ms = *events.first().filter(|_| answer.status == 200)?;
    let mut gaps: Vec<f64> = events.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(f64::total_cmp);
    Some(Streamed {
        first_token_ms,
        event_gap_ms: *gaps.get(gaps.len() / 2)?,
        tokens_per_event: f64::from(SHORT_TOKENS * 3) / events.len() as f64,
    })
}

fn identify(url: &Url, url_text: &str) -> anyhow::Result<EngineRun> {
    let models = http::get(url, "/v1/models", CALL)?;
    let no_models = || {
        input::error(format!(
            "--engine-url {url_text}: /v1/models answers with status {} and no model; is this an \
             OpenAI-compatible server (SGLang, vLLM)?",
            models.status
        ))
    };
    let value: Value = serde_json::from_str(&models.body).map_err(|_| no_models())?;
    let first = value.pointer("/data/0").ok_or_else(no_models)?;
    let text = |key: &str| first.get(key).and_then(Value::as_str).map(str::to_string);
    let seen = read_metrics(url);
    let owner = text("owned_by").map(|o| o.to_ascii_lowercase());
    let engine = seen
        .as_ref()
        .and_then(|m| m.engine.map(str::to_string))
        .or_else(|| owner.filter(|o| ["vllm", "sglang"].contains(&o.as_str())));
    Ok(EngineRun {
        url: url_text.to_string(),
        version: version(url),
        engine,
        model: text("id").ok_or_else(no_models)?,
        root: text("root"),
        max_model_len: first
            .get("max_model_len")
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok()),
        streamed: None,
        points: Vec::new(),
    })
}

/// vLLM says it at `/version`, SGLang at `/get_server_info`.
fn version(url: &Url) -> Option<String> {
    ["/version", "/get_server_info", "/server_info"]
        .iter()
        .find_map(|path| {
            let answer = http::get(url, path, CALL).ok()?;
            let value: Value = serde_json::from_str(&answer.body).ok()?;
            let found = value.get("version")?.as_str()?;
            Some(found.chars().take(40).collect())
        })
}

fn read_metrics(url: &Url) -> Option<Metrics> {
    let answer = http::get(url, "/metrics", CALL).ok()?;
    (answer.status == 200).then(|| metrics::parse(&answer.body))
}

fn measure(
    url: &Url,
    model: &str,
    plan: &Plan,
    concurrency: u32,
    long: u32,
) -> anyhow::Result<EnginePoint> {
    let all = |tokens: u32| run_all(url, model, plan, concurrency, tokens);
    // Warm: graphs of this batch size, and prompts that a prefix cache may hold, for both lengths.
    all(4)?;
    let rounds = if plan.quick { 1 } else { 2 };
    let (mut short_s, mut long_s) = (Vec::new(), Vec::new());
    let mut kv_use: Option<f64> = None;
    let mut spans = Vec::new();
    for _ in 0..rounds {
        short_s.push(all(SHORT_TOKENS)?.mean_s);
        let before = read_metrics(url);
        let batch = all(long)?;
        long_s.push(batch.mean_s);
        let after = read_metrics(url);
        kv_use = [kv_use, batch.kv_use]
            .into_iter()
            .flatten()
            .reduce(f64::max);
        spans.extend(before.zip(after));
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let between = mean(&long_s) - mean(&short_s);
    if between <= 0.0 {
        return Err(input::error(format!(
            "--engine-url: {long} tokens took no longer than {SHORT_TOKENS} at {concurrency} at a \
             time; the server does not decode to max_tokens (ignore_eos), or other users load it"
        )));
    }
    let spec = spans
        .first()
        .zip(spans.last())
        .and_then(|(first, last)| metrics::between(&first.0, &last.1));
    Ok(EnginePoint {
        concurrency,
        context: plan.context,
        output_tokens: long,
        output_tok_s: f64::from(concurrency) * f64::from(long - SHORT_TOKENS) / between,
        accept_length: spec.as_ref().map(|s| s.accept_length),
        steps: spec
            .and_then(|s| s.depth)
            .map(|d| d.round().clamp(1.0, 1e6) as u32),
        kv_use,
    })
}

struct Batch {
    /// Mean time to completion, s.
    mean_s: f64,
    kv_use: Option<f64>,
}

/// Sends `concurrency` requests at once and waits for all.
fn run_all(
    url: &Url,
    model: &str,
    plan: &Plan,
    concurrency: u32,
    tokens: u32,
) -> anyhow::Result<Batch> {
    let barrier = Barrier::new(concurrency as usize);
    let times: Mutex<Vec<f64>> = Mutex::new(Vec::new());
    let fault: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    let finished = AtomicBool::new(false);
    let mut kv_use = None;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency)
            .map(|index| {
                let body = request(model, plan, index, tokens);
                let (barrier, times, fault) = (&barrier, &times, &fault);
                scope.spawn(move || {
                    barrier.wait();
                    let began = Instant::now();
                    match complete(url, &body, tokens) {
                        Ok(()) => {
                            if let Ok(mut times) = times.lock() {
                                times.push(began.elapsed().as_secs_f64());
                            }
                        }
                        Err(error) => {
                            if let Ok(mut slot) = fault.lock() {
                                slot.get_or_insert(error);
                            }
                        }
                    }
                })
            })
            .collect();
        // One look at the pool while requests are held; more would disturb the server.
        let finished = &finished;
        let watcher = scope.spawn(move || {
            let began = Instant::now();
            while !finished.load(Ordering::Relaxed) {
                if began.elapsed() > Duration::from_millis(400) {
                    return read_metrics(url).and_then(|m| m.kv_use);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            None
        });
        for worker in workers {
            let _ = worker.join();
        }
        finished.store(true, Ordering::Relaxed);
        kv_use = watcher.join().ok().flatten();
    });
    if let Some(error) = fault.into_inner().ok().flatten() {
        return Err(error);
    }
    let times = times.into_inner().unwrap_or_default();
    if times.is_empty() {
        return Err(input::error("--engine-url: no request was answered"));
    }
    Ok(Batch {
        mean_s: times.iter().sum::<f64>() / times.len() as f64,
        kv_use,
    })
}

fn request(model: &str, plan: &Plan, index: u32, tokens: u32) -> Value {
    json!({
        "model": model,
        "prompt": prompt(plan, index),
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": true,
        "temperature": plan.temperature,
        "stream": false,
    })
}

/// Token numbers that no two requests share a prefix of (splitmix64).
fn prompt(plan: &Plan, index: u32) -> Vec<u64> {
    let mut state = plan.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(index) << 32);
    (0..plan.context.max(1))
        .map(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            FIRST_TOKEN + (z ^ (z >> 31)) % TOKEN_RANGE
        })
        .collect()
}

fn complete(url: &Url, body: &Value, tokens: u32) -> anyhow::Result<()> {
    let answer = http::post(url, "/v1/completions", body, COMPLETION, |_| {})?;
    let value: Option<Value> = serde_json::from_str(&answer.body).ok();
    let refused = |why: String| input::error(format!("--engine-url: the server refuses: {why}"));
    if answer.status != 200 {
        let why = value
            .as_ref()
            .and_then(|v| v.pointer("/error/message").or_else(|| v.get("message")))
            .and_then(Value::as_str)
            .unwrap_or("no reason given");
        let why: String = why.chars().take(300).collect();
        return Err(refused(format!("status {}: {why}", answer.status)));
    }
    let made = value
        .as_ref()
        .and_then(|v| v.pointer("/usage/completion_tokens"))
        .and_then(Value::as_u64)
        .ok_or_else(|| refused("its answer has no usage.completion_tokens".to_string()))?;
    if made != u64::from(tokens) {
        return Err(refused(format!(
            "it made {made} tokens where {tokens} were asked for; it must honour ignore_eos"
        )));
    }
    Ok(())
}
