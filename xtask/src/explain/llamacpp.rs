//! llama.cpp: buffers in MiB, context, cards, speed and acceptance of a server.

use super::facts::Facts;
use super::text::{Doc, leading_number, number_after, number_prefix};

/// What only it prints.
const OWN: [&str; 9] = [
    "llama_kv_cache",
    "llama_new_context",
    "llama_context:",
    "llm_load_tensors:",
    "load_tensors:",
    "llama_print_timings:",
    "llama_perf_context_print:",
    "slot print_timing:",
    "statistics draft",
];

/// Reads the facts; nothing where the text is no such log.
pub(crate) fn read(doc: &Doc, facts: &mut Facts) {
    let Some(at) = OWN.iter().find_map(|phrase| doc.after_all(phrase).next()) else {
        return;
    };
    facts.kinds.push("llama-cpp-log");
    facts.set_if_absent("engine", "llamacpp", doc.line_at(at));
    let draft = doc.after_all("loading draft model").next();
    buffers(doc, draft.unwrap_or(doc.flat.len()), facts);
    if let Some(at) = draft {
        drafter(doc, at, facts);
    }
    settings(doc, facts);
    cards(doc, facts);
    speed(doc, facts);
    acceptance(doc, facts);
    if let Some(at) = doc.after_all("cudaMalloc failed: out of memory").last()
        && facts.get("gen_tok_s").is_none()
    {
        facts.set("error_kind", "out-of-memory", doc.line_at(at));
    }
}

/// The sum over a kind of buffers printed in a part of the text, GiB, and the last line.
fn sum(doc: &Doc, phrase: &str, part: std::ops::Range<usize>) -> Option<(f64, usize)> {
    let mut total = 0.0;
    let mut last = None;
    for at in doc.after_all(phrase).filter(|at| part.contains(at)) {
        if let Some((mib, rest)) = leading_number(doc.window(at, 30))
            && rest.trim_start().starts_with("MiB")
        {
            total += mib;
            last = Some(doc.line_at(at));
        }
    }
    last.map(|line| (total / 1024.0, line))
}

/// A model that drafts is loaded behind the target, with buffers and a cache of its own.
fn drafter(doc: &Doc, at: usize, facts: &mut Facts) {
    // `srv load_model: loading draft model '/models/Qwen3-0.6B-Q8_0.gguf'`.
    let named = doc.window(at, 300).trim_start().strip_prefix('\'');
    if let Some(path) = named.and_then(|rest| rest.split('\'').next()) {
        facts.set("draft_model", path, doc.line_at(at));
    }
    for (phrase, name) in [
        ("model buffer size =", "draft_weights_gib"),
        ("KV buffer size =", "draft_kv_gib"),
    ] {
        if let Some((gib, line)) = sum(doc, phrase, at..doc.flat.len()) {
            facts.derive(name, gib, line, "sum over buffers, MiB / 1024");
        }
    }
}

/// Of the target: what is printed before `end`.
fn buffers(doc: &Doc, end: usize, facts: &mut Facts) {
    for (phrase, name) in [
        ("model buffer size =", "weights_gib"),
        ("KV buffer size =", "kv_gib"),
        ("compute buffer size =", "compute_gib"),
    ] {
        if let Some((gib, line)) = sum(doc, phrase, 0..end) {
            facts.derive(name, gib, line, "sum over buffers, MiB / 1024");
        }
    }
    // `size = 1024.00 MiB ( 32768 cells, 32 layers, 4/1 seqs)`; of two caches the full one. Behind the
    // bar how many caches of so many cells there are, by sequence.
    let cells = doc.after_all(" cells,").filter(|at| *at < end);
    let cells = cells.filter_map(|end| {
        let before = doc.flat.get(..end - " cells,".len())?;
        let word = before.rsplit([' ', '(']).next()?;
        let (count, length) = number_prefix(word)?;
        let behind = doc.window(end, 40).split(" seqs").next()?;
        let streams = behind.rsplit('/').next().and_then(|word| word.parse().ok());
        let streams: f64 = streams.unwrap_or(1.0);
        (length == word.len()).then_some((count * streams, doc.line_at(end)))
    });
    if let Some((count, line)) = cells.max_by(|a, b| a.0.total_cmp(&b.0)) {
        facts.set("kv_tokens", count, line);
    } else if doc.flat.contains("KV self size =") {
        // Builds to early 2025 print the context of all slots together alone.
        let context = doc.after_all("n_ctx =").find(|at| *at < end);
        if let Some((at, (count, _))) =
            context.and_then(|at| Some((at, leading_number(doc.window(at, 20))?)))
        {
            facts.set("kv_tokens", count, doc.line_at(at));
        }
    }
}

