//! What a start says of memory: weights, pool, blocks, graphs.

use super::super::args::argument;
use super::super::facts::Facts;
use super::super::text::{leading_number, number_after};
use super::{Event, Kind};

/// Weights, pool, blocks.
pub(super) fn read(run: &[Event], facts: &mut Facts) {
    let gib = |event: &Event| {
        let (value, rest) = leading_number(event.rest)?;
        let unit = rest.trim_start();
        (unit.starts_with("GiB") || unit.starts_with("GB")).then_some((value, event.line))
    };
    let weights = run
        .iter()
        .filter(|e| e.kind == Kind::Weights)
        .filter_map(gib);
    // V0 loads a draft apart; the target is the bigger.
    if let Some((value, line)) = weights.max_by(|a, b| a.0.total_cmp(&b.0)) {
        facts.set("weights_gib", value, line);
    }
    instance(run, facts);
    reserved(run, facts);
    // The least of the workers decides.
    let pools = run
        .iter()
        .filter(|e| e.kind == Kind::Available)
        .filter_map(gib);
    if let Some((value, line)) = pools.min_by(|a, b| a.0.total_cmp(&b.0)) {
        facts.set("kv_gib", value, line);
    }
    startup_report(run, facts);
    let last = |kind: Kind| run.iter().rev().find(|e| e.kind == kind);
    if let Some(event) = last(Kind::Blocks)
        && let Some((blocks, _)) = leading_number(event.rest)
    {
        facts.set("gpu_blocks", blocks, event.line);
        let block = facts.number("block_size").unwrap_or(16.0);
        facts.derive(
            "kv_tokens",
            blocks * block,
            event.line,
            format!("{blocks} blocks of {block}"),
        );
    }
    // Builds that print it for every worker run with the least.
    let tokens = run.iter().filter(|e| e.kind == Kind::Tokens);
    let tokens = tokens.filter_map(|event| {
        let (tokens, rest) = leading_number(event.rest)?;
        rest.trim_start()
            .starts_with("tokens")
            .then_some((tokens, event.line))
    });
    if let Some((tokens, line)) = tokens.min_by(|a, b| a.0.total_cmp(&b.0)) {
        facts.set("kv_tokens", tokens, line);
    }
    pool_of_blocks(run, facts);
    if let Some(event) = last(Kind::Graphs) {
        // Memory freed meanwhile can make the printed difference negative.
        if let Some(gib) = number_after(event.rest, "took").filter(|gib| *gib >= 0.0) {
            facts.set("graph_gib", gib, event.line);
        }
    } else if let Some(event) = last(Kind::GraphPool)
        && let Some((gib, rest)) = leading_number(event.rest)
        && rest.contains("(actual)")
    {
        facts.set("graph_gib", gib, event.line);
    }
}

/// The first builds print blocks and no bytes; their engine line has all that the size of a block
/// follows from, where the model is known. Later builds print the bytes, and a cut log of one is
/// silent.
fn pool_of_blocks(run: &[Event], facts: &mut Facts) {
    let later = [
        Kind::Available,
        Kind::Instance,
        Kind::Tokens,
        Kind::NoMemory,
    ];
    if run.iter().any(|event| later.contains(&event.kind)) || facts.get("kv_gib").is_some() {
        return;
    }
    let Some(engine) = run.iter().find(|event| event.kind == Kind::Engine) else {
        return;
    };
    let sixteen_bits = ["torch.float16", "torch.bfloat16"]
        .iter()
        .any(|dtype| argument(engine.rest, "dtype").is_some_and(|printed| printed == *dtype));
    let (Some(tokens), Some(tp)) = (facts.number("kv_tokens"), facts.number("tp")) else {
        return;
    };
    let named = facts.text("model").and_then(|path| path.rsplit('/').next());
    let found = named.and_then(|name| kvplan::catalog::find(name).ok());
    let cut = (tp >= 1.0 && tp.fract() == 0.0).then(|| kvplan::Sharding::tp(tp as u64));
    let (Some(found), Some(cut)) = (found.filter(|_| sixteen_bits), cut) else {
        return;
    };
    let said = argument(engine.rest, "kv_cache_dtype").filter(|dtype| *dtype != "auto");
    let said = facts.text("kv_dtype").or(said);
    let Some(dtype) = said.map_or(Some(kvplan::KvDtype::Bf16), kvplan::KvDtype::parse) else {
        return;
    };
    let layout = kvplan::KvLayout::new(dtype);
    let bytes = found.model.kv_bytes_per_token(&cut, &layout) as f64;
    let line = facts.get("kv_tokens").map_or(1, |fact| fact.line);
    let gib = (tokens * bytes / (1_u64 << 30) as f64 * 100.0).round() / 100.0;
    let how = format!(
        "{tokens} tokens x {bytes} bytes of {} a card",
        found.model.name
    );
    facts.derive("kv_gib", gib, line, how);
}

