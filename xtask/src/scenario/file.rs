//! Scenario files: what is served, what was observed (with its source), what is assumed.

use serde::Deserialize;

use crate::input;

/// Built-in scenarios by name.
const BUILT_IN: [(&str, &str); 1] = [(
    DEFAULT,
    include_str!("../../catalog/scenarios/kimi-k2.5-8x-rtx-pro-6000.toml"),
)];

/// The scenario of `predict` without flags.
pub(crate) const DEFAULT: &str = "kimi-k2.5-8x-rtx-pro-6000";

/// A scenario as written. Flags given beside it win.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScenarioFile {
    pub(crate) name: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) quant: Option<String>,
    pub(crate) draft: Option<String>,
    #[serde(rename = "box")]
    pub(crate) box_name: Option<String>,
    pub(crate) gpu: Option<String>,
    pub(crate) gpus: Option<u32>,
    pub(crate) topology: Option<String>,
    pub(crate) tp: Option<u32>,
    pub(crate) ep: Option<u32>,
    pub(crate) dcp: Option<u32>,
    pub(crate) engine: Option<String>,
    pub(crate) mem_fraction: Option<f64>,
    pub(crate) kv_dtype: Option<String>,
    pub(crate) attention_backend: Option<String>,
    #[serde(default, deserialize_with = "as_typed")]
    pub(crate) context: Option<String>,
    #[serde(default, deserialize_with = "as_typed")]
    pub(crate) concurrency: Option<String>,
    pub(crate) steps: Option<u32>,
    pub(crate) topk: Option<u32>,
    pub(crate) draft_tokens: Option<u32>,
    pub(crate) accept: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) temperature: Option<f64>,
    pub(crate) baseline: Option<String>,
    #[serde(default, deserialize_with = "as_typed")]
    pub(crate) baseline_context: Option<String>,
    pub(crate) allreduce: Option<String>,
    #[serde(default)]
    pub(crate) observed: ObservedFile,
    #[serde(default)]
    pub(crate) assumed: AssumedFile,
}

/// What was seen on the machine.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ObservedFile {
    pub(crate) free_before_gib: Option<Figure>,
    pub(crate) free_after_gib: Option<Figure>,
    pub(crate) weights_gib: Option<Figure>,
    pub(crate) kv_gib: Option<Figure>,
    pub(crate) mem_fraction: Option<Figure>,
    pub(crate) verify_ms: Option<Figure>,
    pub(crate) plain_tok_s: Option<Figure>,
    pub(crate) spec_tok_s: Option<Figure>,
    /// Public figures for boxes of this class.
    pub(crate) public: Option<Vec<Public>>,
    /// Whether another draft is asked for than the one of the speculative figures.
    #[serde(skip)]
    pub(crate) of_another_draft: bool,
}

/// An observed figure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) source: String,
    /// Tokens verified per sequence, for a verify time.
    pub(crate) tokens: Option<u32>,
    /// The all-reduce it was seen with.
    pub(crate) allreduce: Option<String>,
}

/// A published figure to stand beside the computed one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Public {
    pub(crate) what: PublicKind,
    pub(crate) value: f64,
    pub(crate) source: String,
    /// Accept length of a speculative figure, and the draft steps that it is of.
    pub(crate) accept_length: Option<f64>,
    pub(crate) steps: Option<u32>,
}

/// Which figure was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PublicKind {
    /// Plain tokens a second, one user.
    PlainTokS,
    /// Speculative tokens a second, one user.
    SpecTokS,
}

/// What nobody observed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssumedFile {
    pub(crate) accept_length: Option<AssumedAccept>,
    pub(crate) context: Option<AssumedContext>,
}

/// An assumed accept length with its range.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssumedAccept {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) depth: u32,
    pub(crate) why: String,
}

/// An assumed context.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssumedContext {
    pub(crate) value: u64,
    pub(crate) why: String,
}

/// A number, a text such as `"32k"` or a list, as the flag of the same name takes it.
fn as_typed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    fn text(value: &toml::Value) -> Option<String> {
        match value {
            toml::Value::String(text) => Some(text.clone()),
            toml::Value::Integer(number) => Some(number.to_string()),
            toml::Value::Array(list) => {
                let parts: Option<Vec<String>> = list.iter().map(text).collect();
                parts.map(|parts| parts.join(","))
            }
            _ => None,
        }
    }
    let value = toml::Value::deserialize(deserializer)?;
    text(&value).map(Some).ok_or_else(|| {
        serde::de::Error::custom("give a whole number, a text such as \"32k\", or a list of them")
    })
}

