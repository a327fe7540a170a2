//! The names of `--compare`: all-reduces, boxes and drafts, told apart without a flag each; and what
//! its rows are shown as.

use std::path::Path;

use super::answer::Compared;
use crate::cli::ScenarioArgs;
use crate::input;
use crate::scenario::{Scenario, allreduce_names, draft_names, names_allreduce, names_draft};
use crate::table::thousands;

/// The names of a list, without blanks and empty ones.
pub(super) fn of(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|n| !n.is_empty())
}

/// Whether a name is a box's: of the catalogue, a file, or so many cards on their usual wiring.
pub(super) fn is_box(name: &str) -> bool {
    let known = name.ends_with(".toml") || pcie_sim::catalog::names().any(|have| have == name);
    known || crate::scenario::hardware::usual_box(name).is_some()
}

/// Whether a name is the file that says the box which is asked about.
fn is_own_file(name: &str, args: &ScenarioArgs) -> bool {
    let Ok(named) = Path::new(name).canonicalize() else {
        return false;
    };
    let given = args.box_name.as_ref().map(Path::new);
    let given = given.into_iter().chain(args.topology.as_deref());
    given
        .filter_map(|own| own.canonicalize().ok())
        .any(|own| own == named)
}

/// Whether a name is the box that is asked about: by its name, or by its file.
pub(super) fn is_own_box(name: &str, args: &ScenarioArgs, own: &str) -> bool {
    name == own || is_own_file(name, args)
}

/// The first draft of a list.
pub(super) fn first_draft<'a>(list: &'a str, args: &ScenarioArgs) -> Option<&'a str> {
    let other = |name: &str| names_allreduce(name) || is_box(name) || is_own_file(name, args);
    of(list).find(|name| !other(name) && *name != "none" && names_draft(name))
}

/// # Errors
/// A name that is none of the three nor the box that is asked about, with what it is near to.
pub(super) fn check(list: &str, args: &ScenarioArgs) -> anyhow::Result<()> {
    let own = |name: &str| Scenario::resolve(args).is_ok_and(|own| own.wiring.name == name);
    let known =
        |name: &&str| names_allreduce(name) || is_box(name) || names_draft(name) || own(name);
    let Some(name) = of(list).find(|name| !known(name)) else {
        return Ok(());
    };
    let near = near(name);
    let mend = match near.is_empty() {
        true => "give an all-reduce (`nccl`, `one-shot`, …), one of `--box list`, or a draft (`eagle3`, \
                 `mtp`, `ngram`, `none`, a config.json, a small model of the catalogue)"
            .to_string(),
        false => format!("did you mean {}?", near.join(", ")),
    };
    let name: String = name.chars().take(64).filter(|c| !c.is_control()).collect();
    Err(input::error(format!(
        "--compare {name}: no all-reduce, box or draft is called so; {mend}"
    )))
}

/// Up to four names near a misspelt one, nearest first, each with what it is.
fn near(name: &str) -> Vec<String> {
    let wanted: String = name.chars().take(64).collect::<String>().to_lowercase();
    let reduces = allreduce_names().map(|have| ("all-reduce", have));
    let boxes = pcie_sim::catalog::names().map(|have| ("box", have));
    let drafts = draft_names().map(|have| ("draft", have));
    let mut scored: Vec<(usize, &str, &str)> = reduces
        .chain(boxes)
        .chain(drafts)
        .map(|(what, have)| (crate::gpus::distance(&wanted, have), have, what))
        .filter(|(d, ..)| *d <= 1 + wanted.chars().count() / 6)
        .collect();
    scored.sort_unstable();
    let named = |(_, have, what): (usize, &str, &str)| format!("{have} ({what})");
    scored.into_iter().take(4).map(named).collect()
}

impl Compared {
    /// The tokens of the pool, and whether the row's load is beyond it.
    pub(crate) fn pool(&self) -> String {
        let tokens = self.kv_tokens.map(|tokens| thousands(tokens as f64));
        let tokens = tokens.unwrap_or_else(|| "?".to_string());
        match self.fits.filter(|_| self.stopped.is_none()) {
            Some(false) => format!("{tokens}: too few for this load"),
            _ => tokens,
        }
    }

    /// The draft steps; nothing where nothing drafts.
    pub(crate) fn drafted(&self) -> String {
        match self.steps {
            0 => String::new(),
            steps => steps.to_string(),
        }
    }

    /// The tensor-parallel size, and of how many GPUs where those left are too few for another group.
    pub(crate) fn cut(&self) -> String {
        match self.tp < self.gpus && self.replicas() < 2 {
            true => format!("{} of {}", self.tp, self.gpus),
            false => self.tp.to_string(),
        }
    }

    fn replicas(&self) -> u32 {
        self.gpus / self.tp.max(1)
    }

    /// Whether the row is of a part of a box that holds more such.
    fn is_of_a_replica(&self) -> bool {
        is_box(&self.name) && self.replicas() > 1
    }

    /// What the row is of.
    pub(crate) fn shown(&self) -> String {
        match self.is_of_a_replica() {
            true => format!("{}, 1 of its {} replicas", self.name, self.replicas()),
            false => self.name.clone(),
        }
    }

    /// What the figures of such rows are, where there are any.
    pub(crate) fn of_replicas(rows: &[Self]) -> Option<&'static str> {
        rows.iter().any(Self::is_of_a_replica).then_some(
            "a replica's users, tok/s and KV tokens are its own; the box's others serve as much beside it",
        )
    }
}