/// 0.11 and later sum a start up in one line: `Free memory on device (…) on startup. … Actual usage
/// is 15.0 GiB for weight, … Current kv cache memory in use is 54.2 GiB.`
fn startup_report(run: &[Event], facts: &mut Facts) {
    let reports = run.iter().filter(|e| e.kind == Kind::FreeMemory);
    for event in reports {
        let used = event.rest.split("Actual usage is").nth(1);
        if let Some((gib, rest)) = used.and_then(leading_number) {
            // Later builds count what is not torch's with the weights.
            let name = if rest.trim_start().starts_with("GiB for weight") {
                "weights_gib"
            } else {
                "consumed_gib"
            };
            facts.set_if_absent(name, gib, event.line);
        }
        profiled(event, facts);
        if let Some(gib) = number_after(event.rest, "Current kv cache memory in use is") {
            facts.set_if_absent("kv_gib", gib, event.line);
        }
        if let Some((_, after)) = event.rest.rsplit_once(", and ")
            && let Some((gib, rest)) = leading_number(after)
            && rest.trim_start().starts_with("GiB for CUDAGraph memory")
            && gib >= 0.0
        {
            facts.set_if_absent("graph_gib", gib, event.line);
        }
    }
}

/// `5.58 GiB for peak activation, 0.07 GiB for non-torch memory` of such a report.
fn profiled(event: &Event, facts: &mut Facts) {
    for (what, name) in [
        (" GiB for peak activation", "activation_gib"),
        (" GiB for non-torch memory", "non_torch_gib"),
    ] {
        let before = event.rest.split_once(what).map(|(before, _)| before);
        let figure = before.and_then(|before| before.rsplit(' ').next());
        if let Some((gib, _)) = figure.and_then(leading_number)
            && gib >= 0.0
        {
            facts.set_if_absent(name, gib, event.line);
        }
    }
}

/// A pool of a size given in bytes: `Initial free memory 44.16 GiB, reserved 5.5 GiB memory for KV
/// Cache as specified by kv_cache_memory_bytes config`; at debug level without one `Initial free
/// memory: 43.82 GiB; Requested memory: 0.90 (util), 39.88 GiB`.
fn reserved(run: &[Event], facts: &mut Facts) {
    for event in run.iter().filter(|e| e.kind == Kind::Reserved) {
        let Some((free, rest)) = leading_number(event.rest) else {
            continue;
        };
        if !rest.trim_start().starts_with("GiB") {
            continue;
        }
        let requested = number_after(rest, "Requested memory:");
        let pool = number_after(rest, "reserved").filter(|_| rest.contains("KV Cache"));
        if requested.is_none() && pool.is_none() {
            continue;
        }
        facts.set_if_absent("free_before_gib", free, event.line);
        if let Some(fraction) = requested {
            facts.set_if_absent("gpu_memory_utilization", fraction, event.line);
        }
        if let Some(pool) = pool {
            facts.set_if_absent("kv_gib", pool, event.line);
        }
    }
}

/// V0 0.6.4 to 0.8: the whole budget in two lines.
fn instance(run: &[Event], facts: &mut Facts) {
    let Some(event) = run.iter().rev().find(|e| e.kind == Kind::Instance) else {
        return;
    };
    for (key, name) in [
        ("total_gpu_memory (", "total_gib"),
        ("gpu_memory_utilization (", "gpu_memory_utilization"),
        ("the rest of the memory reserved for KV Cache is", "kv_gib"),
        ("activation peak memory takes", "activation_gib"),
        ("non_torch_memory takes", "non_torch_gib"),
        ("total_gpu_memory=", "total_gib"),
        ("kv_cache_size=", "kv_gib"),
        ("gpu_memory_utilization=", "gpu_memory_utilization"),
    ] {
        if let Some(value) = number_after(event.rest, key) {
            facts.set_if_absent(name, value, event.line);
        }
    }
    for key in ["model weights take", "weights memory:"] {
        if let Some(value) = number_after(event.rest, key) {
            facts.set_if_absent("weights_gib", value, event.line);
        }
    }
}
