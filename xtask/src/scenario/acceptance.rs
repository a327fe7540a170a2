//! Acceptance of a scenario: measured, assumed by the scenario file, or the prior alone.

use kvplan::Model;
use spec_decode::acceptance::prior::trained_steps;
use std::cell::RefCell;
use std::collections::BTreeMap;

use spec_decode::acceptance::warnings::{Observed, diagnose};
use spec_decode::trees::tree_accept_length;
use spec_decode::{AcceptancePrior, Chain, Evidence, HeadKind, Posterior, PriorQuery, Task};

use super::Notes;
use super::accept_files;
use super::beyond::{self, Beyond, unmeasured_band};
use super::drafted::Drafted;
use super::engine::EngineChoice;
use super::file::AssumedAccept;
use super::measured_with::AcceptOf;
use super::merge::{Given, Merged};
use super::model::Draft;
use super::parse::{self, AcceptFlag};
use crate::input;

/// What is known of acceptance.
#[derive(Debug, Clone)]
pub(crate) struct Acceptance {
    pub(crate) head: HeadKind,
    pub(crate) known: Known,
    /// Bands by depth and context as they are asked for: each sorts the whole posterior, and a
    /// sweep of loads asks for the same few. `known` does not change.
    bands: RefCell<Bands>,
    /// Tokens of context that the scenario asks for.
    context: u64,
    /// What a prior is of, without a context.
    query: PriorQuery,
    /// Where it falls with the context.
    beyond: Option<Beyond>,
    /// Speeds of the runs that it was measured in.
    pub(crate) drafted: Vec<Drafted>,
}

/// Low, middle and high by depth and context.
type Bands = BTreeMap<(u32, u64), (f64, f64, f64)>;

/// How acceptance is known.
#[derive(Debug, Clone)]
pub(crate) enum Known {
    /// From measurements, with the prior filling in.
    Measured(Posterior),
    /// A range that the scenario states.
    Assumed { low: Chain, mid: Chain, high: Chain },
    /// Nothing but the kind of head, the task and the temperature.
    Prior(Posterior),
}

/// Depth that an accept length which nobody measured is told at.
pub(crate) const PRIOR_DEPTH: u32 = 3;

/// What look-up was seen to do: vLLM's own figures (pull request 24344: edits of 5,000 characters,
/// 5 tokens looked up) and a loss (issue 8439).
const LOOK_UP_SEEN: &str = "; it depends on how much of the output repeats the prompt: 2.96 tokens a \
                            pass where code was edited (vLLM PR 24344), a loss in chat (vLLM issue 8439)";

impl Acceptance {
    fn new(head: HeadKind, known: Known, context: u64) -> Self {
        Self {
            head,
            known,
            bands: RefCell::default(),
            context,
            query: PriorQuery::of(head),
            beyond: None,
            drafted: Vec::new(),
        }
    }

    /// Accept length at a depth and the scenario's context: low, mid, high of the 90 % band.
    pub(crate) fn band(&self, depth: u32) -> (f64, f64, f64) {
        self.band_at(depth, self.context)
    }

    /// The same at another context.
    pub(crate) fn band_at(&self, depth: u32, context: u64) -> (f64, f64, f64) {
        if let Some(band) = self.bands.borrow().get(&(depth, context)) {
            return *band;
        }
        let band = self.computed_band(depth, context);
        let beyond = self.beyond.as_ref().filter(|_| self.past_reach(context));
        let band = beyond.map_or(band, |beyond| beyond.band(depth, context, band));
        self.bands.borrow_mut().insert((depth, context), band);
        band
    }

    /// Whether nobody measured acceptance and the context lies beyond what the head's config says.
    pub(crate) fn past_reach(&self, context: u64) -> bool {
        let reach = self.beyond.as_ref().map(|beyond| beyond.reach);
        reach.is_some_and(|reach| context > reach)
    }

    /// Whether nobody measured acceptance and the head may have been trained on text that is shorter
    /// than the context.
    pub(crate) fn may_be_trained_short(&self, context: u64) -> bool {
        matches!(self.known, Known::Prior(_)) && self.query_at(context).may_be_trained_short()
    }

    fn query_at(&self, context: u64) -> PriorQuery {
        PriorQuery {
            context_tokens: Some(context as f64),
            ..self.query
        }
    }

    fn computed_band(&self, depth: u32, context: u64) -> (f64, f64, f64) {
        match &self.known {
            Known::Prior(posterior) => {
                let band = unmeasured_band(&self.query_at(context), posterior, depth, 0.9);
                (band.low, band.mid, band.high)
            }
            Known::Measured(posterior) => {
                let band = posterior.band(depth, 0.9);
                (band.low, band.mid, band.high)
            }
            Known::Assumed { low, mid, high } => (
                low.accept_length(depth),
                mid.accept_length(depth),
                high.accept_length(depth),
            ),
        }
    }
}

