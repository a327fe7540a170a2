//! Typed access to a JSON object with the aliases that model families use, with bounds, and with
//! errors that name the field.

use serde_json::Value;

use super::ConfigError;

/// Widest hidden or inner size accepted, elements.
pub(super) const MAX_WIDTH: u64 = 1 << 24;
/// Most layers accepted.
pub(super) const MAX_LAYERS: u64 = 1 << 14;
/// Most heads accepted.
pub(super) const MAX_HEADS: u64 = 1 << 16;
/// Most experts accepted.
pub(super) const MAX_EXPERTS: u64 = 1 << 16;
/// Largest vocabulary accepted.
pub(super) const MAX_VOCAB: u64 = 1 << 30;
/// Longest context accepted, tokens.
pub(super) const MAX_TOKENS: u64 = 1 << 40;

/// A JSON object, its fallback (the outer object of a nested text config) and its path.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    value: &'a Value,
    outer: Option<&'a Value>,
    config: &'a str,
    /// The decoder layer that is read and how many there are: a list with an entry for each
    /// stands for its entry.
    layer: Option<(u64, u64)>,
}

impl<'a> Node<'a> {
    pub(super) fn new(value: &'a Value, config: &'a str) -> Self {
        Self {
            value,
            outer: None,
            config,
            layer: None,
        }
    }

    /// The same object, read for decoder layer `index` of `count`.
    pub(super) fn at_layer(self, index: u64, count: u64) -> Self {
        Self {
            layer: Some((index, count)),
            ..self
        }
    }

    /// The nested language model of a multimodal config, or the node itself.
    pub(super) fn text_model(self) -> Self {
        const NESTS: [&str; 5] = [
            "text_config",
            "llm_config",
            "language_config",
            "thinker_config",
            // Drafts in the speculators format.
            "transformer_layer_config",
        ];
        for name in NESTS {
            if let Some(inner) = self.value.get(name).filter(|v| v.is_object()) {
                let nested = Self {
                    value: inner,
                    outer: Some(self.value),
                    ..self
                };
                // Thinker configs nest once more.
                return if name == "thinker_config" {
                    nested.text_model()
                } else {
                    nested
                };
            }
        }
        self
    }

    /// A nested object.
    pub(super) fn child(&self, name: &str) -> Option<Node<'a>> {
        let value = self.value(name).filter(|value| value.is_object())?;
        Some(Self {
            value,
            outer: None,
            ..*self
        })
    }

    /// A value here, or in the outer object; null counts as absent.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        let here = self.value.get(name).filter(|value| !value.is_null());
        here.or_else(|| self.outer?.get(name).filter(|value| !value.is_null()))
    }

    pub(super) fn error(&self, field: &str, message: &str) -> ConfigError {
        ConfigError {
            config: self.config.to_string(),
            field: field.to_string(),
            message: message.to_string(),
        }
    }

    /// The first of `names` that is present, as a whole number from 0 to `max`.
    pub(super) fn whole(&self, names: &[&str], max: u64) -> Result<Option<u64>, ConfigError> {
        for name in names {
            let Some(value) = self.value(name) else {
                continue;
            };
            return match self.number(value) {
                Some(number) if number <= max => Ok(Some(number)),
                Some(_) => Err(self.error(
                    name,
                    &format!("is {value}, more than the {max} that any model has"),
                )),
                None => Err(self.error(
                    name,
                    &format!("is {}, not a whole number of 0 or more", shown(value)),
                )),
            };
        }
        // Nested text configs leave their family's defaults out; a whole file never does.
        if self.outer.is_some() {
            let kind = self.text("model_type").unwrap_or_default();
            return Ok(names.iter().find_map(|name| family_default(kind, name)));
        }
        Ok(None)
    }

    /// A whole number; of a list the entry of the layer that is read, else the one it repeats
    /// (Hunyuan writes one entry a layer).
    fn number(&self, value: &Value) -> Option<u64> {
        let Some(list) = value.as_array() else {
            return whole_number(value);
        };
        match self.layer {
            Some((index, count)) if list.len() as u64 >= count => {
                whole_number(list.get(usize::try_from(index).ok()?)?)
            }
            // Shorter than the layers are: a handful of equal values, or nothing that can be read.
            Some(_) if list.len() > 64 => None,
            _ => uniform_number(list),
        }
    }

    /// As [`Node::whole`], at least 1, or an error that lists the names looked for.
    pub(super) fn need(&self, names: &[&str], max: u64) -> Result<u64, ConfigError> {
        let first = names.first().copied().unwrap_or_default();
        match self.whole(names, max)? {
            Some(0) => Err(self.error(first, "is 0; it must be at least 1")),
            Some(number) => Ok(number),
            None => Err(self.error(
                first,
                &format!("is missing (looked for {})", names.join(", ")),
            )),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.value(name)?.as_bool()
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.value(name)?.as_str()
    }

    pub(super) fn list(&self, name: &str) -> Option<&'a Vec<Value>> {
        self.value(name)?.as_array()
    }

    /// Entry `index` of a list, as text.
    pub(super) fn listed_text(&self, name: &str, index: u64) -> Option<&'a str> {
        self.list(name)?.get(usize::try_from(index).ok()?)?.as_str()
    }

    /// Entry `index` of a list, as a whole number.
    pub(super) fn listed_whole(&self, name: &str, index: u64) -> Option<u64> {
        whole_number(self.list(name)?.get(usize::try_from(index).ok()?)?)
    }

    pub(super) fn model_type(&self) -> String {
        self.text("model_type").unwrap_or_default().to_string()
    }

    /// `architectures[0]` of this object, else of the outer one, else the model type.
    pub(super) fn architecture(&self) -> String {
        let first = |value: &Value| {
            let name = value.get("architectures")?.as_array()?.first()?.as_str()?;
            Some(name.to_string())
        };
        self.outer
            .and_then(first)
            .or_else(|| first(self.value))
            .unwrap_or_else(|| self.model_type())
    }
}

