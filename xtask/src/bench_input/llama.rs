//! Benches of llama.cpp as tables, CSV and SQL.

use super::BenchPoint;
use super::tables::cells;
use crate::explain::text::{Doc, leading_number};

/// Points of any of the forms; generation only.
pub(super) fn points(doc: &Doc) -> Vec<BenchPoint> {
    let points = table(doc);
    if points.is_empty() {
        listed(doc)
    } else {
        points
    }
}

/// llama-bench (`test` = tg128, `t/s`), llama-batched-bench (`B`, `S_TG t/s`) and
/// llama-sweep-bench (`N_KV`, `S_TG t/s`), llama-benchy (`test`, `t/s (total)`).
fn table(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let mut head: Vec<String> = Vec::new();
    for (number, line) in &doc.lines {
        let row = cells(line);
        if row
            .iter()
            .any(|cell| ["t/s", "S_TG t/s", "t/s (total)"].contains(cell))
        {
            head = row.iter().map(|cell| (*cell).to_string()).collect();
            continue;
        }
        if row.len() != head.len() || head.is_empty() {
            continue;
        }
        let cell = |name: &str| {
            let at = head.iter().position(|h| h == name)?;
            row.get(at).copied()
        };
        let figure = |name: &str| cell(name).and_then(leading_number).map(|(value, _)| value);
        let test = cell("test");
        let speed = match test {
            Some(test) if test.starts_with("tg") => figure("t/s (total)").or_else(|| figure("t/s")),
            Some(_) => None,
            None => figure("S_TG t/s"),
        };
        let Some(tok_s) = speed else { continue };
        // `tg128 @ d4096` generates behind that many tokens.
        let depth = test
            .and_then(|test| test.split("@ d").nth(1))
            .and_then(leading_number)
            .map(|(depth, _)| depth);
        // llama-benchy: `tg128 @ d4096 (c4)`.
        let users = test
            .and_then(|test| test.split("(c").nth(1))
            .and_then(leading_number)
            .map(|(users, _)| users);
        points.push(BenchPoint {
            concurrency: Some(figure("B").or(users).unwrap_or(1.0)),
            output_tok_s: Some(tok_s),
            context: if cell("B").is_some() {
                figure("PP")
            } else {
                figure("N_KV").or(depth)
            },
            tool: "llama-bench",
            line: *number,
            ..BenchPoint::default()
        });
    }
    points
}

/// llama-bench -o csv (a header and quoted rows) and -o sql (`INSERT INTO … (names) VALUES (…)`).
fn listed(doc: &Doc) -> Vec<BenchPoint> {
    let mut points = Vec::new();
    let mut head: Vec<String> = Vec::new();
    for (number, line) in &doc.lines {
        let line = line.trim();
        let row = if let Some(insert) = line.strip_prefix("INSERT INTO ") {
            let Some((names, values)) = insert.split_once(") VALUES (") else {
                continue;
            };
            let names = names.split_once('(').map_or("", |(_, names)| names);
            head = fields(names);
            fields(values.trim_end_matches([';', ')']))
        } else {
            if line.contains("avg_ts") {
                head = fields(line);
                continue;
            }
            if head.is_empty() {
                continue;
            }
            fields(line)
        };
        if head.is_empty() || row.len() != head.len() {
            continue;
        }
        let figure = |name: &str| {
            let at = head.iter().position(|h| h == name)?;
            row.get(at)?.parse::<f64>().ok()
        };
        let (Some(tok_s), Some(prompt), Some(generated)) =
            (figure("avg_ts"), figure("n_prompt"), figure("n_gen"))
        else {
            continue;
        };
        if generated > 0.0 && prompt == 0.0 && tok_s.is_finite() {
            points.push(BenchPoint {
                concurrency: Some(1.0),
                output_tok_s: Some(tok_s),
                context: figure("n_depth").filter(|depth| *depth > 0.0),
                tool: "llama-bench",
                line: *number,
                ..BenchPoint::default()
            });
        }
    }
    points
}

/// Fields between commas that stand outside quotes, without the quotes.
pub(super) fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut open: Option<char> = None;
    for c in line.chars() {
        match (open, c) {
            (None, '"' | '\'') => open = Some(c),
            (Some(quote), c) if c == quote => open = None,
            (None, ',') if fields.len() < 128 => fields.push(String::new()),
            (_, c) => {
                if let Some(last) = fields.last_mut() {
                    last.push(c);
                }
            }
        }
    }
    for field in &mut fields {
        *field = field.trim().to_string();
    }
    fields
}
