//! The target model and what drafts for it.

use std::path::{Path, PathBuf};

use kvplan::{DraftKind, Model, catalog};
use spec_decode::HeadKind;

use super::checkpoint::{ONE_SCALE, made_while_loading};
use super::merge::{Given, Merged};
use super::{EngineChoice, Notes, default_draft, heads};
use crate::{input, step_time};

/// What proposes tokens.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) head: HeadKind,
    /// Shapes of a separate head; `None` for the target's own MTP layers and for look-up.
    pub(crate) model: Option<Model>,
    /// Whether those are another head's, as the config of the one that was named is not known.
    pub(crate) stands_in: bool,
    /// Whether its reach is its own, by its config, a source or a log, and not another head's.
    pub(crate) reach_known: bool,
}

impl Draft {
    /// Whether it is the same kind of draft, by the same model where one is named.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let name = |draft: &Self| draft.model.as_ref().map(|model| model.name.clone());
        self.head == other.head && name(self) == name(other)
    }

    /// Tokens of context that its own config reaches; `None` for the target's layers and look-up.
    pub(crate) fn reach(&self) -> Option<u64> {
        self.model.as_ref()?.max_positions
    }

    /// The draft's passes as the step model takes them; look-up has none.
    pub(crate) fn passes(&self) -> Option<step_time::Draft<'_>> {
        match &self.model {
            Some(head) => Some(step_time::Draft::Head(head)),
            None if self.head == HeadKind::NGram => None,
            None => Some(step_time::Draft::Mtp),
        }
    }
}

/// All names of the catalogue, behind a fault that says that it has none and none near.
pub(crate) fn all_names(fault: &str) -> String {
    let near = fault.contains("did you mean") || !fault.contains("not in the catalogue");
    match near {
        true => String::new(),
        false => format!("; it has {}", catalog::names().join(", ")),
    }
}

/// Resolves the target.
pub(super) fn target(merged: &Merged, notes: &mut Notes) -> anyhow::Result<Model> {
    let Some(given) = &merged.model else {
        return Err(input::error(
            "no model: give --model NAME, a config.json or a folder that holds one",
        ));
    };
    let quant = merged.quant.as_ref().map(|q| q.value.as_str());
    if let Some(files) = config_files(&given.value)? {
        let mut model = read_config(&files, &given.value)?;
        if let Some(name) = quant {
            model = requantised(model, name, notes)?;
        }
        if model.draft.is_some() {
            return Err(input::error(format!(
                "--model {}: is a draft head, not a target; give it as --draft",
                given.value
            )));
        }
        notes.input("model", model.name.clone(), given.source.clone());
        notes.input(
            "quant",
            quant.unwrap_or("as in the config"),
            files.config.display().to_string(),
        );
        for line in &model.assumptions {
            notes.assume(format!("model: {line}"), "");
        }
        return Ok(model);
    }
    let online = quant.filter(|quant| made_while_loading(&given.value, quant));
    let found =
        catalog::find_in(&given.value, online.map(|_| ONE_SCALE).or(quant)).map_err(|e| {
            let beside = if given.source.starts_with("--") {
                ""
            } else {
                "; say which it is with --model"
            };
            if kvplan::denoises(&given.value) {
                return input::error(format!("{} {}", given.shown("--model"), kvplan::DENOISES));
            }
            if let Some(format) = quant.filter(|_| e.message.contains("weight format")) {
                return input::error(format!("--quant {format}: {e}"));
            }
            let names = all_names(&e.message);
            input::error(format!("{}: {e}{names}{beside}", given.shown("--model")))
        })?;
    let shown = match alias(&given.value, &found.name) {
        Some(alias) => {
            notes.assume(
                format!("model: {alias} has the shapes of {}", found.name),
                "",
            );
            alias.to_string()
        }
        None => found.name.clone(),
    };
    if online.is_some() {
        let made =
            "model: FP8 that the engine makes of the BF16 checkpoint while loading, in one scale";
        notes.assume(made, "--model with the FP8 repository's name");
    }
    notes.input("model", shown.clone(), given.source.clone());
    format_notes(&found, merged.quant.as_ref(), notes);
    let mut model = found.model;
    model.name = shown;
    Ok(model)
}

/// A config's model in the format of `--quant`; says which FP8 a bare `fp8` is.
fn requantised(model: Model, name: &str, notes: &mut Notes) -> anyhow::Result<Model> {
    let quant = kvplan::Quant::parse(name).ok_or_else(|| {
        input::error(format!(
            "--quant {name}: not a weight format; known are {}",
            kvplan::QUANT_NAMES
        ))
    })?;
    if quant.format == kvplan::WeightFormat::Fp8 {
        notes.assume(
            "FP8 with one scale a tensor or channel; a checkpoint in blocks of 128 x 128 is fp8-block",
            "--quant fp8-block",
        );
    }
    Ok(model.requantised(&quant))
}

