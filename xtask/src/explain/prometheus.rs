//! A saved page of a server's `/metrics`: acceptance since the start, the pool, the model.

use super::facts::Facts;
use super::text::Doc;
use crate::verify_hw::metrics::{self, Metrics};

/// Reads the facts; nothing where the text is no such page.
pub(crate) fn read(doc: &Doc, text: &str, facts: &mut Facts) {
    let Some(first) = doc.lines.iter().find(|(_, line)| is_sample(line)) else {
        return;
    };
    let page = metrics::parse(text);
    let Some(engine) = page.engine else {
        return;
    };
    let line = first.0;
    facts.kinds.push("server-metrics");
    facts.set_if_absent("engine", engine, line);
    for (_, line_text) in doc.lines.iter().filter(|(_, line)| is_sample(line)) {
        if let Some(model) = label(line_text, "model_name") {
            facts.set_if_absent("model", model, line);
            break;
        }
    }
    acceptance(doc, &page, facts);
    pool(doc, facts);
}

fn is_sample(line: &str) -> bool {
    let line = line.trim_start();
    (line.starts_with("vllm:") || line.starts_with("sglang:")) && line.contains(' ')
}

fn label<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let at = line.find(&format!("{key}=\""))? + key.len() + 2;
    line.get(at..)?.split('"').next().filter(|v| !v.is_empty())
}

/// Of counters the mean since the server's start, of SGLang's gauge the last interval.
fn acceptance(doc: &Doc, page: &Metrics, facts: &mut Facts) {
    let Some(seen) = metrics::between(&Metrics::default(), page) else {
        return;
    };
    let place = |word: &str| {
        let hit = doc
            .lines
            .iter()
            .find(|(_, line)| is_sample(line) && line.contains(word));
        hit.map_or(1, |(number, _)| *number)
    };
    if page.accept_length_gauge.is_some() && page.drafts.is_none() {
        let line = place("spec_accept");
        facts.set("accept_length", seen.accept_length, line);
        facts.set("accept_length_source", "sglang gauge", line);
        return;
    }
    let line = place("spec_decode_num_accepted_tokens");
    let how = "1 + accepted / drafts since the server's start";
    facts.derive("accept_length", seen.accept_length, line, how);
    facts.set("accept_length_source", "vllm counters", line);
    let depth = seen.depth.filter(|d| (d - d.round()).abs() < 0.02);
    let positions = Some(seen.rates.len() as f64).filter(|n| *n > 0.0);
    // Given whole: of look-up it is read otherwise than of a head.
    facts.set("accept_rates", "by position", line);
    if let Some(depth) = positions.or(depth.map(f64::round)) {
        facts.derive("spec_tokens", depth, line, "positions counted");
    }
}

fn pool(doc: &Doc, facts: &mut Facts) {
    for (number, line) in &doc.lines {
        let line = line.trim_start();
        if line.starts_with("vllm:cache_config_info{") {
            let figure = |key: &str| label(line, key)?.parse::<f64>().ok();
            if let Some(fraction) = figure("gpu_memory_utilization") {
                facts.set_if_absent("gpu_memory_utilization", fraction, *number);
            }
            if let (Some(blocks), Some(block)) = (figure("num_gpu_blocks"), figure("block_size")) {
                facts.set_if_absent("gpu_blocks", blocks, *number);
                let how = format!("{blocks} blocks of {block}");
                facts.derive("kv_tokens", blocks * block, *number, how);
            }
        }
        if line.starts_with("sglang:max_total_num_tokens")
            && let Some(tokens) = line.rsplit(' ').next().and_then(|t| t.parse::<f64>().ok())
        {
            facts.set_if_absent("kv_tokens", tokens, *number);
        }
    }
}

/// The rates by position on such a page, and the drafts they rest on.
pub(crate) fn rates(text: &str) -> Option<(Vec<f64>, f64, f64)> {
    if !text.lines().any(is_sample) {
        return None;
    }
    let page = metrics::parse(text);
    let seen = metrics::between(&Metrics::default(), &page)?;
    let drafts = page.drafts.filter(|_| !seen.rates.is_empty())?;
    Some((seen.rates, seen.accept_length, drafts))
}