/// The parser's words for types, as people write them.
fn in_words(message: &str) -> String {
    message
        .replace("expected u32", "expected a whole number of 0 or more")
        .replace("expected u64", "expected a whole number of 0 or more")
        .replace("expected f64", "expected a number")
        .replace("expected a string", "expected a text in quotes")
        .replace("expected a sequence", "expected a list in brackets")
        .replace("floating point", "number")
        .replace("sequence", "list")
        .replace("struct ", "table ")
}

impl ScenarioFile {
    /// The built-in scenario of a name, or the file of a path.
    pub(crate) fn load(name: &str) -> anyhow::Result<Self> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(have, _)| *have == name) {
            return Self::parse(text, name);
        }
        let path = std::path::Path::new(name);
        if !path.exists() {
            let known: Vec<&str> = BUILT_IN.iter().map(|b| b.0).collect();
            return Err(input::error(format!(
                "--scenario {name}: neither a built-in scenario ({}) nor a file",
                known.join(", ")
            )));
        }
        Self::parse(&input::read_text(path)?, name)
    }

    fn parse(text: &str, name: &str) -> anyhow::Result<Self> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                1 + text[..span.start.min(text.len())].matches('\n').count()
            });
            input::error(format!("{name}:{line}: {}", in_words(error.message())))
        })?;
        file.check(name)?;
        Ok(file)
    }

    fn check(&self, name: &str) -> anyhow::Result<()> {
        let figures = [
            ("free_before_gib", &self.observed.free_before_gib),
            ("free_after_gib", &self.observed.free_after_gib),
            ("weights_gib", &self.observed.weights_gib),
            ("kv_gib", &self.observed.kv_gib),
            ("mem_fraction", &self.observed.mem_fraction),
            ("verify_ms", &self.observed.verify_ms),
            ("plain_tok_s", &self.observed.plain_tok_s),
            ("spec_tok_s", &self.observed.spec_tok_s),
        ];
        for public in self.observed.public.iter().flatten() {
            if !(public.value.is_finite() && public.value > 0.0) {
                return Err(input::error(format!(
                    "{name}: observed.public value = {} is not a positive figure",
                    public.value
                )));
            }
            let steps = public.steps.unwrap_or(1);
            let accepts = public.accept_length.unwrap_or(1.0);
            if !(1..=64).contains(&steps) || !(1.0..=f64::from(steps) + 1.0).contains(&accepts) {
                return Err(input::error(format!(
                    "{name}: observed.public must have 1 <= accept_length <= steps + 1, and 1 to 64 steps"
                )));
            }
        }
        for (key, figure) in figures {
            if let Some(figure) = figure
                && !(figure.value.is_finite() && figure.value > 0.0 && figure.value < 1e9)
            {
                return Err(input::error(format!(
                    "{name}: observed.{key} = {} is not a positive figure",
                    figure.value
                )));
            }
        }
        if let Some(a) = &self.assumed.accept_length {
            let top = f64::from(a.depth) + 1.0;
            let ordered = 1.0 <= a.low && a.low <= a.value && a.value <= a.high && a.high <= top;
            if !(1..=64).contains(&a.depth) || !ordered {
                return Err(input::error(format!(
                    "{name}: assumed.accept_length must have 1 <= low <= value <= high <= depth + 1"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_scenarios_parse() {
        for (name, _) in BUILT_IN {
            ScenarioFile::load(name).expect(name);
        }
    }

    #[test]
    fn a_misspelt_key_names_its_line() {
        let error = ScenarioFile::parse("model = \"a\"\nmodle = \"b\"\n", "s.toml")
            .expect_err("unknown key")
            .to_string();
        assert!(error.starts_with("s.toml:2: "), "{error}");
    }

    #[test]
    fn an_accept_range_out_of_order_is_refused() {
        let text = "[assumed]\naccept_length = { value = 2.9, low = 3.0, high = 3.2, depth = 3, why = \"\" }\n";
        assert!(ScenarioFile::parse(text, "s.toml").is_err());
    }
}