impl Acceptance {
    /// The same for a tree of a width; a chain (width 1) accepts what both its steps and its
    /// verified tokens (root included) allow. Small measured trees lose to chains of their size.
    pub(crate) fn tree_band(
        &self,
        steps: u32,
        topk: u32,
        tokens: u32,
        context: u64,
    ) -> (f64, f64, f64) {
        let usable = steps.min(tokens.saturating_sub(1));
        let (low, mid, high) = self.band_at(usable, context);
        if topk <= 1 {
            return (low, mid, high);
        }
        let chain = match &self.known {
            Known::Measured(posterior) | Known::Prior(posterior) => posterior.chain(),
            Known::Assumed { mid, .. } => *mid,
        };
        let fallen = self.beyond.as_ref().filter(|_| self.past_reach(context));
        let chain = fallen.map_or(chain, |beyond| beyond.chain(context));
        let tree = tree_accept_length(&chain, steps, topk, tokens);
        let length = tree.accept_length;
        let down = (length - length * low / mid).hypot(tree.half_width);
        let up = (length * high / mid - length).hypot(tree.half_width);
        let most = f64::from(usable) + 1.0;
        let least = (length - down).max(1.0);
        (
            least.min(length),
            length,
            (length + up).min(most).max(length),
        )
    }
}

/// Positions that a model's own head was trained to draft: by its name, else by the architecture of its
/// config, since a folder may be called anything.
fn training(head: HeadKind, target: &Model) -> Option<u32> {
    trained_steps(head, &target.name).or_else(|| trained_steps(head, &target.architecture))
}

/// The same of a model by its name, or by the file or folder of its config.
pub(crate) fn training_of(head: HeadKind, model: &str) -> Option<u32> {
    let files = super::model::config_files(model).ok().flatten();
    let read = files.and_then(|files| super::model::read_config(&files, model).ok());
    read.map_or_else(|| trained_steps(head, model), |read| training(head, &read))
}

/// Resolves `--accept`, `--task`, `--temperature` and the scenario's assumption.
pub(super) fn resolve(
    merged: &Merged,
    (target, engine): (&Model, &EngineChoice),
    draft: Option<&Draft>,
    context: u64,
    steps: Option<u32>,
    notes: &mut Notes,
) -> anyhow::Result<Acceptance> {
    let head = draft.map_or(HeadKind::Eagle3, |d| d.head);
    let mut query = query(merged, head, notes)?;
    query.trained_steps = training(head, target);
    let prior = AcceptancePrior::new(&query);
    let Some(draft) = draft else {
        return without_draft(merged, (head, context), &prior, notes);
    };
    // Of a head that nobody named it is asked to reach the context where nothing drafts beyond its reach;
    // of an EAGLE head that was named another's says nothing, and the prior holds one trained on short text.
    let named = draft.stands_in && matches!(head, HeadKind::Eagle | HeadKind::Eagle3);
    let by_taken = !named && crate::predict::drafts_beyond(engine, target, draft);
    let falls = draft.reach_known || by_taken;
    let unknown = Unknown {
        query,
        prior,
        context,
        reach: draft.reach().filter(|_| falls),
    };
    if super::measured_with::another(merged, target, draft, notes)
        || super::measured_with::of_hits(merged, head, notes)
    {
        return unknown.acceptance(None, notes);
    }
    unmoved(merged, notes);
    if let Some(given) = &merged.accept {
        // Beside a log they are of its server.
        let steps = merged.ran.drafts.0.or(steps);
        return measured((given, merged.accept_of.clone()), &unknown, steps, notes);
    }
    if let Some(assumed) = &merged.assumed.accept_length {
        let acceptance = from_assumption(assumed, (head, context), notes)?;
        assumed_beyond(context, unknown.reach, notes);
        return Ok(acceptance);
    }
    unknown.acceptance(None, notes)
}

/// What is known of acceptance that nobody measured.
pub(super) struct Unknown {
    pub(super) query: PriorQuery,
    prior: AcceptancePrior,
    pub(super) context: u64,
    /// Tokens beyond which less is accepted.
    reach: Option<u64>,
}

