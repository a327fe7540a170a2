//! `inputs.facts`: what `explain` reads in the pasted files against their right readings.

use std::path::Path;

use serde_json::Value;

use super::{Area, json_lines};
use crate::explain::{Facts, Value as Read, facts_from_text};

/// Scores every fact of `inputs/readings.jsonl`.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let folder = data.join("inputs");
    let readings = folder.join("readings.jsonl");
    if !readings.is_file() {
        return Ok(Vec::new());
    }
    let mut area = Area::new("inputs.facts");
    let (mut right, mut wrong) = (0, Vec::new());
    for row in json_lines(&readings)? {
        let Some(file) = row.get("file").and_then(Value::as_str) else {
            area.skipped += 1;
            continue;
        };
        let text = crate::input::read_text(&folder.join(file))?;
        let facts = facts_from_text(&text, file);
        let expected = row.get("facts").and_then(Value::as_object);
        for (name, value) in expected.into_iter().flatten() {
            area.n += 1;
            match misread(&facts, name, value) {
                None => right += 1,
                Some(read) => wrong.push(format!("{file}: {name} is {value}, read as {read}")),
            }
        }
    }
    area.right = (area.n > 0).then(|| f64::from(right) / area.n as f64);
    area.notes = wrong;
    Ok(vec![area])
}

/// What was read instead, where it is not what the reading says.
fn misread(facts: &Facts, name: &str, expected: &Value) -> Option<String> {
    let read = facts.get(name).map(|fact| &fact.value);
    let good = match (expected, read) {
        (Value::Null, None) => true,
        (Value::Number(right), Some(Read::Number(read))) => {
            let allowed = rounding(&right.to_string());
            right
                .as_f64()
                .is_some_and(|right| (right - read).abs() <= allowed)
        }
        (Value::String(right), Some(Read::Text(read))) => right == read,
        _ => false,
    };
    (!good).then(|| match read {
        None => "nothing".to_string(),
        Some(Read::Number(number)) => number.to_string(),
        Some(Read::Text(text)) => text.clone(),
    })
}

/// Half a unit of the last digit printed.
fn rounding(printed: &str) -> f64 {
    let decimals = printed.split('.').nth(1).map_or(0, str::len);
    let exponent = i32::try_from(decimals).unwrap_or(0);
    0.5 * 10_f64.powi(-exponent) * (1.0 + 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_where_the_file_says_nothing_is_wrong() {
        let mut facts = Facts::new("f");
        assert_eq!(misread(&facts, "kv_tokens", &Value::Null), None);
        facts.set("kv_tokens", 1.0, 1);
        assert!(misread(&facts, "kv_tokens", &Value::Null).is_some());
    }

    #[test]
    fn half_a_unit_of_the_last_printed_digit_is_allowed() {
        assert!(rounding("52.1") < 0.0501 && rounding("52.1") > 0.0499);
        assert!(rounding("13840") < 0.501);
    }
}
