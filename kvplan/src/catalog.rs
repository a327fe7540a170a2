//! The model catalogue: architecture facts with their source, embedded in the library.
//!
//! An entry keeps the fields of the model's `config.json` that matter and nothing else, so one
//! reader serves both; formats that a config would carry are named (`default_quant`, `quants`).

mod names;

use std::fmt;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use crate::formats::{KvDtype, WeightFormat};
use crate::model::{Ffn, Model};
use crate::quant::{QUANT_NAMES, Quant, format_named};
use names::{normal, taken_apart};
pub use names::{precision_in, stored_fp8};

const FILES: [&str; 10] = [
    include_str!("../catalog/deepseek.json"),
    include_str!("../catalog/gemma.json"),
    include_str!("../catalog/glm.json"),
    include_str!("../catalog/gpt-oss.json"),
    include_str!("../catalog/kimi.json"),
    include_str!("../catalog/llama.json"),
    include_str!("../catalog/minimax.json"),
    include_str!("../catalog/nemotron.json"),
    include_str!("../catalog/other.json"),
    include_str!("../catalog/qwen.json"),
];

/// One model of the catalogue.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// Catalogue name: the repository's, lower case, without organisation, precision, 'instruct'.
    pub name: String,
    /// Other names for the same shapes.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Where the facts come from.
    pub source: String,
    /// The public repository of its usual precision, as its makers spell it, where it is the one to serve.
    pub repository: Option<String>,
    /// Published parameter count, in 10^9, where there is one for what `params()` counts.
    pub published_params_b: Option<f64>,
    /// Precision of the checkpoint most people load.
    pub default_quant: String,
    #[serde(default)]
    quants: std::collections::BTreeMap<String, QuantEntry>,
    /// Positions of the releases of these shapes that reach further or less than `config`, by what
    /// their names hold.
    #[serde(default)]
    positions: std::collections::BTreeMap<String, u64>,
    like: Option<String>,
    config: Option<Value>,
    #[serde(default)]
    drafts: std::collections::BTreeMap<String, DraftEntry>,
}

#[derive(Debug, Clone, Deserialize)]
struct QuantEntry {
    format: String,
    groups: Vec<String>,
    kv: Option<String>,
    /// Width of the feed-forward where the quantised checkpoint pads it.
    intermediate_size: Option<u64>,
}

/// A draft head of the catalogue.
#[derive(Debug, Clone, Deserialize)]
struct DraftEntry {
    source: String,
    config: Value,
}

/// A model of the catalogue with its provenance.
#[derive(Debug, Clone)]
pub struct Found {
    /// The model in the asked precision.
    pub model: Model,
    /// Catalogue name.
    pub name: String,
    /// The precision it is in.
    pub quant: String,
    /// Where the facts come from.
    pub source: String,
}

/// What drafts for a model.
#[derive(Debug, Clone)]
pub enum Draft {
    /// The target's own MTP layers.
    Mtp,
    /// A separate head or model.
    Head {
        /// Its shapes.
        model: Box<Model>,
        /// Where they come from.
        source: String,
    },
}

/// A name that is not in the catalogue, or a precision or draft that a model does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// What was asked for.
    pub wanted: String,
    /// One line with near matches, ready to print.
    pub message: String,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for NotFound {}

/// All entries. The embedded files are checked by a test; one that did not parse would be empty.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        FILES
            .iter()
            .filter_map(|text| serde_json::from_str::<Vec<Entry>>(text).ok())
            .flatten()
            .collect()
    })
}

/// Catalogue names, sorted.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = entries().iter().map(|entry| entry.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// A model by name in its usual precision. Takes a repository name too (`Qwen/Qwen3-32B-FP8`).
///
/// # Errors
/// One line with near matches.
pub fn find(name: &str) -> Result<Found, NotFound> {
    find_in(name, None)
}

/// The public repository of a model that is named as the catalogue does, where it is known.
pub fn repository(name: &str) -> Option<&'static str> {
    let own = |entry: &&Entry| entry.name.eq_ignore_ascii_case(name.trim());
    entries().iter().find(own)?.repository.as_deref()
}