impl Unknown {
    /// The prior's; `aside` is a reading that is left aside, and why.
    fn acceptance(&self, aside: Option<&str>, notes: &mut Notes) -> anyhow::Result<Acceptance> {
        let (head, context, reach) = (self.query.head, self.context, self.reach);
        let posterior = Posterior::new(&self.prior, &[])
            .map_err(|e| input::error(format!("acceptance prior: {e}")))?;
        let source = format!(
            "not measured; {} heads: {}",
            head.name(),
            self.prior.sources.join("; ")
        );
        let mut acceptance = Acceptance::new(head, Known::Prior(posterior), context);
        let query = self.query;
        acceptance.query = query;
        acceptance.beyond = reach.map(|reach| Beyond { query, reach });
        let (low, mid, high) = acceptance.band(PRIOR_DEPTH);
        notes.input("accept_length", (mid * 1000.0).round() / 1000.0, source);
        let why = match (head, reach) {
            (HeadKind::NGram, _) => LOOK_UP_SEEN.to_string(),
            (_, Some(reach)) if acceptance.past_reach(context) => beyond::told(reach, context),
            _ if acceptance.may_be_trained_short(context) => beyond::TRAINED_SHORT.to_string(),
            _ => String::new(),
        };
        let long = acceptance.past_reach(context) || acceptance.may_be_trained_short(context);
        let settled_by = match (long, aside) {
            (true, _) => "--accept LENGTH@DEPTH measured at this context",
            (false, None) => "--accept LENGTH@DEPTH or a server log",
            (false, Some(_)) => {
                "--accept LENGTH@DEPTH or a log of a server with the model's weights and sampler"
            }
        };
        let aside = aside.map_or_else(String::new, |aside| format!(": {aside}"));
        notes.assume(
            format!(
                "accept length {mid:.2} at {PRIOR_DEPTH} steps, from {low:.2} to {high:.2} (not \
                 measured{aside}){why}"
            ),
            settled_by,
        );
        Ok(acceptance)
    }
}

/// `--draft none`: nothing is accepted, so nothing is assumed of it either.
fn without_draft(
    merged: &Merged,
    (head, context): (HeadKind, u64),
    prior: &AcceptancePrior,
    notes: &mut Notes,
) -> anyhow::Result<Acceptance> {
    if let Some(given) = merged.accept.as_ref().filter(|g| g.source == "--accept") {
        notes.assume(
            format!(
                "{}: ignored, no draft was asked for",
                given.shown("--accept")
            ),
            "",
        );
    }
    let posterior =
        Posterior::new(prior, &[]).map_err(|e| input::error(format!("acceptance prior: {e}")))?;
    Ok(Acceptance::new(head, Known::Prior(posterior), context))
}

/// Says what `--task` and `--temperature` do not move where an accept length is there already.
fn unmoved(merged: &Merged, notes: &mut Notes) {
    let mut given = Vec::new();
    if merged.task.as_ref().is_some_and(|g| g.source == "--task") {
        given.push("--task");
    }
    let temperature = merged.temperature.as_ref();
    if temperature.is_some_and(|g| g.source == "--temperature") {
        given.push("--temperature");
    }
    if given.is_empty() {
        return;
    }
    let flags = given.join(" and ");
    if merged.accept.is_some() {
        notes.assume(
            format!("{flags}: the accept length is the one measured; only other depths lean on it"),
            "",
        );
    } else if merged.assumed.accept_length.is_some() {
        notes.assume(
            format!("{flags}: ignored, the scenario itself assumes an accept length"),
            "--accept, or --model (which drops the scenario's assumption)",
        );
    }
}

fn query(merged: &Merged, head: HeadKind, notes: &mut Notes) -> anyhow::Result<PriorQuery> {
    let mut query = PriorQuery::of(head);
    if let Some(given) = &merged.task {
        let task = Task::parse(&given.value)
            .map_err(|e| input::error(format!("--task {}: {e}", given.value)))?;
        query.task = Some(task);
        notes.input("task", given.value.clone(), given.source.clone());
        if !given.value.trim().eq_ignore_ascii_case(task.name()) {
            notes.assume(
                format!("requests like {}: taken as {}", given.value, task.name()),
                format!(
                    "--task with one of {}",
                    Task::ALL.map(Task::name).join(", ")
                ),
            );
        }
    }
    if let Some(given) = &merged.temperature {
        if !(0.0..=10.0).contains(&given.value) {
            return Err(input::error(format!(
                "--temperature {}: give a number from 0 to 10",
                given.value
            )));
        }
        query.temperature = Some(given.value);
        notes.input("temperature", given.value, given.source.clone());
    }
    Ok(query)
}