fn settings(doc: &Doc, facts: &mut Facts) {
    for (phrase, name) in [
        ("n_ctx_slot =", "context_len"),
        ("n_ctx_per_seq =", "context_len"),
        ("n_ctx_seq =", "context_len"),
        ("n_ctx =", "context_len"),
        ("n_slots =", "max_running_requests"),
        ("n_slots=", "max_running_requests"),
    ] {
        if let Some(at) = doc.after_all(phrase).last()
            && let Some((value, _)) = leading_number(doc.window(at, 20))
        {
            facts.set_if_absent(name, value, doc.line_at(at));
        }
    }
    // `K (q8_0): 544.00 MiB`.
    if let Some(at) = doc
        .after_all("MiB, K (")
        .chain(doc.after_all(" seqs), K ("))
        .next()
    {
        let word = doc.window(at, 12).split(')').next().unwrap_or("");
        if !matches!(word, "f16" | "") {
            facts.set_if_absent("kv_dtype", word, doc.line_at(at));
        }
    }
    // `print_info: general.name = Qwen3 32B`, `… general.name str = Qwen3 32B`.
    for (number, line) in &doc.lines {
        let Some(at) = line.find("general.name ") else {
            continue;
        };
        let Some((_, value)) = line.get(at..).and_then(|tail| tail.split_once('=')) else {
            continue;
        };
        if value.trim().len() > 2 {
            facts.set_if_absent("model", value.trim(), *number);
            break;
        }
    }
    let formats = ["file type = ", "model ftype = "];
    if let Some(at) = formats
        .iter()
        .find_map(|phrase| doc.after_all(phrase).next())
    {
        let word = doc.window(at, 30).split([' ', '(']).next().unwrap_or("");
        if word.len() > 1 {
            facts.set_if_absent("quant", word.to_ascii_lowercase(), doc.line_at(at));
        }
    }
}

/// `ggml_cuda_init: found 2 CUDA devices:` and `Device 0: NVIDIA GeForce RTX 3090, compute …`.
fn cards(doc: &Doc, facts: &mut Facts) {
    let Some(at) = doc.after_all("ggml_cuda_init: found").next() else {
        return;
    };
    if let Some((count, rest)) = leading_number(doc.window(at, 20))
        && rest.trim_start().starts_with("CUDA")
    {
        facts.set("gpus", count, doc.line_at(at));
    }
    if let Some(at) = doc.after_all("Device 0: ").next() {
        let name = doc.window(at, 80).split(',').next().unwrap_or("");
        facts.set_if_absent("gpu", name.trim(), doc.line_at(at));
    }
}

/// `eval time = 30387.12 ms / 2048 tokens ( 14.84 ms per token, 67.40 tokens per second)`, the median
/// over requests; prompts have a line of their own.
fn speed(doc: &Doc, facts: &mut Facts) {
    let mut speeds = Vec::new();
    let mut last = 0;
    for (number, line) in &doc.lines {
        let Some(at) = line.find("eval time =") else {
            continue;
        };
        let prompt = line
            .get(..at)
            .is_some_and(|before| before.ends_with("prompt "));
        let tail = line.get(at..).unwrap_or("");
        let speed = tail
            .split("ms per token,")
            .nth(1)
            .and_then(leading_number)
            .filter(|(tok_s, rest)| *tok_s > 0.0 && rest.contains("tokens per second"));
        if let Some((tok_s, _)) = speed.filter(|_| !prompt) {
            speeds.push(tok_s);
            last = *number;
        }
    }
    if let Some(middle) = crate::score::quantile(&speeds, 0.5) {
        let how = "the median over requests, each its own speed";
        facts.derive("gen_tok_s", middle, last, how);
    }
}

