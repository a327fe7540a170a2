//! Facts of bench outputs.

use super::args::{argument, flag};
use super::facts::Facts;
use super::speeds::LoadSpeed;
use super::text::Doc;
use crate::bench_input::{BenchPoint, Found, points_from_doc, sweep_of_points};

/// Reads bench facts; of several points the last, with a note. Gives what is wrong with a text that
/// begins like JSON and holds no result.
pub(crate) fn read(doc: &Doc, text: &str, facts: &mut Facts) -> Option<String> {
    let Found { points, fault } = points_from_doc(doc, text);
    let Some(last) = points.last() else {
        return fault;
    };
    facts.notes.extend(fault);
    facts.kinds.push(last.tool);
    facts.set("bench_points", points.len() as f64, last.line);
    if points.len() > 1 {
        facts.notes.push(format!(
            "{} bench results in one file; the facts are those of the last, from line {}",
            points.len(),
            last.line
        ));
    }
    pairs(&points, facts);
    point(last, facts);
    served(doc, &points, facts);
    facts.bench_speeds = speeds(&points, facts.number("accept_length"));
    facts.sweep = sweep_of_points(&points, &facts.file, None).ok();
    let at_some_load = || sweep_of_points(&points, &facts.file, Some(1.0)).is_ok();
    facts.nameless_sweep = facts.sweep.is_none() && at_some_load();
    None
}

/// The decode speeds by load, of a load measured again the last. Where some runs print an accept
/// length, theirs; `accept_length` is what the server's own lines show, at the last.
fn speeds(points: &[BenchPoint], accept_length: Option<f64>) -> Vec<LoadSpeed> {
    let told = points.iter().any(|point| point.accept_length.is_some());
    let last = points.len().saturating_sub(1);
    let mut found: Vec<LoadSpeed> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let own = point.accept_length;
        if told && own.is_none() {
            continue;
        }
        let load = point.concurrency.filter(|users| *users >= 1.0);
        let Some(speed) = load.and_then(|running| point.load_speed(running)) else {
            continue;
        };
        found.retain(|known| known.running != speed.running);
        found.push(LoadSpeed {
            accept_length: own.or(accept_length.filter(|_| index == last)),
            ..speed
        });
    }
    found.sort_by(|a, b| a.running.total_cmp(&b.running));
    found
}

/// What ran it: the engine of tools that have but one, the model by name, the accept length of the
/// last speculative run.
fn served(doc: &Doc, points: &[BenchPoint], facts: &mut Facts) {
    let with = points.iter().rev().find(|p| p.accept_length.is_some());
    if let Some((length, line)) =
        with.and_then(|p| Some((p.accept_length?, p.line_of("accept_length"))))
    {
        facts.set("bench_accept_length", length, line);
    }
    let Some(last) = points.last() else { return };
    if let Some(model) = points.iter().find_map(|p| p.model.clone()) {
        facts.set_if_absent("model", model, last.line);
    }
    arguments(doc, facts);
    for name in ["--model", "--model-path", "--model-name", "-m"] {
        let Some((model, at)) = flag(&doc.flat, name) else {
            continue;
        };
        // Python's own -m names the tool.
        let before = doc.flat.get(..at).unwrap_or("").trim_end();
        let interpreter = before.rsplit([' ', '/']).next().unwrap_or("");
        if name == "-m" && interpreter.starts_with("python") {
            continue;
        }
        // A path or a repository; a bare word may be anything.
        if model.len() > 2 && !model.contains(['(', '{', '[']) {
            facts.set_if_absent("model", model, doc.line_at(at));
        }
    }
    for (phrase, ends) in [
        ("\"model\": \"", '"'),
        ("\"model_id\": \"", '"'),
        ("Model: ", ' '),
    ] {
        let Some(at) = doc.after_all(phrase).next() else {
            continue;
        };
        let name = doc.window(at, 200).split(ends).next().unwrap_or("");
        if name.len() > 2 {
            facts.set_if_absent("model", name, doc.line_at(at));
        }
    }
    header(doc, facts);
    if last.tool == "llama-bench" {
        facts.set_if_absent("bench_engine", "llamacpp", last.line);
    }
    // Clients name the interface they speak; only these are an engine's own.
    for (phrase, engine) in [
        ("Backend: sglang", "sglang"),
        ("\"backend\": \"sglang\"", "sglang"),
        ("\"engine\": \"sglang\"", "sglang"),
        ("\"engine\": \"vllm\"", "vllm"),
        ("trtllm-bench", "trtllm"),
    ] {
        if let Some(at) = doc.after_all(phrase).next() {
            facts.set_if_absent("bench_engine", engine, doc.line_at(at));
        }
    }
    for phrase in [
        "Backend: vllm",
        "\"backend\": \"vllm\"",
        "\"endpoint_type\": \"vllm\"",
    ] {
        if let Some(at) = doc.after_all(phrase).next() {
            facts.set_if_absent("bench_backend", "vllm", doc.line_at(at));
        }
    }
    if let Some(held) = last.held_tokens() {
        let how = "the prompt and half the output";
        facts.derive("bench_held_tokens", held.round(), last.line, how);
    }
}

