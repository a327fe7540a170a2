//! Speeds with a draft that the user measured.

use super::Scenario;
use crate::explain::speeds::LoadSpeed;

/// Speeds by load of one run, and the depth that it drafted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drafted {
    /// The file that shows them.
    pub(crate) file: String,
    /// Whether that is the log of `--from-log`.
    pub(crate) in_log: bool,
    /// Tensor-parallel size of the server, where a file of `--accept` says one.
    pub(crate) tp: Option<u32>,
    /// Draft steps, where known.
    pub(crate) steps: Option<u32>,
    /// Tokens verified a sequence, where that is not the steps and one.
    pub(crate) tokens: Option<u32>,
    /// Tree width, where told.
    pub(crate) topk: Option<u32>,
    /// Speeds by load.
    pub(crate) speeds: Vec<LoadSpeed>,
}

impl Drafted {
    /// The scenario with the depth of that run.
    pub(crate) fn of(&self, scenario: &Scenario) -> Scenario {
        let mut own = scenario.clone();
        if self.steps.is_some() {
            own.steps = self.steps;
            own.topk = self.topk.or(Some(1));
            own.draft_tokens = self.tokens;
        }
        own
    }
}

impl Scenario {
    /// What was measured with the draft that is asked for: in the files of `--accept`, and in the log,
    /// where its server drafted.
    pub(crate) fn drafted(&self) -> Vec<Drafted> {
        let mut found = self.acceptance.drafted.clone();
        let ran = &self.ran;
        found.retain(|run| run.file != ran.file);
        let idle = ran.windows.is_some_and(|windows| windows.mostly_plain());
        if ran.speculates && !idle {
            let tokens = ran.draft_tokens.and_then(|n| u32::try_from(n).ok());
            found.push(Drafted {
                file: ran.file.clone(),
                in_log: true,
                tp: None,
                steps: ran.drafts.0,
                tokens,
                topk: ran.drafts.1,
                speeds: ran.speeds.clone(),
            });
        }
        let alike = |run: &Drafted| run.tp.is_none_or(|tp| tp == self.tp);
        found.retain(|run| !run.speeds.is_empty() && self.draft.is_some() && alike(run));
        found
    }
}
