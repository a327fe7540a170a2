//! What a server's `/metrics` says of speculation and KV use: counters by engine and version,
//! added over processes.

use std::collections::BTreeMap;

/// Figures of one reading. Counters only grow, so that two readings give what happened between.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Metrics {
    /// `vllm` or `sglang`, from the names.
    pub(crate) engine: Option<&'static str>,
    /// Speculative cycles, summed over sequences.
    pub(crate) drafts: Option<f64>,
    /// Tokens proposed.
    pub(crate) draft_tokens: Option<f64>,
    /// Draft tokens accepted; the bonus token is not counted.
    pub(crate) accepted: Option<f64>,
    /// Accepted by position from 0.
    pub(crate) accepted_by_position: BTreeMap<u32, f64>,
    /// Verifies, summed over sequences, where drafts are not counted (SGLang).
    pub(crate) verify_calls: Option<f64>,
    /// Requests finished.
    pub(crate) requests: Option<f64>,
    /// Draft steps that are set.
    pub(crate) steps: Option<f64>,
    /// A running mean that the engine itself prints, bonus token included.
    pub(crate) accept_length_gauge: Option<f64>,
    /// Share of the KV pool in use.
    pub(crate) kv_use: Option<f64>,
    /// Tokens generated.
    pub(crate) generated: Option<f64>,
}

/// Reads Prometheus' text form; lines that are none are skipped.
pub(crate) fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::default();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let (name, rest) = match line.find(['{', ' ']) {
            Some(at) => line.split_at(at),
            None => continue,
        };
        let (labels, rest) = match rest.strip_prefix('{').and_then(|r| r.rsplit_once('}')) {
            Some((labels, rest)) => (labels, rest),
            None => ("", rest),
        };
        let Some(value) = rest
            .split_whitespace()
            .next()
            .and_then(|v| v.parse::<f64>().ok())
            .filter(|v| v.is_finite())
        else {
            continue;
        };
        take(&mut metrics, name, labels, value);
    }
    metrics
}

fn take(metrics: &mut Metrics, name: &str, labels: &str, value: f64) {
    let engine = if name.starts_with("vllm:") || name.starts_with("vllm_") {
        "vllm"
    } else if name.starts_with("sglang:") || name.starts_with("sglang_") {
        "sglang"
    } else {
        return;
    };
    metrics.engine = Some(engine);
    let name = name[engine.len() + 1..].trim_end_matches("_total");
    let add = |slot: &mut Option<f64>| *slot = Some(slot.unwrap_or(0.0) + value);
    match name {
        "spec_decode_num_drafts" => add(&mut metrics.drafts),
        "spec_decode_num_draft_tokens" => add(&mut metrics.draft_tokens),
        "spec_decode_num_accepted_tokens" => add(&mut metrics.accepted),
        "spec_decode_num_accepted_tokens_per_pos" => {
            if let Some(position) = label(labels, "position").and_then(|p| p.parse().ok()) {
                *metrics.accepted_by_position.entry(position).or_insert(0.0) += value;
            }
        }
        // SGLang's name changed from spec_accept_length; both include the bonus token.
        "spec_accept_length" | "spec_accept_len" | "avg_spec_accept_length" if value > 0.0 => {
            metrics.accept_length_gauge = Some(value);
        }
        "kv_cache_usage_perc" | "gpu_cache_usage_perc" | "token_usage" => {
            metrics.kv_use = Some(metrics.kv_use.unwrap_or(0.0).max(value));
        }
        "generation_tokens" => add(&mut metrics.generated),
        "spec_verify_calls" => add(&mut metrics.verify_calls),
        "num_requests" => add(&mut metrics.requests),
        "spec_num_steps" if value > 0.0 => metrics.steps = Some(value),
        _ => {}
    }
}

fn label<'a>(labels: &'a str, key: &str) -> Option<&'a str> {
    labels.split(',').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches('"'))
    })
}

/// Speculation between two readings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Speculated {
    /// Accept length, bonus token included.
    pub(crate) accept_length: f64,
    /// Draft tokens of a cycle, where told.
    pub(crate) depth: Option<f64>,
    /// Share of cycles that accepted at least position + 1 drafts.
    pub(crate) rates: Vec<f64>,
}