/// What the client printed of its own arguments, `Namespace(backend='vllm', model='…', …)`: the model,
/// and what it spoke to. SGLang's own interface no other engine has; the OpenAI one, by whatever name, any
/// has, so that it is told apart.
fn arguments(doc: &Doc, facts: &mut Facts) {
    for at in doc.after_all("Namespace(") {
        let printed = doc.window(at, 8000).split(')').next().unwrap_or("");
        let line = doc.line_at(at);
        if let Some(model) = argument(printed, "model").filter(|name| name.len() > 2) {
            facts.set_if_absent("model", model, line);
        }
        match argument(printed, "backend").or_else(|| argument(printed, "endpoint_type")) {
            Some("sglang" | "sglang-native") => facts.set_if_absent("bench_engine", "sglang", line),
            Some("sglang-oai" | "sglang-oai-chat") => {
                facts.set_if_absent("bench_backend", "sglang", line);
            }
            Some("vllm" | "vllm-chat") => facts.set_if_absent("bench_backend", "vllm", line),
            _ => {}
        }
    }
}

/// What trtllm-bench prints before its figures.
fn header(doc: &Doc, facts: &mut Facts) {
    let versions = ["TensorRT-LLM Version: ", "TensorRT LLM Version: "];
    let Some(at) = versions.iter().find_map(|key| doc.after_all(key).next()) else {
        return;
    };
    let line = doc.line_at(at);
    facts.set_if_absent("bench_engine", "trtllm", line);
    let word = doc.window(at, 40).split(' ').next().unwrap_or("");
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        facts.set_if_absent("engine_version", word, line);
    }
    for (key, name) in [("TP Size: ", "tp"), ("PP Size: ", "pp")] {
        if let Some(at) = doc.after_all(key).next()
            && let Some((value, _)) = super::text::leading_number(doc.window(at, 10))
        {
            facts.set_if_absent(name, value, doc.line_at(at));
        }
    }
}

/// Runs with and without speculation: comparable only at one concurrency.
fn pairs(points: &[BenchPoint], facts: &mut Facts) {
    let speculative = |point: &&BenchPoint| point.accept_length.is_some();
    let plain: Vec<&BenchPoint> = points.iter().filter(|p| !speculative(p)).collect();
    let mut compared = 0;
    for with in points.iter().filter(speculative).take(64) {
        let other = plain.iter().rev().find(|without| {
            without.concurrency == with.concurrency && without.context == with.context
        });
        let Some((fast, slow)) = other.and_then(|o| with.output_tok_s.zip(o.output_tok_s)) else {
            continue;
        };
        compared += 1;
        // Of a load that is told the ratio is given as of any two files.
        if slow > 0.0 && with.concurrency.is_none() {
            facts.notes.push(format!(
                "with speculation {fast:.1} tok/s, without {slow:.1}: {:.2}x",
                fast / slow
            ));
        }
    }
    if compared == 0 && !plain.is_empty() && plain.len() < points.len() {
        facts.notes.push(
            "the runs with and without speculation differ in concurrency too: they do not say \
             whether it pays"
                .to_string(),
        );
    }
}

fn point(point: &BenchPoint, facts: &mut Facts) {
    for (name, value) in point.figures() {
        if let Some(value) = value {
            facts.set(name, value, point.line_of(name));
        }
    }
    if point.accept_length.is_some() {
        let line = point.line_of("accept_length");
        facts.set("accept_length_source", "bench accept length", line);
    }
}