/// The totals of a drafter: `statistics draft-mtp: #calls(b,g,a) = 1 861 690, #gen drafts = 690, …,
/// #acc tokens = 1186`; newer builds print `mean acceptance length = 2.67`. Passes without a draft
/// give one token each.
fn acceptance(doc: &Doc, facts: &mut Facts) {
    let source = "llama.cpp statistics";
    if let Some(at) = doc.after_all("#mean acc len =").last()
        && let Some((length, _)) = leading_number(doc.window(at, 20))
    {
        facts.set("accept_length", length, doc.line_at(at));
        facts.set("accept_length_source", source, doc.line_at(at));
        return positions(doc, at, facts);
    }
    let lengths: Vec<(f64, usize)> = doc
        .after_all("mean acceptance length =")
        .filter_map(|at| Some((leading_number(doc.window(at, 20))?.0, at)))
        .collect();
    if let Some((_, at)) = lengths.last() {
        let mean = lengths.iter().map(|l| l.0).sum::<f64>() / lengths.len() as f64;
        let how = format!("mean over {} requests", lengths.len());
        facts.derive("accept_length", mean, doc.line_at(*at), how);
        facts.set("accept_length_source", source, doc.line_at(*at));
        return positions(doc, *at, facts);
    }
    let Some(at) = doc.after_all("#calls(b,g,a) =").last() else {
        return requests(doc, facts);
    };
    let accepted = number_after(doc.window(at, 300), "#acc tokens =");
    if let (Some(passes), Some(accepted)) = (passes(doc), accepted) {
        let line = doc.line_at(at);
        let how = "1 + accepted tokens over draft calls, since the start";
        facts.derive("accept_length", 1.0 + accepted / passes, line, how);
        facts.set("accept_length_source", source, line);
    }
}

/// Draft calls of the totals that a log ends with: `#calls(b,g,a) = 1 861 690`, the second.
pub(super) fn passes(doc: &Doc) -> Option<f64> {
    let at = doc.after_all("#calls(b,g,a) =").last()?;
    let second = doc.window(at, 300).split_whitespace().nth(1)?;
    second
        .parse::<f64>()
        .ok()
        .filter(|n| n.is_finite() && *n >= 1.0)
}

/// Draft depth, by the positions that rates are printed for.
fn positions(doc: &Doc, from: usize, facts: &mut Facts) {
    let window = doc.window(from, 300);
    let list = ["rate per position = (", "#acc rate/pos = ("]
        .iter()
        .find_map(|key| window.split(*key).nth(1))
        .and_then(|tail| tail.split(')').next());
    if let Some(list) = list {
        let count = list
            .split(',')
            .filter(|rate| !rate.trim().is_empty())
            .count();
        facts.derive(
            "spec_tokens",
            count as f64,
            doc.line_at(from),
            "positions printed",
        );
    }
}

/// Builds that print a request's counts alone: `eval time = … / 512 tokens` and below it `draft acceptance
/// rate = 0.6 ( 300 accepted / 500 generated)`. What was not accepted a pass gave itself.
fn requests(doc: &Doc, facts: &mut Facts) {
    let (mut given, mut accepted, mut tokens, mut last) = (0.0, 0.0, None, 0);
    for (number, line) in &doc.lines {
        if let Some((_, tail)) = line
            .split_once("eval time =")
            .filter(|_| !line.contains("prompt"))
        {
            tokens = tail
                .split_once('/')
                .and_then(|(_, tail)| leading_number(tail));
        }
        let Some((_, tail)) = line.split_once("draft acceptance rate =") else {
            continue;
        };
        let kept = tail
            .split_once('(')
            .and_then(|(_, tail)| leading_number(tail));
        if let (Some((all, _)), Some((kept, _))) = (tokens.take(), kept) {
            (given, accepted, last) = (given + all, accepted + kept, *number);
        }
    }
    if given > accepted && accepted >= 0.0 && last > 0 {
        let length = (given / (given - accepted) * 1e4).round() / 1e4;
        let how = "tokens over passes, which gave what was not accepted";
        facts.derive("accept_length", length, last, how);
        facts.set("accept_length_source", "llama.cpp requests", last);
    }
}