/// What happened from `before` to `after`; `None` without speculation.
pub(crate) fn between(before: &Metrics, after: &Metrics) -> Option<Speculated> {
    let grown = |a: Option<f64>, b: Option<f64>| Some((b? - a.unwrap_or(0.0)).max(0.0));
    if let (Some(drafts), Some(accepted)) = (
        grown(before.drafts, after.drafts).filter(|d| *d > 0.0),
        grown(before.accepted, after.accepted),
    ) {
        let rates = after
            .accepted_by_position
            .iter()
            .map(|(position, value)| {
                let earlier = before.accepted_by_position.get(position);
                (value - earlier.copied().unwrap_or(0.0)).max(0.0) / drafts
            })
            .collect();
        return Some(Speculated {
            accept_length: 1.0 + accepted / drafts,
            depth: grown(before.draft_tokens, after.draft_tokens).map(|t| t / drafts),
            rates,
        });
    }
    // SGLang counts a request's verifies when it ends; its first token comes from the prefill. The
    // gauge is the mean of its last log interval only.
    let counted = || {
        let calls = grown(before.verify_calls, after.verify_calls).filter(|c| *c > 0.0)?;
        let tokens = grown(before.generated, after.generated)?;
        let first = grown(before.requests, after.requests)?;
        Some((tokens - first) / calls).filter(|a| *a >= 1.0)
    };
    let accept_length = counted().or(after.accept_length_gauge.filter(|a| *a > 1.0))?;
    Some(Speculated {
        accept_length,
        depth: after.steps,
        rates: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = r#"# HELP vllm:spec_decode_num_drafts Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 1000.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1700.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 750.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 550.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 400.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
python_info{implementation="CPython"} 1.0
"#;

    #[test]
    fn vllms_counters_give_accept_length_and_rates() {
        let metrics = parse(VLLM);
        let spec = between(&Metrics::default(), &metrics).expect("speculation");
        assert!((spec.accept_length - 2.7).abs() < 1e-12, "{spec:?}");
        assert_eq!(spec.depth, Some(3.0));
        assert_eq!(spec.rates, [0.75, 0.55, 0.4]);
        assert_eq!(metrics.kv_use, Some(0.125));
        assert_eq!(
            between(&metrics, &metrics),
            None,
            "nothing happened between"
        );
    }

    #[test]
    fn sglangs_counters_go_before_its_gauge() {
        // Names as in SGLang's metrics_collector.py of 2026.
        let at = |verifies: f64, tokens: f64, requests: f64| {
            parse(&format!(
                "sglang:spec_verify_calls_total{{model_name=\"m\"}} {verifies}\n\
                 sglang:generation_tokens_total{{model_name=\"m\",is_streaming=\"false\"}} {tokens}\n\
                 sglang:num_requests_total{{model_name=\"m\",is_streaming=\"false\"}} {requests}\n\
                 sglang:spec_num_steps{{model_name=\"m\"}} 3\n\
                 sglang:spec_accept_length{{model_name=\"m\"}} 3.9\n"
            ))
        };
        let spec = between(&at(10.0, 40.0, 2.0), &at(110.0, 294.0, 6.0)).expect("speculation");
        assert!((spec.accept_length - 2.5).abs() < 1e-12, "{spec:?}");
        assert_eq!(spec.depth, Some(3.0));
        // Nothing ended between: the gauge is all there is.
        let spec = between(&at(10.0, 40.0, 2.0), &at(10.0, 40.0, 2.0)).expect("speculation");
        assert_eq!(spec.accept_length, 3.9);
    }

    #[test]
    fn sglangs_gauge_is_taken_and_an_idle_or_plain_server_says_nothing() {
        let text = "sglang:spec_accept_length{model_name=\"m\",tp_rank=\"0\"} 2.31\n\
                    sglang:token_usage{model_name=\"m\"} 0.4\n";
        let spec = between(&Metrics::default(), &parse(text)).expect("speculation");
        assert_eq!(spec.accept_length, 2.31);
        let plain = "sglang:spec_accept_length 0.0\nsglang:token_usage 0.1\njunk\nx{ 3";
        assert_eq!(between(&Metrics::default(), &parse(plain)), None);
    }
}
