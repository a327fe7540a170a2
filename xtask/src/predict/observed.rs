//! What was observed, beside what is computed for it.

pub(super) mod by_log;
pub(super) mod by_sweep;

use serde::Serialize;

use super::answer::{Assumption, Memory};
use super::costs::{Costs, all_reduces};
use super::links::{Choice, Links};
use super::points::{best, try_depths};
use crate::scenario::Scenario;
use crate::scenario::file::{Figure, PublicKind};

/// Where an observed figure was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// In the scenario's file.
    Figure,
    /// In a server's log.
    Log,
    /// In a file of `--accept`.
    Bench,
    /// In the user's plain sweep.
    Sweep,
}

/// An observed figure beside the computed one.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Observed {
    pub(crate) what: String,
    #[serde(skip)]
    pub(crate) seen: Seen,
    pub(crate) observed: f64,
    pub(crate) computed: Option<f64>,
    /// The 90 % band of the computed figure, where one is known.
    pub(crate) computed_low: Option<f64>,
    pub(crate) computed_high: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) source: String,
    pub(crate) note: String,
}

impl Observed {
    /// Observed over computed, where that lies outside the band.
    pub(crate) fn outside(&self) -> Option<f64> {
        let (low, high) = (self.computed_low?, self.computed_high?);
        let out = self.observed < low || self.observed > high;
        out.then_some(self.observed / self.computed?)
    }
}

/// One row a figure of the scenario file.
pub(super) fn rows(
    scenario: &Scenario,
    links: &Links<'_>,
    memory: &Memory,
) -> anyhow::Result<Vec<Observed>> {
    let seen = &scenario.observed;
    let mut rows = Vec::new();
    if let Some(figure) = &seen.weights_gib {
        let computed = memory.computed_weights_gib;
        rows.push(row("weights of one GPU", figure, Some(computed), "GiB", ""));
    }
    let own = scenario.has_own_steps();
    if let Some(figure) = &seen.verify_ms {
        let tokens = figure.tokens.unwrap_or(1);
        let with = figure.allreduce.as_deref().unwrap_or("nccl");
        let all_reduce = all_reduces(scenario, links, Choice::parse(with)?);
        let costs = Costs::new(scenario, &all_reduce, links)?;
        rows.push(row(
            &format!("verify of {tokens} tokens, {with}"),
            figure,
            Some(costs.unpinned_verify_ms(1, tokens, scenario.observed_context)),
            "ms",
            match own {
                true if scenario.served.is_some() => "not used beside the steps of a stand-in",
                true => "the observed figure is used; what your plain steps make it stands beside",
                false => "the observed figure is used; the model's own stands beside",
            },
        ));
    }
    if let Some(figure) = seen.spec_tok_s.as_ref().filter(|_| has_its_draft(scenario)) {
        let with = figure.allreduce.as_deref().unwrap_or("nccl");
        rows.push(row(
            &format!("speculative, one user, {with} forced"),
            figure,
            spec_tok_s(scenario, links, with)?,
            "tok/s",
            match own {
                true => "from your plain steps, the observed verify and the difference of the two all-reduces",
                false => "from the observed verify and the difference of the two all-reduces",
            },
        ));
    }
    rows.extend(from_scratch(scenario, links)?);
    rows.extend(by_log::rows(scenario, links)?);
    rows.extend(by_sweep::rows(scenario, links)?);
    Ok(rows)
}

fn row(
    what: &str,
    figure: &Figure,
    computed: Option<f64>,
    unit: &'static str,
    note: &str,
) -> Observed {
    Observed {
        what: what.to_string(),
        seen: Seen::Figure,
        observed: figure.value,
        computed,
        computed_low: None,
        computed_high: None,
        unit,
        source: figure.source.clone(),
        note: note.to_string(),
    }
}

/// Whether the draft is the one of the observed speculative figures.
fn has_its_draft(scenario: &Scenario) -> bool {
    scenario.draft.is_some() && !scenario.observed.of_another_draft
}

