//! What a file says: facts by name, each with the line it came from.

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::speeds::LoadSpeed;
use crate::bench_input::Sweep;

/// Facts that count: a part of one (`85.648 tokens`) was meant otherwise.
const COUNTS: [&str; 10] = [
    "kv_tokens",
    "gpu_blocks",
    "max_running_requests",
    "context_len",
    "max_model_len",
    "chunked_prefill_size",
    "tp",
    "ranks",
    "gpus",
    "spec_steps",
];

/// A value as read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Value {
    /// A number, in the unit that the fact's name ends with.
    Number(f64),
    /// A word.
    Text(String),
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One fact.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fact {
    /// The name, with its unit, as in `explain --json`.
    pub(crate) name: &'static str,
    /// The value.
    pub(crate) value: Value,
    /// The file, as the user named it.
    pub(crate) file: String,
    /// Line in that file, from 1.
    pub(crate) line: usize,
    /// How it follows from the text where it is not simply printed there.
    pub(crate) how: Option<String>,
}

/// Facts in the order they were found, one per name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts {
    /// The file, as the user named it.
    pub(crate) file: String,
    /// What the text was recognised as, most certain first (`sglang-log`, `nccl-tests`, …).
    pub(crate) kinds: Vec<&'static str>,
    /// The facts.
    list: Vec<Fact>,
    /// What a reader should know: several runs in one file, a cut end, a contradiction.
    pub(crate) notes: Vec<String>,
    /// Generation speeds by load that a server's log shows, rising.
    pub(crate) speeds: Vec<LoadSpeed>,
    /// Ranks of data parallelism that printed them, each a part of the server.
    pub(crate) speed_printers: usize,
    /// Which throughput windows drafted, of a server that was told to.
    pub(crate) windows: Option<super::speeds::Windows>,
    /// First line of the start that the facts are of; 0 where there is but one.
    pub(crate) run_line: usize,
    /// Speeds by load of a bench printed into the text, rising.
    pub(crate) bench_speeds: Vec<LoadSpeed>,
    /// A plain sweep in a bench output, as `--baseline` takes it.
    pub(crate) sweep: Option<Sweep>,
    /// A plain bench output that does not say at which load it ran.
    pub(crate) nameless_sweep: bool,
    /// What a start line of the same engine takes over from the printed arguments.
    pub(crate) carried: super::carried::Carried,
    /// The releases by whose server arguments it was printed, the first and the first after them, and the
    /// line.
    pub(crate) printed_by: Option<(super::arguments::Bounds, usize)>,
    /// Whether releases that are told other flags may have printed it.
    pub(crate) version_open: bool,
    /// Whether `--topology` reads more than one GPU's wiring from it.
    pub(crate) wired: bool,
}

/// Name of the fact that [`Facts::eager`] gives.
pub(crate) const EAGER: &str = "cuda_graph_disabled";

impl Facts {
    /// No facts yet.
    pub(crate) fn new(file: &str) -> Self {
        Self {
            file: file.to_string(),
            ..Self::default()
        }
    }

    /// Speeds of a bench whose runs say that they drafted.
    pub(crate) fn drafted_bench(&self) -> &[LoadSpeed] {
        match self.get("bench_accept_length") {
            Some(_) => &self.bench_speeds,
            None => &[],
        }
    }

    /// That the server captures no CUDA graphs, whichever of its settings says so.
    pub(crate) fn eager(&self) -> Option<&Fact> {
        self.get(EAGER)
    }

    /// The fact whose name or class is that of a diffusion language model, and what it says.
    pub(crate) fn denoises(&self) -> Option<(&Fact, &str)> {
        let named = ["model_class", "model"].into_iter();
        let mut told = named.filter_map(|name| Some((self.get(name)?, self.text(name)?)));
        told.find(|(_, name)| kvplan::denoises(name))
    }

    /// Sets a fact that is printed at `line`, replacing an earlier one of that name.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Value>, line: usize) {
        self.put(name, value.into(), line, None);
    }

    /// Sets a fact that follows from the text; `how` says by what arithmetic.
    pub(crate) fn derive(
        &mut self,
        name: &'static str,
        value: impl Into<Value>,
        line: usize,
        how: impl Into<String>,
    ) {
        self.put(name, value.into(), line, Some(how.into()));
    }

    /// Sets a fact unless one of that name is there.
    pub(crate) fn set_if_absent(
        &mut self,
        name: &'static str,
        value: impl Into<Value>,
        line: usize,
    ) {
        if self.get(name).is_none() {
            self.set(name, value, line);
        }
    }

    fn put(&mut self, name: &'static str, value: Value, line: usize, how: Option<String>) {
        let part = |number: f64| COUNTS.contains(&name) && number.fract() != 0.0;
        if matches!(value, Value::Number(number) if !number.is_finite() || part(number)) {
            return;
        }
        // A mean of printed lengths: digits beyond those are the arithmetic's.
        let value = match value {
            Value::Number(n) if name == "accept_length" => Value::Number((n * 1e9).round() / 1e9),
            value => value,
        };
        let fact = Fact {
            name,
            value,
            file: self.file.clone(),
            line,
            how,
        };
        match self.list.iter_mut().find(|known| known.name == name) {
            Some(known) => *known = fact,
            None => self.list.push(fact),
        }
    }

    /// Takes a fact over from another file, with its place there.
    pub(crate) fn adopt(&mut self, fact: Fact) {
        self.remove(fact.name);
        self.list.push(fact);
    }

    /// Takes a fact away: what looked like it was something else.
    pub(crate) fn remove(&mut self, name: &str) {
        self.list.retain(|fact| fact.name != name);
    }

    /// A fact by name.
    pub(crate) fn get(&self, name: &str) -> Option<&Fact> {
        self.list.iter().find(|fact| fact.name == name)
    }

    /// A number by name.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)?.value {
            Value::Number(number) => Some(number),
            Value::Text(_) => None,
        }
    }

    /// A word by name.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            Value::Text(text) => Some(text),
            Value::Number(_) => None,
        }
    }

    /// All facts, in the order found.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fact> {
        self.list.iter()
    }

    /// Nothing was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// `{name: {value, file, line, how?}}`; names in `expected` that were not found are null.
    pub(crate) fn to_json(&self, expected: &[&str]) -> Json {
        let mut map = Map::new();
        for fact in &self.list {
            let mut entry = json!({"value": fact.value, "file": fact.file, "line": fact.line});
            if let (Some(how), Some(object)) = (&fact.how, entry.as_object_mut()) {
                object.insert("how".to_string(), json!(how));
            }
            map.insert(fact.name.to_string(), entry);
        }
        for name in expected {
            map.entry((*name).to_string())
                .or_insert_with(|| json!({"value": null}));
        }
        Json::Object(map)
    }
}