/// Says in which format a catalogue model's weights are, and whether anyone said so.
fn format_notes(
    found: &catalog::Found,
    said: Option<&super::merge::Given<String>>,
    notes: &mut Notes,
) {
    let source = said.map_or(&found.source, |given| &given.source);
    notes.input("quant", found.quant.clone(), source.clone());
    if said.is_none() && found.quant == "bf16" {
        notes.assume("weights in BF16, as no other format is named", "--quant");
    }
    for line in &found.model.assumptions {
        notes.assume(format!("model: {line}"), "");
    }
}

/// The other name of a catalogue model that was meant: `glm-4.6` in `zai-org/GLM-4.6-FP8`.
fn alias(given: &str, name: &str) -> Option<&'static str> {
    let last = given.trim_end_matches('/').rsplit('/').next();
    let lower = last.unwrap_or(given).to_ascii_lowercase();
    let entry = catalog::entries().iter().find(|entry| entry.name == name)?;
    let aliases = entry.aliases.iter().map(String::as_str);
    let named = aliases.filter(|alias| {
        let rest = lower.strip_prefix(*alias);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    });
    named.max_by_key(|alias| alias.len())
}

/// A config.json and what may lie beside it.
pub(super) struct ConfigFiles {
    config: PathBuf,
    quant: Option<PathBuf>,
    /// The checkpoint's own list of tensors: its total wins over what the shapes give.
    index: Option<PathBuf>,
}

/// The files a model argument names, if it is a path.
pub(super) fn config_files(given: &str) -> anyhow::Result<Option<ConfigFiles>> {
    let path = Path::new(given);
    if path.is_dir() {
        // Some of Mistral's repositories hold their own params.json in its place.
        let names = ["config.json", "params.json"].map(|name| path.join(name));
        let config = names
            .into_iter()
            .find(|file| file.is_file())
            .ok_or_else(|| {
                input::error(format!(
                    "{given}: no config.json in this folder; name the file or the catalogue model"
                ))
            })?;
        let quant = Some(path.join("hf_quant_config.json")).filter(|p| p.is_file());
        let index = Some(path.join("model.safetensors.index.json")).filter(|p| p.is_file());
        return Ok(Some(ConfigFiles {
            config,
            quant,
            index,
        }));
    }
    if path.is_file() {
        return Ok(Some(ConfigFiles {
            config: path.to_path_buf(),
            quant: None,
            index: None,
        }));
    }
    if given.ends_with(".json") {
        return Err(input::error(format!(
            "{given}: no such file; check the path"
        )));
    }
    Ok(None)
}

pub(super) fn read_config(files: &ConfigFiles, given: &str) -> anyhow::Result<Model> {
    let text = input::read_text(&files.config)?;
    let quant = files.quant.as_deref().map(input::read_text).transpose()?;
    let name = super::config_name::of(&files.config, given);
    let model = Model::from_config_and_quant(&text, quant.as_deref(), &name).map_err(|e| {
        // The message begins with the model's name; users know it by its file.
        let message = e.to_string();
        let what = message
            .strip_prefix(&format!("{name}: "))
            .unwrap_or(&message);
        input::error(format!("{}: {what}", files.config.display()))
    })?;
    match &files.index {
        None => Ok(model),
        Some(index) => model
            .with_checkpoint(&input::read_text(index)?)
            .map_err(|e| input::error(format!("{}: {e}", index.display()))),
    }
}

/// Resolves the draft: what was asked for, else the first that the engine serves.
pub(super) fn draft(
    merged: &Merged,
    target: &Model,
    engine: &EngineChoice,
    notes: &mut Notes,
) -> anyhow::Result<Option<Draft>> {
    let name = model_name_of(merged, target);
    match &merged.draft {
        Some(given) => named_draft(given, name, target, notes, heads::reach_of_log(merged)),
        None => default_draft::of(name, target, engine, notes).map(Some),
    }
}

/// The target as it was named.
pub(super) fn model_name_of<'a>(merged: &'a Merged, target: &'a Model) -> &'a str {
    let given = merged.model.as_ref();
    given.map_or(target.name.as_str(), |given| given.value.as_str())
}