fn measured(
    (given, mut of): (&Given<String>, AcceptOf),
    unknown: &Unknown,
    steps: Option<u32>,
    notes: &mut Notes,
) -> anyhow::Result<Acceptance> {
    let head = unknown.query.head;
    let (text, source) = (given.value.as_str(), given.source.as_str());
    super::measured_with::note_typed(given, head, notes);
    let flag = &given.named("--accept");
    let mut drafted = Vec::new();
    let (evidence, source) = match parse::accept(flag, text)? {
        AcceptFlag::Length {
            accept_length,
            depth,
        } => (
            Evidence::AcceptLength {
                depth,
                accept_length,
                cycles: None,
            },
            source.to_string(),
        ),
        AcceptFlag::Rates(cumulative) => (
            Evidence::PositionRates {
                cumulative,
                cycles: None,
            },
            source.to_string(),
        ),
        AcceptFlag::Counts { cycles, accepted } => (
            Evidence::PositionCounts { cycles, accepted },
            source.to_string(),
        ),
        AcceptFlag::File(path) => {
            let found = accept_files::read(&path, steps, head, notes)?;
            of.forced = of.forced.or(found.forced);
            of.held_tokens = found.held_tokens;
            drafted = found.drafted;
            (found.evidence, found.source)
        }
    };
    let posterior = Posterior::new(&unknown.prior, std::slice::from_ref(&evidence))
        .map_err(|e| input::error(format!("{flag} {text}: {e}")))?;
    let (shown, depth) = read(&evidence, &posterior);
    let acceptance = match of.forced {
        // What a server was told to accept says nothing of a head.
        Some(why) => {
            let aside = format!("the {shown:.2} at {depth} of {source} was forced there, {why}");
            notes.input("accept_forced", why, source);
            unknown.acceptance(Some(&aside), notes)?
        }
        None => {
            beyond::note_context(unknown, shown, (&source, of.held_tokens), notes);
            notes.input("accept_length", shown, source.clone());
            notes.input("accept_depth", depth, source);
            pass_warnings_on((shown, depth), head, notes);
            Acceptance::new(head, Known::Measured(posterior), unknown.context)
        }
    };
    Ok(Acceptance {
        drafted,
        ..acceptance
    })
}

/// The accept length that was read, and its depth.
fn read(evidence: &Evidence, posterior: &Posterior) -> (f64, u32) {
    match evidence {
        Evidence::AcceptLength {
            accept_length,
            depth,
            ..
        } => (*accept_length, *depth),
        Evidence::PositionRates { cumulative, .. } => (
            1.0 + cumulative.iter().sum::<f64>(),
            u32::try_from(cumulative.len()).unwrap_or(u32::MAX),
        ),
        Evidence::PositionCounts { accepted, .. } => {
            let depth = u32::try_from(accepted.len()).unwrap_or(u32::MAX);
            (posterior.band(depth, 0.9).mid, depth)
        }
    }
}

/// A reading that means a broken load is passed on: the speed it gives is not the head's.
fn pass_warnings_on((accept_length, depth): (f64, u32), head: HeadKind, notes: &mut Notes) {
    let seen = Observed {
        accept_length: Some(accept_length),
        head: Some(head),
        depth: Some(depth),
        ..Observed::default()
    };
    for warning in diagnose(&seen) {
        notes.assume(
            format!(
                "the accept length is taken as given, but {}: {}; {}",
                warning.what, warning.why, warning.mend
            ),
            "",
        );
    }
}

/// Says that a scenario's accept length is not one of heads used beyond their config.
fn assumed_beyond(context: u64, reach: Option<u64>, notes: &mut Notes) {
    if let Some(reach) = reach.filter(|reach| context > *reach) {
        notes.assume(
            format!(
                "the accept length holds at {context} tokens, although the draft's config reaches {reach}"
            ),
            "--accept measured at this context",
        );
    }
}

fn from_assumption(
    assumed: &AssumedAccept,
    (head, context): (HeadKind, u64),
    notes: &mut Notes,
) -> anyhow::Result<Acceptance> {
    let chain = |length: f64| {
        Chain::from_accept_length(length, assumed.depth, head)
            .map_err(|e| input::error(format!("assumed.accept_length: {e}")))
    };
    let source = format!(
        "assumed, from {} to {} at {} steps: {}",
        assumed.low, assumed.high, assumed.depth, assumed.why
    );
    notes.input("accept_length", assumed.value, source.clone());
    notes.assume(
        format!(
            "accept length {} at {} steps, from {} to {} ({})",
            assumed.value, assumed.depth, assumed.low, assumed.high, assumed.why
        ),
        "--accept",
    );
    let known = Known::Assumed {
        low: chain(assumed.low)?,
        mid: chain(assumed.value)?,
        high: chain(assumed.high)?,
    };
    Ok(Acceptance::new(head, known, context))
}
