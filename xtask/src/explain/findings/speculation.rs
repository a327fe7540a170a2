//! Acceptance that means a broken load, settings that waste drafts, verify outside graphs.

mod prefills;
mod undrafted;

use super::super::vllm::pool_tokens;
use super::{Finding, Severity, count, show};
use crate::explain::facts::{EAGER, Facts};

pub(super) fn check(facts: &Facts, found: &mut Vec<Finding>) {
    denoises(facts, found);
    match crate::explain::forced::words(facts) {
        Some(why) => forced(facts, &why, found),
        None => acceptance(facts, found),
    }
    wasted(facts, found);
    undrafted::check(facts, found);
    outside_graphs(facts, found);
    cut_graphs(facts, found);
    narrow_graphs(facts, found);
    prefills::check(facts, found);
}

/// A model that fills a block of tokens by denoising it has no next token to draft.
fn denoises(facts: &Facts, found: &mut Vec<Finding>) {
    if let Some((fact, named)) = facts.denoises() {
        let class = named.trim_end_matches('/').rsplit('/').next();
        let class = class.unwrap_or(named);
        found.push(Finding::new(
            Severity::Note,
            facts,
            fact.name,
            format!("{class} denoises blocks of tokens: nothing here predicts it"),
            "one pass gives several tokens of a block and several passes finish it; EAGLE, MTP and the \
             step model are of models that give one token a pass",
            "measure it; for speculation the autoregressive model of its family is the one to ask for \
             (predict --model)",
        ));
    }
}

/// What is accepted was told to the server, or is of weights that are none.
fn forced(facts: &Facts, why: &str, found: &mut Vec<Finding>) {
    let length = facts.number("accept_length").map(show);
    let what = match &length {
        Some(length) => format!("the accept length {length} is not measured: {why}"),
        None => why.to_string(),
    };
    let fact = ["accept_forced", "random_weights"]
        .into_iter()
        .find(|name| facts.get(name).is_some());
    found.push(Finding::new(
        Severity::Note,
        facts,
        fact.unwrap_or("engine"),
        what,
        "memory and times are the server's own; its text, and what of its drafts it takes, are not the model's",
        match super::drafts(facts) {
            true => "measure the accept length with the model's weights and sampler before it is believed",
            false => "load the checkpoint for anything but memory and times",
        },
    ));
}

fn acceptance(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(length) = facts.number("accept_length") else {
        return;
    };
    let depth = facts
        .number("spec_steps")
        .or_else(|| facts.number("spec_tokens"));
    let drafted = facts
        .number("spec_draft_tokens")
        .map(|tokens| tokens - 1.0)
        .into_iter()
        .chain(depth)
        .fold(0.0, f64::max);
    if drafted > 0.0 && length > drafted + 1.005 {
        found.push(Finding::new(
            Severity::Broken,
            facts,
            "accept_length",
            format!("accept length {} is impossible with {drafted} drafted tokens", show(length)),
            format!("at most {} tokens can come from one pass", drafted + 1.0),
            "the settings and the measurement are of different launches; use neither with the other",
        ));
        return;
    }
    if crate::explain::look_up::told(facts) {
        look_up(facts, length, depth, found);
    } else if length <= 1.02 {
        found.push(Finding::new(
            Severity::Broken,
            facts,
            "accept_length",
            format!(
                "accept length {}: nothing is accepted, speculation is pure cost",
                show(length)
            ),
            "even a poor draft gets 1.3; 1.00 means that the draft was loaded wrong or sees wrong \
             hidden states",
            "check in this order: draft made for this very target and revision, weights of the \
             draft all loaded (no `missing keys`), target not quantised with a rotation that the \
             draft lacks, engine version known to support this draft; until then turn it off",
        ));
    } else if length < 1.3 && depth.unwrap_or(3.0) >= 3.0 {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "accept_length",
            format!(
                "accept length {} is far below what such drafts reach",
                show(length)
            ),
            "public drafts of depth 3 reach 1.8 to 3.2",
            "chat template and sampling the draft was trained for? reduced draft vocabulary on \
             this language? a fused all-reduce that corrupts hidden states (compare with NCCL)?",
        ));
    }
}