/// A JSON number that is whole and not negative (`4096`, `4096.0`).
fn whole_number(value: &Value) -> Option<u64> {
    if let Some(number) = value.as_u64() {
        return Some(number);
    }
    let number = value.as_f64()?;
    (number >= 0.0 && number.fract() == 0.0 && number.is_finite()).then_some(number as u64)
}

/// The number that a list repeats.
fn uniform_number(list: &[Value]) -> Option<u64> {
    let first = whole_number(list.first()?)?;
    list.iter()
        .all(|entry| whole_number(entry) == Some(first))
        .then_some(first)
}

/// What a family's configuration class fills in where the file says nothing (transformers).
pub(super) fn family_default(kind: &str, field: &str) -> Option<u64> {
    match (kind, field) {
        ("gemma3_text", "num_attention_heads") => Some(8),
        ("gemma3_text", "num_key_value_heads") => Some(4),
        ("gemma3_text" | "gemma2" | "gemma", "head_dim") => Some(256),
        ("gemma3_text", "vocab_size") => Some(262_208),
        ("gemma3_text", "num_hidden_layers") => Some(26),
        ("llama", "hidden_size") => Some(4096),
        ("llama", "num_hidden_layers" | "num_attention_heads") => Some(32),
        ("llama", "intermediate_size") => Some(11_008),
        ("llama", "vocab_size") => Some(32_000),
        ("mistral", "hidden_size") => Some(4096),
        ("mistral", "num_hidden_layers" | "num_attention_heads") => Some(32),
        ("mistral", "num_key_value_heads") => Some(8),
        ("mistral", "intermediate_size") => Some(14_336),
        ("mistral", "vocab_size") => Some(32_000),
        _ => None,
    }
}

/// A value as shown in an error: short.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 40 {
        let short: String = text.chars().take(37).collect();
        format!("{short}...")
    } else {
        text
    }
}

/// The JSON of a printed config: `Qwen3Config {…}`, as transformers shows it.
pub(super) fn from_first_brace(text: &str) -> &str {
    let trimmed = text.trim_start();
    match trimmed.find('{') {
        Some(brace) if brace > 0 => {
            let head = trimmed.get(..brace).unwrap_or_default().trim_end();
            let is_name = !head.is_empty()
                && head
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            if is_name {
                trimmed.get(brace..).unwrap_or(trimmed)
            } else {
                trimmed
            }
        }
        _ => trimmed,
    }
}

/// Python writes `Infinity` and `NaN` into JSON; outside strings they become null.
pub(super) fn without_bare_constants(text: &str) -> String {
    const CONSTANTS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !CONSTANTS.iter().any(|constant| text.contains(constant)) {
        return text.to_string();
    }
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let constant = CONSTANTS
            .iter()
            .find(|c| !in_string && rest.starts_with(**c));
        if let Some(constant) = constant {
            out.push_str("null");
            rest = &rest[constant.len()..];
            continue;
        }
        if in_string {
            in_string = next != '"' || escaped;
            escaped = next == '\\' && !escaped;
        } else {
            in_string = next == '"';
            escaped = false;
        }
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    out
}