/// A model by name in the precision `quant`, or where that is `None` in the one its name says, or
/// in its usual one.
///
/// # Errors
/// One line with near matches, or with the precisions known.
pub fn find_in(name: &str, quant: Option<&str>) -> Result<Found, NotFound> {
    let (entry, in_name) = lookup(name)?;
    let wanted = quant.map(str::to_string).or(in_name);
    let wanted = wanted.unwrap_or_else(|| entry.default_quant.clone());
    let mut model = entry.shapes()?;
    model.max_positions = entry.positions_of(&normal(name)).or(model.max_positions);
    if wanted.trim().eq_ignore_ascii_case("fp8") && entry.default_quant != "fp8" {
        model.assumptions.extend(entry.published_fp8());
    }
    for part in wanted.split('+') {
        let quant = entry.quant(part).ok_or_else(|| NotFound {
            wanted: part.to_string(),
            message: format!("`{part}` is no weight format for {name}; known: {QUANT_NAMES}"),
        })?;
        model = apply(model, &quant, part == wanted);
        if let Some(padded) = entry.padded_inter(part) {
            for layer in &mut model.layers {
                if let Ffn::Dense { inter, .. } = &mut layer.ffn {
                    *inter = padded;
                }
            }
        }
    }
    Ok(Found {
        model,
        name: entry.name.clone(),
        quant: wanted,
        source: entry.source.clone(),
    })
}

/// Applies one format; the second part of `a+b` leaves alone what it does not cover.
fn apply(model: Model, quant: &Quant, whole: bool) -> Model {
    if whole || quant.attention {
        return model.requantised(quant);
    }
    let before = model.clone();
    let mut after = model.requantised(quant);
    for (new, old) in after.layers.iter_mut().zip(&before.layers) {
        if !quant.dense {
            new.formats.dense = old.formats.dense;
        }
        if !quant.shared {
            new.formats.shared = old.formats.shared;
        }
        new.formats.attention_in = old.formats.attention_in;
        new.formats.attention_out = old.formats.attention_out;
    }
    after.mtp_layers = before.mtp_layers;
    after
}

/// The draft of a model: `mtp` for its own layers, `eagle3` or `dflash` for a head.
///
/// # Errors
/// One line that says which drafts the model has.
pub fn find_draft(model: &str, kind: &str) -> Result<Draft, NotFound> {
    let (entry, _) = lookup(model)?;
    let kind = kind.trim().to_ascii_lowercase().replace(['-', '_'], "");
    let kind = if kind == "nextn" {
        "mtp"
    } else {
        kind.as_str()
    };
    let shapes = entry.shapes()?;
    if kind == "mtp" && !shapes.mtp_layers.is_empty() {
        return Ok(Draft::Mtp);
    }
    if let Some(draft) = entry.drafts.get(kind) {
        let name = format!("{}-{kind}", entry.name);
        let model = Model::from_config_json(&draft.config.to_string(), &name);
        return model
            .map(|model| Draft::Head {
                model: Box::new(model),
                source: draft.source.clone(),
            })
            .map_err(|error| NotFound {
                wanted: kind.to_string(),
                message: error.to_string(),
            });
    }
    let mut known: Vec<&str> = entry.drafts.keys().map(String::as_str).collect();
    if !shapes.mtp_layers.is_empty() {
        known.push("mtp");
    }
    let known = if known.is_empty() {
        "none; give the draft's config.json".to_string()
    } else {
        known.join(", ")
    };
    Err(NotFound {
        wanted: kind.to_string(),
        message: format!(
            "{} has no `{kind}` draft in the catalogue; it has: {known}",
            entry.name
        ),
    })
}

/// The drafts of a model, MTP last.
pub fn draft_kinds(model: &str) -> Vec<String> {
    let Ok((entry, _)) = lookup(model) else {
        return Vec::new();
    };
    let mut kinds: Vec<String> = entry.drafts.keys().cloned().collect();
    if entry.shapes().is_ok_and(|m| !m.mtp_layers.is_empty()) {
        kinds.push("mtp".to_string());
    }
    kinds
}

impl Entry {
    /// The shapes, in the base format.
    fn shapes(&self) -> Result<Model, NotFound> {
        let missing = || NotFound {
            wanted: self.name.clone(),
            message: format!("{}: the catalogue entry has no shapes", self.name),
        };
        let config = match (&self.config, &self.like) {
            (Some(config), _) => config,
            (None, Some(like)) => entries()
                .iter()
                .find(|entry| entry.name == *like)
                .and_then(|entry| entry.config.as_ref())
                .ok_or_else(missing)?,
            (None, None) => return Err(missing()),
        };
        Model::from_config_value(config, &self.name).map_err(|error| NotFound {
            wanted: self.name.clone(),
            message: error.to_string(),
        })
    }

