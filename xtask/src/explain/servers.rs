//! Which server a text is of, where it holds more than one.

use super::facts::Facts;
use super::text::{Doc, by_name, leading_number};
use super::{facts_from_doc, sglang, vllm};

/// Reads the log of SGLang or vLLM. Where one text holds both, the one that says more of its memory
/// counts; mixed, their figures would be of no server at all.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    one(doc, facts);
    // `GPU 0 has a total capacity of 23.69 GiB of which 1.20 GiB is free`, as torch ends it.
    if let Some(at) = doc.after_all("has a total capacity of").last()
        && let Some((gib, rest)) = leading_number(doc.window(at, 30))
        && rest.trim_start().starts_with("GiB")
        && facts.text("engine").is_some()
    {
        facts.set_if_absent("total_gib", gib, doc.line_at(at));
    }
}

fn one(doc: &Doc, facts: &mut Facts) {
    let mut first = facts.clone();
    sglang::read(doc, &mut first);
    let mut second = facts.clone();
    vllm::read(doc, &mut second);
    let known = |facts: &Facts| facts.text("engine").is_some();
    if !(known(&first) && known(&second)) {
        *facts = if known(&second) { second } else { first };
        return;
    }
    let (kept, other) = if memory(&second) > memory(&first) {
        (second, first)
    } else {
        (first, second)
    };
    *facts = kept;
    if memory(&other) > 0 {
        let line = other.get("engine").map_or(1, |fact| fact.line);
        facts.notes.push(format!(
            "a {} log too, from line {line}: its figures are left out; give each server's log in a \
             file of its own",
            other.text("engine").unwrap_or("second")
        ));
    }
}

/// How much is said of memory and speed.
pub(super) fn memory(facts: &Facts) -> usize {
    const NAMES: [&str; 9] = [
        "weights_gib",
        "kv_gib",
        "kv_tokens",
        "free_before_gib",
        "free_after_gib",
        "graph_gib",
        "max_concurrency",
        "gen_tok_s",
        "accept_length",
    ];
    let known = NAMES.iter().filter(|name| facts.get(name).is_some());
    known.count()
}

/// Longest text that is taken apart by its names.
const LONGEST_TEXT: usize = 32 << 20;

/// The facts of one server of several whose lines are interleaved, each behind its name: the one that
/// says most; the others are named. `None` where the text is of one.
pub(super) fn one_of_several(text: &str, name: &str) -> Option<Facts> {
    if text.len() > LONGEST_TEXT {
        return None;
    }
    let parts = by_name(text);
    let read = |part: &(&str, String)| {
        let doc = Doc::new(&part.1);
        (part.0.to_string(), facts_from_doc(&doc, &part.1, name))
    };
    let mut servers: Vec<(String, Facts)> = parts
        .iter()
        .map(read)
        .filter(|(_, facts)| facts.text("engine").is_some() && memory(facts) > 1)
        .collect();
    if servers.len() < 2 {
        return None;
    }
    // Of equals the first.
    servers.reverse();
    let best = servers
        .iter()
        .enumerate()
        .max_by_key(|(_, s)| memory(&s.1))?
        .0;
    let (kept, mut facts) = servers.swap_remove(best);
    let others: Vec<&str> = servers
        .iter()
        .rev()
        .map(|(name, _)| name.as_str())
        .collect();
    facts.notes.push(format!(
        "several servers in one file; the facts are those of {kept}, not of {}: give each in a file of \
         its own",
        others.join(", ")
    ));
    Some(facts)
}
