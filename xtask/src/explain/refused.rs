//! A request that a server refused as too long: how long it was, and the lines that one error takes.

use super::facts::Facts;
use super::text::{Doc, leading_number, number_after};

/// The longest request that was refused.
#[derive(Debug, Default)]
pub(super) struct Longest {
    /// Its tokens, the server's limit, and the line.
    found: Option<(f64, Option<f64>, usize)>,
}

/// Bytes before the phrase that a message has room in.
const BEFORE: usize = 120;

impl Longest {
    /// `maximum context length is 6144 tokens. However, your request has 18244677 input tokens`,
    /// `… However, you requested 9000 tokens (8000 in the messages, …`, of SGLang `The input (9000 tokens)
    /// is longer than the model's context length (4096 tokens)`.
    pub(super) fn read(&mut self, doc: &Doc, (start, end): (usize, usize), line: usize) {
        let mut from = start.saturating_sub(BEFORE);
        while !doc.flat.is_char_boundary(from) {
            from -= 1;
        }
        let before = doc.flat.get(from..start).unwrap_or("");
        let rest = doc.window(end, BEFORE);
        let last = |key: &str| Some(leading_number(before.rsplit_once(key)?.1)?.0);
        let of_sglang = last("The input (");
        let tokens = of_sglang.or_else(|| leading_number(rest).map(|(tokens, _)| tokens));
        let limit = match of_sglang {
            Some(_) => number_after(rest, "("),
            None => last("maximum context length is"),
        };
        let Some(tokens) = tokens.filter(|tokens| *tokens >= 1.0) else {
            return;
        };
        if self.found.is_none_or(|(longest, ..)| tokens > longest) {
            self.found = Some((tokens, limit, line));
        }
    }

    pub(super) fn put(&self, facts: &mut Facts) {
        let Some((tokens, limit, line)) = self.found else {
            return;
        };
        facts.set("rejected_tokens", tokens, line);
        if let Some(limit) = limit {
            facts.set("rejected_limit", limit, line);
        }
    }
}

/// Where a line was logged, `[serving_chat.py:251]`, of one that says ERROR.
fn logged_at(text: &str) -> Option<&str> {
    let (before, rest) = text
        .split_once('[')
        .filter(|(before, _)| before.contains("ERROR"))?;
    let (place, _) = rest.split_once(']')?;
    (!before.is_empty() && place.contains(".py:")).then_some(place)
}

/// Adds to the lines that were judged those of the same error: its traceback is logged line by line
/// from one place.
pub(super) fn with_tracebacks(doc: &Doc, judged: &mut Vec<usize>) {
    let mut more = Vec::new();
    for line in judged.iter() {
        let Ok(at) = doc.lines.binary_search_by_key(line, |(number, _)| *number) else {
            continue;
        };
        let text_of = |(_, text): &(usize, String)| logged_at(text).map(str::to_string);
        let Some(place) = doc.lines.get(at).and_then(text_of) else {
            continue;
        };
        let known = more.last().copied().unwrap_or(0);
        let above = doc.lines.iter().take(at).rev();
        let same = above.take_while(|(number, text)| {
            *number > known && logged_at(text) == Some(place.as_str())
        });
        let mut block: Vec<usize> = same.map(|(number, _)| *number).collect();
        block.reverse();
        more.extend(block);
        more.push(*line);
    }
    judged.extend(more);
    judged.sort_unstable();
    judged.dedup();
}