/// Drafts that are copied accept little where little repeats: there is no head to be broken.
fn look_up(facts: &Facts, length: f64, depth: Option<f64>, found: &mut Vec<Finding>) {
    if length >= 1.3 || depth.unwrap_or(3.0) < 3.0 {
        return;
    }
    found.push(Finding::new(
        Severity::Note,
        facts,
        "accept_length",
        format!(
            "accept length {}: little of the output repeats the prompt",
            show(length)
        ),
        "look-up copies what stood there before: normal in chat, and no fault of a setup",
        "whether it pays the break-even of predict says; requests that edit or quote their prompts give \
         more, others want it off",
    ));
}

/// SGLang verifies the root too: with width 1, draft tokens = steps + 1.
fn wasted(facts: &Facts, found: &mut Vec<Finding>) {
    let (Some(steps), Some(tokens)) = (
        facts.number("spec_steps"),
        facts.number("spec_draft_tokens"),
    ) else {
        return;
    };
    if facts.text("engine") != Some("sglang") {
        return;
    }
    let width = facts.number("spec_topk").unwrap_or(1.0);
    if width == 1.0 && tokens < steps + 1.0 && steps > 0.0 {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "spec_draft_tokens",
            format!(
                "{} of {steps} drafted tokens are thrown away",
                steps + 1.0 - tokens
            ),
            format!("{tokens} tokens are verified, one of them is the root"),
            format!("--speculative-num-draft-tokens {}", steps + 1.0),
        ));
    }
}

fn outside_graphs(facts: &Facts, found: &mut Vec<Finding>) {
    let speculative = facts.get("spec_algorithm").is_some() || facts.get("accept_length").is_some();
    if let (Some(lines), Some(eager)) = (
        facts.number("decode_lines"),
        facts.number("decode_lines_outside_graph"),
    ) {
        if eager >= 0.1 * lines && eager >= 2.0 {
            let pass = if speculative { "verify" } else { "decode" };
            let flag = super::memory::graph_flag(facts);
            let limit = facts
                .number("cuda_graph_max_bs")
                .map_or(String::new(), |n| format!(" (now {n})"));
            found.push(Finding::new(
                Severity::Costly,
                facts,
                "decode_lines_outside_graph",
                format!("{eager} of {lines} decode lines ran outside CUDA graphs"),
                format!("a {pass} pass without its graph pays the launch of every kernel"),
                format!(
                    "raise {flag}{limit} above the requests at a time, and check \
                         that graphs are not disabled"
                ),
            ));
        }
    } else if speculative && facts.eager().is_some() {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            EAGER,
            "CUDA graphs are off while speculation is on",
            "draft steps are all launch cost: several passes of a small head per cycle",
            super::warnings::WITH_GRAPHS,
        ));
    }
}

/// vLLM cuts the graph of a verify where its attention backend has none of several tokens.
fn cut_graphs(facts: &Facts, found: &mut Vec<Finding>) {
    if super::drafts(facts) && facts.text("cuda_graphs") == Some("piecewise") {
        found.push(Finding::new(
            Severity::Costly,
            facts,
            "cuda_graphs",
            "a verify runs in CUDA graphs cut at attention",
            "the host launches each layer: where that takes longer than the GPU does, it is the cycle",
            "another attention backend, or a newer vLLM (FlashInfer is whole from 0.28 on RTX Blackwell, 0.30 on Hopper, \
             0.33 on Ampere and Ada); beside a long context weigh it against what that backend's kernel takes (predict)",
        ));
    }
}

/// vLLM captures graphs up to a number of tokens, and each request verifies its steps and one more.
fn narrow_graphs(facts: &Facts, found: &mut Vec<Finding>) {
    let of_vllm = facts.text("engine") == Some("vllm") && super::drafts(facts);
    let version = facts.text("engine_version").and_then(kvplan::Version::find);
    let (Some(version), Some(steps), Some(told)) = (
        version.filter(|_| of_vllm && facts.eager().is_none()),
        facts.number("spec_tokens"),
        facts.number("max_running_requests"),
    ) else {
        return;
    };
    let seqs = told as u64;
    let verified = steps as u64 + 1;
    let by_itself = kvplan::vllm_graph_tokens(version, seqs, verified);
    let captured = facts.number("graph_tokens").unwrap_or(by_itself as f64);
    let inside = (captured / verified as f64).floor();
    let needed = kvplan::vllm_graph_flag(version, seqs, verified);
    let Some((flag, tokens)) = needed.filter(|(_, tokens)| captured < *tokens as f64) else {
        return;
    };
    found.push(Finding::new(
        Severity::Costly,
        facts,
        match facts.get("graph_tokens") {
            Some(_) => "graph_tokens",
            None => "max_running_requests",
        },
        format!("the verify of more than {inside} requests at once runs outside CUDA graphs"),
        format!(
            "graphs reach to {captured} tokens; {seqs} requests verify {} at {steps} steps, and a \
             pass without its graph pays the launch of every kernel",
            seqs.saturating_mul(verified)
        ),
        format!("{flag} {tokens}, or vLLM 0.13 and later, which capture what is verified"),
    ));
}

