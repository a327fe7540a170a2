//! Samples made for these tests, each in a shape in which logs and results travel: compose and
//! journal prefixes, container records, quoted mails, the less usual output formats of benches.

use anyhow::Context;
use serde_json::Value;

use super::{Value as Read, facts_from_text};

#[test]
fn samples_in_travelling_shapes_are_read_right_and_say_nothing_more() -> anyhow::Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shapes");
    let expected = std::fs::read_to_string(format!("{folder}/expected.jsonl"))?;
    let mut wrong = Vec::new();
    for row in expected.lines() {
        let row: Value = serde_json::from_str(row)?;
        let file = row["file"].as_str().context("a file")?;
        let text = std::fs::read_to_string(format!("{folder}/{file}")).context(file.to_string())?;
        let facts = facts_from_text(&text, file);
        for (name, value) in row["facts"].as_object().into_iter().flatten() {
            let read = facts.get(name).map(|fact| &fact.value);
            let good = match (value, read) {
                (Value::Null, None) => true,
                (Value::Number(right), Some(Read::Number(read))) => right
                    .as_f64()
                    .is_some_and(|right| (right - read).abs() <= 6e-4 * right.abs().max(1e-3)),
                (Value::String(right), Some(Read::Text(read))) => right == read,
                _ => false,
            };
            if !good {
                wrong.push(format!("{file}: {name} is {value}, read as {read:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn a_very_long_line_is_cut_and_said_to_be() {
    let text = format!("{} Decode batch", "x".repeat(3 << 20));
    let facts = facts_from_text(&text, "f");
    assert!(
        facts
            .notes
            .iter()
            .any(|note| note.contains("longer than 1 MiB"))
    );
    assert!(facts.kinds.is_empty());
}