/// Says that speculative figures are left out, where another draft or none is asked for.
pub(super) fn left_out(scenario: &Scenario) -> Option<Assumption> {
    let seen = &scenario.observed;
    let mut public = seen.public.iter().flatten();
    let speculates = public.any(|figure| figure.what == PublicKind::SpecTokS);
    let has = seen.spec_tok_s.is_some() || (speculates && !scenario.has_own_steps());
    (has && !has_its_draft(scenario)).then(|| Assumption {
        what: "observed speculative figures are left out: they were seen with the scenario's own draft"
            .to_string(),
        settled_by: String::new(),
    })
}

/// Public figures for the class of box, beside the answer without the pinned verify: at the context,
/// the all-reduce, the steps and the accept length of what was seen, whatever is asked for.
fn from_scratch(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Vec<Observed>> {
    // With steps of one's own nothing is computed from scratch.
    let public = scenario.observed.public.as_ref();
    let Some(public) = public.filter(|_| !scenario.has_own_steps()) else {
        return Ok(Vec::new());
    };
    let verify = scenario.observed.verify_ms.as_ref();
    let with = verify.and_then(|figure| figure.allreduce.as_deref());
    let with = Choice::parse(with.unwrap_or(&scenario.allreduce))?;
    let all_reduce = all_reduces(scenario, links, with);
    let costs = Costs::new(scenario, &all_reduce, links)?;
    let context = scenario.observed_context;
    let mut rows = Vec::new();
    for figure in public {
        let (what, tok_s, at) = match figure.what {
            PublicKind::PlainTokS => {
                let plain_ms = costs.cycle(1, context, 1, 2).plain_ms;
                ("plain", Some(1000.0 / plain_ms), String::new())
            }
            PublicKind::SpecTokS if !has_its_draft(scenario) => continue,
            PublicKind::SpecTokS => (
                "speculative",
                drafting(scenario, &costs, figure.steps, figure.accept_length),
                figure.accept_length.map_or_else(String::new, |length| {
                    format!(", at that figure's accept length {length}")
                }),
            ),
        };
        rows.push(Observed {
            what: format!("{what}, one user, public figure"),
            seen: Seen::Figure,
            observed: figure.value,
            computed: tok_s,
            computed_low: None,
            computed_high: None,
            unit: "tok/s",
            source: figure.source.clone(),
            note: format!(
                "from scratch, without the observed verify{at}; seen with {}",
                figure.source
            ),
        });
    }
    Ok(rows)
}

/// What was seen with an all-reduce, with the observed verify and its steps.
fn spec_tok_s(scenario: &Scenario, links: &Links<'_>, with: &str) -> anyhow::Result<Option<f64>> {
    let all_reduce = all_reduces(scenario, links, Choice::parse(with)?);
    let mut costs = Costs::new(scenario, &all_reduce, links)?;
    costs.pin = super::pin(scenario, links)?;
    let verify = scenario.observed.verify_ms.as_ref();
    let steps = verify.and_then(|figure| figure.tokens?.checked_sub(1));
    Ok(drafting(scenario, &costs, steps, None))
}

/// Tokens a second of one user at the observed context, with the steps and the accept length of what
/// was seen where these are known, else the scenario's.
fn drafting(
    scenario: &Scenario,
    costs: &Costs<'_>,
    steps: Option<u32>,
    accept_length: Option<f64>,
) -> Option<f64> {
    let context = scenario.observed_context;
    let Some(steps) = steps.filter(|steps| *steps > 0) else {
        let tried = try_depths(scenario, costs, 1, context);
        return best(&tried).map(|b| 1000.0 / b.cost.plain_ms * b.speedup);
    };
    let tokens = steps.saturating_add(1);
    let expected = scenario.acceptance.tree_band(steps, 1, tokens, context).1;
    let cost = costs.cycle(1, context, steps, tokens);
    let tok_s = 1000.0 / cost.plain_ms * cost.speedup(accept_length.unwrap_or(expected));
    tok_s.is_finite().then_some(tok_s)
}