    /// The positions of a release by its name, where it differs from the entry's config.
    fn positions_of(&self, name: &str) -> Option<u64> {
        let of_release = |(part, _): &(&String, &u64)| name.contains(part.as_str());
        let (_, positions) = self.positions.iter().find(of_release)?;
        Some(*positions)
    }

    /// What FP8 is taken for, where the published checkpoint is in blocks.
    fn published_fp8(&self) -> Option<String> {
        let blocks = self.quant("fp8")?.format == WeightFormat::Fp8Block;
        blocks.then(|| {
            "FP8 as its maker publishes it, in blocks of 128 x 128 (one scale a channel or tensor, as \
             engines make of a BF16 checkpoint by --quantization fp8: --quant fp8-dynamic)"
                .to_string()
        })
    }

    /// A precision: the entry's own definition, else the usual meaning of the name.
    fn quant(&self, name: &str) -> Option<Quant> {
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        // Several spellings mean one thing: awq is int4 where the entry defines int4 only.
        let aliases: &[&str] = match name.as_str() {
            "awq" | "gptq" | "w4a16" => &["int4"],
            "int4" => &["int4-experts"],
            "mxfp4" => &["mxfp4-experts"],
            "fp8" => &["fp8-block"],
            "fp4" => &["nvfp4"],
            _ => &[],
        };
        let own = self
            .quants
            .get(&name)
            .or_else(|| aliases.iter().find_map(|alias| self.quants.get(*alias)));
        match own {
            Some(own) => own.quant(),
            // The maker's own checkpoint is in blocks, whatever it is called.
            None if name == "fp8" && self.default_quant.starts_with("fp8-block") => {
                Quant::parse("fp8-block")
            }
            None => Quant::parse(&name),
        }
    }

    /// The width of the feed-forward in a precision whose checkpoint pads it.
    fn padded_inter(&self, name: &str) -> Option<u64> {
        let name = match name {
            "awq" | "gptq" | "w4a16" => "int4",
            name => name,
        };
        self.quants.get(name)?.intermediate_size
    }
}

impl QuantEntry {
    fn quant(&self) -> Option<Quant> {
        let on = |group: &str| self.groups.iter().any(|name| name == group);
        Some(Quant {
            format: format_named(&self.format)?,
            attention: on("attention"),
            attention_out: on("attention") || on("attention_out"),
            linear: on("linear"),
            dense: on("dense"),
            experts: on("experts"),
            shared: on("shared"),
            kv_dtype: self.kv.as_deref().and_then(KvDtype::parse),
            gguf: None,
        })
    }
}

/// The entry and the precision that the name says.
fn lookup(name: &str) -> Result<(&'static Entry, Option<String>), NotFound> {
    let full = normal(name);
    match taken_apart(&full) {
        (Some(entry), quant) => Ok((entry, quant)),
        (None, _) => Err(not_found(name, &full)),
    }
}

fn not_found(wanted: &str, normal: &str) -> NotFound {
    let mut near: Vec<(usize, &str)> = entries()
        .iter()
        .flat_map(|entry| {
            std::iter::once(&entry.name)
                .chain(&entry.aliases)
                .map(String::as_str)
        })
        .map(|name| (distance(normal, name), name))
        .collect();
    near.sort_unstable();
    let limit = (normal.chars().count() / 3).max(3);
    let names: Vec<&str> = near
        .iter()
        .filter(|(d, _)| *d <= limit)
        .take(3)
        .map(|(_, name)| *name)
        .collect();
    let hint = if names.is_empty() {
        "give its config.json, or the folder that holds it".to_string()
    } else {
        format!("did you mean {}? Or give its config.json", names.join(", "))
    };
    NotFound {
        wanted: wanted.to_string(),
        message: format!("model `{wanted}` is not in the catalogue; {hint}"),
    }
}

/// Edits from one text to the other, counting a missing tail at a quarter so that `kimi` finds
/// `kimi-k2.5`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(80).collect(), b.chars().collect());
    if !a.is_empty() && b.starts_with(&a) {
        return (b.len() - a.len()).div_ceil(4);
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