/// The draft that was asked for: what the catalogue has, else an assumed head. A log may say how far
/// the head reaches.
pub(super) fn named_draft(
    given: &Given<String>,
    model_name: &str,
    target: &Model,
    notes: &mut Notes,
    reach_of_log: Option<u64>,
) -> anyhow::Result<Option<Draft>> {
    let wanted = given.value.trim();
    let lower = wanted.to_ascii_lowercase();
    if lower == "none" {
        notes.input("method", "none", given.source.clone());
        return Ok(None);
    }
    if super::suffix::is_suffix(wanted) {
        return super::suffix::left_out(given, notes).map(|()| None);
    }
    if super::merge::is_look_up(&lower) && config_files(wanted)?.is_none() {
        return Ok(Some(look_up(&given.source, notes)));
    }
    heads::refuse_assistant(wanted, target)?;
    if ["mtp", "nextn"].contains(&lower.as_str()) {
        if target.mtp_layers.is_empty() {
            return Err(input::error(format!(
                "--draft {wanted}: {} ships no MTP layers; give an EAGLE-3 head (--draft eagle3 or its \
                 config.json)",
                target.name
            )));
        }
        return Ok(Some(mtp(target, &given.source, notes)));
    }
    if let Some(files) = config_files(wanted)? {
        let model = read_config(&files, wanted)?;
        return head(model, wanted, &given.source, target, notes).map(Some);
    }
    if let Some((small, quant)) = small_model(wanted, target)? {
        let source = format!("catalogue model {}", small.name);
        notes.assume(
            format!("draft: {} as a model of its own, in {quant}", small.name),
            "",
        );
        return head(small, wanted, &source, target, notes).map(Some);
    }
    if let Some((own, source)) = heads::own_config(wanted) {
        return head(own, wanted, source, target, notes).map(Some);
    }
    // `eagle3`, or `kimi-k2.5-eagle3`: the kind is the last word. A repository's name says the kind
    // somewhere, and is this model's.
    let (owner, kind) = match lower.rsplit_once('-') {
        Some((owner, kind)) if KINDS.contains(&kind) && !owner.contains('/') => (owner, kind),
        _ => (model_name, names_head(&lower).unwrap_or(lower.as_str())),
    };
    match catalog::find_draft(owner, kind) {
        Ok(catalog::Draft::Mtp) => Ok(Some(mtp(target, &given.source, notes))),
        Ok(catalog::Draft::Head { model, source }) => {
            let (model, stands_in, reach_known) =
                heads::of_catalogue(*model, &source, wanted, reach_of_log, notes);
            let draft = head(model, wanted, &source, target, notes)?;
            Ok(Some(Draft {
                stands_in,
                reach_known,
                ..draft
            }))
        }
        Err(_) if kind == "eagle3" => heads::assumed(target, named(wanted), notes).map(Some),
        Err(why) => Err(unknown(&given.shown("--draft"), kind, &why)),
    }
}

/// What is said of a draft that no catalogue has.
fn unknown(shown: &str, kind: &str, why: &catalog::NotFound) -> anyhow::Error {
    input::error(match KINDS.contains(&kind) {
        true => format!("{shown}: {why}; or give its config.json, `mtp`, `eagle3` or `none`"),
        false => format!(
            "{shown}: no such file, draft kind or catalogue model; give a head's config.json, `eagle3`, `mtp`, \
             `ngram`, `none`, or a small model of the catalogue such as qwen3-0.6b"
        ),
    })
}

/// The kind of head that a repository or path names: `RedHatAI/Qwen3-32B-speculator.eagle3`,
/// `AQ-MedAI/Kimi-K25-eagle3`, `z-lab/Qwen3-8B-DFlash-b16`.
pub(crate) fn names_head(name: &str) -> Option<&'static str> {
    let plain = name.to_ascii_lowercase().replace(['-', '_', '.'], "");
    ["eagle3", "dflash", "eagle"]
        .into_iter()
        .find(|kind| plain.contains(kind))
}

/// The kind of head that a config on this machine is of, as [`names_head`] has it.
pub(super) fn kind_of_config(name: &str) -> Option<&'static str> {
    let files = config_files(name.trim()).ok()??;
    let kind = read_config(&files, name).ok()?.draft?.kind;
    Some(match kind {
        DraftKind::Eagle3 => "eagle3",
        DraftKind::Eagle => "eagle",
        DraftKind::BlockDiffusion => "dflash",
    })
}

/// A draft named by its repository or path, not by its kind.
pub(super) fn named(wanted: &str) -> Option<&str> {
    Some(wanted).filter(|name| name.contains('/'))
}

/// Kinds of heads that `--draft` names.
const KINDS: [&str; 5] = ["eagle3", "eagle", "dflash", "mtp", "nextn"];