/// What the pools of plain and of speculative servers of one model differ by: of each that drafts
/// against the plain one whose settings are nearest to its own.
pub(super) fn pools(files: &[Facts], found: &mut Vec<Finding>) {
    let served = |drafting: bool| {
        let pooled =
            |facts: &&Facts| facts.get("engine").is_some() && facts.get("kv_tokens").is_some();
        let logs = files.iter().filter(pooled);
        logs.filter(move |facts| super::drafts(facts) == drafting)
    };
    for drafted in served(true) {
        let alike = served(false).filter(|plain| {
            let names = ["engine", "model", "tp"];
            names.iter().all(|name| same(plain, drafted, name))
        });
        let nearest = alike.min_by_key(|plain| (others(plain, drafted).len(), plain.file.clone()));
        if let Some(plain) = nearest {
            pool(plain, drafted, found);
        }
    }
}

/// Whether two logs show the same of something.
pub(super) fn same(plain: &Facts, drafted: &Facts, name: &str) -> bool {
    let value = |facts: &Facts| facts.get(name).map(|fact| fact.value.clone());
    value(plain) == value(drafted)
}

/// Settings that weigh on a pool and are not those of both.
pub(super) fn others(plain: &Facts, drafted: &Facts) -> Vec<&'static str> {
    let settings = [
        "engine_version",
        "mem_fraction",
        "gpu_memory_utilization",
        "kv_fraction_of_free",
        "kv_dtype",
        "max_running_requests",
        "max_num_batched_tokens",
        "chunked_prefill_size",
        "cuda_graph_max_bs",
    ];
    // Requests at once that SGLang is not told it takes by itself, and others with a draft.
    let taken = |facts: &Facts| facts.get("max_running_taken").is_some();
    let by_itself = taken(plain) || taken(drafted);
    let told = |name: &&str| *name != "max_running_requests" || !by_itself;
    let other = settings
        .into_iter()
        .filter(told)
        .filter(|name| !same(plain, drafted, name));
    other.collect()
}

/// SGLang's fraction of a plain server, where it is above that of one with a draft: SGLang chooses such.
fn higher_fraction(plain: &Facts, drafted: &Facts) -> Option<f64> {
    let of = |facts: &Facts| facts.number("mem_fraction");
    of(plain).filter(|fraction| of(drafted).is_some_and(|drafted| drafted < *fraction))
}

fn pool(plain: &Facts, drafted: &Facts, found: &mut Vec<Finding>) {
    let (Some(all), Some(left)) = (pool_tokens(plain), pool_tokens(drafted)) else {
        return;
    };
    let other = others(plain, drafted);
    let (but, mend) = match other.as_slice() {
        [] => (
            String::new(),
            "predict takes this figure from the two logs".to_string(),
        ),
        _ => (
            format!("; they also differ in {}", other.join(", ")),
            match higher_fraction(plain, drafted).filter(|_| left < all) {
                Some(fraction) => {
                    format!("predict says whether --mem-fraction-static {fraction} gives them back")
                }
                None => format!(
                    "start that of {} with the settings of {}: then the difference is the draft's alone",
                    plain.file, drafted.file
                ),
            },
        ),
    };
    let word = if left <= all { "fewer" } else { "more" };
    found.push(Finding::new(
        Severity::Note,
        drafted,
        "kv_tokens",
        format!(
            "with the draft the pool holds {} tokens {word}",
            count((all - left).abs())
        ),
        format!(
            "{} of {}, {} of {}{but}",
            count(all),
            plain.file,
            count(left),
            drafted.file
        ),
        mend,
    ));
}
