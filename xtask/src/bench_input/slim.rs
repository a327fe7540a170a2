//! JSON without its ballast: detailed bench results carry a list of texts and latencies a request,
//! tens of megabytes that no reader here looks at.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Plain figures and texts of a list that are kept.
const MOST_PLAIN: usize = 64;

/// Objects and lists of a list that are kept.
const MOST_NESTED: usize = 20_000;

/// Longest text kept, bytes.
const MOST_TEXT: usize = 4096;

/// A value whose long lists were cut.
pub(super) struct Slim(pub(super) Value);

impl<'de> Deserialize<'de> for Slim {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Shape)
    }
}

struct Shape;

impl<'de> Visitor<'de> for Shape {
    type Value = Slim;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Slim, E> {
        Ok(Slim(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Slim, E> {
        Ok(Slim(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Slim, E> {
        Ok(Slim(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Slim, E> {
        Ok(Slim(
            Number::from_f64(value).map_or(Value::Null, Value::Number),
        ))
    }

    fn visit_str<E>(self, value: &str) -> Result<Slim, E> {
        let kept = if value.len() > MOST_TEXT { "" } else { value };
        Ok(Slim(Value::String(kept.to_string())))
    }

    fn visit_unit<E>(self) -> Result<Slim, E> {
        Ok(Slim(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Slim, A::Error> {
        let mut kept = Vec::new();
        let (mut plain, mut nested) = (0, 0);
        while plain < MOST_PLAIN && nested < MOST_NESTED {
            let Some(Slim(item)) = items.next_element()? else {
                return Ok(Slim(Value::Array(kept)));
            };
            match item {
                Value::Object(_) | Value::Array(_) => nested += 1,
                _ => plain += 1,
            }
            kept.push(item);
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Slim(Value::Array(kept)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Slim, A::Error> {
        let mut map = Map::new();
        while let Some((key, Slim(value))) = entries.next_entry::<String, Slim>()? {
            map.insert(key, value);
        }
        Ok(Slim(Value::Object(map)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_figures_are_cut_and_what_follows_them_is_read() {
        let text = format!(
            r#"{{"itls": [[{}1]], "b": 2.5, "c": null}}"#,
            "0.01,".repeat(1000)
        );
        let Slim(value) = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["b"], 2.5);
        assert_eq!(value["itls"][0].as_array().map(Vec::len), Some(MOST_PLAIN));
    }
}