/// Whether a word can be a draft's name: a kind, alone or behind its model's, a path, a catalogue model.
pub(crate) fn names_draft(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let kind = lower.rsplit('-').next().unwrap_or(&lower);
    lower == "none"
        || super::merge::is_look_up(&lower)
        || KINDS.contains(&kind)
        || names_head(&lower).is_some()
        || word.contains(['/', '\\'])
        || word.ends_with(".json")
        || std::path::Path::new(word).exists()
        || catalog::find(word).is_ok()
}

/// Names that `--draft` knows.
pub(crate) fn draft_names() -> impl Iterator<Item = &'static str> {
    let kinds = KINDS.into_iter().chain(["ngram", "none"]);
    kinds.chain(catalog::names())
}

/// A whole model of the catalogue as the draft, in the format that its name says or it is published
/// in, and that format; `None` where the name is none.
fn small_model(wanted: &str, target: &Model) -> anyhow::Result<Option<(Model, String)>> {
    let lower = wanted.to_ascii_lowercase();
    let own_layers = ["nextn", "mtp"].iter().any(|kind| lower.ends_with(kind));
    if own_layers || names_head(wanted).is_some() {
        return Ok(None);
    }
    let Ok(catalog::Found { model, quant, .. }) = catalog::find(wanted) else {
        return Ok(None);
    };
    // Padding differs between sizes of a family; the tokens are the same.
    if model.vocab.abs_diff(target.vocab) > MOST_PADDING {
        return Err(input::error(format!(
            "--draft {wanted}: its vocabulary of {} tokens is not that of {} ({}), so its tokens mean \
             nothing there; give a small model of the same family, or `eagle3`",
            model.vocab, target.name, target.vocab
        )));
    }
    if model.total_params() >= target.total_params() {
        return Err(input::error(format!(
            "--draft {wanted}: is not smaller than {}; a draft is a small model of the same family",
            target.name
        )));
    }
    Ok(Some((model, quant)))
}

/// What paddings of one vocabulary differ by at most (Qwen2.5: 151,936 and 152,064).
const MOST_PADDING: u64 = 512;

pub(super) fn mtp(target: &Model, source: &str, notes: &mut Notes) -> Draft {
    notes.input("method", "MTP", source);
    let (own, all) = (target.mtp_layers.first(), target.layers.last());
    let unlike = own.zip(all).filter(|(own, all)| {
        let (own, all) = (own.formats.experts, all.formats.experts);
        target.format_by_name && all.bytes_per_param() < 1.0 && own != all
    });
    if let Some((own, _)) = unlike {
        notes.assume(
            format!(
                "draft: the MTP layer in {}, where the rest is in 4 bits; a checkpoint may hold it in fewer, or leave \
                 it out",
                own.formats.experts.name()
            ),
            "--model with the checkpoint's config.json",
        );
    }
    // One module is used again for every position; several are used in turn.
    let head = if target.mtp_modules > 1 {
        HeadKind::MtpModules
    } else {
        HeadKind::Mtp
    };
    Draft {
        head,
        model: None,
        stands_in: false,
        reach_known: false,
    }
}

/// Tokens copied from where the last ones stood before, in prompt or output: no weights, no cache.
pub(super) fn look_up(source: &str, notes: &mut Notes) -> Draft {
    notes.input("method", "n-gram look-up", source);
    notes.assume("n-gram look-up: the search itself is not counted", "");
    Draft {
        head: HeadKind::NGram,
        model: None,
        stands_in: false,
        reach_known: false,
    }
}

pub(super) fn head(
    model: Model,
    name: &str,
    source: &str,
    target: &Model,
    notes: &mut Notes,
) -> anyhow::Result<Draft> {
    let head = match model.draft.map(|d| d.kind) {
        Some(DraftKind::Eagle3) => HeadKind::Eagle3,
        Some(DraftKind::Eagle) => HeadKind::Eagle,
        Some(DraftKind::BlockDiffusion) => HeadKind::Parallel,
        None => HeadKind::DraftModel,
    };
    if let Some(draft) = model.draft
        && draft.target_hidden != target.hidden
        && draft.target_hidden != 0
    {
        return Err(input::error(format!(
            "--draft {name}: reads hidden states of width {}, but {} has {}; it is the head of another \
             model",
            draft.target_hidden, target.name, target.hidden
        )));
    }
    let method = match head {
        HeadKind::Eagle3 => "EAGLE-3",
        HeadKind::Eagle => "EAGLE",
        HeadKind::Parallel => "block draft",
        _ => "draft model",
    };
    notes.input("method", method, source);
    notes.input("draft", name, source);
    Ok(Draft {
        head,
        model: Some(model),
        stands_in: false,
        reach_known: true,
    })
}
