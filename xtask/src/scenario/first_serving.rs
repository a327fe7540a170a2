//! A release that does not serve what is asked for has no figures of it: the answer is of the first that
//! does.

use super::merge::{Given, Merged};
use super::releases::{judged_by, number};
use super::{EngineKind, Notes, Scenario};
use crate::plan::SameRules;
use crate::predict::serves::{Lack, lack_of_asked};

/// The release that the answer is of, in place of the one that was named.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnsweredFor {
    /// What the named release lacks, with who named it.
    pub(crate) lack: Lack,
    /// The first release that serves it.
    pub(crate) release: String,
}

/// Lacks that stand one behind the other: the model, a kernel for the card, its draft, the head's format.
const MOST_LACKS: usize = 4;

impl Scenario {
    /// The same of the first release that serves it, where the one that was named does not; `beside`: of
    /// the release that another answer beside this one is of.
    pub(super) fn at_the_first_that_serves(
        mut self,
        merged: &mut Merged,
        beside: Option<&String>,
        told: &Notes,
        notes: &mut Notes,
    ) -> anyhow::Result<Self> {
        let by = merged.engine.as_ref().map(|engine| engine.source.clone());
        let (Some(said), Some(by)) = (self.engine.version.clone(), by) else {
            return Ok(self);
        };
        let name = self.engine.kind.name();
        let judged = of_a_month(self.engine.kind, &said).unwrap_or_default();
        let mut kept = None;
        for _ in 0..MOST_LACKS {
            let lack = lack_of_asked(&self);
            let needs = lack.as_ref().and_then(|lack| lack.needs.clone());
            let release = needs.or_else(|| beside.filter(|_| self.answered_for.is_none()).cloned());
            let Some(release) =
                release.filter(|release| self.engine.version.as_ref() != Some(release))
            else {
                break;
            };
            let mut noted = told.clone();
            let named = format!("{by}{judged}");
            let lack = lack.map(|lack| lack.answered_for(&said, &named, &release));
            if let Some(lack) = &lack {
                noted.assume(lack.what.clone(), format!("--engine {name}@VERSION"));
            }
            kept = of_the_log(&self, merged, &said, &release).or(kept);
            if let Some(left) = &kept {
                noted.assume(left.clone(), format!("a log of {name}@{release}"));
            }
            // Figures observed of the named release are of no server that ran this.
            merged.observed = super::ObservedFile::default();
            let source = format!("the first that serves it; {by} names {said}");
            merged.engine = Some(Given::new(format!("{name}@{release}"), source));
            *notes = noted;
            self = Self::from_merged(merged, notes)?;
            self.answered_for = lack.map(|lack| AnsweredFor { lack, release });
        }
        Ok(self)
    }
}

/// By which release a build that is known by its month is judged.
fn of_a_month(engine: EngineKind, said: &str) -> Option<String> {
    let (major, minor, patch) = judged_by(engine, said).filter(|_| number(said).is_none())?;
    Some(format!("; {major}.{minor}.{patch} at the newest"))
}

/// Keeps of a log what the rules of both releases make the same, and says what is left aside.
fn of_the_log(
    scenario: &Scenario,
    merged: &mut Merged,
    said: &str,
    release: &str,
) -> Option<String> {
    let file = merged.ran.file.clone();
    if file.is_empty() {
        return None;
    }
    let same = SameRules::of(scenario, release);
    let pool = merged.ran.kv_tokens.is_some() || merged.ran.kv_gib.is_some();
    let ran = std::mem::take(&mut merged.ran);
    let title = scenario.engine.kind.title();
    if !(same.pool && pool) {
        merged.ran = ran.flags_alone();
        let why = match pool {
            true => format!(
                ", as the memory rules of {release} give another pool: it is computed by those"
            ),
            false => String::new(),
        };
        return Some(format!(
            "{file} is of {title} {said}: its memory and speeds are left aside{why}; its flags are kept"
        ));
    }
    merged.ran = ran.of_other_release(same.graphs);
    let graphs = if same.graphs { "" } else { " and graphs" };
    Some(format!(
        "{file} is of {title} {said}: its pool is kept, as the memory rules of {release} give a plain server \
         the same one; its speeds{graphs} are left aside"
    ))
}
